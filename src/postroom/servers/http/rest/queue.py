"""The operator's queue: deliveries of all tenants, what became of each attempt, and what may be done (decisions,
section E; mail-server C1, C2, C3). Addresses and the receivers' replies, never what is in the mail.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Annotated, Any, Final

from fastapi import Query
from pydantic import Field, WithJsonSchema
from starlette.responses import Response

from postroom.accounts import idempotency
from postroom.accounts.permissions import Level, Permission
from postroom.base.errors import PostroomError
from postroom.events.catalogue import timestamp
from postroom.outbound.models import QueueState
from postroom.outbound.queue import BYTES_GONE, NOT_FOUND, MailQueue, QueueItem
from postroom.outbound.rules import Action
from postroom.servers import objects
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer, page
from postroom.servers.http.call import Call, CurrentCall, actor
from postroom.servers.http.guard import Guard
from postroom.servers.http.rest import queue_schemas as schemas
from postroom.servers.http.rest.once import DEPLOYMENT, IdempotencyKey
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Idempotency, Reach, RouteTable, Rule
from postroom.servers.objects import moment

MISSING: Final = "message_not_found"
REFUSED: Final = "not_cancelable"
"""Codes for a delivery that is not there, and for one whose state does not allow the action: the table has none of
their own. Words and `details` say what is meant."""
"""Scope of the keys of requests that name no tenant (rest-api §2.5)."""

_ID: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_MAX_ID: Final = 2**63 - 1
_WHY: Final = MappingProxyType(
    {
        "ended": "The delivery does not wait any more.",
        "delivering": "The delivery is under way right now.",
        "uncertain": "The mail may have been delivered, and is never sent again.",
        "sent": "The mail was sent.",
        "agent": "An agent sent this, and has to send it again itself.",
        "bounce_pending": "The sender is just being told that the delivery failed.",
    }
)
"""`details.reason` → words."""

QueueId = Annotated[str, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": _MAX_ID})]
States = Annotated[
    list[QueueState] | None, fields.CommaList, fields.Unique, Field(json_schema_extra={"uniqueItems": True})
]


class ListQueue(fields.Query):
    state: States = None
    tenant_id: fields.TenantId | None = None
    limit: fields.Limit = 25
    cursor: fields.Cursor | None = None


class _Routes:
    def __init__(self, services: HttpServices, queue: MailQueue) -> None:
        self._services = services
        self._queue = queue
        self._guard = Guard(services)

    async def list(self, query: Annotated[ListQueue, Query()], call: CurrentCall) -> Response:
        tenant = None
        if query.tenant_id is not None:
            tenant = (await self._guard.tenant(call.principal, query.tenant_id)).id
        states = None if query.state is None else sorted(query.state)
        filters = {"state": None if states is None else ",".join(states), "tenant_id": query.tenant_id}
        after = call.position(query.cursor, **filters)
        found = await self._queue.list(
            states=states, tenant=tenant, limit=query.limit + 1, after=0 if after is None else int(after[1])
        )
        shown = found[: query.limit]
        following = None
        if len(found) > len(shown):
            following = call.cursor((shown[-1].id, shown[-1].id), **filters)
        return page([delivery(one) for one in shown], following)

    async def stats(self, call: CurrentCall) -> Response:
        return JsonAnswer(objects.queue_statistics(await self._queue.statistics()))

    async def get(self, queue_id: QueueId, call: CurrentCall) -> Response:
        return await self._answer(_parsed(queue_id))

    async def retry(self, queue_id: QueueId, call: CurrentCall, idempotency_key: IdempotencyKey = None) -> Response:
        return await self._act(call, Action.RETRY, _parsed(queue_id), idempotency_key)

    async def cancel(self, queue_id: QueueId, call: CurrentCall, idempotency_key: IdempotencyKey = None) -> Response:
        return await self._act(call, Action.CANCEL, _parsed(queue_id), idempotency_key)

    async def hold(self, queue_id: QueueId, call: CurrentCall, idempotency_key: IdempotencyKey = None) -> Response:
        return await self._act(call, Action.HOLD, _parsed(queue_id), idempotency_key)

    async def release(self, queue_id: QueueId, call: CurrentCall, idempotency_key: IdempotencyKey = None) -> Response:
        return await self._act(call, Action.RELEASE, _parsed(queue_id), idempotency_key)

    async def _act(self, call: Call, action: Action, delivery_id: int, key: str | None) -> Response:
        """Once for a key, whose record names the delivery, which is read again for the answer."""
        if key is None:
            await self._do(call, action, delivery_id)
            return await self._answer(delivery_id)
        method, path = call.rule.method, call.request.url.path
        request = idempotency.Request(
            slot=idempotency.Slot(DEPLOYMENT, call.principal.public_id, idempotency.check_key(key)),
            method=method,
            path=path,
            fingerprint=idempotency.fingerprint(method, path, None),
        )
        database = self._services.database
        async with database.transaction() as conn:
            begun = await idempotency.begin(conn, self._services.clock, request)
        if isinstance(begun, idempotency.Replay):
            return await self._answer(delivery_id, {"Idempotent-Replayed": "true"})
        try:
            await self._do(call, action, delivery_id)
        except PostroomError:
            async with database.transaction() as conn:
                await idempotency.abandon(conn, begun)
            raise
        # In a transaction of its own: who is killed between the two and comes again changes nothing a second time, at
        # worst is told that the delivery does not wait any more.
        async with database.transaction() as conn:
            await idempotency.complete(conn, begun, 200, {"$ref": {"queue_id": delivery_id}}, reference=None)
        return await self._answer(delivery_id)

    async def _do(self, call: Call, action: Action, delivery_id: int) -> None:
        """Raises PostroomError when it was not done."""
        (done,) = await self._queue.act(action, [delivery_id], by=actor(call))
        if done.refused is None:
            return
        if done.refused == NOT_FOUND:
            raise _missing()
        if done.refused == BYTES_GONE:
            raise PostroomError("raw_expired")
        raise PostroomError(
            REFUSED, message=_WHY[done.refused], details={"reason": done.refused, "action": action.value}
        )

    async def _answer(self, delivery_id: int, headers: dict[str, str] | None = None) -> Response:
        found = await self._queue.get(delivery_id)
        if found is None:
            raise _missing()
        item, attempts = found
        return JsonAnswer(
            delivery(item) | {"attempts": [objects.queue_attempt(one) for one in attempts]}, headers=headers
        )


def delivery(item: QueueItem) -> Json:
    """A delivery as operators see it."""
    return {
        "id": item.id,
        "state": item.state.value,
        "status": item.status.value,
        "tenant_id": item.tenant_id,
        "identity_id": item.identity_id,
        "message_id": item.message_id,
        "sender": item.sender,
        "recipient": item.recipient,
        "route": item.route,
        "destination": item.destination,
        "size": item.size,
        "tries": item.tries,
        "reason": item.reason,
        "smtp_code": item.smtp_code,
        "enhanced_code": item.enhanced_code,
        "smtp_response": item.smtp_response,
        "remote_mx": item.remote_mx,
        "next_attempt_at": moment(item.next_attempt_at),
        "last_attempt_at": moment(item.last_attempt_at),
        "created_at": timestamp(item.created_at),
        "updated_at": timestamp(item.updated_at),
    }


def _missing() -> PostroomError:
    return PostroomError(MISSING, message="No such delivery.")


def _parsed(text: str) -> int:
    """The id of a delivery. What cannot be one is of none (rest-api §2.2)."""
    if _ID.fullmatch(text) is None or int(text) > _MAX_ID:
        raise _missing()
    return int(text)


_COMMON: Final[dict[str, Any]] = {
    "tag": "Platform",
    "permissions": frozenset({Permission.PLATFORM_OPS}),
    "levels": frozenset({Level.PLATFORM}),
    "bucket": Bucket.API,
}
_PATH: Final = "/v1/platform/queue"


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if this deployment sends."""
    if services.queue is None:
        return
    routes = _Routes(services, services.queue)
    reading = {**_COMMON, "idempotency": Idempotency.NONE}
    table.add(
        Rule(
            "GET",
            _PATH,
            "listQueue",
            reach=Reach.TENANT_FILTER,
            errors={400: ("invalid_request",), 404: ("tenant_not_found",), 410: ("cursor_expired",)},
            **reading,
        ),
        routes.list,
        summary="Deliveries of all tenants, oldest first",
        answers={200: schemas.QueueDeliveryPage},
    )
    # Before the path of a delivery, which it would match.
    table.add(
        Rule("GET", f"{_PATH}/stats", "getQueueStatistics", reach=Reach.ANY_KEY, **reading),
        routes.stats,
        summary="Deliveries by state, notices to be written, mail of today",
        answers={200: schemas.QueueStatistics},
    )
    table.add(
        Rule("GET", f"{_PATH}/{{queue_id}}", "getQueueItem", reach=Reach.RESOURCE, errors={404: (MISSING,)}, **reading),
        routes.get,
        summary="A delivery and its attempts",
        answers={200: schemas.QueueDeliveryDetail},
    )
    for action, operation, endpoint, summary in (
        (Action.RETRY, "retryQueueItem", routes.retry, "Try at once, or send anew what failed or was canceled"),
        (Action.CANCEL, "cancelQueueItem", routes.cancel, "Stop a delivery that waits"),
        (Action.HOLD, "holdQueueItem", routes.hold, "Keep a delivery from being tried"),
        (Action.RELEASE, "releaseQueueItem", routes.release, "Let a held delivery go"),
    ):
        gone = {410: ("raw_expired",)} if action is Action.RETRY else {}
        table.add(
            Rule(
                "POST",
                f"{_PATH}/{{queue_id}}/{action.value}",
                operation,
                reach=Reach.RESOURCE,
                idempotency=Idempotency.OPTIONAL,
                errors={404: (MISSING,), 409: (REFUSED,), **gone},
                **_COMMON,
            ),
            endpoint,
            summary=summary,
            answers={200: schemas.QueueDeliveryDetail},
        )
