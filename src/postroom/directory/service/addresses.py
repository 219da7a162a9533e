"""Addresses of an identity over time: added, promoted, retired (inbound §4; A11, A14, FR-ADR-1 to FR-ADR-4)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import asyncpg

from postroom.accounts.models import PLATFORM_SCOPE, Scope
from postroom.accounts.names import NameClass
from postroom.accounts.text import invalid
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.directory import rules, store
from postroom.directory.models import (
    AddressRole,
    AddressStatus,
    Announce,
    Announcement,
    Changed,
    Fact,
    HostedAddress,
    Identity,
)
from postroom.directory.service.identities import writable
from postroom.directory.tombstones import address_hash
from postroom.directory.usernames import MAX_ALIAS, validate_username

_REMOVED: Final = frozenset(("removing", "removed"))
_BATCH: Final = 100


class Addresses:
    """Use cases of addresses. `announce` writes events in the transaction, `changed` is told of the identity after."""

    def __init__(
        self, db: Database, ids: IdGenerator, clock: Clock, hash_key: bytes, announce: Announce, changed: Changed
    ) -> None:
        self._db, self._ids, self._clock, self._hash_key = db, ids, clock, hash_key
        self._announce, self._changed = announce, changed

    async def add(self, scope: Scope, identity_id: str, local_part: str, domain_id: str) -> HostedAddress:
        """An alias on a domain of the tenant: active at once on a domain that receives, else pending.

        Raises the errors of `validate_username`; `identity_not_found`, `domain_not_found`, `domain_not_ready` while the
        domain is being removed, `address_limit_reached`, `address_taken`.
        """
        local, _ = validate_username(local_part, NameClass.TENANT, max_length=MAX_ALIAS)
        now = self._clock.now()
        try:
            async with self._db.transaction() as conn:
                identity = await writable(conn, scope, identity_id)
                domain = await store.tenant_domain(conn, identity.tenant_id, domain_id)
                if domain is None:
                    raise PostroomError("domain_not_found")
                if domain.status in _REMOVED:
                    raise PostroomError("domain_not_ready")
                await store.drop_pending(conn, identity.tenant_id, identity.id, domain.id)
                await self._check_free(conn, identity, f"{local}@{domain.name}", domain.id)
                ready = domain.status in rules.READY_DOMAIN
                await store.insert_address(
                    conn,
                    identity.tenant_id,
                    identity.id,
                    self._ids.new("adr_"),
                    local,
                    domain,
                    AddressRole.ALIAS,
                    AddressStatus.ACTIVE if ready else AddressStatus.PENDING,
                    now,
                )
                after = await self._again(conn, identity)
                added = next(one for one in after.addresses if one.address == f"{local}@{domain.name}")
                await self._announce(conn, Announcement(Fact.ADDRESS_ADDED, after, now, added))
        except asyncpg.UniqueViolationError:
            raise PostroomError("address_taken") from None
        self._changed(identity_id)
        return added

    async def remove_pending(self, scope: Scope, identity_id: str, address_id: str) -> None:
        """Raises `address_not_found`; `address_in_use` for an address that has been in use."""
        async with self._db.transaction() as conn:
            identity = await writable(conn, scope, identity_id)
            address = _one(identity, address_id)
            if not await store.delete_pending(conn, identity.tenant_id, address.id):
                raise PostroomError("address_in_use")
        self._changed(identity_id)

    async def promote(
        self, scope: Scope, identity_id: str, address_id: str, retire_after_days: int = rules.DEFAULT_RETIRE_DAYS
    ) -> Identity:
        """Make an active or retiring alias the primary (FR-ADR-2, FR-ADR-4).

        The address that was primary retires after `retire_after_days` (0–365; 0 = now), but stays an active alias when
        it is the platform's, the fallback sender, or when this takes back an earlier promotion (A14). Raises
        `address_not_found`, `address_is_primary`, `domain_not_ready`, `invalid_request`.
        """
        _check_days("retire_previous_after_days", retire_after_days)
        now = self._clock.now()
        async with self._db.transaction() as conn:
            identity = await writable(conn, scope, identity_id)
            address = _one(identity, address_id)
            if address.role is AddressRole.PRIMARY:
                raise PostroomError("address_is_primary")
            if not address.status.receives or not await self._is_ready(conn, identity, address):
                raise PostroomError("domain_not_ready")
            previous = identity.primary
            rollback = address.is_platform or address.status is AddressStatus.RETIRING
            if previous.is_platform or rollback:
                await self._set(conn, identity, previous, AddressStatus.ACTIVE, None, now)
            else:
                await self._retire(conn, identity, previous, retire_after_days, now)
            await store.set_address(
                conn, identity.tenant_id, address.id, AddressRole.PRIMARY, AddressStatus.ACTIVE, None, None, now
            )
            after = await self._again(conn, identity)
            await self._announce(
                conn,
                Announcement(
                    Fact.ADDRESS_PROMOTED, after, now, _one(after, address_id), _one(after, previous.public_id)
                ),
            )
        self._changed(identity_id)
        return after

    async def retire(
        self, scope: Scope, identity_id: str, address_id: str, after_days: int = rules.DEFAULT_RETIRE_DAYS
    ) -> Identity:
        """Let an alias receive for `after_days` more (0–365; 0 = no longer), then never again (FR-ADR-3).

        Raises `address_not_found`, `address_is_primary`; `address_in_use` for the platform address (A14).
        """
        _check_days("after_days", after_days)
        now = self._clock.now()
        async with self._db.transaction() as conn:
            identity = await writable(conn, scope, identity_id)
            address = _one(identity, address_id)
            if address.role is AddressRole.PRIMARY:
                raise PostroomError("address_is_primary")
            if address.is_platform:
                raise PostroomError("address_in_use")
            if not address.status.receives:
                raise PostroomError("address_not_found")
            await self._retire(conn, identity, address, after_days, now)
            after = await self._again(conn, identity)
            if after_days == 0:
                retired = _one(after, address_id)
                await self._announce(conn, Announcement(Fact.ADDRESS_RETIRED, after, now, retired))
        self._changed(identity_id)
        return after

    async def retire_due(self) -> int:
        """Retire up to 100 addresses whose grace is over; how many. Run it every minute, again while it is 100."""
        now = self._clock.now()
        touched: list[str] = []
        async with self._db.transaction() as conn:
            due = await store.due_addresses(conn, now, _BATCH)
            for tenant_id, identity_key, address_id in due:
                identity = await store.by_key(conn, tenant_id, identity_key)
                address = _one(identity, address_id)
                await self._set(conn, identity, address, AddressStatus.RETIRED, None, now)
                after = await self._again(conn, identity)
                retired = _one(after, address_id)
                await self._announce(conn, Announcement(Fact.ADDRESS_RETIRED, after, now, retired))
                touched.append(identity.public_id)
        for public_id in touched:
            self._changed(public_id)
        return len(touched)

    async def _check_free(self, conn: Connection, identity: Identity, address: str, domain_id: int) -> None:
        kept = [
            one
            for one in identity.addresses
            if not (one.status is AddressStatus.PENDING and one.domain_id == domain_id)
        ]
        if len(kept) >= rules.MAX_ADDRESSES:
            raise PostroomError("address_limit_reached", details={"limit": rules.MAX_ADDRESSES})
        hashed = address_hash(self._hash_key, address)
        if await store.is_taken(conn, address, hashed, identity.tenant_id, identity.id):
            raise PostroomError("address_taken")

    async def _is_ready(self, conn: Connection, identity: Identity, address: HostedAddress) -> bool:
        if address.is_platform:
            return True
        return await store.domain_status(conn, identity.tenant_id, address.domain_id) in rules.READY_DOMAIN

    async def _retire(
        self, conn: Connection, identity: Identity, address: HostedAddress, days: int, now: datetime
    ) -> None:
        if days == 0:
            await self._set(conn, identity, address, AddressStatus.RETIRED, None, now)
        else:
            await self._set(conn, identity, address, AddressStatus.RETIRING, now + timedelta(days=days), now)

    async def _set(
        self,
        conn: Connection,
        identity: Identity,
        address: HostedAddress,
        status: AddressStatus,
        retire_at: datetime | None,
        now: datetime,
    ) -> None:
        """The address as an alias of that status."""
        retired_at = now if status is AddressStatus.RETIRED else None
        await store.set_address(
            conn, identity.tenant_id, address.id, AddressRole.ALIAS, status, retire_at, retired_at, now
        )

    async def _again(self, conn: Connection, identity: Identity) -> Identity:
        after = await store.get(conn, PLATFORM_SCOPE, identity.public_id)
        assert after is not None
        return after


def _one(identity: Identity, address_id: str) -> HostedAddress:
    for address in identity.addresses:
        if address.public_id == address_id:
            return address
    raise PostroomError("address_not_found")


def _check_days(path: str, days: int) -> None:
    if not 0 <= days <= rules.MAX_RETIRE_DAYS:
        raise invalid(path, f"must be from 0 to {rules.MAX_RETIRE_DAYS}")
