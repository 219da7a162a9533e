"""API keys as text: their form, their MAC, and what may be minted by whom (security-privacy A3.1, A3.4, A3.5; B11).
Pure.

`pmk_{live|test}_{lookup}_{secret}`: 12 and 52 characters of lower-case Crockford base 32, 60 and 256 random bits. The
database holds the HMAC-SHA-256 of the whole string under the deployment's pepper.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from postroom.accounts.models import Mode, Principal
from postroom.accounts.permissions import (
    MAY_GRANT,
    MAY_HOLD,
    OFFERED_LEVELS,
    OWNER_ONLY,
    Level,
    Permission,
    including_implied,
)
from postroom.accounts.text import check_name, invalid
from postroom.base.errors import PostroomError

LOOKUP_LENGTH: Final = 12
SECRET_LENGTH: Final = 52
MAX_ACTIVE_PER_TENANT: Final = 100
MAX_NAME: Final = 128

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_FORM: Final = re.compile(r"pmk_(live|test)_([0-9a-hjkmnp-tv-z]{12})_[0-9a-hjkmnp-tv-z]{52}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    """A well-formed key, as it was presented. Its text is a secret: never log it."""

    mode: Mode
    lookup: str
    text: str

    def __repr__(self) -> str:
        return "Token(…)"


def parse(text: str) -> Token | None:
    """The parts of a well-formed key, or None. Constant in anything but the form."""
    match = _FORM.fullmatch(text)
    return Token(Mode(match[1]), match[2], text) if match else None


def draw(mode: Mode, random: Callable[[int], bytes], lookup: str | None = None) -> Token:
    """A new key; with the given `lookup` when an existing one gets a new secret."""
    if lookup is None:
        lookup = _base32(random(8), LOOKUP_LENGTH)
    return Token(mode, lookup, f"pmk_{mode}_{lookup}_{_base32(random(33), SECRET_LENGTH)}")


def mac(pepper: bytes, token: str) -> bytes:
    """What is stored of a key (B11)."""
    return hmac.new(pepper, token.encode("ascii"), hashlib.sha256).digest()


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key to be minted: scope by database keys, permissions by their names as they came."""

    name: str
    level: Level
    permissions: tuple[str, ...]
    tenant_id: int | None = None
    identity_id: int | None = None
    expires_at: datetime | None = None


def check_shape(new: NewKey, now: datetime) -> None:
    """Steps 1 of A3.5: raises `invalid_request` unless the scope is exactly that of the level."""
    wanted = {Level.PLATFORM: (False, False), Level.TENANT: (True, False), Level.IDENTITY: (True, True)}
    if new.level not in OFFERED_LEVELS:
        raise invalid("level", "is not offered")
    if (new.tenant_id is not None, new.identity_id is not None) != wanted[new.level]:
        raise invalid("level", "needs exactly the scope of the level")
    check_name("name", new.name, MAX_NAME)
    if new.expires_at is not None and new.expires_at <= now:
        raise invalid("expires_at", "must be in the future")


def check_permissions(level: Level, names: Iterable[str]) -> frozenset[Permission]:
    """Step 2 of A3.5: the permissions, if the level can hold every one of them; else `invalid_request` with a
    `reason`.
    """
    wanted = frozenset(names)
    known = {permission.value: permission for permission in Permission}
    if not wanted or not wanted <= known.keys():
        raise invalid("permissions", "must be a non-empty list of known permissions")
    permissions = frozenset(known[name] for name in wanted)
    if not permissions <= MAY_HOLD[level]:
        raise PostroomError("invalid_request", details={"reason": "permission_not_allowed_for_level"})
    # Nobody is recorded behind a key so far, so no owner stands behind one either.
    if level is Level.TENANT and permissions & OWNER_ONLY:
        raise PostroomError("invalid_request", details={"reason": "permission_owner_only"})
    return permissions


def check_reach(caller: Principal, new: NewKey, permissions: frozenset[Permission]) -> None:
    """Step 3 of A3.5 (SEC-2): raises `key_scope_exceeded` for a key wider than the caller in level, scope or
    permissions.
    """
    if new.level.rank > caller.level.rank or not _covers(caller, new.tenant_id, new.identity_id):
        raise PostroomError("key_scope_exceeded")
    if not grantable(caller, permissions):
        raise PostroomError("key_scope_exceeded")


def grantable(caller: Principal, permissions: frozenset[Permission]) -> bool:
    """Whether the caller holds every permission, or may give it without holding it."""
    return permissions <= including_implied(caller.permissions) | MAY_GRANT[caller.level]


def _covers(caller: Principal, tenant_id: int | None, identity_id: int | None) -> bool:
    if caller.level is Level.PLATFORM:
        return True
    if tenant_id is None or caller.tenant_id != tenant_id:
        return False
    return caller.level is Level.TENANT or (identity_id is not None and caller.identity_id == identity_id)


def _base32(data: bytes, length: int) -> str:
    number = int.from_bytes(data, "big")
    return "".join(_ALPHABET[number >> 5 * at & 31] for at in range(length))
