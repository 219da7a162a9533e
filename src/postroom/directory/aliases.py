"""SQL of aliases (mail-server A6). Scope is the tenant in the statement itself."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import asyncpg

from postroom.base.ids import is_id
from postroom.db import Connection
from postroom.directory.models import Alias
from postroom.directory.rules import DomainRow

_SELECT: Final = """
SELECT a.id, a.public_id, a.tenant_id, t.public_id AS tenant_public_id, a.address, d.name AS domain,
       d.public_id AS domain_public_id, a.target, a.created_at
FROM aliases a JOIN tenants t ON t.id = a.tenant_id JOIN domains d ON d.id = a.domain_id
WHERE a.tenant_id = $1
"""
_GET: Final = " ".join((_SELECT, "AND a.public_id = $2"))
_BY_ADDRESS: Final = " ".join((_SELECT, "AND a.address = $2"))
_LIST: Final = " ".join(
    (
        *(_SELECT, "AND ($2::timestamptz IS NULL OR (a.created_at, a.public_id) < ($2, $3::text))"),
        "ORDER BY a.created_at DESC, a.public_id DESC LIMIT $4",
    )
)
_COUNT: Final = "SELECT count(*) FROM (SELECT FROM aliases WHERE tenant_id = $1 LIMIT $2) a"
_INSERT: Final = """
INSERT INTO aliases (tenant_id, public_id, address, domain_id, target, created_at) VALUES ($1, $2, $3, $4, $5, $6)
"""
_DELETE: Final = "DELETE FROM aliases WHERE tenant_id = $1 AND public_id = $2 RETURNING address"
_DOMAIN: Final = """
SELECT id, public_id, name, status, enabled FROM domains WHERE name = $2 AND (tenant_id = $1 OR tenant_id IS NULL)
"""
# Of the whole deployment: ways lead through aliases of several tenants.
_LOCK_WAYS: Final = "SELECT pg_advisory_xact_lock(hashtextextended('alias ways', 0))"
# $3: a way of the tenant's that is longer than that is not followed. An alias has one target, so it is counted once.
_LENGTH_BEFORE: Final = """
WITH RECURSIVE way AS (
  SELECT a.address, 1 AS number FROM aliases a WHERE a.tenant_id = $1 AND a.target_base = $2
  UNION ALL
  SELECT n.address, w.number + 1 FROM way w JOIN aliases n ON n.tenant_id = $1 AND n.target_base = w.address
  WHERE w.number <= $3
)
SELECT coalesce(max(number), 0) FROM way
"""


async def get(conn: Connection, tenant_id: int, public_id: str) -> Alias | None:
    if not is_id("als_", public_id):
        return None
    return _alias(await conn.fetchrow(_GET, tenant_id, public_id))


async def by_address(conn: Connection, tenant_id: int, address: str) -> Alias | None:
    """The alias of an address without detail (lower case, A-labels)."""
    return _alias(await conn.fetchrow(_BY_ADDRESS, tenant_id, address))


async def page(conn: Connection, tenant_id: int, *, limit: int, after: tuple[datetime, str] | None) -> list[Alias]:
    """Newest first; `after` is the creation time and public id of the last one seen."""
    created_at, public_id = after if after is not None else (None, None)
    rows = await conn.fetch(_LIST, tenant_id, created_at, public_id, limit)
    return [Alias(**row) for row in rows]


async def count(conn: Connection, tenant_id: int, up_to: int) -> int:
    """How many aliases the tenant has; `up_to` if it has more."""
    found: int = await conn.fetchval(_COUNT, tenant_id, up_to)
    return found


async def insert(
    conn: Connection, tenant_id: int, public_id: str, address: str, domain: DomainRow, target: str, now: datetime
) -> None:
    """A new row. Raises asyncpg.UniqueViolationError when the address is taken."""
    await conn.execute(_INSERT, tenant_id, public_id, address, domain.id, target, now)


async def lock_ways(conn: Connection) -> None:
    """From now on nobody else makes an alias, until the transaction ends: of two that lead to each other the second
    sees the first."""
    await conn.execute(_LOCK_WAYS)


async def length_before(conn: Connection, tenant_id: int, address: str, up_to: int) -> int:
    """How many aliases of the tenant lead to an address, one through another; no more than one over `up_to`."""
    found: int = await conn.fetchval(_LENGTH_BEFORE, tenant_id, address, up_to)
    return found


async def delete(conn: Connection, tenant_id: int, public_id: str) -> str | None:
    """The address of the alias that went; None when there was none."""
    address: str | None = await conn.fetchval(_DELETE, tenant_id, public_id) if is_id("als_", public_id) else None
    return address


async def usable_domain(conn: Connection, tenant_id: int, name: str) -> DomainRow | None:
    """A domain that the tenant's addresses may be on: its own, or the platform's."""
    row = await conn.fetchrow(_DOMAIN, tenant_id, name)
    return None if row is None else DomainRow(**dict(row))


def _alias(row: asyncpg.Record | None) -> Alias | None:
    return None if row is None else Alias(**row)
