"""The door of mail that goes on: to where aliases lead elsewhere, and back to those who wrote it (mail-server A6).

What goes on is what came, octet for octet, so that its author's signature holds, below a trace line and a hop of ours;
its envelope sender is rewritten, so that the next host may believe it and bounces find back. Those come to the
rewritten sender, with the null sender, and go on in the same way to whom that names.

All of it belongs to the relay of a tenant (`directory.relays`) and to nobody else. Who sends the same octets for the
same recipient again, because the first time somebody else could not take them, makes no second copy (`forwards`),
unless the first one failed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from postroom.accounts.models import Mode
from postroom.accounts.signing_keys import Purpose, SigningKeys
from postroom.accounts.store import tenants
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db.errors import is_transient
from postroom.db.pool import Connection, Database
from postroom.directory import aliases, rules
from postroom.directory.models import Forward, Refusal
from postroom.directory.relays import Relays
from postroom.inbound.parsing import Parser, ParserBusy, ParsingFailed
from postroom.inbound.receive import hop_of, transmission_of
from postroom.inbound.reception import Passage, Taking
from postroom.mail.compose.downgrade import downgrade_to_7bit
from postroom.mail.srs import LoopError, SrsError, hop_field, next_hop
from postroom.mailbox.models import Content, MailboxRef
from postroom.outbound import passed, rewriting
from postroom.outbound.accept import Also
from postroom.outbound.models import (
    Accepted,
    NewRecipient,
    Operation,
    Outgoing,
    RecipientField,
    RouteKind,
    SendKind,
)
from postroom.outbound.relaying import bare
from postroom.smtp import replies
from postroom.smtp.envelope import Envelope
from postroom.smtp.params import Body
from postroom.smtp.replies import Reply
from postroom.smtp.trace import relay_header

log = base_log.get("forwarding")

T = TypeVar("T")

BAD_SENDER: Final = Refusal(550, "5.1.7", "The sender's address is too long to be passed on")
NOT_PASSED_ON: Final = Refusal(550, "5.7.1", "Mail to this address cannot be passed on")
BOUNCES_ONLY: Final = Refusal(550, "5.7.1", "This address takes bounces only")
TOO_MANY: Final = Refusal(450, "4.7.1", "Too many bounces to this address, please try again later")
REJECTED: Final = Reply(550, "5.7.1", "Not passed on: the author's domain asks to reject this mail")
NOT_CONVERTED: Final = Reply(554, "5.6.3", "Binary mail that cannot be converted is not passed on")


class Accept(Protocol):
    """Stores what is to be sent (`Acceptance.accept`)."""

    async def __call__(self, outgoing: Outgoing, *, also: Also) -> Accepted: ...


class Route(Protocol):
    """How mail to an address leaves (`Routes.route`)."""

    async def __call__(self, address: str, *, from_domain: str, mode: Mode) -> RouteKind: ...


Forbids = Callable[[Envelope[Passage], Content], Awaitable[bool]]
"""Whether mail failed DMARC and its author's domain asks to reject such mail. It is then never passed on (A6)."""


async def nothing_known(envelope: Envelope[Passage], content: Content) -> bool:
    """As long as there are no verdicts."""
    return False


@dataclass(frozen=True, slots=True)
class Onward:
    """A way on, in the name of a tenant. `sender` is the envelope sender under which mail takes it, `author` the one
    under which it came (both empty for the null sender); `written` the address of ours that was written to.

    `returns`: it leads back to an author.
    """

    tenant_id: int
    tenant_public_id: str
    author: str
    sender: str
    target: str
    route: RouteKind
    written: str
    returns: bool = False


class _PassedMeanwhile(Exception):
    """Somebody else has just passed on the same."""


class _TooManyReturns(Exception):
    """An author has had as many bounces as they may have in an hour."""


class Forwarding:
    """One per process. `resolve` and `prepare` are those of a door (`inbound.reception`), `onward` is for what the
    directory says is to go on. `is_local` says whether a domain is ours.
    """

    def __init__(
        self,
        database: Database,
        parser: Parser,
        clock: Clock,
        ids: IdGenerator,
        *,
        hostname: str,
        version: str,
        keys: SigningKeys,
        relays: Relays,
        is_local: Callable[[str], Awaitable[bool]],
        accept: Accept,
        route: Route,
        forbids: Forbids = nothing_known,
    ) -> None:
        self._database = database
        self._parser = parser
        self._clock = clock
        self._ids = ids
        self._hostname = hostname
        self._version = version
        self._keys = keys
        self._relays = relays
        self._is_local = is_local
        self._accept = accept
        self._route = route
        self._forbids = forbids

    # -- at RCPT -------------------------------------------------------------------------------------------------------

    async def onward(self, forward: Forward, mail_from: str) -> Passage | Refusal:
        """The passage for mail of a sender to an alias that leads elsewhere."""
        try:
            sender = rewriting.rewrite(
                mail_from, forward.domain, forward.tenant_id, await self._ring(), self._clock.now()
            )
            route = await self._route(forward.target, from_domain=forward.domain, mode=forward.mode)
        except SrsError:
            return BAD_SENDER
        except Exception as error:
            refusal = _refusal_of(error)
            if refusal is None:
                raise
            return refusal
        what = Onward(
            forward.tenant_id,
            forward.tenant_public_id,
            mail_from,
            sender,
            forward.target,
            route,
            forward.written,
        )
        return Passage(self, forward.written, what)

    async def resolve(self, address: str, mail_from: str) -> Passage | Refusal | None:
        """The passage of a bounce to a sender that we rewrote; None for any other address."""
        domain = address.rpartition("@")[2]
        if not rewriting.is_rewritten(address):
            return None
        try:
            if not await self._is_local(domain):
                return None
            if mail_from:
                return BOUNCES_ONLY
            return await self._return(address, domain)
        except SrsError:
            return rules.UNKNOWN
        except Exception as error:
            refusal = _refusal_of(error)
            if refusal is None:
                raise
            return refusal

    async def _return(self, address: str, domain: str) -> Passage | Refusal:
        now = self._clock.now()
        author = rewriting.reverse(address, await self._ring(), now)
        async with self._database.acquire() as conn:
            tenant = await tenants.get_by_id(conn, author.tenant_id)
            # It may be another tenant's by now.
            if tenant is None or await aliases.usable_domain(conn, tenant.id, domain) is None:
                return rules.UNKNOWN
            refusal = rules.of_tenant(tenant.status, tenant.suspended_at, now)
            if refusal is None and not await passed.may_return(conn, tenant.id, author.address, now):
                refusal = TOO_MANY
        if refusal is not None:
            return refusal
        route = await self._route(author.address, from_domain=domain, mode=tenant.mode)
        what = Onward(tenant.id, tenant.public_id, "", "", author.address, route, address, returns=True)
        return Passage(self, address, what)

    async def _ring(self) -> list[bytes]:
        return [key.secret for key in await self._keys.ring(Purpose.FORWARD)]

    # -- after the dot -------------------------------------------------------------------------------------------------

    async def prepare(self, envelope: Envelope[Passage], raw: bytes) -> Taking | Reply:
        """Whatever of the message forbids that it goes on is found out here, also that it cannot be converted."""
        return await self._or_later(envelope, self._prepare(envelope, raw))

    async def _or_later(self, envelope: Envelope[Passage], work: Awaitable[T]) -> T | Reply:
        """What comes of `work`; a temporary refusal for what is away just now."""
        try:
            return await work
        except PostroomError as error:
            log.warning("not_passed_on", connection_id=envelope.connection_id, reason=error.code)
        except Exception as error:
            if not is_transient(error):
                raise
            log.warning("not_passed_on", connection_id=envelope.connection_id, reason=type(error).__name__)
        return replies.LOCAL_ERROR

    async def _prepare(self, envelope: Envelope[Passage], raw: bytes) -> Taking | Reply:
        try:
            hop = next_hop(hop_of(raw))
        except LoopError:
            return replies.MAIL_LOOP
        if envelope.parameters.body is Body.BINARY:
            # Hardly any host elsewhere takes it so (RFC 3030 §3). A signature of its author's does not survive that.
            try:
                raw = await self._parser.run(len(raw), downgrade_to_7bit, raw)
            except ParserBusy:
                return replies.LOCAL_ERROR
            except ParsingFailed:
                return NOT_CONVERTED
        ways = [await self._as_given(address, passage.what) for address, passage in envelope.recipients]
        prefix = self._trace(envelope) + hop_field(hop)
        content = await self._parser.describe(prefix, raw, self._clock.now())
        if await self._forbids(envelope, content):
            log.info("not_passed_on", connection_id=envelope.connection_id, reason="rejected")
            return REJECTED
        utf8_header = envelope.smtputf8 and not raw[: _header_end(raw)].isascii()
        letter = _Letter(prefix, raw, bare(content), hop, utf8_header, envelope)

        async def take() -> Reply:
            return await self._or_later(envelope, self._take(letter, ways))

        return take

    async def _take(self, letter: _Letter, ways: Sequence[Onward]) -> Reply:
        """Pass the message on to all recipients; the reply is given once it is durable for all. Those who have had it
        do not get it again.
        """
        reply = replies.OK
        groups: dict[tuple[int, str], dict[bytes, Onward]] = {}
        for way in ways:
            digest = _digest(letter.content.raw_sha256, way)
            groups.setdefault((way.tenant_id, way.sender), {}).setdefault(digest, way)
        for group in groups.values():
            try:
                message_id = await self._pass(letter, group)
            except _TooManyReturns:
                return Reply(TOO_MANY.code, TOO_MANY.enhanced, TOO_MANY.text)
            if message_id is not None and reply is replies.OK:
                reply = replies.queued(message_id)
        return reply

    async def _as_given(self, address: str, way: Onward) -> Onward:
        """RCPT may say in which case the author's address is written; what it was resolved by does not."""
        if not way.returns:
            return way
        try:
            author = rewriting.reverse(address, await self._ring(), self._clock.now())
        except SrsError:  # it lapsed since then
            return way
        return replace(way, target=author.address)

    def _trace(self, envelope: Envelope[Passage]) -> bytes:
        named = [passage.base for _, passage in envelope.recipients]
        return relay_header(
            helo=envelope.helo,
            peer_ip=envelope.peer_ip,
            peer_name=envelope.peer_name,
            hostname=self._hostname,
            version=self._version,
            transmission=transmission_of(envelope),
            connection_id=envelope.connection_id,
            recipient=named[0] if len(named) == 1 else None,
            received_at=self._clock.now(),
        )

    async def _pass(self, letter: _Letter, group: dict[bytes, Onward]) -> str | None:
        """Accept it for those of the group who have not had it; the message's id, None when all have.

        All are of one tenant and one envelope sender.
        """
        first = next(iter(group.values()))
        relay = await self._relays.of(first.tenant_id, first.tenant_public_id)
        ref = MailboxRef(first.tenant_id, relay.mailbox_id)
        # What somebody else passes on meanwhile is found to be done the next time.
        for _ in range(len(group) + 1):
            missing = await self._missing(first.tenant_id, list(group))
            if not missing:
                log.info("passed_on_before", connection_id=letter.envelope.connection_id)
                return None
            left = {digest: group[digest] for digest in missing}
            outgoing = letter.outgoing(self._ids.new("msg"), ref, relay.identity_public_id, list(left.values()))
            try:
                await self._accept(outgoing, also=self._record(outgoing, left))
            except _PassedMeanwhile:
                continue
            log.info(
                "passed_on",
                connection_id=letter.envelope.connection_id,
                message_id=outgoing.id,
                recipients=len(outgoing.recipients),
            )
            return outgoing.id
        raise PostroomError("unavailable")

    async def _missing(self, tenant_id: int, digests: Sequence[bytes]) -> list[bytes]:
        async with self._database.acquire() as conn:
            return await passed.missing(conn, tenant_id, digests)

    def _record(self, outgoing: Outgoing, group: Mapping[bytes, Onward]) -> Also:
        """What is remembered of those of a group that a message goes to."""
        recipients = [(digest, way.target) for digest, way in group.items()]
        authors = [way.target for way in group.values() if way.returns]

        async def record(conn: Connection) -> None:
            now = self._clock.now()
            if not await passed.record(conn, outgoing.mailbox, outgoing.id, recipients, now):
                raise _PassedMeanwhile
            if not await passed.count_returns(conn, outgoing.mailbox.tenant_id, authors, now):
                raise _TooManyReturns

        return record


@dataclass(frozen=True, slots=True)
class _Letter:
    """A message as it goes on: `raw` below `prefix`, and what it says. `utf8_header`: it has characters beyond ASCII in
    its header (RFC 6532)."""

    prefix: bytes
    raw: bytes
    content: Content
    hop: int
    utf8_header: bool
    envelope: Envelope[Passage]

    def outgoing(self, message_id: str, ref: MailboxRef, identity_id: str, ways: Sequence[Onward]) -> Outgoing:
        """For recipients of one tenant and one envelope sender."""
        sender, wire = ways[0].sender, self.prefix + self.raw
        named = all(address.isascii() for address in (sender, *(way.target for way in ways)))
        return Outgoing(
            id=message_id,
            mailbox=ref,
            tenant_id=ways[0].tenant_public_id,
            identity_id=identity_id,
            operation=Operation.REDIRECT,
            kind=SendKind.TRANSACTIONAL,
            envelope_from=sender,
            recipients=tuple(
                NewRecipient(
                    way.target,
                    RecipientField.ENVELOPE,
                    way.route,
                    # So that whoever is told of a failure knows the address (RFC 3461 §5.2.1).
                    dsn_orcpt=None if way.returns else f"rfc822;{way.written}",
                )
                for way in ways
            ),
            sent_copy=wire,
            wire=wire,
            content=self.content,
            eight_bit=not wire.isascii(),
            smtputf8=self.utf8_header or not named,
            hop=self.hop,
        )


def _refusal_of(error: Exception) -> Refusal | None:
    """The answer for what went wrong at RCPT; None for a fault."""
    if isinstance(error, PostroomError):
        return rules.UNAVAILABLE if error.retryable or error.status >= 500 else NOT_PASSED_ON
    if is_transient(error):
        log.warning("passage_not_resolved", error=type(error).__name__)
        return rules.UNAVAILABLE
    return None


def _digest(raw_sha256: bytes, way: Onward) -> bytes:
    """By which the same mail for the same recipient is known. Of the author, since a rewritten sender holds the day."""
    named = "\0".join((way.author.lower(), way.target.lower()))
    return hashlib.sha256(raw_sha256 + named.encode("utf-8", "surrogatepass")).digest()


def _header_end(raw: bytes) -> int:
    end = raw.find(b"\n\r\n")
    return len(raw) if end < 0 else end
