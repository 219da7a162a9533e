"""What becomes of deliveries and of the message they belong to: pure decisions (outbound §12, §13.3, §20; C2, B8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from postroom.outbound.models import Operation, RouteKind, Status
from postroom.smtp import outcome as smtp
from postroom.smtp.outcome import Outcome, Verdict, expire
from postroom.smtp.schedule import BACKOFF_END, MAX_ATTEMPTS, RETRY_SCHEDULE, Backoff, Route, backoff_delay, retry_delay

MAX_RESPONSE: Final = 512
"""Characters of a reply that are kept (outbound §8)."""
RESOLVED_NOT_SENT: Final = "resolved_not_sent"
LOCAL_FAULT: Final = "local_fault"
"""The reason of a failure of ours that no other try would mend (C2)."""

_SET_ASIDE: Final = frozenset({Status.SUPPRESSED, Status.CANCELED})
_OPEN: Final = frozenset({Status.SUBMITTED, Status.DEFERRED, Status.UNCERTAIN})

_EVENTS: Final = frozenset(
    {Status.DELIVERED, Status.DEFERRED, Status.BOUNCED, Status.FAILED, Status.REJECTED, Status.COMPLAINED}
)
_ATTEMPTS: Final = _EVENTS | {Status.QUEUED, Status.SUBMITTED, Status.UNCERTAIN, Status.SUPPRESSED, Status.CANCELED}

TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = MappingProxyType(
    {
        Status.QUEUED: _ATTEMPTS,
        Status.DEFERRED: _ATTEMPTS,
        Status.SUBMITTED: _EVENTS,
        Status.UNCERTAIN: _EVENTS | {Status.SUBMITTED},
        Status.DELIVERED: frozenset({Status.BOUNCED, Status.COMPLAINED}),
        Status.BOUNCED: frozenset({Status.BOUNCED, Status.COMPLAINED}),
        Status.COMPLAINED: frozenset(),
        Status.FAILED: frozenset(),
        Status.REJECTED: frozenset(),
        Status.SUPPRESSED: frozenset(),
        Status.CANCELED: frozenset(),
    }
)
"""Where an attempt or a later event may lead from each status (G6); anything else is ignored. What an operator may do
is `may`."""


class NotAllowed(Exception):
    """The delivery is in no state for this. `args` is a word for it."""


def roll_up(statuses: Iterable[Status]) -> Status:
    """The status of a message whose deliveries have these: the first rule of outbound §13.3 that holds.

    What was filtered or canceled does not count beside anything else. Raises ValueError for a message to nobody.
    """
    found = frozenset(statuses)
    if not found:
        raise ValueError("a message has recipients")
    alive = found - _SET_ASIDE
    if not alive:
        return Status.CANCELED if Status.CANCELED in found else Status.SUPPRESSED
    for status in (Status.COMPLAINED, Status.QUEUED):
        if status in alive:
            return status
    still_open = alive & _OPEN
    if still_open:
        if still_open == {Status.UNCERTAIN}:
            return Status.UNCERTAIN
        return Status.DEFERRED if Status.DEFERRED in still_open else Status.SUBMITTED
    for status in (Status.BOUNCED, Status.FAILED, Status.REJECTED):
        if status in alive:
            return status
    return Status.DELIVERED


_ENDED: Final = frozenset(Status) - _OPEN - {Status.QUEUED}
_AFTER_THE_END: Final = frozenset(
    {
        (Status.DELIVERED, Status.BOUNCED),
        (Status.DELIVERED, Status.COMPLAINED),
        (Status.BOUNCED, Status.COMPLAINED),
    }
)


def after_event(before: Status, rolled_up: Status) -> Status:
    """The status of a message after an event of outside about what had left: what has ended stays what it is, but for
    what becomes known late of delivered and bounced mail (outbound §13.3)."""
    return rolled_up if before not in _ENDED or (before, rolled_up) in _AFTER_THE_END else before


def may_become(current: Status, new: Status) -> bool:
    """Whether an attempt's result or an event applies to a delivery of status `current`."""
    return new in TRANSITIONS[current]


@dataclass(frozen=True, slots=True)
class Decided:
    """What becomes of one delivery. `next_at`: when it is due again, for another attempt or a scripted event.

    `counts`: an attempt was made that takes one from the schedule. `text` is cut to what is stored.
    """

    status: Status
    reason: str | None = None
    code: int | None = None
    enhanced: str | None = None
    text: str | None = None
    bounce: str | None = None
    next_at: datetime | None = None
    counts: bool = True


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`queue.retry_schedule_secs` and `queue.max_attempts` (C4)."""

    schedule: Sequence[float] = RETRY_SCHEDULE
    max_attempts: int = MAX_ATTEMPTS


DEFAULT_RETRY: Final = RetryPolicy()


@dataclass(frozen=True, slots=True)
class Standing:
    """What deciding needs to know of a delivery. `tries` were counted before; `claims` since the last counted one."""

    status: Status
    route: RouteKind
    tries: int
    claims: int
    accepted_at: datetime


def decide(
    outcome: Outcome,
    standing: Standing,
    *,
    now: datetime,
    random: Callable[[], float],
    policy: RetryPolicy = DEFAULT_RETRY,
) -> Decided:
    """The next state of a delivery whose attempt came to `outcome`, with the time of the next attempt.

    What the receiver puts off is tried `max_attempts` times and then bounced, soft, `delivery_expired` 4.4.7 (B8).
    What waits on our side of the wire has failed a day after the submission, `quota_exhausted` (outbound §12); if the
    receiver put it off before, once the last of its attempts would have been made.
    """
    if outcome.verdict is not Verdict.TEMPORARY:
        return _final(outcome)
    kind = outcome.backoff or Backoff.RECEIVER
    counts = kind in (Backoff.RECEIVER, Backoff.RELAY)
    tries = standing.tries + counts
    if kind is Backoff.RECEIVER:
        if tries >= policy.max_attempts:
            return _final(expire(outcome, Route.DIRECT))
        wait = retry_delay(tries, random(), policy.schedule)
    else:
        wait = backoff_delay(kind, max(1, tries if counts else standing.claims), random())
    at = now + timedelta(seconds=wait)
    deferred = outcome.delivery is smtp.DeliveryStatus.DEFERRED or standing.status is Status.DEFERRED
    if kind is not Backoff.RECEIVER and at > standing.accepted_at + _patience(deferred, policy):
        return _final(expire(outcome, Route.SMARTHOST))
    status = Status.DEFERRED if deferred else Status.QUEUED
    return replace(_final(outcome), status=status, reason=None, next_at=at, counts=counts)


def _patience(deferred: bool, policy: RetryPolicy) -> timedelta:
    """How long after the submission something may wait on our side."""
    if not deferred:
        return timedelta(seconds=BACKOFF_END)
    waits = sum(retry_delay(count, 0.5, policy.schedule) for count in range(1, policy.max_attempts))
    return timedelta(seconds=max(waits, BACKOFF_END))


def tried_until(
    status: Status, tries: int, accepted_at: datetime, next_at: datetime, policy: RetryPolicy = DEFAULT_RETRY
) -> datetime:
    """About when the last attempt is due of a delivery that waits until `next_at`: a day after the submission where we
    wait ourselves, else by the schedule (`decide`), of which the chance in each wait is left out."""
    if status is Status.QUEUED:
        return max(next_at, accepted_at + timedelta(seconds=BACKOFF_END))
    further = range(tries + 1, policy.max_attempts)
    return next_at + timedelta(seconds=sum(retry_delay(count, 0.5, policy.schedule) for count in further))


def as_temporary(outcome: Outcome) -> Outcome:
    """What is uncertain as a temporary failure, for a sender who would rather have it twice than not at all (C5)."""
    if outcome.verdict is not Verdict.UNCERTAIN:
        return outcome
    delivery = smtp.DeliveryStatus.DEFERRED
    return replace(outcome, verdict=Verdict.TEMPORARY, delivery=delivery, reason=None, backoff=Backoff.RECEIVER)


def _final(outcome: Outcome) -> Decided:
    return Decided(
        Status(outcome.delivery.value),
        reason=outcome.reason.value if outcome.reason is not None else None,
        code=outcome.code,
        enhanced=outcome.status,
        text=storable(outcome.text),
        bounce=outcome.bounce.value if outcome.bounce is not None else None,
    )


def storable(text: str) -> str:
    """A peer's words as they are kept: no control characters but the line feed, no lone surrogates, cut."""
    if len(text) <= MAX_RESPONSE and text.isprintable():
        return text  # as it is almost always
    kept = "".join(char if char.isprintable() or char == "\n" else " " for char in text[: 4 * MAX_RESPONSE])
    return kept.encode("utf-8", "replace").decode()[:MAX_RESPONSE]


# -- what an operator may do (C2, C3) ---------------------------------------------------------------------------------


class Action(StrEnum):
    """What an operator does to a delivery. HOLD: it is not tried until RELEASE."""

    RETRY = "retry"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"


_RETRIED: Final = frozenset({Status.FAILED, Status.BOUNCED, Status.REJECTED, Status.CANCELED})


def check_action(action: Action, status: Status, *, claimed: bool, by_agent: bool, bounce_open: bool) -> None:
    """Raises NotAllowed unless an operator may do `action` to a delivery of this status.

    What is being delivered is not canceled. What has ended is tried again only for people and the system (an agent
    sends anew, under a new key), and not while its notice is being written. The unknown is never sent again (G2).
    """
    if action is Action.CANCEL:
        if not status.is_waiting:
            raise NotAllowed("ended")
        if claimed:
            raise NotAllowed("delivering")
    elif action in (Action.HOLD, Action.RELEASE):
        if not status.is_waiting:
            raise NotAllowed("ended")
    elif status.is_waiting:
        if claimed:
            raise NotAllowed("delivering")
    elif status is Status.UNCERTAIN:
        raise NotAllowed("uncertain")
    elif status not in _RETRIED:
        raise NotAllowed("sent")
    elif by_agent:
        raise NotAllowed("agent")
    elif bounce_open:
        raise NotAllowed("bounce_pending")


def is_notified(operation: Operation, envelope_from: str) -> bool:
    """Whether anybody is told by mail what became of such a message: never of one with the null sender (C7)."""
    return envelope_from != "" and operation is not Operation.BOUNCE
