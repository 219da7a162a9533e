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
                    async with self._database.acquire() as conn:
                        await conn.execute(_ENSURE, sorted(self._periodic), self._clock.now())
                    known = True
                await self.run_due()
            except Exception as error:
                if not errors.is_transient(error):
                    raise
                log.warning("worker_interrupted", error=type(error).__name__)
            await asyncio.sleep(TICK_SECONDS)

    async def run_due(self) -> int:
        """Do everything that is due; how many pieces of work were done."""
        async with self._database.acquire() as conn:
            batch = await SCHEDULES.claim(conn, now=self._clock.now(), limit=len(self._periodic))
        for claim in batch.claims:
            await self._do(claim)
        return len(batch.claims)

    async def _do(self, claim: Claim) -> None:
        item = self._periodic.get(claim.key[0])
        if item is None:
            # A newer node's work: it claims it again when it is due.
            item = Periodic(claim.key[0], timedelta(minutes=1), _nothing)
        try:
            await item.work()
        except Exception as error:
            if not errors.is_transient(error):
                log.error("periodic_work_failed", work=item.name, error=type(error).__name__)
            else:
                raise
        async with self._database.acquire() as conn:
            await SCHEDULES.reschedule(conn, claim, self._clock.now() + item.every)


async def _nothing() -> None:
    return None
