"""What enumerations may be today; a newer server may know more.

Made by scripts/sdk.py from the server's OpenAPI document; change the server, then run it again.
"""

from __future__ import annotations

from typing import Literal

Direction = Literal["inbound", "outbound"]
EventType = Literal[
    "message.received",
    "message.quarantined",
    "message.released",
    "message.triaged",
    "message.sent",
    "message.delivered",
    "message.deferred",
    "message.bounced",
    "message.complained",
    "message.rejected",
    "message.failed",
    "message.uncertain",
    "message.reconciled",
    "message.suppressed",
    "message.canceled",
    "verification.received",
    "identity.created",
    "identity.updated",
    "identity.paused",
    "identity.resumed",
    "identity.deleted",
    "identity.address_added",
    "identity.address_activated",
    "identity.address_promoted",
    "identity.address_retired",
    "identity.key_created",
    "identity.key_rotated",
    "identity.key_revoked",
    "domain.created",
    "domain.verified",
    "domain.degraded",
    "domain.failing",
    "domain.suspended",
    "domain.recovered",
    "domain.reminder",
    "domain.removed",
    "erasure.completed",
    "erasure.failed",
    "export.completed",
    "suppression.created",
    "quota.warning",
    "webhook.disabled",
    "webhook.test",
    "member.invited",
    "member.joined",
    "member.role_changed",
    "member.removed",
    "billing.plan_changed",
    "billing.payment_failed",
    "billing.limit_reached",
    "tenant.policy_updated",
    "account.requested",
    "account.approved",
    "account.rejected",
    "account.closed",
]
IdentityStatus = Literal["active", "paused", "deleting", "deleted"]
Level = Literal["identity", "tenant", "partner", "platform"]
ListDirection = Literal["receive", "send"]
ListKind = Literal["allow", "block"]
MessageStatus = Literal[
    "received",
    "quarantined",
    "throttled",
    "hidden",
    "queued",
    "submitted",
    "delivered",
    "deferred",
    "bounced",
    "complained",
    "rejected",
    "failed",
    "uncertain",
    "suppressed",
    "canceled",
]
Mode = Literal["live", "test"]
Permission = Literal[
    "platform:ops",
    "partners:manage",
    "tenants:manage",
    "tenants:erase",
    "members:read",
    "members:manage",
    "suppressions:manage",
    "audit:read",
    "usage:read",
    "policy:write",
    "accounts:request",
    "accounts:approve",
    "identities:read",
    "identities:write",
    "identities:sign",
    "domains:read",
    "domains:write",
    "messages:read",
    "messages:send",
    "messages:write",
    "attachments:read",
    "search:read",
    "search:agentic",
    "quarantine:review",
    "webhooks:read",
    "webhooks:manage",
    "keys:manage",
    "erasure:manage",
]
Purpose = Literal["thread", "bounce", "forward", "link", "cursor"]
QueueState = Literal[
    "pending", "delivering", "retry", "held", "parked", "delivered", "failed", "uncertain", "cancelled", "suppressed"
]
RouteKind = Literal["local", "direct", "smarthost", "simulator"]
SendKind = Literal["transactional", "marketing", "auto_reply"]
SpecialUse = Literal["inbox", "sent", "drafts", "trash", "junk", "archive", "all", "flagged"]
