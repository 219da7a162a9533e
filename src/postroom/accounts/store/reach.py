"""SQL of how far somebody reaches: people who sign in (decisions A2, section E), and partners (FR-KEY-4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import asyncpg

from postroom.accounts.models import PersonKey, Scope, TenantKey, TenantStatus
from postroom.accounts.permissions import GrantRole
from postroom.base.ids import is_id
from postroom.db import Connection


def of_partner(tenant: str, partner: str) -> str:
    """SQL: whether the tenant of the key `tenant` is one of the partner's of the key `partner`, both expressions. A
    null is nobody's. What is a partner's, statements learn from here alone.
    """
    return " ".join(
        ("EXISTS (SELECT FROM partner_tenants pt WHERE pt.partner_id =", partner, "AND pt.tenant_id =", tenant, ")")
    )


def of_each_tenant(partner: str, newest: str, name: str) -> str:
    """SQL, for FROM: the rows that `newest` has of each tenant of the partner `partner`, together as `name`. `newest`
    is a statement with a LIMIT, about the tenant `pt.tenant_id`: so a list costs what the partner has, however many
    tenants there are besides.
    """
    return " ".join(("partner_tenants pt CROSS JOIN LATERAL (", newest, ") AS", name, "WHERE pt.partner_id =", partner))


def partner_status(tenant: str, partner: str) -> str:
    """SQL: the status of the partner `partner`, or else of the one whose tenant `tenant` is; null without one."""
    of_tenant = " ".join(("(SELECT pt.partner_id FROM partner_tenants pt WHERE pt.tenant_id =", tenant, ")"))
    return " ".join(("(SELECT p.status FROM partners p WHERE p.id = coalesce(", partner, ",", of_tenant, "))"))


_TENANT_IN = """
SELECT t.id FROM tenants t
WHERE t.public_id = $4 AND CASE $1::text
  WHEN 'platform' THEN $2::bigint IS NULL AND $3::bigint IS NULL
  WHEN 'partner' THEN {of_partner}
  ELSE t.id = $2::bigint END
""".replace("{of_partner}", of_partner("t.id", "$2::bigint"))
_LOCK_PARTNER = "SELECT id, public_id FROM partners WHERE public_id = $1 AND status <> 'deleted' FOR NO KEY UPDATE"

_HAS_PASSKEY = "EXISTS (SELECT FROM person_passkeys k WHERE k.person_id = p.id) AS has_passkey"
_KNOWN = """
SELECT p.id AS person_id, p.public_id AS person_public_id, p.password_hash, p.sign_in_epoch,
       f.enabled_at IS NOT NULL AS two_step, {has_passkey}
FROM people p LEFT JOIN person_totp f ON f.person_id = p.id
WHERE p.enabled AND {which}
""".replace("{has_passkey}", _HAS_PASSKEY)
_KNOWN_BY_ID = _KNOWN.replace("{which}", "p.id = $1")
_KNOWN_BY_CONTACT = _KNOWN.replace("{which}", "p.contact_email = $1")
# Those whom the mailbox of an address is granted to, owners first; also those without a password.
_KNOWN_BY_MAILBOX = """
SELECT i.public_id AS identity_public_id, p.id AS person_id, p.public_id AS person_public_id, p.password_hash,
       p.sign_in_epoch, f.enabled_at IS NOT NULL AS two_step, {has_passkey}
FROM addresses a
JOIN identities i ON i.tenant_id = a.tenant_id AND i.id = a.identity_id
JOIN tenants t ON t.id = a.tenant_id
LEFT JOIN (mailbox_grants g JOIN people p ON p.id = g.person_id AND p.enabled)
  ON g.tenant_id = i.tenant_id AND g.mailbox_id = i.id
LEFT JOIN person_totp f ON f.person_id = p.id
WHERE a.address = $1 AND a.status IN ('active', 'retiring') AND i.status IN ('active', 'paused') AND NOT i.is_system
  AND t.status IN ('active', 'suspended')
ORDER BY CASE g.role WHEN 'owner' THEN 0 WHEN 'full' THEN 1 ELSE 2 END, p.id
LIMIT $2
""".replace("{has_passkey}", _HAS_PASSKEY)
_MAILBOXES = """
SELECT i.public_id AS identity_id, t.public_id AS tenant_id, i.kind, i.display_name, i.status, g.role, g.created_at,
       (SELECT a.address FROM addresses a
        WHERE a.tenant_id = i.tenant_id AND a.identity_id = i.id AND a.role = 'primary') AS address
FROM mailbox_grants g
JOIN identities i ON i.tenant_id = g.tenant_id AND i.id = g.mailbox_id AND i.status IN ('active', 'paused')
JOIN tenants t ON t.id = g.tenant_id AND t.status IN ('active', 'suspended')
WHERE g.person_id = $1 AND ($2::timestamptz IS NULL OR (g.created_at, i.public_id) < ($2, $3::text))
ORDER BY g.created_at DESC, i.public_id DESC LIMIT $4
"""
_REACHED = """
SELECT g.role, i.id AS identity_id, i.public_id AS identity_public_id, t.id AS tenant_id,
       t.public_id AS tenant_public_id, t.mode AS tenant_mode, t.status AS tenant_status
FROM identities i
JOIN mailbox_grants g ON g.tenant_id = i.tenant_id AND g.mailbox_id = i.id AND g.person_id = $1
JOIN tenants t ON t.id = i.tenant_id
WHERE i.public_id = $2 AND NOT i.is_system
"""
_MEMBERSHIP = """
SELECT m.role, t.id AS tenant_id, t.public_id AS tenant_public_id, t.mode AS tenant_mode, t.status AS tenant_status
FROM members m JOIN tenants t ON t.id = m.tenant_id WHERE m.person_id = $1 AND t.public_id = $2
"""


@dataclass(frozen=True, slots=True)
class Known:
    """Somebody who may sign in. `password_hash` None: not with a password."""

    person_id: PersonKey
    person_public_id: str
    password_hash: str | None = field(repr=False)
    epoch: int
    two_step: bool
    has_passkey: bool


@dataclass(frozen=True, slots=True)
class MailboxOf:
    """A mailbox that a person may open."""

    identity_id: str
    tenant_id: str
    address: str | None
    display_name: str
    kind: str
    role: GrantRole
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Reached:
    """What a person reaches in a tenant: a mailbox by a grant, or the tenant by a membership."""

    role: str
    tenant_id: TenantKey
    tenant_public_id: str
    tenant_mode: str
    tenant_status: TenantStatus
    identity_id: int | None = None
    identity_public_id: str | None = None


async def known(conn: Connection, person_id: int) -> Known | None:
    """The person as far as signing in goes, unless they are disabled."""
    row = await conn.fetchrow(_KNOWN_BY_ID, person_id)
    return None if row is None else _known(row)


async def known_by_address(conn: Connection, address: str, limit: int) -> tuple[str | None, list[Known]]:
    """Who may sign in with an address: those whom its mailbox is granted to, or whose contact address it is. And what
    their failures are counted by; None when the address is nobody's.
    """
    rows = await conn.fetch(_KNOWN_BY_MAILBOX, address, limit)
    if rows:
        return rows[0]["identity_public_id"], [_known(row) for row in rows if row["person_id"] is not None]
    row = await conn.fetchrow(_KNOWN_BY_CONTACT, address)
    return (None, []) if row is None else (row["person_public_id"], [_known(row)])


async def mailboxes(
    conn: Connection, person_id: int, limit: int, after: tuple[datetime, str] | None
) -> list[MailboxOf]:
    """Mailboxes that the person may open, in all tenants, the newest grant first."""
    created_at, public_id = after if after is not None else (None, None)
    return [
        MailboxOf(
            identity_id=row["identity_id"],
            tenant_id=row["tenant_id"],
            address=row["address"],
            display_name=row["display_name"],
            kind=row["kind"],
            role=GrantRole(row["role"]),
            created_at=row["created_at"],
        )
        for row in await conn.fetch(_MAILBOXES, person_id, created_at, public_id, limit)
    ]


async def reached_identity(conn: Connection, person_id: int, identity: str) -> Reached | None:
    """The person's grant on the identity of that public id."""
    row = await conn.fetchrow(_REACHED, person_id, identity)
    return None if row is None else _reached(row)


async def reached_tenant(conn: Connection, person_id: int, tenant: str) -> Reached | None:
    """The person's membership in the tenant of that public id."""
    row = await conn.fetchrow(_MEMBERSHIP, person_id, tenant)
    return None if row is None else _reached(row)


async def tenant_in(conn: Connection, scope: Scope, public_id: str) -> int | None:
    """The key of the tenant of that public id, if the scope is or holds it. What is missing costs what is foreign."""
    if not is_id("ten_", public_id):
        return None
    found: int | None = await conn.fetchval(_TENANT_IN, *scope.values, public_id)
    return found


async def lock_partner(conn: Connection, public_id: str) -> int | None:
    """The key of a partner who is not deleted, their row locked until the end of the transaction."""
    if not is_id("ptn_", public_id):
        return None
    found: int | None = await conn.fetchval(_LOCK_PARTNER, public_id)
    return found


def _known(row: asyncpg.Record) -> Known:
    return Known(
        PersonKey(row["person_id"]),
        row["person_public_id"],
        row["password_hash"],
        row["sign_in_epoch"],
        row["two_step"],
        row["has_passkey"],
    )


def _reached(row: asyncpg.Record) -> Reached:
    return Reached(
        role=row["role"],
        tenant_id=TenantKey(row["tenant_id"]),
        tenant_public_id=row["tenant_public_id"],
        tenant_mode=row["tenant_mode"],
        tenant_status=TenantStatus(row["tenant_status"]),
        identity_id=row.get("identity_id"),
        identity_public_id=row.get("identity_public_id"),
    )
