"""Thread tokens in the sub-address of `Reply-To` (inbound §28.1–28.2; FR-OUT-6, edge rows A2, A12, D10).

A token is a filing hint: it names a thread of one identity, bound by 40 bits of an HMAC. It opens nothing.
"""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from postroom.mail import crockford
from postroom.mail.address import Address

KEY_BYTES: Final = 32
MAX_SEQ: Final = (1 << 60) - 1
MAX_LOCAL: Final = 64
"""RFC 5321 §4.5.3.1.1. 40 for the local part, 24 for `+t`, kid, sequence, dot and MAC."""

_TOKEN: Final = re.compile(rf"t([{crockford.CHARS}])([{crockford.CHARS}]{{1,12}})\.([{crockford.CHARS}]{{8}})")
_IDENTITY: Final = re.compile(r"idn_[0-9A-HJKMNP-TV-Z]{26}")
_CONTEXT: Final = b"pm-thr\x01"
_MAC_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class ThreadKey:
    """One key of the ring, under its one-character id. `verify_until` None is the key that mints."""

    kid: str
    secret: bytes = field(repr=False)
    verify_until: datetime | None = None

    def __post_init__(self) -> None:
        if len(self.kid) != 1 or self.kid not in crockford.ALPHABET or len(self.secret) != KEY_BYTES:
            raise ValueError("a thread key has an id of one character and 32 octets")


class TokenState(StrEnum):
    ABSENT = "absent"
    """No token at all: an ordinary tag, or none."""
    INVALID = "invalid"
    VALID = "valid"


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """What a tag turned out to be; `seq` and `kid` only when it is valid, `current` when the minting key made it."""

    state: TokenState
    seq: int | None = None
    kid: str | None = None
    current: bool = False


_ABSENT: Final = TokenCheck(TokenState.ABSENT)
_INVALID: Final = TokenCheck(TokenState.INVALID)


def mint(key: ThreadKey, identity_id: str, seq: int) -> str:
    """The token, without the `+`, for thread `seq` (1 to 2^60 - 1) of `identity_id` (`idn_` and its ULID).

    Raises ValueError for a sequence or an identity that is none.
    """
    if not 0 < seq <= MAX_SEQ:
        raise ValueError("a thread's sequence is from 1 to 2^60 - 1")
    return f"t{key.kid}{crockford.encode(seq)}.{_mac(key, identity_id, seq)}"


def with_token(address: Address, token: str) -> Address:
    """`address` with the token as detail of its local part, the name kept.

    ValueError beyond 64 octets (A12), and for a local part with a `+`, after which the token would not be found.
    """
    if "+" in address.local:
        raise ValueError("the address has a detail already")
    local = f"{address.local}+{token}"
    if len(local.encode("utf-8")) > MAX_LOCAL:
        raise ValueError("no room for a thread token")
    return Address(address.name, local, address.domain)


def looks_like_token(detail: str | None) -> bool:
    """Whether the detail of an envelope recipient has the form of a token, in either case."""
    return detail is not None and detail.isascii() and _TOKEN.fullmatch(detail.lower()) is not None


def kid_of(detail: str) -> str:
    """The id of the key that a detail of the form of a token names."""
    return detail[1].lower()


def verify(detail: str | None, identity_id: str, ring: Mapping[str, ThreadKey], now: datetime) -> TokenCheck:
    """Check the detail of an envelope recipient of `identity_id`; `ring` is by kid. Never raises on the detail."""
    found = None if detail is None or not detail.isascii() else _TOKEN.fullmatch(detail.lower())
    if found is None:
        return _ABSENT
    kid, digits, mac = found.groups()
    seq = crockford.decode(digits)
    key = ring.get(kid)
    if digits[0] == "0" or seq > MAX_SEQ or key is None or key.kid != kid:
        return _INVALID
    if key.verify_until is not None and key.verify_until <= now:
        return _INVALID
    if not hmac.compare_digest(_mac(key, identity_id, seq), mac):
        return _INVALID
    return TokenCheck(TokenState.VALID, seq, kid, key.verify_until is None)


def _mac(key: ThreadKey, identity_id: str, seq: int) -> str:
    if _IDENTITY.fullmatch(identity_id) is None:
        raise ValueError("no identity id")
    data = _CONTEXT + key.kid.encode("ascii") + identity_id.encode("ascii") + seq.to_bytes(8, "big")
    return crockford.of_octets(hmac.digest(key.secret, data, "sha256")[:_MAC_BYTES])
