"""A tenant's policy: what is stored, what holds, what is refused (rest-api §6.5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts.policy import (
    DEFAULT_POLICY,
    MEMBERS,
    Disclosure,
    LargeAttachments,
    StoredPolicy,
    TenantPolicy,
    changed,
    document,
)
from postroom.base.errors import PostroomError

CONTRACT: dict[str, Any] = json.loads((Path(__file__).parent.parent / "rest" / "contract.json").read_text())
COUNTS = st.integers(0, 10_000)
SHARES = st.floats(0, 1)
RULE = {"id": "a-1", "match": {"from_domain": ["example.com"]}, "set": {"labels_add": ["vip"]}}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(
        (
            *("identity_daily_send_cap", "tenant_daily_send_cap", "auto_reply.max_automatic_exchanges"),
            *("triage.daily_model_cap", "search.agentic_daily_cap"),
        ),
        COUNTS,
    ),
    **dict.fromkeys(
        (
            *("inbound.per_sender_per_hour", "inbound.unauthenticated_per_hour", "inbound.per_tenant_per_hour"),
            *("retention.raw_days", "retention.message_days"),
        ),
        st.integers(1, 10_000),
    ),
    **dict.fromkeys(
        (
            *("send_allowlist_only", "auto_reply.allowed", "quarantine.on_auth_fail", "quarantine.unsolicited_otp"),
            *("quarantine.key_release", "inbound.extract_image_text", "inbound.ses_bounce_retired", "triage.enabled"),
            *("search.agentic_enabled", "domains.allow_create_zone", "web_bot_auth.allowed"),
            *("accounts.require_approval", "domain_fallback"),
        ),
        st.booleans(),
    ),
    **dict.fromkeys(
        (
            *("quarantine.spam_threshold", "abuse.complaint_rate_pause", "abuse.bounce_rate_pause"),
            *("abuse.tenant_complaint_rate_pause", "abuse.tenant_bounce_rate_pause"),
        ),
        SHARES,
    ),
    "max_recipients": st.integers(1, 49),
    "large_attachments": st.sampled_from(["refuse", "link"]),
    "link_ttl_hours": st.integers(1, 168),
    "ai_disclosure.mode": st.sampled_from(["none", "footer", "header"]),
    "ai_disclosure.text": st.sampled_from(["By a machine.", "Zwei\nZeilen ö"]),
    "inbound.extract_attachment_text": st.lists(st.sampled_from(["pdf", "office", "text", "html"]), unique=True),
    "retention.events_days": st.integers(1, 365),
    "triage.categories": st.sampled_from([[], [{"name": "vip", "description": "People who matter."}]]),
    "triage.rules": st.sampled_from([[], [RULE], [{**RULE, "stop": True}, {**RULE, "id": "b"}]]),
    "search.agentic_max_steps": st.integers(2, 10),
    "search.agentic_max_seconds": st.integers(3, 30),
    "search.refs_packs": st.lists(st.sampled_from(["core", "uk_vehicle"]), unique=True),
    "search.custom_refs": st.sampled_from([[], [{"name": "order", "pattern": r"ORD-\d{6}", "normalise": "upper"}]]),
    "webhook_text_bytes": st.integers(0, 65_536),
    "domains.dns_zones": st.lists(st.sampled_from(["example.com", "example.net"]), unique=True),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["mode", "text", "allowed", "x"]), inner)
    ),
    max_leaves=5,
)


def at(shown: dict[str, Any], path: str) -> Any:
    outer, dot, inner = path.partition(".")
    return shown[outer][inner] if dot else shown[outer]


def test_all_members_are_tried() -> None:
    assert VALUES.keys() == MEMBERS.keys()


def test_the_defaults_are_those_of_the_contract() -> None:
    assert StoredPolicy({}).under() == DEFAULT_POLICY == TenantPolicy()
    shown = document(DEFAULT_POLICY)
    properties = CONTRACT["schemas"]["TenantPolicy"]["properties"]
    assert shown.keys() == properties.keys()
    for name, entry in properties.items():
        inner = entry.get("properties")
        if inner is None:
            assert shown[name] == entry["default"], name
        else:
            assert shown[name] == {key: one["default"] for key, one in inner.items()}, name


def test_the_classes_are_those_of_the_contract() -> None:
    """A test fails when a member has no class (console-billing-notifications §16)."""
    assert {path: member.kind.value for path, member in MEMBERS.items()} == CONTRACT["policy_field_classes"]


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_what_is_set_holds_and_none_is_the_default_again(changes: dict[str, Any]) -> None:
    stored = changed({}, changes)
    shown = document(StoredPolicy(stored).under())
    for path in MEMBERS:
        assert at(shown, path) == changes.get(path, at(document(DEFAULT_POLICY), path))
    assert changed(stored, {}) == stored
    assert changed(stored, dict.fromkeys(changes)) == {}


@given(
    st.dictionaries(
        st.sampled_from(["ai_disclosure", "auto_reply", "max_recipients", "later", "domain_fallback"]), JSON, max_size=3
    )
)
def test_what_cannot_be_read_counts_as_not_set(stored: dict[str, Any]) -> None:
    """A newer release, or a hand, may have written it. Another member can be set all the same, and nothing is lost."""
    StoredPolicy(stored).under()
    after = changed(stored, {"link_ttl_hours": 5})
    assert StoredPolicy(after).under().link_ttl_hours == 5
    assert {key: value for key, value in after.items() if key != "link_ttl_hours"} == stored


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("identity_daily_send_cap", -1),
        ("identity_daily_send_cap", 2**31),
        ("identity_daily_send_cap", 1.5),
        ("quarantine.spam_threshold", float("nan")),
        ("quarantine.spam_threshold", 1.01),
        ("quarantine.spam_threshold", True),
        ("inbound.extract_attachment_text", ["pdf", "pdf"]),
        ("inbound.extract_attachment_text", ["exe"]),
        ("inbound.extract_attachment_text", [["pdf"]]),
        ("domains.dns_zones", ["Example.com"]),
        ("domains.dns_zones", ["example.com"] * 2),
        ("domains.dns_zones", [f"{at}.example" for at in range(51)]),
        ("triage.categories", [{"name": "a"}]),
        ("triage.categories", [{"name": "a", "description": "b"}] * 2),
        ("triage.rules", [RULE, RULE]),
        ("triage.rules", [{**RULE, "more": 1}]),
        ("triage.rules", [{**RULE, "match": {}}]),
        ("triage.rules", [{**RULE, "set": {}}]),
        ("triage.rules", [{**RULE, "set": {"urgency_min": 4}}]),
        ("triage.rules", [{**RULE, "match": {"from": ["nobody"]}}]),
        ("triage.rules", [{**RULE, "match": {"subject_contains": ["a" * 201]}}]),
        ("triage.rules", [{**RULE, "id": f"r{at}"} for at in range(51)]),
        ("search.custom_refs", [{"name": "a", "pattern": "("}]),
        ("search.custom_refs", [{"name": "a", "pattern": r"(a)\1"}]),
        ("search.custom_refs", [{"name": "a", "pattern": "(?=a)"}]),
        ("search.custom_refs", [{"name": "a", "pattern": r"\w{100}"}]),
        ("search.custom_refs", [{"name": "a", "pattern": "(a{50}){50}"}]),
        ("search.custom_refs", [{"name": "a", "pattern": "a{999999999}"}]),
        ("search.custom_refs", [{"name": f"{at}", "pattern": r"\w{10}"} for at in range(3)]),
        ("retention.message_days", 0),
        ("nothing", 1),
        ("ai_disclosure", {"mode": "footer"}),
        ("max_recipients", 0),
        ("max_recipients", 50),
        ("max_recipients", True),
        ("max_recipients", "10"),
        ("link_ttl_hours", 169),
        ("large_attachments", "links"),
        ("ai_disclosure.mode", 1),
        ("ai_disclosure.text", " "),
        ("ai_disclosure.text", "a" * 1001),
        ("ai_disclosure.text", "a\rb"),
        ("ai_disclosure.text", "a\0b"),
        ("domain_fallback", "false"),
        ("domain_fallback", 0),
    ],
)
def test_what_is_refused(path: str, value: object) -> None:
    with pytest.raises(PostroomError) as caught:
        changed({}, {path: value})
    assert caught.value.code == "invalid_request"
    assert caught.value.details is not None
    assert caught.value.details["errors"][0]["path"] == f"policy.{path}"


def test_words_are_read_as_such() -> None:
    found = StoredPolicy({"large_attachments": "link", "ai_disclosure": {"mode": "header"}}).under()
    assert (found.large_attachments, found.disclosure) == (LargeAttachments.LINK, Disclosure.HEADER)


def test_text_of_rules_is_kept_as_it_is_compared() -> None:
    wide = "".join(chr(ord(char) + 0xFEE0) for char in "REFUND")
    match = {"subject_contains": [wide], "from": ["Anna@Example.COM"]}
    rule = {"id": "a", "match": match, "set": {"skip_model": True}}
    (kept,) = changed({}, {"triage.rules": [rule]})["triage"]["rules"]
    assert kept["match"] == {"subject_contains": ["refund"], "from": ["anna@example.com"]}
