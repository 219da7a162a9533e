"""CommandReader: chunking, literals, limits, resynchronisation."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap import render
from postroom.imap.errors import Code, Status
from postroom.imap.wire import CommandReader, Continuation, Event, Line, RawCommand, ReaderLimits, Rejected

SMALL = ReaderLimits(
    max_line=60,
    max_literal=20,
    max_literal_total=30,
    max_literals=3,
    max_append_size=100,
    max_append_total=150,
    max_discard=20_000,
)


def read(data: bytes, *, limits: ReaderLimits = SMALL, authenticated: bool = True) -> list[Event]:
    return list(CommandReader(limits, authenticated=authenticated).feed(data))


def command(tag: bytes, text: bytes, *literals: bytes) -> RawCommand:
    return RawCommand(tag, text, literals)


def bad(tag: bytes | None, text: str) -> Rejected:
    return Rejected(tag, Status.BAD, text)


def too_big(tag: bytes) -> Rejected:
    return Rejected(tag, Status.NO, "Message too large", Code.TOOBIG)


NEXT = b"z NOOP\r\n"
AFTER = RawCommand(b"z", b"NOOP")


@pytest.mark.covers("mail-server:D1")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a1 NOOP\r\n", [command(b"a1", b"NOOP")]),
        (b"1.12 noop\n", [command(b"1.12", b"noop")]),
        (b"a]1 NOOP\r\nb NOOP\r\n", [command(b"a]1", b"NOOP"), command(b"b", b"NOOP")]),
        (
            b"a LOGIN {3}\r\njoe {4}\r\np\r\nw\r\n",
            [
                Continuation(b"a", b"LOGIN {3}\r\n", 3),
                Continuation(b"a", b"LOGIN {3}\r\n {4}\r\n", 4),
                command(b"a", b"LOGIN {3}\r\n {4}\r\n", b"joe", b"p\r\nw"),
            ],
        ),
        (b"a LOGIN {3+}\r\njoe {2+}\r\npw\r\n", [command(b"a", b"LOGIN {3}\r\n {2}\r\n", b"joe", b"pw")]),
        (b"a LOGIN {3+}\njoe {0+}\n\n", [command(b"a", b"LOGIN {3}\r\n {0}\r\n", b"joe", b"")]),
        (b"a X {0}\r\n\r\n", [Continuation(b"a", b"X {0}\r\n", 0), command(b"a", b"X {0}\r\n", b"")]),
        (b"a X {3+}\r\na\nb\r\n", [command(b"a", b"X {3}\r\n", b"a\nb")]),
        (b"a X {007+}\r\n1234567\r\n", [command(b"a", b"X {7}\r\n", b"1234567")]),
        (b'a X "{3}"\r\n', [command(b"a", b'X "{3}"')]),
        (b"a APPEND x ~{2+}\r\n\0\1\r\n", [command(b"a", b"APPEND x ~{2}\r\n", b"\0\1")]),
    ],
)
def test_complete_commands(data: bytes, expected: list[Event]) -> None:
    assert read(data + NEXT) == [*expected, AFTER]


@pytest.mark.covers("mail-server:D1", "mail-server:D8")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\r\n", bad(None, "Missing or invalid tag")),
        (b"NOOP\r\n", bad(None, "Missing or invalid tag")),
        (b" a NOOP\r\n", bad(None, "Missing or invalid tag")),
        (b"+ NOOP\r\n", bad(None, "Missing or invalid tag")),
        (b"a* NOOP\r\n", bad(None, "Missing or invalid tag")),
        (b"\xff\xfe NOOP\r\n", bad(None, "Missing or invalid tag")),
        (b"a" * 50 + b"\r\n", bad(None, "Missing or invalid tag")),
        (b"a NO\0OP\r\n", bad(b"a", "NUL is not allowed")),
        (b"a NO\0OP {5+}\r\nb X\r\n\r\n", bad(b"a", "NUL is not allowed")),
        (b"a " + b"x" * 10_000 + b"\r\n", bad(b"a", "Command line too long")),
        (b"a " + b"x" * 200 + b"{6+}\r\nb X\r\n \r\n", bad(b"a", "Command line too long")),
        (b"a " + b"x" * 200 + b"{6}\r\n", bad(b"a", "Command line too long")),
        (b"x" * 300 + b"\r\n", bad(None, "Command line too long")),
        (b"a X {21}\r\n", bad(b"a", "Literal too long")),
        (b"a X {21+}\r\n" + b"b NOOP\r\n" * 2 + b"12345 more\r\n", bad(b"a", "Literal too long")),
        (b"a X {21+}\r\n" + b"b NOOP\r\n" * 2 + b"12345 {3+}\r\nabc {9}\r\n", bad(b"a", "Literal too long")),
        (b"a X {16+}\r\n" + b"y" * 16 + b" {16+}\r\n" + b"y" * 16 + b"\r\n", bad(b"a", "Literal too long")),
        (b"a X" + b" {0+}\r\n" * 4 + b"\r\n", bad(b"a", "Too many literals")),
        (b"a APPEND x {101}\r\n", too_big(b"a")),
        (b"a APPEND x {101+}\r\n" + b"y" * 101 + b"\r\n", too_big(b"a")),
        (b"a append x (\\Seen) {101+}\r\n" + b"\r\n" * 50 + b"\n" + b"\r\n", too_big(b"a")),
        (b"a APPEND x {100+}\r\n" + b"y" * 100 + b" {51+}\r\n" + b"y" * 51 + b"\r\n", too_big(b"a")),
        (b"a APPEND {21+}\r\n" + b"y" * 21 + b" {5+}\r\nhello\r\n", bad(b"a", "Literal too long")),
    ],
)
def test_refused_commands_and_resynchronisation(data: bytes, expected: Rejected) -> None:
    assert read(data + NEXT) == [expected, AFTER]
    one_by_one = CommandReader(SMALL, authenticated=True)
    events = [event for byte in data + NEXT for event in one_by_one.feed(bytes((byte,)))]
    assert events == [expected, AFTER]


@pytest.mark.covers("mail-server:D8")
def test_message_literal_is_refused_before_the_continuation() -> None:
    reader = CommandReader(SMALL, authenticated=True)
    assert list(reader.feed(b"a APPEND x {100}\r\n")) == [Continuation(b"a", b"APPEND x {100}\r\n", 100)]
    assert list(reader.feed(b"y" * 100 + b"\r\nb APPEND x {101}\r\n")) == [
        command(b"a", b"APPEND x {100}\r\n", b"y" * 100),
        too_big(b"b"),
    ]
    assert reader.buffered == 0


def test_strangers_get_the_small_limit() -> None:
    assert read(b"a APPEND x {21}\r\n" + NEXT, authenticated=False) == [bad(b"a", "Literal too long"), AFTER]


def test_login_then_append_in_one_chunk() -> None:
    reader = CommandReader(SMALL)
    events = []
    for event in reader.feed(b"a LOGIN u p\r\nb APPEND x {50+}\r\n" + b"y" * 50 + b"\r\n"):
        reader.authenticated = True
        events.append(event)
    assert events == [command(b"a", b"LOGIN u p"), command(b"b", b"APPEND x {50}\r\n", b"y" * 50)]


@pytest.mark.parametrize(
    "text", [b"a X {99999999999999999999+}\r\n", b"a APPEND x {20001+}\r\n", b"a " + b"x" * 21_000]
)
def test_more_than_may_be_discarded_closes(text: bytes) -> None:
    reader = CommandReader(SMALL, authenticated=True)
    assert list(reader.feed(text)) == [Rejected(b"a", Status.BAD, "Too much data", close=True)]
    assert list(reader.feed(NEXT)) == []
    assert reader.buffered == 0


@pytest.mark.covers("mail-server:D9")
def test_lines_without_tags() -> None:
    reader = CommandReader(SMALL)
    assert reader.next_event() is None
    events = []
    for event in reader.feed(b"a IDLE\r\nDONE\r\nb AUTHENTICATE PLAIN\r\nAGE{3}\r\nc NOOP\r\n"):
        events.append(event)
        if isinstance(event, RawCommand) and event.text != b"NOOP":
            reader.expect_line()
    assert events == [
        command(b"a", b"IDLE"),
        Line(b"DONE"),
        command(b"b", b"AUTHENTICATE PLAIN"),
        Line(b"AGE{3}"),
        command(b"c", b"NOOP"),
    ]


def test_overlong_line_without_tag_is_laid_to_the_command_before() -> None:
    reader = CommandReader(SMALL)
    assert list(reader.feed(b"a IDLE\r\n")) == [command(b"a", b"IDLE")]
    reader.expect_line()
    assert list(reader.feed(b"x" * 99 + b"{4+}\r\n" + NEXT)) == [bad(b"a", "Command line too long"), AFTER]


def test_abandoned_command_and_discarded_buffer() -> None:
    reader = CommandReader(SMALL, authenticated=True)
    assert list(reader.feed(b"a APPEND x {9}\r\n")) == [Continuation(b"a", b"APPEND x {9}\r\n", 9)]
    reader.abandon()
    assert list(reader.feed(NEXT)) == [AFTER]
    assert reader.next_event() is None
    reader.feed(b"s STARTTLS\r\nx LOGIN a b\r\n")
    assert reader.next_event() == command(b"s", b"STARTTLS")
    assert reader.discard_buffer() == 13
    assert reader.next_event() is None


def test_memory_stays_bounded_while_discarding() -> None:
    reader = CommandReader(ReaderLimits(max_line=1000, max_append_size=1000), authenticated=True)
    list(reader.feed(b"a APPEND x {1000000+}\r\n"))
    for _ in range(100):
        assert list(reader.feed(b"y" * 10_000)) == []
        assert reader.buffered == 0
    assert list(reader.feed(b"\r\nb " + b"x" * 900)) == [too_big(b"a")]
    for _ in range(100):
        assert list(reader.feed(b"y" * 10_000)) == []
        assert reader.buffered == 0
    assert list(reader.feed(b"\r\n")) == [bad(b"b", "Command line too long")]


def test_rejections_as_bytes() -> None:
    assert render.rejection(bad(None, "Missing or invalid tag")) == b"* BAD Missing or invalid tag\r\n"
    assert render.rejection(too_big(b"a")) == b"a NO [TOOBIG] Message too large\r\n"
    closing = Rejected(b"a", Status.BAD, "Too much data", close=True)
    assert render.rejection(closing) == b"a BAD Too much data\r\n* BYE Too much data\r\n"


PIECES = st.sampled_from(
    [
        b"a1 ",
        b"b ",
        b"NOOP",
        b"APPEND x ",
        b"APPEND ",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"{3}\r\n",
        b"{3+}\r\n",
        b"{0+}\r\n",
        b"{25+}\r\n",
        b"{101+}\r\n",
        b"{19990+}\r\n",
        b"{30000+}\r\n",
        b"{150}\r\n",
        b"abc",
        b"x" * 30,
        b"\x00",
        b"~{2+}\r\n",
        b"}",
        b"{3+}",
    ]
)


@pytest.mark.covers("mail-server:D1")
@given(st.lists(PIECES, max_size=25).map(b"".join), st.lists(st.integers(0, 400), max_size=12), st.booleans())
def test_any_chunking_gives_the_same_events(data: bytes, cuts: list[int], authenticated: bool) -> None:
    whole = read(data, authenticated=authenticated)
    reader = CommandReader(SMALL, authenticated=authenticated)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    events = [event for a, b in itertools.pairwise(edges) for event in reader.feed(data[a:b])]
    assert events == whole
    singly = CommandReader(SMALL, authenticated=authenticated)
    assert [event for byte in data for event in singly.feed(bytes((byte,)))] == whole


@given(st.binary(max_size=300))
def test_garbage_gives_only_events(data: bytes) -> None:
    for event in read(data):
        assert isinstance(event, RawCommand | Continuation | Rejected)
        if isinstance(event, RawCommand):
            assert event.text.count(b"\n") == len(event.literals)
