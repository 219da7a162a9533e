"""The MX listener: mail from other servers, on port 25 (rules A1–A9).

It moves bytes and calls two services: `resolve` decides on each recipient, `receive` takes each complete message.
"""

import asyncio
import ssl
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Generic, TypeVar

from postroom.base import log as base_log
from postroom.servers.limits import CommandRate, ConnectionCounter, MemoryBudget
from postroom.servers.listening import BACKLOG, Listening
from postroom.servers.smtp_connection import ConnectionContext, ListenerLimits, Receive, Resolve, SmtpConnection
from postroom.smtp.server import ServerConfig

__all__ = ["ListenerLimits", "MemoryBudget", "MxListener", "Receive", "Resolve"]

R = TypeVar("R")


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _new_connection_id() -> str:
    return str(uuid.uuid4())


class MxListener(Listening, Generic[R]):
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
        super().__init__(self._context, linger=limits.linger)

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> None:
        """Listen on `host` (`None`: every address) and `port` (0: any free one). Raises `OSError`."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: SmtpConnection(self._context), host, port, backlog=BACKLOG, reuse_port=reuse_port or None
        )

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return self._context.counter.total
