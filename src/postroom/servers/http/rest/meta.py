"""Meta operations: health, readiness, the OpenAPI document, the calling key (rest-api §5.1)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import orjson
from starlette.responses import Response

from postroom.accounts.permissions import Permission
from postroom.base import log as base_log
from postroom.base.errors import PostroomError
from postroom.servers.http import openapi
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import CurrentCall
from postroom.servers.http.rest.key_schemas import Me
from postroom.servers.http.rest.schemas import Health, Readiness
from postroom.servers.http.services import HttpServices, Probe
from postroom.servers.http.table import ALL_LEVELS, Bucket, Idempotency, Reach, RouteTable, Rule
from postroom.servers.objects import moment

log = base_log.get("servers.http")

PROBE_SECONDS: Final = 5.0
_PUBLIC: Final[dict[str, Any]] = {
    "reach": Reach.PUBLIC,
    "permissions": frozenset(),
    "levels": frozenset(),
    "bucket": Bucket.NONE,
    "idempotency": Idempotency.NONE,
    "tag": "Meta",
}


class _Routes:
    def __init__(self, table: RouteTable, services: HttpServices) -> None:
        self._table, self._services = table, services
        about = services.about
        self._health = orjson.dumps(
            {"status": "ok", "version": about.version, "commit": about.commit, "env": about.env.value}
        )
        self._document: bytes | None = None

    async def health(self) -> Response:
        return JsonAnswer(self._health)

    async def readiness(self) -> Response:
        services = self._services
        probes = {"database": _database(services), "blobs": services.store_ready, "migrations": services.migrated}
        results = await asyncio.gather(*(_works(name, probe) for name, probe in probes.items()))
        if not all(results):
            raise PostroomError("unavailable", retry_after=5)
        return JsonAnswer({"status": "ok", **dict.fromkeys(probes, "ok")})

    async def document(self) -> Response:
        if self._document is None:
            self._document = orjson.dumps(openapi.document(self._table))
        return JsonAnswer(self._document)

    async def me(self, call: CurrentCall) -> Response:
        key = call.principal.key
        assert key is not None, "the guard lets nobody else in"
        return JsonAnswer(
            {
                "key_id": key.public_id,
                "name": key.name,
                "level": key.level.value,
                "mode": key.mode.value,
                "partner_id": key.partner_public_id,
                "tenant_id": key.tenant_public_id,
                "identity_id": key.identity_public_id,
                "permissions": [permission.value for permission in Permission if permission in key.permissions],
                "expires_at": moment(key.expires_at),
            }
        )


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations."""
    routes = _Routes(table, services)
    not_allowed = {405: ("method_not_allowed",), 503: ("unavailable",)}
    table.add(
        Rule("GET", "/health", "getHealth", errors=not_allowed, **_PUBLIC),
        routes.health,
        summary="Whether the process serves",
        answers={200: Health},
    )
    table.add(
        Rule("GET", "/health/ready", "getReadiness", errors=not_allowed, **_PUBLIC),
        routes.readiness,
        summary="Whether the database, the blob store and the schema can be used",
        answers={200: Readiness},
    )
    table.add(
        Rule("GET", "/openapi.json", "getOpenApiDocument", **_PUBLIC),
        routes.document,
        summary="This document",
        answers={200: None},
        contents={200: "application/json"},
    )
    table.add(
        Rule(
            "GET",
            "/v1/me",
            "getMe",
            tag="Meta",
            reach=Reach.ANY_KEY,
            permissions=frozenset(),
            levels=ALL_LEVELS,
            bucket=Bucket.API,
            idempotency=Idempotency.NONE,
            errors={403: ("partner_suspended",)},
        ),
        routes.me,
        summary="The calling key",
        answers={200: Me},
    )


def _database(services: HttpServices) -> Probe:
    async def probe() -> None:
        async with services.database.acquire(timeout=PROBE_SECONDS) as conn:
            await conn.fetchval("SELECT 1", timeout=PROBE_SECONDS)

    return probe


async def _works(name: str, probe: Probe) -> bool:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            await probe()
    except Exception as error:
        log.warning("http_not_ready", probe=name, exc_info=error)
        return False
    return True
