"""The batcher: every accepted message exactly once, whoever is in the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs.store import StorageError, StorageFull
from postroom.db import Connection, Database
from postroom.mailbox import append_sql
from postroom.mailbox.ingest import Delivery, Failure, Ingest, IngestError
from postroom.mailbox.models import Appended, GroupOutcome, Refusal, Refused
from postroom.mailbox.rules import FlagMode
from postroom.mailbox.service import Mailboxes

from .letters import Box, Pen, check_mailbox, inbox, make_boxes, raw_mail
from .stores import MemoryBlobs

DEADLINE = 60.0


@asynccontextmanager
async def running(
    db: Database, clock: ManualClock, blobs: MemoryBlobs | None = None, **options: Any
) -> AsyncIterator[Ingest]:
    ingest = Ingest(db, blobs or MemoryBlobs(), clock, **{"committed": lambda _: None, **options})
    ingest.start()
    try:
        yield ingest
    finally:
        await asyncio.wait_for(ingest.stop(), DEADLINE)


@asynccontextmanager
async def held(db: Database, *boxes: Box) -> AsyncIterator[Connection]:
    """Another session that has locked the mailboxes."""
    conn = await db.connect()
    try:
        async with conn.transaction():
            for box in boxes:
                await conn.execute("SELECT FROM mailboxes WHERE id = $1 FOR NO KEY UPDATE", box.ref.mailbox_id)
            yield conn
    finally:
        await conn.close()


async def until(true: Callable[[], bool]) -> None:
    """Poll; fails when it does not become true."""
    async with asyncio.timeout(DEADLINE):
        while not true():  # noqa: ASYNC110 - what is polled has no event
            await asyncio.sleep(0.002)


def delivery(pen: Pen, raw: bytes, *boxes: Box, **changes: Any) -> Delivery:
    return Delivery((raw,), tuple(pen.copy(box, raw, **changes) for box in boxes))


def stored(outcome: GroupOutcome) -> tuple[Appended, ...]:
    assert isinstance(outcome, tuple)
    return outcome


async def check_all(db: Database, boxes: Sequence[Box]) -> None:
    async with db.acquire() as conn:
        for box in boxes:
            await check_mailbox(conn, box.ref)


async def keys(db: Database) -> set[str]:
    async with db.acquire() as conn:
        return {row["blob_key"] for row in await conn.fetch("SELECT blob_key FROM messages")}


@pytest.mark.covers("decisions:B14", "edge:J2", "mail-server:A8", "edge:I9")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plan=st.lists(
        st.tuples(st.sets(st.integers(0, 2), min_size=1), st.integers(0, 12)),
        min_size=1,
        max_size=40,
    ),
    max_batch=st.integers(1, 9),
    committers=st.integers(1, 3),
)
async def test_concurrent_deliveries_are_stored_exactly_once(
    db: Database,
    clock: ManualClock,
    ids: IdGenerator,
    plan: list[tuple[set[int], int]],
    max_batch: int,
    committers: int,
) -> None:
    boxes = await make_boxes(db, ids, clock, 3)
    pen, blobs = Pen(ids, clock), MemoryBlobs()
    told: list[Appended] = []
    raws = [raw_mail(message_id=f"{n}@example.com", body=str(n)) for n in range(13)]
    deliveries = [delivery(pen, raws[n], *(boxes[b] for b in sorted(chosen))) for chosen, n in plan]
    async with running(
        db, clock, blobs, max_batch=max_batch, committers=committers, committed=lambda stored: told.extend(stored)
    ) as ingest:
        outcomes = await asyncio.gather(*(ingest.deliver(one) for one in deliveries))
    wanted = {(b, raws[n]) for chosen, n in plan for b in chosen}
    names: dict[tuple[int, bytes], str] = {}
    for (chosen, n), outcome in zip(plan, outcomes, strict=True):
        for b, one in zip(sorted(chosen), stored(outcome), strict=True):
            assert names.setdefault((b, raws[n]), one.message_id) == one.message_id
    assert set(names) == wanted
    assert sorted(one.message_id for one in told) == sorted(names.values())
    assert ingest.pending == 0
    async with db.acquire() as conn:
        tenant = boxes[0].ref.tenant_id
        rows = await conn.fetch("SELECT public_id, blob_key FROM messages WHERE tenant_id = $1", tenant)
    assert sorted(row["public_id"] for row in rows) == sorted(names.values())
    # Bytes of duplicates are gone, those of messages are there.
    assert set(blobs.kept) == {row["blob_key"] for row in rows}
    await check_all(db, boxes)


@pytest.mark.covers("decisions:B14")
async def test_a_held_mailbox_holds_up_nobody_else(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    boxes = await make_boxes(db, ids, clock, 4)
    pen = Pen(ids, clock)
    stuck, *others = boxes
    async with running(db, clock) as ingest:
        async with held(db, stuck):
            waiting = [
                asyncio.ensure_future(ingest.deliver(delivery(pen, raw_mail(body=f"s{n}"), stuck))) for n in range(9)
            ]
            for n in range(10):
                batch = [delivery(pen, raw_mail(body=f"{n} {k}"), box) for k in range(4) for box in others]
                outcomes = await asyncio.gather(*(ingest.deliver(one) for one in batch))
                assert all(not stored(outcome)[0].duplicate for outcome in outcomes)
            assert not any(future.done() for future in waiting)
        assert len(await asyncio.gather(*waiting)) == 9
    await check_all(db, boxes)


@pytest.mark.covers("decisions:B14", "mail-server:A8")
async def test_nor_does_it_hold_up_who_shares_a_message_with_it(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    free, stuck, other = boxes = await make_boxes(db, ids, clock, 3)
    pen = Pen(ids, clock)
    async with running(db, clock) as ingest:
        async with held(db, stuck):
            shared = [
                asyncio.ensure_future(ingest.deliver(delivery(pen, raw_mail(body=f"s{n}"), free, stuck, other)))
                for n in range(5)
            ]
            await until(lambda: len(ingest._lanes) == 1)
            for n in range(30):
                assert stored(await ingest.deliver(delivery(pen, raw_mail(body=f"{n}"), free, other)))
            assert not any(future.done() for future in shared)
        for outcome in await asyncio.gather(*shared):
            assert len(stored(outcome)) == 3
        await until(lambda: not ingest._lanes)
    await check_all(db, boxes)


@pytest.mark.covers("decisions:B14")
async def test_more_held_mailboxes_than_lanes(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    boxes = await make_boxes(db, ids, clock, 12)
    pen = Pen(ids, clock)
    async with running(db, clock) as ingest:
        async with held(db, *boxes[:10]):
            waiting = [
                asyncio.ensure_future(
                    ingest.deliver(delivery(pen, raw_mail(body=f"{n}"), boxes[n], boxes[(n + 3) % 10]))
                )
                for n in range(10)
            ]
            for n in range(20):
                assert stored(await ingest.deliver(delivery(pen, raw_mail(body=f"f{n}"), *boxes[10:])))
            assert not any(future.done() for future in waiting)
        for outcome in await asyncio.gather(*waiting):
            assert len(stored(outcome)) == 2
    await check_all(db, boxes)


@pytest.mark.covers("decisions:B14", "edge:J1", "edge:I9")
async def test_a_mailbox_held_too_long_is_busy(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "lock_timeout = '5s'" in append_sql.BEGIN
    monkeypatch.setattr(append_sql, "BEGIN", append_sql.BEGIN.replace("'5s'", "'200ms'"))
    boxes = await make_boxes(db, ids, clock, 2)
    pen, blobs = Pen(ids, clock), MemoryBlobs()
    async with running(db, clock, blobs, max_batch=4) as ingest:
        async with held(db, boxes[0]):
            # More than one batch of the lane holds: those behind do not wait their own time in turn.
            outcomes = await asyncio.gather(
                *(ingest.deliver(delivery(pen, raw_mail(body=f"{n}"), *boxes)) for n in range(10)),
                return_exceptions=True,
            )
            assert [str(outcome) for outcome in outcomes] == [Failure.BUSY.value] * 10
        assert len(stored(await ingest.deliver(delivery(pen, raw_mail(body="later"), *boxes)))) == 2
    assert set(blobs.kept) == await keys(db)
    await check_all(db, boxes)


@pytest.mark.covers("edge:I10")
async def test_a_mailbox_that_is_gone_is_refused(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    gone, there = await make_boxes(db, ids, clock, 2)
    pen, blobs = Pen(ids, clock), MemoryBlobs()
    async with db.acquire() as conn:
        await conn.execute("DELETE FROM changes WHERE mailbox_id = $1", gone.ref.mailbox_id)
        await conn.execute("DELETE FROM folders WHERE mailbox_id = $1", gone.ref.mailbox_id)
        await conn.execute("DELETE FROM mailboxes WHERE id = $1", gone.ref.mailbox_id)
    async with running(db, clock, blobs) as ingest:
        outcomes = await asyncio.gather(
            ingest.deliver(delivery(pen, raw_mail(body="1"), gone)),
            ingest.deliver(delivery(pen, raw_mail(body="2"), there, gone)),
            ingest.deliver(delivery(pen, raw_mail(body="3"), there)),
        )
        assert list(outcomes[:2]) == [Refused(Refusal.MAILBOX_GONE)] * 2
        assert stored(outcomes[2])
    assert set(blobs.kept) == await keys(db)


@pytest.mark.covers("edge:J1", "mail-server:E2")
async def test_a_failing_store_refuses_and_recovers(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    faults: list[Any] = []

    def fault(number: int) -> StorageError | None:
        current = faults[0] if faults else None
        if isinstance(current, StorageError):
            return current
        if isinstance(current, Exception):
            raise current
        return None

    blobs = MemoryBlobs(fault)
    async with running(db, clock, blobs) as ingest:
        for error, failure in (
            (StorageError("EIO"), Failure.STORAGE),
            (StorageFull("ENOSPC"), Failure.STORAGE_FULL),
            (RuntimeError("thread pool is gone"), Failure.STORAGE),
            (OSError("what"), Failure.STORAGE),
        ):
            faults[:] = [error]
            with pytest.raises(IngestError) as caught:
                await ingest.deliver(delivery(pen, raw_mail(body=str(error)), box))
            assert caught.value.failure is failure
        faults.clear()
        assert stored(await ingest.deliver(delivery(pen, raw_mail(body="fine"), box)))
        async with db.acquire() as conn:
            assert await conn.fetchval("SELECT count(*) FROM messages") == 1
        # One failure, then two retries that find the disk well: accepted.
        puts = blobs.puts
        blobs.fault = lambda _: StorageError("EIO") if blobs.puts == puts + 1 else None
        assert stored(await ingest.deliver(delivery(pen, raw_mail(body="retried"), box)))
        # A fault of one message is not its neighbours'.
        blobs.fault = lambda number: StorageError("EIO") if number == 1 and blobs.puts == puts + 3 else None
        outcomes = await asyncio.gather(
            *(ingest.deliver(delivery(pen, raw_mail(body=f"n{n}"), box)) for n in range(6)), return_exceptions=True
        )
        assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 6
    await check_all(db, [box])


@pytest.mark.covers("edge:J1")
async def test_a_full_queue_refuses(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    async with running(db, clock, max_pending=5, max_pending_bytes=100_000) as ingest:
        async with held(db, box):
            waiting = [
                asyncio.ensure_future(ingest.deliver(delivery(pen, raw_mail(body=f"{n}"), box))) for n in range(5)
            ]
            await until(lambda: ingest.pending == 5)
            with pytest.raises(IngestError, match="overloaded"):
                await ingest.deliver(delivery(pen, raw_mail(body="6"), box))
        await asyncio.gather(*waiting)
        # However large, a lone message is taken; a second beside it is not.
        large = raw_mail(body="x" * 200_000)
        async with held(db, box):
            alone = asyncio.ensure_future(ingest.deliver(delivery(pen, large, box)))
            await until(lambda: ingest.pending == 1)
            with pytest.raises(IngestError, match="overloaded"):
                await ingest.deliver(delivery(pen, raw_mail(body="small"), box))
        assert stored(await alone)
        assert stored(await ingest.deliver(delivery(pen, raw_mail(body="6"), box)))


@pytest.mark.covers("edge:J2")
async def test_a_caller_who_leaves_changes_nothing(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    one = delivery(pen, raw_mail(body="left"), box)
    async with running(db, clock) as ingest:
        async with held(db, box):
            task = asyncio.ensure_future(ingest.deliver(one))
            await until(lambda: ingest.pending == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: ingest.pending == 0)
        (again,) = stored(await ingest.deliver(delivery(pen, raw_mail(body="left"), box)))
        assert (again.message_id, again.duplicate) == (one.copies[0].id, True)
    await check_all(db, [box])


@pytest.mark.covers("edge:J2")
async def test_stopping_drains(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    boxes = await make_boxes(db, ids, clock, 2)
    pen, blobs = Pen(ids, clock), MemoryBlobs()
    raw = raw_mail(body="twice")
    async with running(db, clock, blobs) as ingest:
        plan = [raw_mail(body=f"{n}") for n in range(50)] + [raw, raw, raw]
        tasks = [asyncio.ensure_future(ingest.deliver(delivery(pen, one, *boxes))) for one in plan]
        await until(lambda: ingest.pending == len(plan))
        await ingest.stop()
        assert all(task.done() for task in tasks)
        assert all(len(stored(task.result())) == 2 for task in tasks)
        with pytest.raises(IngestError, match="shutting_down"):
            await ingest.deliver(delivery(pen, raw, *boxes))
    # The bytes of duplicates are gone before it returns.
    assert set(blobs.kept) == await keys(db)
    await check_all(db, boxes)


@pytest.mark.covers("edge:J2")
async def test_a_listener_that_fails_harms_nobody(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)

    def broken(_: Sequence[Appended]) -> None:
        raise RuntimeError("a bug")

    async with running(db, clock, committed=broken, committers=1) as ingest:
        for n in range(3):
            assert stored(await ingest.deliver(delivery(pen, raw_mail(body=f"{n}"), box)))


@pytest.mark.covers("decisions:B10", "decisions:B14", "decisions:D12")
async def test_two_processes_on_the_same_mailboxes(
    database_url: str, postgres_url: str, clock: ManualClock, ids: IdGenerator
) -> None:
    rng = random.Random(4)
    async with (
        Database(database_url, max_size=8, application_name="two") as one,
        Database(database_url, max_size=8, application_name="two") as two,
    ):
        boxes = await make_boxes(one, ids, clock, 5)
        pen, blobs = Pen(ids, clock), MemoryBlobs()
        plan = [(raw_mail(body=f"{n % 150}"), rng.sample(boxes, rng.randint(1, 3))) for n in range(300)]
        async with running(one, clock, blobs) as left, running(two, clock, blobs) as right:

            async def sender(part: list[tuple[bytes, list[Box]]], ingest: Ingest) -> None:
                for raw, chosen in part:
                    assert len(stored(await ingest.deliver(delivery(pen, raw, *chosen)))) == len(chosen)

            async def reader(db: Database, box: Box) -> None:
                mailboxes = Mailboxes(db, blobs, clock, ids, lambda _ref, _modseq: None)
                async with db.acquire() as conn:
                    folder = await inbox(conn, box.ref)
                for n in range(15):
                    mode = FlagMode.ADD if n % 2 else FlagMode.REMOVE
                    await mailboxes.set_flags(box.ref, folder, range(1, 40), mode, frozenset({"$seen"}), None)

            parts = [plan[n::12] for n in range(12)]
            await asyncio.gather(
                *(sender(part, (left, right)[n % 2]) for n, part in enumerate(parts)),
                *(reader((one, two)[n % 2], box) for n, box in enumerate(boxes)),
            )
        async with one.acquire() as conn:
            for box in boxes:
                bodies = {raw for raw, chosen in plan if box in chosen}
                key = box.ref.mailbox_id
                assert await conn.fetchval("SELECT count(*) FROM messages WHERE mailbox_id = $1", key) == len(bodies)
                await check_mailbox(conn, box.ref)
        assert set(blobs.kept) == await keys(one)
    async with Database(postgres_url, max_size=1, min_size=0) as server, server.acquire() as conn:
        name = urlsplit(database_url).path[1:]
        async with asyncio.timeout(DEADLINE):
            # The server tells nobody.
            while await conn.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = $1", name):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await conn.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = $1", name) == 0


async def test_a_stage_that_ends_by_itself_is_told_of(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = asyncio.Event()
    ingest = Ingest(db, MemoryBlobs(), clock, committed=lambda _: None, broken=broken.set)

    async def fault() -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(ingest, "_write_stage", fault)
    ingest.start()
    await asyncio.wait_for(broken.wait(), 10)
