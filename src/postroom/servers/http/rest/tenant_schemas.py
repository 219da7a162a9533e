"""Tenants, their policy and partners as they are documented (rest-api §6.7, §6.9), and the bodies that ask for them.

What a policy may be is decided where it is written (`accounts.policy`), on the document as it came: the classes here
say to clients what that is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from postroom.servers.http import fields
from postroom.servers.http.fields import NotNull

Mode = Literal["live", "test"]
TenantStatus = Literal["active", "suspended", "erasing", "erased"]
PartnerStatus = Literal["active", "suspended", "deleted"]
PartnerBilling = Literal["exempt", "metered"]
NonEmpty = Annotated[StrictStr, StringConstraints(min_length=1, max_length=fields.MAX_TEXT), fields.Storable]
Slug = Annotated[StrictStr, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{1,31}$")]
Suffix = Annotated[StrictStr, StringConstraints(pattern=r"^(\.[a-z0-9][a-z0-9-]{1,31})?$")]
Count = Annotated[StrictInt, Field(ge=0)]
Rate = Annotated[StrictInt, Field(ge=1)]
Recipients = Annotated[StrictInt, Field(ge=1, le=49)]
Hours = Annotated[StrictInt, Field(ge=1, le=168)]
EventDays = Annotated[StrictInt, Field(ge=1, le=365)]
Steps = Annotated[StrictInt, Field(ge=2, le=10)]
Seconds = Annotated[StrictInt, Field(ge=3, le=30)]
TextBytes = Annotated[StrictInt, Field(ge=0, le=65_536)]
Share = Annotated[float, Field(ge=0, le=1)]
Attachments = Literal["refuse", "link"]
Disclosure = Literal["none", "footer", "header"]
_UNIQUE = Field(json_schema_extra={"uniqueItems": True})
TextKinds = Annotated[list[Literal["pdf", "office", "text", "html"]], _UNIQUE]
Packs = Annotated[list[Literal["core", "uk_vehicle"]], _UNIQUE]
Zone = Annotated[StrictStr, StringConstraints(pattern=r"^[a-z0-9.-]{1,253}$")]
Zones = Annotated[list[Zone], Field(max_length=50, json_schema_extra={"uniqueItems": True})]
Words = Annotated[list[Annotated[StrictStr, StringConstraints(min_length=1, max_length=200)]], Field(max_length=20)]


class _Closed(fields.RequestBody):
    """Nothing in it is passed over: a member with a slip in its name would be a rule that does not hold."""

    model_config = ConfigDict(extra="forbid", frozen=True, regex_engine="rust-regex", populate_by_name=True)


class TriageCategoryDefinition(fields.RequestBody):
    name: NonEmpty
    description: NonEmpty


class TriageRuleMatch(_Closed):
    from_: Annotated[list[fields.EmailAddress] | None, NotNull(), Field(max_length=20, alias="from")] = None
    from_domain: Annotated[Words | None, NotNull()] = None
    to_identity: Annotated[Words | None, NotNull()] = None
    subject_contains: Annotated[Words | None, NotNull()] = None
    body_contains: Annotated[Words | None, NotNull()] = None
    has_attachment: Annotated[StrictBool | None, NotNull()] = None
    label: Annotated[list[fields.StrictLabel] | None, NotNull(), Field(max_length=20)] = None


class TriageRuleSet(_Closed):
    category: Annotated[NonEmpty | None, NotNull()] = None
    labels_add: Annotated[list[fields.StrictLabel] | None, NotNull(), Field(max_length=10)] = None
    urgency_min: Annotated[Annotated[StrictInt, Field(ge=0, le=3)] | None, NotNull()] = None
    needs_reply: Annotated[Share | None, NotNull()] = None
    skip_model: Annotated[StrictBool | None, NotNull()] = None


class TriageRule(_Closed):
    id: Annotated[StrictStr, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,47}$")]
    match: TriageRuleMatch
    set: TriageRuleSet
    stop: StrictBool = False


class CustomRefPattern(fields.RequestBody):
    name: NonEmpty
    pattern: NonEmpty
    normalise: Annotated[fields.Text | None, NotNull()] = None


Categories = Annotated[list[TriageCategoryDefinition], Field(max_length=20)]
Rules = Annotated[list[TriageRule], Field(max_length=50)]
References = Annotated[list[CustomRefPattern], Field(max_length=20)]


class PolicyDisclosure(fields.Answer):
    mode: Disclosure
    text: str


class PolicyAutoReply(fields.Answer):
    allowed: bool
    max_automatic_exchanges: Count


class PolicyQuarantine(fields.Answer):
    on_auth_fail: bool
    spam_threshold: Share
    unsolicited_otp: bool
    key_release: bool


class PolicyInbound(fields.Answer):
    per_sender_per_hour: Rate
    unauthenticated_per_hour: Rate
    per_tenant_per_hour: Rate
    extract_attachment_text: TextKinds
    extract_image_text: bool
    ses_bounce_retired: bool


class PolicyRetention(fields.Answer):
    raw_days: Rate
    message_days: Rate | None
    events_days: EventDays


class PolicyTriage(fields.Answer):
    enabled: bool
    daily_model_cap: Count
    categories: Categories | None
    rules: Rules


class PolicySearch(fields.Answer):
    agentic_enabled: bool
    agentic_daily_cap: Count
    agentic_max_steps: Steps
    agentic_max_seconds: Seconds
    refs_packs: Packs
    custom_refs: References


class PolicyAbuse(fields.Answer):
    complaint_rate_pause: Share
    bounce_rate_pause: Share
    tenant_complaint_rate_pause: Share
    tenant_bounce_rate_pause: Share


class PolicyDomains(fields.Answer):
    allow_create_zone: bool
    dns_zones: Zones


class PolicyWebBotAuth(fields.Answer):
    allowed: bool


class PolicyAccounts(fields.Answer):
    require_approval: bool


class TenantPolicy(fields.Answer):
    identity_daily_send_cap: Count
    tenant_daily_send_cap: Count
    max_recipients: Recipients
    send_allowlist_only: bool
    large_attachments: Attachments
    link_ttl_hours: Hours
    ai_disclosure: PolicyDisclosure
    auto_reply: PolicyAutoReply
    quarantine: PolicyQuarantine
    inbound: PolicyInbound
    retention: PolicyRetention
    triage: PolicyTriage
    search: PolicySearch
    webhook_text_bytes: TextBytes
    abuse: PolicyAbuse
    domains: PolicyDomains
    domain_fallback: bool
    web_bot_auth: PolicyWebBotAuth
    accounts: PolicyAccounts


class PatchDisclosure(_Closed):
    mode: Disclosure | None = None
    text: StrictStr | None = None


class PatchAutoReply(_Closed):
    allowed: StrictBool | None = None
    max_automatic_exchanges: Count | None = None


class PatchQuarantine(_Closed):
    on_auth_fail: StrictBool | None = None
    spam_threshold: Share | None = None
    unsolicited_otp: StrictBool | None = None
    key_release: StrictBool | None = None


class PatchInbound(_Closed):
    per_sender_per_hour: Rate | None = None
    unauthenticated_per_hour: Rate | None = None
    per_tenant_per_hour: Rate | None = None
    extract_attachment_text: TextKinds | None = None
    extract_image_text: StrictBool | None = None
    ses_bounce_retired: StrictBool | None = None


class PatchRetention(_Closed):
    raw_days: Rate | None = None
    message_days: Rate | None = None
    events_days: EventDays | None = None


class PatchTriage(_Closed):
    enabled: StrictBool | None = None
    daily_model_cap: Count | None = None
    categories: Categories | None = None
    rules: Rules | None = None


class PatchSearch(_Closed):
    agentic_enabled: StrictBool | None = None
    agentic_daily_cap: Count | None = None
    agentic_max_steps: Steps | None = None
    agentic_max_seconds: Seconds | None = None
    refs_packs: Packs | None = None
    custom_refs: References | None = None


class PatchAbuse(_Closed):
    complaint_rate_pause: Share | None = None
    bounce_rate_pause: Share | None = None
    tenant_complaint_rate_pause: Share | None = None
    tenant_bounce_rate_pause: Share | None = None


class PatchDomains(_Closed):
    allow_create_zone: StrictBool | None = None
    dns_zones: Zones | None = None


class PatchWebBotAuth(_Closed):
    allowed: StrictBool | None = None


class PatchAccounts(_Closed):
    require_approval: StrictBool | None = None


class TenantPolicyPatch(_Closed):
    """Null is the default again."""

    identity_daily_send_cap: Count | None = None
    tenant_daily_send_cap: Count | None = None
    max_recipients: Recipients | None = None
    send_allowlist_only: StrictBool | None = None
    large_attachments: Attachments | None = None
    link_ttl_hours: Hours | None = None
    ai_disclosure: PatchDisclosure | None = None
    auto_reply: PatchAutoReply | None = None
    quarantine: PatchQuarantine | None = None
    inbound: PatchInbound | None = None
    retention: PatchRetention | None = None
    triage: PatchTriage | None = None
    search: PatchSearch | None = None
    webhook_text_bytes: TextBytes | None = None
    abuse: PatchAbuse | None = None
    domains: PatchDomains | None = None
    domain_fallback: StrictBool | None = None
    web_bot_auth: PatchWebBotAuth | None = None
    accounts: PatchAccounts | None = None


class Tenant(fields.Answer):
    id: fields.TenantId
    slug: Slug
    name: str
    mode: Mode
    status: TenantStatus
    suspended_by: Literal["platform", "partner"] | None
    partner_id: fields.PartnerId | None
    address_suffix: Suffix
    timezone: str
    policy: TenantPolicy
    sending_paused_at: fields.Time | None
    created_at: fields.Time
    updated_at: fields.Time


class TenantPage(fields.Answer):
    data: list[Tenant]
    next_cursor: str | None


class PolicyFieldAccess(fields.Answer):
    field: str
    class_: Annotated[
        Literal["platform_only", "partner_or_platform", "lower_only", "guard", "free"], Field(alias="class")
    ]
    writable: bool
    ceiling: float | bool | None
    ceiling_source: Literal["deployment", "platform", "partner"] | None
    person_required_to_loosen: bool


class TenantPolicyView(fields.Answer):
    tenant_id: fields.TenantId
    policy_version: Count
    policy: TenantPolicy
    fields: list[PolicyFieldAccess]


class OwnerBody(fields.RequestBody):
    email: fields.EmailAddress
    name: Annotated[NonEmpty | None, NotNull()] = None


class BillingBody(fields.RequestBody):
    mode: Annotated[Literal["metered", "exempt", "disabled"] | None, NotNull()] = None


class TenantCreateRequest(fields.RequestBody):
    slug: Slug
    name: NonEmpty
    mode: Mode
    timezone: fields.Text = "UTC"
    address_suffix: Annotated[Suffix | None, NotNull()] = None
    policy: Annotated[TenantPolicyPatch | None, NotNull()] = None
    owner: Annotated[OwnerBody | None, NotNull()] = None
    billing: Annotated[BillingBody | None, NotNull()] = None


class _Changes(fields.RequestBody):
    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    @model_validator(mode="after")
    def _not_empty(self) -> Any:
        if not self.model_fields_set:
            raise ValueError("must change something")
        return self


class TenantUpdateRequest(_Changes):
    """What is left out stays as it is."""

    name: Annotated[NonEmpty | None, NotNull()] = None
    timezone: Annotated[fields.Text | None, NotNull()] = None
    policy: Annotated[TenantPolicyPatch | None, NotNull()] = None
    status: Annotated[Literal["active", "suspended"] | None, NotNull()] = None
    sending_paused: Annotated[StrictBool | None, NotNull(), Field(json_schema_extra={"const": False})] = None

    @field_validator("sending_paused")
    @classmethod
    def _only_lifted(cls, paused: bool | None) -> bool | None:
        if paused:
            raise ValueError("can only be false: nobody pauses sending by hand")
        return paused


MaxTenants = Annotated[StrictInt, Field(ge=0)]


class Partner(fields.Answer):
    id: fields.PartnerId
    name: str
    status: PartnerStatus
    default_billing_mode: PartnerBilling
    max_tenants: MaxTenants
    ramp_exempt: bool
    created_at: fields.Time
    updated_at: fields.Time


class PartnerPage(fields.Answer):
    data: list[Partner]
    next_cursor: str | None


class PartnerCreateRequest(fields.RequestBody):
    name: NonEmpty
    default_billing_mode: PartnerBilling = "metered"
    max_tenants: Annotated[StrictInt, Field(ge=0)] = 25
    ramp_exempt: StrictBool = False


class PartnerUpdateRequest(_Changes):
    """What is left out stays as it is."""

    name: Annotated[NonEmpty | None, NotNull()] = None
    status: Annotated[Literal["active", "suspended"] | None, NotNull()] = None
    default_billing_mode: Annotated[PartnerBilling | None, NotNull()] = None
    max_tenants: Annotated[MaxTenants | None, NotNull()] = None
    ramp_exempt: Annotated[StrictBool | None, NotNull()] = None
