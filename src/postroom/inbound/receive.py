"""From the final dot to `250` (mail-server.md A8): describe, address a copy to each mailbox, store them together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.events.catalogue import TextBytes, default_text_bytes, message_received, verification_received
from postroom.inbound.judging import LOOPED_BACK, NOT_JUDGED, Judgement, Judging
from postroom.inbound.parsing import Parser
from postroom.inbound.thread_tokens import TokenReader
from postroom.mail.compose.reply import without_detail
from postroom.mail.domain import domain_of
from postroom.mail.header import FIELD, unfold
from postroom.mail.mime import MAX_HEADER_BYTES
from postroom.mail.srs import Hops, LoopError, check_arrival, hops
from postroom.mailauth.verdict import Verdict
from postroom.mailbox.ingest import Failure, Ingest, IngestError
from postroom.mailbox.models import (
    Content,
    Direction,
    Filing,
    FolderKey,
    MailboxRef,
    Mailpoint,
    NewMessage,
    RecipientKind,
    Refusal,
    Refused,
    Source,
)
from postroom.smtp import replies
from postroom.smtp.envelope import Envelope
from postroom.smtp.replies import Reply
from postroom.smtp.trace import trace_header, transmission_type

log = base_log.get("inbound")

MAX_PRIMARY_LOOKUPS: Final = 50

LOOPBACK: Final = "loopback"
"""The fact that a message of a test tenant came to one of its own mailboxes without a network between (L3)."""

DISK_FULL: Final = Reply(452, "4.3.1", "Insufficient system storage")
MAILBOX_FULL: Final = Reply(452, "4.2.2", "Mailbox full")


class Target(Protocol):
    """A recipient as the directory resolved it: the mailbox, its address without the detail, the detail, and the
    aliases that led to it, the one that was written to first.
    """

    @property
    def tenant_id(self) -> int: ...
    @property
    def mailbox_id(self) -> int: ...
    @property
    def tenant_public_id(self) -> str: ...
    @property
    def identity_public_id(self) -> str: ...
    @property
    def base(self) -> str: ...
    @property
    def via(self) -> tuple[str, ...]: ...
    @property
    def detail(self) -> str: ...


_HOP_FIELD: Final = b"x-postroom-hop"

T = TypeVar("T", bound=Target)

LocalMailbox = Callable[[str], Awaitable[Target | None]]
"""Whose mailbox a header address is, if it is one of ours; None otherwise. Never raises."""


@dataclass(frozen=True, slots=True)
class Handling:
    """What is different about mail that is an answer to what a mailbox sent, or says that it is.

    `about` is the Message-ID of that, whose thread it joins if its own header leads nowhere. `kind` is the message's,
    None for what its content makes it. Without `announced` there is no event. `facts` are further ones. `folder` is
    where it goes, None for INBOX. `is_unasked`: it came by none of the mailbox's addresses, so nobody blind-copied it.
    """

    about: str | None = None
    kind: str | None = None
    announced: bool = True
    facts: tuple[str, ...] = ()
    folder: FolderKey | None = None
    is_unasked: bool = True

    def apply(self, copy: NewMessage) -> NewMessage:
        """The copy as it is to be stored."""
        content = copy.content
        references = content.reference_ids
        if self.about is not None and self.about not in references:
            references = (self.about, *references)
        return replace(
            copy,
            content=replace(
                content,
                reference_ids=references,
                kind=self.kind or content.kind,
                facts=(*content.facts, *self.facts),
            ),
            is_bcc=copy.is_bcc and not self.is_unasked,
            announce=copy.announce if self.announced else None,
            announce_found=copy.announce_found if self.announced else None,
            folder=self.folder,
        )


_ORDINARY: Final = Handling()
"""Stands for mail like any other, of which `Bounces` says nothing."""


class BouncesUnknown(Exception):
    """It cannot be found out now; later it can."""


class Bounces(Protocol):
    """What knows of bounces that come to an address whether they are of something that was sent from there."""

    async def sort(self, envelope: Envelope[Any], content: Content, raw: bytes, /) -> Mapping[int, Handling | None]:
        """By mailbox, how the message is to be stored; None: not at all (D4). Mailboxes that are not named take it as
        mail like any other. Raises BouncesUnknown."""
        ...


class Receiver:
    """Takes complete messages from the listeners."""

    def __init__(
        self,
        ingest: Ingest,
        parser: Parser,
        clock: Clock,
        ids: IdGenerator,
        *,
        hostname: str,
        version: str,
        local_mailbox: LocalMailbox,
        tokens: TokenReader,
        judge: Judging | None = None,
        bounces: Bounces | None = None,
        text_bytes: TextBytes = default_text_bytes,
    ) -> None:
        self._ingest = ingest
        self._parser = parser
        self._clock = clock
        self._ids = ids
        self._hostname = hostname
        self._version = version
        self._local_mailbox = local_mailbox
        self._tokens = tokens
        self._judge = judge
        self._bounces = bounces
        self._text_bytes = text_bytes

    async def judge(self, envelope: Envelope[Any], raw: bytes) -> Judgement:
        """What is known of who sent it. Never raises: mail that nobody can judge is mail all the same (B4)."""
        if self._judge is None:
            return NOT_JUDGED
        try:
            return await self._judge.judge(envelope, raw)
        except Exception as error:  # noqa: BLE001 - whatever fails in judging costs the verdict only, as in parsing (B2)
            log.error("judge_failed", connection_id=envelope.connection_id, error=type(error).__name__, size=len(raw))
            return NOT_JUDGED

    async def purge(self, raw: bytes) -> bytes:
        """The message without results that somebody else wrote in our name; after `judge`, which looks at all of it."""
        return raw if self._judge is None else await self._judge.purge(raw)

    async def receive(
        self,
        envelope: Envelope[T],
        raw: bytes,
        *,
        handling: Handling | None = None,
        loopback: int | None = None,
        judgement: Judgement | None = None,
    ) -> Reply:
        """Store the message for all its recipients or for none; the reply is given after the commit.

        `loopback` is the test tenant (its key) that composed the message here: for mailboxes of that tenant it needs
        no authentication (inbound §30, edge L3). `judgement`, where there is one already, is of the same
        octets, before `purge`.
        """
        if loops(raw):
            log.info("message_refused", connection_id=envelope.connection_id, reason="loop")
            return replies.MAIL_LOOP
        named = [target for _, target in envelope.recipients]
        if judgement is None:
            alone = all(target.tenant_id == loopback for target in named)
            judgement = LOOPED_BACK if alone else await self.judge(envelope, raw)
        raw = await self.purge(raw)
        received_at = self._clock.now()
        prefix = trace_header(
            return_path=envelope.mail_from,
            helo=envelope.helo,
            peer_ip=envelope.peer_ip,
            peer_name=envelope.peer_name,
            hostname=self._hostname,
            version=self._version,
            transmission=transmission_of(envelope),
            connection_id=envelope.connection_id,
            recipient=_names(named[0])[0] if len(named) == 1 else None,
            received_at=received_at,
            results=judgement.field,
        )
        ids = {target.mailbox_id: self._ids.new("msg") for target in named}
        try:
            # The bytes go to the disk while the message is described.
            with self._ingest.begin((prefix, raw), list(_keys(named, ids).values())) as ticket:
                content = await self._described(prefix, raw, received_at, judgement, is_local=loopback is not None)
                handlings: Mapping[int, Handling | None] = {target.mailbox_id: handling for target in named}
                if content.kind == "dsn" and handling is None and self._bounces is not None:
                    handlings = await self._bounces.sort(envelope, content, raw)
                    named = [target for target in named if handlings.get(target.mailbox_id, _ORDINARY) is not None]
                    if not named:
                        log.info("backscatter_dropped", connection_id=envelope.connection_id)
                        return replies.OK
                filings = await self._filings(named, content.sender, envelope.mail_from)
                copies = await self._copies(content, named, ids, received_at, filings, handlings, loopback)
                outcome = await ticket.commit(copies)
        except BouncesUnknown:
            log.warning("bounce_put_off", connection_id=envelope.connection_id)
            return replies.LOCAL_ERROR
        except IngestError as error:
            log.warning("message_not_stored", connection_id=envelope.connection_id, reason=error.failure.value)
            return DISK_FULL if error.failure is Failure.STORAGE_FULL else replies.LOCAL_ERROR
        if isinstance(outcome, Refused):
            log.info("message_refused", connection_id=envelope.connection_id, reason=outcome.reason.value)
            return MAILBOX_FULL if outcome.reason is Refusal.MAILBOX_FULL else replies.LOCAL_ERROR
        assert isinstance(outcome, tuple)
        log.info(
            "message_stored",
            connection_id=envelope.connection_id,
            message_id=outcome[0].message_id,
            copies=len(outcome),
            duplicate=outcome[0].duplicate,
            size=len(raw),
        )
        return replies.queued(outcome[0].message_id)

    async def _described(
        self, prefix: bytes, raw: bytes, received_at: datetime, judgement: Judgement, *, is_local: bool
    ) -> Content:
        """The content with its verdict; what it would confirm is looked for where that may count."""
        believed = is_local or judgement.verdict == Verdict.PASS.value
        return judged(await self._parser.describe(prefix, raw, received_at, with_codes=believed), judgement)

    async def receive_each(
        self, envelope: Envelope[T], raw: bytes, *, judgement: Judgement | None = None
    ) -> tuple[Reply, ...]:
        """Store the message for those recipients whose mailboxes take it, over LMTP; a reply for each (RFC 2033 §4.2).

        Together while that goes, since then there is one file and one transaction for all. Only what is true of one
        mailbox and not of the others, that it is full, is found out for each.
        """
        recipients = envelope.recipients
        judgement = judgement or await self.judge(envelope, raw)
        together = await self.receive(envelope, raw, judgement=judgement)
        boxes = {(target.tenant_id, target.mailbox_id) for _, target in recipients}
        if together != MAILBOX_FULL or len(boxes) == 1:
            return (together,) * len(recipients)
        answers = {
            box: await self.receive(
                envelope._replace(
                    recipients=tuple(one for one in recipients if (one[1].tenant_id, one[1].mailbox_id) == box)
                ),
                raw,
                judgement=judgement,
            )
            for box in sorted(boxes)
        }
        return tuple(answers[target.tenant_id, target.mailbox_id] for _, target in recipients)

    async def _filings(
        self, named: Sequence[Target], sender: Mailpoint | None, mail_from: str
    ) -> Mapping[int, Filing | None]:
        """By mailbox, what thread tokens say: hardly any mail has a detail."""
        detailed = [target for target in named if target.detail]
        if not detailed:
            return {}
        author = (sender.address if sender is not None else "") or mail_from
        return {
            target.mailbox_id: await self._tokens.filing(
                [one.detail for one in detailed if one.mailbox_id == target.mailbox_id],
                target.identity_public_id,
                target.mailbox_id,
                author,
            )
            for target in {target.mailbox_id: target for target in detailed}.values()
        }

    async def _copies(
        self,
        content: Content,
        named: Sequence[Target],
        ids: Mapping[int, str],
        received_at: datetime,
        filings: Mapping[int, Filing | None],
        handlings: Mapping[int, Handling | None],
        loopback: int | None,
    ) -> tuple[NewMessage, ...]:
        shown = (p.address for kind, p in content.recipients if kind in (RecipientKind.TO, RecipientKind.CC))
        visible = {without_detail(address) if "+" in address else address for address in shown}
        targets = _one_for_each_mailbox(named, visible)
        primaries = await self._primaries(content, targets)
        most = {tenant_id: await self._most(tenant_id) for tenant_id in {target.tenant_id for target in targets}}
        looped = _looped_back(content) if loopback is not None else content
        copies = (
            self._copy(
                looped if target.tenant_id == loopback else content,
                target,
                ids[target.mailbox_id],
                received_at,
                primaries,
                visible,
                filing=filings.get(target.mailbox_id),
                most=most[target.tenant_id],
            )
            for target in targets
        )
        if loopback is not None and any(target.tenant_id != loopback for target in targets):
            # Policy let nobody else be written to; since then an alias may lead elsewhere. It is mail like any other.
            log.warning("loopback_refused")
        found = ((copy, handlings.get(copy.mailbox.mailbox_id)) for copy in copies)
        return tuple(copy if handling is None else handling.apply(copy) for copy, handling in found)

    def _copy(
        self,
        content: Content,
        target: Target,
        message_id: str,
        received_at: datetime,
        primaries: dict[int, int | None],
        visible: set[str],
        *,
        filing: Filing | None,
        most: int,
    ) -> NewMessage:
        now = received_at
        primary = primaries[target.tenant_id]
        return NewMessage(
            id=message_id,
            mailbox=MailboxRef(target.tenant_id, target.mailbox_id),
            source=Source.MX,
            direction=Direction.INBOUND,
            blob_key=raw_key(target.tenant_public_id, target.identity_public_id, message_id),
            content=content,
            thread_id=self._ids.new("thr"),
            event_id=self._ids.new("evt"),
            attachment_ids=tuple(self._ids.new("att") for _ in content.attachments),
            received_at=now,
            internal_date=now.replace(microsecond=0),
            delivered_to=target.base,
            is_bcc=visible.isdisjoint(_names(target)),
            is_primary_recipient=primary is None or primary == target.mailbox_id,
            announce=partial(message_received, most=most),
            announce_found=verification_received,
            found_event_ids=tuple(self._ids.new("evt") for _ in content.verifications),
            filing=filing,
        )

    async def _most(self, tenant_id: int) -> int:
        """How much text the tenant wants in events; none while that cannot be found out: mail does not wait for it."""
        try:
            return await self._text_bytes(tenant_id)
        except Exception as error:  # noqa: BLE001 - whatever fails here costs the event its text only
            log.warning("text_bytes_unknown", error=type(error).__name__)
            return 0

    async def _primaries(self, content: Content, targets: Sequence[Target]) -> dict[int, int | None]:
        """For each tenant, the mailbox of the first header recipient that is one of its own (A9); None without one."""
        wanted: dict[int, int | None] = {target.tenant_id: None for target in targets}
        known = {name: target for target in targets for name in _names(target)}
        header = [p.address for kind, p in content.recipients if kind is not RecipientKind.REPLY_TO]
        for address in header[:MAX_PRIMARY_LOOKUPS]:
            target = known.get(without_detail(address)) or await self._local_mailbox(address)
            if target is not None and target.tenant_id in wanted and wanted[target.tenant_id] is None:
                wanted[target.tenant_id] = target.mailbox_id
                if None not in wanted.values():
                    break
        return wanted


def judged(content: Content, judgement: Judgement) -> Content:
    """The content with its verdict. What confirms a sign-up does so only for whom it is known to come from (E4).

    Nobody else than whom it is about may be shown as believed, however an odd header or a limit made us read on of
    them otherwise than the judge.
    """
    verdict, author = judgement.verdict, judgement.author
    if verdict == "pass" and author is not None:
        shown = None if content.sender is None else domain_of(content.sender.address)
        verdict = verdict if shown == author else Verdict.UNALIGNED.value
    kept = content.verifications if verdict == "pass" else ()
    auth = judgement.auth if content.auth is None else {**(judgement.auth or {}), **content.auth}
    return replace(content, verdict=verdict, auth=auth, verifications=kept)


def loops(raw: bytes) -> bool:
    """Whether the message has come through this server too often (A6); its `Received` lines the listener counts.

    Hardly any mail has the field, which is found out without reading the header.
    """
    try:
        check_arrival(Hops(hop_of(raw), 0))
    except LoopError:
        return True
    return False


def hop_of(raw: bytes) -> int:
    """The hop that the message says it has; 0 when it says nothing."""
    end = raw.find(b"\n\r\n", 0, MAX_HEADER_BYTES)  # listeners take no bare line feeds
    head = raw[: MAX_HEADER_BYTES if end < 0 else end + 1]
    if _HOP_FIELD not in head.lower():
        return 0
    values = [unfold(value).decode("latin-1") for name, value in FIELD.findall(head) if name.lower() == _HOP_FIELD]
    return hops(values, 0).hop


def transmission_of(envelope: Envelope[Any]) -> str:
    """How the message came, as the trace line names it."""
    return transmission_type(
        esmtp=envelope.esmtp,
        tls=envelope.tls,
        authenticated=envelope.account is not None,
        smtputf8=envelope.smtputf8,
        lmtp=envelope.lmtp,
    )


def _looped_back(content: Content) -> Content:
    return replace(judged(content, LOOPED_BACK), facts=(*content.facts, LOOPBACK))


def _names(target: Target) -> tuple[str, ...]:
    """The addresses by which a mailbox was reached, the one that was written to first."""
    return (*target.via, target.base)


def _one_for_each_mailbox(named: Sequence[T], visible: set[str]) -> list[T]:
    """The recipient by which each mailbox takes its copy: of several the first in To or Cc, so that an alias in the
    envelope beside it makes nobody a blind recipient (A10); else the first."""
    chosen: dict[int, T] = {}
    for target in named:
        known = chosen.setdefault(target.mailbox_id, target)
        if visible.isdisjoint(_names(known)) and not visible.isdisjoint(_names(target)):
            chosen[target.mailbox_id] = target
    return list(chosen.values())


def _keys(named: Sequence[Target], ids: Mapping[int, str]) -> dict[int, str]:
    """The blob key for each mailbox, in the order of the recipients."""
    return {
        target.mailbox_id: raw_key(target.tenant_public_id, target.identity_public_id, ids[target.mailbox_id])
        for target in named
    }


def raw_key(tenant_public_id: str, identity_public_id: str, message_id: str) -> str:
    """The blob key of a message's raw bytes (data-model.md §15)."""
    return f"t/{tenant_public_id}/i/{identity_public_id}/m/{message_id}/raw.eml"
