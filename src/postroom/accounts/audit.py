"""Who did what (data-model §9, security-privacy A2): rows of ids, never content, never clear addresses.

A row is written in the transaction of what it tells of, so that neither is there without the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from postroom.accounts.models import Principal, PrincipalKind, Scope
from postroom.accounts.permissions import Level
from postroom.accounts.store.reach import of_each_tenant, of_partner
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database

_INSERT: Final = """
INSERT INTO audit_log
  (public_id, tenant_id, actor_key, actor_person, action, target_type, target_id, details, request_id, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, by public id. Neither: the command line, or the program itself."""

    key: str | None = None
    person: str | None = None
    request_id: str | None = None

    @property
    def is_host(self) -> bool:
        return self.key is None and self.person is None


HOST: Final = Actor()
"""Whoever has the command line."""


def actor_of(principal: Principal, request_id: str | None = None) -> Actor:
    """The caller of an API as an actor."""
    if principal.kind is PrincipalKind.KEY:
        return Actor(key=principal.public_id, request_id=request_id)
    return Actor(person=principal.public_id, request_id=request_id)


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that was done. `action` is `noun.verb`; `tenant_id` None is a thing of no tenant, as people are."""

    action: str
    target_type: str
    target_id: str
    tenant_id: int | None = None
    details: Mapping[str, Any] | None = None


async def record(conn: Connection, ids: IdGenerator, now: datetime, by: Actor, entry: Entry) -> None:
    """Write it down, in the caller's transaction."""
    await conn.execute(
        _INSERT,
        *(ids.new("aud_"), entry.tenant_id, by.key, by.person, entry.action, entry.target_type, entry.target_id),
        *(dict(entry.details or {}), by.request_id, now),
    )


# $1 level, $2 tenant of the caller. Rows of no tenant are the platform's alone.
_PAGE: Final = """
SELECT a.public_id, t.public_id AS tenant_id, a.actor_key, a.actor_person, a.action, a.target_type, a.target_id,
       a.details, a.request_id, a.created_at
FROM audit_log a LEFT JOIN tenants t ON t.id = a.tenant_id
WHERE CASE $1::text
    WHEN 'platform' THEN $2::bigint IS NULL
    WHEN 'partner' THEN a.tenant_id IS NOT NULL AND {of_partner}
    WHEN 'tenant' THEN a.tenant_id = $2::bigint
    ELSE false END
  AND {tenant}
  AND ($4::text IS NULL OR a.actor_key = $4) AND ($5::text IS NULL OR a.action = $5)
  AND ($6::text IS NULL OR a.target_id = $6)
  AND ($7::timestamptz IS NULL OR a.created_at >= $7) AND ($8::timestamptz IS NULL OR a.created_at < $8)
  AND ($12::text IS NULL OR a.actor_person = $12)
  AND ($9::timestamptz IS NULL OR (a.created_at, a.public_id) < ($9, $10::text))
ORDER BY a.created_at DESC, a.public_id DESC LIMIT $11
"""
_PARTNERS: Final = of_partner("a.tenant_id", "$2::bigint")
_OF_ALL: Final = _PAGE.format(tenant="$3::bigint IS NULL", of_partner=_PARTNERS)
_OF_TENANT: Final = _PAGE.format(tenant="a.tenant_id = $3::bigint", of_partner=_PARTNERS)
_OF_EACH: Final = _PAGE.format(tenant="a.tenant_id = pt.tenant_id AND $3::bigint IS NULL", of_partner=_PARTNERS)
_OF_PARTNER: Final = " ".join(
    (
        *("SELECT found.* FROM", of_each_tenant("$2::bigint", _OF_EACH, "found")),
        "ORDER BY found.created_at DESC, found.public_id DESC LIMIT $11",
    )
)
MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""


@dataclass(frozen=True, slots=True)
class Event:
    """A row, with the public id of its tenant."""

    public_id: str
    tenant_id: str | None
    actor_key: str | None
    actor_person: str | None
    action: str
    target_type: str
    target_id: str
    details: Mapping[str, Any]
    request_id: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows; None: whatever it is. `after` is the earliest moment, `before` the first that is too late."""

    actor_key: str | None = None
    action: str | None = None
    target_id: str | None = None
    after: datetime | None = None
    before: datetime | None = None
    actor_person: str | None = None


EVERYTHING: Final = Filter()


class AuditLog:
    """Reads what was done. Callers have checked `audit:read`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def page(
        self,
        scope: Scope,
        tenant_id: int | None = None,
        filter_: Filter = EVERYTHING,
        *,
        limit: int = 25,
        after: tuple[datetime, str] | None = None,
    ) -> list[Event]:
        """Rows in scope, of a tenant or of all, newest first; `after` is the time and id of the last one seen. What is
        out of scope is not listed.
        """
        created_at, public_id = after if after is not None else (None, None)
        tenant_id = scope.tenant_of(tenant_id)
        statement = _OF_TENANT
        if tenant_id is None:
            statement = _OF_PARTNER if scope.level is Level.PARTNER else _OF_ALL
        async with self._db.acquire() as conn:
            rows = await conn.fetch(
                statement,
                *(scope.level.value, scope.values[1], tenant_id, filter_.actor_key, filter_.action, filter_.target_id),
                *(filter_.after, filter_.before, created_at, public_id, min(max(limit, 1), MAX_PAGE)),
                filter_.actor_person,
            )
        return [Event(**dict(row)) for row in rows]
