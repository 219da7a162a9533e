from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.clock import ManualClock, SystemClock, truncate_ms

START = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def test_system_clock_is_aware_utc_in_whole_milliseconds() -> None:
    now = SystemClock().now()
    assert now.tzinfo is UTC
    assert now.microsecond % 1000 == 0
    assert SystemClock().monotonic() <= SystemClock().monotonic()


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])))
def test_truncation_keeps_the_moment_to_the_millisecond(moment: datetime) -> None:
    try:
        cut = truncate_ms(moment)
    except OverflowError:
        return
    assert timedelta(0) <= moment - cut < timedelta(milliseconds=1)
    assert cut.utcoffset() == timedelta(0)
    assert truncate_ms(cut) == cut


def test_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="naive"):
        truncate_ms(datetime(2026, 1, 1))


def test_manual_clock_moves_when_told() -> None:
    clock = ManualClock(START)
    for _ in range(4):
        clock.advance(0.0005)
    assert clock.now() == START + timedelta(milliseconds=2)
    assert clock.monotonic() == pytest.approx(0.002)
    clock.set(START - timedelta(hours=1))
    assert clock.now() == START - timedelta(hours=1)
    assert clock.monotonic() == pytest.approx(0.002)
    with pytest.raises(ValueError, match="advances"):
        clock.advance(-1)
