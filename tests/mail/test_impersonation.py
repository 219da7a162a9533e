"""Names, answers and domains that would pass for somebody else's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.impersonation import display_name_spoof, lookalike_domain, reply_to_mismatch

ME = "ann@example.com"


@pytest.mark.covers("edge:D2")
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("", False), ("Ann", False), ("Ann Example", False), ("Ann @ Example", False), ("@ann", False),
        ("ann@home", False), ("ann@example.com", False), ("ANN@Example.COM", False), ("'ann@example.com'", False),
        ("Ann (ann@example.com)", False),
        ("boss@example.com", True), ("Boss <boss@example.com>", True), ("'ann@example.org' via List", True),
        ("ann@example.com boss@example.com", True), ("Ann: boss@example.com.", True), ("boss＠example.com", True),
        ("Bőss (boss@bücher.example)", True), ("ann@example.com.evil.example", True), ("ann@example.comx", True),
        ("xann@example.com", True), ("ｂｏｓｓ＠ｅｘａｍｐｌｅ．ｃｏｍ", True),
    ],
)  # fmt: skip
def test_an_address_in_the_name_of_another(name: str, wanted: bool) -> None:
    assert display_name_spoof(name, ME) is wanted


def test_an_address_is_compared_as_it_is_sent_to() -> None:
    assert not display_name_spoof("ann@bücher.example", "ann@xn--bcher-kva.example")
    assert display_name_spoof("ann@bücher.example", "ann@buecher.example")
    assert display_name_spoof("ann@example.com", "")


@given(st.text(alphabet="a@.-_ <>＠é", max_size=300), st.text(alphabet="a@.", max_size=20))
def test_any_name_is_looked_at(name: str, address: str) -> None:
    found = display_name_spoof(name, address)
    assert not found or "@" in name or "＠" in name


@pytest.mark.covers("edge:D3")
@pytest.mark.parametrize(
    ("author", "answers", "wanted"),
    [
        (ME, [], False), (ME, ["bob@example.com"], False), (ME, ["bob@mail.Example.com"], False),
        ("ann@mail.example.com", [ME], False), (ME, ["bob@example.org"], True), (ME, [ME, "bob@example.org"], True),
        ("a@b.co.uk", ["a@c.co.uk"], True), ("a@x.b.co.uk", ["a@b.co.uk"], False),
        ("", ["bob@example.org"], False), (ME, [""], False), (ME, ["bob"], False), ("ann", ["bob@example.org"], False),
        ("a@bücher.example", ["b@xn--bcher-kva.example"], False), ("a@co.uk", ["a@b.co.uk"], True),
    ],
)  # fmt: skip
def test_answers_that_go_elsewhere(author: str, answers: list[str], wanted: bool) -> None:
    assert reply_to_mismatch(author, answers) is wanted


@pytest.mark.covers("edge:D2")
@pytest.mark.parametrize(
    ("domain", "known", "wanted"),
    [
        ("rnicrosoft.com", ["microsoft.com"], "microsoft.com"),
        ("mail.rnicrosoft.com", ["a.example", "login.microsoft.com"], "login.microsoft.com"),
        ("examp1e.com", ["example.com"], "example.com"),
        ("exаmple.com", ["example.com"], "example.com"),  # Cyrillic а
        ("xn--exmple-4nf.com", ["example.com"], "example.com"),  # the same in A-labels
        ("example.com", ["example.com"], None),
        ("mail.example.com", ["example.com"], None),
        ("example.com", ["mail.example.com"], None),
        ("example.org", ["example.com"], None),
        ("com", ["example.com"], None),
        ("", ["example.com"], None),
        ("example.com", [], None),
        ("xn--a.com", ["example.com", ""], None),
    ],
)
def test_domains_that_look_alike(domain: str, known: list[str], wanted: str | None) -> None:
    assert lookalike_domain(domain, known) == wanted


LABEL = st.text(alphabet="abmnr01lio", min_size=1, max_size=8)


@given(LABEL, LABEL)
def test_looking_alike_goes_both_ways(a: str, b: str) -> None:
    one, other = f"{a}.com", f"{b}.com"
    assert bool(lookalike_domain(one, [other])) == bool(lookalike_domain(other, [one]))
    assert lookalike_domain(one, [one]) is None
