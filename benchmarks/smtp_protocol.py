"""SMTP receiving, protocol alone: messages accepted per second and thrown away, beside aiosmtpd in the same run.

Server and client are processes of their own, both on uvloop, over loopback. Twenty connections send mixed text messages
of about 4.5 KB. `lock-step` waits for the reply to every command; `pipelined` sends MAIL, RCPT and DATA together.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from postroom.base import log as base_log
from postroom.servers.smtp import MxListener
from postroom.smtp import Envelope, Reply, ServerConfig, SessionInfo

CONNECTIONS = 20
TARGET = 5000
_WORDS = [
    *("the", "a", "of", "and", "to", "in", "we", "you", "they", "report", "meeting", "invoice", "delivery", "garden"),
    *("harbour", "window", "tomorrow", "yesterday", "please", "attached", "schedule", "budget", "review", "music"),
    *("station", "morning", "evening", "letter", "answer", "question", "because", "although"),
]


def _message(seed: int) -> bytes:
    rng = random.Random(seed)
    lines = [
        f"Received: from relay{seed}.example.com ([192.0.2.7]) by mx.example.com with ESMTPS id {seed};",
        "\tMon, 01 Jan 2024 10:00:00 +0000",
        f"Message-ID: <{rng.getrandbits(64):x}@example.com>",
        "From: Sender <sender@example.com>",
        "To: Reader <reader@agents.example>",
        f"Subject: {' '.join(rng.choices(_WORDS, k=6))}",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=utf-8",
        "",
    ]
    size = sum(map(len, lines))
    wanted = rng.randint(3000, 6000)
    while size < wanted:
        line = " ".join(rng.choices(_WORDS, k=11))
        lines.append(line)
        size += len(line) + 2
    return "\r\n".join([*lines, ".", ""]).encode()


class _Client(asyncio.Protocol):
    """Sends messages one after the other until `count` are accepted."""

    def __init__(self, messages: list[bytes], count: int, pipelined: bool, done: asyncio.Future[None]) -> None:
        self._done = done
        self._left = count
        self._messages = messages
        commands = [b"MAIL FROM:<sender@example.com>\r\n", b"RCPT TO:<reader@agents.example>\r\n", b"DATA\r\n"]
        self._steps = [b"".join(commands)] if pipelined else commands
        self._replies = [len(commands)] if pipelined else [1] * len(commands)
        self._step = -2
        self._expected = 1
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._step == -1:  # the answer to EHLO
            if b"\r\n250 " not in b"\r\n" + data:
                return
        else:
            self._expected -= data.count(b"\n")
            if self._expected > 0:
                return
        if data[:1] not in (b"2", b"3"):
            self._done.set_exception(RuntimeError(data.decode()))
            self._transport.abort()
            return
        self._step += 1
        if self._step == -1:
            self._transport.write(b"EHLO client.example.com\r\n")
        elif self._step < len(self._steps):
            self._expected = self._replies[self._step]
            self._transport.write(self._steps[self._step])
        elif self._step == len(self._steps):
            self._expected = 1
            self._transport.write(self._messages[self._left % len(self._messages)])
        else:
            self._left -= 1
            if self._left <= 0:
                self._transport.write(b"QUIT\r\n")
                self._done.set_result(None)
                self._left = 1 << 30
                self._step = len(self._steps)
                return
            self._step = 0
            self._expected = self._replies[0]
            self._transport.write(self._steps[0])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError("connection lost"))


def _itself(client: _Client) -> _Client:
    return client


async def _client(port: int, total: int, pipelined: bool) -> float:
    loop = asyncio.get_running_loop()
    messages = [_message(seed) for seed in range(200)]
    done = [loop.create_future() for _ in range(CONNECTIONS)]
    started = time.perf_counter()
    for future in done:
        client = _Client(messages, total // CONNECTIONS, pipelined, future)
        await loop.create_connection(functools.partial(_itself, client), "127.0.0.1", port)
    await asyncio.gather(*done)
    return total / (time.perf_counter() - started)


async def _serve_postroom() -> None:
    serial = 0

    async def resolve(address: str, session: SessionInfo) -> str:
        return address

    async def receive(envelope: Envelope[str], raw: bytes) -> Reply:
        nonlocal serial
        serial += 1
        return Reply(250, "2.0.0", f"Ok: queued as msg_{serial:026d}")

    listener: MxListener[str] = MxListener(ServerConfig("mx.example.com"), resolve=resolve, receive=receive)
    await listener.start("127.0.0.1", 0)
    print(listener.port, flush=True)
    await asyncio.Event().wait()


async def _serve_aiosmtpd() -> None:
    from aiosmtpd.smtp import SMTP

    class Handler:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            return "250 Ok"

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(Handler(), loop=loop), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def _server(name: str) -> Any:
    process = subprocess.Popen([sys.executable, __file__, "serve", name], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(10)


def _measure(server: str, total: int, *, pipelined: bool) -> float:
    with _server(server) as port:
        command = [sys.executable, __file__, "send", str(port), str(total), *(["--pipelined"] if pipelined else [])]
        subprocess.run(command, check=True, capture_output=True)  # warm up
        return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure both servers both ways. `quick` takes a few seconds."""
    total = 10_000 if quick else 60_000
    rows: list[dict[str, Any]] = []
    for name, pipelined in (("lock-step", False), ("pipelined", True)):
        ours = _measure("postroom", total, pipelined=pipelined)
        peer = _measure("aiosmtpd", total // 4, pipelined=pipelined)
        row = {"name": f"smtp protocol alone, {name}", "value": round(ours), "unit": "messages/s", "target": TARGET}
        rows.append({**row, "peer": {"name": "aiosmtpd", "value": round(peer)}})
    return rows


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", choices=["serve", "send"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--pipelined", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.role == "serve":
        with Path("/dev/null").open("w", encoding="utf-8") as sink:
            base_log.configure("info", "json", sink)
            uvloop.run(_serve_postroom() if options.rest == ["postroom"] else _serve_aiosmtpd())
    elif options.role == "send":
        port, total = map(int, options.rest)
        print(json.dumps(uvloop.run(_client(port, total, options.pipelined))))
    else:
        for row in run(options.quick):
            print(json.dumps(row))


if __name__ == "__main__":
    _main()
