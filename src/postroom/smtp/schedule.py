"""When to try again, how long to wait for a reply, and when to leave a transport alone: times, all in seconds.

Jitter comes in as `fraction`, a random number in [0, 1) that the caller draws; nothing here draws one or looks at a
clock.
"""

import enum
from collections.abc import Sequence
from typing import Final

from postroom.smtp.evidence import Stage

# mail-server C4
RETRY_SCHEDULE: Final = (60, 300, 900, 3_600, 21_600, 86_400)
MAX_ATTEMPTS: Final = 12
# outbound §12: what holds mail back on our side of the wire is given up this long after the submission.
BACKOFF_END: Final = 86_400
# outbound §10.1, edge J28
BREAKER_THRESHOLD: Final = 3
_BREAKER_FIRST: Final = 300
_BREAKER_MOST: Final = 3_600

_JITTER: Final = 0.1
_EMPTY_SCHEDULE: Final = 60
_CONNECT_TIMEOUT: Final = 30.0
_RELAY_CONNECT_TIMEOUT: Final = 10.0
_COMMAND_TIMEOUT: Final = 30.0
_FINAL_TIMEOUT: Final = 600.0
_RELAY_FINAL_TIMEOUT: Final = 60.0


class Route(enum.Enum):
    """How a message leaves us."""

    DIRECT = "direct"
    """To the recipient's MX."""
    SMARTHOST = "smarthost"
    """By the relay of this deployment."""
    TENANT_RELAY = "smtp"
    """By a relay that a tenant gave for its domain."""


class Backoff(enum.Enum):
    """Why mail waits, and so for how long (outbound §12)."""

    RECEIVER = "receiver"
    """The receiving side said later: the retry schedule, by attempts."""
    RELAY = "relay"
    QUOTA = "quota"
    PAUSED = "paused"
    RATE_LIMIT = "rate_limit"


def _with_jitter(seconds: float, fraction: float) -> float:
    if not 0 <= fraction < 1:
        raise ValueError("the fraction is in [0, 1)")
    return seconds * (1 - _JITTER + 2 * _JITTER * fraction)


def retry_delay(attempts: int, fraction: float, schedule: Sequence[float] = RETRY_SCHEDULE) -> float:
    """How long to wait after the `attempts`-th attempt (1 is the first): the schedule, its last value repeated, ±10 %.

    An empty schedule means a minute (C4). Raises `ValueError` for no attempts.
    """
    if attempts < 1:
        raise ValueError("nothing was attempted")
    wait = schedule[min(attempts, len(schedule)) - 1] if schedule else _EMPTY_SCHEDULE
    return _with_jitter(wait, fraction)


def backoff_delay(kind: Backoff, count: int, fraction: float) -> float:
    """How long the `count`-th wait (1 is the first) of this kind is, ±10 % (outbound §12).

    `RECEIVER` follows `retry_delay` with the default schedule. Raises `ValueError` for a count under 1.
    """
    if count < 1:
        raise ValueError("waits are counted from 1")
    match kind:
        case Backoff.RECEIVER:
            return retry_delay(count, fraction)
        case Backoff.RATE_LIMIT:
            return _with_jitter(min(10 * count, 60), fraction)
        case _:
            # The shift is bounded: a count is not.
            return _with_jitter(min(60 << min(count - 1, 6), 3_600), fraction)


def breaker_pause(open_count: int) -> int:
    """How long a transport is left alone that was found open `open_count` times before: 5 min, doubling to 1 h."""
    if open_count < 0:
        raise ValueError("a count is not negative")
    return min(_BREAKER_FIRST << min(open_count, 4), _BREAKER_MOST)


def reply_timeout(route: Route, stage: Stage) -> float:
    """How long to wait at `stage` (C5, B8): the reply to the final dot of an MX gets what RFC 5321 §4.5.3.2.6 asks.

    A relay is a submission server, and answers sooner or not at all.
    """
    direct = route is Route.DIRECT
    if stage is Stage.FINAL:
        return _FINAL_TIMEOUT if direct else _RELAY_FINAL_TIMEOUT
    if stage <= Stage.GREETING:
        return _CONNECT_TIMEOUT if direct else _RELAY_CONNECT_TIMEOUT
    return _COMMAND_TIMEOUT
