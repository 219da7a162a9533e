"""A tenant's policy (rest-api §5.2, §6.7; console-billing-notifications §16): its members, what each may be, who may
write it, and what holds. Pure.

What is stored are the members that somebody set, and the ceilings that the platform and the partner set above some of
them. A value that cannot be read, such as a newer release may have written, counts as not set. `StoredPolicy.under` is
the one function that says what holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from postroom.accounts import policy_values as read
from postroom.accounts.policy_values import MAX_DISCLOSURE, Reader
from postroom.accounts.text import invalid

__all__ = ["DEFAULT_POLICY", "DISCLOSURE", "MAX_DISCLOSURE", "MEMBERS", "Member", "StoredPolicy", "TenantPolicy"]

DISCLOSURE: Final = "An AI assistant helped to write this message."
KINDS_OF_TEXT: Final = ("pdf", "office", "text", "html")
REFERENCE_PACKS: Final = ("core", "uk_vehicle")

Stored = Mapping[str, Any]


class LargeAttachments(StrEnum):
    """What becomes of a message that its attachments make too large (G5)."""

    REFUSE = "refuse"
    LINK = "link"


class Disclosure(StrEnum):
    """How a message says that an AI wrote it (E8)."""

    NONE = "none"
    FOOTER = "footer"
    HEADER = "header"


class PolicyClass(StrEnum):
    """Who may write a member (rest-api §5.2)."""

    PLATFORM_ONLY = "platform_only"
    PARTNER_OR_PLATFORM = "partner_or_platform"
    LOWER_ONLY = "lower_only"
    """Everybody, up to the strictest of what stands above them."""
    GUARD = "guard"
    """Everybody; keys of the tenant only to tighten, where people decide."""
    FREE = "free"


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What holds for a tenant. Numbers are caps or days as their names say; of lists, tuples.

    `link_ttl_hours`: how long a link to a large attachment opens.
    """

    identity_daily_send_cap: int = 500
    tenant_daily_send_cap: int = 5000
    max_recipients: int = 10
    send_allowlist_only: bool = False
    large_attachments: LargeAttachments = LargeAttachments.REFUSE
    link_ttl_hours: int = 72
    disclosure: Disclosure = Disclosure.NONE
    disclosure_text: str = DISCLOSURE
    auto_reply_allowed: bool = True
    max_automatic_exchanges: int = 2
    quarantine_on_auth_fail: bool = True
    quarantine_spam_threshold: float = 0.8
    quarantine_unsolicited_otp: bool = True
    quarantine_key_release: bool = False
    inbound_per_sender_per_hour: int = 60
    inbound_unauthenticated_per_hour: int = 120
    inbound_per_tenant_per_hour: int = 2000
    inbound_extract_attachment_text: tuple[str, ...] = KINDS_OF_TEXT
    inbound_extract_image_text: bool = False
    inbound_ses_bounce_retired: bool = True
    retention_raw_days: int = 90
    retention_message_days: int | None = None
    retention_events_days: int = 30
    triage_enabled: bool = True
    triage_daily_model_cap: int = 2000
    triage_categories: tuple[Mapping[str, str], ...] | None = None
    triage_rules: tuple[Mapping[str, Any], ...] = ()
    search_agentic_enabled: bool = True
    search_agentic_daily_cap: int = 500
    search_agentic_max_steps: int = 6
    search_agentic_max_seconds: int = 8
    search_refs_packs: tuple[str, ...] = ("core",)
    search_custom_refs: tuple[Mapping[str, str], ...] = ()
    webhook_text_bytes: int = 16_384
    abuse_complaint_rate_pause: float = 0.003
    abuse_bounce_rate_pause: float = 0.05
    abuse_tenant_complaint_rate_pause: float = 0.001
    abuse_tenant_bounce_rate_pause: float = 0.05
    domains_allow_create_zone: bool = False
    domains_dns_zones: tuple[str, ...] = ()
    domain_fallback: bool = True
    web_bot_auth_allowed: bool = False
    accounts_require_approval: bool = False


DEFAULT_POLICY: Final = TenantPolicy()


@dataclass(frozen=True, slots=True)
class Member:
    """`field` of TenantPolicy. `read` raises ValueError, whose words say what the value must be. `looseness`: the more,
    the looser; None where nothing is stricter than anything. `nullable`: null is a value, not the default again.
    """

    field: str
    kind: PolicyClass
    read: Reader
    looseness: Callable[[Any], float] | None = None
    nullable: bool = False


def _more(value: Any) -> float:
    return float(value)


def _less(value: Any) -> float:
    return -float(value)


def _lower(name: str, reader: Reader, looseness: Callable[[Any], float] = _more) -> Member:
    return Member(name, PolicyClass.LOWER_ONLY, reader, looseness)


def _guard(name: str, reader: Reader, looseness: Callable[[Any], float]) -> Member:
    return Member(name, PolicyClass.GUARD, reader, looseness)


def _free(name: str, reader: Reader, *, nullable: bool = False) -> Member:
    return Member(name, PolicyClass.FREE, read.or_none(reader) if nullable else reader, nullable=nullable)


def _platform(name: str, reader: Reader) -> Member:
    return Member(name, PolicyClass.PLATFORM_ONLY, reader)


MEMBERS: Final[Mapping[str, Member]] = MappingProxyType(
    {
        "identity_daily_send_cap": _lower("identity_daily_send_cap", read.number(0)),
        "tenant_daily_send_cap": _lower("tenant_daily_send_cap", read.number(0)),
        "max_recipients": _lower("max_recipients", read.number(1, 49)),
        "send_allowlist_only": _guard("send_allowlist_only", read.flag, _less),
        "large_attachments": _free("large_attachments", read.word(LargeAttachments)),
        "link_ttl_hours": _free("link_ttl_hours", read.number(1, 168)),
        "ai_disclosure.mode": _free("disclosure", read.word(Disclosure)),
        "ai_disclosure.text": _free("disclosure_text", read.disclosure_text),
        "auto_reply.allowed": _lower("auto_reply_allowed", read.flag),
        "auto_reply.max_automatic_exchanges": _lower("max_automatic_exchanges", read.number(0)),
        "quarantine.on_auth_fail": _guard("quarantine_on_auth_fail", read.flag, _less),
        "quarantine.spam_threshold": _guard("quarantine_spam_threshold", read.share, _more),
        "quarantine.unsolicited_otp": _guard("quarantine_unsolicited_otp", read.flag, _less),
        "quarantine.key_release": Member("quarantine_key_release", PolicyClass.PARTNER_OR_PLATFORM, read.flag),
        "inbound.per_sender_per_hour": _lower("inbound_per_sender_per_hour", read.number(1)),
        "inbound.unauthenticated_per_hour": _lower("inbound_unauthenticated_per_hour", read.number(1)),
        "inbound.per_tenant_per_hour": _lower("inbound_per_tenant_per_hour", read.number(1)),
        "inbound.extract_attachment_text": _free("inbound_extract_attachment_text", read.some_of(*KINDS_OF_TEXT)),
        "inbound.extract_image_text": _lower("inbound_extract_image_text", read.flag),
        "inbound.ses_bounce_retired": _free("inbound_ses_bounce_retired", read.flag),
        "retention.raw_days": _lower("retention_raw_days", read.number(1)),
        "retention.message_days": _free("retention_message_days", read.number(1), nullable=True),
        "retention.events_days": _lower("retention_events_days", read.number(1, 365)),
        "triage.enabled": _lower("triage_enabled", read.flag),
        "triage.daily_model_cap": _lower("triage_daily_model_cap", read.number(0)),
        "triage.categories": _free("triage_categories", read.categories, nullable=True),
        "triage.rules": _free("triage_rules", read.rules),
        "search.agentic_enabled": _lower("search_agentic_enabled", read.flag),
        "search.agentic_daily_cap": _lower("search_agentic_daily_cap", read.number(0)),
        "search.agentic_max_steps": _lower("search_agentic_max_steps", read.number(2, 10)),
        "search.agentic_max_seconds": _lower("search_agentic_max_seconds", read.number(3, 30)),
        "search.refs_packs": _free("search_refs_packs", read.some_of(*REFERENCE_PACKS)),
        "search.custom_refs": _free("search_custom_refs", read.patterns),
        "webhook_text_bytes": _free("webhook_text_bytes", read.number(0, 65_536)),
        "abuse.complaint_rate_pause": _lower("abuse_complaint_rate_pause", read.share),
        "abuse.bounce_rate_pause": _lower("abuse_bounce_rate_pause", read.share),
        "abuse.tenant_complaint_rate_pause": _lower("abuse_tenant_complaint_rate_pause", read.share),
        "abuse.tenant_bounce_rate_pause": _lower("abuse_tenant_bounce_rate_pause", read.share),
        "domains.allow_create_zone": _platform("domains_allow_create_zone", read.flag),
        "domains.dns_zones": _platform("domains_dns_zones", read.zones),
        "domain_fallback": _free("domain_fallback", read.flag),
        "web_bot_auth.allowed": _platform("web_bot_auth_allowed", read.flag),
        # Here `false` is the looser value.
        "accounts.require_approval": _lower("accounts_require_approval", read.flag, _less),
    }
)
"""Every member by its path in the document."""

if {member.field for member in MEMBERS.values()} != {one.name for one in fields(TenantPolicy)}:
    raise AssertionError("every member of the policy has its path and its class")

GROUPS: Final[frozenset[str]] = frozenset(path.partition(".")[0] for path in MEMBERS if "." in path)
"""Members of the document that are objects."""


def strictest(path: str, *values: Any) -> Any:
    """The first of the strictest of `values` of a member that has a stricter side."""
    looseness = MEMBERS[path].looseness
    assert looseness is not None, path
    return min(values, key=looseness)


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """What is stored for a tenant: `values` as a document, the ceilings of `platform` and `partner` by path."""

    values: Stored = field(default_factory=dict)
    platform: Stored = field(default_factory=dict)
    partner: Stored = field(default_factory=dict)

    @classmethod
    def of(cls, row: Any) -> StoredPolicy:
        """From the columns of a tenant's row, a record of the database."""
        return cls(row["policy_json"], row["policy_ceilings_json"], row["partner_ceilings_json"])

    def __bool__(self) -> bool:
        """Whether anything is set."""
        return bool(self.values or self.platform or self.partner)

    def under(self, defaults: TenantPolicy = DEFAULT_POLICY) -> TenantPolicy:
        """What holds: what somebody set, else the strictest of the deployment's default and the ceilings above."""
        found = {MEMBERS[path].field: value for path, value in self.given()}
        for path in {*self.platform, *self.partner}:
            member = MEMBERS.get(path)
            if member is None or member.looseness is None or member.field in found:
                continue
            bounds = (self.ceiling(path, at) for at in (self.platform, self.partner))
            stands = (bound for bound in bounds if bound is not None)
            found[member.field] = strictest(path, getattr(defaults, member.field), *stands)
        return replace(defaults, **found) if found else defaults

    def given(self) -> Iterator[tuple[str, Any]]:
        """Paths and values of what is set and can be read."""
        for path, value in paths(self.values):
            member = MEMBERS.get(path)
            if member is None or (value is None and not member.nullable):
                continue
            try:
                yield path, member.read(value)
            except ValueError:
                continue

    @staticmethod
    def ceiling(path: str, ceilings: Stored) -> Any:
        """The ceiling that is set there, if it can be read."""
        if ceilings.get(path) is None:
            return None
        try:
            return MEMBERS[path].read(ceilings[path])
        except ValueError:
            return None


def document(policy: TenantPolicy) -> dict[str, Any]:
    """The whole policy as the document that the interfaces show."""
    shown: dict[str, Any] = {}
    for path, member in MEMBERS.items():
        value = plain(getattr(policy, member.field))
        outer, dot, inner = path.partition(".")
        if dot:
            shown.setdefault(outer, {})[inner] = value
        else:
            shown[outer] = value
    return shown


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    return value.value if isinstance(value, StrEnum) else value


def paths(given: Stored) -> Iterator[tuple[str, Any]]:
    """Paths and values of a document: those of its objects are their members'."""
    for name, value in given.items():
        if name in GROUPS and isinstance(value, Mapping):
            for inner, one in value.items():
                yield f"{name}.{inner}", one
        else:
            yield name, value


def changed(stored: Stored, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be stored once `changes` are made: paths and their values, of which None stands for the default.

    Raises PostroomError `invalid_request` for a path that there is not, and a value that is not one of it.
    """
    after = copied(stored)
    for path, value in changes.items():
        if value is not None:
            value = checked(path, value)
        put(after, path, value)
    return after


def checked(path: str, value: Any, prefix: str = "policy.") -> Any:
    """The value as it is stored. Raises `invalid_request` about `prefix` and the path."""
    member = MEMBERS.get(path)
    if member is None:
        raise invalid(f"{prefix}{path[:128]}", "is no member of the policy")
    try:
        return plain(member.read(value))
    except ValueError as error:
        raise invalid(f"{prefix}{path}", str(error)) from None


def copied(stored: Stored) -> dict[str, Any]:
    """A copy whose objects can be changed."""
    return {key: dict(value) if isinstance(value, Mapping) else value for key, value in stored.items()}


def put(stored: dict[str, Any], path: str, value: Any, *, null: bool = False) -> None:
    """Set a member; None takes it out, unless `null` is a value."""
    outer, dot, inner = path.partition(".")
    place, name = stored, outer
    if dot:
        held = stored.get(outer)
        place, name = held if isinstance(held, dict) else {}, inner
        stored[outer] = place
    if value is None and not null:
        place.pop(name, None)
    else:
        place[name] = value
    if dot and not place:
        del stored[outer]
