"""Signed return paths: which delivery a bounce is about, in the local part it comes back to (VERP; outbound §6.9, D11).

`bounces+` kid tenant `.` delivery `.` MAC: the MAC is 80 bits, the numbers are in Crockford's base 32 without leading
zeros, so that there is one spelling for each. Lower case, but honoured in any: relays may change it on the way.
"""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from postroom.mail import crockford

PREFIX: Final = "bounces+"
KEY_BYTES: Final = 32
MAX_NUMBER: Final = (1 << 63) - 1
MAX_LOCAL: Final = 53
"""Octets of the longest one; RFC 5321 §4.5.3.1.1 has room for 64."""

_C: Final = crockford.CHARS
_LOCAL: Final = re.compile(
    rf"bounces\+([{_C}])([1-9a-hjkmnp-tv-z][{_C}]{{0,12}})\.([1-9a-hjkmnp-tv-z][{_C}]{{0,12}})\.([{_C}]{{16}})"
)
_CONTEXT: Final = b"pm-bounce\x01"
_MAC_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class DeliveryRef:
    """Names a delivery, each number from 1 to 2^63 - 1."""

    tenant_id: int
    delivery_id: int

    def __post_init__(self) -> None:
        if not (0 < self.tenant_id <= MAX_NUMBER and 0 < self.delivery_id <= MAX_NUMBER):
            raise ValueError("a key of the database is from 1 to 2^63 - 1")


def mint(kid: str, secret: bytes, ref: DeliveryRef) -> str:
    """The local part for a delivery. Raises ValueError for a key that is none."""
    numbers = f"{crockford.encode(ref.tenant_id)}.{crockford.encode(ref.delivery_id)}"
    return f"{PREFIX}{kid}{numbers}.{_mac(kid, secret, ref)}"


def kid_of(local: str) -> str | None:
    """The id of the key that is said to have made a local part; None for what is no return path."""
    found = _parse(local)
    return None if found is None else found[1]


def verify(local: str, secrets: Mapping[str, bytes]) -> DeliveryRef | None:
    """The delivery that a local part names, if one of the keys (by kid) made it; else None. Never raises on it."""
    found = _parse(local)
    if found is None:
        return None
    kid, tenant, delivery, mac = found[1], crockford.decode(found[2]), crockford.decode(found[3]), found[4]
    secret = secrets.get(kid)
    if secret is None or tenant > MAX_NUMBER or delivery > MAX_NUMBER:
        return None
    ref = DeliveryRef(tenant, delivery)
    return ref if hmac.compare_digest(_mac(kid, secret, ref), mac) else None


def _parse(local: str) -> re.Match[str] | None:
    # Of characters outside ASCII some are letters of it in lower case.
    return _LOCAL.fullmatch(local.lower()) if local.isascii() else None


def _mac(kid: str, secret: bytes, ref: DeliveryRef) -> str:
    if len(kid) != 1 or kid not in crockford.ALPHABET or len(secret) != KEY_BYTES:
        raise ValueError("a key has an id of one character and 32 octets")
    numbers = ref.tenant_id.to_bytes(8, "big") + ref.delivery_id.to_bytes(8, "big")
    data = _CONTEXT + kid.encode("ascii") + numbers
    return crockford.of_octets(hmac.digest(secret, data, "sha256")[:_MAC_BYTES])
