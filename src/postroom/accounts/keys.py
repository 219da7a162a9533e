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

from postroom.accounts.models import KEYS_OF_LEVEL, MemberRole, Mode, Principal
from postroom.accounts.permissions import (
    MAY_GRANT,
    MAY_HOLD,
    MAY_MINT,
    OWNER_ONLY,
    ROOM_OF_ROLE,
    Level,
    Permission,
    including_implied,
)
from postroom.accounts.text import check_name, invalid
from postroom.base.errors import PostroomError

LOOKUP_LENGTH: Final = 12
SECRET_LENGTH: Final = 52
MAX_ACTIVE_PER_TENANT: Final = 100
MAX_ACTIVE_PER_PARTNER: Final = 10
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
    """A key to be minted: scope by database keys, permissions by their names as they came.

    `person` is the public id of who stands behind it, for those who may say so: the command line (A3.7). Keys made by
    keys inherit.
    """

    name: str
    level: Level
    permissions: tuple[str, ...]
    tenant_id: int | None = None
    identity_id: int | None = None
    expires_at: datetime | None = None
    partner_id: int | None = None
    person: str | None = None


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A key that somebody outside asks for: scope by public ids."""

    name: str
    level: Level
    permissions: tuple[str, ...]
    tenant: str | None = None
    identity: str | None = None
    partner: str | None = None
    expires_at: datetime | None = None
    person: str | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a new key inherits: the key that made it, and the person behind that (FR-KEY-5)."""

    key: str | None = None
    person: str | None = None
    role: MemberRole | None = None


NOBODY: Final = Lineage()


def check_shape(new: NewKey | KeyRequest, now: datetime) -> None:
    """Step 1 of A3.5: raises `invalid_request` unless the scope is exactly that of the level."""
    if isinstance(new, KeyRequest):
        scope: tuple[str | int | None, ...] = (new.partner, new.tenant, new.identity)
    else:
        scope = (new.partner_id, new.tenant_id, new.identity_id)
    named = zip(("partner_id", "tenant_id", "identity_id"), scope, strict=True)
    for (path, given), wanted in zip(named, KEYS_OF_LEVEL[new.level], strict=True):
        if (given is not None) != wanted:
            what = "is required for" if wanted else "does not go with"
            raise invalid(path, f"{what} level {new.level.value}")
    check_name("name", new.name, MAX_NAME)
    if new.expires_at is not None and new.expires_at <= now:
        raise invalid("expires_at", "must be in the future")


def check_permissions(level: Level, names: Iterable[str], role: MemberRole | None = None) -> frozenset[Permission]:
    """Step 2 of A3.5: the permissions, if the level can hold every one of them; else `invalid_request` with a
    `reason`. `role` is that of the person behind the key to be.
    """
    wanted = frozenset(names)
    known = {permission.value: permission for permission in Permission}
    if not wanted or not wanted <= known.keys():
        raise invalid("permissions", "must be a non-empty list of known permissions")
    permissions = frozenset(known[name] for name in wanted)
    if not permissions <= MAY_HOLD[level]:
        raise PostroomError("invalid_request", details={"reason": "permission_not_allowed_for_level"})
    if level is Level.TENANT and permissions & OWNER_ONLY and role is not MemberRole.OWNER:
        raise PostroomError("invalid_request", details={"reason": "permission_owner_only"})
    return permissions


def check_reach(
    caller: Principal, new: NewKey, permissions: frozenset[Permission], *, is_partners: bool = False
) -> None:
    """Step 3 of A3.5 (SEC-2): raises `key_scope_exceeded` for a key wider than the caller in level, scope or
    permissions. `is_partners` says whether the new key's tenant is one of the caller's, who is a partner.
    """
    if new.level not in MAY_MINT[caller.level] or not _covers(caller, new, is_partners):
        raise PostroomError("key_scope_exceeded")
    if not permissions <= grantable(caller):
        raise PostroomError("key_scope_exceeded")


def check_role(role: MemberRole, permissions: frozenset[Permission]) -> None:
    """Raises `key_scope_exceeded` for permissions that the person behind a new key lacks (A3.7)."""
    if not permissions <= ROOM_OF_ROLE[role]:
        raise PostroomError("key_scope_exceeded", message="The person behind the key may not do all of that.")


def grantable(caller: Principal) -> frozenset[Permission]:
    """What the caller may give: what it holds, and what it may give without holding it."""
    return including_implied(caller.permissions) | MAY_GRANT[caller.level]


def granted_without_holding(caller: Principal, permissions: frozenset[Permission]) -> list[str]:
    """Those of `permissions` that the caller gives by exception, for the audit (FR-KEY-1)."""
    return sorted(permissions - including_implied(caller.permissions))


def _covers(caller: Principal, new: NewKey, is_partners: bool) -> bool:
    match caller.level:
        case Level.PLATFORM:
            return True
        case Level.PARTNER:
            return is_partners
        case Level.TENANT:
            return new.tenant_id is not None and new.tenant_id == caller.tenant_id
    wanted = (new.tenant_id, new.identity_id)
    return None not in wanted and wanted == (caller.tenant_id, caller.identity_id)


def _base32(data: bytes, length: int) -> str:
    number = int.from_bytes(data, "big")
    return "".join(_ALPHABET[number >> 5 * at & 31] for at in range(length))
