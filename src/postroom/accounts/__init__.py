"""Who is calling, and how far they reach: the deployment, tenants, people, API keys, sign-in, rate limits and
idempotency.

It owns the tables deployment, tenants, people, members, invitations, system_mail_days, mailbox_grants, api_keys,
sign_in_failures, api_rate_windows and idempotency_records. Everything else asks a `Principal` what it may do, and
passes its `scope` into SQL.
"""

from postroom.accounts.keys import NewKey
from postroom.accounts.models import (
    PLATFORM_SCOPE,
    ApiKey,
    Grant,
    Member,
    MemberRole,
    Mode,
    NewPerson,
    NewTenant,
    Person,
    Principal,
    PrincipalKind,
    Scope,
    Tenant,
    TenantStatus,
    identity_scope,
    tenant_scope,
)
from postroom.accounts.passwords import HashingOverloaded, Passwords
from postroom.accounts.permissions import GrantRole, Level, Permission
from postroom.accounts.rates import Bucket, RateDecision, RateLimiter
from postroom.accounts.service.deployment import DeploymentMismatch, ensure_deployment
from postroom.accounts.service.keys import Keys, KeyVerifier, bearer
from postroom.accounts.service.people import People
from postroom.accounts.service.sign_in import SignIn, SignInError, SignInFailure, ThrottlePolicy
from postroom.accounts.service.tenants import Tenants
from postroom.accounts.service.upkeep import Upkeep

__all__ = [
    "PLATFORM_SCOPE",
    "ApiKey",
    "Bucket",
    "DeploymentMismatch",
    "Grant",
    "GrantRole",
    "HashingOverloaded",
    "KeyVerifier",
    "Keys",
    "Level",
    "Member",
    "MemberRole",
    "Mode",
    "NewKey",
    "NewPerson",
    "NewTenant",
    "Passwords",
    "People",
    "Permission",
    "Person",
    "Principal",
    "PrincipalKind",
    "RateDecision",
    "RateLimiter",
    "Scope",
    "SignIn",
    "SignInError",
    "SignInFailure",
    "Tenant",
    "TenantStatus",
    "Tenants",
    "ThrottlePolicy",
    "Upkeep",
    "bearer",
    "ensure_deployment",
    "identity_scope",
    "tenant_scope",
]
