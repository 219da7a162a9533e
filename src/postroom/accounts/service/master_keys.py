"""The master keys over time (security-privacy A6.3): which one seals, who holds which, and how far sealing anew is.

A process seals only with a key that every process holds: it takes up another one when all that run have it, and goes
on with the one before until then, whatever its secrets say. So each server process says which keys it has, then looks
whether its secrets changed: whoever adds a key finds either the process that lacks it, or the process finds the key.
The database knows ids of keys and no key.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.accounts.audit import HOST, Entry, record
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring, kid_of
from postroom.base.secrets import Secrets
from postroom.base.settings import SettingsError
from postroom.db import Connection, Database
from postroom.db.reseal import Swept, look, opens_any, remaining, standing, sweep

log = base_log.get("master_keys")

A_RUN: Final = 500
"""Values that one run of the periodic work seals anew, about."""
LOOK_AGAIN: Final = timedelta(hours=1)
"""How often it is looked for a straggler, which a command sealed that ran while the key changed; and whether what no
key opened opens by now."""
LIVE: Final = timedelta(seconds=45)
"""A process that said nothing for longer is gone."""
FORGOTTEN: Final = timedelta(days=1)
LEAVE_SECONDS: Final = 2.0

# Instants of holders are the database's: they are compared across machines.
_REPORT: Final = """
INSERT INTO master_key_holders (id, node, active, kids, seen_at) VALUES ($1, $2, $3, $4, now())
ON CONFLICT (id) DO UPDATE SET active = $3, kids = $4, seen_at = now()
"""
_LEAVE: Final = "DELETE FROM master_key_holders WHERE id = $1"
_FORGET: Final = "DELETE FROM master_key_holders WHERE seen_at < now() - $1::interval"
_HOLDERS: Final = """
SELECT node, active, kids, seen_at FROM master_key_holders WHERE seen_at >= now() - $1::interval
ORDER BY node, id LIMIT 1000
"""
_NEWEST: Final = """
SELECT kid, activated_at, resealed_at, checked_at FROM master_keys ORDER BY activated_at DESC, kid LIMIT 1
"""
_KNOWN: Final = "SELECT kid FROM master_keys WHERE kid = ANY ($1::text[])"
_FIRST: Final = """
INSERT INTO master_keys (kid, activated_at, resealed_at) SELECT $1, $2, $3 WHERE NOT EXISTS (SELECT FROM master_keys)
ON CONFLICT DO NOTHING
"""
# One after the other: of two that activate at once, the second finds that it is done.
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('master keys', 0))"
_ACTIVATE: Final = """
INSERT INTO master_keys (kid, activated_at) VALUES ($1, $2)
ON CONFLICT (kid) DO UPDATE SET activated_at = $2, resealed_at = NULL, checked_at = NULL
"""
_RESEALED: Final = """
UPDATE master_keys SET resealed_at = $2, checked_at = $2 WHERE kid = $1 AND resealed_at IS NULL RETURNING kid
"""
_CHECKED: Final = "UPDATE master_keys SET checked_at = $2 WHERE kid = $1"


@dataclass(frozen=True, slots=True)
class ActiveKey:
    """The key that seals, as the deployment knows it. `resealed_at`: when nothing was left under another one."""

    kid: str
    activated_at: datetime
    resealed_at: datetime | None
    checked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Holder:
    """A server process that runs, and the keys that it has."""

    node: str
    active: str
    kids: tuple[str, ...]
    seen_at: datetime


class MasterKeys:
    """As one process sees them. `node` names the machine."""

    def __init__(self, db: Database, ids: IdGenerator, clock: Clock, keyring: Keyring, *, node: str) -> None:
        self._db, self._ids, self._clock, self._keyring, self._node = db, ids, clock, keyring, node
        self._holder = ids.ulid()

    # -- at the start --------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """That the keys are those of this database; the one that seals there seals here, until `follow` says otherwise.
        Raises SettingsError, which names ids of keys alone.
        """
        newest = await self.newest()
        if newest is None:
            await self._begin()
        elif newest.kid in self._keyring.kids:
            self._keyring.prefer(newest.kid)
        elif await self._is_needed(newest.kid):
            raise SettingsError(
                [
                    f"POSTROOM_MASTER_KEY: what is stored is sealed under the master key {newest.kid}, and the slots "
                    f"hold {' and '.join(self._keyring.kids)}: put back the secrets of this deployment"
                ]
            )

    async def _begin(self) -> None:
        """A database that knows no key yet: new, or of before. Nothing was rotated, so the audit log is not told."""
        active = self._keyring.active
        if not await opens_any(self._db, self._keyring):
            raise SettingsError(
                [
                    f"POSTROOM_MASTER_KEY: the master key {active} opens nothing of what is stored: put back the "
                    "secrets of this deployment"
                ]
            )
        now = self._clock.now()
        done = None if await remaining(self._db, active) else now
        async with self._db.transaction() as conn:
            await conn.execute(_LOCK)
            await conn.execute(_FIRST, active, now, done)

    async def _is_needed(self, kid: str) -> bool:
        return any(kinds.get(kid) for kinds in (await standing(self._db)).values())

    # -- who holds what ------------------------------------------------------------------------------------------------

    async def follow(self, reload: Callable[[], Secrets]) -> None:
        """Say which keys this process has, then take those that its secrets name by now. To be called every few
        seconds while it serves; secrets that cannot be read change nothing, nor do those that lack the key that what
        is stored is sealed under: a start would refuse them, too."""
        await self._report()
        try:
            secrets = await asyncio.to_thread(reload)
        except (SettingsError, OSError) as error:
            log.error("secrets_not_read_again", error=type(error).__name__)
            return
        newest = await self.newest()
        ring = self._keyring
        before, selected = ring.kids, kid_of(secrets.master_key)
        named = [kid_of(key) for key in (secrets.master_key, secrets.other_master_key) if key is not None]
        lost = None if newest is None or newest.kid not in before or newest.kid in named else newest.kid
        if lost is not None and await self._is_needed(lost):
            log.error("master_key_taken_away", master_kid=lost)
            return
        # The key that seals goes on sealing if it is still there.
        first = selected if newest is None or ring.active == selected else newest.kid
        ring.replace(secrets.master_key, secrets.other_master_key, first=first)
        if ring.kids != before:
            await self._report()
        if newest is None or selected != newest.kid or ring.active != selected:
            # Also the one that seals already: a process may have come, or dropped a key, since.
            is_everywhere = not lacking(await self.holders(), selected, active=False)
            better = selected if is_everywhere or newest is None else newest.kid
            if ring.active != better and better in ring.kids:
                ring.prefer(better)
                await self._report()
        if ring.kids != before:
            log.info("master_keys_changed", active=ring.active, count=len(ring.kids))

    async def leave(self) -> None:
        """This process ends. Nobody waits long for that: it is noticed anyway."""
        async with self._db.acquire(timeout=LEAVE_SECONDS) as conn:
            await conn.execute(_LEAVE, self._holder, timeout=LEAVE_SECONDS)

    async def holders(self) -> tuple[Holder, ...]:
        """The server processes that run."""
        async with self._db.acquire() as conn:
            rows = await conn.fetch(_HOLDERS, LIVE)
        return tuple(Holder(row["node"], row["active"], tuple(row["kids"]), row["seen_at"]) for row in rows)

    async def _report(self) -> None:
        async with self._db.acquire() as conn:
            await conn.execute(_REPORT, self._holder, self._node, self._keyring.active, list(self._keyring.kids))

    # -- which one seals -----------------------------------------------------------------------------------------------

    async def newest(self) -> ActiveKey | None:
        """The key that seals; None for a database that knows none yet."""
        async with self._db.acquire() as conn:
            return await _newest(conn)

    async def has_sealed(self, kid: str) -> bool:
        """Whether that key was ever the active one."""
        async with self._db.acquire() as conn:
            return bool(await conn.fetch(_KNOWN, [kid]))

    async def remaining(self, kid: str | None = None) -> int:
        """Values that are not under that key; None: this process's active one."""
        return await remaining(self._db, kid or self._keyring.active)

    async def standing(self) -> Mapping[str, Mapping[str | None, int]]:
        """As `db.reseal.standing`."""
        return await standing(self._db)

    async def broken(self, told: Callable[[int], None]) -> Mapping[str, int]:
        """Open each value once: how many of which column do not open, though their key is held, or they name none.
        `told` hears how many were looked at. Takes some seconds for each million.
        """
        found: Counter[str] = Counter()
        done = 0
        async for page in look(self._db, self._keyring):
            done += page.values
            found[page.column.name] += page.broken
            told(done)
        return {column: count for column, count in found.items() if count}

    async def activate(self) -> bool:
        """From now on this process's active key is the deployment's; whether it was not before."""
        kid, now = self._keyring.active, self._clock.now()
        async with self._db.transaction() as conn:
            await conn.execute(_LOCK)
            before = await _newest(conn)
            if before is not None and before.kid == kid:
                return False
            # Later than the one before, whatever the clock says.
            at = now if before is None else max(now, before.activated_at + timedelta(milliseconds=1))
            await conn.execute(_ACTIVATE, kid, at)
            await record(conn, self._ids, now, HOST, Entry("master_key.activated", "master_key", kid))
        log.info("master_key_activated", kid=kid)
        return True

    async def settle(self, stuck: int = 0) -> int:
        """Write down how far it is; how many values are left. `stuck` of them no key opens."""
        kid, now = self._keyring.active, self._clock.now()
        left = await remaining(self._db, kid)
        async with self._db.transaction() as conn:
            if left:
                await conn.execute(_CHECKED, kid, now if left <= stuck else None)
            elif await conn.fetchval(_RESEALED, kid, now) is None:
                await conn.execute(_CHECKED, kid, now)
            else:
                await record(conn, self._ids, now, HOST, Entry("master_key.resealed", "master_key", kid))
        return left

    async def run_once(self) -> Swept:
        """The periodic work: notice a new active key, and seal about 500 values anew. May run twice."""
        async with self._db.acquire() as conn:
            await conn.execute(_FORGET, FORGOTTEN)
        newest, kid, now = await self.newest(), self._keyring.active, self._clock.now()
        if newest is None or newest.kid != kid:
            if not await self._may_activate(kid):
                return Swept()
            await self.activate()
        elif newest.checked_at is not None and newest.checked_at > now - LOOK_AGAIN:
            return Swept()
        done = await sweep(self._db, self._keyring, limit=A_RUN)
        left = await self.settle(done.unopened)
        if done.resealed or left:
            log.info("secrets_reseal_progress", count=done.resealed, left=left, unopened=done.unopened)
        return done

    async def _may_activate(self, kid: str) -> bool:
        """A new key once everybody holds it; one of before again once it is everybody's active one: while secrets are
        being changed, a process that still has the old selector is no reason to turn back."""
        holders = await self.holders()
        if await self.has_sealed(kid):
            return all(holder.active == kid for holder in holders)
        return all(kid in holder.kids for holder in holders)


async def _newest(conn: Connection) -> ActiveKey | None:
    row: Any = await conn.fetchrow(_NEWEST)
    return None if row is None else ActiveKey(**row)


def lacking(holders: Sequence[Holder], kid: str, *, active: bool) -> tuple[Holder, ...]:
    """The processes that do not hold the key, or with `active` do not seal with it."""
    return tuple(one for one in holders if (one.active != kid if active else kid not in one.kids))
