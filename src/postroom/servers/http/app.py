"""The ASGI application: routes, guard and gate put together."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware

from postroom.servers.http.gate import AsgiApp, Gate, Receive, Scope, Send
from postroom.servers.http.guard import Guard
from postroom.servers.http.rest import (
    account,
    addresses,
    aliases,
    audit,
    auth,
    batches,
    content,
    dead_letters,
    docs,
    events,
    folders,
    identities,
    keys,
    links,
    lists,
    members,
    messages,
    meta,
    partners,
    people,
    platform,
    queue,
    sending,
    signing_keys,
    tenants,
    threads,
    wait,
    webhooks,
    wellknown,
)
from postroom.servers.http.services import HttpServices
from postroom.servers.http.sockets import EventSockets
from postroom.servers.http.table import RouteTable

_MODULES: Final = (
    meta,
    tenants,
    partners,
    identities,
    addresses,
    lists,
    audit,
    aliases,
    messages,
    folders,
    batches,
    sending,
    content,
    threads,
    wait,
    events,
    queue,
    dead_letters,
    platform,
    signing_keys,
    keys,
    links,
    auth,
    account,
    people,
    members,
    webhooks,
    wellknown,
    docs,
)


class HttpApp:
    """Everything that is served over HTTP, as one ASGI application. `table` holds the rule of every route."""

    def __init__(self, services: HttpServices) -> None:
        self.services = services
        # FastAPI routes and describes; of its middleware only what its routes need is used, the rest is the gate's.
        self.fastapi = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
        self.table = RouteTable(self.fastapi, Guard(services))
        for module in _MODULES:
            module.register(self.table, services)
        self.table.seal()
        self._routes: AsgiApp = AsyncExitStackMiddleware(self.fastapi.router)
        self._gate = Gate(self._route, ids=services.ids, allowed=self.table.allowed)
        self._sockets = EventSockets(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
        else:
            await self._gate(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self.fastapi
        await self._routes(scope, receive, send)


def create_http(services: HttpServices) -> HttpApp:
    """The application over `services`. Raises ValueError for a route without a rule (A4.1)."""
    return HttpApp(services)
