"""The bytes of a batch and its transaction: side by side, and never committed before they are durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs.store import PutGroup, StorageError
from postroom.db import Database
from postroom.mailbox.ingest import IngestError

from .letters import Box, Pen, make_boxes, raw_mail
from .stores import MemoryBlobs
from .test_ingest import DEADLINE, check_all, delivery, held, keys, running, stored, until


class GatedBlobs(MemoryBlobs):
    """Bytes that hold `slow` are written when the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waiting = 0

    async def put_many(self, groups: Sequence[PutGroup]) -> list[StorageError | None]:
        if any(b"slow" in bytes(piece) for group in groups for piece in group.pieces):
            self.waiting += 1
            await self.gate.wait()
        return await super().put_many(groups)


_FREE = "SELECT FROM mailboxes WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED"


async def until_locked(db: Database, box: Box) -> None:
    """Until a transaction that writes the mailbox is open."""
    async with db.acquire() as conn, asyncio.timeout(DEADLINE):
        while await conn.fetch(_FREE, box.ref.mailbox_id):  # noqa: ASYNC110 - another session's lock
            await asyncio.sleep(0.005)


@pytest.mark.covers("mail-server:E2", "decisions:B14")
async def test_a_row_is_not_committed_before_its_bytes(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    blobs, pen = GatedBlobs(), Pen(ids, clock)
    reached: list[bool] = []
    async with running(db, clock, blobs, before_commit=lambda: reached.append(blobs.gate.is_set())) as ingest:
        task = asyncio.ensure_future(ingest.deliver(delivery(pen, raw_mail(body="slow"), box)))
        await until(lambda: blobs.waiting == 1)
        await asyncio.sleep(0.1)
        assert not task.done()
        assert not await keys(db)
        blobs.gate.set()
        assert stored(await task)
    assert reached == [True]
    assert set(blobs.kept) == await keys(db)


@pytest.mark.covers("decisions:B14", "edge:J1")
async def test_bytes_that_are_late_hold_no_lock(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.mailbox.ingest.BYTES_SECONDS", 0.05)
    box, other = await make_boxes(db, ids, clock, 2)
    blobs, pen = GatedBlobs(), Pen(ids, clock)
    async with running(db, clock, blobs) as ingest:
        task = asyncio.ensure_future(ingest.deliver(delivery(pen, raw_mail(body="slow"), box)))
        await until(lambda: blobs.waiting == 1)
        await asyncio.sleep(0.3)
        # Its mailbox is free, and so is the committer.
        async with asyncio.timeout(2), held(db, box):
            pass
        assert stored(await asyncio.wait_for(ingest.deliver(delivery(pen, raw_mail(body="quick"), other)), 10))
        assert not task.done()
        # What comes later for the same mailbox keeps its place behind it.
        later = asyncio.ensure_future(ingest.deliver(delivery(pen, raw_mail(body="later"), box)))
        blobs.gate.set()
        (first,), (second,) = stored(await task), stored(await later)
        assert first.uid < second.uid
    await check_all(db, [box, other])


@pytest.mark.covers("decisions:B14")
async def test_a_slow_committer_gets_company(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.mailbox.ingest.BYTES_SECONDS", 60.0)
    box, other = await make_boxes(db, ids, clock, 2)
    blobs, pen = GatedBlobs(), Pen(ids, clock)
    async with running(db, clock, blobs, committers=2) as ingest:
        task = asyncio.ensure_future(ingest.deliver(delivery(pen, raw_mail(body="slow"), box)))
        await until_locked(db, box)
        assert stored(await asyncio.wait_for(ingest.deliver(delivery(pen, raw_mail(body="quick"), other)), 10))
        assert not task.done()
        blobs.gate.set()
        assert stored(await task)


@pytest.mark.covers("edge:J1", "mail-server:A8")
async def test_bytes_that_fail_fail_their_message_alone(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    boxes = await make_boxes(db, ids, clock, 2)
    pen = Pen(ids, clock)
    bad = raw_mail(body="bad")

    class Failing(MemoryBlobs):
        async def put_many(self, groups: Sequence[PutGroup]) -> list[StorageError | None]:
            await asyncio.sleep(0.02)
            results = await super().put_many(groups)
            return [
                StorageError("EIO") if any(bytes(p) == bad for p in group.pieces) else result
                for group, result in zip(groups, results, strict=True)
            ]

    async with running(db, clock, Failing()) as ingest:
        raws = [bad if n == 3 else raw_mail(body=f"{n}") for n in range(8)]
        outcomes = await asyncio.gather(
            *(ingest.deliver(delivery(pen, raw, *boxes)) for raw in raws), return_exceptions=True
        )
    for n, outcome in enumerate(outcomes):
        if n == 3:
            assert isinstance(outcome, IngestError)
            assert outcome.failure.value == "storage"
        else:
            assert not isinstance(outcome, BaseException)
            assert len(stored(outcome)) == 2
    assert len(await keys(db)) == 14
    await check_all(db, boxes)


@pytest.mark.covers("edge:J2")
async def test_a_ticket_that_is_given_up_leaves_nothing(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    blobs, pen = GatedBlobs(), Pen(ids, clock)
    async with running(db, clock, blobs) as ingest:
        with ingest.begin((raw_mail(body="slow"),), ["t/a/i/b/m/c/raw.eml"]):
            await until(lambda: blobs.waiting == 1)
        await until(lambda: ingest.pending == 0)
        blobs.gate.set()
        assert stored(await ingest.deliver(delivery(pen, raw_mail(body="next"), box)))
    assert blobs.deleted == ["t/a/i/b/m/c/raw.eml"]
    assert set(blobs.kept) == await keys(db)
