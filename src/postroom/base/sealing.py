"""Secrets that are stored sealed under the deployment's master key (security-privacy; decisions D20).

AES-256-GCM under a key derived for one purpose (HKDF, RFC 5869). The purpose and the place, which says what row it
belongs to, are authenticated: a value that was copied to another row does not open there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_VERSION: Final = b"\x01"
_NONCE_BYTES: Final = 12


class UnsealError(Exception):
    """The value was not sealed by one of these keys for this place. The text holds nothing of it."""


class Sealer:
    """Seals and opens values of one purpose. `other_key`: values sealed under it still open (a rotation)."""

    def __init__(
        self,
        master_key: bytes,
        purpose: str,
        *,
        other_key: bytes | None = None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._random = random
        keys = [master_key] if other_key is None else [master_key, other_key]
        self._ciphers = [AESGCM(_derived(key, purpose)) for key in keys]

    def seal(self, value: bytes, place: str) -> bytes:
        """The sealed form, 29 octets longer."""
        nonce = self._random(_NONCE_BYTES)
        return _VERSION + nonce + self._ciphers[0].encrypt(nonce, value, place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """The value. Raises UnsealError."""
        if sealed[:1] == _VERSION:
            nonce, text = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
            for cipher in self._ciphers:
                try:
                    return cipher.decrypt(nonce, text, place.encode())
                except (InvalidTag, ValueError):
                    continue
        raise UnsealError("cannot be opened with the master key")


def _derived(master_key: bytes, purpose: str) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt=None, info=f"postroom-sealed-v1:{purpose}".encode()).derive(master_key)
