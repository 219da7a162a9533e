"""Tenants with one of everything that a route can name, for the matrix of who may do what with whose.

Everything a path or a required query parameter names has its maker here, and every body that the schema alone cannot
give. A route with a parameter that has none fails the matrix by name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from postroom.accounts import GrantRole, Level, MemberRole, NewKey, NewPerson, Person, Tenant
from postroom.accounts.audit import HOST
from postroom.accounts.models import NewDevice, NewTenant
from postroom.accounts.permissions import MAY_HOLD, OF_GRANT, OF_OPERATOR, OWNER_ONLY, Permission, including_implied
from postroom.accounts.service.sessions import Origin, Proved
from postroom.directory import Identity
from postroom.servers.http.table import Reach, Rule
from tests.accounts.authenticator import Authenticator, registration
from tests.rest.lobby import RIGHT, Lobby
from tests.rest.sender import ANNA
from tests.rest.world import DOMAIN, simple_mail

MISSING_ULID: Final = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
NAME: Final = re.compile(r"\{(\w+)\}")


class Who(StrEnum):
    """Callers. Those of a house are `here` in it."""

    NOBODY = "no key"
    EXPIRED = "expired key"
    REVOKED = "revoked key"
    TENANT = "key of the tenant"
    IDENTITY = "key of the identity"
    SIBLING = "key of another identity"
    OTHER_TENANT = "key of another tenant"
    OTHER_IDENTITY = "key of an identity of another tenant"
    OTHER_PARTNER = "key of another partner"
    PLATFORM = "platform key"
    BARE_PLATFORM = "platform key without the permission"
    BARE_TENANT = "key of the tenant without the permission"
    BARE_IDENTITY = "key of the identity without the permission"
    STRANGER = "session without a grant"
    READER = "session with a grant to read"
    FULL = "session with a full grant"
    OWNER = "session of the owner"
    OPERATOR = "session of an operator"


BARE: Final = {
    Who.BARE_PLATFORM: Level.PLATFORM,
    Who.BARE_TENANT: Level.TENANT,
    Who.BARE_IDENTITY: Level.IDENTITY,
}
LEVEL: Final = {
    Who.EXPIRED: Level.TENANT,
    Who.REVOKED: Level.TENANT,
    Who.TENANT: Level.TENANT,
    Who.IDENTITY: Level.IDENTITY,
    Who.SIBLING: Level.IDENTITY,
    Who.OTHER_TENANT: Level.TENANT,
    Who.OTHER_IDENTITY: Level.IDENTITY,
    Who.OTHER_PARTNER: Level.PARTNER,
    Who.PLATFORM: Level.PLATFORM,
    Who.OPERATOR: Level.PLATFORM,
    **BARE,
}
GRANT: Final = {Who.STRANGER: None, Who.READER: GrantRole.READ, Who.FULL: GrantRole.FULL, Who.OWNER: GrantRole.OWNER}
HERE: Final = frozenset(
    {Who.TENANT, Who.IDENTITY, Who.BARE_TENANT, Who.BARE_IDENTITY, Who.EXPIRED, Who.REVOKED, *GRANT} - {Who.STRANGER}
)
"""Who belongs to the house that things are taken from."""


def held(who: Who, rule: Rule) -> frozenset[Permission]:
    """What the key or, in a mailbox, the session of a caller holds."""
    if who in GRANT:
        role = GRANT[who]
        return frozenset() if role is None else OF_GRANT[role]
    if who is Who.OPERATOR:
        return OF_OPERATOR
    level = LEVEL[who]
    if who in BARE:
        return including_implied(frozenset({_beside(level, rule)}))
    return including_implied(MAY_HOLD[level] - OWNER_ONLY)


def _beside(level: Level, rule: Rule) -> Permission:
    """One permission that the level can hold and that gives nothing at the route."""
    for one in sorted(MAY_HOLD[level] - OWNER_ONLY):
        if not including_implied(frozenset({one})) & (rule.permissions | rule.conditional):
            return one
    raise AssertionError(f"{rule.operation}: takes every permission")


@dataclass
class House:
    """A tenant with a mailbox that has an owner, and whoever calls from there."""

    street: Street
    tenant: Tenant
    box: Identity
    domain: str
    """The id of a domain of the tenant's own."""
    _headers: dict[object, dict[str, str]] = field(default_factory=dict)
    _people: dict[Who, Person] = field(default_factory=dict)
    made: dict[tuple[str, object], str] = field(default_factory=dict)
    """What was made of each parameter; for those of people, of each person."""

    async def headers(self, who: Who, rule: Rule) -> dict[str, str]:
        """What a caller of this house sends to say who they are."""
        name: object = (who, _beside(LEVEL[who], rule)) if who in BARE else who
        if name not in self._headers:
            self._headers[name] = await self._introduce(who, rule)
        return self._headers[name]

    async def _introduce(self, who: Who, rule: Rule) -> dict[str, str]:
        if who is Who.NOBODY:
            return {}
        if who in GRANT or who is Who.OPERATOR:
            return {"authorization": f"Bearer {await self.street.session(await self.person(who))}"}
        level = LEVEL[who]
        identity = await self.sibling() if who is Who.SIBLING else self.box
        keys, clock = self.street.lobby.world.keys, self.street.lobby.world.clock
        new = NewKey(
            *(who.value, level, tuple(sorted(held(who, rule) & (MAY_HOLD[level] - OWNER_ONLY)))),
            None if level is Level.PLATFORM else self.tenant.id,
            identity.id if level is Level.IDENTITY else None,
            expires_at=clock.now() + timedelta(seconds=1) if who is Who.EXPIRED else None,
        )
        made, text = await keys.create(None, new)
        if who is Who.REVOKED:
            await keys.revoke(None, made.public_id)
        if who is Who.EXPIRED:
            clock.advance(2)
        return {"authorization": f"Bearer {text}"}

    async def person(self, who: Who) -> Person:
        """Whoever has a session with the grant of `who` on the mailbox."""
        if who not in self._people:
            made = await self.street.new_person(is_operator=who is Who.OPERATOR)
            self._people[who] = made
            if (role := GRANT.get(who)) is not None:
                people = self.street.lobby.people
                await people.grant(self.tenant.id, self.box.public_id, made.public_id, role, by_operator=True)
        return self._people[who]

    async def sibling(self) -> Identity:
        """Another identity of the tenant."""
        return await self.street.lobby.world.new_identity(self.tenant, self.street.word())

    async def place(self, rule: Rule, who: Who) -> dict[str, str]:
        """Parameter → the thing of this house that a route is pointed at, the same again for the same caller."""
        return kinds(rule, self.street.document) | {
            name: await self._thing(name, rule, who) for name in names(rule, self.street.document)
        }

    async def _thing(self, name: str, rule: Rule, who: Who) -> str:
        # What belongs to a person is theirs alone at the routes of their own account.
        whose = who if rule.reach is Reach.PERSON and (who in GRANT or who is Who.OPERATOR) else Who.READER
        slot = (name, whose if name in PERSONAL else None)
        if slot not in self.made:
            self.made[slot] = await MAKERS[name](self, whose)
        return self.made[slot]

    @property
    def letter(self) -> str:
        """A message that every house has."""
        return self.made["message_id", None]


@dataclass
class Street:
    """All houses of a deployment."""

    lobby: Lobby
    _words: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def document(self) -> dict[str, Any]:
        return self.lobby.document

    def word(self) -> str:
        return f"name{next(self._words)}"

    async def house(self) -> House:
        world = self.lobby.world
        name = self.word()
        tenant = await world.tenants.create(NewTenant(slug=name, name=name))
        box = await world.new_identity(
            tenant,
            self.word(),
            owner_name="Ola",
            owner_email="ola@example.com",
            send_policy={"require_known_recipient": False},
        )
        made = House(self, tenant, box, await self._domain(tenant))
        made.made["message_id", None] = await _message(made, Who.TENANT)
        return made

    async def _domain(self, tenant: Tenant) -> str:
        world = self.lobby.world
        found = await self.value(
            "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at) "
            "VALUES ($1, $2, $3, 'external', 'active', $4, $4) RETURNING public_id",
            *(world.ids.new("dom_"), tenant.id, f"{self.word()}.example.net", world.clock.now()),
        )
        return str(found)

    async def new_person(self, *, is_operator: bool = False) -> Person:
        new = NewPerson("Bo", f"{self.word()}@example.com", RIGHT, is_operator=is_operator)
        return await self.lobby.people.create(new)

    async def session(self, person: Person, device: NewDevice | None = None) -> str:
        epoch = await self.value("SELECT sign_in_epoch FROM people WHERE public_id = $1", person.public_id)
        # With both steps: whoever has a passkey would be refused for the lack of them, whatever is pointed at.
        proved = Proved(person.id, person.public_id, epoch, second_factor=True)
        token, _ = await self.lobby.account.sessions.open(proved, Origin("192.0.2.1", device=device))
        return token

    async def value(self, statement: str, *values: Any) -> Any:
        async with self.lobby.world.db.acquire() as conn:
            return await conn.fetchval(statement, *values)


def names(rule: Rule, document: dict[str, Any]) -> list[str]:
    """What a route names: the parameters of its path, and those of its query that it cannot go without."""
    asked = [one["name"] for one in _parameters(rule, document) if one["in"] == "query" and one.get("required")]
    return [name for name in [*NAME.findall(rule.path), *asked] if name not in kinds(rule, document)]


def kinds(rule: Rule, document: dict[str, Any]) -> dict[str, str]:
    """The parameters of a path that name no thing but which kind of it, each with a value that it can have."""
    return kinds_of(document, rule.path, rule.method.lower())


def kinds_of(document: dict[str, Any], path: str, method: str) -> dict[str, str]:
    found = {}
    for one in document["paths"][path][method].get("parameters", ()):
        schema = one["schema"]
        while "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        if one["in"] == "path" and "enum" in schema:
            found[one["name"]] = str(schema["enum"][0])
    return found


def _parameters(rule: Rule, document: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["paths"][rule.path][rule.method.lower()].get("parameters", [])
    return found


# -- makers


Maker = Callable[[House, Who], Awaitable[str]]


async def _tenant(house: House, who: Who) -> str:
    return house.tenant.public_id


async def _identity(house: House, who: Who) -> str:
    return house.box.public_id


_LETTER: Final = (
    b"From: Anna Example <anna@example.com>\r\nTo: box@agents.example\r\nSubject: Hello\r\nMIME-Version: 1.0\r\n"
    b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\nContent-Type: text/plain\r\n\r\nHello.\r\n'
    b'--b\r\nContent-Type: text/csv; name="a.csv"\r\nContent-Disposition: attachment; filename="a.csv"\r\n\r\n'
    b"a,b\r\n--b--\r\n"
)


async def _message(house: House, who: Who) -> str:
    return (await house.street.lobby.world.deliver(_LETTER, to=house.box)).message_id


async def _thread(house: House, who: Who) -> str:
    return (await house.street.lobby.world.deliver(simple_mail("Of its own"), to=house.box)).thread_id


async def _attachment(house: House, who: Who) -> str:
    found = await house.street.value(
        "SELECT a.public_id FROM attachments a JOIN messages m ON m.tenant_id = a.tenant_id AND m.id = a.message_id "
        "WHERE m.public_id = $1",
        house.letter,
    )
    return str(found)


async def _folder(house: House, who: Who) -> str:
    path = f"/v1/identities/{house.box.public_id}/folders"
    return await _posted(house, path, {"name": house.street.word()})


async def _alias(house: House, who: Who) -> str:
    body = {"address": f"{house.street.word()}{house.tenant.address_suffix}@{DOMAIN}", "target": ANNA}
    return await _posted(house, f"/v1/tenants/{house.tenant.public_id}/aliases", body)


async def _queued(house: House, who: Who) -> str:
    path = f"/v1/identities/{house.box.public_id}/messages"
    message = await _posted(house, path, {"to": [ANNA], "subject": "s", "text": "t"})
    found = await house.street.value(
        "SELECT d.id FROM deliveries d JOIN messages m ON m.tenant_id = d.tenant_id AND m.id = d.message_id "
        "WHERE m.public_id = $1",
        message,
    )
    return str(found)


async def _person(house: House, who: Who) -> str:
    return (await house.person(who)).public_id


async def _member(house: House, who: Who) -> str:
    """Somebody of the tenant who is not its owner."""
    made = await house.street.new_person()
    await house.street.lobby.people.put_member(house.tenant.id, made.public_id, MemberRole.MEMBER, by_operator=True)
    return made.public_id


async def _invitation(house: House, who: Who) -> str:
    members = house.street.lobby.members
    made = await members.invite(house.tenant.id, f"{house.street.word()}@example.com", MemberRole.MEMBER)
    return made.public_id


async def _app_password(house: House, who: Who) -> str:
    account = house.street.lobby.account
    made, _ = await account.app_passwords.create(await house.person(who), "Phone", HOST)
    return made.public_id


async def _passkey(house: House, who: Who) -> str:
    person, passkeys = await house.person(who), house.street.lobby.account.passkeys
    options = await passkeys.ask_to_register(person, 0)
    made = await passkeys.register(person, "Laptop", registration(Authenticator().create(options.public_key)), HOST)
    return made.public_id


async def _session(house: House, who: Who) -> str:
    person = await house.person(who)
    await house.street.session(person)
    found = await house.street.value(
        "SELECT public_id FROM sessions WHERE person_id = $1 ORDER BY id DESC LIMIT 1", person.id
    )
    return str(found)


async def _device(house: House, who: Who) -> str:
    person = await house.person(who)
    await house.street.session(person, NewDevice("phone-1", "Phone", "android"))
    return str(await house.street.value("SELECT public_id FROM devices WHERE person_id = $1", person.id))


async def _address(house: House, who: Who) -> str:
    return house.box.primary.address


async def _key(house: House, who: Who) -> str:
    """Of the identity, so that every level above reaches it."""
    new = NewKey("a key", Level.IDENTITY, (Permission.MESSAGES_READ,), house.tenant.id, house.box.id)
    made, _ = await house.street.lobby.world.keys.create(None, new)
    return made.public_id


async def _webhook(house: House, who: Who) -> str:
    body = {"url": "https://hooks.example.com/", "events": ["member.joined"]}
    return await _posted(house, f"/v1/tenants/{house.tenant.public_id}/webhooks", body)


async def _partner(house: House, who: Who) -> str:
    return await _posted(house, "/v1/partners", {"name": house.street.word()})


async def _address_id(house: House, who: Who) -> str:
    """One beside the primary address, which takes mail."""
    body = {
        "local_part": house.street.word(),
        "domain_id": house.domain,
    }
    made = await _posted(house, f"/v1/identities/{house.box.public_id}/addresses", body)
    await house.street.value(
        "UPDATE domains SET status = 'healthy' WHERE public_id = $1 RETURNING public_id", house.domain
    )
    await house.street.value("UPDATE addresses SET status = 'active' WHERE public_id = $1 RETURNING public_id", made)
    return made


async def _dead(house: House, who: Who) -> str:
    """Words of a message that could not be indexed."""
    task = await house.street.value(
        "INSERT INTO word_tasks (tenant_id, mailbox_id, first_id, last_id, attempts, parked_at, last_error)"
        " VALUES ($1, $2, 1, 1, 5, $3, 'worker_lost') RETURNING id",
        *(house.tenant.id, house.box.id, house.street.lobby.world.clock.now()),
    )
    dead = house.street.lobby.world.app.services.dead_letters
    assert dead is not None
    await dead.collect()
    return str(await house.street.value("SELECT public_id FROM dlq_items WHERE key = $1", [str(task)]))


async def _entry(house: House, who: Who) -> str:
    value = f"{house.street.word()}@example.com"
    path = "/v1/tenants/{tenant_id}/lists/{direction}/{kind}/{entry}"
    place = {"tenant_id": house.tenant.public_id, "entry": value} | kinds_of(house.street.document, path, "put")
    return await _posted(house, path.format(**place), {"note": "n"}, "entry", method="PUT")


async def _nothing(house: House, who: Who) -> str:
    """Only what is sent in large mail has a link; tests/rest/test_links.py has those."""
    return "x" * 40


async def _posted(house: House, path: str, body: dict[str, Any], member: str = "id", *, method: str = "POST") -> str:
    """What an operator makes over HTTP."""
    headers = {**house.street.lobby.world.platform, "idempotency-key": house.street.word()}
    answer = await house.street.lobby.client.request(method, path, json=body, headers=headers)
    assert answer.status_code in (200, 201, 202), (path, answer.text)
    return str(answer.json()[member])


MAKERS: Final[dict[str, Maker]] = {
    "tenant_id": _tenant,
    "identity_id": _identity,
    "message_id": _message,
    "thread_id": _thread,
    "attachment_id": _attachment,
    "folder_id": _folder,
    "alias_id": _alias,
    "queue_id": _queued,
    "person_id": _person,
    "user_id": _member,
    "invitation_id": _invitation,
    "app_password_id": _app_password,
    "passkey_id": _passkey,
    "session_id": _session,
    "device_id": _device,
    "address": _address,
    "address_id": _address_id,
    "key_id": _key,
    "partner_id": _partner,
    "dlq_id": _dead,
    "webhook_id": _webhook,
    "entry": _entry,
    "token": _nothing,
}
PERSONAL: Final = frozenset({"person_id", "app_password_id", "passkey_id", "session_id", "device_id"})
VALUES: Final = frozenset({"entry"})
"""Parameters that are values: what has none of them yet is given it, and deleting it twice is as good as once."""
MISSING: Final[dict[str, str]] = {
    "tenant_id": f"ten_{MISSING_ULID}",
    "identity_id": f"idn_{MISSING_ULID}",
    "message_id": f"msg_{MISSING_ULID}",
    "thread_id": f"thr_{MISSING_ULID}",
    "attachment_id": f"att_{MISSING_ULID}",
    "folder_id": f"fld_{MISSING_ULID}",
    "alias_id": f"als_{MISSING_ULID}",
    "queue_id": str(2**40),
    "person_id": f"usr_{MISSING_ULID}",
    "user_id": f"usr_{MISSING_ULID}",
    "invitation_id": f"inv_{MISSING_ULID}",
    "app_password_id": f"apw_{MISSING_ULID}",
    "passkey_id": f"pky_{MISSING_ULID}",
    "session_id": f"ses_{MISSING_ULID}",
    "device_id": f"dev_{MISSING_ULID}",
    "address": f"nobody@{DOMAIN}",
    "address_id": f"adr_{MISSING_ULID}",
    "key_id": f"key_{MISSING_ULID}",
    "partner_id": f"ptn_{MISSING_ULID}",
    "dlq_id": f"dlq_{MISSING_ULID}",
    "webhook_id": f"whk_{MISSING_ULID}",
    "entry": "nobody@example.net",
    "token": "y" * 40,
}
