"""A key that is revoked while its request waits is shown nothing that comes afterwards (rest-api §5.12, F2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from postroom.accounts import Level
from tests.rest.world import World, simple_mail


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  what is waited for tells nobody
            await asyncio.sleep(0.005)


@pytest.mark.covers("FR-KEY-2")
async def test_a_key_revoked_during_the_wait_is_shown_no_mail(world: World) -> None:
    headers = await world.new_key(Level.IDENTITY, identity=world.box)
    waiting = asyncio.create_task(world.get(world.at("/wait"), headers, timeout=60))
    await until(lambda: world.ref.mailbox_id in world.hub._watches)
    await until(lambda: world.db.stats()["idle"] == world.db.stats()["size"])
    async with world.db.acquire() as conn:
        await conn.execute(
            "UPDATE api_keys SET revoked_at = $1 WHERE tenant_id = $2 AND identity_id = $3",
            world.clock.now(),
            world.box.tenant_id,
            world.box.id,
        )
    world.clock.advance(1)
    await world.deliver(simple_mail())
    async with asyncio.timeout(10):
        answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "key_revoked")
