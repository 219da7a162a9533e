"""API keys: verified on every request, minted, listed, rotated, revoked (security-privacy A3).

What is done is audited in its own transaction; what is refused leaves nothing (J20).
"""

from __future__ import annotations

import hmac
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.accounts import keys as rules
from postroom.accounts.audit import HOST, Actor, Entry, actor_of, record
from postroom.accounts.models import PLATFORM_SCOPE, ApiKey, Credential, Mode, Principal, PrincipalKind
from postroom.accounts.permissions import (
    MAY_HOLD,
    MAY_MINT,
    OWNER_ONLY,
    UNLISTED,
    Level,
    Permission,
    including_implied,
)
from postroom.accounts.store import keys as store
from postroom.accounts.store import reach
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

Then = Callable[[Connection, ApiKey, str], Awaitable[None]]
"""What happens in the transaction of a change, told the key and its new secret."""


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
        secret only `key_revoked`, `key_expired` or `partner_suspended`, the first that holds (A3.2).
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
        _check_standing(stored, now)
        key = stored.key
        self._note_used(key, now)
        return Principal(
            kind=PrincipalKind.KEY,
            public_id=key.public_id,
            row_id=key.id,
            level=key.level,
            permissions=including_implied(key.permissions) | UNLISTED[key.level],
            mode=key.mode,
            tenant_id=key.tenant_id,
            tenant_public_id=key.tenant_public_id,
            tenant_status=stored.tenant_status,
            identity_id=key.identity_id,
            identity_public_id=key.identity_public_id,
            credential=Credential(mac=rules.mac(self._pepper, token.text)),
            partner_id=key.partner_id,
            partner_public_id=key.partner_public_id,
            behind=key.created_by_role,
            key=key,
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
    """Use cases of keys. `caller` None is the command line or setup, who reach everything."""

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

    async def mint(
        self,
        caller: Principal | None,
        asked: rules.KeyRequest,
        *,
        by: Actor | None = None,
        then: Then | None = None,
    ) -> tuple[ApiKey, str]:
        """`create`, for whoever names the key's scope by public ids. What the caller does not reach is refused in the
        same way whether it exists or not.

        Raises as `create`, and `partner_not_found`. `then` is also told the secret.
        """
        now = self._clock.now()
        rules.check_shape(asked, now)
        role = None if caller is None else caller.behind
        if asked.person is None:
            rules.check_permissions(asked.level, asked.permissions, role)
        async with self._db.transaction() as conn:
            new = await self._resolve(conn, caller, asked)
            made, text = await self._create(conn, caller, new, by, now)
            if then is not None:
                await then(conn, made, text)
            return made, text

    async def create(self, caller: Principal | None, new: rules.NewKey) -> tuple[ApiKey, str]:
        """A new key and its text, which nobody can be shown again (A3.5).

        Raises `invalid_request`, `key_scope_exceeded`, `tenant_not_found`, `identity_not_found`, `person_not_found`,
        and `key_limit_reached` beyond 100 active keys of a tenant, or 10 of a partner; `key_revoked` when the calling
        key went out of force meanwhile.
        """
        now = self._clock.now()
        rules.check_shape(new, now)
        async with self._db.transaction() as conn:
            return await self._create(conn, caller, new, None, now)

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
            key, text = await self._insert(conn, new, permissions, Mode.LIVE, rules.NOBODY, now)
            await self._audit(conn, HOST, "key.create", key, {"level": key.level.value, "via": "setup"})
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
            return await store.page(conn, _reach_of(caller), tenant_id, min(max(limit, 1), MAX_PAGE), after)

    async def get(self, caller: Principal | None, public_id: str) -> ApiKey:
        """Raises `key_not_found` out of reach, `key_scope_exceeded` for a wider key."""
        async with self._db.acquire() as conn:
            return await self._reach(conn, caller, public_id)

    async def revoke(self, caller: Principal | None, public_id: str, *, by: Actor | None = None) -> None:
        """The key is refused from now on, with its previous secret. Doing it twice changes nothing. Raises as `get`."""
        async with self._db.transaction() as conn:
            key = await self._reach(conn, caller, public_id)
            if await store.revoke(conn, key.id, self._clock.now()):
                await self._audit(conn, _actor(caller, by), "key.revoke", key, {})
        self._changed(public_id)

    async def rotate(
        self,
        caller: Principal | None,
        public_id: str,
        overlap_hours: int = DEFAULT_OVERLAP_HOURS,
        *,
        by: Actor | None = None,
        then: Then | None = None,
    ) -> tuple[ApiKey, str]:
        """A new secret for the same key and lookup; the previous one stays valid for the overlap, 0 to 168 hours
        (A3.6). One that is rotated again within it has two secrets all the same: the newest, and the one before.

        Raises as `get`, `key_revoked` when the calling key went out of force meanwhile, and `invalid_request` with the
        reason `key_revoked` or `key_expired` for a key whose new secret would open nothing.
        """
        if not 0 <= overlap_hours <= MAX_OVERLAP_HOURS:
            raise invalid("overlap_hours", f"must be from 0 to {MAX_OVERLAP_HOURS}")
        now = self._clock.now()
        async with self._db.transaction() as conn:
            key = await self._reach(conn, caller, public_id)
            current = await self._hold(conn, caller, key, now)
            if key.expires_at is not None and key.expires_at <= now:
                raise PostroomError("invalid_request", details={"reason": "key_expired"})
            token = rules.draw(key.mode, self._random, key.lookup)
            mac = rules.mac(self._pepper, token.text)
            until = now + timedelta(hours=overlap_hours) if overlap_hours else None
            previous = current if until is not None else None
            if current is None or not await store.rotate(conn, key.id, mac, previous, until, current):
                raise PostroomError("invalid_request", details={"reason": "key_revoked"})
            await self._audit(conn, _actor(caller, by), "key.rotate", key, {"overlap_hours": overlap_hours})
            if then is not None:
                await then(conn, key, token.text)
        self._changed(public_id)
        return key, token.text

    async def _hold(self, conn: Connection, caller: Principal | None, key: ApiKey, now: datetime) -> bytes | None:
        """The MAC of a key that gets a new secret, its row locked, and the caller's shared: in the order of their ids,
        since the caller may be about to get a new secret from that very key (B10).
        """
        if caller is None:
            return await store.current_mac(conn, key.id)
        current, is_first = None, caller.row_id < key.id
        if not is_first:
            current = await store.current_mac(conn, key.id)
        if await store.parent(conn, caller.row_id, now) is None:
            # Revoked since it was let in, perhaps with the person behind it: it gets no secret of another key.
            raise PostroomError("key_revoked")
        return await store.current_mac(conn, key.id) if is_first else current

    # -- minting

    async def _resolve(self, conn: Connection, caller: Principal | None, asked: rules.KeyRequest) -> rules.NewKey:
        """The scope by database keys (A3.5 step 3)."""
        if caller is not None and asked.level not in MAY_MINT[caller.level]:
            raise PostroomError("key_scope_exceeded")
        partner_id = tenant_id = identity_id = None
        if asked.partner is not None:
            partner_id = await reach.lock_partner(conn, asked.partner)
            if partner_id is None:
                raise PostroomError("partner_not_found")
        if asked.tenant is not None:
            tenant_id = await reach.tenant_in(conn, _reach_of(caller).scope, asked.tenant)
            if tenant_id is None:
                bound = caller is not None and caller.level is not Level.PLATFORM
                raise PostroomError("key_scope_exceeded" if bound else "tenant_not_found")
            if asked.identity is not None:
                if (
                    caller is not None
                    and caller.level is Level.IDENTITY
                    and asked.identity != caller.identity_public_id
                ):
                    raise PostroomError("key_scope_exceeded")
                identity_id = await store.identity_id(conn, tenant_id, asked.identity)
                if identity_id is None:
                    raise PostroomError("identity_not_found")
        return rules.NewKey(
            *(asked.name, asked.level, asked.permissions, tenant_id, identity_id, asked.expires_at, partner_id),
            person=asked.person,
        )

    async def _create(
        self, conn: Connection, caller: Principal | None, new: rules.NewKey, by: Actor | None, now: datetime
    ) -> tuple[ApiKey, str]:
        mode, full = await self._admit(conn, new, now)
        lineage = await self._lineage(conn, caller, new, now)
        permissions = rules.check_permissions(new.level, new.permissions, lineage.role)
        details: dict[str, Any] = {"level": new.level.value}
        if caller is not None:
            partners = caller.level is Level.PARTNER
            is_partners = partners and await store.is_partners(conn, caller.partner_id, new.tenant_id)
            rules.check_reach(caller, new, permissions, is_partners=is_partners)
            if extra := rules.granted_without_holding(caller, permissions):
                details["granted_without_holding"] = extra
        elif lineage.role is not None:
            rules.check_role(lineage.role, permissions)
        if full is not None:
            raise full
        key, text = await self._insert(conn, new, permissions, mode, lineage, now)
        await self._audit(conn, _actor(caller, by), "key.create", key, details)
        return key, text

    async def _admit(self, conn: Connection, new: rules.NewKey, now: datetime) -> tuple[Mode, PostroomError | None]:
        """The mode of the new key; and what is to be raised, when it may be minted but for the number of keys."""
        # The locks make the counts below exact, so that races cannot overshoot the caps (A3.5 step 4).
        if new.partner_id is not None:
            count, limit = await store.count_active_of_partner(conn, new.partner_id, now), rules.MAX_ACTIVE_PER_PARTNER
            return Mode.LIVE, _full(count, limit)
        if new.tenant_id is None:
            return Mode.LIVE, None
        tenant = await tenant_store.lock(conn, new.tenant_id)
        if tenant is None or tenant.status.is_gone:
            raise PostroomError("tenant_not_found")
        if new.identity_id is not None and not await store.identity_exists(conn, tenant.id, new.identity_id):
            raise PostroomError("identity_not_found")
        return tenant.mode, _full(await store.count_active(conn, tenant.id, now), rules.MAX_ACTIVE_PER_TENANT)

    async def _lineage(
        self, conn: Connection, caller: Principal | None, new: rules.NewKey, now: datetime
    ) -> rules.Lineage:
        # After the tenant is locked, as whoever takes a person out of it locks it first: then either the calling key
        # is revoked by now, or what it makes is there to be revoked with it (W36).
        if caller is not None:
            parent = await store.parent(conn, caller.row_id, now)
            if parent is None:
                raise PostroomError("key_revoked")
            return parent
        if new.person is None:
            return rules.NOBODY
        role = None if new.tenant_id is None else await store.role_of(conn, new.tenant_id, new.person)
        if role is None:
            raise PostroomError("person_not_found")
        return rules.Lineage(person=new.person, role=role)

    async def _insert(
        self,
        conn: Connection,
        new: rules.NewKey,
        permissions: frozenset[Permission],
        mode: Mode,
        lineage: rules.Lineage,
        now: datetime,
    ) -> tuple[ApiKey, str]:
        public_id = self._ids.new("key_")
        for _ in range(_DRAWS):
            token = rules.draw(mode, self._random)
            row_id = await store.insert(
                *(conn, new),
                public_id=public_id,
                lookup=token.lookup,
                mac=rules.mac(self._pepper, token.text),
                mode=mode,
                permissions=sorted(permissions),
                lineage=lineage,
                now=now,
            )
            if row_id is not None:
                key = await store.own(conn, row_id)
                assert key is not None
                return key, token.text
        raise PostroomError("internal_error")

    async def _reach(self, conn: Connection, caller: Principal | None, public_id: str) -> ApiKey:
        found = await store.get(conn, _reach_of(caller), public_id)
        if found is None:
            raise PostroomError("key_not_found")
        key, not_wider = found
        if not not_wider:
            raise PostroomError("key_scope_exceeded")
        return key

    async def _audit(self, conn: Connection, by: Actor, action: str, key: ApiKey, details: dict[str, Any]) -> None:
        entry = Entry(action, "key", key.public_id, key.tenant_id, details)
        await record(conn, self._ids, self._clock.now(), by, entry)


def _check_standing(stored: store.StoredKey, now: datetime) -> None:
    """Steps 6 to 8 of A3.2, for whoever has the secret."""
    key = stored.key
    if key.revoked_at is not None:
        raise PostroomError("key_revoked")
    if key.expires_at is not None and key.expires_at <= now:
        raise PostroomError("key_expired")
    gone = stored.identity_gone or (stored.tenant_status is not None and stored.tenant_status.is_gone)
    if gone or stored.partner_status == "deleted":
        raise PostroomError("key_revoked")
    if stored.partner_status not in (None, "active"):
        raise PostroomError("partner_suspended")


def _actor(caller: Principal | None, by: Actor | None) -> Actor:
    if by is not None:
        return by
    return HOST if caller is None else actor_of(caller)


def _reach_of(caller: Principal | None) -> store.Reach:
    if caller is None:
        return store.Reach(PLATFORM_SCOPE)
    return store.Reach(caller.scope, tuple(sorted(rules.grantable(caller))), caller.public_id)


def _full(count: int, limit: int) -> PostroomError | None:
    return None if count < limit else PostroomError("key_limit_reached", details={"limit": limit})
