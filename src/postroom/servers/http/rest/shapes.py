"""What the mailbox says, as the resources of the API (rest-api §6.13, §6.14). Plain dictionaries, in one pass each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

from postroom.events.catalogue import ENCRYPTED, timestamp, trust
from postroom.mailbox.models import Direction, Mailpoint, RefInfo
from postroom.mailbox.queries import AttachmentView, MessageView, PlaceView, ThreadView
from postroom.outbound.models import Delivery, OutboundState, RecipientField, Status
from postroom.servers.http.rest.message_schemas import DeliveryPolicy, MessageFlag
from postroom.servers.objects import moment

Json = dict[str, Any]

MESSAGE_FLAGS: Final = frozenset(get_args(MessageFlag))
SYNTHETIC_ID: Final = "message_id_synthetic"
"""Fact of a message that came without a Message-ID: the one it is kept under is ours, and nobody else's business."""

POLICIES: Final = frozenset(get_args(DeliveryPolicy))
MAX_SUBJECT: Final = 998
MAX_PARTICIPANTS: Final = 50
MAX_LABELS: Final = 64
MAX_SNIPPET: Final = 240

NOT_TRIAGED: Final[Json] = {
    "status": "skipped",
    "category": None,
    "needs_reply": None,
    "urgency": None,
    "summary": None,
    "language": None,
    "risk_flags": [],
    "model": None,
    "version": 1,
    "run": 0,
    "reason": "policy_disabled",
}
"""What every received message says while this deployment has no triage: nobody need wait for one."""


def message(
    view: MessageView,
    state: OutboundState | None = None,
    *,
    headers: list[Json] | None = None,
    with_headers: bool = False,
) -> Json:
    """A Message; `state` is of one that was accepted for sending.

    `with_headers` adds the member `headers`, null when the raw bytes are gone.
    """
    inbound = view.direction is Direction.INBOUND
    sender, answers = _originator(view, state)
    shape: Json = {
        "id": view.id,
        "thread_id": view.thread_id,
        "identity_id": view.identity_id,
        "direction": view.direction.value,
        "status": view.status,
        "from": None if sender is None or not sender.address else _point(sender),
        "to": points(view.to),
        "cc": points(view.cc),
        # Who got a blind copy is the sender's to know.
        "bcc": [] if inbound else points(view.bcc),
        "reply_to": points(answers),
        "delivered_to": view.delivered_to if inbound else None,
        "is_primary_recipient": view.is_primary_recipient if inbound else None,
        "subject": view.subject[:MAX_SUBJECT],
        "sent_at": timestamp(view.sent_at),
        "received_at": timestamp(view.received_at),
        # Nothing can be read of it, which is not the same as that nothing stands there (inbound §13).
        "extracted_text": None if ENCRYPTED in view.facts else view.extracted_text,
        "text": None if ENCRYPTED in view.facts else view.text,
        "html": view.html,
        "attachments": [attachment(item) for item in view.attachments],
        "labels": list(view.labels[:MAX_LABELS]),
        "read": view.read,
        "kind": view.kind if state is None else state.kind.value,
        "trust": trust(view.verdict, view.auth, view.kind, view.facts) if inbound else None,
        "triage": {**NOT_TRIAGED, "language": view.language} if inbound else None,
        "refs": references(view.refs),
        "rfc_message_id": None if SYNTHETIC_ID in view.facts else view.rfc_message_id,
        "in_reply_to": view.in_reply_to,
        "deliveries": None if inbound else [delivery(one) for one in state.deliveries] if state is not None else [],
        "flags": [fact for fact in view.facts if fact in MESSAGE_FLAGS],
        "metadata": {} if state is None else dict(state.metadata),
    }
    if state is not None:
        shape["provider_message_id"] = state.provider_message_id
    if with_headers:
        shape["headers"] = headers
    return shape


def _originator(view: MessageView, state: OutboundState | None) -> tuple[Mailpoint | None, tuple[Mailpoint, ...]]:
    """From and Reply-To as the recipients got them: what left by fallback has others than the copy that was kept."""
    if state is None or state.sent_from is None:
        return view.sender, view.reply_to
    name = view.sender.name if view.sender is not None else ""
    answers = () if state.reply_to is None else (Mailpoint(state.reply_to, name),)
    return Mailpoint(state.sent_from, name), answers


def delivery(one: Delivery) -> Json:
    """What became of one recipient. Whoever got the message without being named in it got a blind copy; a canceled
    message says so itself, its deliveries stay where they were (outbound §17)."""
    field, status = one.field, one.status
    return {
        "address": one.recipient,
        "field": (RecipientField.BCC if field is RecipientField.ENVELOPE else field).value,
        "status": (Status.QUEUED if status is Status.CANCELED else status).value,
        "smtp_code": None if one.smtp_code is None else str(one.smtp_code),
        "enhanced_code": one.enhanced_code,
        "bounce_type": one.bounce_type,
        "policy": one.reason if one.reason in POLICIES else None,
        "updated_at": timestamp(one.updated_at),
    }


def attachment(view: AttachmentView) -> Json:
    part = view.part
    return {
        "id": view.id,
        "filename": part.filename,
        "content_type": part.content_type,
        "size": part.size,
        "disposition": part.disposition,
        "text_status": "skipped",
        "pages": None,
        "risk": part.risk,
    }


def place(view: PlaceView) -> Json:
    """Where a message stands."""
    return {"folder_id": view.folder_id, "uid": view.uid, "flags": list(view.flags)}


def references(refs: Sequence[RefInfo]) -> list[Json]:
    """Each reference once, wherever in the message it stands."""
    return [{"kind": kind, "value": value} for kind, value in dict.fromkeys((ref.kind, ref.value) for ref in refs)]


def thread(view: ThreadView) -> Json:
    """A ThreadSummary."""
    return {
        "id": view.id,
        "subject": view.subject,
        "participants": points(view.participants)[:MAX_PARTICIPANTS],
        "message_count": view.message_count,
        "unread_count": view.unread_count,
        "first_at": timestamp(view.first_at),
        "last_at": timestamp(view.last_at),
        "last_inbound_at": moment(view.last_inbound_at),
        "last_direction": view.last_direction.value,
        "snippet": view.snippet[:MAX_SNIPPET],
        "labels": list(view.labels),
        "category": None,
        "needs_reply": None,
        "urgency": None,
        "archived": view.archived,
        "hold": None,
    }


def points(mailpoints: tuple[Mailpoint, ...]) -> list[Json]:
    """The mailboxes that have an address; a group or a name alone has none to show."""
    return [{"address": point.address, "name": point.name} for point in mailpoints if point.address]


def _point(point: Mailpoint) -> Json:
    return {"address": point.address, "name": point.name}
