"""Rotating the deployment's signing keys over HTTP (rest-api §5, Platform; security-privacy A6.2)."""

from __future__ import annotations

import pytest

from postroom.accounts import Level
from postroom.accounts.signing_keys import Purpose, SigningKeys
from tests.rest.contract import check
from tests.rest.sender import code
from tests.rest.world import MASTER, World


def at(purpose: str) -> str:
    return f"/v1/platform/keys/{purpose}/rotate"


async def kids(world: World, purpose: Purpose) -> list[str]:
    return [key.kid for key in await SigningKeys(world.db, MASTER, world.clock).ring(purpose)]


@pytest.mark.covers("security-privacy:A6.2")
async def test_a_key_takes_the_place_of_another(world: World) -> None:
    first = await world.post(at("thread"), headers=world.platform)
    assert first.status_code == 200, first.text
    check("SigningKeyRotation", first.json())
    assert first.json() == {
        "purpose": "thread",
        "kid": "1",
        "created_at": "2030-01-01T00:00:00.000Z",
        "previous": {"kid": "0", "verify_until": "2030-04-01T00:00:00.000Z", "revoked": False},
    }
    leak = await world.post(at("thread"), headers=world.platform, revoke_previous="true")
    assert leak.json()["previous"] == {"kid": "1", "verify_until": "2030-01-01T00:00:00.000Z", "revoked": True}
    assert await kids(world, Purpose.THREAD) == ["2"]
    other = await world.post(at("forward"), headers=world.platform)
    assert other.json()["previous"]["verify_until"] == "2030-01-31T00:00:00.000Z"
    rows = (await world.get("/v1/audit-events", world.platform, action="signing_key.rotate")).json()["data"]
    assert [(row["target_id"], row["details"]) for row in rows[1:]] == [
        ("thread:2", {"purpose": "thread", "previous": "1", "revoke_previous": True}),
        ("thread:1", {"purpose": "thread", "previous": "0", "revoke_previous": False}),
    ]
    assert all(row["actor_key_id"] and row["request_id"] for row in rows)


async def test_a_repetition_rotates_once(world: World) -> None:
    first = await world.post(at("bounce"), headers=world.platform, key="k")
    again = await world.post(at("bounce"), headers=world.platform, key="k")
    assert (again.status_code, again.json()) == (200, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert await kids(world, Purpose.BOUNCE) == ["1", "0"]
    rows = await world.get("/v1/audit-events", world.platform, action="signing_key.rotate")
    assert len(rows.json()["data"]) == 1
    other = await world.post(at("bounce"), headers=world.platform, key="k", revoke_previous="true")
    assert (other.status_code, code(other)) == (409, "idempotency_conflict")


async def test_who_may(world: World) -> None:
    for headers in (world.key, await world.new_key(Level.PLATFORM, ["audit:read"])):
        response = await world.post(at("thread"), headers=headers)
        assert (response.status_code, code(response)) == (403, "permission_denied")
    off = await world.post(at("web_bot_auth"), headers=world.platform)
    assert (off.status_code, code(off)) == (422, "web_bot_auth_disabled")
    for purpose in ("Thread", "%00", "thread%0a"):
        response = await world.post(at(purpose), headers=world.platform)
        assert (response.status_code, code(response)) == (400, "invalid_request")
    wrong = await world.post(at("thread"), headers=world.platform, revoke_previous="perhaps")
    assert (wrong.status_code, code(wrong)) == (400, "invalid_request")
    assert await kids(world, Purpose.THREAD) == ["0"]


async def test_a_ring_that_does_not_open_leaves_the_idempotency_key_free(world: World) -> None:
    await world.post(at("bounce"), headers=world.platform)
    async with world.db.acquire() as conn:
        kept = await conn.fetchval("SELECT sealed FROM signing_keys WHERE kid = '1'")
        await conn.execute("UPDATE signing_keys SET sealed = 'x' WHERE kid = '1'")
    world.clock.advance(3600)
    broken = await world.post(at("bounce"), headers=world.platform, key="k")
    assert (broken.status_code, code(broken)) == (503, "unavailable")
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE signing_keys SET sealed = $1 WHERE kid = '1'", kept)
    assert (await world.post(at("bounce"), headers=world.platform, key="k")).json()["kid"] == "2"
