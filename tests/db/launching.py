"""What tests of the bundled PostgreSQL share: waiting for servers, asking them, killing them."""

# Blocking file and process calls are fine where nothing else runs in the loop; servers are polled for, with a deadline.
# ruff: noqa: ASYNC110

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

import postroom
from postroom.db import LocalPostgres

AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="another user's process needs root to be started")
FAST = {"shared_buffers": "16MB"}
SOURCE = Path(postroom.__file__).parent.parent
MakeServer = Callable[..., LocalPostgres]


async def until(condition: Callable[[], bool], *, within: float = 60) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.02)


async def query(server: LocalPostgres, sql: str) -> object:
    connection = await asyncpg.connect(server.dsn, timeout=10)
    try:
        return await connection.fetchval(sql, timeout=10)
    finally:
        await connection.close(timeout=10)


async def answers(server: LocalPostgres) -> None:
    """Wait until the server takes connections (again)."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError, asyncpg.PostgresError):
                if await query(server, "SELECT 1") == 1:
                    return
            await asyncio.sleep(0.02)


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} survived SIGKILL")


CHILD = """
import asyncio, sys
from pathlib import Path
from postroom.db import LocalPostgres

async def main():
    settings = {"shared_buffers": "16MB"}
    server = LocalPostgres(Path(sys.argv[1]), settings=settings, max_connections=int(sys.argv[2]), watch=False)
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@contextlib.contextmanager
def postroom_process(
    data_dir: Path, max_connections: int = 20, **options: object
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process of its own that has started the server; yields it and the postmaster's pid."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(data_dir), str(max_connections)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path]), "PATH": os.environ["PATH"]},
        **options,  # type: ignore[call-overload] # of Popen
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line, "the process ended without having started a server"
        yield child, int(line)
    finally:
        child.kill()
        child.communicate()
