"""Work that was given up: found, listed, begun anew; by several processes and after another way was taken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.db import Database
from postroom.db.claim import Retry
from postroom.mailbox import words
from postroom.outbound import claiming
from postroom.outbound.dead_letters import KINDS, DeadLetters, State
from tests.rest.contract import check
from tests.rest.sender import make_sender
from tests.rest.world import World

PATH = "/v1/platform/dlq"


async def give_up(world: World) -> int:
    """A task of the indexer that fails as often as it may; its key. By the primitive that all work goes through."""
    async with world.db.acquire() as conn:
        key: int = await conn.fetchval(
            "INSERT INTO word_tasks (tenant_id, mailbox_id, first_id, last_id, next_attempt_at, attempts)"
            " VALUES ($1, $2, 1, 1, '2000-01-01Z', 4) RETURNING id",
            *(world.tenant.id, world.box.id),
        )
        now = world.clock.now()
        batch = await words.QUEUE.claim(conn, now=now, limit=100)
        for claim in batch.claims:
            if claim.key == (key,):
                assert await words.QUEUE.retry(conn, claim, now=now, at=now, error="a_test") is Retry.PARKED
    return key


async def listed(world: World, **params: Any) -> list[dict[str, Any]]:
    answer = await world.get(PATH, world.platform, **params)
    assert answer.status_code == 200, answer.text
    check("DlqItemPage", answer.json())
    return list(answer.json()["data"])


async def redrive(world: World, item: str, **headers: str) -> Any:
    return await world.client.post(f"{PATH}/{item}/redrive", headers={**world.platform, **headers})


@pytest.mark.covers("edge:J8", "edge:I5", "FR-OPS-4")
async def test_what_was_given_up_is_begun_anew(world: World) -> None:
    assert await listed(world) == []
    key = await give_up(world)
    (item,) = await listed(world)
    assert (item["queue"], item["kind"], item["tenant_id"]) == ("index", "words", world.tenant.public_id)
    assert (item["redriven_at"], item["redrive_count"]) == (None, 0)
    assert [one["id"] for one in await listed(world)] == [item["id"]], "looking changes nothing"
    world.clock.advance(60)
    done = await redrive(world, item["id"])
    assert done.status_code == 200, done.text
    check("DlqItem", done.json())
    assert done.json()["redrive_count"] == 1
    assert await listed(world) == []
    assert [one["id"] for one in await listed(world, status="redriven")] == [item["id"]]
    async with world.db.acquire() as conn:
        row = await conn.fetchrow("SELECT * FROM word_tasks WHERE id = $1", key)
        assert row is not None
        assert (row["attempts"], row["parked_at"], row["next_attempt_at"]) == (0, None, world.clock.now())
        assert await conn.fetchval("SELECT count(*) FROM audit_log WHERE action = 'dlq.redrive'") == 1
    # Once more changes nothing: it goes on already.
    assert (await redrive(world, item["id"])).json() == done.json()
    # Given up again, it is the same item, and open.
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE word_tasks SET parked_at = $1, next_attempt_at = NULL", world.clock.now())
        await conn.execute("UPDATE word_tasks SET parked_at = parked_at + interval '1 second'")
    (again,) = await listed(world)
    assert (again["id"], again["redrive_count"], again["redriven_at"]) == (item["id"], 1, None)


async def test_once_for_a_key(world: World) -> None:
    await give_up(world)
    (item,) = await listed(world)
    one = await redrive(world, item["id"], **{"idempotency-key": "k"})
    two = await redrive(world, item["id"], **{"idempotency-key": "k"})
    assert two.headers["idempotent-replayed"] == "true"
    assert one.json() == two.json()


async def test_pages_are_oldest_first(world: World) -> None:
    for _ in range(3):
        await give_up(world)
        world.clock.advance(1)
    everything = await listed(world)
    assert [one["first_seen_at"] for one in everything] == sorted(one["first_seen_at"] for one in everything)
    first = await world.get(PATH, world.platform, limit=2)
    cursor = first.json()["next_cursor"]
    second = await world.get(PATH, world.platform, limit=2, cursor=cursor)
    assert [one["id"] for one in first.json()["data"] + second.json()["data"]] == [one["id"] for one in everything]
    assert second.json()["next_cursor"] is None
    other = await world.get(PATH, world.platform, limit=2, cursor=cursor, status="redriven")
    assert other.json()["error"]["code"] == "invalid_request", "a cursor is of its filters"


async def test_filters(world: World) -> None:
    await give_up(world)
    assert len(await listed(world, queue="index", tenant_id=world.tenant.public_id)) == 1
    assert await listed(world, queue="outbound") == []
    assert await listed(world, tenant_id=world.other_tenant.public_id) == []
    missing = await world.get(PATH, world.platform, tenant_id=f"ten_{'0' * 26}")
    assert missing.json()["error"]["code"] == "tenant_not_found"
    assert (await world.get(PATH)).status_code == 403, "the platform's alone"


async def test_what_went_on_by_another_way_or_is_gone(world: World) -> None:
    """`postroom queue retry` needs no item; erased mail leaves none."""
    first, second = await give_up(world), await give_up(world)
    assert len(await listed(world)) == 2
    async with world.db.acquire() as conn:
        await words.QUEUE.unpark(conn, [(first,)], now=world.clock.now())
        await conn.execute("DELETE FROM word_tasks WHERE id = $1", second)
    assert await listed(world) == []
    (redriven,) = await listed(world, status="redriven")
    assert redriven["redrive_count"] == 0


async def test_it_is_kept_for_fourteen_days(world: World) -> None:
    await give_up(world)
    (item,) = await listed(world)
    world.clock.advance(14 * 86400)
    assert await listed(world) == [], "nor is the row taken for a new one"
    assert (await redrive(world, item["id"])).json()["error"]["code"] == "dlq_item_not_found"


@pytest.mark.covers("edge:J8")
async def test_each_kind_of_work(world: World) -> None:
    """Rows of every table that can be given up are found by what the claims of that table write."""
    sender = await make_sender(world)
    assert (await sender.send()).status_code == 202
    now = world.clock.now()
    async with world.db.acquire() as conn:
        delivery = await conn.fetchrow("UPDATE deliveries SET attempts = 100 RETURNING tenant_id, id")
        assert delivery is not None
        # The claim itself gives up what killed its worker so often.
        await conn.execute("UPDATE deliveries SET next_attempt_at = $1", now)
        assert (await claiming.QUEUE.claim(conn, now=now, limit=10)).claims == ()
        await conn.execute(
            "INSERT INTO bounce_tasks (tenant_id, delivery_id, action, message, attempts, parked_at)"
            " VALUES ($1, $2, 'failed', 'msg_x', 30, $3)",
            *(delivery["tenant_id"], delivery["id"], now),
        )
        await conn.execute(
            "INSERT INTO invitations (tenant_id, public_id, email, role, may_own, expires_at, created_at, mail_id,"
            " parked_at) VALUES ($1, $2, 'a@b.example', 'member', false, $3, $3, 'msg_y', $3)",
            *(world.tenant.id, world.ids.new("inv_"), now),
        )
        await conn.execute(
            "WITH e AS (INSERT INTO webhook_endpoints (public_id, url, events, created_at, updated_at)"
            " VALUES ($1, 'https://hooks.example.com/', '{*}', $3, $3) RETURNING id)"
            " INSERT INTO webhook_tasks (endpoint_id, event_key, event_id, event_type, occurred_at, parked_at)"
            " SELECT e.id, 1, $2, 'member.joined', $3, $3 FROM e",
            *(world.ids.new("whk_"), world.ids.new("evt_"), now),
        )
    await give_up(world)
    found = await listed(world)
    assert sorted(one["kind"] for one in found) == sorted(kind.name for kind in KINDS)
    for one in found:
        done = await redrive(world, one["id"])
        assert done.json()["redrive_count"] == 1, (one, done.text)
    async with world.db.acquire() as conn:
        for kind in KINDS:
            table = kind.rows.spec.table
            rows = await conn.fetch(f"SELECT FROM {table} WHERE next_attempt_at = $1 AND parked_at IS NULL", now)
            assert len(rows) >= 1, table


async def test_two_who_look_and_two_who_begin(world: World, database_url: str) -> None:
    """One item for one row, and one beginning, whoever is there at the same time."""
    await give_up(world)
    async with Database(database_url, min_size=1, max_size=4) as other:
        here, there = (DeadLetters(db, world.clock, world.ids, lambda: None) for db in (world.db, other))
        await asyncio.gather(here.collect(), there.collect(), here.collect(), there.collect())
        (item,) = await here.page()
        done = await asyncio.gather(*(one.redrive(item.public_id) for one in (here, there, here, there)))
        assert {one.redrive_count for one in done} == {1}
        assert len(await here.page(state=State.REDRIVEN)) == 1
