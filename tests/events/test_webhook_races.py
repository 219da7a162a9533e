"""What happens to endpoints and to the worker while outcomes are written (events-webhooks-errors §8, §9; B10)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from postroom.accounts.audit import HOST
from postroom.events.webhooks import claiming
from postroom.events.webhooks.claiming import FIRST_ROOM
from postroom.events.webhooks.delivering import MOST_FOR_ONE
from postroom.events.webhooks.endpoints import Changes
from postroom.events.webhooks.outcomes import Outcomes
from postroom.events.webhooks.windows import ByIds
from postroom.net.guarded_http import Response
from tests.events.hooks import PLATFORM, Room

pytestmark = pytest.mark.events_made_up

GONE: Final = Response(410, 2, b"", complete=True)


def _slowed(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Is set when outcomes are about to be written, their tasks locked; the first then takes a while."""
    real, begun = Outcomes._write_attempts, asyncio.Event()

    async def slow(self: Outcomes, *args: Any) -> Any:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(0.2)
        return await real(self, *args)

    monkeypatch.setattr(Outcomes, "_write_attempts", slow)
    return begun


@pytest.mark.covers("decisions:B10")
async def test_deletes_an_endpoint_that_was_just_told(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await room.hook()
    await room.event(None)
    await room.dispatch()
    begun = _slowed(monkeypatch)
    writing = asyncio.create_task(room.deliverer().run_due())
    await begun.wait()
    await room.endpoints.delete(PLATFORM, one.public_id, by=HOST)
    assert await writing == 1
    assert await room.tasks() == [] == await room.attempts(one)


@pytest.mark.covers("FR-WH-3")
async def test_stops_while_outcomes_are_written(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await room.hook()
    await room.event(None)
    await room.dispatch()
    begun = _slowed(monkeypatch)
    running = asyncio.create_task(room.deliverer().run())
    await begun.wait()
    running.cancel()
    await asyncio.wait([running])
    assert await room.tasks() == []
    room.clock.advance(61)
    await room.deliverer().run_due()
    assert len(room.receivers.requests) == len(await room.attempts(one)) == 1


@pytest.mark.covers("FR-WH-3")
async def test_what_the_url_before_said_is_nothing_about_the_new_one(room: Room) -> None:
    one = await room.hook(url="https://old.example.com/")
    room.receivers.answers[one.url] = GONE
    answering = room.receivers.slow[one.url] = asyncio.Event()
    await room.event(None)
    await room.dispatch()
    running = asyncio.create_task(room.deliverer().run_due())
    await room.receivers.asked.wait()
    changes = Changes(frozenset({"url"}), url="https://new.example.com/")
    await room.endpoints.update(PLATFORM, one.public_id, changes, by=HOST)
    await room.endpoints.test(PLATFORM, one.public_id, by=HOST)
    answering.set()
    await running
    state = await room.state(one)
    assert state["enabled"]
    assert state["consecutive_failures"] == 0


@pytest.mark.covers("edge:J4")
async def test_a_replay_during_the_last_attempt_begins_anew(room: Room) -> None:
    one = await room.hook()
    room.receivers.answers[one.url] = Response(500, 2, b"", complete=True)
    event = await room.event(None)
    await room.dispatch()
    await room.value("UPDATE webhook_tasks SET attempt = 13 RETURNING 1")
    answering = room.receivers.slow[one.url] = asyncio.Event()
    running = asyncio.create_task(room.deliverer().run_due())
    await room.receivers.asked.wait()
    assert await room.replays.replay(PLATFORM, one.public_id, ByIds((event,)), by=HOST) == 1
    answering.set()
    await running
    (attempt,) = await room.attempts(one)
    assert (attempt["attempt"], attempt["status"]) == (13, "failed")
    (task,) = await room.tasks()
    assert (task["attempt"], task["first_attempt"]) == (14, 13)


@pytest.mark.covers("FR-WH-3")
async def test_does_not_pass_over_a_cursor_that_is_gone(room: Room) -> None:
    await room.hook()
    await room.event(None)
    await room.value("DELETE FROM event_dispatch RETURNING 1")
    with pytest.raises(LookupError):
        await room.dispatch()


@pytest.mark.covers("FR-WH-3")
@pytest.mark.parametrize(("took", "most"), [(5, MOST_FOR_ONE), (14_000, FIRST_ROOM)])
async def test_who_answers_slowly_gets_no_more_at_a_time(room: Room, took: int, most: int) -> None:
    one = await room.hook()
    for _ in range(60):
        await room.event(None)
    await room.dispatch()
    waiting: list[asyncio.Event] = []
    seen = 0

    async def post(*_: Any, **__: Any) -> Response:
        nonlocal seen
        answer = asyncio.Event()
        waiting.append(answer)
        seen = max(seen, len(waiting))
        await answer.wait()
        return Response(200, took, b"", complete=False)

    async def asked(count: int) -> None:
        while len(waiting) != count:
            assert len(waiting) < count, "more at a time than it may have"
            await asyncio.sleep(0.002)

    room.receivers.post = post  # type: ignore[method-assign]  # of this one alone
    running = asyncio.create_task(room.deliverer().run())
    left, room_for = 60, FIRST_ROOM
    async with asyncio.timeout(60):
        while left:
            await asked(min(room_for, left))
            # One at a time: so the next place is of an endpoint that was answered once more.
            waiting.pop().set()
            left, room_for = left - 1, min(room_for + 1, most)
        while await room.tasks():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.wait([running])
    assert len(await room.attempts(one)) == 60
    assert seen == most


@pytest.mark.covers("NFR-REL-4", "decisions:B1")
async def test_what_is_being_claimed_at_a_stop_is_given_back(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    await room.hook()
    await room.event(None)
    await room.dispatch()
    claimed = asyncio.Event()
    claim = claiming.claim

    async def slow(*arguments: Any, **more: Any) -> Any:
        taken = await claim(*arguments, **more)
        claimed.set()
        await asyncio.sleep(0.05)  # committed, and not known here yet
        return taken

    monkeypatch.setattr(claiming, "claim", slow)
    running = asyncio.create_task(room.deliverer().run())
    await claimed.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with room.db.acquire() as conn:
        leased = await conn.fetchval("SELECT count(*) FROM webhook_tasks WHERE lease_until IS NOT NULL")
    assert leased == 0, "it was told, or is due again"
