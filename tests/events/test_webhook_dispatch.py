"""Who is told of what happened, in which order, and that nothing is lost (events-webhooks-errors §1, §6)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from postroom.accounts.audit import HOST
from postroom.base.errors import PostroomError
from postroom.db import Database
from postroom.events import settled
from tests.events.hooks import PLATFORM, Room

pytestmark = pytest.mark.events_made_up


@pytest.mark.events_made_up(all=True)
@pytest.mark.covers("FR-WH-1", "edge:J15", "edge:A15")
async def test_fan_out(room: Room) -> None:
    partner, _ = await room.partner("P")
    other, _ = await room.partner("Q")
    mine, theirs, lone = (
        await room.tenant("mine", partner),
        await room.tenant("theirs", other),
        await room.tenant("lone"),
    )
    box, system = await room.identity(mine), await room.identity(lone, is_system=True)
    platform = await room.hook(url="https://platform.example.com/")
    of_partner = await room.hook(partner=partner, url="https://partner.example.com/")
    of_tenant = await room.hook(mine, url="https://tenant.example.com/", identity_ids=(box[1],))
    of_lone = await room.hook(lone, url="https://lone.example.com/")
    told = {
        "of box": await room.event(mine, identity=box),
        "of tenant": await room.event(mine, "member.joined"),
        "of another partner": await room.event(theirs),
        "of system": await room.event(lone, identity=system),
        "of lone": await room.event(lone, "member.joined"),
        "of nobody": await room.event(None, "billing.plan_changed"),
        "about partner": await room.event(None, "webhook.disabled", partner=partner, about="whk_x"),
        "about itself": await room.event(mine, "webhook.disabled", about=of_partner.public_id),
        "for clients": await room.event(mine, "delivery.updated", identity=box),
    }
    names = {event: name for name, event in told.items()}
    found = {url: [names[one] for one in events] for url, events in (await room.told()).items()}
    assert found == {
        platform.url: [name for name in told if name != "for clients"],
        of_partner.url: ["of box", "of tenant", "about partner"],
        of_tenant.url: ["of box"],
        of_lone.url: ["of lone"],
    }
    assert await room.told() == {}


async def test_new_endpoints_hear_nothing_of_before_and_disabled_ones_nothing_at_all(room: Room) -> None:
    tenant = await room.tenant("tt")
    off = await room.hook(tenant)
    await room.value(
        "UPDATE webhook_endpoints SET enabled = false, disabled_reason = 'manual' WHERE id = $1 RETURNING 1", off.id
    )
    before = await room.event(tenant)
    room.clock.advance(1)
    new = await room.hook(tenant)
    after = await room.event(tenant)
    assert await room.told() == {new.url: [after]}
    assert before != after


async def test_without_endpoints_the_cursor_moves_on(room: Room) -> None:
    tenant = await room.tenant("tt")
    for _ in range(3):
        await room.event(tenant)
    await room.dispatch()
    assert await room.value("SELECT last_id FROM event_dispatch") == await room.value("SELECT max(id) FROM events")
    assert await room.tasks() == []


@pytest.mark.covers("FR-WH-1")
async def test_what_commits_late_is_not_passed_over(room: Room) -> None:
    """An id is drawn before others, and seen after them."""
    tenant = await room.tenant("tt")
    one = await room.hook(tenant)
    first = await room.event(tenant)
    statement = (
        "INSERT INTO events (public_id, type, tenant_id, owner_kind, owner_id, payload, occurred_at)"
        " VALUES ($1, 'member.joined', $2, 'platform', 'platform', '{}', $3)"
    )
    late = room.ids.new("evt_")
    async with room.db.transaction() as conn:
        await conn.execute(statement, late, tenant, room.clock.now())
        behind = asyncio.create_task(_event(room, tenant))  # its own connection
        second = await behind
        stepping = asyncio.create_task(room.dispatcher.step())
        await asyncio.sleep(0.1)
        assert not stepping.done()
    await stepping
    assert await room.told() == {one.url: [first, late, second]}


async def _event(room: Room, tenant: int) -> str:
    return await room.event(tenant)


async def test_what_takes_long_holds_up_only_what_is_behind_it(room: Room) -> None:
    tenant = await room.tenant("tt")
    one = await room.hook(tenant)
    first = await room.event(tenant)
    async with room.db.transaction() as conn:
        await conn.execute(
            "INSERT INTO events (public_id, type, tenant_id, owner_kind, owner_id, payload, occurred_at)"
            " VALUES ($1, 'member.joined', $2, 'platform', 'platform', '{}', $3)",
            *(room.ids.new("evt_"), tenant, room.clock.now()),
        )
        second = await asyncio.create_task(_event(room, tenant))
        assert await asyncio.create_task(room.told()) == {one.url: [first]}
        await conn.execute("ROLLBACK; BEGIN")
    # It never came: what is missing is missing for good.
    assert await room.told() == {one.url: [second]}


@pytest.mark.covers("NFR-REL-4")
async def test_writers_and_dispatchers_at_once_lose_and_double_nothing(room: Room, database_url: str) -> None:
    tenants = [await room.tenant(f"t{n}") for n in range(3)]
    hooks = {tenant: await room.hook(tenant) for tenant in tenants}
    boxes = {tenant: await room.identity(tenant) for tenant in tenants}
    told: dict[int, list[str]] = {tenant: [] for tenant in tenants}
    writing = True

    async def write(tenant: int, db: Database) -> None:
        for n in range(25):
            public_id = room.ids.new("evt_")
            async with db.transaction() as conn:
                # As mailboxes are: one writer at a time, and its events in the order of its sequence.
                await conn.execute("SELECT pg_advisory_xact_lock($1)", tenant)
                room.sequence += 1
                await conn.execute(
                    "INSERT INTO events (public_id, type, tenant_id, identity_id, owner_kind, owner_id, sequence,"
                    " payload, occurred_at) VALUES ($1, 'message.sent', $2, $3, 'mailbox', $4, $5, '{}', $6)",
                    *(public_id, tenant, boxes[tenant][0], boxes[tenant][1], room.sequence, room.clock.now()),
                )
                await asyncio.sleep(0.001 * (n % 3))
                if n % 7 == 3:
                    await conn.execute("ROLLBACK; BEGIN")
                else:
                    told[tenant].append(public_id)

    async def dispatch() -> None:
        dispatcher = room.another_dispatcher()
        while writing:
            await dispatcher.step()
            await asyncio.sleep(0.001)

    async with Database(database_url, min_size=2, max_size=20) as db:
        dispatching = [asyncio.create_task(dispatch()) for _ in range(3)]
        await asyncio.gather(*(write(tenant, db) for tenant in tenants for _ in range(3)))
        writing = False
        await asyncio.gather(*dispatching)
    await room.dispatch()
    for tenant in tenants:
        rows: list[Any] = await room.rows(
            "SELECT event_id FROM webhook_tasks WHERE endpoint_id = $1 ORDER BY id", hooks[tenant].id
        )
        assert [row["event_id"] for row in rows] == told[tenant]


async def test_an_endpoint_may_be_deleted_while_tasks_are_made(room: Room) -> None:
    tenant = await room.tenant("tt")
    one = await room.hook(tenant)
    await room.event(tenant)
    await asyncio.gather(room.dispatch(), room.endpoints.delete(PLATFORM, one.public_id, by=HOST))
    assert await room.tasks() == []


@pytest.mark.covers("FR-WH-1")
@pytest.mark.parametrize("ahead", [-3600, 3600])
async def test_what_was_before_is_not_told_by_clocks(room: Room, ahead: int) -> None:
    """The node that writes events has another time than the one that makes the endpoint."""
    tenant = await room.tenant("tt")
    now, theirs = room.clock.now(), room.clock.now() + timedelta(seconds=ahead)
    room.clock.set(theirs)
    before = await room.event(tenant)
    room.clock.set(now)
    one = await room.hook(tenant)
    room.clock.set(theirs)
    after = await room.event(tenant)
    room.clock.set(now)
    assert await room.told() == {one.url: [after]}
    assert before != after


@pytest.mark.covers("FR-WH-1")
async def test_what_is_being_written_while_an_endpoint_is_made(room: Room) -> None:
    """Whoever makes an endpoint and then reads what there is has everything: what is under way is waited for, so that
    it is read, and what begins later is told."""
    tenant = await room.tenant("tt")
    async with room.db.transaction() as conn:
        await conn.execute(
            "INSERT INTO events (public_id, type, tenant_id, owner_kind, owner_id, payload, occurred_at)"
            " VALUES ($1, 'member.joined', $2, 'platform', 'platform', '{}', $3)",
            *(room.ids.new("evt_"), tenant, room.clock.now()),
        )
        making = asyncio.create_task(room.hook(tenant))
        await asyncio.sleep(0.1)
        assert not making.done()
        meanwhile = await asyncio.create_task(_event(room, tenant))
    one = await making
    assert await room.value("SELECT count(*) FROM events WHERE type = 'member.joined'") == 1
    assert await room.told() == {one.url: [meanwhile]}


async def test_an_endpoint_is_not_made_while_it_cannot_be_said_what_is_before(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settled, "_PATIENCE_LOOKS", 3)
    tenant = await room.tenant("tt")
    async with room.db.transaction() as conn:
        await conn.execute("LOCK TABLE events IN ROW EXCLUSIVE MODE")
        with pytest.raises(PostroomError) as refused:
            await asyncio.create_task(room.hook(tenant))
    assert refused.value.code == "unavailable"
    assert await room.value("SELECT count(*) FROM webhook_endpoints") == 0
    await room.hook(tenant)
