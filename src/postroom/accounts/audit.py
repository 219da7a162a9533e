"""Who did what (data-model §9, security-privacy A2): rows of ids, never content, never clear addresses.

A row is written in the transaction of what it tells of, so that neither is there without the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from postroom.accounts.models import Principal, PrincipalKind
from postroom.base.ids import IdGenerator
from postroom.db import Connection

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
