"""Endpoints, tasks and attempts as others see them (events-webhooks-errors §5, §8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID


class EndpointScope(StrEnum):
    PLATFORM = "platform"
    PARTNER = "partner"
    TENANT = "tenant"


class DisabledReason(StrEnum):
    MANUAL = "manual"
    FAILING = "failing"
    URL_CHANGED = "url_changed"


class AttemptStatus(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"


class Trouble(StrEnum):
    """Why an attempt failed, beside the codes of the HTTP client (§8)."""

    STATUS_4XX = "status_4xx"
    STATUS_410 = "status_410"
    STATUS_5XX = "status_5xx"
    SECRET_UNAVAILABLE = "secret_unavailable"
    EVENT_UNAVAILABLE = "event_unavailable"
    ENDPOINT_DISABLED = "endpoint_disabled"


EVERYTHING: Final = "*"
"""Filter that takes events of every type, those of later versions included."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where events go. `tenant_id` and `partner_id` are keys of rows; both None: the platform's. `identity_ids` None:
    of every identity, and of none."""

    id: int
    public_id: str
    tenant_id: int | None
    tenant_public_id: str | None
    partner_id: int | None
    partner_public_id: str | None
    url: str
    description: str | None
    events: tuple[str, ...]
    identity_ids: tuple[str, ...] | None
    enabled: bool
    disabled_reason: DisabledReason | None
    created_at: datetime
    updated_at: datetime
    after_event: int = 0
    """The key of an event: of those up to it, the endpoint is told by replays alone."""

    @property
    def scope(self) -> EndpointScope:
        if self.tenant_id is not None:
            return EndpointScope.TENANT
        return EndpointScope.PLATFORM if self.partner_id is None else EndpointScope.PARTNER


@dataclass(frozen=True, slots=True)
class Happened:
    """What matching asks about an event. `partner_id` is the tenant's partner, or the one that a platform event is
    about; `about` the public id of the endpoint that a `webhook.disabled` tells of."""

    type: str
    tenant_id: int | None
    partner_id: int | None
    identity: str | None
    is_system: bool
    occurred_at: datetime
    about: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A claimed task: an event, an endpoint, and the number of this attempt. `payload` None: the event is gone."""

    id: int
    token: UUID
    endpoint_id: int
    endpoint: str
    url: str
    tenant_id: int | None
    event_id: str
    event_type: str
    occurred_at: datetime
    attempt: int
    first_attempt: int
    is_older: bool
    """Whether the event was there before the endpoint, which then is told of it by a replay alone."""
    payload: bytes | None = field(repr=False)

    @property
    def number(self) -> int:
        """Of the attempt in its schedule, from 1."""
        return self.attempt - self.first_attempt + 1


@dataclass(frozen=True, slots=True)
class Answered:
    """How an attempt ended. `error` None: the receiver took it."""

    http_status: int | None
    error: str | None
    duration_ms: int | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt as it is listed. `endpoint` and `event_id` are public ids; `duration_ms` None: nothing was sent."""

    public_id: str
    endpoint: str
    event_id: str
    event_type: str
    attempt: int
    status: AttemptStatus
    http_status: int | None
    error: str | None
    duration_ms: int | None
    next_attempt_at: datetime | None
    created_at: datetime
