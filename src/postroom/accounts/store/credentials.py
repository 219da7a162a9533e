"""SQL of what people sign in with beside their password: application passwords, second steps, recovery codes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import asyncpg

from postroom.accounts.models import AppPassword
from postroom.accounts.permissions import GrantRole
from postroom.base.ids import is_id
from postroom.db import Connection

_INSERT: Final = """
INSERT INTO app_passwords (public_id, person_id, label, hash, scram_sealed, created_at) VALUES ($1, $2, $3, $4, $5, $6)
RETURNING id, public_id, label, created_at, last_used_at, revoked_at
"""
_PAGE: Final = """
SELECT id, public_id, label, created_at, last_used_at, revoked_at FROM app_passwords
WHERE person_id = $1 AND ($2::timestamptz IS NULL OR (created_at, public_id) < ($2, $3::text))
ORDER BY created_at DESC, public_id DESC LIMIT $4
"""
_COUNT_LIVE: Final = "SELECT count(*) FROM app_passwords WHERE person_id = $1 AND revoked_at IS NULL"
_REVOKE: Final = """
UPDATE app_passwords SET revoked_at = $3, scram_sealed = NULL
WHERE person_id = $1 AND public_id = $2 AND revoked_at IS NULL RETURNING id
"""
# Somebody whom the mailbox is granted to, by the hash of what they typed.
_FOR_MAILBOX: Final = """
SELECT a.id, p.id AS person_id, p.public_id AS person_public_id, p.sign_in_epoch, g.role
FROM app_passwords a
JOIN people p ON p.id = a.person_id AND p.enabled
JOIN mailbox_grants g ON g.tenant_id = $2 AND g.mailbox_id = $3 AND g.person_id = p.id
WHERE a.hash = $1 AND a.revoked_at IS NULL
"""
# Of everybody whom the mailbox is granted to, those used last first.
_SCRAM: Final = """
SELECT a.id, a.public_id, a.scram_sealed, p.id AS person_id, p.public_id AS person_public_id, p.sign_in_epoch, g.role
FROM mailbox_grants g
JOIN people p ON p.id = g.person_id AND p.enabled
JOIN app_passwords a ON a.person_id = p.id AND a.revoked_at IS NULL AND a.scram_sealed IS NOT NULL
WHERE g.tenant_id = $1 AND g.mailbox_id = $2
ORDER BY coalesce(a.last_used_at, a.created_at) DESC, a.id DESC LIMIT $3
"""
_FOR_PERSON: Final = """
SELECT a.id, p.id AS person_id, p.public_id AS person_public_id, p.sign_in_epoch, NULL AS role
FROM app_passwords a JOIN people p ON p.id = a.person_id AND p.enabled
WHERE a.hash = $1 AND a.revoked_at IS NULL AND p.id = ANY ($2)
"""
# At most once a minute: mail programs poll.
_USED: Final = """
UPDATE app_passwords SET last_used_at = $2
WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2::timestamptz - interval '60 seconds')
"""

_TOTP: Final = """
SELECT secret_sealed, enabled_at, last_step, pending_sealed, pending_until FROM person_totp WHERE person_id = $1
"""
_TOTP_LOCKED: Final = f"{_TOTP} FOR NO KEY UPDATE"
_ENROL: Final = """
INSERT INTO person_totp (person_id, pending_sealed, pending_until) VALUES ($1, $2, $3)
ON CONFLICT (person_id) DO UPDATE SET pending_sealed = $2, pending_until = $3
WHERE person_totp.enabled_at IS NULL RETURNING person_id
"""
_ENABLE: Final = """
UPDATE person_totp SET secret_sealed = $2, enabled_at = $3, last_step = $4, pending_sealed = NULL, pending_until = NULL
WHERE person_id = $1
"""
_STEP: Final = "UPDATE person_totp SET last_step = $2 WHERE person_id = $1 AND last_step < $2"
_FORGET_TOTP: Final = "DELETE FROM person_totp WHERE person_id = $1 RETURNING enabled_at"
_PRUNE_PENDING: Final = """
UPDATE person_totp SET pending_sealed = NULL, pending_until = NULL WHERE pending_until < $1
"""
_FORGET_CODES: Final = "DELETE FROM recovery_codes WHERE person_id = $1"
_ADD_CODES: Final = """
INSERT INTO recovery_codes (person_id, hash, created_at) SELECT $1, h, $3 FROM unnest($2::bytea[]) AS h
"""
_USE_CODE: Final = """
UPDATE recovery_codes SET used_at = $3 WHERE person_id = $1 AND hash = $2 AND used_at IS NULL RETURNING person_id
"""
_CODES_LEFT: Final = "SELECT count(*) FROM recovery_codes WHERE person_id = $1 AND used_at IS NULL"


@dataclass(frozen=True, slots=True)
class Opened:
    """Whose application password it is. `role` is that on the mailbox asked about, None where none was."""

    app_password_id: int
    person_id: int
    person_public_id: str
    epoch: int
    role: GrantRole | None


@dataclass(frozen=True, slots=True)
class ScramRow:
    """Sealed SCRAM keys, and whom they would let in."""

    opens: Opened
    public_id: str
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class TotpRow:
    """Secrets are sealed."""

    secret: bytes | None = field(repr=False)
    enabled_at: datetime | None
    last_step: int
    pending: bytes | None = field(repr=False)
    pending_until: datetime | None


async def insert_app_password(
    conn: Connection,
    public_id: str,
    person_id: int,
    label: str,
    mac: bytes,
    scram_sealed: bytes | None,
    now: datetime,
) -> AppPassword:
    row = await conn.fetchrow(_INSERT, public_id, person_id, label, mac, scram_sealed, now)
    assert row is not None
    return _app_password(row)


async def app_passwords(
    conn: Connection, person_id: int, limit: int, after: tuple[datetime, str] | None
) -> list[AppPassword]:
    """Newest first, revoked ones too (F5)."""
    created_at, public_id = after if after is not None else (None, None)
    return [_app_password(row) for row in await conn.fetch(_PAGE, person_id, created_at, public_id, limit)]


async def count_live(conn: Connection, person_id: int) -> int:
    count: int = await conn.fetchval(_COUNT_LIVE, person_id)
    return count


async def revoke_app_password(conn: Connection, person_id: int, public_id: str, now: datetime) -> int | None:
    """The key of what was revoked; None when there is none of that id that was not."""
    if not is_id("apw_", public_id):
        return None
    found: int | None = await conn.fetchval(_REVOKE, person_id, public_id, now)
    return found


async def opens_mailbox(conn: Connection, mac: bytes, tenant_id: int, mailbox_id: int) -> Opened | None:
    """Who may open the mailbox with the application password of that hash."""
    row = await conn.fetchrow(_FOR_MAILBOX, mac, tenant_id, mailbox_id)
    return None if row is None else _opened(row)


async def scram_of_mailbox(conn: Connection, tenant_id: int, mailbox_id: int, limit: int) -> list[ScramRow]:
    """The SCRAM keys that open the mailbox, at most `limit`."""
    rows = await conn.fetch(_SCRAM, tenant_id, mailbox_id, limit)
    return [ScramRow(_opened(row), row["public_id"], row["scram_sealed"]) for row in rows]


async def opens_account(conn: Connection, mac: bytes, person_ids: list[int]) -> Opened | None:
    """Who of these people has the application password of that hash."""
    row = await conn.fetchrow(_FOR_PERSON, mac, person_ids)
    return None if row is None else _opened(row)


async def mark_used(conn: Connection, app_password_id: int, now: datetime) -> None:
    await conn.execute(_USED, app_password_id, now)


async def totp(conn: Connection, person_id: int, *, lock: bool = False) -> TotpRow | None:
    """What is known of the person's second step; with `lock` nobody else changes it in this transaction."""
    row = await conn.fetchrow(_TOTP_LOCKED if lock else _TOTP, person_id)
    if row is None:
        return None
    return TotpRow(
        row["secret_sealed"], row["enabled_at"], row["last_step"], row["pending_sealed"], row["pending_until"]
    )


async def enrol(conn: Connection, person_id: int, sealed: bytes, until: datetime) -> bool:
    """False when two-step verification is on."""
    return await conn.fetchval(_ENROL, person_id, sealed, until) is not None


async def enable(conn: Connection, person_id: int, sealed: bytes, now: datetime, step: int) -> None:
    await conn.execute(_ENABLE, person_id, sealed, now, step)


async def use_step(conn: Connection, person_id: int, step: int) -> None:
    await conn.execute(_STEP, person_id, step)


async def forget_totp(conn: Connection, person_id: int) -> bool:
    """Without a second step from now on, and without recovery codes. Whether it was on."""
    was_on = await conn.fetchval(_FORGET_TOTP, person_id) is not None
    await conn.execute(_FORGET_CODES, person_id)
    return was_on


async def prune_pending(conn: Connection, before: datetime) -> None:
    """Forget secrets of enrolments that nobody confirmed."""
    await conn.execute(_PRUNE_PENDING, before)


async def replace_recovery_codes(conn: Connection, person_id: int, macs: list[bytes], now: datetime) -> None:
    """The old ones stop at once (W28)."""
    await conn.execute(_FORGET_CODES, person_id)
    await conn.execute(_ADD_CODES, person_id, macs, now)


async def use_recovery_code(conn: Connection, person_id: int, mac: bytes, now: datetime) -> bool:
    """Whether there was such a code; it is used now."""
    return await conn.fetchval(_USE_CODE, person_id, mac, now) is not None


async def recovery_codes_left(conn: Connection, person_id: int) -> int:
    count: int = await conn.fetchval(_CODES_LEFT, person_id)
    return count


def _opened(row: asyncpg.Record) -> Opened:
    role = row["role"]
    return Opened(
        row["id"],
        row["person_id"],
        row["person_public_id"],
        row["sign_in_epoch"],
        None if role is None else GrantRole(role),
    )


def _app_password(row: asyncpg.Record) -> AppPassword:
    return AppPassword(
        id=row["id"],
        public_id=row["public_id"],
        label=row["label"],
        created_at=row["created_at"],
        last_used_at=row["last_used_at"],
        revoked_at=row["revoked_at"],
    )
