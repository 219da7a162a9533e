"""A deployment with people who have sessions over HTTP."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from postroom.accounts import GrantRole, NewPerson, Passwords, People, Person, SignIn, totp
from postroom.accounts.service.account import Account
from postroom.accounts.service.app_passwords import AppPasswords
from postroom.accounts.service.entrance import Entrance
from postroom.accounts.service.members import Members
from postroom.accounts.service.passkeys import Passkeys
from postroom.accounts.service.sessions import Sessions
from postroom.accounts.service.two_step import TwoStep
from postroom.accounts.signing_keys import SigningKeys
from postroom.directory import Identity, IdentityKind
from postroom.events.members import MemberAnnouncer
from postroom.servers.http import HttpApp, create_http
from tests.accounts.authenticator import PARTY
from tests.rest.world import HASH_KEY, MASTER, PEPPER, World

RIGHT, WRONG = "correct horse", "wrong horses"


@dataclass
class Lobby:
    """The deployment with people: Ada owns a mailbox of the first tenant."""

    world: World
    people: People
    members: Members
    account: Account
    sign_in: SignIn
    app: HttpApp
    client: httpx.AsyncClient
    document: dict[str, Any]
    ada: Person = field(init=False)
    box: Identity = field(init=False)
    secret: bytes = b""

    @property
    def address(self) -> str:
        return self.box.primary.address

    async def ask(
        self, method: str, path: str, body: Any = None, token: str | dict[str, str] | None = None, **params: Any
    ) -> httpx.Response:
        headers = token if isinstance(token, dict) else {} if token is None else {"authorization": f"Bearer {token}"}
        options: dict[str, Any] = {} if body is None else {"json": body}
        return await self.client.request(method, path, headers=headers, params=params or None, **options)

    async def enter(self, password: str = RIGHT, **more: Any) -> httpx.Response:
        self.world.clock.advance(60)
        return await self.ask("POST", "/v1/auth/session", {"email": self.address, "password": password, **more})

    async def token(self, password: str = RIGHT, **more: Any) -> str:
        answer = await self.enter(password, **more)
        assert answer.status_code == 201, answer.text
        self.check("SignedIn", answer.json())
        return str(answer.json()["token"])

    def code(self) -> str:
        return totp.code_at(self.secret, totp.step_of(self.world.clock.now()))

    async def two_steps(self, token: str) -> list[str]:
        enrolled = await self.ask("POST", "/v1/account/totp", {"current_password": RIGHT}, token)
        assert enrolled.status_code == 201, enrolled.text
        self.check("TotpEnrolment", enrolled.json())
        text = enrolled.json()["secret"]
        self.secret = base64.b32decode(text)
        confirmed = await self.ask("POST", "/v1/account/totp/confirm", {"code": self.code()}, token)
        assert confirmed.status_code == 200, confirmed.text
        self.world.clock.advance(60)
        return list(confirmed.json()["recovery_codes"])

    def check(self, name: str, value: Any) -> None:
        """Raises when `value` is not what the OpenAPI document says of the schema, or has a member more."""
        schemas = {
            one: {**schema, "additionalProperties": False} if "properties" in schema else schema
            for one, schema in self.document["components"]["schemas"].items()
        }
        validator = Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}})
        assert [error.message for error in validator.iter_errors(value)] == []


@asynccontextmanager
async def open_lobby(world: World) -> AsyncIterator[Lobby]:
    """People have sessions here."""
    passwords = Passwords(threads=2, queue=8, memory_kib=64, time_cost=1)
    basis = (world.db, world.ids, world.clock)
    services = world.app.services
    sign_in = SignIn(world.db, world.clock, passwords, services.verifier, HASH_KEY)
    two_step = TwoStep(*basis, MASTER, PEPPER, sign_in.throttle, issuer="Postroom")
    sessions, app_passwords = Sessions(*basis, PEPPER), AppPasswords(*basis, PEPPER)
    passkeys = Passkeys(*basis, PARTY, PEPPER)
    entrance = Entrance(world.db, world.clock, passwords, two_step, sessions, sign_in.throttle, PEPPER, passkeys)
    account = Account(*basis, passwords, entrance, sessions, two_step, app_passwords, passkeys)
    told = MemberAnnouncer(world.ids)
    people = People(*basis, passwords, announce=told)
    members = Members(*basis, people, SigningKeys(world.db, MASTER, world.clock), HASH_KEY, announce=told)
    app = create_http(replace(services, account=account, people=people, members=members))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.example") as client:
        document = (await client.get("/openapi.json")).json()
        made = Lobby(world, people, members, account, sign_in, app, client, document)
        made.ada = await people.create(NewPerson("Ada", "ada@example.com", RIGHT))
        made.box = await world.new_identity(world.tenant, "ada", kind=IdentityKind.PERSON)
        await people.grant(world.tenant.id, made.box.public_id, made.ada.public_id, GrantRole.OWNER)
        yield made
    passwords.close()
