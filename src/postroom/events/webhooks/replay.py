"""Telling an endpoint once more what it was told, or what it missed (events-webhooks-errors §10; J4, J15, A15)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.accounts.audit import Actor, Entry, record
from postroom.accounts.models import Principal
from postroom.accounts.text import invalid
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.db.pool import Connection, Database
from postroom.events.webhooks.dispatch import happened
from postroom.events.webhooks.endpoints import found, may_read
from postroom.events.webhooks.models import AttemptStatus, Endpoint, EndpointScope
from postroom.events.webhooks.rules import matches
from postroom.events.webhooks.upkeep import REPLAY_DAYS, kept_days

MAX_IDS: Final = 100
MAX_EVENTS: Final = 1000

_EVENTS: Final = """
SELECT e.id, e.public_id, e.type, e.tenant_id, coalesce(e.partner_id, o.partner_id) AS partner_id, e.occurred_at,
  e.owner_id, i.public_id AS identity, coalesce(i.is_system, false) AS is_system
FROM events e
LEFT JOIN partner_tenants o ON o.tenant_id = e.tenant_id
LEFT JOIN identities i ON i.tenant_id = e.tenant_id AND i.id = e.identity_id
WHERE {scope} AND e.type NOT IN ('webhook.test', 'delivery.updated')
  AND e.occurred_at >= $2::timestamptz - make_interval(days => least(30, {kept})) AND {which}
"""
# $1 key of the tenant or partner, $2 now, $3 days by default. The same as `rules.matches`, so that little is read.
_SCOPES: Final = {
    EndpointScope.TENANT: "e.tenant_id = $1::bigint",
    EndpointScope.PARTNER: "(e.partner_id = $1::bigint OR o.partner_id = $1::bigint)",
    EndpointScope.PLATFORM: "$1::bigint IS NULL",
}
_BY_IDS: Final = "e.public_id = ANY ($4::text[]) ORDER BY e.id"
# $8: the endpoint, for the status of what it was told.
_BY_WINDOW: Final = """
e.occurred_at >= $4 AND ($5::timestamptz IS NULL OR e.occurred_at < $5)
  AND ($6::text[] IS NULL OR e.type = ANY ($6)) AND ($7::text[] IS NULL OR i.public_id = ANY ($7)) AND {status}
ORDER BY e.id LIMIT 1001
"""
_OF_ATTEMPTS: Final = "SELECT FROM webhook_deliveries d WHERE d.endpoint_id = $8 AND d.event_id = e.public_id"
_STATUSES: Final = {
    None: "$8::bigint IS NOT NULL",
    AttemptStatus.SUCCEEDED: f"EXISTS ({_OF_ATTEMPTS} AND d.status = 'succeeded')",
    AttemptStatus.DEAD: (
        f"EXISTS ({_OF_ATTEMPTS} AND d.status = 'dead') AND NOT EXISTS ({_OF_ATTEMPTS} AND d.status = 'succeeded')"
    ),
    AttemptStatus.FAILED: (
        "(SELECT d.status FROM webhook_deliveries d WHERE d.endpoint_id = $8 AND d.event_id = e.public_id"
        " ORDER BY d.attempt DESC LIMIT 1) = 'failed'"
    ),
}
# What waits already begins its schedule anew, at once, after the attempts that were made; what is under way goes on.
_QUEUE: Final = """
INSERT INTO webhook_tasks (endpoint_id, tenant_id, event_key, event_id, event_type, occurred_at, attempt, first_attempt,
  next_attempt_at)
SELECT $1, t.tenant_id, t.event_key, t.event_id, t.event_type, t.occurred_at, n.attempt, n.attempt, $2
FROM unnest($3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::timestamptz[]) WITH ORDINALITY
  AS t (tenant_id, event_key, event_id, event_type, occurred_at, n)
CROSS JOIN LATERAL (
  SELECT 1 + coalesce(max(d.attempt), 0) AS attempt FROM webhook_deliveries d
  WHERE d.endpoint_id = $1 AND d.event_id = t.event_id
) n
ORDER BY t.n
ON CONFLICT (endpoint_id, event_key) DO UPDATE SET
  first_attempt = webhook_tasks.attempt, attempts = 0, parked_at = NULL,
  next_attempt_at = CASE WHEN webhook_tasks.held_at IS NULL THEN excluded.next_attempt_at END
"""


@dataclass(frozen=True, slots=True)
class ByIds:
    event_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ByWindow:
    """`since` ≤ when it happened < `until`."""

    since: datetime
    until: datetime | None = None
    status: AttemptStatus | None = None


Asked = ByIds | ByWindow
Then = Callable[[Connection, int], Awaitable[None]]


class Replays:
    """Callers have checked `webhooks:manage`."""

    def __init__(
        self,
        database: Database,
        ids: IdGenerator,
        clock: Clock,
        *,
        queued: Callable[[], None] = lambda: None,
        events_days: int = REPLAY_DAYS,
    ) -> None:
        """`queued` is called after a commit that there is work."""
        self._database, self._ids, self._clock, self._queued = database, ids, clock, queued
        self._days = events_days

    async def replay(
        self, caller: Principal | None, public_id: str, asked: Asked, *, by: Actor, then: Then | None = None
    ) -> int:
        """Queue again what the endpoint would be told of now, of what is kept and not too old; how many. Others are
        left out without a word. Raises `webhook_not_found`, `permission_denied`, `invalid_request`."""
        if isinstance(asked, ByIds) and not 1 <= len(asked.event_ids) <= MAX_IDS:
            raise invalid("event_ids", f"must name from 1 to {MAX_IDS} events")
        now = self._clock.now()
        async with self._database.transaction() as conn:
            one = await found(conn, caller, public_id, lock=True)
            may_read(caller, one.events)
            events = await self._events(conn, one, asked, now)
            if len(events) > MAX_EVENTS:
                raise invalid("since", f"more than {MAX_EVENTS} events: ask for a narrower window")
            rows = [row for row in events if matches(one, happened(row))]
            if rows:
                tasks = [
                    (row["tenant_id"], row["id"], row["public_id"], row["type"], row["occurred_at"]) for row in rows
                ]
                await conn.execute(_QUEUE, one.id, now, *map(list, zip(*tasks, strict=True)))
            entry = Entry("webhook.replay", "webhook", one.public_id, one.tenant_id, {"queued": len(rows)})
            await record(conn, self._ids, now, by, entry)
            if then is not None:
                await then(conn, len(rows))
        if rows:
            self._queued()
        return len(rows)

    async def _events(self, conn: Connection, one: Endpoint, asked: Asked, now: datetime) -> Sequence[Any]:
        first = (one.tenant_id if one.tenant_id is not None else one.partner_id, now, self._days)
        if isinstance(asked, ByIds):
            return await conn.fetch(_statement(one, _BY_IDS), *first, list(asked.event_ids))
        since = max(asked.since, now - timedelta(days=REPLAY_DAYS))
        types = None if "*" in one.events else list(one.events)
        identities = None if one.identity_ids is None else list(one.identity_ids)
        which = _BY_WINDOW.replace("{status}", _STATUSES[asked.status])
        return await conn.fetch(_statement(one, which), *first, since, asked.until, types, identities, one.id)


def _statement(one: Endpoint, which: str) -> str:
    text = _EVENTS.replace("{scope}", _SCOPES[one.scope]).replace("{kept}", kept_days("e.tenant_id", "$3::integer"))
    return text.replace("{which}", which)
