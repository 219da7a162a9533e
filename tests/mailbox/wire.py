"""A gate between a client and PostgreSQL that can lose what is said at a COMMIT."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, urlsplit

_COMMIT = b"COMMIT\0"


class Fault(enum.Enum):
    """What happens to the next COMMIT."""

    REPLY_LOST = "reply lost"
    """The server commits; the client never hears of it."""
    LATE = "late"
    """The client loses the connection; the server gets the COMMIT only after `release`."""
    NEVER = "never"
    """The client loses the connection; the server loses it, too, before the COMMIT."""


class Gate:
    """Passes bytes on, until `fault` is set."""

    def __init__(self, connect: Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]) -> None:
        self._connect = connect
        self.fault: Fault | None = None
        self.faults = 0
        self.release: Callable[[], Awaitable[None]] | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await self._connect()
        answers = asyncio.ensure_future(self._answers(up_reader, writer))
        try:
            while data := await reader.read(1 << 16):
                if self.fault is not None and data.startswith(b"Q") and data.endswith(_COMMIT):
                    await self._break(data, answers, up_reader, up_writer, writer)
                    return
                up_writer.write(data)
                await up_writer.drain()
        except ConnectionError:
            pass
        finally:
            answers.cancel()
            up_writer.close()
            writer.close()

    async def _answers(self, up_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await up_reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _break(
        self,
        commit: bytes,
        answers: asyncio.Future[None],
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
    ) -> None:
        fault, self.fault = self.fault, None
        self.faults += 1
        answers.cancel()
        with suppress(asyncio.CancelledError):
            await answers
        if fault is not Fault.REPLY_LOST:
            writer.transport.abort()
        if fault is Fault.LATE and self.release is not None:
            await self.release()
        if fault is not Fault.NEVER:
            up_writer.write(commit)
            await up_writer.drain()
            assert b"COMMIT" in await up_reader.read(1 << 16)
        writer.transport.abort()


@asynccontextmanager
async def gate(url: str) -> AsyncIterator[tuple[Gate, str]]:
    """A gate before the server of `url`, and the URL through it."""
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    host, port = query.get("host", parts.hostname or ""), int(query.get("port", parts.port or 5432))

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    made = Gate(connect)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    own = server.sockets[0].getsockname()[1]
    user = query.get("user") or parts.username or ""
    password = f":{parts.password}" if parts.password else ""
    try:
        yield made, f"postgresql://{user}{password}@127.0.0.1:{own}{parts.path}?sslmode=disable"
    finally:
        server.close()
