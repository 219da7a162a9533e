"""A client of streams, in process: it takes what is sent as fast or as slowly as a test likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from postroom.servers.http import HttpApp

PATH = "/v1/events/stream"


@dataclass
class Line:
    """A server-sent event, as a client parses it (HTML, section 9.2.6)."""

    kind: str
    id: str
    data: Any


@dataclass
class Client:
    """`status` and `headers` come with the answer's head. `taking` cleared: nothing more is taken."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    taking: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    last_id: str = ""
    body: bytes = b""
    closed: tuple[int, str] | None = None
    """Close code and reason of a socket."""
    _lines: asyncio.Queue[Line] = field(default_factory=asyncio.Queue)
    _rest: bytes = b""

    async def next(self, seconds: float = 10) -> Line:
        async with asyncio.timeout(seconds):
            return await self._lines.get()

    async def events(self, count: int) -> list[dict[str, Any]]:
        return [(await self.next()).data for _ in range(count)]

    @property
    def waiting(self) -> int:
        """Lines that came and were not looked at."""
        return self._lines.qsize()

    # -- as an ASGI server has it

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            self._read(message.get("body", b""))
        self.started.set()
        await self.taking.wait()

    def _read(self, body: bytes) -> None:
        self.body += body
        self._rest += body
        *whole, self._rest = self._rest.split(b"\n\n")
        for block in whole:
            fields: dict[str, str] = {}
            for line in block.decode().split("\n"):
                name, _, value = line.partition(":")
                if name:
                    assert name not in fields, block
                    fields[name] = value.removeprefix(" ")
            self.last_id = fields.get("id", self.last_id)
            if "data" in fields:
                self._lines.put_nowait(Line(fields.get("event", "message"), self.last_id, json.loads(fields["data"])))


@asynccontextmanager
async def connected(
    app: HttpApp, headers: dict[str, str], *, last_id: str | None = None, **params: str
) -> AsyncIterator[Client]:
    """A stream that is open, or was refused; it is left at the end."""
    sent = dict(headers) | ({} if last_id is None else {"last-event-id": last_id})
    client = Client()
    client.taking.set()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": urlencode(params).encode(),
        "scheme": "http",
        "server": ("api.example", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }

    async def serve() -> None:
        try:
            await app(scope, client.receive, client.send)
        finally:
            client.ended.set()

    running = asyncio.create_task(serve())
    try:
        async with asyncio.timeout(10):
            await client.started.wait()
            while client.status == 200 and not client.last_id:  # noqa: ASYNC110  bytes wake nobody
                await asyncio.sleep(0.001)
        yield client
    finally:
        client.left.set()
        client.taking.set()
        await asyncio.wait([running], timeout=10)
        assert running.done(), "the stream goes on without its client"
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error
