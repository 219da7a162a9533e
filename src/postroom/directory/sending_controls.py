"""What operators stop things with: pauses of tenants and domains (G12, J33), and switches of the deployment. SQL.

Whoever sends reads all of it anew for each message, and again before each attempt. Who is asked all the time whether a
switch is on asks `Switches`, which remembers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from postroom.accounts.audit import HOST, Actor, Entry, record
from postroom.accounts.text import invalid, is_storable
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db.pool import Connection, Database

log = base_log.get("directory")

MAX_REASON: Final = 200
MAX_SHOWN: Final = 100
CHANNEL: Final = "postroom_switches"
LIFE_SECONDS: Final = 30.0
"""How long what was read is gone by, when the hint of a change is lost."""

# What is paused already stays paused since then.
_PAUSE_TENANT: Final = """
UPDATE tenants SET sending_paused_at = coalesce(sending_paused_at, $2),
  sending_pause_reason = coalesce(sending_pause_reason, $3), updated_at = $2
WHERE id = $1 AND status NOT IN ('erasing', 'erased') RETURNING public_id
"""
_RESUME_TENANT: Final = """
UPDATE tenants SET sending_paused_at = NULL, sending_pause_reason = NULL, updated_at = $2
WHERE id = $1 AND status NOT IN ('erasing', 'erased') RETURNING public_id
"""
_DOMAIN: Final = "SELECT kind, public_id, sending_paused_at FROM domains WHERE name = $1 FOR NO KEY UPDATE"
_SET_DOMAIN: Final = "UPDATE domains SET sending_paused_at = $2, updated_at = $3 WHERE name = $1"
_SWITCH: Final = """
INSERT INTO ops_switches (name, state, set_by, reason, set_at) VALUES ($1, $2, 'platform', $3, $4)
ON CONFLICT (name) DO UPDATE SET state = $2, set_by = 'platform', reason = $3, set_at = $4
"""
_SWITCHES: Final = "SELECT name, state, set_by, reason, set_at FROM ops_switches"
_TENANTS: Final = """
SELECT public_id, slug, sending_paused_at AS at, sending_pause_reason AS reason FROM tenants
WHERE sending_paused_at IS NOT NULL ORDER BY sending_paused_at DESC, id DESC LIMIT $1
"""
_DOMAINS: Final = """
SELECT public_id, name, sending_paused_at AS at FROM domains
WHERE sending_paused_at IS NOT NULL ORDER BY sending_paused_at DESC, id DESC LIMIT $1
"""


class PauseReason(StrEnum):
    """Why a tenant sends nothing."""

    ABUSE_THRESHOLD = "abuse_threshold"
    ABUSE_BURST = "abuse_burst"


class Switch(StrEnum):
    """Of the deployment; as `is_on_by_default` unless somebody turned it."""

    READ_ONLY = "read_only"
    """Nothing leaves but what the system itself says; it waits, and nothing is canceled. Only the platform changes
    anything over the API."""
    FREE_SENDING = "free_sending"
    """Off: workspaces that pay nothing send nothing. There are none until somebody bills."""
    EMERGENCY_PRUNE = "emergency_prune"
    """Events are kept for a week alone."""

    @property
    def is_on_by_default(self) -> bool:
        return self is Switch.FREE_SENDING


@dataclass(frozen=True, slots=True)
class SwitchState:
    """How a switch stands; `set_at` is None while nobody has touched it."""

    name: Switch
    on: bool
    set_by: str | None = None
    reason: str | None = None
    set_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """A tenant (`name` is its slug) or a domain that nothing is sent for."""

    public_id: str
    name: str
    at: datetime
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """Everything that stops sending now; of tenants and domains the newest `MAX_SHOWN`."""

    switches: Sequence[SwitchState]
    tenants: Sequence[Paused]
    domains: Sequence[Paused]


Then = Callable[[Connection, SwitchState], Awaitable[None]]
"""What is done in the same transaction as turning a switch."""


class SendingControls:
    """Use cases of operators. Callers have checked that they are."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        ids: IdGenerator,
        changed: Callable[[str], None] = lambda switch: None,
    ) -> None:
        """After a commit `changed` is told the name of a switch that was turned."""
        self._database, self._clock, self._ids, self._changed = database, clock, ids, changed

    async def pause_tenant(self, tenant_id: int, reason: PauseReason = PauseReason.ABUSE_THRESHOLD) -> None:
        """Send nothing for the tenant; what waits goes on waiting. Raises `tenant_not_found`."""
        async with self._database.acquire() as conn:
            done = await conn.fetchval(_PAUSE_TENANT, tenant_id, self._clock.now(), reason.value)
        self._told("sending_paused", "tenant_not_found", done)

    async def resume_tenant(self, tenant_id: int) -> None:
        """Let the tenant send again. Raises `tenant_not_found`."""
        async with self._database.acquire() as conn:
            done = await conn.fetchval(_RESUME_TENANT, tenant_id, self._clock.now())
        self._told("sending_resumed", "tenant_not_found", done)

    async def pause_domain(self, name: str) -> None:
        """Send nothing from the domain. Raises `domain_not_found`; `policy_denied` for the platform domain, which is
        everybody's (G12)."""
        await self._set_domain(name, paused=True)

    async def resume_domain(self, name: str) -> None:
        """Send from the domain again. Raises `domain_not_found`."""
        await self._set_domain(name, paused=False)

    async def _set_domain(self, name: str, *, paused: bool) -> None:
        now = self._clock.now()
        async with self._database.transaction() as conn:
            row = await conn.fetchrow(_DOMAIN, name.lower()) if is_storable(name) else None
            if row is None:
                raise PostroomError("domain_not_found")
            if paused and row["kind"] == "platform":
                raise PostroomError("policy_denied", message="The platform domain is never paused; pause the tenant.")
            if paused != (row["sending_paused_at"] is not None):
                await conn.execute(_SET_DOMAIN, name.lower(), now if paused else None, now)
        self._told("sending_paused" if paused else "sending_resumed", "domain_not_found", row["public_id"])

    def _told(self, what: str, missing: str, public_id: str | None) -> None:
        if public_id is None:
            raise PostroomError(missing)
        log.info(what, of=public_id)

    async def switch(
        self, name: Switch, *, on: bool, reason: str, by: Actor = HOST, then: Then | None = None
    ) -> SwitchState:
        """Turn a switch. `then` is done in the transaction. Raises `invalid_request` without a reason."""
        if not reason.strip() or len(reason) > MAX_REASON or not is_storable(reason):
            raise invalid("reason", f"must have 1 to {MAX_REASON} characters")
        now = self._clock.now()
        state = SwitchState(name, on, "platform", reason, now)
        async with self._database.transaction() as conn:
            await conn.execute(_SWITCH, name.value, "on" if on else "off", reason, now)
            entry = Entry("ops.switch", "switch", name.value, None, {"state": "on" if on else "off", "reason": reason})
            await record(conn, self._ids, now, by, entry)
            if then is not None:
                await then(conn, state)
        log.info("switch_set", switch=name.value, on=on)
        self._changed(name.value)
        return state

    async def switches(self) -> tuple[SwitchState, ...]:
        """How each of them stands."""
        async with self._database.acquire() as conn:
            rows = {row["name"]: row for row in await conn.fetch(_SWITCHES)}
        return tuple(_switch(name, rows.get(name.value)) for name in Switch)

    async def standing(self) -> Standing:
        """What stops sending now."""
        async with self._database.acquire() as conn:
            switches = {row["name"]: row for row in await conn.fetch(_SWITCHES)}
            tenants = await conn.fetch(_TENANTS, MAX_SHOWN)
            domains = await conn.fetch(_DOMAINS, MAX_SHOWN)
        return Standing(
            [_switch(name, switches.get(name.value)) for name in Switch],
            [Paused(row["public_id"], row["slug"], row["at"], row["reason"]) for row in tenants],
            [Paused(row["public_id"], row["name"], row["at"]) for row in domains],
        )


def _switch(name: Switch, row: Any) -> SwitchState:
    if row is None:
        return SwitchState(name, name.is_on_by_default)
    return SwitchState(name, row["state"] == "on", row["set_by"], row["reason"], row["set_at"])


class Switches:
    """Whether switches are on, as one process knows it. `forget` is to be told of changes by any process; until its
    hint comes, and for at most `LIFE_SECONDS` when it is lost, what was read before holds.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._on: Mapping[Switch, bool] = {}
        self._until = float("-inf")
        self._forgotten = 0

    async def is_on(self, switch: Switch) -> bool:
        """Raises what the database raises, when it has to be asked."""
        if self._clock.monotonic() < self._until:
            return self._on[switch]
        forgotten = self._forgotten
        async with self._database.acquire() as conn:
            rows = {row["name"]: row for row in await conn.fetch(_SWITCHES)}
        on = {name: _switch(name, rows.get(name.value)).on for name in Switch}
        # What was forgotten while we read may be what we read.
        if forgotten == self._forgotten:
            self._on, self._until = on, self._clock.monotonic() + LIFE_SECONDS
        return on[switch]

    def forget(self) -> None:
        """Read them again."""
        self._forgotten += 1
        self._until = float("-inf")
