"""Who may write what of a policy (rest-api §5.2; J14, J17, J23–J26): properties over whole histories of writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts.permissions import Level
from postroom.accounts.policy import DEFAULT_POLICY, MEMBERS, PolicyClass, StoredPolicy, TenantPolicy, document
from postroom.accounts.policy_rules import PLATFORM, RESET, CeilingSource, Writer, access_to, parse, write
from postroom.base.errors import PostroomError
from tests.accounts.test_policy import RULE, VALUES, at

PARTNER = Writer(Level.PARTNER)
TENANT = Writer(Level.TENANT, decides=False)
WRITERS = (PLATFORM, PARTNER, TENANT)
LOWER = sorted(path for path, member in MEMBERS.items() if member.kind is PolicyClass.LOWER_ONLY)
GUARDED = sorted(path for path, member in MEMBERS.items() if member.kind is PolicyClass.GUARD)


def looseness(path: str, value: Any) -> float:
    """How loose a value is, by the words of the contract: a higher number, and `true` but for approvals."""
    tight = (
        "accounts.require_approval",
        "send_allowlist_only",
        "quarantine.on_auth_fail",
        "quarantine.unsolicited_otp",
    )
    return -float(value) if path in tight else float(value)


def value_of(policy: TenantPolicy, path: str) -> Any:
    return at(document(policy), path)


def refused(stored: StoredPolicy, path: str, value: Any, by: Writer) -> dict[str, Any]:
    with pytest.raises(PostroomError) as caught:
        write(stored, DEFAULT_POLICY, {path: value}, by)
    return {"code": caught.value.code, **(caught.value.details or {})}


@st.composite
def histories(draw: st.DrawFn, among: list[str]) -> tuple[str, list[tuple[Writer, Any]]]:
    path = draw(st.sampled_from(among))
    values = VALUES[path] | st.just(RESET)
    return path, draw(st.lists(st.tuples(st.sampled_from(WRITERS), values), max_size=8))


@pytest.mark.covers("edge:J17", "edge:J23", "edge:J26", "FR-TEN-4", "FR-KEY-4")
@given(histories(LOWER))
def test_what_holds_is_the_strictest_of_what_stands(history: tuple[str, list[tuple[Writer, Any]]]) -> None:
    """Against an oracle that keeps three numbers: what a level may reach is the strictest of what the levels above it
    have set and the deployment's default. A lower level never widens."""
    path, writes = history
    stored = StoredPolicy()
    default = looseness(path, value_of(DEFAULT_POLICY, path))
    platform = partner = float("inf")
    for by, value in writes:
        bound = {
            Level.PLATFORM: float("inf"),
            Level.PARTNER: min(default, platform),
            Level.TENANT: min(default, platform, partner),
        }[by.level]
        wanted = default if value is RESET else looseness(path, value)
        held = looseness(path, value_of(stored.under(), path))
        if wanted > bound:
            told = refused(stored, path, value, by)
            assert (told["code"], told["field"], told["reason"]) == ("scope_denied", path, "above_ceiling")
            assert looseness(path, told["ceiling"]) == bound
            continue
        after = write(stored, DEFAULT_POLICY, {path: value}, by).stored
        ceiling = float("inf") if value is RESET else wanted
        if by.level is Level.PLATFORM:
            platform = ceiling
        elif by.level is Level.PARTNER:
            partner = ceiling
        now = looseness(path, value_of(after.under(), path))
        if value is RESET:
            assert now == min(default, platform, partner)
        else:
            assert now == wanted
        if by.level is not Level.PLATFORM:
            assert now <= min(default, platform)
        if by.level is Level.TENANT:
            assert now <= min(default, platform, partner)
        if by.level is Level.TENANT and wanted <= held:
            assert now <= held
        stored = after


@given(st.data(), st.sampled_from(LOWER))
def test_a_ceiling_holds_also_where_the_default_is_raised_later(data: st.DataObject, path: str) -> None:
    """Nothing is rewritten when the deployment's default changes; what nobody has set stays under the ceilings."""
    stored = write(StoredPolicy(), DEFAULT_POLICY, {path: data.draw(VALUES[path])}, PLATFORM).stored
    unset = StoredPolicy({}, stored.platform, {})
    other = StoredPolicy({path.partition(".")[0]: None}, stored.platform, {}).under()
    assert unset.under() == other
    (ceiling,) = stored.platform.values()
    default = value_of(DEFAULT_POLICY, path)
    assert looseness(path, value_of(unset.under(), path)) == min(looseness(path, ceiling), looseness(path, default))


@pytest.mark.covers("edge:J25")
@given(histories(GUARDED))
def test_keys_only_tighten_what_people_guard(history: tuple[str, list[tuple[Writer, Any]]]) -> None:
    path, writes = history
    stored = StoredPolicy()
    for by, value in writes:
        held = looseness(path, value_of(stored.under(), path))
        wanted = looseness(path, value_of(DEFAULT_POLICY, path) if value is RESET else value)
        if by is TENANT and wanted > held:
            assert refused(stored, path, value, by) == {
                "code": "permission_denied",
                "field": path,
                "reason": "person_required",
            }
            write(stored, DEFAULT_POLICY, {path: value}, Writer(Level.TENANT, decides=True))
            continue
        stored = write(stored, DEFAULT_POLICY, {path: value}, by).stored
        assert looseness(path, value_of(stored.under(), path)) == wanted


@pytest.mark.covers("edge:J14", "edge:J24")
@pytest.mark.parametrize("path", sorted(MEMBERS))
def test_the_classes(path: str) -> None:
    kind = MEMBERS[path].kind
    allowed = {by.level: access_to(path, StoredPolicy(), DEFAULT_POLICY, by).writable for by in WRITERS}
    assert allowed == {
        Level.PLATFORM: True,
        Level.PARTNER: kind is not PolicyClass.PLATFORM_ONLY,
        Level.TENANT: kind not in (PolicyClass.PLATFORM_ONLY, PolicyClass.PARTNER_OR_PLATFORM),
    }
    for by in WRITERS:
        if not allowed[by.level]:
            told = refused(StoredPolicy(), path, RESET, by)
            assert (told["code"], told["field"], told["reason"]) == ("scope_denied", path, "not_writable")


@pytest.mark.covers("edge:J26")
def test_which_ceiling_is_told() -> None:
    """Of ceilings that are the same, the deployment's, then the platform's; the partner's does not bind the partner."""
    path = "max_recipients"
    stored = StoredPolicy({}, {path: 10}, {path: 10})
    assert access_to(path, stored, DEFAULT_POLICY, TENANT).source is CeilingSource.DEPLOYMENT
    stored = StoredPolicy({}, {path: 5}, {path: 5})
    assert access_to(path, stored, DEFAULT_POLICY, TENANT).source is CeilingSource.PLATFORM
    stored = StoredPolicy({}, {path: 5}, {path: 3})
    assert access_to(path, stored, DEFAULT_POLICY, TENANT).source is CeilingSource.PARTNER
    assert access_to(path, stored, DEFAULT_POLICY, PARTNER).ceiling == 5
    back = write(stored, DEFAULT_POLICY, {path: 5}, PARTNER).stored
    assert access_to(path, back, DEFAULT_POLICY, TENANT).ceiling == 5
    assert write(StoredPolicy({}, {}, {path: 3}), DEFAULT_POLICY, {path: RESET}, PARTNER).stored.partner == {}


def test_the_first_refused_path_decides_and_nothing_is_left_of_the_rest() -> None:
    stored = StoredPolicy({"link_ttl_hours": 5})
    patch = {"web_bot_auth.allowed": True, "max_recipients": 40, "link_ttl_hours": 9}
    with pytest.raises(PostroomError) as caught:
        write(stored, DEFAULT_POLICY, patch, TENANT)
    assert caught.value.details is not None
    assert caught.value.details["field"] == "max_recipients"
    assert stored == StoredPolicy({"link_ttl_hours": 5})


def test_null_resets_but_where_it_is_a_value() -> None:
    defaults = TenantPolicy(retention_message_days=30)
    asked = {"retention": {"message_days": None, "raw_days": None}, "auto_reply": None}
    patch = parse(asked)
    assert patch == {
        "retention.message_days": None,
        "retention.raw_days": RESET,
        "auto_reply.allowed": RESET,
        "auto_reply.max_automatic_exchanges": RESET,
    }
    stored = write(StoredPolicy({"retention": {"raw_days": 9}}), defaults, patch, TENANT).stored
    assert stored.under(defaults).retention_message_days is None
    assert stored.values == {"retention": {"message_days": None}}
    whole = parse({"retention": None})
    assert write(stored, defaults, whole, TENANT).stored.values == {}


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ({}, "policy"),
        ({"retention": {}}, "policy"),
        ({"nothing": 1}, "policy.nothing"),
        ({"nothing": None}, "policy.nothing"),
        ({"retention": {"nothing": 1}}, "policy.retention.nothing"),
        ({"retention": 5}, "policy.retention"),
        ({"retention.raw_days": 5}, "policy.retention raw_days"),
        ({"max_recipients": 50}, "policy.max_recipients"),
    ],
)
def test_what_is_no_patch(asked: dict[str, Any], path: str) -> None:
    with pytest.raises(PostroomError) as caught:
        parse(asked, "policy.")
    assert caught.value.code == "invalid_request"
    assert caught.value.details is not None
    assert caught.value.details["errors"][0]["path"] == path


def test_what_is_told_of_a_write() -> None:
    """Numbers and switches alone: texts and rules may be anything."""
    patch = parse({"max_recipients": 5, "ai_disclosure": {"text": "By a machine."}, "domain_fallback": True})
    done = write(StoredPolicy(), DEFAULT_POLICY, patch, TENANT)
    assert done.paths == ("ai_disclosure.text", "domain_fallback", "max_recipients")
    assert [(one.path, one.before, one.after) for one in done.changes] == [("max_recipients", 10, 5)]


def test_an_identity_writes_nothing() -> None:
    with pytest.raises(ValueError, match="no policy"):
        Writer(Level.IDENTITY)


def test_a_policy_has_an_end() -> None:
    """It is read with the tenant, wherever that is."""
    words = ["ж" * 200] * 20
    many = [{**RULE, "id": f"r{n}", "match": {"subject_contains": words}} for n in range(40)]
    (path,) = parse({"triage": {"rules": many}})
    assert refused(StoredPolicy(), path, many, TENANT)["code"] == "invalid_request"
    write(StoredPolicy(), DEFAULT_POLICY, {path: many[:5]}, TENANT)
