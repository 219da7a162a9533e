"""What is missing for a while makes a temporary refusal with the right code, and its return ends it (J1)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from postroom.db import LocalPostgres
from tests.reliability.conftest import Launch
from tests.reliability.helpers import copies, deliver, deliver_in_the_end, eventually, letter
from tests.torture.deployment import Server

_TMPFS_BYTES = 12 * 1024 * 1024


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of twelve megabytes; needs the right to mount."""
    directory = Path(tempfile.mkdtemp(prefix="postroom-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_TMPFS_BYTES}", "tmpfs", str(directory)],
        capture_output=True,
        check=False,
    )
    try:
        if mounted.returncode != 0:
            pytest.skip(f"mounting a tmpfs is not permitted: {mounted.stderr.decode().strip()}")
        yield directory
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(directory)], check=False)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
async def postgres() -> AsyncIterator[LocalPostgres]:
    """A database server of the test's own, which nobody starts again when it is stopped."""
    home = Path(tempfile.mkdtemp(prefix="postroom-reliability-"))
    server = LocalPostgres(home, watch=False)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.covers("edge:J1")
async def test_no_room_for_the_message_is_452_until_there_is(
    launch: Launch, small_disk: Path, postgres: LocalPostgres
) -> None:
    server = await launch(data_dir=small_disk / "data", extra={"POSTROOM_DATABASE_URL": postgres.dsn})
    _, first = letter()
    assert (await deliver(server, first)).code == 250
    filler = small_disk / "filler"
    _fill(filler)
    message_id, text = letter(size=300_000)
    sent = await deliver(server, text)
    assert (sent.code, sent.text[:5]) == (452, "4.3.1")
    assert await copies(server, message_id) == 0
    filler.unlink()
    await deliver_in_the_end(server, text)
    assert await copies(server, message_id) == 1
    assert server.is_running


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(64 * 1024))
        except OSError:
            return


@pytest.mark.covers("edge:J1", "decisions:B2")
async def test_no_database_is_451_until_it_is_back(launch: Launch, postgres: LocalPostgres) -> None:
    server = await launch(extra={"POSTROOM_DATABASE_URL": postgres.dsn})
    _, first = letter()
    assert (await deliver(server, first)).code == 250  # the recipient is in the directory's cache now
    await postgres.stop()
    message_id, text = letter()
    sent = await deliver(server, text)
    assert (sent.code, sent.text[:5]) == (451, "4.3.0")
    await postgres.start()
    await deliver_in_the_end(server, text)
    assert await copies(server, message_id) == 1
    await eventually(lambda: _ready(server))
    assert await server.terminate() == 0, server.tail()


async def _ready(server: Server) -> bool | None:
    return await server.is_ready() or None
