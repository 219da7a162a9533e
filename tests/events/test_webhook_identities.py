"""Which identities a filter may name: those of whoever the endpoint is of (SEC-1; FR-KEY-4; decision 79)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from postroom.accounts.audit import HOST
from postroom.base.errors import PostroomError
from postroom.events.webhooks.endpoints import Changes
from tests.events.hooks import PLATFORM, Room

pytestmark = pytest.mark.events_made_up


async def refusal(asked: Awaitable[object]) -> dict[str, Any] | None:
    """What is said of it; None when it is done."""
    try:
        await asked
    except PostroomError as error:
        return {"code": error.code, **(error.details or {})}
    return None


@pytest.mark.covers("SEC-1", "FR-KEY-4")
async def test_each_owner_names_its_own(room: Room) -> None:
    mine, _ = await room.partner("mine")
    other, _ = await room.partner("other")
    tenants = {"mine": await room.tenant("mine", mine), "other": await room.tenant("other", other)}
    tenants |= {"free": await room.tenant("free")}
    boxes = {name: (await room.identity(tenant))[1] for name, tenant in tenants.items()}
    _, system = await room.identity(tenants["mine"], is_system=True)
    boxes |= {"unknown": room.ids.new("idn_"), "system": system}

    async def taken(tenant: int | None = None, partner: int | None = None) -> set[str]:
        found = set()
        plain = await room.hook(tenant, partner, identity_ids=())
        for name, box in boxes.items():
            changes = Changes(frozenset({"identity_ids"}), identity_ids=(box,))
            made = await refusal(room.hook(tenant, partner, identity_ids=(box,)))
            assert await refusal(room.endpoints.update(PLATFORM, plain.public_id, changes, by=HOST)) == made
            assert made is None or made["errors"][0]["path"] == "identity_ids"
            found |= set() if made else {name}
        return found

    assert await taken(tenant=tenants["mine"]) == {"mine"}
    assert await taken(tenant=tenants["free"]) == {"free"}
    assert await taken(partner=mine) == {"mine"}
    assert await taken(partner=other) == {"other"}
    assert await taken() == {"mine", "other", "free", "system"}
