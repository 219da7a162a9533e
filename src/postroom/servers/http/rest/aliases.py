"""Aliases of a tenant: addresses without a mailbox, whose mail goes on (decisions, section E; mail-server A6)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Query
from pydantic import StrictStr, StringConstraints
from starlette.responses import Response

from postroom.accounts import idempotency
from postroom.accounts.permissions import Permission
from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.directory import Alias, Aliases
from postroom.events.catalogue import timestamp
from postroom.servers import objects
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer, page
from postroom.servers.http.bodies import JsonRequest
from postroom.servers.http.call import CurrentCall, actor
from postroom.servers.http.rest import identity_schemas as schemas
from postroom.servers.http.rest.once import IdempotencyKey
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import NOT_IDENTITY, Bucket, Idempotency, Reach, RouteTable, Rule

MISSING: Final = "address_not_found"


class AliasCreateRequest(fields.RequestBody):
    address: fields.EmailAddress
    target: Annotated[StrictStr, StringConstraints(min_length=1, max_length=fields.MAX_ADDRESS), fields.Storable]
    """An address, or a local part of the alias's own domain."""


class ListAliases(fields.Query):
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


class _Routes:
    def __init__(self, services: HttpServices, aliases: Aliases) -> None:
        self._services = services
        self._aliases = aliases

    async def create(
        self,
        tenant_id: fields.TenantId,
        body: AliasCreateRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        tenant, by = call.the_tenant, actor(call)
        if idempotency_key is None:
            return JsonAnswer(
                objects.alias(await self._aliases.create(tenant.id, body.address, body.target, by=by)), 201
            )
        assert isinstance(call.request, JsonRequest)
        method, path = call.rule.method, call.request.url.path
        request = idempotency.Request(
            slot=idempotency.Slot(tenant.public_id, call.principal.public_id, idempotency.check_key(idempotency_key)),
            method=method,
            path=path,
            fingerprint=idempotency.fingerprint(method, path, call.request.parsed),
            tenant_id=tenant.id,
        )
        database = self._services.database
        async with database.transaction() as conn:
            begun = await idempotency.begin(conn, self._services.clock, request)
        if isinstance(begun, idempotency.Replay):
            return JsonAnswer(begun.body, begun.status, {"Idempotent-Replayed": "true"})
        claim = begun

        async def record(conn: Connection, made: Alias) -> None:
            await idempotency.complete(conn, claim, 201, objects.alias(made), reference=None)

        try:
            made = await self._aliases.create(tenant.id, body.address, body.target, by=by, then=record)
        except PostroomError:
            # A refusal changed nothing: the key is free for a corrected request.
            async with database.transaction() as conn:
                await idempotency.abandon(conn, claim)
            raise
        return JsonAnswer(objects.alias(made), 201)

    async def list(
        self, tenant_id: fields.TenantId, query: Annotated[ListAliases, Query()], call: CurrentCall
    ) -> Response:
        position = call.position(query.cursor)
        after = None if position is None else (datetime.fromisoformat(str(position[0])), str(position[1]))
        found = await self._aliases.page(call.the_tenant.id, limit=query.limit + 1, after=after)
        shown = found[: query.limit]
        following = None
        if len(found) > len(shown):
            following = call.cursor((timestamp(shown[-1].created_at), shown[-1].public_id))
        return page([objects.alias(one) for one in shown], following)

    async def get(self, tenant_id: fields.TenantId, alias_id: fields.AliasId, call: CurrentCall) -> Response:
        return JsonAnswer(objects.alias(await self._aliases.get(call.the_tenant.id, alias_id)))

    async def delete(self, tenant_id: fields.TenantId, alias_id: fields.AliasId, call: CurrentCall) -> Response:
        await self._aliases.delete(call.the_tenant.id, alias_id, by=actor(call))
        return Response(status_code=204)


_COMMON: Final[dict[str, Any]] = {
    "tag": "Aliases",
    "bucket": Bucket.API,
    "reach": Reach.TENANT_PATH,
    "levels": NOT_IDENTITY,
}
_READING: Final = {
    **_COMMON,
    "permissions": frozenset({Permission.IDENTITIES_READ}),
    "idempotency": Idempotency.NONE,
}
_WRITING: Final = {**_COMMON, "permissions": frozenset({Permission.IDENTITIES_WRITE})}
_PATH: Final = "/v1/tenants/{tenant_id}/aliases"


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if this deployment has aliases."""
    if services.aliases is None:
        return
    routes = _Routes(services, services.aliases)
    table.add(
        Rule(
            "POST",
            _PATH,
            "createAlias",
            idempotency=Idempotency.OPTIONAL,
            body=True,
            errors={
                400: ("address_invalid", "address_reserved", "address_unsupported", "local_part_too_long"),
                404: ("tenant_not_found", "domain_not_found"),
                409: ("address_taken", "domain_not_ready"),
                422: ("address_limit_reached",),
            },
            **_WRITING,
        ),
        routes.create,
        summary="Let mail to an address go on to another",
        answers={201: schemas.Alias},
    )
    table.add(
        Rule(
            "GET",
            _PATH,
            "listAliases",
            errors={400: ("invalid_request",), 404: ("tenant_not_found",), 410: ("cursor_expired",)},
            **_READING,
        ),
        routes.list,
        summary="Aliases of a tenant, newest first",
        answers={200: schemas.AliasPage},
    )
    table.add(
        Rule("GET", f"{_PATH}/{{alias_id}}", "getAlias", errors={404: ("tenant_not_found", MISSING)}, **_READING),
        routes.get,
        summary="An alias",
        answers={200: schemas.Alias},
    )
    table.add(
        Rule(
            "DELETE",
            f"{_PATH}/{{alias_id}}",
            "deleteAlias",
            idempotency=Idempotency.NONE,
            errors={404: ("tenant_not_found", MISSING)},
            **_WRITING,
        ),
        routes.delete,
        summary="Take no more mail for an alias",
        answers={204: None},
    )
