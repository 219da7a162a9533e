"""What a tenant decides of its mail, and what stops it, as callers see it (outbound §4 steps 3a, 14a, §6.2, §6.5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.accounts.policy import DISCLOSURE
from postroom.directory import IdentityKind
from postroom.directory.sending_controls import PauseReason, SendingControls
from tests.rest.sender import BODY, NOTHING, OWN, Sender, code, details, letter, make_sender
from tests.rest.world import World


@pytest.fixture
async def sender(world: World) -> Sender:
    return await make_sender(world)


def controls(sender: Sender) -> SendingControls:
    return SendingControls(sender.world.db, sender.world.clock, sender.world.ids)


async def policy(sender: Sender, **members: Any) -> None:
    await sender.world.tenants.change_policy(sender.box.tenant_id, members)


async def own_domain(sender: Sender, status: str = "healthy", name: str = "acme.example") -> str:
    """Give the identity a primary address on a domain of its tenant; the domain's public id."""
    world = sender.world
    public_id = world.ids.new("dom_")
    (row,) = await sender.rows(
        "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at) "
        "VALUES ($1, $2, $3, 'external', $4, now(), now()) RETURNING id",
        *(public_id, sender.box.tenant_id, name, status),
    )
    await sender.execute("UPDATE addresses SET role = 'alias' WHERE identity_id = $1", sender.box.id)
    await sender.execute(
        "INSERT INTO addresses (tenant_id, public_id, address, local_part, domain_id, identity_id, role, status, "
        "created_at, updated_at) VALUES ($1, $2, $3, 'robot', $4, $5, 'primary', 'active', now(), now())",
        *(sender.box.tenant_id, world.ids.new("adr_"), f"robot@{name}", row["id"], sender.box.id),
    )
    return public_id


# -- pauses


@pytest.mark.covers("edge:G12", "edge:J33", "FR-OUT-3")
@pytest.mark.parametrize("reason", list(PauseReason))
async def test_a_paused_tenant_is_told_why(sender: Sender, reason: PauseReason) -> None:
    await controls(sender).pause_tenant(sender.box.tenant_id, reason)
    received = await sender.receive()
    for response in (
        await sender.send(),
        await sender.send(dry_run="true", key=None),
        await sender.post(received, "reply"),
    ):
        assert (response.status_code, code(response)) == (409, "sending_paused")
        assert details(response) == {"scope": "tenant", "reason": reason.value}
    assert await sender.traces() == NOTHING
    await controls(sender).resume_tenant(sender.box.tenant_id)
    assert (await sender.send()).status_code == 202, "the same key sends then"


@pytest.mark.covers("edge:G12")
async def test_a_paused_domain_is_named_and_others_go_on(sender: Sender) -> None:
    public_id = await own_domain(sender)
    await controls(sender).pause_domain("acme.example")
    refused = await sender.send()
    assert (refused.status_code, code(refused)) == (409, "sending_paused")
    assert details(refused) == {"scope": "domain", "reason": "abuse_threshold", "domain_id": public_id}
    # From the platform address only who asks for it: nothing falls back there.
    assert (await sender.send({**BODY, "from_address": OWN}, key="2")).status_code == 202


async def test_anothers_pause_is_not_ours(sender: Sender) -> None:
    await controls(sender).pause_tenant(sender.world.other_tenant.id)
    assert (await sender.send()).status_code == 202


@pytest.mark.covers("FR-OUT-1", "edge:G12")
async def test_a_replay_is_answered_while_paused(sender: Sender) -> None:
    first = (await sender.send()).json()
    await controls(sender).pause_tenant(sender.box.tenant_id)
    assert (await sender.send()).json() == {**first, "deduplicated": True}


# -- the tenant's policy


@pytest.mark.covers("edge:E3")
async def test_a_tenant_may_write_to_fewer(sender: Sender) -> None:
    await policy(sender, max_recipients=1)
    body = {**BODY, "to": ["a@example.com", "b@example.com"]}
    refused = await sender.send(body)
    assert (code(refused), details(refused)) == ("too_many_recipients", {"limit": 1})
    await policy(sender, max_recipients=None)
    assert (await sender.send(body)).status_code == 202


@pytest.mark.covers("edge:E8")
async def test_a_footer_says_that_an_ai_wrote_it(sender: Sender) -> None:
    await policy(sender, ai_disclosure={"mode": "footer", "text": "Written by <a machine> & checked."})
    await sender.execute("UPDATE identities SET signature_text = 'Robot of Acme' WHERE id = $1", sender.box.id)
    sent = (await sender.send({**BODY, "html": "<p>Good morning.</p>"})).json()
    wire = await sender.wire(sent["id"])
    text, html = (wire.get_body((kind,)) for kind in ("plain", "html"))
    assert text is not None
    assert html is not None
    written = text.get_content().rstrip()
    assert written.endswith("Written by <a machine> & checked.")
    assert written.index("Robot of Acme") < written.index("Written by"), "after the signature"
    assert "Written by &lt;a machine&gt; &amp; checked." in html.get_content()
    assert wire["X-AI-Generated"] is None
    received = await sender.receive()
    answer = (await sender.post(received, "reply", key="2")).json()
    plain = (await sender.wire(answer["id"])).get_body(("plain",))
    assert plain is not None
    assert "Written by <a machine>" in plain.get_content()


@pytest.mark.covers("edge:E8")
async def test_a_header_says_that_an_ai_wrote_it(sender: Sender) -> None:
    await policy(sender, ai_disclosure={"mode": "header"})
    wire = await sender.wire((await sender.send()).json()["id"])
    assert wire["X-AI-Generated"] == "true"
    assert DISCLOSURE not in wire.as_string()


@pytest.mark.covers("edge:E8")
async def test_without_a_word_nothing_is_said_and_never_of_people(world: World, sender: Sender) -> None:
    wire = await sender.wire((await sender.send()).json()["id"])
    assert (wire["X-AI-Generated"], DISCLOSURE in wire.as_string()) == (None, False)
    person = await make_sender(world, "carol", kind=IdentityKind.PERSON, owner_name=None, owner_email=None)
    for n, mode in enumerate(("footer", "header")):
        await policy(sender, ai_disclosure={"mode": mode})
        wire = await person.wire((await person.send(key=f"{n}")).json()["id"])
        assert (wire["X-AI-Generated"], DISCLOSURE in wire.as_string()) == (None, False)


# -- the fallback, seen from here


@pytest.mark.covers("FR-DOM-5", "edge:G7")
@pytest.mark.parametrize("state", ["failing", "suspended"])
async def test_a_failing_domain_is_no_error_here(sender: Sender, state: str) -> None:
    await own_domain(sender, state)
    sent = (await sender.send()).json()
    assert sent["from"]["address"] == "robot@acme.example"


@pytest.mark.covers("FR-DOM-6", "edge:C3")
async def test_a_pinned_thread_is_written_from_the_platform_address(sender: Sender) -> None:
    await own_domain(sender)
    received = await sender.receive(letter(to="robot@acme.example"))
    thread = (await sender.get(received))["thread_id"]
    await sender.execute(
        "UPDATE threads SET fallback_pinned = true, reply_from_address = 'robot@acme.example' WHERE public_id = $1",
        thread,
    )
    answer = (await sender.post(received, "reply", key="1")).json()
    assert answer["from"]["address"] == OWN
    assert answer["reply_to"][0]["address"].startswith("robot.acme+t")
    assert answer["flags"] == [], "it was composed so"
    await sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL")
    named = {**BODY, "thread_id": thread, "from_address": "robot@acme.example"}
    assert (await sender.send(named, key="2")).json()["from"]["address"] == "robot@acme.example"
    await sender.execute("UPDATE threads SET lock_owner = NULL, lock_until = NULL, fallback_pinned = false")
    assert (await sender.post(received, "reply", key="3")).json()["from"]["address"] == "robot@acme.example"
    # Other threads are not concerned.
    assert (await sender.send(key="4")).json()["from"]["address"] == "robot@acme.example"


@pytest.mark.covers("FR-DOM-6")
async def test_what_left_by_fallback_is_shown_as_it_left(sender: Sender) -> None:
    await own_domain(sender)
    sent = (await sender.send()).json()
    await sender.execute(
        "UPDATE outbound_messages SET sent_from = $1, reply_to = $2", OWN, "robot.acme+t0x.aaaaaaaa@agents.example"
    )
    await sender.execute(
        "UPDATE messages SET facts = array_append(facts, 'sent_via_fallback') WHERE public_id = $1", sent["id"]
    )
    shown = await sender.get(sent["id"])
    assert shown["from"] == {"address": OWN, "name": "Robot"}
    assert shown["reply_to"] == [{"address": "robot.acme+t0x.aaaaaaaa@agents.example", "name": "Robot"}]
    assert shown["flags"] == ["sent_via_fallback"]
    assert shown["rfc_message_id"] == sent["rfc_message_id"]


async def test_policies_changed_at_once_are_all_kept(sender: Sender) -> None:
    await asyncio.gather(
        policy(sender, max_recipients=3), policy(sender, domain_fallback=False), policy(sender, link_ttl_hours=9)
    )
    tenant = await sender.world.tenants.get(sender.box.tenant_public_id)
    held = tenant.policy.under()
    assert tenant.policy_version == 3
    assert (held.max_recipients, held.domain_fallback, held.link_ttl_hours) == (3, False, 9)
