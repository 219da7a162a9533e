"""What the server is sent.

Made by scripts/sdk.py from the server's OpenAPI document; change the server, then run it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NotRequired, TypedDict

from . import values


class AccountUpdateRequest(TypedDict):
    """`AccountUpdateRequest` of the API."""

    display_name: str


class AddressCreateRequest(TypedDict):
    """`local_part` has no form here: the rules of local parts answer with codes of their own."""

    local_part: str
    domain_id: str


class AliasCreateRequest(TypedDict):
    """`AliasCreateRequest` of the API."""

    address: str
    target: str


class ApiKeyCreateRequest(TypedDict):
    """`ApiKeyCreateRequest` of the API."""

    name: str
    level: values.Level
    partner_id: NotRequired[str]
    tenant_id: NotRequired[str]
    identity_id: NotRequired[str]
    permissions: Sequence[values.Permission]
    expires_at: NotRequired[datetime | str | None]


class AppPasswordCreateRequest(TypedDict):
    """`totp`: a code of the app, or a recovery code; wanted where two-step verification is on."""

    label: str
    current_password: str
    totp: NotRequired[str]


class AssertionResponse(TypedDict):
    """`AssertionResponse` of the API."""

    clientDataJSON: str
    authenticatorData: str
    signature: str
    userHandle: NotRequired[str | None]


class AttachmentInput(TypedDict):
    """`AttachmentInput` of the API."""

    filename: str
    content_type: str
    content_base64: str
    disposition: NotRequired[Literal["attachment", "inline"]]
    content_id: NotRequired[str]


class AttestationResponse(TypedDict):
    """`AttestationResponse` of the API."""

    clientDataJSON: str
    attestationObject: str
    transports: NotRequired[Sequence[str]]


class BillingBody(TypedDict):
    """`BillingBody` of the API."""

    mode: NotRequired[Literal["metered", "exempt", "disabled"]]


class BothStepsRequest(TypedDict):
    """`totp`: a code of the app, or a recovery code."""

    password: str
    totp: str


class Consent(TypedDict):
    """`Consent` of the API."""

    basis: str
    recorded_at: datetime | str


class CreatedCredential(TypedDict):
    """What `navigator.credentials.create` gave."""

    id: str
    rawId: NotRequired[str]
    type: Literal["public-key"]
    response: AttestationResponse


class CustomRefPatternInput(TypedDict):
    """`CustomRefPatternInput` of the API."""

    name: str
    pattern: str
    normalise: NotRequired[str]


class DeviceBody(TypedDict):
    """`DeviceBody` of the API."""

    device_uid: str
    name: str
    platform: NotRequired[str]
    client_version: NotRequired[str]


class ExpungeMessagesRequest(TypedDict):
    """`ExpungeMessagesRequest` of the API."""

    ids: Sequence[str]
    operation_id: NotRequired[str]


class FlagMessagesRequest(TypedDict):
    """`$seen`, `$answered`, `$flagged`, `$deleted`, `$draft`, and keywords, which are labels when they have no `$`.
    `set` is all that they have then; else what is in `add` and in `remove` is there afterwards.
    """

    ids: Sequence[str]
    operation_id: NotRequired[str]
    add: NotRequired[Sequence[str]]
    remove: NotRequired[Sequence[str]]
    set: NotRequired[Sequence[str]]


class FolderCreateRequest(TypedDict):
    """`name` is the whole path, `/` between its parts; with `parent_id` it stands below that folder. Parents that are
    missing are made, too.
    """

    name: str
    parent_id: NotRequired[str | None]
    special_use: NotRequired[values.SpecialUse]
    subscribed: NotRequired[bool]


class FolderUpdateRequest(TypedDict):
    """What is left out stays as it is. `parent_id` moves the folder below another one, or (null) to the top; `name` is
    then what it is called there, else its whole path. What is below it goes along.
    """

    name: NotRequired[str]
    parent_id: NotRequired[str | None]
    subscribed: NotRequired[bool]


class ForwardRequest(TypedDict):
    """`ForwardRequest` of the API."""

    text: NotRequired[str | None]
    html: NotRequired[str | None]
    attachments: NotRequired[Sequence[AttachmentInput]]
    labels: NotRequired[Sequence[str]]
    headers: NotRequired[Mapping[str, str]]
    metadata: NotRequired[Mapping[str, str]]
    to: Sequence[str | NamedRecipient]
    cc: NotRequired[Sequence[str | NamedRecipient]]
    bcc: NotRequired[Sequence[str | NamedRecipient]]
    include_attachments: NotRequired[bool]


class GrantPutRequest(TypedDict):
    """`GrantPutRequest` of the API."""

    role: Literal["owner", "full", "read"]


class IdentityCreateRequest(TypedDict):
    """`IdentityCreateRequest` of the API."""

    username: str
    display_name: str
    purpose: NotRequired[str]
    owner: NotRequired[IdentitiesOwnerBody]
    signature: NotRequired[SignatureBody]
    domain_id: NotRequired[str]
    client_id: NotRequired[str]
    send_policy: NotRequired[SendPolicyBody]
    metadata: NotRequired[Mapping[str, str]]


class IdentityUpdateRequest(TypedDict):
    """What is left out stays as it is. `owner` and `metadata` are replaced whole, of `signature` and `send_policy`
    what is given.
    """

    display_name: NotRequired[str]
    purpose: NotRequired[str | None]
    owner: NotRequired[IdentitiesOwnerBody]
    signature: NotRequired[SignatureBody]
    metadata: NotRequired[Mapping[str, str]]
    send_policy: NotRequired[SendPolicyBody]
    status: NotRequired[Literal["active", "paused"]]


class InvitationAcceptRequest(TypedDict):
    """`code`: that of the mail; `password`: a new one, for whoever's address nobody has proved yet (`403`
    `permission_denied`, reason `address_unproven`, says so). Nothing that signed in before does then, but the
    password.
    """

    code: str
    password: NotRequired[str]


class InvitationCreateRequest(TypedDict):
    """`InvitationCreateRequest` of the API."""

    email: str
    role: Literal["admin", "member", "viewer"]


class InvitationJoinRequest(TypedDict):
    """`code`: that of the mail; `password`: what to sign in with from then on, with the address that was invited."""

    code: str
    display_name: str
    password: str


class ListEntryPutRequest(TypedDict):
    """`ListEntryPutRequest` of the API."""

    note: NotRequired[str | None]


class MessageUpdateRequest(TypedDict):
    """`MessageUpdateRequest` of the API."""

    labels_add: NotRequired[Sequence[str]]
    labels_remove: NotRequired[Sequence[str]]
    read: NotRequired[bool]


class NamedRecipient(TypedDict):
    """`NamedRecipient` of the API."""

    address: str
    name: NotRequired[str]


class PartnerCreateRequest(TypedDict):
    """`PartnerCreateRequest` of the API."""

    name: str
    default_billing_mode: NotRequired[Literal["exempt", "metered"]]
    max_tenants: NotRequired[int]
    ramp_exempt: NotRequired[bool]


class PartnerUpdateRequest(TypedDict):
    """What is left out stays as it is."""

    name: NotRequired[str]
    status: NotRequired[Literal["active", "suspended"]]
    default_billing_mode: NotRequired[Literal["exempt", "metered"]]
    max_tenants: NotRequired[int]
    ramp_exempt: NotRequired[bool]


class PasskeyCreateRequest(TypedDict):
    """`PasskeyCreateRequest` of the API."""

    name: str
    credential: CreatedCredential


class PasskeyOptionsRequest(TypedDict):
    """`totp`: a code of the app, or a recovery code; wanted where two-step verification is on."""

    current_password: str
    totp: NotRequired[str]


class PasskeySessionCreateRequest(TypedDict):
    """`PasskeySessionCreateRequest` of the API."""

    credential: ShownCredential
    kind: NotRequired[Literal["web", "client", "console"]]
    device: NotRequired[DeviceBody]


class PasskeyUpdateRequest(TypedDict):
    """`PasskeyUpdateRequest` of the API."""

    name: str


class PasswordChangeRequest(TypedDict):
    """`PasswordChangeRequest` of the API."""

    current_password: str
    new_password: str


class PatchAbuse(TypedDict):
    """`PatchAbuse` of the API."""

    complaint_rate_pause: NotRequired[float | None]
    bounce_rate_pause: NotRequired[float | None]
    tenant_complaint_rate_pause: NotRequired[float | None]
    tenant_bounce_rate_pause: NotRequired[float | None]


class PatchAccounts(TypedDict):
    """`PatchAccounts` of the API."""

    require_approval: NotRequired[bool | None]


class PatchAutoReply(TypedDict):
    """`PatchAutoReply` of the API."""

    allowed: NotRequired[bool | None]
    max_automatic_exchanges: NotRequired[int | None]


class PatchDisclosure(TypedDict):
    """`PatchDisclosure` of the API."""

    mode: NotRequired[Literal["none", "footer", "header"] | None]
    text: NotRequired[str | None]


class PatchDomains(TypedDict):
    """`PatchDomains` of the API."""

    allow_create_zone: NotRequired[bool | None]
    dns_zones: NotRequired[Sequence[str] | None]


class PatchInbound(TypedDict):
    """`PatchInbound` of the API."""

    per_sender_per_hour: NotRequired[int | None]
    unauthenticated_per_hour: NotRequired[int | None]
    per_tenant_per_hour: NotRequired[int | None]
    extract_attachment_text: NotRequired[Sequence[Literal["pdf", "office", "text", "html"]] | None]
    extract_image_text: NotRequired[bool | None]
    ses_bounce_retired: NotRequired[bool | None]


class PatchQuarantine(TypedDict):
    """`PatchQuarantine` of the API."""

    on_auth_fail: NotRequired[bool | None]
    spam_threshold: NotRequired[float | None]
    unsolicited_otp: NotRequired[bool | None]
    key_release: NotRequired[bool | None]


class PatchRetention(TypedDict):
    """`PatchRetention` of the API."""

    raw_days: NotRequired[int | None]
    message_days: NotRequired[int | None]
    events_days: NotRequired[int | None]


class PatchSearch(TypedDict):
    """`PatchSearch` of the API."""

    agentic_enabled: NotRequired[bool | None]
    agentic_daily_cap: NotRequired[int | None]
    agentic_max_steps: NotRequired[int | None]
    agentic_max_seconds: NotRequired[int | None]
    refs_packs: NotRequired[Sequence[Literal["core", "uk_vehicle"]] | None]
    custom_refs: NotRequired[Sequence[CustomRefPatternInput] | None]


class PatchTriage(TypedDict):
    """`PatchTriage` of the API."""

    enabled: NotRequired[bool | None]
    daily_model_cap: NotRequired[int | None]
    categories: NotRequired[Sequence[TriageCategoryDefinitionInput] | None]
    rules: NotRequired[Sequence[TriageRuleInput] | None]


class PatchWebBotAuth(TypedDict):
    """`PatchWebBotAuth` of the API."""

    allowed: NotRequired[bool | None]


class PersonCreateRequest(TypedDict):
    """With `username` they get a mailbox that is theirs, with `role` they are a member of the tenant: one is needed."""

    display_name: str
    username: NotRequired[str]
    role: NotRequired[Literal["admin", "member", "viewer"]]
    contact_email: NotRequired[str]
    password: NotRequired[str]


class PersonUpdateRequest(TypedDict):
    """What is left out stays as it is. A new `password`, and `enabled: false`, end whatever they are signed in to."""

    display_name: NotRequired[str]
    enabled: NotRequired[bool]
    password: NotRequired[str]


class PromoteAddressRequest(TypedDict):
    """`PromoteAddressRequest` of the API."""

    retire_previous_after_days: NotRequired[int]


class RecoverRequest(TypedDict):
    """`RecoverRequest` of the API."""

    email: str
    password: str
    recovery_code: str


class ReplayByIds(TypedDict):
    """`ReplayByIds` of the API."""

    event_ids: Sequence[str]


class ReplayByRange(TypedDict):
    """`since` ≤ when it happened < `until`; `status`: how it went for this endpoint so far."""

    since: datetime | str
    until: NotRequired[datetime | str]
    status: NotRequired[Literal["succeeded", "failed", "dead"]]


class ReplyRequest(TypedDict):
    """`ReplyRequest` of the API."""

    text: NotRequired[str | None]
    html: NotRequired[str | None]
    attachments: NotRequired[Sequence[AttachmentInput]]
    labels: NotRequired[Sequence[str]]
    headers: NotRequired[Mapping[str, str]]
    metadata: NotRequired[Mapping[str, str]]
    kind: NotRequired[values.SendKind]
    unsubscribe: NotRequired[Unsubscribe]
    consent: NotRequired[Consent]


class ResolveRequest(TypedDict):
    """`ResolveRequest` of the API."""

    outcome: Literal["sent", "not_sent"]


class RetireAddressRequest(TypedDict):
    """`RetireAddressRequest` of the API."""

    after_days: NotRequired[int]


class RotateRequest(TypedDict):
    """`RotateRequest` of the API."""

    overlap_hours: NotRequired[int]


class SendPolicyBody(TypedDict):
    """`SendPolicyBody` of the API."""

    daily_cap: NotRequired[int]
    auto_reply: NotRequired[Literal["allowed", "denied"]]
    require_known_recipient: NotRequired[bool]


class SendRequest(TypedDict):
    """`SendRequest` of the API."""

    text: NotRequired[str | None]
    html: NotRequired[str | None]
    attachments: NotRequired[Sequence[AttachmentInput]]
    labels: NotRequired[Sequence[str]]
    headers: NotRequired[Mapping[str, str]]
    metadata: NotRequired[Mapping[str, str]]
    kind: NotRequired[values.SendKind]
    unsubscribe: NotRequired[Unsubscribe]
    consent: NotRequired[Consent]
    to: Sequence[str | NamedRecipient]
    cc: NotRequired[Sequence[str | NamedRecipient]]
    bcc: NotRequired[Sequence[str | NamedRecipient]]
    subject: str
    thread_id: NotRequired[str | None]
    from_address: NotRequired[str | None]


class SessionCreateRequest(TypedDict):
    """`email`: the address of a mailbox that they may open, or their contact address. `totp`: a code of the app, or a
    recovery code.
    """

    email: str
    password: str
    totp: NotRequired[str]
    kind: NotRequired[Literal["web", "client", "console"]]
    device: NotRequired[DeviceBody]


class ShownCredential(TypedDict):
    """What `navigator.credentials.get` gave."""

    id: str
    rawId: NotRequired[str]
    type: Literal["public-key"]
    response: AssertionResponse


class SignatureBody(TypedDict):
    """`SignatureBody` of the API."""

    text: NotRequired[str | None]
    html: NotRequired[str | None]


class SwitchUpdate(TypedDict):
    """`SwitchUpdate` of the API."""

    name: Literal["read_only", "free_sending", "emergency_prune"]
    state: Literal["on", "off"]
    reason: str


class TenantCreateRequest(TypedDict):
    """`TenantCreateRequest` of the API."""

    slug: str
    name: str
    mode: Literal["live", "test"]
    timezone: NotRequired[str]
    address_suffix: NotRequired[str]
    policy: NotRequired[TenantPolicyPatch]
    owner: NotRequired[TenantSchemasOwnerBody]
    billing: NotRequired[BillingBody]


class TenantPolicyPatch(TypedDict):
    """Null is the default again."""

    identity_daily_send_cap: NotRequired[int | None]
    tenant_daily_send_cap: NotRequired[int | None]
    max_recipients: NotRequired[int | None]
    send_allowlist_only: NotRequired[bool | None]
    large_attachments: NotRequired[Literal["refuse", "link"] | None]
    link_ttl_hours: NotRequired[int | None]
    ai_disclosure: NotRequired[PatchDisclosure | None]
    auto_reply: NotRequired[PatchAutoReply | None]
    quarantine: NotRequired[PatchQuarantine | None]
    inbound: NotRequired[PatchInbound | None]
    retention: NotRequired[PatchRetention | None]
    triage: NotRequired[PatchTriage | None]
    search: NotRequired[PatchSearch | None]
    webhook_text_bytes: NotRequired[int | None]
    abuse: NotRequired[PatchAbuse | None]
    domains: NotRequired[PatchDomains | None]
    domain_fallback: NotRequired[bool | None]
    web_bot_auth: NotRequired[PatchWebBotAuth | None]
    accounts: NotRequired[PatchAccounts | None]


class TenantUpdateRequest(TypedDict):
    """What is left out stays as it is."""

    name: NotRequired[str]
    timezone: NotRequired[str]
    policy: NotRequired[TenantPolicyPatch]
    status: NotRequired[Literal["active", "suspended"]]
    sending_paused: NotRequired[Literal[False]]


class ThreadUpdateRequest(TypedDict):
    """`ThreadUpdateRequest` of the API."""

    labels_add: NotRequired[Sequence[str]]
    labels_remove: NotRequired[Sequence[str]]
    read: NotRequired[bool]
    archived: NotRequired[bool]


class TotpConfirmRequest(TypedDict):
    """`TotpConfirmRequest` of the API."""

    code: str


class TotpEnrolRequest(TypedDict):
    """`TotpEnrolRequest` of the API."""

    current_password: str


class TransferMessagesRequest(TypedDict):
    """The target is named by its id, or by its special use."""

    ids: Sequence[str]
    operation_id: NotRequired[str]
    folder_id: NotRequired[str]
    special_use: NotRequired[values.SpecialUse]


class TriageCategoryDefinitionInput(TypedDict):
    """`TriageCategoryDefinitionInput` of the API."""

    name: str
    description: str


class TriageRuleInput(TypedDict):
    """`TriageRuleInput` of the API."""

    id: str
    match: TriageRuleMatchInput
    set: TriageRuleSetInput
    stop: NotRequired[bool]


TriageRuleMatchInput = TypedDict(
    "TriageRuleMatchInput",
    {
        "from": "NotRequired[Sequence[str]]",
        "from_domain": "NotRequired[Sequence[str]]",
        "to_identity": "NotRequired[Sequence[str]]",
        "subject_contains": "NotRequired[Sequence[str]]",
        "body_contains": "NotRequired[Sequence[str]]",
        "has_attachment": "NotRequired[bool]",
        "label": "NotRequired[Sequence[str]]",
    },
)


class TriageRuleSetInput(TypedDict):
    """`TriageRuleSetInput` of the API."""

    category: NotRequired[str]
    labels_add: NotRequired[Sequence[str]]
    urgency_min: NotRequired[int]
    needs_reply: NotRequired[float]
    skip_model: NotRequired[bool]


class Unsubscribe(TypedDict):
    """`Unsubscribe` of the API."""

    url: str
    mailto: NotRequired[str]


class WebhookCreateRequest(TypedDict):
    """Identities None: of every one, and of none."""

    url: str
    events: Sequence[values.EventType | Literal["*"]]
    identity_ids: NotRequired[Sequence[str] | None]
    description: NotRequired[str | None]


class WebhookUpdateRequest(TypedDict):
    """With another `url` nothing is sent until a test of it succeeds."""

    url: NotRequired[str]
    events: NotRequired[Sequence[values.EventType | Literal["*"]]]
    identity_ids: NotRequired[Sequence[str] | None]
    description: NotRequired[str | None]
    enabled: NotRequired[bool]


class IdentitiesOwnerBody(TypedDict):
    """`IdentitiesOwnerBody` of the API."""

    name: str
    email: str


class TenantSchemasOwnerBody(TypedDict):
    """`TenantSchemasOwnerBody` of the API."""

    email: str
    name: NotRequired[str]


ReplayRequest = ReplayByIds | ReplayByRange
