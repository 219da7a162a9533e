"""Addresses for the links `mail/by-address/…` (B5), page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from postroom.db import Database

_PAGE_SIZE: Final = 500

_PAGE: Final = """
SELECT a.id, a.local_part, d.name AS domain, t.public_id AS tenant, i.public_id AS identity,
       a.status IN ('active', 'retiring') AS receives
FROM addresses a
JOIN domains d ON d.id = a.domain_id
JOIN tenants t ON t.id = a.tenant_id
JOIN identities i ON i.tenant_id = a.tenant_id AND i.id = a.identity_id
WHERE a.updated_at >= $1 AND a.id > $2
ORDER BY a.id LIMIT $3
"""


@dataclass(frozen=True, slots=True)
class AddressLink:
    """Where a link stands, and where it leads; `receives` is False when it is to go."""

    domain: str
    local: str
    tenant: str
    identity: str
    receives: bool


async def changed_since(db: Database, since: datetime) -> AsyncIterator[AddressLink]:
    """Every address, of all tenants, that was made or changed since then."""
    after = 0
    while True:
        async with db.acquire() as conn:
            rows = await conn.fetch(_PAGE, since, after, _PAGE_SIZE)
        for row in rows:
            after = row["id"]
            yield AddressLink(row["domain"], row["local_part"], row["tenant"], row["identity"], row["receives"])
        if len(rows) < _PAGE_SIZE:
            return
