"""Telling an endpoint once more what it was told, or what it missed (events-webhooks-errors §10; J4, J15, A15)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from postroom.accounts.audit import Actor, Entry, record
from postroom.accounts.models import Principal
from postroom.accounts.policy_rules import Stance
from postroom.accounts.text import invalid
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.db.pool import Connection, Database
from postroom.events.reading import PARTNER
from postroom.events.registry import NEVER_FANNED_OUT
from postroom.events.retention import REPLAY, kept_of, oldest
from postroom.events.webhooks.dispatch import HAPPENED, happened
from postroom.events.webhooks.endpoints import found, may_read
from postroom.events.webhooks.models import AttemptStatus, Endpoint, EndpointScope
from postroom.events.webhooks.rules import matches

MAX_IDS: Final = 100
MAX_EVENTS: Final = 1000

# $1 key of the tenant or partner, $2 types that are never told again, $3 the oldest moment, $4 the key after which,
# $5 how many. The same as `rules.matches`, so that little is read.
_EVENTS: Final = " ".join(
    (
        *(HAPPENED, "WHERE {scope} AND NOT e.type = ANY ($2::text[]) AND e.occurred_at >= $3 AND e.id > $4"),
        "AND {which} ORDER BY e.id LIMIT $5",
    )
)
_SCOPES: Final = {
    EndpointScope.TENANT: "e.tenant_id = $1::bigint",
    EndpointScope.PARTNER: f"{PARTNER} = $1::bigint",
    EndpointScope.PLATFORM: "$1::bigint IS NULL",
}
_BY_IDS: Final = "e.public_id = ANY ($6::text[])"
# $9: the endpoint, for the status of what it was told.
_BY_WINDOW: Final = """
  ($6::timestamptz IS NULL OR e.occurred_at < $6)
  AND ($7::text[] IS NULL OR e.type = ANY ($7)) AND ($8::text[] IS NULL OR i.public_id = ANY ($8)) AND {status}
"""
_OF_ATTEMPTS: Final = "SELECT FROM webhook_deliveries d WHERE d.endpoint_id = $9 AND d.event_id = e.public_id"
_STATUSES: Final = {
    None: "$9::bigint IS NOT NULL",
    AttemptStatus.SUCCEEDED: f"EXISTS ({_OF_ATTEMPTS} AND d.status = 'succeeded')",
    AttemptStatus.DEAD: (
        f"EXISTS ({_OF_ATTEMPTS} AND d.status = 'dead') AND NOT EXISTS ({_OF_ATTEMPTS} AND d.status = 'succeeded')"
    ),
    AttemptStatus.FAILED: (
        "(SELECT d.status FROM webhook_deliveries d WHERE d.endpoint_id = $9 AND d.event_id = e.public_id"
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
        stance: Stance,
    ) -> None:
        """`queued` is called after a commit that there is work."""
        self._database, self._ids, self._clock, self._queued = database, ids, clock, queued
        self._stance = stance

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

    async def _events(self, conn: Connection, one: Endpoint, asked: Asked, now: datetime) -> list[Any]:
        """What is young enough of what it would be told of, and at most one more than may be."""
        since, values = now - REPLAY, self._values(one, asked)
        which = _BY_IDS
        if isinstance(asked, ByWindow):
            since, which = max(asked.since, since), _BY_WINDOW.replace("{status}", _STATUSES[asked.status])
        if one.tenant_id is not None:
            since = max(since, oldest(now, (await kept_of(conn, self._stance, [one.tenant_id]))[one.tenant_id]))
        statement = _EVENTS.replace("{scope}", _SCOPES[one.scope]).replace("{which}", which)
        whose = one.tenant_id if one.tenant_id is not None else one.partner_id
        found: list[Any] = []
        last, is_more = 0, True
        while is_more and len(found) <= MAX_EVENTS:
            rows = await conn.fetch(statement, whose, sorted(NEVER_FANNED_OUT), since, last, MAX_EVENTS + 1, *values)
            # Of many tenants: each keeps its own as long as it says, and what it keeps no longer goes in a moment.
            tenants = [row["tenant_id"] for row in rows if row["tenant_id"] is not None]
            kept = await kept_of(conn, self._stance, tenants)
            found += [row for row in rows if row["occurred_at"] >= oldest(now, kept.get(row["tenant_id"]))]
            is_more = len(rows) > MAX_EVENTS
            last = rows[-1]["id"] if rows else last
        return found

    @staticmethod
    def _values(one: Endpoint, asked: Asked) -> tuple[object, ...]:
        if isinstance(asked, ByIds):
            return (list(asked.event_ids),)
        types = None if "*" in one.events else list(one.events)
        identities = None if one.identity_ids is None else list(one.identity_ids)
        return asked.until, types, identities, one.id
