"""One connection to a server of HTTP/1.1, over h11: a request, the head of its response and the beginning of its body.

What a hostile server can make us hold or work through is bounded: a head, provisional responses, and all bytes of one
exchange. Nothing is decoded but the chunks of RFC 9112 §7.1.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Final, cast

import h11

from postroom.net.dns_types import IpAddress

MAX_HEAD_BYTES: Final = 16 * 1024
"""Of one response's status line and headers, give or take what comes in one piece with its end."""
MAX_PROVISIONAL: Final = 8
"""Responses 1xx before the one that counts; we ask for none (RFC 9110 §15.2)."""
MAX_EXCHANGE_BYTES: Final = 256 * 1024
"""Of one exchange beyond what is kept of the body: chunks may have more around them than in them."""
_PIECE: Final = 16 * 1024
_WRITTEN_AT_ONCE: Final = 64 * 1024
"""Of a request's body; encrypting it takes the loop some ten microseconds."""
_TIMEOUT: Final = re.compile(rb"(?:\A|[,\s])timeout\s*=\s*([0-9]{1,6})\b", re.IGNORECASE)


class Broken(Exception):
    """The connection ended, or what came is no HTTP."""


class Exchange:
    """A request, and what has come of it so far: `status` is 0 until the head of the response is there.

    `read_limit` is in bytes of the body. Raises ValueError when a header is malformed.
    """

    __slots__ = ("body", "complete", "content", "read_limit", "request", "status")

    def __init__(self, headers: Iterable[tuple[str, str]], path: str, content: bytes, read_limit: int) -> None:
        try:
            self.request = h11.Request(
                method="POST", target=path, headers=[*headers, ("Content-Length", str(len(content)))]
            )
        except h11.LocalProtocolError:
            raise ValueError("a header that is malformed") from None
        self.content, self.read_limit = content, read_limit
        self.status, self.complete, self.body = 0, False, bytearray()


class HttpLink(asyncio.Protocol):
    """A connection that is there; for one exchange at a time. `address` is what it leads to."""

    def __init__(self, address: IpAddress) -> None:
        self.address = address
        self.keep_seconds = float("inf")
        """How long the server says that it keeps the connection."""
        self.on_end: Callable[[], None] | None = None
        """Called when the connection ends."""
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._busy = self._ended = self._paused = False
        self._bytes_left = 0

    async def run(self, exchange: Exchange) -> None:
        """One exchange. Raises `Broken`; what `exchange` holds by then was received."""
        self._busy, self._bytes_left = True, MAX_EXCHANGE_BYTES + exchange.read_limit
        try:
            await self._send(exchange)
            await self._receive(exchange)
        except (h11.RemoteProtocolError, h11.LocalProtocolError):  # the latter: a switch of protocols, unasked
            raise Broken from None

    def reusable(self) -> bool:
        """Whether the exchange came to its end, with nothing after it, and the connection goes on."""
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        return done and not self._ended and not self._received and not self._http.trailing_data[0]

    def rest(self) -> None:
        """Be ready for another exchange; only if `reusable`."""
        self._http.start_next_cycle()
        self._busy = False

    def abort(self) -> None:
        """Close at once. No word of TLS: who waits for the answer to it can be made to wait."""
        self._ended, self.on_end = True, None
        if self._transport is not None:
            self._transport.abort()

    async def _send(self, exchange: Exchange) -> None:
        transport, content = self._transport, exchange.content
        if self._ended or transport is None:
            raise Broken
        head = self._http.send(exchange.request)
        transport.write(head + content[:_WRITTEN_AT_ONCE])
        for start in range(_WRITTEN_AT_ONCE, len(content), _WRITTEN_AT_ONCE):
            await asyncio.sleep(0)
            if self._ended:
                return  # maybe with an answer, which is still to be read
            transport.write(content[start : start + _WRITTEN_AT_ONCE])
        self._http.send(h11.Data(content))
        self._http.send(h11.EndOfMessage())

    async def _receive(self, exchange: Exchange) -> None:
        provisional = 0
        while True:
            event = self._http.next_event()
            match event:
                case h11.NEED_DATA:
                    self._http.receive_data(await self._read())
                case h11.InformationalResponse():
                    provisional += 1
                    if provisional > MAX_PROVISIONAL:
                        raise Broken
                case h11.Response():
                    exchange.status = event.status_code
                    self.keep_seconds = _seconds_kept(event)
                case h11.Data():
                    room = exchange.read_limit - len(exchange.body)
                    exchange.body += event.data[:room]
                    if len(event.data) > room:
                        return
                case _:  # the end, or what h11 says after it
                    exchange.complete = isinstance(event, h11.EndOfMessage)
                    return

    async def _read(self) -> bytes:
        """Some bytes, none at the end. Raises `Broken` after too many."""
        while not self._received and not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        piece = bytes(self._received[:_PIECE])
        del self._received[:_PIECE]
        self._bytes_left -= len(piece)
        if self._bytes_left < 0:
            raise Broken
        if self._paused and not self._received and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._busy:  # the answer to a question that nobody asked: not to be taken for that of the next one
            self._over()
            self.abort()
            return
        self._received += data
        if not self._paused and len(self._received) > _PIECE and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._over()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over()

    def _over(self) -> None:
        self._ended = True
        self._wake()
        if self.on_end is not None:
            self.on_end()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _seconds_kept(response: h11.Response) -> float:
    """What `Keep-Alive: timeout=5` says (RFC 2068 §19.7.1.1), less a second for the way; without it there is no end."""
    for name, value in response.headers:
        if name == b"keep-alive":
            found = _TIMEOUT.search(value)
            if found:
                return float(found[1]) - 1.0
    return float("inf")
