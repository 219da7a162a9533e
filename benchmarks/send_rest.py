"""Mail accepted over REST: how many sends a second, and how long one takes until its 202.

A send is composed, signed with RSA, stored as the copy in Sent and as what goes out, and recorded with its key in one
transaction. Nothing is handed over meanwhile. Server and client are one process, asked over a loopback socket by one
connection and by ten.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Final

import uvloop

from benchmarks.common import Row, row
from benchmarks.rest import Bench, Client, started

P95_TARGET: Final = 500.0
"""Milliseconds (NFR-PERF-1)."""
CONNECTIONS: Final = (1, 10)
_TEXT: Final = "A line of some sixty characters, as people write them in mail.\r\n" * 25


async def _measure(count: int) -> list[Row]:
    rows: list[Row] = []
    async with started(100) as bench:
        numbers = itertools.count()
        await _round(bench, numbers, 20, 2)
        for connections in CONNECTIONS:
            rate, times = await _round(bench, numbers, count, connections)
            label = f"REST send, {connections} connection{'s' * (connections > 1)}"
            rows.append(row(f"{label}, accepted", rate, "messages/s"))
            rows.append(row(f"{label}, p95 to the 202", statistics.quantiles(times, n=20)[18], "ms", target=P95_TARGET))
    return rows


async def _round(bench: Bench, numbers: Iterator[int], count: int, connections: int) -> tuple[float, list[float]]:
    """Sends a second, and the milliseconds of each."""
    times: list[float] = []
    left = iter(range(count))

    async def some() -> None:
        client = await Client.connect(bench)
        try:
            for _ in left:
                n = next(numbers)
                body = {"to": [f"user{n}@example.com"], "subject": f"Message {n}", "text": _TEXT}
                begun = time.perf_counter()
                await client.ask("POST", f"{bench.box}/messages", body, key=f"bench:{n}")
                times.append(1e3 * (time.perf_counter() - begun))
        finally:
            client.close()

    begun = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(connections)))
    return count / (time.perf_counter() - begun), times


def rows(quick: bool) -> list[Row]:
    """Rate and latency, by connections."""
    return uvloop.run(_measure(300 if quick else 2000))
