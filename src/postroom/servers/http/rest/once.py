"""`Idempotency-Key` of routes that send no mail: what they did is recorded in the transaction that did it (rest-api
§2.5), so that neither is there without the other, whenever the process ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from fastapi import Header
from starlette.responses import Response

from postroom.accounts import idempotency
from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.bodies import JsonRequest
from postroom.servers.http.call import Call
from postroom.servers.http.rest.shapes import Json

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        json_schema_extra={"minLength": 1, "maxLength": 255, "pattern": "^[\\x20-\\x7E]{1,255}$"},
    ),
]


class Record(Protocol):
    """To be called with the answer inside the transaction that changes something. `tenant_id`, `identity_id`: whose
    data the answer is, where that was not known before, so that it goes with them.
    """

    async def __call__(
        self, conn: Connection, answer: Json, *, tenant_id: int | None = None, identity_id: int | None = None
    ) -> None: ...


DEPLOYMENT: Final = "deployment"
"""The scope of what belongs to no tenant."""

Work = Callable[[Record], Awaitable[tuple[int, Json]]]
Reference = Callable[[Json], Json]
ReadAgain = Callable[[Json], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class Place:
    """Within what a key means the same request, and whose data the answer is as far as is known beforehand."""

    scope: str
    tenant_id: int | None = None
    identity_id: int | None = None

    @classmethod
    def of_path(cls, call: Call) -> Place:
        """The tenant that the path is of."""
        if call.identity is not None:
            return cls(call.identity.tenant_public_id, call.identity.tenant_id, call.identity.id)
        return cls(call.the_tenant.public_id, call.the_tenant.id)

    @classmethod
    def of_caller(cls, call: Call) -> Place:
        """Of what belongs to no tenant: of a partner's keys the partner, so that the answers go with it (J12)."""
        return cls(call.principal.partner_public_id or DEPLOYMENT)


async def once(
    call: Call,
    key: str | None,
    work: Work,
    *,
    status: int,
    place: Place | None = None,
    reference: Reference | None = None,
    read_again: ReadAgain | None = None,
) -> Response:
    """The answer of `work`, which is done once for a key of the calling key in a place, by default that of the path.

    An answer that is too long to be kept is kept as its `reference`, by which `read_again` makes it anew. `status` is
    that of the answer that `work` records. Raises `invalid_idempotency_key`, `idempotency_conflict`,
    `request_in_progress`, and what `work` raises; then nothing was changed, and the key is free for another request.
    """
    if key is None:
        made, shape = await work(_unrecorded)
        return JsonAnswer(shape, made)
    database, clock = call.services.database, call.services.clock
    async with database.transaction() as conn:
        begun = await idempotency.begin(conn, clock, _request(call, place or Place.of_path(call), key))
    if isinstance(begun, idempotency.Replay):
        kept = begun.body
        if read_again is not None and isinstance(kept, dict) and "$ref" in kept:
            kept = await read_again(kept["$ref"])
        return JsonAnswer(kept, begun.status, {"Idempotent-Replayed": "true"})
    recorded = False

    async def record(
        conn: Connection, answer: Json, *, tenant_id: int | None = None, identity_id: int | None = None
    ) -> None:
        nonlocal recorded
        await _complete(conn, begun, status, answer, reference, tenant_id, identity_id)
        recorded = True

    try:
        made, shape = await work(record)
    except PostroomError:
        async with database.transaction() as conn:
            await idempotency.abandon(conn, begun)
        raise
    if not recorded:  # it was done before, by another way than this key
        async with database.transaction() as conn:
            await _complete(conn, begun, made, shape, reference)
    return JsonAnswer(shape, made)


async def _unrecorded(
    conn: Connection, answer: Json, *, tenant_id: int | None = None, identity_id: int | None = None
) -> None:
    """Nobody will ask for it again."""


async def _complete(
    conn: Connection,
    claim: idempotency.Claim,
    status: int,
    answer: Json,
    reference: Reference | None,
    tenant_id: int | None = None,
    identity_id: int | None = None,
) -> None:
    named = None if reference is None else reference(answer)
    await idempotency.complete(
        conn, claim, status, answer, reference=named, tenant_id=tenant_id, identity_id=identity_id
    )


def _request(call: Call, place: Place, key: str) -> idempotency.Request:
    assert isinstance(call.request, JsonRequest)
    method, path = call.rule.method, call.request.url.path
    return idempotency.Request(
        slot=idempotency.Slot(place.scope, call.principal.public_id, idempotency.check_key(key)),
        method=method,
        path=path,
        fingerprint=idempotency.fingerprint(method, path, call.request.parsed if call.rule.body else None),
        tenant_id=place.tenant_id,
        identity_id=place.identity_id,
    )
