"""Addresses of an identity over time: added, promoted, retired (inbound §4; A11, A14, FR-ADR-1 to FR-ADR-4).

What may become of an address is decided in `lifecycle`; here it is done, under locks that are taken in one order: the
domain of the address, the identity, then (by the event) its mailbox (B10).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

import asyncpg

from postroom.accounts import audit
from postroom.accounts.audit import HOST, Actor
from postroom.accounts.models import PLATFORM_SCOPE, Scope
from postroom.accounts.names import NameClass
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.directory import lifecycle, rules, store
from postroom.directory.lifecycle import Transition
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
from postroom.directory.tombstones import check_free
from postroom.directory.usernames import MAX_ALIAS, validate_username
from postroom.smtp.address import AddressSyntaxError, domain_to_ascii

_REMOVED: Final = frozenset(("removing", "removed"))
_BATCH: Final = 100
MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""

Then = Callable[[Connection, Identity, HostedAddress], Awaitable[None]]
"""Done in the transaction of a change, with what is there after it."""


class Addresses:
    """Use cases of addresses. `announce` writes events in the transaction, `changed` is told of the identity after.

    `by` is who does it, for the audit log.
    """

    def __init__(
        self, db: Database, ids: IdGenerator, clock: Clock, hash_key: bytes, announce: Announce, changed: Changed
    ) -> None:
        self._db, self._ids, self._clock, self._hash_key = db, ids, clock, hash_key
        self._announce, self._changed = announce, changed

    async def page(
        self, scope: Scope, identity_id: str, *, limit: int = 25, after: tuple[datetime, str] | None = None
    ) -> list[HostedAddress]:
        """Addresses of an identity in any state, newest first; `after` is the creation time and public id of the last
        one seen. Raises `identity_not_found`.
        """
        async with self._db.acquire() as conn:
            identity = await store.get(conn, scope, identity_id)
        if identity is None:
            raise PostroomError("identity_not_found")
        found = sorted(identity.addresses, key=_newest, reverse=True)
        return [one for one in found if after is None or _newest(one) < after][: min(max(limit, 1), MAX_PAGE)]

    async def add(
        self,
        scope: Scope,
        identity_id: str,
        local_part: str,
        domain_id: str,
        *,
        by: Actor = HOST,
        then: Then | None = None,
    ) -> HostedAddress:
        """An alias on a domain of the tenant: active at once on a domain that receives, else pending.

        Raises the errors of `validate_username`; `identity_not_found`, `domain_not_found`, `domain_not_ready` while the
        domain is being removed, `address_limit_reached`, `address_taken`.
        """
        local, _ = validate_username(local_part, NameClass.TENANT, max_length=MAX_ALIAS)
        now = self._clock.now()
        try:
            async with self._db.transaction() as conn:
                seen = await writable(conn, scope, identity_id, lock=False)
                domain = await store.hold_domain(conn, seen.tenant_id, domain_id)
                identity = await writable(conn, scope, identity_id)
                if domain is None:
                    raise PostroomError("domain_not_found")
                if domain.status in _REMOVED:
                    raise PostroomError("domain_not_ready")
                await store.drop_pending(conn, identity.tenant_id, identity.id, domain.id)
                lifecycle.check_room(identity, domain.id)
                name = f"{local}@{domain.name}"
                await check_free(conn, self._hash_key, name, identity.tenant_id, identity.id)
                await store.insert_address(
                    conn,
                    identity.tenant_id,
                    identity.id,
                    self._ids.new("adr_"),
                    local,
                    domain,
                    AddressRole.ALIAS,
                    AddressStatus.ACTIVE if rules.receives(domain) else AddressStatus.PENDING,
                    now,
                )
                after = await self._again(conn, identity)
                added = next(one for one in after.addresses if one.address == name)
                await self._tell(conn, Fact.ADDRESS_ADDED, after, now, added)
                await self._record(conn, "address.create", after, added, by, now)
                if then is not None:
                    await then(conn, after, added)
        except asyncpg.UniqueViolationError:
            raise PostroomError("address_taken") from None
        self._changed(identity_id)
        return added

    async def domain_id(self, tenant_id: int, name: str) -> str:
        """The public id of a domain of the tenant, however its name is written. Raises `domain_not_found`."""
        try:
            wanted = domain_to_ascii(name)
        except AddressSyntaxError:
            raise PostroomError("domain_not_found") from None
        async with self._db.acquire() as conn:
            found = await store.domain_id(conn, tenant_id, wanted)
        if found is None:
            raise PostroomError("domain_not_found")
        return found

    async def remove_pending(self, scope: Scope, identity_id: str, address_id: str, *, by: Actor = HOST) -> None:
        """Raises `address_not_found`, `address_is_primary`; `address_in_use` for an address that has been in use."""
        now = self._clock.now()
        async with self._db.transaction() as conn:
            identity = await writable(conn, scope, identity_id)
            address = lifecycle.find(identity, address_id)
            lifecycle.check_removal(address)
            if not await store.delete_pending(conn, identity.tenant_id, address.id):
                raise PostroomError("address_in_use")
            await self._record(conn, "address.delete", identity, address, by, now)
        self._changed(identity_id)

    async def promote(
        self,
        scope: Scope,
        identity_id: str,
        address_id: str,
        retire_after_days: int = rules.DEFAULT_RETIRE_DAYS,
        *,
        by: Actor = HOST,
        then: Then | None = None,
    ) -> Identity:
        """Make an active or retiring alias the primary (FR-ADR-2, FR-ADR-4).

        The address that was primary retires after `retire_after_days` (0–365; 0 = now), but stays an active alias when
        it is the platform's, the fallback sender, or when this takes back an earlier promotion (A14). Raises
        `identity_not_found`, `address_not_found`, `address_is_primary`, `domain_not_ready`, `invalid_request`.
        """
        lifecycle.check_days("retire_previous_after_days", retire_after_days)
        now = self._clock.now()
        async with self._db.transaction() as conn:
            ready = await self._hold_domain_of(conn, scope, identity_id, address_id)
            identity = await writable(conn, scope, identity_id)
            address = lifecycle.find(identity, address_id)
            taken, left = lifecycle.promote(identity, address, ready=ready, days=retire_after_days, now=now)
            # The old one first: there is never a moment with two.
            for transition in (left, taken):
                await self._apply(conn, identity, transition, now)
            after = await self._again(conn, identity)
            promoted, previous = (lifecycle.find(after, one.address.public_id) for one in (taken, left))
            await self._announce(conn, Announcement(Fact.ADDRESS_PROMOTED, after, now, promoted, previous))
            if previous.status is AddressStatus.RETIRED:
                await self._tell(conn, Fact.ADDRESS_RETIRED, after, now, previous)
            await self._record(conn, "address.promote", after, promoted, by, now)
            if then is not None:
                await then(conn, after, promoted)
        self._changed(identity_id)
        return after

    async def roll_back(self, scope: Scope, identity_id: str, *, by: Actor = HOST) -> Identity:
        """Take the newest promotion back: the retiring address with the latest end is the primary again, without one
        the platform's (FR-ADR-4). Raises `identity_not_found`; `address_is_primary` when there is nothing to go back
        to; `domain_not_ready`.
        """
        async with self._db.acquire() as conn:
            identity = await writable(conn, scope, identity_id, lock=False)
        retiring = [one for one in identity.addresses if one.status is AddressStatus.RETIRING]
        platform = [one for one in identity.addresses if one.is_platform]
        goal = max(retiring, key=lambda one: (one.retire_at or one.created_at, one.id)) if retiring else platform[0]
        if goal.role is AddressRole.PRIMARY:
            raise PostroomError("address_is_primary", message="There is no earlier primary address to go back to.")
        return await self.promote(scope, identity_id, goal.public_id, by=by)

    async def retire(
        self,
        scope: Scope,
        identity_id: str,
        address_id: str,
        after_days: int = rules.DEFAULT_RETIRE_DAYS,
        *,
        by: Actor = HOST,
        then: Then | None = None,
    ) -> Identity:
        """Let an alias receive for `after_days` more (0–365; 0 = no longer), then never again (FR-ADR-3).

        Raises `identity_not_found`, `address_not_found`, `address_is_primary`; `address_in_use` for the platform
        address (A14); `invalid_request`.
        """
        lifecycle.check_days("after_days", after_days)
        now = self._clock.now()
        async with self._db.transaction() as conn:
            identity = await writable(conn, scope, identity_id)
            transition = lifecycle.retire(lifecycle.find(identity, address_id), days=after_days, now=now)
            await self._apply(conn, identity, transition, now)
            after = await self._again(conn, identity)
            address = lifecycle.find(after, address_id)
            if address.status is AddressStatus.RETIRED:
                await self._tell(conn, Fact.ADDRESS_RETIRED, after, now, address)
            await self._record(conn, "address.retire", after, address, by, now)
            if then is not None:
                await then(conn, after, address)
        self._changed(identity_id)
        return after

    async def retire_due(self) -> int:
        """Retire up to 100 addresses whose grace is over; how many. Run it every minute, again while it is 100."""
        now = self._clock.now()
        touched: list[str] = []
        async with self._db.transaction() as conn:
            for tenant_id, identity_key, address_id in await store.due_addresses(conn, now, _BATCH):
                identity = await store.by_key(conn, tenant_id, identity_key)
                # Whoever held the identity until now may have taken the address back, or away.
                address = next((one for one in identity.addresses if one.public_id == address_id), None)
                transition = None if address is None else lifecycle.expire(address, now)
                if transition is None:
                    continue
                await self._apply(conn, identity, transition, now)
                after = await self._again(conn, identity)
                await self._tell(conn, Fact.ADDRESS_RETIRED, after, now, lifecycle.find(after, address_id))
                touched.append(identity.public_id)
        for public_id in touched:
            self._changed(public_id)
        return len(touched)

    async def activate_ready(self) -> int:
        """Let up to 100 addresses receive whose domain does by now; how many. Run it every minute, and when a domain
        has come to receive.
        """
        now = self._clock.now()
        touched: list[str] = []
        async with self._db.transaction() as conn:
            ready = await store.ready_addresses(conn, sorted(rules.READY_DOMAIN), _BATCH)
            for tenant_id, identity_key, address_id in ready:
                identity = await store.by_key(conn, tenant_id, identity_key)
                address = next((one for one in identity.addresses if one.public_id == address_id), None)
                if address is None or address.status is not AddressStatus.PENDING:
                    continue
                await self._apply(conn, identity, Transition(address, address.role, AddressStatus.ACTIVE), now)
                after = await self._again(conn, identity)
                await self._tell(conn, Fact.ADDRESS_ACTIVATED, after, now, lifecycle.find(after, address_id))
                touched.append(identity.public_id)
        for public_id in touched:
            self._changed(public_id)
        return len(touched)

    async def _hold_domain_of(self, conn: Connection, scope: Scope, identity_id: str, address_id: str) -> bool:
        """Whether the domain of an address receives, which stays so until the end of the transaction. The platform's
        always does. Raises `identity_not_found`, `address_not_found`.
        """
        seen = await writable(conn, scope, identity_id, lock=False)
        address = lifecycle.find(seen, address_id)
        if address.is_platform:
            return True
        domain = await store.hold_domain(conn, seen.tenant_id, address.domain_public_id)
        return domain is not None and rules.receives(domain)

    async def _apply(self, conn: Connection, identity: Identity, to: Transition, now: datetime) -> None:
        await store.set_address(
            conn, identity.tenant_id, to.address.id, to.role, to.status, to.retire_at, to.retired_at, now
        )

    async def _tell(
        self, conn: Connection, fact: Fact, identity: Identity, now: datetime, address: HostedAddress
    ) -> None:
        await self._announce(conn, Announcement(fact, identity, now, address))

    async def _record(
        self, conn: Connection, action: str, identity: Identity, address: HostedAddress, by: Actor, now: datetime
    ) -> None:
        details = {"identity_id": identity.public_id, "status": address.status.value}
        entry = audit.Entry(action, "address", address.public_id, identity.tenant_id, details)
        await audit.record(conn, self._ids, now, by, entry)

    async def _again(self, conn: Connection, identity: Identity) -> Identity:
        after = await store.get(conn, PLATFORM_SCOPE, identity.public_id)
        assert after is not None
        return after


def _newest(address: HostedAddress) -> tuple[datetime, str]:
    return address.created_at, address.public_id
