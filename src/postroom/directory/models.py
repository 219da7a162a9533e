"""What other departments see of identities and addresses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NewType

from postroom.accounts.models import Mode
from postroom.db import Connection

IdentityKey = NewType("IdentityKey", int)
"""Database key of an identity, and of its mailbox (A3); never leaves the program."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class IdentityKind(StrEnum):
    AGENT = "agent"
    PERSON = "person"


class IdentityStatus(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DELETING = "deleting"
    DELETED = "deleted"


class PauseReason(StrEnum):
    MANUAL = "manual"
    ABUSE_THRESHOLD = "abuse_threshold"
    TENANT_SUSPENDED = "tenant_suspended"


class AddressRole(StrEnum):
    PRIMARY = "primary"
    ALIAS = "alias"


class AddressStatus(StrEnum):
    PENDING = "pending"
    ACTIVE = "active"
    RETIRING = "retiring"
    RETIRED = "retired"

    @property
    def receives(self) -> bool:
        """Whether mail to an address of this status is taken (FR-ADR-3)."""
        return self in (AddressStatus.ACTIVE, AddressStatus.RETIRING)


@dataclass(frozen=True, slots=True)
class HostedAddress:
    """An address of an identity. `is_platform` marks its one permanent address on the platform domain (A14)."""

    id: int
    public_id: str
    address: str
    domain_id: int
    domain: str
    domain_public_id: str
    is_platform: bool
    role: AddressRole
    status: AddressStatus
    retire_at: datetime | None
    retired_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody with a mailbox: an agent or a person (A3)."""

    id: IdentityKey
    public_id: str
    tenant_id: int
    tenant_public_id: str
    kind: IdentityKind
    username: str
    display_name: str
    purpose: str | None
    client_id: str | None
    owner_name: str | None
    owner_email: str | None
    signature_text: str | None
    signature_html: str | None
    status: IdentityStatus
    pause_reason: PauseReason | None
    send_policy: Mapping[str, Any]
    metadata: Mapping[str, str]
    is_system: bool
    created_at: datetime
    updated_at: datetime
    addresses: tuple[HostedAddress, ...]

    @property
    def primary(self) -> HostedAddress:
        """The address that new threads are written from."""
        return next(address for address in self.addresses if address.role is AddressRole.PRIMARY)


@dataclass(frozen=True, slots=True)
class NewIdentity:
    """An identity to be made. `domain` is the public id of a domain of the tenant for the primary address.

    `signature_html` is stored as it comes: the caller has sanitised it.
    """

    username: str
    display_name: str
    kind: IdentityKind = IdentityKind.AGENT
    purpose: str | None = None
    client_id: str | None = None
    owner_name: str | None = None
    owner_email: str | None = None
    signature_text: str | None = None
    signature_html: str | None = None
    domain: str | None = None
    send_policy: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    metadata: Mapping[str, str] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class IdentityChanges:
    """What a PATCH sets; None leaves a field as it is, an empty text clears one that may be empty. Of `send_policy`
    what is given is set and the rest stays; `metadata` is replaced whole. `status` is active or paused.
    """

    display_name: str | None = None
    purpose: str | None = None
    owner_name: str | None = None
    owner_email: str | None = None
    signature_text: str | None = None
    signature_html: str | None = None
    metadata: Mapping[str, str] | None = None
    send_policy: Mapping[str, Any] | None = None
    status: IdentityStatus | None = None


@dataclass(frozen=True, slots=True)
class NewMailbox:
    """What making the mailbox of a new identity needs to know. The mailbox has the identity's key."""

    tenant_id: int
    mailbox_id: int
    tenant_public_id: str
    identity_public_id: str
    kind: IdentityKind
    is_system: bool
    now: datetime


MailboxFactory = Callable[[Connection, NewMailbox], Awaitable[None]]
"""Writes the rows of a mailbox inside the transaction that makes its identity."""


MailboxClosing = Callable[[Connection, int, int], Awaitable[None]]
"""Lets the mailbox of a tenant (its keys) take nothing more, from the end of the transaction that deletes its identity.
"""


class Fact(StrEnum):
    """What happened to an identity or an address; the names of the published events."""

    IDENTITY_CREATED = "identity.created"
    IDENTITY_UPDATED = "identity.updated"
    IDENTITY_PAUSED = "identity.paused"
    IDENTITY_RESUMED = "identity.resumed"
    ADDRESS_ADDED = "identity.address_added"
    ADDRESS_ACTIVATED = "identity.address_activated"
    ADDRESS_PROMOTED = "identity.address_promoted"
    ADDRESS_RETIRED = "identity.address_retired"


@dataclass(frozen=True, slots=True)
class Announcement:
    """A fact to be put into the outbox inside the transaction that makes it true. `address` is the one it is about."""

    fact: Fact
    identity: Identity
    at: datetime
    address: HostedAddress | None = None
    previous_primary: HostedAddress | None = None
    changed: tuple[str, ...] = ()


Announce = Callable[[Connection, Announcement], Awaitable[None]]
"""Writes an event inside the caller's transaction."""


Changed = Callable[[str], None]
"""Told after a commit what `Directory.invalidate` is to forget, in every process. Must not block."""


@dataclass(frozen=True, slots=True)
class Recipient:
    """A local mailbox that takes mail for an address.

    `address` is what was asked for, normalised, detail included; `base` is without `+detail`; `detail` is a candidate
    for a thread token and selects nothing (A2). `role` says that the mail is the deployment's role mail (A4).
    `own_addresses` are all addresses that the mailbox receives at. `via` are the aliases that led to it, the one that
    was written to first; `base` is then the mailbox's own address at their end.
    """

    tenant_id: int
    mailbox_id: int
    tenant_public_id: str
    identity_public_id: str
    address: str
    base: str
    detail: str
    kind: IdentityKind
    own_addresses: tuple[str, ...]
    role: bool = False
    via: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Alias:
    """An address without a mailbox, whose mail goes on to `target`: a whole address, perhaps with a detail."""

    id: int
    public_id: str
    tenant_id: int
    tenant_public_id: str
    address: str
    domain: str
    domain_public_id: str
    target: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Forward:
    """Where mail to an alias leaves this deployment for (A6): to `target`, in the name of the tenant of `alias`, the
    last of the aliases on the way. `written` is the one that was written to, without its detail.
    """

    tenant_id: int
    tenant_public_id: str
    mode: Mode
    alias: str
    written: str
    target: str

    @property
    def domain(self) -> str:
        """The domain of the alias, from which the mail goes on."""
        return self.alias.rpartition("@")[2]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An SMTP answer (RFC 5321 §4.2, RFC 3463): reply code, enhanced status code, text."""

    code: int
    enhanced: str
    text: str

    @property
    def is_temporary(self) -> bool:
        return self.code < 500
