"""Where the time comes from. A clock is always an argument, never read from the system in passing.

Times are aware UTC datetimes of millisecond precision, the precision of the database's ``timestamptz(3)``
(data-model §0): a value that went to the database and came back compares equal.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What the program asks about time."""

    def now(self) -> datetime:
        """Wall-clock time: aware, UTC, truncated to milliseconds. It may step backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never steps backwards. For durations and deadlines."""
        ...


def truncate_ms(moment: datetime) -> datetime:
    """`moment` in UTC without its microseconds below a millisecond. Raises ValueError if it is naive."""
    if moment.tzinfo is None:
        raise ValueError("a naive datetime has no place in time: give it a time zone")
    moment = moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


class SystemClock:
    """The clock of the machine."""

    __slots__ = ()

    def now(self) -> datetime:
        moment = datetime.now(UTC)
        return moment.replace(microsecond=moment.microsecond // 1000 * 1000)

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to: for simulations, replays and deterministic runs.

    `advance` moves both faces; `set` moves only the wall clock, as an administrator or NTP does, so it may go back.
    """

    __slots__ = ("_monotonic", "_now")

    def __init__(self, start: datetime) -> None:
        self._now = truncate_ms(start)
        self._monotonic = 0.0

    def now(self) -> datetime:
        return truncate_ms(self._now)

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move time forward by `seconds` (≥ 0; fractions below a millisecond add up)."""
        if seconds < 0:
            raise ValueError("time only advances; use set() to step the wall clock back")
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def set(self, moment: datetime) -> None:
        """Step the wall clock to `moment`, in either direction."""
        self._now = truncate_ms(moment)
