"""Destinations that gave unknown outcomes in a row are left alone for a while (outbound §10.1; edge J28).

A row exists only of a scope that is in trouble. All nodes share it; what this process knows of it is a few seconds old.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.db import errors as db_errors
from postroom.db.pool import Database
from postroom.smtp.schedule import BREAKER_THRESHOLD, breaker_pause

log = base_log.get("outbound")

REFRESH_SECONDS: Final = 5.0
PROBE: Final = timedelta(minutes=10)
"""After which the next probe may go should nothing be heard of the last one."""
MAX_SCOPE: Final = 200

_ALL: Final = "SELECT scope, open_until FROM breakers"
_UNKNOWN: Final = """
INSERT INTO breakers AS b (scope, unknown_in_a_row, open_count, updated_at) VALUES ($1, 1, 0, $2)
ON CONFLICT (scope) DO UPDATE SET unknown_in_a_row = b.unknown_in_a_row + 1, updated_at = $2
RETURNING unknown_in_a_row, open_count, open_until
"""
_OPEN: Final = "UPDATE breakers SET open_until = $2, open_count = open_count + 1 WHERE scope = $1"
_TAKE_PROBE: Final = """
UPDATE breakers SET open_until = $3, updated_at = $2 WHERE scope = $1 AND open_until <= $2 RETURNING scope
"""
_CLOSE: Final = "DELETE FROM breakers WHERE scope = $1"


def scope_of(kind: str, names: Sequence[str]) -> str:
    """The scope of a destination: `direct:` and the names of its hosts, or a hash of them where they are many."""
    joined = ",".join(names)
    if len(joined) > MAX_SCOPE:
        joined = hashlib.sha256(joined.encode()).hexdigest()
    return f"{kind}:{joined}"


@dataclass(frozen=True, slots=True)
class Passage:
    """Leave to make an attempt; `is_probe` when it decides on the breaker."""

    scope: str
    is_probe: bool = False


class Breakers:
    """The breakers as one process sees them."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._open: dict[str, datetime | None] = {}
        self._fresh_until = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def passage(self, scope: str) -> Passage | None:
        """Leave for an attempt, None while the breaker is open. Of those who ask once its time is over, one gets it."""
        if self._clock.monotonic() >= self._fresh_until:
            await self._refresh()
        open_until = self._open.get(scope)
        if open_until is None:
            return Passage(scope)
        now = self._clock.now()
        if open_until > now:
            return None
        try:
            async with self._database.acquire() as conn:
                taken = await conn.fetchval(_TAKE_PROBE, scope, now, now + PROBE)
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            return None
        self._open[scope] = now + PROBE
        return Passage(scope, is_probe=True) if taken is not None else None

    async def unknown(self, passage: Passage) -> None:
        """The attempt's outcome is not known. The third in a row opens the breaker, a probe opens it for longer.

        While the database is away nothing is noted: the outcome itself is what must not be lost.
        """
        now, scope = self._clock.now(), passage.scope
        try:
            async with self._database.transaction() as conn:
                row = await conn.fetchrow(_UNKNOWN, scope, now)
                assert row is not None, "an upsert returns its row"
                until: datetime | None = row["open_until"]
                is_open = until is not None and until > now
                if row["unknown_in_a_row"] >= BREAKER_THRESHOLD and (passage.is_probe or not is_open):
                    until = now + timedelta(seconds=breaker_pause(row["open_count"]))
                    await conn.execute(_OPEN, scope, until)
                    log.error("transport_breaker_open", seconds=int((until - now).total_seconds()))
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            log.warning("breaker_not_noted", error=type(error).__name__)
            return
        self._open[scope] = until

    async def definite(self, passage: Passage) -> None:
        """The destination answered: whatever was against it is forgotten. As `unknown` while the database is away."""
        if passage.scope not in self._open:
            return
        try:
            async with self._database.acquire() as conn:
                await conn.execute(_CLOSE, passage.scope)
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            log.warning("breaker_not_noted", error=type(error).__name__)
            return
        self._open.pop(passage.scope, None)

    async def _refresh(self) -> None:
        """Read them again, once for all who ask meanwhile."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        """While the database is away, what was known stays."""
        now = self._clock.monotonic()
        try:
            async with self._database.acquire() as conn:
                rows = await conn.fetch(_ALL)
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            return
        finally:
            self._reading = None
        self._fresh_until = now + REFRESH_SECONDS
        self._open = {row["scope"]: row["open_until"] for row in rows}
