"""Tenants: made, read, suspended and resumed."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from zoneinfo import available_timezones

import asyncpg

from postroom.accounts.models import NewTenant, Tenant, TenantStatus
from postroom.accounts.names import check_slug, suffix_of
from postroom.accounts.store import tenants as store
from postroom.accounts.text import check_name, invalid
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database

MAX_NAME: Final = 128
MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""

_TAKEN: Final = {
    "tenants_slug_key": "slug_taken",
    "tenants_address_suffix_key": "suffix_taken",
    "tenants_suffix_fold": "suffix_taken",
}


class Tenants:
    """Use cases of tenants. Callers have checked `tenants:manage`, and pass keys in their own reach."""

    def __init__(self, db: Database, ids: IdGenerator, clock: Clock) -> None:
        self._db, self._ids, self._clock = db, ids, clock

    async def create(self, new: NewTenant) -> Tenant:
        """A new tenant. Raises `invalid_request`, `address_reserved`, `slug_taken` or `suffix_taken` (D12)."""
        check_slug(new.slug)
        check_name("name", new.name, MAX_NAME)
        if new.timezone not in available_timezones():
            raise invalid("timezone", "must be the name of an IANA time zone")
        suffix, fold = suffix_of(new.slug, new.address_suffix, default_tenant=new.is_default)
        try:
            async with self._db.transaction() as conn:
                return await store.insert(conn, self._ids.new("ten_"), new, suffix, fold, self._clock.now())
        except asyncpg.UniqueViolationError as exc:
            code = _TAKEN.get(exc.constraint_name or "")
            if code is None:
                raise
            raise PostroomError(code) from None

    async def get(self, public_id: str) -> Tenant:
        """Raises `tenant_not_found`."""
        async with self._db.acquire() as conn:
            return _found(await store.get(conn, public_id))

    async def get_by_slug(self, slug: str) -> Tenant:
        """Raises `tenant_not_found`."""
        async with self._db.acquire() as conn:
            return _found(await store.get_by_slug(conn, slug))

    async def page(self, *, limit: int = 25, after: tuple[datetime, str] | None = None) -> list[Tenant]:
        """Tenants, newest first; `after` is the creation time and public id of the last one seen."""
        async with self._db.acquire() as conn:
            return await store.page(conn, min(max(limit, 1), MAX_PAGE), after)


async def suspend(conn: Connection, tenant_id: int, by: str, now: datetime) -> tuple[Tenant, bool]:
    """Inside the caller's transaction: the tenant suspended, and whether it was active before.

    `by` is `platform` or `partner`. A platform's suspension replaces a partner's and keeps its time; otherwise a
    second one changes nothing (inbound §2.1). Raises `tenant_not_found`, `tenant_erased`.
    """
    tenant = await _locked(conn, tenant_id)
    if tenant.status is TenantStatus.SUSPENDED:
        if by == "platform" and tenant.suspended_by == "partner":
            tenant = await _set(conn, tenant_id, TenantStatus.SUSPENDED, tenant.suspended_at, by, now)
        return tenant, False
    return await _set(conn, tenant_id, TenantStatus.SUSPENDED, now, by, now), True


async def resume(conn: Connection, tenant_id: int, by: str, now: datetime) -> tuple[Tenant, bool]:
    """Inside the caller's transaction: the tenant active again, and whether it was suspended.

    Raises `scope_denied` when a partner would lift the platform's suspension (J17), `tenant_not_found`,
    `tenant_erased`.
    """
    tenant = await _locked(conn, tenant_id)
    if tenant.status is TenantStatus.ACTIVE:
        return tenant, False
    if by == "partner" and tenant.suspended_by == "platform":
        raise PostroomError("scope_denied", details={"field": "status"})
    return await _set(conn, tenant_id, TenantStatus.ACTIVE, None, None, now), True


async def _locked(conn: Connection, tenant_id: int) -> Tenant:
    tenant = _found(await store.lock(conn, tenant_id))
    if tenant.status.is_gone:
        raise PostroomError("tenant_erased")
    return tenant


async def _set(
    conn: Connection,
    tenant_id: int,
    status: TenantStatus,
    suspended_at: datetime | None,
    by: str | None,
    now: datetime,
) -> Tenant:
    return _found(await store.set_status(conn, tenant_id, status, suspended_at, by, now))


def _found(tenant: Tenant | None) -> Tenant:
    if tenant is None:
        raise PostroomError("tenant_not_found")
    return tenant
