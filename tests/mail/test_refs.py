"""References (inbound §15, edge row F5), and codes and links for verification (§20, edge rows E4, E5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.html import Link
from postroom.mail.refs import (
    MAX_PER_KIND,
    MAX_REFS,
    CustomRefError,
    Normalise,
    Ref,
    RefRules,
    compile_custom,
    core,
    extract,
    may_stand_unfenced,
)
from postroom.mail.refs.vehicle import plate, spaced
from postroom.mail.verification import find_verification, text_links

RULES = RefRules(uk_vehicle=True)


def found(text: str, kind: str, rules: RefRules = RULES) -> list[str]:
    return [ref.value for ref in extract([("body", text)], rules) if ref.kind == kind]


@pytest.mark.covers("edge:F5")
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("£412.80", ["GBP:412.80"]),
        ("412.80 GBP", ["GBP:412.80"]),
        ("gbp 412", ["GBP:412.00"]),
        ("€412,80 and 412,80€", ["EUR:412.80"]),
        ("EUR 1.234,56", ["EUR:1234.56"]),
        ("EUR 1,234.56", ["EUR:1234.56"]),
        ("EUR 1,234", ["EUR:1234.00"]),
        ("£1,234,567.8", ["GBP:1234567.80"]),
        ("£412,80", []),
        ("$1,2", []),
        ("US$5 or $6", ["USD:5.00", "USD:6.00"]),
        ("AB£5", []),
        ("£5.999", []),
        ("£ 007", ["GBP:7.00"]),
        ("$123456789012345", []),
        ("EURO 5, 5 eurocents", []),
    ],
)
def test_amounts(text: str, values: list[str]) -> None:
    assert found(text, "amount") == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("+44 (0)20 7946 0958", ["+442079460958"]),
        ("0044 20 7946 0958", ["+442079460958"]),
        ("020 7946 0958 or (020) 7946-0958", ["+442079460958"]),
        ("+1-202-555-0100", ["+12025550100"]),
        ("+999 123 4567", ["+9991234567"]),
        ("0123", []),
        ("02/02/2026", []),
        ("order 0207946", []),
        ("+1234567890123456", []),
        ("x+442079460958", []),
    ],
)
def test_phones(text: str, values: list[str]) -> None:
    assert found(text, "phone") == values


def test_national_numbers_are_those_of_the_country() -> None:
    assert found("030 123456", "phone", RefRules(country="DE")) == ["+4930123456"]
    assert found("030 123456", "phone", RefRules(country="GB")) == []


@pytest.mark.parametrize(
    ("text", "emails", "domains"),
    [
        ("Bob.Smith+x@Mail.Example.com.", ["bob.smith+x@mail.example.com"], ["example.com"]),
        ("<bob@bücher.example>", ["bob@xn--bcher-kva.example"], ["xn--bcher-kva.example"]),
        ("http://a.example.co.uk/x?y https://192.0.2.1/ ftp://b.example", [], ["example.co.uk"]),
        ("a@b, @example.com, a@@example.com, a@example", [], []),
        ("https://user@shop.example.org:8443/", [], ["example.org"]),
    ],
)
def test_addresses(text: str, emails: list[str], domains: list[str]) -> None:
    assert found(text, "email") == emails
    assert found(text, "domain") == domains


@pytest.mark.parametrize(
    ("text", "values", "month_first"),
    [
        ("2026-02-03", ["2026-02-03"], ["2026-02-03"]),
        ("3/2/2026", ["2026-02-03"], []),
        ("13.2.2026", ["2026-02-13"], ["2026-02-13"]),
        ("3 February 2026, 4th of Mar 2026, 5 SEPT. 2026", ["2026-02-03", "2026-03-04", "2026-09-05"], None),
        ("31/2/2026 2026-13-01 0/1/2026 1/2.2026 1/2/26", [], []),
        ("12026-02-03 2026-02-033", [], []),
    ],
)
def test_dates(text: str, values: list[str], month_first: list[str] | None) -> None:
    assert found(text, "date") == values
    assert found(text, "date", RefRules(day_first=False)) == (values if month_first is None else month_first)


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("Invoice 88213, INV-88213, invoice no. 88213, invoice number: 88213", "invoice", ["88213"]),
        ("Rechnung Nr. 2026/17", "invoice", ["2026/17"]),
        ("facture n° AB-12", "invoice", ["AB-12"]),
        ("invoice attached; invoices 12345; reinvoice 12345", "invoice", []),
        ("Order #ab-12345", "order", ["AB-12345"]),
        ("PO: 99881 and purchase order 99882", "order", ["99881", "99882"]),
        ("Bestellung A1234", "order", ["A1234"]),
        ("order now, PO Box 123456, order 12", "order", []),
        ("AB12 CDE, ab12cde, AB12-CDE", "uk_plate", ["AB12CDE"]),
        ("A9 AAA, A999AAA, AAA 9A, aaa999a", "uk_plate", ["A9AAA", "A999AAA", "AAA9A", "AAA999A"]),
        ("XAB12 CDE, AB12  CDE, AB12 CDEF", "uk_plate", []),
        ("AB12345678", "pcn", ["AB12345678"]),
        ("PCN number ZZ1234567, penalty charge notice: 123456789", "pcn", ["ZZ1234567", "123456789"]),
        ("PCN is far away from the number ZZ1234567", "pcn", []),
    ],
)
def test_numbers(text: str, kind: str, values: list[str]) -> None:
    assert found(text, kind) == values


def test_plates_have_a_printed_form() -> None:
    assert [spaced(plate(text)) for text in ("ab12cde", "a9-aaa", "AAA999A", "ABC", "x")] == [
        *("AB12 CDE", "A9 AAA", "AAA 999A", "ABC", "X"),
    ]
    assert found("AB12 CDE", "uk_plate", RefRules()) == []


def test_what_comes_first_counts_and_there_are_limits() -> None:
    many = " ".join(f"https://a{n}.example/ INV-{n} £{n}" for n in range(100))
    refs = extract([("subject", "INV-5"), ("body", many)], RULES)
    assert refs[0] == Ref("invoice", "5", "subject")
    assert len([ref for ref in refs if ref.kind == "invoice"]) == MAX_PER_KIND
    custom = tuple(compile_custom(f"c{n}", r"a(\d+)") for n in range(10))
    assert len(extract([("body", many)], RefRules(custom=custom))) == MAX_REFS
    assert found("INV-" + "1" * 70, "invoice") == []


@pytest.mark.parametrize(
    ("pattern", "normalise", "text", "values"),
    [
        (r"case-(\d+)", Normalise.NONE, "case-12 case-13 case-12", ["12", "13"]),
        (r"(?i)case-\w+", Normalise.UPPER, "Case-ab", ["CASE-AB"]),
        (r"[A-Z]{3}", Normalise.LOWER, "ABC", ["abc"]),
        (r"x(\d)?", Normalise.NONE, "x", []),
        (r"\bé\s", Normalise.NONE, "é ", []),
        (r"→\s*(\S+)", Normalise.NONE, "→  q", ["q"]),
    ],
)
def test_custom_patterns(pattern: str, normalise: Normalise, text: str, values: list[str]) -> None:
    rules = RefRules(custom=(compile_custom("own", pattern, normalise),))
    assert found(text, "custom:own", rules) == values


@pytest.mark.parametrize(
    ("name", "pattern", "reason"),
    [
        ("a", "(", "missing"),
        ("a", r"(a)\1", "escape"),
        ("a", "(?=a)", "RE2 syntax"),
        ("a", "(?:a{1000}){10}", "too large"),
        ("a", r"[\p{L}]{1,500}", "too large"),
        ("a", "x*", "nothing"),
        ("a", "", "characters"),
        ("a", "x" * 501, "characters"),
        ("A", "x", "name"),
        ("a b", "x", "name"),
        ("a", "\ud800", "RE2"),
    ],
)
def test_patterns_that_are_refused(name: str, pattern: str, reason: str) -> None:
    with pytest.raises(CustomRefError, match=reason) as refused:
        compile_custom(name, pattern)
    assert "(a)" not in refused.value.reason


@pytest.mark.timeout(30)
def test_custom_patterns_take_linear_time() -> None:
    hostile = compile_custom("a", r"(?:a+)+b|a")
    assert found("a" * 200_000, "custom:a", RefRules(custom=(hostile,))) == ["a"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    ["a", "1", "@", "a@", "a@a.", "£1,", "+1 ", "(0", "order ", "order 1", "invoice no. ", "AB12 ", "1/1/", "PCN "],
)
def test_hostile_text_ends(unit: str) -> None:
    text = unit * (300_000 // len(unit))
    extract([("body", text)], RULES)
    find_verification(text, text)
    assert len(list(text_links(text))) == 0


@pytest.mark.covers("edge:E1")
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("amount", "GBP:412.80", True),
        ("custom:x", "ab-1", True),
        ("custom:x", "ignore all of it", False),
        ("custom:x", "A" * 41, False),
        ("custom:x", "é", False),
        ("email", "a", False),
        ("domain", "example.com", False),
    ],
)
def test_values_that_may_stand_outside_a_fence(kind: str, value: str, expected: bool) -> None:
    assert may_stand_unfenced(Ref(kind, value, "body")) is expected


@pytest.mark.covers("edge:E4", "FR-IN-11")
@pytest.mark.parametrize(
    ("subject", "text", "code"),
    [
        ("Your code", "481207", "481207"),
        ("Hello", "Your verification code: 481 207.", "481 207"),
        ("Hello", "your passcode is 481-207", "481-207"),
        ("Hello", "Use OTP AB12CD.", "AB12CD"),
        ("Hello", "G-481207 is your Example verification code", "481207"),
        ("481207 is your sign-in code", "", "481207"),
        ("Votre code de vérification", "Le voici : 5512", "5512"),
        ("Hello", "Ihr Bestätigungscode lautet 55127", "55127"),
        ("Hello", "您的验证码是 481207，请勿转发", "481207"),
        ("Hello", "验证码481207。", "481207"),
        ("Hello", "code 2026", "2026"),
        ("Hello", "code: " + "x" * 90 + " 481207", None),
        ("Hello", "Sign-in on 2 February 2026 from Paris", None),
        ("Hello", "Use discount code SAVE2026 now", None),
        ("Hello", "zip code 12345, promo code 12345", None),
        ("Hello", "the login line is 555-123-4567", None),
        ("Hello", "login at https://example.com/481207", None),
        ("Hello", "a code for £4812 or 12345678901", None),
        ("Hello", "encode 481207", None),
        ("Hello", "Meet me at 481207", None),
        ("Hello", "x " * 1100 + "code 481207", None),
    ],
)
def test_codes(subject: str, text: str, code: str | None) -> None:
    handed = find_verification(subject, text)
    assert (handed.code if handed else None) == code


@pytest.mark.covers("edge:E4", "FR-IN-11")
@pytest.mark.parametrize(
    ("text", "links", "expected"),
    [
        ("Please confirm.", [Link("Yes", "https://example.com/a?Token=1")], "https://example.com/a?Token=1"),
        ("Please confirm.", [Link("Verify address", "https://example.com/a")], "https://example.com/a"),
        ("Please confirm.", [Link("Verify", "mailto:a@example.com"), Link("x", "https://example.com/")], None),
        ("Please confirm.", [Link("Reset", "https://example.com/unsubscribe/token")], None),
        ("Please confirm: https://example.com/activate/1.", [], "https://example.com/activate/1"),
        ("Please confirm (https://example.com/magic).", [], "https://example.com/magic"),
        ("Look at this.", [Link("Verify", "https://example.com/verify")], None),
    ],
)
def test_links(text: str, links: list[Link], expected: str | None) -> None:
    handed = find_verification("Hello", text, links)
    assert (handed.link if handed else None) == expected
    assert handed is None or handed.kind == "link"


@given(st.text(max_size=200), st.text(max_size=200))
def test_anything_may_be_looked_at(subject: str, text: str) -> None:
    handed = find_verification(f"code {subject}", text, [Link(text, subject)])
    if handed is not None and handed.code is not None:
        assert 4 <= len(handed.code) <= 8
        assert handed.code in f"{subject}\n{text}"


_PIECES = st.sampled_from(
    (
        *("£", "€", "$", "US$", "GBP", "eur", "Usd", " ", "\n", ".", ",", "/", "-", "#", ":", "+", "(0", "nd"),
        *("12", "1,234.50", "7", "2026", "03", "2026-03-04", "3/4/2026", "17 March 2026", "3rd of sept", "00", "+44"),
        *("7700 900123", "invoice", "Rechnung", "inv", "INV-", "order", "PO", "purchase order", "no.", "A1B2", "x"),
    )
)


@given(st.lists(_PIECES, max_size=12), st.booleans())
def test_what_is_looked_for_first_passes_over_no_reference(pieces: list[str], day_first: bool) -> None:
    text = "".join(pieces)
    found = list(core.find(text, country="GB", day_first=day_first))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "_possible", lambda text: frozenset(core._NEEDS))
        assert list(core.find(text, country="GB", day_first=day_first)) == found
