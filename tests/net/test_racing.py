"""Which of several addresses is connected to (Happy Eyeballs, RFC 8305), on a loop whose time is moved."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.net.dns_types import IpAddress
from postroom.net.racing import ATTEMPT_DELAY_SECONDS, first_connected, interleaved

T = TypeVar("T")
DELAY_MS: Final = 250


class _Moved(selectors.SelectSelector):
    """Instead of waiting it moves the time."""

    def __init__(self) -> None:
        super().__init__()
        self.ms = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, and for nothing"
        self.ms += timeout * 1000
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.moved = _Moved()
        super().__init__(self.moved)

    def time(self) -> float:
        return self.moved.ms / 1000


@dataclass
class Line:
    """What comes of an attempt: after so many milliseconds a connection, or none."""

    ms: int
    answers: bool
    began: int | None = None
    given_up: int | None = None
    made: list[Connection] = field(default_factory=list)


@dataclass
class Connection:
    to: IpAddress
    closed: bool = False

    def close(self) -> None:
        self.closed = True


def now() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def connecting(lines: Mapping[IpAddress, Line]) -> Callable[[IpAddress], Coroutine[Any, Any, Connection]]:
    async def connect(address: IpAddress) -> Connection:
        line = lines[address]  # KeyError: an address that nobody checked
        assert line.began is None, "twice"
        line.began = now()
        try:
            await asyncio.sleep(line.ms / 1000)
        except asyncio.CancelledError:
            line.given_up = now()
            raise
        if not line.answers:
            raise ConnectionRefusedError
        line.made.append(Connection(address))
        return line.made[0]

    return connect


def on_moved_time(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    loop = _Loop()
    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


def expected(lines: list[Line]) -> tuple[list[int | None], int | None]:
    """By hand, millisecond by millisecond: when each attempt begins, and which one wins."""
    began: list[int | None] = [None] * len(lines)
    over: set[int] = set()
    due = 0
    for at in range(sum(line.ms for line in lines) + DELAY_MS * len(lines) + 1):
        for number, line in enumerate(lines):
            start = began[number]
            if start is None or number in over or at != start + line.ms:
                continue
            if line.answers:
                return began, number
            over.add(number)
            due = min(due, at)
        waiting = [number for number in range(len(lines)) if began[number] is None]
        if waiting and at >= due:
            began[waiting[0]] = at
            due = at + DELAY_MS
    return began, None


# A connection in no time would be decided by the order of the loop's turns; two at once are decided by who began first.
lines_ = st.lists(st.builds(Line, ms=st.integers(1, 1000), answers=st.booleans()), min_size=1, max_size=5)


def _apart(lines: list[Line]) -> bool:
    """No two things in the same millisecond, whose order is nobody's promise."""
    began, _ = expected(lines)
    starts = [start for start in began if start is not None]
    ends = [start + line.ms for start, line in zip(starts, lines, strict=False)]
    return len({*ends, *(start + DELAY_MS for start in starts)}) == len(starts) * 2


@pytest.mark.covers("RFC 8305 §5", "security-privacy:A9")
@example([Line(60_000, False), Line(20, True)])
@example([Line(400, True), Line(200, True)])
@example([Line(300, True), Line(10, False), Line(900, True)])
@given(lines_.filter(_apart))
def test_attempts_are_staggered_and_the_first_to_connect_wins(lines: list[Line]) -> None:
    lines = [Line(line.ms, line.answers) for line in lines]
    addresses: list[IpAddress] = [IPv4Address(number) for number in range(len(lines))]
    by_address = dict(zip(addresses, lines, strict=True))
    starts, winner = expected(lines)

    async def race() -> IpAddress | None:
        try:
            address, connection = await first_connected(addresses, connecting(by_address))
        except OSError:
            address = None
        else:
            assert connection.to == address
            assert not connection.closed
        ended = now()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1, "an attempt goes on"
        assert now() == ended
        return address

    found = on_moved_time(race)
    assert found == (None if winner is None else addresses[winner])
    assert [line.began for line in lines] == starts
    for number, line in enumerate(lines):
        assert all(made.closed == (number != winner) for made in line.made)


def test_the_delay_is_the_recommended_one() -> None:
    assert round(ATTEMPT_DELAY_SECONDS * 1000) == DELAY_MS


@pytest.mark.covers("RFC 8305 §5")
def test_two_at_once_and_only_one_is_left_open() -> None:
    lines = {ip_address("2001:db8::1"): Line(500, True), ip_address("192.0.2.1"): Line(250, True)}

    async def race() -> IpAddress:
        return (await first_connected(list(lines), connecting(lines)))[0]

    found = on_moved_time(race)
    open_ = [made.to for line in lines.values() for made in line.made if not made.closed]
    assert open_ == [found]


@pytest.mark.parametrize("after_ms", [0, 100, 250, 300, 499])
def test_who_is_cancelled_leaves_nothing_open(after_ms: int) -> None:
    lines: dict[IpAddress, Line] = {
        IPv4Address(1): Line(10_000, True),
        IPv4Address(2): Line(250, True),
        IPv4Address(3): Line(9, False),
    }

    async def give_up() -> None:
        race = asyncio.create_task(first_connected(list(lines), connecting(lines)))
        await asyncio.sleep(after_ms / 1000)
        race.cancel()
        with pytest.raises(asyncio.CancelledError):
            await race
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    on_moved_time(give_up)
    assert all(made.closed for line in lines.values() for made in line.made)


def test_a_fault_is_not_taken_for_an_address_that_does_not_answer() -> None:
    async def broken(_: IpAddress) -> Connection:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        on_moved_time(lambda: first_connected([IPv4Address(1), IPv4Address(2)], broken))


def test_no_address() -> None:
    with pytest.raises(OSError):
        on_moved_time(lambda: first_connected([], connecting({})))


@pytest.mark.covers("RFC 8305 §4")
@given(st.lists(st.ip_addresses(v=6), max_size=6), st.lists(st.ip_addresses(v=4), max_size=6))
def test_families_take_turns(v6: list[IPv6Address], v4: list[IPv4Address]) -> None:
    found = interleaved(v6, v4)
    assert [one for one in found if one.version == 6] == v6
    assert [one for one in found if one.version == 4] == v4
    both = min(len(v6), len(v4)) * 2
    assert [one.version for one in found[:both]] == [6, 4] * (both // 2)
