"""Webhooks: made, listed, read, changed, tried, and told once more (rest-api §5.14; events-webhooks-errors §5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import Body, Query
from starlette.responses import Response

from postroom.accounts.permissions import Level, Permission
from postroom.db import Connection
from postroom.events.catalogue import timestamp
from postroom.events.webhooks.attempts import Filter
from postroom.events.webhooks.endpoints import Changes, Endpoints, NewEndpoint, owner_of
from postroom.events.webhooks.models import Attempt, AttemptStatus, Endpoint
from postroom.events.webhooks.replay import Replays
from postroom.events.webhooks.store import Owner
from postroom.events.webhooks.windows import ByIds, ByWindow
from postroom.servers import objects
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer, page
from postroom.servers.http.call import Call, CurrentCall, actor, moment_and_id
from postroom.servers.http.fields import NotNull
from postroom.servers.http.rest import webhook_schemas as schemas
from postroom.servers.http.rest.keys import RotateRequest
from postroom.servers.http.rest.once import DEPLOYMENT, IdempotencyKey, Place, Record, once
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import ALL_LEVELS, NOT_IDENTITY, Bucket, Idempotency, Reach, RouteTable, Rule

WEBHOOKS: Final = "/v1/webhooks"
OF_TENANT: Final = "/v1/tenants/{tenant_id}/webhooks"
WEBHOOK: Final = "/v1/webhooks/{webhook_id}"
_DAY: Final = RotateRequest()
"""What is meant when nothing is said."""


class ListWebhooks(fields.Query):
    limit: fields.Limit = 25
    cursor: Annotated[fields.Cursor | None, NotNull()] = None


class ListWebhookDeliveries(fields.Query):
    status: Annotated[schemas.DeliveryStatus | None, NotNull()] = None
    event_type: Annotated[schemas.KnownType | None, NotNull()] = None
    after: Annotated[fields.Time | None, NotNull()] = None
    limit: fields.Limit = 25
    cursor: Annotated[fields.Cursor | None, NotNull()] = None


class _Routes:
    def __init__(self, webhooks: Endpoints, replays: Replays) -> None:
        self._webhooks, self._replays = webhooks, replays

    async def create(
        self, body: schemas.WebhookCreateRequest, call: CurrentCall, idempotency_key: IdempotencyKey = None
    ) -> Response:
        return await self._create(call, owner_of(call.principal), body, idempotency_key, Place.of_caller(call))

    async def create_of_tenant(
        self,
        tenant_id: fields.TenantId,
        body: schemas.WebhookCreateRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        return await self._create(call, Owner(call.the_tenant.id), body, idempotency_key, Place.of_path(call))

    async def _create(
        self, call: Call, owner: Owner, body: schemas.WebhookCreateRequest, key: str | None, place: Place
    ) -> Response:
        new = NewEndpoint(body.url, tuple(map(str, body.events)), _tuple(body.identity_ids), body.description)

        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, made: Endpoint, secret: str) -> None:
                await record(conn, schemas.created(made, secret), tenant_id=made.tenant_id)

            made = await self._webhooks.create(call.principal, owner, new, by=actor(call), then=then)
            return 201, schemas.created(*made)

        return await once(call, key, work, status=201, place=place)

    async def list(self, query: Annotated[ListWebhooks, Query()], call: CurrentCall) -> Response:
        return await self._list(call, owner_of(call.principal), query)

    async def list_of_tenant(
        self, tenant_id: fields.TenantId, query: Annotated[ListWebhooks, Query()], call: CurrentCall
    ) -> Response:
        return await self._list(call, Owner(call.the_tenant.id), query)

    async def _list(self, call: Call, owner: Owner, query: ListWebhooks) -> Response:
        after = moment_and_id(call.position(query.cursor))
        found = await self._webhooks.page(owner, limit=query.limit + 1, after=after)
        shown, following = found[: query.limit], None
        if len(found) > len(shown):
            following = call.cursor((timestamp(shown[-1].created_at), shown[-1].public_id))
        return page([objects.webhook(one) for one in shown], following)

    async def get(self, webhook_id: fields.WebhookId, call: CurrentCall) -> Response:
        return JsonAnswer(objects.webhook(await self._webhooks.get(call.principal, webhook_id)))

    async def update(
        self, webhook_id: fields.WebhookId, body: schemas.WebhookUpdateRequest, call: CurrentCall
    ) -> Response:
        changes = Changes(
            names=frozenset(body.model_fields_set),
            url=body.url or "",
            events=tuple(map(str, body.events or ())),
            identity_ids=_tuple(body.identity_ids),
            description=body.description,
            enabled=bool(body.enabled),
        )
        return JsonAnswer(
            objects.webhook(await self._webhooks.update(call.principal, webhook_id, changes, by=actor(call)))
        )

    async def delete(self, webhook_id: fields.WebhookId, call: CurrentCall) -> Response:
        await self._webhooks.delete(call.principal, webhook_id, by=actor(call))
        return Response(status_code=204)

    async def rotate(
        self,
        webhook_id: fields.WebhookId,
        call: CurrentCall,
        body: Annotated[RotateRequest, Body()] = _DAY,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, one: Endpoint, secret: str) -> None:
                await record(conn, schemas.created(one, secret), tenant_id=one.tenant_id)

            rotated = await self._webhooks.rotate(
                call.principal, webhook_id, body.overlap_hours, by=actor(call), then=then
            )
            return 200, schemas.created(*rotated)

        return await once(call, idempotency_key, work, status=200, place=_place(call))

    async def test(
        self, webhook_id: fields.WebhookId, call: CurrentCall, idempotency_key: IdempotencyKey = None
    ) -> Response:
        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, made: Attempt) -> None:
                await record(conn, objects.delivery(made))

            made = await self._webhooks.test(call.principal, webhook_id, by=actor(call), then=then)
            return 200, objects.delivery(made)

        return await once(call, idempotency_key, work, status=200, place=_place(call))

    async def deliveries(
        self, webhook_id: fields.WebhookId, query: Annotated[ListWebhookDeliveries, Query()], call: CurrentCall
    ) -> Response:
        filters = {
            "status": query.status,
            "event_type": None if query.event_type is None else query.event_type.value,
            "after": None if query.after is None else query.after.isoformat(),
        }
        status = None if query.status is None else AttemptStatus(query.status)
        found = await self._webhooks.attempts(
            call.principal,
            webhook_id,
            Filter(status, filters["event_type"], query.after),
            limit=query.limit + 1,
            after=moment_and_id(call.position(query.cursor, **filters)),
        )
        shown, following = found[: query.limit], None
        if len(found) > len(shown):
            following = call.cursor((timestamp(shown[-1].created_at), shown[-1].public_id), **filters)
        return page([objects.delivery(one) for one in shown], following)

    async def replay(
        self,
        webhook_id: fields.WebhookId,
        body: schemas.ReplayRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        named = body.root
        asked: ByIds | ByWindow
        if isinstance(named, schemas.ReplayByIds):
            asked = ByIds(tuple(named.event_ids))
        else:
            status = None if named.status is None else AttemptStatus(named.status)
            asked = ByWindow(named.since, named.until, status)

        async def work(record: Record) -> tuple[int, Json]:
            async def then(conn: Connection, queued: int) -> None:
                await record(conn, {"queued": queued})

            queued = await self._replays.replay(call.principal, webhook_id, asked, by=actor(call), then=then)
            return 202, {"queued": queued}

        return await once(call, idempotency_key, work, status=202, place=_place(call))


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _place(call: Call) -> Place:
    """Whatever the caller is of."""
    principal = call.principal
    scope = principal.tenant_public_id or principal.partner_public_id or DEPLOYMENT
    return Place(scope, principal.tenant_id)


_READ: Final[Mapping[str, Any]] = {
    "tag": "Webhooks",
    "permissions": frozenset({Permission.WEBHOOKS_READ}),
    "levels": ALL_LEVELS,
    "bucket": Bucket.API,
    "idempotency": Idempotency.NONE,
}
_MANAGE: Final[Mapping[str, Any]] = {
    **_READ,
    "permissions": frozenset({Permission.WEBHOOKS_MANAGE}),
    "levels": NOT_IDENTITY,
}
_MAIL: Final = frozenset({Permission.MESSAGES_READ, Permission.QUARANTINE_REVIEW})
"""Needed for events that are about mail (J29)."""
_ONCE: Final[Mapping[str, Any]] = {**_MANAGE, "idempotency": Idempotency.OPTIONAL}
_MISSING: Final = {404: ("webhook_not_found",)}
_LIST: Final = {400: ("invalid_request",), 410: ("cursor_expired",)}


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if there are webhooks here."""
    if services.webhooks is None or services.replays is None:
        return
    routes = _Routes(services.webhooks, services.replays)
    full = {422: ("webhook_limit_reached",)}
    table.add(
        Rule(
            "POST",
            WEBHOOKS,
            "createPlatformWebhook",
            reach=Reach.RESOURCE,
            conditional=_MAIL,
            body=True,
            errors=full,
            **{**_ONCE, "levels": frozenset({Level.PLATFORM, Level.PARTNER})},
        ),
        routes.create,
        summary="Have events sent somewhere: of every tenant, or of a partner's; the secret is shown this once",
        answers={201: schemas.WebhookCreated},
    )
    table.add(
        Rule("GET", WEBHOOKS, "listWebhooks", reach=Reach.TENANT_FILTER, errors=_LIST, **_READ),
        routes.list,
        summary="The platform's webhooks, a partner's, or a tenant's, whoever asks, newest first",
        answers={200: schemas.WebhookPage},
    )
    table.add(
        Rule(
            "POST",
            OF_TENANT,
            "createTenantWebhook",
            reach=Reach.TENANT_PATH,
            conditional=_MAIL,
            body=True,
            errors={404: ("tenant_not_found",), **full},
            **_ONCE,
        ),
        routes.create_of_tenant,
        summary="Have events of a tenant sent somewhere; the secret is shown this once",
        answers={201: schemas.WebhookCreated},
    )
    table.add(
        Rule(
            "GET",
            OF_TENANT,
            "listTenantWebhooks",
            reach=Reach.TENANT_PATH,
            errors={404: ("tenant_not_found",), **_LIST},
            **_READ,
        ),
        routes.list_of_tenant,
        summary="Webhooks of a tenant, newest first",
        answers={200: schemas.WebhookPage},
    )
    _register_one(table, routes)


def _register_one(table: RouteTable, routes: _Routes) -> None:
    table.add(
        Rule("GET", WEBHOOK, "getWebhook", errors=_MISSING, reach=Reach.RESOURCE, **_READ),
        routes.get,
        summary="A webhook, without its secret",
        answers={200: schemas.Webhook},
    )
    table.add(
        Rule(
            "PATCH",
            WEBHOOK,
            "updateWebhook",
            conditional=_MAIL,
            body=True,
            errors=_MISSING,
            reach=Reach.RESOURCE,
            **_MANAGE,
        ),
        routes.update,
        summary="Change a webhook; another URL gets nothing until a test of it succeeds",
        answers={200: schemas.Webhook},
    )
    table.add(
        Rule("DELETE", WEBHOOK, "deleteWebhook", errors=_MISSING, reach=Reach.RESOURCE, **_MANAGE),
        routes.delete,
        summary="Delete a webhook, with what it was and was still to be sent",
        answers={204: None},
    )
    table.add(
        Rule(
            "POST",
            f"{WEBHOOK}/rotate-secret",
            "rotateWebhookSecret",
            body=True,
            body_required=False,
            errors=_MISSING,
            reach=Reach.RESOURCE,
            **_ONCE,
        ),
        routes.rotate,
        summary="Give a webhook a new secret, shown this once; for the overlap both sign",
        answers={200: schemas.WebhookCreated},
    )
    table.add(
        Rule("POST", f"{WEBHOOK}/test", "testWebhook", errors=_MISSING, reach=Reach.RESOURCE, **_ONCE),
        routes.test,
        summary="Send a test event now, once",
        answers={200: schemas.WebhookDelivery},
    )
    table.add(
        Rule(
            "GET",
            f"{WEBHOOK}/deliveries",
            "listWebhookDeliveries",
            errors={**_MISSING, **_LIST},
            reach=Reach.RESOURCE,
            **_READ,
        ),
        routes.deliveries,
        summary="Attempts to send to a webhook, newest first",
        answers={200: schemas.WebhookDeliveryPage},
    )
    table.add(
        Rule(
            "POST",
            f"{WEBHOOK}/replay",
            "replayWebhookEvents",
            conditional=_MAIL,
            body=True,
            errors=_MISSING,
            reach=Reach.RESOURCE,
            **_ONCE,
        ),
        routes.replay,
        summary="Send events again, by their ids or all of a window",
        answers={202: schemas.ReplayResponse},
    )
