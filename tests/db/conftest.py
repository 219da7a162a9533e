"""A data directory, and servers on it that end with the test."""

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from postroom.db import LocalPostgres
from postroom.db.cluster import Cluster
from tests.db.launching import FAST, MakeServer


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data directory with a short path below a directory that only its owner may enter."""
    top = Path(tempfile.mkdtemp(prefix="pr-"))
    yield top / "data"
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
async def make_server(data_dir: Path) -> AsyncIterator[MakeServer]:
    made: list[LocalPostgres] = []

    def make(**options: object) -> LocalPostgres:
        arguments: dict[str, object] = {"settings": FAST, "max_connections": 20, **options}
        # Each case has its own arguments.
        server = LocalPostgres(arguments.pop("data_dir", data_dir), **arguments)  # type: ignore[arg-type]
        made.append(server)
        return server

    yield make
    for server in made:
        pid = server.pid
        await server.stop()
        if pid is not None and server.socket_dir.parent != data_dir / "postgres":
            shutil.rmtree(server.socket_dir, ignore_errors=True)
    pid = Cluster(data_dir, {}).recorded_pid()
    if pid is not None and Cluster(data_dir, {}).is_our_postmaster(pid):
        os.kill(pid, signal.SIGQUIT)
