"""One send into a thread at a time (C4)."""

from __future__ import annotations

import asyncio

import pytest

from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.outbound import thread_lock
from postroom.outbound.thread_lock import ThreadLocks
from tests.mailbox.letters import Box, Pen, make_boxes, raw_mail


@pytest.fixture
async def box(db: Database, ids: IdGenerator, clock: ManualClock) -> Box:
    return (await make_boxes(db, ids, clock))[0]


async def _thread(db: Database, ids: IdGenerator, clock: ManualClock, box: Box) -> str:
    pen = Pen(ids, clock)
    async with db.acquire() as conn:
        (outcome,) = await pen.store(conn, [pen.copy(box, raw_mail())])
    assert isinstance(outcome, tuple)
    return outcome[0].thread_id


async def _busy(locks: ThreadLocks, box: Box, thread: str, owner: str) -> PostroomError:
    with pytest.raises(PostroomError) as caught:
        await locks.acquire(box.ref, thread, owner)
    assert caught.value.code == "thread_busy"
    return caught.value


@pytest.mark.covers("edge:C4", "FR-OUT-9")
async def test_free_held_ours_lapsed(db: Database, ids: IdGenerator, clock: ManualClock, box: Box) -> None:
    thread, mine, other = await _thread(db, ids, clock, box), ids.new("msg"), ids.new("msg")
    locks = ThreadLocks(db, clock, wait=0.02, poll=0.01)
    await locks.acquire(box.ref, thread, mine)
    await locks.acquire(box.ref, thread, mine)
    clock.advance(30)
    error = await _busy(locks, box, thread, other)
    assert error.details == {"retry_after": 60}
    assert error.retry_after == 60
    clock.advance(80.5)
    assert (await _busy(locks, box, thread, other)).details == {"retry_after": 10}
    clock.advance(9.5)
    await locks.acquire(box.ref, thread, other)
    await _busy(locks, box, thread, mine)


@pytest.mark.covers("edge:C4")
async def test_the_second_waits(db: Database, ids: IdGenerator, clock: ManualClock, box: Box) -> None:
    thread, first, second = await _thread(db, ids, clock, box), ids.new("msg"), ids.new("msg")
    locks = ThreadLocks(db, clock, poll=0.01)
    await locks.acquire(box.ref, thread, first)
    waiting = asyncio.create_task(locks.acquire(box.ref, thread, second))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    async with db.acquire() as conn:
        await thread_lock.release(conn, box.ref, thread, first)
    await asyncio.wait_for(waiting, 5)


@pytest.mark.covers("edge:C4")
async def test_one_of_many(db: Database, ids: IdGenerator, clock: ManualClock, box: Box) -> None:
    thread = await _thread(db, ids, clock, box)
    locks = ThreadLocks(db, clock, wait=0.02, poll=0.01)
    found = await asyncio.gather(
        *(locks.acquire(box.ref, thread, ids.new("msg")) for _ in range(8)), return_exceptions=True
    )
    assert found.count(None) == 1


@pytest.mark.covers("edge:C4")
async def test_who_may_release(db: Database, ids: IdGenerator, clock: ManualClock, box: Box) -> None:
    thread, owner = await _thread(db, ids, clock, box), ids.new("msg")
    locks = ThreadLocks(db, clock, wait=0.02, poll=0.01)
    await locks.acquire(box.ref, thread, owner)
    async with db.acquire() as conn:
        await thread_lock.release(conn, box.ref, thread, ids.new("msg"))
    await _busy(locks, box, thread, ids.new("msg"))
    # A message that was stored keeps the lock until it leaves, whatever its request thinks.
    pen = Pen(ids, clock)
    stored = pen.copy(box, raw_mail(subject="Another"))
    async with db.acquire() as conn:
        await pen.store(conn, [stored])
        await conn.execute("UPDATE threads SET lock_owner = $1 WHERE public_id = $2", stored.id, thread)
        await thread_lock.release(conn, box.ref, thread, stored.id)
    await _busy(locks, box, thread, ids.new("msg"))
    async with db.acquire() as conn:
        await thread_lock.release(conn, box.ref, thread, stored.id, accepted=True)
    await locks.acquire(box.ref, thread, ids.new("msg"))


async def test_no_such_thread(db: Database, ids: IdGenerator, clock: ManualClock, box: Box) -> None:
    with pytest.raises(PostroomError) as caught:
        await ThreadLocks(db, clock).acquire(box.ref, ids.new("thr"), ids.new("msg"))
    assert caught.value.code == "thread_not_found"
