"""The HTTP listener: uvicorn inside our own event loop, with the limits it leaves to others.

uvicorn moves bytes between a socket and the ASGI application. Signals, logging set-up and the loop are the
composition root's; what a client may send before the application is asked, and how long it may take, is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from postroom.base import log as base_log
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.servers.http import failures
from postroom.servers.http.gate import ABORT, JSON, STANDARD_HEADERS, AsgiApp

log = base_log.get("servers.http")

_quiet = logging.getLogger("postroom.websockets")
_quiet.setLevel(logging.ERROR)

_BACKLOG: Final = 512
_MAX_FRAME: Final = 4096
"""Octets of a message on a WebSocket from outside: nobody has much to say there."""
_PING_SECONDS: Final = 20.0
_MAX_SAID: Final = 64 * 1024
"""Octets from a client in as long: it has nothing to say but answers to pings. Each ping of theirs is answered, and
each piece of a message kept, whether or not they read anything.
"""
_UNTAKEN_LOOKS: Final = 4
"""Looks in one of `HttpLimits.untaken_timeout`."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of a connection. Times in seconds, sizes in octets.

    `head_timeout` runs from the first byte of a request, and from the connection's start, to the end of its head;
    `body_timeout` from there to the end of the body. `untaken_timeout` is for how long somebody may take nothing of
    what is written to them and waits to be sent: closing such a connection waits for them, too, so it is cut off.
    """

    max_connections: int = 1000
    head_bytes: int = 32 * 1024
    head_fields: int = 100
    head_timeout: float = 20
    body_timeout: float = 120
    keep_alive: int = 75
    untaken_timeout: float = 60


class HttpListener:
    """Listens, and hands requests to an ASGI application.

    `on_drain` is called as stopping begins, so that long polls can end. `ssl_context` makes it HTTPS.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        ids: IdGenerator,
        limits: HttpLimits | None = None,
        ssl_context: ssl.SSLContext | None = None,
        on_drain: Callable[[], None] | None = None,
    ) -> None:
        self._limits = limits or HttpLimits()
        self._on_drain = on_drain
        self._ssl = ssl_context
        self._server = _Server(_config(app, ids, self._limits))
        self._sockets: list[socket.socket] = []
        self._ticking: asyncio.Task[None] | None = None
        self._cutting: asyncio.Task[None] | None = None

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> None:
        """Listen on `host` (None: every address) and `port` (0: any free one). Raises OSError."""
        server = self._server
        config = server.config
        config.load()
        config.ssl = self._ssl
        server.lifespan = config.lifespan_class(config)
        self._sockets = await _bind(host, port, reuse_port)
        try:
            await server.startup(sockets=self._sockets)
        except BaseException:
            _close(self._sockets)
            raise
        await server.on_tick(0)  # the first answer wants its Date, too
        self._ticking = asyncio.create_task(server.main_loop(), name="http-ticks")
        self._cutting = asyncio.create_task(self._cut_off(), name="http-untaken")

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening sockets; none before `start` and after `drain`."""
        return tuple(self._sockets)

    @property
    def port(self) -> int:
        """The port of the first socket. Raises RuntimeError when not listening."""
        if not self._sockets:
            raise RuntimeError("not listening")
        return int(self._sockets[0].getsockname()[1])

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._server.server_state.connections)

    async def drain(self, timeout: float) -> None:
        """Stop: accept no more, let requests in hand finish, close idle connections.

        What is not done within `timeout` seconds is cut off.
        """
        if self._ticking is None:
            return
        if self._on_drain is not None:
            self._on_drain()
        server = self._server
        server.should_exit = True
        await self._ticking
        self._ticking = None
        # uvicorn takes whole seconds to wait, or any number: the annotation is narrower than the use.
        server.config.timeout_graceful_shutdown = cast(int, timeout)
        sockets, self._sockets = self._sockets, []
        await server.shutdown(sockets=sockets)
        if self._cutting is not None:
            self._cutting.cancel()
        for connection in list(server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()

    async def _cut_off(self) -> None:
        """Cut off who takes nothing. They would keep a place of `max_connections` for as long as they like: a transport
        that is closed is there until what was written is taken.
        """
        seen: dict[_Connection | _Socket, tuple[int, int, int]] = {}
        while True:
            await asyncio.sleep(self._limits.untaken_timeout / _UNTAKEN_LOOKS)
            before, seen = seen, {}
            for one in cast(Iterable[_Connection | _Socket], tuple(self._server.server_state.connections)):
                left = one.transport.get_write_buffer_size()
                if not left or not (one.is_waiting or one.transport.is_closing()):
                    continue
                waits, most, looks = before.get(one, (one.waits, left, 0))
                # Nothing is written meanwhile but answers to pings; that it got less, only taking does.
                looks = looks + 1 if waits == one.waits and left >= most else 0
                if looks >= _UNTAKEN_LOOKS:
                    one.transport.abort()
                else:
                    seen[one] = (one.waits, left, looks)


class _Server(uvicorn.Server):
    """uvicorn's server without its own signal handlers: whoever runs the loop decides when to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Waiting:
    """Of a protocol: whether what it writes waits for the client to take some, and how often it did so far."""

    is_waiting = False
    waits = 0

    def pause_writing(self) -> None:
        self.is_waiting = True
        self.waits += 1
        super().pause_writing()  # type: ignore[misc] # of the protocol beside

    def resume_writing(self) -> None:
        self.is_waiting = False
        super().resume_writing()  # type: ignore[misc] # the same


class _Socket(_Waiting, WebSocketsSansIOProtocol):
    """uvicorn's protocol for WebSockets, which says nothing of who asked for what: neither their address nor, where
    everything is logged, the key in their headers.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = self.conn.logger = _quiet
        self.conn.debug = False
        self._said, self._said_since = 0, 0.0

    async def send(self, message: Any) -> None:
        """Send it. After an answer of HTTP instead of the handshake's nothing is to be completed: uvicorn would call it
        a fault, and strangers could fill a log with those. Nor is it one to tell somebody something while the protocol
        closes by itself, for a ping without an answer or words that are no text. Raises ClientDisconnected.
        """
        await self.writable.wait()  # that it closes may turn out meanwhile
        if self.close_sent and message["type"] in ("websocket.send", "websocket.close"):
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def send_receive_event_to_app(self) -> None:
        """Close with 1007 for a message that should be text and is not UTF-8 (RFC 6455 §8.1). uvicorn does so, too, but
        logs what came as a fault, with all that led to it.
        """
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(1007)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def data_received(self, data: bytes) -> None:
        """Take what comes, unless it is a flood: then the connection ends, before anything of it is looked at."""
        if self.handshake_initiated:
            if self.transport.is_closing():
                return
            now = self.loop.time()
            if now - self._said_since >= _PING_SECONDS:
                self._said, self._said_since = 0, now
            self._said += len(data)
            if self._said > _MAX_SAID:
                self.transport.abort()
                return
        super().data_received(data)


def _config(app: AsgiApp, ids: IdGenerator, limits: HttpLimits) -> uvicorn.Config:
    def protocol(*args: Any, **kwargs: Any) -> _Connection:
        return _Connection(limits, ids, *args, **kwargs)

    return uvicorn.Config(
        cast(Any, app),
        http=cast(Any, protocol),
        ws=_Socket,
        ws_max_size=_MAX_FRAME,
        ws_ping_interval=_PING_SECONDS,
        ws_ping_timeout=_PING_SECONDS,
        ws_per_message_deflate=False,  # costs memory for each, and compresses secrets beside what others wrote
        loop="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        log_level=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.keep_alive,
        backlog=_BACKLOG,
    )


class _Connection(_Waiting, HttpToolsProtocol):
    """uvicorn's protocol with limits on the head of a request and on the time that head and body may take."""

    def __init__(self, limits: HttpLimits, ids: IdGenerator, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._ids = ids
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._refused = False

    # Uvicorn's protocol narrows it, too.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._refuse(503, PostroomError("unavailable", retry_after=1))
        else:
            self._expect(self._limits.head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        try:
            super().data_received(data)
        except _Refusal as refusal:
            self._refuse(refusal.status, refusal.error)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._expect(self._limits.head_timeout)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if len(self.headers) >= self._limits.head_fields:
            raise _Refusal(431, failures.invalid("headers", f"there may be at most {self._limits.head_fields} fields"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._expect(self._limits.body_timeout)
        cast(dict[str, Any], self.scope)["extensions"] = {ABORT: {"abort": self.transport.abort}}
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._expect(None)
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """The request came whole; what follows is the socket's, and as long as it likes."""
        self._expect(None)
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Called for bytes that are no HTTP, and with a `_Refusal` of ours as the reason."""
        refusal = _refusal_behind()
        if refusal is None:
            self._refuse(400, failures.invalid("", "is not HTTP/1.1"))
        else:
            self._refuse(refusal.status, refusal.error)

    def _count(self, octets: int) -> None:
        self._head_bytes += octets
        if self._head_bytes > self._limits.head_bytes:
            message = f"the head of a request has at most {self._limits.head_bytes} bytes"
            raise _Refusal(431, failures.invalid("headers", message))

    def _expect(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            # A request is being answered, whose body never came whole.
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, status: int, error: PostroomError) -> None:
        self._refused = True
        self._expect(None)
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_plain_answer(status, error, self._ids.new("req_")))
        self.transport.close()


class _Refusal(Exception):
    """The head of a request broke a limit."""

    def __init__(self, status: int, error: PostroomError) -> None:
        super().__init__()
        self.status = status
        self.error = error


def _refusal_behind() -> _Refusal | None:
    """Our exception inside the parser's error that is being handled, if it is the cause."""
    error: BaseException | None = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, _Refusal):
            return error
        error = error.__context__ or error.__cause__
    return None


def _plain_answer(status: int, error: PostroomError, request_id: str) -> bytes:
    body = failures.body_of(error, request_id)
    headers = [
        (b"content-type", JSON),
        (b"content-length", str(len(body)).encode()),
        (b"request-id", request_id.encode()),
        (b"connection", b"close"),
        *STANDARD_HEADERS,
        *failures.headers_of(error),
    ]
    head = b"".join(b"%s: %s\r\n" % pair for pair in headers)
    return b"HTTP/1.1 %d \r\n%s\r\n%s" % (status, head, body)


async def _bind(host: str | None, port: int, reuse_port: bool) -> list[socket.socket]:
    """Bound sockets for every address of `host`, one port for all."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError:
                continue  # the machine has no such family
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = sockets[0].getsockname()[1] if port == 0 and len(sockets) > 1 else port
            sock.bind((address[0], chosen, *address[2:]))
        if not sockets:
            raise OSError("no address to listen on")
    except BaseException:
        _close(sockets)
        raise
    return sockets


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
