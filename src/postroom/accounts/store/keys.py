"""SQL of API keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from postroom.accounts.keys import Lineage, NewKey
from postroom.accounts.models import ApiKey, ApiKeyKey, MemberRole, Mode, Scope, TenantKey, TenantStatus
from postroom.accounts.permissions import Level, Permission
from postroom.accounts.store.reach import of_each_tenant, of_partner, partner_status
from postroom.base.ids import is_id
from postroom.db import Connection

_COLUMNS = """
k.id, k.public_id, k.lookup, k.name, k.level, k.mode, k.tenant_id, t.public_id AS tenant_public_id, k.identity_id,
i.public_id AS identity_public_id, k.partner_id, r.public_id AS partner_public_id, k.permissions, k.expires_at,
k.revoked_at, k.last_used_at, k.created_at, k.created_by_key, k.created_by_person, k.created_by_role
"""
_JOINED = """
FROM api_keys k
LEFT JOIN tenants t ON t.id = k.tenant_id
LEFT JOIN identities i ON i.tenant_id = k.tenant_id AND i.id = k.identity_id
LEFT JOIN partners r ON r.id = k.partner_id
"""
# Platform and partner keys are reached by platform scope alone; a null never equals anything here.
_REACH = """
CASE $1::text
  WHEN 'platform' THEN $2::bigint IS NULL AND $3::bigint IS NULL
  WHEN 'partner' THEN {of_partner}
  WHEN 'tenant' THEN k.tenant_id = $2::bigint
  WHEN 'identity' THEN k.tenant_id = $2::bigint AND k.identity_id = $3::bigint
  ELSE false END
""".replace("{of_partner}", of_partner("k.tenant_id", "$2::bigint"))
# Whether a key is not wider than who asks: it holds nothing that they could not give, or it is their own. Asked here,
# of the names as they are stored: one that this release does not know is nobody's to give.
_NOT_WIDER = "({names}::text[] IS NULL OR k.permissions <@ {names}::text[] OR k.public_id = {own}::text)"
_FIND = " ".join(
    (
        *("SELECT", _COLUMNS, ", k.hash, k.prev_hash, k.prev_expires_at, t.status AS tenant_status,"),
        *("i.status AS identity_status,", partner_status("k.tenant_id", "k.partner_id"), "AS partner_status", _JOINED),
        "WHERE k.lookup = $1",
    )
)
_GET = " ".join(
    (
        *("SELECT", _COLUMNS, ",", _NOT_WIDER.format(names="$5", own="$6"), "AS not_wider", _JOINED),
        *("WHERE", _REACH, "AND k.public_id = $4"),
    )
)
_OWN = " ".join(("SELECT", _COLUMNS, _JOINED, "WHERE k.id = $1"))
_REST = " ".join(
    (
        *("AND", _REACH, "AND ($5::timestamptz IS NULL OR (k.created_at, k.public_id) < ($5, $6::text))"),
        *("AND", _NOT_WIDER.format(names="$8", own="$9"), "ORDER BY k.created_at DESC, k.public_id DESC LIMIT $7"),
    )
)
_OF_ALL = " ".join(("SELECT", _COLUMNS, _JOINED, "WHERE $4::bigint IS NULL", _REST))
_OF_TENANT = " ".join(("SELECT", _COLUMNS, _JOINED, "WHERE k.tenant_id = $4::bigint", _REST))
_OF_EACH = " ".join(("SELECT", _COLUMNS, _JOINED, "WHERE k.tenant_id = pt.tenant_id AND $4::bigint IS NULL", _REST))
_OF_PARTNER = " ".join(
    (
        *("SELECT found.* FROM", of_each_tenant("$2::bigint", _OF_EACH, "found")),
        "ORDER BY found.created_at DESC, found.public_id DESC LIMIT $7",
    )
)
_COUNT_ACTIVE = """
SELECT count(*) FROM api_keys WHERE tenant_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)
"""
_COUNT_OF_PARTNER = """
SELECT count(*) FROM api_keys WHERE partner_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)
"""
_INSERT = """
INSERT INTO api_keys
  (public_id, lookup, hash, name, level, partner_id, tenant_id, identity_id, mode, permissions, expires_at, created_at,
   created_by_key, created_by_person, created_by_role)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT (lookup) DO NOTHING RETURNING id
"""
# Shared: whoever revokes the key waits until what it makes is made, and sees it.
_PARENT = """
SELECT public_id, created_by_person, created_by_role, revoked_at, expires_at FROM api_keys WHERE id = $1 FOR SHARE
"""
_ROLE_OF = """
SELECT m.role FROM members m JOIN people p ON p.id = m.person_id WHERE m.tenant_id = $1 AND p.public_id = $2
"""
_REVOKE = """
UPDATE api_keys SET revoked_at = $2, prev_hash = NULL, prev_expires_at = NULL
WHERE id = $1 AND revoked_at IS NULL RETURNING id
"""
# Rows of several keys are locked in the order of their ids, by everybody: nobody waits for each other in a ring (B10).
_HOLD_OF_PERSON = """
SELECT id FROM api_keys WHERE tenant_id = $1 AND created_by_person = $2 AND revoked_at IS NULL
ORDER BY id FOR NO KEY UPDATE
"""
_REVOKE_OF_PERSON = """
UPDATE api_keys SET revoked_at = $3, prev_hash = NULL, prev_expires_at = NULL
WHERE tenant_id = $1 AND created_by_person = $2 AND revoked_at IS NULL
  AND ($4::text[] IS NULL OR NOT permissions <@ $4::text[])
RETURNING public_id
"""
_SET_ROLE = """
UPDATE api_keys SET created_by_role = $3 WHERE tenant_id = $1 AND created_by_person = $2 AND revoked_at IS NULL
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
_IDENTITY = "SELECT id FROM identities WHERE tenant_id = $1 AND public_id = $2"
_IS_PARTNERS = " ".join(("SELECT", of_partner("$2::bigint", "$1::bigint")))
# Other nodes note the same keys, and somebody may be rotating one: those are noted another time.
_USED = """
WITH free AS (
  SELECT k.id, u.at FROM unnest($1::bigint[], $2::timestamptz[]) AS u (id, at) JOIN api_keys k ON k.id = u.id
  WHERE k.last_used_at IS NULL OR k.last_used_at < u.at
  FOR NO KEY UPDATE OF k SKIP LOCKED
)
UPDATE api_keys k SET last_used_at = free.at FROM free WHERE k.id = free.id
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
    partner_status: str | None
    """Of the partner whose key it is, or whose tenant's."""


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
        partner_status=row["partner_status"],
    )


@dataclass(frozen=True, slots=True)
class Reach:
    """Which keys somebody manages (A3.6): those in scope, of them those that hold no more than `names`, and `own`.
    Without `names` there is no bound.
    """

    scope: Scope
    names: tuple[str, ...] | None = None
    own: str | None = None


async def get(conn: Connection, reach: Reach, public_id: str) -> tuple[ApiKey, bool] | None:
    """A key in scope, and whether it is not wider than who asks."""
    if not is_id("key_", public_id):
        return None
    row = await conn.fetchrow(_GET, *reach.scope.values, public_id, reach.names, reach.own)
    return None if row is None else (_key(row), row["not_wider"])


async def own(conn: Connection, key_id: int) -> ApiKey | None:
    """The key itself, for whoever has it, or has just made it."""
    row = await conn.fetchrow(_OWN, key_id)
    return None if row is None else _key(row)


async def page(
    conn: Connection, reach: Reach, tenant_id: int | None, limit: int, after: tuple[datetime, str] | None
) -> list[ApiKey]:
    """Keys in reach, newest first; with `tenant_id` those of one tenant."""
    created_at, public_id = after if after is not None else (None, None)
    tenant_id = reach.scope.tenant_of(tenant_id)
    statement = _OF_TENANT
    if tenant_id is None:
        statement = _OF_PARTNER if reach.scope.level is Level.PARTNER else _OF_ALL
    rows = await conn.fetch(
        *(statement, *reach.scope.values, tenant_id, created_at, public_id, limit, reach.names, reach.own)
    )
    return [_key(row) for row in rows]


async def count_active(conn: Connection, tenant_id: int, now: datetime) -> int:
    """Keys of the tenant that are neither revoked nor expired; exact when the tenant's row is locked."""
    count: int = await conn.fetchval(_COUNT_ACTIVE, tenant_id, now)
    return count


async def count_active_of_partner(conn: Connection, partner_id: int, now: datetime) -> int:
    """The partner's own keys that are neither revoked nor expired; exact when the partner's row is locked."""
    count: int = await conn.fetchval(_COUNT_OF_PARTNER, partner_id, now)
    return count


async def is_partners(conn: Connection, partner_id: int | None, tenant_id: int | None) -> bool:
    """Whether the tenant is one of the partner's. None is nobody."""
    found: bool = await conn.fetchval(_IS_PARTNERS, partner_id, tenant_id)
    return found


async def parent(conn: Connection, key_id: int, now: datetime) -> Lineage | None:
    """What the key's children inherit, its row locked against being revoked; None when it is not in force."""
    row = await conn.fetchrow(_PARENT, key_id)
    if row is None or row["revoked_at"] is not None or (row["expires_at"] is not None and row["expires_at"] <= now):
        return None
    return Lineage(row["public_id"], row["created_by_person"], _role(row["created_by_role"]))


async def role_of(conn: Connection, tenant_id: int, person: str) -> MemberRole | None:
    """The role in the tenant of the person of that public id."""
    return _role(await conn.fetchval(_ROLE_OF, tenant_id, person))


async def identity_id(conn: Connection, tenant_id: int, public_id: str) -> int | None:
    """The key of an identity of the tenant, in whatever state."""
    if not is_id("idn_", public_id):
        return None
    found: int | None = await conn.fetchval(_IDENTITY, tenant_id, public_id)
    return found


async def identity_exists(conn: Connection, tenant_id: int, identity_id: int) -> bool:
    found: bool = await conn.fetchval(_IDENTITY_EXISTS, tenant_id, identity_id)
    return found


async def insert(
    conn: Connection,
    new: NewKey,
    *,
    public_id: str,
    lookup: str,
    mac: bytes,
    mode: Mode,
    permissions: Sequence[Permission],
    lineage: Lineage,
    now: datetime,
) -> int | None:
    """The new row's key; None when the lookup is taken: draw another."""
    row_id: int | None = await conn.fetchval(
        _INSERT,
        *(public_id, lookup, mac, new.name, new.level, new.partner_id, new.tenant_id, new.identity_id, mode),
        *(list(permissions), new.expires_at, now, lineage.key, lineage.person, lineage.role),
    )
    return row_id


async def revoke(conn: Connection, key_id: int, now: datetime) -> bool:
    """False when it was revoked before."""
    return await conn.fetchval(_REVOKE, key_id, now) is not None


async def revoke_of_person(
    conn: Connection, tenant_id: int, person: str, room: frozenset[Permission] | None, now: datetime
) -> list[str]:
    """Revoke the person's keys in the tenant, with `room` those that hold more than it; their public ids."""
    names = None if room is None else sorted(room)
    await conn.execute(_HOLD_OF_PERSON, tenant_id, person)
    return [row["public_id"] for row in await conn.fetch(_REVOKE_OF_PERSON, tenant_id, person, now, names)]


async def set_role(conn: Connection, tenant_id: int, person: str, role: MemberRole) -> None:
    """Record the person's new role on their keys in the tenant."""
    await conn.execute(_SET_ROLE, tenant_id, person, role)


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


async def delete_of_partner(conn: Connection, partner_id: int) -> None:
    """The partner's own keys, which nobody can use or list any more (J12)."""
    await conn.execute("DELETE FROM api_keys WHERE level = 'partner' AND partner_id = $1", partner_id)


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
        partner_id=row["partner_id"],
        partner_public_id=row["partner_public_id"],
        created_by_key=row["created_by_key"],
        created_by_person=row["created_by_person"],
        created_by_role=_role(row["created_by_role"]),
    )


def _role(name: str | None) -> MemberRole | None:
    return None if name is None else MemberRole(name)
