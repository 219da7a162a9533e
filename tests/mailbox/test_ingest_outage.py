"""Connections that die, a COMMIT whose answer is lost, a database that goes away: stored once, answered rightly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import ConnectionTarget, Database, LocalPostgres, Migrator
from postroom.mailbox.ingest import Delivery, Failure, Ingest, IngestError
from postroom.mailbox.models import Appended, Source

from .letters import Box, Pen, check_mailbox, make_boxes, raw_mail
from .stores import MemoryBlobs
from .wire import Fault, gate

DEADLINE = 60.0
NAME = "outage-victim"


@asynccontextmanager
async def running(db: Database, clock: ManualClock, **options: Any) -> AsyncIterator[tuple[Ingest, list[Appended]]]:
    told: list[Appended] = []
    ingest = Ingest(db, MemoryBlobs(), clock, committed=lambda stored: told.extend(stored), **options)
    ingest.start()
    try:
        yield ingest, told
    finally:
        await asyncio.wait_for(ingest.stop(), DEADLINE)


def delivery(pen: Pen, n: object, *boxes: Box, source: Source = Source.MX) -> Delivery:
    raw = raw_mail(message_id=f"{n}@example.com", body=f"{n}")
    return Delivery((raw,), tuple(pen.copy(box, raw, source=source) for box in boxes))


async def stored_once(db: Database, deliveries: list[Delivery], outcomes: list[Any]) -> None:
    """Each is answered with its own id, and each is there, once."""
    assert [[one.message_id for one in outcome] for outcome in outcomes] == [
        [copy.id for copy in one.copies] for one in deliveries
    ]
    wanted = sorted(copy.id for one in deliveries for copy in one.copies)
    async with db.acquire() as conn:
        assert sorted(r["public_id"] for r in await conn.fetch("SELECT public_id FROM messages")) == wanted
        for ref in {copy.mailbox for one in deliveries for copy in one.copies}:
            await check_mailbox(conn, ref)


class Killer:
    """Ends the sessions that are in a transaction, from a thread of its own, for as many times as it is loaded."""

    def __init__(self, url: str, shots: int) -> None:
        self._url, self.shots, self.fired = url, shots, 0

    def __call__(self) -> None:
        if self.fired < self.shots:
            self.fired += 1
            thread = threading.Thread(target=lambda: asyncio.run(self._kill()))
            thread.start()
            thread.join()

    async def _kill(self) -> None:
        conn = await asyncpg.connect(self._url)
        try:
            victims = await conn.fetch(
                "SELECT pid, pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = $1 "
                "AND datname = current_database() AND state = 'idle in transaction'",
                NAME,
            )
            assert victims
        finally:
            await conn.close()


@pytest.mark.covers("decisions:B15", "edge:J2")
@pytest.mark.parametrize("source", Source)
async def test_a_session_killed_before_its_commit(
    database_url: str, clock: ManualClock, ids: IdGenerator, source: Source
) -> None:
    async with Database(database_url, application_name=NAME) as db:
        boxes = await make_boxes(db, ids, clock, 3)
        pen, killer = Pen(ids, clock), Killer(database_url, 3)
        async with running(db, clock, committers=1, before_commit=killer) as (ingest, told):
            deliveries = [delivery(pen, n, *boxes[n % 3 :], source=source) for n in range(20)]
            outcomes = await asyncio.gather(*(ingest.deliver(one) for one in deliveries))
        assert killer.fired == 3
        await stored_once(db, deliveries, outcomes)
        assert sorted(one.message_id for one in told) == sorted(copy.id for one in deliveries for copy in one.copies)


@pytest.mark.covers("decisions:B15", "edge:J2", "NFR-REL-1")
@pytest.mark.parametrize("source", Source)
@pytest.mark.parametrize("fault", Fault)
async def test_a_connection_lost_at_the_commit(
    database_url: str, clock: ManualClock, ids: IdGenerator, fault: Fault, source: Source
) -> None:
    async with (
        Database(database_url) as watcher,
        gate(database_url) as (between, url),
        Database(url, application_name=NAME) as db,
    ):
        boxes = await make_boxes(watcher, ids, clock, 3)
        pen = Pen(ids, clock)

        async def somebody_waits() -> None:
            """Until the look whether it was stored waits for the transaction whose COMMIT is on its way."""
            async with watcher.acquire() as conn, asyncio.timeout(DEADLINE):
                while not await conn.fetchval(  # noqa: ASYNC110 - PostgreSQL tells nobody of a lock that is waited for
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'",
                    NAME,
                ):
                    await asyncio.sleep(0.005)

        between.release = somebody_waits
        async with running(db, clock, committers=1) as (ingest, told):
            deliveries: list[Delivery] = []
            outcomes: list[Any] = []
            for round_ in range(3):
                batch = [delivery(pen, f"{round_}-{n}", *boxes[n % 3 :], source=source) for n in range(6)]
                between.fault = fault
                outcomes += await asyncio.gather(*(ingest.deliver(one) for one in batch))
                deliveries += batch
        assert between.faults == 3
        await stored_once(watcher, deliveries, outcomes)
        assert {one.message_id for one in told} == {copy.id for one in deliveries for copy in one.copies}


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[LocalPostgres]:
    server = LocalPostgres(tmp_path, watch=False, settings={"fsync": "off"})
    await server.start()
    try:
        await Migrator(ConnectionTarget(server.dsn)).run()
        yield server
    finally:
        await server.stop()


@pytest.mark.covers("edge:J1", "edge:J2", "decisions:B2")
async def test_a_database_that_goes_and_comes_back(
    own_server: LocalPostgres, clock: ManualClock, ids: IdGenerator
) -> None:
    async with Database(own_server) as db:
        boxes = await make_boxes(db, ids, clock, 3)
        pen = Pen(ids, clock)
        async with running(db, clock, retry_seconds=DEADLINE) as (ingest, _):
            deliveries = [delivery(pen, n, *boxes[n % 3 :]) for n in range(120)]
            early = [asyncio.ensure_future(ingest.deliver(one)) for one in deliveries[:60]]
            await asyncio.wait(early, return_when=asyncio.FIRST_COMPLETED)
            await own_server.stop()
            late = [asyncio.ensure_future(ingest.deliver(one)) for one in deliveries[60:]]
            await own_server.start()
            outcomes = await asyncio.gather(*early, *late)
        await stored_once(db, deliveries, outcomes)


@pytest.mark.covers("edge:J1", "edge:J7")
async def test_a_database_that_stays_away(own_server: LocalPostgres, clock: ManualClock, ids: IdGenerator) -> None:
    async with Database(own_server) as db:
        (box,) = await make_boxes(db, ids, clock)
        pen = Pen(ids, clock)
        async with running(db, clock, retry_seconds=0.3) as (ingest, _):
            await own_server.stop()
            failed = [delivery(pen, n, box) for n in range(5)]
            outcomes = await asyncio.gather(*(ingest.deliver(one) for one in failed), return_exceptions=True)
            for outcome in outcomes:
                assert isinstance(outcome, IngestError)
                assert outcome.failure is Failure.DATABASE
            await own_server.start()
            # The senders come back.
            deliveries = [delivery(pen, n, box) for n in range(5)]
            again = await asyncio.gather(*(ingest.deliver(one) for one in deliveries))
        await stored_once(db, deliveries, again)
