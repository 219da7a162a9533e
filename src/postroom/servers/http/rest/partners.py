"""Partners, for platform keys alone (rest-api §5.3)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.responses import Response

from postroom.accounts.audit import actor_of
from postroom.accounts.models import BillingMode
from postroom.accounts.partners import NewPartner, Partner, PartnerChanges, PartnerStatus
from postroom.accounts.permissions import Level, Permission
from postroom.accounts.service.partners import Partners
from postroom.db import Connection
from postroom.events.catalogue import timestamp
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer, page
from postroom.servers.http.call import CurrentCall
from postroom.servers.http.exchange import exchange_of
from postroom.servers.http.rest import tenant_schemas as schemas
from postroom.servers.http.rest.once import IdempotencyKey, Place, Record, once
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Idempotency, Reach, RouteTable, Rule


class ListPartners(fields.Query):
    status: schemas.PartnerStatus | None = None
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


class _Routes:
    def __init__(self, partners: Partners) -> None:
        self._partners = partners

    async def create(
        self, body: schemas.PartnerCreateRequest, call: CurrentCall, idempotency_key: IdempotencyKey = None
    ) -> Response:
        new = NewPartner(body.name, BillingMode(body.default_billing_mode), body.max_tenants, body.ramp_exempt)
        by = actor_of(call.principal, exchange_of(call.request.scope).request_id)

        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, made: Partner) -> None:
                await record(conn, partner(made))

            return 201, partner(await self._partners.create(new, by=by, then=then))

        return await once(call, idempotency_key, work, status=201, place=Place.of_caller(call))

    async def list(self, query: Annotated[ListPartners, Query()], call: CurrentCall) -> Response:
        after = call.position(query.cursor, status=query.status)
        found = await self._partners.page(
            status=None if query.status is None else PartnerStatus(query.status),
            limit=query.limit + 1,
            after=None if after is None else (datetime.fromisoformat(str(after[0])), str(after[1])),
        )
        shown, following = found[: query.limit], None
        if len(found) > len(shown):
            following = call.cursor((timestamp(shown[-1].created_at), shown[-1].public_id), status=query.status)
        return page([partner(one) for one in shown], following)

    async def get(self, partner_id: fields.PartnerId, call: CurrentCall) -> Response:
        return JsonAnswer(partner(await self._partners.get(partner_id)))

    async def update(
        self, partner_id: fields.PartnerId, body: schemas.PartnerUpdateRequest, call: CurrentCall
    ) -> Response:
        mode = body.default_billing_mode
        changes = PartnerChanges(
            name=body.name,
            status=None if body.status is None else PartnerStatus(body.status),
            default_billing_mode=None if mode is None else BillingMode(mode),
            max_tenants=body.max_tenants,
            ramp_exempt=body.ramp_exempt,
        )
        by = actor_of(call.principal, exchange_of(call.request.scope).request_id)
        return JsonAnswer(partner(await self._partners.update(partner_id, changes, by=by)))

    async def delete(self, partner_id: fields.PartnerId, call: CurrentCall) -> Response:
        by = actor_of(call.principal, exchange_of(call.request.scope).request_id)
        await self._partners.delete(partner_id, by=by)
        return Response(status_code=204)


def partner(one: Partner) -> Json:
    """A Partner (rest-api §6.9)."""
    return {
        "id": one.public_id,
        "name": one.name,
        "status": one.status.value,
        "default_billing_mode": one.default_billing_mode.value,
        "max_tenants": one.max_tenants,
        "ramp_exempt": one.ramp_exempt,
        "created_at": timestamp(one.created_at),
        "updated_at": timestamp(one.updated_at),
    }


_COMMON: Final[dict[str, Any]] = {
    "tag": "Partners",
    "reach": Reach.RESOURCE,
    "permissions": frozenset({Permission.PARTNERS_MANAGE}),
    "levels": frozenset({Level.PLATFORM}),
    "bucket": Bucket.API,
}
_PATH: Final = "/v1/partners"
_ONE: Final = f"{_PATH}/{{partner_id}}"


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if partners are at hand."""
    if services.partners is None:
        return
    routes = _Routes(services.partners)
    once = {**_COMMON, "idempotency": Idempotency.OPTIONAL}
    plain = {**_COMMON, "idempotency": Idempotency.NONE}
    missing = {404: ("partner_not_found",)}
    table.add(
        Rule("POST", _PATH, "createPartner", body=True, **once),
        routes.create,
        summary="Create a partner",
        answers={201: schemas.Partner},
    )
    table.add(
        Rule("GET", _PATH, "listPartners", errors={400: ("invalid_request",), 410: ("cursor_expired",)}, **plain),
        routes.list,
        summary="Partners, newest first",
        answers={200: schemas.PartnerPage},
    )
    table.add(
        Rule("GET", _ONE, "getPartner", errors=missing, **plain),
        routes.get,
        summary="A partner, also one that is deleted",
        answers={200: schemas.Partner},
    )
    table.add(
        Rule("PATCH", _ONE, "updatePartner", body=True, errors=missing, **plain),
        routes.update,
        summary="Change, suspend or reactivate a partner",
        answers={200: schemas.Partner},
    )
    table.add(
        Rule("DELETE", _ONE, "deletePartner", errors={**missing, 409: ("partner_has_tenants",)}, **plain),
        routes.delete,
        summary="Delete a partner whose tenants are erased",
        answers={204: None},
    )
