"""Which Authentication-Results are believed, and which are taken for a forgery of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mailauth.authres_trust import (
    MAX_FIELDS,
    MAX_OCTETS,
    canonical_id,
    claiming_spans,
    claims,
    trusted_results,
    without_claims,
)
from postroom.mailauth.canonical import parse_fields

OURS = ("mx.example.com", "mx.münchen.example")


def top(header: str, authserv_id: str = "mx.example.com") -> str | None:
    found = trusted_results(parse_fields(header.replace("\n", "\r\n").encode()), authserv_id)
    return None if found is None else found.results[0].result


@pytest.mark.covers("edge:D9", "RFC 8601 §5")
@pytest.mark.parametrize(
    ("header", "result"),
    [
        ("Authentication-Results: mx.example.com; spf=pass\n", "pass"),
        ("AUTHENTICATION-results : MX.Example.COM. 1; spf=pass\n", "pass"),
        ('Authentication-Results: "mx.example.com"; spf=pass\n', "pass"),
        ("Authentication-Results: (x) mx.example.com; spf=pass\n", "pass"),
        # Only the topmost with the id counts.
        (
            "Authentication-Results: mx.example.com; spf=fail\nAuthentication-Results: mx.example.com; spf=pass\n",
            "fail",
        ),
        ("Authentication-Results: other.example; spf=fail\nAuthentication-Results: mx.example.com; spf=pass\n", "pass"),
        ("Authentication-Results: spf=fail; x=y\nAuthentication-Results: mx.example.com; spf=pass\n", "pass"),
        (
            "Authentication-Results: mx.example.com 2; spf=fail\nAuthentication-Results: mx.example.com; spf=pass\n",
            None,
        ),
        ("Authentication-Results: mx.example.com.evil.example; spf=pass\n", None),
        ("Authentication-Results: xmx.example.com; spf=pass\n", None),
        ("Authentication-Results: evil.example (mx.example.com); spf=pass\n", None),
        ("Authentication-Results: mx. example.com; spf=pass\n", None),
        ("X-Authentication-Results: mx.example.com; spf=pass\n", None),
        ("ARC-Authentication-Results: i=1; mx.example.com; spf=pass\n", None),
        ("Subject: Authentication-Results: mx.example.com; spf=pass\n", None),
        ("", None),
    ],
)
def test_what_is_trusted(header: str, result: str | None) -> None:
    assert top(header) == result


def test_so_much_is_looked_through_for_it_and_no_more() -> None:
    stranger = f"Authentication-Results: other.example; x=y ({'x' * 7000})\n"
    ours = "Authentication-Results: mx.example.com; spf=pass\n"
    assert top(stranger * (MAX_OCTETS // 7100) + ours) == "pass"
    assert top(stranger * (MAX_OCTETS // 7000 + 1) + ours) is None


def test_no_trusted_id_trusts_nobody() -> None:
    assert top("Authentication-Results: ; spf=pass\n", "") is None
    assert top('Authentication-Results: ""; spf=pass\n', "") is None
    assert top("Authentication-Results: mx.xn--mnchen-3ya.example; spf=pass\n", OURS[1]) == "pass"


@pytest.mark.covers("edge:D9", "mail-server:B4", "RFC 8601 §5")
@pytest.mark.parametrize(
    "value",
    [
        "mx.example.com; spf=pass",
        "MX.EXAMPLE.COM; spf=pass",
        "mx.example.com.; spf=pass",
        "mx.example.com..; spf=pass",
        "mx.example.com 1; spf=pass",
        "mx.example.com/1; spf=pass",
        " \t\r\n mx.example.com\r\n ; spf=pass",
        "(comment) mx.example.com; spf=pass",
        "(a (nested; one)) mx.example.com (x); spf=pass",
        "(never ends mx.example.com; spf=pass",
        "(((((((((((((x))))))))))))) mx.example.com; spf=pass",
        '"mx.example.com"; spf=pass',
        '"mx".example.com; spf=pass',
        r'"mx\.example.com"; spf=pass',
        "mx.exam(ple)ple.com; spf=pass",
        "mx (x) . example . com; spf=pass",
        "mx.example.com spf=pass",
        "mx.example.com, spf=pass",
        "spf=pass mx.example.com",
        ";mx.example.com; spf=pass",
        "x mx.example.com; spf=pass",
        "<mx.example.com>; spf=pass",
        "=?us-ascii?q?mx.example.com?=; spf=pass",
        "=?utf-8?b?bXguZXhhbXBsZS5jb20=?=; spf=pass",
        "ｍｘ.example.com; spf=pass",
        "mx。example。com; spf=pass",
        "mx.exam\u00adple.com; spf=pass",
        "mx.exam\u200bple.com; spf=pass",
        "mx.münchen.example; spf=pass",
        "MX.MÜNCHEN.example; spf=pass",
        "mx.xn--mnchen-3ya.example; spf=pass",
        "mx.mu\u0308nchen.example; spf=pass",
        "x" * 10_000,
        "(x)" * 1500 + "mx.example.com; spf=pass",
        " (x)" * 600 + "mx.example.com; spf=pass",
        " " * 3000 + "mx.example.com; spf=pass",
    ],
)
def test_forgeries_of_ours(value: str) -> None:
    assert claims(value.encode(), OURS)


@pytest.mark.covers("mail-server:B4")
@pytest.mark.parametrize(
    "value",
    [
        "other.example; spf=pass",
        "mx.example.com.other.example; spf=pass",
        "example.com; spf=pass",
        "other.example; spf=pass smtp.mailfrom=mx.example.com",
        "other.example; iprev=pass (mx.example.com) policy.iprev=192.0.2.1",
        "notmx.example.com; spf=pass",
        "mx.munchen.example; spf=pass",
        "",
    ],
)
def test_those_of_others_stay(value: str) -> None:
    assert not claims(value.encode(), OURS)


@pytest.mark.covers("mail-server:B4")
def test_they_are_taken_out_of_the_message() -> None:
    kept = b"Received: a\r\nauthentication-results: other.example; spf=pass\r\nSubject: x\r\n\r\n"
    body = b"Authentication-Results: mx.example.com; spf=pass\r\n"
    forged = b"Authentication-Results: mx.example.com;\r\n spf=pass\r\n"
    again = b"AUTHENTICATION-RESULTS \t: MX.example.com; dkim=pass\r\n"
    parts = kept.splitlines(keepends=True)
    raw = forged + parts[0] + again + b"".join(parts[1:3]) + forged + parts[3] + body
    assert without_claims(raw, OURS) == kept + body
    assert without_claims(raw.replace(b"\r\n", b"\n"), OURS) == (kept + body).replace(b"\r\n", b"\n")
    assert without_claims(kept + body, OURS) is not raw
    assert without_claims(kept, []) == kept
    header = raw[: -len(body)]
    assert b"".join(header[a:b] for a, b in claiming_spans(header, OURS)) == forged + again + forged
    many = b"Authentication-Results: other.example; x=y\r\n" * (MAX_FIELDS + 5) + b"\r\n"
    assert without_claims(many, OURS).count(b"other") == MAX_FIELDS


@given(st.binary(max_size=200), st.lists(st.text(max_size=30), max_size=3))
def test_any_bytes(raw: bytes, ids: list[str]) -> None:
    claims(raw, ids)
    header = b"Authentication-Results: " + raw
    assert len(without_claims(header, ids)) <= len(header)
    for authserv_id in ids:
        canonical_id(authserv_id)
        trusted_results([], authserv_id)


JUNK = st.lists(
    st.sampled_from(["(a)", " ", "(", ")", '"', "\\", ";", "x", "spf=pass", "\r\n ", "(b (c))"]), max_size=8
).map("".join)


@pytest.mark.covers("edge:D9")
@given(JUNK, JUNK)
def test_whatever_is_read_as_ours_is_removed(before: str, behind: str) -> None:
    """What `trusted_results` would believe is a forgery on mail from strangers."""
    value = f"{before}mx.example.com{behind}; spf=pass".encode()
    field = b"Authentication-Results:" + value + b"\r\n"
    if trusted_results(parse_fields(b"x: y\r\n") + _fields(field), OURS[0]) is not None:
        assert claims(value, OURS)


def _fields(field: bytes) -> list:  # type: ignore[type-arg]  # of HeaderField
    return [] if b"\n\r\n" in field else parse_fields(field)


@pytest.mark.parametrize(
    "header",
    [
        b"Authentication-Results: " + "ａ ".encode() * 500 + b"\r\n",
        b"Authentication-Results: " + b"(" * 2000 + b"\r\n",
        b"Authentication-Results: " + b"(a" * 1000 + b"\r\n",
        b"Authentication-Results: " + b"=?utf-8?q?a?= " * 140 + b"\r\n",
        b"Authentication-Results: a\r\n",
        b"Authentication-Results: " + "\ufdfa".encode() * 600 + b"\r\n",
    ],
)
def test_hostile_headers_end(header: bytes) -> None:
    count = 256 * 1024 // len(header)
    assert len(claiming_spans(header * count, OURS)) >= max(0, count - MAX_FIELDS)
