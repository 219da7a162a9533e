"""Who is let in: keys, permissions, levels, scope, rate limits, and the other answers (A3.2, A4.1, A4.2)."""

from __future__ import annotations

import io
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from postroom.accounts import Level, Mode, NewTenant, Permission
from postroom.base import log
from postroom.base.errors import ERRORS
from postroom.servers.http.table import Bucket, Handler, Idempotency, Reach, RouteTable, Rule
from tests.rest.contract import check
from tests.rest.houses import MISSING
from tests.rest.world import World, simple_mail

MISSING_ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def code(response: httpx.Response) -> str:
    check("Error", response.json())
    error = response.json()["error"]
    assert error["request_id"] == response.headers["request-id"]
    assert response.status_code == ERRORS[error["code"]].status
    return str(error["code"])


def without_request_id(response: httpx.Response) -> tuple[int, dict[str, Any], dict[str, str]]:
    body = response.json()
    del body["error"]["request_id"]
    headers = {name: value for name, value in response.headers.items() if name not in ("request-id", "content-length")}
    return response.status_code, body, headers


def mailbox_requests(identity: str, message: str, thread: str, attachment: str) -> list[tuple[str, str, Any]]:
    """One request for every operation of a mailbox."""
    box, folder = f"/v1/identities/{identity}", f"fld_{MISSING_ULID}"
    ids = {"ids": [f"msg_{MISSING_ULID}"]}
    return [
        ("GET", box, None),
        ("PATCH", box, {"purpose": "other"}),
        ("DELETE", box, None),
        ("GET", f"{box}/addresses", None),
        ("POST", f"{box}/addresses", {"local_part": "x", "domain_id": f"dom_{MISSING_ULID}"}),
        ("POST", f"{box}/addresses/adr_{MISSING_ULID}/promote", None),
        ("POST", f"{box}/addresses/adr_{MISSING_ULID}/retire", {"after_days": 1}),
        ("DELETE", f"{box}/addresses/adr_{MISSING_ULID}", None),
        ("GET", f"{box}/messages", None),
        ("GET", f"{box}/messages/{message}", None),
        ("PATCH", f"{box}/messages/{message}", {"read": True}),
        ("GET", f"{box}/messages/{message}/raw", None),
        ("GET", f"{box}/messages/{message}/attachments/{attachment}", None),
        ("GET", f"{box}/threads", None),
        ("GET", f"{box}/threads/{thread}", None),
        ("PATCH", f"{box}/threads/{thread}", {"read": True}),
        ("GET", f"{box}/wait?timeout=1", None),
        ("POST", f"{box}/messages", {"to": ["a@example.com"], "subject": "", "text": ""}),
        ("POST", f"{box}/messages/{message}/reply", {"text": ""}),
        ("POST", f"{box}/messages/{message}/reply-all", {"text": ""}),
        ("POST", f"{box}/messages/{message}/forward", {"to": ["a@example.com"]}),
        ("POST", f"{box}/messages/{message}/cancel", None),
        ("POST", f"{box}/messages/{message}/resolve", {"outcome": "sent"}),
        ("GET", f"{box}/folders", None),
        ("POST", f"{box}/folders", {"name": "Work"}),
        ("GET", f"{box}/folders/{folder}", None),
        ("PATCH", f"{box}/folders/{folder}", {"subscribed": False}),
        ("DELETE", f"{box}/folders/{folder}", None),
        ("POST", f"{box}/messages/move", {**ids, "folder_id": folder}),
        ("POST", f"{box}/messages/copy", {**ids, "folder_id": folder}),
        ("POST", f"{box}/messages/expunge", ids),
        ("POST", f"{box}/messages/flags", {**ids, "add": ["$seen"]}),
    ]


# -- the table


async def _never(rule: Rule, request: Any, inner: Any) -> Any:
    raise AssertionError


@pytest.mark.covers("security-privacy:A4.1")
def test_no_route_without_a_rule() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    table = RouteTable(app, _never)
    table.seal()

    @app.get("/v1/backdoor")
    async def backdoor() -> None:
        pass

    with pytest.raises(ValueError, match="/v1/backdoor"):
        table.seal()


_RULE: dict[str, Any] = {
    "method": "GET",
    "path": "/v1/x",
    "operation": "x",
    "tag": "X",
    "reach": Reach.IDENTITY_PATH,
    "permissions": frozenset({Permission.MESSAGES_READ}),
    "levels": frozenset(Level),
    "bucket": Bucket.API,
    "idempotency": Idempotency.NONE,
}


@pytest.mark.covers("security-privacy:A4.1")
@pytest.mark.parametrize(
    "change",
    [
        {"permissions": frozenset()},
        {"levels": frozenset()},
        {"bucket": Bucket.NONE},
        {"reach": Reach.PUBLIC},
        {"errors": {400: ("no_such_code",)}},
    ],
)
def test_a_rule_must_be_whole(change: dict[str, Any]) -> None:
    Rule(**_RULE)
    with pytest.raises(ValueError, match="x: "):
        Rule(**{**_RULE, **change})


@pytest.mark.covers("security-privacy:A4.1")
async def test_only_public_routes_and_any_key_go_without_permissions(world: World) -> None:
    rules = world.app.table.rules
    assert {rule.operation for rule in rules if rule.is_public} == {
        "getHealth",
        "getReadiness",
        "getOpenApiDocument",
        "getDocumentation",
        "getSecurityTxt",
        "getSignedLink",
    }
    assert {rule.operation for rule in rules if not rule.permissions and not rule.is_public} == {"getMe"}


async def test_a_route_is_described_when_it_is_first_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []
    making = APIRoute.__init__

    def noted(self: APIRoute, path: str, *args: Any, **more: Any) -> None:
        described.append(path)
        making(self, path, *args, **more)

    monkeypatch.setattr(APIRoute, "__init__", noted)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    asked: list[str] = []

    async def guard(rule: Rule, request: Request, inner: Handler) -> Response:
        asked.append(rule.operation)
        return await inner(request)

    async def one(number: int) -> Response:
        return Response(str(number))

    table = RouteTable(app, guard)
    for name in ("a", "b"):
        rule = Rule(**{**_RULE, "operation": name, "path": f"/{name}/{{number}}"})
        table.add(rule, one, summary=name, answers={200: None})
    table.seal()
    assert described == []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.example") as client:
        assert [(await client.get(f"/b/{number}")).text for number in (1, 2)] == ["1", "2"]
        assert (described, asked) == (["/b/{number}"], ["b", "b"])
        assert (await client.head("/b/1")).status_code == 405
    assert [getattr(route, "path", "") for route in table.routes] == ["/a/{number}", "/b/{number}"]
    assert table.routes == table.routes
    assert described == ["/b/{number}", "/a/{number}"]


# -- route and method


@pytest.mark.covers("security-privacy:A4.1")
@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/", "/v1/nothing", "/v1/me/", "/docs/", "/redoc", "/v1/identities/", "/v1//me", "/__test/routes"],
)
async def test_unknown_path(world: World, path: str) -> None:
    for headers in ({}, world.key):
        for method in ("GET", "POST", "DELETE"):
            response = await world.client.request(method, path, headers=headers)
            assert code(response) == "route_not_found"


@pytest.mark.covers("security-privacy:A4.1")
async def test_wrong_method(world: World) -> None:
    for path, allow in (
        ("/health", "GET"),
        ("/v1/me", "GET"),
        ("/v1/identities", "GET"),
        (f"/v1/tenants/{world.tenant.public_id}/identities", "GET, POST"),
        (world.at(f"/messages/msg_{MISSING_ULID}"), "GET, PATCH"),
    ):
        for method in ("DELETE", "OPTIONS", "PUT", "BREW"):
            bodies = []
            for headers in ({}, world.key):
                response = await world.client.request(method, path, headers=headers)
                assert code(response) == "method_not_allowed"
                assert response.headers["allow"] == allow
                bodies.append(without_request_id(response))
            assert bodies[0] == bodies[1]


# -- keys


@pytest.mark.covers("security-privacy:A3.2")
async def test_bad_keys_all_look_the_same(world: World) -> None:
    text = world.key["authorization"].removeprefix("Bearer ")
    wrong_secret = text[:-1] + ("0" if text[-1] != "0" else "1")
    unknown = "pmk_live_" + "0" * 12 + "_" + "0" * 52
    answers = []
    for header in (
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        f"Bearer {wrong_secret}",
        f"Bearer {unknown}",
        f"Bearer {text}x",
        f"Bearer {text.replace('live', 'test')}",
        f"Token {text}",
        "Bearer \xe9\xff",
    ):
        headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
        response = await world.client.get("/v1/me", headers=headers)
        assert code(response) == "unauthenticated"
        answers.append(without_request_id(response))
    assert all(answer == answers[0] for answer in answers)
    assert "cache-control" not in answers[0][2]
    assert answers[0][2]["www-authenticate"] == "Bearer"


@pytest.mark.covers("security-privacy:A3.2", "FR-KEY-2")
async def test_revoked_key(world: World) -> None:
    me = (await world.get("/v1/me")).json()
    await world.keys.revoke(None, me["key_id"])
    assert code(await world.get("/v1/me")) == "key_revoked"
    assert code(await world.get(world.at("/messages"))) == "key_revoked"


async def test_failed_authentications_are_limited(world: World) -> None:
    for _ in range(600):
        assert (await world.client.get("/v1/me")).status_code == 401
    response = await world.client.get("/v1/me")
    assert code(response) == "rate_limited"
    assert int(response.headers["retry-after"]) <= 60
    world.clock.advance(60)
    assert (await world.get("/v1/me")).status_code == 200


async def test_me(world: World) -> None:
    identity_key = await world.new_key(Level.IDENTITY, ["messages:read"], identity=world.box)
    for headers, level in ((world.platform, "platform"), (world.key, "tenant"), (identity_key, "identity")):
        body = (await world.get("/v1/me", headers)).json()
        check("Me", body)
        assert body["level"] == level
        assert (body["tenant_id"] is None) == (level == "platform")
        assert body["identity_id"] == (world.box.public_id if level == "identity" else None)


# -- permissions, levels, scope


@pytest.mark.covers("security-privacy:A4.2", "decisions:D5")
async def test_each_operation_needs_its_permission(world: World) -> None:
    """Without it the answer is `permission_denied`, whether what is named exists or not."""
    paths = {
        **MISSING,
        "direction": "send",
        "kind": "block",
        "entry": "anna@example.com",
        "purpose": "thread",
        "dlq_id": f"dlq_{MISSING_ULID}",
        "user_id": f"usr_{MISSING_ULID}",
        "invitation_id": f"inv_{MISSING_ULID}",
    }
    for rule in world.app.table.rules:
        if not rule.permissions:
            continue
        for level in (Level.PLATFORM, Level.TENANT, Level.IDENTITY):
            tenant = world.tenant if level is Level.TENANT else None
            identity = world.box if level is Level.IDENTITY else None
            others = frozenset({Permission.WEBHOOKS_READ, Permission.KEYS_MANAGE}) - rule.permissions
            headers = await world.new_key(level, sorted(others), tenant=tenant, identity=identity)
            for box, ten in (
                (world.box.public_id, world.tenant.public_id),
                (f"idn_{MISSING_ULID}", f"ten_{MISSING_ULID}"),
                ("nonsense", "nonsense"),
            ):
                path = rule.path.format(**{**paths, "identity_id": box, "tenant_id": ten})
                response = await world.client.request(rule.method, path, headers=headers)
                if level in rule.implicit_for and ten == world.tenant.public_id:
                    # Its own tenant alone, and only to look at (A4.1).
                    assert (rule.operation, response.status_code) == ("getTenant", 200)
                    continue
                assert code(response) == "permission_denied", rule.operation
                details = response.json()["error"]["details"]
                assert details["required"] == sorted(rule.permissions)
        await world.revoke_keys()


@pytest.mark.covers("security-privacy:A4.2", "SEC-1", "security-privacy:A2")
async def test_foreign_things_look_missing(world: World) -> None:
    """Another tenant's key gets, byte for byte but for the request's id, what it gets for an id that nobody has."""
    mail = simple_mail()
    stored = await world.deliver(mail)
    real = mailbox_requests(world.box.public_id, stored.message_id, stored.thread_id, f"att_{MISSING_ULID}")
    missing = mailbox_requests(
        f"idn_{MISSING_ULID}", f"msg_{MISSING_ULID}", f"thr_{MISSING_ULID}", f"att_{MISSING_ULID}"
    )
    malformed = mailbox_requests("idn_1", "msg_x", "thr_", "att")
    other_identity = await world.new_key(Level.IDENTITY, identity=world.other_box)
    sibling = await world.new_identity(world.tenant, "sibling")
    sibling_key = await world.new_key(Level.IDENTITY, identity=sibling)
    for headers in (world.other_key, other_identity, sibling_key):
        for (method, path, body), (_, gone, _), (_, wrong, _) in zip(real, missing, malformed, strict=True):
            found = [
                without_request_id(await world.client.request(method, target, json=body, headers=headers))
                for target in (path, gone, wrong)
            ]
            assert found[0] == found[1] == found[2], path
            assert found[0][1]["error"]["code"] == "identity_not_found"


@pytest.mark.covers("security-privacy:A4.2")
async def test_things_of_another_mailbox_are_missing_in_mine(world: World) -> None:
    theirs = await world.deliver(simple_mail(), to=world.other_box)
    requests = mailbox_requests(world.box.public_id, theirs.message_id, theirs.thread_id, f"att_{MISSING_ULID}")
    missing = mailbox_requests(world.box.public_id, f"msg_{MISSING_ULID}", f"thr_{MISSING_ULID}", f"att_{MISSING_ULID}")
    malformed = mailbox_requests(world.box.public_id, "msg_x", "thr_x", "att_x")
    async with world.db.acquire() as conn:  # who has no owner sends nothing, whatever it is about
        await conn.execute("UPDATE identities SET owner_name = 'Ola', owner_email = 'ola@example.com'")
    for key in (world.key, world.platform):
        headers = {**key, "idempotency-key": "k"}
        for (method, path, body), (_, gone, _), (_, wrong, _) in zip(requests, missing, malformed, strict=True):
            if path == gone:
                continue
            found = [
                without_request_id(await world.client.request(method, target, json=body, headers=headers))
                for target in (path, gone, wrong)
            ]
            assert found[0] == found[1] == found[2], path
            assert found[0][0] == 404


@pytest.mark.covers("security-privacy:A4.2")
async def test_foreign_tenants_look_missing(world: World) -> None:
    body = {"username": "new", "display_name": "New"}
    for method, key in (("GET", None), ("POST", body)):
        found = [
            without_request_id(
                await world.client.request(
                    method, f"/v1/tenants/{tenant}/identities", json=key, headers=world.other_key
                )
            )
            for tenant in (world.tenant.public_id, f"ten_{MISSING_ULID}", "ten_", "x")
        ]
        assert all(item == found[0] for item in found)
        assert found[0][1]["error"]["code"] == "tenant_not_found"
    assert code(await world.get("/v1/identities", tenant_id=world.other_tenant.public_id)) == "tenant_not_found"
    assert (
        code(await world.get("/v1/identities", world.platform, tenant_id=f"ten_{MISSING_ULID}")) == "tenant_not_found"
    )


@pytest.mark.covers("edge:F3", "security-privacy:A4.2")
async def test_routes_above_the_level(world: World) -> None:
    """On its own tenant an identity key learns that the route is not for it; of others it learns nothing."""
    headers = await world.new_key(Level.IDENTITY, identity=world.box)
    own = f"/v1/tenants/{world.tenant.public_id}/identities"
    foreign = f"/v1/tenants/{world.other_tenant.public_id}/identities"
    body = {"username": "new", "display_name": "New"}
    assert code(await world.get(own, headers)) == "scope_denied"
    assert code(await world.client.post(own, json=body, headers=headers)) == "scope_denied"
    assert code(await world.get(foreign, headers)) == "tenant_not_found"
    assert code(await world.client.post(foreign, json=body, headers=headers)) == "tenant_not_found"


@pytest.mark.covers("security-privacy:A4.2", "FR-KEY-3")
async def test_an_identity_key_sees_itself(world: World) -> None:
    await world.new_identity(world.tenant, "sibling")
    headers = await world.new_key(Level.IDENTITY, identity=world.box)
    for params in ({}, {"tenant_id": world.tenant.public_id}):
        listed = (await world.get("/v1/identities", headers, **params)).json()
        assert [item["id"] for item in listed["data"]] == [world.box.public_id]
    assert (
        code(await world.get("/v1/identities", headers, tenant_id=world.other_tenant.public_id)) == "tenant_not_found"
    )


@pytest.mark.covers("edge:L4")
async def test_keys_and_tenants_of_different_modes(world: World) -> None:
    test = await world.tenants.create(NewTenant(slug="trial", name="Trial", mode=Mode.TEST))
    headers = await world.new_key(Level.TENANT, tenant=test)
    assert headers["authorization"].startswith("Bearer pmk_test_")
    path = f"/v1/tenants/{test.public_id}/identities"
    assert (await world.get(path, headers)).status_code == 200
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE tenants SET mode = 'live' WHERE id = $1", test.id)
    assert code(await world.get(path, headers)) == "tenant_not_found"
    assert (await world.get(path, world.platform)).status_code == 200


# -- rate limits and headers


@pytest.mark.covers("edge:J22")
async def test_rate_limit_of_a_key(world: World) -> None:
    for _ in range(600):
        response = await world.get("/v1/me")
        assert response.status_code == 200
        assert response.headers["ratelimit-limit"] == "600"
    refused = await world.get("/v1/me")
    assert code(refused) == "rate_limited"
    assert refused.headers["ratelimit-limit"] == "600"
    assert refused.headers["retry-after"] == refused.headers["ratelimit-reset"]
    assert refused.json()["error"]["details"]["bucket"] == "key"
    second = await world.new_key(Level.TENANT, tenant=world.tenant)
    assert (await world.get("/v1/me", second)).status_code == 200
    world.clock.advance(60)
    assert (await world.get("/v1/me")).status_code == 200


@pytest.mark.covers("FR-API-2")
async def test_standard_headers(world: World) -> None:
    for response in (
        await world.client.get("/health"),
        await world.get("/v1/me"),
        await world.get("/v1/me", {}),
        await world.get("/nowhere"),
        await world.get(world.at("/messages"), limit=1000),
    ):
        headers = response.headers
        assert headers["request-id"].startswith("req_")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["strict-transport-security"] == "max-age=31536000"
        assert headers["content-type"] == "application/json; charset=utf-8"
        assert "set-cookie" not in headers
        assert not [name for name in headers if name.startswith("access-control-")]
        known = response.status_code in (200, 400) and not str(response.url).endswith("/health")
        assert (headers.get("cache-control") == "no-store") is known
        assert ("ratelimit-limit" in headers) is known


@pytest.mark.covers("FR-API-2", "SEC-9")
async def test_a_fault_of_ours_tells_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = io.StringIO()
    log.configure("info", "text", logged)

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret is swordfish")

    monkeypatch.setattr(type(world.mailboxes.queries), "list_messages", broken)
    response = await world.get(world.at("/messages"))
    assert code(response) == "internal_error"
    assert "swordfish" not in response.text
    assert "Traceback" not in response.text
    assert response.headers["request-id"] in logged.getvalue()
    assert "swordfish" not in logged.getvalue()


@pytest.mark.covers("edge:J30")
async def test_a_database_that_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(type(world.mailboxes.queries), "list_messages", away)
    response = await world.get(world.at("/messages"))
    assert code(response) == "unavailable"
    assert "retry-after" in response.headers


@pytest.mark.covers("decisions:D8")
async def test_health_is_the_process_alone(world: World) -> None:
    await world.db.close()
    assert (await world.client.get("/health")).status_code == 200
    response = await world.client.get("/health/ready")
    assert code(response) == "unavailable"
    await world.db.open()
    assert (await world.client.get("/health/ready")).status_code == 200
