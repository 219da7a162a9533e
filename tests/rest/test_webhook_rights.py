"""Nobody has mail sent somewhere by a key that may not read mail (J29; events-webhooks-errors §5.3; decision 79): the
whole table, of what is done to an endpoint, of which events it gets, by which key."""

from __future__ import annotations

import itertools
from typing import Any, Final

import httpx
import pytest

from postroom.accounts import Level
from tests.rest.world import World

pytestmark = pytest.mark.events_made_up

MANAGE, READ, REVIEW = "webhooks:manage", "messages:read", "quarantine:review"
URL, OTHER = "https://hooks.example.com/in", "https://other.example.com/in"
KEYS: Final = ([MANAGE], [MANAGE, READ], [MANAGE, REVIEW], [MANAGE, READ, REVIEW])
EVENTS: Final[tuple[tuple[list[str], set[str]], ...]] = (
    (["member.joined", "domain.failing"], set()),
    (["message.received"], {READ}),
    (["verification.received", "member.joined"], {READ}),
    (["message.quarantined"], {READ, REVIEW}),
    (["*"], {READ, REVIEW}),
)


class Table:
    """An endpoint as it stands before, in a tenant with two identities."""

    def __init__(self, world: World, box: str, second: str) -> None:
        self.world, self.box, self.second = world, box, second

    async def endpoint(self, events: list[str], *, on: list[str] | None, enabled: bool) -> str:
        body = {"url": URL, "events": events, "identity_ids": on}
        made = await self.world.post(f"/v1/tenants/{self.world.tenant.public_id}/webhooks", body)
        assert made.status_code == 201, made.text
        path = f"/v1/webhooks/{made.json()['id']}"
        if not enabled:
            assert (await self.world.patch(path, {"enabled": False})).status_code == 200
        return path


@pytest.fixture
async def table(world: World) -> Table:
    second = await world.new_identity(world.tenant, "second")
    return Table(world, world.box.public_id, second.public_id)


def missing(answer: httpx.Response) -> set[str]:
    if answer.status_code != 403:
        assert answer.status_code < 400, answer.text
        return set()
    assert answer.json()["error"]["code"] == "permission_denied"
    required = answer.json()["error"]["details"]["required"]
    assert required == sorted(required)
    return set(required)


def changes(box: str, second: str) -> list[tuple[str, list[str] | None, bool, dict[str, Any], bool]]:
    """What it is called, identities before, whether enabled before, the change, and whether more may be sent by it."""
    one, both = [box], [box, second]
    return [
        ("url", None, True, {"url": OTHER}, True),
        ("the same url", None, True, {"url": URL}, True),  # the letter of §5.3
        ("one more identity", one, True, {"identity_ids": both}, True),
        ("another identity", one, True, {"identity_ids": [second]}, True),
        ("every identity", one, True, {"identity_ids": None}, True),
        ("from none", [], True, {"identity_ids": one}, True),
        ("more, while it is off", one, False, {"identity_ids": both}, True),
        ("enabled again", None, False, {"enabled": True}, True),
        ("enabled again, narrower", both, False, {"enabled": True, "identity_ids": one}, True),
        ("fewer identities", both, True, {"identity_ids": one}, False),
        ("some of every identity", None, True, {"identity_ids": both}, False),
        ("no identity", one, True, {"identity_ids": []}, False),
        ("the same identities", both, True, {"identity_ids": both[::-1]}, False),
        ("enabled already", None, True, {"enabled": True}, False),
        ("disabled", None, True, {"enabled": False}, False),
        ("disabled and narrower", None, True, {"enabled": False, "identity_ids": one}, False),
        ("described", None, True, {"description": "x"}, False),
        ("fewer types", None, True, {"events": ["member.joined"]}, False),
    ]


@pytest.mark.covers("edge:J29", "FR-WH-1")
@pytest.mark.parametrize(("events", "needed"), EVENTS)
async def test_what_a_change_takes(table: Table, events: list[str], needed: set[str]) -> None:
    world = table.world
    for name, on, enabled, body, more in changes(table.box, table.second):
        path = await table.endpoint(events, on=on, enabled=enabled)
        before = (await world.get(path)).json()
        for held in KEYS:
            lacks = needed - set(held) if more else set()
            answer = await world.patch(path, body, await world.new_key(Level.TENANT, held, tenant=world.tenant))
            assert missing(answer) == lacks, (name, held)
            if lacks:
                assert (await world.get(path)).json() == before, (name, held)
                continue
            assert {key: answer.json()[key] for key in body} == body, (name, held)
            break  # it has happened
        await world.client.delete(path, headers=world.key)
        await world.revoke_keys()
        world.key = await world.new_key(Level.TENANT, tenant=world.tenant)


@pytest.mark.covers("edge:J29")
@pytest.mark.parametrize(("events", "needed"), EVENTS)
async def test_what_everything_else_takes(table: Table, events: list[str], needed: set[str]) -> None:
    """Making one and replaying are mail that is sent; a test sends none, nor does a secret, nor the end of it."""
    world = table.world
    path = await table.endpoint(events, on=[table.box], enabled=True)
    window = {"since": "2029-12-31T00:00:00Z"}
    for held in KEYS:
        key, lacks = await world.new_key(Level.TENANT, held, tenant=world.tenant), needed - set(held)
        for body in (window, {"event_ids": [world.ids.new("evt_")]}):
            assert missing(await world.post(f"{path}/replay", body, key)) == lacks
        new = {"url": URL, "events": events, "identity_ids": [table.box]}
        made = await world.post(f"/v1/tenants/{world.tenant.public_id}/webhooks", new, key)
        assert missing(made) == lacks
        assert missing(await world.post(f"{path}/rotate-secret", None, key)) == set()
        assert missing(await world.post(f"{path}/test", None, key)) == set()
    bare = await world.new_key(Level.TENANT, KEYS[0], tenant=world.tenant)
    assert (await world.client.delete(path, headers=bare)).status_code == 204


@pytest.mark.covers("edge:J29")
async def test_more_types_take_what_they_are_about(table: Table) -> None:
    world = table.world
    for held, (events, needed) in itertools.product(KEYS, EVENTS):
        path = await table.endpoint(["member.joined"], on=None, enabled=True)
        key = await world.new_key(Level.TENANT, held, tenant=world.tenant)
        assert missing(await world.patch(path, {"events": events}, key)) == needed - set(held)
        await world.client.delete(path, headers=world.key)


@pytest.mark.covers("edge:J29")
async def test_no_way_round_in_two_steps(table: Table) -> None:
    """What a key without the rights may do leaves nothing that it could undo."""
    world = table.world
    path = await table.endpoint(["*"], on=None, enabled=True)
    bare = await world.new_key(Level.TENANT, [MANAGE], tenant=world.tenant)
    assert missing(await world.patch(path, {"identity_ids": [table.box]}, bare)) == set()
    assert missing(await world.patch(path, {"identity_ids": None}, bare)) == {READ, REVIEW}
    assert missing(await world.patch(path, {"enabled": False}, bare)) == set()
    assert missing(await world.patch(path, {"enabled": True}, bare)) == {READ, REVIEW}
    # Without the right it is not even told that there would be a test to make first.
    assert (await world.patch(path, {"url": OTHER})).json()["disabled_reason"] == "url_changed"
    assert missing(await world.patch(path, {"enabled": True}, bare)) == {READ, REVIEW}
    assert (await world.patch(path, {"enabled": True})).status_code == 400


# -- whose identities


def refused(answer: httpx.Response) -> Any:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert [one["path"] for one in error["details"]["errors"]] == ["identity_ids"]
    return {**error, "request_id": None}


@pytest.mark.covers("SEC-1", "edge:J15")
async def test_identities_are_the_tenants_own(world: World) -> None:
    """What is another's, the system's, gone, or was never there: one answer, to whoever asks."""
    gone = await world.new_identity(world.tenant, "gone")
    async with world.db.acquire() as conn:
        system = await conn.fetchval("SELECT public_id FROM identities WHERE is_system")
        await conn.execute("UPDATE identities SET status = 'deleted' WHERE id = $1", gone.id)
    strangers = [world.other_box.public_id, world.ids.new("idn_"), gone.public_id, *filter(None, [system])]
    mine = world.box.public_id
    of_tenant = f"/v1/tenants/{world.tenant.public_id}/webhooks"
    body = {"url": URL, "events": ["*"]}
    path = f"/v1/webhooks/{(await world.post(of_tenant, body | {'identity_ids': [mine]})).json()['id']}"
    answers = []
    for named in ([one, *extra] for one in strangers for extra in ([], [mine])):
        for headers in (world.key, world.platform):
            answers.append(refused(await world.post(of_tenant, body | {"identity_ids": named}, headers)))
            answers.append(refused(await world.patch(path, {"identity_ids": named}, headers)))
    assert all(one == answers[0] for one in answers)
    assert (await world.get(path)).json()["identity_ids"] == [mine]
    # The platform's own endpoints hear of all.
    named = [mine, world.other_box.public_id, *filter(None, [system])]
    made = await world.post("/v1/webhooks", body | {"identity_ids": named}, world.platform)
    assert (made.status_code, made.json()["identity_ids"]) == (201, named)
    refused(await world.post("/v1/webhooks", body | {"identity_ids": [world.ids.new("idn_")]}, world.platform))


async def test_what_was_named_may_be_gone_by_now(world: World) -> None:
    """A filter keeps the ids it had, and goes on with them."""
    body = {"url": URL, "events": ["*"], "identity_ids": [world.box.public_id]}
    made = (await world.post(f"/v1/tenants/{world.tenant.public_id}/webhooks", body)).json()
    second = await world.new_identity(world.tenant, "second")
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE identities SET status = 'deleted' WHERE id = $1", world.box.id)
    both = [world.box.public_id, second.public_id]
    changed = await world.patch(f"/v1/webhooks/{made['id']}", {"identity_ids": both})
    assert (changed.status_code, changed.json()["identity_ids"]) == (200, both)
