"""What senders are told of mail that still waits: once, after the time that is set, and until when it is tried."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mail.dsn import parse_dsn
from postroom.outbound.models import NewRecipient, Operation, RecipientField, RouteKind, Status
from postroom.outbound.rules import RetryPolicy, Standing, decide, tried_until
from postroom.outbound.settling import Telling
from postroom.smtp.evidence import Evidence, Stage
from postroom.smtp.outcome import classify
from postroom.smtp.reply_reader import ServerReply
from postroom.smtp.schedule import Route
from tests.outbound.fake_mx import FakeMx
from tests.outbound.test_bounces import Post, open_post

HOUR = 3600
BUSY = "451 4.7.1 Greylisted"


@pytest.fixture
async def post(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[Post]:
    async for made in open_post(db, clock, ids, tmp_path, telling=Telling(delay=timedelta(hours=1))):
        yield made


async def submit(post: Post, *recipients: str | NewRecipient, **changes: Any) -> str:
    return await post.room.accept(*recipients, **{"operation": Operation.SUBMISSION, **changes})


async def attempts(post: Post, *after: float) -> None:
    """Attempts so many seconds later each, and the notices that they lead to."""
    for seconds in after:
        post.room.clock.advance(seconds)
        await post.room.dispatcher().run_due()
        await post.writer.run_due()


def to(address: str, *notify: str) -> NewRecipient:
    return NewRecipient(address, RecipientField.ENVELOPE, RouteKind.DIRECT, dsn_notify=notify)


@pytest.mark.covers("mail-server:C7", "RFC 3464 §2.3.9", "RFC 3461 §4.1")
async def test_of_what_waits_for_long_is_told_once(post: Post) -> None:
    async with FakeMx(replies={"RCPT": [BUSY]}) as mx:
        post.room.net.add("example.com", mx)
        message = await submit(post, "anna@example.com", "bob@example.com")
        await attempts(post, 0, 70, 340, 1000)
        assert sum(command.startswith("MAIL") for command in mx.commands) == 4
        assert await post.inbox() == []
        await attempts(post, HOUR + 400)
        ((row, notice),) = await post.inbox()
        assert (row["kind"], notice["Subject"]) == ("dsn", "Delayed: A subject")
        report = parse_dsn(notice.as_bytes())
        assert report is not None
        found = {one.final_recipient: (one.action, one.status) for one in report.recipients}
        assert found == {"anna@example.com": ("delayed", "4.7.1"), "bob@example.com": ("delayed", "4.7.1")}
        words, status, _ = cast(Sequence[EmailMessage], notice.get_payload())
        groups = cast(Sequence[EmailMessage], status.get_payload())
        until = parsedate_to_datetime(str(groups[1]["Will-Retry-Until"]))
        # Five of twelve attempts were made: six hours, then a day each time.
        expected = (await post.room.row(message))["next_attempt_at"] + timedelta(hours=6 * 24)
        assert until == expected.replace(microsecond=0)
        assert f"tried again until {until.astimezone(UTC):%Y-%m-%d %H:%M} UTC" in words.get_content()
        await attempts(post, 7 * HOUR, 25 * HOUR, 25 * HOUR)
        assert len(await post.inbox()) == 1
        assert set((await post.room.deliveries(message)).values()) == {"deferred"}
        # What comes of it in the end is told all the same.
        mx.replies["RCPT"] = ["550 5.1.1 No"]
        await attempts(post, 25 * HOUR)
    assert [mail["Subject"].partition(":")[0] for _, mail in await post.inbox()] == ["Delayed", "Undelivered"]


@pytest.mark.covers("mail-server:C7", "RFC 3461 §4.1")
@pytest.mark.parametrize(
    ("recipient", "changes", "told"),
    [
        (to("anna@example.com", "DELAY"), {}, True),
        (to("anna@example.com", "FAILURE"), {}, False),
        (to("anna@example.com", "NEVER"), {}, False),
        ("anna@example.com", {"operation": Operation.SEND}, True),
        ("anna@example.com", {"envelope_from": ""}, False),
        ("anna@example.com", {"operation": Operation.BOUNCE}, False),
        ("anna@example.com", {"operation": Operation.REDIRECT}, False),
    ],
)
async def test_who_is_told(post: Post, recipient: str | NewRecipient, changes: dict[str, Any], told: bool) -> None:
    async with FakeMx(replies={"RCPT": [BUSY]}) as mx:
        post.room.net.add("example.com", mx)
        await submit(post, recipient, **changes)
        await attempts(post, 0, 2 * HOUR)
    assert len(await post.inbox()) == told


@pytest.mark.parametrize(("notify", "told"), [((), False), (("DELAY",), True)])
async def test_programs_have_events_unless_they_ask(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path, notify: tuple[str, ...], told: bool
) -> None:
    async for post in open_post(db, clock, ids, tmp_path, "agent", telling=Telling(delay=timedelta(hours=1))):
        async with FakeMx(replies={"RCPT": [BUSY]}) as mx:
            post.room.net.add("example.com", mx)
            await submit(post, to("anna@example.com", *notify) if notify else "anna@example.com")
            await attempts(post, 0, 2 * HOUR)
        assert len(await post.inbox()) == told


@pytest.mark.covers("mail-server:C7")
async def test_nobody_is_told_of_delays_unless_it_is_set(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path
) -> None:
    async for post in open_post(db, clock, ids, tmp_path):
        async with FakeMx(replies={"RCPT": [BUSY]}) as mx:
            post.room.net.add("example.com", mx)
            await submit(post, to("anna@example.com", "DELAY"))
            await attempts(post, 0, 30 * HOUR)
        assert await post.tasks() == 0
        assert await post.inbox() == []


async def test_without_notices_of_failures_there_are_those_of_delays(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path
) -> None:
    telling = Telling(outcomes=False, delay=timedelta(hours=1))
    async for post in open_post(db, clock, ids, tmp_path, telling=telling):
        async with FakeMx(replies={"RCPT": [BUSY, BUSY, "550 5.1.1 No"]}) as mx:
            post.room.net.add("example.com", mx)
            await submit(post, "anna@example.com")
            await attempts(post, 0, 2 * HOUR, 2 * HOUR)
        assert [mail["Subject"].partition(":")[0] for _, mail in await post.inbox()] == ["Delayed"]


async def test_what_was_delivered_meanwhile_is_not_told_of(post: Post) -> None:
    async with FakeMx(replies={"anna@example.com": [BUSY, BUSY, "250 Ok"], "bob@example.com": [BUSY]}) as mx:
        post.room.net.add("example.com", mx)
        await submit(post, "anna@example.com", "bob@example.com")
        await attempts(post, 0)
        post.room.clock.advance(2 * HOUR)
        await post.room.dispatcher().run_due()
        post.room.clock.advance(HOUR)
        await post.room.dispatcher().run_due()
        assert await post.tasks() == 2
        await post.writer.run_due()
    ((_, notice),) = await post.inbox()
    report = parse_dsn(notice.as_bytes())
    assert report is not None
    assert [one.final_recipient for one in report.recipients] == ["bob@example.com"]
    assert await post.tasks() == 0


async def test_what_waits_for_the_relay_is_tried_for_a_day(post: Post) -> None:
    message = await submit(post, "anna@example.com", route=RouteKind.SMARTHOST)  # there is no relay any more
    accepted = post.room.clock.now()
    await attempts(post, 0, 2 * HOUR)
    assert await post.room.status(message) == "queued"
    ((_, notice),) = await post.inbox()
    status = cast(Sequence[EmailMessage], notice.get_payload())[1]
    until = cast(Sequence[EmailMessage], status.get_payload())[1]["Will-Retry-Until"]
    assert parsedate_to_datetime(str(until)) == accepted + timedelta(days=1)


@given(
    st.lists(st.integers(1, 100_000), max_size=8),
    st.integers(1, 20),
    st.integers(0, 19),
)
@pytest.mark.covers("mail-server:C4")
def test_the_time_that_is_named_is_that_of_the_last_attempt(schedule: list[int], attempts: int, tries: int) -> None:
    """Against what `decide` does, walked to the end."""
    policy, now = RetryPolicy(schedule, attempts), datetime(2030, 1, 1, tzinfo=UTC)
    later = classify(Evidence(Stage.RCPT, ServerReply(451, ("4.7.1 Later",))), Route.DIRECT)
    next_at, last = now, now
    named = tried_until(Status.DEFERRED, tries, now, now, policy)
    for done in range(tries, attempts):
        last = next_at
        standing = Standing(Status.DEFERRED, RouteKind.DIRECT, done, 1, now)
        decided = decide(later, standing, now=last, random=lambda: 0.5, policy=policy)
        if decided.next_at is None:
            break
        next_at = decided.next_at
    assert abs(named - last) < timedelta(seconds=1)
