"""Late bounces are applied once, also when they come twice, to two processes, or before we know ourselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.ingest import Failure, IngestError
from postroom.outbound.queue import MailQueue
from postroom.outbound.rules import Action
from tests.outbound.fake_mx import FakeMx
from tests.outbound.late_bounces import (
    BOUNCED,
    DELIVERED,
    RECEIVED,
    SENT,
    envelope_recipient,
    statuses,
)
from tests.outbound.mail_room import unsigned, until
from tests.outbound.returning import (
    Returning,
    recipient,
    report,
    returning,
)
from tests.outbound.test_bounces import Post


@pytest.fixture
async def post(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[Returning]:
    async with returning(db, clock, ids, tmp_path) as made:
        yield made


# -- once -------------------------------------------------------------------------------------------------------------


@pytest.mark.covers("edge:G6", "NFR-REL-1")
async def test_the_same_report_again(post: Returning) -> None:
    async with FakeMx() as mx:
        message = await post.send(mx)
        (received,) = mx.delivered
    soft = report(received, recipient("anna@example.com", status="4.4.7"))
    for _ in range(3):
        assert (await post.bounce(received.sender, soft))[0] == 250
    assert await post.kinds() == [SENT, DELIVERED, BOUNCED, RECEIVED]
    assert len(await post.inbox()) == 1
    # What is final after all says more; what is for now then says less.
    hard = report(received, recipient("anna@example.com", status="5.1.1"))
    for raw in (hard, hard, soft):
        await post.bounce(received.sender, raw)
    assert await post.kinds() == [SENT, DELIVERED, BOUNCED, RECEIVED, BOUNCED, RECEIVED]
    row = await post.room.row(message)
    assert (row["status"], row["bounce_type"], row["enhanced_code"]) == ("bounced", "hard", "5.1.1")


@pytest.mark.covers("edge:G6", "NFR-REL-1")
async def test_two_processes_are_given_the_same_report_at_once(post: Returning) -> None:
    async with FakeMx() as mx:
        message = await post.send(mx, "anna@example.com", "bob@example.com")
        (received,) = mx.delivered
    places = [post.places[0], *[await post.place() for _ in range(3)]]
    raw = report(received, recipient("anna@example.com"), recipient("bob@example.com"))
    answers = await asyncio.gather(*(post.bounce(received.sender, raw, place=place) for place in places))
    assert {code for code, _ in answers} == {250}
    assert (await statuses(post, message))[0] == "bounced"
    assert sorted(await post.kinds()) == sorted([SENT, DELIVERED, DELIVERED, BOUNCED, BOUNCED, RECEIVED])
    assert len(await post.inbox()) == 1


@pytest.mark.covers("NFR-REL-1", "edge:J1")
async def test_a_process_that_dies_between_the_two_loses_nothing(
    post: Returning, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeMx() as mx:
        message = await post.send(mx)
        (received,) = mx.delivered
    raw = report(received, recipient("anna@example.com"))

    def full(*_: object) -> Any:
        raise IngestError(Failure.DATABASE)

    with monkeypatch.context() as patched:
        patched.setattr(post.places[0].ingest, "begin", full)
        assert (await post.bounce(received.sender, raw))[0] == 451
    assert (await statuses(post, message))[0] == "bounced"
    assert await post.inbox() == []
    assert (await post.bounce(received.sender, raw))[0] == 250
    assert len(await post.inbox()) == 1
    assert await post.kinds() == [SENT, DELIVERED, BOUNCED, RECEIVED]


@pytest.mark.covers("mail-server:C7")
async def test_who_was_told_by_us_is_not_told_again(post: Returning) -> None:
    async with FakeMx(replies={"bob@example.com": ["550 5.1.1 No"]}) as mx:
        message = await post.send(mx, "anna@example.com", "bob@example.com")
        (received,) = mx.delivered
    await Post(post.room, post.places[0].ingest, []).writer.run_due()
    assert len(await post.inbox()) == 1
    assert (await post.bounce(received.sender, report(received, recipient("bob@example.com"))))[0] == 250
    assert post.places[0].returns.dropped == {"told": 1}
    assert len(await post.inbox()) == 1
    # With news about somebody else it is seen.
    groups = (recipient("bob@example.com"), recipient("anna@example.com"))
    await post.bounce(received.sender, report(received, *groups))
    assert len(await post.inbox()) == 2
    assert set((await post.room.deliveries(message)).values()) == {"bounced"}


@pytest.mark.covers("RFC 3461 §4.1")
@pytest.mark.parametrize(
    ("notify", "action", "seen"),
    [
        (("NEVER",), "failed", False),
        (("FAILURE",), "failed", True),
        (("FAILURE",), "delayed", False),
        (("DELAY",), "delayed", True),
        (("FAILURE",), "delivered", False),
        (("SUCCESS",), "relayed", True),
    ],
)
async def test_what_the_sender_did_not_want_to_be_told(
    post: Returning, notify: tuple[str, ...], action: str, seen: bool
) -> None:
    async with FakeMx(extensions=()) as mx:
        message = await post.send(mx, envelope_recipient("anna@example.com", *notify))
        (received,) = mx.delivered
    await post.bounce(received.sender, report(received, recipient("anna@example.com", action)))
    assert len(await post.inbox()) == seen
    assert (await statuses(post, message))[0] == ("bounced" if action == "failed" else "delivered")


# -- before we know ourselves -----------------------------------------------------------------------------------------


@pytest.mark.covers("edge:G8", "edge:G2")
@pytest.mark.parametrize("end", ["250", "lost", "451"])
@pytest.mark.parametrize("action", ["failed", "delivered"])
async def test_a_report_that_overtakes_the_result_of_the_attempt(post: Returning, end: str, action: str) -> None:
    hold = asyncio.Event()
    replies: dict[str, list[str | None]] = {"final": ["451 4.3.0 Later"]} if end == "451" else {}
    async with FakeMx(hold=hold, drop_after_dot=end == "lost", replies=replies) as mx:
        post.room.net.add("example.com", mx)
        message = await post.room.accept("anna@example.com")
        attempt = asyncio.create_task(post.room.dispatcher().run_due())
        await until(lambda: bool(mx.messages))
        assert (await post.room.row(message))["claim_token"] is not None
        (received,) = mx.messages
        assert (await post.bounce(received.sender, report(received, recipient("anna@example.com", action))))[0] == 250
        wanted = "bounced" if action == "failed" else "delivered"
        assert await statuses(post, message) == (wanted, {"anna@example.com": wanted})
        hold.set()
        await attempt
        assert await statuses(post, message) == (wanted, {"anna@example.com": wanted})
        post.room.clock.advance(90_000)
        await post.room.dispatcher().run_due()
        assert len(mx.messages) == 1, "nothing is sent again"
    event = BOUNCED if action == "failed" else DELIVERED
    assert await post.kinds() == [SENT, event, RECEIVED]
    assert await post.room.wire_key(message) is None


@pytest.mark.covers("edge:G8")
async def test_the_result_still_counts_for_the_others(post: Returning) -> None:
    hold = asyncio.Event()
    async with FakeMx(hold=hold) as mx:
        post.room.net.add("example.com", mx)
        message = await post.room.accept("anna@example.com", "bob@example.com")
        attempt = asyncio.create_task(post.room.dispatcher().run_due())
        await until(lambda: bool(mx.messages))
        (received,) = mx.messages
        await post.bounce(received.sender, report(received, recipient("bob@example.com")))
        assert (await statuses(post, message))[0] == "queued"
        hold.set()
        await attempt
    expected = {"anna@example.com": "delivered", "bob@example.com": "bounced"}
    assert await statuses(post, message) == ("bounced", expected)
    assert await post.kinds() == [BOUNCED, RECEIVED, SENT, DELIVERED]


@pytest.mark.covers("mail-server:C2")
async def test_a_report_of_an_earlier_time_does_not_end_what_an_operator_sends_again(post: Returning) -> None:
    async with FakeMx() as mx:
        message = await post.send(mx)
        (received,) = mx.delivered
        raw = report(received, recipient("anna@example.com"))
        await post.bounce(received.sender, raw)
        room = post.room
        queue = MailQueue(
            *(room.db, room.blobs, room.clock, room.ids),
            sign=unsigned,
            changed=lambda *_: None,
            wake=lambda: None,
        )
        (done,) = await queue.act(Action.RETRY, [(await room.row(message))["id"]])
        assert done.refused is None
        assert (await post.bounce(received.sender, raw))[0] == 250
        assert (await statuses(post, message))[0] == "queued"
        await room.dispatcher().run_due()
        assert len(mx.delivered) == 2
    assert (await statuses(post, message))[0] == "delivered"
    assert mx.delivered[1].sender == received.sender
    await post.bounce(received.sender, raw + b"again\r\n")
    assert (await statuses(post, message))[0] == "bounced"
