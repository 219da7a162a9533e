"""Signing in to a mailbox: the address selects it, the person must hold a grant (mail-server D1, F1, F3; A2).

Every reason of a failure looks the same to the caller but for two: too many failures, and not possible right now.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from postroom.accounts import keys as key_rules
from postroom.accounts.models import Mode, Principal, PrincipalKind
from postroom.accounts.passwords import MAX_LENGTH, HashingOverloaded, Passwords
from postroom.accounts.permissions import OF_GRANT, Level, Permission
from postroom.accounts.service.keys import KeyVerifier
from postroom.accounts.store import counters
from postroom.accounts.store import people as store
from postroom.base import log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.db import Connection, Database, is_transient

MAX_ADDRESS: Final = 320
MAX_CANDIDATES: Final = 8
"""People of one mailbox whose passwords are tried. Each costs a hash; owners come first."""

_WINDOW: Final = timedelta(seconds=60)
_WAITERS: Final = 32

_log = log.get("accounts.sign_in")


class SignInFailure(StrEnum):
    INVALID = "invalid"
    """Unknown address, wrong password, disabled person, no grant: one answer (`535 5.7.8`)."""
    THROTTLED = "throttled"
    """Too many failures of this account or from this network (`454 4.7.0`)."""
    UNAVAILABLE = "unavailable"
    """Our own fault: database away, or too many passwords waiting to be hashed (`454 4.7.0`)."""


@dataclass(frozen=True, slots=True)
class SignInError:
    """Why a sign-in was refused. `retry_after` is in seconds, for a failure that waiting helps."""

    kind: SignInFailure
    retry_after: int | None = None


@dataclass(frozen=True, slots=True)
class ThrottlePolicy:
    """F3. `failures` in a row lock an account; three times as many from one network lock that; both for `seconds`."""

    failures: int = 10
    seconds: int = 900

    @property
    def network_failures(self) -> int:
        return 3 * self.failures


_INVALID: Final = SignInError(SignInFailure.INVALID)
_UNAVAILABLE: Final = SignInError(SignInFailure.UNAVAILABLE, retry_after=5)


class SignIn:
    """Signs people and agents in. One per process; lock state is the database's, shared by all nodes.

    Failures are counted after the verification, and attempts on one account follow one another within a process:
    guesses in flight can exceed the account's limit by one for each other process, and the network's limit by what
    the hashing pool holds.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        passwords: Passwords,
        keys: KeyVerifier,
        hash_key: bytes,
        policy: ThrottlePolicy | None = None,
    ) -> None:
        self._db, self._clock, self._passwords, self._keys = db, clock, passwords, keys
        self._hash_key = hash_key
        self._policy = policy or ThrottlePolicy()
        self._turns: dict[str, _Turn] = {}

    async def sign_in(
        self, address: str, password: str, remote: str, needs: Permission = Permission.MESSAGES_READ
    ) -> Principal | SignInError:
        """Open the mailbox of `address` for whoever has `password`; `remote` is the client's IP address.

        An agent's password is an identity key of that very mailbox with the permission that is needed. What a person
        may do follows from their grants, and is the caller's to look at. Never raises for what the client sent.
        """
        address = address.strip().lower()
        network = self._subject("net", client_network(remote))
        try:
            wait = await self._locked_for(network, self._policy.network_failures)
            if wait:
                return SignInError(SignInFailure.THROTTLED, wait)
            opening = await self._opening(address)
            account = self._subject("account", address if opening is None else opening.identity_public_id)
            async with self._turn(account) as mine:
                if not mine:
                    return _UNAVAILABLE
                return await self._attempt(opening, account, network, password, needs)
        except HashingOverloaded:
            return _UNAVAILABLE
        except Exception as exc:
            if not is_transient(exc):
                raise
            _log.warning("sign-in unavailable", exc_info=exc)
            return _UNAVAILABLE

    async def _attempt(
        self, opening: store.Opening | None, account: str, network: str, password: str, needs: Permission
    ) -> Principal | SignInError:
        wait = await self._locked_for(account, self._policy.failures)
        if wait:
            return SignInError(SignInFailure.THROTTLED, wait)
        if key_rules.parse(password) is not None:
            principal = await self._by_key(opening, password, needs)
        else:
            principal = await self._by_password(opening, password)
        async with self._db.acquire() as conn:
            if principal is not None:
                await counters.reset_failures(conn, account)
                return principal
            await counters.add_failure(conn, (account, network), _window_start(self._clock.now()))
        return _INVALID

    async def _opening(self, address: str) -> store.Opening | None:
        if not 3 <= len(address) <= MAX_ADDRESS or "\0" in address or not address.isprintable():
            return None
        async with self._db.acquire() as conn:
            return await store.opening(conn, address, MAX_CANDIDATES)

    async def _by_key(self, opening: store.Opening | None, password: str, needs: Permission) -> Principal | None:
        try:
            principal = await self._keys.verify(password)
        except PostroomError:
            return None
        if opening is None or not opening.is_agent or principal.level is not Level.IDENTITY:
            return None
        if not principal.reaches_identity(opening.tenant_id, opening.identity_id):
            return None
        return principal if principal.may(needs) else None

    async def _by_password(self, opening: store.Opening | None, password: str) -> Principal | None:
        if opening is None or not opening.candidates:
            await self._passwords.verify(None, password[: MAX_LENGTH + 1])
            return None
        for candidate in opening.candidates:
            verified = await self._passwords.verify(candidate.password_hash, password)
            if verified.ok:
                if verified.stale:
                    await self._rehash(candidate, password)
                return _principal(opening, candidate)
        return None

    async def _rehash(self, candidate: store.Candidate, password: str) -> None:
        try:
            renewed = await self._passwords.hash(password)
        except (HashingOverloaded, PostroomError):
            return  # F1: the sign-in stands; the next one tries again
        async with self._db.acquire() as conn:
            await store.rehash(conn, candidate.person_id, candidate.password_hash, renewed)

    async def _locked_for(self, subject: str, limit: int) -> int:
        """Seconds until the subject may try again; 0 means now."""
        now = self._clock.now()
        # A window counts until its last moment is `seconds` old, so a lock never lasts less than that.
        span = timedelta(seconds=self._policy.seconds) + _WINDOW
        async with self._db.acquire() as conn:
            windows = await counters.failures(conn, subject, now - span)
        total = 0
        for start, count in windows:
            total += count
            if total >= limit:
                return max(1, round((start + span - now).total_seconds()))
        return 0

    def _subject(self, kind: str, value: str) -> str:
        digest = hmac.new(self._hash_key, f"{kind}:{value}".encode("utf-8", "surrogatepass"), hashlib.sha256)
        return f"{kind}:{digest.hexdigest()[:32]}"

    @asynccontextmanager
    async def _turn(self, account: str) -> AsyncIterator[bool]:
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


async def prune_failures(conn: Connection, now: datetime, policy: ThrottlePolicy) -> None:
    """Delete counters of failed sign-ins and of requests that no decision reads any more."""
    span = timedelta(seconds=policy.seconds) + 2 * _WINDOW
    await counters.prune(conn, now - span, now - timedelta(hours=1))


def _window_start(now: datetime) -> datetime:
    return now.replace(second=0, microsecond=0)


def _principal(opening: store.Opening, candidate: store.Candidate) -> Principal:
    return Principal(
        kind=PrincipalKind.PERSON,
        public_id=candidate.person_public_id,
        row_id=candidate.person_id,
        level=Level.IDENTITY,
        permissions=OF_GRANT[candidate.role],
        mode=Mode(opening.tenant_mode),
        tenant_id=opening.tenant_id,
        tenant_public_id=opening.tenant_public_id,
        tenant_status=opening.tenant_status,
        identity_id=opening.identity_id,
        identity_public_id=opening.identity_public_id,
        grant=candidate.role,
    )
