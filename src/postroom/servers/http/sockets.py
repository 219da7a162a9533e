"""The stream of events as a WebSocket (RFC 6455), at the same address and by the same rules.

Whoever is not let in gets the answer that they would get over HTTP, instead of the handshake's. Frames are JSON text:
`{"type": "hello" | "event" | "heartbeat" | "end", "id": position, …}`; what the client sends is not read, but for its
closing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from postroom.base import log as base_log
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.events.reading import Told
from postroom.servers.http import call as calls
from postroom.servers.http import exchange as exchanges
from postroom.servers.http import failures
from postroom.servers.http.gate import JSON, STANDARD_HEADERS, Receive, Scope, Send
from postroom.servers.http.guard import Guard
from postroom.servers.http.rest.events import STREAM, STREAM_PATH, Routes, StreamQuery
from postroom.servers.http.services import HttpServices
from postroom.servers.http.streams import DONE, SLOW, STOPPING, Stream
from postroom.servers.http.tally import Kind

log = base_log.get("servers.sockets")

SUBPROTOCOL: Final = "postroom.events.v1"
CLOSING: Final[Mapping[str, int]] = {
    DONE: 1000,
    STOPPING: 1012,
    SLOW: 1013,
    "unavailable": 1013,
    "internal_error": 1011,
}
"""Close codes (RFC 6455 §7.4 and the registry it founded); of whoever may not go on any more: 1008."""
_REFUSED: Final = 1008


class EventSockets:
    """Answers WebSocket handshakes."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._guard = Guard(services)
        self._routes = Routes(services)
        self._ids: IdGenerator = services.ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        exchange = exchanges.Exchange(self._ids.new("req_"))
        outlet = _Frames(scope, receive, send)
        try:
            if scope["path"] != STREAM_PATH or self._services.streams is None:
                raise PostroomError("route_not_found")
            request = Request({**scope, "type": "http", "method": "GET", "path_params": {}}, receive)
            exchanges.attach(request.scope, exchange)

            async def let_in(incoming: Request) -> Response:
                await self._serve(incoming, outlet)
                return Response()

            await self._guard(STREAM, request, let_in)
        except Exception as error:  # the one place where every fault of a socket becomes an answer
            told = failures.describe(error)
            if told is None:
                log.error("socket_internal_error", request_id=exchange.request_id, exc_info=error)
                told = PostroomError("internal_error")
            await outlet.refuse(told, exchange.request_id)

    async def _serve(self, request: Request, outlet: _Frames) -> None:
        streams = self._services.streams
        assert streams is not None
        try:
            query = StreamQuery.model_validate(dict(request.query_params))
        except ValidationError as error:
            raise failures.violations([{**one} for one in error.errors()]) from error
        asked = await self._routes.asked(calls.attached(request), query, request.headers.get("last-event-id"))
        with streams.admitted(asked.principal):
            await Stream(self._services, streams, asked, outlet).run()


class _Frames:
    """The outlet of a socket."""

    kind = Kind.WEBSOCKET

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._deliver = scope, receive, send
        self._is_open = False

    async def open(self, position: str) -> None:
        offered = SUBPROTOCOL in self._scope.get("subprotocols", ())
        self._is_open = True
        await self._send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if offered else None})
        await self._text({"type": "hello", "id": position})

    async def tell(self, told: Told, position: str) -> None:
        # The event's own bytes, as every other receiver has them.
        frame = b'{"type":"event","id":"' + position.encode("ascii") + b'","event":' + told.payload + b"}"
        await self._send_text(frame.decode())

    async def beat(self, position: str) -> None:
        await self._text({"type": "heartbeat", "id": position})

    async def close(self, code: str, message: str) -> None:
        await self._text({"type": "end", "code": code, "message": message})
        await self._send({"type": "websocket.close", "code": CLOSING.get(code, _REFUSED), "reason": code})

    async def gone(self) -> None:
        while (await self._receive())["type"] != "websocket.disconnect":
            pass

    async def refuse(self, error: PostroomError, request_id: str) -> None:
        """Before the handshake an answer of HTTP; after it nothing can be told but the closing."""
        if self._is_open:
            await self._send({"type": "websocket.close", "code": CLOSING.get(error.code, _REFUSED)})
            return
        if "websocket.http.response" not in self._scope.get("extensions", {}):
            await self._send({"type": "websocket.close", "code": _REFUSED})
            return
        body = failures.body_of(error, request_id)
        headers = [
            *((b"content-type", JSON), (b"content-length", str(len(body)).encode())),
            *((b"request-id", request_id.encode("ascii")), *STANDARD_HEADERS, *failures.headers_of(error)),
        ]
        await self._send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
        await self._send({"type": "websocket.http.response.body", "body": body})

    async def _send(self, message: Any) -> None:
        """Raises ConnectionError when the client is gone, for which uvicorn has an OSError of its own."""
        try:
            await self._deliver(message)
        except OSError as error:
            raise ConnectionError from error

    async def _text(self, frame: dict[str, Any]) -> None:
        await self._send_text(orjson.dumps(frame).decode())

    async def _send_text(self, text: str) -> None:
        await self._send({"type": "websocket.send", "text": text})
