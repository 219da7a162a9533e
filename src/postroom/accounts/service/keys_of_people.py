"""Keys of a tenant go with the people behind them (security-privacy A3.7; FR-KEY-5, W36).

Callers have locked the tenant's row, as whoever mints a key of it does: a key that is being made is either there, or
not made any more.
"""

from __future__ import annotations

from datetime import datetime

from postroom.accounts.audit import Actor, Entry, record
from postroom.accounts.models import MemberRole
from postroom.accounts.permissions import ROOM_OF_ROLE
from postroom.accounts.store import keys as store
from postroom.base.ids import IdGenerator
from postroom.db import Connection


async def removed(
    conn: Connection, ids: IdGenerator, now: datetime, by: Actor, tenant_id: int, person: str
) -> list[str]:
    """In the transaction that takes the person out of the tenant: their keys, revoked."""
    gone = await store.revoke_of_person(conn, tenant_id, person, None, now)
    await _record(conn, ids, now, by, tenant_id, gone, "creator_removed")
    return gone


async def role_changed(
    conn: Connection, ids: IdGenerator, now: datetime, by: Actor, tenant_id: int, person: str, role: MemberRole
) -> list[str]:
    """In the transaction that gives the person another role: their keys that hold more than it, revoked. The others
    take the role.
    """
    gone = await store.revoke_of_person(conn, tenant_id, person, ROOM_OF_ROLE[role], now)
    await store.set_role(conn, tenant_id, person, role)
    await _record(conn, ids, now, by, tenant_id, gone, "creator_role_changed")
    return gone


async def _record(
    conn: Connection, ids: IdGenerator, now: datetime, by: Actor, tenant_id: int, keys: list[str], reason: str
) -> None:
    for key in sorted(keys):
        await record(conn, ids, now, by, Entry("key.revoke", "key", key, tenant_id, {"reason": reason}))
