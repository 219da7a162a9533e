"""Being told on another node: from the commit of a message to IDLE, to a stream of lines and to a WebSocket.

Two server processes share a database and a directory of messages; the first takes mail over SMTP, the listeners are
connected to the second. What is timed is from the arrival of the `250`, which follows the commit, to the arrival of the
notice; both ends are in this process, one loop, and on the same machine as both servers. Mail is sent one after the
other, when everybody has heard of the last. First each way has one listener; then several hundred hear of each message,
all of them of all: in between lie as many writes, and as many reads by this process.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, cast

import psutil
import uvloop

from .common import (
    START_SECONDS,
    STOP_SECONDS,
    Row,
    Server,
    cpu_seconds,
    free_ports,
    keep_niceness,
    kill,
    row,
    tree,
    wait_for_ports,
)
from .smtp_load import SENDER

TARGET_MS: Final = 100.0
PER_KEY: Final = 10
"""Streams that a key may have."""
IDLING: Final = 20
PAUSE_SECONDS: Final = 0.02
"""Between two messages, so that nothing of the last one is left."""
_SECONDS: Final = 30.0
_PATH: Final = "/v1/events/stream?types=message.received"


class Round:
    """One message: when it was committed, and when each listener heard of it."""

    def __init__(self, listeners: int) -> None:
        self._left = listeners
        self.heard: dict[str, list[float]] = {}
        self.all_heard = asyncio.Event()

    def hear(self, kind: str) -> None:
        self.heard.setdefault(kind, []).append(time.perf_counter())
        self._left -= 1
        if not self._left:
            self.all_heard.set()


class Ear(asyncio.Protocol):
    """A listener: sends what it is to say, and then tells the round each time that `mark` comes."""

    def __init__(self, kind: str, says: Sequence[tuple[bytes, bytes]], mark: bytes) -> None:
        """`says`: what is sent, and what is in the answer that is waited for before the next is."""
        self.kind, self._says, self._mark = kind, list(says), mark
        self._tail = b""
        self._transport: asyncio.WriteTransport | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.round: Round | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are none of asyncio's classes
        self._write(self._says[0][0])

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            self._open(data)
            return
        if data[:1] == b"\x89":  # a ping of a socket, and short (RFC 6455 §5.5.2); answered with a mask of zeros
            size = data[1]
            self._write(b"\x8a" + bytes([0x80 | size]) + b"\0\0\0\0" + data[2 : 2 + size])
        text = self._tail + data
        for _ in range(text.count(self._mark)):
            assert self.round is not None, "nothing was sent"
            self.round.hear(self.kind)
        end = text.rfind(self._mark)
        self._tail = text[end + len(self._mark) :] if end >= 0 else text
        self._tail = self._tail[-len(self._mark) + 1 :]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(RuntimeError(f"{self.kind}: closed: {self.last!r}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @property
    def last(self) -> bytes:
        """What came last and was not understood."""
        return self._tail[-300:]

    def _open(self, data: bytes) -> None:
        self._tail += data
        if self._says[0][1] not in self._tail:
            return
        self._tail = b""
        del self._says[0]
        if self._says:
            self._write(self._says[0][0])
        else:
            self.opened.set_result(None)

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)


def _idle(user: str, password: str) -> Ear:
    login = f'a LOGIN {user} "{password}"\r\n'.encode()
    says = ((b"", b"* OK"), (login, b"a OK"), (b"b SELECT INBOX\r\n", b"b OK"), (b"c IDLE\r\n", b"+ "))
    return Ear("IDLE", says, b" EXISTS\r\n")


def _stream(kind: str, key: str) -> Ear:
    head = f"GET {_PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    if kind == "SSE":
        return Ear(kind, ((f"{head}\r\n".encode(), b": hello"),), b"event: message.received\n")
    nonce = base64.b64encode(os.urandom(16)).decode()
    head += f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {nonce}\r\n"
    return Ear(kind, ((f"{head}\r\n".encode(), b'"type":"hello"'),), b'{"type":"event"')


class Sender:
    """An SMTP client that writes to one mailbox."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: str) -> None:
        self._reader, self._writer, self._to = reader, writer, to
        self._number = 0

    @classmethod
    async def connect(cls, port: int, to: str) -> Sender:
        made = cls(*await asyncio.open_connection("127.0.0.1", port), to)
        await made._answer(b"220")
        await made._ask(b"EHLO bench.example\r\n", b"250")
        return made

    async def send(self) -> float:
        """The time (`perf_counter`) at which the server had taken a message."""
        self._number += 1
        await self._ask(f"MAIL FROM:<{SENDER}>\r\n".encode(), b"250")
        await self._ask(f"RCPT TO:<{self._to}>\r\n".encode(), b"250")
        await self._ask(b"DATA\r\n", b"354")
        body = (
            f"From: Anna <{SENDER}>\r\nTo: {self._to}\r\nSubject: Number {self._number}\r\n"
            f"Message-ID: <{self._number}.{os.getpid()}@bench.example>\r\n\r\nNews of the day {self._number}.\r\n.\r\n"
        )
        await self._ask(body.encode(), b"250")
        return time.perf_counter()

    def close(self) -> None:
        self._writer.close()

    async def _ask(self, line: bytes, code: bytes) -> None:
        self._writer.write(line)
        await self._answer(code)

    async def _answer(self, code: bytes) -> None:
        async with asyncio.timeout(_SECONDS):
            while (line := await self._reader.readline())[3:4] == b"-":
                pass
        if not line.startswith(code):
            raise RuntimeError(line.decode("latin-1"))


@contextlib.contextmanager
def another_node(server: Server) -> Iterator[tuple[psutil.Process, int, int]]:
    """A second process on the database and the messages of the first; its ports of IMAP and HTTP."""
    imap, http = free_ports(2)
    environment = server.environment() | {
        "POSTROOM_DATABASE_URL": server.database_url,
        "POSTROOM__IMAP__PORT": str(imap),
        "POSTROOM__API__PORT": str(http),
        "POSTROOM_METRICS_LISTEN": "",
    }
    command = [sys.executable, "-m", "postroom", "serve", "--roles", "imap,http"]
    with (server.directory / "log-of-another").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=server.directory, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for_ports((imap, http), process, time.monotonic() + START_SECONDS)
        keep_niceness(tree(process.pid))
        yield psutil.Process(process.pid), imap, http
    finally:
        members = tree(process.pid)
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            kill(members)
            process.wait()


def _same(ear: Ear) -> Ear:
    return ear


async def _open(ears: Sequence[Ear], imap: int, http: int) -> None:
    loop = asyncio.get_running_loop()
    for ear in ears:
        await loop.create_connection(partial(_same, ear), "127.0.0.1", imap if ear.kind == "IDLE" else http)
        try:
            async with asyncio.timeout(_SECONDS):
                await ear.opened
        except TimeoutError:
            raise RuntimeError(f"{ear.kind}: not opened: {ear.last!r}") from None


async def _rounds(ears: Sequence[Ear], sender: Sender, count: int) -> tuple[dict[str, list[float]], list[float]]:
    """Milliseconds until each heard, by kind; and until the last did, of each message."""
    heard: dict[str, list[float]] = {}
    longest = []
    for number in range(count + 3):
        begun = Round(len(ears))
        for ear in ears:
            ear.round = begun
        committed = await sender.send()
        async with asyncio.timeout(_SECONDS):
            await begun.all_heard.wait()
        await asyncio.sleep(PAUSE_SECONDS)
        if number < 3:
            continue  # what is done once is done
        waits = {kind: [max(0.0, at - committed) * 1e3 for at in times] for kind, times in begun.heard.items()}
        for kind, times in waits.items():
            heard.setdefault(kind, []).extend(times)
        longest.append(max(max(times) for times in waits.values()))
    return heard, longest


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[18]


async def _measure(server: Server, keys: Sequence[str], streams: int, messages: int, crowd: int) -> list[Row]:
    box = server.people[0]
    with another_node(server) as (process, imap, http):
        password = box.password or ""
        sender = await Sender.connect(server.smtp_port, box.address)
        ears = [_idle(box.address, password), _stream("SSE", keys[0]), _stream("WebSocket", keys[0])]
        await _open(ears, imap, http)
        heard, _ = await _rounds(ears, sender, messages)
        rows = []
        for kind in ("IDLE", "WebSocket", "SSE"):
            rows.append(row(f"commit → {kind} on another node, p50", statistics.median(heard[kind]), "ms"))
            rows.append(row("  the same, p95", _p95(heard[kind]), "ms", target=TARGET_MS))
        more = [_stream("SSE" if n % 2 else "WebSocket", keys[n // PER_KEY]) for n in range(2, streams)]
        more += [_idle(box.address, password) for _ in range(IDLING - 1)]
        await _open(more, imap, http)
        ears += more
        before, wall = cpu_seconds(tree(process.pid)), time.perf_counter()
        heard, longest = await _rounds(ears, sender, crowd)
        spent, wall = cpu_seconds(tree(process.pid)) - before, time.perf_counter() - wall
        what = f"{streams} streams and {IDLING} IDLE hear of each"
        for kind in ("IDLE", "WebSocket", "SSE"):
            rows.append(row(f"{what}: {kind}, p95", _p95(heard[kind]), "ms", target=TARGET_MS))
        rows.append(row("  until the last has heard, p50", statistics.median(longest), "ms"))
        rows.append(row("  CPU of the node for each notice", spent / (crowd + 3) / len(ears) * 1e6, "µs"))
        for ear in ears:
            ear.close()
        sender.close()
        await asyncio.sleep(0.1)
        return rows


def run(quick: bool) -> list[Row]:
    """The rows of the table."""
    streams, messages, crowd = (200, 60, 20) if quick else (400, 400, 100)
    with Server(people=1, agents=0) as server:
        keys = server.platform_keys(-(-streams // PER_KEY))
        return uvloop.run(_measure(server, keys, streams, messages, crowd))
