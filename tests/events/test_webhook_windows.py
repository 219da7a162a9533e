"""What a replay finds, against a plain reading of the rules, and what it reads for it (events-webhooks-errors §10)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import orjson
import pytest

from postroom.accounts.policy_rules import Stance
from postroom.events.retention import REPLAY
from postroom.events.webhooks.models import AttemptStatus, Endpoint, EndpointScope, Happened
from postroom.events.webhooks.rules import matches
from postroom.events.webhooks.windows import MAX_EVENTS, Asked, ByIds, ByWindow, events_of, statement
from tests.events.hooks import MINUTE, Room

pytestmark = pytest.mark.events_made_up

KINDS: Final = ("message.received", "message.sent", "webhook.disabled", "delivery.updated", "member.joined")


async def found(room: Room, one: Endpoint, asked: Asked) -> list[str]:
    async with room.db.acquire() as conn:
        rows = await events_of(conn, one, asked, room.clock.now(), Stance())
    return [row["public_id"] for row in rows]


@dataclass
class Past:
    """An event that was, with what an endpoint was told of it: the statuses of its attempts, in their order."""

    id: str
    happened: Happened
    kept_days: int
    attempts: list[str]


def expected(one: Endpoint, past: list[Past], asked: ByWindow, now: Any) -> list[str]:
    """As §10 says it."""

    def went(attempts: list[str]) -> bool:
        match asked.status:
            case None:
                return True
            case AttemptStatus.SUCCEEDED:
                return "succeeded" in attempts
            case AttemptStatus.DEAD:
                return "dead" in attempts and "succeeded" not in attempts
            case AttemptStatus.FAILED:
                return bool(attempts) and attempts[-1] == "failed"

    return [
        event.id
        for event in past
        if matches(one, event.happened)
        and asked.since <= event.happened.occurred_at
        and (asked.until is None or event.happened.occurred_at < asked.until)
        and now - event.happened.occurred_at <= timedelta(days=min(30, event.kept_days))
        and went(event.attempts)
    ]


@pytest.mark.covers("edge:J4", "edge:J15", "edge:A15", "FR-WH-3", "SEC-1")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_what_a_replay_finds(room: Room, seed: int) -> None:
    draw = random.Random(seed)
    partner, _ = await room.partner("one")
    others, _ = await room.partner("two")
    tenants: dict[int | None, tuple[int | None, int]] = {None: (None, 30)}
    for name, whose, days in (("aa", partner, 30), ("bb", partner, 3), ("cc", others, 365), ("dd", None, 10)):
        made = await room.tenant(name, whose)
        tenants[made] = (whose, days)
        policy = {"retention": {"events_days": days}}
        await room.value("UPDATE tenants SET policy_json = $2 WHERE id = $1 RETURNING 1", made, policy)
    first = next(key for key in tenants if key is not None)
    boxes: dict[int | None, list[tuple[int, str]]] = {None: []}
    for key in tenants:
        if key is not None:
            boxes[key] = [await room.identity(key), await room.identity(key)]
    boxes[first].append(await room.identity(first, is_system=True))
    system = boxes[first][-1]
    scopes = ((first, None), (None, partner), (None, None))
    endpoints = [await room.hook(*scope) for scope in scopes]
    endpoints += [await room.hook(*scope, events=("message.sent", "webhook.disabled")) for scope in scopes]
    endpoints += [await room.hook(*scope, identity_ids=(boxes[first][0][1],)) for scope in scopes]
    told = draw.sample(endpoints, 3)
    started = room.clock.now()
    past: list[Past] = []
    ways: dict[str, dict[int, list[str]]] = {}
    for _ in range(160):
        room.clock.advance(draw.randint(0, 2 * 40 * 86400 // 160))
        tenant = draw.choice([*tenants, first, first])
        kind = draw.choice(
            ["message.received", "message.sent", "webhook.disabled", "delivery.updated", "member.joined"]
        )
        box = draw.choice([None, *boxes[tenant]])
        of = draw.choice([partner, others]) if tenant is None and kind == "webhook.disabled" else None
        about = draw.choice(endpoints).public_id if kind == "webhook.disabled" else None
        event = await room.event(tenant, kind, identity=None if about else box, partner=of, about=about)
        identity = None if box is None or about else box[1]
        happened = Happened(
            *(kind, tenant, of or tenants[tenant][0], identity, identity == system[1], room.clock.now()),
            about or identity or "platform",
        )
        past.append(Past(event, happened, tenants[tenant][1], []))
        ways[event] = {one.id: await _attempted(room, draw, one, event, tenant) for one in told}
    now = room.clock.now()
    assert now - started > timedelta(days=31), "some are too old"
    seen: set[int] = set()
    for one in endpoints:
        for was in past:
            was.attempts = ways[was.id].get(one.id, [])
        for asked in _windows(draw, started, now):
            wanted = expected(one, past, asked, now)
            assert await found(room, one, asked) == wanted, (one.scope, asked)
            seen.add(len(wanted))
        wanted = expected(one, past, ByWindow(started), now)
        assert await found(room, one, ByIds(tuple(was.id for was in past))) == wanted
    assert len(seen) > 5


async def _attempted(room: Room, draw: random.Random, one: Endpoint, event: str, tenant: int | None) -> list[str]:
    statuses = draw.choices(["failed", "dead", "succeeded"], [3, 2, 2], k=draw.randint(0, 4))
    for number, status in enumerate(statuses, 1):
        await room.value(
            "INSERT INTO webhook_deliveries (public_id, endpoint_id, tenant_id, event_id, event_type, attempt, status,"
            " created_at) VALUES ($1, $2, $3, $4, 'x', $5, $6, $7) RETURNING 1",
            *(room.ids.new("dlv_"), one.id, tenant, event, number, status, room.clock.now() + number * MINUTE),
        )
    return statuses


def _windows(draw: random.Random, started: Any, now: Any) -> Iterator[ByWindow]:
    for status in (None, *AttemptStatus):
        yield ByWindow(started, None, status)
        for _ in range(3):
            since = started + draw.random() * (now - started)
            yield ByWindow(since, draw.choice([None, since + draw.random() * (now - since)]), status)


# -- what it reads


TENANTS: Final = 100
EVENTS: Final = 50_000
EACH: Final = EVENTS // TENANTS


async def read(room: Room, one: Endpoint, asked: Asked) -> dict[str, int]:
    """How many rows the statement read of each table, those that it threw away included, and in how many goes."""
    text, values = statement(one, asked, room.clock.now() - REPLAY)
    async with room.db.acquire() as conn:
        answer = await conn.fetchval("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + text, *values)
    plan = answer[0] if isinstance(answer, list) else orjson.loads(answer)[0]
    rows: dict[str, int] = {}
    left = [plan["Plan"]]
    while left:
        node = left.pop()
        left += node.get("Plans", ())
        table = node.get("Relation Name")
        if table is None:
            table = node.get("Index Name")  # of a bitmap: what it points to is as much or less
        if table is None or node["Node Type"] == "Bitmap Heap Scan":
            continue
        thrown = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        count = round((node["Actual Rows"] + thrown) * node["Actual Loops"])
        rows[table] = rows.get(table, 0) + count
    return rows


def large(rows: dict[str, int]) -> int:
    """Of tables that grow with what happens; the others are a page here, and read as it suits the planner."""
    return sum(count for table, count in rows.items() if table.startswith(("events", "webhook_deliveries")))


async def _many(room: Room) -> tuple[list[int], int]:
    """A month of events of a hundred tenants, one as many as the next, by turns; half of them are one partner's."""
    partner, _ = await room.partner("one")
    tenants = [await room.tenant(f"t{number}", partner if number % 2 else None) for number in range(TENANTS)]
    now = room.clock.now()
    await room.value(
        "WITH made AS (INSERT INTO events (public_id, type, tenant_id, owner_kind, owner_id, payload, occurred_at)"
        " SELECT 'evt_' || lpad(n::text, 26, '0'), 'member.joined', ($1::bigint[])[n % $2 + 1], 'platform', 'p', '{}',"
        " $3::timestamptz - interval '29 days' * (1 - n::float / $4) FROM generate_series(0, $4 - 1) n RETURNING 1)"
        " SELECT count(*) FROM made",
        *(tenants, TENANTS, now, EVENTS),
    )
    return tenants, partner


@pytest.mark.covers("FR-WH-3", "edge:J4")
@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "with statistics"])
async def test_a_window_costs_what_is_in_it(room: Room, analyzed: bool) -> None:
    """However many events others have, or it has beside: no time is measured, rows are counted."""
    tenants, partner = await _many(room)
    endpoints = {
        EndpointScope.TENANT: await room.hook(tenants[7]),
        EndpointScope.PARTNER: await room.hook(None, partner),
        EndpointScope.PLATFORM: await room.hook(),
    }
    now = room.clock.now()
    dead = [f"evt_{number:026d}" for number in range(7, EVENTS, EVENTS // 40)]
    for one in endpoints.values():
        await _told_of(room, one, dead)
    if analyzed:
        await room.value("ANALYZE events, tenants, partner_tenants, webhook_deliveries, identities")
    day = timedelta(days=1)
    windows = {
        "a month": ByWindow(now - 30 * day),
        "the last day": ByWindow(now - day),
        "a day long ago": ByWindow(now - 25 * day, now - 24 * day),
        "nothing": ByWindow(now - 25 * day, now - 25 * day),
        "succeeded": ByWindow(now - 2 * day, now - day, AttemptStatus.SUCCEEDED),
    }
    each = {EndpointScope.TENANT: 1, EndpointScope.PARTNER: TENANTS // 2, EndpointScope.PLATFORM: TENANTS}
    for scope, one in endpoints.items():
        for name, asked in windows.items():
            rows = await read(room, one, asked)
            days = (min(asked.until or now, now) - max(asked.since, now - 29 * day)) / day
            inside = EACH * each[scope] * days / 29
            # Whoever has too many is told so after a thousand, and what is left of one tenant's; attempts are beside.
            most = (1 if asked.status is None else 2) * min(inside, MAX_EVENTS + EACH) + 2 * each[scope]
            assert large(rows) <= most, (scope, name, rows)
            assert rows.get("tenants", 0) <= 2 * each[scope], (scope, name, rows)
        for status in (AttemptStatus.DEAD, AttemptStatus.FAILED):
            rows = await read(room, one, ByWindow(now - 30 * day, None, status))
            assert large(rows) <= 4 * len(dead), (scope, status, rows)
        named = await read(room, one, ByIds(tuple(dead)))
        assert large(named) <= len(dead), (scope, named)


async def _told_of(room: Room, one: Endpoint, dead: list[str]) -> None:
    """Of five thousand events, of which these are dead."""
    await room.value(
        "WITH made AS (INSERT INTO webhook_deliveries"
        " (public_id, endpoint_id, event_id, event_type, attempt, status, created_at)"
        " SELECT 'dlv_' || lpad($1::bigint || '0' || n, 26, '0'), $1, public_id, type, 1,"
        " CASE WHEN public_id = ANY ($2) THEN 'dead' ELSE 'succeeded' END, occurred_at"
        " FROM (SELECT *, row_number() OVER () n FROM events) e WHERE n % 10 = 0 OR public_id = ANY ($2) RETURNING 1)"
        " SELECT count(*) FROM made",
        *(one.id, dead),
    )
