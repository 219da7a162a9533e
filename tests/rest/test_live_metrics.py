"""What is counted of streams, sockets and long polls: how many there are, what they were told, why they ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx
import pytest
from prometheus_client import CollectorRegistry

from postroom.db import DatabaseUnavailable
from postroom.servers.http import HttpApp, create_http
from postroom.servers.http.listener import HttpLimits, HttpListener
from postroom.servers.http.streams import Timing
from postroom.servers.http.tally import STREAMS, Ended, Kind
from postroom.servers.live_metrics import LiveMetrics
from tests.rest.streaming import connected
from tests.rest.test_event_sockets import closing, frame, socket
from tests.rest.test_event_streams import key_of, node
from tests.rest.test_events import deliver
from tests.rest.world import World, simple_mail

PATIENCE: Final = 10


@dataclass
class Counted:
    """A node that counts into a registry of its own."""

    app: HttpApp
    registry: CollectorRegistry

    def value(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(f"postroom_{name}", labels)
        assert found is not None, "there from the start on"
        return found

    def ends(self) -> dict[str, float]:
        """Streams of lines that ended, by why; those of no reason are left out."""
        reasons = {why.value: self.value("stream_ends_total", kind="sse", reason=why.value) for why in Ended}
        return {why: count for why, count in reasons.items() if count}

    async def until(self, name: str, value: float, **labels: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.value(name, **labels) != value:  # noqa: ASYNC110  a counter wakes nobody
                await asyncio.sleep(0.01)

    def series(self) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        found = [one for family in self.registry.collect() for one in family.samples]
        return {(one.name, tuple(sorted(one.labels.items()))) for one in found}


@asynccontextmanager
async def counting(world: World, *, timing: Timing | None = None, **kept: int) -> AsyncIterator[Counted]:
    registry = CollectorRegistry(auto_describe=False)
    tally = LiveMetrics(registry)
    async with node(world, timing=timing, **kept) as app:
        counted = Counted(create_http(replace(app.services, tally=tally)), registry)
        before = counted.series()
        yield counted
        assert counted.series() == before, "no label has what somebody sent"
        assert {kind: counted.value("live_open", kind=kind.value) for kind in Kind} == dict.fromkeys(Kind, 0)
        labels = {value for _, pairs in before for _, value in pairs}
        assert labels == {*map(str, Kind), *map(str, Ended)}


@pytest.mark.covers("cli-config-ops:C3")
async def test_what_a_stream_is_told(world: World) -> None:
    async with counting(world) as counted:
        async with connected(counted.app, world.key) as stream:
            assert counted.value("live_open", kind="sse") == 1
            first = stream.last_id
            for n in range(3):
                await deliver(world, simple_mail(f"Mail {n}"))
            await stream.events(3)
            await counted.until("stream_events_total", 3, kind="sse")
            assert counted.value("stream_resumes_total", kind="sse") == 0
        assert counted.ends() == {"gone": 1}
        async with connected(counted.app, world.key, last_id=first) as again:
            await again.events(3)
            await counted.until("stream_events_total", 6, kind="sse")
        assert counted.value("stream_resumes_total", kind="sse") == 1
        async with connected(counted.app, world.other_key, last_id=first) as refused:
            assert refused.status == 400
        assert (counted.value("stream_resumes_total", kind="sse"), counted.ends()) == (1, {"gone": 2})
        assert counted.value("stream_events_total", kind="websocket") == 0


@pytest.mark.covers("cli-config-ops:C3")
async def test_sockets(world: World) -> None:
    async with counting(world) as counted:
        services = counted.app.services
        listener = HttpListener(counted.app, ids=world.ids, limits=HttpLimits(), on_drain=services.stopping.set)
        await listener.start("127.0.0.1", 0)
        try:
            async with socket(listener, world.key) as client:
                hello = await frame(client)
                await counted.until("live_open", 1, kind="websocket")
                await deliver(world, simple_mail())
                assert (await frame(client))["type"] == "event"
                await counted.until("stream_events_total", 1, kind="websocket")
            await counted.until("stream_ends_total", 1, kind="websocket", reason="gone")
            async with socket(listener, world.key, f"?last_event_id={hello['id']}&max_seconds=1") as client:
                await frame(client), await frame(client), await frame(client)
                await closing(client)
            await counted.until("stream_ends_total", 1, kind="websocket", reason="done")
            assert counted.value("stream_resumes_total", kind="websocket") == 1
        finally:
            await listener.drain(1)


@pytest.mark.covers("cli-config-ops:C3")
async def test_long_polls(world: World) -> None:
    async with counting(world) as counted:
        transport = httpx.ASGITransport(app=counted.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://api.example", headers=world.key) as client:
            waiting = asyncio.create_task(client.get(world.at("/wait"), params={"timeout": 20}))
            await counted.until("live_open", 1, kind="wait")
            world.clock.advance(1)
            await deliver(world, simple_mail())
            assert (await waiting).json()["timed_out"] is False
    assert counted.value("live_open", kind="wait") == 0


@pytest.mark.covers("cli-config-ops:C3")
async def test_why_a_stream_ended(world: World) -> None:
    """Who asked for so long, whose key was revoked, and who was there when the node stopped."""
    async with counting(world) as counted:
        async with connected(counted.app, world.key, max_seconds="1") as stream:
            assert (await stream.next()).data["code"] == "done"
        made, text = await world.keys.create(None, key_of(world))
        async with connected(counted.app, {"authorization": f"Bearer {text}"}) as stream:
            await world.keys.revoke(None, made.public_id)
            assert (await stream.next()).data["code"] == "key_revoked"
        async with connected(counted.app, world.key) as stream:
            counted.app.services.stopping.set()
            assert (await stream.next()).data["code"] == "stopping"
        assert counted.ends() == {"done": 1, "refused": 1, "stopping": 1}


@pytest.mark.covers("cli-config-ops:C3")
async def test_who_takes_nothing(world: World) -> None:
    async with counting(world, timing=Timing(send=0.1)) as counted:
        async with connected(counted.app, world.key) as stream:
            stream.taking.clear()
            await deliver(world, simple_mail())
            async with asyncio.timeout(PATIENCE):
                await stream.ended.wait()
        assert counted.ends() == {"stalled": 1}
        assert counted.value("stream_events_total", kind="sse") == 0, "it was not taken"


@pytest.mark.covers("cli-config-ops:C3")
async def test_who_lets_too_much_come_together(world: World) -> None:
    async with counting(world, kept_events=2) as counted:
        async with connected(counted.app, world.key) as stream:
            stream.taking.clear()
            for n in range(6):
                await deliver(world, simple_mail(f"Mail {n}"))
            streams = counted.app.services.streams
            assert streams is not None
            async with asyncio.timeout(PATIENCE):
                await streams.feed.caught_up()  # everything was passed, and four of six are not kept
            stream.taking.set()
            while (await stream.next()).kind != "error":
                pass
        assert counted.ends() == {"slow_consumer": 1}


@pytest.mark.covers("cli-config-ops:C3")
@pytest.mark.parametrize(
    ("fault", "why"), [(DatabaseUnavailable("away"), "unavailable"), (RuntimeError("never seen"), "failed")]
)
async def test_what_was_not_the_clients_doing(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: Exception, why: str
) -> None:
    async def broken(*_: Any) -> Any:
        raise fault

    async with counting(world) as counted:
        async with connected(world.app, world.key) as stream:
            first = stream.last_id
        await deliver(world, simple_mail())
        monkeypatch.setattr("postroom.servers.http.streams.reading.after", broken)
        with contextlib.suppress(ConnectionAbortedError):  # how a fault of ours ends an answer that has begun
            async with connected(counted.app, world.key, last_id=first) as again, asyncio.timeout(PATIENCE):
                await again.ended.wait()
        assert counted.ends() == {why: 1}


def test_each_kind_of_stream_has_each_reason_from_the_start_on() -> None:
    registry = CollectorRegistry(auto_describe=False)
    LiveMetrics(registry)
    for kind in STREAMS:
        for why in Ended:
            assert registry.get_sample_value("postroom_stream_ends_total", {"kind": kind, "reason": why}) == 0
