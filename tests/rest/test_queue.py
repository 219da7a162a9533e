"""The operator's queue over HTTP: who may look, what is shown, what may be done (mail-server C1 to C3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from postroom.accounts import Level
from postroom.events.catalogue import timestamp
from postroom.mailbox.models import MailboxRef
from postroom.outbound.models import QueueState
from postroom.outbound.queue import MailQueue
from postroom.servers.http import create_http
from tests.rest.sender import ANNA, BODY, Sender, code, details, make_sender
from tests.rest.world import World

QUEUE = "/v1/platform/queue"
ACTIONS = ("retry", "cancel", "hold", "release")
NO_IDS = ("0", "-1", "01", "x", "1.0", "9" * 19, "9" * 40, "%31%0a", "msg_01ARZ3NDEKTSV4RRFFQ69G5FAV", "\u0661")
FAILED = "status = 'failed', next_attempt_at = NULL, finished_at = '2030-01-01', reason = 'smtp_550'"


async def signed(wire: bytes, domain: str) -> bytes:
    return f"X-Signed: {domain}\r\n".encode() + wire


@dataclass
class Desk:
    """An operator's. `woken` and `changed` are what the queue told."""

    world: World
    sender: Sender
    client: httpx.AsyncClient
    document: dict[str, Any]
    woken: list[bool] = field(default_factory=list)
    changed: list[MailboxRef] = field(default_factory=list)

    async def get(self, path: str = "", headers: dict[str, str] | None = None, /, **params: Any) -> httpx.Response:
        return await self.client.get(QUEUE + path, headers=headers or self.world.platform, params=params or None)

    async def post(self, path: str, headers: dict[str, str] | None = None, *, key: str | None = None) -> httpx.Response:
        given = dict(headers or self.world.platform)
        if key is not None:
            given["idempotency-key"] = key
        return await self.client.post(QUEUE + path, headers=given)

    async def sent(self, *to: str, sender: Sender | None = None, key: str = "k") -> list[int]:
        """The deliveries of a new message."""
        sender = sender or self.sender
        response = await sender.send({**BODY, "to": list(to)}, key=key, headers=self.world.platform)
        assert response.status_code == 202, response.text
        rows = await sender.rows(
            "SELECT d.id FROM deliveries d JOIN messages m ON m.tenant_id = d.tenant_id AND m.id = d.message_id "
            "WHERE m.public_id = $1 ORDER BY d.position",
            response.json()["id"],
        )
        return [row["id"] for row in rows]

    async def state(self, delivery: int, assignments: str) -> None:
        await self.sender.execute(f"UPDATE deliveries SET {assignments} WHERE id = $1", delivery)

    def check(self, name: str, value: Any) -> None:
        """Raises when `value` is not what the OpenAPI document says of the schema, or has a member more."""
        schemas = {
            one: {**schema, "additionalProperties": False} if "properties" in schema else schema
            for one, schema in self.document["components"]["schemas"].items()
        }
        validator = Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}})
        assert [error.message for error in validator.iter_errors(value)] == []


@pytest.fixture
async def desk(world: World) -> AsyncIterator[Desk]:
    woken: list[bool] = []
    changed: list[MailboxRef] = []
    queue = MailQueue(
        world.db,
        world.blobs,
        world.clock,
        world.ids,
        sign=signed,
        changed=lambda ref, modseq: changed.append(ref),
        wake=lambda: woken.append(True),
    )
    app = create_http(replace(world.app.services, queue=queue))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.example") as client:
        document = (await client.get("/openapi.json")).json()
        yield Desk(world, await make_sender(world), client, document, woken, changed)


def plain(response: httpx.Response) -> tuple[int, dict[str, Any], dict[str, str]]:
    body = response.json()
    del body["error"]["request_id"]
    headers = {name: value for name, value in response.headers.items() if name not in ("request-id", "content-length")}
    return response.status_code, body, headers


# -- who may


@pytest.mark.covers("security-privacy:A4.2", "mail-server:C2")
async def test_only_operators(desk: Desk) -> None:
    """Whoever is no operator is told the same of what exists and of what does not."""
    world = desk.world
    (delivery,) = await desk.sent(ANNA)
    some = await world.new_key(Level.PLATFORM, ["tenants:manage", "messages:read", "messages:send"])
    own = await world.new_key(Level.IDENTITY, identity=desk.sender.box)
    for headers in (world.key, world.other_key, own, some):
        assert code(await desk.get("", headers)) == "permission_denied"
        one = [plain(await desk.get(f"/{found}", headers)) for found in (delivery, 10**9, "x")]
        assert one[0] == one[1] == one[2]
        assert (one[0][0], one[0][1]["error"]["details"]) == (403, {"required": ["platform:ops"]})
        for action in ACTIONS:
            for found in (delivery, 10**9):
                assert plain(await desk.post(f"/{found}/{action}", headers)) == one[0]
    assert code(await desk.client.get(f"{QUEUE}/{delivery}")) == "unauthenticated"
    assert (await desk.get(f"/{delivery}")).json()["state"] == "pending"


async def test_no_queue_no_routes(world: World) -> None:
    assert code(await world.get(QUEUE, world.platform)) == "route_not_found"


def test_the_document(desk: Desk) -> None:
    found = {
        (method.upper(), path.removeprefix(QUEUE)): operation
        for path, methods in desk.document["paths"].items()
        if path.startswith(QUEUE)
        for method, operation in methods.items()
    }
    assert set(found) == {
        ("GET", ""),
        ("GET", "/{queue_id}"),
        ("GET", "/stats"),
        *(("POST", f"/{{queue_id}}/{action}") for action in ACTIONS),
    }
    for (method, path), operation in found.items():
        assert operation["x-required-permission"] == ["platform:ops"]
        assert (operation["x-key-levels"], operation["tags"]) == (["platform"], ["Platform"])
        assert operation["x-idempotency"] == ("optional" if method == "POST" else "none")
        assert "requestBody" not in operation
        assert "422" not in operation["responses"]
        if "{" in path:
            (parameter,) = [one for one in operation["parameters"] if one["in"] == "path"]
            assert parameter["schema"]["type"] == "integer"
            assert operation["responses"]["404"]["x-error-codes"] == ["message_not_found"]
        if method == "POST":
            assert "not_cancelable" in operation["responses"]["409"]["x-error-codes"]
    (state,) = [one for one in found["GET", ""]["parameters"] if one["name"] == "state"]
    items = state["schema"]["items"]
    assert desk.document["components"]["schemas"][items["$ref"].rpartition("/")[2]]["enum"] == list(QueueState)
    assert (state["style"], state["explode"]) == ("form", False)


# -- what is shown


@pytest.mark.covers("mail-server:C9")
async def test_figures(desk: Desk) -> None:
    world = desk.world
    first, second = await desk.sent(ANNA, "bo@example.org")
    await desk.state(first, "status = 'delivered', next_attempt_at = NULL, last_attempt_at = created_at")
    later = world.clock.now() + timedelta(hours=1)
    await desk.sender.execute("UPDATE deliveries SET next_attempt_at = $2 WHERE id = $1", second, later)
    answer = (await desk.get("/stats")).json()
    desk.check("QueueStatistics", answer)
    found = {name: value for name, value in answer.items() if value}
    assert found == {"pending": 1, "delivered": 1, "sent_today": 1, "next_due_at": timestamp(later)}
    for headers in (world.key, world.other_key):
        assert code(await desk.get("/stats", headers)) == "permission_denied"


@pytest.mark.covers("mail-server:C1", "mail-server:C2")
async def test_one_delivery(desk: Desk) -> None:
    first, second = await desk.sent(ANNA, "bo@example.org")
    await desk.state(
        first,
        "status = 'deferred', tries = 1, smtp_code = 451, enhanced_code = '4.7.1', smtp_response = 'Later', "
        "remote_mx = 'mx.example.com', last_attempt_at = '2030-01-01', next_attempt_at = '2030-01-01T00:05Z'",
    )
    await desk.sender.execute(
        "INSERT INTO delivery_attempts (tenant_id, delivery_id, attempt, remote_mx, status_code, status_text, "
        "duration_ms, created_at) SELECT tenant_id, id, n, 'mx.example.com', 451, 'Later', 12, '2030-01-01' "
        "FROM deliveries, unnest(ARRAY[2, 1]) AS n WHERE id = $1",
        first,
    )
    shown = await desk.get(f"/{first}")
    assert shown.status_code == 200
    found = shown.json()
    desk.check("QueueDeliveryDetail", found)
    assert (found["id"], found["state"], found["status"], found["route"]) == (first, "retry", "deferred", "direct")
    assert (found["recipient"], found["destination"], found["sender"]) == (
        ANNA,
        "example.com",
        desk.sender.box.primary.address,
    )
    assert (found["tenant_id"], found["identity_id"]) == (
        desk.world.tenant.public_id,
        desk.sender.box.public_id,
    )
    assert (found["tries"], found["smtp_code"], found["smtp_response"]) == (1, 451, "Later")
    assert found["next_attempt_at"] == "2030-01-01T00:05:00.000Z"
    assert [(one["attempt"], one["status_code"], one["duration_ms"]) for one in found["attempts"]] == [
        (1, 451, 12),
        (2, 451, 12),
    ]
    # Nothing of the mail itself.
    listed = await desk.get()
    for text in (BODY["subject"], BODY["text"]):
        assert text not in shown.text + listed.text
    (row, other) = listed.json()["data"]
    assert row == {name: value for name, value in found.items() if name != "attempts"}
    assert (other["id"], other["state"], other["last_attempt_at"]) == (second, "pending", None)


async def test_what_is_not_there(desk: Desk) -> None:
    await desk.sent(ANNA)
    expected = plain(await desk.get(f"/{10**9}"))
    assert (expected[0], expected[1]["error"]["code"]) == (404, "message_not_found")
    for name in NO_IDS:
        assert plain(await desk.get(f"/{name}")) == expected, name
        for action in ACTIONS:
            assert plain(await desk.post(f"/{name}/{action}")) == expected, (name, action)
    for action in ACTIONS:
        assert plain(await desk.post(f"/{10**9}/{action}")) == expected
        assert plain(await desk.post(f"/{10**9}/{action}", key="k")) == expected
    assert code(await desk.post("/1/burn")) == "route_not_found"


@pytest.mark.covers("mail-server:C2")
async def test_pages_and_filters(desk: Desk) -> None:
    world = desk.world
    other = await make_sender(world, "robot", tenant=world.other_tenant)
    mine = await desk.sent(*(f"r{number}@example.com" for number in range(5)))
    theirs = await desk.sent(ANNA, sender=other)
    await desk.state(mine[1], FAILED)
    await desk.state(mine[3], "held_by_operator = true")
    assert await _ids(desk, 2) == await _ids(desk, 3) == await _ids(desk, 100) == mine + theirs
    assert await _ids(desk, 2, tenant_id=world.tenant.public_id) == mine
    assert await _ids(desk, 2, tenant_id=world.other_tenant.public_id) == theirs
    assert await _ids(desk, 1, state="failed,held") == [mine[1], mine[3]]
    assert await _ids(desk, 1, state="pending", tenant_id=world.tenant.public_id) == [mine[0], mine[2], mine[4]]
    page = (await desk.get(limit=1, state="failed,held")).json()
    desk.check("QueueDeliveryPage", page)
    # The order in which states are named makes no other list; another filter does.
    again = await desk.get(limit=1, state="held,failed", cursor=page["next_cursor"])
    assert [one["id"] for one in again.json()["data"]] == [mine[3]]
    for params in ({"state": "failed"}, {}, {"state": "failed,held", "tenant_id": world.tenant.public_id}):
        assert code(await desk.get(limit=1, cursor=page["next_cursor"], **params)) == "invalid_request"
    for name, value in (
        *(("state", "lost"), ("state", "held,held"), ("state", ""), ("limit", 0), ("limit", 101)),
        *(("tenant_id", "x"), ("cursor", "3")),
    ):
        assert code(await desk.get(**{name: value})) == "invalid_request", (name, value)
    assert code(await desk.get(tenant_id="ten_01ARZ3NDEKTSV4RRFFQ69G5FAV")) == "tenant_not_found"
    second = await world.new_key(Level.PLATFORM)
    foreign = await desk.get("", second, limit=1, state="failed,held", cursor=page["next_cursor"])
    assert code(foreign) == "invalid_request"
    world.clock.advance(24 * 3600 + 1)
    assert code(await desk.get(limit=1, state="failed,held", cursor=page["next_cursor"])) == "cursor_expired"


async def _ids(desk: Desk, limit: int, **filters: Any) -> list[int]:
    found: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        response = await desk.get(limit=limit, **filters, **cursor)
        assert response.status_code == 200, response.text
        body = response.json()
        assert len(body["data"]) <= limit
        found += [one["id"] for one in body["data"]]
        if body["next_cursor"] is None:
            return found
        cursor = {"cursor": body["next_cursor"]}


# -- what may be done


@pytest.mark.covers("mail-server:C2", "mail-server:C3")
async def test_hold_release_cancel(desk: Desk) -> None:
    (delivery,) = await desk.sent(ANNA)
    held = await desk.post(f"/{delivery}/hold")
    assert held.status_code == 200, held.text
    desk.check("QueueDeliveryDetail", held.json())
    assert held.json()["state"] == "held"
    assert (await desk.post(f"/{delivery}/hold")).json()["state"] == "held"
    assert desk.woken == []
    assert (await desk.post(f"/{delivery}/release")).json()["state"] == "pending"
    assert desk.woken == [True]
    canceled = (await desk.post(f"/{delivery}/cancel")).json()
    assert (canceled["state"], canceled["status"], canceled["attempts"]) == ("cancelled", "canceled", [])
    assert desk.changed[-1] == MailboxRef(desk.sender.box.tenant_id, desk.sender.box.id)
    assert (await desk.sender.traces())["wires"] == 0
    for action in ("cancel", "hold", "release"):
        refused = await desk.post(f"/{delivery}/{action}")
        assert (refused.status_code, code(refused)) == (409, "not_cancelable")
        assert details(refused) == {"reason": "ended", "action": action}
    agent = await desk.post(f"/{delivery}/retry")
    assert (agent.status_code, details(agent)["reason"]) == (409, "agent")
    assert desk.woken == [True]
    rows = await desk.sender.rows(
        "SELECT action, target_id, request_id FROM audit_log WHERE action LIKE 'queue.%' ORDER BY id"
    )
    assert [row["action"] for row in rows] == ["queue.hold", "queue.hold", "queue.release", "queue.cancel"]
    assert all(row["target_id"] == str(delivery) and row["request_id"] for row in rows)


@pytest.mark.covers("mail-server:C2", "mail-server:C3", "edge:G2")
@pytest.mark.parametrize(
    ("state", "action", "reason"),
    [
        ("claim_token = gen_random_uuid(), lease_until = '2031-01-01'", "cancel", "delivering"),
        ("claim_token = gen_random_uuid(), lease_until = '2031-01-01'", "retry", "delivering"),
        ("status = 'uncertain', next_attempt_at = NULL", "retry", "uncertain"),
        ("status = 'delivered', next_attempt_at = NULL", "retry", "sent"),
        ("status = 'delivered', next_attempt_at = NULL", "cancel", "ended"),
        (FAILED, "retry", "agent"),
    ],
)
async def test_what_the_state_forbids(desk: Desk, state: str, action: str, reason: str) -> None:
    (delivery,) = await desk.sent(ANNA)
    await desk.state(delivery, state)
    before = (await desk.get(f"/{delivery}")).json()
    refused = await desk.post(f"/{delivery}/{action}", key="k")
    assert (refused.status_code, code(refused)) == (409, "not_cancelable")
    assert details(refused) == {"reason": reason, "action": action}
    assert (await desk.get(f"/{delivery}")).json() == before
    assert await desk.sender.rows("SELECT FROM idempotency_records") == []


@pytest.mark.covers("mail-server:C2")
async def test_mail_of_a_person_is_sent_anew(desk: Desk) -> None:
    await desk.sender.execute("UPDATE identities SET kind = 'person'")
    (delivery,) = await desk.sent(ANNA)
    await desk.state(delivery, FAILED)
    # As when the last delivery ended: its bytes are gone, and made anew.
    await desk.sender.execute("UPDATE outbound_messages SET wire_key = NULL")
    answer = await desk.post(f"/{delivery}/retry")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["state"], answer.json()["tries"]) == ("pending", 0)
    assert desk.woken == [True]
    (row,) = await desk.sender.rows("SELECT wire_key FROM outbound_messages")
    assert (await desk.world.blobs.get(row["wire_key"])).startswith(b"X-Signed: agents.example\r\n")


async def test_bytes_that_are_gone(desk: Desk) -> None:
    await desk.sender.execute("UPDATE identities SET kind = 'person'")
    (delivery,) = await desk.sent(ANNA)
    await desk.state(delivery, FAILED)
    await desk.sender.execute("UPDATE outbound_messages SET wire_key = NULL")
    (row,) = await desk.sender.rows("SELECT blob_key FROM messages")
    await desk.world.blobs.delete([row["blob_key"]])
    refused = await desk.post(f"/{delivery}/retry")
    assert (refused.status_code, code(refused)) == (410, "raw_expired")


@pytest.mark.covers("FR-API-2")
async def test_once_for_a_key(desk: Desk) -> None:
    first, second = await desk.sent(ANNA, "bo@example.org")
    done = await desk.post(f"/{first}/cancel", key="one")
    assert (done.status_code, done.headers.get("idempotent-replayed")) == (200, None)
    again = await desk.post(f"/{first}/cancel", key="one")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    assert again.json() == done.json()
    assert code(await desk.post(f"/{second}/cancel", key="one")) == "idempotency_conflict"
    assert code(await desk.post(f"/{first}/hold", key="one")) == "idempotency_conflict"
    assert code(await desk.post(f"/{second}/cancel", key="k" * 256)) == "invalid_idempotency_key"
    # The keys of another caller are others, and a refusal keeps none.
    other = await desk.world.new_key(Level.PLATFORM)
    assert code(await desk.post(f"/{first}/cancel", other, key="one")) == "not_cancelable"
    assert (await desk.post(f"/{second}/cancel", other, key="one")).status_code == 200
