"""SQL of requests to erase an identity (inbound §2.3; data-model §7)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from postroom.db import Connection
from postroom.directory.models import Identity

_INSERT: Final = """
INSERT INTO erasure_requests (tenant_id, public_id, scope, identity_id, created_by, created_at, deadline_at)
VALUES ($1, $2, 'identity', $3, $4, $5, $6)
"""
_OF_IDENTITY: Final = """
SELECT public_id, status, created_by, created_at, deadline_at, completed_at FROM erasure_requests
WHERE tenant_id = $1 AND identity_id = $2 AND scope = 'identity'
"""


@dataclass(frozen=True, slots=True)
class Erasure:
    """A request to erase everything of an identity. `created_by` is the public id of a key."""

    public_id: str
    tenant_public_id: str
    identity_public_id: str
    status: str
    created_by: str | None
    created_at: datetime
    deadline_at: datetime
    completed_at: datetime | None


async def insert(
    conn: Connection, identity: Identity, public_id: str, created_by: str | None, now: datetime, deadline: datetime
) -> None:
    """A new request. Raises asyncpg.UniqueViolationError when the identity has one."""
    await conn.execute(_INSERT, identity.tenant_id, public_id, identity.id, created_by, now, deadline)


async def of_identity(conn: Connection, identity: Identity) -> Erasure | None:
    """The request of an identity."""
    row = await conn.fetchrow(_OF_IDENTITY, identity.tenant_id, identity.id)
    if row is None:
        return None
    return Erasure(tenant_public_id=identity.tenant_public_id, identity_public_id=identity.public_id, **dict(row))
