"""The outbox's dispatch: who is to be told of what happened, in the order in which it happened (events-webhooks-errors
§1, §6).

Events are never written again. One row of the deployment, the cursor, says up to which id it is settled who is told; it
moves in the transaction that makes the tasks. Ids are drawn when an event is written and seen when its transaction
commits, so that an id below one that is seen may still come. Whoever draws an id holds ROW EXCLUSIVE on `events` from
before it is drawn until the end of the transaction: once all are gone who held it *after* an id was seen, nothing below
that id will come any more. That is asked only where ids are missing (docs/decisions/0071).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.db import errors as db_errors
from postroom.db.pool import Connection, Database
from postroom.events.reading import PARTNER, WHOSE
from postroom.events.settled import writers_gone
from postroom.events.webhooks import store
from postroom.events.webhooks.models import Endpoint, Happened
from postroom.events.webhooks.rules import matches

log = base_log.get("webhooks")

BATCH: Final = 500
POLL_SECONDS: Final = 5.0
"""After which it is looked without a hint while there are endpoints."""
SWEEP_SECONDS: Final = 60.0
"""The same while there are none: only so that the first one begins near the end."""
_FIRST_BACKOFF: Final = 30.0
_LONGEST_BACKOFF: Final = 300.0

_LAST: Final = "SELECT last_id FROM event_dispatch"
_LOCK: Final = "SELECT last_id FROM event_dispatch FOR NO KEY UPDATE SKIP LOCKED"
_MOVE: Final = "UPDATE event_dispatch SET last_id = $1"
_ANY: Final = "SELECT EXISTS (SELECT FROM webhook_endpoints)"
_NEWEST: Final = "SELECT max(id) FROM events"
_SEEN: Final = "SELECT id FROM events WHERE id > $1 ORDER BY id LIMIT $2"
HAPPENED: Final = " ".join(
    (
        *("SELECT e.id, e.public_id, e.type, e.tenant_id,", PARTNER, "AS partner_id, e.occurred_at, e.owner_id,"),
        *("i.public_id AS identity, coalesce(i.is_system, false) AS is_system FROM events e", WHOSE),
    )
)
"""SQL: events as `happened` takes them."""
_EVENTS: Final = f"{HAPPENED} WHERE e.id > $1 AND e.id <= $2 ORDER BY e.id"
_TASKS: Final = """
INSERT INTO webhook_tasks (endpoint_id, tenant_id, event_key, event_id, event_type, occurred_at, next_attempt_at)
SELECT t.endpoint_id, t.tenant_id, t.event_key, t.event_id, t.event_type, t.occurred_at, $1
FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::timestamptz[])
  WITH ORDINALITY AS t (endpoint_id, tenant_id, event_key, event_id, event_type, occurred_at, n)
ORDER BY t.n
ON CONFLICT (endpoint_id, event_key) DO NOTHING
"""


def happened(row: Any) -> Happened:
    """What matching asks, of a row that has the event, its partner and its identity."""
    return Happened(
        type=row["type"],
        tenant_id=row["tenant_id"],
        partner_id=row["partner_id"],
        identity=row["identity"],
        is_system=row["is_system"],
        occurred_at=row["occurred_at"],
        about=row["owner_id"],
    )


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Ids from after `last` to `end` that nobody will add to."""

    last: int
    end: int
    more: bool


class Dispatcher:
    """Any number of processes run one; at any moment one of them dispatches. `dispatched` is told after a commit that
    there is work."""

    def __init__(self, database: Database, clock: Clock, *, dispatched: Callable[[], None]) -> None:
        self._database, self._clock, self._dispatched = database, clock, dispatched
        self._wake = asyncio.Event()
        self._idle = False
        self._backoff = 0.0

    def hinted(self) -> None:
        """Something was committed somewhere. Without endpoints it is nobody's concern."""
        if not self._idle:
            self._wake.set()

    def endpoints_changed(self) -> None:
        """There may be endpoints where there were none."""
        self._idle = False
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. What fails is tried again later, and what happened meanwhile waits (§1)."""
        while True:
            self._wake.clear()
            try:
                while await self.step():
                    pass
                self._backoff = 0.0
            except Exception as error:
                if db_errors.is_transient(error):
                    raise
                self._backoff = min(max(self._backoff * 2, _FIRST_BACKOFF), _LONGEST_BACKOFF)
                log.error("dispatch_failed", error=type(error).__name__, retry_in_seconds=self._backoff)
                await asyncio.sleep(self._backoff)
                continue
            try:
                async with asyncio.timeout(SWEEP_SECONDS if self._idle else POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def step(self) -> bool:
        """Dispatch a batch; whether there may be more."""
        async with self._database.acquire() as conn:
            self._idle = not await conn.fetchval(_ANY)
            stretch = await (self._settled_end(conn) if self._idle else self._settled(conn))
        if stretch is None:
            return False
        async with self._database.transaction() as conn:
            if await conn.fetchval(_LOCK) != stretch.last:
                return False  # another process is at it, and was told what we were told
            if self._idle:
                if await conn.fetchval(_ANY):
                    return True
                made = 0
            else:
                made = await self._make_tasks(conn, stretch)
            await conn.execute(_MOVE, stretch.end)
        if made:
            self._dispatched()
        return stretch.more

    async def _settled_end(self, conn: Connection) -> _Stretch | None:
        last, newest = await self._last(conn), await conn.fetchval(_NEWEST)
        if newest is None or newest <= last or not await writers_gone(conn):
            return None
        return _Stretch(last, newest, more=False)

    @staticmethod
    async def _last(conn: Connection) -> int:
        """Raises LookupError without the cursor's row: nobody would be told of anything, and nobody would know."""
        last = await conn.fetchval(_LAST)
        if last is None:
            raise LookupError("event_dispatch has no row")
        return int(last)

    async def _settled(self, conn: Connection) -> _Stretch | None:
        last = await self._last(conn)
        ids = [row["id"] for row in await conn.fetch(_SEEN, last, BATCH)]
        if not ids:
            return None
        more = len(ids) == BATCH
        if ids[-1] - last == len(ids) or await writers_gone(conn):
            return _Stretch(last, ids[-1], more)
        # Somebody takes their time. What is below the first that is missing need not wait for it.
        whole = next((n for n, key in enumerate(ids) if key != last + n + 1), len(ids))
        return _Stretch(last, last + whole, more=False) if whole else None

    async def _make_tasks(self, conn: Connection, stretch: _Stretch) -> int:
        rows = await conn.fetch(_EVENTS, stretch.last, stretch.end)
        tenants = sorted({row["tenant_id"] for row in rows if row["tenant_id"] is not None})
        partners = sorted({row["partner_id"] for row in rows if row["partner_id"] is not None})
        endpoints = _ByOwner(await store.that_see(conn, tenants, partners))
        tasks = [
            (endpoint.id, row["tenant_id"], row["id"], row["public_id"], row["type"], row["occurred_at"])
            for row in rows
            for endpoint in endpoints.told_of(row["id"], happened(row))
        ]
        if tasks:
            await conn.execute(_TASKS, self._clock.now(), *map(list, zip(*tasks, strict=True)))
        return len(tasks)


class _ByOwner:
    """Endpoints, by whose they are, so that an event is not held against all of a batch's."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self._found: dict[tuple[int | None, int | None], list[Endpoint]] = {}
        for one in endpoints:
            self._found.setdefault((one.tenant_id, one.partner_id), []).append(one)

    def told_of(self, key: int, event: Happened) -> list[Endpoint]:
        """New endpoints are not told of what was before them, but by a replay (§6). What was before is told by keys:
        two nodes' clocks say nothing.
        """
        owners = {(event.tenant_id, None), (None, event.partner_id), (None, None)}
        return [
            one
            for owner in owners
            for one in self._found.get(owner, ())
            if one.after_event < key and matches(one, event)
        ]
