"""What the server answers.

Made by scripts/sdk.py from the server's OpenAPI document; change the server, then run it again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from . import values
from ._decode import Model, named


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AccountMailbox(Model):
    """`AccountMailbox` of the API."""

    identity_id: str
    tenant_id: str
    address: str | None
    display_name: str
    kind: Literal["agent", "person"] | str
    role: Literal["owner", "full", "read"] | str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AccountMailboxPage(Model):
    """`AccountMailboxPage` of the API."""

    data: tuple[AccountMailbox, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AccountView(Model):
    """`AccountView` of the API."""

    person: Person
    totp: TotpStatus
    session: Session


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Address(Model):
    """`Address` of the API."""

    id: str
    identity_id: str
    address: str
    local_part: str
    domain_id: str
    role: Literal["primary", "alias"] | str
    status: Literal["pending", "active", "retiring", "retired"] | str
    retire_at: datetime | None
    retired_at: datetime | None
    forwarding: Literal["unverified", "ok", "failed"] | str | None
    forwarding_checked_at: datetime | None
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AddressPage(Model):
    """`AddressPage` of the API."""

    data: tuple[Address, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Alias(Model):
    """An address without a mailbox, whose mail goes on to `target`."""

    id: str
    tenant_id: str
    address: str
    domain_id: str
    target: str
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AliasPage(Model):
    """`AliasPage` of the API."""

    data: tuple[Alias, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ApiKey(Model):
    """`ApiKey` of the API."""

    id: str
    name: str
    level: values.Level | str
    mode: values.Mode | str
    partner_id: str | None
    tenant_id: str | None
    identity_id: str | None
    permissions: tuple[values.Permission | str, ...]
    created_by_user_id: str | None
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ApiKeyCreated(Model):
    """Exactly one of `secret` and `secret_replayed`: the secret is shown once."""

    id: str
    name: str
    level: values.Level | str
    mode: values.Mode | str
    partner_id: str | None
    tenant_id: str | None
    identity_id: str | None
    permissions: tuple[values.Permission | str, ...]
    created_by_user_id: str | None
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    created_at: datetime
    secret: str | None = None
    secret_replayed: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ApiKeyPage(Model):
    """`ApiKeyPage` of the API."""

    data: tuple[ApiKey, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AppPassword(Model):
    """`AppPassword` of the API."""

    id: str
    label: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AppPasswordCreated(Model):
    """`password` is shown once."""

    id: str
    label: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    password: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AppPasswordPage(Model):
    """`AppPasswordPage` of the API."""

    data: tuple[AppPassword, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Attachment(Model):
    """`Attachment` of the API."""

    id: str
    filename: str | None
    content_type: str
    size: int
    disposition: Literal["attachment", "inline"] | str | None
    text_status: Literal["pending", "ready", "unavailable", "skipped"] | str
    pages: int | None
    risk: (
        Literal["executable", "macro", "encrypted_archive", "archive_bomb", "type_mismatch", "encrypted_document"]
        | str
        | None
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditEvent(Model):
    """`AuditEvent` of the API."""

    id: str
    tenant_id: str | None
    actor_key_id: str | None
    actor_user_id: str | None
    action: str
    target_type: str | None
    target_id: str | None
    details: Mapping[str, Any] | None
    request_id: str | None
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditEventPage(Model):
    """`AuditEventPage` of the API."""

    data: tuple[AuditEvent, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuthenticatorSelection(Model):
    """`AuthenticatorSelection` of the API."""

    residentKey: str
    requireResidentKey: bool
    userVerification: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BackupTimes(Model):
    """`BackupTimes` of the API."""

    last_base_at: datetime | None
    last_wal_at: datetime | None
    last_blob_copy_at: datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CreationOptions(Model):
    """For `PublicKeyCredential.parseCreationOptionsFromJSON`."""

    rp: RelyingPartyEntity
    user: UserEntity
    challenge: str
    pubKeyCredParams: tuple[CredentialParameters, ...]
    timeout: int
    excludeCredentials: tuple[CredentialDescriptor, ...]
    authenticatorSelection: AuthenticatorSelection
    attestation: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CredentialDescriptor(Model):
    """`CredentialDescriptor` of the API."""

    type: str
    id: str
    transports: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CredentialParameters(Model):
    """`CredentialParameters` of the API."""

    type: str
    alg: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CustomRefPattern(Model):
    """`CustomRefPattern` of the API."""

    name: str
    pattern: str
    normalise: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Delivery(Model):
    """`Delivery` of the API."""

    address: str
    field: Literal["to", "cc", "bcc"] | str
    status: (
        Literal[
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
        | str
    )
    smtp_code: str | None
    enhanced_code: str | None
    bounce_type: Literal["hard", "soft"] | str | None
    policy: Literal["send_block", "not_on_allowlist", "unknown_recipient"] | str | None = None
    updated_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Device(Model):
    """`Device` of the API."""

    id: str
    device_uid: str
    name: str
    platform: str | None
    client_version: str | None
    last_seen_at: datetime
    created_at: datetime
    revoked_at: datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DevicePage(Model):
    """`DevicePage` of the API."""

    data: tuple[Device, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DlqItem(Model):
    """`DlqItem` of the API."""

    id: str
    queue: Literal["inbound", "outbound", "delivery-events", "webhooks", "index"] | str
    kind: str | None
    tenant_id: str | None
    first_seen_at: datetime
    redriven_at: datetime | None
    redrive_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DlqItemPage(Model):
    """`DlqItemPage` of the API."""

    data: tuple[DlqItem, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DryRunRecipient(Model):
    """`DryRunRecipient` of the API."""

    address: str
    field: Literal["to", "cc", "bcc"] | str
    status: Literal["queued", "suppressed"] | str
    reason: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DryRunResult(Model):
    """`DryRunResult` of the API."""

    would_send: bool
    recipients: tuple[DryRunRecipient, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ErasureHeldItem(Model):
    """`ErasureHeldItem` of the API."""

    thread_id: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ErasureProbe(Model):
    """`ErasureProbe` of the API."""

    keyword_hits: int
    semantic_hits: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ErasureReceipt(Model):
    """`ErasureReceipt` of the API."""

    messages_deleted: int
    attachments_deleted: int
    blobs_deleted: int
    fts_rows_deleted: int
    refs_deleted: int
    vectors_deleted: int
    events_deleted: int
    identities_affected: tuple[str, ...]
    held: tuple[ErasureHeldItem, ...]
    probe: ErasureProbe


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ErasureRequest(Model):
    """`ErasureRequest` of the API."""

    id: str
    tenant_id: str
    scope: Literal["message", "thread", "counterparty", "identity", "tenant"] | str
    status: Literal["queued", "running", "completed", "completed_with_holds", "failed", "canceled"] | str
    identity_id: str | None
    target_id: str | None
    resumes_id: str | None
    created_at: datetime
    deadline_at: datetime
    completed_at: datetime | None
    receipt: ErasureReceipt | None
    created_by_key_id: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Event(Model):
    """An event: the same bytes that webhooks get. The reference of events has the schema of each type's `data`."""

    id: str
    type: str
    api_version: str
    occurred_at: datetime
    tenant_id: str | None
    identity_id: str | None
    sequence: int | None
    data: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EventPage(Model):
    """`EventPage` of the API."""

    data: tuple[Event, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FiringAlert(Model):
    """`FiringAlert` of the API."""

    alert: str
    severity: Literal["page", "ticket"] | str
    fired_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Folder(Model):
    """A folder. `name` is the whole path; `uid_validity` and `uid_next` are those of IMAP."""

    id: str
    identity_id: str
    name: str
    parent_id: str | None
    special_use: values.SpecialUse | str | None
    subscribed: bool
    message_count: int
    unseen_count: int
    total_bytes: int
    uid_validity: int
    uid_next: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FolderPage(Model):
    """`FolderPage` of the API."""

    data: tuple[Folder, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Grant(Model):
    """`Grant` of the API."""

    identity_id: str
    person_id: str
    role: Literal["owner", "full", "read"] | str
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GrantPage(Model):
    """`GrantPage` of the API."""

    data: tuple[Grant, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Health(Model):
    """`Health` of the API."""

    status: Literal["ok", "degraded"] | str
    version: str
    commit: str
    env: Literal["production", "staging", "local"] | str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Identity(Model):
    """`Identity` of the API."""

    id: str
    tenant_id: str
    username: str
    display_name: str
    purpose: str | None
    status: values.IdentityStatus | str
    pause_reason: Literal["manual", "abuse_threshold", "tenant_suspended"] | str | None
    primary_address: str
    addresses: tuple[Address, ...]
    owner: IdentityOwner | None
    signature: IdentitySignature | None
    send_policy: IdentitySendPolicy
    metadata: Mapping[str, str]
    client_id: str | None
    created_at: datetime
    updated_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IdentityOwner(Model):
    """`IdentityOwner` of the API."""

    name: str
    email: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IdentityPage(Model):
    """`IdentityPage` of the API."""

    data: tuple[Identity, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IdentitySendPolicy(Model):
    """`IdentitySendPolicy` of the API."""

    daily_cap: int | None = None
    auto_reply: Literal["allowed", "denied"] | str | None = None
    require_known_recipient: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IdentitySignature(Model):
    """`IdentitySignature` of the API."""

    text: str | None = None
    html: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Invitation(Model):
    """`Invitation` of the API."""

    id: str
    email: str
    role: Literal["admin", "member", "viewer"] | str
    invited_by: str | None
    expires_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JoinedTenant(Model):
    """`JoinedTenant` of the API."""

    user_id: str
    tenant_id: str
    tenant_name: str
    role: Literal["owner", "admin", "member", "viewer"] | str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ListEntry(Model):
    """`ListEntry` of the API."""

    direction: values.ListDirection | str
    kind: values.ListKind | str
    entry: str
    note: str | None
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ListEntryPage(Model):
    """`ListEntryPage` of the API."""

    data: tuple[ListEntry, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MailboxAddress(Model):
    """`MailboxAddress` of the API."""

    address: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MasterKey(Model):
    """`MasterKey` of the API."""

    active_slot: Literal["a", "b"] | str
    slots: tuple[MasterKeySlot, ...]
    remaining: int
    activated_at: datetime | None
    resealed_at: datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MasterKeySlot(Model):
    """`MasterKeySlot` of the API."""

    slot: Literal["a", "b"] | str
    present: bool
    kid: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Me(Model):
    """`Me` of the API."""

    key_id: str
    name: str
    level: values.Level | str
    mode: values.Mode | str
    partner_id: str | None
    tenant_id: str | None
    identity_id: str | None
    permissions: tuple[values.Permission | str, ...]
    expires_at: datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Member(Model):
    """`Member` of the API."""

    user_id: str
    email: str
    name: str | None
    role: Literal["owner", "admin", "member", "viewer"] | str
    last_login_at: datetime | None
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemberList(Model):
    """`MemberList` of the API."""

    data: tuple[Member, ...]
    invitations: tuple[Invitation, ...]
    seats: Seats


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Message(Model):
    """All text is untrusted content."""

    id: str
    thread_id: str
    identity_id: str
    direction: values.Direction | str
    status: values.MessageStatus | str
    from_: MailboxAddress | None = dataclasses.field(metadata=named("from"))
    to: tuple[MailboxAddress, ...]
    cc: tuple[MailboxAddress, ...]
    bcc: tuple[MailboxAddress, ...]
    reply_to: tuple[MailboxAddress, ...]
    delivered_to: str | None
    is_primary_recipient: bool | None
    subject: str | None
    sent_at: datetime | None
    received_at: datetime
    extracted_text: str | None
    text: str | None
    html: str | None
    headers: tuple[MessageHeader, ...] | None = None
    attachments: tuple[Attachment, ...]
    labels: tuple[str, ...]
    read: bool | None = None
    kind: (
        Literal["normal", "automated", "dsn", "list", "calendar", "mdn", "transactional", "marketing", "auto_reply"]
        | str
    )
    trust: Trust | None
    triage: Triage | None
    quarantine_reason: (
        Literal[
            "auth_failed",
            "auth_unverified",
            "spam",
            "risky_attachment",
            "blocked_sender",
            "otp_unsolicited",
            "account_unapproved",
        ]
        | str
        | None
    ) = None
    refs: tuple[Ref, ...]
    rfc_message_id: str | None
    in_reply_to: str | None
    provider_message_id: str | None = None
    deliveries: tuple[Delivery, ...] | None
    flags: tuple[
        Literal[
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
        | str,
        ...,
    ]
    metadata: Mapping[str, str]
    placements: tuple[Placement, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MessageHeader(Model):
    """`MessageHeader` of the API."""

    name: str
    value: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MessagePage(Model):
    """`MessagePage` of the API."""

    data: tuple[Message, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MessageResult(Model):
    """What became of one message. `unchanged`: it was so already; `in_use`: it is still to be sent, and stays."""

    id: str
    result: (
        Literal["moved", "copied", "expunged", "changed", "unchanged", "not_found", "in_use", "limit_exceeded"] | str
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MessageResults(Model):
    """In the order of `ids`, each once."""

    data: tuple[MessageResult, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Partner(Model):
    """`Partner` of the API."""

    id: str
    name: str
    status: Literal["active", "suspended", "deleted"] | str
    default_billing_mode: Literal["exempt", "metered"] | str
    max_tenants: int
    ramp_exempt: bool
    created_at: datetime
    updated_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PartnerPage(Model):
    """`PartnerPage` of the API."""

    data: tuple[Partner, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Passkey(Model):
    """`backup_eligible`: it can be on several devices; `backed_up`: it is, as far as it said when it was used last."""

    id: str
    name: str
    transports: tuple[str, ...]
    backup_eligible: bool
    backed_up: bool
    created_at: datetime
    last_used_at: datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PasskeyCreationOptions(Model):
    """The answer counts once, until `expires_at`."""

    public_key: CreationOptions
    expires_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PasskeyPage(Model):
    """`PasskeyPage` of the API."""

    data: tuple[Passkey, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PasskeyRequestOptions(Model):
    """The answer counts once, until `expires_at`."""

    public_key: RequestOptions
    expires_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Person(Model):
    """`Person` of the API."""

    id: str
    display_name: str
    contact_email: str | None
    is_operator: bool
    enabled: bool
    has_password: bool
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PersonPage(Model):
    """`PersonPage` of the API."""

    data: tuple[Person, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Placement(Model):
    """A place where a message stands. `flags`: `$seen`, `$answered`, `$flagged`, `$deleted`, `$draft`, and keywords;
    those without `$` are labels.
    """

    folder_id: str
    uid: int
    flags: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlatformCapacity(Model):
    """`PlatformCapacity` of the API."""

    db_bytes: int | None
    db_pct: float | None
    blob_bytes: int | None
    blob_pct: float | None
    vectors: int | None
    vectors_pct: float | None
    tenants: int
    measured_at: datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlatformNode(Model):
    """`PlatformNode` of the API."""

    id: str
    roles: tuple[str, ...]
    version: str
    kids: tuple[str, ...]
    last_seen_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlatformStatus(Model):
    """`PlatformStatus` of the API."""

    frozen: bool
    frozen_since: datetime | None
    switches: SwitchStates
    alert_email: Literal["configured", "missing"] | str
    firing: tuple[FiringAlert, ...]
    master_key: MasterKey
    capacity: PlatformCapacity
    nodes: tuple[PlatformNode, ...] | None = None
    backup: BackupTimes | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicyAbuse(Model):
    """`PolicyAbuse` of the API."""

    complaint_rate_pause: float
    bounce_rate_pause: float
    tenant_complaint_rate_pause: float
    tenant_bounce_rate_pause: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicyAccounts(Model):
    """`PolicyAccounts` of the API."""

    require_approval: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicyAutoReply(Model):
    """`PolicyAutoReply` of the API."""

    allowed: bool
    max_automatic_exchanges: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicyDisclosure(Model):
    """`PolicyDisclosure` of the API."""

    mode: Literal["none", "footer", "header"] | str
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicyDomains(Model):
    """`PolicyDomains` of the API."""

    allow_create_zone: bool
    dns_zones: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicyFieldAccess(Model):
    """`PolicyFieldAccess` of the API."""

    field: str
    class_: Literal["platform_only", "partner_or_platform", "lower_only", "guard", "free"] | str = dataclasses.field(
        metadata=named("class")
    )
    writable: bool
    ceiling: float | bool | None
    ceiling_source: Literal["deployment", "platform", "partner"] | str | None
    person_required_to_loosen: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicyInbound(Model):
    """`PolicyInbound` of the API."""

    per_sender_per_hour: int
    unauthenticated_per_hour: int
    per_tenant_per_hour: int
    extract_attachment_text: tuple[Literal["pdf", "office", "text", "html"] | str, ...]
    extract_image_text: bool
    ses_bounce_retired: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicyQuarantine(Model):
    """`PolicyQuarantine` of the API."""

    on_auth_fail: bool
    spam_threshold: float
    unsolicited_otp: bool
    key_release: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicyRetention(Model):
    """`PolicyRetention` of the API."""

    raw_days: int
    message_days: int | None
    events_days: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicySearch(Model):
    """`PolicySearch` of the API."""

    agentic_enabled: bool
    agentic_daily_cap: int
    agentic_max_steps: int
    agentic_max_seconds: int
    refs_packs: tuple[Literal["core", "uk_vehicle"] | str, ...]
    custom_refs: tuple[CustomRefPattern, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicyTriage(Model):
    """`PolicyTriage` of the API."""

    enabled: bool
    daily_model_cap: int
    categories: tuple[TriageCategoryDefinition, ...] | None
    rules: tuple[TriageRule, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PolicyWebBotAuth(Model):
    """`PolicyWebBotAuth` of the API."""

    allowed: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PreviousSigningKey(Model):
    """`PreviousSigningKey` of the API."""

    kid: str
    verify_until: datetime
    revoked: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QueueAttempt(Model):
    """`QueueAttempt` of the API."""

    attempt: int
    remote_mx: str | None
    status_code: int | None
    status_text: str | None
    error: str | None
    duration_ms: int
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QueueDelivery(Model):
    """A delivery as operators see it (mail-server C1, C2): who, where to and how far, never what is in the mail."""

    id: int
    state: values.QueueState | str
    status: (
        Literal[
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
            "canceled",
        ]
        | str
    )
    tenant_id: str
    identity_id: str
    message_id: str
    sender: str
    recipient: str
    route: values.RouteKind | str
    destination: str
    size: int
    tries: int
    reason: str | None
    smtp_code: int | None
    enhanced_code: str | None
    smtp_response: str | None
    remote_mx: str | None
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QueueDeliveryDetail(Model):
    """`QueueDeliveryDetail` of the API."""

    id: int
    state: values.QueueState | str
    status: (
        Literal[
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
            "canceled",
        ]
        | str
    )
    tenant_id: str
    identity_id: str
    message_id: str
    sender: str
    recipient: str
    route: values.RouteKind | str
    destination: str
    size: int
    tries: int
    reason: str | None
    smtp_code: int | None
    enhanced_code: str | None
    smtp_response: str | None
    remote_mx: str | None
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    created_at: datetime
    updated_at: datetime
    attempts: tuple[QueueAttempt, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QueueDeliveryPage(Model):
    """`QueueDeliveryPage` of the API."""

    data: tuple[QueueDelivery, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QueueStatistics(Model):
    """How much mail is where (mail-server C9): deliveries by state, and since the day began (UTC)."""

    pending: int
    delivering: int
    retry: int
    held: int
    parked: int
    delivered: int
    failed: int
    uncertain: int
    cancelled: int
    suppressed: int
    bounce_pending: int
    bounce_processing: int
    received_today: int
    sent_today: int
    next_due_at: datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Readiness(Model):
    """Whether what a request needs can be reached."""

    status: str
    database: str
    blobs: str
    migrations: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecoveryCodes(Model):
    """Shown once."""

    recovery_codes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ref(Model):
    """`Ref` of the API."""

    kind: str
    value: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RelyingPartyEntity(Model):
    """`RelyingPartyEntity` of the API."""

    id: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReplayResponse(Model):
    """`ReplayResponse` of the API."""

    queued: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RequestOptions(Model):
    """For `PublicKeyCredential.parseRequestOptionsFromJSON`."""

    challenge: str
    timeout: int
    rpId: str
    userVerification: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Seats(Model):
    """`Seats` of the API."""

    granted: int | None
    used: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SendResponse(Model):
    """The message that was accepted; `deduplicated` when an earlier request with the same key did it."""

    id: str
    thread_id: str
    identity_id: str
    direction: values.Direction | str
    status: values.MessageStatus | str
    from_: MailboxAddress | None = dataclasses.field(metadata=named("from"))
    to: tuple[MailboxAddress, ...]
    cc: tuple[MailboxAddress, ...]
    bcc: tuple[MailboxAddress, ...]
    reply_to: tuple[MailboxAddress, ...]
    delivered_to: str | None
    is_primary_recipient: bool | None
    subject: str | None
    sent_at: datetime | None
    received_at: datetime
    extracted_text: str | None
    text: str | None
    html: str | None
    headers: tuple[MessageHeader, ...] | None = None
    attachments: tuple[Attachment, ...]
    labels: tuple[str, ...]
    read: bool | None = None
    kind: (
        Literal["normal", "automated", "dsn", "list", "calendar", "mdn", "transactional", "marketing", "auto_reply"]
        | str
    )
    trust: Trust | None
    triage: Triage | None
    quarantine_reason: (
        Literal[
            "auth_failed",
            "auth_unverified",
            "spam",
            "risky_attachment",
            "blocked_sender",
            "otp_unsolicited",
            "account_unapproved",
        ]
        | str
        | None
    ) = None
    refs: tuple[Ref, ...]
    rfc_message_id: str | None
    in_reply_to: str | None
    provider_message_id: str | None = None
    deliveries: tuple[Delivery, ...] | None
    flags: tuple[
        Literal[
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
        | str,
        ...,
    ]
    metadata: Mapping[str, str]
    placements: tuple[Placement, ...] | None = None
    deduplicated: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Session(Model):
    """`Session` of the API."""

    id: str
    kind: Literal["web", "client", "console"] | str
    current: bool
    second_factor: bool
    app_password: bool
    passkey: bool
    device_id: str | None
    ip: str | None
    user_agent: str | None
    authenticated_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    ends_at: datetime
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SessionPage(Model):
    """`SessionPage` of the API."""

    data: tuple[Session, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SignedIn(Model):
    """`token` is the bearer of what follows; it is shown once."""

    token: str
    session: Session
    person: Person


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SigningKeyRotation(Model):
    """Key material is never returned."""

    purpose: values.Purpose | str
    kid: str
    created_at: datetime
    previous: PreviousSigningKey | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Switch(Model):
    """`Switch` of the API."""

    name: Literal["read_only", "free_sending", "emergency_prune"] | str
    state: Literal["on", "off"] | str
    set_by: Literal["auto", "platform"] | str
    reason: str
    set_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SwitchStates(Model):
    """`SwitchStates` of the API."""

    read_only: Literal["on", "off"] | str
    free_sending: Literal["on", "off"] | str
    emergency_prune: Literal["on", "off"] | str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tenant(Model):
    """`Tenant` of the API."""

    id: str
    slug: str
    name: str
    mode: Literal["live", "test"] | str
    status: Literal["active", "suspended", "erasing", "erased"] | str
    suspended_by: Literal["platform", "partner"] | str | None
    partner_id: str | None
    address_suffix: str
    timezone: str
    policy: TenantPolicy
    sending_paused_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TenantPage(Model):
    """`TenantPage` of the API."""

    data: tuple[Tenant, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TenantPolicy(Model):
    """`TenantPolicy` of the API."""

    identity_daily_send_cap: int
    tenant_daily_send_cap: int
    max_recipients: int
    send_allowlist_only: bool
    large_attachments: Literal["refuse", "link"] | str
    link_ttl_hours: int
    ai_disclosure: PolicyDisclosure
    auto_reply: PolicyAutoReply
    quarantine: PolicyQuarantine
    inbound: PolicyInbound
    retention: PolicyRetention
    triage: PolicyTriage
    search: PolicySearch
    webhook_text_bytes: int
    abuse: PolicyAbuse
    domains: PolicyDomains
    domain_fallback: bool
    web_bot_auth: PolicyWebBotAuth
    accounts: PolicyAccounts


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TenantPolicyView(Model):
    """`TenantPolicyView` of the API."""

    tenant_id: str
    policy_version: int
    policy: TenantPolicy
    fields: tuple[PolicyFieldAccess, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Thread(Model):
    """`Thread` of the API."""

    id: str
    subject: str
    participants: tuple[MailboxAddress, ...]
    message_count: int
    unread_count: int
    first_at: datetime
    last_at: datetime
    last_inbound_at: datetime | None
    last_direction: values.Direction | str
    snippet: str
    labels: tuple[str, ...]
    category: str | None
    needs_reply: float | None
    urgency: int | None
    archived: bool | None = None
    hold: ThreadHold | None
    messages: tuple[Message, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ThreadHold(Model):
    """`ThreadHold` of the API."""

    reason: str
    until: datetime | None
    set_by: str | None
    set_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ThreadPage(Model):
    """`ThreadPage` of the API."""

    data: tuple[ThreadSummary, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ThreadSummary(Model):
    """`ThreadSummary` of the API."""

    id: str
    subject: str
    participants: tuple[MailboxAddress, ...]
    message_count: int
    unread_count: int
    first_at: datetime
    last_at: datetime
    last_inbound_at: datetime | None
    last_direction: values.Direction | str
    snippet: str
    labels: tuple[str, ...]
    category: str | None
    needs_reply: float | None
    urgency: int | None
    archived: bool | None = None
    hold: ThreadHold | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TotpEnrolment(Model):
    """Shown once. `uri` is what apps read from a picture."""

    secret: str
    uri: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TotpStatus(Model):
    """`TotpStatus` of the API."""

    status: Literal["disabled", "pending", "enabled"] | str
    recovery_codes_left: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Triage(Model):
    """`Triage` of the API."""

    status: Literal["pending", "done", "skipped", "failed"] | str
    category: str | None
    needs_reply: float | None
    urgency: int | None
    summary: str | None
    language: str | None
    risk_flags: tuple[
        Literal[
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
        | str,
        ...,
    ]
    model: str | None
    version: int
    run: int
    reason: (
        Literal[
            "allowance",
            "policy_disabled",
            "not_eligible",
            "ai_unavailable",
            "invalid_output",
            "model_unavailable",
            "input_unavailable",
        ]
        | str
        | None
    ) = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TriageCategoryDefinition(Model):
    """`TriageCategoryDefinition` of the API."""

    name: str
    description: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TriageRule(Model):
    """`TriageRule` of the API."""

    id: str
    match: TriageRuleMatch
    set: TriageRuleSet
    stop: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TriageRuleMatch(Model):
    """`TriageRuleMatch` of the API."""

    from_: tuple[str, ...] | None = dataclasses.field(default=None, metadata=named("from"))
    from_domain: tuple[str, ...] | None = None
    to_identity: tuple[str, ...] | None = None
    subject_contains: tuple[str, ...] | None = None
    body_contains: tuple[str, ...] | None = None
    has_attachment: bool | None = None
    label: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TriageRuleSet(Model):
    """`TriageRuleSet` of the API."""

    category: str | None = None
    labels_add: tuple[str, ...] | None = None
    urgency_min: int | None = None
    needs_reply: float | None = None
    skip_model: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Trust(Model):
    """`Trust` of the API."""

    verdict: Literal["pass", "fail", "softfail", "none", "unaligned", "unverified"] | str
    spf: Literal["pass", "fail", "softfail", "neutral", "none", "temperror", "permerror", "policy"] | str
    dkim: Literal["pass", "fail", "softfail", "neutral", "none", "temperror", "permerror", "policy"] | str
    dmarc: Literal["pass", "fail", "softfail", "neutral", "none", "temperror", "permerror", "policy"] | str
    arc: Literal["pass", "fail", "softfail", "neutral", "none", "temperror", "permerror", "policy"] | str
    known_sender: bool
    quarantined: bool
    spam_score: float | None
    automated: bool
    flags: tuple[
        Literal[
            "hidden_text",
            "display_name_spoof",
            "lookalike_domain",
            "reply_to_mismatch",
            "thread_join_unverified",
            "shared_domain_sender",
        ]
        | str,
        ...,
    ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UserEntity(Model):
    """`UserEntity` of the API."""

    id: str
    name: str
    displayName: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verification(Model):
    """`Verification` of the API."""

    code: str | None
    link: str | None
    sender_domain: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WaitResponse(Model):
    """`WaitResponse` of the API."""

    message: Message | None
    verification: Verification | None
    timed_out: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Webhook(Model):
    """`Webhook` of the API."""

    id: str
    scope: Literal["platform", "partner", "tenant"] | str
    partner_id: str | None
    tenant_id: str | None
    url: str
    events: tuple[values.EventType | str | str, ...]
    identity_ids: tuple[str, ...] | None
    description: str | None
    enabled: bool
    disabled_reason: Literal["manual", "failing", "url_changed"] | str | None
    created_at: datetime
    updated_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WebhookCreated(Model):
    """Exactly one of `secret` and `secret_replayed`: the secret is shown once."""

    id: str
    scope: Literal["platform", "partner", "tenant"] | str
    partner_id: str | None
    tenant_id: str | None
    url: str
    events: tuple[values.EventType | str | str, ...]
    identity_ids: tuple[str, ...] | None
    description: str | None
    enabled: bool
    disabled_reason: Literal["manual", "failing", "url_changed"] | str | None
    created_at: datetime
    updated_at: datetime
    secret: str | None = None
    secret_replayed: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WebhookDelivery(Model):
    """An attempt."""

    id: str
    webhook_id: str
    event_id: str
    event_type: values.EventType | str
    attempt: int
    status: Literal["succeeded", "failed", "dead"] | str
    http_status: int | None
    error: str | None
    duration_ms: int | None
    next_attempt_at: datetime | None
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WebhookDeliveryPage(Model):
    """`WebhookDeliveryPage` of the API."""

    data: tuple[WebhookDelivery, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WebhookPage(Model):
    """`WebhookPage` of the API."""

    data: tuple[Webhook, ...]
    next_cursor: str | None
