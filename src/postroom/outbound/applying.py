"""What a delivery report from outside says, written to the deliveries that it is about: one transaction, which bears
being done again (outbound §13.3; G6, G8, D11). Whoever calls has decided that the report is believed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs.store import BlobStore, StorageError
from postroom.db.pool import Connection, Database
from postroom.mail.dsn import ReportedRecipient
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.writing import MailboxWrite, begin_write
from postroom.outbound import outcome_sql as sql
from postroom.outbound import reports
from postroom.outbound.models import RouteKind, Status
from postroom.outbound.outcomes import Changed
from postroom.outbound.reports import Reported
from postroom.outbound.settling import PROVIDERS, Change, Made, Settled, Telling, settle

log = base_log.get("returns")

Find = Callable[[Connection], Awaitable[list[int]]]
"""The ids of the deliveries that a report may be about."""
Attribute = Callable[[Mapping[int, Any]], Mapping[int, ReportedRecipient]]
"""What it says of which of them, given their rows (`outcome_sql.LOCK`)."""

_SILENT: Final = Telling(outcomes=False)
"""The report itself is the notice."""
# Of whose failure we have written ourselves, or are about to.
_TOLD: Final = """
SELECT delivery_id FROM bounce_tasks WHERE tenant_id = $1 AND delivery_id = ANY ($2::bigint[]) AND action = 'failed'
"""


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of it, by delivery: their rows as they were, what the report says of some, which were changed, and of
    whose failure a notice of ours tells."""

    rows: Mapping[int, Any]
    entries: Mapping[int, ReportedRecipient]
    changed: frozenset[int]
    told: frozenset[int]


class Applying:
    """Does it. `changed` is told of mailboxes after the commit."""

    def __init__(
        self, database: Database, blobs: BlobStore, clock: Clock, ids: IdGenerator, *, changed: Changed
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._ids = ids
        self._changed = changed

    async def apply(self, ref: MailboxRef, message_id: str, find: Find, attribute: Attribute) -> Applied | None:
        """Write what a report says of the deliveries of one message of the mailbox, whose public id is for the log;
        None when they are gone. Raises what the database raises."""
        try:
            async with self._database.transaction() as conn:
                write = await begin_write(conn, ref, self._clock.now())
                rows = await _lock(write, await find(conn))
                if not rows:
                    return None
                entries = attribute(rows)
                changes = [made for key, entry in entries.items() if (made := _change(write, rows[key], entry))]
                told = await conn.fetch(_TOLD, ref.tenant_id, list(entries)) if entries else []
                settled = await settle(changes, self._ids, telling=_SILENT)
                await write.finish()
        except PostroomError:
            return None  # the mailbox
        await self._after_commit(ref, write.modseq if changes else None, settled)
        log.info("report_applied", message_id=message_id, named=len(entries), changed=len(changes))
        changed = frozenset(change.row["id"] for change in changes)
        return Applied(rows, entries, changed, frozenset(row["delivery_id"] for row in told))

    async def _after_commit(self, ref: MailboxRef, modseq: int | None, settled: Settled) -> None:
        if modseq is not None:
            self._changed(ref, modseq)
        if settled.wires:
            try:
                await self._blobs.delete(settled.wires, durably=False)
            except StorageError:
                log.warning("orphan_blobs_left", count=len(settled.wires))


async def _lock(write: MailboxWrite, ids: list[int]) -> dict[int, Any]:
    owners = [write.ref.tenant_id] * len(ids), [write.ref.mailbox_id] * len(ids)
    rows = await write.conn.fetch(sql.LOCK, *owners, ids)
    return {row["id"]: row for row in rows}


def _change(write: MailboxWrite, row: Any, entry: ReportedRecipient) -> Change | None:
    status = Status(row["status"])
    went_out = not status.is_waiting or row["tries"] > 0 or row["data_started_at"] is not None
    decided = reports.decide(entry, Reported(status, row["bounce_type"], went_out))
    if decided is None:
        return None
    # Whoever reports had taken it, which we may not know yet: the result of an attempt under way comes too late now.
    made = Made(provider=PROVIDERS[RouteKind(row["route"])])
    return Change(write, row, decided, made, reconciles=status is Status.UNCERTAIN, reported=True)
