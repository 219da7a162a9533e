"""Events as they are read: by the feed, which follows the table, and by lists and resumed streams. SQL.

Nobody who goes on from where they were reads beyond what is *settled*. Keys are handed out before the commit, so below
an event that can be seen one may still be missing. The feed knows up to which key all is decided (`feed.py`), and hands
that limit to the others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from postroom.accounts.models import Scope
from postroom.accounts.permissions import Level
from postroom.accounts.store.reach import of_each_tenant
from postroom.db.pool import Connection

MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""

EVERYTHING: Final = 2**63 - 1
"""A key that no event has."""

WHOSE: Final = """
LEFT JOIN partner_tenants w ON w.tenant_id = e.tenant_id
LEFT JOIN identities i ON i.tenant_id = e.tenant_id AND i.id = e.identity_id
"""
"""SQL: what says whose an event `e` is, besides its own row."""
PARTNER: Final = "coalesce(w.partner_id, e.partner_id)"
"""SQL, with WHOSE: the partner who is told of an event: its tenant's, or the one whose endpoint was disabled (§6)."""

_COLUMNS: Final = " ".join(
    (
        f"SELECT e.id, e.public_id, e.type, e.tenant_id, e.identity_id, {PARTNER} AS partner_id,",
        "coalesce(i.is_system, false) AS is_system, e.occurred_at, e.payload",
    )
)

# $1 the key after which, $2 the last, $3 how many. Of every tenant: the feed gives each listener its own.
_FOLLOWING: Final = f"{_COLUMNS} FROM events e {WHOSE} WHERE e.id > $1 AND e.id <= $2 ORDER BY e.id LIMIT $3"
_KEY: Final = "SELECT id FROM events WHERE public_id = $1"
_NEWEST: Final = "SELECT coalesce(max(id), 0) FROM events"

# $1 level, $2 partner or tenant of the caller, $3 identity, $4 tenant asked for, $5 identity asked for, $6 types,
# $7 since, $8 the key below which or after which, $9 the newest that is settled, $10 how many.
_REACH: Final = f"""
  CASE $1::text
    WHEN 'platform' THEN $2::bigint IS NULL
    WHEN 'partner' THEN {PARTNER} = $2::bigint AND NOT coalesce(i.is_system, false)
    WHEN 'tenant' THEN e.tenant_id = $2::bigint AND NOT coalesce(i.is_system, false)
    WHEN 'identity' THEN e.tenant_id = $2::bigint AND e.identity_id = $3::bigint AND NOT coalesce(i.is_system, false)
    ELSE false END
"""
# Of what is known to be the partner's. The planner takes the above to leave next to nothing, and would read and sort
# all that a tenant has for one page.
_OF_PARTNER: Final = "$1::text = 'partner' AND $3::bigint IS NULL AND NOT coalesce(i.is_system, false)"
_FILTER: Final = """
  e.id <= $9 AND e.type = ANY ($6::text[])
  AND ($5::text IS NULL OR i.public_id = $5)
  AND ($7::timestamptz IS NULL OR e.occurred_at >= $7)
"""
_BACKWARDS: Final = "($8::bigint IS NULL OR e.id < $8) ORDER BY e.id DESC LIMIT $10"
_FORWARDS: Final = "e.id > $8 ORDER BY e.id LIMIT $10"


def _statement(way: str, tenant: str, reach: str = _REACH) -> str:
    return " ".join((_COLUMNS, "FROM events e", WHOSE, "WHERE", tenant, "AND", reach, "AND", _FILTER, "AND", way))


def _of_partner(way: str, order: str) -> str:
    """The newest or next of each of its tenants, and of those that are its own and no tenant's."""
    each = _statement(way, "e.tenant_id = pt.tenant_id AND $4::bigint IS NULL", _OF_PARTNER)
    own = "e.partner_id = $2::bigint AND e.tenant_id IS NULL AND $4::bigint IS NULL"
    own = _statement(way, own, _OF_PARTNER)
    theirs = " ".join(("SELECT each.* FROM", of_each_tenant("$2::bigint", each, "each")))
    found = f"({theirs} UNION ALL ({own})) AS found"
    return " ".join(("SELECT found.* FROM", found, "ORDER BY found.id", order, "LIMIT $10"))


_STATEMENTS: Final = {
    way: (
        _statement(text, "$4::bigint IS NULL"),
        _statement(text, "e.tenant_id = $4::bigint"),
        _of_partner(text, order),
    )
    for way, text, order in (("back", _BACKWARDS, "DESC"), ("on", _FORWARDS, "ASC"))
}


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """An event as it is stored: `key` is its place in the order of all, `payload` the exact bytes (B3)."""

    key: int
    public_id: str
    type: str
    tenant_id: int | None
    identity_id: int | None
    partner_id: int | None
    """Who is told of it as its partner."""
    is_system: bool
    """Of the system's own mailbox, which is the platform's alone (A15)."""
    occurred_at: datetime
    payload: bytes

    @property
    def created_at(self) -> datetime:
        """As lists of anything call it."""
        return self.occurred_at


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events somebody is told of: those within `scope`, of these types, and of the tenant (its key) and the
    identity (its public id) if they are named. `since`: none that occurred before.
    """

    scope: Scope
    types: frozenset[str]
    tenant_id: int | None = None
    identity: str | None = None
    since: datetime | None = None


async def following(conn: Connection, after: int, last: int, limit: int) -> list[Told]:
    """The next events that can be seen, with keys of at most `last`; not all before the last need be settled."""
    return [_told(row) for row in await conn.fetch(_FOLLOWING, after, last, limit)]


async def newest(conn: Connection) -> int:
    """The greatest key that can be seen; 0 without events."""
    return int(await conn.fetchval(_NEWEST))


async def key_of(conn: Connection, public_id: str) -> int | None:
    """The key of an event; None when there is none, or none any more."""
    found: int | None = await conn.fetchval(_KEY, public_id)
    return found


async def before(conn: Connection, wanted: Wanted, key: int | None, limit: int) -> list[Told]:
    """Events that can be seen, the newest first, from below `key` on. Whoever follows a feed first and then reads here
    has everything.
    """
    return await _page(conn, "back", wanted, key, EVERYTHING, limit)


async def after(conn: Connection, wanted: Wanted, key: int, settled: int, limit: int) -> list[Told]:
    """Settled events in their order, from after `key` on."""
    return await _page(conn, "on", wanted, key, settled, limit)


async def _page(conn: Connection, way: str, wanted: Wanted, key: int | None, settled: int, limit: int) -> list[Told]:
    level, whose, identity = wanted.scope.values
    tenant = wanted.scope.tenant_of(wanted.tenant_id)
    everywhere, of_tenant, of_partner = _STATEMENTS[way]
    statement = of_tenant
    if tenant is None:
        statement = of_partner if level is Level.PARTNER else everywhere
    rows = await conn.fetch(
        statement,
        *(level.value, whose, identity, tenant, wanted.identity, sorted(wanted.types), wanted.since, key, settled),
        min(max(limit, 1), MAX_PAGE),
    )
    return [_told(row) for row in rows]


def hears(wanted: Wanted, told: Told, identity_key: int | None) -> bool:
    """Whether a listener is told of an event: what the statements above say, of what is held already. `identity_key`
    is the key of `wanted.identity`.
    """
    scope = wanted.scope
    if told.type not in wanted.types or (told.is_system and scope.level is not Level.PLATFORM):
        return False
    if wanted.tenant_id is not None and told.tenant_id != wanted.tenant_id:
        return False
    if wanted.identity is not None and (identity_key is None or told.identity_id != identity_key):
        return False
    match scope.level:
        case Level.PLATFORM:
            return True
        case Level.PARTNER:
            return scope.partner_id is not None and told.partner_id == scope.partner_id
        case Level.TENANT:
            return scope.tenant_id is not None and told.tenant_id == scope.tenant_id
    own = (scope.tenant_id, scope.identity_id)
    return None not in own and own == (told.tenant_id, told.identity_id)


def types_of(kinds: Collection[str] | None, seen: frozenset[str]) -> frozenset[str]:
    """Those of the types asked for that may be seen; all that may be when none is asked for."""
    return seen if kinds is None else seen & frozenset(kinds)


def _told(row: Any) -> Told:
    return Told(
        *(row["id"], row["public_id"], row["type"], row["tenant_id"], row["identity_id"], row["partner_id"]),
        *(row["is_system"], row["occurred_at"], bytes(row["payload"])),
    )
