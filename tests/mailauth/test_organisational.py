"""Organisational domains by the public suffix list, and the names of the tree walk."""

import importlib.resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.domain import domain_name, domain_of
from postroom.mailauth.organisational import (
    MAX_WALK,
    is_below,
    is_public_suffix,
    organisational_domain,
    prepare,
    same_organisation,
    walk_names,
)

LABELS = st.sampled_from(
    ["a", "b", "mail", "example", "co", "uk", "com", "jp", "kobe", "city", "github", "io", "ck", "www"]
)
NAMES = st.lists(LABELS, min_size=1, max_size=12).map(".".join)


@pytest.mark.covers("RFC 7489 §3.2", "FR-IN-4")
@pytest.mark.parametrize(
    ("domain", "organisation"),
    [
        ("example.com", "example.com"),
        ("a.b.c.d.example.com", "example.com"),
        ("Mail.Example.COM.", "example.com"),
        ("mail.example.co.uk", "example.co.uk"),
        ("co.uk", "co.uk"),
        ("com", "com"),
        ("www.example.unlisted-top", "example.unlisted-top"),
        ("a.b.kobe.jp", "a.b.kobe.jp"),
        ("a.city.kobe.jp", "city.kobe.jp"),
        ("a.www.ck", "www.ck"),
        ("alice.github.io", "alice.github.io"),
        ("mail.alice.github.io", "alice.github.io"),
        ("www.食狮.公司.cn", "xn--85x722f.xn--55qx5d.cn"),
        ("www.xn--85x722f.xn--55qx5d.cn", "xn--85x722f.xn--55qx5d.cn"),
        ("mail.münchen.de", "xn--mnchen-3ya.de"),
        ("_dmarc.example.com", "example.com"),
    ],
)
def test_organisations(domain: str, organisation: str) -> None:
    assert organisational_domain(domain) == organisation


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "a..b", ".com", "192.0.2.1", "[192.0.2.1]", "a b.com", "a@b.com", "x" * 254, "a." * 200, "é" * 300,
     "-", "\ud800.com", "exa\nmple.com", "xn--ä.com", "a.com..", "1"],
)  # fmt: skip
def test_what_is_no_domain(text: str) -> None:
    assert organisational_domain(text) is None
    assert domain_name(text) is None
    assert not same_organisation(text, text)
    assert not is_public_suffix(text)


def test_domains_of_addresses() -> None:
    assert domain_of("a@b@Example.com.") == "example.com"
    assert domain_of("example.com") == "example.com"
    assert domain_of("a@[192.0.2.1]") is None


@pytest.mark.covers("RFC 7489 §3.2")
def test_the_lists_own_vectors() -> None:
    """Those of the list's project, which the package carries."""
    text = importlib.resources.files("publicsuffixlist").joinpath("test_psl.txt").read_text("utf-8")
    checked = 0
    for line in text.splitlines():
        if not line.startswith("checkPublicSuffix("):
            continue
        domain, registered = (
            None if word.strip() == "null" else word.strip().strip("'\"")
            for word in line.partition("(")[2].partition(")")[0].split(",")
        )
        if domain is None or domain.startswith("."):
            continue
        checked += 1
        found = organisational_domain(domain)
        if registered is None:
            assert found is None or is_public_suffix(domain), domain
        else:
            assert found == domain_name(registered), domain
    assert checked > 50


@given(NAMES, NAMES)
def test_organisations_are_equivalences(a: str, b: str) -> None:
    found = organisational_domain(a)
    assert found is not None
    assert is_below(a, found)
    assert organisational_domain(found) == found
    assert same_organisation(a, b) == same_organisation(b, a) == (found == organisational_domain(b))
    assert organisational_domain(a.upper() + ".") == found
    assert found == a or not is_public_suffix(a)
    assert not is_public_suffix(f"x.{found}") or is_public_suffix(found)


@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    found = organisational_domain(text)
    assert found is None or domain_name(found) == found


@pytest.mark.covers("RFC 9989 §4.10")
def test_the_walk_of_the_rfc() -> None:
    assert walk_names("a.mail.example.com") == ("a.mail.example.com", "mail.example.com", "example.com", "com")
    assert walk_names("com") == ("com",)
    long = "a.b.c.d.e.f.g.h.i.j.mail.example.com"
    assert walk_names(long) == (
        long,
        "g.h.i.j.mail.example.com",
        "h.i.j.mail.example.com",
        "i.j.mail.example.com",
        "j.mail.example.com",
        "mail.example.com",
        "example.com",
        "com",
    )


@given(NAMES)
def test_a_walk_is_short_and_goes_up(name: str) -> None:
    names = walk_names(name)
    assert len(names) == min(MAX_WALK, name.count(".") + 1)
    assert names[0] == name
    assert all(is_below(name, other) for other in names)
    counts = [other.count(".") for other in names]
    assert counts == sorted(set(counts), reverse=True)
    assert all(count < MAX_WALK - 1 for count in counts[1:])


def test_names_of_many_labels() -> None:
    prepare()
    name = "a." * 120 + "example.com"
    assert organisational_domain(name) == "example.com"
    assert len(walk_names(name)) == MAX_WALK
