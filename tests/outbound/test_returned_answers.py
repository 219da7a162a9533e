"""Answers that come back to a return path and are no reports: mail to the address that was written from."""

from __future__ import annotations

import asyncio
import smtplib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from tests.mailbox.letters import make_boxes
from tests.outbound.fake_mx import FakeMx
from tests.outbound.returning import Returning, recipient, report, returning

SUSPENDED = "UPDATE tenants SET status = 'suspended', suspended_at = $1"
LONG = timedelta(days=5, seconds=1)
AUTO = b"From: anna@example.com\r\nSubject: Out of office\r\nAuto-Submitted: auto-replied\r\n\r\nI am away.\r\n"


@pytest.fixture
async def post(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[Returning]:
    async with returning(db, clock, ids, tmp_path) as made:
        yield made


@pytest.mark.covers("FR-TEN-3", "mail-server:A6", "edge:A6")
@pytest.mark.parametrize(
    ("statement", "ago", "answer"),
    [
        (SUSPENDED, timedelta(), "450 4.2.1"),
        (SUSPENDED, LONG, "550 5.2.1"),
        ("UPDATE addresses SET status = 'retired', updated_at = $1", timedelta(), "550 5.1.6"),
        ("UPDATE addresses SET status = 'pending', updated_at = $1", timedelta(), "550 5.1.1"),
        ("UPDATE domains SET enabled = false, updated_at = $1", timedelta(), "550 5.1.2"),
        ("UPDATE mailboxes SET quota_bytes = 1, created_at = $1", timedelta(), "452 4.2.2"),
        ("UPDATE messages SET from_address = NULL, received_at = $1", timedelta(), "550 5.1.1"),
    ],
)
async def test_an_answer_is_taken_where_the_address_takes_mail(
    post: Returning, statement: str, ago: timedelta, answer: str
) -> None:
    """What is no report comes to the address that was written from, whatever path it took; a report is about a delivery
    and is applied all the same."""
    async with FakeMx() as mx:
        message = await post.send(mx)
        (received,) = mx.delivered
    await post.execute(statement, post.room.clock.now() - ago)
    code, text = await post.bounce(received.sender, AUTO)
    assert f"{code} {text[:5]}" == answer
    assert await post.inbox() == []
    await post.bounce(received.sender, report(received, recipient("anna@example.com")))
    assert await post.room.status(message) == "bounced"
    if not answer.startswith("452"):
        ((row, _),) = await post.inbox()
        assert row["kind"] == "dsn"


@pytest.mark.covers("edge:A7")
async def test_a_paused_identity_takes_answers(post: Returning) -> None:
    async with FakeMx() as mx:
        await post.send(mx)
        (received,) = mx.delivered
    await post.execute("UPDATE identities SET status = 'paused'")
    assert (await post.bounce(received.sender, AUTO))[0] == 250
    assert len(await post.inbox()) == 1


@pytest.mark.covers("mail-server:A6")
@pytest.mark.parametrize("whose", ["another", "nobody", "elsewhere"])
async def test_an_address_that_has_moved_leaves_no_answers_behind(post: Returning, whose: str) -> None:
    """It is another mailbox's by now, or an alias that leads to one or out of here."""
    async with FakeMx() as mx:
        await post.send(mx)
        (received,) = mx.delivered
    (other,) = await make_boxes(post.room.db, post.room.ids, post.room.clock)
    if whose == "another":
        await post.execute("UPDATE messages SET from_address = $1", other.address)
    else:
        target = f"nobody@{other.address.partition('@')[2]}" if whose == "nobody" else "out@example.com"
        await post.execute("DELETE FROM addresses WHERE address = $1", post.box.address)
        await post.execute(
            "INSERT INTO aliases (tenant_id, public_id, address, domain_id, target, created_at)"
            " SELECT tenant_id, $1, $2, id, $3, created_at FROM domains WHERE name = split_part($2, '@', 2)",
            *(post.room.ids.new("als"), post.box.address, target),
        )
    code, text = await post.bounce(received.sender, AUTO)
    assert f"{code} {text[:5]}" == "550 5.1.1"
    assert await post.inbox() == []


@pytest.mark.covers("mail-server:A6")
async def test_an_answer_for_several_goes_to_those_who_may_have_it(post: Returning) -> None:
    async with FakeMx() as mx:
        await post.send(mx)
        refused = await post.send(mx)
        senders = [received.sender for received in mx.delivered]
    await post.execute("UPDATE messages SET from_address = $1 WHERE public_id = $2", post.box.alias, refused)
    await post.execute("UPDATE addresses SET status = 'retired' WHERE address = $1", post.box.alias)

    def hand_in() -> int:
        with smtplib.SMTP("127.0.0.1", post.places[0].listener.port, timeout=30) as client:
            client.ehlo("mx.example.com")
            client.mail("")
            assert [client.rcpt(to)[0] for to in senders] == [250, 250]
            return client.data(AUTO)[0]

    assert await asyncio.to_thread(hand_in) == 250
    assert len(await post.inbox()) == 1
    assert post.places[0].returns.dropped == {"refused": 1}
