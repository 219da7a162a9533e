import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import Backoff, Route, Stage, backoff_delay, breaker_pause, reply_timeout, retry_delay
from postroom.smtp.schedule import MAX_ATTEMPTS

_fraction = st.floats(0, 1, exclude_max=True)


@pytest.mark.covers("mail-server:C4")
def test_attempts_fall_where_the_page_says() -> None:
    waits = [retry_delay(attempt, 0.5) for attempt in range(1, MAX_ATTEMPTS)]
    hours = [seconds / 3600 for seconds in itertools.accumulate(waits)]
    assert hours[:6] == pytest.approx([1 / 60, 6 / 60, 21 / 60, 1 + 21 / 60, 7 + 21 / 60, 31 + 21 / 60])
    assert hours[-1] == pytest.approx(5 * 24 + 31 + 21 / 60)
    assert retry_delay(3, 0.5, []) == pytest.approx(60)
    assert retry_delay(9, 0.5, [5, 7]) == pytest.approx(7)


@pytest.mark.covers("mail-server:C4")
@given(st.integers(1, 10**6), _fraction)
def test_jitter_is_a_tenth(attempt: int, fraction: float) -> None:
    middle = retry_delay(attempt, 0.5)
    assert 0.9 * middle - 1e-6 <= retry_delay(attempt, fraction) <= 1.1 * middle
    assert retry_delay(attempt, 0) < middle < retry_delay(attempt, 0.999)


@pytest.mark.covers("edge:G3")
def test_backoff_classes() -> None:
    def waits(kind: Backoff) -> list[int]:
        return [round(backoff_delay(kind, count, 0.5)) for count in range(1, 9)]

    assert waits(Backoff.RATE_LIMIT) == [10, 20, 30, 40, 50, 60, 60, 60]
    for kind in (Backoff.QUOTA, Backoff.PAUSED, Backoff.RELAY):
        assert waits(kind) == [60, 120, 240, 480, 960, 1920, 3600, 3600]
        assert backoff_delay(kind, 10**9, 0.5) == pytest.approx(3600)
    assert waits(Backoff.RECEIVER)[:3] == [60, 300, 900]


@pytest.mark.covers("edge:J28")
def test_breaker() -> None:
    assert [breaker_pause(count) for count in (0, 1, 2, 3, 4, 10**9)] == [300, 600, 1200, 2400, 3600, 3600]


@pytest.mark.covers("decisions:B8", "mail-server:C5", "edge:N15")
def test_timeouts() -> None:
    assert [reply_timeout(Route.DIRECT, stage) for stage in (Stage.CONNECT, Stage.RCPT, Stage.FINAL)] == [30, 30, 600]
    for route in (Route.SMARTHOST, Route.TENANT_RELAY):
        assert [reply_timeout(route, stage) for stage in (Stage.CONNECT, Stage.GREETING)] == [10, 10]
        assert [reply_timeout(route, stage) for stage in (Stage.HELLO, Stage.FINAL)] == [30, 60]


def test_nonsense() -> None:
    for fraction in (-0.1, 1.0):
        with pytest.raises(ValueError):
            retry_delay(1, fraction)
    for count in (0, -1):
        with pytest.raises(ValueError):
            retry_delay(count, 0.5)
        with pytest.raises(ValueError):
            backoff_delay(Backoff.RELAY, count, 0.5)
    with pytest.raises(ValueError):
        breaker_pause(-1)
