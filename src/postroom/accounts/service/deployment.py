"""What this deployment is: refused at start when database, blob store and configuration do not belong together (B5)."""

from __future__ import annotations

from postroom.accounts.store import tenants as store
from postroom.base.clock import Clock
from postroom.base.ids import IdGenerator
from postroom.db import Database


class DeploymentMismatch(Exception):
    """The database belongs to another blob store or platform domain. The message says what to do; the start is
    refused.
    """


async def ensure_deployment(db: Database, ids: IdGenerator, clock: Clock, store_id: str, platform_domain: str) -> None:
    """Record this deployment at its first start, check it at every later one; make the platform domain's row.

    `store_id` is the blob store's marker; `platform_domain` a lower-case A-label. Raises DeploymentMismatch.
    """
    now = clock.now()
    async with db.transaction() as conn:
        recorded_store, recorded_domain = await store.put_deployment(conn, store_id, platform_domain, now)
        if recorded_store != store_id:
            raise DeploymentMismatch(
                f"this database belongs to the mail store {recorded_store}, but the configured store is {store_id}: "
                "point Postroom at the store and the database that were used together"
            )
        if recorded_domain != platform_domain:
            raise DeploymentMismatch(
                f"this database was set up for the platform domain {recorded_domain}, but {platform_domain} is "
                "configured: the platform domain is fixed for the life of a deployment, so set it back"
            )
        if not await store.put_platform_domain(conn, ids.new("dom_"), platform_domain, now):
            raise DeploymentMismatch(
                f"the platform domain {platform_domain} is a tenant's own domain in this database: choose another name"
            )
