"""SEARCH keys."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap import commands as c
from postroom.imap import render, search
from postroom.imap.cursor import ParserOptions
from postroom.imap.errors import BadCommand, ProtocolNo
from postroom.imap.parser import parse_command
from postroom.imap.search import (
    SEARCH_KEYS,
    And,
    Contains,
    Dated,
    DateKind,
    DateTest,
    HasFlag,
    Header,
    Larger,
    Not,
    Or,
    Recent,
    SearchKey,
    TextField,
    Uids,
)
from postroom.imap.sequence import SequenceSet
from postroom.imap.wire import CommandReader, RawCommand
from tests.imap.examples import BAD_KEYS, KEYS, SEEN

OPTIONS = ParserOptions(
    capabilities=frozenset(
        {"WITHIN", "CONDSTORE", "OBJECTID", "SAVEDATE", "SEARCHRES", "ESEARCH"} | {"SEARCH=FUZZY", "MESSAGELIMIT"}
    )
)


def parse(text: bytes) -> c.Search:
    (raw,) = CommandReader().feed(b"a SEARCH " + text + b"\r\n")
    assert isinstance(raw, RawCommand)
    found = parse_command(raw, OPTIONS)
    assert isinstance(found, c.Search)
    return found


def key(text: bytes) -> SearchKey:
    return parse(text).key


@pytest.mark.covers("mail-server:D7")
@pytest.mark.parametrize(("text", "expected"), KEYS)
def test_keys(text: bytes, expected: SearchKey) -> None:
    assert key(text) == expected
    assert key(b"NOT (" + text + b")") == Not(expected)
    assert key(text.rstrip() + b" SEEN RECENT (" + text + b")") is not None


def test_every_row_has_an_example() -> None:
    assert set(SEARCH_KEYS) == {text.split()[0].upper() for text, _ in KEYS} & set(SEARCH_KEYS)


@pytest.mark.covers("mail-server:D7")
@pytest.mark.parametrize(
    "text",
    BAD_KEYS,
)
def test_bad_keys(text: bytes) -> None:
    if b"\0" in text:
        with pytest.raises(BadCommand):
            parse_command(RawCommand(b"a", b"SEARCH " + text), OPTIONS)
        return
    with pytest.raises(BadCommand):
        parse(text)


@pytest.mark.covers("mail-server:D7")
def test_charsets() -> None:
    assert parse(b"CHARSET utf-8 ALL").charset == "UTF-8"
    assert parse(b'charset "US-ASCII" ALL').charset == "US-ASCII"
    with pytest.raises(ProtocolNo) as caught:
        parse(b"CHARSET KOI8-R TEXT {3+}\r\n\xd4\xc5\xd3")
    assert render.failure(b"a", caught.value).startswith(b"a NO [BADCHARSET (UTF-8)] ")


@pytest.mark.covers("mail-server:D7")
@pytest.mark.parametrize(
    "text",
    [
        b"NOT " * search.MAX_DEPTH + b"SEEN",
        b"(" * 5000 + b"SEEN" + b")" * 5000,
        b"OR SEEN " * 5000 + b"SEEN",
        b"SEEN " * search.MAX_KEYS + b"SEEN",
        b"(" + b"SEEN " * search.MAX_KEYS + b"SEEN)",
    ],
)
def test_complexity_is_bounded(text: bytes) -> None:
    with pytest.raises(ProtocolNo) as caught:
        parse(text)
    assert caught.value.code == "LIMIT"


def test_just_within_the_bounds() -> None:
    assert isinstance(key(b"NOT " * (search.MAX_DEPTH - 1) + b"SEEN"), Not)
    assert isinstance(key(b"SEEN " * search.MAX_KEYS), And)


LEAVES = st.one_of(
    st.sampled_from([SEEN, Recent(), HasFlag("work")]),
    st.builds(Larger, st.integers(0, 2**40)),
    st.builds(Contains, st.sampled_from(TextField), st.text('aé "\\日()', max_size=6)),
    st.builds(Header, st.sampled_from(["subject", "x-y"]), st.text('aé "\\', max_size=6)),
    st.builds(
        Dated,
        st.sampled_from([DateKind.INTERNAL, DateKind.SENT]),
        st.sampled_from(DateTest),
        st.integers(0, 40_000).map(lambda n: date(1970, 1, 1) + timedelta(n)),
    ),
    st.builds(Uids, st.lists(st.integers(1, 99), min_size=1, max_size=4).map(SequenceSet.of)),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(Or, inner, inner),
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=8,
)


def text_of(value: str) -> bytes:
    return render.string(value.encode()).replace(b"}\r\n", b"+}\r\n", 1)


def written(node: SearchKey) -> bytes:
    match node:
        case HasFlag("$seen"):
            return b"SEEN"
        case HasFlag(word):
            return b"KEYWORD " + word.encode()
        case Recent():
            return b"RECENT"
        case Larger(octets):
            return b"LARGER %d" % octets
        case Contains(field, text):
            return field.name.encode() + b" " + text_of(text)
        case Header(name, text):
            return b"HEADER " + name.encode() + b" " + text_of(text)
        case Dated(kind, test, day):
            prefix = "SENT" if kind is DateKind.SENT else ""
            month = day.strftime("%b")
            return f"{prefix}{test.name} {day.day}-{month}-{day.year:04}".encode()
        case Uids(uids):
            return b"UID " + bytes(uids)
        case Not(inner):
            return b"NOT " + written(inner)
        case Or(left, right):
            return b"OR " + written(left) + b" " + written(right)
        case And(keys):
            return b"(" + b" ".join(written(inner) for inner in keys) + b")"
    raise AssertionError(node)


@pytest.mark.covers("mail-server:D7")
@given(TREES)
def test_trees_round_trip(tree: SearchKey) -> None:
    assert key(written(tree)) == tree
