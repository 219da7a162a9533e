"""Work on many messages: what it writes, and that it holds up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox import folders, transfer
from postroom.mailbox.flags import FlagResult
from postroom.mailbox.ingest import Delivery, Ingest
from postroom.mailbox.queries import MessageFilter
from postroom.mailbox.rules import FlagMode
from postroom.mailbox.writing import CHUNK

from .letters import Box, Pen, check_mailbox, make_boxes, raw_mail
from .seed import World, make_world
from .stores import MemoryBlobs

MANY = 4 * CHUNK
MEGABYTE = 1_000_000
PATIENCE = 60.0


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator) -> World:
    return await make_world(db, clock, ids)


@pytest.fixture
async def ingest(db: Database, clock: ManualClock) -> AsyncIterator[Ingest]:
    started = Ingest(db, MemoryBlobs(), clock, committed=lambda _: None)
    started.start()
    yield started
    await started.stop()


async def log_position(world: World) -> int:
    """How many octets of write-ahead log the server has made."""
    async with world.db.acquire() as conn:
        return int(await conn.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


@pytest.mark.covers("decisions:A5", "decisions:B14")
@pytest.mark.parametrize("per_thread", [1, 3])
@pytest.mark.parametrize("flag", ["$flagged", "$seen"])
async def test_a_store_of_a_thousand_messages_writes_little(world: World, flag: str, per_thread: int) -> None:
    """At most a megabyte of write-ahead log.

    The first STORE writes whole pages, where the server is told to, and does not count; of the others the least does,
    for somebody else may use the server, too.
    """
    inbox, uids = await world.folder("INBOX"), await world.fill("INBOX", CHUNK, per_thread=per_thread)
    sizes = []
    for mode in (FlagMode.ADD, FlagMode.REMOVE, FlagMode.ADD, FlagMode.REMOVE):
        before = await log_position(world)
        changed = await world.boxes.set_flags(world.ref, inbox, uids, mode, [flag])
        assert [row.result for row in changed] == [FlagResult.CHANGED] * CHUNK
        sizes.append(await log_position(world) - before)
    assert 0 < min(sizes[1:]) <= MEGABYTE, sizes


class Elsewhere:
    """Mail for another mailbox, and reads of both, while a transaction on the first one is open."""

    def __init__(self, world: World, ingest: Ingest, box: Box) -> None:
        self.world, self.ingest, self.box = world, ingest, box
        self.pen = Pen(world.ids, world.clock)
        self.delivered = 0

    async def go_on(self) -> None:
        """A message comes in there, and what is here can be read. Fails when either has to wait."""
        async with asyncio.timeout(PATIENCE):
            raw = raw_mail(body=f"number {self.delivered}")
            outcome = await self.ingest.deliver(Delivery((raw,), (self.pen.copy(self.box, raw),)))
            assert isinstance(outcome, tuple)
            self.delivered += 1
            reads = self.world.boxes.reads
            for folder in await self.world.boxes.list_folders(self.world.ref):
                snapshot = await reads.folder_snapshot(self.world.ref, folder.id)
                assert len(snapshot.uids) == folder.message_count
            await self.world.boxes.queries.list_messages(self.world.ref, MessageFilter(), limit=10)

    def during(self, step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """`step` of a transaction, which ends only when all else went on after it was done."""

        async def held(*args: Any) -> Any:
            result = await step(*args)
            # In a task of its own, as the one in a transaction must not ask for a second connection.
            await asyncio.create_task(self.go_on())
            return result

        return held


@pytest.fixture
async def elsewhere(world: World, ingest: Ingest, db: Database, clock: ManualClock, ids: IdGenerator) -> Elsewhere:
    (box,) = await make_boxes(db, ids, clock)
    return Elsewhere(world, ingest, box)


@pytest.mark.covers("decisions:A5", "decisions:B14")
async def test_a_move_of_many_messages_holds_up_nobody(
    world: World, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, archive = await world.folder("INBOX"), await world.folder("Archive")
    uids = await world.fill("INBOX", MANY, per_thread=3)
    monkeypatch.setattr(transfer, "move", elsewhere.during(transfer.move))
    world.told.clear()
    moved = await world.boxes.move(world.ref, inbox, uids, archive)
    # In each of the chunks, and each was told of by itself.
    assert elsewhere.delivered == len(world.told) == MANY // CHUNK
    assert [source for source, _ in moved.pairs] == list(uids)
    async with world.db.acquire() as conn:
        await check_mailbox(conn, elsewhere.box.ref)
    counts = {folder.name: folder.message_count for folder in await world.boxes.list_folders(world.ref)}
    assert (counts["INBOX"], counts["Archive"]) == (0, MANY)


@pytest.mark.covers("decisions:A5", "decisions:B14")
async def test_a_move_of_many_messages_lets_others_write_between_its_chunks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, archive = await world.folder("INBOX"), await world.folder("Archive")
    uids = await world.fill("INBOX", MANY, per_thread=3)
    other = await world.add("Junk")
    junk = await world.folder("Junk")
    world.told.clear()
    begun, inner = asyncio.Event(), transfer.move

    async def noticed(*arguments: Any) -> Any:
        begun.set()
        return await inner(*arguments)

    monkeypatch.setattr(transfer, "move", noticed)
    moving = asyncio.ensure_future(world.boxes.move(world.ref, inbox, uids, archive))
    # The first chunk has the mailbox: who comes now is the next to have it.
    await begun.wait()
    await world.boxes.set_flags(world.ref, junk, [other.uid], FlagMode.ADD, ["$seen"])
    assert not moving.done()
    await moving
    assert len(world.told) == MANY // CHUNK + 1


@pytest.mark.covers("decisions:B14")
async def test_a_rename_of_a_folder_with_many_messages_holds_up_nobody(
    world: World, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await world.boxes.create_folder(world.ref, "Projects")
    for n in range(20):
        await world.boxes.create_folder(world.ref, f"Projects/{n}")
    uids = await world.fill("Projects", MANY, per_thread=3)
    monkeypatch.setattr(folders, "rename", elsewhere.during(folders.rename))
    renamed = await world.boxes.rename_folder(world.ref, made.id, "Old/Projects")
    assert elsewhere.delivered == 1
    assert (renamed.uid_validity, renamed.message_count) == (made.uid_validity, MANY)
    snapshot = await world.boxes.reads.folder_snapshot(world.ref, renamed.id)
    assert list(snapshot.uids) == list(uids)
