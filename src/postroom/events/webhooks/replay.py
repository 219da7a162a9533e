"""Telling an endpoint once more what it was told, or what it missed (events-webhooks-errors §10; J4, J15, A15)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from postroom.accounts.audit import Actor, Entry, record
from postroom.accounts.models import Principal
from postroom.accounts.policy_rules import Stance
from postroom.accounts.text import invalid
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.db.pool import Connection, Database
from postroom.events.webhooks.dispatch import happened
from postroom.events.webhooks.endpoints import found, may_read
from postroom.events.webhooks.rules import matches
from postroom.events.webhooks.windows import MAX_EVENTS, MAX_IDS, Asked, ByIds, events_of

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
        left out without a word. Raises `webhook_not_found`, `permission_denied`, and `invalid_request`, also for an
        endpoint that is disabled."""
        if isinstance(asked, ByIds) and not 1 <= len(asked.event_ids) <= MAX_IDS:
            raise invalid("event_ids", f"must name from 1 to {MAX_IDS} events")
        now = self._clock.now()
        async with self._database.transaction() as conn:
            one = await found(conn, caller, public_id, lock=True)
            may_read(caller, one.events)
            if not one.enabled:
                # It would be told nothing (§8, 2), whether that is found at once or by a sweep that comes late.
                raise invalid("", "the webhook is disabled: enable it first, then replay")
            events = await events_of(conn, one, asked, now, self._stance)
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
