"""Flags: STORE in one folder, and changes to messages wherever they stand (A5, D5).

Rows that do not change keep their modseq and are not logged. A few statements whatever the number of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.mailbox import folders, placing
from postroom.mailbox.models import ChangeKind, FolderKey
from postroom.mailbox.placing import FolderCounts, PlacementRow
from postroom.mailbox.rules import FlagMode, Flags, change_flags, edit_flags
from postroom.mailbox.threads import UnreadCounts
from postroom.mailbox.writing import MailboxWrite

_UPDATE: Final = """
UPDATE placements p SET flags = string_to_array(n.flags, ' '), modseq = $3
FROM unnest($4::bigint[], $5::bigint[], $6::text[]) AS n (folder_id, uid, flags)
WHERE p.tenant_id = $1 AND p.mailbox_id = $2 AND p.folder_id = n.folder_id AND p.uid = n.uid
"""


class FlagResult(StrEnum):
    """What a change of flags did to one placement."""

    CHANGED = "changed"
    SAME = "same"
    MODIFIED = "modified"
    """Left alone: somebody changed it after `unchanged_since` (RFC 7162 §3.1.3)."""


@dataclass(frozen=True, slots=True)
class FlagsNow:
    """The flags and modseq that a placement has after the operation."""

    uid: int
    flags: Flags
    modseq: int
    result: FlagResult


async def store(
    write: MailboxWrite,
    folder_id: FolderKey,
    uids: Sequence[int],
    mode: FlagMode,
    flags: frozenset[str],
    unchanged_since: int | None,
) -> list[FlagsNow]:
    """STORE on those of `uids` that exist, by UID. Raises `folder_not_found`, `LimitExceeded`."""
    await folders.by_key(write.conn, write.ref, folder_id)
    rows = await placing.rows_in_folder(write, folder_id, uids)
    known: dict[Flags, Flags] = {}
    changes: list[tuple[PlacementRow, Flags]] = []
    answer: list[FlagsNow] = []
    for row in rows:
        if unchanged_since is not None and row.modseq > unchanged_since:
            answer.append(FlagsNow(row.uid, row.flags, row.modseq, FlagResult.MODIFIED))
            continue
        new = known.get(row.flags)
        if new is None:
            new = known[row.flags] = change_flags(row.flags, mode, flags)
        if same(row.flags, new):
            answer.append(FlagsNow(row.uid, row.flags, row.modseq, FlagResult.SAME))
        else:
            changes.append((row, new))
            answer.append(FlagsNow(row.uid, new, write.modseq, FlagResult.CHANGED))
    await apply(write, changes)
    return answer


async def edit(write: MailboxWrite, message_ids: Sequence[int], add: frozenset[str], remove: frozenset[str]) -> None:
    """Change the flags of messages (row keys) in every place where they stand. Raises `LimitExceeded`."""
    rows = await placing.rows_of_messages(write, message_ids)
    await apply(write, _differing(rows, lambda old: edit_flags(old, add, remove)))


def _differing(rows: Iterable[PlacementRow], change: Callable[[Flags], Flags]) -> list[tuple[PlacementRow, Flags]]:
    return [(row, new) for row in rows if not same(row.flags, new := change(row.flags))]


def same(old: Flags, new: Flags) -> bool:
    """Whether both hold the same words; the order of stored flags means nothing."""
    return old == new or (len(old) == len(new) and set(old) == set(new))


async def apply(write: MailboxWrite, changes: Sequence[tuple[PlacementRow, Flags]]) -> None:
    """Give placements other flags than they have."""
    if not changes:
        return
    counts, unread = FolderCounts(), UnreadCounts()
    await unread.begin(write, (row for row, _ in changes))
    for row, new in changes:
        counts.changed(row.folder_id, row.flags, new)
        unread.changed(row, new)
        write.log(ChangeKind.FLAGS, folder_id=row.folder_id, uid=row.uid, message=row.message, flags=new)
    await write.conn.execute(
        _UPDATE,
        write.ref.tenant_id,
        write.ref.mailbox_id,
        write.modseq,
        [row.folder_id for row, _ in changes],
        [row.uid for row, _ in changes],
        [" ".join(new) for _, new in changes],
    )
    await unread.save(write)
    await counts.save(write)
