"""Connections by host: so many at the most, and kept for the next message for a few seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from postroom.outbound.transports.link import Link

PER_HOST: Final = 4
"""`queue.max_connections_per_host` (C5)."""
IDLE_SECONDS: Final = 5.0
"""How long a connection waits for the next message. Receivers like to have them back."""
MAX_TRANSACTIONS: Final = 100

Key = tuple[str, int]


class Links:
    """The connections of one transport in one process, those at work and those at rest."""

    def __init__(
        self,
        per_host: int = PER_HOST,
        *,
        idle_seconds: float = IDLE_SECONDS,
        max_transactions: int = MAX_TRANSACTIONS,
    ) -> None:
        self._per_host = per_host
        self._idle_seconds = idle_seconds
        self._max_transactions = max_transactions
        self._open: Counter[Key] = Counter()
        self._idle: dict[Key, list[tuple[Link, float]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def take(self, key: Key) -> Link | None:
        """One at rest that is still good; its place stays taken."""
        while idle := self._idle.get(key):
            link, _ = idle.pop()
            if link.is_ready:
                return link
            self.drop(key, link)
        return None

    def reserve(self, key: Key) -> bool:
        """Take a place for a new connection, if there is one; `drop` gives it back."""
        if self._open[key] >= self._per_host:
            return False
        self._open[key] += 1
        return True

    def keep(self, key: Key, link: Link) -> None:
        """Done with it for now."""
        if not link.is_ready or link.transactions >= self._max_transactions or self._idle_seconds <= 0:
            self.drop(key, link)
            return
        loop = asyncio.get_running_loop()
        self._idle.setdefault(key, []).append((link, loop.time() + self._idle_seconds))
        if self._timer is None:
            self._timer = loop.call_later(self._idle_seconds, self._expire)

    def drop(self, key: Key, link: Link | None) -> None:
        """Done with it for good; None for a place without a connection."""
        self._open[key] -= 1
        if self._open[key] <= 0:
            del self._open[key]
        if link is not None:
            link.quit()

    def close(self) -> None:
        """Take leave of all that are at rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key in list(self._idle):
            for link, _ in self._idle.pop(key):
                self.drop(key, link)

    def _expire(self) -> None:
        """Take leave of those that have waited long enough; one timer serves all."""
        loop = asyncio.get_running_loop()
        now, first = loop.time(), float("inf")
        for key, idle in list(self._idle.items()):
            kept = [entry for entry in idle if entry[1] > now]
            gone = [link for link, until in idle if until <= now]
            if kept:
                self._idle[key] = kept
                first = min(first, kept[0][1])
            else:
                del self._idle[key]
            for link in gone:
                self.drop(key, link)
        self._timer = loop.call_at(first, self._expire) if self._idle else None
