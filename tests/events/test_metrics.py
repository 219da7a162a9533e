"""What monitoring is told of webhooks and the outbox (events-webhooks-errors §15; cli-config-ops C3)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from postroom.accounts.audit import HOST
from postroom.accounts.partners import PartnerStatus
from postroom.db import DatabaseUnavailable
from postroom.events.webhooks import backlog
from postroom.events.webhooks.windows import ByIds
from postroom.net.guarded_http import Code, Failure, Response
from postroom.servers.metrics import CACHE_SECONDS, Metrics
from tests.events.hooks import PLATFORM, Room

pytestmark = pytest.mark.events_made_up

BROKEN = Response(500, 40, b"", complete=True)
ID = re.compile(r"[a-z]{2,4}_[0-9A-HJKMNP-TV-Z]{26}|[^ ]@[^ ]|https?:|example")


def metrics_of(room: Room) -> Metrics:
    return Metrics(room.clock, lambda: backlog.look(room.db, room.clock.now()))


async def read(metrics: Metrics) -> dict[str, float]:
    """Sample and labels → value, as the library's own parser has it."""
    page = (await metrics.page()).decode()
    assert not ID.search(page), "neither ids nor addresses"
    samples = [one for family in text_string_to_metric_families(page) for one in family.samples]
    return {
        " ".join((one.name.removeprefix("postroom_"), *(f"{k}={v}" for k, v in sorted(one.labels.items())))): one.value
        for one in samples
    }


async def run_due(room: Room, metrics: Metrics, **wait: float) -> None:
    room.clock.advance(timedelta(**wait).total_seconds())
    await room.dispatch()
    await room.deliverer(observe=metrics.webhooks).run_due()


@pytest.mark.covers("FR-WH-3", "NFR-REL-3", "NFR-REL-4")
async def test_attempts_by_what_became_of_them(room: Room) -> None:
    metrics = metrics_of(room)
    before = await read(metrics)
    assert before["webhook_attempts_total result=succeeded"] == 0, "there from the start on"
    assert before["webhook_dead_total event_class=inbound"] == 0
    good, bad = await room.hook(url="https://good.example.com/"), await room.hook(url="https://bad.example.com/")
    room.receivers.answers[bad.url] = BROKEN
    await room.event(None)
    await run_due(room, metrics, seconds=2)
    found = await read(metrics)
    assert found["webhook_attempts_total result=succeeded"] == 1
    assert found["webhook_attempts_total result=failed"] == 1
    assert found["webhook_attempts_total result=dead"] == 0
    assert found["webhook_attempt_ms_sum result=failed"] == 40
    assert found["webhook_delivery_latency_ms_count event_class=inbound first_attempt=true"] == 1
    assert found["webhook_delivery_latency_ms_sum event_class=inbound first_attempt=true"] == 2000
    assert found["webhook_first_attempt_ms_count event_class=inbound"] == 2
    assert found["webhook_first_attempt_ms_sum event_class=inbound"] == (2000 - 3) + (2000 - 40)

    # The second attempt of the other one is taken: not within what NFR-REL-3 counts.
    del room.receivers.answers[bad.url]
    await run_due(room, metrics, minutes=1)
    found = await read(metrics)
    assert found["webhook_attempts_total result=succeeded"] == 2
    assert found["webhook_delivery_latency_ms_count event_class=inbound first_attempt=true"] == 1
    assert found["webhook_delivery_latency_ms_count event_class=inbound first_attempt=false"] == 1
    assert found["webhook_first_attempt_ms_count event_class=inbound"] == 2
    assert (await room.state(good))["enabled"]


@pytest.mark.covers("NFR-REL-3")
@pytest.mark.parametrize("is_tried", [True, False], ids=["tried before", "older than the endpoint"])
@pytest.mark.parametrize("is_broken", [True, False], ids=["retried", "at once"])
async def test_latencies_are_not_those_of_replays(room: Room, is_tried: bool, is_broken: bool) -> None:
    metrics = metrics_of(room)
    event = await room.event(None)
    one = await room.hook(url="https://late.example.com/")
    if is_tried:
        event = await room.event(None)
        await run_due(room, metrics, seconds=1)
    before = await read(metrics)
    room.clock.advance(86400)
    assert await room.replays.replay(PLATFORM, one.public_id, ByIds((event,)), by=HOST) == 1
    if is_broken:
        room.receivers.answers[one.url] = BROKEN
        await run_due(room, metrics, seconds=0)
        del room.receivers.answers[one.url]
    await run_due(room, metrics, minutes=1)
    found = await read(metrics)
    changed = {name for name in found if found[name] != before[name]}
    assert found["webhook_attempts_total result=succeeded"] == before["webhook_attempts_total result=succeeded"] + 1
    assert not [name for name in changed if "latency" in name or "first_attempt_ms" in name]


@pytest.mark.covers("edge:J4")
async def test_dead_deliveries(room: Room) -> None:
    metrics = metrics_of(room)
    one = await room.hook(url="https://down.example.com/")
    room.receivers.answers[one.url] = Failure(Code.SSRF_BLOCKED, 0)
    await room.event(None, "identity.created")
    for _ in range(20):
        await run_due(room, metrics, hours=12)
    found = await read(metrics)
    assert found["webhook_dead_total event_class=other"] == 1
    assert found["webhook_dead_total event_class=inbound"] == 0
    assert found["webhook_attempts_total result=dead"] == 1
    assert found["webhook_attempts_total result=failed"] == 12
    assert found["webhook_ssrf_blocked_total"] == 13
    assert found["webhook_disabled_total reason=failing"] == 0, "13 failures are too few"


async def test_endpoints_that_are_switched_off(room: Room) -> None:
    metrics = metrics_of(room)
    one = await room.hook(url="https://gone.example.com/")
    room.receivers.answers[one.url] = Response(410, 2, b"", complete=True)
    await room.event(None)
    await run_due(room, metrics, seconds=0)
    found = await read(metrics)
    assert found["webhook_disabled_total reason=gone"] == 1
    assert found["webhook_disabled_total reason=failing"] == 0


async def test_what_an_attempt_of_another_process_did_is_not_counted(room: Room) -> None:
    """Its lease ran out under way, and somebody else has told."""
    metrics = metrics_of(room)
    one = await room.hook()
    await room.event(None)
    await room.dispatch()
    late = room.deliverer(observe=metrics.webhooks)
    send = room.receivers.post

    async def slow(*values: Any, **more: Any) -> Any:
        room.clock.advance(120)
        await room.deliverer().run_due()
        return await send(*values, **more)

    late._sender._post = slow
    await late.run_due()
    assert len(await room.attempts(one)) == 1
    assert (await read(metrics))["webhook_attempts_total result=succeeded"] == 0


@pytest.mark.covers("edge:J13")
async def test_what_is_still_to_be_done(room: Room) -> None:
    metrics = metrics_of(room)
    await room.event(None)
    room.clock.advance(60)
    found = await read(metrics)
    assert (found["outbox_undispatched"], found["outbox_undispatched_age_ms"]) == (0, 0), "nobody waits"
    await room.dispatch()
    partner, name = await room.partner("p")
    await room.hook(partner=partner, url="https://held.example.com/")
    bad = await room.hook(url="https://bad.example.com/")
    room.receivers.answers[bad.url] = BROKEN
    tenant = await room.tenant("acme", partner)
    await room.event(tenant)
    room.clock.advance(7)
    await room.event(tenant)
    found = await read(metrics)
    assert (found["outbox_undispatched"], found["outbox_undispatched_age_ms"]) == (2, 7000)
    assert found["webhook_tasks state=due"] == 0

    await room.dispatch()
    assert (await read(metrics))["outbox_undispatched"] == 2, "not asked again so soon"
    room.clock.advance(CACHE_SECONDS)
    found = await read(metrics)
    assert (found["outbox_undispatched"], found["webhook_tasks state=due"]) == (0, 4)
    assert found["database_up"] == 1

    await room.stand(name, PartnerStatus.SUSPENDED)
    await room.deliverer(observe=metrics.webhooks).run_due()
    room.clock.advance(CACHE_SECONDS)
    found = await read(metrics)
    assert found["webhook_tasks state=held"] == 2
    assert found["webhook_tasks state=waiting"] == 2
    assert found["webhook_tasks state=due"] == 0
    await room.rows("UPDATE webhook_tasks SET parked_at = now(), next_attempt_at = NULL WHERE held_at IS NULL")
    room.clock.advance(CACHE_SECONDS)
    assert (await read(metrics))["webhook_tasks state=parked"] == 2


async def test_counts_have_an_end(room: Room) -> None:
    await room.hook()
    for _ in range(4):
        await room.event(None)
    assert (await backlog.look(room.db, room.clock.now(), most=3)).undispatched == 3
    await room.dispatch()
    assert (await backlog.look(room.db, room.clock.now(), most=3)).due == 3


async def test_without_its_database_it_counts_all_the_same(room: Room) -> None:
    async def away() -> backlog.Backlog:
        raise DatabaseUnavailable("away")

    found = await read(Metrics(room.clock, away))
    assert found["database_up"] == 0
    assert found["webhook_attempts_total result=failed"] == 0
    assert "outbox_undispatched" not in found, "nothing old is told as if it were so"
