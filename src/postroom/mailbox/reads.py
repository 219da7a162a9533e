"""What IMAP reads of a folder: a snapshot at SELECT, what changed since a point, rows for FETCH in pages (B16).

Nothing here holds a transaction while the caller works: a snapshot and a difference are read whole in one short
read-only transaction, so that counters, UIDs and modseq belong together; rows are paged by UID, each page a statement
of its own.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Flag, auto
from typing import Final, NamedTuple

import asyncpg

from postroom.base.errors import PostroomError
from postroom.db import Connection, Database, Isolation
from postroom.mailbox import folders
from postroom.mailbox.models import Folder, FolderKey, MailboxRef
from postroom.mailbox.rules import Flags

PAGE: Final = 256
"""Rows of one page of `fetch_rows`."""

STATES_PAGE: Final = 20_000
"""Placements of one page of a snapshot or a difference: a few milliseconds and some megabytes as they come."""

# One row with three arrays: an order of magnitude cheaper to receive than as many rows.
_STATES: Final = """
SELECT array_agg(p.uid) AS uids, array_agg(p.modseq) AS modseqs, array_agg(array_to_string(p.flags, ' ')) AS flags
FROM (
  SELECT uid, modseq, flags FROM placements WHERE tenant_id = $1 AND mailbox_id = $2 AND folder_id = $3
"""
_SNAPSHOT: Final = _STATES + "AND uid > $4 ORDER BY uid LIMIT $5) p"

_POINT: Final = "SELECT modseq, change_seq FROM mailboxes WHERE tenant_id = $1 AND id = $2 AND NOT erased"

_PRUNED: Final = "SELECT pruned_modseq FROM folders WHERE tenant_id = $1 AND id = $2"

# In the order of the index by modseq: by UID, the key would look like the better way to whoever plans without
# statistics, and lead through the whole folder.
_CHANGED: Final = _STATES + "AND modseq > $4 ORDER BY modseq, uid LIMIT $5) p"
_CHANGED_MORE: Final = _STATES + "AND modseq >= $4 AND (modseq > $4 OR uid > $5) ORDER BY modseq, uid LIMIT $6) p"

# The log is in order of both seq and modseq: walking back from its end costs what has happened since, which is to be
# read anyway.
_SEQ_OF: Final = """
SELECT seq FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 AND modseq <= $3 ORDER BY seq DESC LIMIT 1
"""

_REMOVED: Final = """
SELECT array_agg(c.uid) FILTER (WHERE c.folder_id = $3 AND c.kind = 'removed') AS uids, max(c.seq) AS last
FROM (
  SELECT seq, folder_id, kind, uid FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 AND seq > $4
  ORDER BY seq LIMIT $5
) c
"""

_USAGE: Final = "SELECT used_bytes, quota_bytes FROM mailboxes WHERE tenant_id = $1 AND id = $2 AND NOT erased"

_DELETED_BYTES: Final = """
SELECT coalesce(sum(size), 0) FROM placements
WHERE tenant_id = $1 AND mailbox_id = $2 AND folder_id = $3 AND '$deleted' = ANY (flags)
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """Octets that a mailbox holds, and may hold; None without a limit."""

    used_bytes: int
    quota_bytes: int | None


class Columns(Flag):
    """What `fetch_rows` reads beside the placement itself; a FETCH of flags and dates needs nothing."""

    NONE = 0
    IDS = auto()
    """Public ids of message and thread."""
    BYTES = auto()
    """Where the raw bytes are."""
    ENVELOPE = auto()
    STRUCTURE = auto()
    PARTS = auto()
    PREVIEW = auto()
    """Subject and snippet."""
    REFERENCES = auto()
    """Message-ID, In-Reply-To and References, normalised."""


class FetchRow(NamedTuple):
    """A placement, and of its message what was asked for; the rest is None. A row of the statement, as it comes."""

    uid: int
    flags: Flags
    modseq: int
    internal_date: datetime
    saved_at: datetime
    size: int
    """Octets of the raw message (RFC822.SIZE)."""
    message_id: str | None = None
    thread_id: str | None = None
    blob_key: str | None = None
    prefix_len: int | None = None
    envelope: bytes | None = None
    body_structure: bytes | None = None
    part_tree: bytes | None = None
    subject: str | None = None
    snippet: str | None = None
    rfc_message_id: str | None = None
    in_reply_to: str | None = None
    reference_ids: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A folder as it is at one moment.

    `uids` ascend; `flags` and `modseqs` run beside them. `seq` is the place in the log.
    """

    folder: Folder
    modseq: int
    seq: int
    uids: array[int]
    modseqs: array[int]
    flags: list[Flags]


class PlacementState(NamedTuple):
    """Where a placement stands now."""

    uid: int
    flags: Flags
    modseq: int


@dataclass(frozen=True, slots=True)
class States:
    """Placements by UID, held small: columns that run beside each other. Iterated, each is a `PlacementState`."""

    uids: array[int]
    modseqs: array[int]
    flags: list[Flags]

    def __len__(self) -> int:
        return len(self.uids)

    def __iter__(self) -> Iterator[PlacementState]:
        return map(PlacementState, self.uids, self.flags, self.modseqs)


@dataclass(frozen=True, slots=True)
class FolderChanges:
    """What became of a folder after a point: state, not history. `modseq` and `seq` are the next point.

    `removed` may name UIDs that came after the point and went again. `complete` is False when the log does not reach
    back to the point any more: then `removed` is empty and whoever asks compares the UIDs it knows with the folder's
    (A7).
    """

    folder: Folder
    modseq: int
    seq: int
    placed: States
    flags: States
    removed: array[int]
    complete: bool = True


class FolderReads:
    """Reads of one deployment's folders, each on a connection of its own for as long as it takes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def folder_snapshot(self, ref: MailboxRef, folder_id: FolderKey) -> Snapshot:
        """Everything SELECT needs. Raises `folder_not_found`, `identity_not_found`."""
        async with self._database.transaction(Isolation.REPEATABLE_READ, readonly=True) as conn:
            modseq, seq = await _point(conn, ref)
            folder = await folders.by_key(conn, ref, folder_id)
            states = _Gathered()
            after = 0
            while states.add(await conn.fetchrow(_SNAPSHOT, *_of(ref, folder_id), after, STATES_PAGE)):
                after = states.uids[-1]
        return Snapshot(folder, modseq, seq, states.uids, states.modseqs, states.flags)

    async def changes_since(
        self, ref: MailboxRef, folder_id: FolderKey, *, modseq: int, uid_next: int, seq: int | None = None
    ) -> FolderChanges:
        """What changed after `modseq`. Placements from `uid_next` on are `placed`, those below it `flags`; both by UID.

        `seq` is the point's place in the log if the caller knows it. Raises `folder_not_found`, `identity_not_found`.
        """
        async with self._database.transaction(Isolation.REPEATABLE_READ, readonly=True) as conn:
            now, log_end = await _point(conn, ref)
            folder = await folders.by_key(conn, ref, folder_id)
            if folder.highest_modseq <= modseq:
                nothing = _Gathered().ordered()
                return FolderChanges(folder, now, log_end, nothing, nothing, array("I"))
            states = await _changed_since(conn, ref, folder_id, modseq)
            complete = modseq >= (await conn.fetchval(_PRUNED, ref.tenant_id, folder_id) or 0)
            removed = await _removed_since(conn, ref, folder_id, modseq, seq) if complete else array("I")
        old = bisect_left(states.uids, uid_next)
        flags = States(states.uids[:old], states.modseqs[:old], states.flags[:old])
        placed = States(states.uids[old:], states.modseqs[old:], states.flags[old:])
        return FolderChanges(folder, now, log_end, placed, flags, removed, complete)

    async def usage(self, ref: MailboxRef) -> Usage:
        """What the mailbox holds (mail-server E4). Raises `identity_not_found`."""
        async with self._database.acquire() as conn:
            row = await conn.fetchrow(_USAGE, ref.tenant_id, ref.mailbox_id)
        if row is None:
            raise PostroomError("identity_not_found")
        return Usage(row["used_bytes"], row["quota_bytes"] or None)

    async def deleted_bytes(self, ref: MailboxRef, folder_id: FolderKey) -> int:
        """Octets of the messages that are `$deleted` in a folder; those that stand elsewhere, too, are counted."""
        async with self._database.acquire() as conn:
            return int(await conn.fetchval(_DELETED_BYTES, ref.tenant_id, ref.mailbox_id, folder_id))

    async def removed_since(self, ref: MailboxRef, folder_id: FolderKey, modseq: int) -> list[int] | None:
        """UIDs that went after `modseq`, ascending; None when the log does not reach back so far (RFC 7162 §3.2.5).

        Raises `folder_not_found`, `identity_not_found`.
        """
        async with self._database.transaction(Isolation.REPEATABLE_READ, readonly=True) as conn:
            await _point(conn, ref)
            folder = await folders.by_key(conn, ref, folder_id)
            if folder.highest_modseq <= modseq:
                return []
            if modseq < (await conn.fetchval(_PRUNED, ref.tenant_id, folder_id) or 0):
                return None
            return sorted(set(await _removed_since(conn, ref, folder_id, modseq, None)))

    async def fetch_rows(
        self,
        ref: MailboxRef,
        folder_id: FolderKey,
        uids: Sequence[int],
        columns: Columns = Columns.NONE,
        *,
        page: int = PAGE,
    ) -> AsyncIterator[list[FetchRow]]:
        """The rows of `uids` that exist, in pages by UID.

        `uids` ascend; a `range` (of step 1) is read as such, whatever its length.
        """
        statement = _FETCH[columns, isinstance(uids, range)]
        if isinstance(uids, range):
            after = uids.start - 1
            while after < uids.stop - 1:
                rows = await self._fetch(statement, ref, folder_id, after, uids.stop, page)
                if rows:
                    yield _fetch_rows(rows)
                if len(rows) < page:
                    return
                after = rows[-1]["uid"]
            return
        for start in range(0, len(uids), page):
            rows = await self._fetch(statement, ref, folder_id, list(uids[start : start + page]))
            if rows:
                yield _fetch_rows(rows)

    async def _fetch(
        self, statement: str, ref: MailboxRef, folder_id: FolderKey, *which: object
    ) -> list[asyncpg.Record]:
        async with self._database.acquire() as conn:
            return await conn.fetch(statement, ref.tenant_id, ref.mailbox_id, folder_id, *which)


async def _point(conn: Connection, ref: MailboxRef) -> tuple[int, int]:
    row = await conn.fetchrow(_POINT, ref.tenant_id, ref.mailbox_id)
    if row is None:
        raise PostroomError("identity_not_found")
    return row["modseq"], row["change_seq"]


class _Gathered:
    """Pages of placements as they are put together."""

    def __init__(self) -> None:
        self.uids = array("I")
        self.modseqs = array("Q")
        self.flags: list[Flags] = []
        self._known: dict[str, Flags] = {}

    def add(self, row: asyncpg.Record | None) -> bool:
        """One page; whether there may be another."""
        assert row is not None
        if row["uids"] is None:
            return False
        known = self._known
        self.uids.extend(row["uids"])
        self.modseqs.extend(row["modseqs"])
        self.flags += [known.get(text) or known.setdefault(text, tuple(text.split())) for text in row["flags"]]
        return len(row["uids"]) == STATES_PAGE

    def ordered(self) -> States:
        """All of them by UID."""
        places = sorted(range(len(self.uids)), key=self.uids.__getitem__)
        return States(
            array("I", map(self.uids.__getitem__, places)),
            array("Q", map(self.modseqs.__getitem__, places)),
            list(map(self.flags.__getitem__, places)),
        )


def _of(ref: MailboxRef, folder_id: FolderKey) -> tuple[int, int, FolderKey]:
    return ref.tenant_id, ref.mailbox_id, folder_id


async def _changed_since(conn: Connection, ref: MailboxRef, folder_id: FolderKey, modseq: int) -> States:
    states = _Gathered()
    more = states.add(await conn.fetchrow(_CHANGED, *_of(ref, folder_id), modseq, STATES_PAGE))
    while more:
        last = states.modseqs[-1], states.uids[-1]
        more = states.add(await conn.fetchrow(_CHANGED_MORE, *_of(ref, folder_id), *last, STATES_PAGE))
    return states.ordered()


async def _removed_since(
    conn: Connection, ref: MailboxRef, folder_id: FolderKey, modseq: int, seq: int | None
) -> array[int]:
    if seq is None:
        seq = await conn.fetchval(_SEQ_OF, ref.tenant_id, ref.mailbox_id, modseq) or 0
    removed = array("I")
    while seq is not None:
        row = await conn.fetchrow(_REMOVED, *_of(ref, folder_id), seq, STATES_PAGE)
        assert row is not None
        removed.extend(row["uids"] or ())
        seq = row["last"]
    return removed


# -- statements of fetch_rows ------------------------------------------------------------------------------------------

_PLACEMENT: Final = "SELECT p.uid, p.flags, p.modseq, p.internal_date, p.saved_at, p.size"
# In the order of FetchRow's fields: a statement gives all of them, null where nothing was asked for.
_OF_MESSAGE: Final = (
    (Columns.IDS, "m.public_id", "text"),
    (Columns.IDS, "t.public_id", "text"),
    (Columns.BYTES, "m.blob_key", "text"),
    (Columns.BYTES, "m.raw_prefix_len", "int"),
    (Columns.ENVELOPE, "m.envelope", "bytea"),
    (Columns.STRUCTURE, "m.body_structure", "bytea"),
    (Columns.PARTS, "m.part_tree", "bytea"),
    (Columns.PREVIEW, "m.subject", "text"),
    (Columns.PREVIEW, "m.snippet", "text"),
    (Columns.REFERENCES, "m.rfc_message_id", "text"),
    (Columns.REFERENCES, "m.in_reply_to", "text"),
    (Columns.REFERENCES, "m.reference_ids", "text[]"),
)
_FROM_PLACEMENTS: Final = " FROM placements p"
_FROM_MESSAGES: Final = " JOIN messages m ON m.tenant_id = p.tenant_id AND m.id = p.message_id"
_FROM_THREADS: Final = (
    " JOIN threads t ON t.tenant_id = m.tenant_id AND t.mailbox_id = m.mailbox_id AND t.seq = m.thread_seq"
)
_WHERE: Final = " WHERE p.tenant_id = $1 AND p.mailbox_id = $2 AND p.folder_id = $3"
_LISTED: Final = " AND p.uid = ANY ($4::bigint[]) ORDER BY p.uid"
_RANGE: Final = " AND p.uid > $4 AND p.uid < $5 ORDER BY p.uid LIMIT $6"


def _statement(columns: Columns, is_range: bool) -> str:
    wanted = (text if column in columns else f"NULL::{kind}" for column, text, kind in _OF_MESSAGE)
    parts = [", ".join((_PLACEMENT, *wanted)), _FROM_PLACEMENTS]
    if columns:
        parts.append(_FROM_MESSAGES)
    if Columns.IDS in columns:
        parts.append(_FROM_THREADS)
    return "".join((*parts, _WHERE, _RANGE if is_range else _LISTED))


def _subsets() -> Iterable[Columns]:
    return map(Columns, range(1 << len(Columns)))


_FETCH: Final = {
    (columns, is_range): _statement(columns, is_range) for columns in _subsets() for is_range in (False, True)
}


def _fetch_rows(rows: Iterable[asyncpg.Record]) -> list[FetchRow]:
    return [FetchRow(uid, tuple(flags), *rest) for uid, flags, *rest in rows]
