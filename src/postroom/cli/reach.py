"""How a command reaches the deployment's database: through the server that runs, or by running it for a while (B17).

Commands that have to start the bundled PostgreSQL wait for one another under a lock of the data directory; a starting
server holds that lock too, until it can be connected to. So a command never stands in the way of a server's start,
and never uses a database that another command is about to stop.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from postroom.app import SERVER_CONNECTIONS, Core, open_core, open_postgres
from postroom.base.secrets import Secrets, ensure_secrets, load_secrets
from postroom.base.settings import Settings
from postroom.cli.failures import infrastructure
from postroom.cli.invocation import Invocation
from postroom.db import (
    ConnectionTarget,
    DatabaseUnavailable,
    LocalPostgres,
    Migrator,
    PostgresLaunchError,
)

T = TypeVar("T")

LOCK_NAME: Final = ".commands.lock"
LOCK_PATIENCE: Final = 120.0
"""Seconds to wait for another command, or for a server to come up."""
CONNECT_TIMEOUT: Final = 5.0
RESTART_PATIENCE: Final = 15.0
"""Seconds that the database of a running server may take to come back."""
_POLL: Final = 0.05


class Access(Enum):
    """Whose database server it is."""

    EXTERNAL = "external"
    RUNNING = "running"
    """The bundled one, run by a server."""
    OWN = "own"
    """The bundled one, started for this command."""


@dataclass(frozen=True, slots=True)
class Reached:
    url: str
    access: Access


def is_set_up(settings: Settings) -> bool:
    """Whether there is a database to work on: an external one, or a bundled one that was made before."""
    return bool(settings.database.url) or (settings.server.data_dir / "postgres" / "data").is_dir()


def _open_lock(data_dir: Path) -> CommandsLock:
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return CommandsLock(os.open(data_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


class CommandsLock:
    """The data directory's lock for commands, held until it is released or this process ends."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def take(self) -> bool:
        """Whether it could be had at once."""
        return self._fd is not None and _locked(self._fd)

    def release(self) -> None:
        """Let go; a second time does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


async def take_commands_lock(data_dir: Path, patience: float = LOCK_PATIENCE) -> CommandsLock:
    """Wait for the lock; makes the directory when it is missing.

    Raises a failure of infrastructure when another holds it for longer than *patience* seconds.
    """
    lock = await asyncio.to_thread(_open_lock, data_dir)
    try:
        deadline = time.monotonic() + patience
        while not lock.take():
            if time.monotonic() > deadline:
                raise infrastructure(f"another command has been working on {data_dir} for {patience:.0f} s")
            await asyncio.sleep(_POLL)
    except BaseException:
        lock.release()
        raise
    return lock


@asynccontextmanager
async def commands_lock(data_dir: Path) -> AsyncIterator[None]:
    """Hold the lock for as long as the context lasts; raises as `take_commands_lock`."""
    lock = await take_commands_lock(data_dir)
    try:
        yield
    finally:
        lock.release()


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def server_is_running(data_dir: Path) -> bool:
    """Whether a Postroom holds the bundled PostgreSQL of *data_dir*."""
    try:
        fd = os.open(data_dir / "postgres" / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _locked(fd)
    finally:
        os.close(fd)


@asynccontextmanager
async def reach(settings: Settings) -> AsyncIterator[Reached]:
    """The database, for as long as the context lasts. Raises DatabaseError, or a failure of infrastructure."""
    if settings.database.url:
        yield Reached(settings.database.url, Access.EXTERNAL)
        return
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(commands_lock(settings.server.data_dir))
        server = LocalPostgres(settings.server.data_dir, max_connections=SERVER_CONNECTIONS)
        if not await _answers(server):
            try:
                url = await stack.enter_async_context(open_postgres(settings))
            except PostgresLaunchError:
                if not server_is_running(settings.server.data_dir):
                    raise
                await _wait_for(server, settings.server.data_dir)
            else:
                yield Reached(url, Access.OWN)
                return
        # The server's database outlives this command, so others need not wait for it.
        await stack.aclose()
        yield Reached(server.dsn, Access.RUNNING)


async def _wait_for(server: LocalPostgres, data_dir: Path) -> None:
    deadline = time.monotonic() + RESTART_PATIENCE
    while not await _answers(server):
        if time.monotonic() > deadline:
            raise DatabaseUnavailable(f"a Postroom is running on {data_dir}, but its database does not answer")
        await asyncio.sleep(_POLL * 5)


async def _answers(server: LocalPostgres) -> bool:
    """Whether our PostgreSQL can be connected to."""
    if not _is_private(server.socket_dir):
        return False
    try:
        connection = await ConnectionTarget(server.dsn, connect_timeout=CONNECT_TIMEOUT).connect()
    except DatabaseUnavailable:
        return False
    await connection.close(timeout=CONNECT_TIMEOUT)
    return True


def _is_private(directory: Path) -> bool:
    """Whether nobody else could have put a socket into *directory*."""
    try:
        info = directory.lstat()
    except OSError:
        return False
    ours = info.st_uid == os.geteuid() or os.geteuid() == 0
    return stat.S_ISDIR(info.st_mode) and ours and not stat.S_IMODE(info.st_mode) & 0o077


def run(invocation: Invocation, work: Callable[[Core], Awaitable[T]], *, create: bool = False) -> T:
    """Run *work* on the deployment's core, to its end. With *create* a deployment that is not there yet is made, and
    whoever meant another one is told where.
    """
    settings = invocation.settings()
    if create and not is_set_up(settings):
        invocation.output.note(f"There was no Postroom in {settings.server.data_dir}: a new one begins there.")

    async def inner() -> T:
        async with core_for(settings, invocation.environ, create=create) as core:
            return await work(core)

    return asyncio.run(inner())


@asynccontextmanager
async def core_for(settings: Settings, environ: Mapping[str, str], *, create: bool = False) -> AsyncIterator[Core]:
    """The core that a command works with. Raises what `open_core` raises, SettingsError without secrets, and a failure
    of infrastructure when there is no deployment and none may be made.
    """
    if not create and not await _is_there(settings):
        raise infrastructure(
            f"there is no Postroom in {settings.server.data_dir}",
            "Check --data-dir, or start one there with postroom serve.",
        )
    async with reach(settings) as reached:
        migrate = await _may_migrate(settings, reached, create=create)
        secrets = await _secrets(settings, environ, reached.access, create=create)
        async with open_core(few_connections(settings), secrets, reached.url, migrate=migrate) as core:
            yield core


async def _is_there(settings: Settings) -> bool:
    """Whether there is a deployment; one that is being made counts when it is made."""
    if not is_set_up(settings) and (settings.server.data_dir / LOCK_NAME).exists():
        async with commands_lock(settings.server.data_dir):
            pass
    return is_set_up(settings)


async def _secrets(settings: Settings, environ: Mapping[str, str], access: Access, *, create: bool) -> Secrets:
    data_dir = settings.server.data_dir
    if create and access is Access.OWN:
        ensure_secrets(data_dir, environ=environ)
    elif create and access is Access.EXTERNAL:
        async with commands_lock(data_dir):
            ensure_secrets(data_dir, environ=environ)
    return load_secrets(data_dir, environ)


async def _may_migrate(settings: Settings, reached: Reached, *, create: bool) -> bool:
    """Whether to bring the schema up to date. Under a server that runs nobody changes it in passing."""
    if reached.access is Access.OWN and settings.database.run_migrations:
        return True
    status = await Migrator(ConnectionTarget(reached.url)).status()
    if status.pending and not (create and not status.applied):
        raise infrastructure("the database's schema is older than this program", "Run postroom migrate.")
    return bool(status.pending)


def few_connections(settings: Settings) -> Settings:
    """The settings with a pool for one command: it takes next to nothing from the servers' share (B19)."""
    database = settings.database.model_copy(update={"min_connections": 0, "max_connections": 2})
    return settings.model_copy(update={"database": database})
