"""Deployments with bytes of every fate, and stores that are killed: for tests of the sweep."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import BlobStore, MaildirStore, PutGroup
from postroom.blobs.objects import ObjectStore
from postroom.db import Database
from postroom.mailbox.sweep import AGE, MESSAGE_KEYS, BlobSweep
from tests.mailbox.letters import Box, Pen, make_boxes, raw_mail

STORE = "store-1"


class Killed(BaseException):
    """The process ended here."""


@dataclass
class MortalStore:
    """The store of a process that may be killed before or after anything that it does with the store."""

    store: BlobStore
    rng: random.Random
    chance: float

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        async def call(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            self._perhaps()
            result = await method(*args, **options)
            self._perhaps()
            return result

        return call

    def _perhaps(self) -> None:
        if self.rng.random() < self.chance:
            raise Killed


@dataclass
class Place:
    """Mailboxes, a store, and a clock that agrees with the store's until it is set."""

    db: Database
    blobs: BlobStore
    clock: ManualClock
    ids: IdGenerator
    pen: Pen
    boxes: Sequence[Box]
    named: dict[str, bytes] = field(default_factory=dict)
    nobodys: set[str] = field(default_factory=set)

    def sweep(self, blobs: BlobStore | None = None) -> BlobSweep:
        return BlobSweep(self.db, blobs or self.blobs, self.clock, (MESSAGE_KEYS,))

    async def stored(self, *boxes: Box) -> list[str]:
        """A message for the mailboxes, in one file where the store can; its keys."""
        raw = raw_mail(body=self.ids.ulid())
        copies = [self.pen.copy(box, raw) for box in boxes]
        keys = [copy.blob_key for copy in copies]
        assert await self.blobs.put_many([PutGroup((raw,), keys)]) == [None]
        async with self.db.acquire() as conn:
            await self.pen.store(conn, copies)
        self.named |= dict.fromkeys(keys, raw)
        return keys

    async def killed_before_commit(self, *boxes: Box) -> list[str]:
        """Bytes without rows."""
        raw = raw_mail()
        keys = [self.pen.copy(box, raw).blob_key for box in boxes]
        assert await self.blobs.put_many([PutGroup((raw,), keys)]) == [None]
        self.nobodys.update(keys)
        return keys

    async def killed_in_removal(self, box: Box, *others: Box) -> str:
        """The message of one mailbox is gone, and its bytes are not; others have it still."""
        key = (await self.stored(box, *others))[0]
        async with self.db.transaction() as conn:
            row = await conn.fetchrow("SELECT tenant_id, id FROM messages WHERE blob_key = $1", key)
            assert row is not None
            await conn.execute("DELETE FROM placements WHERE tenant_id = $1 AND message_id = $2", *row)
            await conn.execute("DELETE FROM messages WHERE tenant_id = $1 AND id = $2", *row)
        del self.named[key]
        self.nobodys.add(key)
        return key

    async def age(self) -> None:
        """What is stored up to now is old enough to be removed, and what comes is not."""
        await asyncio.sleep(0.05)
        now = datetime.now(UTC)
        await asyncio.sleep(0.05)
        self.clock.set(now + AGE)
        await self.ready()

    async def ready(self) -> None:
        """The sweep ran a moment ago, and begins another pass."""
        now = self.clock.now()
        async with self.db.acquire() as conn:
            await conn.execute("DELETE FROM blob_sweep")
            await conn.execute(
                "INSERT INTO blob_sweep (after_key, next_pass_at, seen_at, removes_from) VALUES ('', $1, $1, $1)", now
            )

    async def is_done(self) -> bool:
        """Whether the pass is over."""
        async with self.db.acquire() as conn:
            row = await conn.fetchrow("SELECT after_key, next_pass_at FROM blob_sweep")
        assert row is not None
        return bool(row["after_key"] == "" and row["next_pass_at"] > self.clock.now() + timedelta(hours=1))

    async def keys(self) -> set[str]:
        return set(await self.blobs.list("", limit=100_000))

    async def check_named(self) -> None:
        """What rows name is there, whole."""
        for key, raw in self.named.items():
            assert await self.blobs.get(key) == raw


@asynccontextmanager
async def open_place(db: Database, kind: str, directory: Path, boxes: int = 3) -> AsyncIterator[Place]:
    """`kind` of store: `maildir` or `objects`."""
    blobs = MaildirStore(directory, fsync=False) if kind == "maildir" else ObjectStore(MemoryStore())
    clock = ManualClock(datetime.now(UTC))
    ids = IdGenerator(clock)
    try:
        await blobs.check_marker(STORE, create=True)
        async with db.acquire() as conn:
            await conn.execute(
                "INSERT INTO deployment (store_id, platform_domain, created_at) VALUES ($1, 'agents.example', $2)",
                *(STORE, clock.now()),
            )
        made = await make_boxes(db, ids, clock, boxes)
        yield Place(db, blobs, clock, ids, Pen(ids, clock), made)
    finally:
        await blobs.close()


async def many(place: Place, rng: random.Random, count: int) -> None:
    """Messages of every fate."""
    fates: list[Callable[[list[Box]], Any]] = [
        lambda boxes: place.stored(*boxes),
        lambda boxes: place.killed_before_commit(*boxes),
        lambda boxes: place.killed_in_removal(*boxes),
    ]
    for _ in range(count):
        await rng.choice(fates)(rng.sample(list(place.boxes), rng.randint(1, len(place.boxes))))
