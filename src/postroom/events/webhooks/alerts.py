"""What whoever runs the deployment is told of webhooks and of the outbox (events-webhooks-errors §7, §9; cli-config-ops
C5). Each look costs what is wrong, not what there is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from postroom.accounts.alerts import Condition, Severity
from postroom.db.pool import Connection

FAILING_FROM: Final = 10
"""Failures in a row (§9)."""
MOST_BLOCKED: Final = 20
"""Attempts in an hour that would have reached what is inside."""
LONGEST_LAG: Final = timedelta(minutes=5)
"""Of events of which it is not settled who is told: as long as a dispatch that fails waits at most (§1)."""

# Conditions of partial indexes are written out: with a parameter they would not be recognised.
_FAILING: Final = """
SELECT public_id FROM webhook_endpoints WHERE enabled AND consecutive_failures >= 10 ORDER BY id LIMIT $1
"""
_GIVEN_UP: Final = "SELECT public_id FROM webhook_endpoints WHERE disabled_reason = 'failing' ORDER BY id LIMIT $1"
_SEALED: Final = "SELECT EXISTS (SELECT FROM webhook_tasks WHERE last_error = 'secret_unavailable')"
_BLOCKED: Final = """
SELECT count(*) > $2 FROM (
  SELECT FROM webhook_deliveries WHERE error = 'ssrf_blocked' AND created_at > $1 LIMIT $2 + 1
) AS b
"""
# By the first of them alone: what comes after waits for it.
_LATE: Final = """
SELECT coalesce((
  SELECT e.occurred_at < $1 FROM events e
  WHERE e.id > (SELECT last_id FROM event_dispatch) AND EXISTS (SELECT FROM webhook_endpoints) ORDER BY e.id LIMIT 1
), false)
"""

Look = Callable[[Connection, datetime, int], Awaitable[Sequence[str]]]


def _each(statement: str) -> Look:
    async def look(conn: Connection, now: datetime, most: int) -> Sequence[str]:
        return [row["public_id"] for row in await conn.fetch(statement, most)]

    return look


async def _sealed(conn: Connection, now: datetime, most: int) -> Sequence[str]:
    """While something waits that could not be signed."""
    return ("",) if await conn.fetchval(_SEALED) else ()


async def _blocked(conn: Connection, now: datetime, most: int) -> Sequence[str]:
    return ("",) if await conn.fetchval(_BLOCKED, now - timedelta(hours=1), MOST_BLOCKED) else ()


async def _late(conn: Connection, now: datetime, most: int) -> Sequence[str]:
    return ("",) if await conn.fetchval(_LATE, now - LONGEST_LAG) else ()


CONDITIONS: Final = (
    Condition("webhook_failing", Severity.TICKET, _each(_FAILING)),
    # Those that people switch off are their business.
    Condition("webhook_disabled", Severity.TICKET, _each(_GIVEN_UP)),
    Condition("webhook_secret_unavailable", Severity.PAGE, _sealed),
    Condition("webhook_ssrf_blocked", Severity.TICKET, _blocked),
    Condition("outbox_lag", Severity.PAGE, _late),
)
