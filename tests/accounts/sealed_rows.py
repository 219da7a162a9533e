"""A value in every sealed column, in rows put there by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroom.base.sealed_columns import (
    DKIM_KEY,
    REGISTRY,
    SCRAM_KEYS,
    SIGNING_KEY,
    TOTP_PENDING,
    TOTP_SECRET,
    WEBHOOK_PREVIOUS,
    WEBHOOK_SECRET,
    SealedColumn,
)
from postroom.base.sealing import Keyring
from postroom.db import Database

Place = tuple[SealedColumn, tuple[object, ...]]

_ROWS: Final[dict[SealedColumn, list[tuple[object, ...]]]] = {
    SIGNING_KEY: [("bounce", "0"), ("link", "0"), ("thread", "0")],
    DKIM_KEY: [(1, "pm1"), (1, "pm2"), (2, "pm1"), (2, "pm1e")],
    TOTP_SECRET: [(1,), (2,), (3,)],
    TOTP_PENDING: [(2,), (3,)],
    SCRAM_KEYS: [(f"apw_{n:026}",) for n in range(1, 4)],
    WEBHOOK_SECRET: [(1,), (2,), (3,)],
    WEBHOOK_PREVIOUS: [(2,), (3,)],
}
VALUES: Final[dict[Place, bytes]] = {
    (column, row): f"{column.name} of {row}".encode() for column, rows in _ROWS.items() for row in rows
}

_AROUND: Final = """
INSERT INTO domains (id, public_id, name, kind, status, enabled, created_at, updated_at)
SELECT n, 'dom_' || lpad(n::text, 26, '0'), 'd' || n || '.example', 'platform', 'healthy', true, now(), now()
FROM generate_series(1, 2) AS n ON CONFLICT DO NOTHING;
INSERT INTO people (id, public_id, display_name, created_at, updated_at)
SELECT n, 'usr_' || lpad(n::text, 26, '0'), 'P', now(), now() FROM generate_series(1, 3) AS n ON CONFLICT DO NOTHING;
INSERT INTO webhook_endpoints (id, public_id, url, events, created_at, updated_at)
SELECT n, 'whk_' || lpad(n::text, 26, '0'), 'https://hooks.example.com/', '{*}', now(), now()
FROM generate_series(1, 3) AS n ON CONFLICT DO NOTHING;
"""
_PUT: Final = {
    SIGNING_KEY: "INSERT INTO signing_keys (purpose, kid, sealed, created_at) VALUES ($2, $3, $1, now())"
    " ON CONFLICT (purpose, kid) DO UPDATE SET sealed = $1",
    DKIM_KEY: "INSERT INTO dkim_keys"
    " (domain_id, selector, algorithm, private_sealed, public_record, signs, created_at, retire_at)"
    " VALUES ($2, $3, 'rsa-sha256', $1, 'v=DKIM1', false, now(), now())"
    " ON CONFLICT (domain_id, selector) DO UPDATE SET private_sealed = $1",
    TOTP_SECRET: "INSERT INTO person_totp (person_id, secret_sealed, enabled_at) VALUES ($2, $1, now())"
    " ON CONFLICT (person_id) DO UPDATE SET secret_sealed = $1",
    TOTP_PENDING: "INSERT INTO person_totp (person_id, pending_sealed, pending_until) VALUES ($2, $1, now())"
    " ON CONFLICT (person_id) DO UPDATE SET pending_sealed = $1, pending_until = now()",
    SCRAM_KEYS: "INSERT INTO app_passwords (public_id, person_id, label, hash, scram_sealed, created_at)"
    " VALUES ($2, 1, 'phone', sha256($2::text::bytea), $1, now())"
    " ON CONFLICT (public_id) DO UPDATE SET scram_sealed = $1",
    WEBHOOK_SECRET: "INSERT INTO webhook_secrets (endpoint_id, secret_enc) VALUES ($2, $1)"
    " ON CONFLICT (endpoint_id) DO UPDATE SET secret_enc = $1",
    WEBHOOK_PREVIOUS: "UPDATE webhook_secrets SET prev_secret_enc = $1, prev_expires_at = now() WHERE endpoint_id = $2",
}


async def fill(
    db: Database, ring: Keyring, *, seal: Callable[..., bytes] | None = None, only: SealedColumn | None = None
) -> None:
    """Put the values in their places, sealed with the ring or by `seal`; with `only` the first of that column alone."""
    places = [place for place in VALUES if only in (None, place[0])]
    async with db.acquire() as conn:
        await conn.execute(_AROUND)
        for column, row in places if only is None else places[:1]:
            sealed = (seal or ring.seal)(column, VALUES[column, row], *row)
            await conn.execute(_PUT[column], sealed, *row)


async def stored(db: Database) -> dict[Place, bytes]:
    """What is stored in each place."""
    found: dict[Place, bytes] = {}
    async with db.acquire() as conn:
        for column in REGISTRY:
            keys = ", ".join(column.keys)
            rows = await conn.fetch(
                f"SELECT {keys}, {column.column} FROM {column.table} WHERE {column.column} IS NOT NULL"
            )
            for row in rows:
                found[column, tuple(row[name] for name in column.keys)] = bytes(row[column.column])
    return found


async def opened(db: Database, ring: Keyring) -> dict[Place, bytes]:
    """What it says in each place. Raises UnsealError where the ring does not open it."""
    return {(column, row): ring.open(column, sealed, *row) for (column, row), sealed in (await stored(db)).items()}
