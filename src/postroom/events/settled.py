"""Which events are settled: none of a lower key will come any more (docs/decisions/0071, 0073). Fan-out and streams ask
alike, and only where keys are missing."""

from __future__ import annotations

from typing import Final

from postroom.db.pool import Connection

# A transaction takes this lock on the table before it gets a key of it, and lets go of it after its commit can be seen.
_WRITERS: Final = """
SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND relation = 'events'::regclass AND mode = 'RowExclusiveLock' AND granted
  AND pid <> pg_backend_pid() AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


async def writers(conn: Connection) -> frozenset[str]:
    """The transactions of others that may have got keys of events and have not ended."""
    return frozenset(row["virtualtransaction"] for row in await conn.fetch(_WRITERS))
