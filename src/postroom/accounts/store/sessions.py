"""SQL of sessions and devices (mail-server F2, F6; decisions D7)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Any, Final

import asyncpg

from postroom.accounts.models import Device, NewDevice, PersonKey, PersonSession, SessionKind
from postroom.base.ids import is_id
from postroom.db import Connection

_COLUMNS: Final = """
s.id, s.public_id, s.person_id, p.public_id AS person_public_id, p.is_operator, s.kind, s.second_factor,
s.app_password_id, d.public_id AS device_public_id, s.ip, s.user_agent, s.authenticated_at, s.last_seen_at,
s.expires_at, s.ends_at, s.created_at, s.passkey_id
"""
_JOINED: Final = "FROM sessions s JOIN people p ON p.id = s.person_id LEFT JOIN devices d ON d.id = s.device_id"
# A session that was being opened while its application password was revoked was not there to be ended with it.
_LIVE: Final = """
s.revoked_at IS NULL AND s.expires_at > $2 AND NOT EXISTS (
  SELECT FROM app_passwords a WHERE a.id = s.app_password_id AND a.revoked_at IS NOT NULL)
"""
# Whoever changes the person's row first decides: a session that was being opened under the old password is not made.
_OPEN: Final = """
WITH person AS (
  UPDATE people SET last_login_at = $11 WHERE id = $3 AND enabled AND sign_in_epoch = $4 RETURNING id
)
INSERT INTO sessions (public_id, token_hash, person_id, kind, second_factor, app_password_id, device_id, ip, user_agent,
                      authenticated_at, last_seen_at, expires_at, ends_at, created_at, passkey_id)
SELECT $1, $2, person.id, $5, $6, $7, $8, $9, $10, $11, $11, $12, $13, $11, $14 FROM person RETURNING id
"""
_FIND: Final = f"SELECT {_COLUMNS} {_JOINED} WHERE s.token_hash = $1 AND {_LIVE} AND p.enabled"
_SEEN: Final = """
UPDATE sessions SET last_seen_at = $2, expires_at = least($3, ends_at) WHERE id = $1 AND last_seen_at < $2
"""
_DEVICE_SEEN: Final = """
UPDATE devices SET last_seen_at = $2 WHERE id = (SELECT device_id FROM sessions WHERE id = $1) AND last_seen_at < $2
"""
_PAGE: Final = f"""
SELECT {_COLUMNS} {_JOINED} WHERE s.person_id = $1 AND {_LIVE}
  AND ($3::timestamptz IS NULL OR (s.created_at, s.public_id) < ($3, $4::text))
ORDER BY s.created_at DESC, s.public_id DESC LIMIT $5
"""
_REVOKE: Final = """
UPDATE sessions SET revoked_at = $3
WHERE person_id = $1 AND public_id = $2 AND revoked_at IS NULL AND expires_at > $3 RETURNING id
"""
_REVOKE_ALL: Final = """
UPDATE sessions SET revoked_at = $2
WHERE person_id = $1 AND revoked_at IS NULL AND expires_at > $2 AND id IS DISTINCT FROM $3::bigint
"""
_REVOKE_OF_APP_PASSWORD: Final = """
UPDATE sessions SET revoked_at = $2 WHERE app_password_id = $1 AND revoked_at IS NULL
"""
_REVOKE_OF_DEVICE: Final = "UPDATE sessions SET revoked_at = $2 WHERE device_id = $1 AND revoked_at IS NULL"
_AGAIN: Final = "UPDATE sessions SET authenticated_at = $2 WHERE id = $1"
# What the row says counts: the session that the request began with may be older.
_SECOND: Final = """
UPDATE sessions SET second_factor = true, authenticated_at = $2 WHERE id = $1 AND authenticated_at >= $3
"""
_PRUNE: Final = """
DELETE FROM sessions WHERE id IN (
  SELECT id FROM sessions WHERE expires_at < $1 OR revoked_at < $1 ORDER BY id LIMIT 1000)
"""

_PUT_DEVICE: Final = """
INSERT INTO devices (public_id, person_id, device_uid, name, platform, client_version, last_seen_at, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $7)
ON CONFLICT (person_id, device_uid) DO UPDATE
SET name = excluded.name, platform = excluded.platform, client_version = excluded.client_version,
    last_seen_at = excluded.last_seen_at, revoked_at = NULL
RETURNING id
"""
_DEVICES: Final = """
SELECT public_id, device_uid, name, platform, client_version, last_seen_at, created_at, revoked_at FROM devices
WHERE person_id = $1 AND ($2::timestamptz IS NULL OR (created_at, public_id) < ($2, $3::text))
ORDER BY created_at DESC, public_id DESC LIMIT $4
"""
_REVOKE_DEVICE: Final = """
UPDATE devices SET revoked_at = $3 WHERE person_id = $1 AND public_id = $2 AND revoked_at IS NULL RETURNING id
"""


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to be made. `epoch` is the person's when they proved who they are."""

    public_id: str
    token_hash: bytes
    person_id: int
    epoch: int
    kind: SessionKind
    second_factor: bool
    app_password_id: int | None
    device_id: int | None
    ip: str | None
    user_agent: str | None
    now: datetime
    rolling: timedelta
    absolute: timedelta
    passkey_id: int | None = None


async def insert(conn: Connection, new: NewSession) -> bool:
    """False when the person was disabled, or what they proved was undone, meanwhile. A passkey is there: its person's
    row is locked, and it was looked for since.
    """
    return (
        await conn.fetchval(
            _OPEN,
            *(new.public_id, new.token_hash, new.person_id, new.epoch, new.kind.value, new.second_factor),
            *(new.app_password_id, new.device_id, _inet(new.ip), new.user_agent, new.now),
            *(new.now + new.rolling, new.now + new.absolute, new.passkey_id),
        )
        is not None
    )


async def find(conn: Connection, token_hash: bytes, now: datetime) -> PersonSession | None:
    """The session of a token, if it is live and its person may sign in."""
    row = await conn.fetchrow(_FIND, token_hash, now)
    return None if row is None else _session(row)


async def seen(conn: Connection, session_id: int, now: datetime, expires_at: datetime) -> None:
    """Used now: it lives on until `expires_at`, but not beyond its end."""
    await conn.execute(_SEEN, session_id, now, expires_at)
    await conn.execute(_DEVICE_SEEN, session_id, now)


async def page(
    conn: Connection, person_id: int, now: datetime, limit: int, after: tuple[datetime, str] | None
) -> list[PersonSession]:
    """Live sessions, newest first."""
    created_at, public_id = after if after is not None else (None, None)
    return [_session(row) for row in await conn.fetch(_PAGE, person_id, now, created_at, public_id, limit)]


async def revoke(conn: Connection, person_id: int, public_id: str, now: datetime) -> bool:
    """Whether there was such a session and it was live."""
    if not is_id("ses_", public_id):
        return False
    return await conn.fetchval(_REVOKE, person_id, public_id, now) is not None


async def revoke_all(conn: Connection, person_id: int, now: datetime, *, but: int | None = None) -> None:
    """End every session of the person, but the one whose key is `but`."""
    await conn.execute(_REVOKE_ALL, person_id, now, but)


async def revoke_of_app_password(conn: Connection, app_password_id: int, now: datetime) -> None:
    await conn.execute(_REVOKE_OF_APP_PASSWORD, app_password_id, now)


async def proved_again(conn: Connection, session_id: int, now: datetime) -> None:
    """Whoever has the session gave the password once more."""
    await conn.execute(_AGAIN, session_id, now)


async def has_second_factor(conn: Connection, session_id: int, now: datetime, since: datetime) -> None:
    """From now on the session counts as opened with a second factor, if the password was given in it since then."""
    await conn.execute(_SECOND, session_id, now, since)


async def put_device(conn: Connection, public_id: str, person_id: int, device: NewDevice, now: datetime) -> int:
    """The device's key. One that was revoked lives again: somebody has just proved who they are."""
    found: int = await conn.fetchval(
        _PUT_DEVICE,
        *(public_id, person_id, device.device_uid, device.name, device.platform, device.client_version, now),
    )
    return found


async def devices(conn: Connection, person_id: int, limit: int, after: tuple[datetime, str] | None) -> list[Device]:
    """Newest first, revoked ones too."""
    created_at, public_id = after if after is not None else (None, None)
    return [_device(row) for row in await conn.fetch(_DEVICES, person_id, created_at, public_id, limit)]


async def revoke_device(conn: Connection, person_id: int, public_id: str, now: datetime) -> bool:
    """Revoke the device and end its sessions (F6). Whether there was such a device that was not revoked."""
    if not is_id("dev_", public_id):
        return False
    device_id = await conn.fetchval(_REVOKE_DEVICE, person_id, public_id, now)
    if device_id is None:
        return False
    await conn.execute(_REVOKE_OF_DEVICE, device_id, now)
    return True


async def prune(conn: Connection, before: datetime) -> None:
    """Delete sessions that ended before then, a thousand at a time."""
    await conn.execute(_PRUNE, before)


def _inet(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _session(row: asyncpg.Record) -> PersonSession:
    ip = row["ip"]
    return PersonSession(
        id=row["id"],
        public_id=row["public_id"],
        person_id=PersonKey(row["person_id"]),
        person_public_id=row["person_public_id"],
        is_operator=row["is_operator"],
        kind=SessionKind(row["kind"]),
        second_factor=row["second_factor"],
        app_password_id=row["app_password_id"],
        device_public_id=row["device_public_id"],
        ip=None if ip is None else str(ip).partition("/")[0],
        user_agent=row["user_agent"],
        authenticated_at=row["authenticated_at"],
        last_seen_at=row["last_seen_at"],
        expires_at=row["expires_at"],
        ends_at=row["ends_at"],
        created_at=row["created_at"],
        passkey_id=row["passkey_id"],
    )


def _device(row: asyncpg.Record) -> Device:
    return Device(
        public_id=row["public_id"],
        device_uid=row["device_uid"],
        name=row["name"],
        platform=row["platform"],
        client_version=row["client_version"],
        last_seen_at=row["last_seen_at"],
        created_at=row["created_at"],
        revoked_at=row["revoked_at"],
    )
