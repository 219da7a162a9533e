"""People of a tenant over HTTP: made, read, changed, removed, by whom."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.accounts import GrantRole, Level, MemberRole, NewPerson, Principal
from tests.rest.lobby import RIGHT, Lobby
from tests.rest.sender import code

PASSWORD = "a long enough one"


def at(lobby: Lobby, rest: str = "", tenant: str | None = None) -> str:
    return f"/v1/tenants/{tenant or lobby.world.tenant.public_id}/people{rest}"


@pytest.mark.covers("decisions:A2")
async def test_made_with_a_mailbox_of_their_own(lobby: Lobby) -> None:
    world = lobby.world
    body = {"display_name": "Bob", "username": "bob", "password": PASSWORD, "contact_email": "Bob@Example.com"}
    made = await lobby.ask("POST", at(lobby), body, world.key)
    assert made.status_code == 201, made.text
    lobby.check("Person", made.json())
    assert (made.json()["contact_email"], made.json()["has_password"]) == ("bob@example.com", True)
    assert isinstance(await lobby.sign_in.sign_in("bob.acme@agents.example", PASSWORD, "192.0.2.1"), Principal)
    path = at(lobby, f"/{made.json()['id']}")
    assert (await lobby.ask("GET", path, token=world.key)).json() == made.json()
    listed = (await lobby.ask("GET", at(lobby), token=world.key, limit=1)).json()
    lobby.check("PersonPage", listed)
    assert listed["data"] == [made.json()]
    rest = (await lobby.ask("GET", at(lobby), token=world.key, cursor=listed["next_cursor"])).json()
    assert [one["id"] for one in rest["data"]] == [lobby.ada.public_id]
    grants = (await lobby.ask("GET", f"{path}/grants", token=world.key)).json()
    lobby.check("GrantPage", grants)
    assert [one["role"] for one in grants["data"]] == ["owner"]
    assert (await lobby.ask("GET", f"{path}/totp", token=world.key)).json()["status"] == "disabled"
    # The mailbox was made by whoever made the person.
    made_by = (await world.get("/v1/audit-events", action="identity.create")).json()["data"][0]
    caller = (await world.get("/v1/me")).json()["key_id"]
    assert (made_by["actor_key_id"], made_by["request_id"]) == (caller, made.headers["request-id"])


async def test_nothing_is_half_made(lobby: Lobby) -> None:
    world = lobby.world
    body = {"display_name": "Bob", "username": "bob", "contact_email": "ada@example.com"}
    assert code(await lobby.ask("POST", at(lobby), body, world.key)) == "address_taken"
    body = {"display_name": "Bob", "username": "ada", "contact_email": "bob@example.com"}
    assert code(await lobby.ask("POST", at(lobby), body, world.key)) == "username_taken"
    for bad in (
        {"display_name": "Bob"},
        {"display_name": "", "role": "member"},
        {"display_name": "Bob", "role": "owner"},
        {"display_name": "Bob", "role": "member", "password": "short"},
    ):
        assert code(await lobby.ask("POST", at(lobby), bad, world.key)) == "invalid_request"
    async with world.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM people") == 1
        assert await conn.fetchval("SELECT count(*) FROM identities WHERE username = 'bob'") == 0
    assert (
        await lobby.ask("POST", at(lobby), {"display_name": "Bob", "username": "bob"}, world.key)
    ).status_code == 201


@pytest.mark.covers("FR-TEN-3")
async def test_a_suspended_tenant_gets_no_mailboxes(lobby: Lobby) -> None:
    world = lobby.world
    await world.identities.suspend_tenant(world.tenant.id)
    for body in (
        {"display_name": "Bob", "username": "bob"},
        {"display_name": "Bob", "username": "bob", "role": "admin"},
    ):
        assert code(await lobby.ask("POST", at(lobby), body, world.key)) == "tenant_suspended"
    async with world.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM identities WHERE username = 'bob'") == 0


@pytest.mark.covers("decisions:A2", "mail-server:F1")
async def test_changed_by_the_tenants_administrators(lobby: Lobby) -> None:
    world, path = lobby.world, at(lobby, f"/{lobby.ada.public_id}")
    token = await lobby.token()
    renamed = await lobby.ask("PATCH", path, {"display_name": "A. L."}, world.key)
    assert renamed.json()["display_name"] == "A. L."
    assert (await lobby.ask("PATCH", path, {"password": PASSWORD}, world.key)).status_code == 200
    assert code(await lobby.ask("GET", "/v1/account", token=token)) == "unauthenticated"
    token = await lobby.token(PASSWORD)
    off = await lobby.ask("PATCH", path, {"enabled": False}, world.key)
    assert off.json()["enabled"] is False
    assert code(await lobby.ask("GET", "/v1/account", token=token)) == "unauthenticated"
    assert code(await lobby.enter(PASSWORD)) == "invalid_credentials"
    assert (await lobby.ask("PATCH", path, {"enabled": True}, world.key)).status_code == 200
    token = await lobby.token(PASSWORD)
    made = (
        await lobby.ask("POST", "/v1/account/app-passwords", {"label": "Phone", "current_password": PASSWORD}, token)
    ).json()
    listed = (await lobby.ask("GET", f"{path}/app-passwords", token=world.key)).json()
    assert [one["id"] for one in listed["data"]] == [made["id"]]
    assert (await lobby.ask("DELETE", f"{path}/app-passwords/{made['id']}", token=world.key)).status_code == 204
    assert (await lobby.ask("DELETE", f"{path}/sessions", token=world.key)).status_code == 204
    assert code(await lobby.ask("GET", "/v1/account", token=token)) == "unauthenticated"
    for bad in ({}, {"password": "short"}, {"enabled": "no"}, {"display_name": None}):
        assert code(await lobby.ask("PATCH", path, bad, world.key)) == "invalid_request"
    async with world.db.acquire() as conn:
        rows = await conn.fetch("SELECT * FROM audit_log WHERE actor_key IS NOT NULL ORDER BY id")
    assert [row["action"] for row in rows] == [
        *("person.update", "person.password_reset", "person.disable", "person.enable"),
        *("app_password.revoke", "session.revoke_all"),
    ]
    assert all(row["request_id"].startswith("req_") for row in rows)
    assert RIGHT not in str(rows)
    assert PASSWORD not in str(rows)


@pytest.mark.covers("decisions:A2", "FR-KEY-3")
async def test_who_else_somebody_belongs_to_decides_who_may_reset_them(lobby: Lobby) -> None:
    world = lobby.world
    await lobby.people.grant(
        world.other_tenant.id, world.other_box.public_id, lobby.ada.public_id, GrantRole.READ, by_operator=True
    )
    path = at(lobby, f"/{lobby.ada.public_id}")
    writes: list[tuple[str, str, Any]] = [
        ("PATCH", path, {"password": PASSWORD}),
        ("PATCH", path, {"enabled": False}),
        ("DELETE", f"{path}/sessions", None),
        ("GET", f"{path}/app-passwords", None),
    ]
    assert (await lobby.ask("GET", path, token=world.key)).status_code == 200
    for method, where, body in writes:
        assert code(await lobby.ask(method, where, body, world.key)) == "scope_denied"
    # Not even who they are is told to a tenant that they have nothing to do with.
    stranger = await lobby.people.create(NewPerson("Stranger", password=RIGHT))
    await lobby.people.put_member(world.other_tenant.id, stranger.public_id, MemberRole.OWNER)
    for method, where, body in writes:
        elsewhere = where.replace(lobby.ada.public_id, stranger.public_id)
        assert code(await lobby.ask(method, elsewhere, body, world.key)) == "person_not_found"
    # The owner of a tenant is an operator's to reset, and stays.
    foreign = at(lobby, f"/{stranger.public_id}", world.other_tenant.public_id)
    assert code(await lobby.ask("PATCH", foreign, {"password": PASSWORD}, world.other_key)) == "owner_required"
    assert code(await lobby.ask("DELETE", foreign, token=world.other_key)) == "owner_required"
    assert code(await lobby.ask("PATCH", foreign, {"password": PASSWORD}, world.key)) == "tenant_not_found"
    assert (await lobby.ask("PATCH", foreign, {"password": PASSWORD}, world.platform)).status_code == 200
    assert (await lobby.ask("PATCH", path, {"enabled": False}, world.platform)).status_code == 200


async def test_grants(lobby: Lobby) -> None:
    world = lobby.world
    path = at(lobby, f"/{lobby.ada.public_id}/grants")
    put = await lobby.ask("PUT", f"{path}/{world.box.public_id}", {"role": "read"}, world.key)
    assert put.status_code == 204
    token = await lobby.token()
    messages = f"/v1/identities/{world.box.public_id}/messages"
    assert (await lobby.ask("GET", messages, token=token)).status_code == 200
    assert (await lobby.ask("DELETE", f"{path}/{world.box.public_id}", token=world.key)).status_code == 204
    assert code(await lobby.ask("DELETE", f"{path}/{world.box.public_id}", token=world.key)) == "grant_not_found"
    assert code(await lobby.ask("GET", messages, token=token)) == "identity_not_found"
    foreign = await lobby.ask("PUT", f"{path}/{world.other_box.public_id}", {"role": "read"}, world.key)
    assert code(foreign) == "identity_not_found"
    assert code(await lobby.ask("PUT", f"{path}/{world.box.public_id}", {"role": "x"}, world.key)) == "invalid_request"
    assert code(await lobby.ask("PUT", f"{path}/x", {"role": "read"}, world.key)) == "identity_not_found"


async def test_removed(lobby: Lobby) -> None:
    world, path = lobby.world, at(lobby, f"/{lobby.ada.public_id}")
    assert (await lobby.ask("DELETE", path, token=world.key)).status_code == 204
    assert code(await lobby.ask("GET", path, token=world.key)) == "person_not_found"
    assert code(await lobby.ask("DELETE", path, token=world.key)) == "person_not_found"
    async with world.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM people") == 0
        assert await conn.fetchval("SELECT count(*) FROM identities WHERE username = 'ada'") == 1


async def test_permissions(lobby: Lobby) -> None:
    world = lobby.world
    reader = await world.new_key(Level.TENANT, ["members:read"], tenant=world.tenant)
    path = at(lobby, f"/{lobby.ada.public_id}")
    assert (await lobby.ask("GET", path, token=reader)).status_code == 200
    assert code(await lobby.ask("PATCH", path, {"enabled": False}, reader)) == "permission_denied"
    own = await world.new_key(Level.IDENTITY, identity=world.box)
    assert code(await lobby.ask("GET", path, token=own)) == "permission_denied"
