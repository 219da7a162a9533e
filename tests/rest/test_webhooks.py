"""Webhooks over HTTP (rest-api §5.14; events-webhooks-errors §5, §10, §11; J15, J19, J29, A15)."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts import Level
from postroom.base.ids import is_id
from postroom.events.registry import EventType
from postroom.events.webhooks import signing
from postroom.events.webhooks.endpoints import URL_WORDS
from postroom.net.guard import Refusal
from postroom.net.guarded_http import Code, Failure
from postroom.servers.http.failures import MAX_MESSAGE, violations
from tests.events.hooks import Receivers, Room
from tests.rest.contract import CONTRACT, check
from tests.rest.world import MASTER, World

pytestmark = pytest.mark.events_made_up

URL: Final = "https://hooks.example.com/in?key=secret"
PLAIN: Final = {"url": URL, "events": ["member.joined"]}
MANAGE: Final = ["webhooks:manage"]


def receivers(world: World) -> Receivers:
    webhooks = world.app.services.webhooks
    assert webhooks is not None
    return cast(Receivers, webhooks._client)


def of_tenant(world: World) -> str:
    return f"/v1/tenants/{world.tenant.public_id}/webhooks"


async def made(world: World, headers: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    answer = await world.post(of_tenant(world), PLAIN | more, headers)
    assert answer.status_code == 201, answer.text
    return cast(dict[str, Any], answer.json())


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


async def audited(world: World, target: str) -> list[tuple[str, dict[str, Any]]]:
    async with world.db.acquire() as conn:
        rows = await conn.fetch("SELECT action, details FROM audit_log WHERE target_id = $1 ORDER BY id", target)
    return [(row["action"], row["details"]) for row in rows]


def test_the_types_are_those_of_the_contract() -> None:
    published = CONTRACT["enums"]["EventType"]
    assert [one.value for one in EventType] == (published if isinstance(published, list) else published["values"])


@pytest.mark.covers("FR-WH-1", "FR-WH-2")
async def test_a_webhook_is_made_shown_and_deleted(world: World) -> None:
    one = await made(world, identity_ids=[world.box.public_id], description="Mine")
    check("WebhookCreated", one)
    assert (one["scope"], one["tenant_id"], one["partner_id"]) == ("tenant", world.tenant.public_id, None)
    assert (one["enabled"], one["disabled_reason"]) == (True, None)
    assert len(signing.secret_bytes(one["secret"])) == 32
    async with world.db.acquire() as conn:
        stored = await conn.fetchrow("SELECT * FROM webhook_secrets")
    assert stored is not None
    assert signing.secret_bytes(one["secret"]) not in stored["secret_enc"]
    shown = (await world.get(f"/v1/webhooks/{one['id']}")).json()
    check("Webhook", shown)
    assert shown == {name: value for name, value in one.items() if name != "secret"}
    listed = (await world.get("/v1/webhooks")).json()
    check("WebhookPage", listed)
    assert listed == {"data": [shown], "next_cursor": None} == (await world.get(of_tenant(world))).json()
    assert (await world.client.delete(f"/v1/webhooks/{one['id']}", headers=world.key)).status_code == 204
    assert code(await world.get(f"/v1/webhooks/{one['id']}")) == "webhook_not_found"
    assert [action for action, _ in await audited(world, one["id"])] == ["webhook.create", "webhook.delete"]
    assert "secret" not in str(await audited(world, one["id"]))


async def test_lists_are_of_whoever_asks(world: World) -> None:
    one = await made(world)
    platform = (await world.post("/v1/webhooks", PLAIN, world.platform)).json()
    check("WebhookCreated", platform)
    assert platform["scope"] == "platform"
    of_box = await world.new_key(Level.IDENTITY, identity=world.box)

    async def ids(path: str, headers: dict[str, str]) -> list[str]:
        return [item["id"] for item in (await world.get(path, headers)).json()["data"]]

    assert await ids("/v1/webhooks", world.platform) == [platform["id"]]
    assert await ids("/v1/webhooks", world.key) == await ids("/v1/webhooks", of_box) == [one["id"]]
    assert await ids("/v1/webhooks", world.other_key) == []
    assert await ids(of_tenant(world), world.platform) == await ids(of_tenant(world), of_box) == [one["id"]]
    assert (await world.get(f"/v1/webhooks/{one['id']}", world.platform)).status_code == 200
    assert code(await world.get(f"/v1/webhooks/{platform['id']}")) == "webhook_not_found"
    assert code(await world.get(f"/v1/webhooks/{one['id']}", world.other_key)) == "webhook_not_found"
    assert code(await world.post("/v1/webhooks", PLAIN)) == "scope_denied"
    assert code(await world.post(of_tenant(world), PLAIN, of_box)) == "scope_denied"
    assert code(await world.patch(f"/v1/webhooks/{one['id']}", {"enabled": False}, of_box)) == "scope_denied"


async def test_pages(world: World) -> None:
    found = []
    for _ in range(5):
        found.append((await made(world))["id"])
        world.clock.advance(1)
    first = (await world.get("/v1/webhooks", limit=3)).json()
    rest = (await world.get("/v1/webhooks", limit=3, cursor=first["next_cursor"])).json()
    assert [item["id"] for item in first["data"] + rest["data"]] == found[::-1]
    assert rest["next_cursor"] is None


@pytest.mark.covers("FR-WH-5")
@pytest.mark.parametrize("url", ["http://hooks.example.com/", "ftp://x", "", 7, None])
async def test_urls_that_are_none(world: World, url: object) -> None:
    answer = await world.post(of_tenant(world), PLAIN | {"url": url})
    assert (answer.status_code, code(answer)) == (400, "invalid_request")
    assert answer.json()["error"]["details"]["errors"][0]["path"] == "url"


@pytest.mark.covers("FR-WH-5")
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://hooks.example.com/", "must begin with https://"),
        ("https://192.0.2.1/", "has an IP address in place of the name of a host"),
        ("https://me:secret@hooks.example.com/", "has a user or password in it"),
        ("https://hooks.example.com/#top", "has a # in it"),
        ("https://hooks.example.com:25/", "has a port other than 443 and those from 1024 on"),
        ("https://hooks/", "has a host that is not a name of two labels or more"),
        (URL, "has a host that has no address in the DNS now"),
    ],
)
async def test_it_is_told_what_is_wrong_with_a_url(world: World, url: str, said: str) -> None:
    receivers(world).refused.add(URL)
    answer = await world.post(of_tenant(world), PLAIN | {"url": url})
    assert (answer.status_code, code(answer)) == (400, "invalid_request")
    assert answer.json()["error"]["details"]["errors"] == [{"path": "url", "message": said}]


@pytest.mark.covers("FR-WH-5")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("message.recieved", "message.recieved is no type of event"),
        ("me@example.com", "is no type of event"),
        ("m" * 5000, "is no type of event"),
    ],
)
async def test_a_type_that_is_none_is_named(world: World, given: str, said: str) -> None:
    """Where it is written as one; else it may be anything, and is not repeated."""
    one = await made(world)
    for answer, path in (
        (await world.post(of_tenant(world), PLAIN | {"events": ["*", given]}), "events.1"),
        (await world.patch(f"/v1/webhooks/{one['id']}", {"events": [given]}), "events.0"),
        (await world.get(f"/v1/webhooks/{one['id']}/deliveries", event_type=given), "event_type"),
        (await world.get("/v1/events", types=f"message.received,{given}"), "types.1"),
    ):
        assert (answer.status_code, code(answer)) == (400, "invalid_request")
        assert answer.json()["error"]["details"]["errors"] == [{"path": path, "message": said}]


@given(st.lists(st.text("ab", min_size=1, max_size=40), min_size=1, max_size=10).map(lambda some: some * 20))
def test_long_words_of_what_is_wrong_end_with_a_word(words: list[str]) -> None:
    text = " ".join(words)
    told = violations([{"loc": ("body", "x"), "msg": text}])
    assert told.details is not None
    (error,) = told.details["errors"]
    said = error["message"]
    assert len(said) <= MAX_MESSAGE
    assert said == text or (said.endswith(" …") and said[:-2].split(" ") == words[: len(said[:-2].split(" "))])


async def test_no_more_types_are_parsed_than_there_are(world: World) -> None:
    answer = await world.post(of_tenant(world), PLAIN | {"events": ["message.received"] * 100})
    (error,) = answer.json()["error"]["details"]["errors"]
    assert (code(answer), error["path"]) == ("invalid_request", "events")


def test_every_refusal_of_a_url_has_words() -> None:
    assert set(URL_WORDS) == {*Refusal, Code.DNS}


@pytest.mark.covers("FR-WH-5", "SEC-9")
async def test_urls_that_are_refused(world: World) -> None:
    receivers(world).refused.add(URL)
    answer = await world.post(of_tenant(world), PLAIN)
    assert code(answer) == "invalid_request"
    assert answer.json()["error"]["details"]["errors"][0]["path"] == "url"
    receivers(world).refused.clear()
    one = await made(world)
    receivers(world).refused.add("https://inside.example.com/")
    answer = await world.patch(f"/v1/webhooks/{one['id']}", {"url": "https://inside.example.com/"})
    assert answer.json()["error"]["details"]["errors"][0]["path"] == "url"
    assert (await world.get(f"/v1/webhooks/{one['id']}")).json()["enabled"] is True


async def test_no_more_than_twenty(world: World) -> None:
    answers = await asyncio.gather(*(world.post(of_tenant(world), PLAIN) for _ in range(23)))
    assert sorted(answer.status_code for answer in answers) == [201] * 20 + [422] * 3
    assert {code(answer) for answer in answers if answer.status_code == 422} == {"webhook_limit_reached"}
    assert (await world.post("/v1/webhooks", PLAIN, world.platform)).status_code == 201


@pytest.mark.covers("edge:J29")
@pytest.mark.parametrize(
    ("events", "missing"),
    [
        (["*"], ["messages:read", "quarantine:review"]),
        (["message.sent"], ["messages:read"]),
        (["verification.received", "member.joined"], ["messages:read"]),
        (["message.quarantined"], ["messages:read", "quarantine:review"]),
    ],
)
async def test_mail_takes_the_permission_to_read_it(world: World, events: list[str], missing: list[str]) -> None:
    bare = await world.new_key(Level.TENANT, MANAGE, tenant=world.tenant)

    def refused(answer: httpx.Response) -> None:
        assert (answer.status_code, code(answer)) == (403, "permission_denied")
        assert answer.json()["error"]["details"]["required"] == missing

    refused(await world.post(of_tenant(world), PLAIN | {"events": events}, bare))
    mine = await made(world, bare)
    path = f"/v1/webhooks/{mine['id']}"
    refused(await world.patch(path, {"events": events}, bare))
    theirs = f"/v1/webhooks/{(await made(world, events=events))['id']}"
    refused(await world.patch(theirs, {"url": "https://mine.example.com/"}, bare))
    refused(await world.post(f"{theirs}/replay", {"since": "2029-12-31T00:00:00Z"}, bare))
    assert (await world.get(theirs)).json()["url"] == URL
    assert (await world.patch(theirs, {"description": "d", "enabled": False}, bare)).status_code == 200
    able = await world.new_key(Level.TENANT, [*MANAGE, *missing], tenant=world.tenant)
    assert (await world.patch(path, {"events": events}, able)).status_code == 200


@pytest.mark.covers("edge:J29")
async def test_a_changed_url_is_tested_first(world: World) -> None:
    one = await made(world)
    path, new = f"/v1/webhooks/{one['id']}", "https://new.example.com/path"
    same = (await world.patch(path, {"url": URL})).json()
    assert same["enabled"] is True
    changed = (await world.patch(path, {"url": new})).json()
    check("Webhook", changed)
    assert (changed["url"], changed["enabled"], changed["disabled_reason"]) == (new, False, "url_changed")
    # No way round the test.
    for body in ({"enabled": True}, {"url": URL, "enabled": True}):
        assert code(await world.patch(path, body)) == "invalid_request"
    off = (await world.patch(path, {"enabled": False})).json()
    assert off["disabled_reason"] == "url_changed"
    receivers(world).answers[new] = Failure(Code.TLS, 12)
    failed = (await world.post(f"{path}/test")).json()
    check("WebhookDelivery", failed)
    assert (failed["status"], failed["error"], failed["duration_ms"]) == ("failed", "tls", 12)
    assert (await world.get(path)).json()["enabled"] is False
    del receivers(world).answers[new]
    passed = (await world.post(f"{path}/test")).json()
    assert (passed["status"], passed["http_status"], passed["event_type"]) == ("succeeded", 204, "webhook.test")
    assert (await world.get(path)).json()["enabled"] is True
    hosts = [details["host"] for action, details in await audited(world, one["id"]) if "host" in details]
    assert hosts == ["hooks.example.com", ["hooks.example.com", "new.example.com"]]


async def test_a_test_is_signed_and_listed_and_nothing_more(world: World) -> None:
    one = await made(world)
    path = f"/v1/webhooks/{one['id']}"
    await world.patch(path, {"enabled": False})
    tested = (await world.post(f"{path}/test")).json()
    (request,) = receivers(world).requests
    assert (
        signing.verify(
            one["secret"],
            message_id=request.headers["webhook-id"],
            timestamp=request.headers["webhook-timestamp"],
            signatures=request.headers["webhook-signature"],
            body=request.body,
            now=world.clock.now().timestamp(),
        )
        is None
    )
    # One that was disabled by hand stays so.
    assert (await world.get(path)).json()["disabled_reason"] == "manual"
    listed = (await world.get(f"{path}/deliveries")).json()
    check("WebhookDeliveryPage", listed)
    assert listed["data"] == [tested]
    again = await world.post(f"{path}/replay", {"event_ids": [tested["event_id"]]})
    assert (again.status_code, again.json()) == (202, {"queued": 0})
    on = (await world.patch(path, {"enabled": True})).json()
    assert (on["enabled"], on["disabled_reason"]) == (True, None)


@pytest.mark.covers("edge:J19")
async def test_a_secret_is_shown_once(world: World) -> None:
    first = await world.post(of_tenant(world), PLAIN, key="k1")
    again = await world.post(of_tenant(world), PLAIN, key="k1")
    assert again.headers["idempotent-replayed"] == "true"
    check("WebhookCreated", again.json())
    assert again.json() == {
        **{name: value for name, value in first.json().items() if name != "secret"},
        "secret_replayed": False,
    }
    path = f"/v1/webhooks/{first.json()['id']}"
    rotated = await world.post(f"{path}/rotate-secret", {"overlap_hours": 1}, key="k2")
    check("WebhookCreated", rotated.json())
    assert rotated.json()["secret"] != first.json()["secret"]
    assert "secret" not in (await world.post(f"{path}/rotate-secret", {"overlap_hours": 1}, key="k2")).json()
    async with world.db.acquire() as conn:
        kept = await conn.fetch("SELECT * FROM idempotency_records")
    assert "whsec_" not in str([dict(row) for row in kept])
    assert (await world.post(f"{path}/rotate-secret")).status_code == 200
    for hours in (-1, 169):
        assert code(await world.post(f"{path}/rotate-secret", {"overlap_hours": hours})) == "invalid_request"
    # A test is sent once for a key.
    tests = [(await world.post(f"{path}/test", key="k3")).json() for _ in range(2)]
    assert tests[0] == tests[1]
    assert len(receivers(world).requests) == 1


async def test_what_is_not_a_change(world: World) -> None:
    path = f"/v1/webhooks/{(await made(world))['id']}"
    body: dict[str, Any]
    for body in ({}, {"url": None}, {"events": []}, {"events": ["nothing.known"]}, {"enabled": None}):
        assert code(await world.patch(path, body)) == "invalid_request", body
    assert (await world.patch(path, {"identity_ids": None, "description": None})).status_code == 200
    for body in ({"events": ["*", "*"]}, {"events": "*"}, {"identity_ids": ["idn_x"]}):
        assert code(await world.post(of_tenant(world), PLAIN | body)) == "invalid_request", body


# -- replay


def room_of(world: World) -> Room:
    return Room(world.db, world.clock, world.ids, receivers(world), sequence=1000, keyring=MASTER)


@pytest.mark.covers("edge:J4", "FR-WH-3")
async def test_replay(world: World) -> None:
    room = room_of(world)
    one = await made(world)
    path = f"/v1/webhooks/{one['id']}/replay"
    events = []
    for _ in range(3):
        events.append(await room.event(world.tenant.id, "member.joined"))
        world.clock.advance(10)
    other = await room.event(world.tenant.id, "member.removed")
    foreign = await room.event(world.other_tenant.id, "member.joined")
    assert await room.told() == {URL: events}
    again = await world.post(path, {"event_ids": [events[2], events[0], other, foreign, world.ids.new("evt_")]})
    check("ReplayResponse", again.json())
    assert (again.status_code, again.json()) == (202, {"queued": 2})
    assert await room.told() == {URL: [events[0], events[2]]}
    since, until = "2030-01-01T00:00:05Z", "2030-01-01T00:00:20.000Z"
    for body, expected in (
        ({"since": since}, events[1:]),
        ({"since": since, "until": until}, [events[1]]),
        ({"since": "2029-01-01T00:00:00Z", "status": "succeeded"}, events),
        ({"since": "2029-01-01T00:00:00Z", "status": "dead"}, []),
        ({"since": "2029-01-01T00:00:00Z", "status": "failed"}, []),
    ):
        assert (await world.post(path, body)).json() == {"queued": len(expected)}, body
        assert (await room.told()).get(URL, []) == expected
    attempts = (await world.get(f"/v1/webhooks/{one['id']}/deliveries", limit=100)).json()["data"]
    assert sorted(item["attempt"] for item in attempts if item["event_id"] == events[2]) == [1, 2, 3, 4]


async def test_replay_by_how_it_went(world: World) -> None:
    room = room_of(world)
    one = await made(world)
    path = f"/v1/webhooks/{one['id']}"
    receivers(world).answers[URL] = Failure(Code.TIMEOUT, 15000)
    event = await room.event(world.tenant.id, "member.joined")
    await room.told()
    window: dict[str, Any] = {"since": "2029-01-01T00:00:00Z"}
    assert (await world.post(f"{path}/replay", window | {"status": "failed"})).json() == {"queued": 1}
    (task,) = await room.tasks()
    assert (task["attempt"], task["first_attempt"], task["next_attempt_at"]) == (2, 2, world.clock.now())
    await world.patch(path, {"enabled": False})
    await room.told()
    failed = (await world.get(f"{path}/deliveries", status="failed")).json()["data"]
    dead = (await world.get(f"{path}/deliveries", status="dead", event_type="member.joined")).json()["data"]
    assert [(item["attempt"], item["error"]) for item in failed + dead] == [(1, "timeout"), (2, "endpoint_disabled")]
    assert (await world.get(f"{path}/deliveries", event_type="member.removed")).json()["data"] == []
    assert (await world.get(f"{path}/deliveries", after="2031-01-01T00:00:00Z")).json()["data"] == []
    await world.patch(path, {"enabled": True})
    del receivers(world).answers[URL]
    assert (await world.post(f"{path}/replay", window | {"status": "dead"})).json() == {"queued": 1}
    assert await room.told() == {URL: [event]}
    assert (await world.post(f"{path}/replay", window | {"status": "dead"})).json() == {"queued": 0}


async def test_what_is_too_old_or_too_much_is_not_replayed(world: World) -> None:
    room = room_of(world)
    path = f"/v1/webhooks/{(await made(world))['id']}/replay"
    old = await room.event(world.tenant.id, "member.joined")
    async with world.db.acquire() as conn:
        await conn.execute(
            "INSERT INTO events (public_id, type, tenant_id, owner_kind, owner_id, payload, occurred_at)"
            " SELECT 'evt_' || lpad(n::text, 26, '0'), 'member.joined', $1, 'platform', 'p', '{}', $2"
            " FROM generate_series(1, 1001) n",
            *(world.tenant.id, world.clock.now()),
        )
    for said, both in (
        ("must name events by event_ids, or a window by since", {}),
        ("must name events by event_ids, or a window by since", {"until": "2029-01-01T00:00:00Z"}),
        (
            "must name events by event_ids or a window by since, not both",
            {"event_ids": [old], "since": "2029-01-01T00:00:00Z"},
        ),
    ):
        answer = await world.post(path, both)
        assert (code(answer), said in answer.text) == ("invalid_request", True), answer.text
    answer = await world.post(path, {"since": "2029-01-01T00:00:00Z"})
    assert code(answer) == "invalid_request"
    assert await room.tasks() == []
    world.clock.advance(30 * 86400 + 60)
    key = await world.new_key(Level.TENANT, tenant=world.tenant)
    assert (await world.post(path, {"event_ids": [old]}, key)).json() == {"queued": 0}
    assert (await world.post(path, {"since": "2029-01-01T00:00:00Z"}, key)).json() == {"queued": 0}
    body: dict[str, Any]
    for body in ({}, {"event_ids": []}, {"event_ids": ["evt_x"]}, {"since": "now"}):
        assert code(await world.post(path, body, key)) == "invalid_request", body
    many = {"event_ids": [world.ids.new("evt_") for _ in range(101)]}
    assert code(await world.post(path, many, key)) == "invalid_request"


@pytest.mark.covers("edge:A15", "edge:J15")
async def test_replay_finds_only_what_would_be_told_now(world: World) -> None:
    room = room_of(world)
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE identities SET is_system = false WHERE is_system")
        await conn.execute("UPDATE identities SET is_system = true WHERE public_id = $1", world.box.public_id)
    system = await room.event(world.tenant.id, identity=(world.box.id, world.box.public_id))
    plain = await room.event(world.tenant.id, "member.joined")
    one = await made(world, events=["*"])
    platform = (await world.post("/v1/webhooks", PLAIN | {"events": ["*"]}, world.platform)).json()
    asked = {"event_ids": [system, plain]}
    assert (await world.post(f"/v1/webhooks/{one['id']}/replay", asked)).json() == {"queued": 1}
    assert (await world.post(f"/v1/webhooks/{platform['id']}/replay", asked, world.platform)).json() == {"queued": 2}
    assert all(is_id("evt_", row["event_id"]) for row in await room.tasks())
