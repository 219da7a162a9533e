"""The types of events that a webhook can ask for: the published list (events-webhooks-errors §4)."""

from __future__ import annotations

from typing import Final

from postroom.events.catalogue import DELIVERY_UPDATED

_NAMES: Final = {
    "message": "received quarantined released triaged sent delivered deferred bounced complained rejected failed"
    " uncertain reconciled suppressed canceled",
    "verification": "received",
    "identity": "created updated paused resumed deleted address_added address_activated address_promoted"
    " address_retired key_created key_rotated key_revoked",
    "domain": "created verified degraded failing suspended recovered reminder removed",
    "erasure": "completed failed",
    "export": "completed",
    "suppression": "created",
    "quota": "warning",
    "webhook": "disabled test",
    "member": "invited joined role_changed removed",
    "billing": "plan_changed payment_failed limit_reached",
    "tenant": "policy_updated",
    "account": "requested approved rejected closed",
}
EVENT_TYPES: Final = tuple(f"{noun}.{verb}" for noun, verbs in _NAMES.items() for verb in verbs.split())

DISABLED: Final = "webhook.disabled"
TEST: Final = "webhook.test"
NEVER_FANNED_OUT: Final = frozenset({TEST, DELIVERY_UPDATED})
"""A test is sent by who asks for it alone; the other is for mail clients."""
