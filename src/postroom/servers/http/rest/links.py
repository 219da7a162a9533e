"""Signed links to files that were too large for their message (rest-api §5.22; outbound §6.8). The token is the key."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import WithJsonSchema
from starlette.responses import Response, StreamingResponse

from postroom.accounts.signing_keys import SigningKeys
from postroom.base.errors import PostroomError
from postroom.mailbox import linked_files
from postroom.outbound.file_links import opened
from postroom.servers.http.rest.content import download, open_stream
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Idempotency, Reach, RouteTable, Rule

SAFE_TYPES: Final = frozenset(
    {
        *("application/pdf", "application/zip", "application/gzip", "text/plain"),
        *("image/png", "image/jpeg", "image/gif", "image/webp", "image/heic", "image/tiff"),
    }
)
"""What a browser is told that it gets; everything else is bytes."""
_HEADERS: Final = {
    "cache-control": "private, no-store",
    "cross-origin-resource-policy": "same-origin",
}
"""Beside those of every answer, which has a Referrer-Policy already."""


# The token's own form is looked at with everything else that may be wrong with it.
Token = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]


class _Routes:
    def __init__(self, services: HttpServices, keys: SigningKeys) -> None:
        self._services = services
        self._keys = keys

    async def open(self, token: Token) -> Response:
        """Whatever is wrong with a token, and whatever is gone, is answered alike."""
        services = self._services
        link = await opened(self._keys, services.clock, token)
        if link is None:
            raise PostroomError("attachment_not_found")
        async with services.database.acquire() as conn:
            file = await linked_files.find(conn, link.tenant, link.identity, link.message, link.attachment)
        if file is None:
            raise PostroomError("attachment_not_found")
        try:
            stream = await open_stream(services.blobs, file.key, link.message, 0, None)
        except PostroomError:
            raise PostroomError("attachment_not_found") from None
        kind = file.sniffed_type if file.sniffed_type in SAFE_TYPES else "application/octet-stream"
        headers = download(file.filename) | _HEADERS | {"content-length": str(file.size), "content-type": kind}
        return StreamingResponse(stream, headers=headers)


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operation, if the keys are at hand."""
    if services.signing_keys is None:
        return
    public: dict[str, Any] = {"permissions": frozenset(), "levels": frozenset(), "bucket": Bucket.NONE}
    table.add(
        Rule(
            "GET",
            "/v1/links/{token}",
            "getSignedLink",
            tag="Links and hooks",
            reach=Reach.PUBLIC,
            idempotency=Idempotency.NONE,
            errors={404: ("attachment_not_found", "export_not_found"), 503: ("unavailable",)},
            **public,
        ),
        _Routes(services, services.signing_keys).open,
        summary="A file that was too large for its message",
        answers={200: None},
        contents={200: "*/*"},
        headers=("Content-Disposition", "X-Content-Type-Options", "Content-Security-Policy", "Cache-Control"),
    )
