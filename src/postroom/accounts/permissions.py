"""Permissions, and which level of principal may hold which (security-privacy A3.3, A3.4). Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Level(StrEnum):
    """How far a principal reaches: every tenant, a partner's tenants, one tenant, one identity."""

    IDENTITY = "identity"
    TENANT = "tenant"
    PARTNER = "partner"
    PLATFORM = "platform"

    @property
    def rank(self) -> int:
        """Wider levels have the greater one."""
        return _RANK[self]


_RANK: Final = {Level.IDENTITY: 0, Level.TENANT: 1, Level.PARTNER: 2, Level.PLATFORM: 3}

MAY_MINT: Final[dict[Level, frozenset[Level]]] = {
    Level.PLATFORM: frozenset(Level),
    Level.PARTNER: frozenset((Level.TENANT, Level.IDENTITY)),
    Level.TENANT: frozenset((Level.TENANT, Level.IDENTITY)),
    Level.IDENTITY: frozenset((Level.IDENTITY,)),
}
"""The levels of keys that a key of each level makes (A3.5). Partner keys come from the platform alone (J11)."""


class Permission(StrEnum):
    """What a principal may do; the names of the published contract."""

    PLATFORM_OPS = "platform:ops"
    PARTNERS_MANAGE = "partners:manage"
    TENANTS_MANAGE = "tenants:manage"
    TENANTS_ERASE = "tenants:erase"
    MEMBERS_READ = "members:read"
    MEMBERS_MANAGE = "members:manage"
    SUPPRESSIONS_MANAGE = "suppressions:manage"
    AUDIT_READ = "audit:read"
    USAGE_READ = "usage:read"
    POLICY_WRITE = "policy:write"
    ACCOUNTS_REQUEST = "accounts:request"
    ACCOUNTS_APPROVE = "accounts:approve"
    IDENTITIES_READ = "identities:read"
    IDENTITIES_WRITE = "identities:write"
    IDENTITIES_SIGN = "identities:sign"
    DOMAINS_READ = "domains:read"
    DOMAINS_WRITE = "domains:write"
    MESSAGES_READ = "messages:read"
    MESSAGES_SEND = "messages:send"
    MESSAGES_WRITE = "messages:write"
    ATTACHMENTS_READ = "attachments:read"
    SEARCH_READ = "search:read"
    SEARCH_AGENTIC = "search:agentic"
    QUARANTINE_REVIEW = "quarantine:review"
    WEBHOOKS_READ = "webhooks:read"
    WEBHOOKS_MANAGE = "webhooks:manage"
    KEYS_MANAGE = "keys:manage"
    ERASURE_MANAGE = "erasure:manage"


_EVERYONE: Final = frozenset(
    {
        Permission.ACCOUNTS_REQUEST,
        Permission.IDENTITIES_READ,
        Permission.IDENTITIES_WRITE,
        Permission.DOMAINS_READ,
        Permission.DOMAINS_WRITE,
        Permission.MESSAGES_READ,
        Permission.MESSAGES_SEND,
        Permission.MESSAGES_WRITE,
        Permission.ATTACHMENTS_READ,
        Permission.SEARCH_READ,
        Permission.SEARCH_AGENTIC,
        Permission.QUARANTINE_REVIEW,
        Permission.WEBHOOKS_READ,
        Permission.WEBHOOKS_MANAGE,
        Permission.KEYS_MANAGE,
        Permission.ERASURE_MANAGE,
    }
)
_TENANT_ROOM: Final = frozenset(
    {
        Permission.MEMBERS_READ,
        Permission.MEMBERS_MANAGE,
        Permission.SUPPRESSIONS_MANAGE,
        Permission.AUDIT_READ,
        Permission.USAGE_READ,
        Permission.POLICY_WRITE,
        Permission.ACCOUNTS_APPROVE,
        Permission.TENANTS_ERASE,
    }
)

MAY_HOLD: Final[dict[Level, frozenset[Permission]]] = {
    Level.IDENTITY: _EVERYONE | {Permission.IDENTITIES_SIGN},
    Level.TENANT: _EVERYONE | _TENANT_ROOM | {Permission.IDENTITIES_SIGN},
    Level.PARTNER: _EVERYONE | _TENANT_ROOM | {Permission.TENANTS_MANAGE},
    Level.PLATFORM: frozenset(Permission) - {Permission.IDENTITIES_SIGN},
}
"""What a key of each level can ever hold. Writes that a level may not do in the end (an identity key's
`domains:write`) are refused at the route with `scope_denied`, so that the permission itself stays one list.
"""

OWNER_ONLY: Final = frozenset({Permission.TENANTS_ERASE})
"""Held by a tenant key only with the workspace's owner behind it."""

MAY_GRANT: Final[dict[Level, frozenset[Permission]]] = {
    Level.PLATFORM: frozenset({Permission.IDENTITIES_SIGN}),
    Level.PARTNER: frozenset({Permission.IDENTITIES_SIGN}),
    Level.TENANT: frozenset(),
    Level.IDENTITY: frozenset(),
}
"""What a level may give to keys it mints without holding it itself (SEC-2's one exception)."""

IMPLIED: Final[dict[Permission, frozenset[Permission]]] = {
    Permission.ACCOUNTS_APPROVE: frozenset({Permission.ACCOUNTS_REQUEST}),
    Permission.WEBHOOKS_MANAGE: frozenset({Permission.WEBHOOKS_READ}),
}
"""Permissions that include others."""

UNLISTED: Final[dict[Level, frozenset[Permission]]] = {
    Level.PLATFORM: frozenset(),
    Level.PARTNER: frozenset(),
    Level.TENANT: frozenset({Permission.USAGE_READ}),
    Level.IDENTITY: frozenset({Permission.USAGE_READ}),
}
"""What a key may do on its own tenant without its being listed (rest-api §2.3)."""


class GrantRole(StrEnum):
    """What a person may do with a mailbox (A2)."""

    OWNER = "owner"
    FULL = "full"
    READ = "read"


_MAILBOX_READ: Final = frozenset(
    {
        Permission.IDENTITIES_READ,
        Permission.MESSAGES_READ,
        Permission.ATTACHMENTS_READ,
        Permission.SEARCH_READ,
        Permission.SEARCH_AGENTIC,
    }
)
_MAILBOX_FULL: Final = _MAILBOX_READ | {
    Permission.MESSAGES_SEND,
    Permission.MESSAGES_WRITE,
    Permission.QUARANTINE_REVIEW,
}

OF_GRANT: Final[dict[GrantRole, frozenset[Permission]]] = {
    GrantRole.READ: _MAILBOX_READ,
    GrantRole.FULL: _MAILBOX_FULL,
    GrantRole.OWNER: _MAILBOX_FULL | {Permission.IDENTITIES_WRITE, Permission.ERASURE_MANAGE},
}
"""The permissions of a person who opened a mailbox (decisions, section E)."""


_ADMIN: Final = frozenset(
    {
        Permission.MEMBERS_READ,
        Permission.MEMBERS_MANAGE,
        Permission.IDENTITIES_READ,
        Permission.IDENTITIES_WRITE,
        Permission.AUDIT_READ,
        Permission.USAGE_READ,
    }
)
OF_MEMBER: Final[dict[str, frozenset[Permission]]] = {
    "viewer": frozenset(),
    "member": frozenset(),
    "admin": _ADMIN,
    "owner": _ADMIN,
}
"""What a membership gives in the tenant. Mail is a matter of grants alone."""

_VIEWER: Final = frozenset(
    {
        Permission.IDENTITIES_READ,
        Permission.DOMAINS_READ,
        Permission.MESSAGES_READ,
        Permission.ATTACHMENTS_READ,
        Permission.SEARCH_READ,
        Permission.USAGE_READ,
        Permission.MEMBERS_READ,
    }
)
ROOM_OF_ROLE: Final[dict[str, frozenset[Permission]]] = {
    "owner": MAY_HOLD[Level.TENANT],
    "admin": MAY_HOLD[Level.TENANT] - OWNER_ONLY,
    "member": _VIEWER
    | {
        Permission.MESSAGES_WRITE,
        Permission.SEARCH_AGENTIC,
        Permission.QUARANTINE_REVIEW,
        Permission.ACCOUNTS_REQUEST,
    },
    "viewer": _VIEWER,
}
"""What a key may hold while a person of this role is behind it (A3.7, W36)."""

OF_OPERATOR: Final = frozenset({Permission.PLATFORM_OPS, Permission.MEMBERS_READ, Permission.MEMBERS_MANAGE})
"""What running the deployment gives (A2): never other people's mail."""


def including_implied(permissions: frozenset[Permission]) -> frozenset[Permission]:
    """`permissions` and what they include."""
    return permissions.union(*(IMPLIED.get(permission, frozenset()) for permission in permissions))
