"""What an operator sees of mail that leaves, and what they do about it; how mail is routed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.accounts.models import Mode
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.db.pool import Connection
from postroom.outbound import bounces, claiming
from postroom.outbound.claiming import Room
from postroom.outbound.models import QueueState, RouteKind
from postroom.outbound.queue import MailQueue, QueueStatistics, prune_attempts
from postroom.outbound.routes import RelayUse, Routes
from postroom.outbound.rules import Action
from tests.mailbox.letters import check_mailbox
from tests.outbound.fake_mx import FakeMx
from tests.outbound.mail_room import MailRoom


@pytest.fixture
async def room(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[MailRoom]:
    made = await MailRoom.open(db, clock, ids, tmp_path, kind="person")
    yield made
    async with db.acquire() as conn:
        await check_mailbox(conn, made.box.ref)
    await made.close()


async def signed(raw: bytes, domain: str) -> bytes:
    return f"X-Signed: {domain}\r\n".encode() + raw


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def queue_of(room: MailRoom) -> MailQueue:
    return MailQueue(
        room.db,
        room.blobs,
        room.clock,
        room.ids,
        sign=signed,
        changed=lambda ref, modseq: room.changed.append((ref, modseq)),
        wake=lambda: None,
    )


@pytest.mark.covers("mail-server:C1", "mail-server:C2", "mail-server:C9")
async def test_what_is_shown(room: MailRoom) -> None:
    answers: dict[str, list[str | None]] = {"later@example.com": ["451 Later"], "gone@example.com": ["550 5.1.1 No"]}
    async with FakeMx(replies=answers) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com", "later@example.com", "gone@example.com")
        await room.dispatcher().run_due()
    await room.accept("bob@example.org")
    queue = queue_of(room)
    found = {item.recipient: item for item in await queue.list()}
    assert {name: item.state.value for name, item in found.items()} == {
        "anna@example.com": "delivered",
        "later@example.com": "retry",
        "gone@example.com": "failed",
        "bob@example.org": "pending",
    }
    later = found["later@example.com"]
    assert (later.message_id, later.sender, later.tries, later.smtp_code) == (message, room.box.address, 1, 451)
    waiting = await queue.list(states=[QueueState.RETRY, QueueState.PENDING])
    assert [item.recipient for item in waiting] == ["later@example.com", "bob@example.org"]
    assert [item.recipient for item in await queue.list(after=later.id, limit=1)] == ["gone@example.com"]
    assert await queue.list(tenant=room.box.ref.tenant_id + 1) == []
    got = await queue.get(later.id)
    assert got is not None
    assert [(one.attempt, one.status_code, one.remote_mx) for one in got[1]] == [(1, 451, "mx0.example.com")]
    assert await queue.get(10**9) is None
    async with room.db.acquire() as conn:
        await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}))
    assert (await queue.list(states=[QueueState.DELIVERING]))[0].recipient == "bob@example.org"


@pytest.mark.covers("mail-server:C9")
async def test_what_ended_long_ago_is_not_listed_any_more(room: MailRoom) -> None:
    async with FakeMx(replies={"later@example.com": ["451 4.2.0 Later"]}) as mx:
        room.net.add("example.com", mx)
        await room.accept("anna@example.com", "later@example.com")
        await room.dispatcher().run_due()
    queue = queue_of(room)
    assert [item.recipient for item in await queue.list()] == ["anna@example.com", "later@example.com"]
    room.clock.advance(30 * 86_400 - 60)
    assert len(await queue.list()) == 2
    room.clock.advance(120)
    (left,) = await queue.list()
    assert left.recipient == "later@example.com"
    assert await queue.list(states=[QueueState.DELIVERED]) == []


def there_is(figures: QueueStatistics) -> dict[str, int]:
    return {state.value: count for state, count in figures.counts.items() if count}


@pytest.mark.covers("mail-server:C9")
async def test_the_figures(room: MailRoom) -> None:
    answers: dict[str, list[str | None]] = {"later@example.com": ["451 Later"], "gone@example.com": ["550 5.1.1 No"]}
    queue = queue_of(room)
    empty = await queue.statistics()
    assert (there_is(empty), empty.next_due_at) == ({}, None)
    assert list(empty.counts) == list(QueueState), "what there is nothing of is 0"
    async with FakeMx(replies=answers) as mx:
        room.net.add("example.com", mx)
        await room.accept("anna@example.com", "later@example.com", "gone@example.com")
        await room.dispatcher().run_due()
        held = await room.accept("held@example.com")
        await queue.act(Action.HOLD, [(await room.row(held))["id"]])
        await room.accept("bob@example.com")
        async with room.db.acquire() as conn:
            await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}))
    figures = await queue.statistics()
    assert there_is(figures) == {"delivered": 1, "retry": 1, "failed": 1, "held": 1, "delivering": 1}
    (later,) = await queue.list(states=[QueueState.RETRY])
    assert figures.next_due_at == later.next_attempt_at
    assert (figures.bounce_pending, figures.bounce_processing) == (1, 0), "the sender is to be told of one"
    assert (figures.sent_today, figures.received_today) == (1, 0)
    async with room.db.acquire() as conn:
        await bounces.QUEUE.claim(conn, now=room.clock.now(), limit=10)
        await conn.execute("UPDATE messages SET source = 'mx' WHERE status = 'queued'")
    figures = await queue.statistics()
    assert (figures.bounce_pending, figures.bounce_processing, figures.received_today) == (0, 1, 2)


@pytest.mark.covers("mail-server:C9")
async def test_a_day_begins_at_midnight_and_what_ended_leaves_the_figures(room: MailRoom) -> None:
    room.clock.set(room.clock.now().replace(hour=23, minute=59, second=59))
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        await room.accept("anna@example.com")
        await room.dispatcher().run_due()
    queue = queue_of(room)
    assert (await queue.statistics()).sent_today == 1
    room.clock.advance(1)
    figures = await queue.statistics()
    assert (figures.sent_today, there_is(figures)) == (0, {"delivered": 1})
    room.clock.advance(30 * 86_400)
    assert there_is(await queue.statistics()) == {}


@pytest.mark.covers("mail-server:C2", "mail-server:C3")
async def test_cancel(room: MailRoom) -> None:
    message = await room.accept("anna@example.com", "bob@example.com")
    queue = queue_of(room)
    first, second = [item.id for item in await queue.list()]
    assert await room.wire_key(message) is not None
    assert [done.refused for done in await queue.act(Action.CANCEL, [first, 10**9])] == [None, "not_found"]
    assert await room.status(message) == "queued"
    async with room.db.acquire() as conn:
        (group,) = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}))
    assert group.ids == [second]
    assert [done.refused for done in await queue.act(Action.CANCEL, [second])] == ["delivering"]
    async with room.db.acquire() as conn:
        await claiming.put_back(conn, [group], at=room.clock.now())
    assert [done.refused for done in await queue.act(Action.CANCEL, [second, first])] == [None, "ended"]
    assert await room.status(message) == "canceled"
    assert [kind for kind, _ in await room.events(message)] == ["message.canceled"]
    assert await room.wire_key(message) is None
    assert await room.dispatcher().run_due() == 0


@pytest.mark.covers("mail-server:C2")
async def test_hold_and_release(room: MailRoom) -> None:
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        await room.accept("anna@example.com")
        queue = queue_of(room)
        (item,) = await queue.list()
        await queue.act(Action.HOLD, [item.id])
        assert (await queue.list())[0].state is QueueState.HELD
        dispatcher = room.dispatcher()
        assert await dispatcher.run_due() == 0
        await queue.act(Action.RELEASE, [item.id])
        assert await dispatcher.run_due() == 1
    assert [done.refused for done in await queue.act(Action.HOLD, [item.id])] == ["ended"]


@pytest.mark.covers("mail-server:C2")
async def test_retry_of_what_failed(room: MailRoom) -> None:
    async with FakeMx(replies={"anna@example.com": ["550 5.1.1 No", "250 Ok"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        async with room.db.acquire() as conn:
            # The Sent copy of a person names the blind recipients.
            key = await conn.fetchval("SELECT blob_key FROM messages")
        raw = await room.blobs.get(key)
        await room.blobs.put(key, b"Bcc: secret@example.com\r\n" + raw)
        await room.dispatcher().run_due()
        queue = queue_of(room)
        (item,) = await queue.list()
        assert [done.refused for done in await queue.act(Action.RETRY, [item.id])] == ["bounce_pending"]
        async with room.db.acquire() as conn:
            await conn.execute("UPDATE bounce_tasks SET next_attempt_at = NULL")
            wire = await conn.fetchval("UPDATE outbound_messages SET wire_key = NULL RETURNING wire_key")
        assert wire is None
        assert [done.refused for done in await queue.act(Action.RETRY, [item.id])] == [None]
        assert await room.status(message) == "queued"
        await room.dispatcher().run_due()
        assert await room.status(message) == "delivered"
        (received,) = mx.delivered
    domain = room.box.address.rpartition("@")[2]
    assert received.data == f"X-Signed: {domain}\r\n".encode() + raw
    row = await room.row(message)
    assert (row["tries"], row["smtp_code"], row["bounce_type"]) == (1, 250, None)
    kinds = [kind for kind, _ in await room.events(message)]
    assert kinds == ["message.sent", "message.bounced", "message.delivered"]
    assert [done.refused for done in await queue.act(Action.RETRY, [item.id])] == ["sent"]


@pytest.mark.covers("mail-server:C2", "edge:G2")
async def test_retry_is_refused(room: MailRoom) -> None:
    async with FakeMx(drop_after_dot=True) as lost, FakeMx(replies={"MAIL": ["554 No"]}) as refusing:
        room.net.add("lost.example", lost)
        room.net.add("refusing.example", refusing)
        await room.accept("a@lost.example")
        await room.accept("a@refusing.example")
        await room.dispatcher().run_due()
    queue = queue_of(room)
    unknown, failed = await queue.list()
    assert (unknown.state, failed.state) == (QueueState.UNCERTAIN, QueueState.FAILED)
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE bounce_tasks SET next_attempt_at = NULL")
        await conn.execute("UPDATE identities SET kind = 'agent'")
    answers = await queue.act(Action.RETRY, [unknown.id, failed.id])
    assert [done.refused for done in answers] == ["uncertain", "agent"]
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE identities SET kind = 'person'")
        keys = await conn.fetch("UPDATE outbound_messages SET wire_key = NULL RETURNING message_id")
        assert keys
        blob = await conn.fetchval(
            "SELECT m.blob_key FROM messages m JOIN deliveries d ON d.message_id = m.id WHERE d.id = $1", failed.id
        )
    await room.blobs.delete([blob])
    assert [done.refused for done in await queue.act(Action.RETRY, [failed.id])] == ["bytes_gone"]


@pytest.mark.covers("decisions:B1", "mail-server:C2")
async def test_what_kills_its_workers_is_given_up_and_can_be_tried_again(room: MailRoom) -> None:
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        async with room.db.acquire() as conn:
            for _ in range(claiming.MAX_CLAIMS):
                assert await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}))
                room.clock.advance(claiming.LEASE.total_seconds())
        dispatcher = room.dispatcher()
        assert await dispatcher.run_due() == 0
        queue = queue_of(room)
        (item,) = await queue.list()
        assert (item.state, item.tries) == (QueueState.PARKED, 0)
        assert [done.refused for done in await queue.act(Action.RETRY, [item.id])] == [None]
        assert await dispatcher.run_due() == 1
    assert await room.status(message) == "delivered"


@pytest.mark.covers("mail-server:C9")
async def test_attempts_are_kept_for_a_month(room: MailRoom) -> None:
    async with FakeMx(replies={"later@example.com": ["451 Later"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com", "later@example.com")
        await room.dispatcher().run_due()
    room.clock.advance(29 * 86400)
    assert await prune_attempts(room.db, room.clock, timedelta(days=30)) == 0
    room.clock.advance(2 * 86400)
    assert await prune_attempts(room.db, room.clock, timedelta(days=30)) == 1
    assert await room.deliveries(message) == {"anna@example.com": "delivered", "later@example.com": "deferred"}


@pytest.mark.covers("edge:G11", "edge:L2", "FR-TEN-2", "mail-server:C6")
async def test_routes() -> None:
    async def is_local(domain: str) -> bool:
        return domain == "agents.example"

    async def to(address: str, routes: Routes, mode: Mode = Mode.LIVE, source: str = "agents.example") -> RouteKind:
        return await routes.route(address, from_domain=source, mode=mode)

    plain, relayed = Routes(is_local), Routes(is_local, RelayUse(True))
    some = Routes(is_local, RelayUse(True, frozenset({"agents.example"})))
    assert await to("a@example.com", plain) is RouteKind.DIRECT
    assert await to("a@agents.example", relayed) is RouteKind.LOCAL
    assert await to("a@example.com", relayed) is RouteKind.SMARTHOST
    assert await to("a@example.com", some) is RouteKind.SMARTHOST
    assert await to("a@example.com", some, source="other.example") is RouteKind.DIRECT
    assert await to("bounce@simulator.invalid", plain, Mode.TEST) is RouteKind.SIMULATOR
    assert await to("bounce@simulator.invalid", plain) is RouteKind.DIRECT
    assert await to("a@agents.example", relayed, Mode.TEST) is RouteKind.LOCAL
    with pytest.raises(PostroomError) as refused:
        await to("a@example.com", relayed, Mode.TEST)
    assert refused.value.code == "test_mode_recipient"


@pytest.mark.covers("mail-server:C2")
async def test_a_retry_that_is_refused_leaves_no_bytes(room: MailRoom, tmp_path: Path) -> None:
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        await room.accept("anna@example.com")
        await room.dispatcher().run_due()
    queue = queue_of(room)
    (item,) = await queue.list()
    before = files(tmp_path)
    assert [done.refused for done in await queue.act(Action.RETRY, [item.id] * 3)] == ["sent"] * 3
    assert files(tmp_path) == before


@pytest.mark.covers("mail-server:C2")
async def test_a_retry_while_the_last_other_recipient_is_reached(
    room: MailRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeMx(replies={"gone@example.com": ["550 5.1.1 No", "250 Ok"]}) as mx:
        room.net.add("example.com", mx)
        down = room.net.add("later.example", None)
        message = await room.accept("gone@example.com", "bob@later.example")
        await room.dispatcher().run_due()
        async with room.db.acquire() as conn:
            await conn.execute("UPDATE bounce_tasks SET next_attempt_at = NULL")  # the notice is written
        assert await room.wire_key(message) is not None
        room.net.ports[down] = mx.port
        queue, lock = queue_of(room), Database.transaction

        @contextlib.asynccontextmanager
        async def late(database: Database) -> AsyncIterator[Connection]:
            monkeypatch.setattr(Database, "transaction", lock)
            room.clock.advance(7200)
            await room.dispatcher().run_due()
            async with database.transaction() as conn:
                yield conn

        monkeypatch.setattr(Database, "transaction", late)
        (first, _) = [item.id for item in await queue.list()]
        assert [done.refused for done in await queue.act(Action.RETRY, [first])] == [None]
        await room.dispatcher().run_due()
    assert await room.deliveries(message) == {"gone@example.com": "delivered", "bob@later.example": "delivered"}
