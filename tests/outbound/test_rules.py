"""What becomes of deliveries: the roll-up, the table of transitions, waits and their end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.outbound.models import Operation, RouteKind, Status
from postroom.outbound.rules import (
    TRANSITIONS,
    Action,
    NotAllowed,
    RetryPolicy,
    Standing,
    as_temporary,
    check_action,
    decide,
    is_notified,
    may_become,
    roll_up,
    storable,
)
from postroom.smtp.evidence import Evidence, Fault, Stage
from postroom.smtp.outcome import DeliveryStatus, Outcome, Verdict, classify
from postroom.smtp.reply_reader import ServerReply
from postroom.smtp.schedule import Backoff, Route

NOW = datetime(2030, 1, 1, tzinfo=UTC)
STATUSES = st.lists(st.sampled_from(Status), min_size=1, max_size=8)
OPEN = {Status.SUBMITTED, Status.DEFERRED, Status.UNCERTAIN}


@pytest.mark.covers("edge:G6")
@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ("suppressed suppressed", "suppressed"),
        ("canceled suppressed", "canceled"),
        ("delivered suppressed", "delivered"),
        ("delivered queued complained", "complained"),
        ("delivered queued bounced", "queued"),
        ("uncertain delivered bounced", "uncertain"),
        ("uncertain deferred", "deferred"),
        ("uncertain submitted", "submitted"),
        ("deferred submitted", "deferred"),
        ("submitted delivered bounced", "submitted"),
        ("delivered bounced failed rejected", "bounced"),
        ("delivered failed rejected", "failed"),
        ("delivered rejected", "rejected"),
        ("delivered canceled", "delivered"),
    ],
)
def test_roll_up_as_the_table_says(statuses: str, expected: str) -> None:
    assert roll_up(map(Status, statuses.split())) is Status(expected)


@given(statuses=STATUSES)
def test_roll_up_holds_what_it_promises(statuses: list[Status]) -> None:
    whole = roll_up(statuses)
    alive = set(statuses) - {Status.SUPPRESSED, Status.CANCELED}
    assert whole in statuses
    assert roll_up(reversed(statuses)) is whole, "the order of recipients means nothing"
    assert roll_up([*statuses, *statuses]) is whole
    if alive:
        assert roll_up(alive) is whole, "what was filtered means nothing beside others"
        if Status.COMPLAINED not in alive:
            assert whole.is_waiting or whole in OPEN or not alive & (OPEN | {Status.QUEUED})


def test_a_message_to_nobody_has_no_status() -> None:
    with pytest.raises(ValueError):
        roll_up([])


@pytest.mark.covers("edge:G6", "mail-server:C2")
def test_transitions() -> None:
    assert TRANSITIONS.keys() == set(Status)
    # What has ended stays so, but for late news of a bounce or a complaint.
    assert {
        (old.value, new.value) for old in Status for new in TRANSITIONS[old] if old not in OPEN and not old.is_waiting
    } == {
        ("delivered", "bounced"),
        ("delivered", "complained"),
        ("bounced", "bounced"),
        ("bounced", "complained"),
    }
    # Of the unknown nothing leads back to being sent.
    assert not may_become(Status.UNCERTAIN, Status.QUEUED)
    assert not may_become(Status.SUBMITTED, Status.QUEUED)


def reply(code: int) -> Outcome:
    return classify(Evidence(Stage.RCPT, ServerReply(code, ("text",))), Route.DIRECT)


def paused(kind: Backoff) -> Outcome:
    return Outcome(Verdict.TEMPORARY, DeliveryStatus.QUEUED, "4.3.2", None, "later", backoff=kind)


@pytest.mark.covers("mail-server:C4", "decisions:B8")
@given(
    tries=st.integers(0, 30),
    most=st.integers(1, 20),
    schedule=st.lists(st.floats(1, 1e6), max_size=5),
    fraction=st.floats(0, 1, exclude_max=True),
)
def test_the_receivers_later(tries: int, most: int, schedule: list[float], fraction: float) -> None:
    standing = Standing(Status.DEFERRED, RouteKind.DIRECT, tries, 1, NOW - timedelta(days=30))
    policy = RetryPolicy(tuple(schedule), most)
    found = decide(reply(450), standing, now=NOW, random=lambda: fraction, policy=policy)
    if tries + 1 >= most:
        assert (found.status, found.reason, found.bounce) == (Status.BOUNCED, "delivery_expired", "soft")
        assert (found.enhanced, found.code, found.next_at) == ("4.4.7", 450, None)
        return
    assert (found.status, found.counts, found.reason) == (Status.DEFERRED, True, None)
    assert found.next_at is not None
    wait = (found.next_at - NOW).total_seconds()
    expected = schedule[min(tries + 1, len(schedule)) - 1] if schedule else 60
    assert 0.9 * expected - 1e-3 <= wait <= 1.1 * expected + 1e-3


@pytest.mark.covers("edge:G3", "edge:J28")
@given(
    kind=st.sampled_from([Backoff.PAUSED, Backoff.QUOTA, Backoff.RELAY, Backoff.RATE_LIMIT]),
    status=st.sampled_from([Status.QUEUED, Status.DEFERRED]),
    age=st.integers(0, 2 * 86400),
    claims=st.integers(0, 40),
)
def test_what_waits_on_our_side(kind: Backoff, status: Status, age: int, claims: int) -> None:
    standing = Standing(status, RouteKind.SMARTHOST, claims, claims, NOW - timedelta(seconds=age))
    found = decide(paused(kind), standing, now=NOW, random=lambda: 0.5)
    if found.next_at is None:
        assert status is Status.QUEUED
        assert age > 86400 - 3600 * 1.1
        assert (found.status, found.reason, found.bounce) == (Status.FAILED, "quota_exhausted", None)
    else:
        assert (found.status, found.counts) == (status, kind is Backoff.RELAY)
        assert status is Status.DEFERRED or (found.next_at - standing.accepted_at).total_seconds() <= 86400


@pytest.mark.covers("edge:G2")
def test_what_is_not_temporary_is_not_tried_again() -> None:
    standing = Standing(Status.QUEUED, RouteKind.DIRECT, 0, 1, NOW)
    lost = classify(Evidence(Stage.FINAL, fault=Fault.CONNECTION_LOST), Route.DIRECT)
    for outcome in (reply(550), lost):
        found = decide(outcome, standing, now=NOW, random=lambda: 0.5)
        assert (found.next_at, found.counts) == (None, True)
    assert decide(lost, standing, now=NOW, random=lambda: 0.5).status is Status.UNCERTAIN
    again = decide(as_temporary(lost), standing, now=NOW, random=lambda: 0.5)
    assert again.status is Status.DEFERRED
    assert again.next_at is not None
    assert as_temporary(reply(550)) == reply(550)


@given(text=st.text(max_size=3000))
def test_replies_are_kept_in_a_form_that_can_be_stored(text: str) -> None:
    kept = storable(text)
    assert len(kept) <= 512
    assert all(char.isprintable() or char == "\n" for char in kept)
    kept.encode()
    assert storable("550 5.1.1 Ünknown\nuser") == "550 5.1.1 Ünknown\nuser"
    assert storable("a\x00b\ud800c") == "a b c"


@pytest.mark.covers("mail-server:C2", "mail-server:C3")
@pytest.mark.parametrize(
    ("action", "status", "facts", "refused"),
    [
        (Action.CANCEL, Status.QUEUED, {}, None),
        (Action.CANCEL, Status.DEFERRED, {}, None),
        (Action.CANCEL, Status.QUEUED, {"claimed": True}, "delivering"),
        (Action.CANCEL, Status.DELIVERED, {}, "ended"),
        (Action.HOLD, Status.QUEUED, {"claimed": True}, None),
        (Action.RELEASE, Status.BOUNCED, {}, "ended"),
        (Action.RETRY, Status.DEFERRED, {}, None),
        (Action.RETRY, Status.DEFERRED, {"claimed": True}, "delivering"),
        (Action.RETRY, Status.BOUNCED, {}, None),
        (Action.RETRY, Status.CANCELED, {}, None),
        (Action.RETRY, Status.FAILED, {"by_agent": True}, "agent"),
        (Action.RETRY, Status.FAILED, {"bounce_open": True}, "bounce_pending"),
        (Action.RETRY, Status.DELIVERED, {}, "sent"),
        (Action.RETRY, Status.UNCERTAIN, {}, "uncertain"),
    ],
)
def test_what_an_operator_may_do(action: Action, status: Status, facts: dict[str, bool], refused: str | None) -> None:
    arguments = {"claimed": False, "by_agent": False, "bounce_open": False} | facts
    if refused is None:
        check_action(action, status, **arguments)
        return
    with pytest.raises(NotAllowed) as error:
        check_action(action, status, **arguments)
    assert error.value.args == (refused,)


@pytest.mark.covers("mail-server:C7")
def test_who_is_told() -> None:
    assert is_notified(Operation.SUBMISSION, "a@example.com")
    assert not is_notified(Operation.SEND, "")
    assert not is_notified(Operation.BOUNCE, "a@example.com")
