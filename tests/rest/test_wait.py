"""The long poll (inbound §21): wakes with the commit, holds no connection, ends in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from postroom.mailbox.models import Direction
from tests.rest.contract import check
from tests.rest.world import World, simple_mail


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  what is waited for tells nobody
            await asyncio.sleep(0.005)


def start(world: World, **params: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(world.get(world.at("/wait"), timeout=60, **params))


async def watched(world: World) -> None:
    """Until the poll is registered, and has read once."""
    await until(lambda: world.ref.mailbox_id in world.hub._watches)
    await until(lambda: world.db.stats()["idle"] == world.db.stats()["size"])


@pytest.mark.covers("FR-IN-11", "decisions:B13")
async def test_wakes_with_the_commit(world: World) -> None:
    waiting = start(world)
    await watched(world)
    assert not waiting.done()
    world.clock.advance(1)
    one = await world.deliver(simple_mail())
    async with asyncio.timeout(10):
        body = (await waiting).json()
    check("WaitResponse", body)
    assert (body["message"]["id"], body["timed_out"], body["verification"]) == (one.message_id, False, None)
    assert world.hub._watches == {}


@pytest.mark.covers("decisions:B16")
async def test_sleepers_hold_no_connection(world: World) -> None:
    """More polls than the pool has connections."""
    waiting = [start(world) for _ in range(25)]
    await until(lambda: len(world.hub._watches.get(world.ref.mailbox_id, ())) == 25)
    await watched(world)
    assert (await world.get(world.at("/messages"))).status_code == 200
    world.clock.advance(1)
    one = await world.deliver(simple_mail())
    async with asyncio.timeout(10):
        answers = [response.json() for response in await asyncio.gather(*waiting)]
    assert {answer["message"]["id"] for answer in answers} == {one.message_id}


async def test_times_out(world: World) -> None:
    await world.deliver(simple_mail())
    body = (await world.get(world.at("/wait"), timeout=1)).json()
    assert body == {"message": None, "verification": None, "timed_out": True}
    assert world.hub._watches == {}


async def test_since_finds_what_is_there(world: World) -> None:
    first = await world.deliver(simple_mail("One", "1"))
    second = await world.deliver(simple_mail("Two", "2"))
    for since, expected in (("2029-12-31T23:59:59Z", first), ("2030-01-01T00:00:00Z", second)):
        body = (await world.get(world.at("/wait"), since=since)).json()
        assert body["message"]["id"] == expected.message_id


@pytest.mark.covers("edge:C9")
async def test_filters(world: World) -> None:
    """Only what fits all filters ends the wait; a stranger who joined the thread is no reply."""
    ours = await world.deliver(
        simple_mail("Question", "?", Message_ID="<q@agents.example>", To="Bo <bo@example.com>"),
        direction=Direction.OUTBOUND,
    )
    waits = {
        "address": start(world, **{"from": "BO@example.com"}),
        "domain": start(world, **{"from": "@example.net"}),
        "subject": start(world, subject_contains="pRiZe"),
        "thread": start(world, thread_id=ours.thread_id),
        "reply": start(world, kind="reply"),
    }
    await until(lambda: len(world.hub._watches.get(world.ref.mailbox_id, ())) == len(waits))
    await watched(world)
    world.clock.advance(1)
    stranger = await world.deliver(
        simple_mail("Re: Question", "mine", In_Reply_To="<q@agents.example>", From="Eve <eve@evil.example>")
    )
    prize = await world.deliver(simple_mail("Your Prize", "!", From="x@example.net"))
    reply = await world.deliver(
        simple_mail("Re: Question", "yes", In_Reply_To="<q@agents.example>", From="Bo <bo@example.com>")
    )
    async with asyncio.timeout(20):
        found = {name: (await task).json()["message"]["id"] for name, task in waits.items()}
    assert stranger.thread_id == ours.thread_id
    assert found == {
        "address": reply.message_id,
        "domain": prize.message_id,
        "subject": prize.message_id,
        "thread": stranger.message_id,
        "reply": reply.message_id,
    }


@pytest.mark.covers("edge:E4")
async def test_a_code_is_not_handed_over_unauthenticated(world: World) -> None:
    response = await world.get(world.at("/wait"), kind="verification")
    assert response.status_code == 400
    assert response.json()["error"]["details"]["errors"][0]["path"] == "from"
    await world.deliver(simple_mail("Your code", "Your code is 123456"))
    body = (
        await world.get(
            world.at("/wait"),
            kind="verification",
            since="2029-01-01T00:00:00Z",
            **{"from": "@example.com", "timeout": "1"},
        )
    ).json()
    assert body["verification"] is None


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"timeout": "0"}, "timeout"),
        ({"timeout": "61"}, "timeout"),
        ({"from": "nobody"}, "from"),
        ({"from": "a b@example.com"}, "from"),
        ({"from": "a@example.com\x00"}, "from"),
        ({"kind": "some"}, "kind"),
        ({"since": "now"}, "since"),
        ({"thread_id": "x"}, "thread_id"),
        ({"subject_contains": "x" * 201}, "subject_contains"),
    ],
)
async def test_wrong_parameters(world: World, params: dict[str, str], path: str) -> None:
    response = await world.get(world.at("/wait"), **params)
    assert response.status_code == 400
    assert response.json()["error"]["details"]["errors"][0]["path"] == path


async def test_stopping_ends_the_wait(world: World) -> None:
    waiting = start(world)
    await watched(world)
    world.app.services.stopping.set()
    async with asyncio.timeout(10):
        body = (await waiting).json()
    assert body["timed_out"] is True


async def test_a_gap_in_the_hints_makes_everybody_look(world: World) -> None:
    waiting = start(world)
    await watched(world)
    world.clock.advance(1)
    # Hints get lost.
    silenced, world.hub.changed = world.hub.changed, lambda mailbox_id, modseq: None  # type: ignore[method-assign]
    one = await world.deliver(simple_mail())
    world.hub.changed = silenced  # type: ignore[method-assign] # hints get lost
    world.hub.wake_all()
    async with asyncio.timeout(10):
        assert (await waiting).json()["message"]["id"] == one.message_id
