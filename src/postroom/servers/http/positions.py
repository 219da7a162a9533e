"""Positions in the stream of events: what a client gives back to go on where it was.

`c_` + kid + base64url(sealed), under a key that is derived from a key of list cursors (`base.sealing.TokenSeal`). It is
closed, not only signed: the place of an event among those of all tenants is nobody's business. It opens for whoever has
the same reach, with the same key or another one.
"""

from __future__ import annotations

import base64
import binascii
import struct
from datetime import datetime
from typing import Final

from postroom.accounts.models import Principal
from postroom.base.errors import PostroomError
from postroom.base.ids import milliseconds
from postroom.base.sealing import TokenSeal, UnsealError
from postroom.servers.http.cursors import PREFIX, CursorKey, CursorKeys

DAY_MS: Final = 24 * 60 * 60 * 1000
TTL_MS: Final = 7 * DAY_MS
"""As long as events are kept, whatever happens (J30)."""
MAX_CHARS: Final = 128

_PURPOSE: Final = "stream-position"
_BODY: Final = struct.Struct(">QQ")


def reach_of(principal: Principal) -> bytes:
    """What a position is bound to."""
    whose = (principal.partner_public_id, principal.tenant_public_id, principal.identity_public_id)
    return "/".join((principal.level.value, *(one or "-" for one in whose))).encode()


class Sealer:
    """Makes the positions of one stream."""

    def __init__(self, keys: CursorKeys, reach: bytes) -> None:
        self._kid, self._seal, self._reach = keys.current.kid, _seal_of(keys.current), reach

    def seal(self, key: int, now: datetime) -> str:
        """The position after the event of this key."""
        sealed = self._seal.seal(_BODY.pack(key, milliseconds(now)), self._reach)
        return f"{PREFIX}{self._kid}{base64.urlsafe_b64encode(sealed).decode('ascii').rstrip('=')}"


def unseal(keys: CursorKeys, reach: bytes, text: str, now: datetime, *, kept_days: int | None = None) -> int:
    """The key of the event before the position. Raises `invalid_request` (path `last_event_id`), `cursor_expired`: as
    well after `kept_days`, for as many as events are kept of whom the stream is about.
    """
    opened = _opened(keys, reach, text)
    if opened is None:
        message = "is not a position of this stream"
        raise PostroomError("invalid_request", details={"errors": [{"path": "last_event_id", "message": message}]})
    key, made = opened
    life = TTL_MS if kept_days is None else min(TTL_MS, kept_days * DAY_MS)
    if milliseconds(now) - made > life:
        raise PostroomError("cursor_expired")
    return key


def _opened(keys: CursorKeys, reach: bytes, text: str) -> tuple[int, int] | None:
    if len(text) > MAX_CHARS or not text.isascii() or not text.startswith(PREFIX):
        return None
    for key, rest in keys.named(text[len(PREFIX) :]):
        try:
            sealed = base64.b64decode(rest + "=" * (-len(rest) % 4), altchars=b"-_", validate=True)
            found: tuple[int, int] = _BODY.unpack(_seal_of(key).open(sealed, reach))
        except (binascii.Error, UnsealError, struct.error):
            continue
        return found
    return None


def _seal_of(key: CursorKey) -> TokenSeal:
    return TokenSeal(key.secret, _PURPOSE)
