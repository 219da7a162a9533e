"""The queries that decide on a recipient (inbound §7.4; mail-server A6): one for an address that somebody has."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from postroom.accounts.models import Mode, TenantStatus
from postroom.db import Connection
from postroom.directory.models import AddressStatus, IdentityKind, IdentityStatus
from postroom.directory.rules import MAX_CHAIN, Entry, Route, Step

_ROUTE: Final = """
SELECT d.enabled, a.status AS address_status, a.tenant_id, a.identity_id, i.status AS identity_status, i.kind,
       i.public_id AS identity_public_id, t.public_id AS tenant_public_id, t.status AS tenant_status, t.suspended_at,
       coalesce(m.used_bytes >= m.quota_bytes, false) AS is_full,
       (SELECT array_agg(o.address ORDER BY o.address) FROM addresses o
        WHERE o.tenant_id = a.tenant_id AND o.identity_id = a.identity_id AND o.status IN ('active', 'retiring')) AS own
FROM domains d
LEFT JOIN addresses a ON a.address = $1
LEFT JOIN identities i ON i.tenant_id = a.tenant_id AND i.id = a.identity_id
LEFT JOIN tenants t ON t.id = a.tenant_id
LEFT JOIN mailboxes m ON m.tenant_id = a.tenant_id AND m.id = a.identity_id
WHERE d.name = $2
"""
# An address that somebody has ends the way, whatever its state: no alias shadows it. The last row of a way that is too
# long says so.
_STEPS: Final = """
WITH RECURSIVE way AS (
  SELECT a.tenant_id, a.public_id, a.address, a.target, a.target_base, a.domain_id, 1 AS number
  FROM aliases a WHERE a.address = $1
  UNION ALL
  SELECT n.tenant_id, n.public_id, n.address, n.target, n.target_base, n.domain_id, w.number + 1
  FROM way w JOIN aliases n ON n.address = w.target_base
  WHERE w.number <= $2 AND NOT EXISTS (SELECT FROM addresses o WHERE o.address = n.address)
)
SELECT w.public_id, w.address, w.target, w.target_base, w.tenant_id, t.public_id AS tenant_public_id, t.mode,
       t.status AS tenant_status, t.suspended_at, d.enabled AS domain_enabled
FROM way w JOIN tenants t ON t.id = w.tenant_id JOIN domains d ON d.id = w.domain_id
ORDER BY w.number
"""


async def route(conn: Connection, base: str, domain: str) -> Route:
    """Look up an address without detail, in one statement; aliases are not."""
    row = await conn.fetchrow(_ROUTE, base, domain)
    if row is None:
        return Route(False, False)
    if row["identity_id"] is None or row["identity_status"] is None:
        return Route(True, row["enabled"])
    entry = Entry(
        tenant_id=row["tenant_id"],
        identity_id=row["identity_id"],
        tenant_public_id=row["tenant_public_id"],
        identity_public_id=row["identity_public_id"],
        kind=IdentityKind(row["kind"]),
        domain_enabled=row["enabled"],
        address_status=AddressStatus(row["address_status"]),
        identity_status=IdentityStatus(row["identity_status"]),
        tenant_status=TenantStatus(row["tenant_status"]),
        suspended_at=row["suspended_at"],
        is_full=row["is_full"],
        own_addresses=tuple(row["own"] or ()),
    )
    return Route(True, row["enabled"], entry)


async def steps(conn: Connection, base: str) -> tuple[Step, ...]:
    """The aliases that mail to `base` takes, in order; one more than `MAX_CHAIN` when there is no end to them."""
    return tuple(
        Step(**{**row, "mode": Mode(row["mode"]), "tenant_status": TenantStatus(row["tenant_status"])})
        for row in await conn.fetch(_STEPS, base, MAX_CHAIN)
    )


async def whole_route(conn: Connection, base: str, domain: str) -> Route:
    """Look up an address without detail, aliases followed."""
    found = await route(conn, base, domain)
    if found.entry is not None or not found.domain_enabled:
        return found
    way = await steps(conn, base)
    if not way or len(way) > MAX_CHAIN:
        return replace(found, steps=way)
    end = way[-1].target_base
    at_end = await route(conn, end, end.rpartition("@")[2])
    if not at_end.is_local:
        return replace(found, steps=way, leaves=True)
    return replace(at_end, steps=way)
