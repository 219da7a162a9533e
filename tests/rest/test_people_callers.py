"""Whether who does something to people still may: removed while they waited, or an operator who is a member, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context
from typing import Any, Final
from unittest.mock import MagicMock

import pytest

from postroom.accounts import GrantRole, MemberRole, NewPerson, NewTenant
from postroom.accounts.audit import HOST
from postroom.accounts.invitations import MAX_MAILS_OF_PARTNER
from postroom.accounts.partners import NewPartner
from postroom.accounts.store import people as people_store
from postroom.accounts.store import tenants as tenant_store
from postroom.base.errors import PostroomError
from postroom.base.settings_tree import Environment
from postroom.directory.sending_controls import SendingControls, Switch
from postroom.inbound.parsing import Parser
from postroom.servers.http import About, create_http
from postroom.servers.http.rest.people import PATH
from tests.rest.lobby import RIGHT, open_lobby
from tests.rest.test_members import BO, Desk, mail_of
from tests.rest.world import World

ASKED: Final[dict[str, list[dict[str, Any] | None]]] = {
    "createPerson": [{"display_name": "Me", "role": "admin", "password": RIGHT}],
    "updatePerson": [{"display_name": "Mine"}, {"password": "another horse battery"}, {"enabled": False}],
    "removePerson": [None],
    "putGrant": [{"role": "owner"}],
    "removeGrant": [None],
    "revokePersonAppPassword": [None],
    "revokePersonSessions": [None],
}
ROUTES: Final = [
    rule
    for rule in create_http(MagicMock(about=About("0", "unknown", Environment.LOCAL))).table.rules
    if rule.path.startswith(PATH) and rule.changes
]


@pytest.fixture
async def desk(world: World) -> AsyncIterator[Desk]:
    parser = Parser()
    async with open_lobby(world) as lobby:
        yield Desk(lobby, mail_of(world, lobby, parser), parser)
    parser.close()


def test_every_route_that_changes_people_is_asked() -> None:
    assert {rule.operation for rule in ROUTES} == set(ASKED)


@pytest.mark.covers("edge:W9")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param(rule.method, rule.path, body, id=f"{rule.operation}{'-'.join(body or {})}")
        for rule in ROUTES
        for body in ASKED[rule.operation]
    ],
)
async def test_a_request_that_waited_while_its_caller_was_removed(
    desk: Desk, method: str, path: str, body: dict[str, Any] | None
) -> None:
    tenant, people = desk.world.tenant, desk.lobby.people
    gone, other = [await people.create(NewPerson(name, f"{name}@x.example", RIGHT)) for name in ("al", "cy")]
    await people.put_member(tenant.id, gone.public_id, MemberRole.ADMIN)
    await people.put_member(tenant.id, other.public_id, MemberRole.MEMBER)
    await people.grant(tenant.id, desk.world.box.public_id, other.public_id, GrantRole.READ)
    phone, _ = await desk.lobby.account.app_passwords.create(other, "phone", HOST)
    names = {
        "tenant_id": tenant.public_id,
        "person_id": other.public_id,
        "identity_id": desk.world.box.public_id,
        "app_password_id": phone.public_id,
    }
    headers = await desk.session(gone, second_factor=True)
    ask = desk.ask(method, path.format_map(names), body, headers)
    async with desk.world.db.transaction() as conn:  # as removing them does it
        await tenant_store.lock(conn, tenant.id)
        asked = asyncio.get_running_loop().create_task(ask, context=Context())
        await asyncio.wait([asked], timeout=0.5)
        await people_store.remove_from(conn, tenant.id, gone.id)
    answer = await asked
    assert answer.status_code == 403, answer.text
    assert answer.json()["error"]["code"] == "permission_denied"
    assert await desk.value("SELECT count(*) FROM audit_log WHERE actor_person = $1", gone.public_id) == 0


@pytest.mark.covers("decisions:A2")
@pytest.mark.parametrize("what", ["sessions", "app-passwords"])
async def test_nobody_signs_out_whoever_is_coming_into_another_tenant(desk: Desk, what: str) -> None:
    tenant, people = desk.world.tenant, desk.lobby.people
    admin, other = [await people.create(NewPerson(name, f"{name}@x.example", RIGHT)) for name in ("al", "cy")]
    elsewhere = await desk.world.tenants.create(NewTenant(slug="third", name="Third"))
    await people.put_member(tenant.id, admin.public_id, MemberRole.ADMIN)
    await people.put_member(tenant.id, other.public_id, MemberRole.MEMBER)
    phone, _ = await desk.lobby.account.app_passwords.create(other, "phone", HOST)
    headers = await desk.session(admin, second_factor=True)
    last = "sessions" if what == "sessions" else f"app-passwords/{phone.public_id}"
    ask = desk.ask("DELETE", f"{desk.tenant}/people/{other.public_id}/{last}", None, headers)
    async with desk.world.db.transaction() as conn:  # as accepting an invitation does it
        await people_store.lock(conn, other.id)
        asked = asyncio.get_running_loop().create_task(ask, context=Context())
        await asyncio.wait([asked], timeout=0.5)
        await people.join(conn, elsewhere.id, other, MemberRole.ADMIN, HOST)
    assert (await asked).json()["error"]["code"] == "scope_denied"


@pytest.mark.covers("edge:J33")
async def test_an_operator_who_is_a_member_is_an_operator(desk: Desk) -> None:
    tenant, people = desk.world.tenant, desk.lobby.people
    ops = await people.create(NewPerson("Op", "op@x.example", RIGHT, is_operator=True))
    al = await people.create(NewPerson("Al", "al@x.example", RIGHT))
    for person in (ops, al):
        await people.put_member(tenant.id, person.public_id, MemberRole.ADMIN, by_operator=True)
    controls = SendingControls(desk.world.db, desk.world.clock, desk.world.ids)
    await controls.switch(Switch.READ_ONLY, on=True, reason="a test")
    body = {"display_name": "X", "role": "member"}
    for person, status in ((ops, 201), (al, 503)):
        headers = await desk.session(person, second_factor=True)
        answer = await desk.ask("POST", f"{desk.tenant}/people", body, headers)
        assert answer.status_code == status, answer.text
    # With the password alone they are who they are in the tenant.
    refused = await desk.ask("GET", f"{desk.tenant}/people", None, await desk.session(ops))
    assert refused.json()["error"]["details"] == {"reason": "second_factor_required"}


@pytest.mark.covers("FR-CON-4")
async def test_a_suspended_tenant_takes_nobody_in(desk: Desk) -> None:
    await desk.invite()
    code = await desk.code()
    bo = "UPDATE tenants SET status = $2 WHERE id = $1 RETURNING id"
    await desk.value(bo, desk.world.tenant.id, "suspended")
    refused = await desk.join(code)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tenant_suspended")
    assert await desk.value("SELECT count(*) FROM people WHERE contact_email = $1", BO) == 0
    person = await desk.lobby.people.create(NewPerson("Bo", BO, RIGHT))
    session = await desk.session(person)
    refused = await desk.ask("POST", "/v1/account/invitations/accept", {"code": code}, session)
    assert refused.json()["error"]["code"] == "tenant_suspended"
    await desk.value(bo, desk.world.tenant.id, "active")
    assert (await desk.ask("POST", "/v1/account/invitations/accept", {"code": code}, session)).status_code == 200


@pytest.mark.covers("edge:W44")
async def test_a_partner_does_not_spend_everybodys_mail(desk: Desk) -> None:
    world, members = desk.world, desk.lobby.members
    partners = world.app.services.partners
    assert partners is not None
    partner = await partners.create(NewPartner("Integrator"))
    made = await world.tenants.create(NewTenant(slug="theirs", name="Theirs"))
    async with world.db.acquire() as conn:
        key = await conn.fetchval("SELECT id FROM partners WHERE public_id = $1", partner.public_id)
        await conn.execute("INSERT INTO partner_tenants (partner_id, tenant_id) VALUES ($1, $2)", key, made.id)
    await members.invite(made.id, BO, MemberRole.MEMBER)
    spent = "UPDATE system_mail_days SET count = $2 WHERE subject = $1 RETURNING count"
    assert await desk.value(spent, f"invitations:{partner.public_id}", MAX_MAILS_OF_PARTNER) == MAX_MAILS_OF_PARTNER
    with pytest.raises(PostroomError) as refused:
        await members.invite(made.id, "al@elsewhere.example", MemberRole.MEMBER)
    assert refused.value.code == "daily_cap_reached"
    assert (await desk.invite("al@elsewhere.example")).status_code == 201
