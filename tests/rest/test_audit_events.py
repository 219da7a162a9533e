"""The audit log over HTTP (rest-api §5.19): whose rows, which, and in what order."""

from __future__ import annotations

import pytest

from postroom.accounts import Level
from postroom.accounts.audit import Actor, Entry, record
from tests.rest.contract import check
from tests.rest.sender import code
from tests.rest.world import World

MISSING = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture
async def log(world: World) -> World:
    """Rows of both tenants and of none, one a minute."""
    key, person = world.ids.new("key_"), world.ids.new("usr_")
    async with world.db.transaction() as conn:
        await conn.execute("DELETE FROM audit_log")
        for n in range(6):
            by = (Actor(key=key, request_id=world.ids.new("req_")), Actor(person=person), Actor())[n % 3]
            tenant = (world.tenant.id, world.other_tenant.id, None)[n % 3]
            entry = Entry(f"thing.{n}", "thing", f"t{n}", tenant, {"n": n})
            await record(conn, world.ids, world.clock.now(), by, entry)
            world.clock.advance(60)
    return world


async def actions(world: World, key: dict[str, str] | None = None, **params: object) -> list[str]:
    response = await world.get("/v1/audit-events", key or world.platform, **params)
    assert response.status_code == 200, response.text
    check("AuditEventPage", response.json())
    return [one["action"] for one in response.json()["data"]]


@pytest.mark.covers("security-privacy:A4.2", "SEC-1")
async def test_whose_rows(log: World) -> None:
    assert await actions(log) == [f"thing.{n}" for n in (5, 4, 3, 2, 1, 0)]
    assert await actions(log, log.key) == ["thing.3", "thing.0"]
    assert await actions(log, log.other_key) == ["thing.4", "thing.1"]
    own, other = log.tenant.public_id, log.other_tenant.public_id
    assert await actions(log, tenant_id=other) == ["thing.4", "thing.1"]
    assert await actions(log, log.key, tenant_id=own) == ["thing.3", "thing.0"]
    for tenant in (other, f"ten_{MISSING}"):
        assert code(await log.get("/v1/audit-events", log.key, tenant_id=tenant)) == "tenant_not_found"
    no_key = await log.new_key(Level.TENANT, ["messages:read"], tenant=log.tenant)
    assert code(await log.get("/v1/audit-events", no_key)) == "permission_denied"


async def test_which_rows(log: World) -> None:
    rows = (await log.get("/v1/audit-events", log.platform)).json()["data"]
    first = rows[-1]
    assert first["actor_key_id"] is not None
    assert first["request_id"] is not None
    assert (first["actor_user_id"], first["details"]) == (None, {"n": 0})
    assert (rows[-2]["actor_user_id"] is None, rows[-3]["tenant_id"]) == (False, None)
    assert await actions(log, actor_key_id=first["actor_key_id"]) == ["thing.3", "thing.0"]
    assert await actions(log, action="thing.2") == ["thing.2"]
    assert await actions(log, target_id="t4") == ["thing.4"]
    assert await actions(log, after=rows[2]["created_at"]) == ["thing.5", "thing.4", "thing.3"]
    assert await actions(log, before=rows[4]["created_at"]) == ["thing.0"]
    assert await actions(log, after=rows[4]["created_at"], before=rows[2]["created_at"]) == ["thing.2", "thing.1"]
    for wrong in ({"after": "yesterday"}, {"actor_key_id": "x"}, {"tenant_id": "x"}, {"limit": 0}, {"cursor": "c_x"}):
        assert code(await log.get("/v1/audit-events", log.platform, **wrong)) == "invalid_request"


async def test_page_by_page(log: World) -> None:
    seen, cursor = [], None
    while True:
        params = {"limit": 4} if cursor is None else {"limit": 4, "cursor": cursor}
        body = (await log.get("/v1/audit-events", log.platform, **params)).json()
        seen += [one["action"] for one in body["data"]]
        cursor = body["next_cursor"]
        if cursor is None:
            break
    assert seen == [f"thing.{n}" for n in (5, 4, 3, 2, 1, 0)]
    first = (await log.get("/v1/audit-events", log.platform, limit=1)).json()["next_cursor"]
    moved = await log.get("/v1/audit-events", log.platform, limit=1, cursor=first, action="thing.2")
    assert code(moved) == "invalid_request"
