"""Changing an identity, pausing and resuming it (rest-api §5.4; inbound §2.1)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from postroom.accounts import Level
from tests.rest.contract import check
from tests.rest.sender import code, details
from tests.rest.world import World


async def told(world: World) -> list[tuple[str, Any]]:
    """Events of the identity since it was made: their kinds and data."""
    async with world.db.acquire() as conn:
        rows = await conn.fetch(
            "SELECT type, payload FROM events WHERE identity_id = $1 AND type <> 'identity.created' ORDER BY sequence",
            world.box.id,
        )
    return [(row["type"], json.loads(row["payload"])["data"]) for row in rows]


@pytest.mark.covers("FR-IDN-1", "FR-IDN-2")
async def test_every_field(world: World) -> None:
    before = (await world.get(world.at())).json()
    world.clock.advance(5)
    change = {
        "display_name": "Front desk",
        "purpose": "bookings",
        "owner": {"name": "Bo", "email": "bo@example.com"},
        "signature": {"text": "Desk", "html": "<b onclick='x'>Desk</b><script>x</script>"},
        "metadata": {"crm": "42"},
        "send_policy": {"daily_cap": 7, "auto_reply": "denied"},
        "unknown": 1,
    }
    response = await world.patch(world.at(), change)
    assert response.status_code == 200, response.text
    changed = response.json()
    check("Identity", changed)
    assert {name for name in before if before[name] != changed[name]} == {*change, "updated_at"} - {"unknown"}
    assert changed["signature"] == {"text": "Desk", "html": "<b>Desk</b>"}
    assert changed["send_policy"] == {"daily_cap": 7, "auto_reply": "denied", "require_known_recipient": True}
    assert (await world.get(world.at())).json() == changed
    ((kind, data),) = await told(world)
    assert kind == "identity.updated"
    assert data == {"identity": changed, "changed": [*list(change)[:3], "signature", "metadata", "send_policy"]}


async def test_what_is_left_out_stays_and_null_clears(world: World) -> None:
    await world.patch(
        world.at(),
        {
            "purpose": "p",
            "signature": {"text": "t", "html": "<p>h</p>"},
            "metadata": {"a": "1", "b": "2"},
            "send_policy": {"daily_cap": 7, "require_known_recipient": False},
        },
    )
    changed = (
        await world.patch(
            world.at(),
            {
                "purpose": None,
                "signature": {"text": None},
                "metadata": {"b": "3"},
                "send_policy": {"auto_reply": "denied"},
            },
        )
    ).json()
    assert changed["purpose"] is None
    assert changed["signature"] == {"text": None, "html": "<p>h</p>"}
    assert changed["metadata"] == {"b": "3"}
    assert changed["send_policy"] == {"daily_cap": 7, "require_known_recipient": False, "auto_reply": "denied"}
    known = len(await told(world))
    same = await world.patch(world.at(), {"purpose": None, "metadata": {"b": "3"}})
    assert same.status_code == 200
    assert len(await told(world)) == known, "nothing changed, and yet it was announced"


@pytest.mark.covers("edge:A7", "FR-IDN-3")
async def test_pause_and_resume(world: World) -> None:
    paused = (await world.patch(world.at(), {"status": "paused", "purpose": "p"})).json()
    assert (paused["status"], paused["pause_reason"], paused["purpose"]) == ("paused", "manual", "p")
    assert (await world.patch(world.at(), {"status": "paused"})).json()["status"] == "paused"
    resumed = (await world.patch(world.at(), {"status": "active"})).json()
    assert (resumed["status"], resumed["pause_reason"]) == ("active", None)
    assert (await world.patch(world.at(), {"status": "active"})).status_code == 200
    assert [kind for kind, _ in await told(world)] == ["identity.updated", "identity.paused", "identity.resumed"]


async def set_pause(world: World, reason: str) -> None:
    async with world.db.acquire() as conn:
        await conn.execute(
            "UPDATE identities SET status = 'paused', pause_reason = $2 WHERE id = $1", world.box.id, reason
        )


@pytest.mark.covers("edge:J17")
async def test_who_may_lift_a_pause(world: World) -> None:
    own = await world.new_key(Level.IDENTITY, ["identities:write"], identity=world.box)
    await set_pause(world, "abuse_threshold")
    refused = await world.patch(world.at(), {"status": "active", "purpose": "p"}, own)
    assert (refused.status_code, code(refused), details(refused)["field"]) == (403, "scope_denied", "status")
    assert (await world.get(world.at())).json()["purpose"] is None, "half of it was done"
    assert (await world.patch(world.at(), {"purpose": "q"}, own)).status_code == 200
    assert (await world.patch(world.at(), {"status": "active"})).json()["status"] == "active"
    await set_pause(world, "tenant_suspended")
    for headers in (world.key, world.platform):
        refused = await world.patch(world.at(), {"status": "active"}, headers)
        assert (refused.status_code, code(refused)) == (409, "identity_paused")
        assert details(refused)["reason"] == "tenant_suspended"


@pytest.mark.covers("security-privacy:A4.2")
async def test_who_may_change_what(world: World) -> None:
    reader = await world.new_key(Level.TENANT, ["identities:read"], tenant=world.tenant)
    assert code(await world.patch(world.at(), {"purpose": "p"}, reader)) == "permission_denied"
    assert code(await world.patch(world.at(), {"purpose": "p"}, world.other_key)) == "identity_not_found"
    over = await world.patch(world.at(), {"send_policy": {"daily_cap": 501}, "purpose": "p"})
    assert (code(over), details(over)["field"]) == ("scope_denied", "send_policy.daily_cap")
    assert (await world.get(world.at())).json()["purpose"] is None
    assert (await world.patch(world.at(), {"send_policy": {"daily_cap": 501}}, world.platform)).status_code == 200
    for status in ("deleting", "deleted"):
        async with world.db.acquire() as conn:
            await conn.execute("UPDATE identities SET status = $2 WHERE id = $1", world.box.id, status)
        assert code(await world.patch(world.at(), {"status": "active"})) == "identity_not_found"
    assert [data["changed"] for _, data in await told(world)] == [["send_policy"]], "more than the platform's was done"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "body"),
        ({"unknown": 1}, "body"),
        ([], "body"),
        ({"display_name": None}, "display_name"),
        ({"display_name": ""}, "display_name"),
        ({"display_name": "a\r\nb"}, "display_name"),
        ({"display_name": "x" * 79}, "display_name"),
        ({"purpose": "\x00"}, "purpose"),
        ({"purpose": "x" * 256}, "purpose"),
        ({"owner": None}, "owner"),
        ({"owner": {"name": "Bo"}}, "owner.email"),
        ({"owner": {"name": "", "email": "bo@example.com"}}, "owner.name"),
        ({"signature": {"text": 1}}, "signature.text"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": None}}, "metadata.a"),
        ({"send_policy": {"daily_cap": -1}}, "send_policy.daily_cap"),
        ({"send_policy": {"auto_reply": "perhaps"}}, "send_policy.auto_reply"),
        ({"status": "deleted"}, "status"),
        ({"status": None}, "status"),
    ],
)
async def test_wrong_bodies(world: World, body: Any, path: str) -> None:
    response = await world.patch(world.at(), body)
    assert (response.status_code, code(response)) == (400, "invalid_request")
    assert details(response)["errors"][0]["path"].startswith(path)
    assert await told(world) == []


async def test_an_owner_that_cannot_be_written_to(world: World) -> None:
    response = await world.patch(world.at(), {"owner": {"name": "Bo", "email": "bo@exa mple.com"}})
    assert response.status_code == 400
    response = await world.patch(world.at(), {"owner": {"name": "Bo", "email": "bo@-.example"}})
    assert (response.status_code, code(response)) == (400, "address_invalid")


async def test_two_at_once_lose_nothing(world: World) -> None:
    caps = [{"send_policy": {"daily_cap": 3}}, {"send_policy": {"auto_reply": "denied"}}, {"purpose": "p"}]
    await asyncio.gather(*(world.patch(world.at(), body) for body in caps * 4))
    shown = (await world.get(world.at())).json()
    assert shown["send_policy"] == {"daily_cap": 3, "auto_reply": "denied", "require_known_recipient": True}
    assert shown["purpose"] == "p"
    assert len(await told(world)) == 3
