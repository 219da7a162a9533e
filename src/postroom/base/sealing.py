"""Secrets that are stored sealed under the deployment's master key (security-privacy A6, A7; decision D20).

A sealed value is text, `pm1.{kid}.{nonce}.{ciphertext}`: AES-256-GCM under the master key itself, whose kid it names, a
random nonce of 12 octets, the tag with the ciphertext, base64url without padding. Table, column and row are
authenticated: a value that was moved to another place does not open there.

Before 0.1 values were octets: 1, nonce, ciphertext, under a key derived for a purpose (HKDF, RFC 5869). They still
open, and are sealed anew by the sweep (`db.reseal`). That is dropped with release 0.2.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from postroom.base.sealed_columns import Before, SealedColumn

KEY_BYTES: Final = 32
KID_BYTES: Final = 8
PREFIX: Final = "pm1."
_NONCE_BYTES: Final = 12
_OLD_VERSION: Final = b"\x01"
_ENVELOPE: Final = re.compile(rb"pm1\.([0-9a-f]{16})\.([A-Za-z0-9_-]{16})\.([A-Za-z0-9_-]{22,})")


class UnsealError(Exception):
    """The value was not sealed by one of these keys for this place. The text holds nothing of it."""

    kid: str | None = None
    """Of the master key that is missing, if that is what is wrong."""


class UnknownKeyError(UnsealError):
    """The value names a master key that is in neither slot. Its `kid` may be shown; it tells nothing of the key."""

    def __init__(self, kid: str) -> None:
        super().__init__(f"sealed under the master key {kid}, which is in neither slot")
        self.kid = kid


def kid_of(key: bytes) -> str:
    """The name of a master key: the first 8 octets of its SHA-256, in hex (security-privacy A7)."""
    return hashlib.sha256(key).digest()[:KID_BYTES].hex()


def prefix_of(kid: str) -> bytes:
    """What every value that is sealed under that key begins with; 21 octets."""
    return f"{PREFIX}{kid}.".encode()


def sealed_under(sealed: bytes) -> str | None:
    """The kid that a value names; None for one of before 0.1, and for what is no sealed value."""
    found = _ENVELOPE.fullmatch(sealed)
    return None if found is None else found[1].decode()


@dataclass(frozen=True, slots=True)
class _Key:
    kid: str
    cipher: AESGCM = field(repr=False)
    material: bytes = field(repr=False)
    """For values of before 0.1."""

    @classmethod
    def of(cls, material: bytes) -> _Key:
        if len(material) != KEY_BYTES:
            raise ValueError("a master key has 32 octets")
        return cls(kid_of(material), AESGCM(material), material)


class Keyring:
    """The master keys that this process holds: the active one seals, `other` opens what is still sealed under it.

    Every service of a process has the same one, so that `replace` is heard everywhere at once.
    """

    def __init__(
        self, active: bytes, other: bytes | None = None, *, random: Callable[[int], bytes] = os.urandom
    ) -> None:
        self._random = random
        self._keys: tuple[_Key, ...] = ()
        self.replace(active, other)

    def __repr__(self) -> str:
        return f"Keyring(active={self.active!r}, kids={self.kids!r})"

    @property
    def active(self) -> str:
        """The kid of the key that seals."""
        return self._keys[0].kid

    @property
    def kids(self) -> tuple[str, ...]:
        """The kids of all that open, the active one first."""
        return tuple(key.kid for key in self._keys)

    def replace(self, active: bytes, other: bytes | None = None, *, first: str | None = None) -> None:
        """Hold these keys from now on. With `first` the one of that kid seals, if it is among them. Raises ValueError
        for no key, and for the same one twice.
        """
        keys = [_Key.of(key) for key in (active, other) if key is not None]
        if len({key.kid for key in keys}) != len(keys):
            raise ValueError("the same master key twice")
        self._keys = tuple(sorted(keys, key=lambda key: key.kid != first))

    def prefer(self, kid: str) -> None:
        """Seal with the key of that kid, if it is held."""
        self._keys = tuple(sorted(self._keys, key=lambda key: key.kid != kid))

    def seal(self, column: SealedColumn, value: bytes, *row: object) -> bytes:
        """What is stored of the value in that column of that row. Nonces are random: a key is good for 2³² values
        (NIST SP 800-38D §8.3)."""
        key = self._keys[0]
        nonce = self._random(_NONCE_BYTES)
        text = key.cipher.encrypt(nonce, value, column.place(row))
        return prefix_of(key.kid) + _encoded(nonce) + b"." + _encoded(text)

    def open(self, column: SealedColumn, sealed: bytes, *row: object) -> bytes:
        """The value that is stored in that column of that row. Raises UnsealError, UnknownKeyError."""
        place = column.place(row)
        if column.before is not None and sealed[:1] == _OLD_VERSION:
            return self._open_old(column.before, sealed, row)
        found = _ENVELOPE.fullmatch(sealed)
        if found is None:
            raise UnsealError("no sealed value")
        kid = found[1].decode()
        key = next((one for one in self._keys if one.kid == kid), None)
        if key is None:
            raise UnknownKeyError(kid)
        try:
            return key.cipher.decrypt(_decoded(found[2]), _decoded(found[3]), place)
        except (InvalidTag, ValueError):
            raise UnsealError("cannot be opened with the master key") from None

    def _open_old(self, before: Before, sealed: bytes, row: tuple[object, ...]) -> bytes:
        nonce, text = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        for key in self._keys:
            try:
                cipher = AESGCM(_derived(key.material, before.purpose))
                return cipher.decrypt(nonce, text, before.place.format(*row).encode())
            except (InvalidTag, ValueError):
                continue
        raise UnsealError("cannot be opened with the master key")


class TokenSeal:
    """Seals values that are handed out and come back, not stored: AES-SIV (RFC 5297) under a key derived from a signing
    key for one purpose. Without a nonce, so there is no end of how many may be made; the same gives the same.
    """

    def __init__(self, secret: bytes, purpose: str) -> None:
        info = f"postroom-token-v1:{purpose}".encode()
        self._cipher = AESSIV(HKDF(hashes.SHA256(), 2 * KEY_BYTES, salt=None, info=info).derive(secret))

    def seal(self, value: bytes, bound_to: bytes) -> bytes:
        """`value` must not be empty. Opens only for who says what it is bound to."""
        return self._cipher.encrypt(value, [bound_to])

    def open(self, sealed: bytes, bound_to: bytes) -> bytes:
        """Raises UnsealError."""
        try:
            return self._cipher.decrypt(sealed, [bound_to])
        except (InvalidTag, ValueError):
            raise UnsealError("was not sealed by this key for this") from None


def _derived(master_key: bytes, purpose: str) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt=None, info=f"postroom-sealed-v1:{purpose}".encode()).derive(master_key)


def _encoded(octets: bytes) -> bytes:
    return base64.urlsafe_b64encode(octets).rstrip(b"=")


def _decoded(text: bytes) -> bytes:
    """Raises ValueError, also for text that is another writing of the same octets."""
    octets = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    if _encoded(octets) != text:
        raise ValueError("not as it was written")
    return octets
