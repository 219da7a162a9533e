"""The deployment's own MAC keys: of thread tokens, return paths, rewritten senders, links (data-model §9, A6).

The first key of a purpose is made when it is first needed; two who need it at once make one. Each process keeps the
opened ring for five minutes, and looks again at once, at most once a minute, when something names a key that it does
not know.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from postroom.accounts.audit import Actor, Entry, record
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.base.sealed_columns import SIGNING_KEY
from postroom.base.sealing import Keyring, UnsealError
from postroom.db.pool import Connection, Database

log = base_log.get("keys")

KEY_BYTES: Final = 32
KIDS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
CACHE_SECONDS: Final = 300.0
LOOK_AGAIN_SECONDS: Final = 60.0

_READ: Final = """
SELECT kid, sealed, created_at, verify_until FROM signing_keys
WHERE purpose = $1 AND (verify_until IS NULL OR verify_until > $2) ORDER BY created_at DESC, kid DESC
"""
_FIRST: Final = """
INSERT INTO signing_keys (purpose, kid, sealed, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING
"""
_LOCK: Final = "SELECT kid FROM signing_keys WHERE purpose = $1 AND verify_until IS NULL FOR NO KEY UPDATE"
_RETIRE: Final = "UPDATE signing_keys SET verify_until = $3 WHERE purpose = $1 AND kid = $2"
_REMOVE: Final = "DELETE FROM signing_keys WHERE purpose = $1 AND kid = $2"
_RETIRE_NOW: Final = """
DELETE FROM signing_keys WHERE purpose = $1 AND kid = $2 AND verify_until IS NOT NULL RETURNING kid
"""
_REMOVE_OLD: Final = "DELETE FROM signing_keys WHERE purpose = $1 AND verify_until IS NOT NULL"
_INSERT: Final = "INSERT INTO signing_keys (purpose, kid, sealed, created_at) VALUES ($1, $2, $3, $4)"


class Purpose(StrEnum):
    THREAD = "thread"
    """Tokens of threads in Reply-To."""
    BOUNCE = "bounce"
    """Return paths of what we send."""
    FORWARD = "forward"
    """Senders that were rewritten for forwarding."""
    LINK = "link"
    """Links to files."""
    CURSOR = "cursor"
    """Places in lists."""

    @property
    def overlap(self) -> timedelta:
        """How long what a key made is honoured after the next key took its place."""
        return timedelta(days={Purpose.THREAD: 90, Purpose.LINK: 7, Purpose.CURSOR: 1}.get(self, 30))


@dataclass(frozen=True, slots=True)
class SigningKey:
    """`verify_until` None is the key that makes new ones."""

    kid: str
    secret: bytes = field(repr=False)
    created_at: datetime
    verify_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Rotation:
    """A key took the place of another: `key` makes new ones now, `previous` is honoured until `verify_until`, or was
    `revoked` and is honoured no more.
    """

    purpose: Purpose
    key: SigningKey
    previous: str
    verify_until: datetime
    revoked: bool


Also = Callable[[Connection, Rotation], Awaitable[None]]
"""Something else to be done in the transaction of a rotation."""


def noted(ids: IdGenerator, clock: Clock, by: Actor) -> Also:
    """Writes the rotation into the audit log."""

    async def note(conn: Connection, done: Rotation) -> None:
        details = {"purpose": done.purpose.value, "previous": done.previous, "revoke_previous": done.revoked}
        entry = Entry("signing_key.rotate", "signing_key", f"{done.purpose.value}:{done.key.kid}", None, details)
        await record(conn, ids, clock.now(), by, entry)

    return note


@dataclass(frozen=True, slots=True)
class _Ring:
    keys: tuple[SigningKey, ...]
    read_at: float


class SigningKeys:
    """The keys as one process sees them. Raises PostroomError `unavailable` when a stored key does not open."""

    def __init__(
        self,
        database: Database,
        keyring: Keyring,
        clock: Clock,
        *,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._random = random
        self._rings: dict[Purpose, _Ring] = {}
        self._reading = asyncio.Lock()

    async def current(self, purpose: Purpose) -> SigningKey:
        """The key that makes new ones; made if there is none."""
        return (await self.ring(purpose))[0]

    async def ring(self, purpose: Purpose, *, kid: str | None = None) -> tuple[SigningKey, ...]:
        """All keys that are honoured now, the current one first. With `kid`, the ring is read again if it is not in
        it."""
        held = self._rings.get(purpose)
        if held is None or self._is_stale(held, kid):
            async with self._reading:
                held = self._rings.get(purpose)
                if held is None or self._is_stale(held, kid):
                    held = self._rings[purpose] = await self._read(purpose)
        now = self._clock.now()
        return tuple(key for key in held.keys if key.verify_until is None or key.verify_until > now)

    async def rotate(self, purpose: Purpose, *, revoke_previous: bool = False, also: Also | None = None) -> Rotation:
        """A new current key. The one before is honoured for the purpose's overlap, or with `revoke_previous` no more,
        and none before it. Other processes go by what they hold for up to `CACHE_SECONDS`."""
        await self.ring(purpose)
        now = self._clock.now()
        async with self._database.transaction() as conn:
            before: str = await conn.fetchval(_LOCK, purpose.value)
            kid = KIDS[(KIDS.index(before) + 1) % len(KIDS)]
            if revoke_previous:
                await conn.execute(_REMOVE_OLD, purpose.value)
                await conn.execute(_REMOVE, purpose.value, before)
            else:
                await conn.execute(_RETIRE, purpose.value, before, now + purpose.overlap)
            await conn.execute(_REMOVE, purpose.value, kid)
            secret = await self._insert(conn, _INSERT, purpose, kid, now)
            until = now if revoke_previous else now + purpose.overlap
            rotation = Rotation(purpose, SigningKey(kid, secret, now), before, until, revoke_previous)
            if also is not None:
                await also(conn, rotation)
        self._rings.pop(purpose, None)
        log.info("signing_key_rotated", purpose=purpose.value, kid=kid, revoked=revoke_previous)
        return rotation

    async def retire(self, purpose: Purpose, kid: str) -> bool:
        """Honour a key no more that another one has followed; whether there was one. The current key stays: rotate.
        Other processes go by what they hold for up to `CACHE_SECONDS`."""
        async with self._database.acquire() as conn:
            gone = await conn.fetchval(_RETIRE_NOW, purpose.value, kid)
        self._rings.pop(purpose, None)
        if gone is not None:
            log.info("signing_key_retired", purpose=purpose.value, kid=kid)
        return gone is not None

    def _is_stale(self, ring: _Ring, kid: str | None) -> bool:
        age = self._clock.monotonic() - ring.read_at
        unknown = kid is not None and all(key.kid != kid for key in ring.keys)
        return age >= (LOOK_AGAIN_SECONDS if unknown else CACHE_SECONDS)

    async def _read(self, purpose: Purpose) -> _Ring:
        now = self._clock.now()
        async with self._database.transaction() as conn:
            rows = await conn.fetch(_READ, purpose.value, now)
            if not any(row["verify_until"] is None for row in rows):
                await self._insert(conn, _FIRST, purpose, KIDS[0], now)
                rows = await conn.fetch(_READ, purpose.value, now)
        keys = sorted((self._opened(purpose, row) for row in rows), key=lambda key: key.verify_until is not None)
        return _Ring(tuple(keys), self._clock.monotonic())

    async def _insert(self, conn: Connection, statement: str, purpose: Purpose, kid: str, now: datetime) -> bytes:
        secret = self._random(KEY_BYTES)
        await conn.execute(
            statement, purpose.value, kid, self._keyring.seal(SIGNING_KEY, secret, purpose.value, kid), now
        )
        return secret

    def _opened(self, purpose: Purpose, row: Any) -> SigningKey:
        try:
            secret = self._keyring.open(SIGNING_KEY, row["sealed"], purpose.value, row["kid"])
        except UnsealError as error:
            log.error("signing_key_unusable", purpose=purpose.value, kid=row["kid"], master_kid=error.kid)
            raise PostroomError("unavailable") from error
        return SigningKey(row["kid"], secret, row["created_at"], row["verify_until"])
