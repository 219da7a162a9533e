"""Members of a tenant, invitations to it, and accepting one (rest-api §5.20; decisions E).

Whoever accepts shows the code that was mailed. Somebody who is signed in accepts for themselves; somebody who is not
here yet chooses a password, and signs in with it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.accounts.audit import Actor, actor_of
from postroom.accounts.invitations import Invitation
from postroom.accounts.models import MemberRole
from postroom.accounts.permissions import Level, Permission
from postroom.accounts.rates import Bucket as RateBucket
from postroom.accounts.service.members import Inviter, Members
from postroom.accounts.service.throttle import client_network
from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import Call, CurrentCall
from postroom.servers.http.exchange import exchange_of
from postroom.servers.http.rest import member_schemas as schemas
from postroom.servers.http.rest.auth import client_of
from postroom.servers.http.rest.once import IdempotencyKey, Record, once
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import NOT_IDENTITY, Bucket, Idempotency, Reach, RouteTable, Rule

MEMBERS: Final = "/v1/tenants/{tenant_id}/members"
INVITATIONS: Final = "/v1/tenants/{tenant_id}/invitations"


class _Routes:
    def __init__(self, services: HttpServices, members: Members) -> None:
        self._services = services
        self._members = members

    async def list(self, tenant_id: fields.TenantId, call: CurrentCall) -> Response:
        return JsonAnswer(schemas.roll(await self._members.roll(call.the_tenant.id)))

    async def invite(
        self,
        tenant_id: fields.TenantId,
        body: schemas.InvitationCreateRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        outside = call.principal.level in (Level.PLATFORM, Level.PARTNER)
        inviter = Inviter(_actor(call), may_give_owner=outside)

        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, made: Invitation) -> None:
                await record(conn, schemas.invitation(made))

            made = await self._members.invite(call.the_tenant.id, body.email, MemberRole(body.role), inviter, then=then)
            return 201, schemas.invitation(made)

        return await once(call, idempotency_key, work, status=201)

    async def revoke(
        self, tenant_id: fields.TenantId, invitation_id: fields.InvitationId, call: CurrentCall
    ) -> Response:
        await self._members.revoke(call.the_tenant.id, invitation_id, by=_actor(call))
        return Response(status_code=204)

    async def remove(self, tenant_id: fields.TenantId, user_id: fields.PersonId, call: CurrentCall) -> Response:
        await self._members.remove(call.the_tenant.id, user_id, by=_actor(call))
        return Response(status_code=204)

    async def accept(self, body: schemas.InvitationAcceptRequest, call: CurrentCall) -> Response:
        session = call.principal.session
        assert session is not None, "the rule lets nobody else in"
        joined = await self._members.accept(session, body.code, _actor(call), body.password)
        return JsonAnswer(schemas.joined(joined))

    async def join(self, body: schemas.InvitationJoinRequest, request: Request) -> Response:
        limit = self._services.rates.hit(RateBucket.SIGN_INS, client_network(client_of(self._services, request)))
        if not limit.allowed:
            raise PostroomError("rate_limited", retry_after=limit.reset_after)
        return JsonAnswer(schemas.joined(await self._members.join(body.code, body.display_name, body.password)), 201)


def _actor(call: Call) -> Actor:
    return actor_of(call.principal, exchange_of(call.request.scope).request_id)


_COMMON: Final[Mapping[str, Any]] = {"tag": "Members", "reach": Reach.TENANT_PATH, "levels": NOT_IDENTITY}
_READ: Final[Mapping[str, Any]] = {
    **_COMMON,
    "permissions": frozenset({Permission.MEMBERS_READ}),
    "bucket": Bucket.API,
    "idempotency": Idempotency.NONE,
}
_MANAGE: Final[Mapping[str, Any]] = {**_READ, "permissions": frozenset({Permission.MEMBERS_MANAGE})}
_OWN: Final[Mapping[str, Any]] = {
    "tag": "Members",
    "permissions": frozenset(),
    "levels": frozenset(),
    "idempotency": Idempotency.NONE,
    "body": True,
}


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if there are members here."""
    if services.members is None:
        return
    routes = _Routes(services, services.members)
    tenant = "tenant_not_found"
    table.add(
        Rule("GET", MEMBERS, "listMembers", errors={404: (tenant,)}, **_READ),
        routes.list,
        summary="Members of a tenant, and who is invited",
        answers={200: schemas.MemberList},
    )
    table.add(
        Rule(
            *("POST", INVITATIONS, "createInvitation"),
            body=True,
            errors={402: ("billing_limit",), 404: (tenant,), 429: ("daily_cap_reached",)},
            **{**_MANAGE, "bucket": Bucket.PARTNER, "idempotency": Idempotency.OPTIONAL},
        ),
        routes.invite,
        summary="Invite somebody by mail, or once more",
        answers={201: schemas.Invitation},
    )
    table.add(
        Rule(
            *("DELETE", f"{INVITATIONS}/{{invitation_id}}", "revokeInvitation"),
            errors={404: (tenant, "invitation_not_found")},
            **_MANAGE,
        ),
        routes.revoke,
        summary="Take an invitation back",
        answers={204: None},
    )
    table.add(
        Rule(
            *("DELETE", f"{MEMBERS}/{{user_id}}", "removeMember"),
            errors={404: (tenant, "member_not_found"), 409: ("owner_required",)},
            **_MANAGE,
        ),
        routes.remove,
        summary="Take a member out of the tenant; mail stays",
        answers={204: None},
    )
    if services.account is not None:
        _register_codes(table, routes)


def _register_codes(table: RouteTable, routes: _Routes) -> None:
    """Whoever joins signs in here."""
    missing = {404: ("invitation_not_found",)}
    table.add(
        Rule(
            *("POST", "/v1/account/invitations/accept", "acceptInvitation"),
            reach=Reach.PERSON,
            bucket=Bucket.SESSION,
            errors=missing,
            **_OWN,
        ),
        routes.accept,
        summary="Accept an invitation that was sent to one's own address",
        answers={200: schemas.JoinedTenant},
    )
    table.add(
        Rule(
            *("POST", "/v1/auth/invitation", "joinByInvitation"),
            reach=Reach.PUBLIC,
            bucket=Bucket.NONE,
            errors={
                **missing,
                403: ("tenant_suspended",),
                409: ("address_taken",),
                429: ("rate_limited",),
                503: ("unavailable",),
            },
            **_OWN,
        ),
        routes.join,
        summary="Accept an invitation, and choose a password to sign in with",
        answers={201: schemas.JoinedTenant},
    )
