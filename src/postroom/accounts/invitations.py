"""Invitations to a tenant, the codes that accept them, and what is told of members (console-billing-notifications §8).
Pure.

    base64url( i1:{kid}:{invitation}:{issue} , MAC[0..16] )

A code is made when it is mailed and stored nowhere; the row of the invitation says whether it still counts.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.accounts.models import MemberRole, TenantKey
from postroom.db import Connection

LIFE: Final = timedelta(days=7)
KEPT: Final = timedelta(days=30)
"""How long after its end an invitation that nobody accepted stays."""
MAX_MAILS_OF_TENANT: Final = 50
"""A day of UTC (W44)."""
MAX_MAILS_TO_ONE: Final = 10
MAX_MAILS_OF_PARTNER: Final = 500
"""For all tenants of a partner together."""
MAX_MAILS: Final = 10_000
"""Of the whole deployment: a fifth of what its system identity may send."""
MAC_BYTES: Final = 16
MAX_CODE: Final = 128
"""Characters; ours are shorter."""

_CODE: Final = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_PAYLOAD: Final = re.compile(rb"i1:([0-9a-z]):(inv_[0-9A-HJKMNP-TV-Z]{26}):([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Invitation:
    """One that is pending, or was just made so. `email` is in lower case."""

    tenant_id: TenantKey
    id: int
    public_id: str
    email: str = field(repr=False)
    role: MemberRole
    may_own: bool
    invited_by: str | None
    """The public id of the person who invites; None for a key and the command line."""
    issue: int
    expires_at: datetime
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Code:
    """What a code names: an invitation, and which mail about it."""

    invitation: str
    issue: int


def mint(kid: str, secret: bytes, code: Code) -> str:
    """The code as it is mailed. Raises ValueError for what is no invitation's id, or no key's."""
    payload = f"i1:{kid}:{code.invitation}:{code.issue}".encode("ascii")
    if _PAYLOAD.fullmatch(payload) is None:
        raise ValueError("a code names an invitation and its issue")
    return base64.urlsafe_b64encode(payload + _mac(secret, payload)).rstrip(b"=").decode("ascii")


def kid_of(text: str) -> str | None:
    """The id of the key that a code says it was made with; None for what is no code."""
    found = _parsed(text)
    return None if found is None else found[2].group(1).decode("ascii")


def verify(text: str, secrets: Mapping[str, bytes]) -> Code | None:
    """What the code names; None for whatever else it is. `secrets` by the keys' ids."""
    found = _parsed(text)
    if found is None:
        return None
    payload, mac, parts = found
    kid, invitation, issue = (part.decode("ascii") for part in parts.groups())
    secret = secrets.get(kid)
    if secret is None or not hmac.compare_digest(mac, _mac(secret, payload)):
        return None
    return Code(invitation, int(issue))


def _parsed(text: str) -> tuple[bytes, bytes, re.Match[bytes]] | None:
    if _CODE.fullmatch(text) is None:
        return None
    try:
        octets = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        return None
    # One spelling each: what a change of its last character leaves as it is would be another code for the same.
    if base64.urlsafe_b64encode(octets).rstrip(b"=").decode("ascii") != text:
        return None
    payload, mac = octets[:-MAC_BYTES], octets[-MAC_BYTES:]
    parts = _PAYLOAD.fullmatch(payload)
    return None if parts is None else (payload, mac, parts)


def _mac(secret: bytes, payload: bytes) -> bytes:
    return hmac.digest(secret, b"postroom-invitation-v1\0" + payload, "sha256")[:MAC_BYTES]


def hint(email: str) -> str:
    """An address as events name it, by which who knows it recognises it (events-webhooks-errors §4.5)."""
    local, _, domain = email.rpartition("@")
    return f"{local[:1]}***@{domain}"


@dataclass(frozen=True, slots=True)
class Told:
    """Something about a member of a tenant became true at a moment: an event's type and its data."""

    tenant_id: int
    kind: str
    at: datetime
    data: Mapping[str, Any]


Announce = Callable[[Connection, Told], Awaitable[None]]
"""Writes the event in the transaction that makes it true."""


async def silent(conn: Connection, told: Told) -> None:
    """Announces nothing."""


def joined(tenant_id: int, person: str, role: MemberRole, at: datetime) -> Told:
    return Told(tenant_id, "member.joined", at, {"user_id": person, "role": role.value})


def role_changed(tenant_id: int, person: str, before: MemberRole, after: MemberRole, at: datetime) -> Told:
    return Told(tenant_id, "member.role_changed", at, {"user_id": person, "from": before.value, "to": after.value})


def removed(tenant_id: int, person: str, at: datetime) -> Told:
    return Told(tenant_id, "member.removed", at, {"user_id": person})


def invited(invitation: Invitation, at: datetime) -> Told:
    data = {
        "invitation_id": invitation.public_id,
        "email_hint": hint(invitation.email),
        "role": invitation.role.value,
    }
    return Told(invitation.tenant_id, "member.invited", at, data)
