"""Values as they were sealed before 0.1, written down from decision 65 and not from the program."""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE = bytes(range(12))


def old_seal(master: bytes, purpose: str, place: str, value: bytes) -> bytes:
    """1, nonce, ciphertext under HKDF-SHA-256 of the master key (RFC 5869: no salt, one block)."""
    extracted = hmac.digest(bytes(32), master, hashlib.sha256)
    derived = hmac.digest(extracted, f"postroom-sealed-v1:{purpose}".encode() + b"\x01", hashlib.sha256)
    return b"\x01" + NONCE + AESGCM(derived).encrypt(NONCE, value, place.encode())
