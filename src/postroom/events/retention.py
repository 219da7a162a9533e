"""Events, and what was tried with them, go when their tenant says (events-webhooks-errors §1; FR-PRV-2, J30); endpoints
go with whoever they were of.

What holds for a tenant is said by its policy in one place (docs/decisions/0059), so the pass goes from tenant to tenant
and asks it there. It deletes a bounded number of rows at a time: whoever deletes events is waited for by those who read
them (docs/decisions/0071), and is to be waited for briefly. It may run twice, and in several processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.accounts.models import TenantStatus
from postroom.accounts.policy import StoredPolicy
from postroom.accounts.policy_rules import Stance
from postroom.base.clock import Clock
from postroom.db.pool import Connection, Database

WITHOUT_TENANT: Final = timedelta(days=30)
"""For how long events of no tenant are kept."""
REPLAY: Final = timedelta(days=30)
"""How far back one may be told again at most, by when it happened."""
EMERGENCY: Final = timedelta(days=7)
"""For how long anything is kept while `emergency_prune` is on (J30)."""
SECONDS: Final = 5.0
"""After which a run makes room for other work; the next goes on there."""
TENANTS: Final = 500
ROWS: Final = 1000

_TENANTS: Final = """
SELECT id, status, policy_json, policy_ceilings_json, partner_ceilings_json FROM tenants
WHERE id > $1 ORDER BY id LIMIT $2
"""
_POLICIES: Final = """
SELECT id, policy_json, policy_ceilings_json, partner_ceilings_json FROM tenants WHERE id = ANY ($1::bigint[])
"""
# $1 a partner, or null for everybody, $2 the tenant after which, $3 how many. Whose policy has no word about it has
# what the deployment says; what the words mean is asked of the policy, here as elsewhere.
_OTHERWISE: Final = """
SELECT t.id, t.policy_json, t.policy_ceilings_json, t.partner_ceilings_json FROM tenants t
WHERE t.id > $2
  AND ($1::bigint IS NULL OR EXISTS (SELECT FROM partner_tenants w WHERE w.partner_id = $1 AND w.tenant_id = t.id))
  AND position('events_days' IN concat(t.policy_json, t.policy_ceilings_json, t.partner_ceilings_json)) > 0
ORDER BY t.id LIMIT $3
"""
# $1 tenants, $2 the moment of each before which all goes, $3 how many. By an array: the planner takes a LIMIT that it
# does not know for a tenth of the table, and with IN it would read all of it.
_OLD: Final = """
DELETE FROM {table} WHERE id = ANY (ARRAY(
  SELECT old.id FROM unnest($1::bigint[], $2::timestamptz[]) AS t (tenant_id, before)
  CROSS JOIN LATERAL (
    SELECT r.id FROM {table} r WHERE r.tenant_id = t.tenant_id AND r.{moment} < t.before
    ORDER BY r.{moment} LIMIT $3 FOR UPDATE SKIP LOCKED
  ) AS old LIMIT $3
))
"""
# $1 the moment before which all goes, $2 how many: of no tenant.
_OLD_WITHOUT_TENANT: Final = """
DELETE FROM {table} WHERE id = ANY (ARRAY(
  SELECT r.id FROM {table} r WHERE r.tenant_id IS NULL AND r.{moment} < $1
  ORDER BY r.{moment} LIMIT $2 FOR UPDATE SKIP LOCKED
))
"""
KEPT: Final = {"events": "occurred_at", "webhook_deliveries": "created_at"}
"""Tables and the column by which their rows are old."""

# $1 tenants that are gone. A tenant has twenty at most; so has a partner. Each is emptied before it is deleted itself.
_LEFT_BY_TENANTS: Final = "SELECT id FROM webhook_endpoints WHERE tenant_id = ANY ($1::bigint[]) ORDER BY id"
_LEFT_BY_PARTNERS: Final = """
SELECT e.id FROM webhook_endpoints e JOIN partners p ON p.id = e.partner_id
WHERE e.partner_id IS NOT NULL AND p.status = 'deleted' ORDER BY e.id
"""
_OF_ENDPOINT: Final = """
DELETE FROM {table} WHERE id = ANY (ARRAY(SELECT r.id FROM {table} r WHERE r.endpoint_id = $1 LIMIT $2))
"""
_HELD: Final = ("webhook_tasks", "webhook_deliveries")
_ENDPOINT: Final = "DELETE FROM webhook_endpoints WHERE id = $1"


def kept(stance: Stance, row: Any) -> timedelta:
    """For how long the events of a tenant are kept, of its row with the columns of a policy."""
    return timedelta(days=stance.effective(StoredPolicy.of(row)).retention_events_days)


async def kept_of(conn: Connection, stance: Stance, tenants: Iterable[int]) -> Mapping[int, timedelta]:
    """For how long the events of each of these are kept."""
    return {row["id"]: kept(stance, row) for row in await conn.fetch(_POLICIES, sorted(set(tenants)))}


async def shortest(conn: Connection, stance: Stance, partner_id: int | None) -> int:
    """For how many days events are kept by whichever tenant keeps them the shortest: of a partner's, or of all with
    None. Reads all that say so themselves: for what happens seldom.
    """
    found, after = timedelta(days=stance.effective(StoredPolicy()).retention_events_days), 0
    while rows := await conn.fetch(_OTHERWISE, partner_id, after, TENANTS):
        found, after = min(found, *(kept(stance, row) for row in rows)), rows[-1]["id"]
    return found.days


class Retention:
    """`run` is to be called often: it stops when it took long, and goes on where it was."""

    def __init__(self, database: Database, clock: Clock, stance: Stance) -> None:
        self._database, self._clock, self._stance = database, clock, stance
        self._after = 0
        """The tenant up to which the pass has come; 0: it begins."""

    async def run(self, *, is_scarce: bool = False) -> int:
        """Delete what is too old; how many events and attempts. `is_scarce`: nothing is kept beyond EMERGENCY."""
        most = EMERGENCY if is_scarce else timedelta.max
        deadline = self._clock.monotonic() + SECONDS
        total = 0
        if self._after == 0:
            total += await self._of_nobody(most, deadline)
        while True:
            async with self._database.acquire() as conn:
                rows = await conn.fetch(_TENANTS, self._after, TENANTS)
            if not rows:
                self._after = 0
                break
            done, is_through = await self._of_tenants(rows, most, deadline)
            total += done
            if is_through:
                self._after = rows[-1]["id"]
            if self._clock.monotonic() >= deadline:
                break
        return total

    async def _of_nobody(self, most: timedelta, deadline: float) -> int:
        async with self._database.acquire() as conn:
            left = await conn.fetch(_LEFT_BY_PARTNERS)
        await self._end([row["id"] for row in left])
        before, total = self._clock.now() - min(WITHOUT_TENANT, most), 0
        for table, moment in KEPT.items():
            done, _ = await self._purge(_OLD_WITHOUT_TENANT.format(table=table, moment=moment), deadline, before)
            total += done
        return total

    async def _of_tenants(self, rows: list[Any], most: timedelta, deadline: float) -> tuple[int, bool]:
        """What was deleted of these, and whether that is all."""
        gone = [row["id"] for row in rows if TenantStatus(row["status"]).is_gone]
        if gone:
            async with self._database.acquire() as conn:
                left = await conn.fetch(_LEFT_BY_TENANTS, gone)
            await self._end([row["id"] for row in left])
        now, total = self._clock.now(), 0
        tenants = [row["id"] for row in rows]
        before = [now - min(kept(self._stance, row), most) for row in rows]
        for table, moment in KEPT.items():
            statement = _OLD.format(table=table, moment=moment)
            done, is_through = await self._purge(statement, deadline, tenants, before)
            total += done
            if not is_through:
                return total, False
        return total, True

    async def _purge(self, statement: str, deadline: float, *values: object) -> tuple[int, bool]:
        """How many rows went, a bounded number at a time, and whether all did before the deadline."""
        total = 0
        while True:
            done = await self._delete(statement, *values, ROWS)
            total += done
            if done < ROWS:
                return total, True
            if self._clock.monotonic() >= deadline:
                return total, False

    async def _end(self, endpoints: list[int]) -> None:
        """Delete endpoints whose owner is gone, with all that was tried and all that was held for them."""
        for key in endpoints:
            for table in _HELD:
                while await self._delete(_OF_ENDPOINT.format(table=table), key, ROWS) >= ROWS:
                    pass
            await self._delete(_ENDPOINT, key)

    async def _delete(self, statement: str, *values: object) -> int:
        async with self._database.acquire() as conn:
            done: str = await conn.execute(statement, *values)
        return int(done.rpartition(" ")[2])


def oldest(now: datetime, of_tenant: timedelta | None) -> datetime:
    """When the oldest event happened that may be told again: of no tenant with None."""
    return now - min(REPLAY, WITHOUT_TENANT if of_tenant is None else of_tenant)
