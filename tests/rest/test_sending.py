"""Sending over HTTP: what is accepted, answered, stored and put on the wire (rest-api §4, §5.11; outbound)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx
import pytest

from postroom.accounts import Level, Mode, NewTenant
from postroom.directory import PauseReason
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.sent_copy import ledger_key
from tests.rest.contract import check
from tests.rest.sender import ANNA, BODY, NOTHING, ONE, OWN, Sender, code, details, letter, make_sender, parts
from tests.rest.world import World


@pytest.fixture
async def sender(world: World) -> Sender:
    return await make_sender(world)


# -- one send


@pytest.mark.covers("FR-OUT-1", "edge:C7")
async def test_a_send(sender: Sender) -> None:
    body = {
        "to": [{"address": " Anna@Example.COM ", "name": "Änna"}],
        "cc": ["bo@xn--mnchen-3ya.example", ANNA],
        "bcc": ["cy@münchen.example"],
        "subject": "Grüße",
        "text": "Hi.",
        "html": "<p>Hi.</p>",
        "attachments": parts("a.csv"),
        "labels": ["work", "a:b"],
        "headers": {"X-Ticket": "42", "importance": "high"},
        "metadata": {"task": "7"},
    }
    response = await sender.send(body)
    assert response.status_code == 202, response.text
    assert "idempotent-replayed" not in response.headers
    sent = response.json()
    check("SendResponse", sent)
    assert (sent["deduplicated"], sent["status"], sent["direction"]) == (False, "queued", "outbound")
    assert (sent["kind"], sent["read"], sent["labels"]) == ("transactional", True, ["a:b", "work"])
    assert sent["from"] == {"address": OWN, "name": "Robot"}
    assert sent["to"] == [{"address": ANNA, "name": "Änna"}]
    assert sent["bcc"] == [{"address": "cy@xn--mnchen-3ya.example", "name": ""}]
    assert [(one["address"], one["field"], one["status"]) for one in sent["deliveries"]] == [
        (ANNA, "to", "queued"),
        ("bo@xn--mnchen-3ya.example", "cc", "queued"),
        ("cy@xn--mnchen-3ya.example", "bcc", "queued"),
    ]
    assert (sent["metadata"], sent["extracted_text"].strip()) == ({"task": "7"}, "Hi.")
    assert (sent["text"], sent["html"]) == (None, None)
    ulid = sent["id"].removeprefix("msg_").lower()
    assert sent["rfc_message_id"] == f"{ulid}@agents.example"

    del sent["deduplicated"]
    assert await sender.get(sent["id"]) == sent
    listed = (await sender.world.get(sender.at())).json()["data"]
    in_thread = (await sender.world.get(f"/v1/identities/{sender.box.public_id}/threads/{sent['thread_id']}")).json()
    assert listed == in_thread["messages"] == [sent]

    wire = await sender.wire(sent["id"])
    assert wire["Message-ID"] == f"<{ulid}@agents.example>"
    assert (wire["From"], wire["Subject"]) == (f"Robot <{OWN}>", "Grüße")
    assert (wire["Bcc"], wire["X-Ticket"], wire["Importance"], wire["X-Postroom-Hop"]) == (None, "42", "high", "1")
    assert "cy@" not in str(wire)
    stored = await sender.world.get(sender.at(sent["id"], "raw"))
    assert b"cy@" not in stored.content
    rows = await sender.rows("SELECT recipient, route, domain, next_attempt_at FROM deliveries ORDER BY position")
    assert [row["route"] for row in rows] == ["direct"] * 3
    assert all(row["next_attempt_at"] == sender.world.clock.now() for row in rows)


@pytest.mark.covers("edge:G1", "FR-OUT-1", "FR-BILL-6")
async def test_the_same_key_again(sender: Sender) -> None:
    first = await sender.send(key="task 1")
    reordered = json.dumps(dict(reversed(BODY.items())), indent=2).encode()
    headers = {**sender.world.key, "idempotency-key": "task 1", "content-type": "application/json"}
    # Policy would refuse by now, and does not get a word in.
    await sender.execute("UPDATE identities SET status = 'paused', pause_reason = 'manual'")
    second = await sender.world.client.post(sender.at(), headers=headers, content=reordered)
    assert second.status_code == 202, second.text
    check("SendResponse", second.json())
    assert second.headers["idempotent-replayed"] == "true"
    assert second.json() == {**first.json(), "deduplicated": True}
    third = await sender.send({**BODY, "text": "Good evening."}, key="task 1")
    assert (third.status_code, code(third)) == (409, "idempotency_conflict")
    assert details(third) == {"original_message_id": first.json()["id"]}
    assert await sender.traces() == ONE
    assert code(await sender.send(key="task 2")) == "identity_paused"
    assert await sender.traces() == ONE


@pytest.mark.covers("mail-server:E4")
async def test_a_full_mailbox_keeps_no_copy_and_so_sends_nothing(sender: Sender) -> None:
    await sender.execute("UPDATE mailboxes SET quota_bytes = 1")
    refused = await sender.send(key="task")
    assert (refused.status_code, code(refused)) == (413, "mailbox_full")
    assert await sender.traces() == NOTHING
    await sender.execute("UPDATE mailboxes SET quota_bytes = NULL")
    assert (await sender.send(key="task")).status_code == 202
    assert await sender.traces() == ONE


@pytest.mark.covers("edge:G1")
async def test_a_replay_of_an_erased_message(sender: Sender) -> None:
    first = (await sender.send()).json()
    await sender.execute("UPDATE messages SET status = 'delivered'")
    await sender.execute("DELETE FROM placements")
    await sender.execute("DELETE FROM messages")
    again = await sender.send()
    assert (again.status_code, again.json()) == (202, {**first, "deduplicated": True, "extracted_text": None})
    check("SendResponse", again.json())
    (row,) = await sender.rows("SELECT response FROM send_ledger")
    assert {row["response"][name] for name in ("extracted_text", "text", "html")} == {None}


@pytest.mark.covers("FR-OUT-1")
async def test_keys(sender: Sender) -> None:
    for operation in ("reply", "reply-all", "forward"):
        missing = await sender.post("msg_" + "0" * 26, operation, key=None)
        assert (missing.status_code, code(missing)) == (400, "idempotency_key_required")
    # Before the body is looked at.
    assert code(await sender.send({}, key=None)) == "idempotency_key_required"
    for key in ("", "k" * 256):
        assert code(await sender.send({}, key=key)) == "invalid_idempotency_key"
    headers = httpx.Headers([*sender.world.key.items(), ("idempotency-key", "one"), ("idempotency-key", "two")])
    both = await sender.world.client.post(sender.at(), json=BODY, headers=headers)
    assert code(both) == "invalid_idempotency_key"
    assert (await sender.send(key="k" * 255)).status_code == 202
    assert code(await sender.send({}, key="x")) == "invalid_request"


@pytest.mark.covers("edge:G1")
async def test_a_member_twice_is_refused(sender: Sender) -> None:
    raw = json.dumps(BODY)[:-1] + ', "text": "Other."}'
    headers = {**sender.world.key, "idempotency-key": "k", "content-type": "application/json"}
    for padding in ("", " " * 40_000):
        response = await sender.world.client.post(sender.at(), headers=headers, content=raw + padding)
        assert (response.status_code, code(response)) == (400, "invalid_request")
    assert await sender.traces() == NOTHING


@pytest.mark.covers("FR-OUT-1")
async def test_the_rate(sender: Sender) -> None:
    other = await make_sender(sender.world, "robot2")
    for _ in range(120):
        response = await sender.send({}, key="same")
        assert response.status_code == 400
    refused = await sender.send(key="same")
    assert (refused.status_code, code(refused), details(refused)["bucket"]) == (429, "rate_limited", "send")
    assert refused.headers["ratelimit-limit"] == "120"
    assert int(refused.headers["retry-after"]) > 0
    assert (await other.send()).status_code == 202
    assert (await sender.world.get(sender.at())).status_code == 200


async def test_who_may(sender: Sender) -> None:
    reader = await sender.world.new_key(Level.IDENTITY, ["messages:read"], identity=sender.box)
    writer = await sender.world.new_key(Level.IDENTITY, ["messages:send", "messages:read"], identity=sender.box)
    refused = await sender.world.post(sender.at(), BODY, reader, key="k")
    assert (refused.status_code, code(refused)) == (403, "permission_denied")
    elsewhere = await sender.world.post(sender.at(), BODY, sender.world.other_key, key="k")
    assert (elsewhere.status_code, code(elsewhere)) == (404, "identity_not_found")
    assert (await sender.world.post(sender.at(), BODY, writer, key="k")).status_code == 202
    sent = (await sender.world.post(sender.at(), BODY, writer, key="k")).json()["id"]
    assert code(await sender.world.post(sender.at(sent, "resolve"), {"outcome": "sent"}, writer)) == "permission_denied"
    assert (await sender.world.post(sender.at(sent, "cancel"), None, writer)).status_code == 200


# -- refusals


@pytest.mark.covers("FR-OUT-3")
@pytest.mark.parametrize(
    ("change", "expected", "path"),
    [
        ({"to": ["nobody"]}, "address_invalid", "to.0"),
        ({"cc": ["a@-b.example"]}, "address_invalid", "cc.0"),
        ({"bcc": ["ü@example.com"]}, "address_unsupported", "bcc.0"),
        ({"to": []}, "invalid_request", "to"),
        ({"to": None}, "invalid_request", "to"),
        ({"to": [{"address": ANNA, "name": "A\nB"}]}, "invalid_request", "to"),
        ({"to": [{"address": ANNA, "name": "n" * 79}]}, "invalid_request", "to.0.name"),
        ({"to": [f"a{n}@example.com" for n in range(11)]}, "too_many_recipients", None),
        ({"kind": "marketing"}, "marketing_requirements_missing", None),
        (
            {
                "kind": "marketing",
                "unsubscribe": {"url": "https://example.com/u"},
                "consent": {"basis": "opt-in", "recorded_at": "2026-01-01T00:00:00Z"},
            },
            "transport_unavailable",
            None,
        ),
        ({"kind": "auto_reply"}, "auto_reply_not_allowed", None),
        ({"headers": {"Subject": "x"}}, "header_not_allowed", "headers.Subject"),
        ({"headers": {"X-Postroom-Hop": "1"}}, "header_not_allowed", "headers.X-Postroom-Hop"),
        ({"headers": {"X-A": "1", "x-a": "2"}}, "invalid_request", "headers.x-a"),
        ({"headers": {"X-A": "1\r\nBcc: eve@example.com"}}, "invalid_request", "headers.X-A"),
        ({"headers": {"Importance": "urgent"}}, "invalid_request", "headers.Importance"),
        ({"text": None}, "invalid_request", ""),
        ({"subject": "a\nb"}, "invalid_request", "subject"),
        ({"subject": "s" * 999}, "invalid_request", "subject"),
        ({"text": "a\x00b"}, "invalid_request", "text"),
        ({"labels": ["No"]}, "invalid_request", "labels.0"),
        ({"metadata": {"a": "v" * 513}}, "invalid_request", "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "invalid_request", "metadata"),
        ({"attachments": parts(*"a" * 33)}, "invalid_request", "attachments"),
        ({"attachments": parts("ü" * 128)}, "invalid_request", "attachments.0.filename"),
        (
            {"attachments": [{"filename": "a", "content_type": "text/plain", "content_base64": "=abc"}]},
            "invalid_request",
            "attachments.0.content_base64",
        ),
        (
            {"attachments": [{"filename": "a", "content_type": "text", "content_base64": ""}]},
            "invalid_request",
            "attachments.0.content_type",
        ),
        (
            {"attachments": [{**parts("a")[0], "disposition": "inline"}]},
            "invalid_request",
            "attachments.0.content_id",
        ),
        ({"from_address": "other@agents.example"}, "invalid_request", "from_address"),
        ({"from_address": "x"}, "invalid_request", "from_address"),
        ({"thread_id": "thr_01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "thread_not_found", None),
    ],
)
async def test_refusals(sender: Sender, change: dict[str, Any], expected: str, path: str | None) -> None:
    body = {**BODY, **change}
    refused = await sender.send(body)
    assert code(refused) == expected, refused.text
    if path is not None:
        assert details(refused)["errors"][0]["path"].startswith(path), refused.text
    assert await sender.traces() == NOTHING
    assert code(await sender.send(body, key=None, dry_run=True)) == expected
    # Nothing was recorded: the key serves the corrected request.
    assert (await sender.send()).status_code == 202


@pytest.mark.covers("FR-OUT-1", "edge:G1")
async def test_what_restores_the_ledger_lies_beside_the_sent_copy(sender: Sender) -> None:
    """After a restore of the database to a time before, the key of what was sent since is known from there."""
    blobs, sent = sender.world.blobs, (await sender.send(BODY, key="order-17:confirm")).json()
    (row,) = await sender.rows("SELECT * FROM send_ledger")
    (copy,) = await sender.rows("SELECT blob_key FROM messages WHERE public_id = $1", sent["id"])
    (key,) = [key for key in await blobs.list("t") if key.endswith(".json")]
    assert key == ledger_key(copy["blob_key"])
    raw = await blobs.get(key)
    assert json.loads(raw) == {
        "tenant": sender.world.tenant.public_id,
        "identity": sender.box.public_id,
        "message": sent["id"],
        "idem_key_sha256": hashlib.sha256(b"order-17:confirm").hexdigest(),
        "fingerprint": row["fingerprint"],
        "operation": "send",
    }
    assert b"order-17" not in raw, "the key itself is kept nowhere"


async def test_it_goes_with_the_message(sender: Sender) -> None:
    sent = (await sender.send(BODY, key="k")).json()
    assert (await sender.world.post(sender.at(sent["id"], "cancel"), key="c")).status_code == 200
    assert (await sender.traces())["beside"] == 1
    world = sender.world
    ref = MailboxRef(sender.box.tenant_id, sender.box.id)
    (place,) = await sender.rows("SELECT folder_id, uid FROM placements")
    await sender.execute("UPDATE placements SET flags = flags || '{$deleted}'")
    await sender.execute("UPDATE folders SET deleted_count = 1 WHERE id = $1", place["folder_id"])
    assert await world.mailboxes.expunge(ref, place["folder_id"]) == [place["uid"]]
    assert await world.blobs.list("t") == []


@pytest.mark.covers("edge:G5", "FR-OUT-10")
async def test_too_large(sender: Sender) -> None:
    limit = 5 * 1024 * 1024 - 8192
    refused = await sender.send({**BODY, "attachments": parts("a.csv", size=3_900_000)})
    assert (refused.status_code, code(refused)) == (413, "message_too_large")
    assert details(refused) == {"limit": limit}
    assert await sender.traces() == NOTHING
    fits = await sender.send({**BODY, "attachments": parts("a.csv", size=3_800_000)})
    assert fits.status_code == 202, fits.text
    assert fits.json()["attachments"][0]["size"] == 3_800_000
    (row,) = await sender.rows("SELECT wire_size FROM outbound_messages")
    assert row["wire_size"] <= limit
    over = await sender.send({**BODY, "attachments": parts("a.csv", size=5_600_000)}, key="other")
    assert (over.status_code, code(over)) == (413, "payload_too_large")


@pytest.mark.covers("FR-IDN-2", "FR-IDN-3", "FR-OUT-3")
async def test_who_sends(world: World, sender: Sender) -> None:
    nobody = await make_sender(world, "orphan", owner_name=None, owner_email=None)
    assert code(await nobody.send()) == "identity_owner_required"
    # Also where there is nothing to be answered: who may not send learns no more.
    assert code(await nobody.post("msg_" + "0" * 26, "reply")) == "identity_owner_required"
    await sender.execute("UPDATE identities SET status = 'paused', pause_reason = 'abuse_threshold'")
    for one in (sender, nobody):
        refused = await one.send()
        assert (refused.status_code, code(refused)) == (409, "identity_paused")
        assert details(refused) == {"reason": PauseReason.ABUSE_THRESHOLD.value}
    await sender.execute("UPDATE tenants SET status = 'suspended' WHERE id = $1", sender.box.tenant_id)
    assert code(await world.post(sender.at(), BODY, world.platform, key="k")) == "tenant_suspended"
    assert await sender.traces() == NOTHING


@pytest.mark.covers("FR-OUT-3")
async def test_a_domain_that_is_not_ready(sender: Sender) -> None:
    await sender.execute("UPDATE domains SET status = 'verifying'")
    refused = await sender.send()
    assert (refused.status_code, code(refused)) == (409, "domain_not_ready")
    assert refused.json()["error"]["retryable"] is True
    for status in ("failing", "suspended", "degraded"):  # decided when it leaves
        await sender.execute("UPDATE domains SET status = $1", status)
        assert (await sender.send(key=status)).status_code == 202


# -- recipients


@pytest.mark.covers("edge:E2", "FR-OUT-13", "FR-OUT-4")
async def test_known_recipients(world: World) -> None:
    sender = await make_sender(world, send_policy={})
    received = await sender.receive(letter(Cc="bo@example.com"))
    await sender.rows("UPDATE messages SET verdict = 'pass' WHERE public_id = $1", received)
    # Receiving makes nobody known.
    first = await sender.send({**BODY, "cc": ["bo@example.com"]}, key="1")
    assert first.status_code == 202
    check("SendResponse", first.json())
    assert first.json()["status"] == "suppressed"
    assert {(one["status"], one["policy"]) for one in first.json()["deliveries"]} == {
        ("suppressed", "unknown_recipient")
    }
    assert await sender.events("message.suppressed") == [
        {"message_id": first.json()["id"], "recipients": [ANNA, "bo@example.com"]}
    ]
    (row,) = await sender.rows("SELECT smtp_response, next_attempt_at FROM deliveries WHERE recipient = $1", ANNA)
    assert (row["smtp_response"], row["next_attempt_at"]) == ("policy: unknown_recipient", None)
    # The one who is answered is known, the others who read along are not.
    answer = await sender.post(received, "reply-all", key="2")
    assert answer.json()["status"] == "queued"
    assert [(one["address"], one["status"]) for one in answer.json()["deliveries"]] == [
        (ANNA, "queued"),
        ("bo@example.com", "suppressed"),
    ]
    # From now on Anna is somebody the mailbox has written to; Bo, to whom nothing went, is not.
    later = await sender.send({**BODY, "cc": ["bo@example.com"]}, key="3")
    assert [one["status"] for one in later.json()["deliveries"]] == ["queued", "suppressed"]
    dry = await sender.send({**BODY, "cc": ["bo@example.com"]}, key=None, dry_run=True)
    assert dry.status_code == 200
    check("DryRunResult", dry.json())
    assert dry.json() == {
        "would_send": True,
        "recipients": [
            {"address": ANNA, "field": "to", "status": "queued"},
            {"address": "bo@example.com", "field": "cc", "status": "suppressed", "reason": "unknown_recipient"},
        ],
    }
    nobody = await sender.send({**BODY, "to": ["bo@example.com"]}, key=None, dry_run=True)
    assert (nobody.status_code, code(nobody)) == (422, "all_recipients_suppressed")


async def test_a_dry_run_leaves_nothing(sender: Sender) -> None:
    received = await sender.receive()
    before = await sender.traces()
    assert (await sender.send(key="k", dry_run=True)).status_code == 200
    for operation in ("reply", "reply-all"):
        assert (await sender.post(received, operation, key=None, dry_run=True)).status_code == 200
    forwarded = await sender.post(received, "forward", {"to": [ANNA]}, key=None, dry_run=True)
    assert forwarded.json() == {
        "would_send": True,
        "recipients": [{"address": ANNA, "field": "to", "status": "queued"}],
    }
    assert await sender.traces() == before == NOTHING


@pytest.mark.covers("edge:L1", "edge:L3", "edge:L4", "FR-OUT-12", "FR-TEN-2")
async def test_a_test_tenant(world: World) -> None:
    tenant = await world.tenants.create(NewTenant(slug="lab", name="Lab", mode=Mode.TEST))
    key = await world.new_key(Level.TENANT, tenant=tenant)
    sender = await make_sender(world, "robot", tenant=tenant)
    mate = await make_sender(world, "mate", tenant=tenant)
    stranger = await make_sender(world, "stranger")

    async def to(address: str, key_: dict[str, str] = key) -> str:
        response = await world.post(sender.at(), {**BODY, "to": [address]}, key_, key=address)
        return "202" if response.status_code == 202 else code(response)

    local, _, domain = mate.box.primary.address.partition("@")
    assert await to("bounce@simulator.invalid") == "202"
    assert await to(mate.box.primary.address) == "202"
    assert await to(f"{local}+tag@{domain}") == "202"
    assert await to(stranger.box.primary.address) == "test_mode_recipient"
    assert await to(ANNA) == "test_mode_recipient"
    assert await to("x@sub.simulator.invalid") == "test_mode_recipient"
    assert await to("bounce@simulator.invalid", world.key) == "identity_not_found"
    rows = await sender.rows("SELECT route FROM deliveries ORDER BY id")
    assert [row["route"] for row in rows] == ["simulator", "local", "local"]


@pytest.mark.covers("FR-TEN-2")
async def test_a_test_tenant_never_takes_a_route_out(world: World) -> None:
    """Even should the directory and the routes disagree."""
    tenant = await world.tenants.create(NewTenant(slug="lab", name="Lab", mode=Mode.TEST))
    key = await world.new_key(Level.TENANT, tenant=tenant)
    sender = await make_sender(world, "robot", tenant=tenant)
    await sender.execute("UPDATE addresses SET address = 'robot@elsewhere.example' WHERE local_part = 'robot.lab'")
    body = {**BODY, "to": ["robot@elsewhere.example"]}
    assert code(await world.post(sender.at(), body, key, key="k")) == "test_mode_recipient"
    assert await sender.traces() == NOTHING
