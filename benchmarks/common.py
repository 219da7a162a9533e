"""What benchmarks share: a whole server in a directory of its own, what it costs, and rows of results.

A benchmark module has `run(quick) -> list[Row]`. Run as a program, this module seeds a deployment: `Server` does that
in a process of its own, so that the measuring process stays small.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from benchmarks.dns_stub import DnsStub

Row = dict[str, Any]
"""`name`, `value`, `unit`, and where there are: `target`; `peer`, a figure or its `name` and `value`; `better`,
"higher" or "lower".
"""

PROJECT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = PROJECT / "benchmarks" / "results"
DOMAIN: Final = "agents.example"
PASSWORD: Final = "correct-horse-battery-staple-9"
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 45.0
STATISTICS_SECONDS: Final = 6.0
"""After the first messages the server's own statistics job runs; before that plans are those of empty tables."""
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of what waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("it waits")


def best(work: Callable[[], Any], seconds: float) -> float:
    """Seconds per call of the best of ten rounds, which is the figure least disturbed by neighbours."""
    work()
    started = time.perf_counter()
    work()
    once = max(time.perf_counter() - started, 1e-7)
    calls = max(1, int(seconds / 10 / once))
    found = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        for _ in range(calls):
            work()
        found = min(found, (time.perf_counter() - started) / calls)
    return found


def row(
    name: str,
    value: float,
    unit: str,
    *,
    target: float | None = None,
    peer: float | None = None,
    peer_name: str = "",
    better: str | None = None,
) -> Row:
    """A line of the table. `peer` is the peer's figure in the same unit, from the same run. Without `better`, more is
    better of what is counted per second, less of anything else.
    """
    made: Row = {"name": name, "value": _short(value), "unit": unit}
    if target is not None:
        made["target"] = _short(target)
    if peer is not None:
        made["peer"] = {"name": peer_name, "value": _short(peer)} if peer_name else _short(peer)
    if better is not None:
        made["better"] = better
    return made


def _short(value: float) -> float:
    """Four significant digits; whole numbers stay whole."""
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")


def median(values: Iterable[float]) -> float:
    """The median of at least one value."""
    return statistics.median(values)


# -- places -----------------------------------------------------------------------------------------------------------


def is_in_memory(path: Path) -> bool:
    """Whether the file system of *path* forgets: there, making data durable costs nothing and figures say nothing."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    for parent in (path, *path.parents):
        if parent in mounts:
            return mounts[parent] in _IN_MEMORY
    return False


def work_root() -> Path:
    """Where servers under measurement keep their data: `$TMPDIR` if that is a disk, else below `results`."""
    named = os.environ.get("TMPDIR")
    if named and Path(named).is_dir() and not is_in_memory(Path(named).resolve()):
        return Path(named).resolve()
    root = RESULTS / "tmp"
    root.mkdir(parents=True, exist_ok=True)
    return root


@contextlib.contextmanager
def work_directory(prefix: str) -> Iterator[Path]:
    """A new directory on the disk, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=work_root()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that nobody listens on at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


# -- processes --------------------------------------------------------------------------------------------------------


def tree(pid: int) -> list[psutil.Process]:
    """The process and all that descend from it; empty when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """CPU that they used so far, with that of children that have ended and were waited for."""
    spent = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spent += times.user + times.system + times.children_user + times.children_system
    return spent


@dataclass(frozen=True, slots=True)
class Memory:
    """Octets. `pss` divides each shared page among those who share it, so that a sum over processes is what they
    take together; a sum of `rss` counts shared pages once for each.
    """

    pss: int
    rss: int


def memory(processes: Iterable[psutil.Process]) -> Memory:
    """What they hold together."""
    pss = rss = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            info = process.memory_full_info()
            pss += info.pss
            rss += info.rss
    return Memory(pss, rss)


def kill(processes: Sequence[psutil.Process]) -> None:
    """End these processes at once; nothing happens to those that are gone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(list(processes), timeout=10)


def keep_niceness(processes: Iterable[psutil.Process]) -> None:
    """Give the sessions of these processes the niceness that this process was started with.

    Linux shares the CPU among sessions first, so that without this `nice` would say nothing about a server that runs in
    a session of its own. For the same reason every server and every load client gets one: what is compared has the
    same share of a busy machine.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if not nice:
        return
    for process in processes:
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/autogroup").write_text(str(nice))


def wait_for_ports(ports: Iterable[int], process: subprocess.Popen[bytes], deadline: float) -> None:
    """Until all of them can be connected to. Raises RuntimeError when the process ends or *deadline* (monotonic)
    passes.
    """
    for port in ports:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None:
                raise RuntimeError(f"ended with {process.returncode} before it listened")
            if time.monotonic() > deadline:
                raise RuntimeError(f"does not listen on port {port}")
            time.sleep(0.005)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of the server's processes and of the database's, since they started."""

    server: float
    database: float

    def since(self, before: Cost) -> Cost:
        return Cost(self.server - before.server, self.database - before.database)

    @property
    def total(self) -> float:
        return self.server + self.database


# -- the server -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Box:
    """A seeded mailbox. `password` opens it over IMAP; agents have none."""

    address: str
    identity_id: str
    password: str | None


@dataclass(frozen=True, slots=True)
class Seeded:
    """`people` are mailboxes `user0`, `user1`, … that one person may open; `agents` are `agent0`, `agent1`, …"""

    tenant_id: str
    api_key: str
    people: tuple[Box, ...]
    agents: tuple[Box, ...]


class Server:
    """`postroom serve` with the bundled PostgreSQL, on free loopback ports, in a directory removed afterwards.

    A context manager; `stop` and `start` may be called in between. `settings` are more settings, by their names in the
    environment.
    """

    def __init__(
        self,
        *,
        people: int = 1,
        agents: int = 1,
        processes: int = 1,
        roles: str = "smtp,imap,http,worker",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._wanted = {"people": people, "agents": agents}
        self._command = [sys.executable, "-m", "postroom", "serve", "--roles", roles, "--processes", str(processes)]
        self._processes = processes
        self._more = dict(settings or {})
        self._roles = roles.split(",")
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._dns = DnsStub()
        self.host = "127.0.0.1"
        self.smtp_port, self.imap_port, self.http_port = free_ports(3)
        self.directory = Path()
        self.seeded = Seeded("", "", (), ())

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.directory = stack.enter_context(work_directory("postroom-bench-"))
            stack.enter_context(self._dns)
            self.seeded = self._seed()
            stack.callback(self.stop)
            self.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def database_url(self) -> str:
        """The URL of the bundled database, for looking at it from outside."""
        from postroom.db import LocalPostgres

        return LocalPostgres(self.data_dir).dsn

    @property
    def people(self) -> tuple[Box, ...]:
        return self.seeded.people

    @property
    def agents(self) -> tuple[Box, ...]:
        return self.seeded.agents

    @property
    def api_key(self) -> str:
        """A key with every permission of the tenant."""
        return self.seeded.api_key

    def platform_keys(self, count: int) -> list[str]:
        """New keys of the platform, with every permission that it can hold. The database runs."""
        return asyncio.run(_make_keys(self.environment(), self.database_url, count))

    @property
    def ports(self) -> list[int]:
        by_role = {"smtp": self.smtp_port, "imap": self.imap_port, "http": self.http_port}
        return [port for role, port in by_role.items() if role in self._roles]

    def start(self) -> float:
        """Start, and wait until everything listens; the seconds that took."""
        began = time.monotonic()
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.directory,
                env=self.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_for_ports(self.ports, self._process, began + START_SECONDS)
            self._wait_for_processes(began + START_SECONDS)
        except RuntimeError as error:
            log_tail = (self.directory / "log").read_text(errors="replace")[-2000:]
            self.stop()
            raise RuntimeError(f"the server {error}\n{log_tail}") from None
        self.keep_niceness()
        return time.monotonic() - began

    def stop(self) -> None:
        """Stop in order, the database last; by force what has not ended after 45 s."""
        if self._process is None:
            return
        database = self._database_pid()
        processes = self._server_tree() + (tree(database) if database else [])
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            kill(processes)
            self._process.wait(STOP_SECONDS)
        self._process = None

    def keep_niceness(self) -> None:
        """Again for connections that the database has got since: each is a session of its own."""
        keep_niceness([*self._server_tree(), *self._database_tree()])

    @property
    def process(self) -> psutil.Process:
        """The one that was started. Raises RuntimeError while there is none."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return psutil.Process(self._process.pid)

    def cost(self) -> Cost:
        """CPU seconds so far."""
        return Cost(cpu_seconds(self._server_tree()), cpu_seconds(self._database_tree()))

    def wait_indexed(self, timeout: float = 300.0) -> float:
        """Until the word index has every message; the monotonic time of that. Raises TimeoutError."""
        return asyncio.run(_wait_indexed(self.database_url, timeout))

    def memory(self) -> tuple[Memory, Memory]:
        """Of the server's processes, and of the database's."""
        return memory(self._server_tree()), memory(self._database_tree())

    def _server_tree(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        database = {process.pid for process in self._database_tree()}
        return [process for process in tree(self._process.pid) if process.pid not in database]

    def _database_tree(self) -> list[psutil.Process]:
        pid = self._database_pid()
        return tree(pid) if pid else []

    def _database_pid(self) -> int | None:
        try:
            return int((self.data_dir / "postgres" / "data" / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None

    def _wait_for_processes(self, deadline: float) -> None:
        """With several processes a port answers when the first of them listens; wait for the last."""
        if self._processes == 1:
            return
        while True:
            listening = sum(self._listens(process) for process in self._server_tree())
            if listening >= self._processes:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"has {listening} of {self._processes} processes that listen")
            time.sleep(0.02)

    def _listens(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            return any(
                one.laddr and one.laddr.port == self.ports[0] and one.status == psutil.CONN_LISTEN
                for one in process.net_connections("tcp")
            )
        return False

    def environment(self) -> dict[str, str]:
        """Of its process: ours, without settings meant for another deployment."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("POSTROOM_") and name not in ("DATABASE_URL", "STATE_DIRECTORY")
        }
        return kept | {
            "POSTROOM_ENV": "local",
            "POSTROOM_PLATFORM_DOMAIN": DOMAIN,
            "POSTROOM_API_HOST": "localhost",
            "POSTROOM_DATA_DIR": str(self.data_dir),
            "POSTROOM_LOG_LEVEL": "warning",
            "POSTROOM_RESOLVERS": self._dns.address,
            "POSTROOM__SMTP__HOST": self.host,
            "POSTROOM__SMTP__PORT": str(self.smtp_port),
            "POSTROOM__IMAP__HOST": self.host,
            "POSTROOM__IMAP__PORT": str(self.imap_port),
            "POSTROOM__API__HOST": self.host,
            "POSTROOM__API__PORT": str(self.http_port),
            **self._more,
        }

    def _seed(self) -> Seeded:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.common", json.dumps(self._wanted)],
            cwd=PROJECT,
            env=self.environment(),
            stdout=subprocess.PIPE,
            check=True,
            timeout=300,
        )
        made = json.loads(done.stdout)
        return Seeded(
            made["tenant_id"],
            made["api_key"],
            tuple(Box(**box) for box in made["people"]),
            tuple(Box(**box) for box in made["agents"]),
        )


async def _wait_indexed(url: str, timeout: float) -> float:
    import asyncpg

    connection = await asyncpg.connect(url, timeout=30)
    try:
        deadline = time.monotonic() + timeout
        while await connection.fetchval("SELECT EXISTS (SELECT FROM word_tasks)", timeout=30):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the word index is not up to date after {timeout:.0f} s")
            await asyncio.sleep(0.05)
        return time.monotonic()
    finally:
        await connection.close(timeout=30)


async def _make_keys(environ: Mapping[str, str], url: str, count: int) -> list[str]:
    from postroom.accounts.keys import NewKey
    from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY, Level
    from postroom.app import open_core
    from postroom.base import log
    from postroom.base.secrets import load_secrets
    from postroom.base.settings import load

    log.configure("warning", "text", sys.stderr)
    settings = load(environ=environ)
    new = NewKey("bench", Level.PLATFORM, tuple(MAY_HOLD[Level.PLATFORM] - OWNER_ONLY))
    async with open_core(settings, load_secrets(settings.server.data_dir, environ), url) as core:
        return [(await core.keys.create(None, new))[1] for _ in range(count)]


async def _make_deployment(people: int, agents: int) -> Seeded:
    """A deployment in `POSTROOM_DATA_DIR`: the default tenant, its mailboxes, one person with a right to those of
    people, and a key.
    """
    from postroom.accounts.keys import NewKey
    from postroom.accounts.models import NewPerson, NewTenant
    from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY, GrantRole, Level
    from postroom.app import open_core, open_postgres
    from postroom.base import log
    from postroom.base.secrets import ensure_secrets, load_secrets
    from postroom.base.settings import load
    from postroom.directory.models import IdentityKind, NewIdentity

    log.configure("warning", "text", sys.stderr)
    settings = load(environ=os.environ)
    data_dir = settings.server.data_dir
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    ensure_secrets(data_dir, environ=os.environ)
    async with (
        open_postgres(settings) as url,
        open_core(settings, load_secrets(data_dir, os.environ), url) as core,
    ):
        tenant = await core.tenants.create(NewTenant(slug="bench", name="Bench", is_default=True))
        person = await core.people.create(NewPerson("Reader", password=PASSWORD))
        boxes: dict[IdentityKind, list[Box]] = {IdentityKind.PERSON: [], IdentityKind.AGENT: []}
        names = [(IdentityKind.PERSON, f"user{n}") for n in range(people)]
        names += [(IdentityKind.AGENT, f"agent{n}") for n in range(agents)]
        for kind, name in names:
            identity, _ = await core.identities.create(tenant.id, NewIdentity(name, name, kind))
            password = None
            if kind is IdentityKind.PERSON:
                password = PASSWORD
                await core.people.grant(
                    tenant.id, identity.public_id, person.public_id, GrantRole.OWNER, by_operator=True
                )
            boxes[kind].append(Box(identity.primary.address, identity.public_id, password))
        permissions = tuple(MAY_HOLD[Level.TENANT] - OWNER_ONLY)
        _, key = await core.keys.create(None, NewKey("bench", Level.TENANT, permissions, tenant_id=tenant.id))
        return Seeded(tenant.public_id, key, tuple(boxes[IdentityKind.PERSON]), tuple(boxes[IdentityKind.AGENT]))


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(_make_deployment(**json.loads(sys.argv[1]))))))
