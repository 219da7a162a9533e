"""Tokens of links to files, which open what they name to whoever has them, until they expire (outbound §6.8;
security-privacy A7). Pure.

    base64url( l1:{kid}:att:{tenant}:{identity}:{message}:{attachment}:{expires} , MAC[0..16] )
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from postroom.mail import crockford

MAC_BYTES: Final = 16
MAX_TOKEN: Final = 512
"""Characters; ours are shorter."""

_ULID: Final = rb"[0-7][0-9A-HJKMNP-TV-Z]{25}"
_PAYLOAD: Final = re.compile(
    rb"l1:([%s]):att:(ten_%s):(idn_%s):(msg_%s):(att_%s):([1-9][0-9]{0,11})"
    % (crockford.CHARS.encode(), _ULID, _ULID, _ULID, _ULID)
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,512}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FileLink:
    """What a token names: public ids, and when it stops opening, in Unix seconds."""

    tenant: str
    identity: str
    message: str
    attachment: str
    expires: int


def mint(kid: str, secret: bytes, link: FileLink) -> str:
    """The token. Raises ValueError for what is no id, or no key's."""
    payload = f"l1:{kid}:att:{link.tenant}:{link.identity}:{link.message}:{link.attachment}:{link.expires}".encode(
        "ascii"
    )
    if _PAYLOAD.fullmatch(payload) is None:
        raise ValueError("a link names four ids and a time")
    return base64.urlsafe_b64encode(payload + _mac(secret, payload)).rstrip(b"=").decode("ascii")


def kid_of(token: str) -> str | None:
    """The id of the key that a token says it was made with; None for what is no token."""
    found = _parsed(token)
    return None if found is None else found[2].group(1).decode("ascii")


def verify(token: str, secrets: Mapping[str, bytes], now: float) -> FileLink | None:
    """What the token opens at `now` (Unix seconds); None for whatever else it is. `secrets` by the keys' ids."""
    found = _parsed(token)
    if found is None:
        return None
    payload, mac, parts = found
    kid, tenant, identity, message, attachment, expires = (part.decode("ascii") for part in parts.groups())
    secret = secrets.get(kid)
    if secret is None or not hmac.compare_digest(mac, _mac(secret, payload)) or now >= int(expires):
        return None
    return FileLink(tenant, identity, message, attachment, int(expires))


def _parsed(token: str) -> tuple[bytes, bytes, re.Match[bytes]] | None:
    if _TOKEN.fullmatch(token) is None:
        return None
    try:
        octets = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (ValueError, binascii.Error):
        return None
    # One spelling each: what a change of its last character leaves as it is would be another token for the same.
    if base64.urlsafe_b64encode(octets).rstrip(b"=").decode("ascii") != token:
        return None
    payload, mac = octets[:-MAC_BYTES], octets[-MAC_BYTES:]
    parts = _PAYLOAD.fullmatch(payload)
    return None if parts is None else (payload, mac, parts)


def _mac(secret: bytes, payload: bytes) -> bytes:
    return hmac.digest(secret, payload, "sha256")[:MAC_BYTES]
