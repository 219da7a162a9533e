"""How the deployment stands, for whoever runs it or watches it from outside (cli-config-ops C8). SQL."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from postroom.accounts.alerts import Alert, firing
from postroom.accounts.service.master_keys import MasterKeys
from postroom.base.clock import Clock
from postroom.base.sealing import kid_of
from postroom.base.secrets import Secrets
from postroom.db.pool import Database
from postroom.directory.sending_controls import SendingControls, SwitchState

_CAPACITY: Final = """
SELECT pg_database_size(current_database()) AS db_bytes,
  (SELECT coalesce(sum(used_bytes), 0)::bigint FROM mailboxes) AS blob_bytes,
  (SELECT count(*) FROM tenants WHERE status <> 'erased') AS tenants
"""
MEASURE_SECONDS: Final = 60.0
"""How long what was measured is answered again: adding up all mailboxes is not done for each who asks."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of the master key; `kid` names the key that is in it."""

    name: str
    kid: str | None


@dataclass(frozen=True, slots=True)
class KeySlots:
    """The slots of the master key, and how many values may not be sealed under the active one. No key is in here."""

    active: str
    slots: tuple[Slot, ...]
    remaining: int
    activated_at: datetime | None = None
    resealed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """What is taken. `blob_pct` is of the file system that mail is on; the database has no limit that is known."""

    db_bytes: int
    blob_bytes: int
    blob_pct: float | None
    tenants: int
    measured_at: datetime


@dataclass(frozen=True, slots=True)
class DeploymentStanding:
    switches: tuple[SwitchState, ...]
    master_key: KeySlots
    capacity: Capacity
    firing: tuple[Alert, ...]


class Platform:
    """Tells how the deployment stands. Callers have checked permissions.

    `keys` says what the slots of the master key hold; `data_dir` is where mail is.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        controls: SendingControls,
        data_dir: Path,
        *,
        keys: Callable[[], Awaitable[KeySlots]],
    ) -> None:
        self._database, self._clock, self._controls = database, clock, controls
        self._data_dir, self._keys = data_dir, keys
        self._measured: tuple[float, Capacity] | None = None
        self._measuring = asyncio.Lock()

    async def standing(self) -> DeploymentStanding:
        switches, keys, capacity = await self._controls.switches(), await self._keys(), await self._capacity()
        async with self._database.acquire() as conn:
            return DeploymentStanding(switches, keys, capacity, await firing(conn))

    async def _capacity(self) -> Capacity:
        async with self._measuring:
            held, now = self._measured, self._clock.monotonic()
            if held is not None and now < held[0] + MEASURE_SECONDS:
                return held[1]
            async with self._database.acquire() as conn:
                row = await conn.fetchrow(_CAPACITY)
            assert row is not None
            percent = await asyncio.to_thread(_taken, self._data_dir)
            found = Capacity(row["db_bytes"], row["blob_bytes"], percent, row["tenants"], self._clock.now())
            self._measured = now, found
            return found


def _taken(directory: Path) -> float | None:
    """How much of the file system is taken, in per cent; None if that cannot be said."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return None
    return round(100 * usage.used / usage.total, 1) if usage.total else None


async def slots_of(keys: MasterKeys, secrets: Secrets) -> KeySlots:
    """The slots as the secrets have them now. Raises DatabaseUnavailable."""
    active = secrets.active_slot
    other = "b" if active == "a" else "a"
    kids = {active: kid_of(secrets.master_key), other: None}
    if secrets.other_master_key is not None:
        kids[other] = kid_of(secrets.other_master_key)
    newest = await keys.newest()
    if newest is None or newest.kid != kids[active]:
        newest = None  # another key still seals: this one has not begun
    return KeySlots(
        active,
        tuple(Slot(name, kids[name]) for name in ("a", "b")),
        await keys.remaining(kids[active]),
        None if newest is None else newest.activated_at,
        None if newest is None else newest.resealed_at,
    )
