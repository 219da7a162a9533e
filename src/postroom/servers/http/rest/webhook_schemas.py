"""Schemas of webhooks (rest-api §6.17), and the resources that they describe."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, RootModel, StrictBool, StrictStr, StringConstraints, model_validator

from postroom.events.registry import EventType
from postroom.events.webhooks.models import Endpoint
from postroom.servers import objects
from postroom.servers.http import fields
from postroom.servers.http.fields import Answer, NotNull
from postroom.servers.http.rest.shapes import Json

# That it begins so is checked with everything else about it, and told in words.
Url = Annotated[StrictStr, fields.Storable, Field(json_schema_extra={"format": "uri", "pattern": "^https://"})]
EventFilter = EventType | Literal["*"]
KnownType = Annotated[EventType, fields.OneOf(EventType, "type of event")]
Filters = Annotated[
    list[Annotated[EventFilter, fields.OneOf((*EventType, "*"), "type of event")]],
    Field(min_length=1, max_length=len(EventType) + 1, json_schema_extra={"uniqueItems": True}),
    fields.Unique,
]
Identities = Annotated[list[fields.IdentityId], Field(json_schema_extra={"uniqueItems": True}), fields.Unique]
DeliveryStatus = Literal["succeeded", "failed", "dead"]


class WebhookCreateRequest(fields.RequestBody):
    """Identities None: of every one, and of none."""

    url: Url
    events: Filters
    identity_ids: Identities | None = None
    description: fields.Text | None = None


class WebhookUpdateRequest(fields.RequestBody):
    """With another `url` nothing is sent until a test of it succeeds."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    url: Annotated[Url | None, NotNull()] = None
    events: Annotated[Filters | None, NotNull()] = None
    identity_ids: Identities | None = None
    description: fields.Text | None = None
    enabled: Annotated[StrictBool | None, NotNull()] = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("must have at least one member")
        return self


class ReplayByIds(fields.RequestBody):
    event_ids: Annotated[
        list[fields.EventId], Field(min_length=1, json_schema_extra={"uniqueItems": True}), fields.Unique
    ]


class ReplayByRange(fields.RequestBody):
    """`since` ≤ when it happened < `until`; `status`: how it went for this endpoint so far."""

    since: fields.Time
    until: Annotated[fields.Time | None, NotNull()] = None
    status: Annotated[DeliveryStatus | None, NotNull()] = None


class ReplayRequest(RootModel[ReplayByIds | ReplayByRange]):
    """Events by their ids, or all of a window."""

    @model_validator(mode="before")
    @classmethod
    def _one_way(cls, given: object) -> object:
        if isinstance(given, dict):
            is_window = not {"since", "until", "status"}.isdisjoint(given)
            if "event_ids" in given and is_window:
                raise ValueError("must name events by event_ids or a window by since, not both")
            if "event_ids" not in given and "since" not in given:
                raise ValueError("must name events by event_ids, or a window by since")
        return given


class Webhook(Answer):
    id: fields.WebhookId
    scope: Literal["platform", "partner", "tenant"]
    partner_id: fields.PartnerId | None
    tenant_id: fields.TenantId | None
    url: Annotated[str, Field(json_schema_extra={"format": "uri"})]
    events: list[EventFilter]
    identity_ids: list[fields.IdentityId] | None
    description: str | None
    enabled: bool
    disabled_reason: Literal["manual", "failing", "url_changed"] | None
    created_at: datetime
    updated_at: datetime


class WebhookCreated(Webhook):
    """Exactly one of `secret` and `secret_replayed`: the secret is shown once."""

    secret: Annotated[Annotated[str, StringConstraints(pattern=r"^whsec_[A-Za-z0-9+/]+={0,2}$")] | None, NotNull()] = (
        None
    )
    secret_replayed: Annotated[Literal[False] | None, NotNull()] = None


class WebhookPage(Answer):
    data: list[Webhook]
    next_cursor: str | None


class WebhookDelivery(Answer):
    """An attempt."""

    id: fields.DeliveryId
    webhook_id: fields.WebhookId
    event_id: fields.EventId
    event_type: EventType
    attempt: Annotated[int, Field(ge=1)]
    status: DeliveryStatus
    http_status: int | None
    error: str | None
    duration_ms: Annotated[int, Field(ge=0)] | None
    next_attempt_at: datetime | None
    created_at: datetime


class WebhookDeliveryPage(Answer):
    data: list[WebhookDelivery]
    next_cursor: str | None


class ReplayResponse(Answer):
    queued: Annotated[int, Field(ge=0)]


def created(one: Endpoint, secret: str) -> Json:
    """A WebhookCreated, as it is shown once."""
    return {**objects.webhook(one), "secret": secret}
