"""People of a tenant, the mailboxes they may open and what they sign in with (decisions A2, E).

A tenant's administrators reset whoever has to do with that tenant alone and does not own it; else an operator does.
Nobody turns off somebody's two-step verification over HTTP (mail-server F4). `Idempotency-Key` is not honoured where a
body holds a password: what is kept of a request to compare it with would let the password be guessed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, WithJsonSchema
from starlette.responses import Response

from postroom.accounts.audit import Actor, actor_of
from postroom.accounts.models import MemberRole, NewPerson, Person, TenantStatus
from postroom.accounts.passwords import check_policy
from postroom.accounts.permissions import GrantRole, Level, Permission
from postroom.accounts.service.account import Account
from postroom.accounts.service.people import People, Place
from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.directory import Identity, IdentityKind, NewIdentity
from postroom.servers import objects
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import Call, CurrentCall
from postroom.servers.http.exchange import exchange_of
from postroom.servers.http.rest import people_schemas as schemas
from postroom.servers.http.rest.account import Listing, listing
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import NOT_IDENTITY, Bucket, Idempotency, Reach, RouteTable, Rule

PATH: Final = "/v1/tenants/{tenant_id}/people"
ONE: Final = f"{PATH}/{{person_id}}"

IdentityInPath = Annotated[str, WithJsonSchema({"type": "string"})]
"""One that is none is simply not found."""


class _Routes:
    def __init__(self, services: HttpServices, people: People, account: Account) -> None:
        self._services, self._people, self._account = services, people, account

    async def list(self, tenant_id: fields.TenantId, query: Listing, call: CurrentCall) -> Response:
        tenant = call.the_tenant
        return await listing(
            call,
            query,
            lambda limit, after: self._people.page(tenant_id=tenant.id, limit=limit, after=after),
            lambda one: one.public_id,
            schemas.person,
        )

    async def create(
        self, tenant_id: fields.TenantId, body: schemas.PersonCreateRequest, call: CurrentCall
    ) -> Response:
        tenant, by, vouched = call.the_tenant, _actor(call), call.principal.level is Level.PLATFORM
        role = None if body.role is None else MemberRole(body.role)
        ready = await self._people.prepare(NewPerson(body.display_name, body.contact_email, body.password))
        await self._people.check_contact(ready)
        if body.username is None:
            place = Place(tenant.id, role)
            async with self._services.database.transaction() as conn:
                made = await self._people.add(conn, ready, by=by, place=place, vouched=vouched)
            return JsonAnswer(schemas.person(made), 201)
        if tenant.status is TenantStatus.SUSPENDED:
            raise PostroomError("tenant_suspended")
        people: list[Person] = []

        async def with_mailbox(conn: Connection, identity: Identity) -> None:
            # Together: neither a mailbox without its person, nor somebody without a place.
            place = Place(tenant.id, role, identity.public_id)
            people.append(await self._people.add(conn, ready, by=by, place=place, vouched=vouched))

        new = NewIdentity(username=body.username, display_name=body.display_name, kind=IdentityKind.PERSON)
        await self._services.identities.create(tenant.id, new, with_mailbox, by=by)
        return JsonAnswer(schemas.person(people[-1]), 201)

    async def get(self, tenant_id: fields.TenantId, person_id: fields.PersonId, call: CurrentCall) -> Response:
        return JsonAnswer(schemas.person(await self._found(call, person_id)))

    async def update(
        self,
        tenant_id: fields.TenantId,
        person_id: fields.PersonId,
        body: schemas.PersonUpdateRequest,
        call: CurrentCall,
    ) -> Response:
        person, by = await self._mine(call, person_id), _actor(call)
        # A tenant's administrator reaches only a person of the tenant, whatever happened since that was asked.
        within = None if call.principal.level is Level.PLATFORM else call.the_tenant.id
        if body.password is not None:
            check_policy(body.password)
        if body.display_name is not None:
            person = await self._people.rename(person_id, body.display_name, tenant_id=within, by=by)
        if body.password is not None:
            person = await self._people.set_password(person_id, body.password, tenant_id=within, by=by)
        if body.enabled is not None and body.enabled != person.enabled:
            person = await self._people.set_enabled(person_id, body.enabled, tenant_id=within, by=by)
        return JsonAnswer(schemas.person(person))

    async def delete(self, tenant_id: fields.TenantId, person_id: fields.PersonId, call: CurrentCall) -> Response:
        await self._people.remove(call.the_tenant.id, person_id, by=_actor(call))
        return Response(status_code=204)

    async def grants(
        self, tenant_id: fields.TenantId, person_id: fields.PersonId, query: Listing, call: CurrentCall
    ) -> Response:
        tenant, person = call.the_tenant, await self._found(call, person_id)
        return await listing(
            call,
            query,
            lambda limit, after: self._people.grant_page(tenant.id, person.id, limit=limit, after=after),
            lambda one: one.identity_public_id,
            objects.grant,
        )

    async def put_grant(
        self,
        tenant_id: fields.TenantId,
        person_id: fields.PersonId,
        identity_id: IdentityInPath,
        body: schemas.GrantPutRequest,
        call: CurrentCall,
    ) -> Response:
        tenant, role = call.the_tenant, GrantRole(body.role)
        by_operator = call.principal.level is Level.PLATFORM
        await self._people.grant(tenant.id, identity_id, person_id, role, by_operator=by_operator, by=_actor(call))
        return Response(status_code=204)

    async def remove_grant(
        self,
        tenant_id: fields.TenantId,
        person_id: fields.PersonId,
        identity_id: IdentityInPath,
        call: CurrentCall,
    ) -> Response:
        await self._people.ungrant(call.the_tenant.id, identity_id, person_id, by=_actor(call))
        return Response(status_code=204)

    async def totp(self, tenant_id: fields.TenantId, person_id: fields.PersonId, call: CurrentCall) -> Response:
        person = await self._found(call, person_id)
        return JsonAnswer(schemas.totp(await self._account.two_step.status(person.id)))

    async def app_passwords(
        self, tenant_id: fields.TenantId, person_id: fields.PersonId, query: Listing, call: CurrentCall
    ) -> Response:
        person = await self._mine(call, person_id)
        return await listing(
            call,
            query,
            lambda limit, after: self._account.app_passwords.page(person.id, limit=limit, after=after),
            lambda one: one.public_id,
            objects.app_password,
        )

    async def revoke_app_password(
        self,
        tenant_id: fields.TenantId,
        person_id: fields.PersonId,
        app_password_id: fields.AppPasswordId,
        call: CurrentCall,
    ) -> Response:
        person = await self._mine(call, person_id)
        await self._account.app_passwords.revoke(person, app_password_id, _actor(call), first=self._still(call, person))
        return Response(status_code=204)

    async def revoke_sessions(
        self, tenant_id: fields.TenantId, person_id: fields.PersonId, call: CurrentCall
    ) -> Response:
        person = await self._mine(call, person_id)
        await self._account.sessions.revoke_all(person, _actor(call), first=self._still(call, person))
        return Response(status_code=204)

    async def _found(self, call: Call, person_id: str) -> Person:
        return await self._people.get(person_id, tenant_id=call.the_tenant.id)

    def _still(self, call: Call, person: Person) -> Callable[[Connection], Awaitable[None]]:
        """What `_mine` looked at, looked at again where the work is done."""
        within = None if call.principal.level is Level.PLATFORM else call.the_tenant.id
        return lambda conn: self._people.still_has_authority(conn, person.public_id, within, _actor(call))

    async def _mine(self, call: Call, person_id: str) -> Person:
        """The person, if the caller may touch what they sign in with."""
        if call.principal.level is not Level.PLATFORM:
            return await self._people.authority(person_id, call.the_tenant.id)
        person = await self._found(call, person_id)
        if person.is_operator:
            raise PostroomError("scope_denied")
        return person


def _actor(call: Call) -> Actor:
    return actor_of(call.principal, exchange_of(call.request.scope).request_id)


_READ: Final = frozenset({Permission.MEMBERS_READ})
_MANAGE: Final = frozenset({Permission.MEMBERS_MANAGE})
_MISSING: Final = ("tenant_not_found", "person_not_found")
_LIST: Final[Mapping[int, tuple[str, ...]]] = {400: ("invalid_request",), 404: _MISSING, 410: ("cursor_expired",)}
_GONE: Final[Mapping[int, None]] = {204: None}
_RESET: Final[Mapping[int, tuple[str, ...]]] = {404: _MISSING, 409: ("owner_required",)}


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if people sign in here."""
    if services.people is None or services.account is None:
        return
    routes = _Routes(services, services.people, services.account)

    def add(
        method: str,
        path: str,
        operation: str,
        endpoint: Callable[..., Awaitable[Response]],
        summary: str,
        answers: Mapping[int, type[BaseModel] | None],
        errors: Mapping[int, tuple[str, ...]],
    ) -> None:
        permissions = _READ if method == "GET" else _MANAGE
        options: dict[str, Any] = {"bucket": Bucket.API, "idempotency": Idempotency.NONE}
        body = method in ("POST", "PATCH", "PUT")
        rule = Rule(
            *(method, path, operation, "People", Reach.TENANT_PATH, permissions, NOT_IDENTITY),
            body=body,
            errors=errors,
            **options,
        )
        table.add(rule, endpoint, summary=summary, answers=answers)

    _register_people(add, routes)
    _register_rights(add, routes)
    _register_credentials(add, routes)


def _register_people(add: Callable[..., None], routes: _Routes) -> None:
    add("GET", PATH, "listPeople", routes.list, "People of a tenant, newest first", {200: schemas.PersonPage}, _LIST)
    add(
        *("POST", PATH, "createPerson", routes.create, "Make a person, with a mailbox of their own or as a member"),
        {201: schemas.Person},
        {
            400: (
                "invalid_request",
                "address_invalid",
                "address_reserved",
                "address_unsupported",
                "local_part_too_long",
            ),
            404: ("tenant_not_found",),
            409: ("address_taken", "username_taken"),
        },
    )
    add("GET", ONE, "getPerson", routes.get, "A person", {200: schemas.Person}, {404: _MISSING})
    add(
        *("PATCH", ONE, "updatePerson", routes.update, "Rename, enable, disable, or give a new password"),
        *({200: schemas.Person}, _RESET),
    )
    add("DELETE", ONE, "removePerson", routes.delete, "Take a person from the tenant; mail stays", _GONE, _RESET)


def _register_rights(add: Callable[..., None], routes: _Routes) -> None:
    add(
        *("GET", f"{ONE}/grants", "listGrants", routes.grants, "Mailboxes that a person may open, newest first"),
        *({200: schemas.GrantPage}, _LIST),
    )
    add(
        *("PUT", f"{ONE}/grants/{{identity_id}}", "putGrant", routes.put_grant, "Let a person open a mailbox"),
        *(_GONE, {404: (*_MISSING, "identity_not_found")}),
    )
    add(
        *("DELETE", f"{ONE}/grants/{{identity_id}}", "removeGrant", routes.remove_grant),
        *("Let a person open a mailbox no more", _GONE, {404: (*_MISSING, "grant_not_found")}),
    )


def _register_credentials(add: Callable[..., None], routes: _Routes) -> None:
    add(
        *("GET", f"{ONE}/totp", "getPersonTotp", routes.totp, "Whether a person has two-step verification"),
        *({200: schemas.TotpStatus}, {404: _MISSING}),
    )
    add(
        *("GET", f"{ONE}/app-passwords", "listPersonAppPasswords", routes.app_passwords),
        *("A person's application passwords, newest first", {200: schemas.AppPasswordPage}),
        {**_LIST, 409: ("owner_required",)},
    )
    add(
        *("DELETE", f"{ONE}/app-passwords/{{app_password_id}}", "revokePersonAppPassword"),
        *(routes.revoke_app_password, "Refuse an application password from now on", _GONE),
        {404: (*_MISSING, "app_password_not_found"), 409: ("owner_required",)},
    )
    add(
        *("DELETE", f"{ONE}/sessions", "revokePersonSessions", routes.revoke_sessions),
        *("Sign a person out everywhere", _GONE, _RESET),
    )
