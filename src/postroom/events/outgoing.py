"""What events say of a message that we send (events-webhooks-errors §3, §4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from postroom.events.catalogue import MESSAGE_FLAGS, envelope, timestamp
from postroom.mailbox.models import Announce, Mailpoint, NewMessage, Placed
from postroom.mailbox.queries import MessageView

MESSAGE_SUPPRESSED: Final = "message.suppressed"


def summary(view: MessageView, status: str) -> dict[str, Any]:
    """The MessageSummary of a message of ours that has this status by now."""
    return {
        "id": view.id,
        "thread_id": view.thread_id,
        "direction": view.direction.value,
        "status": status,
        "from": _point(view.sender) if view.sender and view.sender.address else None,
        "to": [_point(point) for point in view.to if point.address],
        "cc": [_point(point) for point in view.cc if point.address],
        "delivered_to": None,
        "is_primary_recipient": None,
        "subject": view.subject,
        "sent_at": timestamp(view.sent_at),
        "received_at": timestamp(view.received_at),
        "kind": view.kind,
        "labels": list(view.labels),
        "in_reply_to": view.in_reply_to,
        "flags": [fact for fact in view.facts if fact in MESSAGE_FLAGS],
    }


def all_suppressed(recipients: Sequence[str]) -> Announce:
    """`message.suppressed` of a message that nothing is sent of, written in the transaction that stores it."""

    def make(message: NewMessage, placed: Placed) -> tuple[str, bytes]:
        payload = envelope(
            event_id=placed.event_id,
            kind=MESSAGE_SUPPRESSED,
            occurred_at=placed.occurred_at,
            tenant_id=placed.tenant_id,
            identity_id=placed.identity_id,
            sequence=placed.sequence,
            data={"message_id": placed.message_id, "recipients": list(recipients)},
        )
        return MESSAGE_SUPPRESSED, payload

    return make


def _point(point: Mailpoint) -> dict[str, str]:
    return {"address": point.address, "name": point.name}
