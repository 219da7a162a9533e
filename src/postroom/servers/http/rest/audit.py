"""Who did what: the audit log, as far as the caller reaches (rest-api §5.19)."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from postroom.accounts.audit import AuditLog, Filter
from postroom.accounts.permissions import Permission
from postroom.events.catalogue import timestamp
from postroom.servers import objects
from postroom.servers.http.answers import page
from postroom.servers.http.call import CurrentCall, moment_and_id
from postroom.servers.http.guard import Guard
from postroom.servers.http.rest import directory_schemas
from postroom.servers.http.rest.directory_schemas import AuditEventsQuery
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import NOT_IDENTITY, Bucket, Idempotency, Reach, RouteTable, Rule


class _Routes:
    def __init__(self, services: HttpServices) -> None:
        self._guard = Guard(services)
        self._log = AuditLog(services.database)

    async def list(self, query: Annotated[AuditEventsQuery, Query()], call: CurrentCall) -> Response:
        tenant_id = None
        if query.tenant_id is not None:
            tenant_id = (await self._guard.tenant(call.principal, query.tenant_id)).id
        filters = query.model_dump(exclude={"limit", "cursor"})
        found = await self._log.page(
            call.principal.scope,
            tenant_id,
            Filter(query.actor_key_id, query.action, query.target_id, query.after, query.before),
            limit=query.limit + 1,
            after=moment_and_id(call.position(query.cursor, **filters)),
        )
        shown = found[: query.limit]
        following = None
        if len(found) > len(shown):
            following = call.cursor((timestamp(shown[-1].created_at), shown[-1].public_id), **filters)
        return page([objects.audit_event(one) for one in shown], following)


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operation."""
    routes = _Routes(services)
    table.add(
        Rule(
            "GET",
            "/v1/audit-events",
            "listAuditEvents",
            tag="Audit",
            reach=Reach.TENANT_FILTER,
            permissions=frozenset({Permission.AUDIT_READ}),
            levels=NOT_IDENTITY,
            bucket=Bucket.API,
            idempotency=Idempotency.NONE,
            errors={400: ("invalid_request",), 404: ("tenant_not_found",), 410: ("cursor_expired",)},
        ),
        routes.list,
        summary="What was done, newest first",
        answers={200: directory_schemas.AuditEventPage},
    )
