"""What other departments see of tenants, people, keys and whoever is calling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

from postroom.accounts.permissions import GrantRole, Level, Permission
from postroom.accounts.policy import StoredPolicy

TenantKey = NewType("TenantKey", int)
"""Database key of a tenant; never leaves the program."""
PersonKey = NewType("PersonKey", int)
ApiKeyKey = NewType("ApiKeyKey", int)
PartnerKey = NewType("PartnerKey", int)


class Mode(StrEnum):
    """Whether mail of a tenant can leave the deployment (FR-TEN-2)."""

    LIVE = "live"
    TEST = "test"


class TenantStatus(StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"
    ERASING = "erasing"
    ERASED = "erased"

    @property
    def is_gone(self) -> bool:
        """Whether nobody may use anything of the tenant any more (A3.2 step 7)."""
        return self in (TenantStatus.ERASING, TenantStatus.ERASED)


class BillingMode(StrEnum):
    """How a tenant is to be billed, once somebody bills."""

    METERED = "metered"
    EXEMPT = "exempt"
    DISABLED = "disabled"


class MemberRole(StrEnum):
    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


class PrincipalKind(StrEnum):
    KEY = "key"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A workspace. `address_suffix` is `''` for the default tenant alone, else it starts with a dot."""

    id: TenantKey
    public_id: str
    slug: str
    name: str
    mode: Mode
    status: TenantStatus
    suspended_at: datetime | None
    suspended_by: str | None
    address_suffix: str
    timezone: str
    created_at: datetime
    sending_paused_at: datetime | None = None
    """Since when nothing is sent for it (G12)."""
    sending_pause_reason: str | None = None
    updated_at: datetime | None = None
    partner_id: PartnerKey | None = None
    """The partner whose key made it; for good."""
    partner_public_id: str | None = None
    policy: StoredPolicy = field(default_factory=StoredPolicy)
    policy_version: int = 0
    """How often the policy was written."""

    def is_reached_by(self, principal: Principal) -> bool:
        """Whether the tenant as a whole is in reach (A3.3); False looks like "missing" to the caller. The level first:
        a tenant without a partner is nobody's who has none.
        """
        if principal.level is Level.PARTNER:
            return self.partner_id is not None and self.partner_id == principal.partner_id
        return principal.reaches_tenant(self.id)


@dataclass(frozen=True, slots=True)
class NewTenant:
    """A tenant to be made. `address_suffix` None means `.` + slug; the default tenant has none. `policy` is a document
    of what differs from the default; `billing_mode` None is what its partner, or the deployment, gives.
    """

    slug: str
    name: str
    mode: Mode = Mode.LIVE
    address_suffix: str | None = None
    is_default: bool = False
    timezone: str = "UTC"
    policy: Mapping[str, Any] | None = None
    billing_mode: BillingMode | None = None


@dataclass(frozen=True, slots=True)
class TenantChanges:
    """What is to be changed of a tenant; None is left as it is. `policy` is a document, as a patch."""

    name: str | None = None
    timezone: str | None = None
    policy: Mapping[str, Any] | None = None
    status: TenantStatus | None = None
    """Active or suspended."""
    resume_sending: bool = False


@dataclass(frozen=True, slots=True)
class Person:
    """One human (A2)."""

    id: PersonKey
    public_id: str
    contact_email: str | None
    display_name: str
    is_operator: bool
    enabled: bool
    has_password: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewPerson:
    """A person to be made; without a password they cannot sign in."""

    display_name: str
    contact_email: str | None = None
    password: str | None = None
    is_operator: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    tenant_id: TenantKey
    person: Person
    role: MemberRole
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Grant:
    """A person's right to a mailbox. `mailbox_id` is the key of its identity, too."""

    tenant_id: TenantKey
    mailbox_id: int
    identity_public_id: str
    person_id: PersonKey
    person_public_id: str
    role: GrantRole
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret, which is shown once and stored nowhere (FR-KEY-2)."""

    id: ApiKeyKey
    public_id: str
    lookup: str
    name: str
    level: Level
    mode: Mode
    tenant_id: TenantKey | None
    tenant_public_id: str | None
    identity_id: int | None
    identity_public_id: str | None
    permissions: frozenset[Permission]
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    created_at: datetime
    partner_id: PartnerKey | None = None
    """Of a partner key alone; a key of one of its tenants has none."""
    partner_public_id: str | None = None
    created_by_key: str | None = None
    """The public id of the key that made it."""
    created_by_person: str | None = None
    """The public id of the person behind it, inherited by keys that it makes (W36)."""
    created_by_role: MemberRole | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """How far a principal reaches, as a mandatory argument of SQL: what is out of scope is missing (SEC-1, A4.2).

    Platform: none of the keys. Partner: the partner. Tenant: the tenant. Identity: tenant and identity. Statements
    branch on `level` first, so that None never matches a row.
    """

    level: Level
    tenant_id: int | None = None
    identity_id: int | None = None
    partner_id: int | None = None

    def __post_init__(self) -> None:
        shape = (self.partner_id is not None, self.tenant_id is not None, self.identity_id is not None)
        if shape != KEYS_OF_LEVEL[self.level]:
            raise ValueError("a scope has exactly the keys of its level")

    @property
    def values(self) -> tuple[Level, int | None, int | None]:
        """The first three values of a statement in scope: level, key of the partner or else of the tenant, identity."""
        return self.level, self.partner_id if self.level is Level.PARTNER else self.tenant_id, self.identity_id

    def tenant_of(self, asked: int | None) -> int | None:
        """The tenant that a list is of: the one that is asked for, or else the only one that there is in scope. None:
        of several. That an index finds its rows is all that follows from it; what is in scope the statement decides.
        """
        return self.tenant_id if asked is None else asked


KEYS_OF_LEVEL = {
    Level.PLATFORM: (False, False, False),
    Level.PARTNER: (True, False, False),
    Level.TENANT: (False, True, False),
    Level.IDENTITY: (False, True, True),
}
"""Which of partner, tenant and identity a level names."""

PLATFORM_SCOPE = Scope(Level.PLATFORM)


def tenant_scope(tenant_id: int) -> Scope:
    return Scope(Level.TENANT, tenant_id)


def partner_scope(partner_id: int) -> Scope:
    return Scope(Level.PARTNER, partner_id=partner_id)


def identity_scope(tenant_id: int, identity_id: int) -> Scope:
    return Scope(Level.IDENTITY, tenant_id, identity_id)


class SessionKind(StrEnum):
    """Where somebody is signed in (A2). Mail programs have connections, not sessions."""

    WEB = "web"
    CLIENT = "client"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True)
class AppPassword:
    """An application password without its secret, which is shown once (F5)."""

    id: int
    public_id: str
    label: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class PersonSession:
    """A session that is live. `expires_at` moves while it is used, up to `ends_at` (D7).

    `app_password_id` is set when an application password opened it: then it is of no use for changing credentials,
    and for no more than what the person may do with mailboxes.
    """

    id: int
    public_id: str
    person_id: PersonKey
    person_public_id: str
    is_operator: bool
    kind: SessionKind
    second_factor: bool
    app_password_id: int | None
    device_public_id: str | None
    ip: str | None
    user_agent: str | None
    authenticated_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    ends_at: datetime
    created_at: datetime
    passkey_id: int | None = None
    """Set when a passkey opened it."""


@dataclass(frozen=True, slots=True)
class NewDevice:
    """A client that says which device it runs on. `device_uid` is the client's own, unique for each person (F6)."""

    device_uid: str
    name: str
    platform: str | None = None
    client_version: str | None = None


@dataclass(frozen=True, slots=True)
class Device:
    public_id: str
    device_uid: str
    name: str
    platform: str | None
    client_version: str | None
    last_seen_at: datetime
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class MailboxKey:
    """Names a mailbox, as the mailbox department does (B12)."""

    tenant_id: TenantKey
    mailbox_id: int


@dataclass(frozen=True, slots=True)
class SharedMailbox:
    """A mailbox that was granted to somebody. `address` is its primary one."""

    key: MailboxKey
    tenant_public_id: str
    identity_public_id: str
    address: str | None
    is_agent: bool
    role: GrantRole


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody who may open a mailbox. `address` is that of a mailbox of the tenant that they own alone, if any."""

    person_id: PersonKey
    person_public_id: str
    address: str | None = field(repr=False)
    role: GrantRole

    @property
    def identifier(self) -> str:
        """What they are called within the tenant."""
        return self.address or self.person_public_id


@dataclass(frozen=True, slots=True)
class Credential:
    """What somebody signed in with, so that it can be asked later whether it still counts.

    A key has its `mac`; a person the `epoch` of their row, and the application password if it was one.
    """

    mac: bytes | None = field(default=None, repr=False)
    epoch: int | None = None
    app_password_id: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever is calling: an API key, or a person who opened a mailbox. Tenant and identity come from here only
    (FR-KEY-3).
    """

    kind: PrincipalKind
    public_id: str
    """`key_…` or `usr_…`."""
    row_id: int
    level: Level
    permissions: frozenset[Permission]
    mode: Mode | None = None
    tenant_id: int | None = None
    tenant_public_id: str | None = None
    tenant_status: TenantStatus | None = None
    identity_id: int | None = None
    identity_public_id: str | None = None
    grant: GrantRole | None = None
    """The person's right to the mailbox; None for keys."""
    credential: Credential | None = field(default=None, compare=False)
    """None where it is asked again at each request."""
    session: PersonSession | None = field(default=None, compare=False)
    """The session that a person calls with."""
    partner_id: int | None = None
    """Of a partner key alone."""
    partner_public_id: str | None = None
    behind: MemberRole | None = None
    """The role of the person behind a key, who may have made the key that made it (A3.7)."""
    key: ApiKey | None = field(default=None, compare=False)
    """The key as it was when it was let in; None for people."""

    @property
    def scope(self) -> Scope:
        return Scope(self.level, self.tenant_id, self.identity_id, self.partner_id)

    @property
    def rate_subject(self) -> str:
        """Whose requests are counted together in the per-key bucket."""
        return self.public_id

    def may(self, *permissions: Permission) -> bool:
        """Whether every one of `permissions` is held."""
        return self.permissions.issuperset(permissions)

    def reaches_tenant(self, tenant_id: int) -> bool:
        """Whether things of the tenant as a whole are in reach; False looks like "missing" to the caller.

        Which tenants are a partner's the tenant knows: `Tenant.is_reached_by`.
        """
        return self.level is Level.PLATFORM or (self.level is Level.TENANT and self.tenant_id == tenant_id)

    def reaches_identity(self, tenant_id: int, identity_id: int) -> bool:
        """Whether the identity `identity_id` of the tenant is in reach."""
        if self.level is Level.IDENTITY:
            return (self.tenant_id, self.identity_id) == (tenant_id, identity_id)
        return self.reaches_tenant(tenant_id)
