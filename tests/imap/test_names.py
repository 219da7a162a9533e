"""Mailbox names and LIST patterns."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from imapclient import imap_utf7

from postroom.imap.errors import BadCommand
from postroom.imap.names import ListPattern, any_match, canonical_name, decode_name, encode_name, match

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(lambda s: unicodedata.normalize("NFC", s))


@pytest.mark.covers("mail-server:D2")
@given(NAMES)
@example("Entwürfe & Spaß/日本語")
@example("&")
@example("😀")
def test_modified_utf7_round_trip_and_peer(name: str) -> None:
    wire = encode_name(name)
    assert wire.isascii()
    assert decode_name(wire) == name
    if "\x7f" not in name:  # the peer sends DEL as itself, which is no printable character
        assert imap_utf7.decode(wire) == name
        assert imap_utf7.encode(name) == wire


@given(NAMES)
def test_utf8_round_trip(name: str) -> None:
    assert decode_name(encode_name(name, utf8=True), utf8=True) == name


@given(st.one_of(st.binary(max_size=20), st.text("&-AOk,+/ =", max_size=12).map(str.encode)))
def test_decoding_is_strict(data: bytes) -> None:
    try:
        name = decode_name(data)
    except BadCommand:
        return
    assert unicodedata.normalize("NFC", imap_utf7.decode(data)) == name
    assert decode_name(encode_name(name)) == name


@pytest.mark.covers("mail-server:D2")
@pytest.mark.parametrize(
    "data",
    [
        b"&",
        b"a&",
        b"&AOk",
        b"&AOk=-",
        b"&A-",
        b"&AO-",
        b"&AOl-&AOk-",
        b"&AGE-",
        b"&2D0-",
        b"&3wA-",
        b"&AO/-",
        b"&AOm-",
        b"\xc3\xa9",
        b"a\x00",
        b"a\x7f",
        b"&AOkA-",
    ],
)
def test_bad_names(data: bytes) -> None:
    with pytest.raises(BadCommand):
        decode_name(data)


def test_normalisation_and_ampersand() -> None:
    assert decode_name(b"&AGUDAQ-"[:1] + b"-") == "&"
    assert decode_name(b"e&AwE-") == "é"
    assert decode_name("é".encode(), utf8=True) == "é"
    assert decode_name(b"a&b", utf8=True) == "a&b"
    with pytest.raises(BadCommand):
        decode_name(b"\xff", utf8=True)


@pytest.mark.covers("mail-server:D2")
def test_inbox_in_any_case() -> None:
    assert canonical_name("iNbOx") == "INBOX"
    assert canonical_name("inbox/Work") == "INBOX/Work"
    assert canonical_name("inboxes") == "inboxes"
    assert canonical_name("\u0131nbox") == "\u0131nbox"
    assert canonical_name("Work/inbox") == "Work/inbox"


def brute(pattern: str, name: str) -> bool:
    """The definition, by trying everything."""
    if not pattern:
        return not name
    head, rest = pattern[0], pattern[1:]
    if head in "*%":
        if brute(rest, name):
            return True
        return bool(name) and (head == "*" or name[0] != "/") and brute(pattern, name[1:])
    return name[:1] == head and brute(rest, name[1:])


@pytest.mark.covers("mail-server:D2")
@given(st.text("ab/*%", max_size=8), st.text("ab/", max_size=9))
def test_match_against_brute_force(pattern: str, name: str) -> None:
    assert match(pattern, name) == brute(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*", "a/b/c", True),
        ("%", "a", True),
        ("%", "a/b", False),
        ("%/%", "a/b", True),
        ("inbox", "INBOX", True),
        ("in%", "INBOX", True),
        ("in*", "INBOX/Work", True),
        ("*ox/w*", "INBOX/Work", False),
        ("*ox/W*", "INBOX/Work", True),
        ("in%", "INBOXES", False),
        ("sent", "Sent", False),
        ("", "a", False),
        ("", "", True),
        ("日%", "日本", True),
        ("%.b", "a.b", True),
        (".*", "ab", False),
    ],
)
def test_match_examples(pattern: str, name: str, expected: bool) -> None:
    assert match(pattern, name) is expected


def test_other_separator_and_several_patterns() -> None:
    assert not match("%", "a.b", ".")
    assert match("%", "a/b", ".")
    assert any_match([ListPattern("x"), ListPattern("a%")], "ab")


def test_hostile_pattern_is_quick() -> None:
    assert not match("%a*" * 400 + "b", "a" * 1000)
