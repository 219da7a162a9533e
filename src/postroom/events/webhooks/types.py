"""The types of events that a webhook can ask for: the published list (events-webhooks-errors §4)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from postroom.events.catalogue import DELIVERY_UPDATED


class EventType(StrEnum):
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


DISABLED: Final = EventType.WEBHOOK_DISABLED.value
TEST: Final = EventType.WEBHOOK_TEST.value
NEVER_FANNED_OUT: Final = frozenset({TEST, DELIVERY_UPDATED})
"""A test is sent by who asks for it alone; the other is for mail clients."""
