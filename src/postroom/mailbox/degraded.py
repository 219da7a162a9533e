"""What is left of a message whose description the database, or our own code, could not take: its headers (B2, B15)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from postroom.mailbox.models import Content, Mailpoint, NewMessage

MAX_RECIPIENTS: Final = 100
MAX_MESSAGE_ID: Final = 998


def degraded_copy(copy: NewMessage) -> NewMessage:
    """The same copy with nothing but its headers described, in text that can be stored; the raw bytes stay whole."""
    return replace(copy, attachment_ids=(), content=_degraded(copy.content))


def _degraded(content: Content) -> Content:
    rfc_message_id = _storable(content.rfc_message_id)
    if len(rfc_message_id.encode()) > MAX_MESSAGE_ID:
        rfc_message_id = f"{content.raw_sha256.hex()}@synthetic.invalid"
    return replace(
        content,
        rfc_message_id=rfc_message_id,
        in_reply_to=None if content.in_reply_to is None else _storable(content.in_reply_to),
        reference_ids=tuple(map(_storable, content.reference_ids)),
        sender=None if content.sender is None else _point(content.sender),
        recipients=tuple((kind, _point(point)) for kind, point in content.recipients[:MAX_RECIPIENTS]),
        subject=_storable(content.subject),
        thread_subject=_storable(content.thread_subject),
        subject_fold=_storable(content.subject_fold),
        snippet="",
        text="",
        html=None,
        extracted_text="",
        attachments=(),
        auth=None,
        automated=None,
        verifications=(),
        facts=tuple(dict.fromkeys((*content.facts, "parse_degraded"))),
    )


def _point(point: Mailpoint) -> Mailpoint:
    return Mailpoint(_storable(point.address), _storable(point.name))


def _storable(text: str) -> str:
    """Without U+0000 and lone surrogates, which neither PostgreSQL nor UTF-8 have."""
    return text.replace("\0", "").encode(errors="replace").decode()
