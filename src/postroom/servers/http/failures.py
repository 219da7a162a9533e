"""Failures as HTTP answers (FR-API-2, events-webhooks-errors §16–17): one envelope for all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from postroom.base.errors import PostroomError
from postroom.blobs import StorageError, StorageFull
from postroom.db import errors as db_errors

MAX_REPORTED: Final = 20
"""Violations that one answer lists."""

MAX_MESSAGE: Final = 300
RETRY_SECONDS: Final = 1.0
"""`Retry-After` of a passing failure of the database or of the store."""

_PLACES: Final = frozenset({"body", "query", "path", "header"})


def invalid(path: str, message: str) -> PostroomError:
    """`invalid_request` about one value."""
    return PostroomError("invalid_request", details={"errors": [{"path": path, "message": message}]})


def describe(error: Exception) -> PostroomError | None:
    """The error to tell the caller, or None for what is a fault of ours and gets `internal_error`."""
    match error:
        case PostroomError():
            return error
        case RequestValidationError():
            return violations(error.errors())
        case HTTPException():
            return _of_http(error)
        case StorageFull():
            return PostroomError("unavailable", details={"reason": "storage_full"}, retry_after=RETRY_SECONDS)
        case StorageError():
            return PostroomError("unavailable", retry_after=RETRY_SECONDS)
    if db_errors.is_disk_full(error):
        return PostroomError("unavailable", details={"reason": "storage_full"}, retry_after=RETRY_SECONDS)
    if db_errors.is_transient(error):
        return PostroomError("unavailable", retry_after=RETRY_SECONDS)
    return None


def _of_http(error: HTTPException) -> PostroomError | None:
    match error.status_code:
        case 404:
            return PostroomError("route_not_found")
        case 405:
            return PostroomError("method_not_allowed")
        case 413:
            return PostroomError("payload_too_large")
        case 400 | 422:
            return invalid("", "could not be read")
    return None


_BRANCH: Final = re.compile(r"(?:function-|constrained-)[^\n]*|[a-z-]+\[[^\n]*|[A-Z][a-z]+(?:[A-Z][a-z]+)+")


def violations(errors: Iterable[Mapping[str, Any]]) -> PostroomError:
    """`invalid_request` from what pydantic found; values are never repeated, they may be content."""
    listed = [{"path": _path(error["loc"]), "message": _message(error)} for error in islice(errors, MAX_REPORTED)]
    return PostroomError("invalid_request", details={"errors": listed})


def _path(location: Sequence[object]) -> str:
    # Which branch of a union was tried is ours to know.
    parts = [text for part in location if not _BRANCH.fullmatch(text := str(part)[:64])]
    if len(parts) > 1 and parts[0] in _PLACES:
        parts = parts[1:]
    return ".".join(parts)[:256].encode("utf-8", "replace").decode()


def _message(error: Mapping[str, Any]) -> str:
    text = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    prefix = "should be " if str(error["msg"]).startswith("Input should be ") else ""
    return _cut(prefix + text).encode("utf-8", "replace").decode()


def _cut(text: str) -> str:
    """At the end of a word, and so that one sees it."""
    if len(text) <= MAX_MESSAGE:
        return text
    whole, space, _ = text[: MAX_MESSAGE - 1].rpartition(" ")
    return f"{whole} …" if space else text[: MAX_MESSAGE - 1] + "…"


def headers_of(error: PostroomError) -> list[tuple[bytes, bytes]]:
    """`Retry-After`, with `RateLimit-Reset` on `rate_limited` (rest-api §2.8); the challenge of a 401 (RFC 6750 §3)."""
    headers: list[tuple[bytes, bytes]] = []
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.retry_after is not None:
        seconds = str(max(1, math.ceil(error.retry_after))).encode()
        headers.append((b"retry-after", seconds))
        if error.code == "rate_limited":
            headers.append((b"ratelimit-reset", seconds))
    return headers


def body_of(error: PostroomError, request_id: str) -> bytes:
    return orjson.dumps(error.envelope(request_id))
