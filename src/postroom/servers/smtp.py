"""The MX listener: mail from other servers, on port 25 (rules A1–A9).

It moves bytes and calls two services: `resolve` decides on each recipient, `receive` takes each complete message.
"""

import asyncio
import socket
import ssl
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from postroom.base import log as base_log
from postroom.servers.smtp_connection import ConnectionContext, ListenerLimits, Receive, Resolve, SmtpConnection
from postroom.servers.smtp_limits import CommandRate, ConnectionCounter, MemoryBudget
from postroom.smtp import replies
from postroom.smtp.server import ServerConfig

__all__ = ["ListenerLimits", "MemoryBudget", "MxListener", "Receive", "Resolve"]

R = TypeVar("R")

_BACKLOG: Final = 512


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _new_connection_id() -> str:
    return str(uuid.uuid4())


class MxListener(Generic[R]):
    """Listens, and keeps the connections.

    STARTTLS is offered exactly when there is an `ssl_context`. `budget` may be shared by the listeners of a process;
    without one the listener makes its own from `limits.memory_budget`.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        resolve: Resolve[R],
        receive: Receive[R],
        limits: ListenerLimits | None = None,
        ssl_context: ssl.SSLContext | None = None,
        budget: MemoryBudget | None = None,
        now: Callable[[], datetime] = _utc_now,
        new_id: Callable[[], str] = _new_connection_id,
    ) -> None:
        limits = limits or ListenerLimits()
        self._server: asyncio.Server | None = None
        self._resolve = resolve
        self._context: ConnectionContext[R] = ConnectionContext(
            config=replace(config, tls_available=ssl_context is not None),
            limits=limits,
            resolve=resolve,
            receive=receive,
            ssl_context=ssl_context,
            counter=ConnectionCounter(limits.max_connections, limits.max_connections_per_ip),
            rate=CommandRate(limits.command_rate, lambda: asyncio.get_running_loop().time()),
            budget=budget or MemoryBudget(limits.memory_budget),
            now=now,
            new_id=new_id,
            log=base_log.get("servers.smtp"),
        )

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> None:
        """Listen on `host` (`None`: every address) and `port` (0: any free one). Raises `OSError`."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: SmtpConnection(self._context), host, port, backlog=_BACKLOG, reuse_port=reuse_port or None
        )

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening sockets; none before `start` and after `drain`."""
        return tuple(self._server.sockets) if self._server is not None else ()

    @property
    def port(self) -> int:
        """The port of the first socket. Raises `RuntimeError` when not listening."""
        if not self.sockets:
            raise RuntimeError("not listening")
        return int(self.sockets[0].getsockname()[1])

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return self._context.counter.total

    async def drain(self, timeout: float) -> None:
        """Stop: accept no more, let the commands and messages in hand finish, `421 4.3.2` to everyone else.

        What is not done within `timeout` seconds is cut off. Returns when every connection is closed.
        """
        context = self._context
        context.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(context.connections):
            connection.drain()
        if await self._emptied(timeout):
            return
        for connection in list(context.connections):
            if not connection.is_deciding:
                connection.finish(replies.SHUTTING_DOWN)
        if await self._emptied(context.limits.linger):
            return
        for connection in list(context.connections):
            connection.abort()
        await self._emptied(context.limits.linger)

    async def _emptied(self, timeout: float) -> bool:
        """Whether all connections are gone within `timeout` seconds."""
        context = self._context
        if not context.connections:
            return True
        try:
            await asyncio.wait_for(context.empty.wait(), timeout)
        except TimeoutError:
            return False
        return True
