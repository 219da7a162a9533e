"""What must not grow from round to round: memory, open files, sessions of the database, claims on work.

The bounds are generous. They find what is lost with every connection, message or restart, not a few megabytes more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Final

import psutil

from tests.torture.deployment import Deployment, Server

MEGABYTE: Final = 1024 * 1024
MAX_RSS: Final = 400 * MEGABYTE
"""Of one server process; a helper that parses or writes messages is one, too."""
MAX_GROWTH: Final = 150 * MEGABYTE
"""Of one process from one round's end to a later one's."""
MAX_FILES: Final = 200
"""Open files and sockets of one process after the load: database sessions, listeners, pipes."""
MAX_SESSIONS: Final = 40
"""Of the database, for each server process."""
SETTLE_SECONDS: Final = 30.0
"""How long what clients left behind may take to be closed."""
_POLL: Final = 0.25

_SESSIONS: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
# A claim whose lease ran out is free for anybody, and somebody looks every few seconds.
_FORGOTTEN: Final = """
SELECT 'word_tasks' AS work, count(*) FROM word_tasks
WHERE lease_until < now() - interval '5 min' OR parked_at IS NOT NULL
UNION ALL
SELECT 'schedules', count(*) FROM schedules
WHERE lease_until < now() - interval '10 min' OR parked_at IS NOT NULL
"""


class Leaks:
    """Compares the processes of a deployment with what they were when it first saw them."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._first: dict[tuple[int, float], int] = {}
        """Memory of a process when it was first seen at the end of a round; a process is its id and its start."""

    async def check(self, server: Server) -> tuple[list[str], str]:
        """Every leak found, in words, and the highest figures, for the line that is printed. Asked after the load."""
        faults = await self._settled(server)
        memory = [found for process in _processes(server) for found in self._memory(process, faults)]
        conn = await self._deployment.postgres.connect()
        try:
            for work, count in await conn.fetch(_FORGOTTEN):
                if count:
                    faults.append(f"{count} rows of {work} are claimed or parked for good")
        finally:
            await conn.close(timeout=10)
        files = max((count for _, count in _files(server)), default=0)
        return faults, f"memory {max(memory, default=0) // MEGABYTE} MB, files {files}"

    async def _settled(self, server: Server) -> list[str]:
        """Wait until few enough files and sessions are open."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            faults = [f"{name} holds {count} files" for name, count in _files(server) if count > MAX_FILES]
            sessions = await self._sessions()
            if sessions > MAX_SESSIONS * max(1, len(server.workers())):
                faults.append(f"{sessions} sessions of the database are open")
            if not faults or time.monotonic() > deadline:
                return faults
            await asyncio.sleep(_POLL)

    async def _sessions(self) -> int:
        conn = await self._deployment.postgres.connect()
        try:
            return int(await conn.fetchval(_SESSIONS))
        finally:
            await conn.close(timeout=10)

    def _memory(self, process: psutil.Process, faults: list[str]) -> Iterator[int]:
        with contextlib.suppress(psutil.NoSuchProcess):
            now = process.memory_info().rss
            first = self._first.setdefault((process.pid, process.create_time()), now)
            name = f"process {process.pid}"
            if now > MAX_RSS:
                faults.append(f"{name} holds {now // MEGABYTE} MB")
            elif now - first > MAX_GROWTH:
                faults.append(f"{name} grew from {first // MEGABYTE} MB to {now // MEGABYTE} MB")
            yield now


def _processes(server: Server) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [psutil.Process(server.pid), *server.children()]
    return []


def _files(server: Server) -> Iterator[tuple[str, int]]:
    for process in _processes(server):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            yield f"process {process.pid}", process.num_fds()
