"""Rate limits of the API in fixed windows of 60 s, counted in memory and settled with the other nodes in batches
(requirements §4).

A request costs a dictionary look-up. `flush`, called every second or so, adds what was counted since to the database
in one statement and learns what all nodes counted together. Between two flushes a node does not know of the others'
latest requests: with N nodes a window may let through up to N - 1 times what one node admits in one flush interval
more than its limit. Refused requests are not counted. What is daily or costs money is counted exactly, elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from postroom.accounts.models import Principal, PrincipalKind
from postroom.accounts.store import counters
from postroom.base.clock import Clock
from postroom.db import Database

WINDOW_SECONDS: Final = 60
MAX_ENTRIES: Final = 50_000
_BATCH: Final = 1_000


class Bucket(Enum):
    """What is limited together: the name in answers, and how many a window allows."""

    API = ("key", 600)
    SESSION = ("session", 600)
    TENANT = ("tenant", 1800)
    PARTNER = ("partner", 1800)
    """All keys of a partner together (J22)."""
    PARTNER_CREATE = ("partner_create", 10)
    """Tenants that the keys of a partner make (J18)."""
    SEARCH = ("search", 120)
    SEND = ("send", 120)
    """Of one identity, whoever asks."""
    AUTH_FAILURES = ("network", 600)
    SIGN_INS = ("network", 10)
    """Of one client network (security-privacy A5)."""

    def __init__(self, label: str, limit: int) -> None:
        self.label = label
        self.limit = limit


@dataclass(frozen=True, slots=True)
class RateDecision:
    """Whether a request may go on. `limit` is the bucket's, for `RateLimit-Limit`; `reset_after` is seconds to the
    window's end.
    """

    allowed: bool
    bucket: Bucket
    limit: int
    reset_after: int


@dataclass(slots=True)
class _Count:
    window: int
    known: int = 0
    """All nodes' requests as of the last flush, ours included."""
    pending: int = 0
    """Ours since."""


class RateLimiter:
    """Counts requests of one process. Not thread-safe: it lives on the event loop."""

    def __init__(self, clock: Clock, *, max_entries: int = MAX_ENTRIES) -> None:
        self._clock = clock
        self._max = max_entries
        self._counts: OrderedDict[tuple[Bucket, str], _Count] = OrderedDict()

    def hit(self, bucket: Bucket, subject: str) -> RateDecision:
        """Count one request of `subject`, unless its window is full."""
        return self._ask(bucket, subject, count=True)

    def peek(self, bucket: Bucket, subject: str) -> RateDecision:
        """What `hit` would say, counting nothing."""
        return self._ask(bucket, subject, count=False)

    def hit_request(self, principal: Principal, *, search: bool = False) -> RateDecision:
        """Count one request of a principal in every bucket that it belongs to, unless one of them is full."""
        own = Bucket.API if principal.kind is PrincipalKind.KEY else Bucket.SESSION
        wanted = [(own, principal.rate_subject)]
        if principal.kind is PrincipalKind.KEY and principal.tenant_public_id is not None:
            wanted.append((Bucket.TENANT, principal.tenant_public_id))
        if principal.partner_public_id is not None:
            wanted.append((Bucket.PARTNER, principal.partner_public_id))
        if search:
            wanted.append((Bucket.SEARCH, principal.rate_subject))
        for bucket, subject in wanted:
            decision = self.peek(bucket, subject)
            if not decision.allowed:
                return decision
        decisions = [self.hit(bucket, subject) for bucket, subject in wanted]
        return decisions[0]

    async def flush(self, db: Database) -> None:
        """Settle with the database. An error loses nothing: what was not written is counted again at the next flush."""
        batch: list[tuple[tuple[Bucket, str], _Count, int]] = []
        for key, count in self._counts.items():
            if count.pending:
                batch.append((key, count, count.pending))
        for at in range(0, len(batch), _BATCH):
            await self._settle(db, batch[at : at + _BATCH])
        self._forget_past()

    def _ask(self, bucket: Bucket, subject: str, *, count: bool) -> RateDecision:
        now = self._clock.now().timestamp()
        window = int(now // WINDOW_SECONDS)
        key = (bucket, subject)
        entry = self._counts.get(key)
        if entry is None or entry.window != window:
            entry = self._open(key, window)
        allowed = entry.known + entry.pending < bucket.limit
        if allowed and count:
            entry.pending += 1
        return RateDecision(allowed, bucket, bucket.limit, max(1, int((window + 1) * WINDOW_SECONDS - now)))

    def _open(self, key: tuple[Bucket, str], window: int) -> _Count:
        # Counts of a window that ended unsettled are of no use to anybody.
        entry = self._counts[key] = _Count(window)
        self._counts.move_to_end(key)
        if len(self._counts) > self._max:
            self._counts.popitem(last=False)
        return entry

    async def _settle(self, db: Database, batch: list[tuple[tuple[Bucket, str], _Count, int]]) -> None:
        sent = [
            counters.Window(bucket.name, subject, _start(count.window), pending)
            for (bucket, subject), count, pending in batch
        ]
        async with db.acquire() as conn:
            totals = await counters.add_requests(conn, sent)
        known = {(total.bucket, total.subject, total.start): total.count for total in totals}
        for (bucket, subject), count, pending in batch:
            count.pending -= pending
            count.known = max(count.known, known[bucket.name, subject, _start(count.window)])

    def _forget_past(self) -> None:
        window = int(self._clock.now().timestamp() // WINDOW_SECONDS)
        for key in [key for key, count in self._counts.items() if count.window < window]:
            del self._counts[key]


def _start(window: int) -> datetime:
    return datetime.fromtimestamp(window * WINDOW_SECONDS, UTC)
