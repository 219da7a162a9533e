"""Tenants, their policy and partners over HTTP (rest-api §5.2, §5.3; A4.1; J10, J14, J17, J18, J23–J27)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import orjson
import pytest

from postroom.accounts import Level, Mode, Permission, Principal, PrincipalKind
from postroom.accounts.partners import NewPartner, Partner
from postroom.accounts.passwords import Passwords
from postroom.accounts.permissions import MAY_HOLD
from postroom.accounts.service.people import People
from postroom.servers.http import create_http
from tests.rest.contract import check
from tests.rest.world import World

NOBODY = "ten_00000000000000000000000000"
POLICY = "/v1/tenants/{}/policy"
UPDATED = "tenant.policy_updated"


@dataclass
class Doors:
    """Lets in who is named, as a partner's key would be, and asks the real verifier about everybody else."""

    real: Any
    known: dict[str, Principal] = field(default_factory=dict)

    async def verify(self, text: str | None) -> Principal:
        return self.known[text] if text in self.known else await self.real.verify(text)


@dataclass
class Office:
    """The API with partners."""

    world: World
    client: httpx.AsyncClient
    doors: Doors
    people: People

    async def partner(self, name: str = "One", **more: Any) -> tuple[Partner, dict[str, str]]:
        """A partner and a key of it, with every permission."""
        assert self.world.app.services.partners is not None
        made = await self.world.app.services.partners.create(NewPartner(name, **more))
        at = len(self.doors.known) + 1
        self.doors.known[f"partner-{at}"] = Principal(
            kind=PrincipalKind.KEY,
            public_id=f"key_{at:026d}",
            row_id=-at,
            level=Level.PARTNER,
            permissions=MAY_HOLD[Level.PARTNER],
            mode=Mode.LIVE,
            partner_id=made.id,
            partner_public_id=made.public_id,
        )
        return made, {"authorization": f"Bearer partner-{at}"}

    async def call(self, method: str, path: str, key: dict[str, str], body: Any = None, **more: Any) -> httpx.Response:
        once = more.pop("once", None)
        headers = {**key, "idempotency-key": once} if once else key
        return await self.client.request(method, path, headers=headers, json=body, params=more or None)

    async def made(self, slug: str, key: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
        body = {"slug": slug, "name": slug.title(), "mode": "live", **more}
        response = await self.call("POST", "/v1/tenants", key or self.world.platform, body)
        assert response.status_code == 201, response.text
        check("Tenant", response.json())
        found: dict[str, Any] = response.json()
        return found

    async def rows(self, query: str, *values: Any) -> list[Any]:
        async with self.world.db.acquire() as conn:
            return list(await conn.fetch(query, *values))


@pytest.fixture
async def office(world: World) -> AsyncIterator[Office]:
    passwords = Passwords(time_cost=1, memory_kib=64)
    people = People(world.db, world.ids, world.clock, passwords)
    doors = Doors(world.app.services.verifier)
    services = replace(world.app.services, verifier=doors, people=people)  # type: ignore[arg-type] # stands in
    transport = httpx.ASGITransport(app=create_http(services), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.example") as client:
        yield Office(world, client, doors, people)
    passwords.close()


def refused(response: httpx.Response) -> tuple[int, str, dict[str, Any]]:
    check("Error", response.json())
    error = response.json()["error"]
    return response.status_code, error["code"], error.get("details") or {}


def told(response: httpx.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Everything a client sees, but the id of the request."""
    body = response.json()
    del body["error"]["request_id"]
    headers = sorted((name, value) for name, value in response.headers.items() if name != "request-id")
    return response.status_code, orjson.dumps(body), headers


async def test_a_tenant_is_made_read_changed(office: Office) -> None:
    world, key = office.world, office.world.platform
    made = await office.made("shop", timezone="Europe/Berlin", mode="test", policy={"max_recipients": 5})
    assert (made["address_suffix"], made["mode"], made["status"], made["partner_id"]) == (
        *(".shop", "test", "active", None),
    )
    assert made["policy"]["max_recipients"] == 5
    path = f"/v1/tenants/{made['id']}"
    assert (await office.call("GET", path, key)).json() == made
    body = {"name": "The Shop", "policy": {"max_recipients": None, "retention": {"raw_days": 7}}}
    after = await office.call("PATCH", path, key, body)
    assert after.status_code == 200
    check("Tenant", after.json())
    assert (after.json()["name"], after.json()["policy"]["max_recipients"]) == ("The Shop", 10)
    assert after.json()["policy"]["retention"] == {"raw_days": 7, "message_days": None, "events_days": 30}
    found = await office.rows("SELECT action, actor_key FROM audit_log WHERE target_id = $1 ORDER BY id", made["id"])
    assert [row["action"] for row in found] == ["tenant.create", "tenant.policy_update", "tenant.update"]
    assert all(row["actor_key"].startswith("key_") for row in found)
    (event,) = await office.rows("SELECT payload FROM events WHERE type = $1", UPDATED)
    payload = orjson.loads(event["payload"])
    assert payload["data"] == {
        "fields": ["max_recipients", "retention.raw_days"],
        "by": "platform",
        "actor_key_id": found[0]["actor_key"],
        "actor_user_id": None,
        "policy_version": 1,
    }
    assert (payload["tenant_id"], payload["identity_id"], payload["sequence"]) == (made["id"], None, None)
    listed = (await office.call("GET", "/v1/tenants", key, limit=1)).json()
    check("TenantPage", listed)
    assert [one["slug"] for one in listed["data"]] == ["shop"]
    rest = (await office.call("GET", "/v1/tenants", key, limit=5, cursor=listed["next_cursor"])).json()
    assert [one["slug"] for one in rest["data"]] == [world.other_tenant.slug, world.tenant.slug]
    assert rest["next_cursor"] is None
    for filters, slugs in (({"mode": "test"}, ["shop"]), ({"status": "suspended"}, [])):
        page = (await office.call("GET", "/v1/tenants", key, **filters)).json()
        assert [one["slug"] for one in page["data"]] == slugs


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        ({"slug": "A"}, "invalid_request", "slug"),
        ({"name": ""}, "invalid_request", "name"),
        ({"name": "a\u0000b"}, "invalid_request", "name"),
        ({"mode": "trial"}, "invalid_request", "mode"),
        ({"timezone": "Mars/Olympus"}, "invalid_request", "timezone"),
        ({"address_suffix": ""}, "invalid_request", "address_suffix"),
        ({"address_suffix": ".postmaster"}, "address_reserved", None),
        ({"policy": {"max_recipients": 50}}, "invalid_request", "policy.max_recipients"),
        ({"policy": {"max_recipients": "5"}}, "invalid_request", "policy.max_recipients"),
        ({"policy": {"nothing": 5}}, "invalid_request", "policy.nothing"),
        ({"policy": {"retention": 5}}, "invalid_request", "policy.retention"),
        ({"policy": {"triage": {"rules": [{"id": "a", "match": {}, "set": {}}]}}}, "invalid_request", None),
        ({"policy": []}, "invalid_request", "policy"),
        ({"slug": "acme"}, "slug_taken", None),
        ({"slug": "other", "address_suffix": ".acrne"}, "suffix_taken", None),
        ({"owner": {"email": "box@agents.example"}}, "invalid_request", "owner.email"),
        ({"owner": {"email": "Box@AGENTS.example"}}, "invalid_request", "owner.email"),
        ({"billing": {"mode": "free"}}, "invalid_request", "billing.mode"),
    ],
)
@pytest.mark.covers("edge:D12")
async def test_what_is_no_tenant(office: Office, body: dict[str, Any], code: str, path: str | None) -> None:
    response = await office.call(
        "POST", "/v1/tenants", office.world.platform, {"slug": "shop", "name": "Shop", "mode": "live", **body}
    )
    status, found, details = refused(response)
    assert (found, status) == (code, 409 if code.endswith("taken") else 400)
    if path is not None:
        assert details["errors"][0]["path"] == path
    assert await office.rows("SELECT FROM tenants WHERE slug = 'shop'") == []


@pytest.mark.covers("FR-API-2")
async def test_a_tenant_is_made_once_for_a_key(office: Office) -> None:
    """The same request at once and again: one tenant, one answer. Another request is another thing."""
    key, body = office.world.platform, {"slug": "shop", "name": "Shop", "mode": "live"}
    done = await asyncio.gather(*(office.call("POST", "/v1/tenants", key, body, once="k") for _ in range(4)))
    assert {one.status_code for one in done} <= {201, 409}
    assert all(refused(one)[1] == "request_in_progress" for one in done if one.status_code == 409)
    again = await office.call("POST", "/v1/tenants", key, body, once="k")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
    assert {one.json()["id"] for one in done if one.status_code == 201} == {again.json()["id"]}
    other = await office.call("POST", "/v1/tenants", key, {**body, "name": "Other"}, once="k")
    assert refused(other)[1] == "idempotency_conflict"
    # Of another key nothing is repeated (J19); a refusal leaves the key free.
    second = await office.world.new_key(Level.PLATFORM)
    assert refused(await office.call("POST", "/v1/tenants", second, body, once="k"))[1] == "slug_taken"
    free = await office.call("POST", "/v1/tenants", second, {**body, "slug": "shop2"}, once="k")
    assert free.status_code == 201
    assert len(await office.rows("SELECT FROM tenants WHERE slug LIKE 'shop%'")) == 2


async def test_an_owner_is_made_with_the_tenant(office: Office) -> None:
    """Who is there already becomes the owner where the platform says so; a partner draws in nobody who is somewhere,
    and is not told that they are."""
    made = await office.made("shop", owner={"email": "Anna@Example.com", "name": "Anna"})
    query = """SELECT t.public_id, p.contact_email, m.role FROM members m JOIN tenants t ON t.id = m.tenant_id
               JOIN people p ON p.id = m.person_id ORDER BY t.id"""
    assert [tuple(row) for row in await office.rows(query)] == [(made["id"], "anna@example.com", "owner")]
    _, key = await office.partner()
    theirs = await office.made("theirs", key, owner={"email": "anna@example.com"})
    new = await office.made("new", key, owner={"email": "bo@example.com"})
    second = await office.made("second", owner={"email": "anna@example.com"})
    found = [(row["public_id"], row["contact_email"]) for row in await office.rows(query)]
    assert found == [
        (made["id"], "anna@example.com"),
        (new["id"], "bo@example.com"),
        (second["id"], "anna@example.com"),
    ]
    assert theirs.keys() == new.keys()
    body = {"slug": "acme", "name": "A", "mode": "live", "owner": {"email": "never@example.com"}}
    assert refused(await office.call("POST", "/v1/tenants", office.world.platform, body))[1] == "slug_taken"
    assert await office.rows("SELECT FROM people WHERE contact_email = 'never@example.com'") == []


@pytest.mark.covers("edge:J10", "security-privacy:A4.1")
async def test_foreign_and_missing_look_the_same(office: Office) -> None:
    """Byte for byte, whoever asks, for every route that names a tenant."""
    one, first = await office.partner()
    _, second = await office.partner("Two")
    theirs = await office.made("theirs", first)
    world = office.world
    bodies = {"PATCH": {"name": "Mine now"}}
    callers = [
        (second, [theirs["id"], world.tenant.public_id]),
        (first, [world.tenant.public_id]),
        (await world.new_key(Level.TENANT, tenant=world.other_tenant), [theirs["id"], world.tenant.public_id]),
        (await world.new_key(Level.IDENTITY, identity=world.other_box), [theirs["id"], world.tenant.public_id]),
    ]
    for key, foreign in callers:
        for method, suffix, body in (
            ("GET", "", None),
            ("PATCH", "", bodies["PATCH"]),
            ("GET", "/policy", None),
            ("PATCH", "/policy", {"max_recipients": 1}),
        ):
            wanted = told(await office.call(method, f"/v1/tenants/{NOBODY}{suffix}", key, body))
            assert wanted[0] in (403, 404)
            for public_id in foreign:
                answer = await office.call(method, f"/v1/tenants/{public_id}{suffix}", key, body)
                assert told(answer) == wanted, (method, suffix)
    missing = f"ptn_{NOBODY[4:]}"
    assert told(await office.call("GET", "/v1/tenants", second, partner_id=one.public_id)) == told(
        await office.call("GET", "/v1/tenants", second, partner_id=missing)
    )
    page = await office.call("GET", "/v1/tenants", second)
    assert page.json() == {"data": [], "next_cursor": None}
    assert (await world.tenants.get(theirs["id"])).name == "Theirs"


async def test_what_levels_may(office: Office) -> None:
    world = office.world
    partner, key = await office.partner()
    own = f"/v1/tenants/{world.tenant.public_id}"
    bare = await world.new_key(Level.TENANT, [Permission.MESSAGES_READ], tenant=world.tenant)
    # Its own tenant without a permission; nothing of it may be changed that way, and no other is read (A4.1).
    assert (await office.call("GET", own, bare)).status_code == 200
    for method, path, body in (
        ("PATCH", own, {"name": "Mine"}),
        ("GET", f"{own}/policy", None),
        ("PATCH", f"{own}/policy", {"max_recipients": 1}),
        ("POST", "/v1/tenants", {"slug": "x1", "name": "X", "mode": "live"}),
        ("GET", "/v1/tenants", None),
        ("GET", "/v1/partners", None),
    ):
        assert refused(await office.call(method, path, bare, body))[:2] == (403, "permission_denied")
    agent = await world.new_key(Level.IDENTITY, identity=world.box)
    assert refused(await office.call("GET", own, agent))[:2] == (403, "permission_denied")
    for method, path in (("GET", "/v1/partners"), ("GET", f"/v1/partners/{partner.public_id}")):
        assert refused(await office.call(method, path, key))[:2] == (403, "permission_denied")
    # A partner's key is live, and acts on tenants of both kinds.
    test = await office.made("try-out", key, mode="test")
    assert (await office.call("GET", f"/v1/tenants/{test['id']}", key)).status_code == 200


@pytest.mark.covers("edge:J14", "edge:J23", "edge:J24", "edge:J25", "FR-TEN-4")
async def test_the_policy_as_its_writers_see_it(office: Office) -> None:
    partner, key = await office.partner()
    made = await office.made("shop", key, policy={"max_recipients": 8})
    path = POLICY.format(made["id"])
    tenant = await office.world.tenants.get(made["id"])
    writer = await office.world.new_key(Level.TENANT, ["policy:write"], tenant=tenant)
    seen = await office.call("GET", path, writer)
    check("TenantPolicyView", seen.json())
    fields = {one["field"]: one for one in seen.json()["fields"]}
    assert fields["max_recipients"] == {
        "field": "max_recipients",
        "class": "lower_only",
        "writable": True,
        "ceiling": 8,
        "ceiling_source": "partner",
        "person_required_to_loosen": False,
    }
    assert fields["auto_reply.allowed"]["ceiling"] is True
    assert not fields["quarantine.key_release"]["writable"]
    for by in (key, office.world.platform):
        view = (await office.call("GET", path, by)).json()
        check("TenantPolicyView", view)
        assert view["policy"] == seen.json()["policy"]
    assert all(one["writable"] and one["ceiling"] is None for one in view["fields"])
    for body, field_, reason in (
        ({"max_recipients": 9, "link_ttl_hours": 9}, "max_recipients", "above_ceiling"),
        ({"max_recipients": None}, "max_recipients", "above_ceiling"),
        ({"quarantine": {"key_release": True}}, "quarantine.key_release", "not_writable"),
        ({"web_bot_auth": {"allowed": False}}, "web_bot_auth.allowed", "not_writable"),
    ):
        status, code, details = refused(await office.call("PATCH", path, writer, body))
        assert (status, code, details["field"], details["reason"]) == (403, "scope_denied", field_, reason)
    done = await office.call("PATCH", path, writer, {"max_recipients": 8, "link_ttl_hours": 9})
    check("TenantPolicyView", done.json())
    assert (done.json()["policy_version"], done.json()["policy"]["link_ttl_hours"]) == (1, 9)
    wrong: Any
    for wrong in ({}, {"nothing": 1}, {"retention": {}}, {"max_recipients": True}, [1], {"max_recipients": 2**70}):
        assert refused(await office.call("PATCH", path, writer, wrong))[:2] == (400, "invalid_request")
    assert partner.public_id == made["partner_id"]


@pytest.mark.covers("FR-TEN-3", "edge:J17", "edge:A6", "edge:A7")
async def test_suspending_and_resuming(office: Office) -> None:
    """A suspension pauses the identities that were active, and ends with those alone."""
    world, (_, key) = office.world, await office.partner()
    made = await office.made("shop", key)
    tenant = await world.tenants.get(made["id"])
    box, paused = await world.new_identity(tenant, "one"), await world.new_identity(tenant, "two")
    mailbox = await world.new_key(Level.TENANT, tenant=tenant)
    await office.call("PATCH", f"/v1/identities/{paused.public_id}", mailbox, {"status": "paused"})
    path = f"/v1/tenants/{made['id']}"

    async def states() -> list[tuple[str, str | None]]:
        found = await office.rows(
            "SELECT status, pause_reason FROM identities WHERE tenant_id = $1 ORDER BY id", tenant.id
        )
        return [tuple(row) for row in found]

    done = await office.call("PATCH", path, key, {"status": "suspended"})
    assert (done.json()["status"], done.json()["suspended_by"]) == ("suspended", "partner")
    assert await states() == [("paused", "tenant_suspended"), ("paused", "manual")]
    body = {"username": "late", "display_name": "Late"}
    late = await office.call("POST", f"{path}/identities", world.platform, body)
    assert refused(late)[:2] == (403, "tenant_suspended")
    over = await office.call("PATCH", path, world.platform, {"status": "suspended"})
    assert over.json()["suspended_by"] == "platform"
    lifted = await office.call("PATCH", path, key, {"status": "active"})
    assert refused(lifted) == (403, "scope_denied", {"field": "status"})
    assert (await office.call("PATCH", path, world.platform, {"status": "active"})).json()["suspended_by"] is None
    assert await states() == [("active", None), ("paused", "manual")]
    kinds = await office.rows("SELECT type FROM events WHERE identity_id = $1 ORDER BY id", box.id)
    assert [row["type"] for row in kinds][-2:] == ["identity.paused", "identity.resumed"]
    assert refused(await office.call("PATCH", path, key, {"sending_paused": False}))[2] == {"field": "sending_paused"}
    wrong = refused(await office.call("PATCH", path, world.platform, {"sending_paused": True}))
    assert wrong[:2] == (400, "invalid_request")
    assert [one["path"] for one in wrong[2]["errors"]] == ["sending_paused"]
    async with world.db.acquire() as conn:
        await conn.execute(
            "UPDATE tenants SET sending_paused_at = now(), sending_pause_reason = 'abuse_burst' WHERE id = $1",
            tenant.id,
        )
    assert (await office.call("GET", path, key)).json()["sending_paused_at"] is not None
    lifted = await office.call("PATCH", path, world.platform, {"sending_paused": False})
    assert lifted.json()["sending_paused_at"] is None


@pytest.mark.covers("edge:J18")
async def test_how_many_tenants_a_partner_makes(office: Office) -> None:
    """Ten in a minute, over all of its keys; another partner has its own."""
    _, key = await office.partner(max_tenants=11)
    for at in range(10):
        await office.made(f"t{at}", key)
    body = {"slug": "t10", "name": "T", "mode": "live"}
    response = await office.call("POST", "/v1/tenants", key, body)
    status, code, details = refused(response)
    assert (status, code, details["bucket"]) == (429, "rate_limited", "partner_create")
    assert response.headers["ratelimit-limit"] == "10"
    office.world.clock.advance(60)
    await office.made("t10", key)
    assert refused(await office.call("POST", "/v1/tenants", key, {**body, "slug": "t11"})) == (
        *(403, "partner_tenant_limit", {"max_tenants": 11}),
    )
    _, other = await office.partner("Two")
    await office.made("t12", other)
    refused_ = await office.call("POST", "/v1/tenants", other, {**body, "slug": "b1", "billing": {"mode": "exempt"}})
    assert refused(refused_) == (403, "scope_denied", {"field": "billing"})


@pytest.mark.covers("edge:J12", "FR-KEY-4")
async def test_partners(office: Office) -> None:
    key = office.world.platform
    done = await office.call("POST", "/v1/partners", key, {"name": "Integrator", "max_tenants": 3}, once="p")
    check("Partner", done.json())
    again = await office.call("POST", "/v1/partners", key, {"name": "Integrator", "max_tenants": 3}, once="p")
    assert (done.status_code, again.json(), again.headers["idempotent-replayed"]) == (201, done.json(), "true")
    path = f"/v1/partners/{done.json()['id']}"
    changed = await office.call("PATCH", path, key, {"status": "suspended", "default_billing_mode": "exempt"})
    assert (changed.json()["status"], changed.json()["default_billing_mode"]) == ("suspended", "exempt")
    await office.partner("Second")
    page = (await office.call("GET", "/v1/partners", key, limit=1)).json()
    check("PartnerPage", page)
    rest = (await office.call("GET", "/v1/partners", key, limit=1, cursor=page["next_cursor"])).json()
    assert [one["name"] for one in page["data"] + rest["data"]] == ["Second", "Integrator"]
    assert rest["next_cursor"] is None
    suspended = (await office.call("GET", "/v1/partners", key, status="suspended")).json()
    assert [one["name"] for one in suspended["data"]] == ["Integrator"]
    for wrong in ({}, {"name": ""}, {"status": "deleted"}, {"max_tenants": -1}, {"max_tenants": 2**40}):
        assert refused(await office.call("PATCH", path, key, wrong))[:2] == (400, "invalid_request")
    gone = await office.call("DELETE", path, key)
    assert (gone.status_code, gone.content) == (204, b"")
    left = (await office.call("GET", path, key)).json()
    assert (left["status"], left["name"]) == ("deleted", "")
    missing = f"/v1/partners/ptn_{NOBODY[4:]}"
    for method, body in (("DELETE", None), ("PATCH", {"name": "Back"})):
        assert told(await office.call(method, path, key, body)) == told(await office.call(method, missing, key, body))
    assert refused(await office.call("GET", "/v1/partners/ptn_x", key))[:2] == (404, "partner_not_found")


@pytest.mark.covers("edge:J12")
async def test_the_tenants_of_a_partner_keep_it(office: Office) -> None:
    partner, key = await office.partner()
    made = await office.made("mine", key)
    path = f"/v1/partners/{partner.public_id}"
    assert refused(await office.call("DELETE", path, office.world.platform)) == (
        *(409, "partner_has_tenants", {"tenants": 1}),
    )
    listed = await office.call("GET", "/v1/tenants", office.world.platform, partner_id=partner.public_id)
    assert [one["id"] for one in listed.json()["data"]] == [made["id"]]
    async with office.world.db.acquire() as conn:
        await conn.execute("UPDATE tenants SET status = 'erased' WHERE public_id = $1", made["id"])
    erased = (await office.call("GET", f"/v1/tenants/{made['id']}", key)).json()
    assert (erased["name"], erased["status"]) == ("", "erased")
    check("Tenant", erased)
    for method, body in (("PATCH", {"name": "Back"}), ("PATCH", {"policy": {"max_recipients": 1}})):
        for by, code in ((key, "tenant_not_found"), (office.world.platform, "tenant_erased")):
            assert refused(await office.call(method, f"/v1/tenants/{made['id']}", by, body))[1] == code
    assert (await office.call("DELETE", path, office.world.platform)).status_code == 204
    assert (await office.call("GET", f"/v1/tenants/{made['id']}", office.world.platform)).json()["partner_id"] == (
        partner.public_id
    )


async def test_a_long_answer_is_read_again(office: Office) -> None:
    """Records keep at most 64 KiB: a tenant whose rules are longer is repeated as it is by then."""
    rules = [
        {
            "id": f"r{at}",
            "match": {"subject_contains": [f"{n:02d}" + "a" * 190 for n in range(20)]},
            "set": {"skip_model": True},
        }
        for at in range(25)
    ]
    body = {"slug": "long", "name": "Long", "mode": "live", "policy": {"triage": {"rules": rules}}}
    made = await office.call("POST", "/v1/tenants", office.world.platform, body, once="long")
    assert made.status_code == 201
    again = await office.call("POST", "/v1/tenants", office.world.platform, body, once="long")
    assert again.json() == made.json()
    assert len(again.content) > 64 * 1024


@pytest.mark.covers("edge:J17", "FR-OUT-3")
async def test_an_identity_has_no_more_than_its_tenant(office: Office) -> None:
    """The tenant's own cap as it holds by now, not the default; the platform may go beyond it."""
    world = office.world
    await world.tenants.change_policy(world.tenant.id, {"identity_daily_send_cap": 40})
    path = f"/v1/identities/{world.box.public_id}"
    for key, cap, status in (
        (world.key, 41, 403),
        (world.key, 40, 200),
        (world.platform, 41, 200),
    ):
        done = await office.call("PATCH", path, key, {"send_policy": {"daily_cap": cap}})
        assert done.status_code == status
        if status == 403:
            assert refused(done) == (403, "scope_denied", {"field": "send_policy.daily_cap"})
    body = {"username": "new", "display_name": "New", "send_policy": {"daily_cap": 41}}
    made = await office.call("POST", f"/v1/tenants/{world.tenant.public_id}/identities", world.key, body)
    assert refused(made)[:2] == (403, "scope_denied")
    await world.tenants.change_policy(world.tenant.id, {"identity_daily_send_cap": None})
    made = await office.call("POST", f"/v1/tenants/{world.tenant.public_id}/identities", world.key, body)
    assert made.status_code == 201
