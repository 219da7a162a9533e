"""Periodic work: due when the table says so, for all nodes together, whatever the clock does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.db.statistics import analyze_grown
from postroom.worker import Periodic, Worker
from tests.mailbox.letters import Pen, make_boxes, raw_mail


def counting(runs: list[str], name: str, seconds: int, work: Callable[[], Awaitable[object]] | None = None) -> Periodic:
    async def count() -> None:
        runs.append(name)
        if work is not None:
            await work()

    return Periodic(name, timedelta(seconds=seconds), count)


async def begun(db: Database, clock: ManualClock, *periodic: Periodic) -> Worker:
    """A worker whose first round, where all is due, is over."""
    worker = Worker(db, clock, periodic)
    await worker.ensure()
    await worker.run_due()
    return worker


@pytest.mark.covers("decisions:B1")
async def test_work_is_done_when_it_is_due(db: Database, clock: ManualClock) -> None:
    runs: list[str] = []
    worker = await begun(db, clock, counting(runs, "often", 10), counting(runs, "seldom", 60))
    assert sorted(runs) == ["often", "seldom"]
    assert await worker.run_due() == 0
    for _ in range(12):
        clock.advance(5)
        await worker.run_due()
    assert runs.count("often") == 7
    assert runs.count("seldom") == 2


@pytest.mark.covers("decisions:B1")
async def test_nodes_share_the_work(db: Database, clock: ManualClock) -> None:
    runs: list[str] = []
    one = await begun(db, clock, counting(runs, "job", 10))
    two = await begun(db, clock, counting(runs, "job", 10))
    for _ in range(5):
        clock.advance(10)
        await asyncio.gather(one.run_due(), two.run_due())
    assert len(runs) == 6


@pytest.mark.covers("decisions:B1", "edge:J2")
async def test_a_node_that_dies_at_work_is_followed_by_another(db: Database, clock: ManualClock) -> None:
    runs: list[str] = []

    async def dies() -> None:
        raise asyncio.CancelledError

    dead = Worker(db, clock, [counting(runs, "job", 10, dies)])
    await dead.ensure()
    with pytest.raises(asyncio.CancelledError):
        await dead.run_due()
    alive = Worker(db, clock, [counting(runs, "job", 10)])
    assert await alive.run_due() == 0
    clock.advance(301)
    assert await alive.run_due() == 1


@pytest.mark.covers("decisions:B1")
async def test_work_that_fails_comes_again_and_harms_no_other(db: Database, clock: ManualClock) -> None:
    runs: list[str] = []

    async def fails() -> None:
        raise ValueError("a bug")

    worker = await begun(db, clock, counting(runs, "bad", 10, fails), counting(runs, "good", 10))
    assert sorted(runs) == ["bad", "good"]
    for _ in range(50):
        clock.advance(10)
        await worker.run_due()
    assert runs.count("bad") == runs.count("good") == 51


@pytest.mark.covers("decisions:B1", "edge:J1")
async def test_work_interrupted_by_the_database_comes_again_soon(db: Database, clock: ManualClock) -> None:
    runs: list[str] = []
    broken = [True]

    async def lost() -> None:
        if broken:
            raise asyncpg.ConnectionDoesNotExistError("gone")

    worker = Worker(db, clock, [counting(runs, "a", 10, lost), counting(runs, "b", 10)])
    await worker.ensure()
    with pytest.raises(asyncpg.ConnectionDoesNotExistError):
        await worker.run_due()
    broken.clear()
    clock.advance(301)
    await worker.run_due()
    assert set(runs) == {"a", "b"}


@pytest.mark.covers("decisions:B1")
async def test_a_clock_that_steps_back_does_not_stop_the_work_for_ever(db: Database, clock: ManualClock) -> None:
    runs: list[str] = []
    worker = await begun(db, clock, counting(runs, "job", 10))
    clock.set(clock.now() - timedelta(hours=1))
    assert await worker.run_due() == 0
    clock.advance(3610)
    assert await worker.run_due() == 1
    # And a leap forward makes it due once, not as often as it was missed.
    clock.advance(86_400)
    assert await worker.run_due() == 1
    assert await worker.run_due() == 0


@pytest.mark.covers("decisions:B1", "edge:J9")
async def test_work_of_a_newer_node_is_left_to_it(db: Database, clock: ManualClock) -> None:
    runs: list[str] = []
    newer = Worker(db, clock, [counting(runs, "old", 10), counting(runs, "new", 10)])
    older = Worker(db, clock, [counting(runs, "old", 10)])
    await newer.ensure()
    await older.run_due()
    assert runs == ["old"]
    await newer.run_due()
    assert sorted(runs) == ["new", "old"]


async def test_statistics_follow_growth(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    # The counters of a session reach the others when it ends.
    own = await db.connect()
    try:
        for batch in range(3):
            await pen.store(own, *([pen.copy(box, raw_mail(body=f"{batch} {n}"))] for n in range(100)))
    finally:
        await own.close()
    async with db.acquire() as conn:
        async with asyncio.timeout(60):
            while not await conn.fetchval(  # noqa: ASYNC110 - the statistics collector tells nobody
                "SELECT n_mod_since_analyze >= 300 FROM pg_stat_user_tables WHERE relname = 'messages'"
            ):
                await asyncio.sleep(0.01)
        assert await analyze_grown(conn) >= 3
        rows = await conn.fetchval("SELECT reltuples FROM pg_class WHERE oid = 'messages'::regclass")
        assert rows == 300
        assert await analyze_grown(conn) == 0
