"""SQL of partners."""

from __future__ import annotations

from datetime import datetime

import asyncpg

from postroom.accounts.models import BillingMode, PartnerKey
from postroom.accounts.partners import NewPartner, Partner, PartnerChanges, PartnerStatus
from postroom.base.ids import is_id
from postroom.db import Connection

_INSERT = """
INSERT INTO partners (public_id, name, default_billing_mode, max_tenants, ramp_exempt, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $6) RETURNING *
"""
_GET = "SELECT * FROM partners WHERE public_id = $1"
# Whoever makes a tenant, and whoever deletes, goes one after the other: counts below are exact.
_LOCK = "SELECT * FROM partners WHERE public_id = $1 FOR NO KEY UPDATE"
_LOCK_BY_ID = "SELECT * FROM partners WHERE id = $1 FOR NO KEY UPDATE"
_LIST = """
SELECT * FROM partners
WHERE ($1::timestamptz IS NULL OR (created_at, public_id) < ($1, $2::text)) AND ($4::text IS NULL OR status = $4)
ORDER BY created_at DESC, public_id DESC LIMIT $3
"""
_UPDATE = """
UPDATE partners SET name = coalesce($2, name), status = coalesce($3, status),
  default_billing_mode = coalesce($4, default_billing_mode), max_tenants = coalesce($5, max_tenants),
  ramp_exempt = coalesce($6, ramp_exempt), updated_at = $7
WHERE id = $1 RETURNING *
"""
_DELETE = "UPDATE partners SET status = 'deleted', name = '', updated_at = $2 WHERE id = $1"
_FORGET_ANSWERS = "DELETE FROM idempotency_records WHERE scope = $1"
_COUNT_TENANTS = """
SELECT count(*) FROM partner_tenants o JOIN tenants t ON t.id = o.tenant_id
WHERE o.partner_id = $1 AND t.status <> 'erased'
"""


async def insert(conn: Connection, public_id: str, new: NewPartner, now: datetime) -> Partner:
    row = await conn.fetchrow(
        _INSERT, public_id, new.name, new.default_billing_mode, new.max_tenants, new.ramp_exempt, now
    )
    assert row is not None
    return _partner(row)


async def get(conn: Connection, public_id: str) -> Partner | None:
    """A partner in any state."""
    return _or_none(await conn.fetchrow(_GET, public_id)) if is_id("ptn_", public_id) else None


async def lock(conn: Connection, public_id: str) -> Partner | None:
    """The partner, its row locked until the end of the transaction. Before any tenant of it."""
    return _or_none(await conn.fetchrow(_LOCK, public_id)) if is_id("ptn_", public_id) else None


async def lock_by_id(conn: Connection, partner_id: int) -> Partner | None:
    """As `lock`."""
    return _or_none(await conn.fetchrow(_LOCK_BY_ID, partner_id))


async def page(
    conn: Connection, limit: int, after: tuple[datetime, str] | None, status: PartnerStatus | None
) -> list[Partner]:
    """Partners, newest first; without a `status` in any, also deleted ones."""
    created_at, public_id = after if after is not None else (None, None)
    return [_partner(row) for row in await conn.fetch(_LIST, created_at, public_id, limit, status)]


async def update(conn: Connection, partner_id: int, changes: PartnerChanges, now: datetime) -> Partner:
    row = await conn.fetchrow(
        _UPDATE,
        *(partner_id, changes.name, changes.status, changes.default_billing_mode, changes.max_tenants),
        *(changes.ramp_exempt, now),
    )
    assert row is not None
    return _partner(row)


async def delete(conn: Connection, partner: Partner, now: datetime) -> None:
    """What is personal goes; the row stays, as erased tenants name it."""
    await conn.execute(_DELETE, partner.id, now)
    await conn.execute(_FORGET_ANSWERS, partner.public_id)


async def count_tenants(conn: Connection, partner_id: int) -> int:
    """Its tenants that are not erased; exact when the partner's row is locked."""
    count: int = await conn.fetchval(_COUNT_TENANTS, partner_id)
    return count


def _or_none(row: asyncpg.Record | None) -> Partner | None:
    return None if row is None else _partner(row)


def _partner(row: asyncpg.Record) -> Partner:
    return Partner(
        id=PartnerKey(row["id"]),
        public_id=row["public_id"],
        name=row["name"],
        status=PartnerStatus(row["status"]),
        default_billing_mode=BillingMode(row["default_billing_mode"]),
        max_tenants=row["max_tenants"],
        ramp_exempt=row["ramp_exempt"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
