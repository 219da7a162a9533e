"""What people's mail programs and agents submit by SMTP (mail-server A3, A7; outbound §4 as far as it is theirs).

The message is theirs: nothing is composed, only mended; who they say they are is checked twice, at MAIL and after the
dot. A `250` is given when it is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from postroom.accounts.models import Mode, Principal, PrincipalKind, TenantStatus
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs import BlobMissing, BlobStore
from postroom.db.errors import BROKEN, DatabaseUnavailable
from postroom.db.pool import Connection, Database
from postroom.directory.lists import Matches
from postroom.directory.models import AddressStatus, IdentityKind, IdentityStatus, Recipient
from postroom.inbound.describe import looks_quick
from postroom.inbound.parsing import Parser, ParserBusy, ParsingFailed
from postroom.mail.srs import MAX_HOP, LoopError, hop_field, next_hop
from postroom.mailbox.models import Direction
from postroom.outbound import senders, thread_lock
from postroom.outbound.accept import Also
from postroom.outbound.allowance import Allowance, SubmissionLimits
from postroom.outbound.facts import HEADER_BYTES, nature
from postroom.outbound.known import on_send_lists, written_to
from postroom.outbound.models import Accepted, NewRecipient, Operation, Outgoing, RecipientField, RouteKind, SendKind
from postroom.outbound.policy import HUMAN_KINDS, SIMULATOR, allowlist_only
from postroom.outbound.send_rules import SendRules
from postroom.outbound.senders import Sender
from postroom.outbound.submitted import REPLIES, Read, read
from postroom.outbound.thread_lock import ThreadLocks
from postroom.smtp import replies
from postroom.smtp.envelope import Envelope
from postroom.smtp.params import NO_RCPT_PARAMETERS, Body, RcptParameters
from postroom.smtp.replies import Reply
from postroom.smtp.trace import submission_header, transmission_type

log = base_log.get("outbound.submission")

NOT_OWNED: Final = Reply(550, "5.7.1", "Sender address rejected: not owned by user")
NULL_SENDER: Final = Reply(550, "5.7.1", "Sender address rejected: a sender is needed")
RATE_EXCEEDED: Final = Reply(452, "4.7.0", "Submission rate limit exceeded")
DAILY_EXCEEDED: Final = Reply(452, "4.7.0", "Daily send limit exceeded")
MAILBOX_FULL: Final = Reply(452, "4.2.2", "Mailbox full")
TEST_MODE: Final = Reply(550, "5.7.1", "test_mode_recipient")
NOT_ALLOWED: Final = Reply(550, "5.7.1", "recipient_not_allowed")
NO_AUTO_REPLY: Final = Reply(550, "5.7.1", "auto_reply_not_allowed")
DOMAIN_PENDING: Final = Reply(450, "4.7.0", "domain_not_ready")

_READY: Final = frozenset({"healthy", "degraded", "active"})
_COMING: Final = frozenset({"pending", "verifying"})

# What the refusals of sending are over SMTP (A3); everything else by whether waiting helps.
_OF_ERRORS: Final[Mapping[str, Reply]] = {
    "mailbox_full": MAILBOX_FULL,
    "message_too_large": replies.TOO_LARGE,
    "domain_not_ready": DOMAIN_PENDING,
    "rate_limited": RATE_EXCEEDED,
    "daily_cap_reached": DAILY_EXCEEDED,
}


class Sign(Protocol):
    """Puts the signatures of a domain before a message (C8): the signed message, whose end is the one given."""

    async def __call__(self, wire: bytes, domain: str, /) -> bytes: ...


class Route(Protocol):
    """How mail for an address leaves that is not ours, from a sender of that domain (C5, C6)."""

    async def __call__(self, address: str, sender_domain: str, /) -> RouteKind: ...


class Accept(Protocol):
    """Stores what is to be sent (`accept.Acceptance`)."""

    async def accept(self, outgoing: Outgoing, /, *, also: Also | None = None) -> Accepted: ...


@dataclass(frozen=True, slots=True)
class Destination:
    """What RCPT resolved to: an address (lower case, A-labels, detail in it), and whose it is if it is one of ours."""

    address: str
    local: Recipient | None = None


class _Refused(Exception):
    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.text)
        self.reply = reply


class Submission:
    """One per process. `blobs` holds the messages that are answered; `hostname` and `version` are for the trace header,
    in which `hide_client_ip` leaves out where the client is; `rules` are for agents.
    """

    def __init__(
        self,
        database: Database,
        acceptance: Accept,
        parser: Parser,
        clock: Clock,
        ids: IdGenerator,
        *,
        hostname: str,
        version: str,
        sign: Sign,
        route: Route,
        blobs: BlobStore,
        hash_key: bytes,
        limits: SubmissionLimits | None = None,
        rules: SendRules | None = None,
        hide_client_ip: bool = True,
        locks: ThreadLocks | None = None,
    ) -> None:
        self._database = database
        self._acceptance = acceptance
        self._parser = parser
        self._clock = clock
        self._ids = ids
        self._hostname = hostname
        self._version = version
        self._sign = sign
        self._route = route
        self._blobs = blobs
        self._allowance = Allowance(limits, hash_key)
        self._rules = rules or SendRules()
        self._hide_client_ip = hide_client_ip
        self._locks = locks or ThreadLocks(database, clock)

    async def check_sender(self, address: str, account: Principal) -> Reply | None:
        """Whether the account may send from `address` (lower case, A-labels; empty: the null sender) now; None if so.

        What would be refused after the dot anyway is refused before the message comes.
        """
        if not address:
            return NULL_SENDER
        now = self._clock.now()
        base = _base(address)
        async with self._database.acquire() as conn:
            owned = await senders.owned(conn, account, [base], now)
            if base not in owned:
                return NOT_OWNED
            refusal = _refusal(owned[base])
            if refusal is not None:
                return refusal
            over = await self._allowance.exceeded(conn, account, 1, now)
            return None if over is None else reply_of(over)

    async def submit(self, envelope: Envelope[Destination], raw: bytes, account: Principal) -> Reply:
        """Accept the message for all its recipients or for none; the reply is given after the commit."""
        try:
            accepted = await self._submit(envelope, raw, account)
        except _Refused as refused:
            reply = refused.reply
        except PostroomError as error:
            reply = reply_of(error)
        except (ParserBusy, ParsingFailed):
            reply = replies.LOCAL_ERROR
        else:
            return replies.queued(accepted.message_id)
        log.info("submission_refused", connection_id=envelope.connection_id, code=reply.code, account=account.public_id)
        return reply

    async def _submit(self, envelope: Envelope[Destination], raw: bytes, account: Principal) -> Accepted:
        now = self._clock.now()
        sender_key = envelope.mail_from.lower()
        if not sender_key:
            raise _Refused(NULL_SENDER)
        message_id = self._ids.new("msg")
        found = await self._read(
            raw,
            now,
            f"{message_id}@{sender_key.rpartition('@')[2]}",
            binary=envelope.parameters.body is Body.BINARY,
        )
        wanted = _wanted(envelope)
        async with self._database.acquire() as conn:
            sender = await self._sender(conn, account, sender_key, found, now)
            listed = await on_send_lists(conn, sender.mailbox.tenant_id, wanted.keys())
        _check_lists(wanted.keys(), listed, sender, self._rules)
        if sender.mode is Mode.TEST:
            _check_test_mode(wanted, sender)
        answered = await self._answered(sender, found.in_reply_to)
        is_agent = sender.kind is IdentityKind.AGENT
        if is_agent:
            await self._check_agent(sender, wanted, found.in_reply_to, listed.allowed)
            if found.auto_replied:
                self._check_auto_reply(sender, answered)
        hop = _hop_after(answered, is_agent)
        trace = self._trace(envelope, now) + hop_field(hop)
        wire = trace + found.submitted.wire
        signed = await self._sign(wire, found.author_domain)
        # The Sent copy differs by its Bcc alone (C5), so the signature stands before it, too.
        prefix = signed.removesuffix(wire) + trace if signed.endswith(wire) else trace
        content = await self._parser.describe(prefix, found.submitted.sent_copy, now)
        outgoing = Outgoing(
            id=message_id,
            mailbox=sender.mailbox,
            tenant_id=sender.tenant_id,
            identity_id=sender.identity_id,
            operation=Operation.SUBMISSION,
            kind=SendKind.AUTO_REPLY if is_agent and found.auto_replied else SendKind.TRANSACTIONAL,
            envelope_from=sender_key,
            recipients=await self._recipients(wanted, found, sender),
            sent_copy=prefix + found.submitted.sent_copy,
            wire=signed,
            content=replace(content, recipients=content.recipients + found.blind) if found.blind else content,
            eight_bit=found.eight_bit,
            smtputf8=_needs_utf8(envelope, found),
            hop=hop,
            person_id=account.row_id if account.kind is PrincipalKind.PERSON else None,
            dsn_ret=None if envelope.parameters.ret is None else envelope.parameters.ret.value,
            dsn_envid=envelope.parameters.envid,
        )
        async with self._thread(sender, answered, message_id) as locked, self._allowance.turn(account):
            if locked is not None and found.auto_replied:
                # While the lock was waited for, others may have answered.
                self._check_auto_reply(sender, await self._answered(sender, found.in_reply_to))
            async with self._database.acquire() as conn:
                also = await self._allowance.admit(conn, account, outgoing, self._clock.now())
            accepted = await self._acceptance.accept(replace(outgoing, lock_thread=locked is not None), also=also)
        if locked is not None and locked != accepted.thread_id:
            async with self._database.acquire() as conn:
                await thread_lock.release(conn, sender.mailbox, locked, message_id, accepted=True)
        return accepted

    @asynccontextmanager
    async def _thread(self, sender: Sender, answered: _Answered | None, owner: str) -> AsyncIterator[str | None]:
        """The lock of the thread that an agent answers in, which the message keeps until it leaves (C4); given back
        when it is not accepted. A person's mail program cannot be told to wait. Raises `thread_busy`."""
        if sender.kind is not IdentityKind.AGENT or answered is None:
            yield None
            return
        thread_id = answered.target.thread_id
        await self._locks.acquire(sender.mailbox, thread_id, owner)
        try:
            yield thread_id
        except BaseException:
            await asyncio.shield(self._unlock(sender, thread_id, owner))
            raise

    async def _unlock(self, sender: Sender, thread_id: str, owner: str) -> None:
        """A database that is away costs the next answer the lease."""
        try:
            async with self._database.acquire() as conn:
                await thread_lock.release(conn, sender.mailbox, thread_id, owner)
        except (DatabaseUnavailable, *BROKEN) as error:
            log.warning("thread_not_unlocked", message_id=owner, error=type(error).__name__)

    async def _read(self, raw: bytes, now: datetime, message_id: str, *, binary: bool) -> Read:
        found: Read | StrEnum
        if looks_quick(raw):
            found = read(raw, date=now, message_id=message_id, binary=binary)
        else:
            found = await self._parser.run(len(raw), read, raw, date=now, message_id=message_id, binary=binary)
        if isinstance(found, StrEnum):
            raise _Refused(REPLIES[found])
        return found

    async def _sender(self, conn: Connection, account: Principal, sender: str, found: Read, now: datetime) -> Sender:
        """The mailbox that sends. Everybody that the message says it is from must be the account's (A3)."""
        claimed = {_base(key) for key in found.authors if key is not None} | {_base(sender)}
        owned = await senders.owned(conn, account, claimed, now)
        if None in found.authors or claimed - owned.keys():
            raise _Refused(NOT_OWNED)
        for one in owned.values():
            refusal = _refusal(one)
            if refusal is not None:
                raise _Refused(refusal)
        return owned[_base(sender)]

    async def _check_agent(
        self, sender: Sender, wanted: Mapping[str, _Wanted], in_reply_to: str | None, allowed: frozenset[str]
    ) -> None:
        """The controls of an agent's sending that hold however it sends (A3; outbound §4 steps 7 and 16). `allowed` are
        on the tenant's list."""
        if len(wanted) > self._rules.under(sender.policy).max_recipients:
            raise _Refused(Reply(550, "5.7.1", "too_many_recipients"))
        if not sender.send_policy.get("require_known_recipient", True):
            return
        async with self._database.acquire() as conn:
            unknown = wanted.keys() - allowed - await written_to(conn, sender.mailbox, wanted.keys())
            if unknown and in_reply_to is not None:
                unknown -= await senders.wrote(conn, sender.mailbox, in_reply_to, ("pass",), unknown)
        if unknown:
            raise _Refused(NOT_ALLOWED)

    async def _answered(self, sender: Sender, in_reply_to: str | None) -> _Answered | None:
        """The message of the mailbox that this one answers."""
        if in_reply_to is None:
            return None
        async with self._database.acquire() as conn:
            target = await senders.answered(conn, sender.mailbox, in_reply_to)
        if target is None:
            return None
        if target.hop is not None:
            return _Answered(target, target.hop, False)
        try:
            piece = await self._blobs.get_range(target.blob_key, 0, min(target.raw_size, HEADER_BYTES))
        except BlobMissing:  # past its retention: what is known is in its row
            return _Answered(target, 0, False)
        return _Answered(target, *nature(piece))

    def _check_auto_reply(self, sender: Sender, answered: _Answered | None) -> None:
        """D6: never to a machine or a list, and not for ever (outbound §5.6)."""
        rules = self._rules.under(sender.policy)
        allowed = (
            answered is not None
            and answered.target.direction is Direction.INBOUND
            and answered.target.kind in HUMAN_KINDS
            and not answered.automated
            and answered.target.automatic < rules.max_automatic_exchanges
            and rules.auto_reply_allowed
            and sender.send_policy.get("auto_reply", "allowed") != "denied"
        )
        if not allowed:
            raise _Refused(NO_AUTO_REPLY)

    async def _recipients(self, wanted: Mapping[str, _Wanted], found: Read, sender: Sender) -> tuple[NewRecipient, ...]:
        domain = found.author_domain
        recipients = []
        for address, one in wanted.items():
            notify, orcpt = one.parameters.notify, one.parameters.orcpt
            recipients.append(
                NewRecipient(
                    address=address,
                    field=found.fields.get(address, RecipientField.ENVELOPE),
                    route=await self._route_of(one.to, domain, sender),
                    dsn_notify=tuple(sorted(word.value for word in notify)) or None,
                    dsn_orcpt=None if orcpt is None else ";".join(orcpt),
                )
            )
        return tuple(recipients)

    async def _route_of(self, to: Destination, domain: str, sender: Sender) -> RouteKind:
        """Of a test tenant what is not local goes to the simulator: `_check_test_mode` (FR-TEN-2)."""
        if sender.mode is Mode.TEST:
            return RouteKind.SIMULATOR if to.local is None else RouteKind.LOCAL
        return RouteKind.LOCAL if to.local is not None else await self._route(to.address, domain)

    def _trace(self, envelope: Envelope[Destination], now: datetime) -> bytes:
        return submission_header(
            client=None if self._hide_client_ip else (envelope.helo, envelope.peer_ip),
            hostname=self._hostname,
            version=self._version,
            transmission=transmission_type(
                esmtp=envelope.esmtp, tls=envelope.tls, authenticated=True, smtputf8=envelope.smtputf8
            ),
            connection_id=envelope.connection_id,
            received_at=now,
        )


@dataclass(frozen=True, slots=True)
class _Wanted:
    to: Destination
    parameters: RcptParameters


@dataclass(frozen=True, slots=True)
class _Answered:
    """The message that is answered, its hop, and whether it says that a machine wrote it or a list sent it."""

    target: senders.Target
    hop: int
    automated: bool


def _check_lists(wanted: Collection[str], listed: Matches, sender: Sender, rules: SendRules) -> None:
    """Whom the tenant blocks is written to by nobody of it; what a person composed is refused whole (outbound §5.4)."""
    only_allowed = allowlist_only(sender.policy, rules.defaults)
    if not listed.blocked.isdisjoint(wanted) or (only_allowed and set(wanted) - listed.allowed):
        raise _Refused(NOT_ALLOWED)


def _check_test_mode(wanted: Mapping[str, _Wanted], sender: Sender) -> None:
    """A test tenant writes to the simulator and to its own people (L1, L3, FR-OUT-12); partners are none yet."""
    for address, one in wanted.items():
        local = one.to.local
        if local is None and address.rpartition("@")[2] == SIMULATOR:
            continue
        if local is None or local.tenant_id != sender.mailbox.tenant_id:
            raise _Refused(TEST_MODE)


def _hop_after(answered: _Answered | None, is_agent: bool) -> int:
    """The hop of this message (outbound §5.6). An agent's tenth is refused (N13); a person stops by themselves."""
    before = 0 if answered is None else answered.hop
    try:
        return next_hop(before)
    except LoopError:
        if is_agent:
            raise _Refused(replies.MAIL_LOOP) from None
        return MAX_HOP


def _wanted(envelope: Envelope[Destination]) -> dict[str, _Wanted]:
    """The recipients, each once: the first RCPT of an address counts."""
    given: Sequence[RcptParameters] = envelope.recipient_parameters
    found: dict[str, _Wanted] = {}
    for at, (_, to) in enumerate(envelope.recipients):
        found.setdefault(to.address, _Wanted(to, given[at] if given else NO_RCPT_PARAMETERS))
    return found


def _needs_utf8(envelope: Envelope[Destination], found: Read) -> bool:
    """Many clients say SMTPUTF8 whenever it is offered; servers elsewhere without it are only to be passed over when
    there is something that needs it (RFC 6531 §3.4)."""
    named = [envelope.mail_from, *(to.address for _, to in envelope.recipients)]
    return envelope.smtputf8 and (found.utf8_header or not all(address.isascii() for address in named))


def _base(address: str) -> str:
    """An address without the detail of its local part, which names nobody else (A2)."""
    local, _, domain = address.rpartition("@")
    return f"{local.partition('+')[0]}@{domain}"


def _refusal(sender: Sender) -> Reply | None:
    """Why nothing may be sent from that address now (A3; outbound §4 steps 2 to 4 and 14)."""
    domain = sender.domain_status
    table = (
        (sender.tenant_status is not TenantStatus.ACTIVE, _permanent("tenant_suspended")),
        (sender.status is IdentityStatus.PAUSED, _permanent("identity_paused")),
        (sender.sending_paused, _permanent("sending_paused")),
        (sender.kind is IdentityKind.AGENT and not sender.has_owner, _permanent("identity_owner_required")),
        (sender.address_status is AddressStatus.PENDING or domain in _COMING, DOMAIN_PENDING),
        # What a person wrote is not sent from another address instead (D10).
        (domain not in _READY, Reply(550, "5.7.1", f"domain_not_ready: the domain is {domain}")),
    )
    return next((reply for holds, reply in table if holds), None)


def _permanent(code: str) -> Reply:
    return Reply(550, "5.7.1", code)


def reply_of(error: PostroomError) -> Reply:
    """A refusal of the sending services in SMTP's words (A3)."""
    known = _OF_ERRORS.get(error.code)
    if known is not None:
        return known
    return replies.LOCAL_ERROR if error.retryable or error.status >= 500 else _permanent(error.code)
