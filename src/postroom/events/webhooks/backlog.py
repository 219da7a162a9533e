"""What is still to be done about events, in numbers, for monitoring (events-webhooks-errors §15)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from postroom.db.pool import Database

MOST_COUNTED: Final = 100_000
"""No count goes on beyond: who looks must not burden whoever works."""

# Of the deployment as a whole: numbers, in which no tenant can be told. Nobody waits for dispatch without endpoints.
_LOOK: Final = """
WITH behind AS (
  SELECT e.id, e.occurred_at FROM events e
  WHERE e.id > (SELECT last_id FROM event_dispatch) AND EXISTS (SELECT FROM webhook_endpoints)
  ORDER BY e.id LIMIT $2
), pending AS (
  SELECT t.next_attempt_at <= $1 AS is_due FROM webhook_tasks t WHERE t.next_attempt_at IS NOT NULL LIMIT $2
)
SELECT (SELECT count(*) FROM behind) AS undispatched,
  (SELECT occurred_at FROM behind ORDER BY id LIMIT 1) AS oldest,
  (SELECT count(*) FROM pending WHERE is_due) AS due,
  (SELECT count(*) FROM pending WHERE NOT is_due) AS waiting,
  (SELECT count(*) FROM (SELECT FROM webhook_tasks t WHERE t.held_at IS NOT NULL LIMIT $2) h) AS held,
  (SELECT count(*) FROM (SELECT FROM webhook_tasks t WHERE t.parked_at IS NOT NULL LIMIT $2) p) AS parked
"""


@dataclass(frozen=True, slots=True)
class Backlog:
    """`undispatched`: events of which it is not settled who is told, `oldest_ms` the age of the first of them, 0
    without one. Tasks that are due, wait for their next attempt, are held for a suspended partner, or were given up
    until a person decides. Counts end at MOST_COUNTED."""

    undispatched: int
    oldest_ms: int
    due: int
    waiting: int
    held: int
    parked: int


async def look(database: Database, now: datetime, most: int = MOST_COUNTED) -> Backlog:
    """As it is at `now`."""
    async with database.acquire() as conn:
        row = await conn.fetchrow(_LOOK, now, most)
    assert row is not None, "one row, whatever there is"
    age = 0.0 if row["oldest"] is None else (now - row["oldest"]).total_seconds()
    return Backlog(
        row["undispatched"], max(0, round(age * 1000)), row["due"], row["waiting"], row["held"], row["parked"]
    )
