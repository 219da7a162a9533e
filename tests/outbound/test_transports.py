"""Ways by which mail leaves: direct with and without TLS, the relay, mailboxes here, the simulator."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from postroom.base.clock import ManualClock, SystemClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.directory.models import Refusal
from postroom.inbound.parsing import Parser
from postroom.inbound.receive import MAILBOX_FULL, Receiver
from postroom.mailbox.ingest import Ingest
from postroom.net import tls
from postroom.outbound.models import Operation, RouteKind
from postroom.outbound.transports.link import Timeouts, TlsUse
from postroom.outbound.transports.local import Local
from postroom.outbound.transports.pool import Links
from postroom.outbound.transports.smarthost import Smarthost, SmarthostConfig
from postroom.smtp import replies
from postroom.smtp.schedule import Route
from tests.inbound.fakes import To, reader
from tests.mailbox.letters import check_mailbox, make_boxes
from tests.outbound.fake_mx import FakeMx
from tests.outbound.mail_room import HOSTNAME, SOON, MailRoom


@pytest.fixture
async def room(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[MailRoom]:
    made = await MailRoom.open(db, clock, ids, tmp_path / "blobs")
    yield made
    async with db.acquire() as conn:
        await check_mailbox(conn, made.box.ref)
    await made.close()


@pytest.fixture
def certificate(tmp_path: Path) -> tls.Certificate:
    return tls.certificate(None, None, data_dir=tmp_path / "tls", hostnames=("relay.example",), now=SystemClock().now())


@pytest.fixture
def server_context(certificate: tls.Certificate) -> ssl.SSLContext:
    return tls.server_context(certificate)


@pytest.fixture
def trusting(certificate: tls.Certificate) -> ssl.SSLContext:
    """A context that trusts the test's certificate, names checked."""
    context = ssl.create_default_context(cafile=str(certificate.cert_path))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


@pytest.mark.covers("mail-server:C5", "decisions:B8")
def test_timeouts() -> None:
    direct, relay = Timeouts.of(Route.DIRECT), Timeouts.of(Route.SMARTHOST)
    assert (direct.connect, direct.command, direct.final, direct.attempt) == (30, 30, 600, 840)
    assert (relay.connect, relay.command, relay.final, relay.attempt) == (10, 30, 60, 240)


# -- direct -----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("mail-server:C5", "RFC 3207 §4")
async def test_tls_where_it_is_offered_whatever_the_certificate(room: MailRoom, server_context: ssl.SSLContext) -> None:
    async with FakeMx(tls=server_context) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        await room.dispatcher().run_due()
        assert (len(mx.delivered), mx.secured) == (1, 1)
        assert mx.commands[:3] == [f"EHLO {HOSTNAME}", "STARTTLS", f"EHLO {HOSTNAME}"]
    assert await room.status(message) == "delivered"


@pytest.mark.covers("mail-server:C5")
async def test_tls_that_is_refused_or_fails(room: MailRoom, server_context: ssl.SSLContext) -> None:
    broken = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # without a certificate no handshake succeeds
    async with (
        FakeMx(tls=server_context, replies={"STARTTLS": ["454 4.7.0 Not now"]}) as refusing,
        FakeMx(tls=broken) as failing,
        FakeMx() as plain,
    ):
        room.net.add("refusing.example", refusing)
        room.net.add("failing.example", failing, plain)
        room.net.add("hopeless.example", failing)
        message = await room.accept("a@refusing.example", "a@failing.example", "a@hopeless.example")
        await room.dispatcher().run_due()
        assert (len(refusing.delivered), len(plain.delivered), failing.messages) == (1, 1, [])
    assert await room.deliveries(message) == {
        "a@refusing.example": "delivered",
        "a@failing.example": "delivered",
        "a@hopeless.example": "deferred",
    }
    assert (await room.row(message, "a@hopeless.example"))["enhanced_code"] == "4.7.5"


EIGHT = (
    "From: Box <box@agents.example>\r\nTo: a@example.com\r\nSubject: x\r\nMIME-Version: 1.0\r\n"
    "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\nGrüße\r\n"
).encode()


@pytest.mark.covers("mail-server:C5", "RFC 6152 §3")
async def test_eight_bits(room: MailRoom) -> None:
    async with FakeMx() as able, FakeMx(extensions=("PIPELINING",)) as unable:
        room.net.add("able.example", able)
        room.net.add("unable.example", unable)
        await room.accept("a@able.example", "a@unable.example", raw=EIGHT, eight_bit=True)
        await room.dispatcher().run_due()
        (sent,), (converted,) = able.delivered, unable.delivered
    assert sent.data == EIGHT
    assert "BODY=8BITMIME" in sent.parameters
    assert converted.data.isascii()
    assert b"Gr=C3=BC=C3=9Fe" in converted.data
    assert converted.parameters == []


@pytest.mark.covers("mail-server:C5")
async def test_eight_bits_that_have_no_other_form(room: MailRoom) -> None:
    raw = EIGHT.replace(b"text/plain; charset=utf-8", b"multipart/signed; boundary=x")
    raw = raw.replace("Grüße".encode(), "--x\r\n\r\nGrüße\r\n--x--".encode())
    async with FakeMx(extensions=()) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("a@example.com", raw=raw, eight_bit=True)
        await room.dispatcher().run_due()
        assert mx.messages == []
    row = await room.row(message)
    assert (row["status"], row["enhanced_code"], row["bounce_type"]) == ("bounced", "5.6.3", "soft")


@pytest.mark.covers("mail-server:C5", "RFC 6531 §3.1")
async def test_an_international_address_fails_alone_where_it_is_not_understood(room: MailRoom) -> None:
    async with FakeMx(extensions=("8BITMIME",)) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("jürgen@example.com", "anna@example.com")
        await room.dispatcher().run_due()
        assert mx.messages[0].recipients == ["anna@example.com"]
    row = await room.row(message, "jürgen@example.com")
    assert (row["status"], row["enhanced_code"]) == ("bounced", "5.6.7")


@pytest.mark.covers("mail-server:C5", "RFC 1870")
async def test_what_is_too_large_is_not_sent(room: MailRoom) -> None:
    async with FakeMx(extensions=("SIZE 100",)) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com", body="x" * 200)
        await room.dispatcher().run_due()
        assert not [command for command in mx.commands if command.startswith("MAIL")]
    assert (await room.row(message))["enhanced_code"] == "5.3.4"


async def test_connections_are_used_again(room: MailRoom) -> None:
    async with FakeMx(replies={"RCPT": ["250 Ok", "550 5.1.1 No", "250 Ok"]}) as mx:
        room.net.add("example.com", mx)
        for _ in range(4):
            await room.accept("anna@example.com")
            await room.dispatcher().run_due()
        assert (mx.connections, len(mx.delivered)) == (1, 3)
        assert "RSET" in mx.commands


@pytest.mark.covers("mail-server:C5")
async def test_the_way_is_looked_up_once_for_what_goes_together(room: MailRoom) -> None:
    async with FakeMx() as mx, FakeMx() as other:
        where = room.net.add("example.com", mx)
        for _ in range(3):
            await room.accept("anna@example.com")
        await room.dispatcher().run_due()
        assert (len(mx.delivered), room.net.dns.asked.count("example.com")) == (3, 1)
        # A way that leads nowhere is not kept.
        await room.transports[RouteKind.DIRECT].close()
        room.net.ports[where] = 0
        message = await room.accept("anna@example.com")
        await room.dispatcher().run_due()
        assert await room.status(message) == "deferred"
        room.net.ports[where] = other.port
        room.clock.advance(120)
        await room.dispatcher().run_due()
        assert (len(other.delivered), room.net.dns.asked.count("example.com")) == (1, 2)


async def test_a_connection_that_was_closed_meanwhile_is_no_failure(room: MailRoom) -> None:
    async with FakeMx(replies={"MAIL": ["250 Ok", "421 4.4.2 Idle for too long", "250 Ok"]}) as mx:
        room.net.add("example.com", mx)
        first, second = await room.accept("anna@example.com"), None
        await room.dispatcher().run_due()
        second = await room.accept("anna@example.com")
        await room.dispatcher().run_due()
        assert (mx.connections, len(mx.delivered)) == (2, 2)
    assert (await room.row(second))["tries"] == 1
    assert await room.status(first) == await room.status(second) == "delivered"


@pytest.mark.covers("RFC 5321 §4.5.3.1.8", "RFC 9422")
@pytest.mark.parametrize(
    ("extensions", "transactions"), [(("PIPELINING",), 3), (("PIPELINING", "LIMITS RCPTMAX=50"), 5)]
)
async def test_many_recipients_in_several_transactions(
    room: MailRoom, extensions: tuple[str, ...], transactions: int
) -> None:
    async with FakeMx(extensions=extensions) as mx:
        room.net.add("example.com", mx)
        message = await room.accept(*(f"r{n}@example.com" for n in range(250)))
        assert await room.dispatcher().run_due() == 1
        assert (mx.connections, len(mx.delivered)) == (1, transactions)
        assert sum(len(one.recipients) for one in mx.delivered) == 250
    assert set((await room.deliveries(message)).values()) == {"delivered"}


@pytest.mark.covers("mail-server:C5")
async def test_connections_to_a_host_are_limited(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path
) -> None:
    room = await MailRoom.open(db, clock, ids, tmp_path, links=Links(2))
    async with FakeMx(delay=0.005) as mx:
        # Twenty domains with the same host.
        for n in range(20):
            room.net.add(f"d{n}.example", mx, address="8.8.8.8")
        messages = [await room.accept(f"a@d{n}.example") for n in range(20)]
        dispatcher = room.dispatcher()
        for _ in range(40):
            await dispatcher.run_due()
            clock.advance(1)
        assert mx.most_open <= 2
        assert len(mx.delivered) == 20
    assert [await room.status(one) for one in messages] == ["delivered"] * 20
    assert all([(await room.row(one))["tries"] == 1 for one in messages]), "waiting for a connection is no try"
    await room.close()


# -- the relay --------------------------------------------------------------------------------------------------------


def relay(room: MailRoom, mx: FakeMx, context: ssl.SSLContext | None, **changes: Any) -> Smarthost:
    room.net.ports["relay.example"] = mx.port
    config = SmarthostConfig(HOSTNAME, "relay.example", username="user", password="secret", timeouts=SOON)
    made = Smarthost(replace(config, **changes), room.breakers, room.clock, connect=room.net.connect, context=context)
    room.transports[RouteKind.SMARTHOST] = made
    return made


@pytest.mark.covers("mail-server:C6", "edge:N20")
async def test_the_relay_takes_all_recipients_at_once(
    room: MailRoom, server_context: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    answers: dict[str, list[str | None]] = {
        "gone@example.com": ["550 5.1.1 No"],
        "later@example.org": ["450 4.2.0 Later", "250 Ok"],
    }
    async with FakeMx(tls=server_context, credentials=("user", "secret"), replies=answers) as mx:
        relay(room, mx, trusting)
        names = ("anna@example.com", "gone@example.com", "later@example.org")
        message = await room.accept(*names, route=RouteKind.SMARTHOST)
        dispatcher = room.dispatcher()
        assert await dispatcher.run_due() == 1
        assert await room.deliveries(message) == {
            "anna@example.com": "submitted",
            "gone@example.com": "rejected",
            "later@example.org": "queued",
        }
        assert await room.status(message) == "queued"
        assert [kind for kind, _ in await room.events(message)] == []
        room.clock.advance(70)
        assert await dispatcher.run_due() == 1
        first, second = mx.delivered
        assert (first.recipients, second.recipients) == (["anna@example.com"], ["later@example.org"])
        assert first.data == second.data, "the same Message-ID"
        assert (mx.connections, mx.secured) == (2, 2)
        auth = next(command for command in mx.commands if command.startswith("AUTH"))
        assert auth == "AUTH PLAIN AHVzZXIAc2VjcmV0"
    assert await room.status(message) == "submitted"
    state = await room.state(message)
    assert (state.provider, state.provider_message_id) == ("smtp", f"smtp:relay.example:{message}@agents.example")
    ((kind, data),) = await room.events(message)
    assert (kind, data["provider"]) == ("message.sent", "smtp")


@pytest.mark.covers("mail-server:C6", "edge:N14", "edge:N16")
@pytest.mark.parametrize("trouble", ["auth", "no_auth", "no_tls", "certificate"])
async def test_what_is_wrong_with_the_relay_waits_for_its_operator(
    room: MailRoom, server_context: ssl.SSLContext, trusting: ssl.SSLContext, trouble: str
) -> None:
    mx = FakeMx(tls=server_context, credentials=("user", "secret"))
    match trouble:
        case "auth":
            mx.replies["AUTH"] = ["535 5.7.8 Wrong"]
        case "no_auth":
            mx.credentials = None
        case "no_tls":
            mx.tls = None
        case "certificate":
            trusting = ssl.create_default_context()
    async with mx:
        relay(room, mx, trusting)
        message = await room.accept("anna@example.com", route=RouteKind.SMARTHOST)
        await room.dispatcher().run_due()
        assert mx.messages == []
        assert trouble == "auth" or not [command for command in mx.commands if command.startswith("AUTH")]
    row = await room.row(message)
    assert (row["status"], await room.status(message)) == ("queued", "queued")
    assert row["next_attempt_at"] > room.clock.now()
    assert not room.noticed


@pytest.mark.covers("mail-server:C6", "edge:N15")
async def test_a_relay_over_implicit_tls_that_is_lost(
    room: MailRoom, server_context: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    async with FakeMx(drop_after_dot=True) as mx:
        secure = await asyncio.start_server(mx._serve, "127.0.0.1", 0, ssl=server_context)
        relay(room, mx, trusting, tls=TlsUse.IMPLICIT, username="", password="")
        room.net.ports["relay.example"] = secure.sockets[0].getsockname()[1]
        message = await room.accept("anna@example.com", route=RouteKind.SMARTHOST)
        await room.dispatcher().run_due()
        secure.close()
    assert await room.status(message) == "uncertain"


@pytest.mark.covers("edge:N16")
@pytest.mark.parametrize("use", [TlsUse.NONE, TlsUse.OPPORTUNISTIC])
def test_credentials_need_tls(use: TlsUse) -> None:
    with pytest.raises(ValueError):
        SmarthostConfig(HOSTNAME, "relay.example", tls=use, username="user", password="secret")


# -- mailboxes here ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("edge:G11", "mail-server:C5")
async def test_mail_within_the_deployment(room: MailRoom) -> None:
    one, two, full = await make_boxes(room.db, room.ids, room.clock, 3)
    known = {
        box.address: To(box.address, box.ref.mailbox_id, box.ref.tenant_id, box.tenant_id, box.identity_id)
        for box in (one, two, full)
    }
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE mailboxes SET quota_bytes = 10 WHERE id = $1", full.ref.mailbox_id)

    async def resolve(address: str, mail_from: str) -> To | Refusal:
        if address.startswith("later@"):
            return Refusal(451, "4.3.0", "Temporary local problem, please try again later")
        return known.get(address) or Refusal(550, "5.1.1", "No such user here")

    async def nobody(address: str) -> To | None:
        return None

    ingest = Ingest(room.db, room.blobs, room.clock, committed=lambda _: None)
    ingest.start()
    receiver = Receiver(
        ingest,
        Parser(),
        room.clock,
        room.ids,
        hostname=HOSTNAME,
        version="1",
        local_mailbox=nobody,
        tokens=reader(room.clock),
    )
    local = Local(resolve, receiver.receive, room.clock, hostname=HOSTNAME, new_id=lambda group: "local:1")
    room.transports[RouteKind.LOCAL] = local
    domain = one.address.rpartition("@")[2]
    names = (one.address, two.address, full.address, f"gone@{domain}", f"later@{domain}")
    message = await room.accept(*names, route=RouteKind.LOCAL)
    async with room.db.acquire() as conn:
        # A worker that dies after handing over: what it did is done again, and nobody has it twice.
        await conn.execute("CREATE TABLE dead AS SELECT * FROM deliveries")
    await room.dispatcher().run_due()
    expected = {
        one.address: "delivered",
        two.address: "delivered",
        full.address: "bounced",
        f"gone@{domain}": "bounced",
        f"later@{domain}": "deferred",
    }
    assert await room.deliveries(message) == expected
    assert (await room.row(message, full.address))["enhanced_code"] == "5.2.2"
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE deliveries d SET status = 'queued', next_attempt_at = $1", room.clock.now())
    await room.dispatcher().run_due()
    await ingest.stop()
    async with room.db.acquire() as conn:
        rows = await conn.fetch("SELECT * FROM messages WHERE source = 'mx' ORDER BY id")
        assert [row["mailbox_id"] for row in rows] == [one.ref.mailbox_id, two.ref.mailbox_id]
        for box in (one, two, full):
            await check_mailbox(conn, box.ref)
    raw = await room.blobs.get(rows[0]["blob_key"])
    assert raw.startswith(f"Return-Path: <{room.box.address}>\r\nReceived: from {HOSTNAME} (local)".encode())
    kinds = [kind for kind, _ in await room.events(message)]
    assert kinds[:3] == ["message.sent", "message.delivered", "message.delivered"]


async def test_a_mailbox_that_fills_up_is_alone_with_that(room: MailRoom) -> None:
    async def resolve(address: str, mail_from: str) -> To:
        return To(address, len(address))

    async def receive(envelope: Any, raw: bytes, *, loopback: int | None) -> Any:
        full = any(address.startswith("full@") for address, _ in envelope.recipients)
        return MAILBOX_FULL if full else replies.queued("msg_1")

    room.transports[RouteKind.LOCAL] = Local(
        resolve, receive, room.clock, hostname=HOSTNAME, new_id=lambda group: "local:1"
    )
    message = await room.accept("a@agents.example", "full@agents.example", route=RouteKind.LOCAL)
    await room.dispatcher().run_due()
    assert await room.deliveries(message) == {"a@agents.example": "delivered", "full@agents.example": "bounced"}


# -- the simulator ----------------------------------------------------------------------------------------------------

_SENT, _DELIVERED, _BOUNCED, _DEFERRED = "message.sent", "message.delivered", "message.bounced", "message.deferred"


@pytest.mark.covers("edge:L2", "FR-OUT-12")
@pytest.mark.parametrize(
    ("local", "statuses", "events"),
    [
        # At once, after a second, after three.
        ("delivered", ("submitted", "delivered", "delivered"), [_SENT, _DELIVERED]),
        ("whoever", ("submitted", "delivered", "delivered"), [_SENT, _DELIVERED]),
        ("bounce", ("submitted", "bounced", "bounced"), [_SENT, _BOUNCED]),
        ("softbounce", ("submitted", "deferred", "bounced"), [_SENT, _DEFERRED, _BOUNCED]),
        ("complaint", ("submitted", "delivered", "complained"), [_SENT, _DELIVERED, "message.complained"]),
        ("deferred", ("submitted", "deferred", "deferred"), [_SENT, _DEFERRED]),
        ("reject", ("rejected", "rejected", "rejected"), ["message.rejected"]),
        ("timeout", ("uncertain", "uncertain", "uncertain"), ["message.uncertain"]),
    ],
)
async def test_the_simulator(room: MailRoom, local: str, statuses: tuple[str, ...], events: list[str]) -> None:
    message = await room.accept(f"{local}@simulator.invalid", route=RouteKind.SIMULATOR)
    seen = []
    for pause in (0, 1, 2, 86400):
        room.clock.advance(pause)
        # Each time another process, to which only what is stored is known.
        await room.dispatcher().run_due()
        seen.append(await room.status(message))
    assert tuple(seen[:3]) == statuses
    assert seen[3] == seen[2]
    told = await room.events(message)
    assert [kind for kind, _ in told] == events
    assert all(data.get("provider") == "simulator" for kind, data in told if kind == _SENT)
    assert await room.wire_key(message) is None or room.noticed
    if local == "reject":
        assert told[0][1] == {"message_id": message, "reason": "provider_validation", "detail": "E_SIMULATED_REJECT"}
    if local == "bounce":
        assert (told[1][1]["bounce_type"], told[1][1]["smtp_code"]) == ("hard", "550")


@pytest.mark.covers("edge:L2")
@pytest.mark.parametrize(
    ("locals_", "status"),
    [("delivered reject timeout", "rejected"), ("delivered timeout", "uncertain"), ("delivered bounce", "submitted")],
)
async def test_several_simulated_recipients(room: MailRoom, locals_: str, status: str) -> None:
    names = [f"{local}@simulator.invalid" for local in locals_.split()]
    message = await room.accept(*names, route=RouteKind.SIMULATOR)
    await room.dispatcher().run_due()
    assert await room.status(message) == status
    assert len(set((await room.deliveries(message)).values())) == 1


@pytest.mark.covers("mail-server:C5")
async def test_unknown_outcomes_may_be_tried_again_if_the_operator_says_so(room: MailRoom) -> None:
    room.outcomes._retry_unknown = True
    async with FakeMx(drop_after_dot=True) as mx:
        room.net.add("example.com", mx)
        submitted = await room.accept("anna@example.com", operation=Operation.SUBMISSION)
        sent = await room.accept("anna@example.com")
        await room.dispatcher().run_due()
    assert (await room.status(submitted), await room.status(sent)) == ("deferred", "uncertain")


@pytest.mark.covers("mail-server:C5")
async def test_a_fault_in_the_second_transaction_is_not_one_of_the_first(
    room: MailRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = 0
    start = room.outcomes.start

    async def once(*arguments: Any) -> bool:
        nonlocal begun
        begun += 1
        if begun > 1:
            raise ConnectionResetError
        return await start(*arguments)

    monkeypatch.setattr(room.outcomes, "start", once)
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        message = await room.accept(*(f"r{n}@example.com" for n in range(120)))
        await room.dispatcher().run_due()
        statuses = list((await room.deliveries(message)).values())
        assert (statuses.count("delivered"), statuses.count("deferred")) == (100, 20)
        assert [len(one.recipients) for one in mx.delivered] == [100]


@pytest.mark.covers("mail-server:C5")
async def test_a_peer_that_stops_reading_has_not_got_the_message(
    db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path
) -> None:
    short = replace(SOON, final=1.0, block=1.0)
    room = await MailRoom.open(db, clock, ids, tmp_path, timeouts=short)
    connect = room.net.connect

    async def narrow(*arguments: Any) -> Any:
        transport = await connect(*arguments)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        return transport

    room.transports[RouteKind.DIRECT]._connect = narrow  # type: ignore[attr-defined] # the test's way in
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mx.example\r\n")
        while line := await reader.readline():
            writer.write(b"354 Go on\r\n" if line == b"DATA\r\n" else b"250 Ok\r\n")
            if line == b"DATA\r\n":
                writer.transport.pause_reading()  # type: ignore[attr-defined] # it is a socket's
                await asyncio.sleep(4)
                writer.transport.abort()
                return

    server = await asyncio.start_server(speak, sock=listening)
    room.net.ports[room.net.add("example.com", None)] = listening.getsockname()[1]
    head = b"From: Box <box@agents.example>\r\nTo: anna@example.com\r\nMessage-ID: <big@agents.example>\r\n\r\n"
    message = await room.accept("anna@example.com", raw=head + (b"x" * 70 + b"\r\n") * 3000)
    await room.dispatcher().run_due()
    assert await room.deliveries(message) == {"anna@example.com": "deferred"}
    server.close()
    await room.close()
