"""Every type of event that leaves this program: whose it is, who may be told, what it says (events-webhooks-errors §4).

What is not in here is not shown to anybody, so a type is added here before it is emitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from postroom.accounts.permissions import Permission
from postroom.events import schemas as s
from postroom.events.schemas import Schema


class EventType(StrEnum):
    """What a webhook can ask for: the published list, with types that do not happen yet."""

    MESSAGE_RECEIVED = "message.received"
    MESSAGE_QUARANTINED = "message.quarantined"
    MESSAGE_RELEASED = "message.released"
    MESSAGE_TRIAGED = "message.triaged"
    MESSAGE_SENT = "message.sent"
    MESSAGE_DELIVERED = "message.delivered"
    MESSAGE_DEFERRED = "message.deferred"
    MESSAGE_BOUNCED = "message.bounced"
    MESSAGE_COMPLAINED = "message.complained"
    MESSAGE_REJECTED = "message.rejected"
    MESSAGE_FAILED = "message.failed"
    MESSAGE_UNCERTAIN = "message.uncertain"
    MESSAGE_RECONCILED = "message.reconciled"
    MESSAGE_SUPPRESSED = "message.suppressed"
    MESSAGE_CANCELED = "message.canceled"
    VERIFICATION_RECEIVED = "verification.received"
    IDENTITY_CREATED = "identity.created"
    IDENTITY_UPDATED = "identity.updated"
    IDENTITY_PAUSED = "identity.paused"
    IDENTITY_RESUMED = "identity.resumed"
    IDENTITY_DELETED = "identity.deleted"
    IDENTITY_ADDRESS_ADDED = "identity.address_added"
    IDENTITY_ADDRESS_ACTIVATED = "identity.address_activated"
    IDENTITY_ADDRESS_PROMOTED = "identity.address_promoted"
    IDENTITY_ADDRESS_RETIRED = "identity.address_retired"
    IDENTITY_KEY_CREATED = "identity.key_created"
    IDENTITY_KEY_ROTATED = "identity.key_rotated"
    IDENTITY_KEY_REVOKED = "identity.key_revoked"
    DOMAIN_CREATED = "domain.created"
    DOMAIN_VERIFIED = "domain.verified"
    DOMAIN_DEGRADED = "domain.degraded"
    DOMAIN_FAILING = "domain.failing"
    DOMAIN_SUSPENDED = "domain.suspended"
    DOMAIN_RECOVERED = "domain.recovered"
    DOMAIN_REMINDER = "domain.reminder"
    DOMAIN_REMOVED = "domain.removed"
    ERASURE_COMPLETED = "erasure.completed"
    ERASURE_FAILED = "erasure.failed"
    EXPORT_COMPLETED = "export.completed"
    SUPPRESSION_CREATED = "suppression.created"
    QUOTA_WARNING = "quota.warning"
    WEBHOOK_DISABLED = "webhook.disabled"
    WEBHOOK_TEST = "webhook.test"
    MEMBER_INVITED = "member.invited"
    MEMBER_JOINED = "member.joined"
    MEMBER_ROLE_CHANGED = "member.role_changed"
    MEMBER_REMOVED = "member.removed"
    BILLING_PLAN_CHANGED = "billing.plan_changed"
    BILLING_PAYMENT_FAILED = "billing.payment_failed"
    BILLING_LIMIT_REACHED = "billing.limit_reached"
    TENANT_POLICY_UPDATED = "tenant.policy_updated"
    ACCOUNT_REQUESTED = "account.requested"
    ACCOUNT_APPROVED = "account.approved"
    ACCOUNT_REJECTED = "account.rejected"
    ACCOUNT_CLOSED = "account.closed"


class Owner(StrEnum):
    """In whose sequence an event is."""

    MAILBOX = "mailbox"
    PLATFORM = "platform"
    """In none."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One type. `permissions` are those that whoever is told needs beside `webhooks:read` (J29)."""

    name: str
    owner: Owner
    said: str
    """When it happens, for the reference."""
    data: Schema
    permissions: frozenset[Permission] = frozenset()
    is_public: bool = True
    """Whether webhooks, lists and streams have it. The others are for mail clients."""
    has_tenant: bool = True
    """Whether it is always a tenant's."""
    schema: Schema = field(init=False)
    """Of the whole event."""

    def __post_init__(self) -> None:
        of_mailbox = self.owner is Owner.MAILBOX
        made = s.envelope(
            self.name, self.data, has_identity=of_mailbox, is_numbered=of_mailbox, has_tenant=self.has_tenant
        )
        object.__setattr__(self, "schema", made)

    @property
    def example(self) -> Any:
        """A whole event of the type."""
        return s.example(self.schema)


_MAIL: Final = frozenset({Permission.MESSAGES_READ})
_IDENTITIES: Final = frozenset({Permission.IDENTITIES_READ})
_MEMBERS: Final = frozenset({Permission.MEMBERS_READ})


def _message(name: str, said: str, data: Schema) -> Definition:
    return Definition(f"message.{name}", Owner.MAILBOX, said, data, _MAIL)


def _identity(name: str, said: str, data: Schema) -> Definition:
    return Definition(f"identity.{name}", Owner.MAILBOX, said, data, _IDENTITIES)


def _member(name: str, said: str, data: Schema) -> Definition:
    return Definition(f"member.{name}", Owner.PLATFORM, said, data, _MEMBERS)


_OF_RECIPIENT: Final = {"message_id": s.MESSAGE_ID, "recipient": s.ADDRESS_TEXT}
_ROLE: Final = s.one_of("owner", "admin", "member", "viewer")

_ALL: Final = (
    _message("received", "mail came in and can be seen", s.RECEIVED),
    _message(
        "sent",
        "the transport took the message, or somebody said that it was sent",
        s.record(
            {
                "message": s.MESSAGE_SUMMARY,
                "provider": s.one_of("direct", "smtp", "ses", "simulator", "loopback"),
                "provider_message_id": s.nullable(s.TEXT),
                "sent_via_fallback": s.FLAG,
            }
        ),
    ),
    _message("delivered", "a recipient's server took it", s.record({**_OF_RECIPIENT, "smtp_code": s.SMTP_CODE})),
    _message(
        "deferred",
        "a try failed for now and is repeated",
        s.record({**_OF_RECIPIENT, "smtp_code": s.SMTP_CODE, "smtp_response": s.SMTP_RESPONSE}),
    ),
    _message(
        "bounced",
        "a recipient's server refused it for good, or it was tried in vain for too long",
        s.record(
            {
                **_OF_RECIPIENT,
                "bounce_type": s.one_of("hard", "soft"),
                "smtp_code": s.SMTP_CODE,
                "smtp_response": s.SMTP_RESPONSE,
                "suppressed": s.FLAG,
            }
        ),
    ),
    _message("complained", "a recipient reported it as spam", s.record({**_OF_RECIPIENT, "suppressed": s.FLAG})),
    _message(
        "rejected",
        "the transport refused it",
        s.record({"message_id": s.MESSAGE_ID, "reason": s.WORD, "detail": s.nullable(s.TEXT)}),
    ),
    _message("failed", "it could not be sent", s.record({"message_id": s.MESSAGE_ID, "reason": s.WORD})),
    _message(
        "uncertain",
        "nobody knows whether it was sent; it is not sent again. `recipients` when that is so of some only",
        s.record(
            {"message_id": s.MESSAGE_ID, "reason": s.WORD, "fix": s.TEXT}, {"recipients": s.listed(s.ADDRESS_TEXT)}
        ),
    ),
    _message(
        "reconciled",
        "evidence came of what was uncertain",
        s.record({"message_id": s.MESSAGE_ID, "status": s.OUTBOUND_STATUS}),
    ),
    _message(
        "suppressed",
        "every recipient is one that nothing is sent to",
        s.record({"message_id": s.MESSAGE_ID, "recipients": s.listed(s.ADDRESS_TEXT)}),
    ),
    _message("canceled", "it was stopped before it was sent", s.record({"message_id": s.MESSAGE_ID})),
    Definition(
        "verification.received",
        Owner.MAILBOX,
        "authenticated mail brought a code or a link that confirms something; which is it, only `wait` says",
        s.record(
            {
                "message_id": s.MESSAGE_ID,
                "sender_domain": s.TEXT,
                "kind": s.one_of("code", "link"),
                "account_id": s.nullable(s.public_id("sac")),
            }
        ),
        _MAIL,
    ),
    _identity("created", "an identity was made", s.record({"identity": s.IDENTITY})),
    _identity(
        "updated",
        "members of it were changed; `changed` names them",
        s.record({"identity": s.IDENTITY, "changed": s.listed(s.TEXT)}),
    ),
    _identity(
        "paused",
        "it sends nothing any more",
        s.record(
            {
                "identity_id": s.IDENTITY_ID,
                "reason": s.nullable(s.PAUSE_REASON),
                "metrics": s.nullable({"type": "object"}),
            }
        ),
    ),
    _identity("resumed", "it sends again", s.record({"identity_id": s.IDENTITY_ID})),
    _identity("address_added", "it has an address more", s.record({"address": s.ADDRESS})),
    _identity("address_activated", "an address that was pending takes mail", s.record({"address": s.ADDRESS})),
    _identity(
        "address_promoted",
        "another address is the primary one",
        s.record({"address": s.ADDRESS, "previous_primary": s.ADDRESS}),
    ),
    _identity("address_retired", "an address takes no mail any more", s.record({"address": s.ADDRESS})),
    _member(
        "invited",
        "somebody was invited, or invited again",
        s.record(
            {
                "invitation_id": s.public_id("inv"),
                "email_hint": s.TEXT,
                "role": s.one_of("admin", "member", "viewer"),
            }
        ),
    ),
    _member("joined", "somebody became a member", s.record({"user_id": s.USER_ID, "role": _ROLE})),
    _member("role_changed", "a member has another role", s.record({"user_id": s.USER_ID, "from": _ROLE, "to": _ROLE})),
    _member("removed", "a member left or was removed", s.record({"user_id": s.USER_ID})),
    Definition(
        "tenant.policy_updated",
        Owner.PLATFORM,
        "the policy of a tenant was written; `fields` are paths, never values",
        s.record(
            {
                "fields": s.listed(s.TEXT),
                "by": s.one_of("platform", "partner", "tenant", "console"),
                "actor_key_id": s.nullable(s.public_id("key")),
                "actor_user_id": s.nullable(s.USER_ID),
                "policy_version": s.POSITIVE,
            }
        ),
    ),
    Definition(
        "quota.warning",
        Owner.MAILBOX,
        "80 %, or 100 %, of the recipients of a day are used up; once a day each",
        s.record(
            {"metric": s.one_of("sends"), "used": s.COUNT, "limit": s.COUNT, "scope": s.one_of("tenant", "identity")}
        ),
    ),
    Definition(
        "webhook.disabled",
        Owner.PLATFORM,
        "an endpoint was switched off because it kept failing, or said that it is gone",
        s.record({"webhook_id": s.WEBHOOK_ID, "reason": s.WORD}),
        has_tenant=False,
    ),
    Definition(
        "webhook.test",
        Owner.PLATFORM,
        "somebody asked for it",
        s.record({"message": {"const": "hello"}}),
        has_tenant=False,
    ),
    Definition(
        "delivery.updated",
        Owner.MAILBOX,
        "a row of the mail queue changed",
        s.record(
            {
                "queue_id": s.POSITIVE,
                **_OF_RECIPIENT,
                "status": s.WORD,
                "attempts": s.COUNT,
                "last_error": s.nullable(s.TEXT),
            }
        ),
        _MAIL,
        is_public=False,
    ),
)

REGISTRY: Final[Mapping[str, Definition]] = MappingProxyType({one.name: one for one in _ALL})
PUBLIC: Final[tuple[str, ...]] = tuple(one.name for one in _ALL if one.is_public)
"""The types that happen, and that lists and streams have."""
DISABLED: Final = EventType.WEBHOOK_DISABLED.value
TEST: Final = EventType.WEBHOOK_TEST.value
NEVER_FANNED_OUT: Final = frozenset({TEST, *(one.name for one in _ALL if not one.is_public)})
"""A test is sent by who asks for it alone; the others are for mail clients."""

if not set(PUBLIC) <= set(EventType):
    raise AssertionError("what happens is published")


def seen_by(permissions: Iterable[Permission]) -> frozenset[str]:
    """The types that whoever holds these, and `webhooks:read`, may be told of."""
    held = frozenset(permissions)
    return frozenset(name for name in PUBLIC if REGISTRY[name].permissions <= held)


def describe(kind: str) -> dict[str, Any]:
    """The schema of a type as plain JSON. Raises KeyError for a type that there is not."""
    return dict(REGISTRY[kind].schema)
