"""From acceptance to the wire and back: what becomes of mail at servers that do all that servers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import BlobMissing, StorageError
from postroom.db import Database, DatabaseUnavailable
from postroom.net.mx import Family, RoutePolicy
from postroom.outbound import claiming
from postroom.outbound.claiming import Room
from postroom.outbound.lanes import DispatchLimits
from postroom.outbound.models import RouteKind
from postroom.outbound.outcomes import Outcomes, Report, Result
from postroom.outbound.transports.base import Attempt, Parcel, unknown
from postroom.smtp.outcome import DeliveryStatus, Outcome, Reason, Verdict
from tests.mailbox.letters import check_mailbox
from tests.outbound.fake_mx import FakeMx
from tests.outbound.mail_room import SOON, MailRoom, until


@pytest.fixture
async def room(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[MailRoom]:
    made = await MailRoom.open(db, clock, ids, tmp_path)
    yield made
    async with db.acquire() as conn:
        await check_mailbox(conn, made.box.ref)
    await made.close()


@pytest.mark.covers("mail-server:C5", "mail-server:C2", "FR-OUT-1")
async def test_taken(room: MailRoom) -> None:
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com", body="One\r\n.two")
        assert await room.dispatcher().run_due() == 1
        (received,) = mx.messages
    assert (received.sender, received.recipients) == (room.box.address, ["anna@example.com"])
    assert received.data.endswith(b"\r\n\r\nOne\r\n.two\r\n")
    assert await room.status(message) == "delivered"
    (delivery,) = (await room.state(message)).deliveries
    assert (delivery.smtp_code, delivery.remote_mx, delivery.tries) == (250, "mx0.example.com", 1)
    (sent, delivered) = await room.events(message)
    assert sent[0] == "message.sent"
    assert sent[1]["provider"] == "direct"
    assert sent[1]["provider_message_id"].startswith("direct:")
    assert (sent[1]["message"]["status"], sent[1]["message"]["labels"]) == ("delivered", [])
    assert delivered == (
        "message.delivered",
        {"message_id": message, "recipient": "anna@example.com", "smtp_code": "250"},
    )
    assert room.changed


SCHEDULE = (60, 300, 900, 3600, 21600, 86400)


@pytest.mark.covers("mail-server:C4", "mail-server:C5", "edge:G3")
async def test_later_means_the_schedule(room: MailRoom) -> None:
    async with FakeMx(replies={"anna@example.com": ["450 4.2.0 Greylisted", "250 2.1.5 Ok"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        dispatcher = room.dispatcher()
        await dispatcher.run_due()
        assert (await room.status(message), len(mx.delivered)) == ("deferred", 0)
        row = await room.row(message)
        wait = (row["next_attempt_at"] - room.clock.now()).total_seconds()
        assert 54 <= wait <= 66
        assert (row["tries"], row["attempts"], row["data_started_at"]) == (1, 0, None)
        room.clock.advance(53)
        assert await dispatcher.run_due() == 0
        room.clock.advance(14)
        assert await dispatcher.run_due() == 1
        assert len(mx.delivered) == 1
    assert await room.status(message) == "delivered"
    assert [kind for kind, _ in await room.events(message)] == [
        "message.sent",
        "message.deferred",
        "message.delivered",
    ]


@pytest.mark.covers("mail-server:C4", "decisions:B8")
async def test_the_last_try_bounces(room: MailRoom) -> None:
    async with FakeMx(replies={"RCPT": ["451 4.3.2 Not today"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        dispatcher = room.dispatcher()
        for attempt in range(12):
            row = await room.row(message)
            assert (row["status"], row["tries"]) == ("deferred" if attempt else "queued", attempt)
            if attempt:
                wait = (row["next_attempt_at"] - room.clock.now()).total_seconds()
                expected = SCHEDULE[min(attempt, len(SCHEDULE)) - 1]
                assert 0.9 * expected <= wait + 0.001
                assert wait <= 1.1 * expected
                room.clock.advance(wait)
            assert await dispatcher.run_due() == 1
    (delivery,) = (await room.state(message)).deliveries
    assert (delivery.status, delivery.reason, delivery.bounce_type) == ("bounced", "delivery_expired", "soft")
    assert (delivery.enhanced_code, delivery.smtp_code, delivery.next_attempt_at) == ("4.4.7", 451, None)
    events = await room.events(message)
    assert [kind for kind, _ in events] == ["message.sent", *["message.deferred"] * 11, "message.bounced"]
    assert events[-1][1]["bounce_type"] == "soft"
    async with room.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM delivery_attempts") == 12


@pytest.mark.covers("edge:G6", "mail-server:C5")
@pytest.mark.parametrize(
    ("replies", "bounce", "enhanced"),
    [
        ({"anna@example.com": ["550 5.1.1 No such user"]}, "hard", "5.1.1"),
        ({"anna@example.com": ["550 No such user"]}, "hard", "5.0.0"),
        ({"anna@example.com": ["550 5.7.1 Policy"]}, "soft", "5.7.1"),
        ({"MAIL": ["554 5.7.1 Not you"]}, "soft", "5.7.1"),
        ({"DATA": ["554 5.6.0 No"]}, "soft", "5.6.0"),
        ({"final": ["554 5.6.0 Spam"]}, "soft", "5.6.0"),
    ],
)
async def test_refused(room: MailRoom, replies: dict[str, list[str | None]], bounce: str, enhanced: str) -> None:
    async with FakeMx(replies=replies) as mx, FakeMx() as backup:
        room.net.add("example.com", mx, backup)
        message = await room.accept("anna@example.com")
        await room.dispatcher().run_due()
        assert backup.connections == 0, "once a host has refused, no other is asked"
    (delivery,) = (await room.state(message)).deliveries
    assert (delivery.status, delivery.bounce_type, delivery.enhanced_code) == ("bounced", bounce, enhanced)
    assert await room.status(message) == "bounced"
    assert [kind for kind, _ in await room.events(message)] == ["message.sent", "message.bounced"]
    assert room.noticed
    assert await room.wire_key(message) is not None, "the notice quotes it"


@pytest.mark.covers("edge:N20", "mail-server:C5")
async def test_each_recipient_by_its_own_reply(room: MailRoom) -> None:
    replies: dict[str, list[str | None]] = {
        "gone@example.com": ["550 5.1.1 No such user"],
        "later@example.com": ["450 4.2.1 Later", "250 Ok"],
    }
    async with FakeMx(replies=replies) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com", "gone@example.com", "later@example.com", "bob@example.com")
        dispatcher = room.dispatcher()
        assert await dispatcher.run_due() == 1
        assert await room.deliveries(message) == {
            "anna@example.com": "delivered",
            "gone@example.com": "bounced",
            "later@example.com": "deferred",
            "bob@example.com": "delivered",
        }
        assert await room.status(message) == "deferred"
        assert mx.messages[0].recipients == ["anna@example.com", "bob@example.com"]
        room.clock.advance(70)
        assert await dispatcher.run_due() == 1
        assert mx.messages[1].recipients == ["later@example.com"]
    assert await room.status(message) == "bounced"


@pytest.mark.covers("mail-server:C5", "RFC 7505 §3")
async def test_domains_that_take_no_mail(room: MailRoom) -> None:
    room.net.dns.exchanges["null.example"] = [(0, ".")]
    room.net.dns.broken.add("broken.example")
    room.net.dns.exchanges["inside.example"] = [(10, "mx.inside.example")]
    room.net.dns.addresses["mx.inside.example"] = ["127.0.0.1"]
    room.net.add("refuses.example", None, None)
    message = await room.accept(
        "a@null.example", "a@gone.example", "a@broken.example", "a@inside.example", "a@refuses.example"
    )
    assert await room.dispatcher().run_due() == 5
    found = {one.recipient: one for one in (await room.state(message)).deliveries}
    assert {
        name: (one.status.value, one.bounce_type, one.enhanced_code, one.smtp_code) for name, one in found.items()
    } == {
        "a@null.example": ("bounced", "hard", "5.1.10", 556),
        "a@gone.example": ("bounced", "hard", "5.1.2", 550),
        "a@broken.example": ("deferred", None, "4.4.3", None),
        "a@inside.example": ("bounced", "soft", "5.4.4", 554),
        "a@refuses.example": ("deferred", None, "4.4.1", None),
    }
    assert room.net.dialled.keys() == set(room.net.ports), "nobody connects to a private address"
    assert all(count == 1 for count in room.net.dialled.values())
    # Nobody answered, so nothing was sent.
    assert "message.sent" not in [kind for kind, _ in await room.events(message)]


async def test_a_private_address_if_that_is_allowed(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path
) -> None:
    policy = RoutePolicy(family=Family.IPV4_ONLY, allow_private=True)
    room = await MailRoom.open(db, clock, ids, tmp_path, policy=policy)
    async with FakeMx() as mx:
        room.net.add("example.com", mx, address="127.0.0.1")
        message = await room.accept("anna@example.com")
        await room.dispatcher().run_due()
    assert await room.status(message) == "delivered"
    await room.close()


@pytest.mark.covers("mail-server:C5")
async def test_the_next_host_in_the_same_attempt(room: MailRoom) -> None:
    async with (
        FakeMx(replies={"greeting": ["554 5.3.2 Not here"]}) as refusing,
        FakeMx(replies={"EHLO": ["421 4.3.2 Busy"]}) as busy,
        FakeMx(replies={"greeting": [None]}) as dropping,
        FakeMx() as good,
    ):
        room.net.add("example.com", None, refusing, busy, dropping, good)
        message = await room.accept("anna@example.com")
        await room.dispatcher().run_due()
    (delivery,) = (await room.state(message)).deliveries
    assert (delivery.status, delivery.remote_mx, delivery.tries) == ("delivered", "mx4.example.com", 1)


@pytest.mark.covers("edge:G2", "edge:N15", "mail-server:C5")
async def test_lost_after_the_final_dot_is_never_sent_again(room: MailRoom) -> None:
    async with FakeMx(drop_after_dot=True) as mx, FakeMx() as backup:
        room.net.add("example.com", mx, backup)
        message = await room.accept("anna@example.com")
        dispatcher = room.dispatcher()
        await dispatcher.run_due()
        assert await room.deliveries(message) == {"anna@example.com": "uncertain"}
        row = await room.row(message)
        assert (row["reason"], row["next_attempt_at"]) == ("transport_connection_lost", None)
        assert row["data_started_at"] is not None
        room.clock.advance(30 * 86400)
        assert await dispatcher.run_due() == 0
        assert (len(mx.messages), backup.connections) == (1, 0)
    ((kind, data),) = await room.events(message)
    assert (kind, data["reason"]) == ("message.uncertain", "transport_connection_lost")
    assert "recipients" not in data
    assert "resolve" in data["fix"]
    assert await room.wire_key(message) is None
    assert not room.noticed


@pytest.mark.covers("mail-server:C5")
async def test_lost_before_the_final_dot_is_tried_again(room: MailRoom) -> None:
    async with FakeMx(drop_before_dot=100_000) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com", body="x" * 70 + ("\r\n" + "x" * 70) * 200_000)
        dispatcher = room.dispatcher()
        await dispatcher.run_due()
        row = await room.row(message)
        assert (row["status"], row["data_started_at"], row["enhanced_code"]) == ("deferred", None, "4.4.2")
        mx.drop_before_dot = None
        room.clock.advance(70)
        await dispatcher.run_due()
        assert len(mx.delivered) == 1
    assert await room.status(message) == "delivered"


@pytest.mark.covers("edge:G2", "mail-server:C5")
async def test_silence_after_the_final_dot(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> None:
    room = await MailRoom.open(db, clock, ids, tmp_path, timeouts=replace(SOON, final=0.3))
    async with FakeMx(hold=asyncio.Event()) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        await room.dispatcher().run_due()
    row = await room.row(message)
    assert (row["status"], row["reason"]) == ("uncertain", "transport_timeout")
    await room.close()


@pytest.mark.covers("mail-server:C5")
async def test_a_slow_answer_to_the_final_dot_is_waited_for(room: MailRoom) -> None:
    async with FakeMx(hold=asyncio.Event()) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        dispatcher = room.dispatcher()
        working = asyncio.create_task(dispatcher.run_due())
        await until(lambda: bool(mx.messages))
        # The lease is extended while the peer takes its time, so that nobody else takes it for lost.
        for _ in range(3):
            room.clock.advance(0.7 * claiming.LEASE.total_seconds())
            await dispatcher.extend()
        room.clock.advance(0.7 * claiming.LEASE.total_seconds())
        assert await room.dispatcher().run_due() == 0
        assert mx.hold is not None
        mx.hold.set()
        await working
    assert await room.status(message) == "delivered"


@pytest.mark.covers("mail-server:C3", "edge:G2")
async def test_a_claim_that_was_lost_before_the_message_went_out_is_repeated(room: MailRoom) -> None:
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        async with room.db.acquire() as conn:
            (dead,) = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}))
        dispatcher = room.dispatcher()
        assert await dispatcher.run_due() == 0
        room.clock.advance(claiming.LEASE.total_seconds())
        assert await dispatcher.run_due() == 1
        assert len(mx.delivered) == 1
        assert not await room.outcomes.start(dead, dead.ids), "whoever comes late sends nothing"
    row = await room.row(message)
    assert (row["status"], row["tries"]) == ("delivered", 1)


@pytest.mark.covers("mail-server:C3", "edge:G2")
async def test_a_claim_that_was_lost_while_the_message_went_out_is_uncertain(room: MailRoom) -> None:
    async with FakeMx(replies={"gone@example.com": ["550 5.1.1 No"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com", "gone@example.com")
        async with room.db.acquire() as conn:
            (dead,) = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}))
        began = room.clock.now()
        assert await room.outcomes.start(dead, [dead.recipients[0].id])
        room.clock.advance(claiming.LEASE.total_seconds())
        assert await room.dispatcher().run_due() == 1
        assert mx.messages == []
        assert await room.deliveries(message) == {"anna@example.com": "uncertain", "gone@example.com": "bounced"}
        row = await room.row(message, "anna@example.com")
        assert (row["updated_at"], row["reason"]) == (began, "transport_connection_lost")
        events = await room.events(message)
        assert [kind for kind, _ in events] == ["message.sent", "message.bounced", "message.uncertain"]
        assert events[-1][1]["recipients"] == ["anna@example.com"]
        # The worker was only slow: what it knows is proof.
        taken = Outcome(Verdict.DELIVERED, DeliveryStatus.DELIVERED, "2.0.0", 250, "250 Ok")
        late = Report(dead.recipients[0].id, taken, "mx0.example.com")
        await room.outcomes.record(Result(dead, (late,), "direct", "direct:late"))
        assert (await room.deliveries(message))["anna@example.com"] == "delivered"
        await room.outcomes.record(Result(dead, (late,), "direct", "direct:late"))
        kinds = [kind for kind, _ in await room.events(message)]
        assert kinds[3:] == ["message.reconciled", "message.delivered"]
        async with room.db.acquire() as conn:
            assert await conn.fetchval("SELECT 'reconciled' = ANY (facts) FROM messages")


@pytest.mark.covers("mail-server:C3", "edge:G2")
async def test_of_two_claims_that_begin_together_one_may(room: MailRoom) -> None:
    """As after an outage of the database in which a process lost its claims and took them once more."""
    await room.accept("anna@example.com", "bo@example.com")
    groups: list[claiming.Group] = []
    for _ in range(2):
        async with room.db.acquire() as conn:
            groups += await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}))
        room.clock.advance(claiming.LEASE.total_seconds())
    lost, held = groups
    assert (lost.ids, lost.token == held.token) == (held.ids, False)
    begun = [claiming.Begun(one.token, one.letter.ref, tuple(one.ids)) for one in (lost, held, lost)]
    async with room.db.acquire() as conn:
        now = room.clock.now()
        assert await claiming.start(conn, begun, now=now, until=now + claiming.LEASE) == [False, True, False]
    assert await asyncio.gather(*(room.outcomes.start(one, one.ids) for one in groups)) == [False, True]


@pytest.mark.covers("mail-server:C3", "edge:G2")
@pytest.mark.parametrize("together", [False, True])
async def test_a_claim_that_was_lost_and_knows_before_the_next_one_says_that_it_does_not(
    room: MailRoom, together: bool
) -> None:
    """As after an outage of the database that outlasts the leases: the process itself has claimed it once more."""
    message = await room.accept("anna@example.com")
    async with room.db.acquire() as conn:
        (first,) = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}))
    assert await room.outcomes.start(first, first.ids)
    room.clock.advance(claiming.LEASE.total_seconds())
    async with room.db.acquire() as conn:
        (second,) = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}))
    assert not await room.outcomes.start(first, first.ids)
    taken = Outcome(Verdict.DELIVERED, DeliveryStatus.DELIVERED, "2.0.0", 250, "250 Ok")
    proof = Result(first, (Report(first.ids[0], taken, "mx0.example.com"),), "direct", "direct:first")
    doubt = Result(second, (Report(second.ids[0], unknown(Reason.TRANSPORT_CONNECTION_LOST, "Lost")),))
    if together:
        await asyncio.gather(room.outcomes.record(doubt), room.outcomes.record(proof))
    else:
        await room.outcomes.record(proof)
        await room.outcomes.record(doubt)
    assert await room.deliveries(message) == {"anna@example.com": "delivered"}
    assert [kind for kind, _ in await room.events(message)] == ["message.sent", "message.delivered"]
    row = await room.row(message)
    assert (row["claim_token"], row["next_attempt_at"], row["tries"]) == (None, None, 1)


@pytest.mark.covers("edge:J28")
async def test_the_breaker(room: MailRoom) -> None:
    async with FakeMx(drop_after_dot=True) as mx:
        room.net.add("example.com", mx)
        dispatcher = room.dispatcher()
        for _ in range(3):
            await room.accept("anna@example.com")
            await dispatcher.run_due()
        waiting = [await room.accept("anna@example.com") for _ in range(2)]
        await dispatcher.run_due()
        assert len(mx.messages) == 3
        assert [await room.status(one) for one in waiting] == ["queued", "queued"]
        assert (await room.row(waiting[0]))["tries"] == 0
        # After five minutes one message goes as a probe, and opens it for twice as long.
        room.clock.advance(301)
        await dispatcher.run_due()
        assert len(mx.messages) == 4
        async with room.db.acquire() as conn:
            row = await conn.fetchrow("SELECT * FROM breakers")
        assert row is not None
        assert (row["scope"], row["open_count"]) == ("direct:mx0.example.com", 2)
        assert (row["open_until"] - room.clock.now()).total_seconds() == 600
        mx.drop_after_dot = False
        for _ in range(10):
            room.clock.advance(300)
            await dispatcher.run_due()
        async with room.db.acquire() as conn:
            assert await conn.fetchval("SELECT count(*) FROM breakers") == 0
        assert len(mx.delivered) == 1
    assert sorted([await room.status(one) for one in waiting]) == ["delivered", "uncertain"]


@pytest.mark.covers("edge:G3", "edge:J28")
async def test_what_waits_on_our_side_for_a_day_has_failed(room: MailRoom) -> None:
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE tenants SET status = 'suspended'")
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        room.net.add("example.org", mx)
        message = await room.accept("anna@example.com", "anna@example.org")
        async with room.db.acquire() as conn:
            await conn.execute("UPDATE outbound_messages SET provider_message_id = 'direct:x'")
        dispatcher = room.dispatcher()
        for _ in range(40):
            await dispatcher.run_due()
            room.clock.advance(3600)
        assert mx.connections == 0
    row = await room.row(message, "anna@example.com")
    assert (row["status"], row["reason"], row["parked_at"]) == ("failed", "quota_exhausted", None)


async def test_a_sender_who_is_stopped_before_anything_was_sent(room: MailRoom) -> None:
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        async with room.db.acquire() as conn:
            await conn.execute("UPDATE identities SET status = 'paused'")
        await room.dispatcher().run_due()
        assert mx.connections == 0
    assert await room.status(message) == "canceled"
    assert [kind for kind, _ in await room.events(message)] == ["message.canceled"]


@pytest.mark.covers("mail-server:C2")
async def test_the_bytes_go_when_nothing_waits(room: MailRoom) -> None:
    async with FakeMx(replies={"later@example.org": ["451 Later", "250 Ok"]}) as mx:
        room.net.add("example.com", mx)
        room.net.add("example.org", mx)
        message = await room.accept("anna@example.com", "later@example.org")
        key = await room.wire_key(message)
        assert key is not None
        dispatcher = room.dispatcher()
        await dispatcher.run_due()
        assert await room.wire_key(message) == key
        room.clock.advance(70)
        await dispatcher.run_due()
    assert await room.wire_key(message) is None
    with pytest.raises(BlobMissing):
        await room.blobs.get(key)


@pytest.mark.parametrize("lines", [5, 2000])
async def test_bytes_that_cannot_be_read_to_their_end(
    room: MailRoom, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    stream = room.blobs.stream

    async def broken(key: str, *arguments: Any) -> AsyncIterator[bytes]:
        async for piece in stream(key, 100):
            yield piece
            raise StorageError("EIO")

    async def unreadable(key: str) -> bytes:
        raise StorageError("EIO")

    async def none(keys: Sequence[str]) -> list[StorageError]:
        return [StorageError("EIO") for _ in keys]

    # What is small is read at once, and beforehand.
    monkeypatch.setattr(room.blobs, "get_many", none)
    monkeypatch.setattr(room.blobs, "stream", broken)
    monkeypatch.setattr(room.blobs, "get", unreadable)
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com", body=("x" * 70 + "\r\n") * lines)
        await room.dispatcher().run_due()
        assert mx.messages == []
    row = await room.row(message)
    assert (row["status"], row["enhanced_code"], row["data_started_at"]) == ("deferred", "4.3.0", None)


async def test_a_way_out_that_is_not_configured(room: MailRoom) -> None:
    message = await room.accept("anna@example.com", route=RouteKind.SMARTHOST)
    await room.dispatcher().run_due()
    row = await room.row(message)
    assert (row["status"], row["tries"]) == ("queued", 0)
    assert row["next_attempt_at"] > room.clock.now()


async def test_a_transport_that_breaks_down(room: MailRoom) -> None:
    class Broken:
        async def attempt(self, parcel: Parcel) -> Attempt:
            await parcel.begin([parcel.group.ids[0]])
            raise ZeroDivisionError

        async def close(self) -> None:
            pass

    room.transports[RouteKind.DIRECT] = Broken()
    message = await room.accept("anna@example.com", "bob@example.com")
    await room.dispatcher().run_due()
    # What was begun may have been sent; what was not begun was not.
    assert await room.deliveries(message) == {"anna@example.com": "uncertain", "bob@example.com": "deferred"}
    assert (await room.row(message, "anna@example.com"))["reason"] == "provider_outcome_unknown"


async def test_bytes_that_are_gone(room: MailRoom) -> None:
    message = await room.accept("anna@example.com")
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        await room.blobs.delete([str(await room.wire_key(message))])
        await room.dispatcher().run_due()
        assert mx.messages == []
    row = await room.row(message)
    assert (row["status"], row["reason"]) == ("failed", "local_fault")
    assert [kind for kind, _ in await room.events(message)] == ["message.failed"]


@pytest.mark.covers("edge:C4", "FR-OUT-9")
async def test_the_threads_lock_is_given_back(room: MailRoom) -> None:
    async def owner() -> str | None:
        async with room.db.acquire() as conn:
            found: str | None = await conn.fetchval("SELECT lock_owner FROM threads")
        return found

    async with FakeMx(replies={"RCPT": ["451 Later"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com", lock_thread=True)
        assert await owner() == message
        async with room.db.acquire() as conn:
            (held,) = await claiming.claim(conn, now=room.clock.now(), room=Room(10, {}))
            until_ = await conn.fetchval("SELECT lock_until FROM threads")
            assert until_ >= room.clock.now() + claiming.LEASE
            await claiming.put_back(conn, [held], at=room.clock.now())
        await room.dispatcher().run_due()
    assert await owner() is None


@pytest.mark.covers("edge:G2", "decisions:B15")
async def test_nothing_further_goes_out_while_results_cannot_be_written(room: MailRoom) -> None:
    """Whatever had gone out would be uncertain, should the process be killed before it comes to write it down."""

    class Away:
        failures = 0
        is_away = True

        def __getattr__(self, name: str) -> Any:
            return getattr(room.db, name)

        @asynccontextmanager
        async def transaction(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
            if self.is_away:
                self.failures += 1
                raise DatabaseUnavailable("away")
            async with room.db.transaction(*args, **options) as conn:
                yield conn

    db = Away()
    outcomes = Outcomes(
        db,  # type: ignore[arg-type] # stands for the database
        room.blobs,
        room.clock,
        room.ids,
        random=lambda: 0.5,
        changed=lambda *_: None,
        noticed=lambda: None,
    )
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        first = await room.accept("anna@example.com")
        dispatcher = replace(room, outcomes=outcomes).dispatcher(DispatchLimits(poll=0.02))
        running = asyncio.create_task(dispatcher.run())
        await until(lambda: db.failures > 1)
        second = await room.accept("bert@example.com")
        dispatcher.wake()
        await until(lambda: mx.commands.count("DATA") == 2)
        seen = db.failures
        await until(lambda: db.failures > seen)
        assert len(mx.messages) == 1
        db.is_away = False
        await until(lambda: len(mx.delivered) == 2)
        await dispatcher.drain(10)
        await running
    assert [await room.status(one) for one in (first, second)] == ["delivered", "delivered"]
