"""Load for SMTP: messages of the reference load in a file, and a client that sends them, in a process of its own.

The client is a bare protocol on uvloop and sends bytes that were made before, so that it costs the machine little
beside what it measures. Run as a program, this module is the client.
"""

from __future__ import annotations

import asyncio
import functools
import json
import mmap
import os
import subprocess
import sys
import time
from array import array
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from .common import DOMAIN, PROJECT, keep_niceness
from .messages import Load

BOXES: Final = 200
SENDER: Final = "sender@example.com"
SEND_SECONDS: Final = 600.0
_BLOCK: Final = 1000
"""Messages of one mailbox that follow one another in the load, where replies answer earlier ones."""
_CHUNK: Final = 250


class Corpus:
    """Messages as they go over the wire after DATA, one after the other in a file; `extend` makes more."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "corpus"
        self.index = directory / "corpus.index"
        self._offsets = array("Q", [0])
        self.path.touch()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def extend(self, count: int) -> None:
        """Have at least *count* messages."""
        starts = range(len(self), count, _CHUNK)
        if not starts:
            return
        with self.path.open("ab") as file, ProcessPoolExecutor(os.cpu_count()) as pool:
            for chunk in pool.map(_chunk, starts):
                for message in chunk:
                    file.write(message)
                    self._offsets.append(self._offsets[-1] + len(message))
        self.index.write_bytes(self._offsets.tobytes())


@functools.cache
def _load() -> Load:
    return Load()


def _chunk(start: int) -> list[bytes]:
    """Messages of the places *start* and after, dot-stuffed and ended (RFC 5321 §4.5.2)."""
    made = []
    for place in range(start, start + _CHUNK):
        box = place % BOXES
        # Neighbours in the load are those of one mailbox, so that replies meet what they answer.
        message = _load().message(box * _BLOCK + place // BOXES % _BLOCK, f"user{box}@{DOMAIN}")
        made.append(message.replace(b"\r\n.", b"\r\n..") + b".\r\n")
    return made


# -- the client -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """What the client is to send, and where: the messages of these places, until *seconds* have passed."""

    port: int
    corpus: str
    index: str
    first: int
    count: int
    connections: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sent:
    """What the client did. Times are monotonic, latencies in ms from MAIL to the message's 250, CPU in seconds."""

    accepted: int
    refused: int
    began: float
    ended: float
    cpu: float
    median_latency: float
    p95_latency: float

    @property
    def rate(self) -> float:
        return self.accepted / (self.ended - self.began)


class _Sending:
    """What the connections share."""

    def __init__(self, order: Order) -> None:
        self.offsets = array("Q", Path(order.index).read_bytes())
        with Path(order.corpus).open("rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.envelopes = [
            f"MAIL FROM:<{SENDER}>\r\nRCPT TO:<user{box}@{DOMAIN}>\r\nDATA\r\n".encode() for box in range(BOXES)
        ]
        self.places = iter(range(order.first, order.first + order.count))
        self.deadline = float("inf")
        self.latencies: list[float] = []
        self.refused = 0


class _Connection(asyncio.Protocol):
    """Takes the next place whenever a message is answered. `done` ends with the connection, or with its error."""

    def __init__(self, sending: _Sending) -> None:
        self._sending = sending
        self._transport: Any = None
        self._answered = self._greeted
        self._lines = 1
        self._held = b""
        self._place = 0
        self._began = 0.0
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        if data.count(b"\n") < self._lines or data[-1:] != b"\n":
            self._held = data
        else:
            self._answered(data)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.ready, self.done):
            if not future.done():
                future.set_exception(ConnectionError("the server closed the connection"))

    def next(self) -> None:
        """Begin the next message, or end the connection when there is none."""
        sending = self._sending
        now = time.monotonic()
        place = next(sending.places, None) if now < sending.deadline else None
        if place is None:
            self._transport.write(b"QUIT\r\n")
            self._answered = lambda reply: None
            self.done.set_result(None)
            return
        self._place, self._began = place, now
        self._lines, self._answered = 3, self._envelope_answered
        self._transport.write(sending.envelopes[place % BOXES])

    def _greeted(self, reply: bytes) -> None:
        self._answered = self._named
        self._transport.write(b"EHLO client.example.com\r\n")

    def _named(self, reply: bytes) -> None:
        if b"\r\n250 " not in reply:
            self._held = reply
        else:
            self.ready.set_result(None)

    def _envelope_answered(self, reply: bytes) -> None:
        sending = self._sending
        self._lines = 1
        if b"\n354" in reply:
            offsets = sending.offsets
            self._answered = self._message_answered
            self._transport.write(sending.data[offsets[self._place] : offsets[self._place + 1]])
        else:
            sending.refused += 1
            self._answered = lambda reply: self.next()
            self._transport.write(b"RSET\r\n")

    def _message_answered(self, reply: bytes) -> None:
        if reply[:1] == b"2":
            self._sending.latencies.append(time.monotonic() - self._began)
        else:
            self._sending.refused += 1
        self.next()


async def _send(order: Order) -> Sent:
    loop = asyncio.get_running_loop()
    sending = _Sending(order)
    connections = []
    for _ in range(order.connections):
        _, connection = await loop.create_connection(lambda: _Connection(sending), "127.0.0.1", order.port)
        connections.append(connection)
        await asyncio.wait_for(connection.ready, 30)
    began, cpu = time.monotonic(), time.process_time()
    sending.deadline = began + order.seconds
    for connection in connections:
        connection.next()
    await asyncio.gather(*(connection.done for connection in connections))
    ended, cpu = time.monotonic(), time.process_time() - cpu
    latencies = sorted(sending.latencies) or [0.0]
    return Sent(
        accepted=len(sending.latencies),
        refused=sending.refused,
        began=began,
        ended=ended,
        cpu=cpu,
        median_latency=latencies[len(latencies) // 2] * 1e3,
        p95_latency=latencies[int(len(latencies) * 0.95)] * 1e3,
    )


class Feeder:
    """Sends messages of the corpus to one port, each once, in order."""

    def __init__(self, corpus: Corpus, port: int) -> None:
        self._corpus, self._port = corpus, port
        self.total = 0

    def prepare(self, count: int) -> None:
        """Have the next *count* messages made."""
        self._corpus.extend(self.total + count)

    def send(self, count: int, connections: int, seconds: float = SEND_SECONDS) -> Sent:
        """Raises RuntimeError when messages were refused, or the client failed."""
        self.prepare(count)
        paths = str(self._corpus.path), str(self._corpus.index)
        order = Order(self._port, *paths, self.total, count, connections, seconds)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.smtp_load", json.dumps(asdict(order))],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            start_new_session=True,
            check=True,
            timeout=SEND_SECONDS + 60,
        )
        sent = Sent(**json.loads(done.stdout))
        if sent.refused or not sent.accepted:
            raise RuntimeError(f"{sent.refused} messages were refused, {sent.accepted} accepted")
        self.total += sent.accepted
        return sent

    def in_box(self, box: int) -> int:
        """Messages sent to one mailbox so far."""
        return (self.total - box + BOXES - 1) // BOXES


if __name__ == "__main__":
    import psutil
    import uvloop

    keep_niceness([psutil.Process()])
    print(json.dumps(asdict(uvloop.run(_send(Order(**json.loads(sys.argv[1])))))))
