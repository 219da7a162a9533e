"""Allow and block lists of a tenant: read, put, deleted (rest-api §5.16)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from postroom.accounts import audit
from postroom.accounts.audit import HOST, Actor
from postroom.accounts.text import check_text
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.directory import lists
from postroom.directory.lists import ListDirection, ListEntry, ListKind

MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""


class Lists:
    """Use cases of lists. Callers have found the tenant in their reach. What is put or deleted is audited, by list:
    an entry is somebody's address.
    """

    def __init__(self, db: Database, ids: IdGenerator, clock: Clock) -> None:
        self._db, self._ids, self._clock = db, ids, clock

    async def page(
        self,
        tenant_id: int,
        direction: ListDirection,
        kind: ListKind,
        *,
        limit: int = 25,
        after: tuple[datetime, str] | None = None,
    ) -> list[ListEntry]:
        """Entries, newest first; `after` is the creation time and the entry of the last one seen."""
        async with self._db.acquire() as conn:
            return await lists.page(conn, tenant_id, direction, kind, limit=min(max(limit, 1), MAX_PAGE), after=after)

    async def get(self, tenant_id: int, direction: ListDirection, kind: ListKind, entry: str) -> ListEntry:
        """Raises `list_entry_not_found`, `invalid_request`."""
        entry = lists.normalised(entry)
        async with self._db.acquire() as conn:
            found = await lists.get(conn, tenant_id, direction, kind, entry)
        if found is None:
            raise PostroomError("list_entry_not_found")
        return found

    async def put(
        self,
        tenant_id: int,
        direction: ListDirection,
        kind: ListKind,
        entry: str,
        note: str | None = None,
        *,
        by: Actor = HOST,
    ) -> ListEntry:
        """Add an entry, or give the one that is there this note. Raises `invalid_request`."""
        entry, now = lists.normalised(entry), self._clock.now()
        check_text("note", note, lists.MAX_NOTE)
        async with self._db.transaction() as conn:
            made = await lists.put(conn, tenant_id, direction, kind, entry, note, now)
            await self._record(conn, "list.put", tenant_id, direction, kind, by, now)
        return made

    async def delete(
        self, tenant_id: int, direction: ListDirection, kind: ListKind, entry: str, *, by: Actor = HOST
    ) -> None:
        """Raises `list_entry_not_found`, `invalid_request`."""
        entry, now = lists.normalised(entry), self._clock.now()
        async with self._db.transaction() as conn:
            if not await lists.delete(conn, tenant_id, direction, kind, entry):
                raise PostroomError("list_entry_not_found")
            await self._record(conn, "list.delete", tenant_id, direction, kind, by, now)

    async def _record(
        self,
        conn: Connection,
        action: str,
        tenant_id: int,
        direction: ListDirection,
        kind: ListKind,
        by: Actor,
        now: datetime,
    ) -> None:
        entry = audit.Entry(action, "list", f"{direction.value}/{kind.value}", tenant_id)
        await audit.record(conn, self._ids, now, by, entry)
