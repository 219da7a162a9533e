"""Positions in the stream of events: what a client gives back to go on where it was.

`c_` + kid + base64url(nonce ‖ ciphertext ‖ tag), AES-256-GCM under a key that is derived from a key of list cursors. It
is closed, not only signed: the place of an event among those of all tenants is nobody's business. It opens for whoever
has the same reach, with the same key or another one, for as long as no event that follows is deleted.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import struct
from collections.abc import Callable
from datetime import datetime
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from postroom.accounts.models import Principal
from postroom.base.errors import PostroomError
from postroom.base.ids import milliseconds
from postroom.servers.http.cursors import PREFIX, CursorKey, CursorKeys

TTL_MS: Final = 7 * 24 * 60 * 60 * 1000
"""As long as events are kept, whatever happens (J30)."""
MAX_CHARS: Final = 128

_DOMAIN: Final = b"postroom-stream-position-v1\0"
_NONCE: Final = 12
_BODY: Final = struct.Struct(">QQ")


def reach_of(principal: Principal) -> bytes:
    """What a position is bound to."""
    whose = (principal.partner_public_id, principal.tenant_public_id, principal.identity_public_id)
    return "/".join((principal.level.value, *(one or "-" for one in whose))).encode()


class Sealer:
    """Makes the positions of one stream."""

    def __init__(self, keys: CursorKeys, reach: bytes, random: Callable[[int], bytes] = os.urandom) -> None:
        self._kid, self._cipher = keys.current.kid, _cipher(keys.current)
        self._reach, self._random = reach, random

    def seal(self, key: int, now: datetime) -> str:
        """The position after the event of this key."""
        nonce = self._random(_NONCE)
        sealed = nonce + self._cipher.encrypt(nonce, _BODY.pack(key, milliseconds(now)), self._reach)
        return f"{PREFIX}{self._kid}{base64.urlsafe_b64encode(sealed).decode('ascii').rstrip('=')}"


def unseal(keys: CursorKeys, reach: bytes, text: str, now: datetime) -> int:
    """The key of the event before the position. Raises `invalid_request` (path `last_event_id`), `cursor_expired`."""
    opened = _opened(keys, reach, text)
    if opened is None:
        message = "is not a position of this stream"
        raise PostroomError("invalid_request", details={"errors": [{"path": "last_event_id", "message": message}]})
    key, made = opened
    if milliseconds(now) - made > TTL_MS:
        raise PostroomError("cursor_expired")
    return key


def _opened(keys: CursorKeys, reach: bytes, text: str) -> tuple[int, int] | None:
    if len(text) > MAX_CHARS or not text.isascii() or not text.startswith(PREFIX):
        return None
    for key, rest in keys.named(text[len(PREFIX) :]):
        try:
            sealed = base64.b64decode(rest + "=" * (-len(rest) % 4), altchars=b"-_", validate=True)
            body = _cipher(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], reach)
            found: tuple[int, int] = _BODY.unpack(body)
        except (binascii.Error, InvalidTag, ValueError, struct.error):
            continue
        return found
    return None


def _cipher(key: CursorKey) -> AESGCM:
    return AESGCM(hmac.digest(key.secret, _DOMAIN, "sha256"))
