"""What is done for messages before their turn: they are read, and recorded as begun. It saves waiting, and changes
nothing about what is sent and what is known of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import StorageError
from postroom.db import Database, DatabaseUnavailable
from postroom.outbound import claiming, dispatch, parcels
from postroom.outbound.beginnings import Beginnings
from postroom.outbound.claiming import SCAN_ROWS, Group, Room
from postroom.outbound.giving_back import GivingBack
from postroom.outbound.lanes import AHEAD_MS, DispatchLimits, Lane
from postroom.outbound.models import RouteKind
from postroom.outbound.outcomes import Outcomes
from postroom.outbound.parcels import ReadAhead
from tests.mailbox.letters import check_mailbox
from tests.outbound.fake_mx import FakeMx
from tests.outbound.mail_room import MailRoom, until

MAX_AHEAD = 4
AHEAD = DispatchLimits(begin_ahead=MAX_AHEAD)
CONNECTIONS = AHEAD.per_destination
BEGUN = "SELECT count(*) FROM deliveries WHERE data_started_at IS NOT NULL"


@pytest.fixture
async def room(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[MailRoom]:
    made = await MailRoom.open(db, clock, ids, tmp_path)
    yield made
    async with db.acquire() as conn:
        await check_mailbox(conn, made.box.ref)
    await made.close()


def stall_after(mx: FakeMx, count: int) -> None:
    """It takes so many messages at once, and from then on none until `hold` is set."""
    mx.hold = asyncio.Event()
    mx.hold.set()

    def one_more() -> None:
        nonlocal count
        count -= 1
        assert mx.hold is not None
        if not count:
            mx.hold.clear()

    mx.on_data = one_more


async def begun(room: MailRoom) -> int:
    async with room.db.acquire() as conn:
        return int(await conn.fetchval(BEGUN))


RECORDED = "SELECT count(*) FROM deliveries WHERE status = 'delivered'"


async def until_begun(room: MailRoom, mx: FakeMx, more_than: int) -> int:
    """How many are begun, once more are than there are connections, and what was taken is recorded as that."""
    for _ in range(1000):
        async with room.db.acquire() as conn:
            recorded = await conn.fetchval(RECORDED) == len(mx.delivered)
        if recorded and (count := await begun(room)) > more_than:
            return count
        await asyncio.sleep(0.01)
    raise AssertionError("nothing is begun ahead")


async def stalled(room: MailRoom, mx: FakeMx, messages: int) -> tuple[Any, asyncio.Task[None]]:
    """A worker that has handed over some, and all of whose connections wait for the answer to another."""
    stall_after(mx, 10)
    for _ in range(messages):
        await room.accept("anna@example.com")
    dispatcher = room.dispatcher(AHEAD)
    working = asyncio.create_task(dispatcher.run())
    await until(lambda: len(mx.messages) - len(mx.delivered) == CONNECTIONS)
    return dispatcher, working


# -- recorded as begun ------------------------------------------------------------------------------------------------


@pytest.mark.covers("mail-server:C3", "edge:G2")
async def test_whoever_is_told_to_stop_takes_back_what_was_begun_and_not_sent(
    room: MailRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "REVOKE_SECONDS", 3600)
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        dispatcher, working = await stalled(room, mx, 60)
        count = await until_begun(room, mx, CONNECTIONS)
        assert count <= CONNECTIONS * (1 + MAX_AHEAD)
        draining = asyncio.create_task(dispatcher.drain(30))
        await asyncio.sleep(0)
        assert mx.hold is not None
        mx.hold.set()
        await asyncio.wait_for(draining, 30)
        await asyncio.wait_for(working, 30)
        async with room.db.acquire() as conn:
            rows = await conn.fetch("SELECT * FROM deliveries WHERE status = 'queued'")
        assert len(rows) == 60 - len(mx.delivered) > 0
        assert all((row["data_started_at"], row["claim_token"], row["attempts"]) == (None, None, 0) for row in rows)
        await room.dispatcher(AHEAD).run_due()
        assert len(mx.delivered) == len(mx.messages) == 60


@pytest.mark.covers("mail-server:C3", "edge:G2", "NFR-REL-1")
async def test_a_killed_worker_leaves_what_it_had_begun_as_uncertain_and_nothing_is_sent_twice(
    room: MailRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "REVOKE_SECONDS", 3600)
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        _, working = await stalled(room, mx, 60)
        await until_begun(room, mx, CONNECTIONS)
        working.cancel()  # as a kill does, it gives nothing back
        await asyncio.gather(working, return_exceptions=True)
        count = await begun(room)
        assert CONNECTIONS < count <= CONNECTIONS * (1 + MAX_AHEAD)
        assert mx.hold is not None
        mx.hold.set()
        room.clock.advance(claiming.LEASE.total_seconds())
        await room.dispatcher(AHEAD).run_due()
        async with room.db.acquire() as conn:
            rows = await conn.fetch("SELECT status, count(*) AS count FROM deliveries GROUP BY status")
    assert {row["status"]: row["count"] for row in rows} == {"uncertain": count, "delivered": 60 - count}
    assert len(Counter(message.data for message in mx.messages)) == len(mx.messages) <= 60


@pytest.mark.covers("mail-server:C3")
async def test_what_is_begun_is_taken_back_where_nothing_moves(room: MailRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "REVOKE_SECONDS", 0.1)
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        dispatcher, working = await stalled(room, mx, 60)
        for _ in range(1000):
            if await begun(room) == CONNECTIONS:
                break
            await asyncio.sleep(0.01)
        assert await begun(room) == CONNECTIONS, "those that the server has been given"
        assert mx.hold is not None
        mx.hold.set()
        await until(lambda: len(mx.delivered) == 60)
        await dispatcher.drain(10)
        await working
    assert len(mx.messages) == 60


@pytest.mark.covers("mail-server:C3")
async def test_messages_to_several_are_begun_when_they_go_out(room: MailRoom) -> None:
    """Some of them may be refused, and were then never sent to."""
    async with FakeMx() as mx:
        stall_after(mx, 3)
        room.net.add("example.com", mx)
        for _ in range(20):
            await room.accept("anna@example.com", "bo@example.com")
        dispatcher = room.dispatcher(AHEAD)
        working = asyncio.create_task(dispatcher.run())
        await until(lambda: len(mx.messages) - len(mx.delivered) == CONNECTIONS)
        assert await begun(room) <= 2 * len(mx.messages)
        assert mx.hold is not None
        mx.hold.set()
        await until(lambda: len(mx.delivered) == 20)
        await dispatcher.drain(10)
        await working


class Recording(Outcomes):
    """Its answers come when the test says so."""

    def __init__(self) -> None:  # no database
        self.asked: list[tuple[str, Group]] = []
        self.answers: list[asyncio.Future[bool]] = []
        self.may = asyncio.Event()

    def begin(self, group: Group) -> asyncio.Future[bool]:
        self.asked.append(("begin", group))
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def revoke(self, group: Group) -> None:
        self.asked.append(("revoke", group))

    async def start(self, group: Group, ids: Sequence[int]) -> bool:
        self.asked.append(("start", group))
        return True

    async def writable(self) -> None:
        await self.may.wait()


async def claimed(room: MailRoom, count: int = 1) -> Sequence[Group]:
    for _ in range(count):
        await room.accept("anna@example.com")
    async with room.db.acquire() as conn:
        return await claiming.claim(conn, now=room.clock.now(), room=Room(100, {}, 100))


@pytest.mark.covers("edge:G2", "decisions:B15")
async def test_what_was_begun_does_not_go_out_while_results_cannot_be_written(room: MailRoom) -> None:
    (group,) = await claimed(room)
    outcomes = Recording()
    beginnings = Beginnings(outcomes)
    beginnings.ahead(group)
    outcomes.answers[0].set_result(True)
    going = asyncio.create_task(beginnings.begin(group, group.ids))
    await asyncio.sleep(0.01)
    assert not going.done()
    outcomes.may.set()
    assert await going
    assert group not in beginnings, "now it may have been sent"
    assert outcomes.asked == [("begin", group)]


async def test_what_is_taken_back_is_begun_anew(room: MailRoom) -> None:
    groups = await claimed(room, 2)
    outcomes = Recording()
    outcomes.may.set()
    beginnings = Beginnings(outcomes)
    for group in groups:
        beginnings.ahead(group)
    outcomes.answers[0].set_result(True)
    beginnings.revoke(groups)
    # Of the second it is not known yet whether there is something to take back.
    assert outcomes.asked[2:] == [("revoke", groups[0])]
    assert [group in beginnings for group in groups] == [False, True]
    assert await beginnings.begin(groups[0], groups[0].ids)
    assert outcomes.asked[3:] == [("start", groups[0])]


async def test_a_beginning_that_failed_is_told_to_who_would_send(room: MailRoom) -> None:
    (group,) = await claimed(room)
    outcomes = Recording()
    outcomes.may.set()
    beginnings = Beginnings(outcomes)
    beginnings.ahead(group)
    outcomes.answers[0].set_exception(DatabaseUnavailable("away"))
    with pytest.raises(DatabaseUnavailable):
        await beginnings.begin(group, group.ids)


@pytest.mark.covers("mail-server:C3")
async def test_beginning_and_taking_back_are_done_in_order(room: MailRoom) -> None:
    (group,) = await claimed(room)
    assert await room.outcomes.begin(group)
    # At once, so that one transaction has both: it goes out after all.
    room.outcomes.revoke(group)
    assert await room.outcomes.start(group, group.ids)
    assert await begun(room) == 1
    room.outcomes.revoke(group)
    await room.outcomes.writable()
    for _ in range(1000):
        if not await begun(room):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it was not taken back")


@pytest.mark.covers("mail-server:C3", "edge:G2")
async def test_a_claim_that_was_lost_takes_nothing_back(room: MailRoom) -> None:
    (lost,) = await claimed(room)
    assert await room.outcomes.begin(lost)
    room.clock.advance(claiming.LEASE.total_seconds())
    async with room.db.acquire() as conn:
        (held,) = await claiming.claim(conn, now=room.clock.now(), room=Room(100, {}))
        await claiming.put_back(conn, [lost], at=room.clock.now(), unsent=[lost.token])
        undo = claiming.Begun(lost.token, lost.letter.ref, tuple(lost.ids), undo=True)
        assert await claiming.start(conn, [undo], now=room.clock.now(), until=room.clock.now()) == [False]
    row = await room.row(held.letter.id)
    assert (row["claim_token"], row["data_started_at"] is not None) == (held.token, True)


def test_how_many_are_begun_follows_from_how_quickly_they_go() -> None:
    lane = Lane("direct:example.com", running=4)
    assert lane.ahead(AHEAD) == 0, "nothing is known of it"
    lane.took(5.0)
    assert lane.ahead(AHEAD) == 0, "it has taken nothing"
    lane.proven = True
    assert lane.ahead(AHEAD) == 4 * MAX_AHEAD
    slow = replace(lane, pace=AHEAD_MS / 2)
    assert slow.ahead(AHEAD) == 4 * 2
    assert replace(lane, pace=AHEAD_MS + 1).ahead(AHEAD) == 0
    assert lane.ahead(DispatchLimits()) == 0, "nobody asked for it"
    for _ in range(20):
        lane.took(10 * AHEAD_MS)
    assert lane.ahead(AHEAD) == 0


# -- read -------------------------------------------------------------------------------------------------------------


class Store:
    """Has what is asked for, but for what is `broken`; after `wait` it answers."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.asked: list[list[str]] = []
        self.wait = asyncio.Event()
        self.wait.set()

    async def get_many(self, keys: Sequence[str]) -> list[bytes | StorageError]:
        self.asked.append(list(keys))
        await self.wait.wait()
        return [StorageError("EIO") if key in self.broken else key.encode() for key in keys]


def sized(group: Group, key: str, size: int) -> Group:
    return replace(group, token=uuid4(), letter=replace(group.letter, wire_key=key, wire_size=size))


async def test_small_messages_are_read_together(room: MailRoom) -> None:
    (group,) = await claimed(room)
    store: Any = Store("bad")
    ahead = ReadAhead(store)
    small, bad = sized(group, "small", 100), sized(group, "bad", 100)
    same = sized(group, "small", 100)
    large = sized(group, "large", parcels.READ_AHEAD_BYTES + 1)
    gone = replace(group, token=uuid4(), letter=replace(group.letter, wire_key=None))
    simulated = replace(sized(group, "none", 1), route=RouteKind.SIMULATOR)
    ahead.expect([small, bad, same, large, gone, simulated])
    found = [await ahead.take(one.token) for one in (small, bad, same, large, gone, simulated)]
    assert found == [b"small", None, b"small", None, None, None]
    assert store.asked == [["small", "bad"]]
    ahead.forget(small.token)
    assert await ahead.take(small.token) is None


async def test_no_more_is_read_ahead_than_there_is_room_for(room: MailRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcels, "AHEAD_BYTES", 250)
    (group,) = await claimed(room)
    store: Any = Store()
    ahead = ReadAhead(store)
    one, two, three = (sized(group, key, 100) for key in "abc")
    ahead.expect([one, two, three])
    assert [await ahead.take(each.token) for each in (one, two, three)] == [b"a", b"b", None]
    ahead.forget(three.token)
    four = sized(group, "d", 100)
    ahead.expect([four])
    assert await ahead.take(four.token) is None
    ahead.forget(one.token)
    ahead.expect([four])
    assert await ahead.take(four.token) == b"d"


async def test_nobody_waits_for_long_for_what_is_read_beside_it(
    room: MailRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parcels, "AHEAD_SECONDS", 0.01)
    (group,) = await claimed(room)
    store: Any = Store()
    store.wait.clear()
    ahead = ReadAhead(store)
    ahead.expect([group])
    assert await ahead.take(group.token) is None
    ahead.forget(group.token)
    store.wait.set()
    await asyncio.sleep(0.02)
    assert await ahead.take(group.token) is None, "what comes too late is not kept"


# -- looked for -------------------------------------------------------------------------------------------------------


@pytest.mark.covers("mail-server:C3")
async def test_what_waits_behind_a_long_queue_is_looked_for_now_and_then(
    room: MailRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = SCAN_ROWS + 100
    claims: list[tuple[Room, int]] = []
    claim = claiming.claim

    async def counting(conn: Any, *, now: Any, room: Room) -> claiming.Claims:
        taken = await claim(conn, now=now, room=room)
        claims.append((room, len(taken)))
        return taken

    monkeypatch.setattr(claiming, "claim", counting)
    async with FakeMx() as mx, FakeMx() as other:
        room.net.add("example.com", mx)
        room.net.add("example.org", other)
        await room.accept(*(f"anna{n}@example.com" for n in range(3)))
        for _ in range(count):
            await room.accept("anna@example.com")
        dispatcher = room.dispatcher(DispatchLimits(poll=60, begin_ahead=MAX_AHEAD))
        working = asyncio.create_task(dispatcher.run())
        await until(lambda: len(mx.delivered) > 30)
        await room.accept("bo@example.org")
        dispatcher.wake()
        await until(lambda: bool(other.delivered))
        assert len(mx.delivered) < count, "it did not wait for all of the others"
        await until(lambda: len(mx.delivered) == count + 1, 60)
        await dispatcher.drain(10)
        await working
    # Half of what a destination may have is taken at a time, and hardly a claim comes back with nothing.
    assert sum(1 for _, taken in claims if not taken) <= 6
    assert len(claims) <= 6 + 2 * count // 32


# -- given back -------------------------------------------------------------------------------------------------------


@pytest.mark.covers("mail-server:C3", "edge:G2")
async def test_what_the_database_would_not_take_back_is_tried_again(
    room: MailRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginnings = Beginnings(room.outcomes)
    giving = GivingBack(room.db, beginnings, room.clock)
    begun_ahead, revoked, untouched, going = await claimed(room, 4)
    for group in (begun_ahead, revoked):
        beginnings.ahead(group)
    await room.outcomes.begin(going)
    async with asyncio.timeout(10):
        while await begun(room) < 3:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    put_back = claiming.put_back

    async def away(*arguments: Any, **more: Any) -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(claiming, "put_back", away)
    beginnings.revoke([revoked])
    everything = (begun_ahead, revoked, untouched, going)
    await giving.give(everything, room.clock.now())
    assert all(beginnings.is_unsent(one) for one in (begun_ahead, revoked))
    await giving.again()
    monkeypatch.setattr(claiming, "put_back", put_back)
    await giving.again()
    rows = {group.letter.id: await room.row(group.letter.id) for group in everything}
    assert [rows[one.letter.id]["claim_token"] for one in everything] == [None, None, None, going.token]
    assert [rows[one.letter.id]["data_started_at"] is None for one in everything] == [True, True, True, False]
    assert not any(beginnings.is_unsent(one) for one in everything)


async def test_what_has_lapsed_is_owed_to_nobody(room: MailRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    beginnings = Beginnings(room.outcomes)
    giving = GivingBack(room.db, beginnings, room.clock)
    (group,) = await claimed(room)
    asked: list[int] = []

    async def away(*arguments: Any, **more: Any) -> None:
        asked.append(1)
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(claiming, "put_back", away)
    await giving.give([group], room.clock.now())
    room.clock.advance(claiming.LEASE.total_seconds())
    await giving.again()
    await giving.again()
    assert len(asked) == 1
