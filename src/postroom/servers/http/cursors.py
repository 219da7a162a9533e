"""List cursors (rest-api §2.4): opaque, signed, bound to the list, its filters and the calling key, good for 24 hours.

`c_` + kid + base64url(payload ‖ tag). The payload is compact JSON; the tag the first 16 bytes of HMAC-SHA-256 over a
domain-separation prefix and the payload. Pure: keys and the time are arguments.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from postroom.base.errors import PostroomError
from postroom.base.ids import milliseconds

PREFIX: Final = "c_"
TTL_MS: Final = 24 * 60 * 60 * 1000
MAX_CHARS: Final = 4096
"""The longest place in a list is the path of a folder, 1,024 octets."""

_VERSION: Final = 1
_TAG_BYTES: Final = 16
_DOMAIN: Final = b"postroom-list-cursor-v1\0"
_KID: Final = re.compile(r"[a-z0-9]{1,16}")
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")

Position = tuple[str | int, str | int]
"""Where a page ended: the sort value and the id of its last row."""


@dataclass(frozen=True, slots=True)
class CursorKey:
    """One signing key. `kid` is 1 to 16 characters of `a-z0-9`; `secret` at least 32 bytes."""

    kid: str
    secret: bytes

    def __post_init__(self) -> None:
        if _KID.fullmatch(self.kid) is None or len(self.secret) < 32:
            raise ValueError("a cursor key has a short kid and a secret of at least 32 bytes")

    def __repr__(self) -> str:
        return f"CursorKey({self.kid!r})"


@dataclass(frozen=True, slots=True)
class CursorKeys:
    """The key that signs, and those rotated out within the last day, which still verify."""

    current: CursorKey
    previous: tuple[CursorKey, ...] = ()

    async def keys_for(self, cursor: str | None) -> CursorKeys:
        """These, whatever is asked for."""
        return self

    def named(self, text: str) -> Iterable[tuple[CursorKey, str]]:
        """Every key whose kid begins `text`, with what follows it."""
        for key in (self.current, *self.previous):
            if text.startswith(key.kid):
                yield key, text[len(key.kid) :]


@dataclass(frozen=True, slots=True)
class CursorScope:
    """What a cursor is bound to: the operation and a digest of path, filters and calling key."""

    operation: str
    digest: str


def scope_of(operation: str, path: Mapping[str, str], filters: Mapping[str, object], key_id: str) -> CursorScope:
    """The binding of one list request. `filters` are the query parameters but limit and cursor."""
    given = sorted((name, str(value)) for name, value in filters.items() if value is not None)
    material = orjson.dumps([sorted(path.items()), given, key_id])
    return CursorScope(operation, hashlib.sha256(material).hexdigest()[:32])


def seal(keys: CursorKeys, scope: CursorScope, position: Position, now: datetime) -> str:
    """The cursor of the page that begins after `position`."""
    payload = orjson.dumps(
        {"v": _VERSION, "r": scope.operation, "f": scope.digest, "k": list(position), "t": milliseconds(now)}
    )
    text = base64.urlsafe_b64encode(payload + _tag(keys.current, payload)).decode("ascii").rstrip("=")
    return f"{PREFIX}{keys.current.kid}{text}"


def unseal(keys: CursorKeys, scope: CursorScope, cursor: str, now: datetime) -> Position:
    """The position in a cursor that `seal` made. Raises `invalid_request` (path `cursor`) or `cursor_expired`."""
    payload = _verified(keys, cursor)
    if payload is None:
        raise _invalid()
    if (payload["v"], payload["r"], payload["f"]) != (_VERSION, scope.operation, scope.digest):
        raise _invalid()
    if milliseconds(now) - payload["t"] > TTL_MS:
        raise PostroomError("cursor_expired")
    sort_value, row = payload["k"]
    return sort_value, row


def _verified(keys: CursorKeys, cursor: str) -> dict[str, Any] | None:
    if len(cursor) > MAX_CHARS or not cursor.startswith(PREFIX):
        return None
    for key, text in keys.named(cursor[len(PREFIX) :]):
        if _BASE64URL.fullmatch(text) is None:
            continue
        try:
            sealed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except binascii.Error:
            continue
        payload, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
        if hmac.compare_digest(tag, _tag(key, payload)):
            parsed: dict[str, Any] = orjson.loads(payload)
            return parsed
    return None


def _tag(key: CursorKey, payload: bytes) -> bytes:
    return hmac.digest(key.secret, _DOMAIN + payload, "sha256")[:_TAG_BYTES]


def _invalid() -> PostroomError:
    message = "is not a cursor of this list"
    return PostroomError("invalid_request", details={"errors": [{"path": "cursor", "message": message}]})
