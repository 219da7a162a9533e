"""A tenant's policy: what is stored, what holds, what is refused (rest-api §6.5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts.policy import (
    DEFAULT_POLICY,
    DISCLOSURE,
    MEMBERS,
    Disclosure,
    LargeAttachments,
    TenantPolicy,
    changed,
    document,
    read_policy,
)
from postroom.base.errors import PostroomError

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "max_recipients": st.integers(1, 49),
    "auto_reply.allowed": st.booleans(),
    "auto_reply.max_automatic_exchanges": st.integers(0, 1000),
    "large_attachments": st.sampled_from(["refuse", "link"]),
    "link_ttl_hours": st.integers(1, 168),
    "ai_disclosure.mode": st.sampled_from(["none", "footer", "header"]),
    "ai_disclosure.text": st.sampled_from(["By a machine.", "Zwei\nZeilen ö"]),
    "domain_fallback": st.booleans(),
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
    assert read_policy({}) == DEFAULT_POLICY == TenantPolicy()
    assert document(DEFAULT_POLICY) == {
        "max_recipients": 10,
        "auto_reply": {"allowed": True, "max_automatic_exchanges": 2},
        "large_attachments": "refuse",
        "link_ttl_hours": 72,
        "ai_disclosure": {"mode": "none", "text": DISCLOSURE},
        "domain_fallback": True,
    }


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_what_is_set_holds_and_none_is_the_default_again(changes: dict[str, Any]) -> None:
    stored = changed({}, changes)
    shown = document(read_policy(stored))
    for path in MEMBERS:
        assert at(shown, path) == changes.get(path, at(document(DEFAULT_POLICY), path))
    assert changed(stored, {}) == stored
    assert changed(stored, dict.fromkeys(changes)) == {}


@given(
    st.dictionaries(
        st.sampled_from(["ai_disclosure", "auto_reply", "max_recipients", "later", "domain_fallback"]), JSON
    )
)
def test_what_cannot_be_read_counts_as_not_set(stored: dict[str, Any]) -> None:
    """A newer release, or a hand, may have written it. Another member can be set all the same, and nothing is lost."""
    read_policy(stored)
    after = changed(stored, {"link_ttl_hours": 5})
    assert read_policy(after).link_ttl_hours == 5
    assert {key: value for key, value in after.items() if key != "link_ttl_hours"} == stored


@pytest.mark.parametrize(
    ("path", "value"),
    [
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
    found = read_policy({"large_attachments": "link", "ai_disclosure": {"mode": "header"}})
    assert (found.large_attachments, found.disclosure) == (LargeAttachments.LINK, Disclosure.HEADER)
