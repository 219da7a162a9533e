"""Identities: create, list, look up, read, change (rest-api §5.4)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from pydantic import Field, StrictInt, StrictStr, StringConstraints, model_validator
from starlette.responses import Response

from postroom.accounts.models import Principal, TenantStatus
from postroom.accounts.permissions import Level, Permission
from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.directory import AddressStatus, Erasure, Identity, IdentityChanges, IdentityStatus, NewIdentity
from postroom.events.catalogue import timestamp
from postroom.events.identities import identity_object
from postroom.mail.html import sanitise
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer, page
from postroom.servers.http.call import Call, CurrentCall, actor, moment_and_id
from postroom.servers.http.fields import NotNull
from postroom.servers.http.guard import Guard
from postroom.servers.http.rest import directory_schemas
from postroom.servers.http.rest import identity_schemas as schemas
from postroom.servers.http.rest.once import IdempotencyKey, Record, once
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import ALL_LEVELS, NOT_IDENTITY, Bucket, Idempotency, Reach, RouteTable, Rule
from postroom.servers.objects import moment
from postroom.smtp.address import AddressSyntaxError, domain_to_ascii

NonEmpty = Annotated[StrictStr, StringConstraints(min_length=1, max_length=fields.MAX_TEXT), fields.Storable]
DisplayName = Annotated[
    StrictStr, StringConstraints(min_length=1, max_length=78, pattern=r"^[^\r\n]*$"), fields.Storable
]
MetadataBody = Annotated[
    dict[fields.Text, Annotated[StrictStr, StringConstraints(max_length=512), fields.Storable]], Field(max_length=16)
]


class OwnerBody(fields.RequestBody):
    name: NonEmpty
    email: fields.EmailAddress


class SignatureBody(fields.RequestBody):
    text: fields.Text | None = None
    html: fields.Text | None = None


class SendPolicyBody(fields.RequestBody):
    daily_cap: Annotated[Annotated[StrictInt, Field(ge=0, le=2**31 - 1)] | None, NotNull()] = None
    auto_reply: Literal["allowed", "denied"] = "allowed"
    require_known_recipient: fields.Flag = True


class IdentityCreateRequest(fields.RequestBody):
    username: fields.Text
    display_name: DisplayName
    purpose: Annotated[fields.Text | None, NotNull()] = None
    owner: Annotated[OwnerBody | None, NotNull()] = None
    signature: Annotated[SignatureBody | None, NotNull()] = None
    domain_id: Annotated[fields.DomainId | None, NotNull()] = None
    client_id: Annotated[NonEmpty | None, NotNull()] = None
    send_policy: Annotated[SendPolicyBody | None, NotNull()] = None
    metadata: Annotated[MetadataBody | None, NotNull()] = None


class IdentityUpdateRequest(fields.RequestBody):
    """What is left out stays as it is. `owner` and `metadata` are replaced whole, of `signature` and `send_policy` what
    is given.
    """

    display_name: Annotated[DisplayName | None, NotNull()] = None
    purpose: fields.Text | None = None
    owner: Annotated[OwnerBody | None, NotNull()] = None
    signature: Annotated[SignatureBody | None, NotNull()] = None
    metadata: Annotated[MetadataBody | None, NotNull()] = None
    send_policy: Annotated[SendPolicyBody | None, NotNull()] = None
    status: Annotated[Literal["active", "paused"] | None, NotNull()] = None

    @model_validator(mode="after")
    def _not_empty(self) -> IdentityUpdateRequest:
        if not self.model_fields_set:
            raise ValueError("must change something")
        return self


class ListIdentities(fields.Query):
    tenant_id: fields.TenantId | None = None
    status: schemas.IdentityStatus | None = None
    purpose: fields.QueryText | None = None
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


class ListTenantIdentities(fields.Query):
    status: schemas.IdentityStatus | None = None
    purpose: fields.QueryText | None = None
    client_id: fields.QueryText | None = None
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


class LookupIdentity(fields.Query):
    address: fields.EmailAddress


class _Routes:
    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._guard = Guard(services)

    async def create(
        self,
        tenant_id: fields.TenantId,
        body: IdentityCreateRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        tenant, principal = call.the_tenant, call.principal

        async def work(record: Record) -> tuple[int, Json]:
            if tenant.status is TenantStatus.SUSPENDED:
                raise PostroomError("tenant_suspended")

            async def then(conn: Connection, made: Identity) -> None:
                await record(conn, identity_object(made), identity_id=made.id)

            await self._check_cap(principal, tenant.id, body.send_policy)
            new = await _new_identity(body)
            identity, made = await self._services.identities.create(tenant.id, new, then, by=actor(call))
            return (201 if made else 200), identity_object(identity)

        async def again(reference: Json) -> Json:
            return identity_object(await self._services.identities.get(principal.scope, reference["identity_id"]))

        return await once(call, idempotency_key, work, status=201, reference=_reference, read_again=again)

    async def list_of_tenant(
        self, tenant_id: fields.TenantId, query: Annotated[ListTenantIdentities, Query()], call: CurrentCall
    ) -> Response:
        filters = query.model_dump(exclude={"limit", "cursor"})
        return await self._page(call, call.the_tenant.id, query.limit, query.cursor, filters)

    async def list_all(self, query: Annotated[ListIdentities, Query()], call: CurrentCall) -> Response:
        principal = call.principal
        filters = query.model_dump(exclude={"limit", "cursor"})
        if principal.session is not None:
            return await self._granted(call, principal.session.person_id, query)
        if query.tenant_id is not None:
            tenant_id = await self._tenant_in_reach(principal, query.tenant_id)
            return await self._page(call, tenant_id, query.limit, query.cursor, filters)
        return await self._page(call, principal.tenant_id, query.limit, query.cursor, filters)

    async def look_up(self, query: Annotated[LookupIdentity, Query()], call: CurrentCall) -> Response:
        local, _, domain = query.address.rpartition("@")
        try:
            address = f"{local.lower()}@{domain_to_ascii(domain)}"
            identity = await self._services.identities.by_address(call.principal.scope, address)
        except (AddressSyntaxError, UnicodeError):
            raise PostroomError("identity_not_found") from None
        except PostroomError as error:
            raise PostroomError("identity_not_found") if error.code == "address_not_found" else error from None
        found = next((item for item in identity.addresses if item.address == address), None)
        if found is None or found.status not in (AddressStatus.ACTIVE, AddressStatus.RETIRING):
            raise PostroomError("identity_not_found")
        return JsonAnswer(identity_object(identity))

    async def get(self, identity_id: fields.IdentityId, call: CurrentCall) -> Response:
        return JsonAnswer(identity_object(call.the_identity))

    async def update(self, identity_id: fields.IdentityId, body: IdentityUpdateRequest, call: CurrentCall) -> Response:
        await self._check_cap(call.principal, call.the_identity.tenant_id, body.send_policy)
        changed = await self._services.identities.update(
            call.principal.scope, call.the_identity.public_id, await _changes(body), by=actor(call)
        )
        return JsonAnswer(identity_object(changed))

    async def delete(self, identity_id: fields.IdentityId, call: CurrentCall) -> Response:
        assert self._services.deletions is not None, "then there is no such route"
        request, made = await self._services.deletions.delete(
            call.principal.scope, call.the_identity.public_id, by=actor(call)
        )
        return JsonAnswer(erasure(request), 202 if made else 200)

    async def _check_cap(self, principal: Principal, tenant_id: int, asked: SendPolicyBody | None) -> None:
        """Beyond the tenant's own cap only the platform goes (A3.8)."""
        cap = None if asked is None else asked.daily_cap
        if cap is None or principal.level is Level.PLATFORM:
            return
        if cap > (await self._services.policies.of(tenant_id)).identity_daily_send_cap:
            raise PostroomError("scope_denied", details={"field": "send_policy.daily_cap"})

    async def _tenant_in_reach(self, principal: Principal, public_id: str) -> int:
        """The key of a tenant named in the query. An identity key may name its own, and still sees itself only."""
        if principal.level is Level.IDENTITY:
            if public_id != principal.tenant_public_id or principal.tenant_id is None:
                raise PostroomError("tenant_not_found")
            return principal.tenant_id
        return (await self._guard.tenant(principal, public_id)).id

    async def _page(self, call: Call, tenant_id: int | None, limit: int, cursor: str | None, filters: Json) -> Response:
        position, status = call.position(cursor, **filters), filters.get("status")
        found = await self._services.identities.page(
            call.principal.scope,
            tenant_id,
            statuses=None if status is None else [IdentityStatus(status)],
            purpose=filters.get("purpose"),
            client_id=filters.get("client_id"),
            limit=limit + 1,
            after=moment_and_id(position),
        )
        return _paged(call, found, limit, filters)

    async def _granted(self, call: Call, person_id: int, query: ListIdentities) -> Response:
        """Of a person: those whose mailboxes they may open, whatever tenant (decisions E)."""
        filters = query.model_dump(exclude={"limit", "cursor"})
        found = await self._services.identities.granted(
            person_id,
            tenant=query.tenant_id,
            statuses=None if query.status is None else [IdentityStatus(query.status)],
            purpose=query.purpose,
            limit=query.limit + 1,
            after=moment_and_id(call.position(query.cursor, **filters)),
        )
        return _paged(call, found, query.limit, filters)


def _paged(call: Call, found: list[Identity], limit: int, filters: Json) -> Response:
    """A page of identities, of which one more than `limit` was looked for."""
    more, found = len(found) > limit, found[:limit]
    last = found[-1] if more else None
    next_cursor = None if last is None else call.cursor((timestamp(last.created_at), last.public_id), **filters)
    return page([identity_object(identity) for identity in found], next_cursor)


_COMMON: Final[dict[str, Any]] = {"tag": "Identities", "bucket": Bucket.API}
_READING: Final[dict[str, Any]] = {
    **_COMMON,
    "permissions": frozenset({Permission.IDENTITIES_READ}),
    "idempotency": Idempotency.NONE,
}


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations."""
    routes = _Routes(services)
    _register_create(table, routes)
    _register_lists(table, routes)
    _register_one(table, routes)
    if services.deletions is not None:
        _register_delete(table, routes)


def _register_create(table: RouteTable, routes: _Routes) -> None:
    table.add(
        Rule(
            "POST",
            "/v1/tenants/{tenant_id}/identities",
            "createIdentity",
            reach=Reach.TENANT_PATH,
            permissions=frozenset({Permission.IDENTITIES_WRITE}),
            levels=NOT_IDENTITY,
            idempotency=Idempotency.OPTIONAL,
            body=True,
            errors={
                400: ("address_invalid", "address_reserved", "address_unsupported", "local_part_too_long"),
                402: ("billing_limit",),
                404: ("tenant_not_found", "domain_not_found"),
                409: ("client_id_conflict", "username_taken", "address_taken", "domain_not_ready"),
            },
            **_COMMON,
        ),
        routes.create,
        summary="Create an identity with its mailbox",
        answers={201: schemas.Identity, 200: schemas.Identity},
    )


def _register_lists(table: RouteTable, routes: _Routes) -> None:
    paged = {400: ("invalid_request",), 404: ("tenant_not_found",), 410: ("cursor_expired",)}
    table.add(
        Rule(
            "GET",
            "/v1/tenants/{tenant_id}/identities",
            "listTenantIdentities",
            reach=Reach.TENANT_PATH,
            levels=NOT_IDENTITY,
            errors=paged,
            **_READING,
        ),
        routes.list_of_tenant,
        summary="Identities of a tenant",
        answers={200: schemas.IdentityPage},
    )
    table.add(
        Rule(
            "GET",
            "/v1/identities",
            "listIdentities",
            reach=Reach.TENANT_FILTER,
            levels=ALL_LEVELS,
            errors=paged,
            **_READING,
        ),
        routes.list_all,
        summary="Identities that the key reaches",
        answers={200: schemas.IdentityPage},
    )


def _register_one(table: RouteTable, routes: _Routes) -> None:
    table.add(
        Rule(
            "GET",
            "/v1/identities/lookup",
            "lookupIdentity",
            reach=Reach.RESOURCE,
            levels=ALL_LEVELS,
            errors={400: ("invalid_request",), 404: ("identity_not_found",)},
            **_READING,
        ),
        routes.look_up,
        summary="The identity that an address belongs to",
        answers={200: schemas.Identity},
    )
    table.add(
        Rule(
            "GET",
            "/v1/identities/{identity_id}",
            "getIdentity",
            reach=Reach.IDENTITY_PATH,
            levels=ALL_LEVELS,
            even_gone=True,
            errors={404: ("identity_not_found",)},
            **_READING,
        ),
        routes.get,
        summary="An identity",
        answers={200: schemas.Identity},
    )
    table.add(
        Rule(
            "PATCH",
            "/v1/identities/{identity_id}",
            "updateIdentity",
            reach=Reach.IDENTITY_PATH,
            permissions=frozenset({Permission.IDENTITIES_WRITE}),
            levels=ALL_LEVELS,
            idempotency=Idempotency.NONE,
            body=True,
            errors={
                400: ("invalid_request", "address_invalid"),
                404: ("identity_not_found",),
                409: ("identity_paused",),
            },
            **_COMMON,
        ),
        routes.update,
        summary="Change an identity, pause or resume it",
        answers={200: schemas.Identity},
    )


def _register_delete(table: RouteTable, routes: _Routes) -> None:
    table.add(
        Rule(
            "DELETE",
            "/v1/identities/{identity_id}",
            "deleteIdentity",
            reach=Reach.IDENTITY_PATH,
            permissions=frozenset({Permission.IDENTITIES_WRITE, Permission.ERASURE_MANAGE}),
            levels=ALL_LEVELS,
            idempotency=Idempotency.NONE,
            even_gone=True,
            errors={404: ("identity_not_found",)},
            **_COMMON,
        ),
        routes.delete,
        summary="Delete an identity, its addresses for ever, and ask for its erasure",
        answers={202: directory_schemas.ErasureRequest, 200: directory_schemas.ErasureRequest},
    )


def erasure(request: Erasure) -> Json:
    """An ErasureRequest."""
    return {
        "id": request.public_id,
        "tenant_id": request.tenant_public_id,
        "scope": "identity",
        "status": request.status,
        "identity_id": request.identity_public_id,
        "target_id": None,
        "resumes_id": None,
        "created_at": timestamp(request.created_at),
        "deadline_at": timestamp(request.deadline_at),
        "completed_at": moment(request.completed_at),
        "receipt": None,
        "created_by_key_id": request.created_by,
    }


def _reference(shape: Json) -> Json:
    return {"identity_id": shape["id"]}


async def _new_identity(body: IdentityCreateRequest) -> NewIdentity:
    owner, signature = body.owner, body.signature
    html = None if signature is None else await _sanitised(signature.html)
    return NewIdentity(
        username=body.username,
        display_name=body.display_name,
        purpose=body.purpose,
        client_id=body.client_id,
        owner_name=None if owner is None else owner.name,
        owner_email=None if owner is None else owner.email,
        signature_text=None if signature is None else signature.text,
        signature_html=html,
        domain=body.domain_id,
        send_policy={} if body.send_policy is None else body.send_policy.model_dump(exclude_unset=True),
        metadata=body.metadata or {},
    )


async def _changes(body: IdentityUpdateRequest) -> IdentityChanges:
    """An empty text clears what null does."""
    owner, signature, given = body.owner, body.signature, body.model_fields_set
    signed = set() if signature is None else signature.model_fields_set
    html = None if signature is None else await _sanitised(signature.html)
    return IdentityChanges(
        display_name=body.display_name,
        purpose=(body.purpose or "") if "purpose" in given else None,
        owner_name=None if owner is None else owner.name,
        owner_email=None if owner is None else owner.email,
        signature_text=(signature.text or "") if signature is not None and "text" in signed else None,
        signature_html=(html or "") if "html" in signed else None,
        metadata=body.metadata,
        send_policy=None if body.send_policy is None else body.send_policy.model_dump(exclude_unset=True),
        status=None if body.status is None else IdentityStatus(body.status),
    )


async def _sanitised(html: str | None) -> str | None:
    return None if html is None else await asyncio.to_thread(sanitise, html)
