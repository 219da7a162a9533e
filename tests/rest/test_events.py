"""Events listed and followed (events-webhooks-errors §1–4): who is told what, where a stream goes on, how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from postroom.accounts import Level
from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY, Permission
from postroom.directory import Identity
from postroom.events.catalogue import message_received
from postroom.mailbox.models import Appended
from tests.events.checking import check_payload
from tests.rest.streaming import connected
from tests.rest.world import World, simple_mail


def types(events: list[dict[str, Any]]) -> list[str]:
    return [one["type"] for one in events]


async def deliver(world: World, mail: bytes, to: Identity | None = None) -> Appended:
    """Mail that is told of."""
    return await world.deliver(mail, to=to, announce=message_received)


async def listed(world: World, headers: dict[str, str] | None = None, **params: Any) -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    while True:
        answer = await world.get("/v1/events", headers, **params)
        assert answer.status_code == 200, answer.text
        found += answer.json()["data"]
        if (cursor := answer.json()["next_cursor"]) is None:
            return found
        params["cursor"] = cursor


@pytest.mark.covers("decisions:A7")
async def test_lists_what_happened_newest_first(world: World) -> None:
    stored = [await deliver(world, simple_mail(f"Mail {n}")) for n in range(5)]
    await deliver(world, simple_mail("Elsewhere"), to=world.other_box)
    found = await listed(world, types="message.received", limit=2)
    assert [one["data"]["message"]["id"] for one in found] == [one.message_id for one in reversed(stored)]
    everything = await listed(world)
    assert types(everything) == ["message.received"] * 5 + ["identity.created"]
    for one in everything:
        check_payload(json.dumps(one).encode())
    assert {one["tenant_id"] for one in everything} == {world.tenant.public_id}


@pytest.mark.covers("decisions:B3")
async def test_the_bytes_are_those_that_are_stored(world: World) -> None:
    await deliver(world, simple_mail("Ünïcode ✓", "Text\u2028with separators."))
    async with world.db.acquire() as conn:
        payload = await conn.fetchval("SELECT payload FROM events WHERE type = 'message.received'")
    answer = await world.get("/v1/events", types="message.received")
    assert answer.content == b'{"data":[' + payload + b'],"next_cursor":null}'


async def test_filters(world: World) -> None:
    sibling = await world.new_identity(world.tenant, "sibling")
    await deliver(world, simple_mail("One"))
    moment = world.clock.now()
    await deliver(world, simple_mail("Two"), to=sibling)
    mine = await listed(world, identity_id=world.box.public_id)
    assert types(mine) == ["message.received", "identity.created"]
    assert types(await listed(world, since=moment.isoformat())) == ["message.received"]
    assert types(await listed(world, types="identity.created,message.sent")) == ["identity.created"] * 2
    assert await listed(world, world.platform, tenant_id=world.other_tenant.public_id, types="message.received") == []
    assert len(await listed(world, world.platform, types="message.received")) == 2
    for wrong in ({"types": "message.nothing"}, {"types": "delivery.updated"}, {"types": ""}, {"since": "yesterday"}):
        assert (await world.get("/v1/events", **wrong)).status_code == 400, wrong
    for foreign in ({"tenant_id": world.other_tenant.public_id}, {"identity_id": world.other_box.public_id}):
        assert (await world.get("/v1/events", **foreign)).status_code == 404, foreign


@pytest.mark.covers("edge:J29", "security-privacy:A4.2")
async def test_each_level_sees_what_is_its_own(world: World) -> None:
    sibling = await world.new_identity(world.tenant, "sibling")
    for box in (world.box, sibling, world.other_box):
        await deliver(world, simple_mail(), to=box)
    own = await world.new_key(Level.IDENTITY, identity=world.box)
    assert {one["identity_id"] for one in await listed(world, own)} == {world.box.public_id}
    assert {one["tenant_id"] for one in await listed(world, world.other_key)} == {world.other_tenant.public_id}
    assert len(await listed(world, world.platform)) == 6
    unread = sorted(MAY_HOLD[Level.TENANT] - OWNER_ONLY - {Permission.MESSAGES_READ})
    blind = await world.new_key(Level.TENANT, unread, tenant=world.tenant)
    seen = await listed(world, blind)
    if any(one["type"].startswith("message.") for one in seen):
        pytest.fail("mail is told to who may not read it")
    refused = await world.get("/v1/events", blind, types="message.received")
    assert (refused.status_code, refused.json()["error"]["details"]) == (403, {"required": ["messages:read"]})


@pytest.mark.covers("edge:J15", "FR-KEY-4")
async def test_a_partner_sees_its_tenants_and_no_others(world: World) -> None:
    answer = await world.post("/v1/partners", {"name": "Part"}, world.platform)
    body = {
        "name": "k",
        "level": "partner",
        "partner_id": answer.json()["id"],
        "permissions": sorted(MAY_HOLD[Level.PARTNER] - OWNER_ONLY),
    }
    made = await world.post("/v1/keys", body, world.platform)
    secret = next(one for one in made.json().values() if isinstance(one, str) and one.startswith("pmk_"))
    key = {"authorization": f"Bearer {secret}"}
    tenant = await world.post("/v1/tenants", {"slug": "theirs", "name": "Theirs", "mode": "live"}, key, key="t1")
    assert tenant.status_code == 201, tenant.text
    theirs = await world.tenants.get(tenant.json()["id"])
    async with world.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM partner_tenants") == 1
    box = await world.new_identity(theirs, "theirs")
    await deliver(world, simple_mail("Not theirs"))
    async with connected(world.app, key) as stream:
        await deliver(world, simple_mail("Theirs"), to=box)
        await deliver(world, simple_mail("Not theirs"))
        first = (await stream.next()).data
        assert first["identity_id"] == box.public_id
        assert stream.waiting == 0
    for params in ({}, {"tenant_id": theirs.public_id}):
        assert {one["tenant_id"] for one in await listed(world, key, **params)} == {theirs.public_id}
    assert (await world.get("/v1/events", key, tenant_id=world.tenant.public_id)).status_code == 404


@pytest.mark.covers("edge:A15")
async def test_the_systems_own_mail_is_the_platforms_alone(world: World) -> None:
    system = await world.new_identity(world.tenant, "sys")
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE identities SET is_system = true WHERE public_id = $1", system.public_id)
    async with connected(world.app, world.key) as ours, connected(world.app, world.platform) as all_of_it:
        await deliver(world, simple_mail("Code 123456"), to=system)
        await deliver(world, simple_mail("Hello"))
        assert (await ours.next()).data["identity_id"] == world.box.public_id
        assert (await all_of_it.next()).data["identity_id"] == system.public_id
    assert system.public_id not in {one["identity_id"] for one in await listed(world)}
    assert system.public_id in {one["identity_id"] for one in await listed(world, world.platform)}


async def test_a_stream_tells_what_happens(world: World) -> None:
    await deliver(world, simple_mail("Before"))
    async with connected(world.app, world.key) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["request-id"].startswith("req_")
        stored = await deliver(world, simple_mail("Now", "Line one\r\nLine two"))
        await deliver(world, simple_mail("Elsewhere"), to=world.other_box)
        line = await stream.next()
        assert (line.kind, line.data["data"]["message"]["id"]) == ("message.received", stored.message_id)
        check_payload(json.dumps(line.data).encode())
        await world.new_identity(world.tenant, "another")
        assert (await stream.next()).kind == "identity.created"
        assert stream.waiting == 0
