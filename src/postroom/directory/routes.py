"""The one query that decides on a recipient (inbound §7.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from postroom.accounts.models import TenantStatus
from postroom.db import Connection
from postroom.directory.models import AddressStatus, IdentityKind, IdentityStatus
from postroom.directory.rules import Entry

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


@dataclass(frozen=True, slots=True)
class Route:
    """What the database knows of an address: whose domain it is on, and who has it."""

    is_local: bool
    domain_enabled: bool
    entry: Entry | None


async def route(conn: Connection, base: str, domain: str) -> Route:
    """Look up an address without detail, in one statement."""
    row = await conn.fetchrow(_ROUTE, base, domain)
    if row is None:
        return Route(False, False, None)
    if row["identity_id"] is None or row["identity_status"] is None:
        return Route(True, row["enabled"], None)
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
