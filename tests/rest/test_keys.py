"""Keys over REST (rest-api §2.3, §2.5, §5.1, §5.17; security-privacy A3)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.accounts import Level, Mode, NewKey, NewTenant, Permission, Tenant
from postroom.accounts.keys import parse
from postroom.directory import Identity
from postroom.servers.http import create_http
from tests.rest.contract import check
from tests.rest.test_access import MISSING_ULID, code, without_request_id
from tests.rest.world import World, services_of

READ = ["messages:read"]
MANAGE = ["keys:manage", "messages:read"]
TWO_HOURS = {"overlap_hours": 2}


@dataclass
class Desk:
    """The deployment with two partners, each with a tenant."""

    world: World
    partner: int
    partner_id: str
    tenant: Tenant
    box: Identity
    test_tenant: Tenant
    key: dict[str, str]
    other_key: dict[str, str]

    async def mint(self, headers: dict[str, str], key: str | None = None, **body: Any) -> httpx.Response:
        return await self.world.post("/v1/keys", {"name": "k", "permissions": READ, **body}, headers, key=key)

    async def minted(self, headers: dict[str, str], **body: Any) -> dict[str, Any]:
        answer = await self.mint(headers, **body)
        assert answer.status_code == 201, answer.text
        check("ApiKeyCreated", answer.json())
        made: dict[str, Any] = answer.json()
        return made

    async def listed(self, headers: dict[str, str], **query: Any) -> list[str]:
        answer = await self.world.get("/v1/keys", headers, **query)
        check("ApiKeyPage", answer.json())
        return [one["id"] for one in answer.json()["data"]]

    async def me(self, headers: dict[str, str]) -> str:
        return str((await self.world.get("/v1/me", headers)).json()["key_id"])

    async def audited(self, target: str | None = None) -> list[dict[str, Any]]:
        async with self.world.db.acquire() as conn:
            rows = await conn.fetch(
                "SELECT action, target_id, actor_key, details, request_id FROM audit_log"
                " WHERE target_type = 'key' AND ($1::text IS NULL OR target_id = $1) ORDER BY id",
                target,
            )
        return [dict(row) for row in rows]


async def _partner(world: World, name: str, *tenants: int) -> tuple[int, str]:
    public_id = world.ids.new("ptn_")
    async with world.db.acquire() as conn:
        key: int = await conn.fetchval(
            "INSERT INTO partners (public_id, name, created_at) VALUES ($1, $2, $3) RETURNING id",
            *(public_id, name, world.clock.now()),
        )
        for tenant in tenants:
            await conn.execute("INSERT INTO partner_tenants (partner_id, tenant_id) VALUES ($1, $2)", key, tenant)
    return key, public_id


async def _partner_key(world: World, partner: int, permissions: list[str]) -> dict[str, str]:
    _, text = await world.keys.create(None, NewKey("p", Level.PARTNER, tuple(permissions), partner_id=partner))
    return {"authorization": f"Bearer {text}"}


@pytest.fixture
async def desk(world: World) -> Desk:
    tenant = await world.tenants.create(NewTenant(slug="mine", name="Mine"))
    trial = await world.tenants.create(NewTenant(slug="trial", name="Trial", mode=Mode.TEST))
    partner, partner_id = await _partner(world, "One", tenant.id, trial.id)
    other, _ = await _partner(world, "Two", world.other_tenant.id)
    wide = [*MANAGE, "identities:read", "identities:write"]
    return Desk(
        *(world, partner, partner_id, tenant, await world.new_identity(tenant, "bot"), trial),
        *(await _partner_key(world, partner, wide), await _partner_key(world, other, MANAGE)),
    )


def bearer(made: dict[str, Any]) -> dict[str, str]:
    return {"authorization": f"Bearer {made['secret']}"}


# -- making


@pytest.mark.covers("FR-KEY-1", "FR-KEY-2", "security-privacy:A3.5", "security-privacy:A3.1")
async def test_keys_of_every_level(desk: Desk) -> None:
    world = desk.world
    tenant, box = desk.tenant.public_id, desk.box.public_id
    scopes: list[dict[str, Any]] = [
        {"level": "platform"},
        {"level": "partner", "partner_id": desk.partner_id},
        {"level": "tenant", "tenant_id": tenant},
        {"level": "identity", "tenant_id": tenant, "identity_id": box},
        {"level": "tenant", "tenant_id": desk.test_tenant.public_id},
    ]
    for scope in scopes:
        made = await desk.minted(world.platform, expires_at="2031-05-06T07:08:09+02:00", **scope)
        for name in ("level", "partner_id", "tenant_id", "identity_id"):
            assert made[name] == scope.get(name)
        mode = "test" if scope.get("tenant_id") == desk.test_tenant.public_id else "live"
        assert made["mode"] == mode
        assert made["expires_at"] == "2031-05-06T05:08:09.000Z"
        token = parse(made["secret"])
        assert token is not None
        assert token.mode == mode
        me = (await world.get("/v1/me", bearer(made))).json()
        check("Me", me)
        assert me == {
            "key_id": made["id"],
            **{name: made[name] for name in ("name", "level", "mode", "partner_id", "tenant_id", "identity_id")},
            **{name: made[name] for name in ("permissions", "expires_at")},
        }
        read = (await world.get(f"/v1/keys/{made['id']}", world.platform)).json()
        check("ApiKey", read)
        assert {**read, "last_used_at": None} == {name: value for name, value in made.items() if name != "secret"}
        async with world.db.acquire() as conn:
            stored = str(dict(await conn.fetchrow("SELECT * FROM api_keys WHERE public_id = $1", made["id"]) or {}))
        assert made["secret"] not in stored
        assert made["secret"].rpartition("_")[2] not in stored


@pytest.mark.covers("FR-KEY-1", "security-privacy:A3.5")
@pytest.mark.parametrize(
    "body",
    [
        {"level": "tenant"},
        {"level": "platform", "tenant_id": "{tenant}"},
        {"level": "partner"},
        {"level": "partner", "partner_id": "{partner}", "tenant_id": "{tenant}"},
        {"level": "tenant", "tenant_id": "{tenant}", "partner_id": "{partner}"},
        {"level": "tenant", "tenant_id": "{tenant}", "identity_id": "{box}"},
        {"level": "identity", "tenant_id": "{tenant}"},
        {"level": "identity", "identity_id": "{box}"},
        {"level": "tenant", "tenant_id": None},
        {"level": "tenant", "tenant_id": "ten_1"},
        {"level": "workspace", "tenant_id": "{tenant}"},
        {"level": "tenant", "tenant_id": "{tenant}", "permissions": []},
        {"level": "tenant", "tenant_id": "{tenant}", "permissions": None},
        {"level": "tenant", "tenant_id": "{tenant}", "permissions": ["*"]},
        {"level": "tenant", "tenant_id": "{tenant}", "permissions": ["messages:read", "messages:read"]},
        {"level": "tenant", "tenant_id": "{tenant}", "permissions": "messages:read"},
        {"level": "tenant", "tenant_id": "{tenant}", "name": ""},
        {"level": "tenant", "tenant_id": "{tenant}", "name": "x" * 129},
        {"level": "tenant", "tenant_id": "{tenant}", "name": "a\nb"},
        {"level": "tenant", "tenant_id": "{tenant}", "expires_at": "2001-01-01T00:00:00Z"},
        {"level": "tenant", "tenant_id": "{tenant}", "expires_at": "tomorrow"},
        {"level": "identity", "tenant_id": "{tenant}", "identity_id": "{box}", "permissions": ["policy:write"]},
        {"level": "platform", "permissions": ["identities:sign"]},
        {"level": "partner", "partner_id": "{partner}", "permissions": ["partners:manage"]},
        {"level": "tenant", "tenant_id": "{tenant}", "permissions": ["tenants:erase"]},
    ],
)
async def test_requests_that_are_wrong_for_anybody(desk: Desk, body: dict[str, Any]) -> None:
    names = {"tenant": desk.tenant.public_id, "partner": desk.partner_id, "box": desk.box.public_id}
    filled = {name: value.format(**names) if isinstance(value, str) else value for name, value in body.items()}
    before = await desk.audited()
    for headers in (desk.world.platform, desk.key):
        assert code(await desk.mint(headers, **filled)) == "invalid_request"
    assert await desk.audited() == before


@pytest.mark.covers("edge:J10", "edge:J11", "security-privacy:A4.2")
async def test_what_is_not_theirs_is_refused_as_what_does_not_exist(desk: Desk) -> None:
    world = desk.world
    own = await world.new_key(Level.TENANT, MANAGE, tenant=desk.tenant)
    box = await world.new_key(Level.IDENTITY, MANAGE, identity=desk.box)
    sibling = await world.new_identity(desk.tenant, "sibling")
    foreign, missing = world.other_tenant.public_id, f"ten_{MISSING_ULID}"
    nobody = f"idn_{MISSING_ULID}"
    for headers in (desk.key, own, box):
        answers = [
            without_request_id(await desk.mint(headers, level="tenant", tenant_id=tenant))
            for tenant in (foreign, world.tenant.public_id, missing)
        ]
        answers += [
            without_request_id(await desk.mint(headers, level="identity", tenant_id=tenant, identity_id=identity))
            for tenant in (foreign, missing)
            for identity in (world.other_box.public_id, nobody)
        ]
        assert all(answer == answers[0] for answer in answers)
        assert answers[0][1]["error"]["code"] == "key_scope_exceeded"
        assert code(await desk.mint(headers, level="platform")) == "key_scope_exceeded"
        for partner in (desk.partner_id, f"ptn_{MISSING_ULID}"):
            assert code(await desk.mint(headers, level="partner", partner_id=partner)) == "key_scope_exceeded"
        within = [
            without_request_id(
                await desk.mint(headers, level="identity", tenant_id=desk.tenant.public_id, identity_id=identity)
            )
            for identity in (world.other_box.public_id, world.box.public_id, nobody)
        ]
        assert all(answer == within[0] for answer in within)
        assert within[0][1]["error"]["code"] == ("key_scope_exceeded" if headers is box else "identity_not_found")
    named = {"level": "identity", "tenant_id": desk.tenant.public_id, "identity_id": sibling.public_id}
    assert code(await desk.mint(box, **named)) == "key_scope_exceeded"
    assert code(await desk.mint(world.platform, level="tenant", tenant_id=missing)) == "tenant_not_found"
    gone = await desk.mint(world.platform, level="partner", partner_id=f"ptn_{MISSING_ULID}")
    assert code(gone) == "partner_not_found"
    assert code(await desk.mint(own, level="tenant", tenant_id=desk.tenant.public_id, permissions=["audit:read"])) == (
        "key_scope_exceeded"
    )


@pytest.mark.covers("edge:J19", "FR-KEY-2", "NFR-SEC-1")
async def test_a_secret_is_never_replayed(desk: Desk) -> None:
    world, body = desk.world, {"level": "tenant", "tenant_id": desk.tenant.public_id}
    first = await desk.mint(world.platform, "again", **body)
    again = await desk.mint(world.platform, "again", **body)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    check("ApiKeyCreated", again.json())
    made = first.json()
    assert again.json() == {**{k: v for k, v in made.items() if k != "secret"}, "secret_replayed": False}
    assert code(await desk.mint(world.platform, "again", **body, name="other")) == "idempotency_conflict"
    assert code(await desk.mint(world.platform, "x" * 256, **body)) == "invalid_idempotency_key"
    # Another key's requests are its own (J19), and so are those for another tenant.
    assert (await desk.mint(desk.key, "again", **body)).json()["id"] != made["id"]
    elsewhere = await desk.mint(world.platform, "again", level="tenant", tenant_id=world.tenant.public_id)
    assert elsewhere.status_code == 201
    path = f"/v1/keys/{made['id']}/rotate"
    turned = [await world.post(path, TWO_HOURS, world.platform, key="turn") for _ in range(2)]
    assert [one.status_code for one in turned] == [200, 200]
    check("ApiKeyCreated", turned[1].json())
    assert "secret" not in turned[1].json()
    assert (await world.get("/v1/me", bearer(turned[0].json()))).status_code == 200
    assert code(await world.post(path, {"overlap_hours": 3}, world.platform, key="turn")) == "idempotency_conflict"
    async with world.db.acquire() as conn:
        kept = str([dict(row) for row in await conn.fetch("SELECT * FROM idempotency_records")])
        owners = await conn.fetch("SELECT DISTINCT tenant_id FROM idempotency_records WHERE path LIKE '%/rotate'")
    for answer in (first, turned[0], elsewhere):
        assert answer.json()["secret"].rpartition("_")[2] not in kept
    assert [row["tenant_id"] for row in owners] == [desk.tenant.id]


@pytest.mark.covers("edge:J19")
async def test_the_same_request_at_once_makes_one_key(desk: Desk) -> None:
    body = {"level": "tenant", "tenant_id": desk.tenant.public_id}
    answers = await asyncio.gather(*(desk.mint(desk.world.platform, "once", **body) for _ in range(6)))
    assert {one.status_code for one in answers} <= {201, 409}
    assert len([one for one in answers if "secret" in one.json()]) == 1
    ids = {one.json()["id"] for one in answers if one.status_code == 201}
    assert len(ids) == 1
    # A refusal leaves the idempotency key free.
    assert code(await desk.mint(desk.world.platform, "free", level="tenant")) == "invalid_request"
    bad = {"level": "tenant", "tenant_id": f"ten_{MISSING_ULID}"}
    assert code(await desk.mint(desk.world.platform, "free", **bad)) == "tenant_not_found"
    assert code(await desk.mint(desk.world.platform, "free", **bad)) == "tenant_not_found"


# -- managing


@pytest.mark.covers("edge:J20", "edge:J10", "security-privacy:A3.6", "security-privacy:A4.2")
async def test_keys_of_others_are_missing(desk: Desk) -> None:
    world = desk.world
    own = await world.new_key(Level.TENANT, MANAGE, tenant=desk.tenant)
    box = await world.new_key(Level.IDENTITY, MANAGE, identity=desk.box)
    sibling = await world.new_key(Level.IDENTITY, READ, identity=await world.new_identity(desk.tenant, "sib"))
    foreign = await world.new_key(Level.TENANT, READ, tenant=world.tenant)
    keys = {
        "platform": await desk.me(world.platform),
        "partner": await desk.me(desk.key),
        "other partner": await desk.me(desk.other_key),
        "own": await desk.me(own),
        "box": await desk.me(box),
        "sibling": await desk.me(sibling),
        "foreign": await desk.me(foreign),
    }
    mine = {"partner": {"own", "box", "sibling"}, "own": {"own", "box", "sibling"}, "box": {"box"}}
    before = await desk.audited()
    for headers, name in ((desk.key, "partner"), (own, "own"), (box, "box")):
        assert set(await desk.listed(headers)) == {keys[one] for one in mine[name]}
        for target in set(keys) - mine[name]:
            for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
                answers = [
                    without_request_id(await world.client.request(method, f"/v1/keys/{one}{path}", headers=headers))
                    for one in (keys[target], f"key_{MISSING_ULID}", "key_1", "nonsense")
                ]
                assert all(answer == answers[0] for answer in answers), (name, target, method)
                assert answers[0][1]["error"]["code"] == "key_not_found"
    assert await desk.audited() == before
    wide = await desk.minted(
        world.platform, level="tenant", tenant_id=desk.tenant.public_id, permissions=["audit:read"]
    )
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
        answer = await world.client.request(method, f"/v1/keys/{wide['id']}{path}", headers=own)
        assert code(answer) == "key_scope_exceeded"
        assert "secret" not in answer.text
    assert wide["id"] not in await desk.listed(own)
    assert len(await desk.audited(wide["id"])) == 1


@pytest.mark.covers("FR-KEY-2", "edge:J6", "security-privacy:A3.6")
async def test_rotating_and_revoking(desk: Desk) -> None:
    world = desk.world
    made = await desk.minted(world.platform, level="tenant", tenant_id=desk.tenant.public_id, permissions=MANAGE)
    path = f"/v1/keys/{made['id']}"
    turned = await world.post(f"{path}/rotate", TWO_HOURS, world.platform)
    check("ApiKeyCreated", turned.json())
    fresh = turned.json()
    assert fresh["id"] == made["id"]
    assert fresh["secret"].split("_")[2] == made["secret"].split("_")[2]
    assert [(await world.get("/v1/me", bearer(one))).status_code for one in (made, fresh)] == [200, 200]
    world.clock.advance(7200)
    assert code(await world.get("/v1/me", bearer(made))) == "unauthenticated"
    at_once = await world.post(f"{path}/rotate", {"overlap_hours": 0}, bearer(fresh))
    assert code(await world.get("/v1/me", bearer(fresh))) == "unauthenticated"
    usual = await world.client.post(f"{path}/rotate", headers=world.platform)
    assert usual.status_code == 200
    world.clock.advance(24 * 3600 - 1)
    assert (await world.get("/v1/me", bearer(at_once.json()))).status_code == 200
    for hours in (-1, 169, "1", 1.5, None, True):
        assert code(await world.post(f"{path}/rotate", {"overlap_hours": hours}, world.platform)) == "invalid_request"
    assert code(await world.post(f"{path}/rotate", [], world.platform)) == "invalid_request"
    for _ in range(2):
        gone = await world.client.delete(path, headers=world.platform)
        assert (gone.status_code, gone.content) == (204, b"")
    assert code(await world.get("/v1/me", bearer(usual.json()))) == "key_revoked"
    assert code(await world.get("/v1/me", bearer(at_once.json()))) == "unauthenticated"  # nothing of it is kept
    refused = await world.post(f"{path}/rotate", None, world.platform)
    assert code(refused) == "invalid_request"
    assert refused.json()["error"]["details"] == {"reason": "key_revoked"}
    told = (await world.get(path, world.platform)).json()
    assert told["revoked_at"] is not None
    rows = await desk.audited(made["id"])
    assert [row["action"] for row in rows] == ["key.create", *["key.rotate"] * 3, "key.revoke"]
    assert [row["details"] for row in rows] == [
        {"level": "tenant"},
        *({"overlap_hours": hours} for hours in (2, 0, 24)),
        {},
    ]
    platform = await desk.me(world.platform)
    assert [row["actor_key"] for row in rows] == [platform, platform, made["id"], platform, platform]
    assert all(row["request_id"].startswith("req_") for row in rows)


@pytest.mark.covers("edge:J6", "security-privacy:A3.2", "SEC-2")
async def test_a_revocation_counts_on_another_node_at_once(desk: Desk) -> None:
    """Two nodes of one deployment; requests are in flight on both when one revokes."""
    world = desk.world
    made = await desk.minted(
        world.platform, level="identity", tenant_id=desk.tenant.public_id, identity_id=desk.box.public_id
    )
    second = create_http(services_of(world.db, world.clock, world.ids, world.blobs, world.hub, world.mailboxes))
    transport = httpx.ASGITransport(app=second, raise_app_exceptions=False)
    path = f"/v1/identities/{desk.box.public_id}/messages"
    async with httpx.AsyncClient(transport=transport, base_url="http://second.example") as other:
        nodes = (world.client, other)
        for node in nodes:
            assert (await node.get(path, headers=bearer(made))).status_code == 200
        revoked = asyncio.Event()

        async def use(node: httpx.AsyncClient) -> set[str]:
            """How requests that begin after the revocation was answered end."""
            late: set[str] = set()
            for _ in range(40):
                began_after = revoked.is_set()
                answer = await node.get(path, headers=bearer(made))
                if began_after:
                    late.add("served" if answer.status_code == 200 else code(answer))
            return late

        async def revoke() -> None:
            await asyncio.sleep(0.02)
            assert (await world.client.delete(f"/v1/keys/{made['id']}", headers=world.platform)).status_code == 204
            revoked.set()

        *late, _ = await asyncio.gather(*(use(node) for node in nodes), *(use(node) for node in nodes), revoke())
    assert late == [{"key_revoked"}] * 4
    second.services.parser.close()


async def test_lists_go_on(desk: Desk) -> None:
    world = desk.world
    for number in range(7):
        await desk.minted(desk.key, level="tenant", tenant_id=desk.tenant.public_id, name=f"k{number}")
        world.clock.advance(1)
    first = (await world.get("/v1/keys", desk.key, limit=3)).json()
    second = (await world.get("/v1/keys", desk.key, limit=100, cursor=first["next_cursor"])).json()
    assert [one["name"] for one in first["data"] + second["data"]] == [f"k{number}" for number in reversed(range(7))]
    assert second["next_cursor"] is None
    exactly = (await world.get("/v1/keys", desk.key, limit=7)).json()
    assert exactly["next_cursor"] is None
    assert not [one for one in first["data"] if "secret" in one]
    assert code(await world.get("/v1/keys", world.platform, cursor=first["next_cursor"])) == "invalid_request"
    world.clock.advance(24 * 3600 + 1)
    assert code(await world.get("/v1/keys", desk.key, cursor=first["next_cursor"])) == "cursor_expired"


async def test_a_page_may_be_a_hundred_keys_long(desk: Desk) -> None:
    for number in range(98):
        await desk.world.keys.create(None, NewKey(f"k{number}", Level.PLATFORM, ("platform:ops",)))
    count = len(await desk.listed(desk.world.platform, limit=100))
    whole = (await desk.world.get("/v1/keys", desk.world.platform, limit=100)).json()
    assert count == 100
    assert whole["next_cursor"] is not None
    rest = await desk.listed(desk.world.platform, limit=100, cursor=whole["next_cursor"])
    assert len(rest) == 3
    assert not set(rest) & {one["id"] for one in whole["data"]}


# -- partners


@pytest.mark.covers("FR-KEY-4", "edge:J10", "security-privacy:A3.8")
async def test_a_partner_acts_on_its_tenants_alone(desk: Desk) -> None:
    world = desk.world
    new = {"username": "fresh", "display_name": "Fresh"}
    for tenant in (desk.tenant, desk.test_tenant):
        path = f"/v1/tenants/{tenant.public_id}/identities"
        assert (await world.get(path, desk.key)).status_code == 200
        made = await world.post(path, new, desk.key)
        assert made.status_code == 201, made.text
        assert (await world.get(f"/v1/identities/{made.json()['id']}", desk.key)).status_code == 200
    for method, body in (("GET", None), ("POST", new)):
        answers = [
            without_request_id(
                await world.client.request(method, f"/v1/tenants/{tenant}/identities", json=body, headers=desk.key)
            )
            for tenant in (world.tenant.public_id, world.other_tenant.public_id, f"ten_{MISSING_ULID}", "ten_")
        ]
        assert all(answer == answers[0] for answer in answers)
        assert answers[0][1]["error"]["code"] == "tenant_not_found"
    boxes = [
        without_request_id(await world.get(f"/v1/identities/{one}", desk.key))
        for one in (world.box.public_id, world.other_box.public_id, f"idn_{MISSING_ULID}", "idn_1")
    ]
    assert all(answer == boxes[0] for answer in boxes)
    assert boxes[0][1]["error"]["code"] == "identity_not_found"
    listed = (await world.get("/v1/identities", desk.key)).json()["data"]
    assert {one["tenant_id"] for one in listed} == {desk.tenant.public_id, desk.test_tenant.public_id}
    foreign = await world.get("/v1/identities", desk.key, tenant_id=world.tenant.public_id)
    assert code(foreign) == "tenant_not_found"


@pytest.mark.covers("edge:J13", "security-privacy:A3.2")
async def test_a_suspended_partner_is_refused_on_every_route(desk: Desk) -> None:
    world = desk.world
    own = await world.new_key(Level.TENANT, tenant=desk.tenant)
    box = await world.new_key(Level.IDENTITY, identity=desk.box)
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE partners SET status = 'suspended' WHERE id = $1", desk.partner)
    for headers in (desk.key, own, box):
        for path in ("/v1/me", "/v1/keys", "/v1/identities", f"/v1/identities/{desk.box.public_id}/messages"):
            assert code(await world.get(path, headers)) == "partner_suspended"
    for headers in (world.platform, desk.other_key, world.key):
        assert (await world.get("/v1/me", headers)).status_code == 200
    # Whoever runs the platform still manages the keys, those of the partner and of its tenants.
    assert (
        await world.client.delete(f"/v1/keys/{await _id_of(world, own)}", headers=world.platform)
    ).status_code == 204
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE partners SET status = 'active' WHERE id = $1", desk.partner)
    assert (await world.get("/v1/me", desk.key)).status_code == 200
    assert code(await world.get("/v1/me", own)) == "key_revoked"


async def _id_of(world: World, headers: dict[str, str]) -> str:
    lookup = headers["authorization"].split("_")[2]
    async with world.db.acquire() as conn:
        return str(await conn.fetchval("SELECT public_id FROM api_keys WHERE lookup = $1", lookup))


async def test_a_suspended_tenant_does_not_stop_key_management(desk: Desk) -> None:
    world = desk.world
    own = await world.new_key(Level.TENANT, MANAGE, tenant=desk.tenant)
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE tenants SET status = 'suspended' WHERE id = $1", desk.tenant.id)
    made = await desk.minted(own, level="tenant", tenant_id=desk.tenant.public_id)
    assert (await world.client.delete(f"/v1/keys/{made['id']}", headers=own)).status_code == 204


@pytest.mark.covers("security-privacy:A3.8", "edge:J10")
async def test_nothing_is_managed_of_a_tenant_that_is_being_erased(desk: Desk) -> None:
    async with desk.world.db.acquire() as conn:
        await conn.execute("UPDATE tenants SET status = 'erasing' WHERE id = $1", desk.tenant.id)
    for headers in (desk.world.platform, desk.key):
        answer = await desk.mint(headers, level="tenant", tenant_id=desk.tenant.public_id)
        assert code(answer) == "tenant_not_found"


@pytest.mark.covers("security-privacy:A3.5", "FR-KEY-1")
async def test_keys_are_for_keys(desk: Desk) -> None:
    """Without `keys:manage` there is no way to them, whatever else is held."""
    headers = await desk.world.new_key(Level.TENANT, READ, tenant=desk.tenant)
    me = await desk.me(headers)
    for method, path in (("POST", ""), ("GET", ""), ("GET", f"/{me}"), ("DELETE", f"/{me}"), ("POST", f"/{me}/rotate")):
        answer = await desk.world.client.request(method, f"/v1/keys{path}", headers=headers)
        assert code(answer) == "permission_denied"
        assert answer.json()["error"]["details"]["required"] == ["keys:manage"]


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_permissions = st.lists(st.sampled_from([permission.value for permission in Permission]), max_size=4)
_bodies = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=140) | _json,
        "level": st.sampled_from([level.value for level in Level]) | _json,
        "permissions": _permissions | _json,
        "tenant_id": st.sampled_from([f"ten_{MISSING_ULID}", "own", "foreign"]) | _json,
        "identity_id": st.sampled_from([f"idn_{MISSING_ULID}", "box", "stranger"]) | _json,
        "partner_id": st.sampled_from([f"ptn_{MISSING_ULID}", "partner"]) | _json,
        "expires_at": st.sampled_from(["2040-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"]) | _json,
        "overlap_hours": st.integers(-1, 169) | _json,
    },
)


@pytest.mark.covers("FR-API-2", "SEC-2")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=_bodies | _json, who=st.sampled_from(["platform", "partner", "tenant"]))
async def test_whatever_is_asked_for_the_answer_is_a_defined_one(desk: Desk, body: Any, who: str) -> None:
    world = desk.world
    names = {
        "own": desk.tenant.public_id,
        "foreign": world.other_tenant.public_id,
        "box": desk.box.public_id,
        "stranger": world.other_box.public_id,
        "partner": desk.partner_id,
    }
    if isinstance(body, dict):
        body = {key: names.get(value, value) if isinstance(value, str) else value for key, value in body.items()}
    headers = {"platform": world.platform, "partner": desk.key, "tenant": world.key}[who]
    me = await desk.me(world.key)
    world.clock.advance(1)
    for path in ("/v1/keys", f"/v1/keys/{me}/rotate"):
        if path.endswith("rotate"):
            headers = desk.key  # out of its reach: the caller's key stays as it is
        answer = await world.post(path, body, headers)
        if answer.status_code == 201:
            made = answer.json()
            check("ApiKeyCreated", made)
            reached = {"partner": [desk.tenant.public_id], "tenant": [world.tenant.public_id]}.get(who)
            assert reached is None or made["tenant_id"] in reached
        else:
            assert code(answer) != "internal_error"
