"""Aliases of a tenant: made, listed, removed (mail-server A6; decisions, section E)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

import asyncpg

from postroom.accounts.audit import HOST, Actor, Entry, record
from postroom.accounts.models import Tenant, TenantStatus
from postroom.accounts.names import NameClass
from postroom.accounts.store import tenants as tenant_store
from postroom.accounts.text import invalid
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.directory import aliases, routes, rules
from postroom.directory.models import Alias, Changed
from postroom.directory.rules import DomainRow
from postroom.directory.tombstones import check_free
from postroom.directory.usernames import MAX_ALIAS, class_of, validate_username
from postroom.smtp.address import AddressSyntaxError, parse_path

MAX_ALIASES: Final = 1000
"""Of one tenant."""
MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""
MAX_ADDRESS: Final = 254
"""Octets of an address that fits a path (RFC 5321 §4.5.3.1.3)."""

Then = Callable[[Connection, Alias], Awaitable[None]]

_FULL: Final = "The tenant has as many aliases as it may have."


class Aliases:
    """Use cases of aliases. `changed` is told of the address after the commit."""

    def __init__(
        self, db: Database, ids: IdGenerator, clock: Clock, hash_key: bytes, platform_domain: str, changed: Changed
    ) -> None:
        self._db, self._ids, self._clock, self._hash_key = db, ids, clock, hash_key
        self._platform_domain = platform_domain
        self._changed = changed

    async def create(
        self, tenant_id: int, address: str, target: str, *, by: Actor = HOST, then: Then | None = None
    ) -> Alias:
        """An alias that counts at once. `target` is an address, here or elsewhere, or a bare local part, which means
        the alias's own domain. On the platform domain the address ends with the tenant's suffix, as its people's do.
        `then` is called inside the transaction.

        Raises the errors of `validate_username`; `address_invalid` with the field's name, `domain_not_found`,
        `domain_not_ready`, `address_taken`, `address_limit_reached`, `tenant_not_found`, `tenant_suspended`;
        `invalid_request` for a target that leads back, and where too many aliases would lead to one another.
        """
        local, domain_name = _parsed("address", address)
        public_id = self._ids.new("als_")
        try:
            async with self._db.transaction() as conn:
                # One after the other for a tenant, so that the limit holds.
                tenant = await tenant_store.lock(conn, tenant_id)
                if tenant is None or tenant.status.is_gone:
                    raise PostroomError("tenant_not_found")
                if tenant.status is TenantStatus.SUSPENDED:
                    raise PostroomError("tenant_suspended")
                domain = await self._domain(conn, tenant, domain_name)
                name = f"{self._local_part(tenant, local, domain)}@{domain.name}"
                goal = _target(target, domain.name)
                await check_free(conn, self._hash_key, name, tenant_id, None)
                if await aliases.count(conn, tenant_id, MAX_ALIASES) >= MAX_ALIASES:
                    raise PostroomError("address_limit_reached", details={"limit": MAX_ALIASES}, message=_FULL)
                await self._check_way(conn, tenant_id, name, goal)
                await aliases.insert(conn, tenant_id, public_id, name, domain, goal, self._clock.now())
                made = await aliases.get(conn, tenant_id, public_id)
                assert made is not None
                await self._note(conn, "alias.create", tenant_id, public_id, by)
                if then is not None:
                    await then(conn, made)
        except asyncpg.UniqueViolationError:
            raise PostroomError("address_taken") from None
        self._changed(name)
        return made

    async def get(self, tenant_id: int, public_id: str) -> Alias:
        """Raises `address_not_found`, also for another tenant's."""
        async with self._db.acquire() as conn:
            return _there(await aliases.get(conn, tenant_id, public_id))

    async def by_address(self, tenant_id: int, address: str) -> Alias:
        """Raises `address_not_found`, also for another tenant's."""
        try:
            local, domain = _parsed("address", address)
        except PostroomError:
            raise PostroomError("address_not_found") from None
        async with self._db.acquire() as conn:
            return _there(await aliases.by_address(conn, tenant_id, f"{local}@{domain}"))

    async def page(self, tenant_id: int, *, limit: int = 25, after: tuple[datetime, str] | None = None) -> list[Alias]:
        """Aliases of a tenant, newest first; `after` is the creation time and public id of the last one seen."""
        async with self._db.acquire() as conn:
            return await aliases.page(conn, tenant_id, limit=min(max(limit, 1), MAX_PAGE), after=after)

    async def delete(self, tenant_id: int, public_id: str, *, by: Actor = HOST) -> None:
        """From now on the address is unknown, and may be made anew. Raises `address_not_found`."""
        async with self._db.transaction() as conn:
            address = await aliases.delete(conn, tenant_id, public_id)
            if address is None:
                raise PostroomError("address_not_found")
            await self._note(conn, "alias.delete", tenant_id, public_id, by)
        self._changed(address)

    async def _note(self, conn: Connection, action: str, tenant_id: int, public_id: str, by: Actor) -> None:
        await record(conn, self._ids, self._clock.now(), by, Entry(action, "alias", public_id, tenant_id))

    async def _domain(self, conn: Connection, tenant: Tenant, name: str) -> DomainRow:
        domain = await aliases.usable_domain(conn, tenant.id, name)
        if domain is None:
            raise PostroomError("domain_not_found")
        if domain.status not in rules.READY_DOMAIN or not domain.enabled:
            raise PostroomError("domain_not_ready")
        return domain

    def _local_part(self, tenant: Tenant, local: str, domain: DomainRow) -> str:
        """The local part, if the tenant may have it there."""
        if domain.name != self._platform_domain:
            return validate_username(local, NameClass.TENANT, max_length=MAX_ALIAS)[0]
        suffix = tenant.address_suffix
        if not local.endswith(suffix):
            raise PostroomError("address_invalid", details={"field": "address", "suffix": suffix})
        name, _ = validate_username(local.removesuffix(suffix), class_of(suffix), suffix=suffix)
        return f"{name}{suffix}"

    async def _check_way(self, conn: Connection, tenant_id: int, address: str, target: str) -> None:
        """Nobody can make a circle, whoever is at it at the same time. Where another tenant's aliases would be too
        many before this one, it is not for them to say what this tenant may have: that shows when mail comes to them.
        """
        await aliases.lock_ways(conn)
        local, _, domain = target.rpartition("@")
        base = f"{rules.split_detail(local)[0]}@{domain}"
        way = await routes.steps(conn, base)
        if address in (base, *(step.target_base for step in way)):
            raise invalid("target", "must not lead back to the alias")
        if len(way) >= rules.MAX_CHAIN:
            raise invalid("target", f"must not lead through more than {rules.MAX_CHAIN} aliases")
        if await aliases.length_before(conn, tenant_id, address, rules.MAX_CHAIN) + len(way) >= rules.MAX_CHAIN:
            raise invalid("address", f"must not be the next of {rules.MAX_CHAIN} aliases that lead to one another")


def _there(alias: Alias | None) -> Alias:
    if alias is None:
        raise PostroomError("address_not_found")
    return alias


def _parsed(field: str, text: str) -> tuple[str, str]:
    """Local part and domain, lower case, A-labels. Raises `address_invalid`, `address_unsupported`."""
    try:
        found = parse_path(f"<{text}>".encode())
    except (AddressSyntaxError, UnicodeEncodeError):
        raise PostroomError("address_invalid", details={"field": field}) from None
    plain = found.address is not None and not found.parameters and not str(found.address).startswith(('"', "+"))
    if found.address is None or not plain or len(str(found.address)) > MAX_ADDRESS:
        raise PostroomError("address_invalid", details={"field": field})
    if not found.address.local.isascii():
        raise PostroomError("address_unsupported", details={"field": field})
    return found.address.local.lower(), found.address.domain


def _target(text: str, domain: str) -> str:
    return "@".join(_parsed("target", text if "@" in text else f"{text}@{domain}"))
