"""Members and invitations over HTTP: invited, mailed, accepted, removed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextvars import Context
from dataclasses import dataclass
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import orjson
import pytest

from postroom.accounts import Level, MemberRole, NewKey, NewPerson, Person
from postroom.accounts.audit import HOST
from postroom.accounts.permissions import Permission
from postroom.accounts.service.sessions import Origin, Proved
from postroom.accounts.store import people as people_store
from postroom.accounts.store import tenants as tenant_store
from postroom.blobs import BlobMissing
from postroom.directory import Identity
from postroom.inbound.parsing import Parser
from postroom.outbound.accept import Acceptance
from postroom.outbound.dead_letters import DeadLetters
from postroom.outbound.invitation_mail import InvitationMail
from postroom.outbound.models import RouteKind
from tests.outbound.fake_mx import FakeMx
from tests.outbound.mail_room import MailRoom
from tests.rest.contract import check
from tests.rest.lobby import RIGHT, Lobby, open_lobby
from tests.rest.world import World, unsigned

BO = "bo@elsewhere.example"
CODE = re.compile(r"^    ([A-Za-z0-9_-]{40,})\r?$", re.MULTILINE)


@dataclass
class Desk:
    """The lobby, and whoever writes the mail about invitations."""

    lobby: Lobby
    mail: InvitationMail
    parser: Parser

    @property
    def world(self) -> World:
        return self.lobby.world

    @property
    def tenant(self) -> str:
        return f"/v1/tenants/{self.world.tenant.public_id}"

    async def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        return await self.lobby.client.request(method, path, json=body, headers=headers or self.world.key)

    async def invite(self, email: str = BO, role: str = "member", **headers: str) -> Any:
        body = {"email": email, "role": role}
        return await self.ask("POST", f"{self.tenant}/invitations", body, {**self.world.key, **headers})

    async def roll(self) -> Any:
        answer = await self.ask("GET", f"{self.tenant}/members")
        assert answer.status_code == 200, answer.text
        check("MemberList", answer.json())
        return answer.json()

    async def code(self) -> str:
        """The one in the mail that was written last."""
        await self.mail.run_due()
        key = await self.value("SELECT wire_key FROM outbound_messages ORDER BY message_id DESC LIMIT 1")
        found = CODE.search((await self.world.blobs.get(key)).decode())
        assert found is not None
        return found.group(1)

    async def join(self, code: str, password: str = RIGHT) -> Any:
        self.world.clock.advance(61)
        body = {"code": code, "display_name": "Bo", "password": password}
        return await self.lobby.client.post("/v1/auth/invitation", json=body)

    async def session(self, person: Person, *, second_factor: bool = False) -> dict[str, str]:
        epoch = await self.value("SELECT sign_in_epoch FROM people WHERE id = $1", person.id)
        proved = Proved(person.id, person.public_id, epoch, second_factor=second_factor)
        token, _ = await self.lobby.account.sessions.open(proved, Origin("192.0.2.1"))
        return {"authorization": f"Bearer {token}"}

    async def value(self, statement: str, *values: Any) -> Any:
        async with self.world.db.acquire() as conn:
            return await conn.fetchval(statement, *values)

    async def events(self) -> list[tuple[str, dict[str, Any]]]:
        async with self.world.db.acquire() as conn:
            rows = await conn.fetch("SELECT type, payload FROM events WHERE type LIKE 'member.%' ORDER BY id")
        return [(row["type"], orjson.loads(row["payload"])["data"]) for row in rows]

    async def audited(self) -> list[str]:
        async with self.world.db.acquire() as conn:
            rows = await conn.fetch("SELECT action FROM audit_log WHERE action LIKE 'member.%' ORDER BY id")
        return [row["action"] for row in rows]


def mail_of(world: World, lobby: Lobby, parser: Parser) -> InvitationMail:
    async def sender() -> Identity:
        tenant = await world.tenants.default()
        return await world.identities.create_system(tenant.id, "no-reply", "Postroom", "postmaster@agents.example")

    async def route(address: str) -> RouteKind:
        return RouteKind.DIRECT

    acceptance = Acceptance(
        world.db, world.blobs, world.clock, world.ids, changed=lambda stored: None, wake=lambda: None
    )
    return InvitationMail(
        world.db,
        world.clock,
        lobby.members,
        sender=sender,
        accept=acceptance.accept,
        describe=parser.describe,
        sign=unsigned,
        route=route,
        api_host="api.example",
    )


@pytest.fixture
async def desk(world: World) -> AsyncIterator[Desk]:
    parser = Parser()
    async with open_lobby(world) as lobby:
        yield Desk(lobby, mail_of(world, lobby, parser), parser)
    parser.close()


@pytest.mark.covers("FR-CON-2", "FR-CON-4", "edge:A15")
async def test_somebody_comes(desk: Desk) -> None:
    made = await desk.invite()
    assert made.status_code == 201, made.text
    check("Invitation", made.json())
    assert made.json()["invited_by"] is None
    assert (await desk.roll())["seats"] == {"granted": None, "used": 1}
    code = await desk.code()
    # Neither the mailbox of the deployment's own identity nor any row has the code.
    kept = await desk.value("SELECT blob_key FROM messages ORDER BY id DESC LIMIT 1")
    assert code.encode() not in await desk.world.blobs.get(kept)
    assert b"[code]" in await desk.world.blobs.get(kept)
    assert (await desk.value("SELECT m.snippet || m.subject FROM messages m ORDER BY id DESC LIMIT 1")) == ""
    assert await desk.value("SELECT recipient FROM deliveries ORDER BY id DESC LIMIT 1") == BO

    joined = await desk.join(code)
    assert joined.status_code == 201, joined.text
    assert joined.json()["role"] == "member"
    (member,) = (await desk.roll())["data"]
    assert (member["email"], member["role"], member["last_login_at"]) == (BO, "member", None)
    assert (await desk.roll())["invitations"] == []
    # Once is all.
    assert (await desk.join(code)).json()["error"]["code"] == "invitation_not_found"
    signed = await desk.lobby.client.post("/v1/auth/session", json={"email": BO, "password": RIGHT})
    assert signed.status_code == 201, signed.text
    assert [kind for kind, _ in await desk.events()] == ["member.invited", "member.joined"]
    assert (await desk.events())[0][1]["email_hint"] == "b***@elsewhere.example"
    assert await desk.audited() == ["member.invite", "member.join"]
    # The row has the address no more.
    assert await desk.value("SELECT email FROM invitations") == member["user_id"]


@pytest.mark.covers("edge:W40", "edge:W23", "FR-CON-16")
async def test_only_whom_it_was_sent_to(desk: Desk) -> None:
    """A person of the deployment accepts themselves; others with their code do not, and it stays pending."""
    bo = await desk.lobby.people.create(NewPerson("Bo", BO, RIGHT))
    await desk.invite()
    code = await desk.code()
    assert (await desk.join(code)).json()["error"]["code"] == "address_taken"
    ada = await desk.session(desk.lobby.ada)
    refused = await desk.ask("POST", "/v1/account/invitations/accept", {"code": code}, ada)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "invitation_not_found")
    assert len((await desk.roll())["invitations"]) == 1
    # Signing in accepts nothing.
    own = await desk.session(bo)
    assert (await desk.roll())["data"] == []
    accepted = await desk.ask("POST", "/v1/account/invitations/accept", {"code": code}, own)
    assert accepted.status_code == 200, accepted.text
    assert accepted.json()["user_id"] == bo.public_id
    assert (await desk.ask("POST", "/v1/account/invitations/accept", {"code": code}, own)).status_code == 404


@pytest.mark.covers("FR-CON-4")
async def test_again_is_another_mail_and_the_code_before_is_worthless(desk: Desk) -> None:
    first = (await desk.invite()).json()
    before = await desk.code()
    desk.world.clock.advance(3600)
    second = (await desk.invite(BO.upper(), "viewer")).json()
    assert (second["id"], second["role"]) == (first["id"], "viewer")
    assert second["expires_at"] > first["expires_at"]
    after = await desk.code()
    assert (await desk.join(before)).status_code == 404
    assert (await desk.join(after)).json()["role"] == "viewer"
    assert await desk.audited() == ["member.invite", "member.invite_resend", "member.join"]
    again = await desk.invite()
    assert again.json()["error"]["details"]["errors"][0]["path"] == "email", "they are a member already"


async def test_once_for_a_key(desk: Desk) -> None:
    one = await desk.invite(**{"idempotency-key": "k"})
    two = await desk.invite(**{"idempotency-key": "k"})
    assert two.headers["idempotent-replayed"] == "true"
    assert one.json() == two.json()
    assert await desk.value("SELECT count FROM system_mail_days WHERE subject = 'invitations'") == 1
    other = await desk.invite(role="admin", **{"idempotency-key": "k"})
    assert other.json()["error"]["code"] == "idempotency_conflict"


@pytest.mark.covers("FR-CON-4")
async def test_what_ends_an_invitation(desk: Desk) -> None:
    made = (await desk.invite()).json()
    code = await desk.code()
    path = f"{desk.tenant}/invitations/{made['id']}"
    assert (await desk.ask("DELETE", path)).status_code == 204
    assert (await desk.ask("DELETE", path)).json()["error"]["code"] == "invitation_not_found"
    assert (await desk.join(code)).status_code == 404
    await desk.invite()
    code = await desk.code()
    desk.world.clock.advance(7 * 86400)
    assert (await desk.join(code)).status_code == 404
    assert (await desk.roll())["seats"]["used"] == 0
    await desk.lobby.members.expire()
    assert await desk.value("SELECT array_agg(status ORDER BY id) FROM invitations") == ["revoked", "expired"]
    desk.world.clock.advance(31 * 86400)
    await desk.lobby.members.expire()
    assert await desk.value("SELECT count(*) FROM invitations") == 0


@pytest.mark.covers("edge:W44")
async def test_so_many_mails_a_day(desk: Desk) -> None:
    for _ in range(10):
        assert (await desk.invite()).status_code == 201
    refused = await desk.invite()
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["code"], error["details"]["cap"]) == ("daily_cap_reached", "invitations")
    assert error["details"]["resets_at"] == "2030-01-02T00:00:00.000Z"
    for number in range(40):
        assert (await desk.invite(f"p{number}@elsewhere.example")).status_code == 201
    assert (await desk.invite("last@elsewhere.example")).status_code == 429
    assert await desk.value("SELECT count(*) FROM invitations") == 41, "nothing is written for what is refused"
    desk.world.clock.advance(86400)
    assert (await desk.invite("last@elsewhere.example")).status_code == 201


@pytest.mark.covers("edge:W45", "decisions:A4")
@pytest.mark.parametrize("email", ["nobody@agents.example", "x@y@elsewhere.example", "bo@elsewhere.example> SIZE=1"])
async def test_addresses_that_are_not_invited(desk: Desk, email: str) -> None:
    refused = await desk.invite(email)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["details"]["errors"][0]["path"] == "email"
    assert await desk.value("SELECT count(*) FROM system_mail_days") == 0


async def test_a_mailbox_here_is_not_invited_whatever_its_domain(desk: Desk) -> None:
    now = desk.world.clock.now()
    await desk.value(
        "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at)"
        " VALUES ($1, $2, 'shop.example', 'external', 'healthy', $3, $3) RETURNING id",
        *(desk.world.ids.new("dom_"), desk.world.tenant.id, now),
    )
    domain = await desk.value("SELECT public_id FROM domains WHERE name = 'shop.example'")
    path = f"/v1/identities/{desk.world.box.public_id}/addresses"
    made = await desk.ask("POST", path, {"local_part": "sales", "domain_id": domain})
    assert made.status_code == 201, made.text
    assert (await desk.invite("sales@shop.example")).status_code == 400
    assert (await desk.invite("sales+x@shop.example")).status_code == 400
    assert (await desk.invite("somebody@shop.example")).status_code == 201


@pytest.mark.covers("FR-CON-2")
async def test_a_tenant_without_owner_gets_one_by_its_platform(desk: Desk) -> None:
    body = {"email": BO, "role": "admin"}
    assert (await desk.ask("POST", f"{desk.tenant}/invitations", body, desk.world.platform)).status_code == 201
    assert (await desk.join(await desk.code())).json()["role"] == "owner"
    body["email"] = "cy@elsewhere.example"
    assert (await desk.ask("POST", f"{desk.tenant}/invitations", body, desk.world.platform)).status_code == 201
    assert (await desk.join(await desk.code())).json()["role"] == "admin"


async def test_a_tenants_own_key_gives_no_owner(desk: Desk) -> None:
    await desk.invite(role="admin")
    assert (await desk.join(await desk.code())).json()["role"] == "admin"


@pytest.mark.covers("edge:W9", "edge:W10", "edge:W36", "FR-CON-4", "NFR-SEC-1")
async def test_whoever_is_removed_has_nothing_left(desk: Desk) -> None:
    people, world = desk.lobby.people, desk.world
    await people.put_member(world.tenant.id, desk.lobby.ada.public_id, MemberRole.ADMIN)
    await people.create(NewPerson("Bo", BO, RIGHT))
    new = NewKey("k", Level.TENANT, (Permission.MESSAGES_READ,), world.tenant.id, None, person=desk.lobby.ada.public_id)
    _, text = await world.keys.create(None, new)
    key = {"authorization": f"Bearer {text}"}
    session = await desk.session(desk.lobby.ada, second_factor=True)
    assert (await desk.ask("GET", f"{desk.tenant}/members", None, session)).status_code == 200
    assert (await desk.ask("GET", "/v1/me", None, key)).status_code == 200
    path = f"{desk.tenant}/members/{desk.lobby.ada.public_id}"
    assert (await desk.ask("DELETE", path)).status_code == 204
    assert (await desk.ask("GET", "/v1/account", None, session)).status_code == 401
    assert (await desk.ask("GET", "/v1/me", None, key)).json()["error"]["code"] == "key_revoked"
    assert await desk.value("SELECT count(*) FROM mailbox_grants") == 0
    assert (await desk.ask("DELETE", path)).json()["error"]["code"] == "member_not_found"
    assert (await desk.events())[-1] == ("member.removed", {"user_id": desk.lobby.ada.public_id})
    assert (await desk.audited())[-1] == "member.remove"


@pytest.mark.covers("edge:W10")
async def test_the_owner_stays(desk: Desk) -> None:
    ada = desk.lobby.ada.public_id
    await desk.lobby.people.put_member(desk.world.tenant.id, ada, MemberRole.OWNER)
    refused = await desk.ask("DELETE", f"{desk.tenant}/members/{ada}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "owner_required")
    # Nor is whoever only has a mailbox there a member.
    cy = await desk.lobby.people.create(NewPerson("Cy"))
    missing = await desk.ask("DELETE", f"{desk.tenant}/members/{cy.public_id}")
    assert missing.json()["error"]["code"] == "member_not_found"


async def test_an_application_password_joins_nothing(desk: Desk) -> None:
    bo = await desk.lobby.people.create(NewPerson("Bo", BO, RIGHT))
    await desk.invite()
    code = await desk.code()
    made, _ = await desk.lobby.account.app_passwords.create(bo, "phone", HOST)
    epoch = await desk.value("SELECT sign_in_epoch FROM people WHERE id = $1", bo.id)
    proved = Proved(bo.id, bo.public_id, epoch, app_password_id=made.id)
    token, _ = await desk.lobby.account.sessions.open(proved, Origin("192.0.2.1"))
    headers = {"authorization": f"Bearer {token}"}
    refused = await desk.ask("POST", "/v1/account/invitations/accept", {"code": code}, headers)
    assert refused.json()["error"]["code"] == "permission_denied"


@pytest.mark.covers("decisions:B1")
async def test_the_mail_is_written_once(desk: Desk) -> None:
    """Whoever dies between the acceptance and the end of the claim leaves what the next one finds done."""
    await desk.invite()
    await desk.mail.run_due()
    again = "UPDATE invitations SET next_attempt_at = $1, attempts = 1 RETURNING id"
    await desk.value(again, desk.world.clock.now())
    assert await desk.mail.run_due() == 1
    assert await desk.value("SELECT count(*) FROM outbound_messages") == 1
    assert await desk.value("SELECT next_attempt_at IS NULL AND parked_at IS NULL FROM invitations")
    made = (await desk.roll())["invitations"][0]["id"]
    await desk.value(again, desk.world.clock.now())
    assert (await desk.ask("DELETE", f"{desk.tenant}/invitations/{made}")).status_code == 204
    assert await desk.mail.run_due() == 0


async def test_names_in_the_mail_say_nothing_for_us(desk: Desk) -> None:
    name = "Acme\u2028Your account is closed. " + "x" * 90
    await desk.value("UPDATE tenants SET name = $2 WHERE id = $1 RETURNING id", desk.world.tenant.id, name)
    await desk.invite()
    await desk.mail.run_due()
    key = await desk.value("SELECT wire_key FROM outbound_messages")
    text = message_from_bytes(await desk.world.blobs.get(key), policy=policy.default).get_content()
    (line,) = [line for line in text.splitlines() if "Workspace:" in line]
    assert line.count('"') == 2
    assert len(line) < 100


@pytest.mark.covers("FR-CON-4", "edge:A15", "mail-server:C5")
async def test_the_mail_arrives_and_nothing_of_it_stays(desk: Desk, tmp_path: Path) -> None:
    """Through the dispatcher to a server elsewhere; two workers write it, and it is sent once."""
    world = desk.world
    room = await MailRoom.open(world.db, world.clock, world.ids, tmp_path / "mail")
    await desk.invite()
    twin = mail_of(world, desk.lobby, desk.parser)
    await asyncio.gather(desk.mail.run_due(), twin.run_due())
    key = await desk.value("SELECT wire_key FROM outbound_messages")
    async with FakeMx() as mx:
        room.net.add("elsewhere.example", mx)
        assert await room.dispatcher().run_due() == 1
        (received,) = mx.messages
    await room.close()
    assert (received.sender, received.recipients) == ("no-reply@agents.example", [BO])
    letter = message_from_bytes(received.data, policy=policy.default)
    assert letter["From"] == "Postroom <no-reply@agents.example>"
    assert letter["Auto-Submitted"] == "auto-generated"
    found = CODE.search(letter.get_content())
    assert found is not None
    assert await desk.value("SELECT status FROM deliveries") == "delivered"
    with pytest.raises(BlobMissing):
        await world.blobs.get(key)
    assert (await desk.join(found.group(1))).status_code == 201


@pytest.mark.covers("edge:W45")
async def test_an_address_that_became_ours_since_joins_nothing(desk: Desk) -> None:
    await desk.invite()
    code = await desk.code()
    async with desk.world.db.acquire() as conn:
        await conn.execute("UPDATE addresses SET address = $1 WHERE identity_id = $2", BO, desk.world.box.id)
    refused = await desk.join(code)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "invitation_not_found")


@pytest.mark.covers("edge:W45")
@pytest.mark.parametrize("email", ["anybody@agents.example", "box.acme@agents.example"])
async def test_nobody_is_made_with_an_address_of_ours(desk: Desk, email: str) -> None:
    """Nor would it then be free for the mailbox of another tenant."""
    body = {"display_name": "Bo", "role": "member", "contact_email": email}
    refused = await desk.ask("POST", f"{desk.tenant}/people", body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.covers("edge:J8")
async def test_mail_that_was_given_up_goes_with_its_invitation(desk: Desk) -> None:
    made = (await desk.invite()).json()
    now = desk.world.clock.now()
    async with desk.world.db.acquire() as conn:
        await conn.execute("UPDATE invitations SET parked_at = $1, next_attempt_at = NULL", now)
    dead = DeadLetters(desk.world.db, desk.world.clock, desk.world.ids, lambda: None)
    (item,) = await dead.page()
    assert (await desk.ask("DELETE", f"{desk.tenant}/invitations/{made['id']}")).status_code == 204
    assert await dead.page() == []
    assert (await dead.redrive(item.public_id)).redrive_count == 0
    assert await desk.value("SELECT next_attempt_at FROM invitations") is None


@pytest.mark.covers("edge:W9")
async def test_a_request_that_waited_while_its_caller_was_removed(desk: Desk) -> None:
    """Neither an invitation to come back by, nor anything else."""
    tenant, people = desk.world.tenant, desk.lobby.people
    gone, other = [await people.create(NewPerson(name, contact_email=f"{name}@x.example")) for name in ("al", "cy")]
    for person in (gone, other):
        await people.put_member(tenant.id, person.public_id, MemberRole.ADMIN)
    headers = await desk.session(gone, second_factor=True)
    requests: list[tuple[str, str, Any]] = [
        ("POST", "invitations", {"email": "own@x.example", "role": "admin"}),
        ("DELETE", f"members/{other.public_id}", None),
        ("POST", "people", {"display_name": "Me", "role": "admin", "password": RIGHT}),
        ("PUT", f"people/{other.public_id}/grants/{desk.world.box.public_id}", {"role": "owner"}),
    ]

    async def ask(method: str, path: str, body: Any) -> Any:
        return await desk.ask(method, f"{desk.tenant}/{path}", body, headers)

    async with desk.world.db.transaction() as conn:  # as removing them does it
        await tenant_store.lock(conn, tenant.id)
        loop = asyncio.get_running_loop()
        asked = [loop.create_task(ask(*one), context=Context()) for one in requests]
        await asyncio.wait(asked, timeout=1)
        await people_store.remove_from(conn, tenant.id, gone.id)
    answers = [await one for one in asked]
    assert [(one.status_code, one.json()["error"]["code"]) for one in answers] == [(403, "permission_denied")] * 4
