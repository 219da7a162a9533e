"""Schemas of the resources, as the published contract names them (rest-api §6). For the document only."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from postroom.accounts.models import Mode
from postroom.accounts.permissions import Level, Permission
from postroom.accounts.signing_keys import Purpose
from postroom.mailbox.models import Direction
from postroom.outbound.models import QueueState, RouteKind
from postroom.servers.http import fields
from postroom.servers.http.fields import Answer, NotNull

Address_ = Annotated[str, StringConstraints(max_length=254), Field(json_schema_extra={"format": "email"})]
Metadata = Annotated[dict[str, Annotated[str, StringConstraints(max_length=512)]], Field(max_length=16)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class IdentityStatus(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DELETING = "deleting"
    DELETED = "deleted"


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

PauseReason = Literal["manual", "abuse_threshold", "tenant_suspended"]
AddressRole = Literal["primary", "alias"]
AddressStatus = Literal["pending", "active", "retiring", "retired"]
AddressForwarding = Literal["unverified", "ok", "failed"]
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


class Violation(Answer):
    path: str
    message: str


class ErrorDetails(Answer):
    """Optional and per code; others may appear."""

    model_config = ConfigDict(extra="allow", frozen=True)

    required: Annotated[list[Permission] | None, NotNull()] = None
    errors: Annotated[list[Violation] | None, NotNull()] = None
    reason: Annotated[str | None, NotNull()] = None
    field: Annotated[str | None, NotNull()] = None
    limit: Annotated[Annotated[int, Field(ge=1)] | None, NotNull()] = None
    retry_after: Annotated[Count | None, NotNull()] = None
    bucket: Annotated[
        Literal["key", "session", "tenant", "partner", "search", "agentic", "send", "sign", "partner_create"] | None,
        NotNull(),
    ] = None


class ErrorBody(Answer):
    code: str
    message: str
    retryable: bool
    fix: str
    request_id: fields.RequestId
    details: Annotated[ErrorDetails | None, NotNull()] = None


class Error(Answer):
    """The envelope of everything that is no success."""

    error: ErrorBody


class Health(Answer):
    status: Literal["ok", "degraded"]
    version: str
    commit: str
    env: Literal["production", "staging", "local"]


class Readiness(Answer):
    """Whether what a request needs can be reached."""

    status: Literal["ok"]
    database: Literal["ok"]
    blobs: Literal["ok"]
    migrations: Literal["ok"]


class Me(Answer):
    key_id: fields.KeyId
    name: str
    level: Level
    mode: Mode
    partner_id: fields.PartnerId | None
    tenant_id: fields.TenantId | None
    identity_id: fields.IdentityId | None
    permissions: Annotated[list[Permission], Field(json_schema_extra={"uniqueItems": True})]
    expires_at: datetime | None


class ApiKey(Answer):
    id: fields.KeyId
    name: str
    level: Level
    mode: Mode
    partner_id: fields.PartnerId | None
    tenant_id: fields.TenantId | None
    identity_id: fields.IdentityId | None
    permissions: Annotated[list[Permission], Field(json_schema_extra={"uniqueItems": True})]
    created_by_user_id: fields.PersonId | None
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    created_at: datetime


class ApiKeyCreated(ApiKey):
    """Exactly one of `secret` and `secret_replayed`: the secret is shown once."""

    secret: Annotated[Annotated[str, StringConstraints(pattern=r"^pmk_(live|test)_.{12}_.+$")] | None, NotNull()] = None
    secret_replayed: Annotated[Literal[False] | None, NotNull()] = None


class ApiKeyPage(Answer):
    data: list[ApiKey]
    next_cursor: str | None


class IdentityOwner(Answer):
    name: Annotated[str, StringConstraints(min_length=1)]
    email: Address_


class IdentitySignature(Answer):
    text: str | None = None
    html: str | None = None


class IdentitySendPolicy(Answer):
    daily_cap: Annotated[Count | None, NotNull()] = None
    auto_reply: Literal["allowed", "denied"] = "allowed"
    require_known_recipient: bool = True


class Address(Answer):
    id: fields.AddressId
    identity_id: fields.IdentityId
    address: Address_
    local_part: str
    domain_id: fields.DomainId
    role: AddressRole
    status: AddressStatus
    retire_at: datetime | None
    retired_at: datetime | None
    forwarding: AddressForwarding | None
    forwarding_checked_at: datetime | None
    created_at: datetime


class Identity(Answer):
    id: fields.IdentityId
    tenant_id: fields.TenantId
    username: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,23}$")]
    display_name: Annotated[str, StringConstraints(max_length=78)]
    purpose: str | None
    status: IdentityStatus
    pause_reason: PauseReason | None
    primary_address: Address_
    addresses: list[Address]
    owner: IdentityOwner | None
    signature: IdentitySignature | None
    send_policy: IdentitySendPolicy
    metadata: Metadata
    client_id: str | None
    created_at: datetime
    updated_at: datetime


class IdentityPage(Answer):
    data: list[Identity]
    next_cursor: str | None


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


class Alias(Answer):
    """An address without a mailbox, whose mail goes on to `target`."""

    id: fields.AliasId
    tenant_id: fields.TenantId
    address: Address_
    domain_id: fields.DomainId
    target: Address_
    created_at: datetime


class AliasPage(Answer):
    data: list[Alias]
    next_cursor: str | None


class PreviousSigningKey(Answer):
    kid: str
    verify_until: datetime
    revoked: bool


class SigningKeyRotation(Answer):
    """Key material is never returned."""

    purpose: Purpose
    kid: str
    created_at: datetime
    previous: PreviousSigningKey | None


class QueueDelivery(Answer):
    """A delivery as operators see it (mail-server C1, C2): who, where to and how far, never what is in the mail."""

    id: Annotated[int, Field(ge=1)]
    state: QueueState
    status: Literal[DeliveryStatus, "canceled"]
    tenant_id: fields.TenantId
    identity_id: fields.IdentityId
    message_id: fields.MessageId
    sender: str
    recipient: str
    route: RouteKind
    destination: str
    size: Count
    tries: Count
    reason: str | None
    smtp_code: int | None
    enhanced_code: str | None
    smtp_response: str | None
    remote_mx: str | None
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    created_at: datetime
    updated_at: datetime


class QueueDeliveryPage(Answer):
    data: list[QueueDelivery]
    next_cursor: str | None


class QueueAttempt(Answer):
    attempt: Count
    remote_mx: str | None
    status_code: int | None
    status_text: str | None
    error: str | None
    duration_ms: Count
    created_at: datetime


class QueueDeliveryDetail(QueueDelivery):
    attempts: list[QueueAttempt]


class QueueStatistics(Answer):
    """How much mail is where (mail-server C9): deliveries by state, and since the day began (UTC)."""

    pending: Count
    delivering: Count
    retry: Count
    held: Count
    parked: Count
    delivered: Count
    failed: Count
    uncertain: Count
    cancelled: Count
    suppressed: Count
    bounce_pending: Count
    bounce_processing: Count
    received_today: Count
    sent_today: Count
    next_due_at: datetime | None


def untitled(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without the titles that pydantic makes of names, and without defaults that only say "not given"."""
    if isinstance(schema.get("title"), str):
        schema.pop("title")
    if schema.get("default", ...) is None:
        schema.pop("default")
    for value in schema.values():
        for inner in value if isinstance(value, list) else (value,):
            if isinstance(inner, dict):
                untitled(inner)
    return schema
