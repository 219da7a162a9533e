import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.clock import ManualClock, SystemClock, truncate_ms
from postroom.base.ids import PREFIXES, IdGenerator, is_id, is_ulid

START = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
FORM = re.compile(r"[a-z]{3}_[0-9A-HJKMNP-TV-Z]{26}")
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def number_of(ulid: str) -> int:
    """The 128 bits of an id or a bare ULID."""
    value = 0
    for char in ulid[-26:]:
        value = value * 32 + CROCKFORD.index(char)
    return value


def timestamp_of(ulid: str) -> datetime:
    """When it was made: the first 48 bits are milliseconds."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number_of(ulid) >> 80)


@pytest.mark.parametrize("prefix", sorted(PREFIXES))
def test_form_of_every_prefix(prefix: str) -> None:
    ids = IdGenerator(ManualClock(START))
    made = ids.new(prefix)
    assert FORM.fullmatch(made)
    assert made.startswith(prefix)
    assert ids.new(prefix.removesuffix("_")).startswith(prefix)
    assert is_id(prefix, made)
    assert timestamp_of(made) == START


def test_unknown_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match="prefix"):
        IdGenerator(SystemClock()).new("nope_")
    assert not is_id("nope_", "nope_01J9Z3K8V4QW7X2M5N6P8R0T1Y")


@given(st.lists(st.sampled_from([0.0, 0.0, 0.0004, 0.001, 1.0, -3600.0, -0.001]), max_size=60))
def test_ids_increase_whatever_the_clock_does(steps: list[float]) -> None:
    clock = ManualClock(START)
    ids = IdGenerator(clock)
    made = [ids.new("msg_")]
    for step in steps:
        clock.set(clock.now() + timedelta(seconds=step))
        made.append(ids.new("msg_"))
    assert made == sorted(set(made))


def test_same_millisecond_adds_one() -> None:
    ids = IdGenerator(ManualClock(START), lambda n: (41).to_bytes(n, "big"))
    first, second = ids.ulid(), ids.ulid()
    assert first[:10] == second[:10]
    assert (first[10:], second[10:]) == ("0" * 14 + "19", "0" * 14 + "1A")


def test_overflow_takes_the_next_millisecond() -> None:
    clock = ManualClock(START)
    ids = IdGenerator(clock, lambda n: b"\xff" * n)
    first, second = ids.ulid(), ids.ulid()
    assert first < second
    assert timestamp_of(second) == START + timedelta(milliseconds=1)
    clock.advance(0.001)
    assert ids.ulid() > second


def test_clock_back_an_hour_goes_on_from_the_last_millisecond() -> None:
    clock = ManualClock(START)
    ids = IdGenerator(clock)
    first = ids.ulid()
    clock.set(START - timedelta(hours=1))
    second = ids.ulid()
    assert second > first
    assert timestamp_of(second) == START


def test_threads_never_share_an_id() -> None:
    ids = IdGenerator(SystemClock())
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: [ids.new("evt_") for _ in range(500)], range(8)))
    assert len({made for run in runs for made in run}) == 4000
    assert all(run == sorted(run) for run in runs)


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)), st.binary(min_size=10, max_size=10))
def test_an_id_is_its_moment_and_its_random_bytes(moment: datetime, random: bytes) -> None:
    moment = truncate_ms(moment.replace(tzinfo=UTC))
    ulid = IdGenerator(ManualClock(moment), lambda _: random).ulid()
    assert is_ulid(ulid)
    assert timestamp_of(ulid) == moment
    assert number_of(ulid) % 2**80 == int.from_bytes(random, "big")


@given(st.text(max_size=40))
def test_strangers_are_no_ids(text: str) -> None:
    if not FORM.fullmatch(text):
        assert not is_id("msg_", text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "msg_",
        "msg_01j9z3k8v4qw7x2m5n6p8r0t1y",
        "msg_81J9Z3K8V4QW7X2M5N6P8R0T1Y",
        "msg_01J9Z3K8V4QW7X2M5N6P8R0T1Y\n",
    ],
)
def test_near_misses(text: str) -> None:
    assert not is_id("msg_", text)
