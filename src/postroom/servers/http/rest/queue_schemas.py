"""Schemas of the queue as operators see it (mail-server C1, C2, C9). For the document only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from postroom.outbound.models import QueueState, RouteKind
from postroom.servers.http import fields
from postroom.servers.http.fields import Answer
from postroom.servers.http.rest.message_schemas import DeliveryStatus
from postroom.servers.http.rest.schemas import Count


class QueueDelivery(Answer):
    """A delivery as operators see it (mail-server C1, C2): who, where to and how far, never what is in the mail."""

    id: Annotated[int, Field(ge=1)]
    state: QueueState
    status: Literal[DeliveryStatus, "canceled"]
    tenant_id: fields.TenantId
    identity_id: fields.IdentityId
    message_id: fields.MessageId
    sender: str
    recipient: str
    route: RouteKind
    destination: str
    size: Count
    tries: Count
    reason: str | None
    smtp_code: int | None
    enhanced_code: str | None
    smtp_response: str | None
    remote_mx: str | None
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    created_at: datetime
    updated_at: datetime


class QueueDeliveryPage(Answer):
    data: list[QueueDelivery]
    next_cursor: str | None


class QueueAttempt(Answer):
    attempt: Count
    remote_mx: str | None
    status_code: int | None
    status_text: str | None
    error: str | None
    duration_ms: Count
    created_at: datetime


class QueueDeliveryDetail(QueueDelivery):
    attempts: list[QueueAttempt]


class QueueStatistics(Answer):
    """How much mail is where (mail-server C9): deliveries by state, and since the day began (UTC)."""

    pending: Count
    delivering: Count
    retry: Count
    held: Count
    parked: Count
    delivered: Count
    failed: Count
    uncertain: Count
    cancelled: Count
    suppressed: Count
    bounce_pending: Count
    bounce_processing: Count
    received_today: Count
    sent_today: Count
    next_due_at: datetime | None
