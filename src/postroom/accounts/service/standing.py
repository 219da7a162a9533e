"""Connections end when what they were opened with stops counting: a key or an application password that was revoked, a
password that was changed, a mailbox that was taken away (mail-server F1, F2; acceptance check 9).

One question to the database asks about everybody who is connected to this process: after a hint, and otherwise twice a
minute, since hints get lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from postroom.accounts.models import Principal
from postroom.accounts.service.sharing import Sharing
from postroom.accounts.store import standing as store
from postroom.base import log
from postroom.base.clock import Clock
from postroom.db import Database, is_transient

CHANNEL: Final = "postroom_accounts"
INTERVAL: Final = 30.0
"""Seconds between two looks without a hint: what is revoked ends within a minute."""
_PAUSE: Final = 0.25
"""Seconds after a look in which hints gather."""
_BATCH: Final = 1000

_log = log.get("accounts.standing")


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    principal: Principal
    ended: Callable[[], None]


class Standing:
    """Who is connected to this process. Lives on the event loop."""

    def __init__(
        self, db: Database, clock: Clock, *, interval: float = INTERVAL, sharing: Sharing | None = None
    ) -> None:
        """`sharing`: what people reach beside what they opened is looked at with them."""
        self._db, self._clock, self._interval, self._sharing = db, clock, interval, sharing
        self._watched: set[_Watched] = set()
        self._woken = asyncio.Event()

    def watch(self, principal: Principal, ended: Callable[[], None]) -> Callable[[], None]:
        """Call `ended`, once, when the principal would not be let in any more. Returns what ends the watch."""
        one = _Watched(principal, ended)
        self._watched.add(one)
        return lambda: self._watched.discard(one)

    def wake(self) -> None:
        """Look soon: something was revoked or changed somewhere, or hints may have been lost."""
        self._woken.set()

    async def check(self) -> None:
        """Look now. Raises what the database raises; nobody is ended then."""
        watched = list(self._watched)
        for at in range(0, len(watched), _BATCH):
            batch = watched[at : at + _BATCH]
            async with self._db.acquire() as conn:
                gone = await store.fallen(conn, [one.principal for one in batch], self._clock.now())
            for place in sorted(gone):
                one = batch[place]
                if one in self._watched:
                    self._watched.discard(one)
                    one.ended()
        if self._sharing is not None:
            await self._sharing.check()

    async def run(self) -> None:
        """Look again and again, until cancelled. A database that is away is asked again at the next look."""
        while True:
            try:
                async with asyncio.timeout(self._interval):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            try:
                await self.check()
            except Exception as exc:
                if not is_transient(exc):
                    raise
                _log.warning("standing unknown", exc_info=exc)
            await asyncio.sleep(_PAUSE)
