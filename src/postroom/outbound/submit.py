"""Sending: one request of an identity to one accepted message, or to a refusal that leaves nothing behind (outbound §1
to §8; G1, C4, I9).

    begin the key -> facts -> policy -> compose -> thread's lock -> sign -> accept

Whatever ends it before the acceptance is committed gives key and lock back; what dies loses them after 45 and 120 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from postroom.accounts.models import Mode, Principal
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs import BlobMissing, BlobStore
from postroom.db.errors import BROKEN, DatabaseUnavailable
from postroom.db.pool import Database
from postroom.directory.models import Identity
from postroom.inbound.parsing import Parser, ParserBusy, ParsingFailed
from postroom.mail.compose import Attachment
from postroom.mailbox.gleaned import glean_aside
from postroom.mailbox.models import Direction, MailboxRef, RecipientKind
from postroom.mailbox.queries import AttachmentView, Include, MessageQueries, MessageView
from postroom.mailbox.rules import labels
from postroom.outbound import ledger, policy, thread_lock
from postroom.outbound.accept import Acceptance
from postroom.outbound.allowance import Allowance, SubmissionLimits
from postroom.outbound.compose_message import (
    BASE64_STEP,
    MAX_REATTACHED,
    Unwritable,
    Written,
    decode_step,
    job_for,
    needs_original,
    signed_copy,
    write,
)
from postroom.outbound.facts import FactReader, Facts, Suppressions
from postroom.outbound.file_links import FileLinks, LinkPlan
from postroom.outbound.ledger import Ledger, Recorded, Reservation
from postroom.outbound.models import (
    Accepted,
    Delivery,
    LedgerEntry,
    NewRecipient,
    Operation,
    OutboundState,
    Outgoing,
    RecipientField,
    RouteKind,
    Status,
)
from postroom.outbound.policy import SEND_BLOCK, Case, Decision
from postroom.outbound.reply_to import Answers, Mint, ReplyTo
from postroom.outbound.request import SendRequest
from postroom.outbound.send_rules import SendRules
from postroom.outbound.thread_lock import ThreadLocks

log = base_log.get("outbound")

FACTS_SECONDS: Final = 5.0
SUBMIT_SECONDS: Final = 30.0
"""For everything before the acceptance, whose own waits end by themselves; both together stay under the lease of the
key."""
MAX_FORWARDED: Final = 64 * 1024 * 1024
"""Octets of a message whose HTML and attachments are taken out for a forward."""

Sign = Callable[[bytes, str], Awaitable[bytes]]
"""The octets with the DKIM signatures of the domain of From on top."""


class Route(Protocol):
    """How mail of a tenant from a domain to an address leaves."""

    async def __call__(self, address: str, /, *, from_domain: str, mode: Mode) -> RouteKind: ...


Resource = Callable[[MessageView, OutboundState], Mapping[str, Any]]
"""The Message resource, which is what the ledger keeps of an answer."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The `202`: the Message resource, and whether it is the answer of an earlier request with the same key."""

    message: Mapping[str, Any]
    deduplicated: bool


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a dry run says of one recipient. `reason` is why nothing would be sent."""

    address: str
    field: RecipientField
    status: Status
    reason: str | None = None


@dataclass(slots=True)
class _Attempt:
    """What is held while a request runs."""

    message_id: str
    reservation: Reservation
    thread_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Prepared:
    facts: Facts
    decision: Decision
    written: Written
    answers: Answers


async def nothing_suppressed(tenant_id: int, addresses: Sequence[str]) -> Mapping[str, str]:
    """While there is no suppression list."""
    return {}


def same_domain(domain: str) -> str:
    """In place of the organisational domain, while no list of public suffixes is at hand: the domain itself, which
    trusts fewer Reply-To fields (D3)."""
    return domain


class Sending:
    """The four operations and their dry runs. One per process.

    `sign` and `route` are what dispatch knows of domains and destinations, `mint` makes thread tokens; `resource` is
    how the interfaces show a message; without `links` what is too large is refused.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        ids: IdGenerator,
        *,
        queries: MessageQueries,
        parser: Parser,
        acceptance: Acceptance,
        sign: Sign,
        mint: Mint,
        route: Route,
        resource: Resource,
        hash_key: bytes,
        rules: SendRules | None = None,
        suppressions: Suppressions = nothing_suppressed,
        organisational_domain: Callable[[str], str] = same_domain,
        locks: ThreadLocks | None = None,
        links: FileLinks | None = None,
        limits: SubmissionLimits | None = None,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._ids = ids
        self._queries = queries
        self._parser = parser
        self._acceptance = acceptance
        self._sign = sign
        self._reply_to = ReplyTo(database, mint)
        self._route = route
        self._resource = resource
        self._rules = rules or SendRules()
        self._organisational_domain = organisational_domain
        self._links = links
        self._allowance = Allowance(limits, hash_key)
        self._facts = FactReader(database, blobs, queries, suppressions)
        self._locks = locks or ThreadLocks(database, clock)
        self.ledger = Ledger(database, clock)

    async def submit(
        self,
        identity: Identity,
        request: SendRequest,
        *,
        key: str,
        fingerprint: str,
        may_review: bool = False,
        person: Principal | None = None,
    ) -> Submitted:
        """Send, once for a key. `fingerprint` is that of the body as it came (`ledger.fingerprint`). `person` is who
        sends, if it is a person, by whose allowance it goes (mail-server A7).

        Raises PostroomError with the codes of outbound §4, `rate_limited`, `daily_cap_reached`,
        `invalid_idempotency_key`, `idempotency_conflict`, `request_in_progress`, `unavailable`, `timeout`: after each
        of them nothing was sent under the key, except that after `unavailable` it may have been, which a repetition
        finds out.
        """
        ref = MailboxRef(identity.tenant_id, identity.id)
        begun = await self.ledger.begin(ref, ledger.key_hash(key), fingerprint, request.operation)
        if isinstance(begun, Recorded):
            return await self._replay(ref, begun)
        attempt = _Attempt(self._ids.new("msg"), begun)
        try:
            outgoing = await self._before_acceptance(identity, request, attempt, may_review)
            accepted = await self._accept(outgoing, person)
        except BaseException:
            await asyncio.shield(self._give_up(attempt))
            raise
        if attempt.thread_id is not None and not (outgoing.lock_thread and attempt.thread_id == accepted.thread_id):
            # Nothing of it is sent, or another thread claims the same Message-ID.
            await self._unlock(ref, attempt)
        shown = dict(self._resource(*_shown(outgoing, accepted)))
        return Submitted({**shown, "extracted_text": outgoing.content.extracted_text}, deduplicated=False)

    async def _accept(self, outgoing: Outgoing, person: Principal | None) -> Accepted:
        if person is None:
            return await self._acceptance.accept(outgoing)
        async with self._allowance.turn(person):
            async with self._database.acquire() as conn:
                also = await self._allowance.admit(conn, person, outgoing, self._clock.now())
            return await self._acceptance.accept(replace(outgoing, person_id=person.row_id), also=also)

    async def _check_allowance(self, person: Principal, recipients: int) -> None:
        async with self._database.acquire() as conn:
            over = await self._allowance.exceeded(conn, person, recipients, self._clock.now())
        if over is not None:
            raise over

    async def dry_run(
        self, identity: Identity, request: SendRequest, *, may_review: bool = False, person: Principal | None = None
    ) -> tuple[Foreseen, ...]:
        """What sending would do. Stores, locks and reserves nothing.

        Raises as `submit` does for the policy, `recipient_blocked`, and `all_recipients_suppressed`.
        """
        try:
            async with asyncio.timeout(SUBMIT_SECONDS):
                prepared = await self._prepare(identity, request, self._ids.new("msg"), may_review, dry=True)
        except TimeoutError as error:
            raise PostroomError("timeout") from error
        found = prepared.decision.recipients
        if any(one.suppressed == SEND_BLOCK for one in found):
            raise PostroomError("recipient_blocked")
        if prepared.decision.is_suppressed:
            raise PostroomError("all_recipients_suppressed")
        if person is not None:
            await self._check_allowance(person, sum(one.suppressed is None for one in found))
        return tuple(
            Foreseen(
                one.key,
                one.field,
                Status.QUEUED if one.suppressed is None else Status.SUPPRESSED,
                None if one.suppressed is None else one.suppressed.removeprefix("suppression (").removesuffix(")"),
            )
            for one in found
        )

    # -- before the acceptance

    async def _before_acceptance(
        self, identity: Identity, request: SendRequest, attempt: _Attempt, may_review: bool
    ) -> Outgoing:
        try:
            async with asyncio.timeout(SUBMIT_SECONDS):
                prepared = await self._prepare(identity, request, attempt.message_id, may_review)
                if prepared.facts.thread is not None:
                    prepared = await self._locked(prepared, request, attempt, may_review)
                return await self._outgoing(prepared, request, attempt)
        except TimeoutError as error:
            raise PostroomError("timeout") from error

    async def _prepare(
        self, identity: Identity, request: SendRequest, message_id: str, may_review: bool, *, dry: bool = False
    ) -> _Prepared:
        try:
            async with asyncio.timeout(FACTS_SECONDS):
                facts = await self._facts.read(identity, request, self._clock.now(), may_review=may_review)
        except TimeoutError as error:
            raise PostroomError("unavailable") from error
        files, bad = await _decoded(request)
        return await self._decided(facts, request, message_id, files, bad, dry=dry)

    async def _decided(
        self,
        facts: Facts,
        request: SendRequest,
        message_id: str,
        files: Sequence[Attachment],
        bad: tuple[int, ...],
        *,
        dry: bool = False,
    ) -> _Prepared:
        rules = self._rules.under(facts.policy)
        decision = policy.decide(Case(request, facts, rules, bad, self._organisational_domain))
        raw = await self._original(request, facts.target)
        links = await self._plan(facts, request, message_id, rules, files)
        answers = await self._reply_to.of(facts.identity, decision.from_, facts.thread, dry=dry)
        job = job_for(
            *(request, facts, decision, files, rules),
            message=message_id,
            raw=raw,
            reply_to=answers.reply_to,
            links=links,
        )
        size = sum(file.octets for file in files) + len(raw or b"")
        if job.is_quick:
            written = write(job, facts.now)
        else:
            try:
                written = await self._parser.run(size, write, job, facts.now)
            except (ParserBusy, ParsingFailed) as error:
                raise PostroomError("unavailable", retry_after=1) from error
        if isinstance(written, Unwritable):
            if written.code == "invalid_request":
                raise policy.invalid(written.path, "cannot be written in a message")
            raise PostroomError(written.code, details={"limit": self._rules.max_composed})
        return _Prepared(facts, decision, written, answers)

    async def _plan(
        self, facts: Facts, request: SendRequest, message_id: str, rules: SendRules, files: Sequence[Attachment]
    ) -> LinkPlan | None:
        """What links are made with, where the tenant wants them in place of a refusal (G5)."""
        if self._links is None or rules.link_ttl is None:
            return None
        handed_on = request.operation is Operation.FORWARD and request.include_attachments and facts.target is not None
        count = len(files) + (MAX_REATTACHED if handed_on else 0)
        identity = facts.identity
        owner = (identity.tenant_public_id, identity.public_id, message_id)
        return await self._links.plan(*owner, files=count, ttl=rules.link_ttl) if count else None

    async def _original(self, request: SendRequest, target: MessageView | None) -> bytes | None:
        if target is None or not needs_original(request, target):
            return None
        if target.raw_size > MAX_FORWARDED:
            raise PostroomError("message_too_large", details={"limit": self._rules.max_composed})
        try:
            return await self._blobs.get(target.blob_key)
        except BlobMissing:
            if request.include_attachments and target.attachments:
                raise PostroomError("raw_expired") from None
            return None

    async def _locked(
        self, prepared: _Prepared, request: SendRequest, attempt: _Attempt, may_review: bool
    ) -> _Prepared:
        """With the thread's lock, as the thread is now: while it was waited for, another message may have come before
        this one (C4)."""
        facts = prepared.facts
        assert facts.thread is not None
        ref = MailboxRef(facts.identity.tenant_id, facts.identity.id)
        attempt.thread_id = facts.thread.id
        await self._locks.acquire(ref, facts.thread.id, attempt.message_id)
        now = await self._facts.thread(facts.identity, facts.thread.id, request.kind)
        if now == facts.thread:
            return prepared
        files, bad = await _decoded(request)
        return await self._decided(replace(facts, thread=now), request, attempt.message_id, files, bad)

    async def _outgoing(self, prepared: _Prepared, request: SendRequest, attempt: _Attempt) -> Outgoing:
        facts, decision, content = prepared.facts, prepared.decision, prepared.written.content
        identity, sender = facts.identity, decision.from_
        recipients = []
        for one in decision.recipients:
            route = await self._route(one.key, from_domain=sender.domain, mode=facts.mode)
            recipients.append(NewRecipient(one.key, one.field, route, suppressed=one.suppressed))
        _check_test_mode(facts, recipients)
        octets = prepared.written.octets
        signed = await self._sign(octets, sender.domain)
        outgoing = Outgoing(
            id=attempt.message_id,
            mailbox=MailboxRef(identity.tenant_id, identity.id),
            tenant_id=identity.tenant_public_id,
            identity_id=identity.public_id,
            operation=request.operation,
            kind=request.kind,
            envelope_from=sender.address,
            recipients=tuple(recipients),
            # Nobody is named in it who was blind-copied, so it is what goes out (C8).
            sent_copy=signed,
            wire=signed,
            content=signed_copy(content, len(signed) - len(octets)),
            eight_bit=prepared.written.eight_bit,
            hop=decision.hop,
            metadata=request.metadata,
            labels=tuple(sorted(set(request.labels))),
            reply_to=None if prepared.answers.reply_to is None else prepared.answers.reply_to.address,
            lock_thread=attempt.thread_id is not None and not decision.is_suppressed,
            filing=prepared.answers.filing,
            linked=prepared.written.linked,
            refs=(await glean_aside(content.subject, content.extracted_text)).refs,
        )
        answer = LedgerEntry(
            attempt.reservation.key_hash,
            attempt.reservation.fingerprint,
            attempt.reservation.holder,
            lambda accepted: self._resource(*_shown(outgoing, accepted)),
        )
        return replace(outgoing, ledger=answer)

    # -- after it

    async def _replay(self, ref: MailboxRef, recorded: Recorded) -> Submitted:
        """The first answer, with the text of the message if it is still there."""
        try:
            view = await self._queries.get_message(ref, recorded.message_id, include=Include.EXTRACTED)
            text = view.extracted_text
        except PostroomError:
            text = None
        return Submitted({**recorded.response, "extracted_text": text}, deduplicated=True)

    async def _give_up(self, attempt: _Attempt) -> None:
        """Give key and lock back. A database that is away costs the caller their leases, not another error."""
        ref = attempt.reservation.ref
        try:
            async with self._database.transaction() as conn:
                await ledger.release(conn, attempt.reservation)
                if attempt.thread_id is not None:
                    await thread_lock.release(conn, ref, attempt.thread_id, attempt.message_id)
        except (DatabaseUnavailable, *BROKEN) as error:
            log.warning("send_not_released", message_id=attempt.message_id, error=type(error).__name__)

    async def _unlock(self, ref: MailboxRef, attempt: _Attempt) -> None:
        assert attempt.thread_id is not None
        try:
            async with self._database.acquire() as conn:
                await thread_lock.release(conn, ref, attempt.thread_id, attempt.message_id, accepted=True)
        except (DatabaseUnavailable, *BROKEN) as error:
            log.warning("thread_not_unlocked", message_id=attempt.message_id, error=type(error).__name__)


async def _decoded(request: SendRequest) -> tuple[tuple[Attachment, ...], tuple[int, ...]]:
    """The attachments, and the indices of those that are no base64. Others get their turn in between."""
    files, bad = [], []
    for at, file in enumerate(request.files):
        pieces: list[bytes] = []
        for start in range(0, len(file.content), BASE64_STEP):
            piece = decode_step(file.content, start)
            if piece is None:
                bad.append(at)
                break
            pieces.append(piece)
            if len(file.content) > BASE64_STEP:
                await asyncio.sleep(0)
        files.append(
            Attachment(
                file.filename, file.content_type, b"".join(pieces), inline=file.inline, content_id=file.content_id
            )
        )
    return tuple(files), tuple(bad)


def _check_test_mode(facts: Facts, recipients: Sequence[NewRecipient]) -> None:
    """What a test tenant sends never leaves, whatever the routes say (FR-TEN-2)."""
    inside = (RouteKind.LOCAL, RouteKind.SIMULATOR)
    if facts.mode is Mode.TEST and any(one.suppressed is None and one.route not in inside for one in recipients):
        raise PostroomError("test_mode_recipient")


def _shown(outgoing: Outgoing, accepted: Accepted) -> tuple[MessageView, OutboundState]:
    """The message as it is at the moment of its acceptance, without texts."""
    content = outgoing.content
    people = {kind: tuple(p for k, p in content.recipients if k is kind) for kind in RecipientKind}
    view = MessageView(
        key=(accepted.at, 0),
        id=outgoing.id,
        thread_id=accepted.thread_id,
        identity_id=outgoing.identity_id,
        direction=Direction.OUTBOUND,
        status=accepted.status.value,
        sender=content.sender,
        to=people[RecipientKind.TO],
        cc=people[RecipientKind.CC],
        bcc=people[RecipientKind.BCC],
        reply_to=people[RecipientKind.REPLY_TO],
        delivered_to=None,
        is_bcc=False,
        is_primary_recipient=True,
        subject=content.subject,
        snippet=content.snippet,
        sent_at=content.sent_at,
        received_at=accepted.at,
        extracted_text=None,
        text=None,
        html=None,
        attachments=tuple(
            AttachmentView(one, part) for one, part in zip(accepted.attachment_ids, content.attachments, strict=True)
        )
        + tuple(AttachmentView(file.id, file.part) for file in outgoing.linked),
        labels=labels(outgoing.labels),
        read=True,  # whoever wrote it has read it
        kind=content.kind,
        verdict=content.verdict,
        facts=content.facts,
        rfc_message_id=content.rfc_message_id,
        in_reply_to=content.in_reply_to,
        reference_ids=content.reference_ids,
        blob_key="",
        raw_size=content.raw_size,
        prefix_len=content.prefix_len,
        language=None,
        auth=None,
        refs=outgoing.refs,
    )
    deliveries = tuple(_queued(one, accepted) for one in outgoing.recipients)
    state = OutboundState(
        outgoing.operation, outgoing.kind, outgoing.reply_to, None, None, outgoing.metadata, deliveries
    )
    return view, state


def _queued(one: NewRecipient, accepted: Accepted) -> Delivery:
    return Delivery(
        id=0,
        recipient=one.address,
        field=one.field,
        route=one.route,
        status=Status.QUEUED if one.suppressed is None else Status.SUPPRESSED,
        reason=one.suppressed,
        smtp_code=None,
        enhanced_code=None,
        smtp_response=None if one.suppressed is None else f"policy: {one.suppressed}",
        bounce_type=None,
        remote_mx=None,
        tries=0,
        next_attempt_at=None,
        updated_at=accepted.at,
    )
