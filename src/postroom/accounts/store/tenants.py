"""SQL of the deployment row and of tenants."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import asyncpg

from postroom.accounts.models import BillingMode, Mode, NewTenant, Tenant, TenantKey, TenantStatus
from postroom.accounts.policy import StoredPolicy
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
INSERT INTO tenants
  (public_id, slug, name, mode, address_suffix, suffix_fold, timezone, policy_json, policy_ceilings_json,
   partner_ceilings_json, billing_mode, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12) RETURNING id
"""
_GIVE = "INSERT INTO partner_tenants (partner_id, tenant_id) VALUES ($1, $2)"
_SELECT = """
SELECT t.*, p.id AS partner_id, p.public_id AS partner_public_id
FROM tenants t LEFT JOIN partner_tenants o ON o.tenant_id = t.id LEFT JOIN partners p ON p.id = o.partner_id
"""
_GET = " ".join((_SELECT, "WHERE t.public_id = $1"))
_GET_BY_ID = " ".join((_SELECT, "WHERE t.id = $1"))
_GET_BY_SLUG = " ".join((_SELECT, "WHERE t.slug = $1"))
_GET_DEFAULT = " ".join((_SELECT, "WHERE t.address_suffix = '' AND t.status IN ('active', 'suspended')"))
_LOCK = " ".join((_SELECT, "WHERE t.id = $1 FOR NO KEY UPDATE OF t"))
_SHARE = " ".join((_SELECT, "WHERE t.id = $1 FOR SHARE OF t"))
_AFTER = "($1::timestamptz IS NULL OR (t.created_at, t.public_id) < ($1, $2::text))"
_NEWEST = "ORDER BY t.created_at DESC, t.public_id DESC LIMIT $3"
_LIST = " ".join((_SELECT, "WHERE t.status <> 'erased' AND", _AFTER, _NEWEST))
_FILTER = "($4::text IS NULL OR t.status = $4) AND ($5::text IS NULL OR t.mode = $5)"
_SEARCH = " ".join((_SELECT, "WHERE", _AFTER, "AND", _FILTER, _NEWEST))
# A partner's tenants are few: they are found by their partner first.
_OF_PARTNER = " ".join((_SELECT, "WHERE o.partner_id = $6 AND", _AFTER, "AND", _FILTER, _NEWEST))
_SET_STATUS = """
UPDATE tenants SET status = $2, suspended_at = $3, suspended_by = $4, updated_at = $5 WHERE id = $1
"""
_SET_POLICY = """
UPDATE tenants SET policy_json = $3, policy_ceilings_json = $4, partner_ceilings_json = $5,
  policy_version = policy_version + 1, updated_at = $6
WHERE id = $1 AND policy_version = $2 AND status NOT IN ('erasing', 'erased') RETURNING policy_version
"""
_SET_NAMES = """
UPDATE tenants SET name = coalesce($2, name), timezone = coalesce($3, timezone), updated_at = $4 WHERE id = $1
"""
_RESUME_SENDING = """
UPDATE tenants SET sending_paused_at = NULL, sending_pause_reason = NULL, updated_at = $2 WHERE id = $1
"""
_DOMAINS_IN = """
SELECT d.public_id FROM domains d
WHERE d.tenant_id = $1 AND d.kind = 'zone' AND d.status <> 'removed'
  AND EXISTS (SELECT FROM unnest($2::text[]) AS z (name) WHERE right(d.name, length(z.name) + 1) = '.' || z.name)
ORDER BY d.id LIMIT 100
"""
_IS_HOSTED = "SELECT EXISTS (SELECT FROM domains WHERE name = $1)"


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


async def insert(
    conn: Connection,
    public_id: str,
    new: NewTenant,
    suffix: str,
    fold: str,
    policy: StoredPolicy,
    billing: BillingMode,
    partner_id: int | None,
    now: datetime,
) -> Tenant:
    """A new row. Raises asyncpg.UniqueViolationError, whose `constraint_name` says what is taken."""
    made: int = await conn.fetchval(
        _INSERT,
        *(public_id, new.slug, new.name, new.mode, suffix, fold, new.timezone),
        *(policy.values, policy.platform, policy.partner, billing, now),
    )
    if partner_id is not None:
        await conn.execute(_GIVE, partner_id, made)
    tenant = await get_by_id(conn, made)
    assert tenant is not None
    return tenant


async def get(conn: Connection, public_id: str) -> Tenant | None:
    if not is_id("ten_", public_id):
        return None
    return _tenant_or_none(await conn.fetchrow(_GET, public_id))


async def get_by_id(conn: Connection, tenant_id: int) -> Tenant | None:
    return _tenant_or_none(await conn.fetchrow(_GET_BY_ID, tenant_id))


async def get_by_slug(conn: Connection, slug: str) -> Tenant | None:
    return _tenant_or_none(await conn.fetchrow(_GET_BY_SLUG, slug)) if is_storable(slug) else None


async def get_default(conn: Connection) -> Tenant | None:
    return _tenant_or_none(await conn.fetchrow(_GET_DEFAULT))


async def lock(conn: Connection, tenant_id: int) -> Tenant | None:
    """The tenant, its row locked until the end of the transaction."""
    return _tenant_or_none(await conn.fetchrow(_LOCK, tenant_id))


async def share(conn: Connection, tenant_id: int) -> Tenant | None:
    """The tenant, which stays what it is until the end of the transaction: who suspends it waits, others who make
    something for it do not.
    """
    return _tenant_or_none(await conn.fetchrow(_SHARE, tenant_id))


async def page(conn: Connection, limit: int, after: tuple[datetime, str] | None) -> list[Tenant]:
    """Tenants that are not erased, newest first, older than `after` (creation and public id)."""
    created_at, public_id = after if after is not None else (None, None)
    return [_tenant(row) for row in await conn.fetch(_LIST, created_at, public_id, limit)]


async def search(
    conn: Connection,
    limit: int,
    after: tuple[datetime, str] | None,
    *,
    status: TenantStatus | None,
    mode: Mode | None,
    partner_id: int | None,
) -> list[Tenant]:
    """Tenants of any status, newest first; of one partner, if it is given."""
    created_at, public_id = after if after is not None else (None, None)
    values = (created_at, public_id, limit, status, mode)
    if partner_id is None:
        rows = await conn.fetch(_SEARCH, *values)
    else:
        rows = await conn.fetch(_OF_PARTNER, *values, partner_id)
    return [_tenant(row) for row in rows]


async def set_status(
    conn: Connection,
    tenant_id: int,
    status: TenantStatus,
    suspended_at: datetime | None,
    suspended_by: str | None,
    now: datetime,
) -> Tenant | None:
    await conn.execute(_SET_STATUS, tenant_id, status, suspended_at, suspended_by, now)
    return await get_by_id(conn, tenant_id)


async def set_policy(
    conn: Connection, tenant_id: int, expected: int, policy: StoredPolicy, now: datetime
) -> int | None:
    """The new version; None when the policy is not at the `expected` one any more, or the tenant is gone (J27)."""
    version: int | None = await conn.fetchval(
        _SET_POLICY, tenant_id, expected, policy.values, policy.platform, policy.partner, now
    )
    return version


async def set_names(conn: Connection, tenant_id: int, name: str | None, timezone: str | None, now: datetime) -> None:
    await conn.execute(_SET_NAMES, tenant_id, name, timezone, now)


async def resume_sending(conn: Connection, tenant_id: int, now: datetime) -> None:
    await conn.execute(_RESUME_SENDING, tenant_id, now)


async def domains_in(conn: Connection, tenant_id: int, zones: list[str]) -> list[str]:
    """Public ids of the tenant's domains below one of the zones, the first hundred."""
    return [row["public_id"] for row in await conn.fetch(_DOMAINS_IN, tenant_id, zones)]


async def is_hosted(conn: Connection, domain: str) -> bool:
    """Whether mail to the domain comes here."""
    found: bool = await conn.fetchval(_IS_HOSTED, domain)
    return found


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
        updated_at=value["updated_at"],
        partner_id=value["partner_id"],
        partner_public_id=value["partner_public_id"],
        policy=StoredPolicy.of(value),
        policy_version=value["policy_version"],
    )
