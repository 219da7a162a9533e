"""A worker that is killed at any step loses no event, and tells none twice but what it had just sent (NFR-REL-4)."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from postroom.accounts.audit import HOST
from postroom.accounts.partners import PartnerStatus
from postroom.events.webhooks.windows import ByIds
from postroom.net.guarded_http import Response
from tests.events.hooks import PLATFORM, Room
from tests.events.killed_worker import STEPS, Noting

pytestmark = pytest.mark.events_made_up

ROOT = Path(__file__).resolve().parents[2]


async def killed(*arguments: str) -> None:
    """A process that kills itself where it was told to."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.events.killed_worker", *arguments, cwd=ROOT
    )
    assert await asyncio.wait_for(child.wait(), 60) == -signal.SIGKILL


@pytest.mark.covers("FR-WH-3", "edge:K1", "NFR-REL-4")
@pytest.mark.parametrize("step", STEPS)
async def test_killed(room: Room, database_url: str, tmp_path: Path, step: str) -> None:
    tenant = await room.tenant("tt")
    hooks = [await room.hook(tenant), await room.hook()]
    events = [await room.event(tenant), await room.event(tenant)]
    noted = tmp_path / "received"
    noted.touch()
    await killed(step, database_url, room.clock.now().isoformat(), str(noted))
    before = noted.read_text().splitlines()
    room.receivers = Noting(noted, "")
    room.clock.advance(61)  # leases are over
    await room.dispatch()
    await room.deliverer().run_due()
    received = noted.read_text().splitlines()
    everything = {f"{one.url} {event}" for one in hooks for event in events}
    assert set(received) == everything
    again = len(received) - len(everything)
    # Sent and not written down: sent again, under the same id. What was written down is not.
    assert again == (len(before) if step in ("sent", "written") else 0)
    assert [len(await room.attempts(one)) for one in hooks] == [2, 2]
    assert await room.tasks() == []
    room.clock.advance(86400)
    await room.dispatch()
    await room.deliverer().run_due()
    assert noted.read_text().splitlines() == received


WHEN = pytest.mark.parametrize("when", ["before", "after"])


@pytest.mark.covers("edge:J13", "NFR-REL-4")
@WHEN
@pytest.mark.parametrize("step", ["hold", "resume"])
async def test_killed_while_a_partner_is_suspended(room: Room, database_url: str, step: str, when: str) -> None:
    """All of it or nothing; whoever comes next goes on, and each event is told once."""
    partner, public_id = await room.partner("P")
    tenant = await room.tenant("tt", partner)
    hooks = [await room.hook(tenant), await room.hook(partner=partner)]
    events = [await room.event(tenant), await room.event(tenant)]
    await room.dispatch()
    await room.stand(public_id, PartnerStatus.SUSPENDED)
    if step == "resume":
        await room.upkeep.set_aside()
        await room.stand(public_id, PartnerStatus.ACTIVE)
    await killed(step, when, database_url, room.clock.now().isoformat())
    is_held = (step == "hold") == (when == "after")
    assert [row["held_at"] is not None for row in await room.tasks()] == [is_held] * 4
    if step == "hold":
        assert await room.told() == {}
        await room.stand(public_id, PartnerStatus.ACTIVE)
    await room.upkeep.resume()
    assert await room.told() == {one.url: events for one in hooks}
    assert await room.tasks() == []
    assert await room.told() == {}


@pytest.mark.covers("edge:J4", "NFR-REL-4")
@WHEN
async def test_killed_while_a_replay_is_queued(room: Room, database_url: str, when: str) -> None:
    """Queued and in the audit log, or neither; whoever got no answer asks again, and it is told once more."""
    tenant = await room.tenant("tt")
    one = await room.hook(tenant)
    event = await room.event(tenant)
    assert await room.told() == {one.url: [event]}
    await killed("replay", when, database_url, room.clock.now().isoformat(), one.public_id, event)
    is_done = when == "after"
    assert len(await room.tasks()) == is_done
    assert await room.value("SELECT count(*) FROM audit_log WHERE action = 'webhook.replay'") == is_done
    assert await room.replays.replay(PLATFORM, one.public_id, ByIds((event,)), by=HOST) == 1
    assert await room.told() == {one.url: [event]}
    assert [row["attempt"] for row in await room.attempts(one)] == [1, 2]
    assert await room.tasks() == []


@pytest.mark.covers("FR-WH-3", "NFR-REL-4")
@WHEN
async def test_killed_while_an_endpoint_is_disabled(room: Room, database_url: str, when: str) -> None:
    """No endpoint is off without its event, and no event without the endpoint being off; it is told once."""
    tenant = await room.tenant("tt")
    one, platform = await room.hook(tenant), await room.hook(events=("webhook.disabled",))
    await room.event(tenant)
    await room.dispatch()
    await killed("disable", when, database_url, room.clock.now().isoformat())
    is_done = when == "after"
    told = "SELECT count(*) FROM events WHERE type = 'webhook.disabled'"
    assert (await room.state(one))["enabled"] is not is_done
    assert await room.value(told) == len(await room.attempts(one)) == is_done
    room.receivers.answers[one.url] = Response(410, 2, b"", complete=True)
    room.clock.advance(61)  # leases are over
    await room.told()
    await room.told()
    assert not (await room.state(one))["enabled"]
    assert await room.value(told) == 1
    assert len(room.receivers.taken(platform.url)) == 1
    # Its next attempt was due, and is given up with the endpoint (§8).
    left = [("failed", "status_410"), ("dead", "endpoint_disabled")][: 1 + is_done]
    assert [(row["status"], row["error"]) for row in await room.attempts(one)] == left
