"""Aliases over HTTP: made, listed, read, removed, by whom; and what passes mail on is nowhere to be seen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from postroom.accounts import Level
from postroom.db import Connection
from postroom.directory import Aliases, NewMailbox, Relays
from postroom.mailbox.models import MailboxRef
from postroom.servers.http import HttpApp, create_http
from tests.rest.filling import BRIEFLY
from tests.rest.sender import code
from tests.rest.world import DOMAIN, HASH_KEY, World

MISSING = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@dataclass
class Desk:
    world: World
    aliases: Aliases
    app: HttpApp
    client: httpx.AsyncClient
    document: dict[str, Any]
    changed: list[str] = field(default_factory=list)

    def path(self, rest: str = "", tenant: str | None = None) -> str:
        return f"/v1/tenants/{tenant or self.world.tenant.public_id}/aliases{rest}"

    async def get(self, rest: str = "", headers: dict[str, str] | None = None, /, **params: Any) -> httpx.Response:
        return await self.client.get(self.path(rest), headers=headers or self.world.key, params=params or None)

    async def post(
        self, address: str, target: str, headers: dict[str, str] | None = None, *, key: str | None = None
    ) -> httpx.Response:
        given = dict(headers or self.world.key)
        if key is not None:
            given["idempotency-key"] = key
        return await self.client.post(self.path(), headers=given, json={"address": address, "target": target})

    async def delete(self, rest: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return await self.client.delete(self.path(rest), headers=headers or self.world.key)

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
    changed: list[str] = []
    aliases = Aliases(world.db, world.ids, world.clock, HASH_KEY, DOMAIN, changed.append)
    app = create_http(replace(world.app.services, aliases=aliases))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.example") as client:
        document = (await client.get("/openapi.json")).json()
        yield Desk(world, aliases, app, client, document, changed)


def plain(response: httpx.Response) -> tuple[int, dict[str, Any], dict[str, str]]:
    body = response.json()
    del body["error"]["request_id"]
    headers = {name: value for name, value in response.headers.items() if name not in ("request-id", "content-length")}
    return response.status_code, body, headers


@pytest.mark.covers("mail-server:A6", "FR-API-1")
async def test_made_read_and_removed(desk: Desk) -> None:
    made = await desk.post(f"Sales.acme@{DOMAIN}", "box.acme")
    assert made.status_code == 201
    body = made.json()
    desk.check("Alias", body)
    assert (body["address"], body["target"]) == (f"sales.acme@{DOMAIN}", f"box.acme@{DOMAIN}")
    assert body["tenant_id"] == desk.world.tenant.public_id
    assert (await desk.get(f"/{body['id']}")).json() == body
    listed = (await desk.get()).json()
    desk.check("AliasPage", listed)
    assert listed == {"data": [body], "next_cursor": None}
    assert code(await desk.post(f"sales.acme@{DOMAIN}", "x@example.com")) == "address_taken"
    gone = await desk.delete(f"/{body['id']}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert desk.changed == [f"sales.acme@{DOMAIN}"] * 2
    assert code(await desk.delete(f"/{body['id']}")) == "address_not_found"
    assert code(await desk.get(f"/{body['id']}")) == "address_not_found"
    assert (await desk.post(f"sales.acme@{DOMAIN}", "x@example.com")).status_code == 201
    async with desk.world.db.acquire() as conn:
        rows = await conn.fetch("SELECT action, actor_key FROM audit_log WHERE target_id = $1 ORDER BY id", body["id"])
    assert [(row["action"], row["actor_key"] is None) for row in rows] == [
        ("alias.create", False),
        ("alias.delete", False),
    ]


@pytest.mark.covers("FR-API-3")
async def test_pages(desk: Desk) -> None:
    for number in range(5):
        assert (await desk.post(f"a{number}.acme@{DOMAIN}", "x@example.com")).status_code == 201
        desk.world.clock.advance(number % 2)
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        body = (await desk.get("", limit=2, **cursor)).json()
        found += [one["address"][:2] for one in body["data"]]
        if body["next_cursor"] is None:
            break
        cursor = {"cursor": body["next_cursor"]}
    assert found == ["a4", "a3", "a2", "a1", "a0"]
    assert code(await desk.get("", cursor="x")) == "invalid_request"
    assert code(await desk.get("", limit=0)) == "invalid_request"


@pytest.mark.covers("security-privacy:A4.2", "edge:F3", "SEC-1")
async def test_who_may(desk: Desk) -> None:
    """Another tenant's aliases look as those that nobody has; of aliases an identity's key learns nothing."""
    world = desk.world
    made = (await desk.post(f"sales.acme@{DOMAIN}", "box.acme")).json()
    body = {"address": f"x.acme@{DOMAIN}", "target": "x@example.com"}
    requests = [
        ("GET", "", None),
        ("POST", "", body),
        ("GET", f"/{made['id']}", None),
        ("DELETE", f"/{made['id']}", None),
    ]
    for method, rest, sent in requests:
        answers = [
            plain(await desk.client.request(method, desk.path(rest, tenant), headers=world.other_key, json=sent))
            for tenant in (world.tenant.public_id, f"ten_{MISSING}", "x")
        ]
        assert answers[0] == answers[1] == answers[2]
        assert answers[0][1]["error"]["code"] == "tenant_not_found"
    # In one's own tenant.
    for method in ("GET", "DELETE"):
        answers = [
            plain(
                await desk.client.request(
                    method, desk.path(f"/{alias}", world.other_tenant.public_id), headers=world.other_key
                )
            )
            for alias in (made["id"], f"als_{MISSING}", "als_", "x")
        ]
        assert all(answer == answers[0] for answer in answers)
        assert answers[0][1]["error"]["code"] == "address_not_found"
    own = await world.new_key(Level.IDENTITY, identity=world.box)
    reader = await world.new_key(Level.TENANT, ["identities:read"], tenant=world.tenant)
    for method, rest, sent in requests:
        answer = await desk.client.request(method, desk.path(rest), headers=own, json=sent)
        assert code(answer) in ("scope_denied", "permission_denied")
        answer = await desk.client.request(method, desk.path(rest), headers=reader, json=sent)
        assert answer.status_code == (200 if method == "GET" else 403)
    assert (await desk.get("", world.platform)).json()["data"] == [made]


@pytest.mark.covers("mail-server:A6", "edge:A4")
@pytest.mark.parametrize(
    ("address", "target", "expected"),
    [
        (f"box.acme@{DOMAIN}", "x@example.com", "address_taken"),
        ("sales@elsewhere.example", "x@example.com", "domain_not_found"),
        (f"sales.globex@{DOMAIN}", "x@example.com", "address_invalid"),
        (f"admin.acme@{DOMAIN}", "x@example.com", "address_reserved"),
        (f"böb.acme@{DOMAIN}", "x@example.com", "address_unsupported"),
        (f"{'x' * 24}.acme@{DOMAIN}", "x@-", "address_invalid"),
        (f"sales.acme@{DOMAIN}", "sales.acme", "invalid_request"),
        (f"sales.acme@{DOMAIN}", "", "invalid_request"),
        (f"sales.acme@{DOMAIN}", "x\0@example.com", "invalid_request"),
        ("sales", "x@example.com", "invalid_request"),
        ("", "x@example.com", "invalid_request"),
    ],
)
async def test_refusals(desk: Desk, address: str, target: str, expected: str) -> None:
    answer = await desk.post(address, target)
    assert code(answer) == expected
    # Nothing of an address is in the words.
    assert "example.com" not in answer.json()["error"]["message"]


@pytest.mark.covers("FR-API-1")
async def test_the_same_request_again(desk: Desk) -> None:
    first = await desk.post(f"sales.acme@{DOMAIN}", "box.acme", key="once")
    again = await desk.post(f"sales.acme@{DOMAIN}", "box.acme", key="once")
    assert (first.status_code, again.status_code, first.json()) == (201, 201, again.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert code(await desk.post(f"sales.acme@{DOMAIN}", "other.acme", key="once")) == "idempotency_conflict"
    assert code(await desk.post(f"box.acme@{DOMAIN}", "x@example.com", key="two")) == "address_taken"
    assert (await desk.post(f"more.acme@{DOMAIN}", "x@example.com", key="two")).status_code == 201


@pytest.mark.covers("mail-server:A6", "SEC-1", "security-privacy:A4.2")
async def test_a_relay_is_nowhere(desk: Desk) -> None:
    """Every route that reads, with every kind of key: its relay is in no answer, and asked for it is not there."""
    world = desk.world

    async def rows(conn: Connection, new: NewMailbox) -> None:
        await world.mailboxes.create_mailbox_rows(
            conn,
            MailboxRef(new.tenant_id, new.mailbox_id),
            identity_id=new.identity_public_id,
            tenant_id=new.tenant_public_id,
            is_system=new.is_system,
        )

    relays = Relays(world.db, world.ids, world.clock, rows)
    relay = await relays.of(world.tenant.id, world.tenant.public_id)
    assert await Relays(world.db, world.ids, world.clock, rows).of(world.tenant.id, world.tenant.public_id) == relay
    own = await world.new_key(Level.IDENTITY, identity=world.box)
    names = {
        "message_id": f"msg_{MISSING}",
        "thread_id": f"thr_{MISSING}",
        "attachment_id": f"att_{MISSING}",
        "alias_id": f"als_{MISSING}",
        "partner_id": f"ptn_{MISSING}",
        "address_id": f"adr_{MISSING}",
        "folder_id": f"fld_{MISSING}",
        "key_id": f"key_{MISSING}",
        "direction": "send",
        "kind": "block",
        "entry": "anna@example.com",
        "tenant_id": world.tenant.public_id,
        "token": "x",
        "webhook_id": f"whk_{MISSING}",
        "user_id": f"usr_{MISSING}",
        "invitation_id": f"inv_{MISSING}",
        "dlq_id": f"dlq_{MISSING}",
    }
    asked = 0
    for rule in desk.app.table.rules:
        for headers in (world.platform, world.key, own):
            if rule.method == "GET" and "{identity_id}" not in rule.path and not rule.path.endswith("/wait"):
                params = {"address": "*relay*@agents.example"} if "lookup" in rule.path else BRIEFLY.get(rule.operation)
                answer = await desk.client.get(rule.path.format(**names), headers=headers, params=params)
                assert relay.identity_public_id not in answer.text
                assert "*relay*" not in answer.text
            if "{identity_id}" in rule.path:
                given = {**headers, "idempotency-key": "k"}
                theirs, nobodys = [
                    plain(
                        await desk.client.request(
                            rule.method, rule.path.format(identity_id=who, **names), headers=given
                        )
                    )
                    for who in (relay.identity_public_id, f"idn_{MISSING}")
                ]
                assert theirs == nobodys
                asked += theirs[1]["error"]["code"] == "identity_not_found"
    assert asked > 30
