"""Rotation of the deployment's own signing keys (rest-api §5, Platform; security-privacy A6.2)."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query
from pydantic import WithJsonSchema
from starlette.responses import Response

from postroom.accounts import idempotency
from postroom.accounts.permissions import Level, Permission
from postroom.accounts.signing_keys import Purpose, Rotation, SigningKeys, noted
from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.servers import objects
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import CurrentCall, actor
from postroom.servers.http.failures import invalid
from postroom.servers.http.rest import key_schemas as schemas
from postroom.servers.http.rest.once import DEPLOYMENT, IdempotencyKey
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Idempotency, Reach, RouteTable, Rule

WEB_BOT_AUTH: Final = "web_bot_auth"
WEB_BOT_AUTH_OFF: Final = "web_bot_auth_disabled"
PURPOSES: Final = [*(one.value for one in Purpose), WEB_BOT_AUTH]
PurposeInPath = Annotated[str, WithJsonSchema({"type": "string", "enum": PURPOSES})]
PATH: Final = "/v1/platform/keys/{purpose}/rotate"


class RotateQuery(fields.Query):
    revoke_previous: bool = False


class _Routes:
    def __init__(self, services: HttpServices, keys: SigningKeys) -> None:
        self._services = services
        self._keys = keys

    async def rotate(
        self,
        purpose: PurposeInPath,
        query: Annotated[RotateQuery, Query()],
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        if purpose == WEB_BOT_AUTH:
            raise PostroomError(WEB_BOT_AUTH_OFF)
        if purpose not in tuple(Purpose):
            raise invalid("purpose", f"must be one of {', '.join(Purpose)}")
        wanted, revoke = Purpose(purpose), query.revoke_previous
        note = noted(self._services.ids, self._services.clock, actor(call))
        if idempotency_key is None:
            return JsonAnswer(
                objects.signing_key_rotation(await self._keys.rotate(wanted, revoke_previous=revoke, also=note))
            )
        method, path = call.rule.method, call.request.url.path
        request = idempotency.Request(
            slot=idempotency.Slot(DEPLOYMENT, call.principal.public_id, idempotency.check_key(idempotency_key)),
            method=method,
            path=path,
            fingerprint=idempotency.fingerprint(method, path, {"revoke_previous": revoke}),
        )
        async with self._services.database.transaction() as conn:
            begun = await idempotency.begin(conn, self._services.clock, request)
        if isinstance(begun, idempotency.Replay):
            return JsonAnswer(begun.body, begun.status, {"Idempotent-Replayed": "true"})
        claim = begun

        async def record(conn: Connection, done: Rotation) -> None:
            await note(conn, done)
            # With the rotation: whoever comes again after a crash rotates once.
            await idempotency.complete(conn, claim, 200, objects.signing_key_rotation(done), reference=None)

        try:
            done = await self._keys.rotate(wanted, revoke_previous=revoke, also=record)
        except PostroomError:
            async with self._services.database.transaction() as conn:
                await idempotency.abandon(conn, claim)
            raise
        return JsonAnswer(objects.signing_key_rotation(done))


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operation, if the keys are at hand."""
    if services.signing_keys is None:
        return
    table.add(
        Rule(
            "POST",
            PATH,
            "rotateSigningKey",
            tag="Platform",
            reach=Reach.RESOURCE,
            permissions=frozenset({Permission.PLATFORM_OPS}),
            levels=frozenset({Level.PLATFORM}),
            bucket=Bucket.API,
            idempotency=Idempotency.OPTIONAL,
            errors={400: ("invalid_request",), 422: (WEB_BOT_AUTH_OFF,)},
        ),
        _Routes(services, services.signing_keys).rotate,
        summary="Make the next signing key of a purpose",
        answers={200: schemas.SigningKeyRotation},
    )
