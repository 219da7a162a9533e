"""Which tenants a caller reaches, where that takes the database (FR-KEY-4, J10)."""

from __future__ import annotations

from postroom.accounts.models import Principal
from postroom.accounts.permissions import Level
from postroom.accounts.store import reach as store
from postroom.db import Database


async def reaches_tenant(db: Database, principal: Principal, public_id: str) -> bool:
    """Whether a partner's key reaches the tenant of that public id; of other principals what they reach is known
    without asking, and the answer is True: `Principal.reaches_tenant` decides.
    """
    if principal.level is not Level.PARTNER:
        return True
    async with db.acquire() as conn:
        return await store.tenant_in(conn, principal.scope, public_id) is not None
