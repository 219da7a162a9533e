"""What the listeners of line protocols share: sockets, the connections they brought, and how they are stopped."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final, Protocol

BACKLOG: Final = 512


class Drainable(Protocol):
    """A connection, as far as stopping is concerned."""

    def drain(self) -> None:
        """The listener stops: say goodbye now, or as soon as what is in hand is done."""

    def expire(self) -> None:
        """Patience is over: say goodbye, unless an answer is being decided."""

    def abort(self) -> None:
        """Drop the connection, and whatever is pending, at once."""


class Connections(Protocol):
    """The connections of a listener; `empty` is set whenever there is none."""

    @property
    def connections(self) -> set[Any]: ...
    @property
    def empty(self) -> asyncio.Event: ...

    draining: bool


class Listening:
    """A base for listeners: they set `_server` when they start, and say which connections are theirs."""

    def __init__(self, connections: Connections, *, linger: float) -> None:
        self._server: asyncio.Server | None = None
        self._connections = connections
        self._linger = linger

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

    async def drain(self, timeout: float) -> None:
        """Stop: accept no more, let what is in hand finish, say goodbye to everyone else.

        What is not done within `timeout` seconds is cut off. Returns when every connection is closed.
        """
        self._connections.draining = True
        if self._server is not None:
            self._server.close()
        for connection in self._open():
            connection.drain()
        if await self._emptied(timeout):
            return
        for connection in self._open():
            connection.expire()
        if await self._emptied(self._linger):
            return
        for connection in self._open():
            connection.abort()
        await self._emptied(self._linger)

    def _open(self) -> list[Drainable]:
        return list(self._connections.connections)

    async def _emptied(self, timeout: float) -> bool:
        """Whether all connections are gone within `timeout` seconds."""
        if not self._connections.connections:
            return True
        try:
            await asyncio.wait_for(self._connections.empty.wait(), timeout)
        except TimeoutError:
            return False
        return True
