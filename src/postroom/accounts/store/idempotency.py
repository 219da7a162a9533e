"""SQL of recorded answers of POSTs that carry `Idempotency-Key`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from postroom.db import Connection

_BEGIN = """
INSERT INTO idempotency_records
  (scope, key_id, idem_key, tenant_id, identity_id, method, path, fingerprint, status, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'in_progress', $9, $10)
ON CONFLICT (scope, key_id, idem_key) DO NOTHING RETURNING created_at
"""
_GET = """
SELECT method, path, fingerprint, status, response_status, response_body, created_at, expires_at
FROM idempotency_records WHERE scope = $1 AND key_id = $2 AND idem_key = $3
"""
_TAKE_OVER = """
UPDATE idempotency_records
SET tenant_id = $4, identity_id = $5, method = $6, path = $7, fingerprint = $8, status = 'in_progress',
    response_status = NULL, response_body = NULL, created_at = $9, expires_at = $10
WHERE scope = $1 AND key_id = $2 AND idem_key = $3 AND created_at = $11
RETURNING created_at
"""
_COMPLETE = """
UPDATE idempotency_records
SET status = 'completed', response_status = $5, response_body = $6, tenant_id = coalesce($7, tenant_id),
    identity_id = coalesce($8, identity_id)
WHERE scope = $1 AND key_id = $2 AND idem_key = $3 AND created_at = $4 AND status = 'in_progress' RETURNING created_at
"""
_ABANDON = """
DELETE FROM idempotency_records
WHERE scope = $1 AND key_id = $2 AND idem_key = $3 AND created_at = $4 AND status = 'in_progress'
"""
_PRUNE = """
DELETE FROM idempotency_records WHERE (scope, key_id, idem_key) IN (
  SELECT scope, key_id, idem_key FROM idempotency_records WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an answer is recorded: whose key, under which idempotency key. `scope`: tenant's public id, or
    `platform`.
    """

    scope: str
    key_id: str
    idem_key: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """A row as it stands."""

    method: str
    path: str
    fingerprint: str
    completed: bool
    response_status: int | None
    response_body: Any
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Row:
    """What a running request writes of itself."""

    tenant_id: int | None
    identity_id: int | None
    method: str
    path: str
    fingerprint: str
    created_at: datetime
    expires_at: datetime

    def values(self) -> tuple[int | None, int | None, str, str, str, datetime, datetime]:
        return (
            *(self.tenant_id, self.identity_id, self.method, self.path, self.fingerprint),
            *(self.created_at, self.expires_at),
        )


async def insert(conn: Connection, slot: Slot, row: Row) -> bool:
    """False when the slot is taken."""
    begun = await conn.fetchval(_BEGIN, slot.scope, slot.key_id, slot.idem_key, *row.values())
    return begun is not None


async def get(conn: Connection, slot: Slot) -> Recorded | None:
    row = await conn.fetchrow(_GET, slot.scope, slot.key_id, slot.idem_key)
    if row is None:
        return None
    return Recorded(
        method=row["method"],
        path=row["path"],
        fingerprint=row["fingerprint"],
        completed=row["status"] == "completed",
        response_status=row["response_status"],
        response_body=row["response_body"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )


async def take_over(conn: Connection, slot: Slot, row: Row, seen: datetime) -> bool:
    """Compare-and-set on `created_at`: False when somebody else was first."""
    taken = await conn.fetchval(_TAKE_OVER, slot.scope, slot.key_id, slot.idem_key, *row.values(), seen)
    return taken is not None


async def complete(
    conn: Connection,
    slot: Slot,
    created_at: datetime,
    status: int,
    body: Any,
    tenant_id: int | None = None,
    identity_id: int | None = None,
) -> bool:
    """False when the record is no longer this request's."""
    done = await conn.fetchval(
        *(_COMPLETE, slot.scope, slot.key_id, slot.idem_key, created_at, status, body, tenant_id, identity_id)
    )
    return done is not None


async def abandon(conn: Connection, slot: Slot, created_at: datetime) -> None:
    await conn.execute(_ABANDON, slot.scope, slot.key_id, slot.idem_key, created_at)


async def prune(conn: Connection, now: datetime, limit: int) -> int:
    """Delete at most `limit` expired records; how many."""
    tag = await conn.execute(_PRUNE, now, limit)
    return int(tag.rpartition(" ")[2])
