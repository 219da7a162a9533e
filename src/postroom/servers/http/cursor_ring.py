"""The keys of list cursors as the deployment has them: signing keys of a purpose of their own (rest-api §2.4)."""

from __future__ import annotations

from typing import Protocol

from postroom.accounts.signing_keys import Purpose, SigningKeys
from postroom.servers.http.cursors import PREFIX, CursorKey, CursorKeys


class CursorSource(Protocol):
    """Where the keys come from."""

    async def keys_for(self, cursor: str | None) -> CursorKeys:
        """Those that are honoured now. A `cursor` of a key that is not among them has them looked at again. Raises
        PostroomError `unavailable`.
        """


class CursorRing:
    """From the ring of signing keys, so that the master key is nothing but a key that seals."""

    def __init__(self, keys: SigningKeys) -> None:
        self._keys = keys

    async def keys_for(self, cursor: str | None) -> CursorKeys:
        """Also raises what the database raises when the ring is read."""
        kid = cursor[len(PREFIX) : len(PREFIX) + 1] if cursor is not None and cursor.startswith(PREFIX) else None
        current, *before = await self._keys.ring(Purpose.CURSOR, kid=kid or None)
        return CursorKeys(
            CursorKey(current.kid, current.secret), tuple(CursorKey(one.kid, one.secret) for one in before)
        )
