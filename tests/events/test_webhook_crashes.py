"""A worker that is killed at any step loses no event, and tells none twice but what it had just sent (NFR-REL-4)."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.events.hooks import Room
from tests.events.killed_worker import STEPS, Noting

pytestmark = pytest.mark.events_made_up

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.covers("FR-WH-3", "edge:K1", "NFR-REL-4")
@pytest.mark.parametrize("step", STEPS)
async def test_killed(room: Room, database_url: str, tmp_path: Path, step: str) -> None:
    tenant = await room.tenant("tt")
    hooks = [await room.hook(tenant), await room.hook()]
    events = [await room.event(tenant), await room.event(tenant)]
    noted = tmp_path / "received"
    noted.touch()
    child = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.events.killed_worker",
            step,
            database_url,
            room.clock.now().isoformat(),
            str(noted),
        ),
        cwd=ROOT,
    )
    assert await asyncio.wait_for(child.wait(), 60) == -signal.SIGKILL
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
