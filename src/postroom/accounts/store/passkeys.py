"""SQL of passkeys and of the challenges that are out (decisions A4, C5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from postroom.accounts.passkeys import Credential, Passkey
from postroom.base.ids import is_id
from postroom.db import Connection

_INSERT: Final = """
INSERT INTO person_passkeys (public_id, person_id, credential_id, public_key, sign_count, transports, name,
                             backup_eligible, backed_up, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (credential_id) DO NOTHING RETURNING *
"""
_PAGE: Final = """
SELECT * FROM person_passkeys
WHERE person_id = $1 AND ($2::timestamptz IS NULL OR (created_at, public_id) < ($2, $3::text))
ORDER BY created_at DESC, public_id DESC LIMIT $4
"""
_CREDENTIALS: Final = "SELECT credential_id, transports FROM person_passkeys WHERE person_id = $1 ORDER BY id"
_COUNT: Final = "SELECT count(*) FROM person_passkeys WHERE person_id = $1"
_RENAME: Final = """
UPDATE person_passkeys SET name = $3 WHERE person_id = $1 AND public_id = $2 RETURNING *
"""
_END_SESSIONS: Final = """
UPDATE sessions SET revoked_at = $3
WHERE revoked_at IS NULL
  AND passkey_id IN (SELECT id FROM person_passkeys WHERE person_id = $1 AND ($2::text IS NULL OR public_id = $2))
"""
_REMOVE: Final = """
DELETE FROM person_passkeys WHERE person_id = $1 AND ($2::text IS NULL OR public_id = $2) RETURNING public_id
"""
_IS_THERE: Final = "SELECT EXISTS (SELECT FROM person_passkeys WHERE person_id = $1 AND id = $2)"
_FIND: Final = """
SELECT k.id, k.public_id, k.credential_id, k.public_key, k.sign_count, k.backup_eligible, k.backed_up,
       p.id AS person_id, p.public_id AS person_public_id, p.sign_in_epoch
FROM person_passkeys k JOIN people p ON p.id = k.person_id AND p.enabled WHERE k.credential_id = $1
"""
_LOCK_COUNT: Final = "SELECT sign_count FROM person_passkeys WHERE person_id = $1 AND id = $2 FOR NO KEY UPDATE"
_USED: Final = """
UPDATE person_passkeys SET sign_count = $3, backed_up = $4, last_used_at = $5 WHERE person_id = $1 AND id = $2
"""

_TO_REGISTER: Final = """
INSERT INTO passkey_challenges (hash, person_id, epoch, expires_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (person_id) DO UPDATE SET hash = $1, epoch = $3, expires_at = $4
"""
# Whoever deletes the row has the challenge: of several at once it is one.
_TAKE_TO_REGISTER: Final = """
DELETE FROM passkey_challenges WHERE hash = $1 AND person_id = $2 RETURNING expires_at, epoch
"""
# And to sign in whoever makes it.
_TAKE_TO_SIGN_IN: Final = """
INSERT INTO passkey_answers (hash, expires_at) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING hash
"""
_PRUNE: Final = """
DELETE FROM passkey_challenges WHERE hash IN (
  SELECT hash FROM passkey_challenges WHERE expires_at <= $1 ORDER BY expires_at LIMIT 1000)
"""
_PRUNE_TAKEN: Final = """
DELETE FROM passkey_answers WHERE hash IN (
  SELECT hash FROM passkey_answers WHERE expires_at <= $1 ORDER BY expires_at LIMIT 1000)
"""


@dataclass(frozen=True, slots=True)
class Known:
    """A passkey by which somebody may sign in, and who; `epoch` is the person's now."""

    id: int
    public_id: str
    credential: Credential
    person_id: int
    person_public_id: str
    epoch: int


async def insert(
    conn: Connection,
    public_id: str,
    person_id: int,
    made: Credential,
    transports: Sequence[str],
    name: str,
    now: datetime,
) -> Passkey | None:
    """None when somebody has a passkey with that id."""
    row = await conn.fetchrow(
        _INSERT,
        *(public_id, person_id, made.credential_id, made.public_key, made.sign_count, list(transports), name),
        *(made.backup_eligible, made.backed_up, now),
    )
    return None if row is None else _passkey(row)


async def page(conn: Connection, person_id: int, limit: int, after: tuple[datetime, str] | None) -> list[Passkey]:
    """Newest first."""
    created_at, public_id = after if after is not None else (None, None)
    return [_passkey(row) for row in await conn.fetch(_PAGE, person_id, created_at, public_id, limit)]


async def credentials(conn: Connection, person_id: int) -> list[tuple[bytes, list[str]]]:
    """Ids of the person's passkeys as authenticators know them, each with how it is reached."""
    return [(row["credential_id"], row["transports"]) for row in await conn.fetch(_CREDENTIALS, person_id)]


async def count(conn: Connection, person_id: int) -> int:
    found: int = await conn.fetchval(_COUNT, person_id)
    return found


async def rename(conn: Connection, person_id: int, public_id: str, name: str) -> Passkey | None:
    if not is_id("pky_", public_id):
        return None
    row = await conn.fetchrow(_RENAME, person_id, public_id, name)
    return None if row is None else _passkey(row)


async def remove(conn: Connection, person_id: int, public_id: str | None, now: datetime) -> list[str]:
    """Remove one, or all, and end the sessions that they opened; whoever calls has locked the person. Returns ids of
    what there was.
    """
    if public_id is not None and not is_id("pky_", public_id):
        return []
    await conn.execute(_END_SESSIONS, person_id, public_id, now)
    return [row["public_id"] for row in await conn.fetch(_REMOVE, person_id, public_id)]


async def is_there(conn: Connection, person_id: int, passkey_id: int) -> bool:
    found: bool = await conn.fetchval(_IS_THERE, person_id, passkey_id)
    return found


async def find(conn: Connection, credential_id: bytes) -> Known | None:
    """Whose passkey it is, unless they are disabled."""
    row = await conn.fetchrow(_FIND, credential_id)
    if row is None:
        return None
    credential = Credential(
        row["credential_id"], row["public_key"], row["sign_count"], row["backup_eligible"], row["backed_up"]
    )
    return Known(
        row["id"], row["public_id"], credential, row["person_id"], row["person_public_id"], row["sign_in_epoch"]
    )


async def lock_count(conn: Connection, person_id: int, passkey_id: int) -> int | None:
    """The counter of signatures, its row locked until the end of the transaction; None when it was removed."""
    found: int | None = await conn.fetchval(_LOCK_COUNT, person_id, passkey_id)
    return found


async def used(
    conn: Connection, person_id: int, passkey_id: int, sign_count: int, backed_up: bool, now: datetime
) -> None:
    await conn.execute(_USED, person_id, passkey_id, sign_count, backed_up, now)


async def ask_to_register(conn: Connection, digest: bytes, person_id: int, epoch: int, until: datetime) -> None:
    """The person's challenge from now on; an older one of theirs is void."""
    await conn.execute(_TO_REGISTER, digest, person_id, epoch, until)


async def take_to_register(conn: Connection, digest: bytes, person_id: int, now: datetime) -> int | None:
    """The epoch that the challenge was given out under; None when it is not the person's, over, or was taken."""
    row = await conn.fetchrow(_TAKE_TO_REGISTER, digest, person_id)
    if row is None or row["expires_at"] <= now:
        return None
    epoch: int = row["epoch"]
    return epoch


async def take_to_sign_in(conn: Connection, digest: bytes, until: datetime) -> bool:
    """Whether nobody took the challenge before; who is taking it now is waited for."""
    return await conn.fetchval(_TAKE_TO_SIGN_IN, digest, until) is not None


async def prune(conn: Connection, now: datetime, *, taken_before: datetime) -> None:
    """Delete challenges that are over, and taken ones that were by then, a thousand of each at a time."""
    await conn.execute(_PRUNE, now)
    await conn.execute(_PRUNE_TAKEN, taken_before)


def _passkey(row: asyncpg.Record) -> Passkey:
    return Passkey(
        id=row["id"],
        public_id=row["public_id"],
        name=row["name"],
        transports=tuple(row["transports"]),
        backup_eligible=row["backup_eligible"],
        backed_up=row["backed_up"],
        created_at=row["created_at"],
        last_used_at=row["last_used_at"],
    )
