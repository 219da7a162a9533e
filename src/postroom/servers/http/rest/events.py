"""Events, as they are listed and followed (events-webhooks-errors §1–4).

Who may be told of what is one question for both: the scope of the key, and for each type the permissions that the
registry names (J29). A stream is server-sent events, or a WebSocket where the client asks for one (`sockets.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Header, Query
from pydantic import Field
from starlette.responses import Response

from postroom.accounts.permissions import Permission
from postroom.base.errors import PostroomError
from postroom.events import reading
from postroom.events.catalogue import timestamp
from postroom.events.reading import Told, Wanted
from postroom.events.registry import PUBLIC, REGISTRY, seen_by
from postroom.events.retention import shortest
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import Call, CurrentCall
from postroom.servers.http.cursors import CursorKeys
from postroom.servers.http.gate import ABORT, Receive, Scope, Send
from postroom.servers.http.guard import Guard
from postroom.servers.http.positions import MAX_CHARS, reach_of, unseal
from postroom.servers.http.services import HttpServices
from postroom.servers.http.streams import Asked, Stream, Streams
from postroom.servers.http.table import ALL_LEVELS, Bucket, Idempotency, Reach, RouteTable, Rule
from postroom.servers.http.tally import Kind

STREAM_PATH: Final = "/v1/events/stream"
EVENT_STREAM: Final = "text/event-stream"
RETRY_MS: Final = 2000
FINISH_SECONDS: Final = 1.0

_Kind = Annotated[
    Literal[PUBLIC],  # type: ignore[valid-type] # the names of the registry
    fields.OneOf(PUBLIC, "type of event"),
]
Kinds = Annotated[
    list[_Kind] | None,
    fields.CommaList,
    Field(min_length=1, max_length=len(PUBLIC)),
]


class _Filters(fields.Query):
    types: Kinds = None
    tenant_id: fields.TenantId | None = None
    identity_id: fields.IdentityId | None = None


class EventsQuery(_Filters):
    since: fields.Time | None = None
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


class StreamQuery(_Filters):
    last_event_id: Annotated[str, Field(min_length=1, max_length=MAX_CHARS)] | None = None
    """Where to go on, for those who cannot send the header."""
    max_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None


class Event(fields.Answer):
    """An event: the same bytes that webhooks get. The reference of events has the schema of each type's `data`."""

    id: Annotated[str, fields.id_pattern("evt_")]
    type: str
    api_version: str
    occurred_at: datetime
    tenant_id: fields.TenantId | None
    identity_id: fields.IdentityId | None
    sequence: Annotated[int, Field(ge=1)] | None
    data: dict[str, Any]


class EventPage(fields.Answer):
    data: list[Event]
    next_cursor: str | None


class Routes:
    """Also for the sockets, which ask the same."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._guard = Guard(services)

    @property
    def _streams(self) -> Streams:
        assert self._services.streams is not None
        return self._services.streams

    async def list(self, query: Annotated[EventsQuery, Query()], call: CurrentCall) -> Response:
        wanted, _ = await self._wanted(call, query, query.since)
        filters = query.model_dump(exclude={"limit", "cursor"})
        position = call.position(query.cursor, **filters)
        async with self._services.database.acquire() as conn:
            key = None if position is None else await reading.key_of(conn, str(position[1]))
            if position is not None and key is None:
                raise PostroomError("cursor_expired")  # the event is gone, and with it the place
            found = await reading.before(conn, wanted, key, query.limit + 1)
        shown = found[: query.limit]
        following = None
        if len(found) > len(shown):
            following = call.cursor((timestamp(shown[-1].occurred_at), shown[-1].public_id), **filters)
        return JsonAnswer(_page(shown, following))

    async def stream(
        self,
        query: Annotated[StreamQuery, Query()],
        call: CurrentCall,
        last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
    ) -> Response:
        return _EventStream(self._services, self._streams, await self.asked(call, query, last_event_id))

    async def asked(self, call: Call, query: StreamQuery, last_event_id: str | None) -> Asked:
        """What somebody asks for, if they may have it."""
        wanted, identity_key = await self._wanted(call, query, None)
        # The header wins: libraries send it when they connect again by themselves, to the URL that they began with.
        start, given = None, last_event_id or query.last_event_id
        if given:
            keys = await self._services.cursor_keys.keys_for(given)
            start = await self._place(keys, reach_of(call.principal), given, wanted)

        async def again() -> None:
            await self._guard.again(call)

        return Asked(call.principal, wanted, identity_key, start, query.max_seconds, again)

    async def _place(self, keys: CursorKeys, reach: bytes, given: str, wanted: Wanted) -> int:
        """The key after which a position goes on. Raises `cursor_expired` as well if some tenant that the stream is
        about may have lost events since: they would be passed over without a word.
        """
        now, tenant = self._services.clock.now(), wanted.scope.tenant_of(wanted.tenant_id)
        if tenant is not None:
            days = (await self._services.policies.of(tenant)).retention_events_days
            return unseal(keys, reach, given, now, kept_days=days)
        try:
            return unseal(keys, reach, given, now, kept_days=1)  # nobody keeps them for less
        except PostroomError as error:
            if error.code != "cursor_expired":
                raise
        async with self._services.database.acquire() as conn:
            days = await shortest(conn, self._services.policies.stance, wanted.scope.partner_id)
        return unseal(keys, reach, given, now, kept_days=days)

    async def _wanted(self, call: Call, query: _Filters, since: datetime | None) -> tuple[Wanted, int | None]:
        principal = call.principal
        seen = seen_by(principal.permissions)
        for kind in query.types or ():
            if kind not in seen:
                missing = REGISTRY[kind].permissions - principal.permissions
                raise PostroomError("permission_denied", details={"required": sorted(missing)})
        tenant = identity = None
        if query.tenant_id is not None:
            tenant = (await self._guard.tenant(principal, query.tenant_id)).id
        if query.identity_id is not None:
            identity = (await self._guard.identity(principal, query.identity_id)).id
        types = reading.types_of(query.types, seen)
        return Wanted(principal.scope, types, tenant, query.identity_id, since), identity


def _page(shown: Sequence[Told], following: str | None) -> bytes:
    """The events' own bytes, in a page."""
    cursor = b"null" if following is None else b'"' + following.encode("ascii") + b'"'
    return b'{"data":[' + b",".join(one.payload for one in shown) + b'],"next_cursor":' + cursor + b"}"


class _EventStream(Response):
    """Server-sent events (HTML, section 9.2). The media type is without a charset, as it is always UTF-8."""

    def __init__(self, services: HttpServices, streams: Streams, asked: Asked) -> None:
        super().__init__(headers={"x-accel-buffering": "no", "content-type": EVENT_STREAM})
        del self.headers["content-length"]
        self._services, self._streams, self._asked = services, streams, asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.admitted(self._asked.principal):
            abort = scope.get("extensions", {}).get(ABORT, {}).get("abort")
            outlet = _Lines(self.raw_headers, receive, send, abort)
            await Stream(self._services, self._streams, self._asked, outlet).run()
            await outlet.finish()


class _Lines:
    """The outlet of a stream of lines."""

    kind = Kind.SSE

    def __init__(
        self, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send, abort: Callable[[], None] | None
    ) -> None:
        self._headers, self._receive, self._send, self._abort = headers, receive, send, abort

    async def open(self, position: str) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._write(f"retry: {RETRY_MS}\n: hello\nid: {position}\n\n".encode("ascii"))

    async def tell(self, told: Told, position: str) -> None:
        # JSON has no line break outside of strings as it is written here, and inside they are escaped.
        head = f"id: {position}\nevent: {told.type}\ndata: ".encode("ascii")
        await self._write(head + told.payload + b"\n\n")

    async def beat(self, position: str) -> None:
        # An event without data is none, but its id is kept: so who hears nothing for long resumes near the end.
        await self._write(f": heartbeat\nid: {position}\n\n".encode("ascii"))

    async def close(self, code: str, message: str) -> None:
        kind = "end" if code in ("done", "stopping") else "error"
        await self._write(f'event: {kind}\ndata: {{"code":"{code}","message":"{message}"}}\n\n'.encode())

    async def gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def finish(self) -> None:
        """The end of the body. From who takes nothing the connection is taken away instead."""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                await self._send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            if self._abort is not None:
                # To end without an end is a fault of ours to the server, unless it knows the client to be gone.
                self._abort()
                await self.gone()

    async def _write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


def _rule(path: str, operation: str, **more: Any) -> Rule:
    return Rule(
        "GET",
        path,
        operation,
        tag="Events",
        reach=Reach.TENANT_FILTER,
        permissions=frozenset({Permission.WEBHOOKS_READ}),
        conditional=frozenset().union(*(REGISTRY[kind].permissions for kind in PUBLIC)),
        levels=ALL_LEVELS,
        bucket=Bucket.API,
        idempotency=Idempotency.NONE,
        errors={
            400: ("invalid_request",),
            404: ("tenant_not_found", "identity_not_found"),
            410: ("cursor_expired",),
            503: ("unavailable",),
        },
        **more,
    )


STREAM: Final = _rule(STREAM_PATH, "streamEvents", in_sdk=False)


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations."""
    if services.streams is None:
        return
    routes = Routes(services)
    table.add(
        _rule("/v1/events", "listEvents"),
        routes.list,
        summary="What happened, newest first",
        answers={200: EventPage},
    )
    table.add(
        STREAM,
        routes.stream,
        summary="What happens, as it happens",
        answers={200: None},
        contents={200: EVENT_STREAM},
    )
