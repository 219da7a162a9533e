"""Tasks that are not to be sent now, or not at all (§8, §12; J13)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from postroom.accounts.store.reach import partner_status
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.db.pool import Connection, Database
from postroom.events.retention import REPLAY
from postroom.events.webhooks.models import AttemptStatus, Trouble
from postroom.events.webhooks.outcomes import WRITE

BATCH: Final = 500
_STANDS: Final = " ".join(("coalesce(", partner_status("e.tenant_id", "e.partner_id"), ", 'active') = 'active'"))


# $1 now, $2 how many.
_OF_DISABLED: Final = """
SELECT t.id, t.endpoint_id, t.tenant_id, t.event_id, t.event_type, t.attempt
FROM webhook_endpoints e CROSS JOIN LATERAL (
  SELECT t.id FROM webhook_tasks t
  WHERE t.endpoint_id = e.id AND t.next_attempt_at <= $1 AND (t.lease_until IS NULL OR t.lease_until <= $1) LIMIT $2
) AS found JOIN webhook_tasks t ON t.id = found.id
WHERE NOT e.enabled AND t.next_attempt_at <= $1 AND (t.lease_until IS NULL OR t.lease_until <= $1)
LIMIT $2 FOR KEY SHARE OF e SKIP LOCKED FOR UPDATE OF t SKIP LOCKED
"""
_HOLD: Final = """
UPDATE webhook_tasks SET held_at = $1, next_attempt_at = NULL, lease_until = NULL, claim_token = NULL WHERE id IN (
  SELECT t.id FROM partners p
  CROSS JOIN LATERAL (
    SELECT e.id FROM webhook_endpoints e WHERE e.partner_id = p.id
    UNION ALL
    SELECT e.id FROM partner_tenants o JOIN webhook_endpoints e ON e.tenant_id = o.tenant_id WHERE o.partner_id = p.id
  ) e JOIN webhook_tasks t ON t.endpoint_id = e.id
  WHERE p.status <> 'active' AND t.next_attempt_at <= $1 AND (t.lease_until IS NULL OR t.lease_until <= $1)
  ORDER BY t.id LIMIT $2 FOR UPDATE OF t SKIP LOCKED
)
"""
_RESUME: Final = """
UPDATE webhook_tasks SET held_at = NULL, next_attempt_at = $1 WHERE id IN (
  SELECT t.id FROM webhook_tasks t JOIN webhook_endpoints e ON e.id = t.endpoint_id
  WHERE t.held_at IS NOT NULL AND {_STANDS} ORDER BY t.held_at, t.id LIMIT $2 FOR UPDATE OF t SKIP LOCKED
)
""".replace("{_STANDS}", _STANDS)
# $1 the moment since which all may stand still, $2 how many. By when it came to stand (§12): what was replayed late is
# not given up after a minute of a suspension. What retention took meanwhile is said by the attempt itself.
_TOO_LONG: Final = """
SELECT t.id, t.endpoint_id, t.tenant_id, t.event_id, t.event_type, t.attempt
FROM webhook_endpoints e JOIN webhook_tasks t ON t.endpoint_id = e.id
WHERE t.held_at < $1 OR t.parked_at < $1
LIMIT $2 FOR KEY SHARE OF e SKIP LOCKED FOR UPDATE OF t SKIP LOCKED
"""
_DELETE: Final = "DELETE FROM webhook_tasks WHERE id = ANY ($1::bigint[])"


class Upkeep:
    """May run twice, and in several processes."""

    def __init__(self, database: Database, clock: Clock, ids: IdGenerator) -> None:
        self._database, self._clock, self._ids = database, clock, ids

    async def set_aside(self) -> int:
        """Give up what is due at disabled endpoints, which may be replayed; hold what is due at those of suspended
        partners, which costs them no attempt. How many tasks, a bounded number of them."""
        now = self._clock.now()
        async with self._database.transaction() as conn:
            rows = await conn.fetch(_OF_DISABLED, now, BATCH)
            await self._bury(conn, rows, Trouble.ENDPOINT_DISABLED, now)
            held: str = await conn.execute(_HOLD, now, BATCH)
        return len(rows) + int(held.split()[-1])

    async def resume(self) -> int:
        """Let go what was held for a partner who is active again, the longest held first; give up what has stood still
        for longer than the window of replays. How many go on."""
        now = self._clock.now()
        async with self._database.transaction() as conn:
            rows = await conn.fetch(_TOO_LONG, now - REPLAY, BATCH)
            await self._bury(conn, rows, Trouble.EVENT_UNAVAILABLE, now)
            resumed: str = await conn.execute(_RESUME, now, BATCH)
        return int(resumed.split()[-1])

    async def _bury(self, conn: Connection, rows: Sequence[Any], trouble: Trouble, now: datetime) -> None:
        if not rows:
            return
        dead = [
            (
                *(self._ids.new("dlv_"), row["endpoint_id"], row["tenant_id"], row["event_id"], row["event_type"]),
                *(row["attempt"], AttemptStatus.DEAD.value, None, trouble.value, None, None),
            )
            for row in rows
        ]
        await conn.execute(WRITE, now, *map(list, zip(*dead, strict=True)))
        await conn.execute(_DELETE, [row["id"] for row in rows])
