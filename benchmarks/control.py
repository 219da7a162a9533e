"""The control plane over HTTP: what an authenticated GET takes, by one connection and by twenty, and how many a second
one server process answers.

The server is `postroom serve` with its database, as it is run; the load client is this process. Each request carries
another key of the platform than the one before: a key may ask so many times a minute and no more.
"""

from __future__ import annotations

import asyncio
import itertools
import smtplib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import uvloop

from .common import STATISTICS_SECONDS, Row, Server, row

AGENTS: Final = 50
MESSAGES: Final = 50
KEYS: Final = 80
CONNECTIONS: Final = (1, 20)
LIST_TARGET: Final = 20.0
GET_TARGET: Final = 10.0
"""Milliseconds, p95, by one connection: as in `benchmarks.rest`."""
_PER_KEY: Final = 550
"""Requests of one key in a minute, below what it may."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests a second, and the milliseconds of each."""

    rate: float
    times: list[float]

    @property
    def p50(self) -> float:
        return statistics.median(self.times)

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.times, n=20)[18]


class Asker:
    """Asks a server for the same thing again and again, with one key after another."""

    def __init__(self, port: int, keys: list[str]) -> None:
        self._port = port
        self._keys = keys
        self._turn = itertools.count()

    async def load(self, path: str, count: int, connections: int) -> Load:
        """`count` requests over so many connections. Raises RuntimeError for an answer that is not 200."""
        requests = [
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
            for key in self._keys
        ]
        times: list[float] = []
        left = iter(range(count))
        begun = time.perf_counter()
        await asyncio.gather(*(self._some(requests, left, times) for _ in range(connections)))
        return Load(count / (time.perf_counter() - begun), times)

    async def _some(self, requests: list[bytes], left: Iterator[int], times: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            for _ in left:
                begun = time.perf_counter()
                writer.write(requests[next(self._turn) % len(requests)])
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(length)
                times.append((time.perf_counter() - begun) * 1e3)
                if not head.startswith(b"HTTP/1.1 200 "):
                    raise RuntimeError(f"{head!r} {body!r}")
        finally:
            writer.close()


def paths(server: Server) -> dict[str, tuple[str, float]]:
    """What is asked for, by name, with the time that is wanted."""
    box = f"/v1/identities/{server.agents[0].identity_id}"
    return {
        "GET /v1/me": ("/v1/me", GET_TARGET),
        "GET an identity": (box, GET_TARGET),
        "GET 25 identities": (f"/v1/tenants/{server.seeded.tenant_id}/identities?limit=25", LIST_TARGET),
        "GET 25 messages": (f"{box}/messages?limit=25", LIST_TARGET),
    }


def _deliver(server: Server) -> None:
    with smtplib.SMTP(server.host, server.smtp_port, timeout=60) as client:
        for number in range(MESSAGES):
            head = f"From: a@example.com\r\nSubject: Message {number}\r\nMessage-ID: <{number}@example.com>\r\n"
            text = f"{head}\r\nHello.\r\n"
            client.sendmail("a@example.com", [server.agents[0].address], text)


async def _measure(server: Server, keys: list[str], count: int) -> list[Row]:
    asker, rows = Asker(server.http_port, keys), []
    await asker.load("/v1/me", 200, 10)
    for name, (path, target) in paths(server).items():
        await asker.load(path, count // 10, 1)
        for connections in CONNECTIONS:
            before = server.cost()
            load = await asker.load(path, count, connections)
            spent = server.cost().since(before)
            label = f"{name}, {connections} connection{'s' * (connections > 1)}"
            rows.append(row(f"{label}, p50", load.p50, "ms"))
            rows.append(row(f"{label}, p95", load.p95, "ms", target=target if connections == 1 else None))
            rows.append(row(f"{label}", load.rate, "requests/s"))
        rows.append(row("  processor time of one, server", spent.server * 1e3 / count, "ms"))
        rows.append(row("  processor time of one, database", spent.database * 1e3 / count, "ms"))
    return rows


def run(quick: bool) -> list[Row]:
    """The rows of the table."""
    count = 500 if quick else 4000
    with Server(agents=AGENTS, people=0, roles="smtp,http,worker") as server:
        keys = server.platform_keys(max(KEYS, 10 * count // _PER_KEY))
        _deliver(server)
        time.sleep(STATISTICS_SECONDS)
        return uvloop.run(_measure(server, keys, count))
