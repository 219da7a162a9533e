"""Events about tenants, of no mailbox and in no order, written in the transaction that makes them true
(console-billing-notifications §17).
"""

from __future__ import annotations

from typing import Final

from postroom.accounts.service.policies import PolicyWritten
from postroom.base.ids import IdGenerator
from postroom.db.pool import Connection
from postroom.events.catalogue import envelope

POLICY_UPDATED: Final = "tenant.policy_updated"

INSERT: Final = """
INSERT INTO events (public_id, type, tenant_id, owner_kind, owner_id, payload, occurred_at)
VALUES ($1, $2, $3, 'platform', $4, $5, $6)
"""


class TenantAnnouncer:
    """The `announce` of tenants: names of members and who wrote, never a value."""

    def __init__(self, ids: IdGenerator) -> None:
        self._ids = ids

    async def __call__(self, conn: Connection, told: PolicyWritten) -> None:
        event_id, tenant = self._ids.new("evt_"), told.tenant
        assert tenant.updated_at is not None
        payload = envelope(
            event_id=event_id,
            kind=POLICY_UPDATED,
            occurred_at=tenant.updated_at,
            tenant_id=tenant.public_id,
            identity_id=None,
            sequence=None,
            data={
                "fields": list(told.written.paths),
                "by": told.level.value,
                "actor_key_id": told.by.key,
                "actor_user_id": told.by.person,
                "policy_version": tenant.policy_version,
            },
        )
        await conn.execute(INSERT, event_id, POLICY_UPDATED, tenant.id, tenant.public_id, payload, tenant.updated_at)
