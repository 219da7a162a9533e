"""Who of the platform, or of a partner, reads mail by a key is noted before it is shown (security-privacy A2, TB2)."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.accounts import Level
from tests.rest.sender import code
from tests.rest.world import World, simple_mail


async def noted(world: World) -> list[tuple[str, str, str]]:
    async with world.db.acquire() as conn:
        rows = await conn.fetch(
            "SELECT target_type, target_id, details->>'route' AS route, actor_key, request_id, tenant_id"
            " FROM audit_log WHERE action = 'mail.read' ORDER BY id"
        )
    assert all(row["actor_key"] and row["request_id"] and row["tenant_id"] == world.tenant.id for row in rows)
    return [(row["target_type"], row["target_id"], row["route"]) for row in rows]


@pytest.mark.covers("security-privacy:A2", "NFR-SEC-1")
async def test_what_a_platform_key_reads_is_noted(world: World) -> None:
    await world.deliver(simple_mail())
    (message,) = (await world.get(world.at("/messages"))).json()["data"]
    mine, thread = world.box.public_id, message["thread_id"]
    for path in (f"/messages/{message['id']}", f"/messages/{message['id']}/raw", "/threads", f"/threads/{thread}"):
        assert (await world.get(world.at(path))).status_code == 200
    assert await noted(world) == []  # the mailbox's own key
    for path in ("/messages", f"/messages/{message['id']}/raw", f"/threads/{thread}", "/folders"):
        assert (await world.get(world.at(path), world.platform)).status_code == 200
    for path in ("/messages/msg_x", f"/messages/{message['id']}/attachments/att_x"):
        assert (await world.get(world.at(path), world.platform)).status_code == 404
    assert (await world.get(world.at("/wait"), world.platform, timeout=1)).status_code == 200
    root = "GET /v1/identities/{identity_id}"
    assert await noted(world) == [
        ("identity", mine, f"{root}/messages"),
        ("message", message["id"], f"{root}/messages/{{message_id}}/raw"),
        ("thread", thread, f"{root}/threads/{{thread_id}}"),
        ("identity", mine, f"{root}/wait"),
    ]


@pytest.mark.covers("security-privacy:A2")
async def test_what_cannot_be_noted_is_not_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.deliver(simple_mail())

    async def full(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("postroom.servers.http.guard.record", full)
    refused = await world.get(world.at("/messages"), world.platform)
    assert (refused.status_code, code(refused)) == (503, "unavailable")
    assert (await world.get(world.at("/messages"), await world.new_key(Level.TENANT, tenant=world.tenant))).is_success
