"""Signatures of webhooks: Standard Webhooks v1, symmetric (events-webhooks-errors §7; FR-WH-2).

HMAC-SHA256 (RFC 2104) over `{webhook-id}.{webhook-timestamp}.{raw body}`, in padded base64 (RFC 4648 §4).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

SECRET_BYTES: Final = 32
PREFIX: Final = "whsec_"
TOLERANCE_SECONDS: Final = 300
_VERSION: Final = "v1,"


class Mismatch(StrEnum):
    """Why a request is not one of ours, or none that counts now."""

    SIGNATURE = "no_matching_signature"
    TIMESTAMP = "timestamp_out_of_tolerance"
    SECRET = "malformed_secret"
    HEADER = "missing_header"


def secret_text(secret: bytes) -> str:
    """As it is shown."""
    return PREFIX + base64.b64encode(secret).decode()


def secret_bytes(text: str) -> bytes:
    """The key behind the text, whose prefix may be missing. Raises ValueError."""
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("not a webhook secret") from error
    if not secret:
        raise ValueError("not a webhook secret")
    return secret


def signature(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """One signature, with its version."""
    mac = hmac.new(secret, b"%s.%d." % (message_id.encode(), timestamp) + body, hashlib.sha256)
    return _VERSION + base64.b64encode(mac.digest()).decode()


def headers(secrets: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """What is sent beside the body; a signature with each secret, the newest first. `timestamp` in Unix seconds."""
    return {
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signature(secret, message_id, timestamp, body) for secret in secrets),
    }


def verify(
    secret: str,
    *,
    message_id: str | None,
    timestamp: str | None,
    signatures: str | None,
    body: bytes,
    now: float,
    tolerance: float = TOLERANCE_SECONDS,
) -> Mismatch | None:
    """What is wrong with a request, None if nothing is. Every signature is compared, and in constant time."""
    try:
        key = secret_bytes(secret)
    except ValueError:
        return Mismatch.SECRET
    if not message_id or not timestamp or not signatures:
        return Mismatch.HEADER
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 15):
        return Mismatch.HEADER
    if abs(now - int(timestamp)) > tolerance:
        return Mismatch.TIMESTAMP
    right = signature(key, message_id, int(timestamp), body).encode()
    found = False
    for one in signatures.split(" "):
        found |= hmac.compare_digest(one.encode(), right)
    return None if found else Mismatch.SIGNATURE
