"""Addresses of an identity: listed, added, promoted, retired, removed (rest-api §5.5)."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Body
from starlette.responses import Response

from postroom.accounts.permissions import Permission
from postroom.db import Connection
from postroom.directory import Addresses, HostedAddress, Identity
from postroom.events.identities import address_object, identity_object
from postroom.servers.http import fields
from postroom.servers.http.call import CurrentCall, actor
from postroom.servers.http.rest import directory_schemas
from postroom.servers.http.rest import identity_schemas as schemas
from postroom.servers.http.rest.account import Listing, listing
from postroom.servers.http.rest.once import IdempotencyKey, Record, once
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import ALL_LEVELS, Bucket, Idempotency, Reach, RouteTable, Rule

Promotion = Annotated[directory_schemas.PromoteAddressRequest, Body()]
Retirement = Annotated[directory_schemas.RetireAddressRequest, Body()]


class _Routes:
    def __init__(self, services: HttpServices, addresses: Addresses) -> None:
        self._services = services
        self._addresses = addresses

    async def list(
        self,
        identity_id: fields.IdentityId,
        query: Listing,
        call: CurrentCall,
    ) -> Response:
        identity = call.the_identity
        return await listing(
            call,
            query,
            lambda limit, after: self._addresses.page(
                call.principal.scope, identity.public_id, limit=limit, after=after
            ),
            lambda one: one.public_id,
            lambda one: address_object(identity, one),
        )

    async def create(
        self,
        identity_id: fields.IdentityId,
        body: directory_schemas.AddressCreateRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        identity = call.the_identity

        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, after: Identity, added: HostedAddress) -> None:
                await record(conn, address_object(after, added))

            added = await self._addresses.add(
                call.principal.scope,
                identity.public_id,
                body.local_part,
                body.domain_id,
                by=actor(call),
                then=then,
            )
            return 201, address_object(identity, added)

        return await once(call, idempotency_key, work, status=201)

    async def promote(
        self,
        identity_id: fields.IdentityId,
        address_id: fields.AddressId,
        call: CurrentCall,
        body: Promotion = directory_schemas.PromoteAddressRequest(),  # noqa: B008 - frozen, and what FastAPI asks for
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        scope = call.principal.scope

        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, after: Identity, promoted: HostedAddress) -> None:
                await record(conn, identity_object(after))

            after = await self._addresses.promote(
                scope,
                call.the_identity.public_id,
                address_id,
                body.retire_previous_after_days,
                by=actor(call),
                then=then,
            )
            return 200, identity_object(after)

        async def again(reference: Json) -> Json:
            return identity_object(await self._services.identities.get(scope, reference["identity_id"]))

        return await once(call, idempotency_key, work, status=200, reference=_reference, read_again=again)

    async def retire(
        self,
        identity_id: fields.IdentityId,
        address_id: fields.AddressId,
        call: CurrentCall,
        body: Retirement = directory_schemas.RetireAddressRequest(),  # noqa: B008 - frozen, and what FastAPI asks for
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        async def work(record: Record) -> tuple[int, Json]:
            answer: Json = {}

            async def then(conn: Connection, after: Identity, retired: HostedAddress) -> None:
                answer.update(address_object(after, retired))
                await record(conn, answer)

            await self._addresses.retire(
                call.principal.scope,
                call.the_identity.public_id,
                address_id,
                body.after_days,
                by=actor(call),
                then=then,
            )
            return 200, answer

        return await once(call, idempotency_key, work, status=200)

    async def delete(self, identity_id: fields.IdentityId, address_id: fields.AddressId, call: CurrentCall) -> Response:
        await self._addresses.remove_pending(
            call.principal.scope, call.the_identity.public_id, address_id, by=actor(call)
        )
        return Response(status_code=204)


def _reference(shape: Json) -> Json:
    return {"identity_id": shape["id"]}


_COMMON: Final[dict[str, Any]] = {
    "tag": "Addresses",
    "bucket": Bucket.API,
    "reach": Reach.IDENTITY_PATH,
    "levels": ALL_LEVELS,
}
_WRITING: Final[dict[str, Any]] = {**_COMMON, "permissions": frozenset({Permission.IDENTITIES_WRITE})}
_ALL: Final = "/v1/identities/{identity_id}/addresses"
_ONE: Final = f"{_ALL}/{{address_id}}"
_MISSING: Final = ("identity_not_found", "address_not_found")


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if this deployment serves addresses."""
    if services.addresses is None:
        return
    routes = _Routes(services, services.addresses)
    _register_all(table, routes)
    _register_one(table, routes)


def _register_all(table: RouteTable, routes: _Routes) -> None:
    table.add(
        Rule(
            "GET",
            _ALL,
            "listAddresses",
            permissions=frozenset({Permission.IDENTITIES_READ}),
            idempotency=Idempotency.NONE,
            errors={400: ("invalid_request",), 404: ("identity_not_found",), 410: ("cursor_expired",)},
            **_COMMON,
        ),
        routes.list,
        summary="Addresses of an identity in every state, newest first",
        answers={200: directory_schemas.AddressPage},
    )
    table.add(
        Rule(
            "POST",
            _ALL,
            "createAddress",
            idempotency=Idempotency.OPTIONAL,
            body=True,
            errors={
                400: ("address_invalid", "address_unsupported", "address_reserved", "local_part_too_long"),
                404: ("identity_not_found", "domain_not_found"),
                409: ("address_taken", "domain_not_ready"),
                422: ("address_limit_reached",),
            },
            **_WRITING,
        ),
        routes.create,
        summary="Add an address on a domain of the tenant",
        answers={201: schemas.Address},
    )


def _register_one(table: RouteTable, routes: _Routes) -> None:
    table.add(
        Rule(
            "POST",
            f"{_ONE}/promote",
            "promoteAddress",
            idempotency=Idempotency.OPTIONAL,
            body=True,
            body_required=False,
            errors={404: _MISSING, 409: ("domain_not_ready", "address_is_primary")},
            **_WRITING,
        ),
        routes.promote,
        summary="Make an address the primary, or take a promotion back",
        answers={200: schemas.Identity},
    )
    table.add(
        Rule(
            "POST",
            f"{_ONE}/retire",
            "retireAddress",
            idempotency=Idempotency.OPTIONAL,
            body=True,
            body_required=False,
            errors={404: _MISSING, 409: ("address_is_primary", "address_in_use")},
            **_WRITING,
        ),
        routes.retire,
        summary="Let an address receive for a while, then never again",
        answers={200: schemas.Address},
    )
    table.add(
        Rule(
            "DELETE",
            _ONE,
            "deleteAddress",
            idempotency=Idempotency.NONE,
            errors={404: _MISSING, 409: ("address_is_primary", "address_in_use")},
            **_WRITING,
        ),
        routes.delete,
        summary="Remove an address that still waits for its domain",
        answers={204: None},
    )
