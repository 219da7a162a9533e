"""Real server processes for the tests of this directory: small deployments, stopped and removed afterwards."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.torture import deployment
from tests.torture.deployment import Server

Launch = Callable[..., Awaitable[Server]]


@pytest.fixture
async def launch() -> AsyncIterator[Launch]:
    """`await launch(processes=1, extra={…}, data_dir=…)`: a ready server with two agents and a person."""
    async with AsyncExitStack() as stack:

        async def start(
            *, processes: int = 1, agents: int = 2, extra: Mapping[str, str] | None = None, data_dir: Path | None = None
        ) -> Server:
            # Not below pytest's directory, whose length may be too much for a socket's path.
            home = Path(tempfile.mkdtemp(prefix="postroom-reliability-"))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            made = await deployment.create(
                data_dir or home / "data", random.Random(), agents=agents, people=1, extra=extra
            )
            server = Server(made, home / "server.log", processes=processes)
            # pytest shows it when the test fails.
            stack.callback(lambda: print(f"the server's log:\n{server.tail(100)}"))
            stack.push_async_callback(server.end)
            await server.start()
            return server

        yield start
