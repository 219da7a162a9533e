"""Which domains are ours, remembered for a minute: asked for every address in a header."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from postroom.base.clock import Clock
from postroom.db import Database
from postroom.directory.store import is_local_domain

REMEMBER_SECONDS: Final = 60.0
MAX_DOMAINS: Final = 10_000


class LocalDomains:
    """Answers for one process. A new domain is noticed within a minute."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db, self._clock = db, clock
        self._known: OrderedDict[str, tuple[bool, float]] = OrderedDict()

    async def has(self, domain: str) -> bool:
        """Whether mail for a domain (lower-case A-labels) stays here. Raises what the database raises."""
        now = self._clock.monotonic()
        found = self._known.get(domain)
        if found is not None and found[1] > now:
            self._known.move_to_end(domain)
            return found[0]
        async with self._db.acquire() as conn:
            local = await is_local_domain(conn, domain)
        self._known[domain] = (local, now + REMEMBER_SECONDS)
        while len(self._known) > MAX_DOMAINS:
            self._known.popitem(last=False)
        return local
