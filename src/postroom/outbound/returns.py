"""The door for what comes back to our return paths: late bounces, which say what became of a delivery, and answers of
machines (outbound §13, §16; mail-server C7; D4, D11, G6, G8).

A return path takes bounces only, with the null sender, and only for deliveries that it was signed for; all else is
refused in the dialogue, so that nobody is ever sent a bounce for it. A report changes deliveries in a transaction of
its own, and is then stored in the sender's mailbox, where it is the notice. Both bear being done again: a state that
was reached is reached, and the same octets are not stored twice. So a host that was not answered just sends it again.
What is no report is mail to the address that the message was sent from, and is answered as that would answer it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from postroom.accounts.names import RELAYED_ROLES
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs.store import BlobStore
from postroom.db import errors as db_errors
from postroom.db.pool import Connection, Database
from postroom.directory.models import Recipient, Refusal
from postroom.directory.rules import UNAVAILABLE, UNKNOWN
from postroom.inbound.judging import Judgement
from postroom.inbound.parsing import Parser, ParserBusy, ParsingFailed
from postroom.inbound.receive import Handling, Receiver
from postroom.inbound.reception import Addressee, Find, Passage, Taking
from postroom.mail.dsn import Action, DeliveryReport, ReportedRecipient, parse_dsn
from postroom.mail.return_path import PREFIX, DeliveryRef
from postroom.mailbox.models import MailboxRef
from postroom.outbound import reports
from postroom.outbound.applying import Applied, Applying
from postroom.outbound.models import Status
from postroom.outbound.outcomes import Changed
from postroom.outbound.return_paths import ReturnPaths
from postroom.smtp import replies
from postroom.smtp.envelope import Envelope
from postroom.smtp.replies import Reply

log = base_log.get("returns")

T = TypeVar("T")

BOUNCES_ONLY: Final = Refusal(550, "5.7.1", "This address takes bounces only")
Resolve = Callable[[str, str], Awaitable[Addressee | Refusal]]
"""Who takes mail to an address from a sender (`Reception.resolve`)."""

_FIND: Final = """
SELECT d.message_id, d.mailbox_id, d.domain, d.route, m.public_id, m.rfc_message_id, m.from_address, b.tenant_public_id,
  b.identity_public_id, i.kind = 'person' AS is_person
FROM deliveries d
JOIN messages m ON m.tenant_id = d.tenant_id AND m.id = d.message_id
JOIN mailboxes b ON b.tenant_id = d.tenant_id AND b.id = d.mailbox_id AND NOT b.erased
JOIN identities i ON i.tenant_id = d.tenant_id AND i.id = d.mailbox_id AND i.status NOT IN ('deleting', 'deleted')
JOIN tenants t ON t.id = d.tenant_id AND t.status NOT IN ('erasing', 'erased')
WHERE d.tenant_id = $1 AND d.id = $2
"""
_GROUP: Final = """
SELECT id, recipient FROM deliveries WHERE tenant_id = $1 AND message_id = $2 AND domain = $3 AND route = $4
"""


@dataclass(frozen=True, slots=True)
class _Sent:
    """The message that something came back for, as a target of the receiver."""

    ref: DeliveryRef
    row: Any

    @property
    def mailbox(self) -> MailboxRef:
        return MailboxRef(self.tenant_id, self.mailbox_id)

    @property
    def tenant_id(self) -> int:
        return self.ref.tenant_id

    @property
    def mailbox_id(self) -> int:
        return int(self.row["mailbox_id"])

    @property
    def tenant_public_id(self) -> str:
        return str(self.row["tenant_public_id"])

    @property
    def identity_public_id(self) -> str:
        return str(self.row["identity_public_id"])

    @property
    def base(self) -> str:
        return str(self.row["from_address"] or "")

    @property
    def detail(self) -> str:
        return ""

    @property
    def via(self) -> tuple[str, ...]:
        return ()


class Returns:
    """The door. `role_mail` says who takes mail to postmaster and the like of the return paths' host, which goes where
    that of `platform_domain` goes (RFC 5321 §4.5.1, RFC 2142). `directory` says what an address answers to mail.
    `changed` is told of mailboxes after the commit.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        parser: Parser,
        receiver: Receiver,
        clock: Clock,
        ids: IdGenerator,
        *,
        paths: ReturnPaths,
        role_mail: Resolve,
        directory: Find,
        platform_domain: str,
        changed: Changed,
    ) -> None:
        self._database = database
        self._parser = parser
        self._receiver = receiver
        self._applying = Applying(database, blobs, clock, ids, changed=changed)
        self._paths = paths
        self._role_mail = role_mail
        self._directory = directory
        self._platform_domain = platform_domain
        self.dropped: Counter[str] = Counter()
        """What was refused or let go since the start, by the reason: `backscatter` are bounces of what we never sent
        (D4), `gone` those of what there is no more, `told` those of which the sender knows, `refused` are answers to an
        address that takes no mail, beside others that do."""

    # -- the dialogue --------------------------------------------------------------------------------------------------

    async def resolve(self, address: str, mail_from: str) -> Addressee | Refusal | None:
        """The host is ours whole: what is neither a return path nor a role is unknown there."""
        local, _, domain = address.rpartition("@")
        if domain != self._paths.host:
            return None
        if local in RELAYED_ROLES:
            return await self._role_mail(f"{local}@{self._platform_domain}", mail_from)
        try:
            ref = await self._paths.delivery(local)
        except PostroomError:
            return UNAVAILABLE
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            log.warning("return_path_not_read", error=type(error).__name__)
            return UNAVAILABLE
        if ref is None:
            if mail_from == "" and local.startswith(PREFIX):
                self.dropped["backscatter"] += 1
                log.info("backscatter_refused")
            return UNKNOWN
        return Passage(self, address, ref) if mail_from == "" else BOUNCES_ONLY

    # -- the message ---------------------------------------------------------------------------------------------------

    async def prepare(self, envelope: Envelope[Passage], raw: bytes, judgement: Judgement) -> Taking | Reply:
        """Read it. What is no report is mail, and is refused where its sender's address would refuse it."""
        return await self._or_later(envelope, self._prepare(envelope, raw, judgement))

    async def _or_later(self, envelope: Envelope[Passage], work: Awaitable[T]) -> T | Reply:
        """What comes of `work`; a temporary refusal while the database is away."""
        try:
            return await work
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            log.warning("report_put_off", connection_id=envelope.connection_id, error=type(error).__name__)
            return replies.LOCAL_ERROR

    async def _prepare(self, envelope: Envelope[Passage], raw: bytes, judgement: Judgement) -> Taking | Reply:
        try:
            report = await self._parser.run(len(raw), parse_dsn, raw)
        except ParserBusy:
            return replies.LOCAL_ERROR
        except ParsingFailed:
            report = None  # nobody can read it but a person
        named = [(recipient, passage.what) for recipient, passage in envelope.recipients]
        refusals = [None if report is not None else await self._refusal(ref) for _, ref in named]
        if all(refusals):
            return refusals[0] or replies.LOCAL_ERROR
        # Of several, those who may have it do not lose it for the others' sake.
        for refusal in filter(None, refusals):
            self._drop("refused", envelope, code=refusal.code)
        wanted = [one for one, refusal in zip(named, refusals, strict=True) if refusal is None]

        async def take() -> Reply:
            return await self._or_later(envelope, self._take_all(envelope, wanted, report, raw, judgement))

        return take

    async def _refusal(self, ref: DeliveryRef) -> Reply | None:
        """What the address answers that the message was sent from, unless it is still that mailbox's."""
        sent = await self._find(ref)
        if sent is None:
            return None  # to be dropped
        found = await self._directory(sent.base) if sent.base else UNKNOWN
        if isinstance(found, Recipient) and (found.tenant_id, found.mailbox_id) == (sent.tenant_id, sent.mailbox_id):
            return None
        refusal = found if isinstance(found, Refusal) else UNKNOWN
        return Reply(refusal.code, refusal.enhanced, refusal.text)

    async def _take_all(
        self,
        envelope: Envelope[Passage],
        wanted: Sequence[tuple[str, DeliveryRef]],
        report: DeliveryReport | None,
        raw: bytes,
        judgement: Judgement,
    ) -> Reply:
        """Apply and store it for each delivery that was written to. All that is refused now is temporary."""
        reply: Reply | None = None
        for recipient, ref in wanted:
            taken = await self._take(envelope, recipient, ref, report, raw, judgement)
            if taken.is_failure:
                return taken
            reply = reply or taken
        return reply or replies.OK

    async def _take(
        self,
        envelope: Envelope[Passage],
        recipient: str,
        ref: DeliveryRef,
        report: DeliveryReport | None,
        raw: bytes,
        judgement: Judgement,
    ) -> Reply:
        sent = await self._find(ref)
        if sent is None:
            return self._drop("gone", envelope)
        handling = Handling(sent.row["rfc_message_id"])
        if report is not None:
            applied = await self._apply(sent, report)
            if applied is None:
                return self._drop("gone", envelope)
            if not applied:
                return self._drop("told", envelope)
            # Agents have the events; people's clients learn of new mail by this one (C7).
            handling = Handling(handling.about, "dsn", sent.row["is_person"])
        reply = await self._receiver.receive(
            cast(Envelope[Any], envelope)._replace(recipients=((recipient, sent),), recipient_parameters=()),
            raw,
            handling=handling,
            judgement=judgement,
        )
        if reply.is_failure and await self._find(ref) is None:
            return self._drop("gone", envelope)
        return reply

    def _drop(self, reason: str, envelope: Envelope[Passage], **more: int) -> Reply:
        self.dropped[reason] += 1
        log.info("report_dropped", reason=reason, connection_id=envelope.connection_id, **more)
        return replies.OK

    async def _find(self, ref: DeliveryRef) -> _Sent | None:
        async with self._database.acquire() as conn:
            row = await conn.fetchrow(_FIND, ref.tenant_id, ref.delivery_id)
        return None if row is None else _Sent(ref, row)

    # -- what it says --------------------------------------------------------------------------------------------------

    async def _apply(self, sent: _Sent, report: DeliveryReport) -> bool | None:
        """Write what the report says of the message's deliveries. Whether the sender is to see it; None when the
        message is gone."""

        async def find(conn: Connection) -> list[int]:
            """Those that shared an attempt with the one that was named."""
            where = (sent.tenant_id, sent.row["message_id"], sent.row["domain"], sent.row["route"])
            return [row["id"] for row in await conn.fetch(_GROUP, *where)]

        def attribute(rows: Mapping[int, Any]) -> Mapping[int, ReportedRecipient]:
            return reports.attribute(report, {key: row["recipient"] for key, row in rows.items()})

        applied = await self._applying.apply(sent.mailbox, sent.row["public_id"], find, attribute)
        return None if applied is None else _is_news(applied)


def _is_news(applied: Applied) -> bool:
    """Whether the sender is to see the report: not when all that it says is what they were told of by a notice of
    ours, or asked not to be told of."""
    told = applied.told - applied.changed
    return not applied.entries or any(
        reports.is_wanted(entry, applied.rows[key]["dsn_notify"])
        and not (entry.action is Action.FAILED and key in told and not Status(applied.rows[key]["status"]).is_waiting)
        for key, entry in applied.entries.items()
    )
