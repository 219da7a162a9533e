"""Decisions about identities and recipients (inbound §2, §4, §7; mail-server A6). Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import orjson

from postroom.accounts.models import Mode, TenantStatus
from postroom.accounts.service.people import check_display_name
from postroom.accounts.text import check_text, invalid
from postroom.base.errors import PostroomError
from postroom.directory.models import (
    AddressStatus,
    Identity,
    IdentityChanges,
    IdentityKind,
    IdentityStatus,
    NewIdentity,
    Refusal,
)
from postroom.smtp.address import MAX_LOCAL, AddressSyntaxError, domain_to_ascii, parse_path

MAX_ADDRESSES: Final = 20
MAX_METADATA: Final = 16
MAX_METADATA_BYTES: Final = 512
MAX_SIGNATURE: Final = 64 * 1024
MAX_TAG: Final = 255
SUSPENSION_GRACE: Final = timedelta(days=5)
"""How long mail to a suspended tenant is put off before it is refused (FR-TEN-3)."""
DEFAULT_RETIRE_DAYS: Final = 90
MAX_RETIRE_DAYS: Final = 365

READY_DOMAIN: Final = frozenset(("healthy", "degraded"))
"""States of a domain in which its addresses receive."""

# Unknown, pending, erased and deleted look the same, text included (A6).
UNKNOWN: Final = Refusal(550, "5.1.1", "No such user here")
RETIRED: Final = Refusal(550, "5.1.6", "This address is no longer in use")
DISABLED_DOMAIN: Final = Refusal(550, "5.1.2", "Relay access denied")
FOREIGN: Final = Refusal(550, "5.7.1", "Relaying denied")
SUSPENDED: Final = Refusal(450, "4.2.1", "Mailbox temporarily unavailable")
SUSPENDED_FOR_LONG: Final = Refusal(550, "5.2.1", "Mailbox disabled")
FULL: Final = Refusal(452, "4.2.2", "Mailbox full")
UNAVAILABLE: Final = Refusal(451, "4.3.0", "Temporary local problem, please try again later")
GUARDED: Final = Refusal(451, "4.7.1", "Too many unknown recipients, please try again later")
MALFORMED: Final = Refusal(501, "5.5.4", "Bad recipient address syntax")


_FIELDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "display_name": ("display_name",),
        "purpose": ("purpose",),
        "owner": ("owner_name", "owner_email"),
        "signature": ("signature_text", "signature_html"),
        "metadata": ("metadata",),
        "send_policy": ("send_policy",),
    }
)
MAX_CHAIN: Final = 5
"""Aliases that may lead to one another (A6)."""
BROKEN_CHAIN: Final = Refusal(451, "4.3.0", "Temporary local problem with this address")


@dataclass(frozen=True, slots=True)
class DomainRow:
    """What is asked of a domain when an address is made on it."""

    id: int
    public_id: str
    name: str
    status: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class Step:
    """An alias on the way of a message, as the database has it."""

    public_id: str
    address: str
    target: str
    target_base: str
    tenant_id: int
    tenant_public_id: str
    mode: Mode
    tenant_status: TenantStatus
    suspended_at: datetime | None
    domain_enabled: bool

    @property
    def detail(self) -> str:
        """The detail of the target."""
        return split_detail(self.target.rpartition("@")[0])[1]


@dataclass(frozen=True, slots=True)
class Route:
    """What the database knows of an address: whether its domain is ours and enabled; who has it, at the end of the
    aliases in `steps`. `leaves`: they end at a domain that is not ours.
    """

    is_local: bool
    domain_enabled: bool
    entry: Entry | None = None
    steps: tuple[Step, ...] = ()
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """What the database says of an address that exists; how it is answered depends on the time of the question."""

    tenant_id: int
    identity_id: int
    tenant_public_id: str
    identity_public_id: str
    kind: IdentityKind
    domain_enabled: bool
    address_status: AddressStatus
    identity_status: IdentityStatus
    tenant_status: TenantStatus
    suspended_at: datetime | None
    is_full: bool
    own_addresses: tuple[str, ...]


def decide(entry: Entry, now: datetime) -> Refusal | None:
    """None to accept; the rows of inbound §7.5 in their order, first match. A paused identity receives (A7)."""
    table = (
        (not entry.domain_enabled, DISABLED_DOMAIN),
        (entry.address_status is AddressStatus.PENDING, UNKNOWN),
        (entry.address_status is AddressStatus.RETIRED, RETIRED),
        (entry.identity_status in (IdentityStatus.DELETING, IdentityStatus.DELETED), UNKNOWN),
    )
    refusal = next((refusal for matches, refusal in table if matches), None)
    refusal = refusal or of_tenant(entry.tenant_status, entry.suspended_at, now)
    return refusal or (FULL if entry.is_full else None)


def of_tenant(status: TenantStatus, suspended_at: datetime | None, now: datetime) -> Refusal | None:
    """What the state of its tenant means for an address (FR-TEN-3)."""
    if status.is_gone:
        return UNKNOWN
    if status is TenantStatus.SUSPENDED:
        return SUSPENDED if now - (suspended_at or now) < SUSPENSION_GRACE else SUSPENDED_FOR_LONG
    return None


def answer(route: Route, now: datetime) -> Refusal | None:
    """None when mail to the address is taken, here or to be passed on (mail-server A6)."""
    if not route.is_local:
        return FOREIGN
    if not route.domain_enabled:
        return DISABLED_DOMAIN
    for step in route.steps[:MAX_CHAIN]:
        refusal = None if step.domain_enabled else DISABLED_DOMAIN
        refusal = refusal or of_tenant(step.tenant_status, step.suspended_at, now)
        if refusal is not None:
            return refusal
    if len(route.steps) > MAX_CHAIN:
        return BROKEN_CHAIN
    if route.entry is None:
        return None if route.leaves else UNKNOWN
    return decide(route.entry, now)


def parse_recipient(text: str, platform_domain: str) -> tuple[str, str] | None:
    """Local part and domain (lower-case A-labels) of a recipient, as inbound §7.1 reads it; None for bad syntax (A6).

    Angle brackets and a final dot are dropped, the last `@` counts; `postmaster` alone is the platform domain's (D28).
    """
    text = text.strip(" ").removeprefix("<").removesuffix(">")
    local, at, domain = text.rpartition("@")
    if not at:
        return ("postmaster", platform_domain) if text.lower() == "postmaster" else None
    try:
        domain = domain_to_ascii(domain.removesuffix("."))
    except AddressSyntaxError:
        return None
    return (local, domain) if local else None


def is_plausible(local: str) -> bool:
    """Whether a local part without detail can be one of ours at all: printable ASCII, 64 octets (A3)."""
    return local.isascii() and local.isprintable() and 0 < len(local) <= MAX_LOCAL


def receives(domain: DomainRow) -> bool:
    """Whether addresses of a domain take mail (inbound §4)."""
    return domain.enabled and domain.status in READY_DOMAIN


def split_detail(local: str) -> tuple[str, str]:
    """The lower-case local part without its detail, and the detail: what follows the first `+` (A2)."""
    base, _, detail = local.partition("+")
    return base.lower(), detail


def send_refusal(identity: Identity) -> PostroomError | None:
    """Why an identity may not send, as far as the directory knows (A7, A8, FR-IDN-2, FR-IDN-3); None if it may."""
    if identity.status in (IdentityStatus.DELETING, IdentityStatus.DELETED):
        return PostroomError("identity_not_found")
    if identity.status is IdentityStatus.PAUSED:
        reason = None if identity.pause_reason is None else identity.pause_reason.value
        return PostroomError("identity_paused", details={"reason": reason})
    if not identity.owner_name or not identity.owner_email:
        return PostroomError("identity_owner_required")
    return None


def fingerprint(new: NewIdentity) -> str:
    """SHA-256 of the request as canonical JSON: what a repeated `client_id` is compared by (FR-IDN-1)."""
    plain: dict[str, Any] = {field.name: getattr(new, field.name) for field in fields(new)}
    plain["send_policy"], plain["metadata"] = dict(new.send_policy), dict(new.metadata)
    return hashlib.sha256(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)).hexdigest()


def check_identity(new: NewIdentity) -> None:
    """Raises for what is out of form but for the username, which has rules of its own (inbound §2.2)."""
    check_display_name(new.display_name)
    check_owner_email(new.owner_email)
    check_metadata(new.metadata)
    for path in ("purpose", "client_id", "owner_name"):
        check_text(path, getattr(new, path), MAX_TAG)
    for path in ("signature_text", "signature_html"):
        check_text(path, getattr(new, path), MAX_SIGNATURE)


def check_changes(changes: IdentityChanges) -> None:
    """As `check_identity`, of what is to be changed."""
    if changes.display_name is not None:
        check_display_name(changes.display_name)
    check_owner_email(changes.owner_email)
    if changes.metadata is not None:
        check_metadata(changes.metadata)
    for path in ("purpose", "owner_name"):
        check_text(path, getattr(changes, path), MAX_TAG)
    for path in ("signature_text", "signature_html"):
        check_text(path, getattr(changes, path), MAX_SIGNATURE)
    if changes.status not in (None, IdentityStatus.ACTIVE, IdentityStatus.PAUSED):
        raise invalid("status", "must be active or paused")


def changed_fields(before: Identity, after: Identity) -> tuple[str, ...]:
    """The fields that differ, by the names of the API (inbound §2.1): owner and signature are one each."""
    return tuple(
        name for name, parts in _FIELDS.items() if any(getattr(before, part) != getattr(after, part) for part in parts)
    )


def check_owner_email(address: str | None) -> None:
    """Raises `address_invalid` unless the address of the accountable human is one of RFC 5321."""
    if not address:
        return
    local, at, domain = address.rpartition("@")
    try:
        if not at or parse_path(f"<{local}@{domain_to_ascii(domain)}>".encode()).address is None:
            raise AddressSyntaxError("no address")
    except (AddressSyntaxError, UnicodeEncodeError):
        raise PostroomError("address_invalid", details={"field": "owner.email"}) from None


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raises `invalid_request` beyond 16 keys of 512 bytes each."""
    if len(metadata) > MAX_METADATA:
        raise invalid("metadata", f"may have {MAX_METADATA} keys")
    for key, value in metadata.items():
        check_text("metadata", key, MAX_METADATA_BYTES)
        check_text("metadata", value, MAX_METADATA_BYTES)
