"""Fixtures of the whole suite.

``database_url``  URL of a fresh, migrated, empty database of the test's own; dropped afterwards
``db``            a :class:`postroom.db.Database` on it, open; closed afterwards
``clock``         a settable clock (:class:`postroom.base.clock.ManualClock`) at 2030-01-01T00:00:00Z
``ids``           a :class:`postroom.base.ids.IdGenerator` on that clock
``postgres_url``  URL of the server's maintenance database, for tests that make databases of their own

The server is the bundled PostgreSQL, one per pytest process (so one per xdist worker), started by the first test that
wants it, with fsync off, in a temporary directory. Where there is room that is one in memory (:func:`_memory`): each
database is nearly eight hundred files, and on a disk making and removing them is most of what a small test costs. With
``POSTROOM_TEST_DATABASE_URL`` or ``POSTROOM_DATABASE_URL`` set it is the server named there, whose role must be allowed
to create databases (and the extensions that the migrations ask for); the databases made there are dropped again.

Each database is copied from a template that was migrated once. A test that needs durability, or stops and kills
servers, starts its own ``LocalPostgres``.
"""

import asyncio
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from hypothesis import settings

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import ConnectionTarget, Database, LocalPostgres, Migrator
from tests.events.checking import check_events

# No test asserts how long something takes: whose machine is busy has other work, not a fault.
# And a run tells of the change, not of its luck: the examples are the same for the same test, so that what passed here
# passes there. `make explore` looks where nobody has looked yet (docs/decisions/0062).
settings.register_profile("postroom", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=400, print_blob=True)
settings.load_profile("postroom")

# Ends the server and removes its directory when the tests' process goes away without tidying up: reads from a pipe
# that closes with it.
_REAPER = 'read -r _; kill -QUIT "$1" 2>/dev/null; while kill -0 "$1" 2>/dev/null; do sleep 0.2; done; rm -rf "$2"'
_TEST_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "autovacuum_naptime": "10min",
}
_ROOM = 2 << 30
"""Octets that have to be free in memory before a server is put there; it takes a tenth of them."""


def _external() -> str | None:
    return os.environ.get("POSTROOM_TEST_DATABASE_URL") or os.environ.get("POSTROOM_DATABASE_URL")


@cache
def _memory() -> str | None:
    """A directory in memory with room for a server; None where there is none."""
    shared = "/dev/shm"
    try:
        found = os.statvfs(shared)
        available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
    except (OSError, StopIteration):
        return None
    room = min(found.f_bavail * found.f_frsize, int(available.split()[1]) * 1024)
    return shared if room >= _ROOM and os.access(shared, os.W_OK | os.X_OK) else None


def _with_database(url: str, name: str) -> str:
    """The same server and options, another database. (urlunsplit would drop the empty host of
    ``postgresql:///name``.)
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/{name}" + (f"?{parts.query}" if parts.query else "")


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url, timeout=30)
    try:
        for statement in statements:
            await connection.execute(statement, timeout=120)
    finally:
        await connection.close(timeout=30)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The server under test, as the URL of a database on it that is nobody's."""
    if external := _external():
        yield external
        return
    directory = Path(tempfile.mkdtemp(prefix="postroom-test-", dir=_memory()))
    server = LocalPostgres(directory, max_connections=200, settings=_TEST_SETTINGS, watch=False)
    asyncio.run(server.start())
    reaper = subprocess.Popen(
        ["sh", "-c", _REAPER, "sh", str(server.pid), str(directory)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield server.dsn_for("postgres")
    finally:
        asyncio.run(server.stop())
        reaper.communicate()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def template_database(postgres_url: str) -> Iterator[str]:
    """Name of a migrated database that nobody connects to."""
    name = f"postroom_test_template_{secrets.token_hex(6)}"

    async def make() -> None:
        await _execute(postgres_url, f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8'")
        await Migrator(ConnectionTarget(_with_database(postgres_url, name))).run()

    asyncio.run(make())
    yield name
    asyncio.run(_execute(postgres_url, f'DROP DATABASE "{name}" WITH (FORCE)'))


@asynccontextmanager
async def new_database(postgres_url: str, template_database: str) -> AsyncIterator[str]:
    """URL of a database that goes again, for fixtures that live longer than a test."""
    name = f"postroom_test_{secrets.token_hex(6)}"
    # FILE_COPY forces two checkpoints, which cost nothing where there is no disk; and it copies what the template's
    # sessions have cached of its catalogs.
    strategy = "FILE_COPY" if _memory() and not _external() else "WAL_LOG"
    await _execute(postgres_url, f'CREATE DATABASE "{name}" TEMPLATE "{template_database}" STRATEGY {strategy}')
    yield _with_database(postgres_url, name)
    await _execute(postgres_url, f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
async def database_url(postgres_url: str, template_database: str) -> AsyncIterator[str]:
    async with new_database(postgres_url, template_database) as url:
        yield url


@pytest.fixture
async def db(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    async with Database(database_url, min_size=1, max_size=10, application_name="postroom-tests") as database:
        yield database
        # Whatever a test made happen, what was said of it is what the registry of events says.
        made_up = request.node.get_closest_marker("events_made_up")
        if made_up is None or not made_up.kwargs.get("all"):
            await check_events(database, of="" if made_up is None else "webhook.")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def ids(clock: ManualClock) -> IdGenerator:
    return IdGenerator(clock)
