"""API keys: made, listed, read, rotated, revoked (rest-api §5.17; security-privacy A3.5, A3.6)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Body, Query
from pydantic import Field, StrictInt, StrictStr, StringConstraints
from starlette.responses import Response

from postroom.accounts.audit import Actor, actor_of
from postroom.accounts.keys import KeyRequest
from postroom.accounts.models import ApiKey
from postroom.accounts.permissions import Level, Permission
from postroom.accounts.service.keys import DEFAULT_OVERLAP_HOURS, MAX_OVERLAP_HOURS
from postroom.db import Connection
from postroom.events.catalogue import timestamp
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer, page
from postroom.servers.http.call import Call, CurrentCall
from postroom.servers.http.exchange import exchange_of
from postroom.servers.http.fields import NotNull
from postroom.servers.http.rest import key_schemas as schemas
from postroom.servers.http.rest.once import DEPLOYMENT, IdempotencyKey, Place, Record, once
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import ALL_LEVELS, Bucket, Idempotency, Reach, RouteTable, Rule
from postroom.servers.objects import moment

KEYS: Final = "/v1/keys"
KEY: Final = "/v1/keys/{key_id}"


class ApiKeyCreateRequest(fields.RequestBody):
    name: Annotated[StrictStr, StringConstraints(min_length=1, max_length=fields.MAX_TEXT), fields.Storable]
    level: Level
    partner_id: Annotated[fields.PartnerId | None, NotNull()] = None
    tenant_id: Annotated[fields.TenantId | None, NotNull()] = None
    identity_id: Annotated[fields.IdentityId | None, NotNull()] = None
    permissions: Annotated[
        list[Permission], Field(min_length=1, json_schema_extra={"uniqueItems": True}), fields.Unique
    ]
    expires_at: fields.Time | None = None


class RotateRequest(fields.RequestBody):
    overlap_hours: Annotated[StrictInt, Field(ge=0, le=MAX_OVERLAP_HOURS)] = DEFAULT_OVERLAP_HOURS


_DAY: Final = RotateRequest()
"""What is meant when nothing is said."""


class ListKeys(fields.Query):
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


class _Routes:
    def __init__(self, services: HttpServices) -> None:
        self._services = services

    async def create(
        self, body: ApiKeyCreateRequest, call: CurrentCall, idempotency_key: IdempotencyKey = None
    ) -> Response:
        asked = KeyRequest(
            name=body.name,
            level=body.level,
            permissions=tuple(permission.value for permission in body.permissions),
            tenant=body.tenant_id,
            identity=body.identity_id,
            partner=body.partner_id,
            expires_at=body.expires_at,
        )

        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, made: ApiKey, secret: str) -> None:
                await record(conn, created(made, secret), tenant_id=made.tenant_id, identity_id=made.identity_id)

            return 201, created(*await self._services.keys.mint(call.principal, asked, by=_actor(call), then=then))

        return await once(call, idempotency_key, work, status=201, place=_place(call, body.tenant_id))

    async def list(self, query: Annotated[ListKeys, Query()], call: CurrentCall) -> Response:
        position = call.position(query.cursor)
        after = None if position is None else (datetime.fromisoformat(str(position[0])), str(position[1]))
        found = await self._services.keys.page(call.principal, limit=query.limit + 1, after=after)
        shown = found[: query.limit]
        following = None
        if len(found) > len(shown):
            following = call.cursor((timestamp(shown[-1].created_at), shown[-1].public_id))
        return page([key_object(one) for one in shown], following)

    async def get(self, key_id: fields.KeyId, call: CurrentCall) -> Response:
        return JsonAnswer(key_object(await self._services.keys.get(call.principal, key_id)))

    async def revoke(self, key_id: fields.KeyId, call: CurrentCall) -> Response:
        await self._services.keys.revoke(call.principal, key_id, by=_actor(call))
        return Response(status_code=204)

    async def rotate(
        self,
        key_id: fields.KeyId,
        call: CurrentCall,
        body: Annotated[RotateRequest, Body()] = _DAY,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, key: ApiKey, secret: str) -> None:
                await record(conn, created(key, secret), tenant_id=key.tenant_id, identity_id=key.identity_id)

            rotated = await self._services.keys.rotate(
                call.principal, key_id, body.overlap_hours, by=_actor(call), then=then
            )
            return 200, created(*rotated)

        return await once(call, idempotency_key, work, status=200, place=_place(call))


def _actor(call: Call) -> Actor:
    return actor_of(call.principal, exchange_of(call.request.scope).request_id)


def _place(call: Call, tenant: str | None = None) -> Place:
    """The tenant that the request names, or else whatever the caller is of."""
    principal = call.principal
    scope = tenant or principal.tenant_public_id or principal.partner_public_id or DEPLOYMENT
    return Place(scope, principal.tenant_id, principal.identity_id)


def key_object(key: ApiKey) -> Json:
    """An ApiKey; never the secret."""
    return {
        "id": key.public_id,
        "name": key.name,
        "level": key.level.value,
        "mode": key.mode.value,
        "partner_id": key.partner_public_id,
        "tenant_id": key.tenant_public_id,
        "identity_id": key.identity_public_id,
        "permissions": [permission.value for permission in Permission if permission in key.permissions],
        "created_by_user_id": key.created_by_person,
        "expires_at": moment(key.expires_at),
        "revoked_at": moment(key.revoked_at),
        "last_used_at": moment(key.last_used_at),
        "created_at": moment(key.created_at),
    }


def created(key: ApiKey, secret: str) -> Json:
    """An ApiKeyCreated, as it is shown once."""
    return {**key_object(key), "secret": secret}


_COMMON: Final[dict[str, Any]] = {
    "tag": "Keys",
    "permissions": frozenset({Permission.KEYS_MANAGE}),
    "levels": ALL_LEVELS,
    "bucket": Bucket.API,
}
_ONE: Final[dict[str, Any]] = {**_COMMON, "reach": Reach.RESOURCE}
_EXCEEDED: Final = "key_scope_exceeded"


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations."""
    routes = _Routes(services)
    table.add(
        Rule(
            "POST",
            KEYS,
            "createKey",
            idempotency=Idempotency.OPTIONAL,
            body=True,
            errors={
                403: (_EXCEEDED,),
                404: ("tenant_not_found", "identity_not_found", "partner_not_found"),
                422: ("key_limit_reached",),
            },
            **_ONE,
        ),
        routes.create,
        summary="Make a key, whose secret is shown this once",
        answers={201: schemas.ApiKeyCreated},
    )
    table.add(
        Rule(
            "GET",
            KEYS,
            "listKeys",
            reach=Reach.TENANT_FILTER,
            idempotency=Idempotency.NONE,
            errors={400: ("invalid_request",), 410: ("cursor_expired",)},
            **_COMMON,
        ),
        routes.list,
        summary="Keys that the key may manage, newest first",
        answers={200: schemas.ApiKeyPage},
    )
    _register_one(table, routes)


def _register_one(table: RouteTable, routes: _Routes) -> None:
    errors = {403: (_EXCEEDED,), 404: ("key_not_found",)}
    table.add(
        Rule("GET", KEY, "getKey", idempotency=Idempotency.NONE, errors=errors, **_ONE),
        routes.get,
        summary="A key, without its secret",
        answers={200: schemas.ApiKey},
    )
    table.add(
        Rule("DELETE", KEY, "revokeKey", idempotency=Idempotency.NONE, errors=errors, **_ONE),
        routes.revoke,
        summary="Refuse a key from now on",
        answers={204: None},
    )
    table.add(
        Rule(
            "POST",
            f"{KEY}/rotate",
            "rotateKey",
            idempotency=Idempotency.OPTIONAL,
            body=True,
            body_required=False,
            errors=errors,
            **_ONE,
        ),
        routes.rotate,
        summary="Give a key a new secret, shown this once; the old one works for the overlap",
        answers={200: schemas.ApiKeyCreated},
    )
