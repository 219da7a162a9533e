"""Many destinations, several workers, and workers that end in the middle: nothing is sent twice, nothing waits for the
dead."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.db.pool import Connection
from postroom.mailbox.models import MailboxRef
from postroom.outbound import claiming
from postroom.outbound.claiming import Group, Room
from postroom.outbound.dispatch import Dispatcher
from postroom.outbound.lanes import DispatchLimits
from postroom.outbound.models import RouteKind, Status
from postroom.outbound.outcomes import PARALLEL, Outcomes, Report, Result
from postroom.outbound.rules import Decided
from postroom.outbound.transports.base import local_trouble
from postroom.smtp.outcome import DeliveryStatus, Outcome, Verdict
from tests.mailbox.letters import Box, check_mailbox, make_boxes
from tests.outbound.fake_mx import SILENCE, FakeMx, servers
from tests.outbound.mail_room import MailRoom, until


@pytest.fixture
async def room(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[MailRoom]:
    made = await MailRoom.open(db, clock, ids, tmp_path)
    yield made
    async with db.acquire() as conn:
        await check_mailbox(conn, made.box.ref)
    await made.close()


@contextlib.asynccontextmanager
async def running(dispatcher: Dispatcher) -> AsyncIterator[None]:
    task = asyncio.create_task(dispatcher.run())
    try:
        yield
    finally:
        await dispatcher.drain(10)
        await asyncio.wait_for(task, 10)


async def all_done(room: MailRoom, message: str, waiting: int) -> None:
    """Until no more than so many recipients wait."""
    for _ in range(3000):
        statuses = Counter((await room.deliveries(message)).values())
        if statuses["queued"] <= waiting:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(statuses)


@pytest.mark.covers("mail-server:C5", "mail-server:C2")
async def test_a_thousand_recipients_in_fifty_domains_of_which_five_are_dead(room: MailRoom) -> None:
    async with servers(3) as some:
        for n in range(50):
            if n < 5:
                # First in the queue, and whoever connects waits for ever.
                room.net.silent.add(room.net.add(f"d{n}.example", None))
            else:
                room.net.add(f"d{n}.example", some[n % 3])
        message = await room.accept(*(f"r{n}@d{n % 50}.example" for n in range(1000)))
        dispatcher = room.dispatcher()
        async with running(dispatcher):
            await all_done(room, message, 100)
            statuses = Counter((await room.deliveries(message)).values())
            assert statuses == {"delivered": 900, "queued": 100}
            assert dispatcher.held == 5
        received = [one for mx in some for message_ in mx.delivered for one in message_.recipients]
        assert sorted(received) == sorted(f"r{n}@d{n % 50}.example" for n in range(1000) if n % 50 >= 5)
    assert (await room.row(message, "r0@d0.example"))["claim_token"] is None, "given back"


async def test_a_flood_for_a_dead_destination_delays_nobody(room: MailRoom) -> None:
    async with FakeMx() as mx:
        room.net.silent.add(room.net.add("dead.example", None))
        room.net.add("alive.example", mx)
        for _ in range(60):
            await room.accept("a@dead.example")
        message = await room.accept("a@alive.example")
        # The dead one has its place; however many wait for it, what is behind them is reached.
        async with running(room.dispatcher(DispatchLimits(groups=4))):
            await all_done(room, message, 0)
        assert room.net.dialled["8.0.0.0"] == 1
    async with room.db.acquire() as conn:
        assert await conn.fetchval("SELECT max(attempts) FROM deliveries WHERE domain = 'dead.example'") <= 1


@pytest.mark.covers("mail-server:C4")
async def test_what_finds_its_destination_unreachable_is_answered_from_memory(room: MailRoom) -> None:
    room.net.add("down.example", None)
    messages = [await room.accept("a@down.example") for _ in range(30)]
    dispatcher = room.dispatcher()
    assert await dispatcher.run_due() == 30
    assert room.net.dialled["8.0.0.0"] == 1
    rows = [await room.row(one) for one in messages]
    assert {(row["status"], row["tries"], row["enhanced_code"]) for row in rows} == {("deferred", 1, "4.4.1")}
    async with FakeMx() as mx:
        room.net.ports["8.0.0.0"] = mx.port
        room.clock.advance(70)
        assert await dispatcher.run_due() == 30
        assert len(mx.delivered) == 30
        assert mx.most_open <= 4


@pytest.mark.covers("mail-server:C3")
async def test_two_workers_on_one_database(room: MailRoom) -> None:
    async with servers(2) as some:
        for n in range(10):
            room.net.add(f"d{n}.example", some[n % 2])
        messages = [await room.accept(*(f"r{k}@d{(n + k) % 10}.example" for k in range(6))) for n in range(20)]
        counts = await asyncio.gather(*(room.dispatcher().run_due() for _ in range(3)))
        assert sum(counts) == 120
        while "queued" in {await room.status(one) for one in messages}:
            # Together they had no room for more connections to a host.
            room.clock.advance(1)
            await asyncio.gather(*(room.dispatcher().run_due() for _ in range(3)))
        received = Counter((message.data, one) for mx in some for message in mx.delivered for one in message.recipients)
    assert len(received) == 120
    assert set(received.values()) == {1}
    for message in messages:
        assert await room.status(message) == "delivered"
        kinds = Counter(kind for kind, _ in await room.events(message))
        assert kinds == {"message.sent": 1, "message.delivered": 6}


# -- workers that end -------------------------------------------------------------------------------------------------

Step = Callable[[MailRoom, FakeMx, asyncio.Event], None]


def at_connect(room: MailRoom, mx: FakeMx, reached: asyncio.Event) -> None:
    connect = room.net.connect

    async def hanging(*arguments: Any) -> Any:
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return await connect(*arguments)

    room.transports[RouteKind.DIRECT]._connect = hanging  # type: ignore[attr-defined] # the test's way in


def at_reply(name: str) -> Step:
    """The server falls silent at a command."""

    def step(room: MailRoom, mx: FakeMx, reached: asyncio.Event) -> None:
        answer = mx._answer

        def silent(asked: str, default: str) -> str | None:
            if asked == name and not reached.is_set():
                reached.set()
                return SILENCE
            return answer(asked, default)

        mx._answer = silent  # type: ignore[method-assign,assignment] # the test's way in

    return step


def at_start(room: MailRoom, mx: FakeMx, reached: asyncio.Event) -> None:
    """Recorded that the message goes out, and not a byte of it sent."""
    start = room.outcomes.start

    async def hanging(group: Group, ids: Sequence[int]) -> bool:
        answer = await start(group, ids)
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return answer

    room.outcomes.start = hanging  # type: ignore[method-assign] # the test's way in


def at_final(room: MailRoom, mx: FakeMx, reached: asyncio.Event) -> None:
    class Hold(asyncio.Event):
        async def wait(self) -> bool:  # type: ignore[override] # it says that it was reached
            if not reached.is_set():
                reached.set()
                await asyncio.Event().wait()
            return True

    mx.hold = Hold()


def at_record(room: MailRoom, mx: FakeMx, reached: asyncio.Event) -> None:
    offer = room.outcomes.offer

    def hanging(result: Result) -> asyncio.Future[bool]:
        if not reached.is_set():
            reached.set()
            return asyncio.get_running_loop().create_future()
        return offer(result)

    room.outcomes.offer = hanging  # type: ignore[method-assign] # the test's way in


@pytest.mark.covers("mail-server:C3", "edge:G2", "NFR-REL-1")
@pytest.mark.parametrize(
    ("step", "after"),
    [
        (at_connect, "delivered"),
        (at_reply("greeting"), "delivered"),
        (at_reply("MAIL"), "delivered"),
        (at_reply("DATA"), "delivered"),
        (at_start, "uncertain"),
        (at_final, "uncertain"),
        (at_record, "uncertain"),
    ],
)
async def test_a_worker_that_is_killed(room: MailRoom, step: Step, after: str) -> None:
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        reached = asyncio.Event()
        step(room, mx, reached)
        worker = asyncio.create_task(room.dispatcher().run())
        await asyncio.wait_for(reached.wait(), 30)
        worker.cancel()  # as a kill does, it gives nothing back
        await asyncio.gather(worker, return_exceptions=True)
        assert await room.dispatcher().run_due() == 0, "its claim still holds"
        room.clock.advance(claiming.LEASE.total_seconds())
        await room.dispatcher().run_due()
        room.clock.advance(86400)
        await room.dispatcher().run_due()
        assert await room.status(message) == after
        assert len(mx.messages) <= 1
        assert (len(mx.delivered) == 1) or after == "uncertain"
    assert (await room.row(message))["tries"] == 1, "what was lost is not counted"


@pytest.mark.covers("mail-server:C3")
async def test_a_worker_that_is_told_to_stop_gives_back_what_it_has_not_begun(room: MailRoom) -> None:
    async with FakeMx(hold=asyncio.Event()) as mx:
        room.net.add("example.com", mx)
        for _ in range(10):
            await room.accept("anna@example.com")
        dispatcher = room.dispatcher()
        worker = asyncio.create_task(dispatcher.run())
        await until(lambda: len(mx.messages) == 1)
        draining = asyncio.create_task(dispatcher.drain(30))
        await asyncio.sleep(0)
        assert mx.hold is not None
        mx.hold.set()
        await asyncio.wait_for(draining, 30)
        await asyncio.wait_for(worker, 30)
        done = len(mx.delivered)
        assert done >= 1
        async with room.db.acquire() as conn:
            rows = await conn.fetch("SELECT status, attempts, lease_until FROM deliveries")
        assert Counter(row["status"] for row in rows) == Counter({"delivered": done, "queued": 10 - done})
        assert all(row["lease_until"] is None and row["attempts"] == 0 for row in rows)
        fresh = await MailRoom.dispatcher(room).run_due()
        assert fresh == 10 - done
        assert len(mx.delivered) == 10


async def end_sessions(room: MailRoom) -> None:
    """As when the database server restarts."""
    connection = await room.db.connect()
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    finally:
        await connection.close()


@pytest.mark.covers("decisions:B15")
@pytest.mark.parametrize("moment", ["connect", "final"])
async def test_connections_to_the_database_that_end_in_the_middle(room: MailRoom, moment: str) -> None:
    go_on, connect = asyncio.Event(), room.net.connect

    async def waiting(*arguments: Any) -> Any:
        if moment == "connect":
            await go_on.wait()
        return await connect(*arguments)

    room.transports[RouteKind.DIRECT]._connect = waiting  # type: ignore[attr-defined] # the test's way in
    async with FakeMx(hold=go_on) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        dispatcher = room.dispatcher()
        working = asyncio.create_task(dispatcher.run_due())
        await until(lambda: bool(mx.messages) if moment == "final" else dispatcher.held == 1)
        await end_sessions(room)
        go_on.set()
        with contextlib.suppress(Exception):  # whatever the claim's own next look meets
            await working
        for _ in range(100):
            if await room.status(message) == "delivered":
                break
            await asyncio.sleep(0.05)
        assert (await room.status(message), len(mx.messages)) == ("delivered", 1)


class Torn:
    """A database whose commits succeed, and are not heard of, so many times."""

    def __init__(self, database: Database, times: int) -> None:
        self._database, self.left = database, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self._database.transaction() as conn:
            yield conn
        if self.left:
            self.left -= 1
            raise ConnectionResetError


@pytest.mark.covers("decisions:B15")
@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Verdict.DELIVERED, DeliveryStatus.DELIVERED, "2.0.0", 250, "Ok"),
        Decided(Status.BOUNCED, code=550, enhanced="5.1.1", text="No", bounce="hard"),
        Decided(Status.UNCERTAIN, reason="transport_timeout"),
    ],
)
async def test_a_commit_whose_answer_is_lost_is_not_done_twice(room: MailRoom, outcome: Outcome | Decided) -> None:
    message = await room.accept("anna@example.com")
    async with room.db.acquire() as conn:
        (group,) = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}))
    torn: Any = Torn(room.db, 1)
    outcomes = Outcomes(
        torn, room.blobs, room.clock, room.ids, random=lambda: 0.5, changed=lambda *_: None, noticed=lambda: None
    )
    await outcomes.record(Result(group, (Report(group.ids[0], outcome, "mx.example"),), "direct", "direct:1"))
    assert torn.left == 0
    async with room.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM delivery_attempts") == 1
        assert await conn.fetchval("SELECT count(*) FROM changes WHERE kind = 'delivery'") == 1
        assert await conn.fetchval("SELECT count(*) FROM bounce_tasks") == (
            isinstance(outcome, Decided) and bool(outcome.bounce)
        )
    kinds = Counter(kind for kind, _ in await room.events(message))
    assert set(kinds.values()) == {1}


@pytest.mark.covers("decisions:D24", "decisions:B10")
async def test_results_of_one_mailbox_are_written_together(room: MailRoom) -> None:
    messages = [await room.accept("a@d.example") for _ in range(40)]
    async with room.db.acquire() as conn:
        groups = await claiming.claim(conn, now=room.clock.now(), room=Room(100, {}, 100))
    assert len(groups) == 40
    before = len(room.changed)
    taken = Outcome(Verdict.DELIVERED, DeliveryStatus.DELIVERED, "2.0.0", 250, "Ok")
    results = [
        Result(group, (Report(group.ids[0], taken, "mx.example"),), "direct", f"direct:{n}")
        for n, group in enumerate(groups)
    ]
    await asyncio.gather(*(room.outcomes.record(result) for result in results))
    assert len(room.changed) - before <= 3
    assert {await room.status(message) for message in messages} == {"delivered"}
    async with room.db.acquire() as conn:
        ids = await conn.fetch("SELECT provider_message_id FROM outbound_messages")
    assert len({row[0] for row in ids}) == 40


async def test_a_result_that_cannot_be_stored_does_not_keep_the_others(room: MailRoom) -> None:
    for _ in range(3):
        await room.accept("a@d.example")
    async with room.db.acquire() as conn:
        groups = await claiming.claim(conn, now=room.clock.now(), room=Room(100, {}, 100))
    good = Decided(Status.DELIVERED, code=250, text="Ok")
    bad = Decided(Status.DELIVERED, code=250, text="\x00")  # nothing else lets this through
    work: list[Awaitable[None]] = [
        room.outcomes.record(Result(group, (Report(group.ids[0], bad if n == 1 else good),)))
        for n, group in enumerate(groups)
    ]
    answers = await asyncio.gather(*work, return_exceptions=True)
    assert [answer is None for answer in answers] == [True, False, True]
    async with room.db.acquire() as conn:
        found = await conn.fetch("SELECT status FROM deliveries ORDER BY id")
    assert [row["status"] for row in found] == ["delivered", "queued", "delivered"]


async def boxes_with_mail(room: MailRoom, each: int) -> tuple[list[Box], list[str], list[Result]]:
    """Mailboxes of two tenants, messages of each, and their results, which are good."""
    boxes = [room.box, *await make_boxes(room.db, room.ids, room.clock, 2)]
    messages = [
        await room.accept(f"a{n}@d.example", mailbox=box.ref, tenant_id=box.tenant_id, identity_id=box.identity_id)
        for n in range(each)
        for box in boxes
    ]
    async with room.db.acquire() as conn:
        groups = await claiming.claim(conn, now=room.clock.now(), room=Room(100, {}, 100))
    taken = Outcome(Verdict.DELIVERED, DeliveryStatus.DELIVERED, "2.0.0", 250, "Ok")
    results = [
        Result(group, (Report(group.ids[0], taken, "mx.example"),), "direct", f"direct:{group.letter.id}")
        for group in groups
    ]
    assert len(results) == len(messages)
    return boxes, messages, results


@pytest.mark.covers("decisions:D24", "decisions:B10", "decisions:B12")
async def test_results_of_several_tenants_are_written_together_and_do_not_mix(room: MailRoom) -> None:
    boxes, messages, results = await boxes_with_mail(room, 5)
    room.changed.clear()
    async with room.db.acquire() as conn:
        await conn.execute("CREATE TABLE before AS SELECT id, change_seq, event_seq, modseq FROM mailboxes")
    await asyncio.gather(*(room.outcomes.record(result) for result in results))
    assert {await room.status(message) for message in messages} == {"delivered"}
    # The first is written at once, all others by the next transaction.
    assert len(room.changed) <= 1 + len(boxes)
    async with room.db.acquire() as conn:
        for box in boxes:
            await check_mailbox(conn, box.ref)
            key = box.ref.mailbox_id
            owned = "FROM changes WHERE mailbox_id = $1 AND kind = 'delivery'"
            assert await conn.fetchval(f"SELECT count(DISTINCT message) {owned}", key) == 5
            told = await conn.fetch(
                "SELECT e.tenant_id, e.identity_id, m.mailbox_id, e.payload FROM events e "
                "JOIN messages m ON m.id = e.message_id WHERE e.owner_id = $1 AND e.type = 'message.delivered'",
                box.identity_id,
            )
            assert [(row["tenant_id"], row["identity_id"], row["mailbox_id"]) for row in told] == [
                (box.ref.tenant_id, key, key)
            ] * 5
            assert all(box.identity_id.encode() in row["payload"] for row in told)
            grown = "SELECT m.change_seq - b.change_seq FROM mailboxes m JOIN before b ON b.id = m.id WHERE m.id = $1"
            assert await conn.fetchval(grown, key) == 5
        named = await conn.fetch(
            "SELECT m.public_id, o.* FROM outbound_messages o JOIN messages m ON m.id = message_id"
        )
    assert all(row["provider_message_id"] == f"direct:{row['public_id']}" for row in named)


@contextlib.asynccontextmanager
async def locked(room: MailRoom, ref: MailboxRef) -> AsyncIterator[None]:
    """Another task, and another connection, that holds the mailbox."""
    begun, done = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with room.db.transaction() as conn:
            await conn.execute("SELECT FROM mailboxes WHERE id = $1 FOR UPDATE", ref.mailbox_id)
            begun.set()
            await done.wait()

    task = asyncio.create_task(hold())
    await begun.wait()
    yield
    done.set()
    await task


@pytest.mark.covers("decisions:D24")
async def test_a_mailbox_that_somebody_holds_delays_its_own_results_only(room: MailRoom) -> None:
    boxes, messages, results = await boxes_with_mail(room, 2)
    held = boxes[1].ref
    work: dict[MailboxRef, list[asyncio.Task[None]]] = {result.group.letter.ref: [] for result in results}
    async with locked(room, held):
        for result in results:
            work[result.group.letter.ref].append(asyncio.create_task(room.outcomes.record(result)))
        free = [task for ref, tasks in work.items() if ref != held for task in tasks]
        await asyncio.wait_for(asyncio.gather(*free), 4)
        assert Counter([await room.status(message) for message in messages]) == {"delivered": 4, "queued": 2}
        assert not any(task.done() for task in work[held])
    await asyncio.wait_for(asyncio.gather(*work[held]), 10)
    assert {await room.status(message) for message in messages} == {"delivered"}
    async with room.db.acquire() as conn:
        for box in boxes:
            await check_mailbox(conn, box.ref)


@pytest.mark.covers("mail-server:C3")
async def test_results_of_a_mailbox_that_is_gone_do_not_keep_the_others(room: MailRoom) -> None:
    boxes, messages, results = await boxes_with_mail(room, 2)
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET erased = true WHERE id = $1", boxes[1].ref.mailbox_id)
    await asyncio.wait_for(asyncio.gather(*(room.outcomes.record(result) for result in results)), 10)
    assert Counter([await room.status(message) for message in messages]) == {"delivered": 4, "queued": 2}


@pytest.mark.covers("mail-server:C3")
@pytest.mark.parametrize("is_late_last", [True, False])
async def test_two_results_of_one_delivery_at_once(room: MailRoom, is_late_last: bool) -> None:
    message = await room.accept("anna@example.com")
    await room.accept("bert@example.com")
    async with room.db.acquire() as conn:
        lost, other = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}, 10))
        await claiming.extend(conn, [other], until=room.clock.now() + 10 * claiming.LEASE)
        room.clock.advance(90)
        (held,) = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}, 10))
    assert lost.ids == held.ids
    taken = Outcome(Verdict.DELIVERED, DeliveryStatus.DELIVERED, "2.0.0", 250, "Ok")
    late = Result(lost, (Report(lost.ids[0], local_trouble(), "mx.example"),), "direct")
    ours = Result(held, (Report(held.ids[0], taken, "mx.example"),), "direct", "direct:1")
    # The first goes alone, the others together.
    first = Result(other, (Report(other.ids[0], taken, "mx.example"),), "direct", "direct:2")
    results = [first, ours, late] if is_late_last else [first, late, ours]
    await asyncio.gather(*(room.outcomes.record(result) for result in results))
    assert await room.status(message) == "delivered"


async def test_a_delivery_that_somebody_holds_delays_its_own_mailbox_only(room: MailRoom) -> None:
    _, messages, results = await boxes_with_mail(room, 1)
    begun, done = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with room.db.transaction() as conn:
            await conn.execute("SELECT FROM deliveries WHERE id = $1 FOR UPDATE", results[0].group.ids[0])
            begun.set()
            await done.wait()

    holding = asyncio.create_task(hold())
    await begun.wait()
    work = [asyncio.create_task(room.outcomes.record(result)) for result in results]
    await asyncio.wait_for(asyncio.gather(*work[1:]), 10)
    assert not work[0].done()
    done.set()
    await asyncio.gather(holding, work[0])
    assert {await room.status(message) for message in messages} == {"delivered"}


@pytest.mark.covers("mail-server:C3")
async def test_what_is_known_when_the_time_is_up_is_written(room: MailRoom) -> None:
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        dispatcher = room.dispatcher()
        known, offer = asyncio.Event(), room.outcomes.offer

        def noting(result: Result) -> asyncio.Future[bool]:
            known.set()
            return offer(result)

        room.outcomes.offer = noting  # type: ignore[method-assign] # the test's way in
        async with locked(room, room.box.ref):
            worker = asyncio.create_task(dispatcher.run())
            await asyncio.wait_for(known.wait(), 30)
            draining = asyncio.create_task(dispatcher.drain(0))
            await asyncio.sleep(0.3)
            assert not draining.done()
        await asyncio.wait_for(draining, 10)
        await asyncio.wait_for(worker, 10)
    assert await room.status(message) == "delivered"


@pytest.mark.covers("decisions:D24")
async def test_mailboxes_that_are_held_for_long_leave_their_places(room: MailRoom) -> None:
    boxes = [room.box, *await make_boxes(room.db, room.ids, room.clock, PARALLEL)]
    for box in boxes:
        await room.accept("a@d.example", mailbox=box.ref, tenant_id=box.tenant_id, identity_id=box.identity_id)
    async with room.db.acquire() as conn:
        groups = await claiming.claim(conn, now=room.clock.now(), room=Room(100, {}, 100))
    taken = Outcome(Verdict.DELIVERED, DeliveryStatus.DELIVERED, "2.0.0", 250, "Ok")
    results = {group.letter.ref: Result(group, (Report(group.ids[0], taken, "mx.example"),)) for group in groups}
    async with contextlib.AsyncExitStack() as held:
        for box in boxes[:-1]:
            await held.enter_async_context(locked(room, box.ref))
        async with locked(room, boxes[-1].ref):
            work = [asyncio.create_task(room.outcomes.record(results[box.ref])) for box in boxes]
            await asyncio.sleep(0.3)
        await asyncio.wait_for(work[-1], 15)
        assert not any(task.done() for task in work[:-1])
    await asyncio.wait_for(asyncio.gather(*work), 15)
