"""Removal: a placement goes, and with its last placement the message (A5, D8, E2, E3).

The rows go and the log says so in one transaction; the keys of the bytes come back to the caller, who removes them
after the commit. A crash between the two leaves bytes without a row, which the sweep removes (`sweep`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from postroom.mailbox import folders, placing, threads
from postroom.mailbox.models import FLAG_DELETED, ChangeKind, FolderKey, Source
from postroom.mailbox.placing import FolderCounts, PlacementRow
from postroom.mailbox.sent_copy import ledger_key
from postroom.mailbox.threads import UnreadCounts
from postroom.mailbox.writing import MailboxWrite

_DELETE_PLACEMENTS: Final = """
DELETE FROM placements p USING unnest($3::bigint[], $4::bigint[]) AS k (folder_id, uid)
WHERE p.tenant_id = $1 AND p.mailbox_id = $2 AND p.folder_id = k.folder_id AND p.uid = k.uid
"""

# Texts, recipients, attachments and words go by their foreign keys.
_DELETE_MESSAGES: Final = """
DELETE FROM messages m
WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.id = ANY ($3::bigint[])
  AND NOT EXISTS (SELECT FROM placements p WHERE p.tenant_id = m.tenant_id AND p.message_id = m.id)
RETURNING m.thread_seq, m.blob_key, m.raw_size, m.source,
  (SELECT array_agg(a.blob_key) FROM attachments a
   WHERE a.tenant_id = m.tenant_id AND a.message_id = m.id AND a.blob_key IS NOT NULL) AS linked
"""

_CANDIDATES: Final = """
SELECT uid FROM placements
WHERE tenant_id = $1 AND mailbox_id = $2 AND folder_id = $3 AND '$deleted' = ANY (flags) AND uid > $4
ORDER BY uid LIMIT $5
"""

_FIRST: Final = """
SELECT uid FROM placements WHERE tenant_id = $1 AND mailbox_id = $2 AND folder_id = $3 ORDER BY uid LIMIT $4
"""


@dataclass(frozen=True, slots=True)
class Removed:
    """The UIDs that went, ascending, and the blob keys of the messages that went with them, and of what belongs to
    them; how many were `kept`
    because they are still to be sent (mail-server C3)."""

    uids: tuple[int, ...]
    blob_keys: tuple[str, ...]
    kept: int = 0


NOTHING: Final = Removed((), ())


class MessagesInUse(Exception):
    """Some messages stay, since they are still to be sent; what else was to go has gone."""


async def expunge(write: MailboxWrite, folder_id: FolderKey, uids: Sequence[int]) -> Removed:
    """Remove those of `uids` that are there, `$deleted` and not still to be sent. Raises `folder_not_found`."""
    await folders.by_key(write.conn, write.ref, folder_id)
    rows = [row for row in await placing.rows_in_folder(write, folder_id, uids) if FLAG_DELETED in row.flags]
    free = [row for row in rows if not row.leaves]
    return replace(await remove(write, free), kept=len(rows) - len(free))


async def deleted_uids(write: MailboxWrite, folder_id: FolderKey, after: int, limit: int) -> list[int]:
    """The next `$deleted` UIDs of a folder above `after`."""
    folder = await folders.by_key(write.conn, write.ref, folder_id)
    if not folder.deleted_count:
        return []
    rows = await write.conn.fetch(_CANDIDATES, write.ref.tenant_id, write.ref.mailbox_id, folder_id, after, limit)
    return [row["uid"] for row in rows]


async def first_uids(write: MailboxWrite, folder_id: FolderKey, limit: int) -> list[int]:
    """The lowest UIDs of a folder, deleted or not."""
    rows = await write.conn.fetch(_FIRST, write.ref.tenant_id, write.ref.mailbox_id, folder_id, limit)
    return [row["uid"] for row in rows]


async def remove(write: MailboxWrite, rows: Sequence[PlacementRow]) -> Removed:
    """Remove placements, whatever their flags."""
    if not rows:
        return NOTHING
    ref, counts, unread = write.ref, FolderCounts(), UnreadCounts()
    await unread.begin(write, rows)
    for row in rows:
        counts.went(row.folder_id, row.flags, row.size)
        unread.went(row)
        write.log(ChangeKind.REMOVED, folder_id=row.folder_id, uid=row.uid, message=row.message)
    await write.conn.execute(
        _DELETE_PLACEMENTS, ref.tenant_id, ref.mailbox_id, [row.folder_id for row in rows], [row.uid for row in rows]
    )
    messages = sorted({row.message_id for row in rows})
    gone = await write.conn.fetch(_DELETE_MESSAGES, ref.tenant_id, ref.mailbox_id, messages)
    write.used_bytes = max(0, write.used_bytes - sum(row["raw_size"] for row in gone))
    await threads.shrink(write, Counter(row["thread_seq"] for row in gone), await unread.settle(write))
    await counts.save(write)
    keys = [row["blob_key"] for row in gone]
    keys += [ledger_key(row["blob_key"]) for row in gone if row["source"] == Source.SEND]
    keys += [key for row in gone for key in row["linked"] or ()]
    return Removed(tuple(sorted(row.uid for row in rows)), tuple(keys))
