"""Periodic work: what runs, and how often (B1). The `schedules` table says when each is due next, for all nodes
together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.db import Database, errors
from postroom.db.claim import Claim, ClaimQueue, ClaimSpec

log = base_log.get("worker")

TICK_SECONDS: Final = 2.0
MAX_SCHEDULES: Final = 100
"""More than there are, those of newer nodes included, so that none hides another."""

SCHEDULES: Final = ClaimQueue(
    ClaimSpec(table="schedules", keys={"name": "text"}, lease=timedelta(minutes=5), max_attempts=1_000_000)
)

_ENSURE: Final = """
INSERT INTO schedules (name, next_attempt_at) SELECT unnest($1::text[]), $2 ON CONFLICT (name) DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class Periodic:
    """Work of one kind; may run twice, so it is idempotent."""

    name: str
    every: timedelta
    work: Callable[[], Awaitable[object]]


class Worker:
    """Runs what is due, one thing after another. Any number of nodes may run one."""

    def __init__(self, database: Database, clock: Clock, periodic: Sequence[Periodic]) -> None:
        self._database = database
        self._clock = clock
        self._periodic = {item.name: item for item in periodic}

    async def run(self) -> None:
        """Until cancelled."""
        known = False
        while True:
            try:
                if not known:
                    await self.ensure()
                    known = True
                await self.run_due()
            except Exception as error:
                if not errors.is_transient(error):
                    raise
                log.warning("worker_interrupted", error=type(error).__name__)
            await asyncio.sleep(TICK_SECONDS)

    async def ensure(self) -> None:
        """Enter the work that the table does not know yet: due at once."""
        async with self._database.acquire() as conn:
            await conn.execute(_ENSURE, sorted(self._periodic), self._clock.now())

    async def run_due(self) -> int:
        """Do everything that is due; how many pieces of work were done. What only a newer node knows is left to it."""
        async with self._database.acquire() as conn:
            batch = await SCHEDULES.claim(conn, now=self._clock.now(), limit=MAX_SCHEDULES)
            own = [claim for claim in batch.claims if claim.key[0] in self._periodic]
            await SCHEDULES.release(conn, [claim for claim in batch.claims if claim.key[0] not in self._periodic])
        for claim in own:
            await self._do(claim)
        return len(own)

    async def _do(self, claim: Claim) -> None:
        item = self._periodic[claim.key[0]]
        try:
            await item.work()
        except Exception as error:
            if not errors.is_transient(error):
                log.error("periodic_work_failed", work=item.name, error=type(error).__name__)
            else:
                raise
        async with self._database.acquire() as conn:
            await SCHEDULES.reschedule(conn, claim, self._clock.now() + item.every)
