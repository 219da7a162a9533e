"""Events about members of tenants, of no mailbox and in no order, written in the transaction that makes them true
(events-webhooks-errors §4.5).
"""

from __future__ import annotations

from postroom.accounts.invitations import Told
from postroom.base.ids import IdGenerator
from postroom.db.pool import Connection
from postroom.events.catalogue import envelope
from postroom.events.tenants import INSERT


class MemberAnnouncer:
    """The `announce` of people and members: ids, roles, and of an address a hint."""

    def __init__(self, ids: IdGenerator) -> None:
        self._ids = ids

    async def __call__(self, conn: Connection, told: Told) -> None:
        event_id = self._ids.new("evt_")
        tenant: str = await conn.fetchval("SELECT public_id FROM tenants WHERE id = $1", told.tenant_id)
        payload = envelope(
            event_id=event_id,
            kind=told.kind,
            occurred_at=told.at,
            tenant_id=tenant,
            identity_id=None,
            sequence=None,
            data=told.data,
        )
        await conn.execute(INSERT, event_id, told.kind, told.tenant_id, tenant, payload, told.at)
