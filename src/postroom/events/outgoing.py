"""What events say of a message that we send (events-webhooks-errors §3, §4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from postroom.events.catalogue import MESSAGE_FLAGS, envelope, timestamp
from postroom.mailbox.models import Announce, Mailpoint, NewMessage, Placed
from postroom.mailbox.queries import MessageView

MESSAGE_SUPPRESSED: Final = "message.suppressed"


def summary(view: MessageView, status: str) -> dict[str, Any]:
    """The MessageSummary of a message of ours that has this status by now."""
    return summary_of(
        message_id=view.id,
        thread_id=view.thread_id,
        direction=view.direction.value,
        status=status,
        sender=view.sender,
        to=view.to,
        cc=view.cc,
        subject=view.subject,
        sent_at=view.sent_at,
        received_at=view.received_at,
        kind=view.kind,
        labels=view.labels,
        in_reply_to=view.in_reply_to,
        facts=view.facts,
    )


def summary_of(
    *,
    message_id: str,
    thread_id: str,
    direction: str,
    status: str,
    sender: Mailpoint | None,
    to: Sequence[Mailpoint],
    cc: Sequence[Mailpoint],
    subject: str,
    sent_at: datetime,
    received_at: datetime,
    kind: str,
    labels: Sequence[str],
    in_reply_to: str | None,
    facts: Sequence[str],
) -> dict[str, Any]:
    """The MessageSummary of a message of ours, from its parts."""
    return {
        "id": message_id,
        "thread_id": thread_id,
        "direction": direction,
        "status": status,
        "from": _point(sender) if sender and sender.address else None,
        "to": [_point(point) for point in to if point.address],
        "cc": [_point(point) for point in cc if point.address],
        "delivered_to": None,
        "is_primary_recipient": None,
        "subject": subject,
        "sent_at": timestamp(sent_at),
        "received_at": timestamp(received_at),
        "kind": kind,
        "labels": list(labels),
        "in_reply_to": in_reply_to,
        "flags": [fact for fact in facts if fact in MESSAGE_FLAGS],
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
