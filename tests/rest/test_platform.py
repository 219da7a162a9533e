"""How the deployment stands, and its switches, over HTTP and between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from postroom.accounts import Level
from postroom.accounts.alerts import Alerts, Condition, Severity
from postroom.base.clock import ManualClock
from postroom.db import Connection, Database, Listener, Notifier
from postroom.directory.sending_controls import CHANNEL, SendingControls, Switch, Switches
from tests.rest.contract import check
from tests.rest.lobby import RIGHT, open_lobby
from tests.rest.world import World

PATH = "/v1/platform/switches"


async def turn(world: World, name: str, state: str, reason: str = "a test", **more: str) -> Any:
    body = {"name": name, "state": state, "reason": reason}
    return await world.client.request("PUT", PATH, json=body, headers={**world.platform, **more})


async def status(world: World) -> Any:
    answer = await world.get("/v1/platform/status", world.platform)
    assert answer.status_code == 200, answer.text
    check("PlatformStatus", answer.json())
    return answer.json()


@pytest.mark.covers("edge:J33", "cli-config-ops:C8")
async def test_a_switch_is_turned_and_seen(world: World) -> None:
    assert (await status(world))["switches"] == {"read_only": "off", "free_sending": "on", "emergency_prune": "off"}
    for name in Switch:
        done = await turn(world, name.value, "on")
        assert done.status_code == 200, done.text
        check("Switch", done.json())
        assert (done.json()["set_by"], done.json()["reason"]) == ("platform", "a test")
    assert set((await status(world))["switches"].values()) == {"on"}
    async with world.db.acquire() as conn:
        rows = await conn.fetch("SELECT target_id, details, actor_key FROM audit_log WHERE action = 'ops.switch'")
    assert [row["target_id"] for row in rows] == list(Switch)
    assert all(row["actor_key"].startswith("key_") for row in rows)


async def test_once_for_a_key(world: World) -> None:
    one = await turn(world, "read_only", "on", **{"idempotency-key": "k"})
    world.clock.advance(5)
    two = await turn(world, "read_only", "on", **{"idempotency-key": "k"})
    assert two.headers["idempotent-replayed"] == "true"
    assert one.json() == two.json()
    conflict = await turn(world, "read_only", "off", **{"idempotency-key": "k"})
    assert conflict.json()["error"]["code"] == "idempotency_conflict"


@pytest.mark.parametrize("wrong", [{"name": "free_beer"}, {"state": "maybe"}, {"reason": ""}, {"reason": " "}])
async def test_what_is_no_switch(world: World, wrong: dict[str, str]) -> None:
    body = {"name": "read_only", "state": "on", "reason": "a test"} | wrong
    refused = await world.client.request("PUT", PATH, json=body, headers=world.platform)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.covers("edge:J33", "cli-config-ops:C7")
async def test_read_only_refuses_what_changes_something(world: World) -> None:
    identity_key = await world.new_key(Level.IDENTITY, identity=world.box)
    assert (await turn(world, "read_only", "on")).status_code == 200
    for headers in (world.key, identity_key):
        refused = await world.patch(world.at(), {"purpose": "other"}, headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert refused.json()["error"]["details"]["reason"] == "read_only"
        assert refused.headers["retry-after"] == "300"
        assert (await world.get(world.at(), headers)).status_code == 200
    # Who may not anyway is told that, and the platform goes on.
    lacking = await world.new_key(Level.TENANT, ["messages:read"], tenant=world.tenant)
    assert (await world.patch(world.at(), {"purpose": "other"}, lacking)).status_code == 403
    assert (await world.patch(world.at(), {"purpose": "other"}, world.platform)).status_code == 200
    assert (await turn(world, "read_only", "off")).status_code == 200
    assert (await world.patch(world.at(), {"purpose": "more"})).status_code == 200


async def test_people_sign_in_and_out_while_it_is_read_only(world: World) -> None:
    async with open_lobby(world) as lobby:
        await SendingControls(world.db, world.clock, world.ids).switch(Switch.READ_ONLY, on=True, reason="a test")
        token = await lobby.token(RIGHT)
        assert (await lobby.ask("PATCH", "/v1/account", {"display_name": "A"}, token)).status_code == 503
        joining = {"code": "x", "display_name": "Bo", "password": RIGHT}
        assert (await lobby.ask("POST", "/v1/auth/invitation", joining)).status_code == 503
        assert (await lobby.ask("DELETE", "/v1/auth/session", None, token)).status_code == 204


@pytest.mark.covers("cli-config-ops:C8", "NFR-SEC-1")
async def test_the_status_tells_of_no_key(world: World) -> None:
    found = await status(world)
    assert found["master_key"]["slots"] == [
        {"slot": "a", "present": True, "kid": found["master_key"]["slots"][0]["kid"]},
        {"slot": "b", "present": False, "kid": None},
    ]
    assert found["master_key"]["remaining"] == 0
    assert found["capacity"]["tenants"] == 2
    assert found["capacity"]["db_bytes"] > 1_000_000
    await world.deliver(b"Subject: x\r\n\r\n" + b"y" * 5000)
    assert (await status(world))["capacity"] == found["capacity"], "measured once a minute"
    world.clock.advance(61)
    assert (await status(world))["capacity"]["blob_bytes"] >= found["capacity"]["blob_bytes"] + 5000


async def test_a_heartbeat_needs_no_more_than_to_read(world: World) -> None:
    heartbeat = await world.new_key(Level.PLATFORM, ["audit:read"])
    assert (await world.get("/v1/platform/status", heartbeat)).status_code == 200
    assert (await world.client.put(PATH, json={}, headers=heartbeat)).status_code == 403
    assert (await world.get("/v1/platform/status")).status_code == 403


@pytest.mark.covers("edge:J33", "decisions:B13")
async def test_another_node_knows_within_a_second(world: World, database_url: str) -> None:
    """It has read the switch a moment ago and would go by that for half a minute."""
    async with Database(database_url, min_size=1, max_size=3) as other:
        there = Switches(other, ManualClock(world.clock.now()))
        listener, notifier = Listener(other), Notifier(world.db)
        told = asyncio.Event()

        def hinted(*_: object) -> None:
            there.forget()
            told.set()

        listener.add(CHANNEL, hinted)
        await listener.start()
        await notifier.start()
        assert not await there.is_on(Switch.READ_ONLY)
        controls = SendingControls(world.db, world.clock, world.ids, lambda name: notifier.hint(CHANNEL, name))
        await controls.switch(Switch.READ_ONLY, on=True, reason="a test")
        async with asyncio.timeout(10):
            await told.wait()
        assert await there.is_on(Switch.READ_ONLY)
        await notifier.stop()
        await listener.stop()


async def test_a_lost_hint_is_made_up_for(world: World) -> None:
    switches = Switches(world.db, world.clock)
    assert await switches.is_on(Switch.FREE_SENDING)
    await SendingControls(world.db, world.clock, world.ids).switch(Switch.FREE_SENDING, on=False, reason="a test")
    assert await switches.is_on(Switch.FREE_SENDING)
    world.clock.advance(31)
    assert not await switches.is_on(Switch.FREE_SENDING)


@pytest.mark.covers("cli-config-ops:C5")
async def test_alerts_that_fire_are_shown(world: World) -> None:
    async def broken(conn: Connection, now: datetime, most: int) -> Sequence[str]:
        return ("whk_1",)

    assert (await status(world))["firing"] == []
    await Alerts(world.db, world.clock, world.ids, (Condition("webhook_failing", Severity.TICKET, broken),)).run()
    shown = await status(world)
    (one,) = shown["firing"]
    assert (one["alert"], one["severity"]) == ("webhook_failing:whk_1", "ticket")
    assert one["fired_at"].startswith("2030-01-01T00:00:0")
