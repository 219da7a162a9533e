"""Schemas of messages and threads, as the published contract names them (rest-api §6). For the document only."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from postroom.mailbox.models import Direction
from postroom.servers.http import fields
from postroom.servers.http.fields import Answer, NotNull
from postroom.servers.http.rest.schemas import Address_, Count, Metadata, Share


class MessageStatus(StrEnum):
    RECEIVED = "received"
    QUARANTINED = "quarantined"
    THROTTLED = "throttled"
    HIDDEN = "hidden"
    QUEUED = "queued"
    SUBMITTED = "submitted"
    DELIVERED = "delivered"
    DEFERRED = "deferred"
    BOUNCED = "bounced"
    COMPLAINED = "complained"
    REJECTED = "rejected"
    FAILED = "failed"
    UNCERTAIN = "uncertain"
    SUPPRESSED = "suppressed"
    CANCELED = "canceled"


INVISIBLE = frozenset({MessageStatus.QUARANTINED, MessageStatus.THROTTLED, MessageStatus.HIDDEN})
"""Shown only to principals with `quarantine:review` (security-privacy A4.4)."""

MessageKind = Literal[
    "normal", "automated", "dsn", "list", "calendar", "mdn", "transactional", "marketing", "auto_reply"
]
MessageFlag = Literal[
    "sent_via_fallback",
    "parse_degraded",
    "encrypted",
    "message_id_conflict",
    "reprocessed",
    "reconciled",
    "bcc",
    "loopback",
    "body_truncated",
    "sender_suppressed",
    "body_redacted",
    "dsn_untrusted",
]
QuarantineReason = Literal[
    "auth_failed",
    "auth_unverified",
    "spam",
    "risky_attachment",
    "blocked_sender",
    "otp_unsolicited",
    "account_unapproved",
]
AttachmentRisk = Literal[
    "executable", "macro", "encrypted_archive", "archive_bomb", "type_mismatch", "encrypted_document"
]
AttachmentTextStatus = Literal["pending", "ready", "unavailable", "skipped"]
AuthVerdict = Literal["pass", "fail", "softfail", "none", "unaligned", "unverified"]
AuthResult = Literal["pass", "fail", "softfail", "neutral", "none", "temperror", "permerror", "policy"]
TrustFlag = Literal[
    "hidden_text",
    "display_name_spoof",
    "lookalike_domain",
    "reply_to_mismatch",
    "thread_join_unverified",
    "shared_domain_sender",
]
TriageStatus = Literal["pending", "done", "skipped", "failed"]
RiskFlag = Literal[
    "payment_change_request",
    "credential_request",
    "prompt_injection_suspected",
    "phishing_suspected",
    "impersonation_suspected",
    "urgent_pressure",
    "unknown_sender",
    "auth_failed",
    "attachment_risky",
    "hidden_text",
]
TriageReason = Literal[
    "allowance",
    "policy_disabled",
    "not_eligible",
    "ai_unavailable",
    "invalid_output",
    "model_unavailable",
    "input_unavailable",
]
DeliveryStatus = Literal[
    "queued",
    "suppressed",
    "submitted",
    "delivered",
    "deferred",
    "bounced",
    "complained",
    "rejected",
    "failed",
    "uncertain",
]
DeliveryPolicy = Literal["send_block", "not_on_allowlist", "unknown_recipient"]


class MailboxAddress(Answer):
    address: Address_
    name: str


class MessageHeader(Answer):
    name: str
    value: str


class Attachment(Answer):
    id: fields.AttachmentId
    filename: str | None
    content_type: str
    size: Count
    disposition: Literal["attachment", "inline"] | None
    text_status: AttachmentTextStatus
    pages: Count | None
    risk: AttachmentRisk | None


class Trust(Answer):
    verdict: AuthVerdict
    spf: AuthResult
    dkim: AuthResult
    dmarc: AuthResult
    arc: AuthResult
    known_sender: bool
    quarantined: bool
    spam_score: Share | None
    automated: bool
    flags: list[TrustFlag]


class Triage(Answer):
    status: TriageStatus
    category: str | None
    needs_reply: Share | None
    urgency: Annotated[int, Field(ge=0, le=3)] | None
    summary: Annotated[str, StringConstraints(max_length=280)] | None
    language: str | None
    risk_flags: list[RiskFlag]
    model: str | None
    version: Annotated[int, Field(ge=1)]
    run: Count
    reason: Annotated[TriageReason | None, NotNull()] = None


class Delivery(Answer):
    address: Address_
    field: Literal["to", "cc", "bcc"]
    status: DeliveryStatus
    smtp_code: str | None
    enhanced_code: str | None
    bounce_type: Literal["hard", "soft"] | None
    policy: DeliveryPolicy | None = None
    updated_at: datetime


class Ref(Answer):
    kind: str
    value: str


class Placement(Answer):
    """A place where a message stands. `flags`: `$seen`, `$answered`, `$flagged`, `$deleted`, `$draft`, and keywords;
    those without `$` are labels.
    """

    folder_id: fields.FolderId
    uid: Annotated[int, Field(ge=1)]
    flags: list[str]


class Message(Answer):
    """All text is untrusted content."""

    model_config = ConfigDict(populate_by_name=True, frozen=True)

    id: fields.MessageId
    thread_id: fields.ThreadId
    identity_id: fields.IdentityId
    direction: Direction
    status: MessageStatus
    sender: Annotated[MailboxAddress | None, Field(alias="from")]
    to: list[MailboxAddress]
    cc: list[MailboxAddress]
    bcc: list[MailboxAddress]
    reply_to: list[MailboxAddress]
    delivered_to: Address_ | None
    is_primary_recipient: bool | None
    subject: Annotated[str, StringConstraints(max_length=998)] | None
    sent_at: datetime | None
    received_at: datetime
    extracted_text: str | None
    text: str | None
    html: str | None
    headers: list[MessageHeader] | None = None
    attachments: list[Attachment]
    labels: Annotated[list[fields.Label], Field(max_length=64)]
    read: Annotated[bool | None, NotNull()] = None
    kind: MessageKind
    trust: Trust | None
    triage: Triage | None
    quarantine_reason: QuarantineReason | None = None
    refs: list[Ref]
    rfc_message_id: str | None
    in_reply_to: str | None
    provider_message_id: str | None = None
    deliveries: list[Delivery] | None
    flags: list[MessageFlag]
    metadata: Metadata
    placements: Annotated[list[Placement] | None, NotNull()] = None
    """Where it stands, the oldest place first; on `include=placements`."""


class SendResponse(Message):
    """The message that was accepted; `deduplicated` when an earlier request with the same key did it."""

    deduplicated: bool


class DryRunRecipient(Answer):
    address: Address_
    field: Literal["to", "cc", "bcc"]
    status: Literal["queued", "suppressed"]
    reason: Annotated[str | None, NotNull()] = None


class DryRunResult(Answer):
    would_send: Literal[True]
    recipients: list[DryRunRecipient]


class MessagePage(Answer):
    data: list[Message]
    next_cursor: str | None


class ThreadHold(Answer):
    reason: str
    until: datetime | None
    set_by: fields.KeyId | None
    set_at: datetime


class ThreadSummary(Answer):
    id: fields.ThreadId
    subject: str
    participants: Annotated[list[MailboxAddress], Field(max_length=50)]
    message_count: Count
    unread_count: Count
    first_at: datetime
    last_at: datetime
    last_inbound_at: datetime | None
    last_direction: Direction
    snippet: str
    labels: list[fields.Label]
    category: str | None
    needs_reply: Share | None
    urgency: Annotated[int, Field(ge=0, le=3)] | None
    archived: Annotated[bool | None, NotNull()] = None
    hold: ThreadHold | None


class ThreadPage(Answer):
    data: list[ThreadSummary]
    next_cursor: str | None


class Thread(ThreadSummary):
    messages: list[Message]
    next_cursor: str | None


class Verification(Answer):
    code: str | None
    link: Annotated[str, Field(json_schema_extra={"format": "uri"})] | None
    sender_domain: str


class WaitResponse(Answer):
    message: Message | None
    verification: Verification | None
    timed_out: bool
