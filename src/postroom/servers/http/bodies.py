"""Request bodies: read with a limit while they stream, parsed once, strictly (RFC 8259)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import orjson
from starlette.requests import ClientDisconnect, Request

from postroom.base.errors import PostroomError
from postroom.servers.http.failures import invalid

MAX_BODY: Final = 7 * 1024 * 1024
"""Octets, unless messages may be larger (rest-api §2.1, outbound §6.7)."""


def max_body(max_message_bytes: int) -> int:
    """Octets that a body may have where composed messages have at most so many: attachments come as base64, and JSON
    takes its part."""
    return max(MAX_BODY, max_message_bytes * 7 // 5)


BODY_SECONDS: Final = 60.0
_MISSING: Final = object()


class JsonRequest(Request):
    """A request whose JSON body was read by the guard."""

    _parsed: Any = _MISSING
    _octets: bytes = b""

    async def load(self, limit: int = MAX_BODY, *, required: bool = True) -> None:
        """Read and parse, `limit` octets at the most; where it is not `required`, none is an empty object.

        Raises `payload_too_large`, `invalid_request`, and `timeout` when the body takes too long.
        """
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding != "identity":
            raise invalid("body", "must not be compressed (Content-Encoding)")
        self._octets = await _read(self, limit)
        if not self._octets and not required:
            self._parsed = {}
            return
        if not self._octets:
            raise invalid("body", "is required")
        media = self.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if media != "application/json" and not media.endswith("+json"):
            raise invalid("body", "must be application/json")
        try:
            self._parsed = orjson.loads(self._octets)
        except orjson.JSONDecodeError:
            raise invalid("body", "is not JSON") from None

    @property
    def parsed(self) -> Any:
        """The body as Python values."""
        return self._parsed

    async def body(self) -> bytes:
        return self._octets

    async def json(self) -> Any:
        return self._parsed


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared[:20]) > limit:
        raise PostroomError("payload_too_large")
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                size += len(piece)
                if size > limit:
                    raise PostroomError("payload_too_large")
                pieces.append(piece)
    except TimeoutError:
        raise PostroomError("timeout") from None
    except ClientDisconnect:
        raise invalid("body", "ended before it was complete") from None
    return b"".join(pieces)
