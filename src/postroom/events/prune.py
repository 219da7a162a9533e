"""Events older than the replay window go (events-webhooks-errors.md §1, retention)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from postroom.db.pool import Database

MAX_ROWS: Final = 10_000

_PRUNE: Final = """
WITH gone AS (
  DELETE FROM events WHERE id IN (SELECT id FROM events WHERE occurred_at < $1 ORDER BY id LIMIT $2) RETURNING 1
)
SELECT count(*) FROM gone
"""


async def prune_events(database: Database, before: datetime) -> int:
    """Delete events that occurred before `before`, of every tenant, a bounded number; how many."""
    async with database.acquire() as conn:
        return int(await conn.fetchval(_PRUNE, before, MAX_ROWS))
