"""Authentication-Results: the examples of RFC 8601, what is forgiven, what is written; authres as another opinion."""

import authres  # type: ignore[import-untyped]  # it has no annotations
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mailauth.authres import (
    MAX_FIELD_BYTES,
    MAX_RESULTS,
    MAX_STEPS,
    AuthenticationResults,
    MethodResult,
    Property,
    parse,
    parse_arc,
    render,
)


def read(text: str) -> AuthenticationResults:
    found = parse(text.encode())
    assert found is not None
    return found


def shape(found: AuthenticationResults) -> list[tuple[str, str, dict[str, str]]]:
    return [(r.method, r.result, {f"{p.type}.{p.name}": p.value for p in r.properties}) for r in found.results]


@pytest.mark.covers("RFC 8601 §2.2")
def test_the_examples_of_rfc_8601() -> None:
    """Appendix B.2 to B.7."""
    assert read(" example.org 1; none") == AuthenticationResults("example.org", (), 1)
    found = read(" example.com;\r\n          spf=pass smtp.mailfrom=example.net")
    assert found.authserv_id == "example.com"
    assert shape(found) == [("spf", "pass", {"smtp.mailfrom": "example.net"})]
    found = read(
        " example.com;\r\n  auth=pass (cram-md5) smtp.auth=sender@example.net;\r\n  spf=pass smtp.mailfrom=example.net"
    )
    assert shape(found) == [
        ("auth", "pass", {"smtp.auth": "sender@example.net"}),
        ("spf", "pass", {"smtp.mailfrom": "example.net"}),
    ]
    assert shape(read(" example.com; iprev=pass\r\n  policy.iprev=192.0.2.200")) == [
        ("iprev", "pass", {"policy.iprev": "192.0.2.200"})
    ]
    found = read(
        ' example.com;\r\n  dkim=pass reason="good signature"\r\n  header.i=@mail-router.example.net;\r\n'
        '  dkim=fail reason="bad signature"\r\n  header.i=@newyork.example.com'
    )
    assert [r.reason for r in found.results] == ["good signature", "bad signature"]
    assert shape(found) == [
        ("dkim", "pass", {"header.i": "@mail-router.example.net"}),
        ("dkim", "fail", {"header.i": "@newyork.example.com"}),
    ]
    found = read(
        "  foo.example.net (foobar) 1 (baz);\r\n  dkim (Because I like it) / 1 (One yay) = (wait for it) fail\r\n"
        "  policy (A dot can go here) . (like that) expired\r\n  (this surprised me)"
        " = (as I wasn't expecting it) 1362471462"
    )
    assert (found.authserv_id, found.version) == ("foo.example.net", 1)
    assert found.results == (MethodResult("dkim", "fail", (Property("policy", "expired", "1362471462"),), version=1),)


@pytest.mark.covers("RFC 8601 §2.2")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"example.com"; spf=pass', [("spf", "pass", {})]),
        ("a.example; SPF=PASS SMTP.MailFrom=X@Y.example", [("spf", "pass", {"smtp.mailfrom": "X@Y.example"})]),
        ('a; auth=pass smtp.auth="a b"@c.example', [("auth", "pass", {"smtp.auth": "a b@c.example"})]),
        (r'a; x=pass policy.x="q\"u\\o;te (no)"', [("x", "pass", {"policy.x": 'q"u\\o;te (no)'})]),
        ("a; spf=pass smtp.mailfrom=; dkim=none", [("spf", "pass", {"smtp.mailfrom": ""}), ("dkim", "none", {})]),
        ("a; spf=pass smtp.mailfrom= smtp.helo=h", [("spf", "pass", {"smtp.mailfrom": "", "smtp.helo": "h"})]),
        ("a; spf=pass smtp.mailfrom= h.example", [("spf", "pass", {"smtp.mailfrom": "h.example"})]),
        ("a; spf=pass;", [("spf", "pass", {})]),
        ("a;;; spf=pass;;", [("spf", "pass", {})]),
        ("a; dkim=pass header.b=abc/d+e==", [("dkim", "pass", {"header.b": "abc/d+e=="})]),
        ("a; spf=pass (a; b (c) \\) d) smtp.helo=h", [("spf", "pass", {"smtp.helo": "h"})]),
        # As Microsoft writes it.
        ("a; dmarc=pass action=none header.from=b.example; compauth=pass reason=100",
         [("dmarc", "pass", {"header.from": "b.example"}), ("compauth", "pass", {})]),
        # What cannot be read is left out, and what follows is not.
        ("a; =pass; spf=; dkim; x y z; spf=fail", [("spf", "fail", {})]),
        ("a; spf/2=pass; dkim/x=pass", [("spf", "pass", {})]),
        ("a; spf=pass smtp.=x; dkim=pass", [("dkim", "pass", {})]),
        ("a; none", []),
        ("a;", []),
        ("a", []),
        ("a; spf=pass (never ends; dkim=pass", []),
        ('a; dkim=pass; spf=pass smtp.mailfrom="never ends', [("dkim", "pass", {})]),
        ("a; dkim=fail\x00; spf=pass", [("spf", "pass", {})]),
    ],
)  # fmt: skip
def test_reading(text: str, expected: list[tuple[str, str, dict[str, str]]]) -> None:
    assert shape(read(text)) == expected


@pytest.mark.covers("RFC 8601 §2.5")
@pytest.mark.parametrize(
    "text",
    ["", ";", "; spf=pass", "spf=pass; dkim=pass", "a b; spf=pass", "(a", '"a', '""; spf=pass', "a 1 2; spf=pass",
     "a spf=pass", "a 1x; spf=pass"],
)  # fmt: skip
def test_no_authserv_id(text: str) -> None:
    assert parse(text.encode()) is None


def test_methods_of_another_version_are_apart() -> None:
    found = read("a; spf/2=pass; spf/1=fail; spf=none")
    assert [r.result for r in found.of("spf")] == ["fail", "none"]
    assert found.results[1].value("smtp", "mailfrom") is None


@pytest.mark.covers("RFC 8617 §4.1.1")
def test_arc_has_an_instance() -> None:
    found = parse_arc(b" i = 2 ; (x) lists.example.org; spf=pass smtp.mailfrom=a@b.example")
    assert found is not None
    assert (found.instance, found.authserv_id) == (2, "lists.example.org")
    for text in (b"lists.example.org; spf=pass", b"i=; a", b"i=x; a", b"i=1 a", b"j=1; a", b"i=\xd9\xa1; a", b"i=1;"):
        assert parse_arc(text) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"a; " + b"(" * 30_000,
        b"a; " + b"(" * 15_000 + b")" * 15_000,
        b"a; x=y " + b'"' * 30_000,
        b"a; " + b"x=y;" * 8_000,
        b"a; x=y " + b"a.b=c " * 5_000,
        b"a; " + b"\\" * 30_000,
        b"a; " + b'"\\' * 15_000,
        b"a; " + b"(x" * 15_000,
        b" \r\n\t" * 8_000,
        b"a; x=y reason=" + b"r" * 30_000,
        b"a;" * 16_000,
        b"\xff" * 32_000,
    ],
)
def test_hostile_fields_end(raw: bytes) -> None:
    found = parse(raw)
    assert found is None or len(found.results) <= MAX_RESULTS
    parse(raw[:MAX_FIELD_BYTES])
    assert parse(b"a; x=y " + b" " * MAX_FIELD_BYTES) is None


def test_what_follows_too_many_steps_is_not_read() -> None:
    found = parse(b"a; spf=pass; dkim=pass " + b"(x)" * MAX_STEPS + b"; dmarc=pass")
    assert found is not None
    assert [r.method for r in found.results] == ["spf"]
    assert parse(b"(x)" * MAX_STEPS + b"a; spf=pass") is None


@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    parse(raw)
    parse_arc(raw)
    parse(b"a; x=y " + raw)


WORDS = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True)
TEXTS = st.text(max_size=40)
PLAIN = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
RESULTS = st.lists(
    st.builds(
        MethodResult,
        WORDS,
        WORDS,
        st.lists(st.builds(Property, WORDS, WORDS, TEXTS), max_size=3).map(tuple),
        TEXTS,
        st.one_of(st.none(), st.integers(1, 9)),
        TEXTS,
    ),
    max_size=4,
).map(tuple)


def said(result: MethodResult, change: str) -> MethodResult:
    """As it comes back: comments are gone, and characters that may not stand in a field are `?`."""

    def plain(text: str) -> str:
        kept = str.isprintable if change == "utf8" else lambda c: " " <= c <= "~"
        return "".join(c if kept(c) else "?" for c in text)

    properties = tuple(Property(p.type, p.name, plain(p.value)) for p in result.properties)
    return MethodResult(result.method, result.result, properties, plain(result.reason), result.version)


@pytest.mark.covers("RFC 8601 §2.2", "edge:D9")
@settings(max_examples=150, deadline=None)
@given(TEXTS, RESULTS)
def test_what_is_written_is_read(authserv_id: str, results: tuple[MethodResult, ...]) -> None:
    raw = render(AuthenticationResults(authserv_id, results))
    assert raw.startswith(b"Authentication-Results:")
    assert raw.endswith(b"\r\n")
    assert raw.isascii()
    lines = raw[:-2].split(b"\r\n")
    assert all(line.startswith(b" ") and line.strip() for line in lines[1:])
    assert not any(byte < 32 or byte == 127 for line in lines for byte in line)
    assert all(len(line) <= 78 or len(line.split()) <= 2 or b'"' in line for line in lines)
    found = parse(raw.partition(b":")[2])
    if not authserv_id:
        assert found is None
        return
    assert found is not None
    squeezed = [tuple(p.value.split() for p in r.properties) for r in found.results]
    assert squeezed == [tuple(p.value.split() for p in said(r, "").properties) for r in results]
    assert [(r.method, r.result, r.version) for r in found.results] == [
        (r.method, r.result, r.version) for r in results
    ]
    assert [r.reason for r in found.results] == [said(r, "").reason for r in results]


@pytest.mark.covers("RFC 8601 §2.2", "RFC 5322 §2.1.1")
def test_how_it_looks() -> None:
    found = AuthenticationResults(
        "mx.example.com",
        (
            MethodResult("spf", "pass", (Property("smtp", "mailfrom", "a@example.net"),), comment="sender (ok) is\\in"),
            MethodResult(
                "dkim", "fail", (Property("header", "d", "example.net"), Property("header", "b", "a/b=")), "no"
            ),
            MethodResult("x", "none", (Property("policy", "who", "münch\r\nen"),)),
        ),
    )
    assert render(found) == (
        b"Authentication-Results: mx.example.com;\r\n"
        b" spf=pass (sender \\(ok\\) is\\\\in) smtp.mailfrom=a@example.net;\r\n"
        b' dkim=fail reason="no" header.d=example.net header.b="a/b=";\r\n'
        b' x=none policy.who="m?nch??en"\r\n'
    )
    assert 'policy.who="münch??en"'.encode() in render(found, utf8=True)
    assert render(AuthenticationResults("mx.example.com")) == b"Authentication-Results: mx.example.com; none\r\n"
    assert render(AuthenticationResults("a", instance=3), title="ARC-Authentication-Results") == (
        b"ARC-Authentication-Results: i=3; a; none\r\n"
    )
    for bad in ("a b", "", "a;b", "a\r\nb", "ä"):
        with pytest.raises(ValueError, match="keyword"):
            render(AuthenticationResults("a", (MethodResult(bad, "pass"),)))
        with pytest.raises(ValueError, match="keyword"):
            render(AuthenticationResults("a", (MethodResult("spf", "pass", (Property("smtp", bad, "x"),)),)))


THEIRS = st.lists(
    st.tuples(
        st.sampled_from(["spf", "dkim", "dmarc", "iprev", "auth"]),
        st.sampled_from(["pass", "fail", "none", "softfail", "temperror"]),
        st.lists(
            st.tuples(
                st.sampled_from(["smtp.mailfrom", "header.d", "header.from", "policy.iprev", "smtp.auth"]),
                st.sampled_from(["example.com", "a@example.com", "192.0.2.1", "x_y"]),
            ),
            max_size=2,
            unique_by=lambda pair: pair[0],
        ),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.covers("RFC 8601 §2.2")
@given(THEIRS, st.sampled_from([" ", "\r\n\t", " (c) ", "  "]))
def test_the_package_authres_reads_the_same(results: list[tuple[str, str, list[tuple[str, str]]]], gap: str) -> None:
    """Of fields whose quoting leaves nothing to choose; it knows fewer forms of values than we do."""
    body = f";{gap}".join(
        gap.join([f"{method}={result}", *(f"{name}={value}" for name, value in properties)])
        for method, result, properties in results
    )
    text = f"mx.example.com;{gap}{body}"
    theirs = authres.AuthenticationResultsHeader.parse(f"Authentication-Results: {text}")
    ours = read(text)
    assert theirs.authserv_id == ours.authserv_id
    assert [(r.method, r.result) for r in theirs.results] == [(r.method, r.result) for r in ours.results]
    assert [[(p.type, p.name, p.value) for p in r.properties] for r in theirs.results] == [
        [(p.type, p.name, p.value) for p in r.properties] for r in ours.results
    ]


@pytest.mark.covers("RFC 8601 §2.2")
@given(THEIRS)
def test_the_package_authres_reads_what_we_write(results: list[tuple[str, str, list[tuple[str, str]]]]) -> None:
    ours = AuthenticationResults(
        "mx.example.com",
        tuple(
            MethodResult(
                method,
                result,
                tuple(Property(name.partition(".")[0], name.partition(".")[2], value) for name, value in properties),
                "why so",
            )
            for method, result, properties in results
        ),
    )
    theirs = authres.AuthenticationResultsHeader.parse(render(ours).decode().strip())
    assert [(r.method, r.result, r.reason) for r in theirs.results] == [
        (r.method, r.result, "why so") for r in ours.results
    ]
