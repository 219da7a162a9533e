"""SQL of the deployment row and of tenants."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import asyncpg

from postroom.accounts.models import Mode, NewTenant, Tenant, TenantKey, TenantStatus
from postroom.accounts.text import is_storable
from postroom.base.ids import is_id
from postroom.db import Connection

_PUT_DEPLOYMENT = """
INSERT INTO deployment (store_id, platform_domain, created_at) VALUES ($1, $2, $3) ON CONFLICT (singleton) DO NOTHING
"""
_GET_DEPLOYMENT = "SELECT store_id, platform_domain FROM deployment"
_PUT_PLATFORM_DOMAIN = """
INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at)
VALUES ($1, NULL, $2, 'platform', 'healthy', $3, $3) ON CONFLICT (name) DO NOTHING
"""
_PLATFORM_DOMAIN = "SELECT id FROM domains WHERE name = $1 AND kind = 'platform'"

_INSERT = """
INSERT INTO tenants (public_id, slug, name, mode, address_suffix, suffix_fold, timezone, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8) RETURNING *
"""
_GET = "SELECT * FROM tenants WHERE public_id = $1"
_GET_BY_ID = "SELECT * FROM tenants WHERE id = $1"
_GET_BY_SLUG = "SELECT * FROM tenants WHERE slug = $1"
_LOCK = "SELECT * FROM tenants WHERE id = $1 FOR NO KEY UPDATE"
_LIST = """
SELECT * FROM tenants
WHERE status <> 'erased' AND ($1::timestamptz IS NULL OR (created_at, public_id) < ($1, $2::text))
ORDER BY created_at DESC, public_id DESC LIMIT $3
"""
_SET_STATUS = """
UPDATE tenants SET status = $2, suspended_at = $3, suspended_by = $4, updated_at = $5 WHERE id = $1 RETURNING *
"""


async def put_deployment(conn: Connection, store_id: str, platform_domain: str, now: datetime) -> tuple[str, str]:
    """Record what this deployment is, unless it is recorded; what is recorded: store id and platform domain."""
    await conn.execute(_PUT_DEPLOYMENT, store_id, platform_domain, now)
    row = await conn.fetchrow(_GET_DEPLOYMENT)
    assert row is not None
    return row["store_id"], row["platform_domain"]


async def put_platform_domain(conn: Connection, public_id: str, name: str, now: datetime) -> bool:
    """Make the platform domain's row, unless it is there. False when the name is a tenant's domain."""
    await conn.execute(_PUT_PLATFORM_DOMAIN, public_id, name, now)
    return await conn.fetchval(_PLATFORM_DOMAIN, name) is not None


async def insert(conn: Connection, public_id: str, new: NewTenant, suffix: str, fold: str, now: datetime) -> Tenant:
    """A new row. Raises asyncpg.UniqueViolationError, whose `constraint_name` says what is taken."""
    row = await conn.fetchrow(_INSERT, public_id, new.slug, new.name, new.mode, suffix, fold, new.timezone, now)
    assert row is not None
    return _tenant(row)


async def get(conn: Connection, public_id: str) -> Tenant | None:
    if not is_id("ten_", public_id):
        return None
    return _tenant_or_none(await conn.fetchrow(_GET, public_id))


async def get_by_id(conn: Connection, tenant_id: int) -> Tenant | None:
    return _tenant_or_none(await conn.fetchrow(_GET_BY_ID, tenant_id))


async def get_by_slug(conn: Connection, slug: str) -> Tenant | None:
    return _tenant_or_none(await conn.fetchrow(_GET_BY_SLUG, slug)) if is_storable(slug) else None


async def lock(conn: Connection, tenant_id: int) -> Tenant | None:
    """The tenant, its row locked until the end of the transaction."""
    return _tenant_or_none(await conn.fetchrow(_LOCK, tenant_id))


async def page(conn: Connection, limit: int, after: tuple[datetime, str] | None) -> list[Tenant]:
    """Tenants that are not erased, newest first, older than `after` (creation and public id)."""
    created_at, public_id = after if after is not None else (None, None)
    return [_tenant(row) for row in await conn.fetch(_LIST, created_at, public_id, limit)]


async def set_status(
    conn: Connection,
    tenant_id: int,
    status: TenantStatus,
    suspended_at: datetime | None,
    suspended_by: str | None,
    now: datetime,
) -> Tenant | None:
    return _tenant_or_none(await conn.fetchrow(_SET_STATUS, tenant_id, status, suspended_at, suspended_by, now))


def _tenant_or_none(row: asyncpg.Record | None) -> Tenant | None:
    return None if row is None else _tenant(row)


def _tenant(row: asyncpg.Record) -> Tenant:
    value: dict[str, Any] = dict(row)
    return Tenant(
        id=TenantKey(value["id"]),
        public_id=value["public_id"],
        slug=value["slug"],
        name=value["name"],
        mode=Mode(value["mode"]),
        status=TenantStatus(value["status"]),
        suspended_at=value["suspended_at"],
        suspended_by=value["suspended_by"],
        address_suffix=value["address_suffix"],
        timezone=value["timezone"],
        created_at=value["created_at"],
        sending_paused_at=value["sending_paused_at"],
        sending_pause_reason=value["sending_pause_reason"],
    )
