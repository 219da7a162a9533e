"""`postroom serve`: owns PostgreSQL, runs the server process or several of them, and stops everything in order (B19).

With one process, the server runs here. With N, each is a child of its own that listens on the same ports
(`SO_REUSEPORT`); a child that dies is started again, and the bundled database is stopped after the last of them. The
first one is started alone: what keeps it from listening would keep all of them, and is told once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from postroom.app import open_core, open_postgres
from postroom.base import interruption
from postroom.base import log as base_log
from postroom.base.secrets import Secrets
from postroom.base.settings_tree import Settings
from postroom.blobs.maildir import SWEEP_AGE_SECONDS, MaildirStore
from postroom.db import Database, Migrator
from postroom.node import Node

log = base_log.get("supervisor")

CHILD_URL: Final = "POSTROOM_CHILD_DATABASE_URL"
"""How a child learns where the database is that the supervisor runs."""
CHILD_READY: Final = "POSTROOM_CHILD_READY"
"""The descriptor on which the first child says that it listens."""
CHILD_NUMBER: Final = "POSTROOM_CHILD_NUMBER"
"""Which of the processes a child is, from 0; whoever takes the place of one that died has its number."""
IN_VAIN: Final = frozenset((3, 10))
"""Exit codes of a child that need not be tried again: configuration, and infrastructure such as a port that is taken
(cli-config-ops A3)."""
GC_THRESHOLDS: Final = (20_000, 20, 50)
RESTART_SECONDS: Final = 1.0
MAX_QUICK_DEATHS: Final = 5
KILL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Running:
    """What `ready` is told: the ports that listen here, and the database's URL."""

    ports: Mapping[str, int]
    database_url: str


Ready = Callable[[Running], None]
Reload = Callable[[], Secrets]


async def serve(
    settings: Settings, secrets: Secrets, *, ready: Ready | None = None, reload: Reload | None = None
) -> int:
    """Run until SIGTERM or SIGINT. The exit code: 0, 1 when the server failed by itself, or that of a first child that
    could not start and has said why. `reload` reads the secrets again.

    Raises what starting raises (PostgresLaunchError, MigrationError, DeploymentMismatch, OSError …); everything that
    was started is stopped first.
    """
    stop = stop_on_signals()
    async with open_postgres(settings) as url:
        await _sweep_staging(settings)
        if settings.server.processes == 1:
            return await _serve_here(settings, secrets, url, stop, ready, reload=reload)
        if settings.database.run_migrations:
            await Migrator(Database(url)).run()
        children = _Children(settings.server.processes, url, settings.server.shutdown_timeout_secs)
        return await children.run(stop, lambda: None if ready is None else ready(Running({}, url)))


async def serve_child(settings: Settings, secrets: Secrets, url: str, reload: Reload) -> int:
    """One of several processes: as `serve`, with the database that the supervisor runs. Ends with the supervisor."""
    stop = stop_on_signals()
    _stop_with_supervisor(stop)
    return await _serve_here(settings, secrets, url, stop, _tell_supervisor, reuse_port=True, reload=reload)


def _tell_supervisor(running: Running) -> None:
    descriptor = os.environ.pop(CHILD_READY, None)
    if descriptor is not None:
        # Nobody listens any more: then the supervisor is gone, which is noticed elsewhere.
        with contextlib.suppress(BrokenPipeError):
            os.write(int(descriptor), b"\n")
        os.close(int(descriptor))


async def _serve_here(
    settings: Settings,
    secrets: Secrets,
    url: str,
    stop: asyncio.Event,
    ready: Ready | None,
    *,
    reuse_port: bool = False,
    reload: Reload | None = None,
) -> int:
    async with open_core(
        settings, secrets, url, migrate=settings.database.run_migrations, writing_process=True
    ) as core:
        node = Node(core, reuse_port=reuse_port, reload=reload, number=int(os.environ.get(CHILD_NUMBER, "0")))
        try:
            await node.start()
            settle_memory()
            if ready is not None:
                ready(Running(node.ports, url))
            await _first(stop, node.failed)
            failed = node.failed.is_set()
            log.info("stopping")
        finally:
            await node.drain()
        return 1 if failed else 0


def settle_memory() -> None:
    """The program itself stays: the collector need not look at it again, nor so often at what comes and goes."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _sweep_staging(settings: Settings) -> None:
    """Remove what a crash left half written, before anybody writes (mail-server.md E2).

    Of any age only under the bundled database, whose lock says that nobody else uses the data directory.
    """
    store = MaildirStore(settings.server.data_dir)
    try:
        await store.sweep(SWEEP_AGE_SECONDS if settings.database.url else 0)
    finally:
        await store.close()


class _Children:
    """The processes of a supervisor."""

    def __init__(self, count: int, url: str, patience: float) -> None:
        self._count = count
        self._environment = {**os.environ, CHILD_URL: url}
        self._patience = patience + KILL_SECONDS
        self._broken = asyncio.Event()
        self._up = asyncio.Event()
        self._code = 0

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> int:
        """Until `stop`, or until it is in vain; the exit code. `ready` is called when the first of them listens."""
        keepers = [asyncio.create_task(self._keep(stop, 0), name="child-0")]
        await _first(stop, self._up, self._broken)
        if self._up.is_set() and not stop.is_set():
            ready()
            keepers += [asyncio.create_task(self._keep(stop, n), name=f"child-{n}") for n in range(1, self._count)]
            await _first(stop, self._broken)
        stop.set()
        await asyncio.gather(*keepers)
        return self._code

    async def _keep(self, stop: asyncio.Event, number: int) -> None:
        """Run the child of that number, again whenever it dies; give up when it never lives."""
        loop = asyncio.get_running_loop()
        quick = 0
        while not stop.is_set():
            started = loop.time()
            child = await self._start(number)
            ended = asyncio.create_task(child.wait())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if stop.is_set():
                await self._end(child, ended)
                return
            log.error("server_process_died", code=child.returncode)
            if child.returncode in IN_VAIN and not self._up.is_set():
                self._give_up(child.returncode)
                return
            quick = quick + 1 if loop.time() - started < 10 else 0
            if quick >= MAX_QUICK_DEATHS:
                self._give_up(1)
                return
            await asyncio.sleep(RESTART_SECONDS)

    def _give_up(self, code: int) -> None:
        self._code = code
        self._broken.set()

    async def _start(self, number: int) -> asyncio.subprocess.Process:
        """A new child; one that is started before any of them listens says when it does."""
        environment = {**self._environment, CHILD_NUMBER: str(number)}
        if self._up.is_set():
            return await self._spawn(environment)
        heard, told = os.pipe()
        try:
            child = await self._spawn({**environment, CHILD_READY: str(told)}, told)
        except BaseException:
            os.close(heard)
            raise
        finally:
            os.close(told)
        loop = asyncio.get_running_loop()

        def listen() -> None:
            loop.remove_reader(heard)
            if os.read(heard, 1):
                self._up.set()
            os.close(heard)

        loop.add_reader(heard, listen)
        return child

    async def _spawn(self, environment: Mapping[str, str], *descriptors: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "postroom", *sys.argv[1:]),
            stdin=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
            pass_fds=descriptors,
        )

    async def _end(self, child: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
        if child.returncode is None:
            child.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(ended), self._patience)
        except TimeoutError:
            child.kill()
            await ended


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set, or have set already."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    # One that came between two handlers would be nobody's: it waits until both are there.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        for number in numbers:
            loop.add_signal_handler(number, stop.set)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if interruption.was_asked():
        stop.set()
    return stop


def _stop_with_supervisor(stop: asyncio.Event) -> None:
    """Set `stop` when the supervisor is gone, however it went: it holds the other end of our standard input, and never
    writes. A child left alone would go on taking mail beside those of the next supervisor, and nobody could stop it.
    """
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def gone() -> None:
        loop.remove_reader(descriptor)
        stop.set()

    loop.add_reader(descriptor, gone)


async def _first(*events: asyncio.Event) -> None:
    """Wait for any of the events."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
