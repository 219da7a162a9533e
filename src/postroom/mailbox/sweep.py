"""Bytes that no row names are removed in the end (edge I9; mail-server E2, E7).

A process that is killed between writing a message's bytes and its COMMIT leaves them, and so does one that is killed
between the COMMIT of a removal and the removal of the bytes. The sweep goes through all keys, a bounded number at a
time, asks the database which of them rows name, and removes the others when they are old: far older than any
transaction that is yet to name them, and old enough for an operator to notice that a wrong backup was restored.

A key says which message it is of, so rows are found by the message's id. Keys of any other form are left alone.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.blobs.store import BlobStore, Discarded, MarkerMismatch, StorageError
from postroom.db.pool import Connection, Database

log = base_log.get("sweep")

AGE: Final = timedelta(days=15)
"""How old what no row names must be."""
LEAST_AGE: Final = timedelta(hours=1)
"""What an operator can bring that down to, by a command (mail-server E7)."""
PASS: Final = timedelta(days=1)
"""Between the beginnings of two passes."""
GAP: Final = timedelta(days=7)
"""Not having run for so long, the sweep removes nothing for the length of `AGE`: the database may be an old copy, in
which rows are missing whose bytes are here, or a clock may be wrong."""
SKEW: Final = timedelta(hours=1)
"""By which the clocks of two nodes may differ."""
MAX_KEYS: Final = 20_000
"""Looked at in one run,"""
SECONDS: Final = 5.0
"""or as many as it gets to in this time."""
LISTED: Final = 10_000
ASKED: Final = 1000

_PREFIX: Final = "t"
_ULID: Final = "[0-7][0-9A-HJKMNP-TV-Z]{25}"

# A plan that was made while the tables were small would read all of them for each key.
_PLANS: Final = "SET LOCAL enable_seqscan = off; SET LOCAL jit = off"
_STORE: Final = "SELECT store_id FROM deployment"
_STATE: Final = "SELECT after_key, next_pass_at, seen_at, removes_from FROM blob_sweep"
_FIRST: Final = """
INSERT INTO blob_sweep (after_key, next_pass_at, seen_at, removes_from) VALUES ('', $1, $1, $2)
ON CONFLICT DO NOTHING
"""
_HOLD: Final = """
UPDATE blob_sweep SET after_key = '', next_pass_at = $1, seen_at = $1, removes_from = $2 WHERE seen_at = $3
"""
_SEEN: Final = "UPDATE blob_sweep SET seen_at = $1 WHERE seen_at < $1"
_ADVANCE: Final = """
UPDATE blob_sweep SET after_key = $2, next_pass_at = $3, seen_at = greatest(seen_at, $4) WHERE after_key = $1
"""
# Keys, and the tenants and messages that they are of. "+ 0": a message is found by its own id alone.
_NAMED: Final = """
SELECT k.key FROM unnest($1::text[], $2::text[], $3::text[]) AS k (key, tenant, message)
CROSS JOIN LATERAL (SELECT t.id FROM tenants t WHERE t.public_id = k.tenant LIMIT 1) t
CROSS JOIN LATERAL (
  SELECT m.blob_key FROM messages m WHERE m.tenant_id + 0 = t.id AND m.public_id = k.message LIMIT 1
) m
WHERE m.blob_key = k.key
"""


@dataclass(frozen=True, slots=True)
class KeysOfMessages:
    """Keys of one form, whose groups `tenant` and `message` are public ids, and the statement that says which of them
    rows name: `$1` keys, `$2` tenants, `$3` messages. `kept`: how old they must be in any case before they go."""

    form: re.Pattern[str]
    named: str
    kept: timedelta = timedelta(0)


MESSAGE_KEYS: Final = KeysOfMessages(
    re.compile(rf"t/(?P<tenant>ten_{_ULID})/i/idn_{_ULID}/m/(?P<message>msg_{_ULID})/raw\.eml"), _NAMED
)
"""The bytes of messages (`raw_key`)."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Keys looked at, those of no known form, keys removed with the octets that it freed."""

    keys: int = 0
    unknown: int = 0
    removed: int = 0
    octets: int = 0

    def __add__(self, other: Swept) -> Swept:
        return Swept(
            self.keys + other.keys,
            self.unknown + other.unknown,
            self.removed + other.removed,
            self.octets + other.octets,
        )


@dataclass(frozen=True, slots=True)
class _State:
    after: str
    next_pass_at: datetime
    seen_at: datetime
    removes_from: datetime


class BlobSweep:
    """Any number of nodes may run one, at the same time too: what one removes, the other finds gone."""

    def __init__(self, database: Database, blobs: BlobStore, clock: Clock, kinds: Sequence[KeysOfMessages]) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._kinds = kinds

    async def run_once(self) -> Swept:
        """The next stretch of the daily pass, if it is time; kept is how far it came. Trouble with the store is logged
        and waited out."""
        now = self._clock.now()
        state = await self._ready(now)
        if state is None:
            return Swept()
        next_pass = now + PASS if state.after == "" else state.next_pass_at
        deadline = self._clock.monotonic() + SECONDS
        total, after, is_done = Swept(), state.after, False
        try:
            await self._check_store()
            async with contextlib.aclosing(self._chunks(after)) as chunks:
                async for keys in chunks:
                    total += await self._clear(keys, now, AGE)
                    await self._advance(after, keys[-1], next_pass)
                    after = keys[-1]
                    if total.keys >= MAX_KEYS or self._clock.monotonic() >= deadline:
                        break
                else:
                    is_done = True
                    await self._advance(after, "", next_pass)
        except StorageError as error:
            log.warning("blob_sweep_interrupted", reason=error.reason)
        if is_done or total.removed:
            log.info(
                "blobs_swept",
                keys=total.keys,
                removed=total.removed,
                octets=total.octets,
                unknown=total.unknown,
                done=is_done,
            )
        return total

    async def collect(self, age: timedelta, *, dry_run: bool = False) -> Swept:
        """All of it at once, for an operator: remove what no row names and is older than `age`, which is `LEAST_AGE` at
        the least. Raises StorageError."""
        now, age, total = self._clock.now(), max(age, LEAST_AGE), Swept()
        await self._check_store()
        async with contextlib.aclosing(self._chunks("")) as chunks:
            async for keys in chunks:
                total += await self._clear(keys, now, age, dry_run=dry_run)
        return total

    async def _check_store(self) -> None:
        """To another deployment's database all bytes of a store are nobody's. Raises MarkerMismatch, StorageError."""
        async with self._database.acquire() as conn:
            store_id = await conn.fetchval(_STORE)
        if store_id is None:
            raise MarkerMismatch("no_deployment")
        await self._blobs.check_marker(store_id)

    # -- keys ----------------------------------------------------------------------------------------------------------

    async def _chunks(self, after: str) -> AsyncGenerator[list[str], None]:
        """The keys that follow `after`, as many at a time as the database is asked about."""
        while keys := await self._blobs.list(_PREFIX, after, LISTED):
            for start in range(0, len(keys), ASKED):
                yield keys[start : start + ASKED]
            after = keys[-1]

    async def _clear(self, keys: Sequence[str], now: datetime, age: timedelta, *, dry_run: bool = False) -> Swept:
        """Remove those that no row names. The rows are asked for after the listing: what is old has its row by now."""
        known, orphans = 0, dict[timedelta, list[str]]()
        async with self._database.transaction(readonly=True) as conn:
            await conn.execute(_PLANS)
            for kind in self._kinds:
                own = [found for key in keys if (found := kind.form.fullmatch(key)) is not None]
                known += len(own)
                named = await _named(conn, kind, own)
                left = [found[0] for found in own if found[0] not in named]
                orphans.setdefault(max(age, kind.kept), []).extend(left)
        gone = Discarded()
        for wanted, some in orphans.items():
            if some:
                gone += await self._blobs.discard(some, now - wanted, dry_run=dry_run)
        return Swept(len(keys), len(keys) - known, gone.count, gone.octets)

    # -- how far it came -----------------------------------------------------------------------------------------------

    async def _ready(self, now: datetime) -> _State | None:
        """Where to go on; None when there is nothing to do now."""
        async with self._database.acquire() as conn:
            row = await conn.fetchrow(_STATE)
            if row is None:
                await conn.execute(_FIRST, now, now + AGE)
                return None
            state = _State(*row)
            if not -SKEW <= now - state.seen_at <= GAP:
                log.warning("blob_sweep_held", until=(now + AGE).isoformat())
                await conn.execute(_HOLD, now, now + AGE, state.seen_at)
                return None
            if now - state.seen_at >= SKEW:
                await conn.execute(_SEEN, now)
        waits = state.after == "" and now < state.next_pass_at
        return None if waits or now < state.removes_from else state

    async def _advance(self, old: str, new: str, next_pass: datetime) -> None:
        """Unless another node, or another pass, went on from there already."""
        async with self._database.acquire() as conn:
            await conn.execute(_ADVANCE, old, new, next_pass, self._clock.now())


async def _named(conn: Connection, kind: KeysOfMessages, found: Sequence[re.Match[str]]) -> set[str]:
    if not found:
        return set()
    rows = await conn.fetch(
        kind.named, [one[0] for one in found], [one["tenant"] for one in found], [one["message"] for one in found]
    )
    return {row["key"] for row in rows}
