"""Mail whose domain fails leaves from the platform address, all of it or none (outbound §6.2; FR-DOM-5, FR-DOM-6)."""

from __future__ import annotations

import asyncio
import email
import email.policy
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts.models import Mode
from postroom.accounts.service.tenants import Tenants
from postroom.accounts.signing_keys import SigningKeys
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.base.sealing import Keyring
from postroom.db import Database
from postroom.inbound.thread_tokens import ThreadTokens
from postroom.mail.address import Address
from postroom.mail.compose import Draft, compose
from postroom.mailbox import pins
from postroom.mailbox.writing import begin_write
from postroom.outbound import claiming, wire
from postroom.outbound.claiming import Room
from postroom.outbound.dispatch import Dispatcher
from postroom.outbound.fallback import Fallback
from postroom.outbound.models import Operation, RouteKind, Status
from postroom.outbound.queue import MailQueue
from postroom.outbound.rules import Action
from tests.mailbox.letters import check_mailbox
from tests.outbound.fake_mx import FakeMx
from tests.outbound.mail_room import MailRoom, in_process

MASTER = Keyring(b"m" * 32)
PLATFORM = "plat.example"
STAND_IN = f"box0.letters@{PLATFORM}"


@pytest.fixture
async def room(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[MailRoom]:
    made = await MailRoom.open(db, clock, ids, tmp_path)
    async with db.acquire() as conn:
        domain = await conn.fetchval(
            "INSERT INTO domains (public_id, name, kind, status, created_at, updated_at) "
            "VALUES ($1, $2, 'platform', 'healthy', $3, $3) RETURNING id",
            *(ids.new("dom"), PLATFORM, clock.now()),
        )
        await conn.execute(
            "INSERT INTO addresses (tenant_id, public_id, address, local_part, domain_id, identity_id, role, status, "
            "created_at, updated_at) VALUES ($1, $2, $3, 'box0.letters', $4, $5, 'alias', 'active', $6, $6)",
            *(made.box.ref.tenant_id, ids.new("adr"), STAND_IN, domain, made.box.ref.mailbox_id, clock.now()),
        )
    yield made
    async with db.acquire() as conn:
        await check_mailbox(conn, made.box.ref)
    await made.close()


async def signed(octets: bytes, domain: str) -> bytes:
    """Not a signature, but it says of whom it would be."""
    return f"DKIM-Signature: v=1; d={domain}; b=x\r\n".encode() + octets


async def direct(address: str, /, *, from_domain: str, mode: Mode) -> RouteKind:
    return RouteKind.DIRECT


def fallback(room: MailRoom, **changes: Any) -> Fallback:
    made: dict[str, Any] = {
        "sign": signed,
        "mint": ThreadTokens(SigningKeys(room.db, MASTER, room.clock), room.clock).mint,
        "route": direct,
        "offload": in_process,
        **changes,
    }
    return Fallback(room.db, room.blobs, room.clock, room.ids, **made)


def dispatcher(room: MailRoom, **changes: Any) -> Dispatcher:
    return Dispatcher(
        *(room.db, room.blobs, room.clock, room.outcomes, room.transports),
        sign=signed,
        offload=in_process,
        fall_back=fallback(room, **changes).switch,
    )


async def fails(room: MailRoom, status: str = "failing", name: str | None = None) -> None:
    async with room.db.acquire() as conn:
        name = room.box.address.rpartition("@")[2] if name is None else name
        assert await conn.execute("UPDATE domains SET status = $1 WHERE name = $2", status, name) == "UPDATE 1"


async def dispatch(room: MailRoom, mx: FakeMx, *domains: str, **changes: Any) -> list[EmailMessage]:
    for domain in domains or ("example.com",):
        room.net.add(domain, mx)
    await dispatcher(room, **changes).run_due()
    return [email.message_from_bytes(one.data, policy=email.policy.default) for one in mx.messages]


async def seen(room: MailRoom, message: str) -> Any:
    async with room.db.acquire() as conn:
        row = await conn.fetchrow(
            "SELECT o.sent_from, o.envelope_from, o.reply_to, o.wire_key, m.facts, m.from_address, t.fallback_pinned, "
            "t.seq, m.id FROM messages m "
            "JOIN outbound_messages o ON o.tenant_id = m.tenant_id AND o.message_id = m.id "
            "JOIN threads t ON t.tenant_id = m.tenant_id AND t.mailbox_id = m.mailbox_id AND t.seq = m.thread_seq "
            "WHERE m.public_id = $1",
            message,
        )
    assert row is not None
    return row


async def wires(room: MailRoom) -> list[str]:
    return sorted(key for key in await room.blobs.list("t") if "/out/" in key)


# -- what leaves


@pytest.mark.covers("FR-DOM-6", "FR-DOM-5", "edge:G7", "FR-OUT-6")
@pytest.mark.parametrize("state", ["failing", "suspended"])
async def test_it_leaves_from_the_platform_address(room: MailRoom, state: str) -> None:
    message = await room.accept("anna@example.com")
    await fails(room, state)
    async with FakeMx() as mx:
        (mail,) = await dispatch(room, mx)
        assert mx.messages[0].sender == STAND_IN
    row = await seen(room, message)
    token = await ThreadTokens(SigningKeys(room.db, MASTER, room.clock), room.clock).mint(
        room.box.identity_id, row["seq"]
    )
    answers = f"box0.letters+{token}@{PLATFORM}"
    assert str(mail["From"]) == f"Box <{STAND_IN}>"
    assert str(mail["Reply-To"]) == f"Box <{answers}>"
    assert str(mail["Message-ID"]) == f"<{message}@agents.example>"
    assert mail.get_all("DKIM-Signature") == [f"v=1; d={PLATFORM}; b=x"]
    assert mail.get_content().strip() == "Hello there"
    assert (row["sent_from"], row["envelope_from"], row["reply_to"]) == (STAND_IN, STAND_IN, answers)
    assert row["from_address"] == room.box.address, "what was written stays what it is"
    assert "sent_via_fallback" in row["facts"]
    assert row["fallback_pinned"]
    assert await room.status(message) == "delivered"
    assert await wires(room) == []


@pytest.mark.covers("FR-DOM-6")
async def test_events_and_the_message_say_so(room: MailRoom) -> None:
    message = await room.accept("anna@example.com")
    await fails(room)
    async with FakeMx() as mx:
        await dispatch(room, mx)
    (kind, data), *_ = await room.events(message)
    assert (kind, data["sent_via_fallback"]) == ("message.sent", True)
    assert data["message"]["from"] == {"address": STAND_IN, "name": "Box"}
    assert data["message"]["flags"] == ["sent_via_fallback"]
    state = await room.state(message)
    assert state.sent_from == STAND_IN
    assert state.reply_to is not None
    assert state.reply_to.endswith(f"@{PLATFORM}")


async def test_what_did_not_fall_back_says_that(room: MailRoom) -> None:
    message = await room.accept("anna@example.com")
    async with FakeMx() as mx:
        await dispatch(room, mx)
    (_, data), *_ = await room.events(message)
    assert data["sent_via_fallback"] is False
    assert data["message"]["from"]["address"] == room.box.address


@pytest.mark.covers("FR-DOM-5", "decisions:D10")
async def test_what_is_not_to_be_rewritten_fails(room: MailRoom) -> None:
    await Tenants(room.db, room.ids, room.clock).change_policy(room.box.ref.tenant_id, {"domain_fallback": False})
    composed = await room.accept("anna@example.com")
    await fails(room)
    async with FakeMx() as mx:
        assert await dispatch(room, mx) == []
        await Tenants(room.db, room.ids, room.clock).change_policy(room.box.ref.tenant_id, {"domain_fallback": None})
        submitted = await room.accept("anna@example.com", operation=Operation.SUBMISSION)
        assert await dispatch(room, mx) == []
    for message in (composed, submitted):
        (delivery,) = (await room.state(message)).deliveries
        assert (delivery.status, delivery.reason) == (Status.FAILED, "domain_failing_no_fallback")


@pytest.mark.covers("FR-DOM-5")
@pytest.mark.parametrize(("state", "status"), [("failing", "failed"), ("suspended", "failed"), ("verifying", "queued")])
async def test_the_platform_domain_has_none(room: MailRoom, state: str, status: str) -> None:
    """Nothing is marked of what did not leave."""
    message = await room.accept("anna@example.com")
    await fails(room)
    await fails(room, state, PLATFORM)
    async with FakeMx() as mx:
        assert await dispatch(room, mx) == []
    row = await seen(room, message)
    assert (await room.deliveries(message))["anna@example.com"] == status
    assert (row["sent_from"], row["fallback_pinned"], "sent_via_fallback" in row["facts"]) == (None, False, False)


async def test_without_a_platform_address_it_fails(room: MailRoom) -> None:
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE addresses SET status = 'retired' WHERE address = $1", STAND_IN)
    message = await room.accept("anna@example.com")
    await fails(room)
    async with FakeMx() as mx:
        assert await dispatch(room, mx) == []
    assert await room.status(message) == "failed"


# -- once for all recipients, and before the first attempt


@pytest.mark.covers("FR-DOM-6")
async def test_all_recipients_get_the_same(room: MailRoom) -> None:
    """Each destination is an attempt of its own, and all are claimed together."""
    domains = [f"d{n}.example" for n in range(8)]
    message = await room.accept(*(f"anna@{one}" for one in domains))
    await fails(room)
    async with FakeMx() as mx:
        for _ in range(30):
            mails = await dispatch(room, mx, *domains)
            if len(mails) == len(domains):
                break
            room.clock.advance(1)
    assert {str(mail["From"]) for mail in mails} == {f"Box <{STAND_IN}>"}
    assert len({str(mail["Reply-To"]) for mail in mails}) == 1
    assert set((await room.deliveries(message)).values()) == {"delivered"}
    assert await wires(room) == []


async def test_two_workers_switch_once(room: MailRoom) -> None:
    domains = [f"d{n}.example" for n in range(6)]
    message = await room.accept(*(f"anna@{one}" for one in domains))
    await fails(room)
    async with FakeMx() as mx:
        for domain in domains:
            room.net.add(domain, mx)
        for _ in range(40):
            await asyncio.gather(*(dispatcher(room).run_due() for _ in range(3)))
            if len(mx.messages) == len(domains):
                break
            room.clock.advance(1)
        assert len(mx.messages) == len(domains)
        froms = {str(email.message_from_bytes(one.data, policy=email.policy.default)["From"]) for one in mx.messages}
    assert froms == {f"Box <{STAND_IN}>"}
    assert set((await room.deliveries(message)).values()) == {"delivered"}


@pytest.mark.covers("edge:G7")
async def test_once_somebody_may_have_it_nothing_switches(room: MailRoom) -> None:
    """Another destination was asked before the domain failed."""
    message = await room.accept("anna@example.com", "bo@example.org")
    async with FakeMx(replies={"anna@example.com": ["450 4.2.0 Later"]}) as mx:
        room.net.add("example.com", mx)
        # So that it is not tried yet.
        async with room.db.acquire() as conn:
            await conn.execute("UPDATE deliveries SET held_by_operator = true WHERE recipient = 'bo@example.org'")
        await dispatcher(room).run_due()
        async with room.db.acquire() as conn:
            await conn.execute("UPDATE deliveries SET held_by_operator = false")
        await fails(room)
        room.clock.advance(3600)
        assert await dispatch(room, mx, "example.org") == []
    assert await room.deliveries(message) == {"anna@example.com": "deferred", "bo@example.org": "queued"}
    assert (await seen(room, message))["sent_from"] is None
    await fails(room, "healthy")
    room.clock.advance(3600)
    async with FakeMx() as mx:
        mails = await dispatch(room, mx, "example.com", "example.org")
    assert {str(mail["From"]) for mail in mails} == {f"Box <{room.box.address}>"}
    assert len(mails) == 2


async def test_what_another_has_in_hand_is_waited_for(room: MailRoom) -> None:
    message = await room.accept("anna@example.com", "bo@example.org")
    await fails(room)
    async with room.db.acquire() as conn:
        first, second = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}, 1))
    switch = fallback(room).switch
    before = await wires(room)
    assert await switch(first) is None
    assert (await seen(room, message))["sent_from"] is None
    assert await wires(room) == before, "what was made for nothing is gone"
    assert await switch(second) is None
    row = await seen(room, message)
    assert row["sent_from"] == STAND_IN
    assert await wires(room) == [row["wire_key"]]
    # Who comes late does nothing.
    assert await switch(first) is None
    assert await wires(room) == [row["wire_key"]]


async def test_who_lost_a_claim_does_not_come_back_with_it(room: MailRoom, clock: ManualClock) -> None:
    """A worker that stood still has the message in hand as it was, and its bytes are gone."""
    await room.accept("anna@example.com", "bo@example.org")
    async with room.db.acquire() as conn:
        first, second = await claiming.claim(conn, now=clock.now(), room=Room(10, {}, 1))
        clock.advance(claiming.LEASE.total_seconds() + 1)
        await claiming.extend(conn, [first], until=clock.now() + claiming.LEASE)
    await fails(room)
    assert await fallback(room).switch(first) is None
    begun = [claiming.Begun(second.token, second.letter.ref, tuple(one.id for one in second.recipients))]
    async with room.db.acquire() as conn:
        assert await claiming.start(conn, begun, now=clock.now(), until=clock.now() + claiming.LEASE) == [False]
        assert len(await claiming.claim(conn, now=clock.now(), room=Room(10, {}, 1))) == 2


async def test_a_lost_claim_switches_nothing(room: MailRoom) -> None:
    message = await room.accept("anna@example.com")
    await fails(room)
    async with room.db.acquire() as conn:
        (group,) = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}, 1))
        await conn.execute("UPDATE deliveries SET claim_token = gen_random_uuid()")
    before = await wires(room)
    assert await fallback(room).switch(group) is None
    assert (await seen(room, message))["sent_from"] is None
    assert await wires(room) == before


async def test_what_begins_while_it_is_made_anew_stays(room: MailRoom) -> None:
    """Between reading and writing, the same claim may have been lost and begun by another."""
    message = await room.accept("anna@example.com", "bo@example.org")
    await fails(room)
    async with room.db.acquire() as conn:
        first, second = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}, 1))

    async def meanwhile(octets: bytes, domain: str) -> bytes:
        async with room.db.acquire() as conn:
            await conn.execute(
                "UPDATE deliveries SET data_started_at = $1 WHERE claim_token = $2", room.clock.now(), second.token
            )
        return await signed(octets, domain)

    outcome = await fallback(room, sign=meanwhile).switch(first)
    assert outcome is not None
    assert outcome.text == "The sender's domain is not ready"
    assert (await seen(room, message))["sent_from"] is None


# -- what it is afterwards


async def test_it_stays_what_it_is_between_attempts(room: MailRoom) -> None:
    message = await room.accept("anna@example.com")
    await fails(room)
    async with FakeMx(replies={"anna@example.com": ["450 4.2.0 Later", "250 OK"]}) as mx:
        await dispatch(room, mx)
        await fails(room, "healthy")
        room.clock.advance(3600)
        (mail,) = await dispatch(room, mx)
    assert str(mail["From"]) == f"Box <{STAND_IN}>"
    assert await room.status(message) == "delivered"


@pytest.mark.covers("mail-server:C6")
async def test_the_relay_of_the_platform_domain_is_used(room: MailRoom) -> None:
    async def route(address: str, /, *, from_domain: str, mode: Mode) -> RouteKind:
        return RouteKind.SMARTHOST if from_domain == PLATFORM else RouteKind.DIRECT

    message = await room.accept("anna@example.com", "bo@example.org")
    await fails(room)
    async with FakeMx() as mx:
        for _ in range(3):
            await dispatch(room, mx, route=route)
            room.clock.advance(1)
        assert not mx.messages
    row = await room.row(message, "anna@example.com")
    assert (row["route"], row["domain"]) == ("smarthost", "")


@pytest.mark.covers("mail-server:C2", "FR-DOM-6")
async def test_an_operator_sends_it_again_as_it_left(room: MailRoom) -> None:
    """The bytes are made anew of the sent copy, which says what was written."""
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE identities SET kind = 'person' WHERE id = $1", room.box.ref.mailbox_id)
    message = await room.accept("anna@example.com")
    await fails(room)
    async with FakeMx(replies={"anna@example.com": ["550 5.7.1 No", "250 OK"]}) as mx:
        await dispatch(room, mx)
        assert await room.status(message) == "bounced"
        async with room.db.acquire() as conn:
            await conn.execute("DELETE FROM bounce_tasks")
            await conn.execute("UPDATE outbound_messages SET wire_key = NULL")
        queue = MailQueue(
            *(room.db, room.blobs, room.clock, room.ids),
            sign=signed,
            changed=lambda ref, modseq: None,
            wake=lambda: None,
        )
        (done,) = await queue.act(Action.RETRY, [(await room.row(message))["id"]])
        assert done.refused is None
        (mail,) = await dispatch(room, mx)
    assert str(mail["From"]) == f"Box <{STAND_IN}>"
    assert mail["Reply-To"] is None, "people's mail has no token"
    assert mail.get_all("DKIM-Signature") == [f"v=1; d={PLATFORM}; b=x"]


# -- the thread


@pytest.mark.covers("FR-DOM-6")
async def test_a_pin_lifts_when_the_domain_is_healthy_and_it_was_quiet(room: MailRoom) -> None:
    message = await room.accept("anna@example.com")
    await fails(room)
    async with FakeMx() as mx:
        await dispatch(room, mx)

    async def pinned() -> bool:
        return bool((await seen(room, message))["fallback_pinned"])

    await fails(room, "healthy")
    room.clock.advance(71 * 3600)
    assert await pins.lift_pins(room.db, room.clock.now()) == 0, "not quiet for long enough"
    room.clock.advance(2 * 3600)
    await fails(room)
    assert await pins.lift_pins(room.db, room.clock.now()) == 0, "the domain fails"
    await fails(room, "degraded")
    assert await pins.lift_pins(room.db, room.clock.now()) == 0, "and is not well yet"
    await fails(room, "healthy")
    assert await pinned()
    assert await pins.lift_pins(room.db, room.clock.now()) == 1
    assert not await pinned()
    assert await pins.lift_pins(room.db, room.clock.now()) == 0


async def test_marking_twice_is_marking_once(room: MailRoom) -> None:
    message = await room.accept("anna@example.com")
    key = (await seen(room, message))["id"]
    for _ in range(2):
        async with room.db.transaction() as conn:
            write = await begin_write(conn, room.box.ref, room.clock.now())
            await pins.pin(write, key)
            await write.finish()
    assert list((await seen(room, message))["facts"]).count("sent_via_fallback") == 1


# -- the bytes

_NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=60)


@pytest.mark.covers("RFC 5322 §3.6.2")
@given(
    name=_NAMES,
    answers=st.booleans(),
    had=st.booleans(),
    subject=st.text(max_size=80).map(lambda text: " ".join(text.split())),
)
def test_nothing_else_of_a_composed_message_changes(name: str, answers: bool, had: bool, subject: str) -> None:
    old, new = Address("Box", "box", "old.example"), Address(name.strip(), "box.t", "plat.example")
    draft = Draft(
        from_=old,
        date=datetime(2030, 1, 1, tzinfo=UTC),
        message_id="m1@old.example",
        to=(Address("", "anna", "example.com"),),
        reply_to=(Address("Box", "box+t0", "old.example"),) if had else (),
        subject=subject if subject.isprintable() else "",
        text="From: not a field\r\nReply-To: nor this\r\n",
    )
    raw = b"DKIM-Signature: v=1; d=old.example; b=x\r\n" + compose(draft, "b").to_bytes()
    reply_to = Address(name.strip(), "box.t+t1", "plat.example") if answers else None
    made = wire.readdressed(raw, ("old.example",), new, reply_to)
    assert made.partition(b"\r\n\r\n")[2] == raw.partition(b"\r\n\r\n")[2]
    mail = email.message_from_bytes(made, policy=email.policy.default)
    was = email.message_from_bytes(raw, policy=email.policy.default)
    assert mail["From"].addresses[0].addr_spec == "box.t@plat.example"
    assert len(mail.get_all("From", [])) == 1
    assert [one.addresses[0].addr_spec for one in mail.get_all("Reply-To", [])] == (
        ["box.t+t1@plat.example"] if answers else []
    )
    changing = {"from", "reply-to", "dkim-signature"}
    kept = [(key, str(value)) for key, value in mail.items() if key.lower() not in changing]
    assert kept == [(key, str(value)) for key, value in was.items() if key.lower() not in changing]


def test_what_has_no_author_is_refused() -> None:
    with pytest.raises(ValueError, match="From"):
        wire.readdressed(b"Subject: x\r\n\r\nFrom: y\r\n", (), Address("", "a", "b.example"), None)
