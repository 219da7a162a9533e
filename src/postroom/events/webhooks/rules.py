"""Decisions about webhooks, all of them pure (events-webhooks-errors §5.3, §6, §8, §9; edge J4, J15, J29, A15)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from postroom.accounts.permissions import Permission
from postroom.events.registry import DISABLED, NEVER_FANNED_OUT
from postroom.events.webhooks.models import EVERYTHING, Answered, Endpoint, EndpointScope, Happened, Trouble
from postroom.net.guarded_http import Failure, Response

# -- who is told (§6)


def matches(endpoint: Endpoint, event: Happened) -> bool:
    """Whether the endpoint is told of the event, as far as type, identity and scope go; whether it is enabled is not
    asked here."""
    if event.type in NEVER_FANNED_OUT or not _wants(endpoint, event):
        return False
    if event.type == DISABLED and (endpoint.public_id == event.about or endpoint.scope is EndpointScope.TENANT):
        return False
    match endpoint.scope:
        case EndpointScope.PLATFORM:
            return True
        case EndpointScope.PARTNER:
            return not event.is_system and event.partner_id == endpoint.partner_id
        case EndpointScope.TENANT:
            return not event.is_system and event.tenant_id == endpoint.tenant_id


def _wants(endpoint: Endpoint, event: Happened) -> bool:
    if EVERYTHING not in endpoint.events and event.type not in endpoint.events:
        return False
    return endpoint.identity_ids is None or event.identity in endpoint.identity_ids


# -- who may ask for mail (§5.3, J29)


def needed(events: Collection[str]) -> frozenset[Permission]:
    """What one must hold, beside `webhooks:manage`, to have events of these types sent somewhere."""
    found = set()
    if any(one == EVERYTHING or one.startswith("message.") or one == "verification.received" for one in events):
        found.add(Permission.MESSAGES_READ)
    if EVERYTHING in events or "message.quarantined" in events:
        found.add(Permission.QUARANTINE_REVIEW)
    return frozenset(found)


def needed_to_change(before: Endpoint, after: Endpoint, names: Collection[str]) -> frozenset[Permission]:
    """What one must hold, beside `webhooks:manage`, for a change that names these members: whoever may not read mail
    must not have mail sent that was not sent before.

    Of `url` and `events` the rule speaks itself, whatever they are changed to. More identities, and sending anything
    again, are the same by other means. What only narrows or stops takes no more.
    """
    resumes = after.enabled and not before.enabled
    if "url" in names or "events" in names or resumes or _is_wider(before.identity_ids, after.identity_ids):
        return needed(after.events)
    return frozenset()


def _is_wider(before: Collection[str] | None, after: Collection[str] | None) -> bool:
    """None is every identity."""
    return before is not None and (after is None or not set(after) <= set(before))


# -- attempts (§8)

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
WAITS: Final = (
    *(30, 2 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 4 * _HOUR, 8 * _HOUR, 12 * _HOUR, 12 * _HOUR, 12 * _HOUR, 19 * _HOUR),
)
"""Seconds after the first, second … failed attempt; with the jitter taken out 70 h 42 min in all (J4)."""
MAX_ATTEMPTS: Final = len(WAITS) + 1


def wait_after(number: int, drawn: float) -> timedelta | None:
    """How long to wait after the failed attempt of that number, from 1; None after the last. `drawn` is from [0, 1)."""
    if number >= MAX_ATTEMPTS:
        return None
    return timedelta(seconds=round(WAITS[number - 1] * (0.9 + 0.2 * drawn)))


def answered(result: Response | Failure) -> Answered:
    """Any 2xx is a success, and nothing else is."""
    if isinstance(result, Failure):
        return Answered(result.status, result.code.value, result.duration_ms)
    if 200 <= result.status < 300:
        return Answered(result.status, None, result.duration_ms)
    if result.status == 410:
        error = Trouble.STATUS_410
    else:
        error = Trouble.STATUS_4XX if result.status < 500 else Trouble.STATUS_5XX
    return Answered(result.status, error.value, result.duration_ms)


# -- endpoints that fail (§9)

MOST_FAILURES: Final = 100
LEAST_TIME: Final = timedelta(hours=24)
_PAUSE_FROM: Final = 5
_FIRST_PAUSE: Final = timedelta(seconds=10)
_LONGEST_PAUSE: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Health:
    """How an endpoint does: failures since the last success, and when the first of them was."""

    failures: int = 0
    since: datetime | None = None

    def failed(self, now: datetime) -> Health:
        return Health(self.failures + 1, self.since or now)

    def is_lost(self, now: datetime) -> bool:
        """Whether it is to be disabled for failing."""
        return self.failures >= MOST_FAILURES and self.since is not None and now - self.since >= LEAST_TIME

    def paused_until(self, now: datetime) -> datetime | None:
        """Until when nothing is sent to it, so that it keeps no connection from those that answer. Tasks keep their own
        schedules: the first waits of it are longer than this from the fifth failure on."""
        if self.failures < _PAUSE_FROM:
            return None
        doubled: int = 1 << min(self.failures - _PAUSE_FROM, 10)
        return now + min(_FIRST_PAUSE * doubled, _LONGEST_PAUSE)
