"""How often somebody may try (mail-server F3). The counters are the database's, shared by all nodes (decision 0014)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from postroom.accounts.store import counters
from postroom.base.clock import Clock
from postroom.db import Database

WINDOW: Final = timedelta(seconds=60)
_WAITERS: Final = 32


@dataclass(frozen=True, slots=True)
class ThrottlePolicy:
    """F3. `failures` in a row lock an account; three times as many from one network lock that; both for `seconds`."""

    failures: int = 10
    seconds: int = 900

    @property
    def network_failures(self) -> int:
        return 3 * self.failures


@dataclass(frozen=True, slots=True)
class Guard:
    """Whose password may be tried now, and what a failure of theirs counts under.

    `wait` is how many seconds until the rest of them may be tried again; 0 when nobody is left out.
    """

    counted: Mapping[str, str]
    """By the public ids of people."""
    failing: tuple[str, ...]
    """What a failure counts under."""
    wait: int

    @property
    def is_shut(self) -> bool:
        return not self.failing


class Throttle:
    """Failures of accounts and networks, and turns: attempts on one account follow one another within a process.

    Failures are counted after the verification: guesses in flight can exceed the account's limit by one for each
    other process, those of a person by one for each of their shared mailboxes too, and the network's limit by what
    the hashing pool holds.
    """

    def __init__(self, db: Database, clock: Clock, hash_key: bytes, policy: ThrottlePolicy) -> None:
        self._db, self._clock, self._hash_key = db, clock, hash_key
        self.policy = policy
        self._turns: dict[str, _Turn] = {}

    def network(self, remote: str) -> str:
        """What failures from an IP address are counted under."""
        return self._subject("net", client_network(remote))

    def account(self, value: str) -> str:
        """What failures of an account are counted under: an id, or an address that is nobody's."""
        return self._subject("account", value)

    def confirmation(self, person_public_id: str) -> str:
        """What failures of a person who is signed in are counted under: strangers who guess do not keep them from
        changing their password."""
        return self._subject("confirm", person_public_id)

    def second_step(self, person_public_id: str) -> str:
        """What wrong codes of a person are counted under. Only a right code begins it anew: mail programs, which sign
        in without one all day, do not."""
        return self._subject("totp", person_public_id)

    async def locked_for(self, subject: str, limit: int | None = None, seconds: int | None = None) -> int:
        """Seconds until the subject may try again; 0 means now. `limit` and `seconds` are the account's by default."""
        return (await self._locked((subject,), limit, seconds))[subject]

    async def _locked(
        self, subjects: Sequence[str], limit: int | None = None, seconds: int | None = None
    ) -> dict[str, int]:
        """`locked_for` of each. What it costs does not tell how many they are."""
        limit = self.policy.failures if limit is None else limit
        now = self._clock.now()
        # A window counts until its last moment is `seconds` old, so a lock never lasts less than that.
        span = timedelta(seconds=self.policy.seconds if seconds is None else seconds) + WINDOW
        async with self._db.acquire() as conn:
            found = await counters.failures(conn, subjects, now - span)
        return {subject: _wait(windows, limit, span, now) for subject, windows in found.items()}

    async def guard(self, account: str, people: Sequence[str]) -> Guard:
        """Who of an account's people may be tried.

        Where there is one, or nobody, the account's own count decides. Where there are more, each has one for
        themselves, whatever mailbox it is at: they know one another's address, and whoever signs in with a password
        of their own must not begin anew the count of guesses at somebody else's.
        """
        if len(people) < 2:
            wait = await self.locked_for(account)
            return Guard({one: account for one in people if not wait}, () if wait else (account,), wait)
        subjects = {one: self.account(one) for one in people}
        locked = await self._locked(tuple(subjects.values()))
        counted = {one: subject for one, subject in subjects.items() if not locked[subject]}
        return Guard(counted, tuple(counted.values()), min(filter(None, locked.values()), default=0))

    async def network_locked_for(self, network: str) -> int:
        return await self.locked_for(network, self.policy.network_failures)

    async def failed(self, *subjects: str) -> None:
        async with self._db.acquire() as conn:
            await counters.add_failure(conn, subjects, _window_start(self._clock.now()))

    async def succeeded(self, *subjects: str) -> None:
        async with self._db.acquire() as conn:
            for subject in subjects:
                await counters.reset_failures(conn, subject)

    @asynccontextmanager
    async def turn(self, account: str) -> AsyncIterator[bool]:
        """One attempt on an account after the other; False when too many are waiting."""
        turn = self._turns.setdefault(account, _Turn(asyncio.Lock()))
        if turn.users >= _WAITERS:
            yield False
            return
        turn.users += 1
        try:
            async with turn.lock:
                yield True
        finally:
            turn.users -= 1
            if not turn.users:
                self._turns.pop(account, None)

    def _subject(self, kind: str, value: str) -> str:
        digest = hmac.new(self._hash_key, f"{kind}:{value}".encode("utf-8", "surrogatepass"), hashlib.sha256)
        return f"{kind}:{digest.hexdigest()[:32]}"


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock
    users: int = 0


def client_network(remote: str) -> str:
    """What failures are counted by: an IPv4 address, or the /64 of an IPv6 address. Anything else is a network of its
    own.
    """
    try:
        ip = ipaddress.ip_address(remote.partition("%")[0])
    except ValueError:
        return remote
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


def _wait(windows: Iterable[tuple[datetime, int]], limit: int, span: timedelta, now: datetime) -> int:
    """Seconds for which so many failures, newest first, lock."""
    total = 0
    for start, count in windows:
        total += count
        if total >= limit:
            return max(1, round((start + span - now).total_seconds()))
    return 0


def _window_start(now: datetime) -> datetime:
    return now.replace(second=0, microsecond=0)
