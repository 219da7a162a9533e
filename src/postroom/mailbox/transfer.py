"""COPY and MOVE between the folders of one mailbox (A5, D4, D8).

A copy is another placement of the same message, a move re-homes one; either way the target gives a new UID, in the
order of the source's UIDs, and flags and internal date stay (RFC 3501 §6.4.7, RFC 6851). Source and target may be the
same folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from postroom.base.errors import PostroomError
from postroom.mailbox import expunge, folders, placing
from postroom.mailbox.models import ChangeKind, Folder, FolderKey
from postroom.mailbox.placing import FolderCounts, PlacementRow
from postroom.mailbox.threads import UnreadCounts
from postroom.mailbox.writing import MailboxWrite

MAX_UID: Final = 2**32 - 1

_TAKE_UIDS: Final = """
UPDATE folders SET uid_next = uid_next + $4 WHERE tenant_id = $1 AND mailbox_id = $2 AND id = $3
"""

_INSERT: Final = """
INSERT INTO placements (tenant_id, folder_id, uid, mailbox_id, message_id, size, modseq, internal_date, saved_at, flags)
SELECT $1, $3, $7::bigint + n.n, $2, n.message_id, n.size, $4, n.internal_date, $5, string_to_array(n.flags, ' ')
FROM unnest($6::bigint[], $8::bigint[], $9::timestamptz[], $10::text[])
     WITH ORDINALITY AS n (message_id, size, internal_date, flags, n)
"""

_REHOME: Final = """
UPDATE placements p SET folder_id = $3, uid = $7::bigint + n.n, modseq = $4, saved_at = $5
FROM unnest($6::bigint[], $8::bigint[]) WITH ORDINALITY AS n (folder_id, uid, n)
WHERE p.tenant_id = $1 AND p.mailbox_id = $2 AND p.folder_id = n.folder_id AND p.uid = n.uid
"""


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What COPYUID says (RFC 4315 §3): the target's UIDVALIDITY and (source UID, target UID), ascending on both
    sides.
    """

    uid_validity: int
    pairs: tuple[tuple[int, int], ...]


async def copy(write: MailboxWrite, source: FolderKey, uids: Sequence[int], target_id: FolderKey) -> CopyResult:
    """Copy those of `uids` that exist.

    Quota (E4): the bytes of a message are kept and charged once, however many placements show it, so a copy charges
    nothing; it is refused (`mailbox_full`) when the mailbox holds more than its quota already. Raises
    `folder_not_found` for either folder.
    """
    if write.quota_bytes and write.used_bytes > write.quota_bytes:
        raise PostroomError("mailbox_full")
    await folders.by_key(write.conn, write.ref, source)
    target = await folders.by_key(write.conn, write.ref, target_id)
    rows = await placing.rows_in_folder(write, source, uids)
    last = await _take_uids(write, target, len(rows))
    await _add(write, target, rows, last)
    return _result(target, rows, last)


async def move(write: MailboxWrite, source: FolderKey, uids: Sequence[int], target_id: FolderKey) -> CopyResult:
    """Move those of `uids` that exist; never fails on quota (D8). Raises `folder_not_found` for either folder."""
    await folders.by_key(write.conn, write.ref, source)
    target = await folders.by_key(write.conn, write.ref, target_id)
    rows = await placing.rows_in_folder(write, source, uids)
    last = await _take_uids(write, target, len(rows))
    await _rehome(write, target, rows, last)
    return _result(target, rows, last)


async def move_messages(write: MailboxWrite, message_ids: Sequence[int], target_id: FolderKey) -> None:
    """Have messages (row keys) stand in the target only: the oldest placement moves there unless one is there, the
    others go.

    Raises `folder_not_found`.
    """
    target = await folders.by_key(write.conn, write.ref, target_id)
    rows = await placing.rows_of_messages(write, message_ids)
    moving = _oldest_outside(rows, target)
    kept = set(map(id, moving))
    await _rehome(write, target, moving, await _take_uids(write, target, len(moving)))
    await expunge.remove(write, [row for row in rows if row.folder_id != target.id and id(row) not in kept])


async def copy_messages(write: MailboxWrite, message_ids: Sequence[int], target_id: FolderKey) -> None:
    """Place messages (row keys) into the target also; those that are there stay as they are. Raises as `copy`."""
    if write.quota_bytes and write.used_bytes > write.quota_bytes:
        raise PostroomError("mailbox_full")
    target = await folders.by_key(write.conn, write.ref, target_id)
    rows = await placing.rows_of_messages(write, message_ids)
    chosen = _oldest_outside(rows, target)
    await _add(write, target, chosen, await _take_uids(write, target, len(chosen)))


def _oldest_outside(rows: Iterable[PlacementRow], target: Folder) -> list[PlacementRow]:
    """For each message that is not in the target its oldest placement, in the order in which the messages came."""
    rows = sorted(rows, key=lambda row: (row.message_id, row.saved_at, row.folder_id, row.uid))
    there = {row.message_id for row in rows if row.folder_id == target.id}
    oldest: dict[int, PlacementRow] = {}
    for row in rows:
        if row.message_id not in there:
            oldest.setdefault(row.message_id, row)
    return list(oldest.values())


def _result(target: Folder, rows: Sequence[PlacementRow], last: int) -> CopyResult:
    return CopyResult(target.uid_validity, tuple((row.uid, last + n) for n, row in enumerate(rows, 1)))


async def _take_uids(write: MailboxWrite, target: Folder, count: int) -> int:
    """Take `count` UIDs of the target; the last one before them."""
    if target.uid_next + count - 1 > MAX_UID:
        # RFC 9051 §2.3.1.1 leaves only a new UIDVALIDITY, which is for repair to give (D4).
        raise PostroomError("mailbox_full", message="The folder has no UIDs left.")
    if count:
        await write.conn.execute(_TAKE_UIDS, write.ref.tenant_id, write.ref.mailbox_id, target.id, count)
    return target.uid_next - 1


async def _add(write: MailboxWrite, target: Folder, rows: Sequence[PlacementRow], last: int) -> None:
    if not rows:
        return
    counts, unread = FolderCounts(), UnreadCounts()
    await unread.begin(write, rows)
    for n, row in enumerate(rows, 1):
        counts.came(target.id, row.flags, row.size)
        write.log(ChangeKind.PLACED, folder_id=target.id, uid=last + n, message=row.message, flags=row.flags)
    await write.conn.execute(
        _INSERT,
        write.ref.tenant_id,
        write.ref.mailbox_id,
        target.id,
        write.modseq,
        write.now,
        [row.message_id for row in rows],
        last,
        [row.size for row in rows],
        [row.internal_date for row in rows],
        [" ".join(row.flags) for row in rows],
    )
    await unread.save(write)
    await counts.save(write)


async def _rehome(write: MailboxWrite, target: Folder, rows: Sequence[PlacementRow], last: int) -> None:
    if not rows:
        return
    counts, unread = FolderCounts(), UnreadCounts()
    await unread.begin(write, rows)
    for n, row in enumerate(rows, 1):
        counts.came(target.id, row.flags, row.size)
        counts.went(row.folder_id, row.flags, row.size)
        # In this order, whoever follows the log never sees the message nowhere.
        write.log(ChangeKind.PLACED, folder_id=target.id, uid=last + n, message=row.message, flags=row.flags)
        write.log(ChangeKind.REMOVED, folder_id=row.folder_id, uid=row.uid, message=row.message)
    await write.conn.execute(
        _REHOME,
        write.ref.tenant_id,
        write.ref.mailbox_id,
        target.id,
        write.modseq,
        write.now,
        [row.folder_id for row in rows],
        last,
        [row.uid for row in rows],
    )
    await unread.save(write)
    await counts.save(write)
