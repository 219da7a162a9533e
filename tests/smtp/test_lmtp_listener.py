"""LMTP over sockets: real clients, who may connect, and one answer for each recipient (RFC 2033; rule A1)."""

from __future__ import annotations

import asyncio
import smtplib
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from postroom.servers.lmtp import LmtpListener
from postroom.servers.smtp import ListenerLimits
from postroom.smtp import Envelope, Refusal, Reply, ServerConfig, SessionInfo

MESSAGE = b"From: ann@example.com\r\nSubject: hello\r\n\r\nOne.\r\n"
GONE = Reply(550, "5.1.1", "No such user here")
FULL = Reply(452, "4.2.2", "Mailbox full")
OK = Reply(250, "2.0.0", "Ok: queued as msg_1")


@dataclass
class Boxes:
    """Every address of `agents.example` but those that start with `no`; those that start with `full` are full."""

    taken: list[Envelope[str]] = field(default_factory=list)

    async def resolve(self, address: str, session: SessionInfo) -> str | Refusal:
        return Refusal(GONE) if address.startswith("no") else address

    async def receive(self, envelope: Envelope[str], raw: bytes) -> Sequence[Reply]:
        assert raw == MESSAGE
        self.taken.append(envelope)
        return [FULL if box.startswith("full") else OK for _, box in envelope.recipients]


Start = Callable[..., Awaitable[LmtpListener[str]]]


@pytest.fixture
def boxes() -> Boxes:
    return Boxes()


@pytest.fixture
async def start(boxes: Boxes) -> AsyncIterator[Start]:
    started: list[LmtpListener[str]] = []

    async def _start(host: str = "127.0.0.1", *, reuse_port: bool = False, **options: Any) -> LmtpListener[str]:
        listener: LmtpListener[str] = LmtpListener(
            ServerConfig("mail.agents.example"),
            resolve=boxes.resolve,
            receive=boxes.receive,
            now=lambda: datetime(2030, 1, 1, tzinfo=UTC),
            **options,
        )
        await listener.start(host, 0, reuse_port=reuse_port)
        started.append(listener)
        return listener

    yield _start
    for listener in started:
        await listener.drain(0)


def deliver(host: str, port: int, *to: str) -> dict[str, Any]:
    """What smtplib is told of each recipient that was refused in the dialogue, and of the data."""
    with smtplib.LMTP(host, port, "front.example") as client:
        client.ehlo_or_helo_if_needed()
        assert not client.has_extn("auth")
        client.mail("ann@example.com")
        replies: dict[str, Any] = {address: client.rcpt(address)[0] for address in to}
        code, _ = client.data(MESSAGE)
        data = [code]
        while len(data) < sum(reply == 250 for reply in replies.values()):
            data.append(client.getreply()[0])
        return {**replies, "data": data}


TO = ("a@agents.example", "no@agents.example", "full@agents.example", "b@agents.example")
EXPECTED = {**dict.fromkeys(TO, 250), "no@agents.example": 550, "data": [250, 452, 250]}


@pytest.mark.covers("mail-server:A1", "RFC 2033 §4.2")
async def test_by_address(start: Start, boxes: Boxes) -> None:
    listener = await start()
    assert await asyncio.to_thread(deliver, "127.0.0.1", listener.port, *TO) == EXPECTED
    (envelope,) = boxes.taken
    assert (envelope.lmtp, envelope.peer_ip, envelope.account) == (True, "127.0.0.1", None)


@pytest.mark.covers("mail-server:A1", "RFC 2033 §4.2")
async def test_by_path(start: Start, boxes: Boxes, tmp_path: Path) -> None:
    path = tmp_path / "lmtp"
    listener = await start(str(path))
    assert listener.port == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert await asyncio.to_thread(deliver, str(path), 0, *TO) == EXPECTED
    (envelope,) = boxes.taken
    assert (envelope.lmtp, envelope.peer_ip) == (True, "")
    await listener.drain(0)
    assert not path.exists()


@pytest.mark.covers("mail-server:A1")
async def test_a_path_that_is_served_is_left_alone(start: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "lmtp")
    first = await start(path)
    with pytest.raises(OSError, match="in use"):
        await start(path)
    waiting = await start(path, reuse_port=True)
    assert waiting.sockets == ()
    assert await asyncio.to_thread(deliver, path, 0, "a@agents.example")
    await waiting.drain(0)
    assert await asyncio.to_thread(Path(path).exists)
    await first.drain(0)
    # The next one takes its place, also where a process died and left its socket behind.
    left = socket.socket(socket.AF_UNIX)
    left.bind(path)
    left.close()
    await start(path, reuse_port=True)
    assert await asyncio.to_thread(deliver, path, 0, "a@agents.example")


@pytest.mark.covers("mail-server:A1")
async def test_what_is_no_socket_is_not_replaced(start: Start, tmp_path: Path) -> None:
    (tmp_path / "lmtp").write_text("precious")
    with pytest.raises(FileExistsError):
        await start(str(tmp_path / "lmtp"))
    assert (tmp_path / "lmtp").read_text() == "precious"
    with pytest.raises(FileNotFoundError):
        await start(str(tmp_path / "missing" / "lmtp"))


@pytest.mark.covers("mail-server:A1")
@pytest.mark.parametrize(
    ("allow", "admitted"), [((), True), (("127.0.0.0/8",), True), (("192.0.2.0/24", "2001:db8::/32"), False)]
)
async def test_who_may_connect(start: Start, allow: tuple[str, ...], admitted: bool) -> None:
    listener = await start(allow=tuple(ip_network(network) for network in allow))
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    line = await asyncio.wait_for(reader.readline(), 20)
    assert line.startswith(b"220 " if admitted else b"554 5.7.1 ")
    if not admitted:
        assert await asyncio.wait_for(reader.read(), 20) == b""
    assert listener.connection_count == admitted
    writer.close()


@pytest.mark.covers("mail-server:A1", "mail-server:A7")
async def test_a_front_has_no_limits_of_one_peer(start: Start) -> None:
    limits = ListenerLimits(max_connections=3, max_connections_per_ip=1, command_rate=2)
    context = (await start(limits=limits))._context
    assert not any(context.rate.exceeded("192.0.2.1") for _ in range(1000))
    context.counter.add("192.0.2.1")
    assert not context.counter.is_full_for("192.0.2.1")
    assert not context.admits("192.0.2.1")
