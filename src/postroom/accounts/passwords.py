"""Passwords that people choose: Argon2id on threads of its own (mail-server F1, decisions B11).

Hashing costs about 20 MB and tens of milliseconds on purpose. It runs on a small pool with a bounded queue, so that a
storm of sign-ins never starves mail: what does not fit is refused at once.
"""

from __future__ import annotations

import asyncio
import threading
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from argon2.low_level import Type

from postroom.accounts.text import invalid

MIN_LENGTH: Final = 8
MAX_LENGTH: Final = 1024

MEMORY_KIB: Final = 19456
TIME_COST: Final = 2
PARALLELISM: Final = 1
SALT_LENGTH: Final = 16

_T = TypeVar("_T")


class HashingOverloaded(Exception):
    """Too many passwords are waiting to be hashed; try again later."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of a verification. `stale`: the hash has old parameters and should be made anew."""

    ok: bool
    stale: bool = False


def check_policy(password: str) -> None:
    """Raises `invalid_request` unless the password has 8 to 1,024 characters (F1: no composition rules)."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH or _prepare(password) is None:
        raise invalid("password", f"must have {MIN_LENGTH} to {MAX_LENGTH} characters")


class Passwords:
    """Hashes and verifies on `threads` threads; `queue` more may wait. Close it when done.

    `memory_kib` and `time_cost` are F1's; hashes made with others are reported stale.
    """

    def __init__(
        self, *, threads: int = 2, queue: int = 64, memory_kib: int = MEMORY_KIB, time_cost: int = TIME_COST
    ) -> None:
        if threads < 1 or queue < 0:
            raise ValueError("a pool needs a thread, and a queue of no negative length")
        self._hasher = PasswordHasher(
            time_cost=time_cost,
            memory_cost=memory_kib,
            parallelism=PARALLELISM,
            salt_len=SALT_LENGTH,
            type=Type.ID,
        )
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="argon2")
        self._slots = threading.BoundedSemaphore(threads + queue)
        self._dummy: str | None = None

    async def hash(self, password: str) -> str:
        """A PHC string. Raises `invalid_request` for a password against the policy, HashingOverloaded when there is
        no room.
        """
        check_policy(password)
        secret = _prepare(password)
        assert secret is not None
        return await self._run(lambda: self._hasher.hash(secret))

    async def verify(self, phc: str | None, password: str) -> Verified:
        """Whether `password` is the one of `phc`. None, as for an unknown account, costs the same time and is never
        right.

        A hash that cannot be read is a failed verification. Raises HashingOverloaded when there is no room.
        """
        return await self._run(lambda: self._verify(phc, password))

    def close(self) -> None:
        """Stop the threads; verifications that wait are cancelled."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _verify(self, phc: str | None, password: str) -> Verified:
        secret = _prepare(password) if len(password) <= MAX_LENGTH else None
        if phc is None or secret is None:
            self._matches(self._dummy_hash(), b"" if secret is None else secret)
            return Verified(ok=False)
        if not self._matches(phc, secret):
            return Verified(ok=False)
        return Verified(ok=True, stale=self._hasher.check_needs_rehash(phc))

    def _matches(self, phc: str, secret: bytes) -> bool:
        try:
            return self._hasher.verify(phc, secret)
        except (Argon2Error, InvalidHashError):
            return False

    def _dummy_hash(self) -> str:
        # Two threads may both make it: either serves.
        if self._dummy is None:
            self._dummy = self._hasher.hash(b"nobody has this password")
        return self._dummy

    async def _run(self, work: Callable[[], _T]) -> _T:
        if not self._slots.acquire(blocking=False):
            raise HashingOverloaded
        try:
            future = self._pool.submit(work)
        except BaseException:
            self._slots.release()
            raise
        # A caller that goes away frees its slot only when the work is done or was never begun.
        future.add_done_callback(lambda _: self._slots.release())
        return await asyncio.wrap_future(future)


def _prepare(password: str) -> bytes | None:
    """UTF-8 of the password in NFC, as one keyboard composes what another decomposes (RFC 8265 §4.2.2); None if it is
    not text.
    """
    try:
        return unicodedata.normalize("NFC", password).encode()
    except UnicodeEncodeError:
        return None
