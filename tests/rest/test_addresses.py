"""Addresses and deletion over HTTP (rest-api §5.4, §5.5)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from postroom.accounts import Level
from postroom.directory import Directory, Recipient, rules
from postroom.inbound.describe import describe
from postroom.mailbox.ingest import Delivery
from postroom.mailbox.models import Direction, MailboxRef, NewMessage, Refusal, Refused, Source
from tests.rest.contract import check
from tests.rest.sender import code
from tests.rest.world import DOMAIN, TRACE, World, simple_mail

MISSING = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@dataclass
class Desk:
    """The first tenant, with a domain that receives and one that waits."""

    world: World
    ready: str
    waiting: str

    def path(self, rest: str = "") -> str:
        return self.world.at(f"/addresses{rest}")

    async def add(self, local: str, domain: str | None = None, **more: Any) -> httpx.Response:
        body = {"local_part": local, "domain_id": domain or self.ready}
        return await self.world.post(self.path(), body, **more)

    async def delete(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return await self.world.client.delete(path, headers=headers or self.world.key)

    async def states(self) -> dict[str, tuple[str, str]]:
        shown = (await self.world.get(self.world.at())).json()
        check("Identity", shown)
        return {one["address"]: (one["role"], one["status"]) for one in shown["addresses"]}

    async def audited(self) -> list[tuple[str, str]]:
        found = (await self.world.get("/v1/audit-events", limit=100)).json()["data"]
        return [(one["action"], one["target_id"]) for one in reversed(found)]


@pytest.fixture
async def desk(world: World) -> Desk:
    made = []
    async with world.db.acquire() as conn:
        for name, status in (("acme.example", "healthy"), ("wait.example", "pending")):
            made.append(world.ids.new("dom_"))
            await conn.execute(
                "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at)"
                " VALUES ($1, $2, $3, 'external', $4, $5, $5)",
                *(made[-1], world.tenant.id, name, status, world.clock.now()),
            )
    return Desk(world, *made)


@pytest.mark.covers("FR-ADR-1", "FR-ADR-2", "FR-ADR-3", "FR-ADR-4", "edge:A14", "edge:A11")
async def test_the_life_of_an_address(desk: Desk) -> None:
    world, platform = desk.world, desk.world.box.primary
    added = await desk.add("Support")
    assert added.status_code == 201
    check("Address", added.json())
    one = added.json()
    assert (one["address"], one["role"], one["status"]) == ("support@acme.example", "alias", "active")
    world.clock.advance(1)
    pending = (await desk.add("later", desk.waiting)).json()
    assert pending["status"] == "pending"
    # Newest first, in every state.
    page = await world.get(desk.path(), limit=2)
    check("AddressPage", page.json())
    assert [each["id"] for each in page.json()["data"]] == [pending["id"], one["id"]]
    rest = await world.get(desk.path(), limit=2, cursor=page.json()["next_cursor"])
    assert [each["id"] for each in rest.json()["data"]] == [platform.public_id]
    assert rest.json()["next_cursor"] is None
    # Promoted without a body, and back; the platform address is never anything but active.
    promoted = await world.post(desk.path(f"/{one['id']}/promote"))
    check("Identity", promoted.json())
    assert promoted.json()["primary_address"] == "support@acme.example"
    for path, wanted in (
        (desk.path(f"/{platform.public_id}/retire"), "address_in_use"),
        (desk.path(f"/{one['id']}/retire"), "address_is_primary"),
        (desk.path(f"/{one['id']}/promote"), "address_is_primary"),
        (desk.path(f"/{pending['id']}/promote"), "domain_not_ready"),
        (desk.path(f"/adr_{MISSING}/retire"), "address_not_found"),
    ):
        refused = await world.post(path)
        assert code(refused) == wanted
    assert code(await desk.delete(desk.path(f"/{platform.public_id}"))) == "address_in_use"
    assert code(await desk.delete(desk.path(f"/{one['id']}"))) == "address_is_primary"
    back = await world.post(desk.path(f"/{platform.public_id}/promote"), {"retire_previous_after_days": 0})
    assert back.json()["primary_address"] == platform.address
    # A time to end, another one, and at once.
    retiring = await world.post(desk.path(f"/{one['id']}/retire"), {"after_days": 10})
    check("Address", retiring.json())
    assert retiring.json()["status"] == "retiring"
    assert retiring.json()["retire_at"].startswith("2030-01-11")
    gone = await world.post(desk.path(f"/{one['id']}/retire"), {"after_days": 0})
    assert (gone.json()["status"], gone.json()["retire_at"]) == ("retired", None)
    assert code(await world.post(desk.path(f"/{one['id']}/retire"))) == "address_not_found"
    assert code(await desk.delete(desk.path(f"/{one['id']}"))) == "address_in_use"
    assert (await desk.delete(desk.path(f"/{pending['id']}"))).status_code == 204
    assert await desk.states() == {
        platform.address: ("primary", "active"),
        "support@acme.example": ("alias", "retired"),
    }
    done = [action for action, target in await desk.audited() if target.startswith("adr_")]
    assert done == ["address.create"] * 2 + ["address.promote"] * 2 + ["address.retire"] * 2 + ["address.delete"]


@pytest.mark.covers("edge:A3", "edge:A4", "FR-ADR-6", "FR-ADR-7")
async def test_what_is_refused(desk: Desk) -> None:
    for local, wanted in (
        ("postmaster", "address_reserved"),
        ("p0stmaster", "address_reserved"),
        ("böt", "address_unsupported"),
        ("x" * 41, "address_invalid"),
        ("a..b", "address_invalid"),
        ("a+b", "address_invalid"),
    ):
        assert code(await desk.add(local)) == wanted, local
    assert (await desk.add("sales")).status_code == 201
    assert code(await desk.add("sales")) == "address_taken"
    assert code(await desk.add("x", f"dom_{MISSING}")) == "domain_not_found"
    for days in (-1, 366, "1", 1.5, None):
        refused = await desk.world.post(desk.path(f"/adr_{MISSING}/retire"), {"after_days": days})
        assert code(refused) == "invalid_request", days
    assert code(await desk.world.post(desk.path(), {"local_part": "x"})) == "invalid_request"


@pytest.mark.covers("FR-API-2")
async def test_each_request_once(desk: Desk) -> None:
    world = desk.world
    first, again = await desk.add("one", key="k1"), await desk.add("one", key="k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert code(await desk.add("two", key="k1")) == "idempotency_conflict"
    # What was refused may be asked for otherwise.
    assert code(await desk.add("abuse", key="k2")) == "address_reserved"
    assert (await desk.add("two", key="k2")).status_code == 201
    one = first.json()["id"]
    for _ in range(2):
        promoted = await world.post(desk.path(f"/{one}/promote"), key="k3")
        assert promoted.json()["primary_address"] == "one@acme.example"
    # The request that repeats moves nothing, though things have moved on.
    await world.post(desk.path(f"/{world.box.primary.public_id}/promote"), key="k4")
    await world.post(desk.path(f"/{one}/promote"), key="k3")
    assert (await desk.states())["one@acme.example"] == ("alias", "active")
    both = await asyncio.gather(*(desk.add("three", key="k5") for _ in range(3)))
    assert [one.status_code for one in both if one.status_code == 201]
    assert {one.status_code for one in both} <= {201, 409}
    assert list(await desk.states()).count("three@acme.example") == 1


async def test_neither_without_the_other(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be recorded is not done, so that a process that ends in between leaves nothing half done."""

    async def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the process ends here")

    path = f"/v1/tenants/{desk.world.tenant.public_id}/identities"
    body = {"username": "ann", "display_name": "Ann"}
    before = await desk.states()
    with monkeypatch.context() as patched:
        patched.setattr("postroom.accounts.idempotency.complete", broken)
        for response in (
            await desk.add("one", key="k1"),
            await desk.world.post(desk.path(f"/{desk.world.box.primary.public_id}/promote"), key="k2"),
            await desk.world.post(path, body, key="k3"),
        ):
            assert response.status_code in (409, 500)
    assert await desk.states() == before
    # It was begun, and whether it was done is not known until a minute has passed.
    assert code(await desk.add("one", key="k1")) == "request_in_progress"
    desk.world.clock.advance(61)
    assert (await desk.add("one", key="k1")).status_code == 201
    assert (await desk.world.post(path, body, key="k3")).status_code == 201


@pytest.mark.covers("FR-IDN-1")
async def test_an_identity_is_made_once(world: World) -> None:
    """The record of the answer is written with the identity: nobody finds one without the other."""
    path = f"/v1/tenants/{world.tenant.public_id}/identities"
    body = {"username": "ann", "display_name": "Ann", "signature": {"text": "x" * 60_000}}
    first, again = [await world.post(path, body, key="k") for _ in range(2)]
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    # A `client_id` finds it as well, whatever the key.
    known = {"username": "ben", "display_name": "Ben", "client_id": "c1"}
    made, found, replayed = [await world.post(path, known, key=key) for key in ("a", "b", "b")]
    assert [one.status_code for one in (made, found, replayed)] == [201, 200, 200]
    assert made.json() == found.json() == replayed.json()
    assert code(await world.post(path, {**known, "purpose": "x"}, key="c")) == "client_id_conflict"
    rows = (await world.get("/v1/audit-events", action="identity.create")).json()["data"]
    assert [one["target_id"] for one in rows][:2] == [made.json()["id"], first.json()["id"]]


@pytest.mark.covers("FR-IDN-4", "edge:A5", "edge:A13", "FR-ADR-5")
async def test_deletion(desk: Desk) -> None:
    world, box = desk.world, desk.world.box
    added = (await desk.add("support")).json()
    deleted = await desk.delete(world.at())
    assert deleted.status_code == 202
    check("ErasureRequest", deleted.json())
    assert (deleted.json()["scope"], deleted.json()["identity_id"]) == ("identity", box.public_id)
    again = await desk.delete(world.at())
    assert (again.status_code, again.json()) == (200, deleted.json())
    # It can still be read, and nothing else.
    shown = await world.get(world.at())
    check("Identity", shown.json())
    assert (shown.json()["status"], shown.json()["addresses"]) == ("deleting", [])
    for method, path, body in (
        ("PATCH", world.at(), {"purpose": "x"}),
        ("GET", world.at("/messages"), None),
        ("GET", desk.path(), None),
        ("POST", desk.path(f"/{added['id']}/promote"), None),
    ):
        response = await world.client.request(method, path, headers=world.key, json=body)
        assert code(response) == "identity_not_found", path
    assert code(await world.get("/v1/identities/lookup", address="support@acme.example")) == "identity_not_found"
    # Mail is unknown from now on, and the name is nobody else's.
    directory = Directory(world.db, world.clock, DOMAIN, query_seconds=60)
    assert await directory.resolve("support@acme.example") == rules.UNKNOWN
    rival = await world.new_identity(world.tenant, "rival")
    taken = {"local_part": "support", "domain_id": desk.ready}
    assert code(await world.post(f"/v1/identities/{rival.public_id}/addresses", taken)) == "address_taken"
    done = [action for action, _ in await desk.audited()]
    assert done.count("identity.delete") == done.count("erasure.create") == 1


async def test_deletion_needs_both_permissions(world: World) -> None:
    for permissions in (["identities:write"], ["erasure:manage"]):
        key = await world.new_key(Level.TENANT, permissions, tenant=world.tenant)
        refused = await world.client.delete(world.at(), headers=key)
        assert code(refused) == "permission_denied"
    own = await world.new_key(Level.IDENTITY, ["identities:write", "erasure:manage"], identity=world.box)
    assert (await world.client.delete(world.at(), headers=own)).status_code == 202


async def deliver(world: World, subject: str) -> Any:
    """Mail that was let in, as the MX hands it over."""
    box, now = world.box, world.clock.now()
    original = simple_mail(subject, Message_ID=f"<{subject}@example.com>")
    message_id = world.ids.new("msg_")
    message = NewMessage(
        id=message_id,
        mailbox=MailboxRef(box.tenant_id, box.id),
        source=Source.MX,
        direction=Direction.INBOUND,
        blob_key=f"t/{box.tenant_public_id}/i/{box.public_id}/m/{message_id}/raw.eml",
        content=describe(TRACE, original, now),
        thread_id=world.ids.new("thr_"),
        event_id=world.ids.new("evt_"),
        attachment_ids=(),
        received_at=now,
        internal_date=now.replace(microsecond=0),
        delivered_to=box.primary.address,
    )
    return await world.ingest.deliver(Delivery((TRACE, original), (message,)))


@pytest.mark.covers("FR-IDN-4", "edge:A13", "decisions:B10")
async def test_mail_that_comes_while_it_is_deleted(world: World) -> None:
    """What is stored was stored before: afterwards the mailbox takes nothing, whoever was let in."""
    directory = Directory(world.db, world.clock, DOMAIN, query_seconds=60)
    assert isinstance(await directory.resolve(world.box.primary.address), Recipient)

    async def stored() -> int:
        async with world.db.acquire() as conn:
            found: int = await conn.fetchval("SELECT count(*) FROM messages WHERE mailbox_id = $1", world.box.id)
        return found

    async def delete() -> int:
        await asyncio.sleep(0.01)
        response = await world.client.delete(world.at(), headers=world.key)
        assert response.status_code == 202
        return await stored()

    first = [asyncio.create_task(deliver(world, f"a{n}")) for n in range(10)]
    deleting = asyncio.create_task(delete())
    later = []
    for n in range(10):
        await asyncio.sleep(0.002)
        later.append(asyncio.create_task(deliver(world, f"b{n}")))
    outcomes = await asyncio.gather(*first, *later)
    then = await deleting
    taken = [one for one in outcomes if isinstance(one, tuple)]
    assert all(one == Refused(Refusal.MAILBOX_GONE) for one in outcomes if one not in taken)
    assert len(taken) == then == await stored()
    assert await deliver(world, "last") == Refused(Refusal.MAILBOX_GONE)


@pytest.mark.covers("edge:A15")
async def test_the_system_identity_is_setups_alone(world: World) -> None:
    made = await world.identities.create_system(world.tenant.id, "no-reply", "Postroom", "ops@example.com")
    path = f"/v1/identities/{made.public_id}"
    assert (await world.get(path, world.platform)).status_code == 200
    assert code(await world.get(path)) == "identity_not_found"
    for method, rest, body in (
        ("PATCH", "", {"status": "paused"}),
        ("DELETE", "", None),
        ("POST", f"/addresses/{made.primary.public_id}/retire", None),
        ("POST", "/addresses", {"local_part": "x", "domain_id": f"dom_{MISSING}"}),
    ):
        refused = await world.client.request(method, path + rest, headers=world.platform, json=body)
        assert code(refused) == "scope_denied", (method, rest)
    after = await world.get(path, world.platform)
    assert after.json()["status"] == "active"
    listed = (await world.get("/v1/identities", world.platform, limit=100)).json()["data"]
    assert made.public_id not in {one["id"] for one in listed}
