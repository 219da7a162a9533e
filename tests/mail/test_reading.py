"""What an agent reads of a message, as a whole (inbound §10–§14)."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail import verification
from postroom.mail.content import ENCRYPTED, TooMuchToRead, read, safe_html
from postroom.mail.domain import domain_name
from postroom.mail.html import MAX_LINKS, Link
from postroom.mail.invisible import strip_invisible, visible
from postroom.mail.language import language
from postroom.mail.links import is_ip_address, link_facts, url_host
from postroom.mail.mime import parse
from postroom.mail.suffix import registrable_domain


def html(markup: str, more: str = "") -> bytes:
    return f"Content-Type: text/html; charset=utf-8\r\n{more}\r\n{markup}".encode()


@pytest.mark.covers("edge:B11", "FR-IN-9")
@pytest.mark.parametrize(
    ("text", "shown", "width", "marked"),
    [
        ("plain", "plain", 0, False),
        ("Grüße", "Grüße", 0, False),
        ("a\u200bb\u200cc\u200dd\u2060e\ufefff", "abcdef", 5, False),
        ("so\xadft", "soft", 0, False),
        ("\u115f\u1160\u3164\uffa0\u034f\u180ex", "x", 2, False),
        ("\u202aa\u202c\u2066b\u2069", "ab", 0, False),
        ("\u202ea", "a", 0, True),
        ("\u202da", "a", 0, True),
        ("x\U000e0041", "x", 0, True),
        ("\u200ea\u200f", "\u200ea\u200f", 0, False),
        ("👩\u200d💻", "👩\u200d💻", 0, False),
        ("👩\u200dx", "👩x", 1, False),
        ("x\u200d👩", "x👩", 1, False),
        ("❤\ufe0f\u200d🔥", "❤\ufe0f\u200d🔥", 0, False),
        ("👍🏽\u200d👍", "👍🏽\u200d👍", 0, False),
        ("👩\u200d\u200d💻", "👩💻", 2, False),
        ("می\u200cخواهم", "میخواهم", 0, False),
        ("ක්\u200dෂ", "ක්ෂ", 0, False),
    ],
)
def test_invisible_characters(text: str, shown: str, width: int, marked: bool) -> None:
    assert strip_invisible(text) == (shown, width, marked)


@given(st.text(st.sampled_from("ab\u200b\u200c\u200d\ufeff\u202e\U000e0041👩💻❤\ufe0f🏽🏴می\xad"), max_size=30))
def test_stripping_again_changes_nothing(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    assert strip_invisible(visible(text)).zero_width <= 0


@pytest.mark.covers("edge:B9")
def test_encrypted_mail_has_no_text() -> None:
    raw = (
        b'Content-Type: multipart/encrypted; protocol="application/pgp-encrypted"; boundary=b\r\n\r\n'
        b"--b\r\nContent-Type: application/pgp-encrypted\r\n\r\nVersion: 1\r\n"
        b"--b\r\nContent-Type: text/plain\r\n\r\nhello\r\n--b--\r\n"
    )
    assert read(raw, parse(raw)) == ENCRYPTED
    assert safe_html(raw) is None


@pytest.mark.covers("edge:B9", "RFC 8551 §3.5.2")
def test_the_content_of_an_opaque_signature_is_read() -> None:
    inner = b"Content-Type: text/html\r\n\r\n<p>Signed <b>words</b></p>"

    def der(tag: int, content: bytes) -> bytes:
        size = len(content)
        length = bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")
        return bytes([tag]) + length + content

    data = bytes.fromhex("06092a864886f70d010701")
    signed = der(
        0x30, b"\x02\x01\x01" + der(0x31, b"") + der(0x30, data + der(0xA0, der(0x04, inner))) + der(0x31, b"")
    )
    cms = der(0x30, bytes.fromhex("06092a864886f70d010702") + der(0xA0, signed))
    raw = (
        b"Content-Type: application/pkcs7-mime; smime-type=signed-data\r\nContent-Transfer-Encoding: base64\r\n\r\n"
        + base64.encodebytes(cms)
    )
    found = read(raw, parse(raw))
    assert (found.text, found.html, found.encrypted) == ("Signed words", "<p>Signed <b>words</b></p>", False)
    assert safe_html(raw) == found.html


@pytest.mark.covers("FR-IN-3", "edge:B2")
def test_effort_is_bounded_when_it_is_asked_for() -> None:
    for raw in (
        html("<b>x</b>" * 60),
        html("<p a=b>x" * 20),
        html("x" * 4000),
        b"\r\n" + b"a:\r\n" * 40,
        b"Content-Type: text/plain; format=flowed\r\n\r\n" + b"a \r\n" * 1000,
    ):
        message = parse(raw)
        with pytest.raises(TooMuchToRead):
            read(raw, message, effort=100)
        assert read(raw, message).extracted_text
        assert read(raw, message, effort=10_000) == read(raw, message)


@pytest.mark.covers("decisions:D5")
def test_html_fits_and_is_whole() -> None:
    raw = html("<div><p>" + "&lt;" * 400_000 + "</p>tail</div>")
    found = read(raw, parse(raw))
    assert found.truncated
    assert found.html is not None
    assert 900_000 < len(found.html.encode()) <= 1024 * 1024
    assert found.html.startswith("<div><p>&lt;")
    assert found.html.endswith(("</p></div>", "</p>tail</div>"))


@pytest.mark.covers("edge:B2")
def test_markup_that_is_not_served_degrades() -> None:
    raw = html("<div>" * 3000 + "words")
    found = read(raw, parse(raw))
    assert (found.html, found.text, found.clean) == (None, "words", False)


def test_serving_can_be_left_out() -> None:
    raw = html("<p>words</p>")
    found = read(raw, parse(raw), serve=False)
    assert (found.html, found.text, found.clean) == (None, "words", True)


def test_links_are_bounded() -> None:
    raw = html("<a href='https://example.com/'>x</a>" * 2000)
    assert len(read(raw, parse(raw)).links) == MAX_LINKS


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://Example.COM/x", ("example.com", False)),
        ("http:\\\\example.com\\x", ("example.com", False)),
        ("https:example.com", ("example.com", False)),
        ("https://user@example.com:8443/x", ("example.com", True)),
        ("https://bank.example%2ecom@evil.example", ("evil.example", True)),
        ("https://%65vil.example/", ("evil.example", False)),
        ("https://[2001:db8::1]:443/", ("2001:db8::1", False)),
        ("mailto:Bob@Example.com?subject=x", ("example.com", False)),
        ("tel:+44", (None, False)),
        ("https://", (None, False)),
    ],
)
def test_hosts(url: str, expected: tuple[str | None, bool]) -> None:
    assert url_host(url) == expected


@pytest.mark.parametrize(
    ("text", "url", "deceptive"),
    [
        ("https://bank.example.com/", "https://evil.example.net/", True),
        ("bank.example.com", "https://www.example.com/", False),
        ("www.bank.example", "https://evil.example/", True),
        ("Visit https://bank.example.com now", "https://evil.example.net/", True),
        ("bob@example.com", "mailto:bob@example.net", True),
        ("bob@example.com", "mailto:bob@example.com", False),
        ("example.com", "http://192.0.2.1/", True),
        ("Click here", "https://evil.example.net/", False),
        ("readme.md", "https://example.com/", False),
        ("invoice.pdf", "https://example.com/", False),
        ("bücher.example.com", "https://xn--bcher-kva.example.com/", False),
    ],
)
@pytest.mark.covers("edge:D2")
def test_links_that_say_something_else(text: str, url: str, deceptive: bool) -> None:
    assert link_facts([Link(text, url)]).deceptive == deceptive


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_link(text: str, url: str) -> None:
    link_facts([Link(text, url), Link(text, f"https://{url}")])


def test_addresses_and_domains() -> None:
    assert all(map(is_ip_address, ("192.0.2.1", "3221225985", "0xC0.0.2.1", "2001:db8::1")))
    assert not any(map(is_ip_address, ("example.com", "1.example", "")))
    assert domain_name("Bücher.Example.") == "xn--bcher-kva.example"
    assert [domain_name(name) for name in ("", "a..b", "a" * 64, "1.2.3.4", "-a.b", "a b", "\ud800")] == [None] * 7
    assert registrable_domain("a.b.example.co.uk") == "example.co.uk"
    assert registrable_domain("co.uk") is None
    assert registrable_domain("a.b.invented") == "b.invented"
    assert registrable_domain("a.b.invented", known_only=True) is None


@pytest.mark.parametrize(
    "text", ["", "ok", "Hello.", "1234 " * 50, "https://example.com/" + "word" * 50, "🎉" * 60, "x" * 39]
)
def test_language_of_little(text: str) -> None:
    assert language(text) is None


@given(st.text(max_size=200))
def test_any_language(text: str) -> None:
    found = language(text)
    assert found is None or (2 <= len(found) <= 3 and found.isascii() and found.islower())


@given(
    st.lists(
        st.sampled_from((*verification._WORDS, " ", "\n", "_", "a", "é", "1", "²", "-", "x")) | st.text(max_size=3)
    )
)
def test_what_is_looked_for_first_passes_over_no_trigger_word(pieces: list[str]) -> None:
    text = "".join(pieces)
    for shown in (text, text.upper(), text.title()):
        if verification._TRIGGER.search(shown):
            assert verification._ANYWHERE.search(shown.encode("utf-8", "replace"))
