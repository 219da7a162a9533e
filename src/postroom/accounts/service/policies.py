"""Tenants' policies: what holds, who may write what, and the write itself (FR-TEN-4; J23–J27)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from postroom.accounts.audit import Actor
from postroom.accounts.models import Tenant
from postroom.accounts.permissions import Level
from postroom.accounts.policy import TenantPolicy
from postroom.accounts.policy_rules import Stance, Written
from postroom.accounts.store import tenants as store
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.db import Connection, Database

CHANNEL: Final = "postroom_policies"
MAX_ENTRIES: Final = 20_000
LIFE_SECONDS: Final = 30.0
"""How long what was read is gone by, when the hint of a change is lost."""


@dataclass(frozen=True, slots=True)
class PolicyWritten:
    """A policy was written: for `tenant.policy_updated`."""

    tenant: Tenant
    """As it is now."""
    written: Written
    by: Actor
    level: Level


Announce = Callable[[Connection, PolicyWritten], Awaitable[None]]


async def silent(conn: Connection, told: PolicyWritten) -> None:
    """Announces nothing."""


@dataclass(frozen=True, slots=True)
class _Held:
    public_id: str
    policy: TenantPolicy
    until: float


class Policies:
    """What holds for tenants, as one process knows it. For whoever has not read the tenant's row anyway.

    `forget` is to be told of changes by any process; until its hint comes, and for at most `LIFE_SECONDS` when it is
    lost, what was read before holds.
    """

    def __init__(self, db: Database, clock: Clock, stance: Stance, *, max_entries: int = MAX_ENTRIES) -> None:
        self._db, self._clock, self._max = db, clock, max_entries
        self.stance = stance
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._keys: dict[str, int] = {}
        self._forgotten = 0

    async def of(self, tenant_id: int) -> TenantPolicy:
        """What holds for the tenant. Raises `tenant_not_found`."""
        held = self._held.get(tenant_id)
        if held is not None and self._clock.monotonic() < held.until:
            return held.policy
        forgotten = self._forgotten
        async with self._db.acquire() as conn:
            tenant = await store.get_by_id(conn, tenant_id)
        if tenant is None:
            raise PostroomError("tenant_not_found")
        policy = self.stance.effective(tenant.policy)
        # What was forgotten while we read may be what we read.
        if forgotten == self._forgotten:
            self._keep(tenant_id, _Held(tenant.public_id, policy, self._clock.monotonic() + LIFE_SECONDS))
        return policy

    def _keep(self, tenant_id: int, held: _Held) -> None:
        self._held[tenant_id], self._keys[held.public_id] = held, tenant_id
        self._held.move_to_end(tenant_id)
        if len(self._held) > self._max:
            _, oldest = self._held.popitem(last=False)
            del self._keys[oldest.public_id]

    def forget(self, public_id: int | str = "*") -> None:
        """Read the tenant's policy again, or everybody's with `*`."""
        self._forgotten += 1
        if public_id == "*":
            self._held.clear()
            self._keys.clear()
            return
        tenant_id = self._keys.pop(str(public_id), None)
        if tenant_id is not None:
            del self._held[tenant_id]
