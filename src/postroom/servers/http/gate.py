"""The outermost layer: gives every request an id, every answer its standard headers, and every failure the envelope.

Nothing that goes wrong behind it reaches the HTTP server: a fault of ours is logged with the request's id and answered
`500 internal_error`, without a word about what happened (events-webhooks-errors §16, §18).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from postroom.base import log as base_log
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.servers.http import failures
from postroom.servers.http.exchange import Exchange, attach

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
AllowedMethods = Callable[[Scope], Iterable[str]]

log = base_log.get("servers.http")

ABORT: Final = "postroom.abort"
"""An ASGI extension of our listener: `abort`, which takes no arguments, takes the connection away at once."""
JSON: Final = b"application/json; charset=utf-8"
STANDARD_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"strict-transport-security", b"max-age=31536000"),
)
"""What every answer carries beside `Request-Id` (events-webhooks-errors §18)."""

_STANDARD_NAMES: Final = frozenset(name for name, _ in STANDARD_HEADERS)


class Gate:
    """ASGI middleware; the outermost. `allowed` tells the methods of a path for `405` answers."""

    def __init__(self, app: AsgiApp, *, ids: IdGenerator, allowed: AllowedMethods) -> None:
        self._app = app
        self._ids = ids
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(self._ids.new("req_"))
        attach(scope, exchange)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.started = True
                message["headers"] = _complete(message.get("headers", ()), exchange)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            # The server gives up on the request (it is stopping); there is nobody to tell.
            raise
        except Exception as error:  # noqa: BLE001  the one place where every fault becomes an answer
            await self._fail(scope, error, exchange, sending)

    async def _fail(self, scope: Scope, error: Exception, exchange: Exchange, send: Send) -> None:
        where = {"request_id": exchange.request_id, "operation": exchange.operation}
        told = failures.describe(error)
        if told is None:
            log.error("http_internal_error", **where, exc_info=error)
            told = PostroomError("internal_error")
        elif told.status >= 500:
            log.warning("http_unavailable", code=told.code, **where, exc_info=error)
        if exchange.started:
            # Half an answer is out: only breaking the connection tells the client that the rest is missing.
            raise ConnectionAbortedError("the answer could not be completed") from error
        headers = failures.headers_of(told)
        if told.code == "method_not_allowed":
            headers.append((b"allow", ", ".join(sorted(self._allowed(scope))).encode("ascii")))
        await reply(send, told.status, failures.body_of(told, exchange.request_id), headers)


async def reply(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """A whole JSON answer."""
    head = [(b"content-type", JSON), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def _complete(headers: Iterable[tuple[bytes, bytes]], exchange: Exchange) -> Headers:
    complete = [(name, value) for name, value in headers if name.lower() not in _STANDARD_NAMES]
    complete.append((b"request-id", exchange.request_id.encode("ascii")))
    complete.extend(STANDARD_HEADERS)
    if exchange.principal is not None:
        complete.append((b"cache-control", b"no-store"))
        if exchange.rate_limit is not None:
            complete.append((b"ratelimit-limit", str(exchange.rate_limit).encode()))
    return complete
