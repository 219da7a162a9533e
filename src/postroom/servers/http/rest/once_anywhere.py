"""Running a request with an `Idempotency-Key` once (rest-api §2.5): the answer is recorded in the transaction of what
it tells of, so that whoever comes again after a crash finds both or neither.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from postroom.accounts import idempotency
from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import Call
from postroom.servers.http.rest.queue import DEPLOYMENT
from postroom.servers.http.rest.shapes import Json

Record = Callable[[Connection, Json, int | None, int | None], Awaitable[None]]
"""Called with the answer, and the keys of the tenant and the identity that it speaks of, in the transaction of the
change.
"""
Work = Callable[[Record], Awaitable[Json]]


async def once(call: Call, key: str | None, status: int, work: Work, *, body: Any, tenant: str | None) -> Response:
    """The answer of `work`, or the one that is recorded for `key`, without secrets.

    `tenant` is the public id of the tenant that the request names. Raises `invalid_idempotency_key`,
    `idempotency_conflict`, `request_in_progress`, and whatever `work` raises, which leaves the key free.
    """

    async def unrecorded(conn: Connection, answer: Json, tenant_id: int | None, identity_id: int | None) -> None:
        pass

    if key is None:
        return JsonAnswer(await work(unrecorded), status)
    principal, database = call.principal, call.services.database
    method, path = call.rule.method, call.request.url.path
    scope = tenant or principal.tenant_public_id or principal.partner_public_id or DEPLOYMENT
    request = idempotency.Request(
        slot=idempotency.Slot(scope, principal.public_id, idempotency.check_key(key)),
        method=method,
        path=path,
        fingerprint=idempotency.fingerprint(method, path, body),
        tenant_id=principal.tenant_id,
        identity_id=principal.identity_id,
    )
    async with database.transaction() as conn:
        begun = await idempotency.begin(conn, call.services.clock, request)
    if isinstance(begun, idempotency.Replay):
        return JsonAnswer(begun.body, begun.status, {"Idempotent-Replayed": "true"})
    claim = begun

    async def recorded(conn: Connection, answer: Json, tenant_id: int | None, identity_id: int | None) -> None:
        await idempotency.complete(
            conn, claim, status, answer, reference=None, tenant_id=tenant_id, identity_id=identity_id
        )

    try:
        answer = await work(recorded)
    except PostroomError:
        # A refusal changed nothing: the key is free for a corrected request.
        async with database.transaction() as conn:
            await idempotency.abandon(conn, claim)
        raise
    return JsonAnswer(answer, status)
