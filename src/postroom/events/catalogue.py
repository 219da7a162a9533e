"""Event envelopes and payloads (events-webhooks-errors.md §2–4), serialised once: these bytes are stored, signed and
sent (B3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import orjson

from postroom.mailbox.models import Mailpoint, NewMessage, Placed, RecipientKind, Verification
from postroom.mailbox.rules import labels

API_VERSION: Final = "2026-10-01"
DEFAULT_TEXT_BYTES: Final = 16_384
"""`policy.webhook_text_bytes` where a tenant has not said: how much of `extracted_text` an event carries."""

TextBytes = Callable[[int], Awaitable[int]]
"""What holds for a tenant, by its key. May fail: then an event goes without text, which can be asked for."""


async def default_text_bytes(tenant_id: int) -> int:
    """Of every tenant, where there are no policies."""
    return DEFAULT_TEXT_BYTES


AUTOMATED: Final = frozenset({"dsn", "mdn", "list", "automated"})
"""Kinds of message that are never answered by themselves (inbound.md §16)."""

NOT_EVALUATED: Final = MappingProxyType(dict.fromkeys(("spf", "dkim", "dmarc", "arc"), "none"))

ENCRYPTED: Final = "encrypted"
"""Fact of a message that nobody here can read: its texts are null (B9)."""

TRUST_FLAGS: Final = frozenset(
    {
        "hidden_text",
        "display_name_spoof",
        "lookalike_domain",
        "reply_to_mismatch",
        "thread_join_unverified",
        "shared_domain_sender",
    }
)
"""Facts that the interfaces show as `trust.flags`."""

MESSAGE_FLAGS: Final = frozenset(
    {
        "sent_via_fallback",
        "parse_degraded",
        ENCRYPTED,
        "message_id_conflict",
        "reprocessed",
        "reconciled",
        "bcc",
        "loopback",
        "body_truncated",
        "sender_suppressed",
        "body_redacted",
        "dsn_untrusted",
    }
)
"""Facts that the interfaces show as a message's `flags`; what is in neither set is ours alone."""

MESSAGE_RECEIVED: Final = "message.received"
VERIFICATION_RECEIVED: Final = "verification.received"
IDENTITY_CREATED: Final = "identity.created"
DELIVERY_UPDATED: Final = "delivery.updated"
"""For mail clients. No webhook can ask for it: the list of types of the contract (§4) is without it."""


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def envelope(
    *,
    event_id: str,
    kind: str,
    occurred_at: datetime | str,
    tenant_id: str | None,
    identity_id: str | None,
    sequence: int | None,
    data: Mapping[str, Any],
) -> bytes:
    """The exact bytes of an event. `occurred_at` may be a `timestamp` already."""
    return orjson.dumps(
        {
            "id": event_id,
            "type": kind,
            "api_version": API_VERSION,
            "occurred_at": occurred_at if isinstance(occurred_at, str) else timestamp(occurred_at),
            "tenant_id": tenant_id,
            "identity_id": identity_id,
            "sequence": sequence,
            "data": data,
        }
    )


def message_received(message: NewMessage, placed: Placed, *, most: int = DEFAULT_TEXT_BYTES) -> tuple[str, bytes]:
    """`message.received` for a visible inbound message: thin, with at most so many bytes of text (FR-WH-4)."""
    content = message.content
    is_closed = ENCRYPTED in content.facts
    text, truncated = (None, False) if is_closed else cut_utf8(content.extracted_text, most)
    data = {
        "message": _summary(message, placed),
        "thread_id": placed.thread_id,
        "trust": trust(content.verdict, content.auth, content.kind, placed.facts),
        "extracted_text": text,
        "extracted_text_truncated": truncated,
        "attachments": [
            {"id": public_id, "filename": part.filename, "content_type": part.content_type, "size": part.size}
            for public_id, part in zip(placed.attachment_ids, content.attachments, strict=True)
        ],
    }
    payload = envelope(
        event_id=placed.event_id,
        kind=MESSAGE_RECEIVED,
        occurred_at=placed.occurred_at,
        tenant_id=placed.tenant_id,
        identity_id=placed.identity_id,
        sequence=placed.sequence,
        data=data,
    )
    return MESSAGE_RECEIVED, payload


def verification_received(found: Verification, placed: Placed) -> tuple[str, bytes]:
    """`verification.received`: that there is a code or a link, never which: only `wait` releases it (E4)."""
    data = {
        "message_id": placed.message_id,
        "sender_domain": found.sender_domain,
        "kind": found.kind,
        "account_id": None,
    }
    payload = envelope(
        event_id=placed.event_id,
        kind=VERIFICATION_RECEIVED,
        occurred_at=placed.occurred_at,
        tenant_id=placed.tenant_id,
        identity_id=placed.identity_id,
        sequence=placed.sequence,
        data=data,
    )
    return VERIFICATION_RECEIVED, payload


UNCERTAIN_FIX: Final = (
    "It may have been delivered and is never sent again by itself. Ask the recipient, or wait for an event about it; "
    "then call resolve."
)


def message_sent(
    message: Mapping[str, Any], provider: str, provider_message_id: str | None, *, via_fallback: bool = False
) -> tuple[str, dict[str, Any]]:
    """`message.sent`: type and data. `message` is a MessageSummary; the id is None after a resolve."""
    return "message.sent", {
        "message": dict(message),
        "provider": provider,
        "provider_message_id": provider_message_id,
        "sent_via_fallback": via_fallback,
    }


def delivery_updated(
    queue_id: int, message_id: str, recipient: str, status: str, *, attempts: int, last_error: str | None
) -> tuple[str, dict[str, Any]]:
    """`delivery.updated`, for every transition of a row of the queue (mail-server C2). `status` is the queue's word."""
    return DELIVERY_UPDATED, {
        "queue_id": queue_id,
        "message_id": message_id,
        "recipient": recipient,
        "status": status,
        "attempts": attempts,
        "last_error": last_error,
    }


def message_delivered(message_id: str, recipient: str, smtp_code: int | None) -> tuple[str, dict[str, Any]]:
    """`message.delivered`, of one recipient."""
    return "message.delivered", {"message_id": message_id, "recipient": recipient, "smtp_code": _code(smtp_code)}


def message_deferred(
    message_id: str, recipient: str, smtp_code: int | None, smtp_response: str | None
) -> tuple[str, dict[str, Any]]:
    """`message.deferred`, of one recipient; for each failed try."""
    return "message.deferred", {
        "message_id": message_id,
        "recipient": recipient,
        "smtp_code": _code(smtp_code),
        "smtp_response": smtp_response,
    }


def message_bounced(
    message_id: str,
    recipient: str,
    *,
    bounce_type: str,
    smtp_code: int | None,
    smtp_response: str | None,
    suppressed: bool = False,
) -> tuple[str, dict[str, Any]]:
    """`message.bounced`, of one recipient. `suppressed`: the address went on the suppression list."""
    return "message.bounced", {
        "message_id": message_id,
        "recipient": recipient,
        "bounce_type": bounce_type,
        "smtp_code": _code(smtp_code),
        "smtp_response": smtp_response,
        "suppressed": suppressed,
    }


def message_complained(message_id: str, recipient: str, *, suppressed: bool = False) -> tuple[str, dict[str, Any]]:
    """`message.complained`: the recipient reported spam. `suppressed`: nothing is sent there any more."""
    return "message.complained", {"message_id": message_id, "recipient": recipient, "suppressed": suppressed}


def message_rejected(message_id: str, reason: str, detail: str | None) -> tuple[str, dict[str, Any]]:
    """`message.rejected`: the transport refused it."""
    return "message.rejected", {"message_id": message_id, "reason": reason, "detail": detail}


def message_failed(message_id: str, reason: str) -> tuple[str, dict[str, Any]]:
    """`message.failed`: it could not be sent."""
    return "message.failed", {"message_id": message_id, "reason": reason}


def message_uncertain(message_id: str, reason: str, recipients: Sequence[str] | None) -> tuple[str, dict[str, Any]]:
    """`message.uncertain`; `recipients` when it is so of some only."""
    data: dict[str, Any] = {"message_id": message_id, "reason": reason, "fix": UNCERTAIN_FIX}
    return "message.uncertain", data if recipients is None else data | {"recipients": list(recipients)}


def message_reconciled(message_id: str, status: str) -> tuple[str, dict[str, Any]]:
    """`message.reconciled`: evidence came of what was uncertain."""
    return "message.reconciled", {"message_id": message_id, "status": status}


def message_canceled(message_id: str) -> tuple[str, dict[str, Any]]:
    """`message.canceled`: it was stopped before it was sent."""
    return "message.canceled", {"message_id": message_id}


def _code(code: int | None) -> str | None:
    return None if code is None else str(code)


def trust(verdict: str, auth: Mapping[str, Any] | None, kind: str, facts: tuple[str, ...]) -> dict[str, Any]:
    """The Trust object of a message; where nothing was evaluated every method says `none`."""
    return {
        "verdict": verdict,
        **(NOT_EVALUATED if auth is None else auth.get("summary", NOT_EVALUATED)),
        "known_sender": False,
        "quarantined": False,
        "spam_score": None,
        "automated": kind in AUTOMATED,
        "flags": [fact for fact in facts if fact in TRUST_FLAGS],
    }


def cut_utf8(text: str, limit: int) -> tuple[str, bool]:
    """`text` cut to at most `limit` bytes of UTF-8 at a character boundary, and whether it was cut."""
    if len(text) * 4 <= limit:
        return text, False
    encoded = text.encode()
    if len(encoded) <= limit:
        return text, False
    return encoded[:limit].decode(errors="ignore"), True


def _summary(message: NewMessage, placed: Placed) -> dict[str, Any]:
    content = message.content
    return {
        "id": placed.message_id,
        "thread_id": placed.thread_id,
        "direction": message.direction.value,
        "status": "received",
        "from": _point(content.sender) if content.sender and content.sender.address else None,
        "to": [_point(p) for kind, p in content.recipients if kind is RecipientKind.TO and p.address],
        "cc": [_point(p) for kind, p in content.recipients if kind is RecipientKind.CC and p.address],
        "delivered_to": message.delivered_to,
        "is_primary_recipient": message.is_primary_recipient,
        "subject": content.subject,
        "sent_at": timestamp(content.sent_at),
        "received_at": timestamp(message.received_at),
        "kind": content.kind,
        "labels": list(labels(message.flags)),
        "in_reply_to": content.in_reply_to,
        "flags": [fact for fact in placed.facts if fact in MESSAGE_FLAGS],
    }


def _point(point: Mailpoint) -> dict[str, str]:
    return {"address": point.address, "name": point.name}
