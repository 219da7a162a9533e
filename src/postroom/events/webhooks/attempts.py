"""SQL of attempts as they are listed (events-webhooks-errors §5.2, §8)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from postroom.db.pool import Connection
from postroom.events.webhooks.models import Attempt, AttemptStatus, Endpoint

_INSERT: Final = """
INSERT INTO webhook_deliveries (public_id, endpoint_id, tenant_id, event_id, event_type, attempt, status, http_status,
  error, duration_ms, next_attempt_at, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
"""
_PAGE: Final = """
SELECT public_id, event_id, event_type, attempt, status, http_status, error, duration_ms, next_attempt_at, created_at
FROM webhook_deliveries
WHERE endpoint_id = $1 AND ($2::text IS NULL OR status = $2) AND ($3::text IS NULL OR event_type = $3)
  AND ($4::timestamptz IS NULL OR created_at >= $4)
  AND ($5::timestamptz IS NULL OR (created_at, public_id) < ($5, $6::text))
ORDER BY created_at DESC, public_id DESC LIMIT $7
"""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which attempts; None: whatever it is. `after` is the earliest moment."""

    status: AttemptStatus | None = None
    event_type: str | None = None
    after: datetime | None = None


async def insert(conn: Connection, endpoint: Endpoint, one: Attempt) -> None:
    """An attempt that was made outside the queue."""
    await conn.execute(
        _INSERT,
        *(one.public_id, endpoint.id, endpoint.tenant_id, one.event_id, one.event_type, one.attempt, one.status.value),
        *(one.http_status, one.error, one.duration_ms, one.next_attempt_at, one.created_at),
    )


async def page(
    conn: Connection, endpoint: Endpoint, filter_: Filter, limit: int, after: tuple[datetime, str] | None
) -> list[Attempt]:
    """Attempts of an endpoint that is in the caller's reach, newest first."""
    rows = await conn.fetch(
        _PAGE,
        *(endpoint.id, None if filter_.status is None else filter_.status.value, filter_.event_type, filter_.after),
        *(after or (None, None)),
        limit,
    )
    return [_attempt(endpoint.public_id, row) for row in rows]


def _attempt(endpoint: str, row: Any) -> Attempt:
    return Attempt(
        public_id=row["public_id"],
        endpoint=endpoint,
        event_id=row["event_id"],
        event_type=row["event_type"],
        attempt=row["attempt"],
        status=AttemptStatus(row["status"]),
        http_status=row["http_status"],
        error=row["error"],
        duration_ms=row["duration_ms"],
        next_attempt_at=row["next_attempt_at"],
        created_at=row["created_at"],
    )
