"""Passkeys: what is kept of them, and what browsers send (WebAuthn Level 3; decisions A4, C5). Pure.

What the bytes mean `webauthn.py` finds out, by a library.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

CHALLENGE_BYTES: Final = 32
"""Random ones; §13.4.3 wants 16."""
MAX_CREDENTIAL_ID: Final = 1023
"""Octets (§7.1 step 25)."""
MAX_CLIENT_DATA: Final = 4096
MAX_ATTESTATION: Final = 4096
"""Octets: without a statement they have a few hundred."""
MAX_AUTHENTICATOR_DATA: Final = 2048
MAX_SIGNATURE: Final = 1024
"""Octets; RSA with 4096 bits has 512."""
MAX_HANDLE: Final = 64
"""Octets of a user handle (§4)."""
MAX_PUBLIC_KEY: Final = 1024
MAX_TRANSPORTS: Final = 8

_UNTIL: Final = 8
_MAC: Final = 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_TRANSPORT: Final = re.compile(r"[a-z-]{1,16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class RelyingParty:
    """For whom passkeys are made: `id` is a domain, `origins` are the pages that may ask for them (§5.1.2, §13.4.9)."""

    id: str
    name: str
    origins: frozenset[str]


@dataclass(frozen=True, slots=True)
class Passkey:
    """A passkey as its person sees it."""

    id: int
    public_id: str
    name: str
    transports: tuple[str, ...]
    backup_eligible: bool
    backed_up: bool
    created_at: datetime
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class Credential:
    """What a person's authenticator made (§7.1). `public_key` is COSE, `sign_count` 0 where it does not count."""

    credential_id: bytes
    public_key: bytes = field(repr=False)
    sign_count: int
    backup_eligible: bool
    backed_up: bool


@dataclass(frozen=True, slots=True)
class Registration:
    """The browser's answer to `navigator.credentials.create`."""

    credential_id: bytes
    client_data: bytes = field(repr=False)
    attestation: bytes = field(repr=False)
    transports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assertion:
    """The browser's answer to `navigator.credentials.get`."""

    credential_id: bytes
    client_data: bytes = field(repr=False)
    authenticator_data: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    user_handle: bytes | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """What a right assertion says of its authenticator."""

    sign_count: int
    backed_up: bool


class CeremonyError(Exception):
    """The answer is not one to what was asked, or not by whom it says. The words are ours, and quote nothing."""


def challenge_key(pepper: bytes) -> bytes:
    """What challenges to sign in are sealed with: every process of the deployment has the pepper."""
    return hmac.digest(pepper, b"postroom-passkey-challenge-v1", "sha256")


def sign_in_challenge(key: bytes, random: bytes, until: datetime) -> bytes:
    """A challenge that nobody keeps: random ‖ until when it counts, in milliseconds ‖ MAC. `random` has
    CHALLENGE_BYTES.
    """
    said = random + ((until - _EPOCH) // _MILLISECOND).to_bytes(_UNTIL, "big")
    return said + hmac.digest(key, said, "sha256")[:_MAC]


def counts_until(key: bytes, challenge: bytes) -> datetime | None:
    """Until when a challenge to sign in counts; None for what we did not make."""
    said, shown = challenge[:-_MAC], challenge[-_MAC:]
    if len(challenge) != CHALLENGE_BYTES + _UNTIL + _MAC:
        return None
    if not hmac.compare_digest(shown, hmac.digest(key, said, "sha256")[:_MAC]):
        return None
    return _EPOCH + int.from_bytes(said[CHALLENGE_BYTES:], "big") * _MILLISECOND


def challenge_hash(challenge: bytes) -> bytes:
    """What a challenge is found by."""
    return hashlib.sha256(challenge).digest()


def user_handle(person_public_id: str) -> bytes:
    """What authenticators know a person by: their id, which says nothing about them (§14.6.1)."""
    return person_public_id.encode("ascii")


def counts_on(stored: int, shown: int) -> bool:
    """Whether the counter of signatures went on, or is not used (§7.2 step 22): if not, there is a second one."""
    return shown > stored or stored == shown == 0


def known_transports(said: Sequence[str]) -> tuple[str, ...]:
    """What a browser says of how to reach the authenticator, as far as it are words, each once."""
    return tuple(dict.fromkeys(word for word in said if _TRANSPORT.fullmatch(word)))[:MAX_TRANSPORTS]


def to_text(data: bytes) -> str:
    """base64url without padding (§3)."""
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def from_text(text: str) -> bytes:
    """Octets of base64url without padding, which its schema has looked at. Raises ValueError for what cannot end so."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise ValueError("must be base64url without padding") from error
    if to_text(data) != text:
        raise ValueError("must be base64url without padding")
    return data
