"""Every transition of a delivery is in the change log and among the events, written by the transaction that makes it
(mail-server C2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.models import ChangeKind
from postroom.outbound import settling
from postroom.outbound.models import Operation, QueueState, RouteKind, Status
from postroom.outbound.queue import MailQueue
from postroom.outbound.rules import Action, may_become
from tests.mailbox.letters import check_mailbox
from tests.outbound.fake_mx import FakeMx
from tests.outbound.mail_room import MailRoom, unsigned

pytestmark = pytest.mark.covers("mail-server:C2")


@pytest.fixture
async def room(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[MailRoom]:
    made = await MailRoom.open(db, clock, ids, tmp_path, kind="person")
    yield made
    async with db.acquire() as conn:
        await check_mailbox(conn, made.box.ref)
    await made.close()


def queue_of(room: MailRoom) -> MailQueue:
    return MailQueue(
        room.db, room.blobs, room.clock, room.ids, sign=unsigned, changed=lambda *_: None, wake=lambda: None
    )


async def logged(room: MailRoom) -> list[dict[str, Any]]:
    async with room.db.acquire() as conn:
        rows = await conn.fetch(
            "SELECT message, delivery, delivery_status, xmin::text FROM changes WHERE kind = $1 "
            "ORDER BY mailbox_id, seq",
            ChangeKind.DELIVERY,
        )
    return [dict(row) for row in rows]


async def written_together(room: MailRoom) -> list[tuple[int, str, str]]:
    """Delivery, its status in the log, and the queue's word in the event, having checked that one is written with the
    other."""
    changes = await logged(room)
    async with room.db.acquire() as conn:
        events = await conn.fetch(
            "SELECT payload, message_id, xmin::text FROM events WHERE type = 'delivery.updated' "
            "ORDER BY identity_id, sequence"
        )
    told = [orjson.loads(row["payload"])["data"] for row in events]
    assert [(one["delivery"], one["message"], one["xmin"]) for one in changes] == [
        (data["queue_id"], data["message_id"], row["xmin"]) for data, row in zip(told, events, strict=True)
    ]
    assert all(row["message_id"] is not None for row in events), "erased with the message"
    return [(c["delivery"], c["delivery_status"], t["status"]) for c, t in zip(changes, told, strict=True)]


async def test_put_off_then_taken(room: MailRoom) -> None:
    async with FakeMx(replies={"anna@example.com": ["450 4.2.0 Greylisted", "250 2.1.5 Ok"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        assert await room.updates() == [], "accepting is no transition"
        dispatcher = room.dispatcher()
        await dispatcher.run_due()
        room.clock.advance(70)
        await dispatcher.run_due()
    row = await room.row(message)
    assert await room.updates(message) == [
        {
            "queue_id": row["id"],
            "message_id": message,
            "recipient": "anna@example.com",
            "status": status,
            "attempts": attempts,
            "last_error": error,
        }
        for status, attempts, error in (("retry", 1, "4.2.0 Greylisted"), ("delivered", 2, None))
    ]
    assert await written_together(room) == [
        (row["id"], "deferred", "retry"),
        (row["id"], "delivered", "delivered"),
    ]
    assert [kind for kind, _ in await room.all_events(message)] == [
        "message.sent",
        "delivery.updated",
        "message.deferred",
        "delivery.updated",
        "message.delivered",
    ]


async def test_each_recipient_by_itself(room: MailRoom) -> None:
    async with FakeMx(replies={"bo@example.com": ["550 5.1.1 No such user"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com", "bo@example.com", "cleo@example.com")
        await room.dispatcher().run_due()
    assert {(one["recipient"], one["status"], one["last_error"]) for one in await room.updates(message)} == {
        ("anna@example.com", "delivered", None),
        ("bo@example.com", "failed", "5.1.1 No such user"),
        ("cleo@example.com", "delivered", None),
    }
    assert len(await written_together(room)) == 3


async def test_what_an_operator_does(room: MailRoom) -> None:
    async with FakeMx(replies={"anna@example.com": ["450 4.2.0 Later"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com", operation=Operation.SUBMISSION)
        await room.dispatcher().run_due()
    row = await room.row(message)
    queue = queue_of(room)
    for action in (Action.CANCEL, Action.RETRY, Action.HOLD, Action.RELEASE):
        (done,) = await queue.act(action, [row["id"]])
        assert done.refused is None, action
    # To hold is no transition (C2).
    assert [(one["status"], one["attempts"]) for one in await room.updates(message)] == [
        ("retry", 1),
        ("cancelled", 1),
        ("pending", 0),
    ]
    assert [status for _, status, _ in await written_together(room)] == ["deferred", "canceled", "queued"]


async def test_many_take_no_more_statements_than_one(room: MailRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    real = settling.settle

    async def counting(changes: Any, ids: IdGenerator, **options: Any) -> Any:
        if not changes:
            return await real(changes, ids, **options)
        seen: list[str] = []
        with changes[0].write.conn.query_logger(lambda record: seen.append(record.query)):
            settled = await real(changes, ids, **options)
        # A connection that is new asks what the types are, beside.
        counts.append(sum("deliveries" in query or "events" in query for query in seen))
        return settled

    monkeypatch.setattr("postroom.outbound.outcomes.settle", counting)
    one = await room.accept("one@simulator.invalid", route=RouteKind.SIMULATOR)
    await room.dispatcher().run_due()
    many = await room.accept(*(f"r{n}@simulator.invalid" for n in range(40)), route=RouteKind.SIMULATOR)
    await room.dispatcher().run_due()
    assert (len(await room.updates(one)), len(await room.updates(many))) == (1, 40)
    assert counts == [3, 3]


@pytest.mark.parametrize("status", list(Status))
def test_the_queue_has_a_word_for_every_status(status: Status) -> None:
    word = QueueState.of(status)
    # What something may still be sent of is never told as ended.
    assert (word in (QueueState.PENDING, QueueState.RETRY)) == status.is_waiting
    assert may_become(Status.QUEUED, status) or status is Status.QUEUED
