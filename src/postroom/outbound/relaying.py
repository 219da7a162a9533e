"""The mailboxes of relays: what is kept of mail that went on, and how it goes (mail-server A6, C9).

Nobody reads them. They hold what is on its way, and for an hour after that, in which an operator may still look at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.blobs.store import BlobStore, StorageError
from postroom.db.pool import Database
from postroom.mailbox import expunge, placing
from postroom.mailbox.models import Content, MailboxRef
from postroom.mailbox.writing import begin_write
from postroom.outbound import passed

log = base_log.get("relaying")

KEEP: Final = timedelta(hours=1)
REMEMBER: Final = timedelta(days=7)
"""How long it is known what was passed on: longer than any sender tries again (RFC 5321 §4.5.4.1)."""
GIVEN_UP: Final = timedelta(days=7)
"""After which a notice that could not be written is waited for no more."""
BATCH: Final = 500

# $1: what changed last before then; $2: notices that were given up before then count no more; $3 how many.
_DONE: Final = """
SELECT m.tenant_id, m.mailbox_id, m.id, o.wire_key
FROM identities i
CROSS JOIN LATERAL (
  SELECT m.tenant_id, m.mailbox_id, m.id, m.public_id FROM messages m
  WHERE m.tenant_id = i.tenant_id AND m.mailbox_id = i.id AND m.received_at < $1
    AND m.status NOT IN ('queued', 'deferred')
) m
JOIN outbound_messages o ON o.tenant_id = m.tenant_id AND o.message_id = m.id
WHERE i.kind = 'relay'
  AND NOT EXISTS (SELECT FROM deliveries d WHERE d.tenant_id = m.tenant_id AND d.message_id = m.id
                  AND (d.status IN ('queued', 'deferred') OR d.next_attempt_at IS NOT NULL OR d.updated_at >= $1))
  AND NOT EXISTS (SELECT FROM deliveries d JOIN bounce_tasks b ON b.tenant_id = d.tenant_id AND b.delivery_id = d.id
                  WHERE d.tenant_id = m.tenant_id AND d.message_id = m.id
                  AND (b.next_attempt_at IS NOT NULL OR b.parked_at >= $2))
  -- A notice by which its task sees that it is written.
  AND NOT EXISTS (SELECT FROM bounce_tasks b
                  WHERE b.next_attempt_at IS NOT NULL AND b.tenant_id = m.tenant_id AND b.message = m.public_id)
ORDER BY m.tenant_id, m.mailbox_id, m.id LIMIT $3
"""


def bare(content: Content) -> Content:
    """What a relay's mailbox says of a message beside its octets: nothing that anybody would read."""
    return replace(
        content,
        in_reply_to=None,
        reference_ids=(),
        recipients=(),
        subject="",
        thread_subject="",
        subject_fold="",
        snippet="",
        text="",
        html=None,
        extracted_text="",
        envelope=b"",
        body_structure=b"",
        part_tree=b"",
        attachments=(),
    )


@dataclass(frozen=True, slots=True)
class _Done:
    """A message of which nothing is to be done any more. `wire_key`: octets that nothing needs, but that are there."""

    ref: MailboxRef
    id: int
    wire_key: str | None


async def clear_relays(database: Database, blobs: BlobStore, clock: Clock) -> int:
    """Remove what went on, or did not, more than an hour ago, and of which nobody is still to be told; how many. What
    was passed on is forgotten after a week, and what failed with its rows. It may run twice.
    """
    now, total = clock.now(), 0
    while True:
        async with database.acquire() as conn:
            rows = await conn.fetch(_DONE, now - KEEP, now - GIVEN_UP, BATCH)
        done = [_Done(MailboxRef(row["tenant_id"], row["mailbox_id"]), row["id"], row["wire_key"]) for row in rows]
        removed = 0
        for ref in dict.fromkeys(one.ref for one in done):
            removed += await _remove(database, blobs, clock, ref, [one for one in done if one.ref == ref])
        total += removed
        if len(done) < BATCH or not removed:
            break
    async with database.acquire() as conn:
        await passed.forget(conn, passed_before=now - REMEMBER, now=now)
    return total


async def _remove(database: Database, blobs: BlobStore, clock: Clock, ref: MailboxRef, done: Sequence[_Done]) -> int:
    try:
        async with database.transaction() as conn:
            write = await begin_write(conn, ref, clock.now())
            rows = await placing.rows_of_messages(write, [one.id for one in done])
            # What an operator has tried again since then stays.
            free = [row for row in rows if not row.leaves]
            await passed.free(conn, ref.tenant_id, [row.message_id for row in free])
            gone = await expunge.remove(write, free)
            await write.finish()
    except PostroomError:
        return 0  # the mailbox is being erased
    wires = {one.id: one.wire_key for one in done}
    keys = [*gone.blob_keys, *filter(None, (wires[row.message_id] for row in free))]
    try:
        await blobs.delete(keys)
    except StorageError:
        log.warning("orphan_blobs_left", count=len(keys))
    return len(free)
