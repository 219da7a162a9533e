"""Placements as the writers see them: read under the mailbox lock, and the counters of folders that follow from
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from postroom.base.errors import PostroomError
from postroom.db.pool import Connection
from postroom.mailbox.models import FLAG_DELETED, FLAG_SEEN, FolderKey, MailboxRef
from postroom.mailbox.rules import Flags
from postroom.mailbox.writing import MailboxWrite

# `copies` says in how many places the message stands. Its read state is that of the oldest placement (A5): by
# `saved_at`, then folder and UID. Only where there is more than one does anybody need to look.
_ROWS: Final = """
SELECT p.folder_id, p.uid, p.modseq, p.size, p.internal_date, p.saved_at, p.flags, p.message_id, m.public_id,
       m.thread_seq, m.direction = 'inbound' AND m.status = 'received' AS counts,
       m.status IN ('queued', 'deferred') OR (m.direction = 'outbound' AND EXISTS (
         SELECT FROM deliveries d JOIN bounce_tasks b ON b.tenant_id = d.tenant_id AND b.delivery_id = d.id
         WHERE d.tenant_id = p.tenant_id AND d.message_id = p.message_id AND b.next_attempt_at IS NOT NULL)) AS leaves,
       (SELECT count(*) FROM placements o WHERE o.tenant_id = p.tenant_id AND o.message_id = p.message_id) AS copies
FROM placements p
JOIN messages m ON m.tenant_id = p.tenant_id AND m.id = p.message_id
WHERE p.tenant_id = $1 AND p.mailbox_id = $2
"""
_IN_FOLDER: Final = _ROWS + "AND p.folder_id = $3 AND p.uid = ANY ($4::bigint[]) ORDER BY p.uid"
_OF_MESSAGES: Final = _ROWS + "AND p.message_id = ANY ($3::bigint[]) ORDER BY p.message_id, p.folder_id, p.uid"

_ADJUST: Final = """
UPDATE folders f SET message_count = f.message_count + d.messages, unseen_count = f.unseen_count + d.unseen,
       deleted_count = f.deleted_count + d.deleted, total_bytes = f.total_bytes + d.bytes, highest_modseq = $3
FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
     AS d (id, messages, unseen, deleted, bytes)
WHERE f.tenant_id = $1 AND f.mailbox_id = $2 AND f.id = d.id
"""

_MESSAGE_IDS: Final = """
SELECT id, public_id FROM messages WHERE tenant_id = $1 AND mailbox_id = $2 AND public_id = ANY ($3::text[]) ORDER BY id
"""


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """A placement with what is needed of its message."""

    folder_id: FolderKey
    uid: int
    modseq: int
    size: int
    internal_date: datetime
    saved_at: datetime
    flags: Flags
    message_id: int
    message: str
    thread_seq: int
    counts: bool
    """Whether the message makes its thread unread while unseen: inbound and received."""
    leaves: bool
    """Whether it is still to be sent: then it is moved at the most, never removed (mail-server C3)."""
    copies: int


def _row(row: asyncpg.Record) -> PlacementRow:
    folder_id, uid, modseq, size, internal_date, saved_at, flags, message_id, message, thread_seq, *more = row
    counts, leaves, copies = more
    return PlacementRow(
        folder_id,
        uid,
        modseq,
        size,
        internal_date,
        saved_at,
        tuple(flags),
        message_id,
        message,
        thread_seq,
        counts,
        leaves,
        copies,
    )


async def rows_in_folder(write: MailboxWrite, folder_id: FolderKey, uids: Sequence[int]) -> list[PlacementRow]:
    """Those of `uids` that exist, by UID."""
    return await read_rows(write.conn, write.ref, folder_id, uids)


async def read_rows(conn: Connection, ref: MailboxRef, folder_id: FolderKey, uids: Sequence[int]) -> list[PlacementRow]:
    """As `rows_in_folder`, of a mailbox that the caller's transaction has locked."""
    return list(map(_row, await conn.fetch(_IN_FOLDER, ref.tenant_id, ref.mailbox_id, folder_id, uids)))


async def rows_of_messages(write: MailboxWrite, message_ids: Sequence[int]) -> list[PlacementRow]:
    """Every placement of the messages (row keys)."""
    rows = await write.conn.fetch(_OF_MESSAGES, write.ref.tenant_id, write.ref.mailbox_id, message_ids)
    return list(map(_row, rows))


async def message_keys(write: MailboxWrite, public_ids: Sequence[str]) -> list[int]:
    """Row keys of the messages, in the order in which they came. Raises `message_not_found` when one is not there."""
    rows = await write.conn.fetch(_MESSAGE_IDS, write.ref.tenant_id, write.ref.mailbox_id, public_ids)
    if len(rows) != len(set(public_ids)):
        raise PostroomError("message_not_found")
    return [row["id"] for row in rows]


class FolderCounts:
    """Adds up what an operation does to the counters of folders, and writes them with one statement."""

    __slots__ = ("_deltas",)

    def __init__(self) -> None:
        self._deltas: dict[FolderKey, list[int]] = {}

    def touch(self, folder_id: FolderKey) -> list[int]:
        """The folder's modseq rises even if no counter does."""
        return self._deltas.setdefault(folder_id, [0, 0, 0, 0])

    def came(self, folder_id: FolderKey, flags: Flags, size: int) -> None:
        self._count(folder_id, flags, size, 1)

    def went(self, folder_id: FolderKey, flags: Flags, size: int) -> None:
        self._count(folder_id, flags, size, -1)

    def changed(self, folder_id: FolderKey, old: Flags, new: Flags) -> None:
        delta = self.touch(folder_id)
        delta[1] += (FLAG_SEEN in old) - (FLAG_SEEN in new)
        delta[2] += (FLAG_DELETED in new) - (FLAG_DELETED in old)

    def _count(self, folder_id: FolderKey, flags: Flags, size: int, sign: int) -> None:
        delta = self.touch(folder_id)
        delta[0] += sign
        delta[1] += sign * (FLAG_SEEN not in flags)
        delta[2] += sign * (FLAG_DELETED in flags)
        delta[3] += sign * size

    async def save(self, write: MailboxWrite) -> None:
        if not self._deltas:
            return
        columns: Iterable[Sequence[int]] = zip(*self._deltas.values(), strict=True)
        ids = list(self._deltas)
        await write.conn.execute(_ADJUST, write.ref.tenant_id, write.ref.mailbox_id, write.modseq, ids, *columns)
