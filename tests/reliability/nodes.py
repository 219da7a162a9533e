"""Two nodes: server processes that share a database and nothing of their memory, and requests that reach both at the
same instant.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg

from postroom.accounts import Level, NewKey
from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY
from postroom.app import open_core
from postroom.base.clock import SystemClock
from postroom.base.ids import IdGenerator
from postroom.base.secrets import load_secrets
from postroom.base.settings import load
from tests.torture import deployment
from tests.torture.clients import Http
from tests.torture.deployment import Box, Deployment, Server

T = TypeVar("T")

NODES: Final = 2
PLATFORM_KEYS: Final = 7


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node said."""

    status: int
    body: Any

    @property
    def code(self) -> str:
        """The code of an error; empty for a success."""
        return str(self.body["error"]["code"]) if self.status >= 400 else ""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. `at` is the number of its node, `key` what it is signed with."""

    at: int
    method: str
    path: str
    body: Any = None
    key: str = ""
    once: str = ""
    """Its Idempotency-Key."""


@dataclass
class Nodes:
    """The nodes, and keys of the platform. `database` looks from outside."""

    servers: Sequence[Server]
    platforms: Sequence[str]
    database: asyncpg.Connection[asyncpg.Record]
    ids: IdGenerator
    person: Box
    """A mailbox that somebody may open with a password."""
    platform: str = ""
    """The key that requests are signed with unless told otherwise."""
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def turn(self) -> None:
        """Sign with the next key: what one may ask for in a minute is limited."""
        self.platform = self.platforms[next(self._numbers) % len(self.platforms)]

    def word(self, prefix: str = "x") -> str:
        """A name that nobody has."""
        return f"{prefix}{next(self._numbers)}"

    async def ask(self, *asked: Ask) -> list[Answer]:
        """The answers. Every request has a connection of its own that is there before the first of them is sent; then
        they are sent together.
        """
        barrier = asyncio.Barrier(len(asked))

        async def one(ask: Ask) -> Answer:
            port = self.servers[ask.at].deployment.ports["http"]
            async with Http(port, ask.key or self.platform) as client:
                # Whatever a connection costs the node is paid by now.
                assert (await client.request("GET", "/health"))[0] == 200
                await barrier.wait()
                headers = {"Idempotency-Key": ask.once} if ask.once else None
                return Answer(*await client.request(ask.method, ask.path, ask.body, headers=headers))

        return await asyncio.gather(*(one(ask) for ask in asked))

    async def do(self, method: str, path: str, body: Any = None, *, key: str = "", at: int = 0) -> Any:
        """The body of a success."""
        (answer,) = await self.ask(Ask(at, method, path, body, key))
        assert answer.status < 300, answer.body
        return answer.body

    # -- what the races are about

    async def tenant(self) -> str:
        slug = self.word("tenant")
        return str((await self.do("POST", "/v1/tenants", {"slug": slug, "name": slug, "mode": "live"}))["id"])

    async def identity(self, tenant: str) -> str:
        body = {"username": self.word("bot"), "display_name": "Bot"}
        return str((await self.do("POST", f"/v1/tenants/{tenant}/identities", body))["id"])

    async def key(self, **body: Any) -> tuple[str, str]:
        """A key's id and its secret."""
        made = await self.do("POST", "/v1/keys", {"name": self.word("key"), **body})
        return made["id"], made["secret"]

    async def domain(self, tenant: str) -> str:
        """A healthy domain of the tenant."""
        public_id = self.ids.new("dom_")
        await self.database.execute(
            "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at)"
            " SELECT $1, id, $3, 'external', 'healthy', now(), now() FROM tenants WHERE public_id = $2",
            *(public_id, tenant, f"{self.word('domain')}.example"),
        )
        return public_id

    async def count(self, statement: str, *values: object) -> int:
        return int(await self.database.fetchval(statement, *values))


@asynccontextmanager
async def two_nodes(url: str) -> AsyncIterator[Nodes]:
    """Two servers on the (empty) database at `url` and on one directory of messages, each with ports of its own."""
    async with AsyncExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="postroom-nodes-"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        rng = random.Random()
        extra = {"POSTROOM_DATABASE_URL": url, "POSTROOM_SERVER_SHUTDOWN_TIMEOUT_SECS": "5"}
        first = await deployment.create(home / "data", rng, agents=0, people=1, extra=extra)
        platforms = await _platform_keys(first)
        servers = []
        for number in range(NODES):
            ports = dict(zip(first.ports, deployment.free_ports(len(first.ports), rng), strict=True))
            environ = deployment.environment(first.data_dir, ports, extra)
            server = Server(replace(first, ports=ports, environ=environ), home / f"server{number}.log")
            stack.callback(_show, server)  # pytest does when the test fails
            stack.push_async_callback(server.end)
            servers.append(server)
        await asyncio.gather(*(server.start() for server in servers))
        database = await first.postgres.connect()
        stack.push_async_callback(database.close)
        yield Nodes(servers, platforms, database, IdGenerator(SystemClock()), first.boxes[first.people[0]])


def _show(server: Server) -> None:
    print(f"a server's log:\n{server.tail(100)}")


async def _platform_keys(made: Deployment) -> list[str]:
    ours = {name: value for name, value in made.environ.items() if name.startswith("POSTROOM")}
    settings = load({}, ours, None, data_dir=made.data_dir, host_name="nodes")
    async with open_core(settings, load_secrets(made.data_dir, ours), made.environ["POSTROOM_DATABASE_URL"]) as core:
        permissions = tuple(sorted(MAY_HOLD[Level.PLATFORM] - OWNER_ONLY))
        new = NewKey("platform", Level.PLATFORM, permissions)
        return [(await core.keys.create(None, new))[1] for _ in range(PLATFORM_KEYS)]
