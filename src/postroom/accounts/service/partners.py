"""Partners: made, read, changed, suspended, deleted (FR-KEY-4; security-privacy A3.8; J12, J13, J18)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from postroom.accounts.audit import HOST, Actor, Entry, record
from postroom.accounts.partners import NewPartner, Partner, PartnerChanges, PartnerStatus, check
from postroom.accounts.store import keys as key_store
from postroom.accounts.store import partners as store
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database

MAX_PAGE: Final = 101
"""A page of 100, and whether another follows."""

Then = Callable[[Connection, Partner], Awaitable[None]]
Ended = Callable[[Connection, Partner, datetime], Awaitable[None]]


class Partners:
    """Use cases of partners. Callers have checked `partners:manage`, which platform keys alone can hold."""

    def __init__(
        self,
        db: Database,
        ids: IdGenerator,
        clock: Clock,
        changed: Callable[[str], None] = lambda partner: None,
        ended: tuple[Ended, ...] = (),
    ) -> None:
        """`changed` is told the id of a partner whose keys, and whose tenants' keys, are to be looked at again. `ended`
        is what goes beside its keys in the transaction that deletes a partner: its endpoints.
        """
        self._db, self._ids, self._clock, self._changed, self._ended = db, ids, clock, changed, ended

    async def create(self, new: NewPartner, *, by: Actor = HOST, then: Then | None = None) -> Partner:
        """A new partner, without keys. `then` is done in the transaction. Raises `invalid_request`."""
        check(new)
        now = self._clock.now()
        async with self._db.transaction() as conn:
            made = await store.insert(conn, self._ids.new("ptn_"), new, now)
            await record(conn, self._ids, now, by, Entry("partner.create", "partner", made.public_id))
            if then is not None:
                await then(conn, made)
            return made

    async def get(self, public_id: str) -> Partner:
        """Also one that is deleted. Raises `partner_not_found`."""
        async with self._db.acquire() as conn:
            return _found(await store.get(conn, public_id))

    async def page(
        self, *, status: PartnerStatus | None = None, limit: int = 25, after: tuple[datetime, str] | None = None
    ) -> list[Partner]:
        """Partners, newest first; `after` is the creation time and public id of the last one seen."""
        async with self._db.acquire() as conn:
            return await store.page(conn, min(max(limit, 1), MAX_PAGE), after, status)

    async def update(self, public_id: str, changes: PartnerChanges, *, by: Actor = HOST) -> Partner:
        """Raises `invalid_request`; `partner_not_found`, also for one that is deleted.

        A lower `max_tenants` changes no tenant that there is. A suspension is in the partner's row alone: what it stops
        asks for it, so that it holds at once and is over at once.
        """
        check(changes)
        if not changes.names:
            return await self.get(public_id)
        now = self._clock.now()
        async with self._db.transaction() as conn:
            before = _standing(await store.lock(conn, public_id))
            after = await store.update(conn, before.id, changes, now)
            details = {"fields": changes.names}
            if before.status is not after.status:
                details["status"] = [before.status.value, after.status.value]
            await record(conn, self._ids, now, by, Entry("partner.update", "partner", public_id, None, details))
        self._changed(public_id)
        return after

    async def delete(self, public_id: str, *, by: Actor = HOST) -> None:
        """Raises `partner_has_tenants` while one of its tenants is not erased; then nothing is changed (J12). Raises
        `partner_not_found`, also for one that is deleted.
        """
        now = self._clock.now()
        async with self._db.transaction() as conn:
            partner = _standing(await store.lock(conn, public_id))
            left = await store.count_tenants(conn, partner.id)
            if left:
                raise PostroomError("partner_has_tenants", details={"tenants": left})
            await key_store.delete_of_partner(conn, partner.id)
            for end in self._ended:
                await end(conn, partner, now)
            await store.delete(conn, partner, now)
            await record(conn, self._ids, now, by, Entry("partner.delete", "partner", public_id))
        self._changed(public_id)


async def admit(conn: Connection, partner_id: int) -> Partner:
    """The partner, if its keys may make one more tenant now; its row is locked, so that no other does beside (J18).

    Raises `partner_suspended`, `partner_tenant_limit`; `key_revoked` when it was deleted meanwhile.
    """
    partner = await store.lock_by_id(conn, partner_id)
    if partner is None or partner.status is PartnerStatus.DELETED:
        raise PostroomError("key_revoked")
    if partner.status is PartnerStatus.SUSPENDED:
        raise PostroomError("partner_suspended")
    if await store.count_tenants(conn, partner.id) >= partner.max_tenants:
        raise PostroomError("partner_tenant_limit", details={"max_tenants": partner.max_tenants})
    return partner


def _found(partner: Partner | None) -> Partner:
    if partner is None:
        raise PostroomError("partner_not_found")
    return partner


def _standing(partner: Partner | None) -> Partner:
    if partner is None or partner.status is PartnerStatus.DELETED:
        raise PostroomError("partner_not_found")
    return partner
