"""What clients do with many messages at once, each named by its public id and told of by itself (decisions E, D11).

A message is moved, copied, flagged or removed wherever it stands. One that is not there, or that the caller may not
know of, stops nobody else: it is `not_found`. A step is one transaction of at most `CHUNK` messages (B14).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.mailbox import expunge, flags, placing, transfer
from postroom.mailbox.expunge import NOTHING, Removed
from postroom.mailbox.models import Folder
from postroom.mailbox.placing import PlacementRow
from postroom.mailbox.rules import FlagMode, Flags, LimitExceeded, change_flags, edit_flags
from postroom.mailbox.writing import MailboxWrite

# Hidden and throttled mail has no placement, and so is not found by anybody.
_KNOWN: Final = """
SELECT id, public_id FROM messages
WHERE tenant_id = $1 AND mailbox_id = $2 AND public_id = ANY ($3::text[])
  AND ($4 OR status NOT IN ('quarantined', 'throttled', 'hidden'))
"""


class Result(StrEnum):
    """What became of one message."""

    MOVED = "moved"
    COPIED = "copied"
    EXPUNGED = "expunged"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    """It was so already."""
    NOT_FOUND = "not_found"
    IN_USE = "in_use"
    """It is still to be sent, and stays (mail-server C3)."""
    LIMIT_EXCEEDED = "limit_exceeded"
    """It would have more than 64 keywords (D5), and keeps those that it has."""


Results = Mapping[str, Result]
"""Message → what became of it, in the order in which they were named."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did; `removed` says whose bytes go after the commit, `replayed` that it was done earlier."""

    results: Results
    removed: Removed = NOTHING
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """Messages, each once, named by whoever may or may not see quarantined mail."""

    ids: Sequence[str]
    sees_hidden: bool = False


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of flags: `exactly` those, or some more and some less."""

    add: frozenset[str] = frozenset()
    remove: frozenset[str] = frozenset()
    exactly: frozenset[str] | None = None

    def of(self, old: Flags) -> Flags:
        """The set after it. Raises `LimitExceeded`."""
        if self.exactly is not None:
            return change_flags(old, FlagMode.REPLACE, self.exactly)
        return edit_flags(old, self.add, self.remove)


Step = Callable[[MailboxWrite], Awaitable[Outcome]]
FindFolder = Callable[[MailboxWrite], Awaitable[Folder]]
"""Finds the target in the step's transaction. Raises `folder_not_found`."""


def move(named: Named, find: FindFolder) -> Step:
    """Have messages stand in a folder and nowhere else. The step raises `folder_not_found`."""

    async def step(write: MailboxWrite) -> Outcome:
        target = await find(write)
        standing = await _standing(write, named)
        wanted = _keys(standing, lambda rows: any(row.folder_id != target.id for row in rows))
        await transfer.move_messages(write, list(wanted.values()), target.id)
        return Outcome(_told(named, standing, wanted, Result.MOVED))

    return step


def copy(named: Named, find: FindFolder) -> Step:
    """Have messages stand in a folder also. The step raises `folder_not_found`, `mailbox_full`."""

    async def step(write: MailboxWrite) -> Outcome:
        target = await find(write)
        standing = await _standing(write, named)
        wanted = _keys(standing, lambda rows: all(row.folder_id != target.id for row in rows))
        await transfer.copy_messages(write, list(wanted.values()), target.id)
        return Outcome(_told(named, standing, wanted, Result.COPIED))

    return step


def remove(named: Named) -> Step:
    """Remove messages for good, wherever they stand, but for those that are still to be sent."""

    async def step(write: MailboxWrite) -> Outcome:
        standing = await _standing(write, named)
        wanted = _keys(standing, lambda rows: not any(row.leaves for row in rows))
        removed = await expunge.remove(write, [row for message in wanted for row in standing[message]])
        return Outcome(_told(named, standing, wanted, Result.EXPUNGED, Result.IN_USE), removed)

    return step


def edit(named: Named, change: Edit) -> Step:
    """Change the flags of messages in every place where they stand."""

    async def step(write: MailboxWrite) -> Outcome:
        standing = await _standing(write, named)
        results: dict[str, Result] = {}
        changes: list[tuple[PlacementRow, Flags]] = []
        for message, rows in standing.items():
            try:
                new = [(row, change.of(row.flags)) for row in rows]
            except LimitExceeded:
                results[message] = Result.LIMIT_EXCEEDED
                continue
            differing = [(row, flags_) for row, flags_ in new if not flags.same(row.flags, flags_)]
            results[message] = Result.CHANGED if differing else Result.UNCHANGED
            changes += differing
        await flags.apply(write, changes)
        return Outcome({one: results.get(one, Result.NOT_FOUND) for one in named.ids})

    return step


async def _standing(write: MailboxWrite, named: Named) -> dict[str, list[PlacementRow]]:
    """The placements of those messages that are there, by their public ids."""
    ref = write.ref
    known = await write.conn.fetch(_KNOWN, ref.tenant_id, ref.mailbox_id, named.ids, named.sees_hidden)
    found: dict[str, list[PlacementRow]] = {}
    if known:
        for row in await placing.rows_of_messages(write, [row["id"] for row in known]):
            found.setdefault(row.message, []).append(row)
    return found


def _keys(
    standing: Mapping[str, Sequence[PlacementRow]], which: Callable[[Sequence[PlacementRow]], bool]
) -> dict[str, int]:
    return {message: rows[0].message_id for message, rows in standing.items() if which(rows)}


def _told(
    named: Named,
    standing: Mapping[str, object],
    done: Mapping[str, object],
    result: Result,
    other: Result = Result.UNCHANGED,
) -> Results:
    return {
        one: result if one in done else other if one in standing else Result.NOT_FOUND
        for one in dict.fromkeys(named.ids)
    }
