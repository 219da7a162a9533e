"""After a message was accepted: its thread's lock, cancel, resolve (outbound §7, §16, §17)."""

from __future__ import annotations

import pytest

from postroom.mailbox.models import Direction
from postroom.outbound import claiming
from postroom.outbound.models import Status
from postroom.outbound.outcomes import Outcomes, Report, Result
from postroom.outbound.rules import Decided
from tests.rest.contract import check
from tests.rest.sender import ANNA, BODY, Sender, code, letter, make_sender
from tests.rest.world import World


@pytest.fixture
async def sender(world: World) -> Sender:
    return await make_sender(world)


# -- a thread's lock


@pytest.mark.covers("edge:C4", "FR-OUT-9")
async def test_the_lock_stays_while_the_message_waits(sender: Sender) -> None:
    received = await sender.receive()
    sent = (await sender.post(received, "reply")).json()["id"]
    (row,) = await sender.rows("SELECT lock_owner, lock_until - $1 AS left FROM threads", sender.world.clock.now())
    assert (row["lock_owner"], row["left"].total_seconds()) == (sent, 120)
    new = await sender.send(key="2")
    assert new.status_code == 202
    (count,) = await sender.rows("SELECT count(*) FROM threads WHERE lock_owner IS NOT NULL")
    assert count[0] == 1


@pytest.mark.covers("edge:C4")
async def test_what_is_suppressed_holds_no_lock(world: World) -> None:
    sender = await make_sender(world, send_policy={})
    thread = (await sender.get(await sender.receive()))["thread_id"]
    sent = await sender.send({**BODY, "thread_id": thread})
    assert sent.json()["status"] == "suppressed"
    assert (await sender.traces())["locks"] == 0


# -- afterwards


@pytest.mark.covers("FR-OUT-11")
async def test_cancel(sender: Sender) -> None:
    received = await sender.receive()
    sent = (await sender.post(received, "reply")).json()
    response = await sender.world.post(sender.at(sent["id"], "cancel"), key="c")
    assert response.status_code == 200, response.text
    check("Message", response.json())
    assert (response.json()["status"], response.json()["deliveries"][0]["status"]) == ("canceled", "queued")
    assert await sender.events("message.canceled") == [{"message_id": sent["id"]}]
    (noted,) = await sender.rows("SELECT target_id, actor_key FROM audit_log WHERE action = 'message.cancel'")
    assert (noted["target_id"], noted["actor_key"] is None) == (sent["id"], False)
    assert (await sender.traces())["locks"] == 0
    assert (await sender.traces())["wires"] == 0
    (row,) = await sender.rows("SELECT next_attempt_at, claim_token FROM deliveries")
    assert (row["next_attempt_at"], row["claim_token"]) == (None, None)
    (change,) = await sender.rows("SELECT message FROM changes WHERE kind = 'delivery'")
    assert change["message"] == sent["id"]
    again = await sender.world.post(sender.at(sent["id"], "cancel"), key="c")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    assert again.json() == response.json()
    refused = await sender.world.post(sender.at(sent["id"], "cancel"), key="d")
    assert (refused.status_code, code(refused)) == (409, "not_cancelable")
    for other in (received, await sender.wrote(letter(Message_ID="<w@example.com>"))):
        assert code(await sender.world.post(sender.at(other, "cancel"))) == "not_cancelable"
    assert code(await sender.world.post(sender.at("msg_" + "0" * 26, "cancel"))) == "message_not_found"
    assert len(await sender.events("message.canceled")) == 1


@pytest.mark.covers("FR-OUT-11", "edge:E7")
@pytest.mark.parametrize(
    "state",
    [
        "claim_token = gen_random_uuid(), lease_until = '2031-01-01'",
        "data_started_at = '2030-01-01'",
        "status = 'delivered'",
        "status = 'uncertain'",
        "status = 'deferred'",
    ],
)
async def test_what_may_have_left_is_not_canceled(sender: Sender, state: str) -> None:
    sent = (await sender.send({**BODY, "cc": ["bo@example.com"]})).json()["id"]
    await sender.execute(f"UPDATE deliveries SET {state} WHERE recipient = $1", ANNA)
    refused = await sender.world.post(sender.at(sent, "cancel"))
    assert (refused.status_code, code(refused)) == (409, "not_cancelable")
    assert (await sender.get(sent))["status"] == "queued"


async def test_a_claim_that_lapsed_is_canceled(sender: Sender) -> None:
    sent = (await sender.send()).json()["id"]
    await sender.execute("UPDATE deliveries SET claim_token = gen_random_uuid(), lease_until = '2029-01-01'")
    assert (await sender.world.post(sender.at(sent, "cancel"))).status_code == 200


async def _uncertain(sender: Sender) -> str:
    sent: str = (await sender.send({**BODY, "cc": ["bo@example.com"]})).json()["id"]
    await sender.execute(
        "UPDATE deliveries SET status = CASE WHEN recipient = $1 THEN 'uncertain' ELSE 'delivered' END, "
        "next_attempt_at = NULL",
        ANNA,
    )
    await sender.execute("UPDATE messages SET status = 'uncertain'")
    return sent


@pytest.mark.covers("FR-DLV-7", "FR-OUT-2")
async def test_resolved_as_sent(sender: Sender) -> None:
    sent = await _uncertain(sender)
    response = await sender.world.post(sender.at(sent, "resolve"), {"outcome": "sent"}, key="r")
    assert response.status_code == 200, response.text
    check("Message", response.json())
    assert response.json()["status"] == "submitted"
    assert [one["status"] for one in response.json()["deliveries"]] == ["submitted", "delivered"]
    (event,) = await sender.events("message.sent")
    assert (event["message"]["id"], event["message"]["status"]) == (sent, "submitted")
    assert (event["provider"], event["provider_message_id"], event["sent_via_fallback"]) == ("direct", None, False)
    assert [row["next_attempt_at"] for row in await sender.rows("SELECT next_attempt_at FROM deliveries")] == [None] * 2
    again = await sender.world.post(sender.at(sent, "resolve"), {"outcome": "sent"}, key="r")
    assert again.headers["idempotent-replayed"] == "true"
    other = await sender.world.post(sender.at(sent, "resolve"), {"outcome": "not_sent"}, key="r")
    assert code(other) == "idempotency_conflict"
    refused = await sender.world.post(sender.at(sent, "resolve"), {"outcome": "not_sent"})
    assert (refused.status_code, code(refused)) == (409, "not_uncertain")


@pytest.mark.covers("FR-DLV-7")
async def test_resolved_as_not_sent(sender: Sender) -> None:
    sent = await _uncertain(sender)
    response = await sender.world.post(sender.at(sent, "resolve"), {"outcome": "not_sent"})
    assert (response.status_code, response.json()["status"]) == (200, "failed")
    assert [one["status"] for one in response.json()["deliveries"]] == ["failed", "delivered"]
    assert await sender.events("message.failed") == [{"message_id": sent, "reason": "resolved_not_sent"}]
    assert await sender.events("message.sent") == []
    # The key still answers as it did; nothing is sent again.
    replay = await sender.send({**BODY, "cc": ["bo@example.com"]})
    assert (replay.json()["id"], replay.json()["status"], replay.json()["deduplicated"]) == (sent, "queued", True)
    for wrong in ({}, {"outcome": "maybe"}):
        assert code(await sender.world.post(sender.at(sent, "resolve"), wrong)) == "invalid_request"


async def test_a_copy_of_ones_own_says_nothing_of_deliveries(sender: Sender) -> None:
    kept = await sender.wrote(letter(Message_ID="<w@example.com>"))
    found = await sender.get(kept)
    assert (found["direction"], found["deliveries"]) == (Direction.OUTBOUND.value, [])
    assert code(await sender.world.post(sender.at(kept, "resolve"), {"outcome": "sent"})) == "not_uncertain"


@pytest.mark.covers("edge:K3", "edge:G1")
@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [(Status.FAILED, "message.failed", "local_fault"), (Status.REJECTED, "message.rejected", "provider_validation")],
)
async def test_what_failed_is_sent_anew_with_a_new_key(sender: Sender, status: Status, kind: str, reason: str) -> None:
    sent = (await sender.send()).json()["id"]
    world = sender.world
    async with world.db.acquire() as conn:
        (group,) = await claiming.claim(conn, now=world.clock.now(), room=claiming.Room(10, {}))
    outcomes = Outcomes(
        world.db,
        world.blobs,
        world.clock,
        world.ids,
        random=lambda: 0.5,
        changed=lambda *_: None,
        noticed=lambda: None,
    )
    decided = Decided(status, reason=reason, text="It could not be sent")
    await outcomes.record(Result(group, tuple(Report(one, decided) for one in group.ids), "direct"))
    await outcomes.idle()
    (event,) = await sender.events(kind)
    assert (event["message_id"], event["reason"]) == (sent, reason)
    assert (await sender.get(sent))["status"] == status.value
    # The old key stands for the old message for good, however it ended.
    again = await sender.send()
    assert (again.status_code, again.json()["id"], again.json()["deduplicated"]) == (202, sent, True)
    anew = await sender.send(key="another")
    assert (anew.status_code, anew.json()["status"], anew.json()["deduplicated"]) == (202, "queued", False)
    assert anew.json()["id"] != sent
