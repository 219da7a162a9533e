"""Fills the control plane fast: partners, tenants, identities with their addresses and mailboxes, keys and the audit of
it all, by plain SQL into tables that are migrated and empty.

Rows are as the services make them, but for what no list, route or key looks at: folders, and the secrets of the keys.
Identities were made in turns: those of a tenant lie as far from each other as they can. A million takes some minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

DOMAIN: Final = "agents.example"
TENANTS_OF_PARTNER: Final = 10
KEYS: Final = 10
"""Every so many identities there is a key."""
_BEGINNING: Final = datetime(2026, 1, 1, tzinfo=UTC)
_CHUNK: Final = 5_000
"""Rows of a statement: each address takes a lock until its end."""
_TIMEOUT: Final = 600.0

# $1 and $2 are the first and last number; of an identity, the number of its tenant follows from its own.
_ID: Final = "'{prefix}_' || lpad({number}::text, 26, '0')"
_AT: Final = "$3::timestamptz + {number} * interval '1 second'"
_OF: Final = "(n - 1) % $4::bigint + 1"

_PARTNERS: Final = f"""
INSERT INTO partners (id, public_id, name, max_tenants, created_at, updated_at)
SELECT n, {_ID.format(prefix="ptn", number="n")}, 'Partner ' || n, 100, {_AT.format(number="n")}, $3
FROM generate_series($1::bigint, $2::bigint) n
"""
_TENANTS: Final = f"""
INSERT INTO tenants (id, public_id, slug, name, mode, address_suffix, suffix_fold, created_at, updated_at)
SELECT n, {_ID.format(prefix="ten", number="n")}, 'tenant-' || n, 'Tenant ' || n, 'live', '.tenant-' || n,
       'tenant' || n, {_AT.format(number="n")}, $3
FROM generate_series($1::bigint, $2::bigint) n
"""
_OF_PARTNER: Final = f"""
INSERT INTO partner_tenants (partner_id, tenant_id)
SELECT (n - 1) / {TENANTS_OF_PARTNER} + 1, n FROM generate_series($1::bigint, $2::bigint) n
"""
_IDENTITIES: Final = f"""
INSERT INTO identities (tenant_id, id, public_id, kind, username, username_fold, display_name, purpose, client_id,
                        client_fingerprint, owner_name, owner_email, metadata_json, created_at, updated_at)
SELECT {_OF}, n, {_ID.format(prefix="idn", number="n")}, 'agent', 'agent-' || n, 'agent' || n, 'Agent ' || n,
       'purpose-' || n % 7, 'client-' || n, encode(sha256(n::text::bytea), 'hex'), 'Olga Owner',
       'owner' || n % 1000 || '@example.com', jsonb_build_object('number', n::text), {_AT.format(number="n")}, $3
FROM generate_series($1::bigint, $2::bigint) n
"""
_ADDRESSES: Final = f"""
INSERT INTO addresses (tenant_id, public_id, address, local_part, domain_id, identity_id, role, status, created_at,
                       updated_at)
SELECT {_OF}, {_ID.format(prefix="adr", number="n")}, 'agent-' || n || '.tenant-' || {_OF} || '@{DOMAIN}',
       'agent-' || n || '.tenant-' || {_OF}, d.id, n, 'primary', 'active', {_AT.format(number="n")}, $3
FROM generate_series($1::bigint, $2::bigint) n, domains d WHERE d.kind = 'platform'
"""
_MAILBOXES: Final = f"""
INSERT INTO mailboxes (tenant_id, id, identity_public_id, tenant_public_id, created_at)
SELECT {_OF}, n, {_ID.format(prefix="idn", number="n")}, {_ID.format(prefix="ten", number=f"({_OF})")},
       {_AT.format(number="n")}
FROM generate_series($1::bigint, $2::bigint) n WHERE $3::timestamptz IS NOT NULL
"""
_KEYS: Final = f"""
INSERT INTO api_keys (public_id, lookup, hash, name, level, tenant_id, identity_id, mode, permissions, created_at)
SELECT {_ID.format(prefix="key", number="n")}, lpad(n::text, 12, '0'), sha256(n::text::bytea), 'Key ' || n, 'identity',
       {_OF}, n, 'live', ARRAY['messages:read', 'messages:write'], {_AT.format(number="n")}
FROM generate_series($1::bigint, $2::bigint) n WHERE ((n - 1) / $4::bigint) % {KEYS} = 0
"""
_AUDIT: Final = f"""
INSERT INTO audit_log (public_id, tenant_id, actor_key, action, target_type, target_id, details, request_id, created_at)
SELECT {_ID.format(prefix="aud", number="n")}, {_OF}, {_ID.format(prefix="key", number=f"({_OF})")}, 'identity.create',
       'identity', {_ID.format(prefix="idn", number="n")}, '{{}}', {_ID.format(prefix="req", number="n")},
       {_AT.format(number="n")}
FROM generate_series($1::bigint, $2::bigint) n
"""
_SEQUENCES: Final = "SELECT setval(pg_get_serial_sequence($1, 'id'), $2)"


@dataclass(frozen=True, slots=True)
class Size:
    """How many there are of what."""

    tenants: int
    identities: int
    """Of each tenant."""

    @property
    def all_identities(self) -> int:
        return self.tenants * self.identities

    @property
    def partners(self) -> int:
        return -(-self.tenants // TENANTS_OF_PARTNER)

    def tenant_of(self, identity: int) -> int:
        """The key of the tenant of an identity's key."""
        return (identity - 1) % self.tenants + 1

    def address_of(self, identity: int) -> str:
        return f"agent-{identity}.tenant-{self.tenant_of(identity)}@{DOMAIN}"

    def made(self, identity: int) -> tuple[datetime, str]:
        """Where an identity stands in lists."""
        return _BEGINNING + timedelta(seconds=identity), public_id("idn_", identity)


def public_id(prefix: str, number: int) -> str:
    """The id of the row of that number."""
    return f"{prefix}{number:026}"


async def fill(url: str, size: Size) -> None:
    """Have the database hold so much. It has the deployment's row and nothing else."""
    connection = await asyncpg.connect(url, timeout=30, server_settings={"search_path": "postroom, public"})
    try:
        await connection.execute("SET synchronous_commit = off")
        for statement, count in (
            (_PARTNERS, size.partners),
            (_TENANTS, size.tenants),
            (_OF_PARTNER, size.tenants),
            (_IDENTITIES, size.all_identities),
            (_ADDRESSES, size.all_identities),
            (_MAILBOXES, size.all_identities),
            (_KEYS, size.all_identities),
            (_AUDIT, size.all_identities),
        ):
            values = (_BEGINNING, size.tenants)[: statement.count("$3") and 1 + ("$4" in statement)]
            for first in range(1, count + 1, _CHUNK):
                last = min(first + _CHUNK - 1, count)
                await connection.execute(statement, first, last, *values, timeout=_TIMEOUT)
        for table, last in (
            ("partners", size.partners),
            ("tenants", size.tenants),
            ("identities", size.all_identities),
        ):
            await connection.execute(_SEQUENCES, table, last)
        await connection.execute("VACUUM ANALYZE", timeout=_TIMEOUT)
    finally:
        await connection.close(timeout=30)
