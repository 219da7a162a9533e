"""The relay of a tenant is made once, whoever needs it at the same moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.directory import NewMailbox, Relays

if TYPE_CHECKING:
    from tests.accounts.conftest import House


async def test_many_processes_at_once(db: Database, clock: ManualClock, ids: IdGenerator, house: House) -> None:
    async def no_rows(conn: Connection, new: NewMailbox) -> None:
        await asyncio.sleep(0)

    for n in range(10):
        tenant = await house.tenant(f"many{n}")
        processes = [Relays(db, ids, clock, no_rows) for _ in range(6)]
        found = await asyncio.gather(*(one.of(tenant.id, tenant.public_id) for one in processes))
        assert len(set(found)) == 1
