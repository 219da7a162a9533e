"""SQL of mailboxes that several people may open: which somebody reaches, and who opens one (decisions A2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import asyncpg

from postroom.accounts.models import Holder, MailboxKey, PersonKey, SharedMailbox, TenantKey
from postroom.accounts.permissions import GrantRole
from postroom.base.ids import is_id
from postroom.db import Connection

# $1 people, $2 how many each at the most.
_REACHED: Final = """
SELECT m.* FROM unnest($1::bigint[]) AS p (id)
CROSS JOIN LATERAL (
  SELECT g.person_id, i.tenant_id, t.public_id AS tenant_public_id, i.id AS mailbox_id, i.public_id, i.kind, g.role,
         (SELECT a.address FROM addresses a
          WHERE a.tenant_id = i.tenant_id AND a.identity_id = i.id AND a.role = 'primary') AS address
  FROM mailbox_grants g
  JOIN identities i ON i.tenant_id = g.tenant_id AND i.id = g.mailbox_id AND i.status IN ('active', 'paused')
    AND NOT i.is_system
  JOIN tenants t ON t.id = g.tenant_id AND t.status IN ('active', 'suspended')
  WHERE g.person_id = p.id ORDER BY g.created_at, g.mailbox_id LIMIT $2
) m
ORDER BY m.person_id, m.address, m.mailbox_id
"""

# The address that tells who somebody is within a tenant: that of a person's mailbox there which nobody else owns.
_OWNS_ALONE: Final = """
  i.kind = 'person' AND i.status IN ('active', 'paused') AND NOT i.is_system AND NOT EXISTS (
    SELECT FROM mailbox_grants x
    WHERE x.tenant_id = o.tenant_id AND x.mailbox_id = o.mailbox_id AND x.role = 'owner'
      AND x.person_id <> o.person_id)
"""
_HOLDERS: Final = """
SELECT p.id, p.public_id, g.role,
  (SELECT a.address FROM mailbox_grants o
   JOIN identities i ON i.tenant_id = o.tenant_id AND i.id = o.mailbox_id
   JOIN addresses a ON a.tenant_id = i.tenant_id AND a.identity_id = i.id AND a.role = 'primary'
   WHERE o.tenant_id = $1 AND o.person_id = p.id AND o.role = 'owner' AND {alone}
   ORDER BY o.created_at, i.id LIMIT 1) AS address
FROM mailbox_grants g JOIN people p ON p.id = g.person_id
WHERE g.tenant_id = $1 AND g.mailbox_id = $2
ORDER BY CASE g.role WHEN 'owner' THEN 0 WHEN 'full' THEN 1 ELSE 2 END, p.id LIMIT $3
""".replace("{alone}", _OWNS_ALONE)
_BY_ADDRESS: Final = """
SELECT p.id, p.public_id FROM addresses a
JOIN identities i ON i.tenant_id = a.tenant_id AND i.id = a.identity_id
JOIN mailbox_grants o ON o.tenant_id = i.tenant_id AND o.mailbox_id = i.id AND o.role = 'owner'
JOIN people p ON p.id = o.person_id
WHERE a.tenant_id = $1 AND a.address = $2 AND a.status IN ('active', 'retiring') AND {alone}
""".replace("{alone}", _OWNS_ALONE)
_BY_ID: Final = """
SELECT p.id, p.public_id FROM people p
WHERE p.public_id = $2
  AND (EXISTS (SELECT FROM members m WHERE m.tenant_id = $1 AND m.person_id = p.id)
       OR EXISTS (SELECT FROM mailbox_grants g WHERE g.tenant_id = $1 AND g.person_id = p.id))
"""

# All of a mailbox's grants, so that no two change them at a time.
_LOCK: Final = """
SELECT person_id, role FROM mailbox_grants WHERE tenant_id = $1 AND mailbox_id = $2 ORDER BY person_id FOR UPDATE
"""

_OTHER_OWNER: Final = """
SELECT EXISTS (
  SELECT FROM mailbox_grants g JOIN people p ON p.id = g.person_id
  WHERE g.tenant_id = $1 AND g.mailbox_id = $2 AND g.role = 'owner' AND g.person_id <> $3 AND p.enabled
)
"""


async def reached(conn: Connection, people: Sequence[int], limit: int) -> dict[int, tuple[SharedMailbox, ...]]:
    """The mailboxes that each of these people may open, at most `limit` of them, the oldest grants; by address."""
    found: dict[int, list[SharedMailbox]] = {person: [] for person in people}
    for row in await conn.fetch(_REACHED, people, limit):
        found[row["person_id"]].append(_shared(row))
    return {person: tuple(mailboxes) for person, mailboxes in found.items()}


async def holders(conn: Connection, mailbox: MailboxKey, limit: int) -> list[Holder]:
    """Who may open the mailbox, owners first."""
    return [
        Holder(PersonKey(row["id"]), row["public_id"], row["address"], GrantRole(row["role"]))
        for row in await conn.fetch(_HOLDERS, mailbox.tenant_id, mailbox.mailbox_id, limit)
    ]


async def person_of_tenant(conn: Connection, tenant_id: int, identifier: str) -> tuple[PersonKey, str] | None:
    """Key and public id of the person whom an address, or a public id, names within the tenant."""
    if is_id("usr_", identifier):
        row = await conn.fetchrow(_BY_ID, tenant_id, identifier)
    else:
        row = await conn.fetchrow(_BY_ADDRESS, tenant_id, identifier)
    return None if row is None else (PersonKey(row["id"]), row["public_id"])


async def lock_grants(conn: Connection, mailbox: MailboxKey) -> dict[int, GrantRole]:
    """Who may open the mailbox, by the person's key; nobody else changes that in this transaction."""
    rows = await conn.fetch(_LOCK, mailbox.tenant_id, mailbox.mailbox_id)
    return {row["person_id"]: GrantRole(row["role"]) for row in rows}


async def is_owned_by_another(conn: Connection, mailbox: MailboxKey, person: int) -> bool:
    """Whether somebody beside the person owns the mailbox and is not disabled."""
    found: bool = await conn.fetchval(_OTHER_OWNER, mailbox.tenant_id, mailbox.mailbox_id, person)
    return found


def _shared(row: asyncpg.Record) -> SharedMailbox:
    return SharedMailbox(
        key=MailboxKey(TenantKey(row["tenant_id"]), row["mailbox_id"]),
        tenant_public_id=row["tenant_public_id"],
        identity_public_id=row["public_id"],
        address=row["address"],
        is_agent=row["kind"] == "agent",
        role=GrantRole(row["role"]),
    )
