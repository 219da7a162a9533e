"""The reader of the outbox: nothing is lost or told twice, whatever commits when, and what it keeps has a bound."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import asyncpg
import pytest

from postroom.accounts.models import Scope
from postroom.accounts.permissions import Level
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database, DatabaseUnavailable
from postroom.events import reading
from postroom.events.catalogue import envelope
from postroom.events.feed import Feed, Listener
from postroom.events.reading import Told, Wanted

KIND: Final = "tenant.policy_updated"
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
PLATFORM: Final = Wanted(Scope(Level.PLATFORM), frozenset({KIND}))
DATA: Final[dict[str, object]] = {
    "fields": [],
    "by": "tenant",
    "actor_key_id": None,
    "actor_user_id": None,
    "policy_version": 1,
}
_INSERT: Final = """
INSERT INTO events (public_id, type, tenant_id, owner_kind, owner_id, payload, occurred_at)
VALUES ($1, $2, $3, 'platform', $6, $4, $5) RETURNING id
"""


class Writing:
    """Writes events, of tenants that need not exist."""

    def __init__(self, ids: IdGenerator) -> None:
        self._ids = ids

    async def put(self, conn: Connection | asyncpg.Connection, tenant: int = 1, size: int = 0) -> int:
        event_id = self._ids.new("evt_")
        payload = envelope(
            event_id=event_id,
            kind=KIND,
            occurred_at=NOW,
            tenant_id=self._ids.new("ten_"),
            identity_id=None,
            sequence=None,
            data=DATA | {"fields": ["x" * size]},
        )
        return int(await conn.fetchval(_INSERT, event_id, KIND, tenant, payload, NOW, event_id))

    async def burst(self, db: Database, count: int, tenant: int = 1, size: int = 0) -> list[int]:
        async with db.transaction() as conn:
            return [await self.put(conn, tenant, size) for _ in range(count)]


@pytest.fixture
def writing(ids: IdGenerator) -> Writing:
    return Writing(ids)


@pytest.fixture
async def slow(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection beside the pool, whose transaction takes its time."""
    connection = await asyncpg.connect(database_url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def following(db: Database, **more: int) -> AsyncIterator[Feed]:
    feed = Feed(db, poll=0.02, **more)
    task = asyncio.create_task(feed.run())
    try:
        async with asyncio.timeout(10):
            await feed.caught_up()
        yield feed
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None, task.exception()


async def listening(feed: Feed, wanted: Wanted = PLATFORM) -> Listener:
    async with asyncio.timeout(10):
        made = feed.listen(wanted, await feed.caught_up())
    assert made is not None
    return made


async def taken(listener: Listener, count: int) -> list[int]:
    """The keys of the next so many, waited for."""
    found: list[int] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            told = listener.take()
            if told is None:
                await listener.woken.wait()
            else:
                found.append(told.key)
    return found


def rest(listener: Listener) -> list[Told]:
    found = []
    while (told := listener.take()) is not None:
        found.append(told)
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  what is waited for tells nobody
            await asyncio.sleep(0.005)


@pytest.mark.covers("edge:J2")
async def test_a_late_commit_between_two_others(db: Database, writing: Writing, slow: asyncpg.Connection) -> None:
    """The first to get its key commits last: nobody is told of what follows before."""
    async with following(db) as feed:
        listener = await listening(feed)
        early = slow.transaction()
        await early.start()
        first = await writing.put(slow)
        second = (await writing.burst(db, 1))[0]
        await asyncio.sleep(0.2)
        assert rest(listener) == []
        assert listener.position < first, "a position between them would lose the first"
        await early.commit()
        third = (await writing.burst(db, 1))[0]
        assert await taken(listener, 3) == [first, second, third]


@pytest.mark.covers("decisions:A7")
async def test_what_is_rolled_back_holds_up_nobody(db: Database, writing: Writing, slow: asyncpg.Connection) -> None:
    async with following(db) as feed:
        listener = await listening(feed)
        never = slow.transaction()
        await never.start()
        lost = await writing.put(slow)
        second = (await writing.burst(db, 1))[0]
        await never.rollback()
        assert lost < second
        assert await taken(listener, 1) == [second]
        assert await feed.caught_up() == second


async def test_a_long_transaction_of_others_holds_up_nobody(
    db: Database, writing: Writing, slow: asyncpg.Connection
) -> None:
    """Only who may hold a key of an event is waited for, not whoever is slow elsewhere in the server."""
    async with following(db) as feed:
        listener = await listening(feed)
        long = slow.transaction()
        await long.start()
        await slow.execute("CREATE TABLE elsewhere (id bigint)")
        first = (await writing.burst(db, 1))[0]
        await _give_up(db, writing)
        second = (await writing.burst(db, 1))[0]
        assert second > first + 1
        assert await taken(listener, 2) == [first, second]
        await long.rollback()


async def _give_up(db: Database, writing: Writing) -> None:
    with contextlib.suppress(RuntimeError):
        async with db.transaction() as conn:
            await writing.put(conn)
            raise RuntimeError


async def test_a_listener_that_comes_while_somebody_writes(
    db: Database, writing: Writing, slow: asyncpg.Connection
) -> None:
    """The feed begins below what is being written: the position that it begins at loses nothing."""
    early = slow.transaction()
    await early.start()
    first = await writing.put(slow)
    second = (await writing.burst(db, 1))[0]
    feed = Feed(db, poll=0.02)
    running = asyncio.create_task(feed.run())
    begun = asyncio.create_task(feed.caught_up())
    await asyncio.sleep(0.2)
    assert not begun.done(), "what is not decided yet is no beginning"
    await early.commit()
    assert await asyncio.wait_for(begun, 10) == second
    async with db.acquire() as conn:
        found = await reading.after(conn, PLATFORM, first - 1, second, 10)
    assert [told.key for told in found] == [first, second]
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.covers("NFR-REL-4")
@pytest.mark.parametrize("seed", range(4))
async def test_many_writers_and_two_readers(db: Database, writing: Writing, seed: int) -> None:
    """Writers that commit and give up in any order; two nodes tell the same, in one order, each thing once, and from
    wherever somebody resumes, on either of them, the rest is what the other told.
    """
    draw = random.Random(seed)

    async def write(count: int) -> list[int]:
        kept = []
        for _ in range(count):
            keys: list[int] = []
            try:
                async with db.transaction() as conn:
                    for _ in range(draw.randint(1, 3)):
                        keys.append(await writing.put(conn))
                        await asyncio.sleep(draw.choice((0, 0, 0.01)))
                    if draw.random() < 0.3:
                        raise RuntimeError("given up")
            except RuntimeError:
                continue
            kept += keys
        return kept

    async with following(db) as one, following(db) as two:
        here, there = await listening(one), await listening(two)
        start = here.position
        written = sorted(key for kept in await asyncio.gather(*(write(12) for _ in range(5))) for key in kept)
        assert await taken(here, len(written)) == written
        assert await taken(there, len(written)) == written
        await one.caught_up()
        await two.caught_up()
        for cut in (start, *written):
            later = two.listen(PLATFORM, cut)
            assert later is not None
            assert [told.key for told in rest(later)] == [key for key in written if key > cut]
            later.close()
            async with db.acquire() as conn:
                replayed = await reading.after(conn, PLATFORM, cut, two.settled, 101)
            assert [told.key for told in replayed] == [key for key in written if key > cut][:101]
        assert rest(here) == rest(there) == []


async def test_who_is_too_slow_is_cut_and_loses_nothing(db: Database, writing: Writing) -> None:
    async with following(db, kept_events=10) as feed:
        slow, quick = await listening(feed), await listening(feed)
        elsewhere = await listening(feed, Wanted(Scope(Level.TENANT, tenant_id=2), frozenset({KIND})))
        heard: list[int] = []
        written: list[int] = []
        for _ in range(6):
            written += await writing.burst(db, 4)
            heard += await taken(quick, 4)
        assert heard == written
        await until(lambda: slow.cut)
        assert slow.woken.is_set()
        position = slow.position
        assert slow.take() is None
        assert slow.position == position, "what was not told is not passed over"
        assert feed.listen(PLATFORM, position) is None, "the rest is in the table"
        async with db.acquire() as conn:
            assert [told.key for told in await reading.after(conn, PLATFORM, position, feed.settled, 101)] == written
        assert not elsewhere.cut, "who has nothing to take is not slow"
        assert elsewhere.take() is None
        assert elsewhere.position == feed.settled


async def test_a_thousand_listeners_hold_what_one_holds(db: Database, writing: Writing) -> None:
    """What is kept has a bound in octets; who takes nothing holds references into it and no more."""
    async with following(db, kept_bytes=100_000) as feed:
        scopes = [Wanted(Scope(Level.TENANT, tenant_id=1 + n % 10), frozenset({KIND})) for n in range(1000)]
        listeners = [await listening(feed, one) for one in scopes[:1]]
        position = await feed.caught_up()
        listeners += [made for one in scopes[1:] if (made := feed.listen(one, position)) is not None]
        assert feed.count == 1000
        for tenant in range(1, 11):
            await writing.burst(db, 30, tenant, size=1000)
        await feed.caught_up()
        held = {id(told): len(told.payload) for listener in listeners for told in listener.pending}
        assert sum(held.values()) <= 100_000
        assert set(held) <= {id(told) for told in feed._kept}
        assert sum(listener.cut for listener in listeners) >= 500
        for listener in listeners:
            listener.close()
            listener.close()
        assert (feed.count, feed._places) == (0, {})


async def test_the_database_is_not_asked_for_each_listener(db: Database, writing: Writing) -> None:
    async with following(db) as feed:
        listeners = [await listening(feed)]
        listeners += [made for _ in range(200) if (made := feed.listen(PLATFORM, feed.settled)) is not None]
        keys = await writing.burst(db, 3)
        asked = 0
        original = reading.following

        async def counted(*given: object) -> list[Told]:
            nonlocal asked
            asked += 1
            return await original(*given)  # type: ignore[arg-type]  # whatever it was given

        reading.following = counted  # type: ignore[assignment]  # for a moment
        try:
            await asyncio.gather(*(taken(listener, 3) for listener in listeners))
        finally:
            reading.following = original
        assert [listener.position for listener in listeners] == [keys[-1]] * 201
        assert asked <= 20


async def test_at_rest_nothing_is_read_and_the_next_begins_anew(
    db: Database, writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.events.feed.LINGER_SECONDS", 0.05)
    async with following(db) as feed:
        listener = await listening(feed)
        await writing.burst(db, 5)
        await taken(listener, 5)
        position = listener.position
        listener.close()
        await until(lambda: not feed._begun)
        assert not feed._kept
        assert feed.listen(PLATFORM, position) is None, "what comes now is not kept"
        keys = await writing.burst(db, 2)
        again = await listening(feed)
        assert rest(again) == []
        async with db.acquire() as conn:
            missed = await reading.after(conn, PLATFORM, position, again.position, 10)
        assert [told.key for told in missed] == keys


async def test_who_gave_up_while_the_database_was_away_is_forgotten(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(db, poll=0.01)

    async def away() -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(feed, "_look", away)
    running = asyncio.create_task(feed.run())
    for _ in range(20):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(feed.caught_up(), 0.03)
    await asyncio.sleep(0.05)
    waiting = len(feed._looked)  # what nobody outside sees
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert waiting <= 2
