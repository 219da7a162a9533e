"""The mail about invitations, from the deployment's own identity (console-billing-notifications §8; inbound §2.4).

A row of `invitations` whose mail is due is the job. The mail has its id beforehand, so that it is sent once whoever
dies when. What is kept of it has no code in it (A15); what goes out is deleted when it has left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.accounts.invitations import Invitation
from postroom.accounts.service.members import Members
from postroom.accounts.store import invitations as store
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.db.claim import Claim, ClaimQueue, ClaimSpec
from postroom.db.errors import is_transient
from postroom.db.pool import Database
from postroom.directory import Identity
from postroom.mail.address import Address
from postroom.mail.compose import AutoSubmitted, Draft, compose, message_id
from postroom.mailbox.models import Content, MailboxRef
from postroom.outbound.models import Accepted, NewRecipient, Operation, Outgoing, RecipientField, RouteKind, SendKind
from postroom.outbound.relaying import bare

log = base_log.get("invitations")

LOCAL_PART: Final = "no-reply"
DISPLAY_NAME: Final = "Postroom"
BATCH: Final = 50
FIRST_WAIT: Final = 60
LONGEST_WAIT: Final = 3600
BODY_REDACTED: Final = "body_redacted"
REDACTED: Final = "[code]"
MAX_SHOWN: Final = 64
"""Characters of a name that somebody else chose."""

QUEUE: Final = ClaimQueue(
    ClaimSpec(
        table="invitations",
        keys={"tenant_id": "bigint", "id": "bigint"},
        lease=timedelta(minutes=5),
        max_attempts=30,
        due="t.status = 'pending'",
    )
)

_WRITTEN: Final = "SELECT EXISTS (SELECT FROM messages WHERE public_id = $1)"
_NAMES: Final = """
SELECT t.name AS tenant, (SELECT p.display_name FROM people p WHERE p.public_id = $2) AS inviter
FROM tenants t WHERE t.id = $1
"""

Describe = Callable[[bytes, bytes, datetime], Awaitable[Content]]
Accept = Callable[[Outgoing], Awaitable[Accepted]]
Sign = Callable[[bytes, str], Awaitable[bytes]]
RouteTo = Callable[[str], Awaitable[RouteKind]]
Sender = Callable[[], Awaitable[Identity]]


@dataclass(frozen=True, slots=True)
class Letter:
    """What the mail about an invitation says."""

    api_host: str
    platform_domain: str
    tenant: str
    inviter: str | None
    role: str
    expires_at: datetime


class InvitationMail:
    """Writes the mail that is due. Any number may run.

    `sender` gives the deployment's own identity; `accept` is `Acceptance.accept`, `describe` `Parser.describe`.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        members: Members,
        *,
        sender: Sender,
        accept: Accept,
        describe: Describe,
        sign: Sign,
        route: RouteTo,
        api_host: str,
    ) -> None:
        self._database, self._clock, self._members = database, clock, members
        self._sender, self._accept, self._describe = sender, accept, describe
        self._sign, self._route, self._api_host = sign, route, api_host

    async def run_due(self) -> int:
        """Write what is due; how many were taken up."""
        async with self._database.transaction() as conn:
            batch = await QUEUE.claim(conn, now=self._clock.now(), limit=BATCH)
        for claim in batch.claims:
            await self._handle(claim)
        return len(batch.claims)

    async def _handle(self, claim: Claim) -> None:
        try:
            await self._write(claim)
        except Exception as failure:
            if is_transient(failure):
                raise
            word = failure.code if isinstance(failure, PostroomError) else type(failure).__name__
            log.warning("invitation_not_mailed", error=word)
            wait, now = min(FIRST_WAIT << min(claim.attempt - 1, 6), LONGEST_WAIT), self._clock.now()
            async with self._database.acquire() as conn:
                await QUEUE.retry(conn, claim, now=now, at=now + timedelta(seconds=wait), error=word)
            return
        async with self._database.acquire() as conn:
            await QUEUE.finish(conn, [claim])

    async def _write(self, claim: Claim) -> None:
        now, (tenant_id, key) = self._clock.now(), claim.key
        async with self._database.acquire() as conn:
            found = await store.to_mail(conn, tenant_id, key, now)
            if found is None or await conn.fetchval(_WRITTEN, found[1]):
                return  # it ended meanwhile, or whoever had it before wrote it
            invitation, mail_id = found
            names = await conn.fetchrow(_NAMES, invitation.tenant_id, invitation.invited_by)
        outgoing = await self._outgoing(invitation, mail_id, names, now)
        await self._accept(outgoing)
        log.info("invitation_mailed", invitation=invitation.public_id, message_id=mail_id)

    async def _outgoing(self, invitation: Invitation, mail_id: str, names: Any, now: datetime) -> Outgoing:
        sender, code = await self._sender(), await self._members.code(invitation)
        own = sender.primary.address
        letter = Letter(
            self._api_host,
            own.rpartition("@")[2],
            names["tenant"],
            names["inviter"],
            invitation.role.value,
            invitation.expires_at,
        )
        draft = _draft(letter, own, invitation.email, mail_id, now)
        boundary = mail_id.partition("_")[2]
        kept = compose(replace(draft, text=words(letter, REDACTED)), boundary).to_bytes()
        wire = compose(replace(draft, text=words(letter, code)), boundary).to_bytes()
        content = bare(await self._describe(b"", kept, now))
        return Outgoing(
            id=mail_id,
            mailbox=MailboxRef(sender.tenant_id, sender.id),
            tenant_id=sender.tenant_public_id,
            identity_id=sender.public_id,
            operation=Operation.SEND,
            kind=SendKind.TRANSACTIONAL,
            envelope_from=own,
            recipients=(NewRecipient(invitation.email, RecipientField.TO, await self._route(invitation.email)),),
            sent_copy=kept,
            wire=await self._sign(wire, letter.platform_domain),
            content=replace(content, facts=(*content.facts, BODY_REDACTED)),
            smtputf8=not invitation.email.isascii(),
        )


def words(letter: Letter, code: str) -> str:
    """The text. Names that others chose stand by themselves, cut and on one line, so that they say nothing for us."""
    who = "" if letter.inviter is None else f"    Invited by: {_shown(letter.inviter)}\n"
    api = f"https://{letter.api_host}/v1"
    return (
        f"You are invited to a workspace on {letter.platform_domain}.\n\n"
        f"    Workspace:  {_shown(letter.tenant)}\n"
        f"{who}"
        f"    Role:       {letter.role}\n\n"
        f"Your invitation code, which counts once and until {letter.expires_at:%Y-%m-%d %H:%M} UTC:\n\n"
        f"    {code}\n\n"
        "If you have an account with this address, sign in and send the code with\n"
        f"    POST {api}/account/invitations/accept\n"
        "Otherwise choose a password, and send it with the code and your name with\n"
        f"    POST {api}/auth/invitation\n\n"
        "Whoever has the code can take your place: pass it on to nobody. If you know nothing of this, do nothing.\n"
    )


def _draft(letter: Letter, own: str, to: str, mail_id: str, now: datetime) -> Draft:
    local, _, domain = own.rpartition("@")
    to_local, _, to_domain = to.rpartition("@")
    return Draft(
        from_=Address(DISPLAY_NAME, local, domain),
        date=now,
        message_id=message_id(mail_id.partition("_")[2], domain),
        to=(Address("", to_local, to_domain),),
        subject=f"Invitation to a workspace on {letter.platform_domain}",
        auto_submitted=AutoSubmitted.GENERATED,
    )


def _shown(name: str) -> str:
    plain = " ".join("".join(char if char.isprintable() else " " for char in name).split())
    return f'"{plain[:MAX_SHOWN]}"'
