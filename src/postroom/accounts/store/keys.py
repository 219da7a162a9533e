"""SQL of API keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from postroom.accounts.models import ApiKey, ApiKeyKey, Mode, Scope, TenantKey, TenantStatus
from postroom.accounts.permissions import Level, Permission
from postroom.base.ids import is_id
from postroom.db import Connection

_COLUMNS = """
k.id, k.public_id, k.lookup, k.name, k.level, k.mode, k.tenant_id, t.public_id AS tenant_public_id, k.identity_id,
i.public_id AS identity_public_id, k.permissions, k.expires_at, k.revoked_at, k.last_used_at, k.created_at
"""
_JOINED = """
FROM api_keys k
LEFT JOIN tenants t ON t.id = k.tenant_id
LEFT JOIN identities i ON i.tenant_id = k.tenant_id AND i.id = k.identity_id
"""
# Platform keys are reached by platform scope alone; a null never equals anything here.
_REACH = """
CASE $1::text
  WHEN 'platform' THEN $2::bigint IS NULL AND $3::bigint IS NULL
  WHEN 'tenant' THEN k.tenant_id = $2::bigint
  WHEN 'identity' THEN k.tenant_id = $2::bigint AND k.identity_id = $3::bigint
  ELSE false END
"""
_FIND = " ".join(("SELECT", _COLUMNS, ", k.hash, k.prev_hash, k.prev_expires_at, t.status AS tenant_status,"))
_FIND = " ".join((_FIND, "i.status AS identity_status", _JOINED, "WHERE k.lookup = $1"))
_GET = " ".join(("SELECT", _COLUMNS, _JOINED, "WHERE", _REACH, "AND k.public_id = $4"))
_LIST = " ".join(
    (
        *("SELECT", _COLUMNS, _JOINED, "WHERE", _REACH),
        "AND ($4::bigint IS NULL OR k.tenant_id = $4)",
        "AND ($5::timestamptz IS NULL OR (k.created_at, k.public_id) < ($5, $6::text))",
        "ORDER BY k.created_at DESC, k.public_id DESC LIMIT $7",
    )
)
_COUNT_ACTIVE = """
SELECT count(*) FROM api_keys WHERE tenant_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)
"""
_INSERT = """
INSERT INTO api_keys
  (public_id, lookup, hash, name, level, tenant_id, identity_id, mode, permissions, expires_at, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (lookup) DO NOTHING RETURNING id
"""
_REVOKE = """
UPDATE api_keys SET revoked_at = coalesce(revoked_at, $2), prev_hash = NULL, prev_expires_at = NULL WHERE id = $1
"""
_ROTATE = """
UPDATE api_keys SET hash = $2, prev_hash = $3, prev_expires_at = $4
WHERE id = $1 AND hash = $5 AND revoked_at IS NULL RETURNING id
"""
_HASH = "SELECT hash FROM api_keys WHERE id = $1 FOR NO KEY UPDATE"
_ANY_PLATFORM = "SELECT EXISTS (SELECT FROM api_keys WHERE level = 'platform')"
_IDENTITY_EXISTS = """
SELECT EXISTS (
  SELECT FROM identities WHERE tenant_id = $1 AND id = $2 AND status IN ('active', 'paused') AND NOT is_system)
"""
_USED = """
UPDATE api_keys k SET last_used_at = u.at FROM unnest($1::bigint[], $2::timestamptz[]) AS u (id, at)
WHERE k.id = u.id AND (k.last_used_at IS NULL OR k.last_used_at < u.at)
"""


_PERMISSIONS: Final = {permission.value: permission for permission in Permission}


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key's row as verification needs it, with its MACs."""

    key: ApiKey
    mac: bytes
    previous_mac: bytes | None
    previous_expires_at: datetime | None
    tenant_status: TenantStatus | None
    identity_gone: bool


async def find(conn: Connection, lookup: str) -> StoredKey | None:
    """The one indexed read of A3.2."""
    row = await conn.fetchrow(_FIND, lookup)
    if row is None:
        return None
    status = row["tenant_status"]
    return StoredKey(
        key=_key(row),
        mac=row["hash"],
        previous_mac=row["prev_hash"],
        previous_expires_at=row["prev_expires_at"],
        tenant_status=None if status is None else TenantStatus(status),
        identity_gone=row["identity_status"] in ("deleting", "deleted"),
    )


async def get(conn: Connection, scope: Scope, public_id: str) -> ApiKey | None:
    if not is_id("key_", public_id):
        return None
    row = await conn.fetchrow(_GET, scope.level, scope.tenant_id, scope.identity_id, public_id)
    return None if row is None else _key(row)


async def page(
    conn: Connection, scope: Scope, tenant_id: int | None, limit: int, after: tuple[datetime, str] | None
) -> list[ApiKey]:
    """Keys in reach, newest first; with `tenant_id` those of one tenant."""
    created_at, public_id = after if after is not None else (None, None)
    rows = await conn.fetch(
        _LIST, scope.level, scope.tenant_id, scope.identity_id, tenant_id, created_at, public_id, limit
    )
    return [_key(row) for row in rows]


async def count_active(conn: Connection, tenant_id: int, now: datetime) -> int:
    """Keys of the tenant that are neither revoked nor expired; exact when the tenant's row is locked."""
    count: int = await conn.fetchval(_COUNT_ACTIVE, tenant_id, now)
    return count


async def identity_exists(conn: Connection, tenant_id: int, identity_id: int) -> bool:
    found: bool = await conn.fetchval(_IDENTITY_EXISTS, tenant_id, identity_id)
    return found


async def insert(
    conn: Connection,
    *,
    public_id: str,
    lookup: str,
    mac: bytes,
    name: str,
    level: Level,
    tenant_id: int | None,
    identity_id: int | None,
    mode: Mode,
    permissions: Sequence[Permission],
    expires_at: datetime | None,
    now: datetime,
) -> bool:
    """False when the lookup is taken: draw another."""
    row_id = await conn.fetchval(
        _INSERT,
        *(public_id, lookup, mac, name, level, tenant_id, identity_id, mode, list(permissions), expires_at, now),
    )
    return row_id is not None


async def revoke(conn: Connection, key_id: int, now: datetime) -> None:
    await conn.execute(_REVOKE, key_id, now)


async def current_mac(conn: Connection, key_id: int) -> bytes | None:
    """The key's MAC, its row locked until the end of the transaction."""
    value: bytes | None = await conn.fetchval(_HASH, key_id)
    return value


async def rotate(
    conn: Connection, key_id: int, mac: bytes, previous: bytes | None, previous_until: datetime | None, expected: bytes
) -> bool:
    """False when the key was revoked or rotated meanwhile."""
    return await conn.fetchval(_ROTATE, key_id, mac, previous, previous_until, expected) is not None


async def any_platform_key(conn: Connection) -> bool:
    found: bool = await conn.fetchval(_ANY_PLATFORM)
    return found


async def mark_used(conn: Connection, used: Sequence[tuple[int, datetime]]) -> None:
    """Record when keys were used last, in one statement."""
    await conn.execute(_USED, [key_id for key_id, _ in used], [at for _, at in used])


def _key(row: asyncpg.Record) -> ApiKey:
    tenant_id = row["tenant_id"]
    return ApiKey(
        id=ApiKeyKey(row["id"]),
        public_id=row["public_id"],
        lookup=row["lookup"],
        name=row["name"],
        level=Level(row["level"]),
        mode=Mode(row["mode"]),
        tenant_id=None if tenant_id is None else TenantKey(tenant_id),
        tenant_public_id=row["tenant_public_id"],
        identity_id=row["identity_id"],
        identity_public_id=row["identity_public_id"],
        # A newer node may have written a permission that this one does not know yet: it grants nothing here.
        permissions=frozenset(_PERMISSIONS[name] for name in row["permissions"] if name in _PERMISSIONS),
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
        created_at=row["created_at"],
    )
