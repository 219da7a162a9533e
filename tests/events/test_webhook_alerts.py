"""What whoever runs the deployment is told of webhooks, the outbox and work that was given up (§7, §9; C5; J8)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroom.accounts.alerts import Alerts, firing
from postroom.accounts.audit import HOST
from postroom.events.webhooks import alerts as webhook_alerts
from postroom.events.webhooks import backlog as webhook_backlog
from postroom.events.webhooks.endpoints import Changes
from postroom.net.guarded_http import Code, Failure, Response
from postroom.outbound import dead_letters
from postroom.outbound.dead_letters import DeadLetters
from postroom.servers.metrics import Metrics
from tests.events.hooks import PLATFORM, Room
from tests.events.test_metrics import read

pytestmark = pytest.mark.events_made_up

BROKEN = Response(500, 40, b"", complete=True)
CONDITIONS = (*webhook_alerts.CONDITIONS, *dead_letters.CONDITIONS)


async def looked(room: Room, times: int = 1) -> set[str]:
    """What fires after looking so often; names and severities."""
    for _ in range(times):
        await Alerts(room.db, room.clock, room.ids, CONDITIONS).run()
    async with room.db.acquire() as conn:
        return {f"{one.name} {one.severity}" for one in await firing(conn)}


@pytest.mark.covers("FR-WH-3", "cli-config-ops:C5")
async def test_an_endpoint_that_fails_and_is_given_up(room: Room) -> None:
    one, other = await room.hook(), await room.hook()
    failing, disabled = f"webhook_failing:{one.public_id} ticket", f"webhook_disabled:{one.public_id} ticket"
    room.receivers.answers[one.url] = BROKEN
    for _ in range(9):
        await room.event(None)
        await room.told()
        room.clock.advance(3600)
    assert (await room.state(one))["consecutive_failures"] >= 9
    await room.value("UPDATE webhook_endpoints SET consecutive_failures = 9 WHERE id = $1 RETURNING 1", one.id)
    assert await looked(room) == set()
    await room.event(None)
    await room.told()
    assert await looked(room) == {failing}
    room.receivers.answers[one.url] = Response(410, 40, b"", complete=True)
    room.clock.advance(3600)
    await room.event(None)
    await room.told()
    assert not (await room.state(one))["enabled"]
    assert await looked(room, 2) == {disabled}
    await room.endpoints.update(PLATFORM, one.public_id, Changes(frozenset({"enabled"})), by=HOST)
    assert await looked(room, 2) == set()
    # What somebody switches off is no alert, nor is what waits for its test.
    await room.endpoints.update(PLATFORM, one.public_id, Changes(frozenset({"enabled"}), enabled=False), by=HOST)
    new = Changes(frozenset({"url"}), url="https://new.example.com/")
    await room.endpoints.update(PLATFORM, other.public_id, new, by=HOST)
    assert await looked(room) == set()


async def test_a_success_ends_it(room: Room) -> None:
    one = await room.hook()
    await room.value("UPDATE webhook_endpoints SET consecutive_failures = 12 WHERE id = $1 RETURNING 1", one.id)
    assert await looked(room) == {f"webhook_failing:{one.public_id} ticket"}
    await room.event(None)
    await room.told()
    assert await looked(room, 2) == set()


@pytest.mark.covers("security-privacy:A6.3")
async def test_a_secret_that_does_not_open(room: Room) -> None:
    one = await room.hook()
    sealed = await room.value("SELECT secret_enc FROM webhook_secrets WHERE endpoint_id = $1", one.id)
    await room.value("UPDATE webhook_secrets SET secret_enc = 'pm1.x' WHERE endpoint_id = $1 RETURNING 1", one.id)
    await room.event(None)
    await room.told()
    assert await looked(room) == {"webhook_secret_unavailable page"}
    room.clock.advance(50)
    await room.told()
    assert await looked(room, 3) == {"webhook_secret_unavailable page"}, "as long as something waits for it"
    await room.value("UPDATE webhook_secrets SET secret_enc = $2 WHERE endpoint_id = $1 RETURNING 1", one.id, sealed)
    room.clock.advance(600)
    await room.told()
    assert await looked(room, 2) == set()


@pytest.mark.covers("FR-WH-5", "SEC-9")
async def test_many_attempts_that_were_blocked(room: Room) -> None:
    one = await room.hook()
    room.receivers.answers[one.url] = Failure(Code.SSRF_BLOCKED, 0)
    for number in range(21):
        assert await looked(room) == set(), number
        await room.event(None)
        await room.told()
        await room.value("UPDATE webhook_endpoints SET paused_until = NULL, consecutive_failures = 0 RETURNING 1")
        await room.value("DELETE FROM webhook_tasks RETURNING 1")
    assert await looked(room) == {"webhook_ssrf_blocked ticket"}
    room.clock.advance(3600)
    assert await looked(room, 2) == set()


@pytest.mark.covers("FR-WH-1", "NFR-REL-3")
async def test_an_outbox_that_nobody_dispatches(room: Room) -> None:
    await room.event(None)
    room.clock.advance(3600)
    assert await looked(room) == set(), "nobody is to be told"
    await room.hook()
    await room.event(None)
    await room.dispatch()
    await room.event(None)
    room.clock.advance(300)
    assert await looked(room) == set()
    room.clock.advance(1)
    assert await looked(room) == {"outbox_lag page"}
    await room.dispatch()
    assert await looked(room, 2) == set()


@pytest.mark.covers("edge:J8", "FR-OPS-4")
async def test_work_that_was_given_up_a_quarter_of_an_hour_ago(room: Room) -> None:
    letters = DeadLetters(room.db, room.clock, room.ids, lambda: None)
    await room.hook()
    await room.event(None)
    await room.dispatch()
    await room.value("UPDATE webhook_tasks SET parked_at = $1, next_attempt_at = NULL RETURNING 1", room.clock.now())
    await letters.collect()
    room.clock.advance(15 * 60)
    assert await looked(room) == set()
    room.clock.advance(timedelta(seconds=1).total_seconds())
    assert await looked(room) == {"dlq:webhooks page"}
    (item,) = await letters.page()
    await letters.redrive(item.public_id)
    assert await looked(room, 2) == set()


@pytest.mark.covers("cli-config-ops:C3")
async def test_monitoring_has_numbers_and_no_ids(room: Room) -> None:
    one = await room.hook()
    await room.value("UPDATE webhook_endpoints SET consecutive_failures = 12 WHERE id = $1 RETURNING 1", one.id)
    alerts = Alerts(room.db, room.clock, room.ids, CONDITIONS)

    async def look() -> webhook_backlog.Backlog:
        return await webhook_backlog.look(room.db, room.clock.now())

    metrics = Metrics(room.clock, look, firing=alerts.counts)
    assert (await read(metrics))["alert_fired alert=webhook_failing severity=ticket"] == 0
    await alerts.run()
    room.clock.advance(5)
    found = await read(metrics)
    assert found["alert_fired alert=webhook_failing severity=ticket"] == 1
    assert found["alert_fired alert=dlq severity=page"] == 0
