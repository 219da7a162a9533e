"""Whose contact address it is: what a tenant says of people it made keeps nobody from their own address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context
from importlib import resources
from typing import Any

import pytest

from postroom.accounts import Level, MemberRole, NewKey, NewPerson, NewTenant, Person, Tenant
from postroom.accounts.audit import HOST, Actor
from postroom.accounts.permissions import Permission
from postroom.accounts.service.people import Place
from postroom.accounts.service.upkeep import Upkeep
from postroom.accounts.store import people as people_store
from postroom.directory import IdentityKind
from postroom.inbound.parsing import Parser
from tests.rest.lobby import RIGHT, open_lobby
from tests.rest.test_members import BO, Desk, mail_of
from tests.rest.world import World

OWN = "a horse of my own"
ACCEPT = "/v1/account/invitations/accept"


@pytest.fixture
async def desk(world: World) -> AsyncIterator[Desk]:
    parser = Parser()
    async with open_lobby(world) as lobby:
        yield Desk(lobby, mail_of(world, lobby, parser), parser)
    parser.close()


async def rival(desk: Desk) -> tuple[Tenant, dict[str, str]]:
    """A tenant with a key of its own that manages people."""
    tenant = await desk.world.tenants.create(NewTenant(slug="rival", name="Rival"))
    permissions = (Permission.MEMBERS_READ, Permission.MEMBERS_MANAGE)
    _, text = await desk.world.keys.create(None, NewKey("k", Level.TENANT, permissions, tenant.id, None))
    return tenant, {"authorization": f"Bearer {text}"}


async def plant(desk: Desk, email: str = BO, **more: Any) -> tuple[Tenant, dict[str, str], Person]:
    """Somebody whom the rival made with an address of whoever it likes."""
    tenant, key = await rival(desk)
    body = {"display_name": "Bo?", "contact_email": email, "role": "member", "password": RIGHT, **more}
    body = {name: value for name, value in body.items() if value is not None}
    made = await desk.ask("POST", f"/v1/tenants/{tenant.public_id}/people", body, key)
    assert made.status_code == 201, made.text
    return tenant, key, await desk.lobby.people.get(made.json()["id"])


async def platform(desk: Desk) -> dict[str, str]:
    """A key of whoever runs the deployment."""
    permissions = (Permission.MEMBERS_MANAGE, Permission.TENANTS_MANAGE)
    _, text = await desk.world.keys.create(None, NewKey("k", Level.PLATFORM, permissions, None, None))
    return {"authorization": f"Bearer {text}"}


async def enters(desk: Desk, password: str, email: str = BO) -> str | None:
    """Who is signed in then."""
    desk.world.clock.advance(61)
    answer = await desk.ask("POST", "/v1/auth/session", {"email": email, "password": password}, {})
    if answer.status_code != 201:
        return None
    headers = {"authorization": f"Bearer {answer.json()['token']}"}
    return str((await desk.ask("GET", "/v1/account", None, headers)).json()["person"]["id"])


@pytest.mark.covers("FR-CON-4", "decisions:A2", "edge:W23")
async def test_whoever_reads_the_mail_has_the_address(desk: Desk) -> None:
    tenant, key, planted = await plant(desk)
    await desk.lobby.account.app_passwords.create(planted, "phone", HOST)
    before = await desk.session(planted)
    await desk.invite(role="admin")
    joined = await desk.join(await desk.code(), OWN)
    assert joined.status_code == 201, joined.text
    bo = joined.json()["user_id"]
    assert bo != planted.public_id
    assert await enters(desk, OWN) == bo
    assert await enters(desk, RIGHT) is None
    # What the rival made is the rival's still, and nobody else's.
    assert (await desk.ask("GET", "/v1/account", None, before)).json()["person"]["contact_email"] is None
    left = await desk.ask("GET", f"/v1/tenants/{tenant.public_id}/people/{planted.public_id}", None, key)
    assert (left.status_code, left.json()["contact_email"]) == (200, None)
    theirs = await desk.ask("PATCH", f"/v1/tenants/{tenant.public_id}/people/{bo}", {"password": RIGHT}, key)
    assert theirs.status_code == 404
    entry = "SELECT tenant_id FROM audit_log WHERE action = 'person.contact_release' AND target_id = $1"
    assert await desk.value(entry, planted.public_id) == tenant.id
    # It is proved from here on.
    await desk.lobby.people.remove(tenant.id, planted.public_id)
    again = await desk.ask(
        *("POST", f"/v1/tenants/{tenant.public_id}/people"),
        *({"display_name": "B", "contact_email": BO, "role": "member"}, key),
    )
    assert again.json()["error"]["code"] == "address_taken"


@pytest.mark.covers("decisions:A2")
async def test_whoever_was_locked_out_does_not_come_back_by_their_address(desk: Desk) -> None:
    """A tenant that disables somebody, or gives them another password, has done so for good."""
    tenant, key, planted = await plant(desk)
    path = f"/v1/tenants/{tenant.public_id}/people/{planted.public_id}"
    assert (await desk.ask("PATCH", path, {"enabled": False}, key)).status_code == 200
    await desk.invite()
    assert (await desk.join(await desk.code(), OWN)).json()["user_id"] != planted.public_id
    assert not (await desk.lobby.people.get(planted.public_id)).enabled


@pytest.mark.covers("decisions:A2")
async def test_whom_nobody_can_sign_in_as_is_whoever_reads_the_mail(desk: Desk) -> None:
    tenant, key, planted = await plant(desk, password=None)
    await desk.invite()
    joined = await desk.join(await desk.code(), OWN)
    assert (joined.status_code, joined.json()["user_id"]) == (201, planted.public_id)
    assert await enters(desk, OWN) == planted.public_id
    path = f"/v1/tenants/{tenant.public_id}/people/{planted.public_id}"
    assert (await desk.ask("PATCH", path, {"password": RIGHT}, key)).json()["error"]["code"] == "scope_denied"
    assert await enters(desk, OWN) == planted.public_id


@pytest.mark.covers("decisions:A2")
@pytest.mark.parametrize("what", ["password", "app_password"])
async def test_whom_somebody_may_sign_in_as_by_then(desk: Desk, what: str) -> None:
    """The rival gives the person something to sign in with while the code is being taken."""
    _, _, planted = await plant(desk, password=None)
    await desk.invite()
    code, now = await desk.code(), desk.world.clock.now()
    async with desk.world.db.transaction() as conn:
        await people_store.lock(conn, planted.id)
        joining = asyncio.get_running_loop().create_task(desk.join(code, OWN), context=Context())
        await asyncio.wait([joining], timeout=0.5)
        if what == "password":
            await people_store.set_password(conn, planted.public_id, None, "x", now)
        else:
            await conn.execute(
                "INSERT INTO app_passwords (public_id, person_id, label, hash, created_at)"
                " VALUES ($1, $2, 'x', 'x', $3)",
                *(desk.world.ids.new("apw_"), planted.id, now),
            )
    joined = await joining
    assert joined.status_code == 201, joined.text
    assert joined.json()["user_id"] != planted.public_id


@pytest.mark.covers("FR-CON-16", "edge:W23", "edge:W40")
async def test_whoever_accepts_leaves_nothing_that_was_made_before(desk: Desk) -> None:
    _, _, planted = await plant(desk)
    account = desk.lobby.account
    _, phone = await account.app_passwords.create(planted, "phone", HOST)
    elsewhere, own = await desk.session(planted), await desk.session(planted)
    await desk.invite(role="admin")
    code = await desk.code()
    refused = await desk.ask("POST", ACCEPT, {"code": code}, own)
    assert (refused.status_code, refused.json()["error"]["details"]) == (403, {"reason": "address_unproven"})
    assert await desk.value("SELECT count(*) FROM members WHERE tenant_id = $1", desk.world.tenant.id) == 0
    accepted = await desk.ask("POST", ACCEPT, {"code": code, "password": OWN}, own)
    assert (accepted.status_code, accepted.json()["user_id"]) == (200, planted.public_id), accepted.text
    for session in (elsewhere, own):
        assert (await desk.ask("GET", "/v1/account", None, session)).status_code == 401
    assert [await enters(desk, one) for one in (RIGHT, phone, OWN)] == [None, None, planted.public_id]
    async with desk.world.db.acquire() as conn:
        rows = await conn.fetch("SELECT action FROM audit_log WHERE actor_person = $1", planted.public_id)
    assert {row["action"] for row in rows} == {"app_password.revoke", "person.contact_prove", "member.join"}
    # Another time nothing is to be chosen.
    other = await desk.world.tenants.create(NewTenant(slug="third", name="Third"))
    await desk.lobby.members.invite(other.id, BO, MemberRole.MEMBER)
    code, session = await desk.code(), await desk.session(planted)
    odd = await desk.ask("POST", ACCEPT, {"code": code, "password": RIGHT}, session)
    assert odd.json()["error"]["code"] == "invalid_request"
    assert (await desk.ask("POST", ACCEPT, {"code": code}, session)).status_code == 200


@pytest.mark.covers("mail-server:F4")
async def test_two_steps_go_only_by_both(desk: Desk) -> None:
    _, _, planted = await plant(desk)
    async with desk.world.db.acquire() as conn:
        await conn.execute(
            "INSERT INTO person_totp (person_id, secret_sealed, enabled_at) VALUES ($1, 'x', $2)",
            *(planted.id, desk.world.clock.now()),
        )
        await conn.execute(
            "INSERT INTO recovery_codes (person_id, hash, created_at) VALUES ($1, 'x', $2)",
            *(planted.id, desk.world.clock.now()),
        )
        await conn.execute(
            "INSERT INTO person_passkeys (public_id, person_id, credential_id, public_key, sign_count, transports,"
            " name, backup_eligible, backed_up, created_at) VALUES ($1, $2, 'x', 'x', 0, '{}', 'x', false, false, $3)",
            *(desk.world.ids.new("pky_"), planted.id, desk.world.clock.now()),
        )
    await desk.invite()
    body = {"code": await desk.code(), "password": OWN}
    refused = await desk.ask("POST", ACCEPT, body, await desk.session(planted))
    assert refused.json()["error"]["details"] == {"reason": "second_factor_required"}
    session = await desk.session(planted, second_factor=True)
    assert (await desk.ask("POST", ACCEPT, body, session)).status_code == 200
    for table in ("person_totp", "recovery_codes", "person_passkeys"):
        assert await desk.value(f"SELECT count(*) FROM {table} WHERE person_id = $1", planted.id) == 0
    assert await enters(desk, OWN) == planted.public_id
    for action in ("totp.disable", "passkey.remove"):
        assert await desk.value("SELECT count(*) FROM audit_log WHERE action = $1", action) == 1


@pytest.mark.covers("FR-CON-4")
async def test_whom_the_host_made_is_known(desk: Desk) -> None:
    """So is whom a platform key made: who runs the deployment says whose address it is."""
    made = await desk.ask(
        *("POST", f"{desk.tenant}/people"),
        {"display_name": "Bo", "contact_email": BO, "username": "bo", "password": RIGHT},
        await platform(desk),
    )
    assert made.status_code == 201, made.text
    await desk.invite()
    code = await desk.code()
    assert (await desk.join(code, OWN)).json()["error"]["code"] == "address_taken"
    session = await desk.session(await desk.lobby.people.get(made.json()["id"]))
    assert (await desk.ask("POST", ACCEPT, {"code": code}, session)).status_code == 200


@pytest.mark.covers("FR-TEN-1")
async def test_whom_a_tenant_made_owns_no_other(desk: Desk) -> None:
    _, _, planted = await plant(desk)
    body = {"slug": "fresh", "name": "Fresh", "mode": "live", "owner": {"email": BO}}
    made = await desk.ask("POST", "/v1/tenants", body, await platform(desk))
    assert made.status_code == 201, made.text
    assert await desk.value("SELECT count(*) FROM members WHERE person_id = $1", planted.id) == 1
    await desk.lobby.members.invite(
        await desk.value("SELECT id FROM tenants WHERE slug = 'fresh'"), BO, MemberRole.ADMIN
    )
    assert (await desk.join(await desk.code(), OWN)).json()["role"] == "owner"


@pytest.mark.covers("edge:W45")
async def test_an_address_that_nobody_proved_keeps_no_mailbox_away(desk: Desk) -> None:
    people, world = desk.lobby.people, desk.world
    ready = await people.prepare(NewPerson("Bo?", "sales.acme@agents.example", RIGHT))
    await people.put_member(world.tenant.id, desk.lobby.ada.public_id, MemberRole.ADMIN)
    by, place = Actor(person=desk.lobby.ada.public_id), Place(world.tenant.id, MemberRole.MEMBER)
    async with world.db.transaction() as conn:  # before the domain was ours
        await people.add(conn, ready, by=by, place=place)
    made = await world.new_identity(world.tenant, "sales", kind=IdentityKind.PERSON)
    assert made.primary.address == "sales.acme@agents.example"


# -- spelling


@pytest.mark.covers("RFC 5890 §2.3.2.1")
@pytest.mark.parametrize("spelling", ["Bo@MÜNCHEN.example", "bo@xn--mnchen-3ya.example", "bo@münchen.example."])
async def test_an_address_has_one_spelling(desk: Desk, spelling: str) -> None:
    made = await desk.lobby.people.create(NewPerson("Bo", spelling, RIGHT))
    assert made.contact_email == "bo@xn--mnchen-3ya.example"
    assert (await desk.invite("bo@münchen.EXAMPLE")).json()["email"] == made.contact_email
    assert (await desk.join(await desk.code(), OWN)).json()["error"]["code"] == "address_taken"
    assert await enters(desk, RIGHT, spelling) == made.public_id


async def test_letters_are_composed(desk: Desk) -> None:
    made = await desk.lobby.people.create(NewPerson("Bo", "bo\u0308@elsewhere.example", RIGHT))
    assert made.contact_email == "b\u00f6@elsewhere.example"
    assert await enters(desk, RIGHT, "bo\u0308@elsewhere.example") == made.public_id


@pytest.mark.covers("decisions:B1")
async def test_addresses_of_older_releases_are_respelt(desk: Desk) -> None:
    people, world = desk.lobby.people, desk.world
    kept = await people.create(NewPerson("Al", "al@münchen.example", RIGHT))
    old = ("bo@münchen.example", "al@münchen.example", "cy@x.example.", "nobody@@x")
    mades = [await people.create(NewPerson("X")) for _ in old]
    async with world.db.acquire() as conn:
        for made, text in zip(mades, old, strict=True):
            await conn.execute("UPDATE people SET contact_email = $2 WHERE id = $1", made.id, text)
    for _ in range(2):
        services = world.app.services
        await Upkeep(world.db, world.clock, services.rates, services.verifier).tick()
        found = [(await people.get(made.public_id)).contact_email for made in mades]
        # In conflict it is left as it is.
        assert found == ["bo@xn--mnchen-3ya.example", "al@münchen.example", "cy@x.example", "nobody@@x"]
    async with world.db.acquire() as conn:
        found_by = await people_store.by_contact(conn, "al@xn--mnchen-3ya.example")
    assert found_by == kept


@pytest.mark.covers("decisions:A2")
async def test_older_rows_are_proved_by_who_made_them(desk: Desk) -> None:
    _, _, planted = await plant(desk)
    host = await desk.lobby.people.create(NewPerson("Cy", "cy@elsewhere.example", RIGHT))
    statement = next(part for part in migrated("contact_proofs") if part.lstrip().startswith("UPDATE"))
    async with desk.world.db.acquire() as conn:
        await conn.execute("UPDATE people SET contact_verified_at = NULL")
        await conn.execute(statement)
        rows = await conn.fetch("SELECT public_id FROM people WHERE contact_verified_at IS NOT NULL")
    assert {row["public_id"] for row in rows} == {host.public_id, desk.lobby.ada.public_id}
    assert planted.contact_email == BO


def migrated(name: str) -> list[str]:
    """The statements of a migration, without comments."""
    found = (resources.files("postroom.db") / "migrations").iterdir()
    text = next(one for one in found if one.name.endswith(f"_{name}.sql")).read_text()
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).split(";")
