"""A deployment to torture: a data directory with mailboxes, and the server process on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from postroom.accounts import Level, NewKey
from postroom.accounts.models import NewPerson, NewTenant
from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY, GrantRole
from postroom.app import Core, open_core, open_postgres
from postroom.base.secrets import ensure_secrets, load_secrets
from postroom.base.settings import Settings, load
from postroom.db import ConnectionTarget, LocalPostgres
from postroom.directory.models import Identity, IdentityKind, NewIdentity

HOST: Final = "127.0.0.1"
DOMAIN: Final = "agents.example"
PASSWORD: Final = "correct horse battery staple 17"
READY_SECONDS: Final = 120.0
EXIT_SECONDS: Final = 60.0
HELPER_SECONDS: Final = 3.0
"""How long a helper process may take to notice that its server was killed."""
_PORTS: Final = range(20_000, 32_000)
"""Below the range from which the system takes the clients' ports: else one may sit on a port of a server that is
being restarted."""


class Broken(Exception):
    """The deployment did not do what it must; the text says what and where."""


@dataclass(frozen=True, slots=True)
class Box:
    """A mailbox of the deployment: its keys in the database, its address, and what opens it over IMAP."""

    tenant: int
    key: int
    tenant_id: str
    identity_id: str
    address: str
    secret: str
    is_person: bool


@dataclass(frozen=True, slots=True)
class Deployment:
    data_dir: Path
    ports: Mapping[str, int]
    boxes: Sequence[Box]
    api_keys: Sequence[str]
    environ: Mapping[str, str] = field(repr=False)

    @property
    def people(self) -> list[int]:
        return [at for at, box in enumerate(self.boxes) if box.is_person]

    @property
    def agents(self) -> list[int]:
        return [at for at, box in enumerate(self.boxes) if not box.is_person]

    @property
    def postgres(self) -> ConnectionTarget:
        """The deployment's database, for whoever looks from outside."""
        url = self.environ.get("POSTROOM_DATABASE_URL") or LocalPostgres(self.data_dir).dsn
        return ConnectionTarget(url, application_name="torture")


def free_ports(count: int, rng: random.Random) -> list[int]:
    """Ports of this machine that nobody listens on."""
    found: list[int] = []
    while len(found) < count:
        port = rng.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def environment(data_dir: Path, ports: Mapping[str, int], extra: Mapping[str, str]) -> dict[str, str]:
    """The variables of the server process; nothing of our own environment that configures Postroom passes."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM", "DATABASE_"))}
    return {
        **inherited,
        "POSTROOM_ENV": "local",
        "POSTROOM_PLATFORM_DOMAIN": DOMAIN,
        "POSTROOM_DATA_DIR": str(data_dir),
        "POSTROOM_RESOLVERS": f"{HOST}:9",  # where nobody answers, at once
        "POSTROOM_SMTP_HOST": HOST,
        "POSTROOM_SMTP_PORT": str(ports["smtp"]),
        "POSTROOM_SMTP_SUBMISSION_PORT": "0",
        "POSTROOM_IMAP_HOST": HOST,
        "POSTROOM_IMAP_PORT": str(ports["imap"]),
        "POSTROOM__API__HOST": HOST,
        "POSTROOM_API_PORT": str(ports["http"]),
        "POSTROOM_METRICS_LISTEN": "",
        "POSTROOM_SERVER_SHUTDOWN_TIMEOUT_SECS": "20",
        "POSTROOM_LOG_LEVEL": "warning",
        **extra,
    }


async def create(
    data_dir: Path,
    rng: random.Random,
    *,
    agents: int = 20,
    people: int = 2,
    extra: Mapping[str, str] | None = None,
    submission: bool = False,
) -> Deployment:
    """A tenant with its mailboxes, made in process; the database is stopped again afterwards. `submission`: its server
    listens for submitted mail, too."""
    await asyncio.to_thread(data_dir.mkdir, mode=0o700, parents=True, exist_ok=True)
    names = ("smtp", "imap", "http", "submission")
    ports = dict(zip(names, free_ports(len(names), rng), strict=True))
    if submission:
        extra = {"POSTROOM_SMTP_SUBMISSION_PORT": str(ports["submission"]), **(extra or {})}
    environ = environment(data_dir, ports, extra or {})
    ours = {name: value for name, value in environ.items() if name.startswith("POSTROOM")}
    settings: Settings = load({}, ours, None, data_dir=data_dir, host_name="torture")
    ensure_secrets(data_dir, os.urandom, ours)
    secrets = load_secrets(data_dir, ours)
    async with open_postgres(settings) as url, open_core(settings, secrets, url) as core:
        boxes, keys = await _fill(core, agents, people)
    return Deployment(data_dir, ports, boxes, keys, environ)


async def _fill(core: Core, agents: int, people: int) -> tuple[list[Box], list[str]]:
    tenant = await core.tenants.create(NewTenant(slug="acme", name="Acme"))
    permissions = tuple(sorted(MAY_HOLD[Level.TENANT] - OWNER_ONLY))
    keys = [
        (await core.keys.create(None, NewKey(f"key {n}", Level.TENANT, permissions, tenant.id, None)))[1]
        for n in range(4)
    ]
    mailbox_permissions = tuple(sorted(MAY_HOLD[Level.IDENTITY] - OWNER_ONLY))
    boxes: list[Box] = []
    for n in range(agents):
        # One that may write to strangers.
        agent = NewIdentity(
            f"agent{n}",
            f"Agent {n}",
            owner_name="Owner",
            owner_email="owner@example.com",
            send_policy={"require_known_recipient": False},
        )
        made, _ = await core.identities.create(tenant.id, agent)
        new = NewKey(f"agent {n}", Level.IDENTITY, mailbox_permissions, tenant.id, made.id)
        boxes.append(_box(made, (await core.keys.create(None, new))[1], is_person=False))
    for n in range(people):
        person = await core.people.create(NewPerson(f"Person {n}", None, PASSWORD))
        made, _ = await core.identities.create(tenant.id, NewIdentity(f"person{n}", f"Person {n}", IdentityKind.PERSON))
        await core.people.grant(tenant.id, made.public_id, person.public_id, GrantRole.OWNER, by_operator=True)
        boxes.append(_box(made, PASSWORD, is_person=True))
    return boxes, keys


def _box(identity: Identity, secret: str, *, is_person: bool) -> Box:
    return Box(
        identity.tenant_id,
        identity.id,
        identity.tenant_public_id,
        identity.public_id,
        identity.primary.address,
        secret,
        is_person,
    )


class Server:
    """`postroom serve` on a deployment, as a process of its own. Only what it started is ever signalled."""

    def __init__(self, deployment: Deployment, log: Path, *, processes: int = 1) -> None:
        self.deployment = deployment
        self.log = log
        self.processes = processes
        """How many the next start runs, on the same ports."""
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> float:
        """Start it and wait until every door answers; the seconds that took. Raises Broken."""
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "postroom", "serve", "--data-dir", str(self.deployment.data_dir)),
                *("--processes", str(self.processes)),
                env=dict(self.deployment.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while not (await self.is_ready() and self.all_listen()):
            if not self.is_running:
                raise Broken(f"the server ended while starting (status {self._process.returncode})\n{self.tail()}")
            if time.monotonic() - began > READY_SECONDS:
                raise Broken(f"the server was not ready after {READY_SECONDS:.0f} s\n{self.tail()}")
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def is_ready(self) -> bool:
        """Whether SMTP and IMAP greet and HTTP says that everything behind it is there."""
        ports = self.deployment.ports
        return (
            (await _says(ports["smtp"], b"")).startswith(b"220")
            and (await _says(ports["imap"], b"")).startswith(b"* OK")
            and b" 200 " in await _says(ports["http"], b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        )

    def all_listen(self) -> bool:
        """Whether each of several processes on the same ports is up. The first of them is started before the others."""
        if self.processes == 1:
            return True
        workers, port = self.workers(), self.deployment.ports["smtp"]
        return len(workers) == self.processes and all(_listens(one, port) for one in workers)

    def children(self) -> list[psutil.Process]:
        """Its processes but PostgreSQL's."""
        try:
            below = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        postgres = set(self.postgres_pids())
        return [child for child in below if child.pid not in postgres]

    def workers(self) -> list[psutil.Process]:
        """The server processes below the supervisor, when there are several."""
        return [child for child in self.children() if b"serve" in _command(child).split(b"\0")]

    async def kill(self) -> int:
        """SIGKILL to the server, every process of it; how many helpers lived on and had to be killed, too."""
        assert self._process is not None
        children, workers = self.children(), self.workers()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        await self._process.wait()
        left = await _gone(children, HELPER_SECONDS)
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        return len(left)

    async def terminate(self) -> int:
        """SIGTERM; the exit code. Raises Broken when it does not end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self._process.wait(), EXIT_SECONDS)
        except TimeoutError:
            await self.kill()
            raise Broken(f"the server did not end within {EXIT_SECONDS:.0f} s of SIGTERM\n{self.tail()}") from None

    def postmaster(self) -> psutil.Process | None:
        """The bundled PostgreSQL of this data directory, whoever started it."""
        try:
            pid = int((self.deployment.data_dir / "postgres/data/postmaster.pid").read_text().split("\n", 1)[0])
            found = psutil.Process(pid)
            return found if found.name().startswith("postgres") else None
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None

    def postgres_pids(self) -> list[int]:
        """The postmaster first."""
        found = self.postmaster()
        try:
            return [found.pid, *(child.pid for child in found.children())] if found else []
        except psutil.NoSuchProcess:
            return []

    def kill_worker(self, rng: random.Random) -> int:
        """SIGKILL to one of several server processes; its process id, 0 without one."""
        workers = self.workers()
        if not workers:
            return 0
        victim = rng.choice(workers)
        victim.kill()
        return victim.pid

    def kill_postmaster(self) -> int:
        """SIGKILL to the postmaster: its sessions notice by themselves. The process id, 0 without one."""
        found = self.postmaster()
        if found is None:
            return 0
        found.kill()
        return found.pid

    async def kill_backend(self, rng: random.Random) -> int:
        """SIGKILL to one session of the database, after which PostgreSQL restarts all; the process id."""
        found = self.postmaster()
        sessions = [child for child in found.children() if b"postroom" in _command(child)] if found else []
        if not sessions:
            return 0
        victim = rng.choice(sessions)
        victim.kill()
        return victim.pid

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    async def end(self) -> None:
        """Whatever still runs is stopped: the server, then a database that it left."""
        with contextlib.suppress(Broken):
            if self.is_running:
                await self.terminate()
        found = self.postmaster()
        if found is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.send_signal(signal.SIGINT)
            await _gone([found], 30.0)


async def _says(port: int, request: bytes) -> bytes:
    """The first line that a door answers with; empty when it doesn't."""
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(request)
                return await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


async def _gone(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still live after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        alive = [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        if not alive or time.monotonic() > deadline:
            return alive
        await asyncio.sleep(0.05)


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        sockets = process.net_connections(kind="tcp")
    except psutil.Error:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in sockets)


def _command(process: psutil.Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return b""
