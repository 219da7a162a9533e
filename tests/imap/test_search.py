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
    Fuzzy,
    HasFlag,
    Header,
    Larger,
    ModSeq,
    Not,
    Numbers,
    ObjectId,
    Older,
    Or,
    Recent,
    SearchKey,
    Smaller,
    TextField,
    Uids,
    Younger,
)
from postroom.imap.sequence import STAR, SequenceSet
from postroom.imap.wire import CommandReader, RawCommand

OPTIONS = ParserOptions(
    capabilities=frozenset({"WITHIN", "CONDSTORE", "OBJECTID", "SAVEDATE", "SEARCHRES", "ESEARCH"} | {"SEARCH=FUZZY"})
)


def parse(text: bytes) -> c.Search:
    (raw,) = CommandReader().feed(b"a SEARCH " + text + b"\r\n")
    assert isinstance(raw, RawCommand)
    found = parse_command(raw, OPTIONS)
    assert isinstance(found, c.Search)
    return found


def key(text: bytes) -> SearchKey:
    return parse(text).key


SEEN = HasFlag("$seen")
FEB = date(1994, 2, 1)
KEYS: list[tuple[bytes, SearchKey]] = [
    (b"ALL", And()),
    (b"seen", SEEN),
    (b"FUZZY SEEN", Fuzzy(SEEN)),
    (b"FUZZY (SEEN RECENT)", Fuzzy(And((SEEN, Recent())))),
    (b"UNSEEN", Not(SEEN)),
    (b"ANSWERED", HasFlag("$answered")),
    (b"UNANSWERED", Not(HasFlag("$answered"))),
    (b"FLAGGED", HasFlag("$flagged")),
    (b"UNFLAGGED", Not(HasFlag("$flagged"))),
    (b"DELETED", HasFlag("$deleted")),
    (b"UNDELETED", Not(HasFlag("$deleted"))),
    (b"DRAFT", HasFlag("$draft")),
    (b"UNDRAFT", Not(HasFlag("$draft"))),
    (b"RECENT", Recent()),
    (b"OLD", Not(Recent())),
    (b"NEW", And((Recent(), Not(SEEN)))),
    (b"KEYWORD $Label1", HasFlag("$label1")),
    (b"UNKEYWORD Work", Not(HasFlag("work"))),
    (b"KEYWORD $Seen", SEEN),
    (b"FROM joe", Contains(TextField.FROM, "joe")),
    (b'TO "joe smith"', Contains(TextField.TO, "joe smith")),
    (b"CC {3+}\r\na b", Contains(TextField.CC, "a b")),
    (b"BCC joe]", Contains(TextField.BCC, "joe]")),
    (b'SUBJECT ""', Contains(TextField.SUBJECT, "")),
    (b"BODY {6+}\r\n\xe6\x97\xa5\xe6\x9c\xac", Contains(TextField.BODY, "日本")),
    (b'TEXT "a\\"b"', Contains(TextField.TEXT, 'a"b')),
    (b"HEADER Message-ID <1@example.com>", Header("message-id", "<1@example.com>")),
    (b'HEADER "X-Label" ""', Header("x-label", "")),
    (b"LARGER 1000", Larger(1000)),
    (b"SMALLER 0", Smaller(0)),
    (b"BEFORE 1-Feb-1994", Dated(DateKind.INTERNAL, DateTest.BEFORE, FEB)),
    (b'ON "01-feb-1994"', Dated(DateKind.INTERNAL, DateTest.ON, FEB)),
    (b"SINCE 01-FEB-1994", Dated(DateKind.INTERNAL, DateTest.SINCE, FEB)),
    (b"SENTBEFORE 1-Feb-1994", Dated(DateKind.SENT, DateTest.BEFORE, FEB)),
    (b"SENTON 1-Feb-1994", Dated(DateKind.SENT, DateTest.ON, FEB)),
    (b"SENTSINCE 1-Feb-1994", Dated(DateKind.SENT, DateTest.SINCE, FEB)),
    (b"SAVEDBEFORE 1-Feb-1994", Dated(DateKind.SAVED, DateTest.BEFORE, FEB)),
    (b"SAVEDON 1-Feb-1994", Dated(DateKind.SAVED, DateTest.ON, FEB)),
    (b"SAVEDSINCE 1-Feb-1994", Dated(DateKind.SAVED, DateTest.SINCE, FEB)),
    (b"SAVEDATESUPPORTED", And()),
    (b"UID 5:*", Uids(SequenceSet(((5, STAR),)))),
    (b"2,4", Numbers(SequenceSet(((2, 2), (4, 4))))),
    (b"*", Numbers(SequenceSet(((STAR, STAR),)))),
    (b"$", Numbers(SequenceSet((), saved=True))),
    (b"NOT SEEN", Not(SEEN)),
    (b"OR SEEN NOT RECENT", Or(SEEN, Not(Recent()))),
    (b"OR (SEEN RECENT) (LARGER 5)", Or(And((SEEN, Recent())), Larger(5))),
    (b"( SEEN  ( RECENT ) ) ", And((SEEN, Recent()))),
    (b"1:3 SEEN (OR RECENT ALL)", And((Numbers(SequenceSet(((1, 3),))), SEEN, Or(Recent(), And())))),
    (b"OLDER 60", Older(60)),
    (b"YOUNGER 60", Younger(60)),
    (b"MODSEQ 62", ModSeq(62)),
    (b'MODSEQ "/flags/\\\\draft" all 62', ModSeq(62)),
    (b"EMAILID M1", ObjectId("M1")),
    (b"THREADID T1", ObjectId("T1", thread=True)),
]


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
    [
        b"FOO",
        b"",
        b"()",
        b"(SEEN",
        b"SEEN)",
        b"NOT",
        b"OR SEEN",
        b"OR SEEN,RECENT",
        b"KEYWORD \\Seen",
        b'KEYWORD "a"',
        b"KEYWORD",
        b"FROM",
        b"HEADER a",
        b"HEADER a:b c",
        b'HEADER "" x',
        b"LARGER -1",
        b"LARGER x",
        b"LARGER 1k",
        b"SINCE 30-Feb-2026",
        b"SINCE 2026-02-01",
        b"SINCE 1-Feb-26",
        b'SINCE "1-Feb-2026',
        b"SINCE 1-Foo-2026",
        b"SINCE 1-Jan-0000",
        b"UID",
        b"UID x",
        b"0",
        b"1:",
        b"YOUNGER 0",
        b"SUBJECT \xe9",
        b'SUBJECT "\xe9"',
        b"TEXT a\x00",
        b"CHARSET",
        b"CHARSET UTF-8",
        b"MODSEQ x",
        b'MODSEQ "/flags" foo 5',
        b"SEEN  ,",
        b"SUBJECT (a)",
        b"SEEN\tALL",
    ],
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
