"""Tenants and their policy (rest-api §5.2)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.responses import Response

from postroom.accounts.audit import Actor, actor_of
from postroom.accounts.models import (
    BillingMode,
    Mode,
    NewTenant,
    PrincipalKind,
    Tenant,
    TenantChanges,
    TenantStatus,
)
from postroom.accounts.permissions import Level, Permission
from postroom.accounts.policy import document
from postroom.accounts.policy_rules import Stance
from postroom.accounts.service.owners import prepare_owner
from postroom.accounts.service.people import Prepared
from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.events.catalogue import timestamp
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer, page
from postroom.servers.http.bodies import JsonRequest
from postroom.servers.http.call import Call, CurrentCall
from postroom.servers.http.exchange import exchange_of
from postroom.servers.http.failures import invalid
from postroom.servers.http.rest import tenant_schemas as schemas
from postroom.servers.http.rest.once import IdempotencyKey, Place, Record, once
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import NOT_IDENTITY, Bucket, Idempotency, Reach, RouteTable, Rule
from postroom.servers.objects import moment


class ListTenants(fields.Query):
    status: schemas.TenantStatus | None = None
    partner_id: fields.PartnerId | None = None
    mode: schemas.Mode | None = None
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


def _reference(shape: Json) -> Json:
    return {"id": shape["id"]}


class _Routes:
    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._tenants = services.tenants

    @property
    def _stance(self) -> Stance:
        return self._tenants.stance

    async def create(
        self, body: schemas.TenantCreateRequest, call: CurrentCall, idempotency_key: IdempotencyKey = None
    ) -> Response:
        async def work(record: Record) -> tuple[int, Json]:
            return 201, await self._make(body, call, record)

        async def again(reference: Json) -> Json:
            return tenant(await self._tenants.get(reference["id"]), self._stance)

        place = Place.of_caller(call)
        return await once(call, idempotency_key, work, status=201, place=place, reference=_reference, read_again=again)

    async def _make(self, body: schemas.TenantCreateRequest, call: Call, record: Record) -> Json:
        billing = None
        if body.billing is not None:
            if call.principal.level is not Level.PLATFORM:
                raise PostroomError("scope_denied", details={"field": "billing"})
            billing = None if body.billing.mode is None else BillingMode(body.billing.mode)
        new = NewTenant(
            slug=body.slug,
            name=body.name,
            mode=Mode(body.mode),
            address_suffix=self._suffix(body),
            timezone=body.timezone,
            policy=_sent(call).get("policy"),
            billing_mode=billing,
        )
        owner = None if body.owner is None else await self._owner(body.owner)
        people, by = self._services.people, _by(call)

        async def then(conn: Connection, made: Tenant) -> None:
            if owner is not None and people is not None:
                trusted = call.principal.level is Level.PLATFORM
                await people.put_owner(conn, owner, made.id, by=by, may_draw_in=trusted)
            await record(conn, tenant(made, self._stance))

        return tenant(await self._tenants.create(new, caller=call.principal, by=by, then=then), self._stance)

    def _suffix(self, body: schemas.TenantCreateRequest) -> str | None:
        # Only the tenant that setup makes has none.
        if body.address_suffix == "":
            raise invalid("address_suffix", "must not be empty")
        return body.address_suffix

    async def _owner(self, owner: schemas.OwnerBody) -> Prepared:
        people = self._services.people
        if people is None:
            raise invalid("owner", "is not offered here")
        return await prepare_owner(self._tenants, people, owner.email, owner.name)

    async def list(self, query: Annotated[ListTenants, Query()], call: CurrentCall) -> Response:
        filters = query.model_dump(exclude={"limit", "cursor"})
        partner_id = await self._partner(call, query.partner_id)
        after = call.position(query.cursor, **filters)
        found = await self._tenants.search(
            status=None if query.status is None else TenantStatus(query.status),
            mode=None if query.mode is None else Mode(query.mode),
            partner_id=partner_id,
            limit=query.limit + 1,
            after=None if after is None else (datetime.fromisoformat(str(after[0])), str(after[1])),
        )
        shown, following = found[: query.limit], None
        if len(found) > len(shown):
            following = call.cursor((timestamp(shown[-1].created_at), shown[-1].public_id), **filters)
        return page([tenant(one, self._stance) for one in shown], following)

    async def _partner(self, call: Call, asked: str | None) -> int | None:
        """Whose tenants are listed; None: everybody's. Raises `partner_not_found`, to a partner's key for any but its
        own.
        """
        principal = call.principal
        if principal.level is Level.PARTNER:
            if asked not in (None, principal.partner_public_id) or principal.partner_id is None:
                raise PostroomError("partner_not_found")
            return principal.partner_id
        if asked is None:
            return None
        if self._services.partners is None:
            raise PostroomError("partner_not_found")
        return (await self._services.partners.get(asked)).id

    async def get(self, tenant_id: fields.TenantId, call: CurrentCall) -> Response:
        return JsonAnswer(tenant(call.the_tenant, self._stance))

    async def update(
        self, tenant_id: fields.TenantId, body: schemas.TenantUpdateRequest, call: CurrentCall
    ) -> Response:
        changes = TenantChanges(
            name=body.name,
            timezone=body.timezone,
            policy=_sent(call).get("policy"),
            status=None if body.status is None else TenantStatus(body.status),
            resume_sending=body.sending_paused is False,
        )
        after = await self._tenants.update(
            call.the_tenant.id,
            changes,
            follow=self._services.identities.follow_tenant,
            caller=call.principal,
            by=_by(call),
        )
        return JsonAnswer(tenant(after, self._stance))

    async def get_policy(self, tenant_id: fields.TenantId, call: CurrentCall) -> Response:
        return JsonAnswer(policy_view(call.the_tenant, self._stance, call))

    async def update_policy(
        self, tenant_id: fields.TenantId, body: schemas.TenantPolicyPatch, call: CurrentCall
    ) -> Response:
        after = await self._tenants.change_policy(call.the_tenant.id, _sent(call), caller=call.principal, by=_by(call))
        return JsonAnswer(policy_view(after, self._stance, call))


def _by(call: Call) -> Actor:
    return actor_of(call.principal, exchange_of(call.request.scope).request_id)


def _sent(call: Call) -> Any:
    """The body as it came: what was given and what was not is told apart in it."""
    assert isinstance(call.request, JsonRequest)
    return call.request.parsed


def tenant(one: Tenant, stance: Stance) -> Json:
    """A Tenant (rest-api §6.7)."""
    assert one.updated_at is not None
    return {
        "id": one.public_id,
        "slug": one.slug,
        "name": "" if one.status is TenantStatus.ERASED else one.name,
        "mode": one.mode.value,
        "status": one.status.value,
        "suspended_by": one.suspended_by,
        "partner_id": one.partner_public_id,
        "address_suffix": one.address_suffix,
        "timezone": one.timezone,
        "policy": document(stance.effective(one.policy)),
        "sending_paused_at": moment(one.sending_paused_at),
        "created_at": timestamp(one.created_at),
        "updated_at": timestamp(one.updated_at),
    }


def policy_view(one: Tenant, stance: Stance, call: Call) -> Json:
    """A TenantPolicyView, as the caller has it."""
    principal = call.principal
    access = stance.access(principal.level, one.policy, is_person=principal.kind is PrincipalKind.PERSON)
    return {
        "tenant_id": one.public_id,
        "policy_version": one.policy_version,
        "policy": document(stance.effective(one.policy)),
        "fields": [
            {
                "field": member.path,
                "class": member.kind.value,
                "writable": member.writable,
                "ceiling": member.ceiling,
                "ceiling_source": None if member.source is None else member.source.value,
                "person_required_to_loosen": member.person_required,
            }
            for member in access
        ],
    }


_COMMON: Final[dict[str, Any]] = {"tag": "Tenants", "bucket": Bucket.API, "idempotency": Idempotency.NONE}
_MANAGING: Final[dict[str, Any]] = {
    "permissions": frozenset({Permission.TENANTS_MANAGE}),
    "levels": frozenset({Level.PLATFORM, Level.PARTNER}),
}
_ONE: Final = "/v1/tenants/{tenant_id}"
_MISSING: Final = {404: ("tenant_not_found",)}


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations."""
    routes = _Routes(services)
    _register_all(table, routes)
    _register_one(table, routes)
    policy = {
        **_COMMON,
        "reach": Reach.TENANT_PATH,
        "permissions": frozenset({Permission.POLICY_WRITE}),
        "levels": NOT_IDENTITY,
    }
    table.add(
        Rule("GET", f"{_ONE}/policy", "getTenantPolicy", errors=_MISSING, **policy),
        routes.get_policy,
        summary="What holds for a tenant, and what the caller may change of it",
        answers={200: schemas.TenantPolicyView},
    )
    refused = {**_MISSING, 409: ("tenant_erased", "domain_in_use")}
    table.add(
        Rule("PATCH", f"{_ONE}/policy", "updateTenantPolicy", body=True, errors=refused, **policy),
        routes.update_policy,
        summary="Write members of a tenant's policy",
        answers={200: schemas.TenantPolicyView},
    )


def _register_all(table: RouteTable, routes: _Routes) -> None:
    making = {**_COMMON, **_MANAGING, "bucket": Bucket.PARTNER, "idempotency": Idempotency.OPTIONAL}
    table.add(
        Rule(
            "POST",
            "/v1/tenants",
            "createTenant",
            reach=Reach.RESOURCE,
            body=True,
            errors={
                400: ("address_reserved",),
                403: ("partner_tenant_limit",),
                409: ("slug_taken", "suffix_taken"),
            },
            **making,
        ),
        routes.create,
        summary="Create a tenant",
        answers={201: schemas.Tenant},
    )
    table.add(
        Rule(
            "GET",
            "/v1/tenants",
            "listTenants",
            reach=Reach.TENANT_FILTER,
            errors={400: ("invalid_request",), 404: ("partner_not_found",), 410: ("cursor_expired",)},
            **_COMMON,
            **_MANAGING,
        ),
        routes.list,
        summary="Tenants that the key reaches, newest first",
        answers={200: schemas.TenantPage},
    )


def _register_one(table: RouteTable, routes: _Routes) -> None:
    table.add(
        Rule(
            "GET",
            _ONE,
            "getTenant",
            reach=Reach.TENANT_PATH,
            permissions=frozenset({Permission.TENANTS_MANAGE}),
            levels=NOT_IDENTITY,
            implicit_for=frozenset({Level.TENANT}),
            errors=_MISSING,
            **_COMMON,
        ),
        routes.get,
        summary="A tenant",
        answers={200: schemas.Tenant},
    )
    table.add(
        Rule(
            "PATCH",
            _ONE,
            "updateTenant",
            reach=Reach.TENANT_PATH,
            body=True,
            errors={**_MISSING, 409: ("tenant_erased", "domain_in_use")},
            **_COMMON,
            **_MANAGING,
        ),
        routes.update,
        summary="Change, suspend or resume a tenant",
        answers={200: schemas.Tenant},
    )
