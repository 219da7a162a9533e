"""`Idempotency-Key` of routes that make what belongs to no tenant (rest-api §2.5): the answer is recorded in the
transaction that makes the thing, so that neither is there without the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.responses import Response

from postroom.accounts import idempotency
from postroom.accounts.permissions import Level
from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.bodies import JsonRequest
from postroom.servers.http.call import Call
from postroom.servers.http.rest.queue import DEPLOYMENT
from postroom.servers.http.rest.shapes import Json

CREATED: Final = 201

Record = Callable[[Connection, Json], Awaitable[None]]
"""Records the answer, inside the transaction that makes the thing."""
Make = Callable[[Record], Awaitable[Json]]
ReadAgain = Callable[[str], Awaitable[Json]]


async def created(call: Call, key: str | None, make: Make, *, read_again: ReadAgain) -> Response:
    """The answer of `make`, which is done once for a key of the caller. One that is too long to keep is read again, by
    its id.

    Raises `invalid_idempotency_key`, `idempotency_conflict`, `request_in_progress`, and what `make` raises: then
    nothing was made, and the key is free for another request.
    """
    if key is None:
        return JsonAnswer(await make(_unrecorded), CREATED)
    database, clock = call.services.database, call.services.clock
    assert isinstance(call.request, JsonRequest)
    method, path = call.rule.method, call.request.url.path
    request = idempotency.Request(
        slot=idempotency.Slot(_scope(call), call.principal.public_id, idempotency.check_key(key)),
        method=method,
        path=path,
        fingerprint=idempotency.fingerprint(method, path, call.request.parsed),
    )
    async with database.transaction() as conn:
        begun = await idempotency.begin(conn, clock, request)
    if isinstance(begun, idempotency.Replay):
        body = begun.body
        if isinstance(body, dict) and "$ref" in body:
            body = await read_again(body["$ref"]["id"])
        return JsonAnswer(body, begun.status, {"Idempotent-Replayed": "true"})

    async def record(conn: Connection, answer: Json) -> None:
        await idempotency.complete(conn, begun, CREATED, answer, reference={"id": answer["id"]})

    try:
        return JsonAnswer(await make(record), CREATED)
    except PostroomError:
        async with database.transaction() as conn:
            await idempotency.abandon(conn, begun)
        raise


def _scope(call: Call) -> str:
    """Of a partner's keys the partner, so that the answers go with it (J12)."""
    principal = call.principal
    if principal.level is Level.PARTNER and principal.partner_public_id is not None:
        return principal.partner_public_id
    return DEPLOYMENT


async def _unrecorded(conn: Connection, answer: Json) -> None:
    """Nobody will ask for it again."""
