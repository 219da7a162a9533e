"""Attempts, retries and endpoints that fail, by a moved clock (events-webhooks-errors §8, §9, §12; J4, J13)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

import orjson
import pytest

from postroom.accounts.audit import HOST
from postroom.accounts.partners import PartnerStatus
from postroom.base.errors import PostroomError
from postroom.db import DatabaseUnavailable
from postroom.events.webhooks import claiming, signing
from postroom.events.webhooks.claiming import Room as Space
from postroom.events.webhooks.endpoints import Changes, NewEndpoint
from postroom.events.webhooks.outcomes import Outcomes
from postroom.events.webhooks.rules import WAITS
from postroom.events.webhooks.store import Owner
from postroom.events.webhooks.windows import ByIds
from postroom.net.guarded_http import Code, Failure, Response
from tests.events.hooks import OK, PLATFORM, Room

pytestmark = pytest.mark.events_made_up

GONE: Final = Response(410, 2, b"", complete=True)
BROKEN: Final = Response(500, 2, b"", complete=True)
SLOW: Final = Failure(Code.TIMEOUT, 15_000)


async def _run(room: Room, hours: float) -> None:
    """Let time go by, from one due moment to the next."""
    end = room.clock.now() + timedelta(hours=hours)
    while True:
        await room.dispatch()
        await room.deliverer().run_due()
        due = await room.value("SELECT min(next_attempt_at) FROM webhook_tasks")
        if due is None or due > end:
            room.clock.set(max(end, room.clock.now()))
            return
        room.clock.set(max(due, room.clock.now() + timedelta(seconds=1)))


@pytest.mark.covers("edge:J4", "FR-WH-3")
async def test_the_whole_schedule(room: Room) -> None:
    one = await room.hook(url="https://down.example.com/")
    room.receivers.answers[one.url] = SLOW
    event = await room.event(None)
    began = room.clock.now()
    await _run(room, 100)
    attempts = await room.attempts(one)
    assert [row["attempt"] for row in attempts] == list(range(1, 14))
    assert [row["status"] for row in attempts] == ["failed"] * 12 + ["dead"]
    waits = [round((b["created_at"] - a["created_at"]).total_seconds()) for a, b in pairwise(attempts)]
    assert waits == list(WAITS)
    assert attempts[-1]["created_at"] - began == timedelta(seconds=sum(WAITS))
    assert attempts[-1]["next_attempt_at"] is None
    assert {row["error"] for row in attempts} == {"timeout"}
    assert room.receivers.taken(one.url) == [event] * 13
    assert {request.body for request in room.receivers.requests} == {
        await room.value("SELECT payload FROM events WHERE public_id = $1", event)
    }
    assert await room.tasks() == []
    assert (await room.state(one))["enabled"]


@pytest.mark.covers("FR-WH-2", "decisions:B3")
async def test_what_is_sent(room: Room) -> None:
    made, secret = await room.endpoints.create(PLATFORM, Owner(), _new("https://hooks.example.com/a?b=c"), by=HOST)
    event = await room.event(None)
    await room.told()
    (request,) = room.receivers.requests
    assert request.url == made.url
    assert orjson.loads(request.body)["id"] == request.event == event
    assert set(request.headers) == {"Content-Type", "webhook-id", "webhook-timestamp", "webhook-signature"}
    assert request.headers["webhook-timestamp"] == str(int(room.clock.now().timestamp()))
    assert _verdict(room, request, secret) is None


@pytest.mark.covers("FR-WH-2", "security-privacy:A6.3")
async def test_two_signatures_while_a_secret_is_rotated(room: Room) -> None:
    made, old = await room.endpoints.create(PLATFORM, Owner(), _new(), by=HOST)
    _, new = await room.endpoints.rotate(PLATFORM, made.public_id, 24, by=HOST)
    await room.event(None)
    await room.told()
    both = room.receivers.requests[-1]
    assert len(both.headers["webhook-signature"].split(" ")) == 2
    assert _verdict(room, both, old) is _verdict(room, both, new) is None
    newest = both.headers["webhook-signature"].split(" ")[0]
    assert newest == signing.signature(
        signing.secret_bytes(new), both.event, int(both.headers["webhook-timestamp"]), both.body
    )
    room.clock.advance(24 * 3600)
    await room.event(None)
    await room.told()
    alone = room.receivers.requests[-1]
    assert _verdict(room, alone, new) is None
    assert _verdict(room, alone, old) is signing.Mismatch.SIGNATURE
    await room.endpoints.rotate(PLATFORM, made.public_id, 0, by=HOST)
    await room.event(None)
    await room.told()
    assert _verdict(room, room.receivers.requests[-1], new) is signing.Mismatch.SIGNATURE


async def test_a_secret_that_does_not_open(room: Room) -> None:
    one = await room.hook()
    await room.value("UPDATE webhook_secrets SET secret_enc = 'pm1.x' WHERE endpoint_id = $1 RETURNING 1", one.id)
    await room.event(None)
    assert await room.told() == {}
    (attempt,) = await room.attempts(one)
    assert (attempt["status"], attempt["error"], attempt["duration_ms"]) == ("failed", "secret_unavailable", None)
    assert (await room.state(one))["consecutive_failures"] == 0


@pytest.mark.covers("FR-WH-2")
async def test_a_previous_secret_that_does_not_open(room: Room) -> None:
    """Whoever has the new one is told, signed with that alone."""
    one = await room.hook()
    _, new = await room.endpoints.rotate(PLATFORM, one.public_id, 24, by=HOST)
    await room.value("UPDATE webhook_secrets SET prev_secret_enc = 'pm1.x' WHERE endpoint_id = $1 RETURNING 1", one.id)
    await room.event(None)
    assert list(await room.told()) == [one.url]
    (request,) = room.receivers.requests
    assert len(request.headers["webhook-signature"].split(" ")) == 1
    assert _verdict(room, request, new) is None


@pytest.mark.covers("FR-WH-3")
async def test_gone_is_disabled_at_once_and_tells_others(room: Room) -> None:
    partner, _ = await room.partner("P")
    tenant = await room.tenant("tt", partner)
    one = await room.hook(tenant, url="https://gone.example.com/")
    sibling, own = await room.hook(tenant), await room.hook(partner=partner, events=("webhook.disabled",))
    platform = await room.hook(events=("webhook.disabled",))
    room.receivers.answers[one.url] = GONE
    event = await room.event(tenant)
    await room.event(tenant)
    await room.told()
    state = await room.state(one)
    assert (state["enabled"], state["disabled_reason"], state["consecutive_failures"]) == (False, "failing", 1)
    # What was under way beside is given up, and may be replayed.
    room.clock.advance(60)
    told = await room.told()
    assert set(told) == {own.url, platform.url}
    assert told[own.url] == told[platform.url]
    assert sibling.url not in told
    (payload,) = {request.body for request in room.receivers.requests if request.url == own.url}
    body = orjson.loads(payload)
    assert body["type"] == "webhook.disabled"
    assert body["data"] == {"webhook_id": one.public_id, "reason": "gone"}
    assert body["tenant_id"] == await room.value("SELECT public_id FROM tenants WHERE id = $1", tenant)
    # Nothing follows, and nothing says that it would.
    attempts = [row for row in await room.attempts(one) if row["event_id"] == event]
    assert [(row["status"], row["error"], row["next_attempt_at"]) for row in attempts] == [("dead", "status_410", None)]
    assert await room.tasks() == []


@pytest.mark.covers("FR-WH-3")
async def test_gone_of_another_url_is_tried_again(room: Room) -> None:
    """The answer of a place that it has left meanwhile says nothing of the new one."""
    one = await room.hook(url="https://gone.example.com/")
    room.receivers.answers[one.url] = GONE
    room.receivers.slow[one.url] = asyncio.Event()
    await room.event(None)
    await room.dispatch()
    running = asyncio.create_task(room.deliverer().run_due())
    async with asyncio.timeout(20):
        while not room.receivers.requests:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        moved = Changes(frozenset({"url"}), url="https://new.example.com/")
        await room.endpoints.update(PLATFORM, one.public_id, moved, by=HOST)
        room.receivers.slow[one.url].set()
        await running
    (attempt,) = await room.attempts(one)
    assert (attempt["status"], attempt["error"]) == ("failed", "status_410")
    assert attempt["next_attempt_at"] is not None
    assert (await room.state(one))["disabled_reason"] == "url_changed"


@pytest.mark.covers("edge:J4")
@pytest.mark.parametrize("is_swept", [False, True], ids=["before a sweep", "after a sweep"])
async def test_a_disabled_endpoint_gets_no_replay(room: Room, is_swept: bool) -> None:
    """Whenever it is asked, and whenever a sweep comes by (§8, 2; §10)."""
    one = await room.hook()
    event = await room.event(None)
    assert await room.told() == {one.url: [event]}
    off, on = (Changes(frozenset({"enabled"}), enabled=enabled) for enabled in (False, True))
    await room.endpoints.update(PLATFORM, one.public_id, off, by=HOST)
    if is_swept:
        await room.upkeep.set_aside()
    with pytest.raises(PostroomError) as refused:
        await room.replays.replay(PLATFORM, one.public_id, ByIds((event,)), by=HOST)
    assert refused.value.code == "invalid_request"
    assert await room.tasks() == []
    if not is_swept:
        await room.upkeep.set_aside()
    assert [row["status"] for row in await room.attempts(one)] == ["succeeded"]
    await room.endpoints.update(PLATFORM, one.public_id, on, by=HOST)
    assert await room.replays.replay(PLATFORM, one.public_id, ByIds((event,)), by=HOST) == 1
    assert await room.told() == {one.url: [event]}


@pytest.mark.covers("FR-WH-3")
async def test_a_hundred_failures_over_a_day_disable(room: Room) -> None:
    one = await room.hook(url="https://down.example.com/")
    room.receivers.answers[one.url] = BROKEN
    statement = "UPDATE webhook_endpoints SET consecutive_failures = $2, failing_since = $3 WHERE id = $1 RETURNING 1"
    began = room.clock.now()
    await room.value(statement, one.id, 120, began)

    async def fail(hours: float) -> bool:
        room.clock.set(began + timedelta(hours=hours))
        await room.event(None)
        await room.told()
        return bool((await room.state(one))["enabled"])

    assert await fail(23.9)
    assert not await fail(24.1)
    assert (await room.state(one))["disabled_reason"] == "failing"
    assert await room.value("SELECT count(*) FROM events WHERE type = 'webhook.disabled'") == 1


async def test_a_success_forgets_failures(room: Room) -> None:
    one = await room.hook(url="https://down.example.com/")
    room.receivers.answers[one.url] = BROKEN
    await room.event(None)
    await _run(room, 1)
    state = await room.state(one)
    assert state["consecutive_failures"] == 5
    assert state["failing_since"] is not None
    room.receivers.answers[one.url] = OK
    await _run(room, 2)
    state = await room.state(one)
    assert (state["consecutive_failures"], state["failing_since"], state["paused_until"]) == (0, None, None)
    assert [row["status"] for row in await room.attempts(one)] == ["failed"] * 5 + ["succeeded"]


async def test_an_event_that_is_gone(room: Room) -> None:
    one = await room.hook()
    event = await room.event(None)
    await room.dispatch()
    await room.value("DELETE FROM events WHERE public_id = $1 RETURNING 1", event)
    assert await room.told() == {}
    (attempt,) = await room.attempts(one)
    assert (attempt["status"], attempt["error"], attempt["event_id"]) == ("dead", "event_unavailable", event)
    assert await room.tasks() == []


@pytest.mark.covers("edge:J13")
async def test_a_suspended_partner_is_told_later_and_loses_nothing(room: Room) -> None:
    partner, public_id = await room.partner("P")
    tenant = await room.tenant("tt", partner)
    hooks = [await room.hook(tenant), await room.hook(partner=partner)]
    platform = await room.hook()
    await room.stand(public_id, PartnerStatus.SUSPENDED)
    events = [await room.event(tenant), await room.event(tenant)]
    assert await room.told() == {platform.url: events}
    assert [await room.attempts(one) for one in hooks] == [[], []]
    assert {row["held_at"] for row in await room.tasks()} == {room.clock.now()}
    room.clock.advance(3600)
    assert await room.upkeep.resume() == 0
    await room.stand(public_id, PartnerStatus.ACTIVE)
    assert await room.upkeep.resume() == 4
    assert await room.told() == {one.url: events for one in hooks}
    assert [[row["attempt"] for row in await room.attempts(one)] for one in hooks] == [[1, 1], [1, 1]]


@pytest.mark.covers("edge:J13")
async def test_what_was_held_too_long_is_dead(room: Room) -> None:
    partner, public_id = await room.partner("P")
    one = await room.hook(partner=partner)
    tenant = await room.tenant("tt", partner)
    await room.stand(public_id, PartnerStatus.SUSPENDED)
    await room.event(tenant)
    await room.told()
    room.clock.advance(30 * 86400 + 1)
    await room.upkeep.resume()
    (attempt,) = await room.attempts(one)
    assert (attempt["status"], attempt["error"]) == ("dead", "event_unavailable")
    assert await room.tasks() == []


@pytest.mark.covers("NFR-REL-4")
async def test_one_that_does_not_answer_delays_nobody(room: Room) -> None:
    """Its attempts last, and hundreds of events wait for it; others are told of theirs meanwhile."""
    dead = [await room.hook(url=f"https://dead{n}.example.com/") for n in range(5)]
    well = await room.hook(url="https://well.example.com/")
    never = asyncio.Event()
    for one in dead:
        room.receivers.slow[one.url] = never
    events = [await room.event(None) for _ in range(300)]
    await room.dispatch()
    worker = room.deliverer()
    running = asyncio.create_task(worker.run())
    for _ in range(1000):
        if len(room.receivers.taken(well.url)) == len(events):
            break
        await asyncio.sleep(0.02)
    assert sorted(room.receivers.taken(well.url)) == sorted(events)
    assert all(len(room.receivers.taken(one.url)) <= claiming.FIRST_ROOM for one in dead)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    # What was under way is given back, not left to a lease.
    left = await room.tasks()
    assert {row["lease_until"] for row in left} == {None}
    assert {row["attempts"] for row in left} == {0}
    assert len(left) == 5 * len(events)


async def test_a_database_that_is_away_ends_no_attempt(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent is written down once it is back; nothing is sent twice for it."""
    one = await room.hook(url="https://slow.example.com/")
    gate = room.receivers.slow[one.url] = asyncio.Event()
    event = await room.event(None)
    await room.dispatch()
    worker = room.deliverer()
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(room.receivers.asked.wait(), 30)
    failures = 3
    claim, write = claiming.claim, Outcomes.write

    async def failing_claim(*args: Any, **more: Any) -> Any:
        if failures:
            raise DatabaseUnavailable("away")
        return await claim(*args, **more)

    async def failing_write(*args: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise DatabaseUnavailable("away")
        return await write(*args)

    monkeypatch.setattr(claiming, "claim", failing_claim)
    monkeypatch.setattr(Outcomes, "write", failing_write)
    worker.wake()
    gate.set()
    for _ in range(1000):
        if await room.attempts(one):
            break
        await asyncio.sleep(0.02)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert room.receivers.taken(one.url) == [event]
    assert [row["status"] for row in await room.attempts(one)] == ["succeeded"]
    assert await room.tasks() == []


async def test_an_endpoint_that_failed_last_has_one_attempt_at_a_time_and_pauses(room: Room) -> None:
    one = await room.hook(url="https://down.example.com/")
    room.receivers.answers[one.url] = BROKEN
    for _ in range(40):
        await room.event(None)
    await room.dispatch()
    await room.deliverer().run_due()
    state = await room.state(one)
    assert state["consecutive_failures"] in range(5, 5 + claiming.FIRST_ROOM)
    assert state["paused_until"] > room.clock.now()
    assert len(room.receivers.requests) == state["consecutive_failures"]
    room.clock.set(state["paused_until"])
    await room.deliverer().run_due()
    assert len(room.receivers.requests) == state["consecutive_failures"] + 1
    room.receivers.answers[one.url] = OK
    room.clock.advance(3600)
    await room.deliverer().run_due()
    assert await room.tasks() == []


async def test_two_workers_take_nothing_twice(room: Room) -> None:
    for _ in range(5):
        await room.hook()
    for _ in range(40):
        await room.event(None)
    await room.dispatch()

    async def take() -> list[int]:
        taken: list[int] = []
        while True:
            async with room.db.acquire() as conn:
                found = await claiming.claim(conn, now=room.clock.now(), room=Space(7, {}))
            if not found.tasks:
                return taken
            taken += [task.id for task, _ in found.tasks]

    taken = [key for keys in await asyncio.gather(*(take() for _ in range(4))) for key in keys]
    assert len(taken) == len(set(taken)) == 200


@pytest.mark.covers("edge:K1")
async def test_a_lost_worker_is_followed_by_another_and_parks_in_the_end(room: Room) -> None:
    """Whoever claims and is killed leaves a lease; a task that kills its workers is left to a person."""
    await room.hook()
    await room.event(None)
    await room.dispatch()
    for attempt in range(claiming.MAX_CLAIMS):
        async with room.db.acquire() as conn:
            found = await claiming.claim(conn, now=room.clock.now(), room=Space(10, {}))
            assert len(found.tasks) == 1, attempt
            again = await claiming.claim(conn, now=room.clock.now(), room=Space(10, {}))
            assert again.tasks == ()
        room.clock.advance(60)
    async with room.db.acquire() as conn:
        assert (await claiming.claim(conn, now=room.clock.now(), room=Space(10, {}))).tasks == ()
    (row,) = await room.tasks()
    assert row["parked_at"] == room.clock.now()
    assert row["next_attempt_at"] is None


async def test_an_outcome_that_comes_too_late_changes_nothing(room: Room) -> None:
    one = await room.hook(url="https://slow.example.com/")
    gate = room.receivers.slow[one.url] = asyncio.Event()
    event = await room.event(None)
    await room.dispatch()
    late = asyncio.create_task(room.deliverer().run_due())
    await asyncio.wait_for(room.receivers.asked.wait(), 30)
    room.clock.advance(61)
    del room.receivers.slow[one.url]
    await room.deliverer().run_due()
    gate.set()
    await late
    assert room.receivers.taken(one.url) == [event, event]
    (attempt,) = await room.attempts(one)
    assert attempt["status"] == "succeeded"


async def test_a_changed_url_gets_nothing_before_its_test(room: Room) -> None:
    one = await room.hook(url="https://old.example.com/")
    await room.event(None)
    await room.dispatch()
    changed = Changes(frozenset({"url"}), url="https://new.example.com/")
    await room.endpoints.update(PLATFORM, one.public_id, changed, by=HOST)
    await room.event(None)
    assert await room.told() == {}
    assert [row["error"] for row in await room.attempts(one)] == ["endpoint_disabled"]


def _new(url: str = "https://hooks.example.com/") -> NewEndpoint:
    return NewEndpoint(url, ("*",))


def _verdict(room: Room, request: Any, secret: str) -> signing.Mismatch | None:
    return signing.verify(
        secret,
        message_id=request.headers["webhook-id"],
        timestamp=request.headers["webhook-timestamp"],
        signatures=request.headers["webhook-signature"],
        body=request.body,
        now=room.clock.now().timestamp(),
    )
