"""What runs beside the requests: uses of keys and counts of requests go to the database in batches; old counters go
away; once, addresses of older releases are brought to one spelling.
"""

from __future__ import annotations

from typing import Final

from postroom.accounts import idempotency
from postroom.accounts.rates import RateLimiter
from postroom.accounts.service import proofs
from postroom.accounts.service.keys import KeyVerifier
from postroom.accounts.service.sign_in import ThrottlePolicy, prune_failures
from postroom.base import log
from postroom.base.clock import Clock
from postroom.db import Database, is_transient

TICK_SECONDS: Final = 1.0
_PRUNE_SECONDS: Final = 60.0

_log = log.get("accounts.upkeep")


class Upkeep:
    """Call `tick` every second or so, in every process. It never raises for a database that is away: it tries again
    next time.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        rates: RateLimiter,
        keys: KeyVerifier,
        policy: ThrottlePolicy | None = None,
    ) -> None:
        self._db, self._clock, self._rates, self._keys = db, clock, rates, keys
        self._policy = policy or ThrottlePolicy()
        self._pruned = clock.monotonic()
        self._respelt = False

    async def tick(self) -> None:
        """One round."""
        try:
            await self._rates.flush(self._db)
            await self._keys.flush_used()
            if not self._respelt:
                await proofs.respell(self._db)
                self._respelt = True
            if self._clock.monotonic() - self._pruned >= _PRUNE_SECONDS:
                self._pruned = self._clock.monotonic()
                async with self._db.acquire() as conn:
                    await prune_failures(conn, self._clock.now(), self._policy)
                    await idempotency.prune(conn, self._clock.now())
        except Exception as exc:
            if not is_transient(exc):
                raise
            _log.warning("upkeep failed", exc_info=exc)
