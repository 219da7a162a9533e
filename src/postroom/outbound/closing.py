"""What a caller decides of a message that was accepted: to cancel it while it waits, or what became of it when nobody
knows (outbound §16, §17; FR-OUT-11, FR-DLV-7, E7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

import asyncpg

from postroom.accounts.audit import HOST, Actor, Entry, record
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs.store import BlobStore, StorageError
from postroom.db.pool import Connection, Database
from postroom.events import catalogue, outbox
from postroom.events.outbox import MessageEvent
from postroom.events.outgoing import summary
from postroom.mailbox.models import MailboxRef, Mailpoint
from postroom.mailbox.queries import Include, MessageQueries, MessageView
from postroom.mailbox.writing import MailboxWrite, begin_write
from postroom.outbound import outcome_sql
from postroom.outbound.models import Status
from postroom.outbound.rules import Decided, roll_up
from postroom.outbound.settling import Change, settle

log = base_log.get("outbound")

RESOLVED_NOT_SENT: Final = "resolved_not_sent"

_FIND: Final = """
SELECT m.id, m.status, o.provider, o.sent_from, b.tenant_public_id, b.identity_public_id, t.mode = 'test' AS is_test
FROM messages m
JOIN mailboxes b ON b.tenant_id = m.tenant_id AND b.id = m.mailbox_id
JOIN tenants t ON t.id = m.tenant_id
LEFT JOIN outbound_messages o ON o.tenant_id = m.tenant_id AND o.message_id = m.id
WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.public_id = $3
"""
_DELIVERIES: Final = "SELECT id FROM deliveries WHERE tenant_id = $1 AND mailbox_id = $2 AND message_id = $3"

Row = Mapping[str, Any]
"""A delivery as `outcome_sql.LOCK` reads it."""

Then = Callable[[Connection], Awaitable[None]]
"""What else belongs to the transaction, such as recording the answer under an Idempotency-Key."""


class Resolution(StrEnum):
    """What somebody found out about a message of which nobody knows whether it was sent."""

    SENT = "sent"
    NOT_SENT = "not_sent"


class Closing:
    """Both decisions. `changed` is told of the mailbox and its new modseq after the commit."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        ids: IdGenerator,
        *,
        queries: MessageQueries,
        changed: Callable[[MailboxRef, int], None],
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._ids = ids
        self._queries = queries
        self._changed = changed

    async def cancel(self, ref: MailboxRef, message_id: str, *, then: Then | None = None, by: Actor = HOST) -> None:
        """Stop a message that waits whole: `queued`, with no attempt under way and none that may have sent anything.

        Raises `message_not_found`, `not_cancelable`.
        """

        async def decide(write: MailboxWrite, row: asyncpg.Record, found: Sequence[Row]) -> list[Change]:
            live = [one for one in found if one["status"] != Status.SUPPRESSED]
            stoppable = row["status"] == Status.QUEUED and live and all(_is_untouched(one, write) for one in live)
            if not stoppable:
                raise PostroomError("not_cancelable")
            return [Change(write, one, Decided(Status.CANCELED, counts=False)) for one in live]

        entry = Entry("message.cancel", "message", message_id, ref.tenant_id)
        await self._close(ref, message_id, decide=decide, then=then, by=by, entry=entry)
        log.info("message_canceled", message_id=message_id)

    async def resolve(
        self,
        ref: MailboxRef,
        message_id: str,
        resolution: Resolution,
        *,
        then: Then | None = None,
        by: Actor = HOST,
    ) -> None:
        """Say what became of the uncertain deliveries of a message. Nothing is sent again: that takes a new key.

        Raises `message_not_found`, `not_uncertain`.
        """
        view = await self._queries.get_message(ref, message_id, include=Include.NONE)
        sent = resolution is Resolution.SENT
        decided = Decided(Status.SUBMITTED, counts=False)
        if not sent:
            decided = Decided(Status.FAILED, reason=RESOLVED_NOT_SENT, counts=False)

        async def decide(write: MailboxWrite, row: asyncpg.Record, found: Sequence[Row]) -> list[Change]:
            open_ = [one for one in found if one["status"] == Status.UNCERTAIN]
            if row["status"] != Status.UNCERTAIN or not open_:
                raise PostroomError("not_uncertain")
            if sent:
                after = [decided.status if one in open_ else Status(one["status"]) for one in found]
                await self._tell_sent(write, row, view, roll_up(after))
            return [Change(write, one, decided) for one in open_]

        entry = Entry("message.resolve", "message", message_id, ref.tenant_id, {"outcome": resolution.value})
        await self._close(ref, message_id, decide=decide, then=then, by=by, entry=entry)
        log.info("message_resolved", message_id=message_id, outcome=resolution.value)

    async def _close(
        self,
        ref: MailboxRef,
        message_id: str,
        *,
        decide: Callable[[MailboxWrite, asyncpg.Record, Sequence[Row]], Awaitable[list[Change]]],
        then: Then | None,
        by: Actor,
        entry: Entry,
    ) -> None:
        async with self._database.transaction() as conn:
            write = await begin_write(conn, ref, self._clock.now())
            row = await conn.fetchrow(_FIND, ref.tenant_id, ref.mailbox_id, message_id)
            if row is None:
                raise PostroomError("message_not_found")
            ids = [one["id"] for one in await conn.fetch(_DELIVERIES, ref.tenant_id, ref.mailbox_id, row["id"])]
            owners = [ref.tenant_id] * len(ids), [ref.mailbox_id] * len(ids)
            locked = await conn.fetch(outcome_sql.LOCK, *owners, ids)
            settled = await settle(await decide(write, row, [dict(one) for one in locked]), self._ids)
            await record(conn, self._ids, write.now, by, entry)
            if then is not None:
                await then(conn)
            await write.finish()
        self._changed(ref, write.modseq)
        try:
            await self._blobs.delete(settled.wires, durably=False)
        except StorageError:
            log.warning("orphan_blobs_left", count=len(settled.wires))

    async def _tell_sent(self, write: MailboxWrite, row: asyncpg.Record, view: MessageView, status: Status) -> None:
        """`message.sent` without an id of the provider: a person said so."""
        provider = row["provider"] or "direct"
        if provider == "local":
            provider = "loopback" if row["is_test"] else "direct"
        sent_from = row["sent_from"]
        if sent_from is not None:
            view = replace(view, sender=Mailpoint(sent_from, view.sender.name if view.sender is not None else ""))
        shown = summary(view, status.value)
        kind, data = catalogue.message_sent(shown, provider, None, via_fallback=sent_from is not None)
        owner = (row["tenant_public_id"], row["identity_public_id"])
        event = MessageEvent(write, *owner, row["id"], kind, data)
        await outbox.put([event], occurred_at=write.now, new_id=self._ids.new)


def _is_untouched(delivery: Row, write: MailboxWrite) -> bool:
    """Whether nothing of it can have been sent, nor is being sent now."""
    claimed = delivery["claim_token"] is not None and delivery["lease_until"] is not None
    return (
        delivery["status"] == Status.QUEUED
        and not (claimed and delivery["lease_until"] > write.now)
        and delivery["data_started_at"] is None
    )
