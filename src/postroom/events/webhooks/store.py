"""SQL of webhook endpoints: what they are, whose, and their secrets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from postroom.accounts.models import Scope
from postroom.accounts.store.reach import of_partner
from postroom.db.pool import Connection
from postroom.events.webhooks.models import DisabledReason, Endpoint, EndpointScope

MAX_ENDPOINTS: Final = 20
"""Of one tenant, of one partner, of the platform."""

_COLUMNS: Final = """
e.id, e.public_id, e.tenant_id, t.public_id AS tenant_public_id, e.partner_id, p.public_id AS partner_public_id, e.url,
e.description, e.events, e.identity_ids, e.enabled, e.disabled_reason, e.created_at, e.updated_at,
e.after_event
"""
_FROM: Final = """
FROM webhook_endpoints e LEFT JOIN tenants t ON t.id = e.tenant_id LEFT JOIN partners p ON p.id = e.partner_id
"""
# $1 level, $2 key of the tenant or partner, $3 of the identity. A null never equals anything here. An identity's key
# sees what its tenant has.
_REACH: Final = """
CASE $1::text
  WHEN 'platform' THEN $2::bigint IS NULL AND $3::bigint IS NULL
  WHEN 'partner' THEN e.partner_id = $2::bigint OR {of_partner}
  WHEN 'tenant' THEN e.tenant_id = $2::bigint
  WHEN 'identity' THEN e.tenant_id = $2::bigint AND $3::bigint IS NOT NULL
  ELSE false END
""".replace("{of_partner}", of_partner("e.tenant_id", "$2::bigint"))
_GET: Final = " ".join(("SELECT", _COLUMNS, _FROM, "WHERE", _REACH, "AND e.public_id = $4"))
_LOCK: Final = " ".join((_GET, "FOR NO KEY UPDATE OF e"))
_END: Final = " ".join(
    (
        "AND ($2::timestamptz IS NULL OR (e.created_at, e.public_id) < ($2, $3::text))",
        "ORDER BY e.created_at DESC, e.public_id DESC LIMIT $4",
    )
)
_OF_TENANT: Final = " ".join(("SELECT", _COLUMNS, _FROM, "WHERE e.tenant_id = $1::bigint", _END))
_OF_PARTNER: Final = " ".join(("SELECT", _COLUMNS, _FROM, "WHERE e.partner_id = $1::bigint", _END))
_OF_PLATFORM: Final = " ".join(
    (
        *("SELECT", _COLUMNS, _FROM),
        *("WHERE e.tenant_id IS NULL AND e.partner_id IS NULL AND $1::bigint IS NULL", _END),
    )
)
# One after another for each owner, so that there are never more than may be.
_HOLD_OWNER: Final = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
_COUNT: Final = """
SELECT count(*) FROM webhook_endpoints WHERE tenant_id IS NOT DISTINCT FROM $1 AND partner_id IS NOT DISTINCT FROM $2
"""
_INSERT: Final = """
INSERT INTO webhook_endpoints (public_id, tenant_id, partner_id, url, description, events, identity_ids, created_at,
  updated_at, after_event)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9) RETURNING id
"""
_BY_KEY: Final = " ".join(("SELECT", _COLUMNS, _FROM, "WHERE e.id = $1"))
_UPDATE: Final = """
UPDATE webhook_endpoints SET url = $2, description = $3, events = $4, identity_ids = $5, enabled = $6,
  disabled_reason = $7, updated_at = $8,
  consecutive_failures = CASE WHEN $9 THEN 0 ELSE consecutive_failures END,
  failing_since = CASE WHEN $9 THEN NULL ELSE failing_since END,
  paused_until = CASE WHEN $9 THEN NULL ELSE paused_until END
WHERE id = $1
"""
_DELETE: Final = "DELETE FROM webhook_endpoints WHERE id = $1"
_DELETE_OF_PARTNER: Final = "DELETE FROM webhook_endpoints WHERE partner_id = $1"
_PUT_SECRET: Final = "INSERT INTO webhook_secrets (endpoint_id, secret_enc) VALUES ($1, $2)"
_SECRETS: Final = "SELECT secret_enc, prev_secret_enc, prev_expires_at FROM webhook_secrets WHERE endpoint_id = $1"
_ROTATE: Final = """
UPDATE webhook_secrets SET secret_enc = $2, prev_secret_enc = $3, prev_expires_at = $4 WHERE endpoint_id = $1
"""
# $1 public ids, $2 key of the tenant or partner.
_OF_IDENTITIES: Final = "SELECT count(*) FROM identities i WHERE i.public_id = ANY ($1) AND i.status <> 'deleted' AND"
_IDENTITIES: Final = {
    EndpointScope.TENANT: " ".join((_OF_IDENTITIES, "i.tenant_id = $2::bigint AND NOT i.is_system")),
    EndpointScope.PARTNER: " ".join((_OF_IDENTITIES, of_partner("i.tenant_id", "$2::bigint"), "AND NOT i.is_system")),
    EndpointScope.PLATFORM: " ".join((_OF_IDENTITIES, "$2::bigint IS NULL")),
}


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose endpoints: a tenant's or a partner's, by key; with neither the platform's."""

    tenant_id: int | None = None
    partner_id: int | None = None


@dataclass(frozen=True, slots=True)
class Sealed:
    """The secrets of an endpoint as they are stored."""

    current: bytes
    previous: bytes | None = None
    previous_until: datetime | None = None


async def get(conn: Connection, scope: Scope, public_id: str, *, lock: bool = False) -> Endpoint | None:
    """The endpoint of that public id, in scope; with `lock` its row is locked."""
    row = await conn.fetchrow(_LOCK if lock else _GET, *scope.values, public_id)
    return None if row is None else endpoint(row)


async def page(conn: Connection, owner: Owner, limit: int, after: tuple[datetime, str] | None) -> list[Endpoint]:
    """Endpoints of an owner, newest first."""
    statement, key = _OF_PLATFORM, None
    if owner.tenant_id is not None:
        statement, key = _OF_TENANT, owner.tenant_id
    elif owner.partner_id is not None:
        statement, key = _OF_PARTNER, owner.partner_id
    rows = await conn.fetch(statement, key, *(after or (None, None)), limit)
    return [endpoint(row) for row in rows]


async def hold_owner(conn: Connection, owner: Owner) -> int:
    """How many endpoints the owner has; nobody else makes one for it until this transaction ends."""
    await conn.execute(_HOLD_OWNER, f"webhooks:{owner.tenant_id}:{owner.partner_id}")
    return int(await conn.fetchval(_COUNT, owner.tenant_id, owner.partner_id))


async def insert(
    conn: Connection,
    public_id: str,
    owner: Owner,
    url: str,
    description: str | None,
    events: tuple[str, ...],
    identity_ids: tuple[str, ...] | None,
    now: datetime,
    after_event: int,
) -> Endpoint:
    """A new row, enabled, which is told of what has a greater key than `after_event`."""
    key = await conn.fetchval(
        *(
            _INSERT,
            public_id,
            owner.tenant_id,
            owner.partner_id,
            url,
            description,
            events,
            identity_ids,
            now,
            after_event,
        )
    )
    row = await conn.fetchrow(_BY_KEY, key)
    assert row is not None
    return endpoint(row)


async def update(conn: Connection, made: Endpoint, *, healthy: bool) -> None:
    """Write what can be changed of it; with `healthy` its failures are forgotten."""
    await conn.execute(
        _UPDATE,
        *(made.id, made.url, made.description, made.events, made.identity_ids, made.enabled),
        *(None if made.disabled_reason is None else made.disabled_reason.value, made.updated_at, healthy),
    )


async def delete(conn: Connection, key: int) -> None:
    """With its tasks and its attempts."""
    await conn.execute(_DELETE, key)


async def delete_of_partner(conn: Connection, partner_id: int) -> None:
    await conn.execute(_DELETE_OF_PARTNER, partner_id)


async def count_identities(conn: Connection, one: Endpoint, public_ids: list[str]) -> int:
    """How many of these the endpoint may be told of: there, and its owner's. The system's own is the platform's."""
    found = await conn.fetchval(_IDENTITIES[one.scope], public_ids, one.tenant_id or one.partner_id)
    return int(found)


async def put_secret(conn: Connection, key: int, sealed: bytes) -> None:
    await conn.execute(_PUT_SECRET, key, sealed)


async def secrets(conn: Connection, key: int) -> Sealed:
    row = await conn.fetchrow(_SECRETS, key)
    assert row is not None
    return Sealed(row["secret_enc"], row["prev_secret_enc"], row["prev_expires_at"])


async def rotate(conn: Connection, key: int, sealed: Sealed) -> None:
    await conn.execute(_ROTATE, key, sealed.current, sealed.previous, sealed.previous_until)


def endpoint(row: Any) -> Endpoint:
    """The endpoint of a row with `_COLUMNS`."""
    reason = row["disabled_reason"]
    return Endpoint(
        id=row["id"],
        public_id=row["public_id"],
        tenant_id=row["tenant_id"],
        tenant_public_id=row["tenant_public_id"],
        partner_id=row["partner_id"],
        partner_public_id=row["partner_public_id"],
        url=row["url"],
        description=row["description"],
        events=tuple(row["events"]),
        identity_ids=None if row["identity_ids"] is None else tuple(row["identity_ids"]),
        enabled=row["enabled"],
        disabled_reason=None if reason is None else DisabledReason(reason),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        after_event=row["after_event"],
    )


# $1 tenants, $2 partners. Held against deletion, so that no task is made for what is gone.
_THAT_SEE: Final = " ".join(
    (
        *("SELECT", _COLUMNS, _FROM),
        "WHERE e.enabled AND (e.tenant_id = ANY ($1::bigint[]) OR e.partner_id = ANY ($2::bigint[])",
        "OR e.tenant_id IS NULL AND e.partner_id IS NULL)",
        "AND coalesce(t.status, '') NOT IN ('erasing', 'erased') AND coalesce(p.status, '') <> 'deleted'",
        "ORDER BY e.id FOR KEY SHARE OF e",
    )
)


async def that_see(conn: Connection, tenants: list[int], partners: list[int]) -> list[Endpoint]:
    """Enabled endpoints of these tenants and partners, and all of the platform's. Those of who is gone are on their
    way (`events.retention`).
    """
    return [endpoint(row) for row in await conn.fetch(_THAT_SEE, tenants, partners)]
