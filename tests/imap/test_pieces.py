"""Every command of every extension, cut anywhere: what is read does not depend on how the bytes came."""

from __future__ import annotations

import random
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap.commands import Noop
from postroom.imap.errors import CommandError
from postroom.imap.parser import parse_command, parse_done, parse_sasl_line
from postroom.imap.wire import CommandReader, Continuation, Event, Line, RawCommand, ReaderLimits, Rejected
from tests.imap.examples import BAD, BAD_KEYS, EVERYTHING, FETCHES, FOLDERS, KEYS, MESSAGES, SESSION
from tests.imap.pieces import cut_anywhere, cut_twice, hear, in_two, most, spellings, wants_line, weight

_GROUPS: dict[str, list[bytes]] = {
    "session": [line for line, _ in SESSION],
    "folders": [line for line, _ in FOLDERS],
    "messages": [line for line, _ in MESSAGES],
    "fetch": [b"UID FETCH 1,3:* " + text for text, _ in FETCHES],
    "search": [b"SEARCH " + text for text, _ in KEYS],
    "notify": [
        b'NOTIFY SET STATUS (selected (MessageNew (UID BODY.PEEK[HEADER.FIELDS ("From")]) MessageExpunge))',
        b'NOTIFY SET (subtree ("a b" c) (MailboxName)) (mailboxes INBOX (MessageNew MessageExpunge FlagChange))',
        b"NOTIFY SET (personal (Unheard))",
    ],
    "bad": BAD,
    "bad keys": [b"SEARCH " + text for text in BAD_KEYS],
}

SMALL = ReaderLimits(
    max_line=60,
    max_literal=20,
    max_literal_total=30,
    max_literals=3,
    max_append_size=100,
    max_append_total=150,
    max_discard=20_000,
)


def meaning(event: Event) -> object:
    """What a session makes of an event: a command, or how it is refused."""
    try:
        if isinstance(event, RawCommand):
            return event.tag, parse_command(event, EVERYTHING)
        if isinstance(event, Line):
            return parse_done(event.data) if event.data[:1] in b"Dd" else parse_sasl_line(event.data)
    except CommandError as error:
        return event.tag if isinstance(event, RawCommand) else None, error.status, error.code, error.text
    return event


@pytest.mark.covers("mail-server:D1", "RFC 9051 §4.3", "RFC 7888 §3", "RFC 3516 §4")
@pytest.mark.parametrize("group", _GROUPS)
def test_every_command_cut_anywhere(group: str) -> None:
    for line in _GROUPS[group]:
        answer = b"DONE\r\n" if wants_line(line) else b""
        for said in spellings(line):
            meanings = []
            for one in said:
                heard = cut_anywhere(b"a1 " + one + b"\r\n" + answer + b"b NOOP\r\n")
                found = [meaning(event) for event, _ in heard if not isinstance(event, Continuation)]
                # One command, whatever became of it, and the next is read as ever.
                assert len(found) == 2 + bool(answer)
                assert found[-1] == (b"b", Noop())
                meanings.append(found[0])
            assert all(found == meanings[0] for found in meanings)


@pytest.mark.covers("RFC 9051 §4.3", "RFC 7888 §3")
@pytest.mark.parametrize("group", ["folders", "messages", "search"])
def test_continuations_come_where_the_client_waits(group: str) -> None:
    """A client that waits for each of them gets it before it sends more; what was said so far stands in it."""
    asked = 0
    for line in _GROUPS[group]:
        for said in chain(*spellings(line)):
            whole = b"a1 " + said + b"\r\n"
            for event, at in cut_anywhere(whole, cuts=()):
                if isinstance(event, Continuation):
                    asked += 1
                    assert whole[:at].endswith(b"{%d}\r\n" % event.size)
                    assert event.text.endswith(b"{%d}\r\n" % event.size)
                    assert hear((whole[:at],))[-1] == (event, at)
    assert asked > 15


@pytest.mark.covers("RFC 9051 §4.3")
@pytest.mark.parametrize(
    "whole",
    [
        b"a LOGIN {3}\r\na\rb {2+}\r\n\r\n\r\nb NOOP\r\n",
        b'a APPEND {1}\r\nx () ~{3+}\r\n\0\r\n {0+}\r\n "x\r\n',
        b"a IDLE\r\nDONE\r\nb AUTHENTICATE PLAIN\r\nAGEAYg==\r\nc X\r\n",
        b"a SEARCH TEXT {4+}\r\n{1}\r TEXT {0}\r\n\r\n",
        b"a X {21+}\r\n" + b"b NOOP\r\n" * 2 + b"12345 {3+}\r\nabc\r\nb X\r\n",
        b"x\0 {3+}\r\na\r\n\r\nb\0\r\n\r\nb X\r\n",
    ],
)
def test_three_pieces(whole: bytes) -> None:
    cut_twice(whole, SMALL)


@pytest.mark.covers("RFC 7888 §3", "RFC 7888 §5")
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097])
def test_literals_cut_at_every_octet(size: int) -> None:
    """LITERAL+ is on offer, so that LITERAL- ends nothing: beyond 4096 octets nobody has to wait either."""
    octets = random.Random(size).randbytes(size).replace(b"\0", b"\n")
    for mark in (b"{%d+}", b"{%d}", b"~{%d+}", b"~{%d}"):
        whole = b"a APPEND x " + mark % size + b"\r\n" + octets + b" " + mark % size + b"\r\n" + octets + b"\r\n"
        cuts = range(1, len(whole)) if size < 4096 or mark == b"{%d+}" else range(1, len(whole), 41)
        heard = cut_anywhere(whole, cuts=cuts)
        assert [type(event) for event, _ in heard] == [Continuation] * (0 if b"+" in mark else 2) + [RawCommand]
        assert isinstance(heard[-1][0], RawCommand)
        assert heard[-1][0].literals == (octets, octets)


REFUSED = [
    b"\r\n",
    b"NOOP\r\n",
    b"+ NOOP\r\n",
    b"\xff\xfe NOOP\r\n",
    b"a NO\0OP {5+}\r\nb X\r\n\r\n",
    b"a " + b"x" * 300 + b"\r\n",
    b"a " + b"x" * 200 + b"{6+}\r\nb X\r\n \r\n",
    b"a " + b"x" * 200 + b"{6}\r\n",
    b"a " + b"x" * 58 + b"\r\n",
    b"a " + b"x" * 57 + b"\r\r\n",
    b"a X {21}\r\n",
    b"a X {21+}\r\n" + b"b NOOP\r\n" * 2 + b"12345 {3+}\r\nabc {9}\r\n",
    b"a X {16+}\r\n" + b"y" * 16 + b" {16+}\r\n" + b"y" * 16 + b"\r\n",
    b"a X" + b" {0+}\r\n" * 4 + b"\r\n",
    b"a APPEND x {101+}\r\n" + b"y" * 101 + b"\r\n",
    b"a APPEND x {100+}\r\n" + b"y" * 100 + b" {51+}\r\n" + b"y" * 51 + b"\r\n",
    b"a REPLACE 1 {1+}\r\nx {101+}\r\n" + b"y" * 101 + b"\r\n",
    b"a IDLE\r\n" + b"x" * 99 + b"{4+}\r\nDONE\r\n",
]


@pytest.mark.covers("mail-server:D1", "mail-server:D8")
@pytest.mark.parametrize("data", REFUSED)
@pytest.mark.parametrize("authenticated", [True, False])
def test_what_is_refused_is_refused_however_it_comes(data: bytes, authenticated: bool) -> None:
    heard = cut_anywhere(data + b"b NOOP\r\n", SMALL, authenticated=authenticated)
    assert heard[-1][0] == RawCommand(b"b", b"NOOP")
    assert any(isinstance(event, Rejected) for event, _ in heard) or len(data) <= 62


@pytest.mark.covers("mail-server:D1")
@pytest.mark.parametrize("data", [b"a X {20001+}\r\n", b"a " + b"x" * 20_001, b"a X {99999999999999999999+}\r\n"])
def test_what_ends_the_connection_ends_it_at_the_same_octet(data: bytes) -> None:
    whole = data + b"b NOOP\r\n"
    ((event, at),) = cut_anywhere(whole, SMALL, cuts=range(1, len(whole), 97))
    assert isinstance(event, Rejected)
    assert event.close
    assert at <= len(data)


PIECES = st.sampled_from(
    [line for lines in _GROUPS.values() for line in lines]
    + [
        b"\r\n",
        b"\n",
        b"{3}\r\n",
        b"{3+}\r\n",
        b"~{9+}\r\n",
        b"\0",
        b"a ",
        b"b ",
        b"{200000+}\r\n",
        b"IDLE\r\n",
        b"DONE\r\n",
    ]
)


@pytest.mark.covers("mail-server:D1")
@given(st.lists(PIECES, max_size=8).map(b"".join), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_crossed_commands_cut_anywhere(data: bytes, authenticated: bool, small: bool, chance: random.Random) -> None:
    cuts = sorted(chance.sample(range(1, len(data)), min(40, len(data) - 1))) if len(data) > 1 else ()
    cut_anywhere(b"t " + data, SMALL if small else None, authenticated=authenticated, cuts=cuts)


@pytest.mark.covers("mail-server:D1")
@pytest.mark.parametrize("piece", [1, 7, 4096])
@pytest.mark.parametrize(
    "pattern",
    [
        b"x",
        b"a X {20+}\r\n" + b"y" * 20 + b" ",
        b"a APPEND x {100+}\r\n" + b"y" * 100 + b" ",
        b"{3+}\r\nabc",
        b"{0}\r\n",
        b"a \0",
        b"\r",
        b"}",
        b"a X {19999+}\r\n",
        b"a NOOP\r\n",
    ],
)
def test_a_reader_keeps_no_more_than_one_command(pattern: bytes, piece: int) -> None:
    """However much comes: it is weighed after each piece. A piece that was not looked at yet weighs what it does."""
    size = 100_000 if piece <= 7 else 300_000
    data = (pattern * (size // len(pattern) + 1))[:size]
    hear((data[at : at + piece] for at in range(0, size, piece)), SMALL)
    reader = CommandReader(SMALL, authenticated=True)
    reader.feed(data)
    assert reader.buffered == len(data)
    while reader.next_event() is not None:
        pass
    assert weight(reader) <= most(SMALL)


def test_a_cut_between_carriage_return_and_line_feed() -> None:
    whole = b"a " + b"x" * (SMALL.max_line - 2) + b"\r\n"
    ((event, at),) = hear(in_two(whole, len(whole) - 1), SMALL)
    assert isinstance(event, RawCommand)
    assert at == len(whole)
