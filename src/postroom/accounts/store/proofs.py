"""SQL of contact addresses: who holds one, whether that is proved, and in which spelling it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from postroom.accounts.models import Person
from postroom.accounts.store.people import person_of
from postroom.db import Connection

_LOCK: Final = "SELECT * FROM people WHERE contact_email = $1 FOR NO KEY UPDATE"
_STATE: Final = """
SELECT p.contact_verified_at IS NOT NULL AS proven,
       p.enabled AND NOT p.is_operator AND p.password_hash IS NULL AND p.last_login_at IS NULL
       AND NOT EXISTS (SELECT FROM person_passkeys k WHERE k.person_id = p.id)
       AND NOT EXISTS (SELECT FROM app_passwords a WHERE a.person_id = p.id) AS untouched
FROM people p WHERE p.id = $1
"""
_RELEASE: Final = """
UPDATE people SET contact_email = NULL, updated_at = $2 WHERE id = $1 AND contact_verified_at IS NULL
"""
_TENANTS: Final = """
SELECT tenant_id FROM members WHERE person_id = $1 UNION SELECT tenant_id FROM mailbox_grants WHERE person_id = $1
ORDER BY tenant_id
"""
_PROVE: Final = """
UPDATE people SET contact_verified_at = $4, password_hash = $2, display_name = coalesce($3, display_name),
  sign_in_epoch = sign_in_epoch + 1, updated_at = $4
WHERE id = $1 RETURNING *
"""
_REVOKE_APP_PASSWORDS: Final = """
UPDATE app_passwords SET revoked_at = $2, scram_sealed = NULL
WHERE person_id = $1 AND revoked_at IS NULL RETURNING public_id
"""
_SESSION_LIVES: Final = """
SELECT EXISTS (SELECT FROM sessions WHERE id = $1 AND revoked_at IS NULL)
"""
# As the index that is for it.
_MISSPELT: Final = """
SELECT id, public_id, contact_email FROM people
WHERE contact_email !~ '^[ -~]*[^.]$' AND id > $1 ORDER BY id LIMIT $2
"""
# Somebody who has that address in its own spelling keeps it.
_RESPELL: Final = """
UPDATE people SET contact_email = $3 WHERE id = $1 AND contact_email = $2
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a contact address. `untouched`: nobody can sign in as them, nor ever did."""

    person: Person
    proven: bool
    untouched: bool


@dataclass(frozen=True, slots=True)
class Spelling:
    """A contact address as it is written."""

    id: int
    public_id: str
    text: str


async def lock_holder(conn: Connection, contact_email: str) -> Holder | None:
    """Who has the address; nobody else changes them in this transaction."""
    row = await conn.fetchrow(_LOCK, contact_email)
    # A statement that waited for the row does not look anew at what was written elsewhere: hence another.
    return None if row is None else await holder(conn, person_of(row))


async def holder(conn: Connection, person: Person) -> Holder:
    """The person, and whether their contact address is proved."""
    row = await conn.fetchrow(_STATE, person.id)
    assert row is not None
    return Holder(person, row["proven"], row["untouched"])


async def release(conn: Connection, person_id: int, now: datetime) -> list[int]:
    """Without a contact address from now on, if nobody proved it. Returns the tenants that they have to do with."""
    await conn.execute(_RELEASE, person_id, now)
    return [row["tenant_id"] for row in await conn.fetch(_TENANTS, person_id)]


async def prove(conn: Connection, person_id: int, password_hash: str, name: str | None, now: datetime) -> Person:
    """The address is theirs, and the password new. The caller has locked the person."""
    row = await conn.fetchrow(_PROVE, person_id, password_hash, name, now)
    assert row is not None
    return person_of(row)


async def revoke_app_passwords(conn: Connection, person_id: int, now: datetime) -> list[str]:
    """All that still counted; their public ids."""
    return [row["public_id"] for row in await conn.fetch(_REVOKE_APP_PASSWORDS, person_id, now)]


async def session_lives(conn: Connection, session_id: int) -> bool:
    """Whether a session that was good when the request came was not ended meanwhile."""
    found: bool = await conn.fetchval(_SESSION_LIVES, session_id)
    return found


async def misspelt(conn: Connection, after: int, limit: int) -> Sequence[Spelling]:
    """Addresses that may not be in their one spelling, by the person's key, which is above `after`."""
    rows = await conn.fetch(_MISSPELT, after, limit)
    return [Spelling(row["id"], row["public_id"], row["contact_email"]) for row in rows]


async def respell(conn: Connection, one: Spelling, text: str) -> None:
    """Raises asyncpg.UniqueViolationError when the address is somebody's in that spelling."""
    await conn.execute(_RESPELL, one.id, one.text, text)
