"""Which events are settled: none of a lower key will come any more (docs/decisions/0071, 0073). Fan-out and streams ask
alike, and only where keys are missing."""

from __future__ import annotations

import asyncio
from typing import Final

from postroom.db.pool import Connection

# A transaction takes this lock on the table before it gets a key of it, and lets go of it after its commit can be seen.
_WRITERS: Final = """
SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND relation = 'events'::regclass AND mode = 'RowExclusiveLock' AND granted
  AND pid <> pg_backend_pid() AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

_LAST_DRAWN: Final = "SELECT coalesce(pg_sequence_last_value('events_id_seq'::regclass), 0)"
_LOOK_SECONDS: Final = 0.003
_LONGEST_LOOK: Final = 0.05
_PATIENCE_LOOKS: Final = 40
"""Looks at transactions that may still write lower keys, some two seconds, before what is behind them waits."""


async def writers(conn: Connection) -> frozenset[str]:
    """The transactions of others that may have got keys of events and have not ended."""
    return frozenset(row["virtualtransaction"] for row in await conn.fetch(_WRITERS))


async def writers_gone(conn: Connection) -> bool:
    """Wait until every transaction has ended that may have got a key by now; False: some of them last."""
    left = await writers(conn)
    pause = _LOOK_SECONDS
    for _ in range(_PATIENCE_LOOKS):
        if not left:
            return True
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_LOOK)
        left &= await writers(conn)
    return not left


async def present(conn: Connection) -> int | None:
    """A key between before and after: all events up to it can be seen once this returns, or never will; all others
    are written after it was called. None: somebody who writes takes too long.
    """
    last = int(await conn.fetchval(_LAST_DRAWN))
    return last if await writers_gone(conn) else None
