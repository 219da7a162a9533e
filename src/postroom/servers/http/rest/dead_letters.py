"""Work that was given up, for platform keys and operators (rest-api §5.21; J8)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from postroom.accounts.audit import actor_of
from postroom.accounts.permissions import Level, Permission
from postroom.db import Connection
from postroom.events.catalogue import timestamp
from postroom.outbound.dead_letters import DeadLetter, DeadLetters, DeadQueue, State
from postroom.servers import objects
from postroom.servers.http import fields
from postroom.servers.http.answers import page
from postroom.servers.http.call import CurrentCall
from postroom.servers.http.exchange import exchange_of
from postroom.servers.http.fields import Answer, NotNull
from postroom.servers.http.rest.once import DEPLOYMENT, IdempotencyKey, Place, Record, once
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Idempotency, Reach, RouteTable, Rule

PATH: Final = "/v1/platform/dlq"
DlqQueue = Literal["inbound", "outbound", "delivery-events", "webhooks", "index"]


class ListDlq(fields.Query):
    queue: Annotated[DlqQueue | None, NotNull()] = None
    status: Literal["open", "redriven"] = "open"
    tenant_id: Annotated[fields.TenantId | None, NotNull()] = None
    limit: fields.Limit = 25
    cursor: Annotated[fields.Cursor | None, NotNull()] = None


class DlqItem(Answer):
    id: fields.DlqItemId
    queue: DlqQueue
    kind: str | None
    tenant_id: fields.TenantId | None
    first_seen_at: datetime
    redriven_at: datetime | None
    redrive_count: Annotated[int, Field(ge=0)]


class DlqItemPage(Answer):
    data: list[DlqItem]
    next_cursor: str | None


class _Routes:
    def __init__(self, services: HttpServices, dead: DeadLetters) -> None:
        self._services = services
        self._dead = dead

    async def list(self, query: Annotated[ListDlq, Query()], call: CurrentCall) -> Response:
        if query.tenant_id is not None:
            await self._services.tenants.get(query.tenant_id)
        filters = {"queue": query.queue, "status": query.status, "tenant_id": query.tenant_id}
        position = call.position(query.cursor, **filters)
        found = await self._dead.page(
            state=State(query.status),
            queue=None if query.queue is None else DeadQueue(query.queue),
            tenant=query.tenant_id,
            limit=query.limit + 1,
            after=None if position is None else (datetime.fromisoformat(str(position[0])), str(position[1])),
        )
        shown, following = found[: query.limit], None
        if len(found) > len(shown):
            following = call.cursor((timestamp(shown[-1].first_seen_at), shown[-1].public_id), **filters)
        return page([objects.dead_letter(one) for one in shown], following)

    async def redrive(
        self, dlq_id: fields.DlqItemId, call: CurrentCall, idempotency_key: IdempotencyKey = None
    ) -> Response:
        by = actor_of(call.principal, exchange_of(call.request.scope).request_id)

        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, done: DeadLetter) -> None:
                await record(conn, objects.dead_letter(done))

            return 200, objects.dead_letter(await self._dead.redrive(dlq_id, by=by, then=then))

        return await once(call, idempotency_key, work, status=200, place=Place(DEPLOYMENT))


_COMMON: Final[dict[str, Any]] = {
    "tag": "Platform",
    "reach": Reach.RESOURCE,
    "permissions": frozenset({Permission.PLATFORM_OPS}),
    "levels": frozenset({Level.PLATFORM}),
    "bucket": Bucket.API,
}


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if dead letters are at hand."""
    if services.dead_letters is None:
        return
    routes = _Routes(services, services.dead_letters)
    table.add(
        Rule(
            *("GET", PATH, "listDlqItems"),
            idempotency=Idempotency.NONE,
            errors={400: ("invalid_request",), 404: ("tenant_not_found",), 410: ("cursor_expired",)},
            **_COMMON,
        ),
        routes.list,
        summary="Work that was given up, oldest first",
        answers={200: DlqItemPage},
    )
    table.add(
        Rule(
            *("POST", f"{PATH}/{{dlq_id}}/redrive", "redriveDlqItem"),
            idempotency=Idempotency.OPTIONAL,
            errors={400: ("invalid_request",), 404: ("dlq_item_not_found",)},
            **_COMMON,
        ),
        routes.redrive,
        summary="Begin work anew that was given up",
        answers={200: DlqItem},
    )
