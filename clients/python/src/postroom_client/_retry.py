"""When a request is sent again: decisions alone, no clock, no sleep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .errors import ApiError, PostroomError, RequestInProgress, TransportError

_OF_GATEWAYS: Final = frozenset({429, 502, 503, 504})
"""Statuses that say "later" even without a word of the server's own: from something in between."""
_SOON: Final = frozenset({"rate_limited", "upstream_rate_limited"})
"""429 that passes by itself within minutes. The others are caps of a day: only when the server says how long."""
_IN_PROGRESS_PAUSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long a request is tried again. Times in seconds.

    Pauses are `first_pause`, doubled each time up to `max_pause`, and up to `jitter` more; or what `Retry-After` says,
    unless it is longer than `max_retry_after`: then the error is raised at once. No attempt begins later than `budget`
    after the first. What still runs under its idempotency key is asked for `in_progress` times.
    """

    attempts: int = 3
    first_pause: float = 0.5
    max_pause: float = 60.0
    jitter: float = 0.25
    max_retry_after: float = 60.0
    budget: float = 600.0
    in_progress: int = 5

    def __post_init__(self) -> None:
        if min(self.attempts, self.first_pause, self.max_pause, self.jitter, self.in_progress) < 0:
            raise ValueError("a retry has no negative numbers")


NEVER: Final = Retry(attempts=0, in_progress=0)


@dataclass(frozen=True, slots=True)
class Unusable:
    """An answer without the server's own words. `retry_after` in seconds, where it said any."""

    error: PostroomError
    status: int
    retry_after: float | None


Failure = ApiError | TransportError | Unusable


class Attempts:
    """Those of one call. `repeatable`: doing it twice is the same as once (RFC 9110 §9.2.2, or an idempotency key)."""

    def __init__(self, retry: Retry, *, repeatable: bool, started: float, random: Callable[[], float]) -> None:
        self._retry = retry
        self._repeatable = repeatable
        self._started = started
        self._random = random
        self._done = 0
        self._waited = 0

    def pause(self, failure: Failure, now: float) -> float | None:
        """Seconds until it is sent again; None when it is not."""
        told = None if isinstance(failure, TransportError) else failure.retry_after
        seconds = self._pause(failure, told)
        if seconds is None or now + seconds > self._started + self._retry.budget:
            return None
        return seconds

    def _pause(self, failure: Failure, told: float | None) -> float | None:
        if not (self._repeatable or (isinstance(failure, TransportError) and not failure.sent)):
            return None
        if told is not None and told > self._retry.max_retry_after:
            return None
        if isinstance(failure, RequestInProgress):
            self._waited += 1
            return None if self._waited > self._retry.in_progress else max(told or 0.0, _IN_PROGRESS_PAUSE)
        if not _passing(failure, told) or self._done >= self._retry.attempts:
            return None
        self._done += 1
        jitter = self._retry.jitter * self._random()
        if told is not None:
            return told + jitter
        return min(self._retry.first_pause * 2.0 ** min(self._done - 1, 60), self._retry.max_pause) + jitter


def _passing(failure: Failure, told: float | None) -> bool:
    """Whether the same may go better soon."""
    if isinstance(failure, TransportError):
        return True
    if isinstance(failure, Unusable):
        return failure.status in _OF_GATEWAYS
    if not failure.retryable:
        return False
    if failure.status >= 500:
        return True
    return told is not None or (failure.status == 429 and failure.code in _SOON)
