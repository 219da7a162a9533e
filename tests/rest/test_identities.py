"""Identities: create in every wrong and right way, idempotency, look-up (rest-api §5.4, §2.5)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from postroom.accounts import Level, NewTenant
from tests.rest.contract import check
from tests.rest.world import World

GOOD: dict[str, Any] = {"username": "ada", "display_name": "Ada"}


def path_of(world: World) -> str:
    return f"/v1/tenants/{world.tenant.public_id}/identities"


async def create(world: World, body: Any, headers: dict[str, str] | None = None, **more: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return await world.client.post(path_of(world), json=body, headers={**(headers or world.key), **named})


def code(response: httpx.Response) -> str:
    check("Error", response.json())
    return str(response.json()["error"]["code"])


@pytest.mark.covers("FR-IDN-1")
async def test_create(world: World) -> None:
    body = {
        **GOOD,
        "purpose": "support",
        "owner": {"name": "Bo", "email": "bo@example.com"},
        "signature": {"text": "Ada", "html": "<b onclick='x'>Ada</b><script>x</script>"},
        "client_id": "c-1",
        "send_policy": {"daily_cap": 100, "auto_reply": "denied"},
        "metadata": {"crm": "42"},
        "unknown": {"ignored": True},
    }
    response = await create(world, body)
    assert response.status_code == 201, response.text
    made = response.json()
    check("Identity", made)
    assert made["primary_address"] == "ada.acme@agents.example"
    assert made["signature"] == {"text": "Ada", "html": "<b>Ada</b>"}
    assert made["send_policy"] == {"daily_cap": 100, "auto_reply": "denied", "require_known_recipient": True}
    assert (await world.get(f"/v1/identities/{made['id']}")).json() == made
    assert (await world.get(f"/v1/identities/{made['id']}/messages")).json() == {"data": [], "next_cursor": None}
    again = await create(world, body)
    assert (again.status_code, again.json()) == (200, made)
    assert code(await create(world, {**body, "display_name": "Other"})) == "client_id_conflict"
    listed = (await world.get(path_of(world), client_id="c-1", purpose="support", status="active")).json()["data"]
    assert listed == [made]
    assert (await world.get(path_of(world), client_id="c-2")).json()["data"] == []


@pytest.mark.covers("edge:A1", "edge:A3", "edge:A4", "edge:A12")
@pytest.mark.parametrize(
    ("username", "expected"),
    [
        ("box", "username_taken"),
        ("a b", "address_invalid"),
        ("", "address_invalid"),
        (".a", "address_invalid"),
        ("a..b", "address_invalid"),
        ("x" * 25, "address_invalid"),
        ("x" * 60_000, "address_invalid"),
        ("ünï", "address_unsupported"),
        ("postmaster", "address_reserved"),
        ("p\u0430ypal", "address_reserved"),
    ],
)
async def test_usernames(world: World, username: str, expected: str) -> None:
    assert code(await create(world, {"username": username, "display_name": "X"})) == expected


async def test_local_part_too_long(world: World) -> None:
    tenant = await world.tenants.create(NewTenant(slug="a" * 31, name="Long"))
    response = await world.client.post(
        f"/v1/tenants/{tenant.public_id}/identities",
        json={"username": "b" * 24, "display_name": "X"},
        headers=world.platform,
    )
    assert code(response) == "local_part_too_long"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], "body"),
        ("text", "body"),
        (None, "body"),
        (1, "body"),
        ({}, "username"),
        ({"username": "ada"}, "display_name"),
        ({**GOOD, "username": 1}, "username"),
        ({**GOOD, "username": None}, "username"),
        ({**GOOD, "username": ["ada"]}, "username"),
        ({**GOOD, "username": "ada\x00"}, "username"),
        ({**GOOD, "display_name": ""}, "display_name"),
        ({**GOOD, "display_name": "x" * 79}, "display_name"),
        ({**GOOD, "display_name": "a\nb"}, "display_name"),
        ({**GOOD, "display_name": "a\x00b"}, "display_name"),
        ({**GOOD, "display_name": True}, "display_name"),
        ({**GOOD, "purpose": None}, "purpose"),
        ({**GOOD, "purpose": 3}, "purpose"),
        ({**GOOD, "purpose": "x" * 300}, "purpose"),
        ({**GOOD, "client_id": ""}, "client_id"),
        ({**GOOD, "client_id": "a\x00"}, "client_id"),
        ({**GOOD, "owner": None}, "owner"),
        ({**GOOD, "owner": "Bo"}, "owner"),
        ({**GOOD, "owner": {}}, "owner.name"),
        ({**GOOD, "owner": {"name": "", "email": "a@example.com"}}, "owner.name"),
        ({**GOOD, "owner": {"name": "Bo", "email": "nobody"}}, "owner.email"),
        ({**GOOD, "owner": {"name": "Bo", "email": "a@" + "b" * 260}}, "owner.email"),
        ({**GOOD, "signature": {"text": 1}}, "signature.text"),
        ({**GOOD, "domain_id": "dom_1"}, "domain_id"),
        ({**GOOD, "send_policy": {"daily_cap": -1}}, "send_policy.daily_cap"),
        ({**GOOD, "send_policy": {"daily_cap": "5"}}, "send_policy.daily_cap"),
        ({**GOOD, "send_policy": {"daily_cap": 1.5}}, "send_policy.daily_cap"),
        ({**GOOD, "send_policy": {"daily_cap": 2**63}}, "send_policy.daily_cap"),
        ({**GOOD, "send_policy": {"daily_cap": True}}, "send_policy.daily_cap"),
        ({**GOOD, "send_policy": {"auto_reply": "maybe"}}, "send_policy.auto_reply"),
        ({**GOOD, "send_policy": {"require_known_recipient": "yes"}}, "send_policy.require_known_recipient"),
        ({**GOOD, "metadata": []}, "metadata"),
        ({**GOOD, "metadata": {"a": 1}}, "metadata.a"),
        ({**GOOD, "metadata": {"a": "x" * 513}}, "metadata.a"),
        ({**GOOD, "metadata": {f"k{n}": "" for n in range(17)}}, "metadata"),
        ({**GOOD, "metadata": {"a\x00": "x"}}, "metadata"),
    ],
)
async def test_wrong_bodies(world: World, body: Any, path: str) -> None:
    response = await create(world, body)
    assert code(response) == "invalid_request", response.text
    paths = [item["path"] for item in response.json()["error"]["details"]["errors"]]
    assert any(found.startswith(path) for found in paths), paths


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"{'username': 'ada'}", "application/json"),
        (b'{"username": NaN}', "application/json"),
        (b"\xff\xfe", "application/json"),
        (b'{"username": "\\ud800", "display_name": "x"}', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "application/json"),
        (b'{"username": "ada", "display_name": "Ada"}', "text/plain"),
        (b"username=ada", "application/x-www-form-urlencoded"),
        (b"--b\r\n\r\n--b--", "multipart/form-data; boundary=b"),
    ],
)
async def test_what_is_no_json(world: World, content: bytes, kind: str) -> None:
    response = await world.client.post(path_of(world), content=content, headers={**world.key, "content-type": kind})
    assert code(response) == "invalid_request"
    assert response.json()["error"]["details"]["errors"][0]["path"] == "body"


async def test_json_by_other_names(world: World) -> None:
    for n, kind in enumerate(("application/json; charset=utf-8", "application/vnd.api+json", "APPLICATION/JSON", None)):
        content = b'{"username": "ada%d", "display_name": "Ada"}' % n
        headers = dict(world.key) if kind is None else {**world.key, "content-type": kind}
        assert (await world.client.post(path_of(world), content=content, headers=headers)).status_code == 201


async def test_too_large(world: World) -> None:
    big = b'{"username": "ada", "display_name": "' + b"x" * (7 * 1024 * 1024) + b'"}'
    response = await world.client.post(
        path_of(world), content=big, headers={**world.key, "content-type": "application/json"}
    )
    assert code(response) == "payload_too_large"

    async def pieces() -> Any:
        for _ in range(8):
            yield b" " * 1024 * 1024

    response = await world.client.post(
        path_of(world), content=pieces(), headers={**world.key, "content-type": "application/json"}
    )
    assert code(response) == "payload_too_large"


@pytest.mark.covers("security-privacy:A4.2")
async def test_caps_above_the_tenants_need_the_platform(world: World) -> None:
    body = {**GOOD, "send_policy": {"daily_cap": 501}}
    response = await create(world, body)
    assert code(response) == "scope_denied"
    assert response.json()["error"]["details"]["field"] == "send_policy.daily_cap"
    assert (await create(world, body, world.platform)).status_code == 201


async def test_a_suspended_tenant_gets_no_new_mailboxes(world: World) -> None:
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE tenants SET status = 'suspended' WHERE id = $1", world.tenant.id)
    assert code(await create(world, GOOD)) == "tenant_suspended"
    assert (await world.get(world.at("/messages"))).status_code == 200


async def test_a_domain_of_somebody_else(world: World) -> None:
    assert code(await create(world, {**GOOD, "domain_id": "dom_01ARZ3NDEKTSV4RRFFQ69G5FAV"})) == "domain_not_found"


# -- idempotency


@pytest.mark.covers("edge:G1", "FR-API-4")
async def test_the_same_request_twice(world: World) -> None:
    first = await create(world, GOOD, idempotency_key="k 1")
    assert first.status_code == 201
    assert "idempotent-replayed" not in first.headers
    async with world.db.acquire() as conn:  # what is kept goes with the identity that it tells of
        owner = await conn.fetchval(
            "SELECT i.public_id FROM idempotency_records r JOIN identities i"
            " ON i.tenant_id = r.tenant_id AND i.id = r.identity_id WHERE r.idem_key = 'k 1'"
        )
    assert owner == first.json()["id"]
    again = await create(world, GOOD, idempotency_key="k 1")
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert code(await create(world, {**GOOD, "display_name": "B"}, idempotency_key="k 1")) == "idempotency_conflict"
    assert code(await create(world, GOOD, idempotency_key="k 2")) == "username_taken"


@pytest.mark.covers("edge:J19")
async def test_another_key_gets_no_replay(world: World) -> None:
    assert (await create(world, GOOD, idempotency_key="k")).status_code == 201
    second = await world.new_key(Level.TENANT, tenant=world.tenant)
    assert code(await create(world, GOOD, second, idempotency_key="k")) == "username_taken"


async def test_a_refusal_frees_the_key(world: World) -> None:
    assert code(await create(world, {**GOOD, "username": "box"}, idempotency_key="k")) == "username_taken"
    assert (await create(world, GOOD, idempotency_key="k")).status_code == 201


async def test_a_long_answer_is_read_again(world: World) -> None:
    body = {**GOOD, "signature": {"text": "x" * 60_000, "html": "y" * 60_000}}
    first = await create(world, body, idempotency_key="k")
    assert first.status_code == 201, first.text
    again = await create(world, body, idempotency_key="k")
    assert again.json() == first.json()


async def test_two_keys_are_none(world: World) -> None:
    headers = httpx.Headers([*world.key.items(), ("idempotency-key", "one"), ("Idempotency-Key", "two")])
    response = await world.client.post(path_of(world), json=GOOD, headers=headers)
    assert code(response) == "invalid_idempotency_key"


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "gzip, identity"])
async def test_a_body_that_is_said_to_be_compressed_is_refused(world: World, coding: str) -> None:
    headers = {**world.key, "content-encoding": coding}
    response = await world.client.post(path_of(world), json=GOOD, headers=headers)
    assert (response.status_code, code(response)) == (400, "invalid_request")
    plain = await world.client.post(path_of(world), json=GOOD, headers={**headers, "content-encoding": "identity"})
    assert plain.status_code == 201


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "a\tb", "\x7f", "caf\xe9"])
async def test_malformed_keys(world: World, key: str) -> None:
    headers = httpx.Headers([*world.key.items(), ("idempotency-key", key)], encoding="latin-1")
    response = await world.client.post(path_of(world), json=GOOD, headers=headers)
    assert code(response) == "invalid_idempotency_key"


@pytest.mark.covers("edge:G1")
async def test_two_at_once_make_one(world: World) -> None:
    answers = await asyncio.gather(*(create(world, GOOD, idempotency_key="k") for _ in range(6)))
    made = [item for item in answers if item.status_code == 201]
    assert made
    assert {item.json()["id"] for item in made} == {made[0].json()["id"]}
    assert {code(item) for item in answers if item.status_code != 201} <= {"request_in_progress"}
    listed = (await world.get(path_of(world))).json()["data"]
    assert [item["username"] for item in listed].count("ada") == 1


# -- look-up


async def test_look_up(world: World) -> None:
    address = world.box.primary.address
    for written in (address, address.upper()):
        response = await world.get("/v1/identities/lookup", address=written)
        assert response.json()["id"] == world.box.public_id
    for unknown in (
        "nobody@agents.example",
        "nobody@example.org",
        world.other_box.primary.address,
        "a@b\u00fcro.example",
    ):
        assert code(await world.get("/v1/identities/lookup", address=unknown)) == "identity_not_found"
    for wrong in (
        "nobody",
        "@agents.example",
        "a@",
        "a b@example.com",
        "a\x00@example.com",
        "x" * 300 + "@example.com",
    ):
        assert code(await world.get("/v1/identities/lookup", address=wrong)) == "invalid_request"
    assert code(await world.get("/v1/identities/lookup")) == "invalid_request"
    assert (
        await world.get("/v1/identities/lookup", world.platform, address=world.other_box.primary.address)
    ).status_code == 200


async def test_a_retired_address_is_not_found(world: World) -> None:
    for status, found in (("retiring", 200), ("retired", 404), ("pending", 404)):
        async with world.db.acquire() as conn:
            await conn.execute("UPDATE addresses SET status = $2 WHERE identity_id = $1", world.box.id, status)
        response = await world.get("/v1/identities/lookup", address=world.box.primary.address)
        assert response.status_code == found


async def test_going_and_gone_identities(world: World) -> None:
    """The identity itself can still be read; its mailbox cannot."""
    for status in ("deleting", "deleted"):
        async with world.db.acquire() as conn:
            await conn.execute("UPDATE identities SET status = $2 WHERE id = $1", world.box.id, status)
            await conn.execute("DELETE FROM addresses WHERE identity_id = $1", world.box.id)
        shown = await world.get(world.at())
        assert (shown.status_code, shown.json()["status"]) == (200, status)
        for path in ("/messages", "/threads", "/wait"):
            assert code(await world.get(world.at(path))) == "identity_not_found"
