"""Thread rows, kept true in the transaction that changes their messages (inbound.md §28.7).

`unread_count` counts the messages that are inbound, received, and not `$seen` where they stand longest (A5).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import asyncpg

from postroom.base.errors import PostroomError
from postroom.db.pool import Database
from postroom.mailbox import rules
from postroom.mailbox.models import FLAG_SEEN, MailboxRef
from postroom.mailbox.placing import PlacementRow
from postroom.mailbox.rules import Flags
from postroom.mailbox.writing import MailboxWrite

PARTICIPANT_MESSAGES: Final = 1000
"""Newest messages of a thread that its participants are rebuilt from."""

_UNREAD: Final = """
SELECT m.id, m.thread_seq
FROM unnest($3::bigint[]) AS k (id)
JOIN messages m ON m.tenant_id = $1 AND m.mailbox_id = $2 AND m.id = k.id
JOIN LATERAL (
  SELECT p.flags FROM placements p WHERE p.tenant_id = m.tenant_id AND p.message_id = m.id
  ORDER BY p.saved_at, p.folder_id, p.uid LIMIT 1
) p ON true
WHERE m.direction = 'inbound' AND m.status = 'received' AND NOT '$seen' = ANY (p.flags)
"""

_ADJUST: Final = """
UPDATE threads t SET unread_count = t.unread_count + d.unread
FROM unnest($3::bigint[], $4::bigint[]) AS d (seq, unread)
WHERE t.tenant_id = $1 AND t.mailbox_id = $2 AND t.seq = d.seq
"""

_SHRINK: Final = """
UPDATE threads t SET message_count = t.message_count - d.gone, unread_count = t.unread_count + d.unread,
  last_at = COALESCE((SELECT max(m.received_at) FROM messages m
    WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.thread_seq = t.seq), t.first_at),
  last_inbound_at = (SELECT m.received_at FROM messages m
    WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.thread_seq = t.seq AND m.direction = 'inbound'
    ORDER BY m.received_at DESC LIMIT 1),
  last_outbound_at = (SELECT m.received_at FROM messages m
    WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.thread_seq = t.seq AND m.direction = 'outbound'
    ORDER BY m.received_at DESC LIMIT 1),
  participants_json = d.participants::jsonb
FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::text[]) AS d (seq, gone, unread, participants)
WHERE t.tenant_id = $1 AND t.mailbox_id = $2 AND t.seq = d.seq
"""

# What each message shows of people, oldest first: its From if it came in, then To, then Cc.
_APPEARANCES: Final = """
SELECT k.seq, m.from_address, m.from_name, m.direction, people.addresses, people.names
FROM unnest($3::bigint[]) AS k (seq)
JOIN LATERAL (
  SELECT m.id, m.received_at, m.from_address, m.from_name, m.direction FROM messages m
  WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND m.thread_seq = k.seq
  ORDER BY m.received_at DESC, m.id DESC LIMIT $4
) m ON true
LEFT JOIN LATERAL (
  SELECT array_agg(r.address ORDER BY r.kind DESC, r.position) AS addresses,
         array_agg(r.name ORDER BY r.kind DESC, r.position) AS names
  FROM recipients r WHERE r.tenant_id = $1 AND r.message_id = m.id AND r.kind IN ('to', 'cc')
) people ON true
ORDER BY k.seq, m.received_at, m.id
"""

_OWN: Final = "SELECT address FROM addresses WHERE tenant_id = $1 AND identity_id = $2"

_THREAD: Final = (
    "SELECT seq FROM threads WHERE tenant_id = $1 AND mailbox_id = $2 AND public_id = $3 AND message_count > 0"
)

_MESSAGES: Final = "SELECT id FROM messages WHERE tenant_id = $1 AND mailbox_id = $2 AND thread_seq = $3 ORDER BY id"

_ARCHIVE: Final = "UPDATE threads SET archived = $4 WHERE tenant_id = $1 AND mailbox_id = $2 AND seq = $3"


# The wait for the row ends by itself; and the number need not be durable before the message that bears it, whose own
# commit, later in the log, makes both so.
_TAKE_SETTINGS: Final = "SET LOCAL lock_timeout = '5s'; SET LOCAL synchronous_commit = off"
_TAKE: Final = """
UPDATE mailboxes SET next_thread_seq = next_thread_seq + 1 WHERE tenant_id = $1 AND id = $2 AND NOT erased
RETURNING next_thread_seq - 1
"""


async def take_number(database: Database, ref: MailboxRef) -> int:
    """A number for a thread that a message is about to begin, which has to be known while it is composed. Nobody else
    gets it, and when the message is not stored after all, nobody ever does.

    Raises `identity_not_found`, and `unavailable` when the mailbox is held by another for longer than 5 s.
    """
    try:
        async with database.transaction() as conn:
            await conn.execute(_TAKE_SETTINGS)
            number: int | None = await conn.fetchval(_TAKE, ref.tenant_id, ref.mailbox_id)
    except asyncpg.LockNotAvailableError as error:
        raise PostroomError("unavailable", retry_after=1) from error
    if number is None:
        raise PostroomError("identity_not_found")
    return number


class UnreadCounts:
    """Follows the read state of messages through one operation: `begin` before the placements change, `save` after.

    A message that stands in one place tells its state itself; for one that stands in several the database is asked
    twice.
    """

    __slots__ = ("_before", "_deltas", "_shared")

    def __init__(self) -> None:
        self._shared: list[int] = []
        self._before: dict[int, int] = {}
        self._deltas: Counter[int] = Counter()

    async def begin(self, write: MailboxWrite, rows: Iterable[PlacementRow]) -> None:
        self._shared = list({row.message_id for row in rows if row.copies > 1 and row.counts})
        self._before = await self._unread(write)

    def changed(self, row: PlacementRow, new: Flags) -> None:
        """The flags of a placement become `new`."""
        if row.copies == 1 and row.counts:
            self._deltas[row.thread_seq] += (FLAG_SEEN in row.flags) - (FLAG_SEEN in new)

    def went(self, row: PlacementRow) -> None:
        """A placement goes."""
        if row.copies == 1 and row.counts:
            self._deltas[row.thread_seq] -= FLAG_SEEN not in row.flags

    async def settle(self, write: MailboxWrite) -> Mapping[int, int]:
        """By how much each thread's count changes."""
        after = await self._unread(write)
        for message_id in self._shared:
            if message_id in after:
                self._deltas[after[message_id]] += 1
            if message_id in self._before:
                self._deltas[self._before[message_id]] -= 1
        return {seq: delta for seq, delta in self._deltas.items() if delta}

    async def save(self, write: MailboxWrite) -> None:
        deltas = await self.settle(write)
        if deltas:
            await write.conn.execute(
                _ADJUST, write.ref.tenant_id, write.ref.mailbox_id, list(deltas), list(deltas.values())
            )

    async def _unread(self, write: MailboxWrite) -> dict[int, int]:
        if not self._shared:
            return {}
        rows = await write.conn.fetch(_UNREAD, write.ref.tenant_id, write.ref.mailbox_id, self._shared)
        return {row["id"]: row["thread_seq"] for row in rows}


async def shrink(write: MailboxWrite, gone: Mapping[int, int], unread: Mapping[int, int]) -> None:
    """Threads after messages were deleted: `gone` of each, and the change of unread ones.

    A thread without messages stays as a row, never listed: its number is not used again, and a late reply finds it.
    `reply_from_address` stays, an expunge says nothing about which of our addresses the others write to.
    """
    lost, ref = list(gone), write.ref
    people = await _participants(write, lost)
    await write.conn.execute(
        _SHRINK,
        ref.tenant_id,
        ref.mailbox_id,
        lost,
        [gone[seq] for seq in lost],
        [unread.get(seq, 0) for seq in lost],
        [json.dumps(people.get(seq, [])) for seq in lost],
    )
    others = {seq: delta for seq, delta in unread.items() if seq not in gone}
    if others:
        await write.conn.execute(_ADJUST, ref.tenant_id, ref.mailbox_id, list(others), list(others.values()))


async def _participants(write: MailboxWrite, seqs: Sequence[int]) -> dict[int, list[dict[str, str]]]:
    ref = write.ref
    own = frozenset(row["address"] for row in await write.conn.fetch(_OWN, ref.tenant_id, ref.mailbox_id))
    rows = await write.conn.fetch(_APPEARANCES, ref.tenant_id, ref.mailbox_id, seqs, PARTICIPANT_MESSAGES)
    seen: dict[int, list[tuple[str, str]]] = {}
    for seq, from_address, from_name, direction, addresses, names in rows:
        appearances = seen.setdefault(seq, [])
        if direction == "inbound" and from_address:
            appearances.append((from_address, from_name or ""))
        appearances.extend(zip(addresses or (), names or (), strict=True))
    return {seq: rules.participants(appearances, own) for seq, appearances in seen.items()}


async def thread_seq(write: MailboxWrite, public_id: str) -> int:
    """The number of a thread. Raises `thread_not_found`, also for one that has no messages left."""
    seq: int | None = await write.conn.fetchval(_THREAD, write.ref.tenant_id, write.ref.mailbox_id, public_id)
    if seq is None:
        raise PostroomError("thread_not_found")
    return seq


async def message_keys(write: MailboxWrite, seq: int) -> list[int]:
    """Row keys of the thread's messages, in the order in which they came."""
    rows = await write.conn.fetch(_MESSAGES, write.ref.tenant_id, write.ref.mailbox_id, seq)
    return [row["id"] for row in rows]


async def set_archived(write: MailboxWrite, seq: int, archived: bool) -> None:
    await write.conn.execute(_ARCHIVE, write.ref.tenant_id, write.ref.mailbox_id, seq, archived)
