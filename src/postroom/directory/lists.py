"""Whom a tenant wants mail from or to, and whom it does not (rest-api §5.16; outbound §5.4; D7).

An entry is an address, or `@` and a domain for everybody there, subdomains not included. Scope is the tenant in the
statement itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

import asyncpg

from postroom.accounts.text import invalid, is_storable
from postroom.db import Connection
from postroom.smtp.address import AddressSyntaxError, domain_to_ascii, parse_path

MAX_ENTRY: Final = 254
MAX_NOTE: Final = 512


class ListDirection(StrEnum):
    RECEIVE = "receive"
    SEND = "send"


class ListKind(StrEnum):
    ALLOW = "allow"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One line of a list."""

    direction: ListDirection
    kind: ListKind
    entry: str
    note: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Matches:
    """Of some addresses, those that entries of one direction are of."""

    allowed: frozenset[str] = frozenset()
    blocked: frozenset[str] = frozenset()


NOBODY: Final = Matches()

_COLUMNS: Final = "SELECT direction, kind, entry, note, created_at FROM sender_lists"
_OF_LIST: Final = "WHERE tenant_id = $1 AND direction = $2 AND kind = $3"
_GET: Final = " ".join((_COLUMNS, _OF_LIST, "AND entry = $4"))
_PAGE: Final = " ".join(
    (
        *(_COLUMNS, _OF_LIST, "AND ($4::timestamptz IS NULL OR (created_at, entry) < ($4, $5::text))"),
        "ORDER BY created_at DESC, entry DESC LIMIT $6",
    )
)
_PUT: Final = """
INSERT INTO sender_lists (tenant_id, direction, kind, entry, note, created_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant_id, direction, kind, entry) DO UPDATE SET note = excluded.note
RETURNING direction, kind, entry, note, created_at
"""
_DELETE: Final = (
    "DELETE FROM sender_lists WHERE tenant_id = $1 AND direction = $2 AND kind = $3 AND entry = $4 RETURNING 1"
)
_MATCHES: Final = """
SELECT kind, entry FROM sender_lists WHERE tenant_id = $1 AND direction = $2 AND entry = ANY ($3::text[])
"""


def normalised(text: str) -> str:
    """An entry in the form that is compared: lower case without needless quotes, the domain in A-labels. Raises
    `invalid_request`.
    """
    local, at, domain = text.rpartition("@")
    try:
        if not at or not is_storable(text) or "@" in local or any(char.isspace() for char in text):
            raise AddressSyntaxError("no entry")
        entry = f"@{domain_to_ascii(domain)}"
        if local:
            path = parse_path(f"<{text}>".encode())
            if path.address is None or path.parameters:
                raise AddressSyntaxError("no address")
            entry = path.address.key
    except (AddressSyntaxError, UnicodeError):
        raise invalid("entry", "must be user@example.com, or @example.com") from None
    if len(entry.encode()) > MAX_ENTRY:
        raise invalid("entry", f"must have at most {MAX_ENTRY} bytes")
    return entry


def entries_for(address: str) -> tuple[str, str]:
    """The entries that an address, lower case with A-labels, would be matched by."""
    return address, f"@{address.rpartition('@')[2]}"


async def get(
    conn: Connection, tenant_id: int, direction: ListDirection, kind: ListKind, entry: str
) -> ListEntry | None:
    row = await conn.fetchrow(_GET, tenant_id, direction.value, kind.value, entry)
    return None if row is None else _entry(row)


async def page(
    conn: Connection,
    tenant_id: int,
    direction: ListDirection,
    kind: ListKind,
    *,
    limit: int,
    after: tuple[datetime, str] | None,
) -> list[ListEntry]:
    """Entries of one list, newest first."""
    created_at, entry = after if after is not None else (None, None)
    rows = await conn.fetch(_PAGE, tenant_id, direction.value, kind.value, created_at, entry, limit)
    return [_entry(row) for row in rows]


async def put(
    conn: Connection,
    tenant_id: int,
    direction: ListDirection,
    kind: ListKind,
    entry: str,
    note: str | None,
    now: datetime,
) -> ListEntry:
    """A new entry, or the note of the one that is there."""
    row = await conn.fetchrow(_PUT, tenant_id, direction.value, kind.value, entry, note, now)
    assert row is not None
    return _entry(row)


async def delete(conn: Connection, tenant_id: int, direction: ListDirection, kind: ListKind, entry: str) -> bool:
    """Whether it was there."""
    return await conn.fetchval(_DELETE, tenant_id, direction.value, kind.value, entry) is not None


async def matches(conn: Connection, tenant_id: int, direction: ListDirection, addresses: Collection[str]) -> Matches:
    """Which of the addresses, lower case with A-labels, are on the tenant's lists."""
    wanted = {entry for address in addresses for entry in entries_for(address)}
    if not wanted:
        return NOBODY
    rows = await conn.fetch(_MATCHES, tenant_id, direction.value, sorted(wanted))
    return Matches(_on(rows, ListKind.ALLOW, addresses), _on(rows, ListKind.BLOCK, addresses))


def _on(rows: Sequence[asyncpg.Record], kind: ListKind, addresses: Collection[str]) -> frozenset[str]:
    listed = {row["entry"] for row in rows if row["kind"] == kind.value}
    return frozenset(one for one in addresses if not listed.isdisjoint(entries_for(one)))


def _entry(row: asyncpg.Record) -> ListEntry:
    return ListEntry(
        ListDirection(row["direction"]), ListKind(row["kind"]), row["entry"], row["note"], row["created_at"]
    )
