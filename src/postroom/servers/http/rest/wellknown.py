"""`/.well-known/security.txt` (RFC 9116; rest-api §5.23, security-privacy A13)."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from postroom.base.errors import PostroomError
from postroom.servers.http.security_text import PATH
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Idempotency, Reach, RouteTable, Rule


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operation. Without a contact it answers as a path that there is not."""
    text = services.security

    async def security() -> Response:
        if text is None:
            raise PostroomError("route_not_found")
        return Response(text.render(), media_type="text/plain; charset=utf-8")

    public: dict[str, Any] = {"permissions": frozenset(), "levels": frozenset(), "bucket": Bucket.NONE}
    table.add(
        Rule(
            "GET",
            PATH,
            "getSecurityTxt",
            tag="Well-known",
            reach=Reach.PUBLIC,
            idempotency=Idempotency.NONE,
            errors={404: ("route_not_found",)},
            in_sdk=False,
            **public,
        ),
        security,
        summary="Where faults of security are reported",
        answers={200: None},
        contents={200: "text/plain"},
    )
