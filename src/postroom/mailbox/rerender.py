"""What IMAP serves of a message follows the parser: stored renderings are made anew when its version rises (B21).

The rows are the state of the work: one below the current version is still to do, one at it is done, so that a kill
costs at most the page in hand. The partial index `messages_stale` holds the former and nothing else. Its predicate,
made by the migration that comes with a version, also says to which version the deployment is brought: a node of the
release before sees a higher number there and leaves the work to newer ones, whose index its own late writes are in.

Renewed are `envelope`, `body_structure` and `part_tree`, which only serve bytes by their place, and with the tree the
`part_path` of attachments, which is a place in it. What is searched, listed, threaded or was announced in events stays
as it was told: subject, addresses, texts, facts, the names and ids of attachments. UIDs and mod-sequences do not move,
for nothing changes that a client may ask changes of.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

import asyncpg

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.blobs.store import BlobMissing, InvalidKey, StorageError
from postroom.db.pool import Database
from postroom.mail.mime import PARSER_VERSION, Part, walk
from postroom.mail.tree import unpack_tree
from postroom.mailbox.models import Content

log = base_log.get("rerender")

PAGE: Final = 64
"""Messages that are read at a time."""
SLICE_SECONDS: Final = 4.0
"""For how long one call goes on, plus the message in hand: other periodic work waits behind it."""

Describe = Callable[[bytes, bytes, datetime], Awaitable[Content]]
"""Parses our own trace lines, the message as received, and when that was; large messages off the event loop."""


class Blobs(Protocol):
    """What is asked of the blob store: `BlobStore.batches`."""

    def batches(self, wants: Sequence[str], /) -> AsyncIterator[list[bytes | StorageError]]: ...


class _Fate(StrEnum):
    RENDERED = "rendered"
    MISSING = "missing"
    DAMAGED = "damaged"
    KEPT = "kept"


@dataclass(slots=True)
class Tally:
    """What became of messages. All but `failed` have the current version now."""

    rendered: int = 0
    """Rendered anew."""
    missing: int = 0
    """Without raw bytes, by retention or by loss: the old rendering stays."""
    damaged: int = 0
    """Whose raw bytes are not those that were received: the old rendering stays."""
    kept: int = 0
    """Whose new rendering failed or would be worse than the stored one (`_moved`)."""
    failed: int = 0
    """Not read for the time being; tried again in the next pass."""

    def __bool__(self) -> bool:
        return any(astuple(self))


@dataclass(frozen=True, slots=True)
class _Renewed:
    """What is to be written of one message: nothing but the version where `content` is None."""

    tenant_id: int
    id: int
    fate: _Fate
    content: Content | None = None
    moved: tuple[tuple[str, str], ...] = ()
    """Attachments' paths that differ: old, new."""


# The literal lets the planner use the index; so does the order, in which no other index comes.
_PAGE: Final = """
SELECT m.parser_version, m.tenant_id, m.id, m.public_id, m.blob_key, m.raw_sha256, m.raw_prefix_len, m.received_at,
       m.part_tree, ARRAY(
         SELECT a.part_path FROM attachments a WHERE a.tenant_id = m.tenant_id AND a.message_id = m.id
       ) AS part_paths
FROM messages m
WHERE m.parser_version < {version:d} AND (m.parser_version, m.tenant_id, m.id) > ($1, $2, $3)
ORDER BY m.parser_version, m.tenant_id, m.id LIMIT $4
"""

_COVERED: Final = "SELECT pg_get_expr(indpred, indrelid) FROM pg_index WHERE indexrelid = to_regclass('messages_stale')"
_PREDICATE: Final = re.compile(r"\(parser_version < (\d{1,9})\)")

# Rows that somebody else holds are left for the next pass: who never waits is in no deadlock.
_WRITE: Final = """
WITH new AS (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bytea[])
    AS n (tenant_id, id, envelope, body_structure, part_tree)
), held AS (
  SELECT m.tenant_id, m.id FROM messages m JOIN new USING (tenant_id, id)
  WHERE m.parser_version < $6 FOR NO KEY UPDATE OF m SKIP LOCKED
), paths AS (
  UPDATE attachments a SET part_path = p.new_path
  FROM held, unnest($7::bigint[], $8::bigint[], $9::text[], $10::text[]) AS p (tenant_id, id, old_path, new_path)
  WHERE p.tenant_id = held.tenant_id AND p.id = held.id
    AND a.tenant_id = p.tenant_id AND a.message_id = p.id AND a.part_path = p.old_path
)
UPDATE messages m SET parser_version = $6, envelope = coalesce(new.envelope, m.envelope),
  body_structure = coalesce(new.body_structure, m.body_structure), part_tree = coalesce(new.part_tree, m.part_tree)
FROM held JOIN new USING (tenant_id, id)
WHERE m.tenant_id = held.tenant_id AND m.id = held.id
RETURNING m.tenant_id, m.id
"""

_Position = tuple[int, int, int]
_START: Final[_Position] = (-1, 0, 0)


class Rerender:
    """The job. One at a time is meant to run in a deployment; several do the same work twice and no harm.

    It goes through stale messages by version, tenant and id, from where its last call stopped, and from the start
    again after the last: what could not be read or was locked comes again then and holds up nothing meanwhile.
    """

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        describe: Describe,
        clock: Clock,
        *,
        version: int = PARSER_VERSION,
        seconds: float = SLICE_SECONDS,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._describe = describe
        self._clock = clock
        self._version = version
        self._page = _PAGE.format(version=version)
        self._seconds = seconds
        self._after = _START

    async def run_once(self) -> Tally:
        """Work for a few seconds; what was done, nothing if there was nothing. Raises errors of the database."""
        tally = Tally()
        if not await self._is_ours():
            return tally
        deadline = self._clock.monotonic() + self._seconds
        while rows := await self._stale():
            await self._renew(rows, deadline, tally)
            # A store that fails all the time is left in peace until the next call.
            if self._clock.monotonic() >= deadline or tally.failed >= PAGE:
                break
        else:
            self._after = _START
        if tally:
            log.info(
                "rerendered",
                parser_version=self._version,
                rendered=tally.rendered,
                missing=tally.missing,
                damaged=tally.damaged,
                kept=tally.kept,
                failed=tally.failed,
            )
        return tally

    async def _is_ours(self) -> bool:
        """Whether this node's version is the one that the deployment is brought to."""
        async with self._database.acquire() as conn:
            predicate = await conn.fetchval(_COVERED)
        match = _PREDICATE.fullmatch(predicate or "")
        covered = int(match[1]) if match else 0
        if covered < self._version:
            # Without the index each look would read every message. The migration that a version needs was forgotten.
            log.error("rerender_index_outdated", covered=covered, parser_version=self._version)
        return covered == self._version

    async def _stale(self) -> list[asyncpg.Record]:
        async with self._database.acquire() as conn:
            return await conn.fetch(self._page, *self._after, PAGE)

    async def _renew(self, rows: Sequence[asyncpg.Record], deadline: float, tally: Tally) -> None:
        """Handle rows in order until the deadline, and write what came of them."""
        left = iter(rows)
        async for batch in self._blobs.batches([row["blob_key"] for row in rows]):
            renewed: list[_Renewed] = []
            for raw in batch:
                row = next(left)
                if (one := await self._one(row, raw)) is None:
                    tally.failed += 1
                else:
                    renewed.append(one)
                self._after = (row["parser_version"], row["tenant_id"], row["id"])
                if self._clock.monotonic() >= deadline:
                    break
            await self._write(renewed, tally)
            if self._clock.monotonic() >= deadline:
                return

    async def _one(self, row: asyncpg.Record, raw: bytes | StorageError) -> _Renewed | None:
        """What becomes of one message; None if its bytes can't be read now."""
        tenant_id, id_ = row["tenant_id"], row["id"]
        if isinstance(raw, (BlobMissing, InvalidKey)):
            return _Renewed(tenant_id, id_, _Fate.MISSING)
        if isinstance(raw, StorageError):
            log.warning("rerender_unreadable", message_id=row["public_id"], reason=raw.reason)
            return None
        prefix_len = row["raw_prefix_len"]
        try:
            content = await self._describe(raw[:prefix_len], raw[prefix_len:], row["received_at"])
        except Exception as error:  # noqa: BLE001 - one message that our code fails on holds up no other
            log.error("rerender_failed", message_id=row["public_id"], error=type(error).__name__)
            return _Renewed(tenant_id, id_, _Fate.KEPT)
        if content.raw_sha256 != row["raw_sha256"]:
            log.error("rerender_raw_damaged", message_id=row["public_id"])
            return _Renewed(tenant_id, id_, _Fate.DAMAGED)
        moved = _moved(row["part_tree"], content, row["part_paths"])
        if moved is None:
            log.warning("rerender_kept", message_id=row["public_id"])
            return _Renewed(tenant_id, id_, _Fate.KEPT)
        return _Renewed(tenant_id, id_, _Fate.RENDERED, content, moved)

    async def _write(self, renewed: Sequence[_Renewed], tally: Tally) -> None:
        if not renewed:
            return
        contents = [one.content for one in renewed]
        moved = [(one.tenant_id, one.id, old, new) for one in renewed for old, new in one.moved]
        async with self._database.acquire() as conn:
            done = await conn.fetch(
                _WRITE,
                [one.tenant_id for one in renewed],
                [one.id for one in renewed],
                [content and content.envelope for content in contents],
                [content and content.body_structure for content in contents],
                [content and content.part_tree for content in contents],
                self._version,
                *([row[column] for row in moved] for column in range(4)),
            )
        written = {(row["tenant_id"], row["id"]) for row in done}
        for one in renewed:
            if (one.tenant_id, one.id) in written:
                setattr(tally, one.fate, getattr(tally, one.fate) + 1)


def _moved(stored: bytes, content: Content, paths: Sequence[str]) -> tuple[tuple[str, str], ...] | None:
    """Where the attachments at `paths` of the stored tree are in the new one, as far as they moved.

    None if the new rendering is worse: parsing was cut short where it was not before (B2), or the bytes of an
    attachment, whose id somebody may hold, are no part of it any more.
    """
    if stored.partition(b",")[2] == content.part_tree.partition(b",")[2]:
        return ()
    try:
        before, after = unpack_tree(stored), unpack_tree(content.part_tree)
    except ValueError:
        return ()  # Nothing could be served by the stored tree.
    if "parse_degraded" in content.facts and before.children and not after.children:
        return None
    starts, found = _starts(before), {start: path for path, start in _starts(after).items()}
    moved = []
    for path in paths:
        part, packed, place = path.partition("/")
        start = starts.get(part)
        if start is None:
            continue  # It was never served.
        if start not in found:
            return None
        if found[start] != part:
            moved.append((path, f"{found[start]}{packed}{place}"))
    return tuple(moved)


def _starts(root: Part) -> dict[str, int]:
    """Path of each part → where its body begins."""
    return {".".join(map(str, path)): part.body_start for path, part in walk(root)}
