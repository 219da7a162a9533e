"""API keys: verified on every request, minted, listed, rotated, revoked (security-privacy A3)."""

from __future__ import annotations

import hmac
import os
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from postroom.accounts import keys as rules
from postroom.accounts.models import PLATFORM_SCOPE, ApiKey, Credential, Mode, Principal, PrincipalKind, Scope
from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY, Level, Permission, including_implied
from postroom.accounts.store import keys as store
from postroom.accounts.store import tenants as tenant_store
from postroom.accounts.text import invalid
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database

MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""
MAX_OVERLAP_HOURS: Final = 168
DEFAULT_OVERLAP_HOURS: Final = 24
BOOTSTRAP_LIFE: Final = timedelta(hours=24)

_USED_INTERVAL: Final = timedelta(seconds=60)
_USED_PENDING: Final = 10_000
_DRAWS: Final = 5
_NO_MAC: Final = bytes(32)
_BEARER: Final = "bearer "


def bearer(authorization: str | None) -> str | None:
    """The token of an `Authorization: Bearer …` header (RFC 6750 §2.1), or None."""
    if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return authorization[len(_BEARER) :].strip() or None


class KeyVerifier:
    """Turns a key's text into a Principal. There is no cache, so that a revocation counts for the next request (A3.2).

    `note_used` collects uses; `flush_used` writes them in one statement, for a task beside the requests.
    """

    def __init__(self, db: Database, clock: Clock, pepper: bytes) -> None:
        self._db, self._clock, self._pepper = db, clock, pepper
        self._used: OrderedDict[int, datetime] = OrderedDict()

    async def verify(self, text: str | None) -> Principal:
        """The principal of a key.

        Raises `unauthenticated` for what is missing, malformed, unknown or wrong, without a difference; for the right
        secret only `key_revoked` or `key_expired`.
        """
        token = None if text is None else rules.parse(text)
        if token is None:
            raise PostroomError("unauthenticated")
        async with self._db.acquire() as conn:
            stored = await store.find(conn, token.lookup)
        now = self._clock.now()
        stored = self._match(token, stored, now)
        if stored is None:
            raise PostroomError("unauthenticated")
        key = stored.key
        gone = stored.identity_gone or (stored.tenant_status is not None and stored.tenant_status.is_gone)
        if key.revoked_at is not None or gone:
            raise PostroomError("key_revoked")
        if key.expires_at is not None and key.expires_at <= now:
            raise PostroomError("key_expired")
        self._note_used(key, now)
        return Principal(
            kind=PrincipalKind.KEY,
            public_id=key.public_id,
            row_id=key.id,
            level=key.level,
            permissions=including_implied(key.permissions),
            mode=key.mode,
            tenant_id=key.tenant_id,
            tenant_public_id=key.tenant_public_id,
            tenant_status=stored.tenant_status,
            identity_id=key.identity_id,
            identity_public_id=key.identity_public_id,
            credential=Credential(mac=rules.mac(self._pepper, token.text)),
        )

    def mac_of(self, text: str) -> bytes:
        """What is stored of a secret that we drew (B11)."""
        return rules.mac(self._pepper, text)

    def _match(self, token: rules.Token, stored: store.StoredKey | None, now: datetime) -> store.StoredKey | None:
        # Both comparisons always run, on the row's MACs or on ones that nothing has, so that a miss costs what a hit
        # costs.
        presented = rules.mac(self._pepper, token.text)
        current = _NO_MAC if stored is None else stored.mac
        previous, until = _NO_MAC, None
        if stored is not None and stored.previous_mac is not None:
            previous, until = stored.previous_mac, stored.previous_expires_at
        is_current = hmac.compare_digest(presented, current)
        is_previous = hmac.compare_digest(presented, previous) and until is not None and now < until
        if stored is None or not (is_current or is_previous) or token.mode is not stored.key.mode:
            return None
        return stored

    def _note_used(self, key: ApiKey, now: datetime) -> None:
        if key.last_used_at is not None and now - key.last_used_at < _USED_INTERVAL:
            return
        if key.id not in self._used and len(self._used) >= _USED_PENDING:
            self._used.popitem(last=False)
        self._used.setdefault(key.id, now)

    async def flush_used(self) -> None:
        """Write `last_used_at` of the keys used since the last call. What cannot be written is not kept: it is only a
        hint.
        """
        used, self._used = self._used, OrderedDict()
        if not used:
            return
        async with self._db.acquire() as conn:
            await store.mark_used(conn, list(used.items()))


class Keys:
    """Use cases of keys. `caller` None is the command line or setup, which may do what a platform key may."""

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        pepper: bytes,
        random: Callable[[int], bytes] = os.urandom,
        changed: Callable[[str], None] = lambda key: None,
    ) -> None:
        """`changed` is told the id of a key whose connections are to be looked at again."""
        self._db, self._ids, self._clock, self._pepper, self._random = db, ids, clock, pepper, random
        self._changed = changed

    async def create(self, caller: Principal | None, new: rules.NewKey) -> tuple[ApiKey, str]:
        """A new key and its text, which nobody can be shown again (A3.5).

        Raises `invalid_request`, `key_scope_exceeded`, `tenant_not_found`, `identity_not_found`, and
        `key_limit_reached` beyond 100 active keys of a tenant.
        """
        now = self._clock.now()
        rules.check_shape(new, now)
        permissions = rules.check_permissions(new.level, new.permissions)
        if caller is not None:
            rules.check_reach(caller, new, permissions)
        async with self._db.transaction() as conn:
            mode = await self._admit(conn, new, now)
            return await self._insert(conn, new, permissions, mode, now)

    async def bootstrap(self) -> str | None:
        """The first platform key, with every permission, valid for 24 hours; None when there is a platform key
        already (A3.10).
        """
        now = self._clock.now()
        permissions = MAY_HOLD[Level.PLATFORM] - OWNER_ONLY
        new = rules.NewKey("bootstrap", Level.PLATFORM, tuple(permissions), expires_at=now + BOOTSTRAP_LIFE)
        async with self._db.transaction() as conn:
            if await store.any_platform_key(conn):
                return None
            _, text = await self._insert(conn, new, permissions, Mode.LIVE, now)
            return text

    async def page(
        self,
        caller: Principal | None,
        *,
        tenant_id: int | None = None,
        limit: int = 25,
        after: tuple[datetime, str] | None = None,
    ) -> list[ApiKey]:
        """Keys that the caller reaches and that are not wider than it, newest first (A3.6)."""
        async with self._db.acquire() as conn:
            found = await store.page(conn, _scope(caller), tenant_id, min(max(limit, 1), MAX_PAGE), after)
        return [key for key in found if _not_wider(caller, key)]

    async def get(self, caller: Principal | None, public_id: str) -> ApiKey:
        """Raises `key_not_found` out of reach, `key_scope_exceeded` for a wider key."""
        async with self._db.acquire() as conn:
            return await self._reach(conn, caller, public_id)

    async def revoke(self, caller: Principal | None, public_id: str) -> None:
        """The key is refused from now on, with its previous secret. Doing it twice changes nothing. Raises as `get`."""
        async with self._db.transaction() as conn:
            key = await self._reach(conn, caller, public_id)
            await store.revoke(conn, key.id, self._clock.now())
        self._changed(public_id)

    async def rotate(
        self, caller: Principal | None, public_id: str, overlap_hours: int = DEFAULT_OVERLAP_HOURS
    ) -> tuple[ApiKey, str]:
        """A new secret for the same key and lookup; the previous one stays valid for the overlap, 0 to 168 hours
        (A3.6).

        Raises as `get`, and `key_revoked`.
        """
        if not 0 <= overlap_hours <= MAX_OVERLAP_HOURS:
            raise invalid("overlap_hours", f"must be from 0 to {MAX_OVERLAP_HOURS}")
        now = self._clock.now()
        async with self._db.transaction() as conn:
            key = await self._reach(conn, caller, public_id)
            current = await store.current_mac(conn, key.id)
            token = rules.draw(key.mode, self._random, key.lookup)
            mac = rules.mac(self._pepper, token.text)
            until = now + timedelta(hours=overlap_hours) if overlap_hours else None
            previous = current if until is not None else None
            if current is None or not await store.rotate(conn, key.id, mac, previous, until, current):
                raise PostroomError("key_revoked")
        self._changed(public_id)
        return key, token.text

    async def _admit(self, conn: Connection, new: rules.NewKey, now: datetime) -> Mode:
        if new.tenant_id is None:
            return Mode.LIVE
        # The lock makes the count below exact, so that races cannot overshoot the cap (A3.5 step 4).
        tenant = await tenant_store.lock(conn, new.tenant_id)
        if tenant is None or tenant.status.is_gone:
            raise PostroomError("tenant_not_found")
        if new.identity_id is not None and not await store.identity_exists(conn, tenant.id, new.identity_id):
            raise PostroomError("identity_not_found")
        if await store.count_active(conn, tenant.id, now) >= rules.MAX_ACTIVE_PER_TENANT:
            raise PostroomError("key_limit_reached", details={"limit": rules.MAX_ACTIVE_PER_TENANT})
        return tenant.mode

    async def _insert(
        self, conn: Connection, new: rules.NewKey, permissions: frozenset[Permission], mode: Mode, now: datetime
    ) -> tuple[ApiKey, str]:
        public_id = self._ids.new("key_")
        for _ in range(_DRAWS):
            token = rules.draw(mode, self._random)
            inserted = await store.insert(
                conn,
                public_id=public_id,
                lookup=token.lookup,
                mac=rules.mac(self._pepper, token.text),
                name=new.name,
                level=new.level,
                tenant_id=new.tenant_id,
                identity_id=new.identity_id,
                mode=mode,
                permissions=sorted(permissions),
                expires_at=new.expires_at,
                now=now,
            )
            if inserted:
                key = await store.get(conn, PLATFORM_SCOPE, public_id)
                assert key is not None
                return key, token.text
        raise PostroomError("internal_error")

    async def _reach(self, conn: Connection, caller: Principal | None, public_id: str) -> ApiKey:
        key = await store.get(conn, _scope(caller), public_id)
        if key is None:
            raise PostroomError("key_not_found")
        if not _not_wider(caller, key):
            raise PostroomError("key_scope_exceeded")
        return key


def _scope(caller: Principal | None) -> Scope:
    return PLATFORM_SCOPE if caller is None else caller.scope


def _not_wider(caller: Principal | None, key: ApiKey) -> bool:
    if caller is None or caller.public_id == key.public_id:
        return True
    return key.level.rank <= caller.level.rank and rules.grantable(caller, key.permissions)
