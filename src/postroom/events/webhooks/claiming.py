"""Which tasks are worked on: claims on rows of `webhook_tasks` (decisions B1; events-webhooks-errors §8, §12).

Columns and their meaning are those of `db.claim`. A claim goes from endpoint to endpoint, not from task to task:
however much waits for one of them, the others are reached in as many steps as there are endpoints with work; each is
given no more than it has room for, its first task before any other's second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.accounts.store.reach import partner_status
from postroom.db.claim import ClaimQueue, ClaimSpec
from postroom.db.pool import Connection
from postroom.events.webhooks.models import Task
from postroom.events.webhooks.store import Sealed

LEASE: Final = timedelta(minutes=1)
"""Four times what an attempt may take: so long waits what a killed process had in hand."""
MAX_CLAIMS: Final = 13
"""Claims without a result, after which a person decides (§8, infrastructure)."""
FIRST_ROOM: Final = 4
"""Attempts at a time for an endpoint of which nothing is known yet; one for an endpoint that failed last."""
MAX_ENDPOINTS: Final = 5_000
"""Endpoints with work that one claim looks at; the next begins where it ended."""

QUEUE: Final = ClaimQueue(ClaimSpec(table="webhook_tasks", keys={"id": "bigint"}, lease=LEASE, max_attempts=MAX_CLAIMS))

PLANS: Final = "SET LOCAL plan_cache_mode = 'force_generic_plan'; SET LOCAL enable_seqscan = off; SET LOCAL jit = off"
_STANDS: Final = " ".join(("coalesce(", partner_status("e.tenant_id", "e.partner_id"), ", 'active') = 'active'"))
_NEXT: Final = """
SELECT t.endpoint_id FROM webhook_tasks t WHERE t.next_attempt_at IS NOT NULL AND t.endpoint_id > {last}
ORDER BY t.endpoint_id LIMIT 1
"""
# $1 now, $2 how many, $3 lease until, $4 max claims, $5 endpoints that are at work and $6 how many more each may get,
# $7 how many any other may get, $8 the endpoint to begin after, $9 how many endpoints to look at.
_CLAIM: Final = (
    """
WITH RECURSIVE busy (id) AS (
  ({first}) UNION ALL SELECT ({following}) FROM busy WHERE busy.id IS NOT NULL
), seen AS MATERIALIZED (
  SELECT b.id FROM (SELECT busy.id FROM busy LIMIT $9) b WHERE b.id IS NOT NULL
), room AS MATERIALIZED (
  SELECT r.* FROM unnest($5::bigint[], $6::integer[]) AS r (id, room)
), open AS MATERIALIZED (
  SELECT e.id,
    CASE WHEN e.consecutive_failures = 0 THEN coalesce(r.room, $7) WHEN r.id IS NULL THEN 1 ELSE 0 END AS room
  FROM seen JOIN webhook_endpoints e ON e.id = seen.id LEFT JOIN room r ON r.id = e.id
  WHERE e.enabled AND (e.paused_until IS NULL OR e.paused_until <= $1) AND {stands}
), heads AS MATERIALIZED (
  SELECT h.id, h.next_attempt_at,
    row_number() OVER (PARTITION BY h.endpoint_id ORDER BY h.next_attempt_at, h.id) AS place
  FROM open o CROSS JOIN LATERAL (
    SELECT t.id, t.endpoint_id, t.next_attempt_at FROM webhook_tasks t
    WHERE t.endpoint_id = o.id AND t.next_attempt_at <= $1 AND (t.lease_until IS NULL OR t.lease_until <= $1)
    ORDER BY t.next_attempt_at, t.id LIMIT greatest(o.room, 0)
  ) h
), picked AS MATERIALIZED (
  SELECT t.id, gen_random_uuid() AS token FROM heads h JOIN webhook_tasks t ON t.id = h.id
  WHERE t.next_attempt_at <= $1 AND (t.lease_until IS NULL OR t.lease_until <= $1)
  ORDER BY h.place, h.next_attempt_at, h.id LIMIT $2 FOR NO KEY UPDATE OF t SKIP LOCKED
), taken AS (
  UPDATE webhook_tasks t SET
    attempts = least(t.attempts + 1, $4),
    lease_until = CASE WHEN t.attempts < $4 THEN $3::timestamptz END,
    claim_token = CASE WHEN t.attempts < $4 THEN picked.token END,
    next_attempt_at = CASE WHEN t.attempts < $4 THEN t.next_attempt_at END,
    parked_at = CASE WHEN t.attempts >= $4 THEN $1::timestamptz END,
    last_error = CASE WHEN t.attempts >= $4 THEN coalesce(t.last_error, 'worker_lost') ELSE t.last_error END
  FROM picked WHERE t.id = picked.id
  RETURNING t.id, t.claim_token, t.endpoint_id, t.tenant_id, t.event_key, t.event_id, t.event_type, t.occurred_at,
    t.attempt, t.first_attempt
)
SELECT t.*, e.public_id AS endpoint, e.url, t.event_key <= e.after_event AS is_older,
  s.secret_enc, s.prev_secret_enc, s.prev_expires_at, v.payload,
  (SELECT count(*) FROM seen) AS seen, (SELECT max(seen.id) FROM seen) AS last_seen
FROM (SELECT 1) AS one
LEFT JOIN taken t ON t.claim_token IS NOT NULL
LEFT JOIN webhook_endpoints e ON e.id = t.endpoint_id
LEFT JOIN webhook_secrets s ON s.endpoint_id = t.endpoint_id
LEFT JOIN events v ON v.id = t.event_key AND v.public_id = t.event_id
""".replace("{first}", _NEXT.replace("{last}", "$8"))
    .replace("{following}", _NEXT.replace("{last}", "busy.id"))
    .replace("{stands}", _STANDS)
)
_RELEASE: Final = """
UPDATE webhook_tasks t SET lease_until = NULL, claim_token = NULL, attempts = greatest(t.attempts - 1, 0)
FROM unnest($1::uuid[], $2::bigint[]) AS held (token, id) WHERE t.claim_token = held.token AND t.id = held.id
"""


@dataclass(frozen=True, slots=True)
class Room:
    """How many tasks may be claimed: in all, and for the endpoints that are at work how many more."""

    tasks: int
    known: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Claimed:
    """Tasks with their sealed secrets. `last_seen`: the endpoint to begin after the next time, 0 at the end."""

    tasks: tuple[tuple[Task, Sealed], ...]
    last_seen: int


async def claim(conn: Connection, *, now: datetime, room: Room, after: int = 0) -> Claimed:
    """Take due tasks of endpoints that are enabled, not paused, and of nobody suspended."""
    if room.tasks <= 0:
        return Claimed((), after)
    async with conn.transaction():
        await conn.execute(PLANS)
        rows = await conn.fetch(
            _CLAIM,
            *(now, room.tasks, now + LEASE, MAX_CLAIMS, list(room.known), list(room.known.values()), FIRST_ROOM),
            *(after, MAX_ENDPOINTS),
        )
    is_cut = rows[0]["seen"] >= MAX_ENDPOINTS
    return Claimed(
        tuple((_task(row), _sealed(row)) for row in rows if row["id"] is not None),
        rows[0]["last_seen"] if is_cut else 0,
    )


async def release(conn: Connection, tasks: Sequence[Task]) -> None:
    """Give back what was not told, due as before; the claim does not count."""
    await conn.execute(_RELEASE, [task.token for task in tasks], [task.id for task in tasks])


def _task(row: Any) -> Task:
    return Task(
        id=row["id"],
        token=row["claim_token"],
        endpoint_id=row["endpoint_id"],
        endpoint=row["endpoint"],
        url=row["url"],
        tenant_id=row["tenant_id"],
        event_id=row["event_id"],
        event_type=row["event_type"],
        occurred_at=row["occurred_at"],
        attempt=row["attempt"],
        first_attempt=row["first_attempt"],
        is_older=row["is_older"],
        payload=row["payload"],
    )


def _sealed(row: Any) -> Sealed:
    return Sealed(row["secret_enc"], row["prev_secret_enc"], row["prev_expires_at"])
