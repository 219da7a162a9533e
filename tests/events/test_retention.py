"""How long events are kept, and that whoever is gone is told of nothing (events-webhooks-errors §1; FR-PRV-2, J30)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

import pytest

from postroom.accounts.audit import HOST
from postroom.accounts.partners import PartnerStatus
from postroom.accounts.policy import TenantPolicy
from postroom.accounts.policy_rules import Stance
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.events import retention
from postroom.events.retention import KEPT, Retention
from postroom.events.webhooks.endpoints import end_of_partner
from postroom.events.webhooks.replay import Replays
from postroom.events.webhooks.windows import ByIds, ByWindow
from tests.events.hooks import PLATFORM, Room
from tests.mailbox.letters import Pen, make_boxes, raw_mail

pytestmark = pytest.mark.events_made_up

DAY: Final = 86400


async def says(room: Room, tenant: int, **columns: Any) -> None:
    for name, value in columns.items():
        await room.value(f"UPDATE tenants SET {name} = $2 WHERE id = $1 RETURNING 1", tenant, value)


def days(count: object) -> dict[str, Any]:
    return {"retention": {"events_days": count}}


async def left(room: Room, table: str = "events") -> set[int | None]:
    return {row["tenant_id"] for row in await room.rows(f"SELECT tenant_id FROM {table}")}


@pytest.mark.covers("FR-PRV-2", "edge:I4")
@pytest.mark.parametrize("table", sorted(KEPT))
async def test_each_tenant_keeps_its_own_as_long_as_it_says(room: Room, table: str) -> None:
    short, plain, long, capped, odd = [await room.tenant(f"t{n}") for n in range(5)]
    await says(room, short, policy_json=days(3))
    await says(room, long, policy_json=days(365))
    await says(room, capped, policy_ceilings_json={"retention.events_days": 9}, partner_ceilings_json={})
    # What a newer release may have written counts as not set, and stops nothing.
    await says(room, odd, policy_json=days("for ever"))
    await room.hook()
    for tenant in (short, plain, long, capped, odd, None):
        await room.event(tenant)
    await room.told()
    keeper = Retention(room.db, room.clock, Stance())

    async def after(more: int) -> set[int | None]:
        room.clock.advance(more * DAY + 1)
        await keeper.run()
        return await left(room, table)

    assert await after(2) == {short, plain, long, capped, odd, None}
    assert await after(1) == {plain, long, capped, odd, None}
    assert await after(6) == {plain, long, odd, None}
    assert await after(20) == {plain, long, odd, None}
    assert await after(1) == {long}
    assert await after(334) == {long}
    assert await after(1) == set()


@pytest.mark.covers("FR-PRV-2")
async def test_the_deployment_says_for_who_says_nothing(room: Room) -> None:
    tenant = await room.tenant("tt")
    for owner in (tenant, None):
        await room.event(owner)
    room.clock.advance(6 * DAY)
    assert await Retention(room.db, room.clock, Stance(TenantPolicy(retention_events_days=5))).run() == 1
    assert await left(room) == {None}


@pytest.mark.covers("edge:J30")
async def test_in_an_emergency_nobody_keeps_more_than_a_week(room: Room) -> None:
    short, long = await room.tenant("short"), await room.tenant("long")
    await says(room, short, policy_json=days(3))
    await says(room, long, policy_json=days(365))
    await room.hook()
    keeper = Retention(room.db, room.clock, Stance())
    for tenant in (short, long, None):
        await room.event(tenant)
    await room.told()
    room.clock.advance(4 * DAY)
    assert await keeper.run(is_scarce=True) == 2
    assert await left(room) == await left(room, "webhook_deliveries") == {long, None}
    room.clock.advance(3 * DAY + 1)
    assert await keeper.run() == 0
    assert await keeper.run(is_scarce=True) == 4
    assert await left(room) == await left(room, "webhook_deliveries") == set()


async def test_a_sequence_goes_on_where_it_was(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    keeper = Retention(db, clock, Stance())
    async with db.acquire() as conn:
        for n in range(3):
            clock.advance(60)
            await pen.store(conn, [pen.copy(box, raw_mail(body=f"{n}"))])
    clock.advance(31 * DAY)
    assert await keeper.run() == 3
    assert await keeper.run() == 0
    async with db.acquire() as conn:
        await pen.store(conn, [pen.copy(box, raw_mail(body="later"))])
        assert await conn.fetchval("SELECT max(sequence) FROM events") == 4


async def test_a_long_pass_is_made_in_pieces(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run deletes one piece and goes on where the last stopped; the tenants behind are not forgotten."""
    monkeypatch.setattr(retention, "ROWS", 2)
    monkeypatch.setattr(retention, "TENANTS", 2)
    monkeypatch.setattr(retention, "SECONDS", 0.0)
    tenants = [await room.tenant(f"t{n}") for n in range(5)]
    for tenant in (*tenants, None):
        for _ in range(3):
            await room.event(tenant)
    room.clock.advance(31 * DAY)
    young = await room.event(tenants[0])
    keeper = Retention(room.db, _Ticking(room.clock), Stance())
    done = []
    for _ in range(100):
        done.append(await keeper.run())
        if sum(done) == 18:
            break
    assert max(done) <= 4, "what is nobody's, and a piece of somebody's"
    assert [row["public_id"] for row in await room.rows("SELECT public_id FROM events")] == [young]


class _Ticking(ManualClock):
    """Time is up at the second look of each run."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock.now())
        self._looks = 0

    def monotonic(self) -> float:
        self._looks += 1
        return self._looks / 4


async def test_two_at_once(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ROWS", 7)
    tenants = [await room.tenant(f"t{n}") for n in range(3)]
    for tenant in tenants * 20:
        await room.event(tenant)
    room.clock.advance(31 * DAY)
    keepers = [Retention(room.db, room.clock, Stance()) for _ in range(4)]
    found = await asyncio.gather(*(keeper.run() for keeper in keepers))
    assert sum(found) + await keepers[0].run() == 60
    assert await left(room) == set()


@pytest.mark.parametrize("table", sorted(KEPT))
async def test_old_rows_are_found_by_an_index(room: Room, table: str) -> None:
    """However many there are that stay, of this tenant or of others."""
    await _crowd(room)
    of_tenants = retention._OLD.format(table=table, moment=KEPT[table])
    of_nobody = retention._OLD_WITHOUT_TENANT.format(table=table, moment=KEPT[table])
    now = room.clock.now()
    for statement, values in (
        (of_tenants, ([1, 2], [now, now - timedelta(days=9)], 1000)),
        (of_nobody, (now - timedelta(days=9), 1000)),
    ):
        plan = await plan_of(room, statement, *values)
        assert f"{table}_age" in [node.get("Index Name") for node in plan]
        assert "Seq Scan" not in [node["Node Type"] for node in plan]


async def _crowd(room: Room) -> None:
    one = await room.hook()
    await room.value(
        "WITH made AS (INSERT INTO events (public_id, type, tenant_id, owner_kind, owner_id, payload, occurred_at)"
        " SELECT 'evt_' || lpad(n::text, 26, '0'), 'member.joined', nullif(n % 20, 0), 'platform', 'platform', '{}',"
        " $1::timestamptz - make_interval(secs => n) FROM generate_series(1, 20000) n RETURNING 1)"
        " SELECT count(*) FROM made",
        room.clock.now(),
    )
    await room.value(
        "WITH made AS (INSERT INTO webhook_deliveries (public_id, endpoint_id, tenant_id, event_id, event_type,"
        " attempt, status, created_at)"
        " SELECT 'dlv_' || lpad(n::text, 26, '0'), $2, nullif(n % 20, 0), 'evt_' || n, 'x', 1,"
        " 'succeeded', $1::timestamptz - make_interval(secs => n) FROM generate_series(1, 20000) n RETURNING 1)"
        " SELECT count(*) FROM made",
        *(room.clock.now(), one.id),
    )
    async with room.db.acquire() as conn:
        await conn.execute("ANALYZE events; ANALYZE webhook_deliveries")


async def plan_of(room: Room, statement: str, *values: object) -> list[dict[str, Any]]:
    """The nodes of the plan that is made without knowing the values."""
    async with room.db.transaction() as conn:
        await conn.execute("SET LOCAL plan_cache_mode = 'force_generic_plan'")
        (plan,) = await conn.fetchval("EXPLAIN (FORMAT JSON) " + statement, *values)
    nodes, rest = [], [plan["Plan"]]
    while rest:
        nodes.append(rest.pop())
        rest += nodes[-1].get("Plans", ())
    return nodes


# -- what may be told again


@pytest.mark.covers("edge:J4", "FR-WH-4")
@pytest.mark.parametrize("owner", ["tenant", "partner", "platform"])
async def test_what_is_kept_no_longer_is_not_told_again(room: Room, owner: str) -> None:
    """Nor when it is there still, as nobody came by to delete it."""
    partner, _ = await room.partner("P")
    tenant = await room.tenant("tt", partner)
    other = await room.tenant("other", partner)
    await says(room, tenant, policy_ceilings_json={"retention.events_days": 3})
    await says(room, other, policy_json=days(365))
    one = await {
        "tenant": lambda: room.hook(tenant),
        "partner": lambda: room.hook(partner=partner),
        "platform": lambda: room.hook(),
    }[owner]()
    old, kept = await room.event(tenant), await room.event(other)
    room.clock.advance(2 * DAY)
    new = await room.event(tenant)
    room.clock.advance(2 * DAY)
    replays = Replays(room.db, room.ids, room.clock, stance=Stance())
    window = ByWindow(since=room.clock.now() - timedelta(days=60))
    expected = {new} if owner == "tenant" else {kept, new}
    for asked in (ByIds((old, kept, new)), window):
        assert await replays.replay(PLATFORM, one.public_id, asked, by=HOST) == len(expected)
    assert {row["event_id"] for row in await room.tasks()} == expected
    room.clock.advance(27 * DAY)
    assert await replays.replay(PLATFORM, one.public_id, window, by=HOST) == 0, "never more than thirty days"


async def test_what_is_too_old_makes_no_window_too_wide(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.events.webhooks.replay.MAX_EVENTS", 3)
    tenant, other = await room.tenant("tt"), await room.tenant("other")
    await says(room, tenant, policy_json=days(1))
    one = await room.hook()
    for _ in range(9):
        await room.event(tenant)
    kept = [await room.event(other) for _ in range(3)]
    room.clock.advance(2 * DAY)
    window = ByWindow(since=room.clock.now() - timedelta(days=9))
    assert await room.replays.replay(PLATFORM, one.public_id, window, by=HOST) == 3
    assert [row["event_id"] for row in await room.tasks()] == kept


async def test_what_was_given_up_or_held_goes_with_the_window(room: Room) -> None:
    one = await room.hook()
    await room.event(None)
    await room.dispatch()
    await room.value("UPDATE webhook_tasks SET next_attempt_at = NULL, parked_at = $1 RETURNING 1", room.clock.now())
    room.clock.advance(30 * DAY)
    await room.upkeep.resume()
    assert len(await room.tasks()) == 1
    room.clock.advance(1)
    await room.upkeep.resume()
    assert await room.tasks() == []
    (attempt,) = await room.attempts(one)
    assert (attempt["status"], attempt["error"]) == ("dead", "event_unavailable")


# -- whoever is gone


async def _tables(room: Room) -> list[str]:
    return [
        row["name"]
        for row in await room.rows(
            "SELECT c.relname AS name FROM pg_class c WHERE c.relkind = 'r' AND c.relname LIKE 'webhook\\_%'"
            " AND c.relname <> 'webhook_endpoints' ORDER BY 1"
        )
    ]


@pytest.mark.covers("edge:J12", "security-privacy:B6.5")
@pytest.mark.parametrize("who", ["erasing", "erased", "partner", "partner that made one meanwhile"])
async def test_whoever_is_gone_leaves_no_endpoint(room: Room, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With secrets, with what was tried and what was held: every table that has something of an endpoint."""
    monkeypatch.setattr(retention, "ROWS", 2)
    partner, public_id = await room.partner("P")
    other, _ = await room.partner("Q")
    tenant, theirs = await room.tenant("tt", partner), await room.tenant("theirs", other)
    hooks = [await room.hook(tenant), await room.hook(partner=partner)]
    stays = [await room.hook(theirs), await room.hook(partner=other), await room.hook()]
    for _ in range(3):
        await room.event(tenant)
    await room.told()
    await room.stand(public_id, PartnerStatus.SUSPENDED)
    for _ in range(3):
        await room.event(tenant)
    await room.told()
    gone = hooks[:1] if who.startswith("eras") else hooks[1:]
    for table in await _tables(room):
        assert await _of(room, table, gone), f"{table}: nothing to delete"
    if who.startswith("eras"):
        await room.value("UPDATE tenants SET status = $2 WHERE id = $1 RETURNING 1", tenant, who)
    else:
        await room.value("UPDATE tenants SET status = 'erased' WHERE id = $1 RETURNING 1", tenant)
        ends = (end_of_partner,) if who == "partner" else ()
        room.partners._ended = ends
        await room.partners.delete(public_id)
    # Not told of what happens from now on, though it is still there.
    last = await room.event(tenant)
    assert set(await room.told()) == {stays[2].url}
    if who != "partner":
        await Retention(room.db, room.clock, Stance()).run()
    for table in await _tables(room):
        assert not await _of(room, table, gone), table
    left = {row["id"] for row in await room.rows("SELECT id FROM webhook_endpoints")}
    assert {one.id for one in stays} <= left
    assert not {one.id for one in gone} & left
    # What happened is no endpoint's: it goes when its time is over, or with the erasure.
    assert await room.value("SELECT count(*) FROM events WHERE public_id = $1", last) == 1


async def _of(room: Room, table: str, endpoints: list[Any]) -> int:
    keys = [one.id for one in endpoints]
    return int(await room.value(f"SELECT count(*) FROM {table} WHERE endpoint_id = ANY ($1)", keys))


async def test_every_table_of_an_endpoint_goes_with_it(room: Room) -> None:
    """Also one that is made later: its rows are deleted with the endpoint's, by the database."""
    rows = await room.rows(
        "SELECT c.conrelid::regclass::text AS name FROM pg_constraint c"
        " WHERE c.confrelid = 'webhook_endpoints'::regclass AND c.contype = 'f' AND c.confdeltype = 'c'"
    )
    assert sorted(row["name"] for row in rows) == await _tables(room)
    assert {*retention._HELD, "webhook_secrets"} == set(await _tables(room))
