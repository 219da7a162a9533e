"""Whoever is killed leaves no message as uncertain that had not begun to leave."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.models import MailboxRef
from postroom.outbound import claiming, dispatch, unsent
from postroom.outbound.claiming import Claimed, Group, Letter, Mark, Room
from postroom.outbound.lanes import DispatchLimits
from postroom.outbound.models import Operation, RouteKind, SendKind, Status
from postroom.outbound.unsent import SLOTS, Unsent
from tests.mailbox.letters import check_mailbox
from tests.outbound.fake_mx import FakeMx
from tests.outbound.mail_room import MailRoom, until
from tests.outbound.test_ahead import AHEAD, CONNECTIONS, begun, claimed, stall_after, stalled, until_begun

BOOT = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
ANOTHER = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


@pytest.fixture
async def room(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[MailRoom]:
    made = await MailRoom.open(db, clock, ids, tmp_path)
    yield made
    async with db.acquire() as conn:
        await check_mailbox(conn, made.box.ref)
    await made.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "unsent"


GROUP = Group(
    token=uuid4(),
    route=RouteKind.DIRECT,
    domain="example.com",
    letter=Letter(
        ref=MailboxRef(3, 5),
        key=7,
        id="msg_01",
        tenant_id="ten_01",
        identity_id="idn_01",
        operation=Operation.SEND,
        kind=SendKind.TRANSACTIONAL,
        envelope_from="box@agents.example",
        from_address="box@agents.example",
        rfc_message_id="<1@agents.example>",
        wire_key="wire",
        wire_size=100,
        eight_bit=False,
        smtputf8=False,
        dsn_ret=None,
        dsn_envid=None,
        accepted_at=datetime(2030, 1, 1, tzinfo=UTC),
        was_sent=False,
        is_test=False,
        is_stopped=False,
        is_system=False,
        domain=None,
    ),
    recipients=(Claimed(11, "anna@example.com", Status.QUEUED, 0, None, None, None),),
)


def another() -> Group:
    return replace(GROUP, token=uuid4())


def of(group: Group) -> Mark:
    return Mark(group.token, group.letter.ref.tenant_id, group.recipients[0].id)


def found(directory: Path, boot: str = BOOT) -> set[Mark]:
    """What the next worker finds, and gives back."""
    mine = Unsent.open(directory, "next", boot)
    with mine.left_behind() as marks:
        found = set(marks)
    mine.close()
    return found


def killed_after(directory: Path, steps: list[tuple[str, int]]) -> dict[int, Group]:
    """A process does that, and is killed. Those it had marks of by then."""
    groups = {number: another() for _, number in steps}
    child = os.fork()
    if not child:
        worker = Unsent.open(directory, f"killed-{os.getpid()}", BOOT)
        for step, number in steps:
            worker.mark(groups[number]) if step == "mark" else worker.clear(groups[number].token)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    standing: dict[int, Group] = {}
    for step, number in steps:
        if step == "mark":
            standing[number] = groups[number]
        else:
            standing.pop(number, None)
    return standing


@pytest.mark.covers("mail-server:C3", "edge:G2")
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(["mark", "mark", "clear"]), st.integers(0, 9)), max_size=30))
def test_the_marks_of_a_killed_process_are_those_it_had(directory: Path, steps: list[tuple[str, int]]) -> None:
    left = killed_after(directory, steps)
    assert found(directory) == {of(one) for one in left.values()}
    assert list(directory.iterdir()) == []


def test_marks_count_while_the_machine_runs(directory: Path) -> None:
    """What is mapped into memory outlives a process, and no machine."""
    killed_after(directory, [("mark", 0)])
    assert found(directory, ANOTHER) == set()
    assert found(directory) == set(), "and not again when something is of that name"


def test_the_marks_of_who_is_alive_are_its_own(directory: Path) -> None:
    alive = Unsent.open(directory, "alive", BOOT)
    alive.mark(GROUP)
    assert found(directory) == set()
    with alive.left_behind() as marks:
        assert marks == ()
    alive.leave(GROUP.token)
    alive.close()
    assert found(directory) == {of(GROUP)}, "it could not give back, and is gone"


def test_who_ends_in_order_leaves_nothing(directory: Path) -> None:
    worker = Unsent.open(directory, "one", BOOT)
    worker.mark(GROUP)
    worker.clear(GROUP.token)
    worker.clear(GROUP.token)
    worker.leave(GROUP.token)
    worker.close()
    assert list(directory.iterdir()) == []


def test_what_could_not_be_given_back_is_found_again(directory: Path) -> None:
    left = killed_after(directory, [("mark", 0)])
    mine = Unsent.open(directory, "next", BOOT)
    with pytest.raises(ConnectionError), mine.left_behind():
        raise ConnectionError
    mine.close()
    assert found(directory) == {of(left[0])}


def test_one_finds_them_where_two_look(directory: Path) -> None:
    killed_after(directory, [("mark", 0)])
    one, two = Unsent.open(directory, "one", BOOT), Unsent.open(directory, "two", BOOT)
    with one.left_behind() as first, two.left_behind() as second:
        assert (len(first), len(second)) == (1, 0)
    one.close()
    two.close()


def test_no_more_is_marked_than_there_is_room_for(directory: Path) -> None:
    worker = Unsent.open(directory, "one", BOOT)
    many = [another() for _ in range(SLOTS)]
    assert all(worker.mark(one) for one in many)
    assert not worker.mark(GROUP)
    worker.clear(many[3].token)
    assert worker.mark(GROUP)
    assert not worker.mark(replace(another(), recipients=GROUP.recipients * 2)), "of several, some may be refused"
    worker.close()


def test_what_is_no_such_file_is_passed_over(directory: Path) -> None:
    left = killed_after(directory, [("mark", 0)])
    (good,) = directory.iterdir()
    whole = good.read_bytes()
    elsewhere = directory.parent / "elsewhere"
    elsewhere.write_bytes(whole)
    (directory / "short.marks").write_bytes(whole[:-1])
    (directory / "empty.marks").write_bytes(b"")
    (directory / "magic.marks").write_bytes(b"X" + whole[1:])
    (directory / "link.marks").symlink_to(elsewhere)
    (directory / "directory.marks").mkdir()
    os.mkfifo(directory / "fifo.marks")
    (directory / "note.txt").write_text("not ours")
    assert found(directory) == {of(left[0])}
    assert elsewhere.read_bytes() == whole
    assert (directory / "note.txt").exists()


@pytest.mark.skipif(not Path("/proc/sys/kernel/random/boot_id").exists(), reason="only Linux names the machine's run")
def test_the_run_of_the_machine_has_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert UUID(unsent.running_since())
    monkeypatch.setattr(unsent, "_BOOT", tmp_path / "none")
    assert unsent.running_since() is None


@pytest.mark.covers("mail-server:C3", "edge:G2", "NFR-REL-1")
@pytest.mark.parametrize("boot", [BOOT, ANOTHER], ids=["killed", "powerless"])
async def test_after_a_kill_what_was_given_to_nobody_goes_out(
    room: MailRoom, monkeypatch: pytest.MonkeyPatch, directory: Path, boot: str
) -> None:
    """Uncertain is what a server had been given; where the machine stopped, what was begun, too."""
    monkeypatch.setattr(dispatch, "REVOKE_SECONDS", 3600)
    first = Unsent.open(directory, "first", BOOT)
    monkeypatch.setattr(room, "dispatcher", lambda limits: MailRoom.dispatcher(room, limits, first))
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        _, working = await stalled(room, mx, 60)
        await until_begun(room, mx, CONNECTIONS)
        # What a kill leaves on the disk; its lock is gone with it.
        shutil.copy(directory / "first.marks", directory / "killed.marks")
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        first.close()
        count = await begun(room)
        given = len(mx.messages) - len(mx.delivered)
        assert count > given == CONNECTIONS
        assert mx.hold is not None
        mx.hold.set()
        mx.on_data = lambda: None
        second = MailRoom.dispatcher(room, AHEAD, Unsent.open(directory, "second", boot))
        working = asyncio.create_task(second.run())
        for _ in range(1000):
            if await begun(room) == (given if boot == BOOT else count):
                break
            await asyncio.sleep(0.01)
        await second.drain(10)
        await working
        room.clock.advance(claiming.LEASE.total_seconds())
        await room.dispatcher(DispatchLimits()).run_due()
        async with room.db.acquire() as conn:
            rows = await conn.fetch("SELECT status, count(*) AS count FROM deliveries GROUP BY status")
    unsure = given if boot == BOOT else count
    assert {row["status"]: row["count"] for row in rows} == {"uncertain": unsure, "delivered": 60 - unsure}
    assert len(Counter(message.data for message in mx.messages)) == len(mx.messages)
    assert not os.listdir(directory)


@pytest.mark.covers("mail-server:C3", "edge:G2", "NFR-REL-1")
async def test_what_was_taken_back_and_begun_again_is_not_sent_twice(
    room: MailRoom, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    """A server pauses, so that what was begun ahead is taken back, goes on, and has been given a few of those when the
    worker is killed: no mark of them may be left."""
    monkeypatch.setattr(dispatch, "REVOKE_SECONDS", 0.1)
    first = Unsent.open(directory, "first", BOOT)
    monkeypatch.setattr(room, "dispatcher", lambda limits: MailRoom.dispatcher(room, limits, first))
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        _, working = await stalled(room, mx, 60)
        for _ in range(1000):
            if await begun(room) == CONNECTIONS:
                break
            await asyncio.sleep(0.01)
        assert await begun(room) == CONNECTIONS, "the rest was taken back"
        monkeypatch.setattr(dispatch, "REVOKE_SECONDS", 3600)
        assert mx.hold is not None
        again = mx.hold
        stall_after(mx, 10)
        again.set()
        await until(lambda: len(mx.delivered) >= 15)
        await until(lambda: len(mx.messages) - len(mx.delivered) == CONNECTIONS)
        shutil.copy(directory / "first.marks", directory / "killed.marks")
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        first.close()
        mx.hold.set()
        mx.on_data = lambda: None
        second = MailRoom.dispatcher(room, AHEAD, Unsent.open(directory, "second", BOOT))
        working = asyncio.create_task(second.run())
        await until(lambda: not (directory / "killed.marks").exists())
        room.clock.advance(claiming.LEASE.total_seconds())
        second.wake()
        await until(lambda: len(mx.messages) >= 60)
        await second.drain(10)
        await working
    assert max(Counter(message.data for message in mx.messages).values()) == 1


@pytest.mark.covers("mail-server:C3", "edge:G2")
async def test_a_mark_gives_back_what_its_claim_holds(room: MailRoom) -> None:
    """Not what somebody else has claimed since, and nobody else's."""
    (one,) = await claimed(room)
    assert await room.outcomes.begin(one)
    right = of(one)
    wrong = [replace(right, token=uuid4()), replace(right, tenant_id=right.tenant_id + 1)]
    async with room.db.acquire() as conn:
        await claiming.put_back_marked(conn, wrong, at=room.clock.now())
    assert await begun(room) == 1
    async with room.db.acquire() as conn:
        await claiming.put_back_marked(conn, [right], at=room.clock.now())
        await claiming.put_back_marked(conn, [right], at=room.clock.now())
        (again,) = await claiming.claim(conn, now=room.clock.now(), room=Room(100, {}))
    assert again.recipients[0].data_started_at is None
    assert (await room.row(again.letter.id))["attempts"] == 1
