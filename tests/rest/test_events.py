"""Events listed and followed (events-webhooks-errors §1–4): who is told what, where a stream goes on, how it ends."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from postroom.accounts import Level
from postroom.accounts.models import Scope
from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY, Permission
from postroom.directory import Identity
from postroom.events import reading
from postroom.events.catalogue import message_received
from postroom.events.reading import Wanted
from postroom.mailbox.models import Appended
from postroom.net.guarded_http import Response
from tests.events.checking import check_payload
from tests.events.hooks import Room
from tests.rest.streaming import connected
from tests.rest.world import World, simple_mail

GONE = Response(410, 3, b"", complete=True)


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


async def partner_key(world: World, name: str = "Part") -> tuple[dict[str, str], int]:
    """A key of a new partner, and the partner's."""
    answer = await world.post("/v1/partners", {"name": name}, world.platform)
    body = {
        "name": "k",
        "level": "partner",
        "partner_id": answer.json()["id"],
        "permissions": sorted(MAY_HOLD[Level.PARTNER] - OWNER_ONLY),
    }
    made = await world.post("/v1/keys", body, world.platform)
    secret = next(one for one in made.json().values() if isinstance(one, str) and one.startswith("pmk_"))
    async with world.db.acquire() as conn:
        key = await conn.fetchval("SELECT id FROM partners WHERE public_id = $1", answer.json()["id"])
    return {"authorization": f"Bearer {secret}"}, key


@pytest.mark.covers("edge:J15", "FR-KEY-4")
async def test_a_partner_sees_its_tenants_and_no_others(world: World) -> None:
    key, _ = await partner_key(world)
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


async def write_policy(world: World, tenant: str) -> None:
    answer = await world.patch(f"/v1/tenants/{tenant}/policy", {"max_recipients": 5}, world.platform)
    assert answer.status_code == 200, answer.text


@pytest.mark.covers("edge:J15", "FR-KEY-4")
async def test_a_partner_is_told_when_its_own_endpoint_is_disabled(world: World) -> None:
    """An event of no tenant: by list, stream and socket, to that partner and the platform, and of no other kind."""
    key, partner = await partner_key(world)
    other_key, _ = await partner_key(world, "Another")
    room = Room(world.db, world.clock, world.ids)
    mine, of_platform = await room.hook(partner=partner), await room.hook()
    room.receivers.answers |= {mine.url: GONE, of_platform.url: GONE}
    hers = str(await room.value("SELECT public_id FROM tenants WHERE id = $1", await room.tenant("hers", partner)))
    async with (
        connected(world.app, key) as stream,
        connected(world.app, other_key) as others,
        connected(world.app, world.key) as ours,
        connected(world.app, world.platform) as everything,
    ):
        await write_policy(world, hers)
        await room.told()
        streamed = await stream.events(2)
        assert types(streamed) == ["tenant.policy_updated", "webhook.disabled"]
        assert (streamed[1]["tenant_id"], streamed[1]["data"]["webhook_id"]) == (None, mine.public_id)
        assert types(await everything.events(3)) == [*types(streamed), "webhook.disabled"]
        assert (stream.waiting, others.waiting, ours.waiting) == (0, 0, 0)
    assert await listed(world, key) == streamed[::-1]
    assert await listed(world, key, types="webhook.disabled", limit=1) == streamed[1:]
    assert types(await listed(world, key, tenant_id=hers)) == ["tenant.policy_updated"]
    assert await listed(world, other_key) == []
    assert "webhook.disabled" not in types(await listed(world))
    assert len(await listed(world, world.platform, types="webhook.disabled")) == 2


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


@pytest.mark.covers("edge:J15", "FR-KEY-4")
async def test_a_partner_goes_on_where_it_was(world: World) -> None:
    """Of its tenants' events and its own together, in their order, a page at a time."""
    key, partner = await partner_key(world)
    room = Room(world.db, world.clock, world.ids)
    room.receivers.answers |= dict.fromkeys(("https://a.example.com/", "https://b.example.com/"), GONE)
    hers = str(await room.value("SELECT public_id FROM tenants WHERE id = $1", await room.tenant("hers", partner)))
    async with connected(world.app, key) as stream:
        start = stream.last_id
    for url in ("https://a.example.com/", "https://b.example.com/"):
        await room.hook(partner=partner, url=url)
        await write_policy(world, hers)
        await room.told()
    order = ["tenant.policy_updated", "webhook.disabled"] * 2
    assert types(await listed(world, key, limit=1)) == order[::-1]
    async with connected(world.app, key, last_id=start) as stream:
        assert types(await stream.events(4)) == order
        assert stream.waiting == 0


async def test_only_one_kind_of_no_tenant_is_a_partners(world: World) -> None:
    """Whatever is written some day: the table takes no other."""
    room = Room(world.db, world.clock, world.ids)
    with pytest.raises(asyncpg.CheckViolationError):
        await room.event(None, "billing.plan_changed", partner=1)


@pytest.mark.parametrize("way", ["back", "on"])
async def test_a_partners_list_is_read_by_indexes(world: World, way: str) -> None:
    """However many events there are of others, and of nobody."""
    _, partner = await partner_key(world)
    async with world.db.transaction() as conn:
        await conn.execute(
            "INSERT INTO partner_tenants (partner_id, tenant_id) VALUES ($1, $2)", partner, world.tenant.id
        )
        await conn.execute(
            "INSERT INTO events (public_id, type, tenant_id, partner_id, owner_kind, owner_id, payload, occurred_at)"
            " SELECT 'evt_' || lpad(n::text, 26, '0'), 'webhook.disabled', CASE WHEN n % 2 = 0 THEN 1000 + n % 50 END,"
            " CASE WHEN n % 1000 = 1 THEN $1::bigint WHEN n % 2 = 1 THEN $1 + 1 + n % 7 END, 'platform', 'platform',"
            " '{}', now() FROM generate_series(1, 20000) n",
            partner,
        )
        await conn.execute("ANALYZE events; SET LOCAL plan_cache_mode = 'force_generic_plan'")
        wanted = Wanted(Scope(Level.PARTNER, partner_id=partner), frozenset({"webhook.disabled"}))
        values = ("partner", partner, None, None, None, ["webhook.disabled"], None, 10**9 if way == "back" else 0)
        (plan,) = await conn.fetchval(
            "EXPLAIN (FORMAT JSON) " + reading._STATEMENTS[way][2], *values, reading.EVERYTHING, 25
        )
        found = await (
            reading.before(conn, wanted, None, 25)
            if way == "back"
            else reading.after(conn, wanted, 0, reading.EVERYTHING, 25)
        )
        assert len(found) == 20
        await conn.execute("DELETE FROM events WHERE public_id LIKE 'evt_0000%'")
    nodes, rest = [], [plan["Plan"]]
    while rest:
        nodes.append(rest.pop())
        rest += nodes[-1].get("Plans", ())
    read = {node.get("Index Name", node["Node Type"]) for node in nodes if node.get("Relation Name") == "events"}
    assert read == {"events_partner", "events_tenant"}, "in their order, and no more than a page of each"
