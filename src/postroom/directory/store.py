"""SQL of identities and addresses. Scope is an argument of the statement itself, never a check of what was read
(A4.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import asyncpg

from postroom.accounts.models import Scope
from postroom.accounts.permissions import Level
from postroom.accounts.store.reach import of_each_tenant, of_partner
from postroom.accounts.text import is_storable
from postroom.base.ids import is_id
from postroom.db import Connection
from postroom.directory.models import (
    AddressRole,
    AddressStatus,
    HostedAddress,
    Identity,
    IdentityKey,
    IdentityKind,
    IdentityStatus,
    NewIdentity,
    PauseReason,
)
from postroom.directory.rules import DomainRow

# Of the identity `i`, in the statement that reads it: what is shown of both is of one moment.
_HOSTED: Final = """
array(SELECT ROW (a.id, a.public_id, a.address, a.domain_id, d.name, d.public_id, d.kind = 'platform', a.role,
                  a.status, a.retire_at, a.retired_at, a.created_at)
      FROM addresses a JOIN domains d ON d.id = a.domain_id
      WHERE a.tenant_id = i.tenant_id AND a.identity_id = i.id
      ORDER BY a.role DESC, a.created_at, a.id) AS hosted
"""
# The system identity is the platform's alone (A15); a null of the scope never equals anything.
# A relay is nobody's (mail-server A6).
_REACH: Final = """
i.kind <> 'relay' AND CASE $1::text
  WHEN 'platform' THEN $2::bigint IS NULL AND $3::bigint IS NULL
  WHEN 'partner' THEN NOT i.is_system AND {of_partner}
  WHEN 'tenant' THEN i.tenant_id = $2::bigint AND NOT i.is_system
  WHEN 'identity' THEN i.tenant_id = $2::bigint AND i.id = $3::bigint AND NOT i.is_system
  ELSE false END
""".replace("{of_partner}", of_partner("i.tenant_id", "$2::bigint"))
_FROM: Final = "FROM identities i JOIN tenants t ON t.id = i.tenant_id"
_SELECT: Final = " ".join(("SELECT i.*, t.public_id AS tenant_public_id,", _HOSTED, _FROM))
_GET: Final = " ".join((_SELECT, "WHERE i.public_id = $4 AND", _REACH))
# Addresses are read after it: of those that somebody changed while we waited, this statement would not know.
_HOLD: Final = " ".join(
    ("SELECT i.tenant_id, i.id FROM identities i WHERE i.public_id = $4 AND", _REACH, "FOR NO KEY UPDATE OF i")
)
_BY_CLIENT_ID: Final = " ".join((_SELECT, "WHERE i.tenant_id = $1 AND i.client_id = $2"))
_JOINED: Final = " ".join((_SELECT, "JOIN addresses a ON a.tenant_id = i.tenant_id AND a.identity_id = i.id"))
_BY_ADDRESS: Final = " ".join((_JOINED, "WHERE a.address = $4 AND", _REACH))
_BY_ADDRESS_ID: Final = " ".join((_JOINED, "WHERE a.public_id = $4 AND", _REACH))
_LIST_REST: Final = " ".join(
    (
        "AND ($5::text[] IS NULL OR i.status = ANY ($5))",
        "AND ($6::text IS NULL OR i.purpose = $6) AND ($7::text IS NULL OR i.client_id = $7)",
        "AND ($8::timestamptz IS NULL OR (i.created_at, i.public_id) < ($8, $9::text))",
        "ORDER BY i.created_at DESC, i.public_id DESC LIMIT $10",
    )
)
_GRANTED: Final = """
SELECT i.*, t.public_id AS tenant_public_id, {hosted} FROM mailbox_grants g
JOIN identities i ON i.tenant_id = g.tenant_id AND i.id = g.mailbox_id
JOIN tenants t ON t.id = g.tenant_id
WHERE g.person_id = $1 AND t.status IN ('active', 'suspended') AND i.status IN ('active', 'paused') AND NOT i.is_system
  AND ($2::text IS NULL OR t.public_id = $2) AND ($3::text[] IS NULL OR i.status = ANY ($3))
  AND ($4::text IS NULL OR i.purpose = $4)
  AND ($5::timestamptz IS NULL OR (i.created_at, i.public_id) < ($5, $6::text))
ORDER BY i.created_at DESC, i.public_id DESC LIMIT $7
""".replace("{hosted}", _HOSTED)
_LIST: Final = " ".join((_SELECT, "WHERE i.tenant_id = $4::bigint AND NOT i.is_system AND", _REACH, _LIST_REST))
# In the order of one index, however many tenants there are.
_LIST_ALL: Final = " ".join((_SELECT, "WHERE $4::bigint IS NULL AND NOT i.is_system AND", _REACH, _LIST_REST))
_LIST_EACH: Final = " ".join(
    (
        *("SELECT i.*, t.public_id AS tenant_public_id", _FROM),
        "WHERE i.tenant_id = pt.tenant_id AND $4::bigint IS NULL AND NOT i.is_system AND",
        *(_REACH, _LIST_REST),
    )
)
_LIST_OF_PARTNER: Final = " ".join(
    (
        *("SELECT i.*,", _HOSTED, "FROM", of_each_tenant("$2::bigint", _LIST_EACH, "i")),
        "ORDER BY i.created_at DESC, i.public_id DESC LIMIT $10",
    )
)

_INSERT: Final = """
INSERT INTO identities
  (tenant_id, public_id, kind, username, username_fold, display_name, purpose, client_id, client_fingerprint,
   owner_name, owner_email, signature_text, signature_html, send_policy_json, metadata_json, is_system, created_at,
   updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $17) RETURNING id
"""
_INSERT_ADDRESS: Final = """
INSERT INTO addresses
  (tenant_id, public_id, address, local_part, domain_id, identity_id, role, status, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9) RETURNING id
"""
_UPDATE: Final = """
UPDATE identities SET display_name = coalesce($3, display_name),
  purpose = nullif(coalesce($4, purpose), ''), owner_name = nullif(coalesce($5, owner_name), ''),
  owner_email = nullif(coalesce($6, owner_email), ''), signature_text = nullif(coalesce($7, signature_text), ''),
  signature_html = nullif(coalesce($8, signature_html), ''), metadata_json = coalesce($9, metadata_json),
  send_policy_json = $10, updated_at = $11
WHERE tenant_id = $1 AND id = $2
"""
_SET_STATUS: Final = """
UPDATE identities SET status = $3, pause_reason = $4, updated_at = $5 WHERE tenant_id = $1 AND id = $2
"""
_PAUSE_TENANT: Final = """
UPDATE identities SET status = 'paused', pause_reason = 'tenant_suspended', updated_at = $2
WHERE tenant_id = $1 AND status = 'active' AND NOT is_system RETURNING id
"""
_RESUME_TENANT: Final = """
UPDATE identities SET status = 'active', pause_reason = NULL, updated_at = $2
WHERE tenant_id = $1 AND status = 'paused' AND pause_reason = 'tenant_suspended' RETURNING id
"""
_SYSTEM: Final = " ".join((_SELECT, "WHERE i.is_system AND i.kind <> 'relay'"))
_BY_KEYS: Final = " ".join((_SELECT, "WHERE i.tenant_id = $1 AND i.id = ANY ($2::bigint[]) ORDER BY i.id"))

_SET_ADDRESS: Final = """
UPDATE addresses SET role = $3, status = $4, retire_at = $5, retired_at = $6, updated_at = $7
WHERE tenant_id = $1 AND id = $2
"""
_DROP_PENDING: Final = """
DELETE FROM addresses WHERE tenant_id = $1 AND identity_id = $2 AND domain_id = $3 AND status = 'pending'
"""
_DELETE_PENDING: Final = """
DELETE FROM addresses WHERE tenant_id = $1 AND id = $2 AND status = 'pending' RETURNING id
"""
# Identities first and skipping what others hold: the same order of locks as every other writer of addresses.
_DUE: Final = """
SELECT a.tenant_id, a.identity_id, a.public_id FROM addresses a
JOIN identities i ON i.tenant_id = a.tenant_id AND i.id = a.identity_id
WHERE a.status = 'retiring' AND a.retire_at <= $1
ORDER BY a.retire_at LIMIT $2 FOR NO KEY UPDATE OF i SKIP LOCKED
"""
# Domains and identities that others hold are another time's.
_READY: Final = """
SELECT a.tenant_id, a.identity_id, a.public_id FROM addresses a
JOIN domains d ON d.id = a.domain_id
JOIN identities i ON i.tenant_id = a.tenant_id AND i.id = a.identity_id
WHERE a.status = 'pending' AND d.enabled AND d.status = ANY ($1::text[]) AND i.status IN ('active', 'paused')
LIMIT $2 FOR SHARE OF d SKIP LOCKED FOR NO KEY UPDATE OF i SKIP LOCKED
"""

_PLATFORM_DOMAIN: Final = "SELECT id, public_id, name, status, enabled FROM domains WHERE kind = 'platform'"
_HOLD_DOMAIN: Final = """
SELECT id, public_id, name, status, enabled FROM domains WHERE public_id = $1 AND tenant_id = $2 FOR SHARE
"""
# The lock that the table's own trigger takes for an address.
_RESERVE: Final = "SELECT pg_advisory_xact_lock(hashtextextended('address:' || $1::text, 0))"
_DOMAIN_ID: Final = "SELECT public_id FROM domains WHERE name = $1 AND tenant_id = $2"
_IS_LOCAL: Final = "SELECT EXISTS (SELECT FROM domains WHERE name = $1 AND enabled)"
_TAKEN: Final = """
SELECT EXISTS (SELECT FROM addresses WHERE address = $1)
  OR EXISTS (SELECT FROM aliases WHERE address = $1)
  OR EXISTS (SELECT FROM people WHERE contact_email = $1 AND contact_verified_at IS NOT NULL)
  OR EXISTS (SELECT FROM address_tombstones t WHERE t.address_hash = $2 AND NOT (
       t.tenant_id = $3 AND t.identity_id = $4 AND EXISTS (
         SELECT FROM identities i WHERE i.tenant_id = $3 AND i.id = $4 AND i.status IN ('active', 'paused'))))
"""
_BURY: Final = """
INSERT INTO address_tombstones (address_hash, tenant_id, identity_id, reason, created_at)
SELECT h, $2, $3, $4, $5 FROM unnest($1::bytea[]) AS h ON CONFLICT (address_hash) DO NOTHING
"""
_DELETE_ADDRESSES: Final = "DELETE FROM addresses WHERE tenant_id = $1 AND identity_id = $2"


async def get(conn: Connection, scope: Scope, public_id: str, *, lock: bool = False) -> Identity | None:
    """An identity in scope; with `lock` its row is held until the end of the transaction."""
    if not is_id("idn_", public_id):
        return None
    if lock:
        held = await conn.fetchrow(_HOLD, *_values(scope), public_id)
        return None if held is None else await by_key(conn, held["tenant_id"], held["id"])
    return _or_none(await conn.fetchrow(_GET, *_values(scope), public_id))


async def by_client_id(conn: Connection, tenant_id: int, client_id: str) -> tuple[Identity, str | None] | None:
    """The identity that was made with this `client_id`, and the fingerprint of what asked for it."""
    row = await conn.fetchrow(_BY_CLIENT_ID, tenant_id, client_id)
    if row is None:
        return None
    return _identity(row), row["client_fingerprint"]


async def by_address(conn: Connection, scope: Scope, address: str) -> Identity | None:
    """The identity in scope that an address belongs to, whatever the state of either."""
    if not is_storable(address):
        return None
    return _or_none(await conn.fetchrow(_BY_ADDRESS, *_values(scope), address))


async def by_address_id(conn: Connection, scope: Scope, public_id: str) -> Identity | None:
    """The identity in scope that an address belongs to, by the id of the address."""
    if not is_id("adr_", public_id):
        return None
    return _or_none(await conn.fetchrow(_BY_ADDRESS_ID, *_values(scope), public_id))


async def domain_id(conn: Connection, tenant_id: int, name: str) -> str | None:
    """The public id of a domain of the tenant."""
    found: str | None = await conn.fetchval(_DOMAIN_ID, name, tenant_id)
    return found


async def by_key(conn: Connection, tenant_id: int, identity_id: int) -> Identity:
    """An identity that is known to be there."""
    row = await conn.fetchrow(_BY_KEYS, tenant_id, [identity_id])
    assert row is not None
    return _identity(row)


async def system_identity(conn: Connection) -> Identity | None:
    return _or_none(await conn.fetchrow(_SYSTEM))


async def page(
    conn: Connection,
    scope: Scope,
    tenant_id: int | None,
    *,
    statuses: Iterable[IdentityStatus] | None,
    purpose: str | None,
    client_id: str | None,
    limit: int,
    after: tuple[datetime, str] | None,
) -> list[Identity]:
    """Identities of a tenant, or of all, that are in scope, newest first; the system identity never."""
    wanted = None if statuses is None else [status.value for status in statuses]
    created_at, public_id = after if after is not None else (None, None)
    tenant_id = scope.tenant_of(tenant_id)
    statement = _LIST
    if tenant_id is None:
        statement = _LIST_OF_PARTNER if scope.level is Level.PARTNER else _LIST_ALL
    rows = await conn.fetch(
        statement, *_values(scope), tenant_id, wanted, purpose, client_id, created_at, public_id, limit
    )
    return [_identity(row) for row in rows]


async def granted(
    conn: Connection,
    person_id: int,
    *,
    tenant: str | None,
    statuses: Iterable[IdentityStatus] | None,
    purpose: str | None,
    limit: int,
    after: tuple[datetime, str] | None,
) -> list[Identity]:
    """Identities whose mailboxes a person may open, in every tenant (or that of a public id), newest first."""
    wanted = None if statuses is None else [status.value for status in statuses]
    created_at, public_id = after if after is not None else (None, None)
    rows = await conn.fetch(_GRANTED, person_id, tenant, wanted, purpose, created_at, public_id, limit)
    return [_identity(row) for row in rows]


async def insert(
    conn: Connection,
    tenant_id: int,
    public_id: str,
    new: NewIdentity,
    username: str,
    fold: str,
    fingerprint: str | None,
    now: datetime,
    *,
    is_system: bool = False,
) -> IdentityKey:
    """A new row. Raises asyncpg.UniqueViolationError, whose `constraint_name` says what is taken."""
    row_id: int = await conn.fetchval(
        _INSERT,
        *(tenant_id, public_id, new.kind, username, fold, new.display_name, new.purpose, new.client_id, fingerprint),
        *(new.owner_name, new.owner_email, new.signature_text, new.signature_html),
        *(dict(new.send_policy), dict(new.metadata), is_system, now),
    )
    return IdentityKey(row_id)


async def insert_address(
    conn: Connection,
    tenant_id: int,
    identity_id: int,
    public_id: str,
    local_part: str,
    domain: DomainRow,
    role: AddressRole,
    status: AddressStatus,
    now: datetime,
) -> None:
    """A new row. Raises asyncpg.UniqueViolationError when the address is taken."""
    address = f"{local_part}@{domain.name}"
    await conn.execute(
        _INSERT_ADDRESS, tenant_id, public_id, address, local_part, domain.id, identity_id, role, status, now
    )


async def update(conn: Connection, identity: Identity, values: Sequence[Any], now: datetime) -> None:
    """Set display name, purpose, owner name and e-mail, signatures, metadata and sending policy; None leaves, `''`
    clears. The policy is always given."""
    await conn.execute(_UPDATE, identity.tenant_id, identity.id, *values, now)


async def set_status(
    conn: Connection,
    tenant_id: int,
    identity_id: int,
    status: IdentityStatus,
    reason: PauseReason | None,
    now: datetime,
) -> None:
    await conn.execute(_SET_STATUS, tenant_id, identity_id, status, reason, now)


async def pause_tenant(conn: Connection, tenant_id: int, now: datetime) -> list[Identity]:
    """Pause every active identity because its tenant is suspended; those it touched."""
    return await _by_keys(conn, tenant_id, await conn.fetch(_PAUSE_TENANT, tenant_id, now))


async def resume_tenant(conn: Connection, tenant_id: int, now: datetime) -> list[Identity]:
    """The reverse, for those that the suspension paused."""
    return await _by_keys(conn, tenant_id, await conn.fetch(_RESUME_TENANT, tenant_id, now))


async def set_address(
    conn: Connection,
    tenant_id: int,
    address_id: int,
    role: AddressRole,
    status: AddressStatus,
    retire_at: datetime | None,
    retired_at: datetime | None,
    now: datetime,
) -> None:
    await conn.execute(_SET_ADDRESS, tenant_id, address_id, role, status, retire_at, retired_at, now)


async def drop_pending(conn: Connection, tenant_id: int, identity_id: int, domain_id: int) -> None:
    """A newer request cancels the older that still waits (A11)."""
    await conn.execute(_DROP_PENDING, tenant_id, identity_id, domain_id)


async def delete_pending(conn: Connection, tenant_id: int, address_id: int) -> bool:
    return await conn.fetchval(_DELETE_PENDING, tenant_id, address_id) is not None


async def due_addresses(conn: Connection, now: datetime, limit: int) -> list[tuple[int, int, str]]:
    """Tenant, identity and public id of retiring addresses whose time has come; their identities are locked."""
    rows = await conn.fetch(_DUE, now, limit)
    return [(row["tenant_id"], row["identity_id"], row["public_id"]) for row in rows]


async def ready_addresses(conn: Connection, ready: Sequence[str], limit: int) -> list[tuple[int, int, str]]:
    """Tenant, identity and public id of pending addresses whose domain has a state of `ready`; domains and identities
    are locked."""
    rows = await conn.fetch(_READY, ready, limit)
    return [(row["tenant_id"], row["identity_id"], row["public_id"]) for row in rows]


async def platform_domain(conn: Connection) -> DomainRow | None:
    return _domain(await conn.fetchrow(_PLATFORM_DOMAIN))


async def hold_domain(conn: Connection, tenant_id: int, public_id: str) -> DomainRow | None:
    """A domain of the tenant by its public id; its state stays what it is until the end of the transaction."""
    return _domain(await conn.fetchrow(_HOLD_DOMAIN, public_id, tenant_id)) if is_id("dom_", public_id) else None


async def reserve(conn: Connection, address: str) -> None:
    """Nobody else takes the address before the end of the transaction. Several are reserved in their order."""
    await conn.execute(_RESERVE, address)


async def is_local_domain(conn: Connection, name: str) -> bool:
    found: bool = await conn.fetchval(_IS_LOCAL, name)
    return found


async def is_taken(
    conn: Connection, address: str, address_hash: bytes, tenant_id: int, identity_id: int | None
) -> bool:
    """Whether an address is somebody's or an alias, a person's contact (W45), or buried for all but `identity_id`
    (A5)."""
    taken: bool = await conn.fetchval(_TAKEN, address, address_hash, tenant_id, identity_id)
    return taken


async def bury(
    conn: Connection, tenant_id: int, identity_id: int, hashes: Sequence[bytes], reason: str, now: datetime
) -> None:
    """Tombstones for an identity's addresses, and the addresses gone (A5, A13). `reason`: `deleted`, `erased`."""
    await conn.execute(_BURY, list(hashes), tenant_id, identity_id, reason, now)
    await conn.execute(_DELETE_ADDRESSES, tenant_id, identity_id)


async def _by_keys(conn: Connection, tenant_id: int, keys: list[asyncpg.Record]) -> list[Identity]:
    rows = await conn.fetch(_BY_KEYS, tenant_id, [row["id"] for row in keys])
    return [_identity(row) for row in rows]


def _values(scope: Scope) -> tuple[str, int | None, int | None]:
    return scope.values


def _domain(row: asyncpg.Record | None) -> DomainRow | None:
    return None if row is None else DomainRow(**dict(row))


def _address(values: tuple[Any, ...]) -> HostedAddress:
    id_, public_id, address, domain_id, domain, domain_public_id, is_platform, role, status, *times = values
    return HostedAddress(
        *(id_, public_id, address, domain_id, domain, domain_public_id, is_platform),
        *(AddressRole(role), AddressStatus(status)),
        *times,
    )


def _or_none(row: asyncpg.Record | None) -> Identity | None:
    return None if row is None else _identity(row)


def _identity(row: asyncpg.Record) -> Identity:
    reason = row["pause_reason"]
    return Identity(
        id=IdentityKey(row["id"]),
        public_id=row["public_id"],
        tenant_id=row["tenant_id"],
        tenant_public_id=row["tenant_public_id"],
        kind=IdentityKind(row["kind"]),
        username=row["username"],
        display_name=row["display_name"],
        purpose=row["purpose"],
        client_id=row["client_id"],
        owner_name=row["owner_name"],
        owner_email=row["owner_email"],
        signature_text=row["signature_text"],
        signature_html=row["signature_html"],
        status=IdentityStatus(row["status"]),
        pause_reason=None if reason is None else PauseReason(reason),
        send_policy=row["send_policy_json"],
        metadata=row["metadata_json"],
        is_system=row["is_system"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        addresses=tuple(map(_address, row["hosted"])),
    )
