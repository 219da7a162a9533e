import asyncio
import contextlib
import smtplib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from postroom.servers.smtp import ListenerLimits, MxListener
from postroom.smtp import Reply, ServerConfig

Start = Callable[..., Awaitable[MxListener[str]]]

_MESSAGE = b"From: ann@example.com\r\nSubject: hello\r\n\r\nOne.\r\n.two\r\n"
_TRANSACTION = b"MAIL FROM:<ann@example.com>\r\nRCPT TO:<bot@agents.example>\r\n"


class Client:
    """A client that shows every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, listener: MxListener[str], *, greet: bool = True) -> "Client":
        client = cls(*await asyncio.open_connection("127.0.0.1", listener.port))
        if greet:
            assert (await client.reply()).startswith("220 ")
            assert (await client.ask(b"EHLO client.example\r\n")).startswith("250 ")
        return client

    async def reply(self) -> str:
        """The last line of the next reply, or nothing at the end of the connection."""
        while True:
            line = (await asyncio.wait_for(self.reader.readline(), 20)).decode()
            if line[3:4] != "-":
                return line.strip()

    async def ask(self, data: bytes) -> str:
        self.writer.write(data)
        return await self.reply()

    async def codes(self, data: bytes, count: int) -> list[str]:
        self.writer.write(data)
        return [(await self.reply())[:3] for _ in range(count)]

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), 20)

    def close(self) -> None:
        self.writer.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  what is waited for is the server's, which has no event for tests
            await asyncio.sleep(0.005)


@pytest.mark.covers("mail-server:A1", "mail-server:A8")
async def test_smtplib_delivers(start: Start, deployment: Any) -> None:
    listener = await start()

    def send() -> dict[str, Any]:
        with smtplib.SMTP("127.0.0.1", listener.port, "client.example", timeout=20) as client:
            return client.sendmail(
                "Ann@example.com", ["Bot+x@Agents.example", "no@agents.example"], _MESSAGE, ["BODY=8BITMIME"]
            )

    assert await asyncio.to_thread(send) == {"no@agents.example": (550, b"5.1.1 No such user here")}
    ((envelope, raw),) = deployment.messages
    assert raw == _MESSAGE
    assert envelope.mail_from == "Ann@example.com"
    assert envelope.recipients == (("Bot+x@agents.example", "mailbox of bot+x@agents.example"),)
    assert (envelope.helo, envelope.peer_ip, envelope.peer_name) == ("client.example", "127.0.0.1", None)
    assert (envelope.esmtp, envelope.tls, envelope.smtputf8, envelope.body_8bit) == (True, False, False, True)
    assert envelope.declared_size == len(_MESSAGE)
    assert envelope.received_at.tzinfo is not None
    address, session = deployment.resolved[0]
    assert address == "bot+x@agents.example"
    assert session.connection_id == envelope.connection_id
    assert session.mail_from == "Ann@example.com"


@pytest.mark.covers("mail-server:A5")
async def test_smtplib_under_tls(
    start: Start, deployment: Any, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    listener = await start(tls=server_tls)
    large = _MESSAGE + b"x" * 78 + b"\r\n"
    large += b"y" * 76 + b"\r\n"
    large *= 4000

    def send() -> None:
        with smtplib.SMTP("127.0.0.1", listener.port, timeout=20) as client:
            client.starttls(context=client_tls)
            assert not client.has_extn("starttls") or client.ehlo()
            assert not client.has_extn("starttls")
            client.sendmail("ann@example.com", ["bot@agents.example"], large)
            client.sendmail("ann@example.com", ["bot@agents.example"], _MESSAGE)

    await asyncio.to_thread(send)
    assert [raw for _, raw in deployment.messages] == [large, _MESSAGE]
    assert all(envelope.tls for envelope, _ in deployment.messages)
    await _until(lambda: listener.connection_count == 0)


@pytest.mark.covers("mail-server:A5")
async def test_failed_handshake_closes(start: Start, server_tls: ssl.SSLContext) -> None:
    listener = await start(tls=server_tls)
    client = await Client.connect(listener)
    assert (await client.ask(b"STARTTLS\r\n")).startswith("220 2.0.0")
    client.writer.write(b"EHLO in the clear\r\n" * 10)
    with contextlib.suppress(ConnectionError):
        assert b"250" not in await client.rest()
    await _until(lambda: listener.connection_count == 0)


@pytest.mark.covers("mail-server:A5")
async def test_starttls_injection(start: Start, server_tls: ssl.SSLContext, deployment: Any) -> None:
    listener = await start(tls=server_tls)
    client = await Client.connect(listener)
    client.writer.write(b"STARTTLS\r\n" + _TRANSACTION)
    assert await client.rest() == b"554 5.5.1 Pipelining violated\r\n"
    assert deployment.resolved == []
    client.close()


@pytest.mark.covers("mail-server:A5")
async def test_commands_in_the_packet_that_ends_the_handshake(
    start: Start, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    client = await Client.connect(await start(tls=server_tls))
    assert await client.codes(b"MAIL FROM:<a@example.com>\r\nRCPT TO:<bot@agents.example>\r\nSTARTTLS\r\n", 3) == [
        *("250", "250", "220")
    ]
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_tls.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            client.writer.write(outgoing.read())
            incoming.write(await client.reader.read(1 << 16))
    tls.write(b"EHLO client.example\r\nMAIL FROM:<ann@example.com>\r\nQUIT\r\n")
    client.writer.write(outgoing.read())
    answer = b""
    while not answer.endswith(b"221 2.0.0 Bye\r\n"):
        incoming.write(await asyncio.wait_for(client.reader.read(1 << 16), 20))
        try:
            answer += tls.read()
        except ssl.SSLWantReadError:
            continue
    assert answer.startswith(b"250-mx.example.com\r\n")
    assert b"STARTTLS" not in answer
    assert answer.endswith(b"250 HELP\r\n250 2.1.0 Sender ok\r\n221 2.0.0 Bye\r\n")
    client.close()


@pytest.mark.covers("mail-server:A2", "mail-server:A9")
@pytest.mark.parametrize("end", [b"\n.\n", b"\n.\r\n", b"\r.\r\n", b"\r\n.\n", b"\r\n.\r"])
async def test_smuggling(start: Start, deployment: Any, end: bytes) -> None:
    client = await Client.connect(await start())
    assert await client.codes(_TRANSACTION + b"DATA\r\n", 3) == ["250", "250", "354"]
    # More than a socket buffers is on its way when the refusal comes; it must arrive all the same.
    smuggled = b"MAIL FROM:<evil@example.com>\r\nRCPT TO:<bot@agents.example>\r\nDATA\r\nx\r\n.\r\n"
    client.writer.write(b"Subject: x\r\n\r\nbody" + end + smuggled + b"padding\r\n" * 20_000)
    assert await client.rest() == b"554 5.5.1 Bare CR or LF in message data\r\n"
    assert deployment.messages == []
    client.close()


@pytest.mark.covers("mail-server:A7", "edge:B1", "FR-IN-3")
async def test_oversize(start: Start, deployment: Any) -> None:
    client = await Client.connect(await start(config=ServerConfig("mx.example.com", max_message_size=100_000)))
    assert (await client.ask(b"MAIL FROM:<ann@example.com> SIZE=100001\r\n")).startswith("552 5.3.4")
    await client.codes(_TRANSACTION + b"DATA\r\n", 3)
    assert (await client.ask(b"x" * 500_000 + b"\r\n.\r\n")).startswith("552 5.3.4")
    assert await client.codes(_TRANSACTION + b"DATA\r\n", 3) == ["250", "250", "354"]
    assert (await client.ask(_MESSAGE + b".\r\n")).startswith("250 2.0.0")
    assert len(deployment.messages) == 1
    client.close()


@pytest.mark.covers("mail-server:A2")
async def test_pipelined_burst_is_answered_in_order(start: Start, deployment: Any) -> None:
    client = await Client.connect(await start())
    block = [
        (b"MAIL FROM:<ann@example.com>\r\n", "250"),
        (b"RCPT TO:<bot@agents.example>\r\n", "250"),
        (b"RCPT TO:<no@agents.example>\r\n", "550"),
        (b"RCPT TO:<a@other.example>\r\n", "550"),
        (b"VRFY x\r\n", "252"),
        (b"MAIL FROM:<again@example.com>\r\n", "503"),
        (b"WHAT\r\n", "500"),
        (b"RSET\r\n", "250"),
        (b"RCPT TO:<bot@agents.example>\r\n", "503"),
        (b"NOOP\r\n", "250"),
    ] * 20
    assert await client.codes(b"".join(line for line, _ in block), len(block)) == [code for _, code in block]
    assert len(deployment.resolved) == 60
    client.close()


@pytest.mark.covers("mail-server:A2")
async def test_pipelined_transactions(start: Start, deployment: Any) -> None:
    client = await Client.connect(await start())
    bodies = [b"Subject: %d\r\n\r\nx\r\n" % number for number in range(30)]
    stream = b"".join(_TRANSACTION + b"DATA\r\n" + body + b".\r\n" for body in bodies) + b"QUIT\r\n"
    assert await client.codes(stream, 4 * 30 + 1) == ["250", "250", "354", "250"] * 30 + ["221"]
    assert await client.rest() == b""
    assert [raw for _, raw in deployment.messages] == bodies
    client.close()


async def test_truncated_data_is_dropped(start: Start, deployment: Any) -> None:
    listener = await start()
    for ending in (b"", b"x", b"\r\n.", b"\r\n.\r"):
        client = await Client.connect(listener)
        await client.codes(_TRANSACTION + b"DATA\r\n", 3)
        client.writer.write(_MESSAGE[:-2] + ending)
        await client.writer.drain()
        client.close()
    await _until(lambda: listener.connection_count == 0)
    assert deployment.messages == []


@pytest.mark.covers("edge:J1")
async def test_faults_of_the_services_are_temporary(start: Start, deployment: Any) -> None:
    client = await Client.connect(await start())
    await client.ask(b"MAIL FROM:<ann@example.com>\r\n")
    assert (await client.ask(b"RCPT TO:<crash@agents.example>\r\n")).startswith("451 4.3.0")
    await client.codes(b"RCPT TO:<bot@agents.example>\r\nDATA\r\n", 2)
    for failure in (RuntimeError("disk"), asyncio.CancelledError()):
        deployment.failure = failure
        assert (await client.ask(_MESSAGE + b".\r\n")).startswith("451 4.3.0")
        await client.codes(_TRANSACTION + b"DATA\r\n", 3)
    deployment.failure = None
    assert (await client.ask(_MESSAGE + b".\r\n")).startswith("250 2.0.0")
    assert len(deployment.messages) == 1
    client.close()


@pytest.mark.covers("mail-server:A9")
async def test_final_refusal_is_passed_on(start: Start, deployment: Any) -> None:
    deployment.final = Reply(452, "4.2.2", "Mailbox full")
    client = await Client.connect(await start())
    await client.codes(_TRANSACTION + b"DATA\r\n", 3)
    assert await client.ask(_MESSAGE + b".\r\n") == "452 4.2.2 Mailbox full"
    client.close()


async def test_overdue_decision(start: Start, deployment: Any) -> None:
    deployment.receive_gate = asyncio.Event()
    client = await Client.connect(await start(limits=ListenerLimits(receive_timeout=0.05)))
    await client.codes(_TRANSACTION + b"DATA\r\n", 3)
    assert (await client.ask(_MESSAGE + b".\r\n")).startswith("451 4.3.0")
    deployment.receive_gate.set()
    await client.codes(_TRANSACTION + b"DATA\r\n", 3)
    assert (await client.ask(_MESSAGE + b".\r\n")).startswith("250 ")
    client.close()


async def test_connection_lost_while_committing(start: Start, deployment: Any) -> None:
    deployment.receive_gate = asyncio.Event()
    listener = await start()
    client = await Client.connect(listener)
    await client.codes(_TRANSACTION + b"DATA\r\n", 3)
    client.writer.write(_MESSAGE + b".\r\n")
    await deployment.receiving.wait()
    # A reset, not an orderly end.
    sock = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()
    await _until(lambda: listener.connection_count == 0)
    deployment.receive_gate.set()
    await _until(lambda: len(deployment.messages) == 1)


async def test_half_closed_client_is_answered(start: Start, deployment: Any) -> None:
    client = await Client.connect(await start())
    client.writer.write(_TRANSACTION + b"DATA\r\n" + _MESSAGE + b".\r\n")
    client.writer.write_eof()
    assert (await client.rest()).splitlines()[-1].startswith(b"250 2.0.0 Ok")
    assert len(deployment.messages) == 1
    client.close()


@pytest.mark.covers("mail-server:A7", "mail-server:A9")
async def test_timeouts(start: Start, deployment: Any) -> None:
    listener = await start(limits=ListenerLimits(command_timeout=0.1, data_timeout=0.1))
    client = await Client.connect(listener, greet=False)
    assert (await client.rest()).endswith(b"\r\n421 4.4.2 Timeout waiting for command\r\n")
    client.close()
    client = await Client.connect(listener)
    client.writer.write(_TRANSACTION + b"DATA\r\nSubject: x\r\n")
    assert (await client.rest()).endswith(b"\r\n421 4.4.2 Timeout waiting for data\r\n")
    client.close()
    await _until(lambda: listener.connection_count == 0)
    assert deployment.messages == []


@pytest.mark.covers("mail-server:A7", "mail-server:A9")
async def test_connection_cap(start: Start) -> None:
    listener = await start(limits=ListenerLimits(max_connections=2))
    first, second = [await Client.connect(listener) for _ in range(2)]
    third = await Client.connect(listener, greet=False)
    assert await third.rest() == b"421 4.3.2 Too many connections, try again later\r\n"
    third.close()
    first.close()
    await _until(lambda: listener.connection_count == 1)
    fourth = await Client.connect(listener)
    for client in (second, fourth):
        assert (await client.ask(b"QUIT\r\n")).startswith("221 2.0.0")
        client.close()


async def test_reader_that_does_not_read(start: Start) -> None:
    listener = await start()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", listener.port))
    count = 60_000
    sending = asyncio.create_task(loop.sock_sendall(sock, b"HELP\r\n" * count + b"QUIT\r\n"))
    (connection,) = await _connections(listener)
    await _until(lambda: connection._pauses != 0)
    held = connection._transport.get_write_buffer_size() + connection._session.output_size + connection._session.held
    assert held < 1_000_000
    answer = b""
    replies = 0
    while data := await asyncio.wait_for(loop.sock_recv(sock, 1 << 16), 20):
        replies += data.count(b"214 ")
        answer = (answer + data)[-20:]
    await sending
    # A reply may be cut in two by a read.
    assert count - 2000 < replies <= count
    assert answer.endswith(b"221 2.0.0 Bye\r\n")
    sock.close()


async def _connections(listener: MxListener[str]) -> list[Any]:
    await _until(lambda: bool(listener._context.connections))
    return list(listener._context.connections)


@pytest.mark.covers("mail-server:A1", "mail-server:A9")
async def test_drain(start: Start, deployment: Any) -> None:
    deployment.receive_gate = asyncio.Event()
    listener = await start()
    idle = await Client.connect(listener)
    committing = await Client.connect(listener)
    await committing.codes(_TRANSACTION + b"DATA\r\n", 3)
    committing.writer.write(_MESSAGE + b".\r\n")
    sending = await Client.connect(listener)
    await sending.codes(_TRANSACTION + b"DATA\r\n", 3)
    await deployment.receiving.wait()
    port = listener.port
    draining = asyncio.create_task(listener.drain(20))
    assert await idle.rest() == b"421 4.3.2 Service shutting down, try again later\r\n"
    idle.close()
    assert listener.sockets == ()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)
    assert not draining.done()
    sending.writer.write(_MESSAGE + b".\r\n")
    deployment.receive_gate.set()
    for client in (committing, sending):
        assert (await client.rest()).split(b"\r\n") == [
            b"250 2.0.0 Ok: queued as msg_1",
            b"421 4.3.2 Service shutting down, try again later",
            b"",
        ]
        client.close()
    await draining
    assert len(deployment.messages) == 2
    assert listener.connection_count == 0


async def test_drain_cuts_off_what_does_not_end(start: Start, deployment: Any) -> None:
    deployment.receive_gate = asyncio.Event()
    listener = await start(limits=ListenerLimits(linger=0.2))
    stuck = await Client.connect(listener)
    await stuck.codes(_TRANSACTION + b"DATA\r\n", 3)
    stuck.writer.write(_MESSAGE + b".\r\n")
    await deployment.receiving.wait()
    sending = await Client.connect(listener)
    await sending.codes(_TRANSACTION + b"DATA\r\n", 3)
    await listener.drain(0.05)
    assert listener.connection_count == 0
    assert await sending.rest() == b"421 4.3.2 Service shutting down, try again later\r\n"
    assert deployment.messages == []
    stuck.close()
    sending.close()


@pytest.mark.covers("mail-server:A7")
async def test_memory_budget_makes_clients_wait(start: Start, deployment: Any) -> None:
    size = 2_000_000
    listener = await start(limits=ListenerLimits(memory_budget=1_000_000))
    body = (b"x" * 998 + b"\r\n") * (size // 1000)
    budget = listener._context.budget
    highest = 0

    async def send() -> str:
        nonlocal highest
        client = await Client.connect(listener)
        await client.codes(_TRANSACTION + b"DATA\r\n", 3)
        for begin in range(0, size, 50_000):
            client.writer.write(body[begin : begin + 50_000])
            await client.writer.drain()
            highest = max(highest, budget.total)
        answer = await client.ask(b".\r\n")
        client.close()
        return answer

    answers = await asyncio.gather(*(send() for _ in range(8)))
    assert all(answer.startswith("250 ") for answer in answers)
    assert [len(raw) for _, raw in deployment.messages] == [size] * 8
    assert highest <= 1_000_000 + size + 8 * 262_144
    await _until(lambda: listener.connection_count == 0)
    assert budget.total == 0
    assert budget.waiting == 0


@pytest.mark.covers("mail-server:A7")
async def test_slow_leader_gives_way(start: Start, deployment: Any) -> None:
    listener = await start(limits=ListenerLimits(memory_budget=10_000, lead_timeout=0.2))
    slow = await Client.connect(listener)
    await slow.codes(_TRANSACTION + b"DATA\r\n", 3)
    slow.writer.write(b"x" * 20_000)
    await _until(lambda: listener._context.budget.total >= 20_000)
    fast = await Client.connect(listener)
    await fast.codes(_TRANSACTION + b"DATA\r\n", 3)
    fast.writer.write(b"Subject: x\r\n")
    fast.writer.write(b"\r\nx\r\n.\r\n")
    assert await slow.rest() == b"421 4.4.2 Timeout waiting for data\r\n"
    slow.close()
    assert (await fast.reply()).startswith("250 ")
    fast.close()
