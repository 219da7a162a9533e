import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp.address import Address, AddressSyntaxError, domain_to_ascii, parse_path

pytestmark = pytest.mark.covers("mail-server:A6")

_ATEXT = string.ascii_letters + string.digits + "!#$%&'*+/=?^_`{|}~-"
_label = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
_domain = st.lists(_label, min_size=1, max_size=5).map(".".join)
_dot_string = st.lists(st.text(_ATEXT, min_size=1, max_size=8), min_size=1, max_size=4).map(".".join)
_any_local = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1, max_size=16)


@given(_dot_string, _domain, st.sampled_from(["", "SIZE=100", "BODY=8BITMIME X=y"]))
def test_ordinary_path(local: str, domain: str, parameters: str) -> None:
    raw = f"<{local}@{domain}>" + (f" {parameters}" if parameters else "")
    path = parse_path(raw.encode())
    assert path.address == Address(local, domain)
    assert path.parameters == parameters.encode()
    assert not path.international


@pytest.mark.covers("mail-server:A6")
@pytest.mark.parametrize(
    "raw", [b"<Ada@Agents.example.>", b"<Ada@Agents.example.> SIZE=1", b"<@a.example:Ada@Agents.example.>"]
)
def test_a_domain_may_end_with_a_dot(raw: bytes) -> None:
    assert parse_path(raw).address == Address("Ada", "agents.example")


@given(_any_local, _domain)
def test_any_local_part_survives_its_spelling(local: str, domain: str) -> None:
    address = Address(local, domain)
    assert parse_path(f"<{address}>".encode()).address == address


@given(st.binary(max_size=600))
def test_garbage_gives_an_address_or_the_error(raw: bytes) -> None:
    for candidate in (raw, b"<" + raw + b">", b"<a@" + raw + b">", b"<" + raw + b"@example.com>"):
        try:
            path = parse_path(candidate)
        except AddressSyntaxError:
            continue
        if path.address is not None:
            octets = len(path.address.local.encode())
            assert octets <= 64 or (path.address.local[:3].lower() == "srs" and octets <= 252)
            assert len(path.address.domain) <= 255
            assert path.address.domain.isascii()
            assert not set(path.address.local) & set("\r\n\0")


@pytest.mark.parametrize(
    "raw",
    [
        b"<a>",
        b"<@example.com>",
        b"<a@>",
        b"<a@b@example.com>",
        b"<.a@example.com>",
        b"<a.@example.com>",
        b"<a..b@example.com>",
        b"<a@.example.com>",
        b"<a@example..com>",
        b"<a@example.com..>",
        b"<a@.>",
        b"<a@-example.com>",
        b"<a@example-.com>",
        b"<a@[192.0.2.1]>",
        b"<a@[IPv6:2001:db8::1]>",
        b'<"a\rb"@example.com>',
        b'<"a\nb"@example.com>',
        b'<"a\0b"@example.com>',
        b'<""@example.com>',
        b'<"a"b@example.com>',
        b"Ann <a@example.com>",
        b"<Ann <a@example.com>>",
        b"<a b@example.com>",
        b"< a@example.com>",
        b"<a@example.com >",
        b"<a@exam ple.com>",
        b"a@example.com",
        b"<a@example.com",
        b"<a@example.com>SIZE=1",
        b"<a\xff@example.com>",
        b"<" + b"a" * 65 + b"@example.com>",
        b"<srs2=" + b"a" * 60 + b"@example.com>",
        b"<SRS0=" + b"a" * 238 + b"@example.com>",
        b'<"SRS0= ' + b"a" * 237 + b'"@example.com>',
        b"<a@" + b"b" * 64 + b".example>",
        b"<a@" + b"b." * 128 + b"example>",
        ("<" + "ä" * 33 + "@example.com>").encode(),
        "<a@exa\u00admple..com>".encode(),
        b"<postmaster>",
        b"",
        b"<",
    ],
)
def test_refused(raw: bytes) -> None:
    with pytest.raises(AddressSyntaxError):
        parse_path(raw)


@pytest.mark.parametrize(
    ("raw", "local", "domain"),
    [
        (b"<a@localhost>", "a", "localhost"),
        (b"<Ann.Lee+tag@Example.COM>", "Ann.Lee+tag", "example.com"),
        (b"<@relay.example,@other.example:a@example.com>", "a", "example.com"),
        (b'<"a b"@example.com>', "a b", "example.com"),
        (b'<"a\\"b@c>"@example.com>', 'a"b@c>', "example.com"),
        ("<a@bücher.example>".encode(), "a", "xn--bcher-kva.example"),
        ("<a@BÜCHER.example>".encode(), "a", "xn--bcher-kva.example"),
        ("<dömi@example.com>".encode(), "dömi", "example.com"),
        (b"<" + b"a" * 64 + b"@example.com>", "a" * 64, "example.com"),
        (b"<a@" + b"b" * 63 + b".example>", "a", "b" * 63 + ".example"),
    ],
)
def test_admitted(raw: bytes, local: str, domain: str) -> None:
    path = parse_path(raw)
    assert path.address == Address(local, domain)
    assert path.international == (not raw.isascii())


def test_key_is_lower_case() -> None:
    assert Address("Ann+Tag", "example.com").key == "ann+tag@example.com"


def test_null_path() -> None:
    assert parse_path(b"<>").address is None
    assert parse_path(b"<> SIZE=5").parameters == b"SIZE=5"


@pytest.mark.covers("decisions:D28")
@pytest.mark.parametrize("raw", [b"<postmaster>", b"<Postmaster>", b"<POSTMASTER> X=y"])
def test_bare_postmaster(raw: bytes) -> None:
    assert parse_path(raw, bare_postmaster="example.com").address == Address("postmaster", "example.com")


@given(_domain)
def test_domain_to_ascii_keeps_ascii(domain: str) -> None:
    assert domain_to_ascii(domain.upper()) == domain


@pytest.mark.covers("mail-server:A6", "RFC 5321 §4.5.3.1")
@given(st.sampled_from(["SRS0=", "srs1=", "Srs0+", "SRS1-"]), st.integers(60, 236), st.booleans())
def test_what_a_forwarder_made_of_an_address_may_be_as_long_as_a_path(tag: str, more: int, quoted: bool) -> None:
    local = tag + "a" * (more - 1) + (" " if quoted else "b")
    path = parse_path(f"<{Address(local, 'example.com')}>".encode())
    assert path.address == Address(local, "example.com")
    assert len(path.address.local) <= 241
