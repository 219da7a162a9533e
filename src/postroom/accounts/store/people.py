"""SQL of people, their memberships and their grants to mailboxes (A2).

A statement that is given a tenant touches only people who are wholly that tenant's: with a membership or a grant
there and none elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import asyncpg

from postroom.accounts.models import Grant, Member, MemberRole, Person, PersonKey, TenantKey, TenantStatus
from postroom.accounts.permissions import GrantRole
from postroom.base.ids import is_id
from postroom.db import Connection

_INSERT = """
INSERT INTO people (public_id, contact_email, display_name, password_hash, is_operator, created_at, updated_at,
  contact_verified_at)
VALUES ($1, $2, $3, $4, $5, $6, $6, $7) RETURNING *
"""
_GET = "SELECT * FROM people WHERE public_id = $1"
_BY_CONTACT = "SELECT * FROM people WHERE contact_email = $1"
_GET_IN_TENANT = """
SELECT p.* FROM people p
WHERE p.public_id = $1
  AND (EXISTS (SELECT FROM members m WHERE m.tenant_id = $2 AND m.person_id = p.id)
       OR EXISTS (SELECT FROM mailbox_grants g WHERE g.tenant_id = $2 AND g.person_id = p.id))
"""
# Somebody of the tenant, or somebody new who is nobody's yet: a tenant cannot draw in other tenants' people by their
# id.
_GET_FREE = """
SELECT p.* FROM people p
WHERE p.public_id = $1
  AND (EXISTS (SELECT FROM members m WHERE m.tenant_id = $2 AND m.person_id = p.id)
       OR EXISTS (SELECT FROM mailbox_grants g WHERE g.tenant_id = $2 AND g.person_id = p.id)
       OR NOT p.is_operator
          AND NOT EXISTS (SELECT FROM members m WHERE m.person_id = p.id)
          AND NOT EXISTS (SELECT FROM mailbox_grants g WHERE g.person_id = p.id))
"""
# A platform principal ($2 null) may touch anybody; a tenant's only those who are nobody else's (A2).
_UPDATE_MINE = """
UPDATE people p SET {change}, updated_at = $3
WHERE p.public_id = $1
  AND ($2::bigint IS NULL OR (
    NOT p.is_operator
    AND (EXISTS (SELECT FROM members m WHERE m.tenant_id = $2 AND m.person_id = p.id)
         OR EXISTS (SELECT FROM mailbox_grants g WHERE g.tenant_id = $2 AND g.person_id = p.id))
    AND NOT EXISTS (SELECT FROM members m WHERE m.person_id = p.id AND m.tenant_id <> $2)
    AND NOT EXISTS (SELECT FROM mailbox_grants g WHERE g.person_id = p.id AND g.tenant_id <> $2)))
RETURNING p.*
"""
_SET_PASSWORD = _UPDATE_MINE.replace("{change}", "password_hash = $4, sign_in_epoch = p.sign_in_epoch + 1")
_SET_ENABLED = _UPDATE_MINE.replace("{change}", "enabled = $4, sign_in_epoch = p.sign_in_epoch + 1")
_SET_NAME = _UPDATE_MINE.replace("{change}", "display_name = $4")
# The person themselves, who has proved that they know the old password.
_CHANGE_PASSWORD = """
UPDATE people SET password_hash = $3, sign_in_epoch = sign_in_epoch + 1, updated_at = $4
WHERE id = $1 AND sign_in_epoch = $2 AND enabled RETURNING id
"""
_RENAME = "UPDATE people SET display_name = $2, updated_at = $3 WHERE id = $1 RETURNING *"
_LOCK = """
SELECT id FROM people WHERE id = $1 AND sign_in_epoch = coalesce($2, sign_in_epoch) FOR NO KEY UPDATE
"""
_REMOVE_GRANT = """
DELETE FROM mailbox_grants g USING identities i
WHERE g.tenant_id = $1 AND i.tenant_id = $1 AND i.id = g.mailbox_id AND i.public_id = $2 AND g.person_id = $3
RETURNING g.mailbox_id
"""
_WHOLLY = """
SELECT NOT p.is_operator
   AND NOT EXISTS (SELECT FROM members m WHERE m.person_id = p.id AND m.tenant_id <> $2)
   AND NOT EXISTS (SELECT FROM mailbox_grants g WHERE g.person_id = p.id AND g.tenant_id <> $2)
FROM people p WHERE p.id = $1
"""
_REMOVE_GRANTS = "DELETE FROM mailbox_grants WHERE tenant_id = $1 AND person_id = $2"
_REMOVE_MEMBER = "DELETE FROM members WHERE tenant_id = $1 AND person_id = $2"
_DELETE_UNNEEDED = """
DELETE FROM people p WHERE p.id = $1 AND NOT p.is_operator
  AND NOT EXISTS (SELECT FROM members m WHERE m.person_id = p.id)
  AND NOT EXISTS (SELECT FROM mailbox_grants g WHERE g.person_id = p.id)
RETURNING p.id
"""
_GRANT_PAGE = """
SELECT g.tenant_id, g.mailbox_id, i.public_id AS identity_public_id, g.person_id,
       p.public_id AS person_public_id, g.role, g.created_at
FROM mailbox_grants g
JOIN identities i ON i.tenant_id = g.tenant_id AND i.id = g.mailbox_id
JOIN people p ON p.id = g.person_id
WHERE g.tenant_id = $1 AND g.person_id = $2
  AND ($3::timestamptz IS NULL OR (g.created_at, i.public_id) < ($3, $4::text))
ORDER BY g.created_at DESC, i.public_id DESC LIMIT $5
"""
_RAISE_EPOCH = "UPDATE people SET sign_in_epoch = sign_in_epoch + 1 WHERE id = $1 RETURNING id"
_REHASH = "UPDATE people SET password_hash = $3 WHERE id = $1 AND password_hash = $2"
_LIST = """
SELECT p.* FROM people p
WHERE (EXISTS (SELECT FROM members m WHERE m.tenant_id = $1 AND m.person_id = p.id)
       OR EXISTS (SELECT FROM mailbox_grants g WHERE g.tenant_id = $1 AND g.person_id = p.id))
  AND ($2::timestamptz IS NULL OR (p.created_at, p.public_id) < ($2, $3::text))
ORDER BY p.created_at DESC, p.public_id DESC LIMIT $4
"""
_LIST_ALL = """
SELECT * FROM people
WHERE $1::timestamptz IS NULL OR (created_at, public_id) < ($1, $2::text)
ORDER BY created_at DESC, public_id DESC LIMIT $3
"""

_PUT_MEMBER = """
INSERT INTO members (tenant_id, person_id, role, created_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant_id, person_id) DO UPDATE SET role = excluded.role
"""
_MEMBERS = """
SELECT p.*, m.role, m.created_at AS member_since FROM members m JOIN people p ON p.id = m.person_id
WHERE m.tenant_id = $1 ORDER BY m.created_at, p.public_id
"""
# Whoever acts may have lost what they were let in with while they waited (W9).
_STILL_ACTS = """
SELECT CASE
  WHEN $2::text IS NOT NULL THEN EXISTS (
    SELECT FROM people p LEFT JOIN members m ON m.person_id = p.id AND m.tenant_id = $1::bigint
    WHERE p.public_id = $2 AND p.enabled AND (p.is_operator OR m.role IN ('owner', 'admin')))
  ELSE NOT EXISTS (SELECT FROM api_keys k WHERE k.public_id = $3 AND k.revoked_at IS NOT NULL) END
"""
_MEMBER_ROLE = "SELECT role FROM members WHERE tenant_id = $1 AND person_id = $2"

_PUT_GRANT = """
INSERT INTO mailbox_grants (tenant_id, mailbox_id, person_id, role, created_at)
SELECT i.tenant_id, i.id, $3, $4, $5 FROM identities i
WHERE i.tenant_id = $1 AND i.public_id = $2 AND i.status IN ('active', 'paused') AND NOT i.is_system
ON CONFLICT (tenant_id, mailbox_id, person_id) DO UPDATE SET role = excluded.role
RETURNING mailbox_id
"""
_GRANTS = """
SELECT g.tenant_id, g.mailbox_id, i.public_id AS identity_public_id, g.person_id,
       p.public_id AS person_public_id, g.role, g.created_at
FROM mailbox_grants g
JOIN identities i ON i.tenant_id = g.tenant_id AND i.id = g.mailbox_id
JOIN people p ON p.id = g.person_id
WHERE g.tenant_id = $1 AND ($2::bigint IS NULL OR g.mailbox_id = $2) AND ($3::bigint IS NULL OR g.person_id = $3)
ORDER BY g.created_at, p.public_id, i.public_id
"""

# One look-up for a sign-in: the mailbox that the address selects, and who may open it, owners first.
_CANDIDATES = """
SELECT i.tenant_id, t.public_id AS tenant_public_id, t.mode AS tenant_mode, t.status AS tenant_status,
       i.id AS identity_id, i.public_id AS identity_public_id, i.kind,
       p.id AS person_id, p.public_id AS person_public_id, p.password_hash, g.role, p.sign_in_epoch,
       f.enabled_at IS NOT NULL AS two_step
FROM addresses a
JOIN identities i ON i.tenant_id = a.tenant_id AND i.id = a.identity_id
JOIN tenants t ON t.id = a.tenant_id
LEFT JOIN (mailbox_grants g JOIN people p ON p.id = g.person_id AND p.enabled AND p.password_hash IS NOT NULL)
  ON g.tenant_id = i.tenant_id AND g.mailbox_id = i.id
LEFT JOIN person_totp f ON f.person_id = p.id
WHERE a.address = $1 AND a.status IN ('active', 'retiring') AND i.status IN ('active', 'paused') AND NOT i.is_system
  AND t.status IN ('active', 'suspended')
ORDER BY CASE g.role WHEN 'owner' THEN 0 WHEN 'full' THEN 1 ELSE 2 END, p.id
LIMIT $2
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Somebody who may open the mailbox, with the hash of their password."""

    person_id: PersonKey
    person_public_id: str
    password_hash: str = field(repr=False)
    role: GrantRole
    epoch: int
    two_step: bool
    """Whether the password is only the first of two steps."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The mailbox that a sign-in address selects, and its candidates."""

    tenant_id: TenantKey
    tenant_public_id: str
    tenant_mode: str
    tenant_status: TenantStatus
    identity_id: int
    identity_public_id: str
    is_agent: bool
    candidates: tuple[Candidate, ...]


async def insert(
    conn: Connection,
    public_id: str,
    contact_email: str | None,
    display_name: str,
    password_hash: str | None,
    is_operator: bool,
    now: datetime,
    verified_at: datetime | None,
) -> Person:
    """A new row; `verified_at`: since when the contact address is known to be theirs. Raises
    asyncpg.UniqueViolationError when the contact address is somebody's.
    """
    row = await conn.fetchrow(
        _INSERT, public_id, contact_email, display_name, password_hash, is_operator, now, verified_at
    )
    assert row is not None
    return person_of(row)


async def get(conn: Connection, public_id: str, tenant_id: int | None) -> Person | None:
    """A person; with `tenant_id` only one who has to do with that tenant."""
    if not is_id("usr_", public_id):
        return None
    if tenant_id is None:
        row = await conn.fetchrow(_GET, public_id)
    else:
        row = await conn.fetchrow(_GET_IN_TENANT, public_id, tenant_id)
    return None if row is None else person_of(row)


async def by_contact(conn: Connection, contact_email: str) -> Person | None:
    """The person of that contact address, as `contacts.folded` has it."""
    row = await conn.fetchrow(_BY_CONTACT, contact_email)
    return None if row is None else person_of(row)


async def get_free(conn: Connection, public_id: str, tenant_id: int) -> Person | None:
    """A person who has to do with the tenant already, or with none."""
    if not is_id("usr_", public_id):
        return None
    row = await conn.fetchrow(_GET_FREE, public_id, tenant_id)
    return None if row is None else person_of(row)


async def set_password(
    conn: Connection, public_id: str, tenant_id: int | None, password_hash: str, now: datetime
) -> Person | None:
    if not is_id("usr_", public_id):
        return None
    row = await conn.fetchrow(_SET_PASSWORD, public_id, tenant_id, now, password_hash)
    return None if row is None else person_of(row)


async def set_enabled(
    conn: Connection, public_id: str, tenant_id: int | None, enabled: bool, now: datetime
) -> Person | None:
    if not is_id("usr_", public_id):
        return None
    row = await conn.fetchrow(_SET_ENABLED, public_id, tenant_id, now, enabled)
    return None if row is None else person_of(row)


async def set_name(conn: Connection, public_id: str, tenant_id: int | None, name: str, now: datetime) -> Person | None:
    if not is_id("usr_", public_id):
        return None
    row = await conn.fetchrow(_SET_NAME, public_id, tenant_id, now, name)
    return None if row is None else person_of(row)


async def change_password(conn: Connection, person_id: int, epoch: int, password_hash: str, now: datetime) -> bool:
    """False when something else changed what they sign in with since `epoch` was read."""
    return await conn.fetchval(_CHANGE_PASSWORD, person_id, epoch, password_hash, now) is not None


async def raise_epoch(conn: Connection, person_id: int) -> None:
    """What the person is signed in with by mail program counts no more."""
    await conn.execute(_RAISE_EPOCH, person_id)


async def lock(conn: Connection, person_id: int, epoch: int | None = None) -> bool:
    """Nobody else changes the person in this transaction. Whether there is such a person, who still has that epoch."""
    return await conn.fetchval(_LOCK, person_id, epoch) is not None


async def rename(conn: Connection, person_id: int, name: str, now: datetime) -> Person | None:
    row = await conn.fetchrow(_RENAME, person_id, name, now)
    return None if row is None else person_of(row)


async def remove_grant(conn: Connection, tenant_id: int, identity_public_id: str, person_id: int) -> bool:
    """Whether there was such a grant."""
    if not is_id("idn_", identity_public_id):
        return False
    return await conn.fetchval(_REMOVE_GRANT, tenant_id, identity_public_id, person_id) is not None


async def is_wholly_of(conn: Connection, person_id: int, tenant_id: int) -> bool:
    """Whether the person has to do with no other tenant, and does not run the deployment."""
    return bool(await conn.fetchval(_WHOLLY, person_id, tenant_id))


async def remove_from(conn: Connection, tenant_id: int, person_id: int) -> None:
    """Without grants and membership in the tenant."""
    await conn.execute(_REMOVE_GRANTS, tenant_id, person_id)
    await conn.execute(_REMOVE_MEMBER, tenant_id, person_id)


async def delete_unless_needed(conn: Connection, person_id: int) -> bool:
    """Delete somebody who has nothing to do with any tenant and runs nothing. Whether that was so."""
    return await conn.fetchval(_DELETE_UNNEEDED, person_id) is not None


async def grant_page(
    conn: Connection, tenant_id: int, person_id: int, limit: int, after: tuple[datetime, str] | None
) -> list[Grant]:
    """Grants of a person in a tenant, newest first."""
    created_at, public_id = after if after is not None else (None, None)
    return [_grant(row) for row in await conn.fetch(_GRANT_PAGE, tenant_id, person_id, created_at, public_id, limit)]


async def rehash(conn: Connection, person_id: int, old: str, new: str) -> None:
    """Replace a hash of old parameters, unless the password was changed meanwhile."""
    await conn.execute(_REHASH, person_id, old, new)


async def page(conn: Connection, tenant_id: int | None, limit: int, after: tuple[datetime, str] | None) -> list[Person]:
    """People of a tenant, or all, newest first."""
    created_at, public_id = after if after is not None else (None, None)
    if tenant_id is None:
        rows = await conn.fetch(_LIST_ALL, created_at, public_id, limit)
    else:
        rows = await conn.fetch(_LIST, tenant_id, created_at, public_id, limit)
    return [person_of(row) for row in rows]


async def put_member(conn: Connection, tenant_id: int, person_id: int, role: MemberRole, now: datetime) -> None:
    """Raises asyncpg.UniqueViolationError when the tenant has an owner already."""
    await conn.execute(_PUT_MEMBER, tenant_id, person_id, role, now)


async def still_manages(conn: Connection, tenant_id: int | None, person: str | None, key: str | None) -> bool:
    """Whether somebody who was let in to manage a tenant's people still may. The caller holds the tenant's row."""
    return bool(await conn.fetchval(_STILL_ACTS, tenant_id, person, key))


async def member_role(conn: Connection, tenant_id: int, person_id: int) -> MemberRole | None:
    role = await conn.fetchval(_MEMBER_ROLE, tenant_id, person_id)
    return None if role is None else MemberRole(role)


async def members(conn: Connection, tenant_id: int) -> list[Member]:
    return [
        Member(TenantKey(tenant_id), person_of(row), MemberRole(row["role"]), row["member_since"])
        for row in await conn.fetch(_MEMBERS, tenant_id)
    ]


async def put_grant(
    conn: Connection, tenant_id: int, identity_public_id: str, person_id: int, role: GrantRole, now: datetime
) -> int | None:
    """The mailbox's key, or None when the tenant has no such mailbox."""
    if not is_id("idn_", identity_public_id):
        return None
    mailbox_id: int | None = await conn.fetchval(_PUT_GRANT, tenant_id, identity_public_id, person_id, role, now)
    return mailbox_id


async def grants(
    conn: Connection, tenant_id: int, *, mailbox_id: int | None = None, person_id: int | None = None
) -> list[Grant]:
    """Grants in a tenant: of one mailbox, of one person, or all."""
    return [_grant(row) for row in await conn.fetch(_GRANTS, tenant_id, mailbox_id, person_id)]


async def opening(conn: Connection, address: str, limit: int) -> Opening | None:
    """What signing in with `address` would open, with at most `limit` people who may; None when there is no such
    mailbox.
    """
    rows = await conn.fetch(_CANDIDATES, address, limit)
    if not rows:
        return None
    first = rows[0]
    return Opening(
        tenant_id=TenantKey(first["tenant_id"]),
        tenant_public_id=first["tenant_public_id"],
        tenant_mode=first["tenant_mode"],
        tenant_status=TenantStatus(first["tenant_status"]),
        identity_id=first["identity_id"],
        identity_public_id=first["identity_public_id"],
        is_agent=first["kind"] == "agent",
        candidates=tuple(
            Candidate(
                PersonKey(row["person_id"]),
                row["person_public_id"],
                row["password_hash"],
                GrantRole(row["role"]),
                row["sign_in_epoch"],
                row["two_step"],
            )
            for row in rows
            if row["person_id"] is not None
        ),
    )


def _grant(row: asyncpg.Record) -> Grant:
    return Grant(
        tenant_id=TenantKey(row["tenant_id"]),
        mailbox_id=row["mailbox_id"],
        identity_public_id=row["identity_public_id"],
        person_id=PersonKey(row["person_id"]),
        person_public_id=row["person_public_id"],
        role=GrantRole(row["role"]),
        created_at=row["created_at"],
    )


def person_of(row: asyncpg.Record) -> Person:
    return Person(
        id=PersonKey(row["id"]),
        public_id=row["public_id"],
        contact_email=row["contact_email"],
        display_name=row["display_name"],
        is_operator=row["is_operator"],
        enabled=row["enabled"],
        has_password=row["password_hash"] is not None,
        created_at=row["created_at"],
    )
