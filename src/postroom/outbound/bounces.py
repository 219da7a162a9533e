"""Telling senders by mail what became of their messages (mail-server C7).

What is to be told is entered in the transaction that makes it true, with the id of the notice; tasks of one id make one
notice. A notice is in the sender's INBOX once, whatever happens: it is looked for by its id, and the same octets are
not stored twice. For mail that was passed on for a sender elsewhere the notice is sent, with the null sender. Of a
notice nobody is ever told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from postroom import __version__
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.blobs.store import BlobMissing, BlobStore, StorageError
from postroom.db import errors as db_errors
from postroom.db.claim import Claim, ClaimQueue, ClaimSpec
from postroom.db.pool import Database
from postroom.events.catalogue import TextBytes, default_text_bytes, message_received
from postroom.inbound.receive import raw_key
from postroom.mail.compose.errors import ComposeError
from postroom.mail.dsn import Action
from postroom.mailbox.ingest import Delivery, IngestError
from postroom.mailbox.models import (
    Content,
    Direction,
    GroupOutcome,
    MailboxRef,
    NewMessage,
    Refusal,
    Refused,
    Source,
)
from postroom.outbound import notices, rules, wire
from postroom.outbound import outcome_sql as sql
from postroom.outbound.models import (
    Accepted,
    NewRecipient,
    Operation,
    Outgoing,
    RecipientField,
    RouteKind,
    SendKind,
    Status,
)
from postroom.outbound.notices import Notice, Told
from postroom.outbound.relaying import bare
from postroom.outbound.rules import DEFAULT_RETRY, RetryPolicy
from postroom.outbound.transports.base import OFFLOAD_BYTES, Offload
from postroom.smtp.trace import trace_header

log = base_log.get("bounces")

BATCH: Final = 20
POLL_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0
FIRST_WAIT: Final = 60
LONGEST_WAIT: Final = 3600

QUEUE: Final = ClaimQueue(
    ClaimSpec(
        table="bounce_tasks",
        keys={"tenant_id": "bigint", "delivery_id": "bigint", "action": "text"},
        lease=timedelta(minutes=5),
        max_attempts=30,
        values=("message",),
        group=("tenant_id", "message"),
    )
)

_LOAD: Final = """
SELECT d.message_id, d.mailbox_id, d.recipient, d.smtp_code, d.enhanced_code, d.smtp_response, d.remote_mx, d.dsn_orcpt,
  d.last_attempt_at, d.updated_at, d.status, d.tries, d.next_attempt_at, o.operation, o.envelope_from, o.wire_key,
  o.dsn_ret, o.dsn_envid, o.accepted_at, o.smtputf8,
  m.rfc_message_id, m.subject, m.blob_key, m.raw_prefix_len, m.verdict, m.from_address,
  i.kind = 'person' AS is_person, i.kind = 'relay' AS is_relay, b.identity_public_id, b.tenant_public_id,
  EXISTS (SELECT FROM messages n WHERE n.public_id = $3) AS is_written
FROM deliveries d
JOIN outbound_messages o ON o.tenant_id = d.tenant_id AND o.message_id = d.message_id
JOIN messages m ON m.tenant_id = d.tenant_id AND m.id = d.message_id
JOIN mailboxes b ON b.tenant_id = d.tenant_id AND b.id = d.mailbox_id
JOIN identities i ON i.tenant_id = d.tenant_id AND i.id = d.mailbox_id
WHERE d.tenant_id = $1 AND d.id = ANY ($2::bigint[]) ORDER BY d.position
"""
_SYNTHETIC: Final = "@synthetic.invalid"

Describe = Callable[[bytes, bytes, datetime], Awaitable[Content]]
Deliver = Callable[[Delivery], Awaitable[GroupOutcome]]
Accept = Callable[[Outgoing], Awaitable[Accepted]]
RouteTo = Callable[[str], Awaitable[RouteKind]]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """How a notice leaves to a sender who is not ours."""

    accept: Accept
    route: RouteTo


class BounceWriter:
    """Writes the notices that are due. One per worker process; any number may run.

    `deliver` stores into mailboxes (`Ingest.deliver`), `describe` says what a message is (`Parser.describe`), `offload`
    runs what takes long (`Parser.run`). Without `elsewhere` senders who are not ours are told nothing. `policy` says
    until when it is tried what waits.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        ids: IdGenerator,
        *,
        hostname: str,
        deliver: Deliver,
        describe: Describe,
        offload: Offload,
        elsewhere: Elsewhere | None = None,
        policy: RetryPolicy = DEFAULT_RETRY,
        poll: float = POLL_SECONDS,
        text_bytes: TextBytes = default_text_bytes,
    ) -> None:
        self._database = database
        self._text_bytes = text_bytes
        self._blobs = blobs
        self._clock = clock
        self._ids = ids
        self._hostname = hostname
        self._deliver = deliver
        self._describe = describe
        self._offload = offload
        self._elsewhere = elsewhere
        self._policy = policy
        self._poll = poll
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """There is something to tell."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            pause = self._poll
            try:
                if await self.run_due():
                    continue
            except Exception as error:
                if not db_errors.is_transient(error):
                    raise
                log.warning("bounces_interrupted", error=type(error).__name__)
                pause = RETRY_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def run_due(self) -> int:
        """Write what is due; how many notices were taken up."""
        async with self._database.transaction() as conn:
            batch = await QUEUE.claim(conn, now=self._clock.now(), limit=BATCH)
        groups: dict[object, list[Claim]] = {}
        for claim in batch.claims:
            groups.setdefault(claim.token, []).append(claim)
        for claims in groups.values():
            await self._handle(claims)
        return len(groups)

    async def _handle(self, claims: Sequence[Claim]) -> None:
        error: str | None
        try:
            error = await self._write(claims)
        except (StorageError, IngestError) as failure:
            error = type(failure).__name__
        except Exception as failure:
            if db_errors.is_transient(failure):
                raise
            log.error("notice_not_written", error=type(failure).__name__)
            error = type(failure).__name__
        if error is None:
            await self._finish(claims)
            return
        wait = min(FIRST_WAIT << min(claims[0].attempt - 1, 6), LONGEST_WAIT)
        now = self._clock.now()
        async with self._database.transaction() as conn:
            for claim in claims:
                await QUEUE.retry(conn, claim, now=now, at=now + timedelta(seconds=wait), error=error)

    async def _finish(self, claims: Sequence[Claim]) -> None:
        """The tasks are done; with the last of a message its bytes go, if nothing else needs them."""
        tenant = claims[0].key[0]
        async with self._database.transaction() as conn:
            # First, and by itself: an operator who holds it makes a delivery wait that the next look has to see.
            messages = await conn.fetch(sql.LOCK_WIRES, tenant, [claim.key[1] for claim in claims])
            await QUEUE.finish(conn, claims)
            rows = await conn.fetch(sql.FORGET_WIRES, tenant, [row["message_id"] for row in messages])
        try:
            await self._blobs.delete([row["wire_key"] for row in rows], durably=False)
        except StorageError:
            log.warning("orphan_blobs_left", count=len(rows))

    # -- one notice ----------------------------------------------------------------------------------------------------

    async def _write(self, claims: Sequence[Claim]) -> str | None:
        """Why the notice has to be tried again, a word; None when it is written, or not to be."""
        notice_id: str = claims[0].values["message"]
        tenant, action = claims[0].key[0], claims[0].key[2]
        async with self._database.acquire() as conn:
            rows = await conn.fetch(_LOAD, tenant, [claim.key[1] for claim in claims], notice_id)
        if action == Action.DELAYED:
            # What ended meanwhile is told of by another notice, or was good news.
            rows = [row for row in rows if Status(row["status"]).is_waiting]
        if not rows or rows[0]["is_written"]:
            return None
        row = rows[0]
        is_ours = Operation(row["operation"]) is not Operation.REDIRECT
        if not row["envelope_from"] or (not is_ours and (row["verdict"] != "pass" or self._elsewhere is None)):
            # A sender who may be somebody else's invention is not written to (N19).
            log.info("notice_withheld", message_id=notice_id)
            return None
        notice = self._notice(notice_id, action, rows, to=row["envelope_from"])
        original = await self._original(row)
        try:
            if len(original) < OFFLOAD_BYTES:
                raw = notices.write(notice, original)
            else:
                raw = await self._offload(len(original), notices.write, notice, original)
        except ComposeError as error:
            log.error("notice_cannot_be_composed", message_id=notice_id, error=type(error).__name__)
            return None
        if is_ours:
            return await self._to_inbox(MailboxRef(tenant, row["mailbox_id"]), row, notice, raw)
        return await self._to_elsewhere(MailboxRef(tenant, row["mailbox_id"]), row, notice, raw)

    def _notice(self, notice_id: str, action: str, rows: Sequence[Any], *, to: str) -> Notice:
        row = rows[0]
        about: str = row["rfc_message_id"]
        return Notice(
            id=notice_id,
            action=action,
            hostname=self._hostname,
            to=to,
            at=max(one["updated_at"] for one in rows),
            arrival=row["accepted_at"],
            told=tuple(
                Told(
                    recipient=one["recipient"],
                    enhanced=one["enhanced_code"],
                    code=one["smtp_code"],
                    text=one["smtp_response"],
                    remote_mx=one["remote_mx"],
                    orcpt=one["dsn_orcpt"],
                    last_attempt=one["last_attempt_at"],
                    tried_until=self._tried_until(one) if action == Action.DELAYED else None,
                )
                for one in rows
            ),
            subject=row["subject"],
            about=None if about.endswith(_SYNTHETIC) else about,
            envid=row["dsn_envid"],
            ret=row["dsn_ret"],
            smtputf8=row["smtputf8"],
        )

    def _tried_until(self, row: Any) -> datetime | None:
        if row["next_attempt_at"] is None:
            return None  # it waits for an operator
        return rules.tried_until(
            Status(row["status"]), row["tries"], row["accepted_at"], row["next_attempt_at"], self._policy
        )

    async def _original(self, row: Any) -> bytes:
        """The beginning of what was sent; of the sent copy, should the other be gone; nothing, should both."""
        if row["wire_key"] is not None:
            try:
                return await self._blobs.get_range(row["wire_key"], 0, notices.MAX_READ)
            except BlobMissing:
                log.warning("wire_missing")
        start = row["raw_prefix_len"]
        try:
            return wire.from_sent_copy(await self._blobs.get_range(row["blob_key"], start, start + notices.MAX_READ))
        except BlobMissing:
            return b"\r\n"

    async def _to_inbox(self, ref: MailboxRef, row: Any, notice: Notice, raw: bytes) -> str | None:
        prefix = trace_header(
            return_path="",
            helo=self._hostname,
            peer_ip="",
            peer_name=None,
            hostname=self._hostname,
            version=__version__,
            transmission="LMTP",
            connection_id=notice.id,
            recipient=None,
            received_at=notice.at,
        )
        now = self._clock.now()
        content = replace(await self._describe(prefix, raw, now), kind="dsn", verdict="pass")
        most = await self._text_bytes(ref.tenant_id)
        message = NewMessage(
            id=notice.id,
            mailbox=ref,
            source=Source.MX,
            direction=Direction.INBOUND,
            blob_key=raw_key(row["tenant_public_id"], row["identity_public_id"], notice.id),
            content=content,
            thread_id=self._ids.new("thr"),
            event_id=self._ids.new("evt"),
            attachment_ids=tuple(self._ids.new("att") for _ in content.attachments),
            received_at=now,
            internal_date=now.replace(microsecond=0),
            delivered_to=row["from_address"],
            # An agent has its events already; people's clients learn of new mail by this one (C7).
            announce=partial(message_received, most=most) if row["is_person"] else None,
        )
        outcome = await self._deliver(Delivery((prefix, raw), (message,)))
        if isinstance(outcome, Refused):
            log.warning("notice_refused", message_id=notice.id, reason=outcome.reason.value)
            return None if outcome.reason is Refusal.MAILBOX_GONE else outcome.reason.value
        log.info("notice_written", message_id=notice.id, action=notice.action, count=len(notice.told))
        return None

    async def _to_elsewhere(self, ref: MailboxRef, row: Any, notice: Notice, raw: bytes) -> str | None:
        assert self._elsewhere is not None, "checked before"
        content = await self._describe(b"", raw, self._clock.now())
        if row["is_relay"]:
            content = bare(content)
        to = notice.to  # a rewritten sender of ours: its local part holds the author's, whose case may matter
        await self._elsewhere.accept(
            Outgoing(
                id=notice.id,
                mailbox=ref,
                tenant_id=row["tenant_public_id"],
                identity_id=row["identity_public_id"],
                operation=Operation.BOUNCE,
                kind=SendKind.TRANSACTIONAL,
                envelope_from="",
                recipients=(NewRecipient(to, RecipientField.TO, await self._elsewhere.route(to)),),
                sent_copy=raw,
                wire=raw,
                content=replace(content, kind="dsn"),
                eight_bit=not raw.isascii(),
                smtputf8=row["smtputf8"] and not to.isascii(),
            )
        )
        log.info("notice_sent", message_id=notice.id, action=notice.action)
        return None
