"""Whether a webhook is one of the server's: Standard Webhooks v1.

    from postroom_client import webhooks

    webhooks.verify(secret, request.headers, request.body)

The body is the bytes that came, read by nothing before.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Final

TOLERANCE: Final = 300.0
"""Seconds by which clocks may differ."""


class InvalidWebhook(Exception):
    """The request is not one of the server's, or not one of now. `code` is one of `no_matching_signature`,
    `timestamp_out_of_tolerance`, `malformed_secret`, `missing_header`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def verify(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> str:
    """The event's id, if the request was signed with the secret and is not too old, nor from the future. The same id
    comes again when it is sent again. Raises InvalidWebhook. Names of headers may be in any case.
    """
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise InvalidWebhook("malformed_secret")
    lower = {name.lower(): value for name, value in headers.items()}
    event, stamp, signatures = (lower.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not event or not signatures or not (stamp.isascii() and stamp.isdecimal() and len(stamp) < 16):
        raise InvalidWebhook("missing_header")
    if abs((time.time() if now is None else now) - int(stamp)) > tolerance:
        raise InvalidWebhook("timestamp_out_of_tolerance")
    mac = hmac.new(key, f"{event}.{stamp}.".encode() + body, hashlib.sha256).digest()
    wanted, found = b"v1," + base64.b64encode(mac), False
    for one in signatures.split(" "):
        found |= hmac.compare_digest(one.encode(), wanted)
    if not found:
        raise InvalidWebhook("no_matching_signature")
    return event
