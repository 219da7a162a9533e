"""parse_command: every command in its spellings, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap import commands as c
from postroom.imap import render
from postroom.imap.cursor import Cursor, ParserOptions
from postroom.imap.errors import BadCommand, CommandError, ProtocolNo
from postroom.imap.fetch import ChangedSince, FetchItem
from postroom.imap.names import encode_name
from postroom.imap.parser import COMMANDS, parse_command, parse_done, parse_sasl_line
from postroom.imap.search import And
from postroom.imap.wire import CommandReader, RawCommand
from tests.imap.examples import (
    BAD,
    EVERYTHING,
    FETCHES,
    FOLDERS,
    MESSAGES,
    SESSION,
    UTF8,
    A,
    numbers,
    simple,
)


def parse(line: bytes, options: ParserOptions = EVERYTHING) -> c.Command:
    """What a client's bytes (non-synchronising literals, no tag) become."""
    (raw,) = CommandReader(authenticated=True).feed(b"a1 " + line + b"\r\n")
    assert isinstance(raw, RawCommand)
    return parse_command(raw, options)


@pytest.mark.covers("mail-server:D1", "mail-server:D2", "mail-server:D3", "mail-server:D5", "mail-server:D8")
@pytest.mark.parametrize(("line", "expected"), SESSION + FOLDERS + MESSAGES)
def test_commands(line: bytes, expected: c.Command) -> None:
    assert parse(line) == expected


def test_every_row_has_an_example() -> None:
    lines = [line.upper().split() for line, _ in SESSION + FOLDERS + MESSAGES] + [[b"FETCH"], [b"UID", b"FETCH"]]
    assert {words[0] for words in lines} - {b"UID"} == set(COMMANDS)
    assert {words[1] for words in lines if words[0] == b"UID"} == {word for word, row in COMMANDS.items() if row.uid}


@pytest.mark.covers("mail-server:D6")
@pytest.mark.parametrize(("text", "items"), FETCHES)
def test_fetch(text: bytes, items: tuple[FetchItem, ...]) -> None:
    assert parse(b"FETCH 1:* " + text) == c.Fetch(numbers(b"1:*"), items)
    assert parse(b"uid fetch 4,7 " + text + b" ") == c.Fetch(numbers(b"4,7"), items, uid=True)


@pytest.mark.covers("mail-server:D6")
def test_labels_and_seen() -> None:
    def item(text: bytes) -> FetchItem:
        found = parse(b"FETCH 1 " + text)
        assert isinstance(found, c.Fetch)
        return found.items[0]

    assert item(b'body.peek[1.header.fields ("a" B)]<3.4>').label == b"BODY[1.HEADER.FIELDS (a B)]<3>"
    assert item(b"BODY[]").label == b"BODY[]"
    assert item(b"BODY[1.2.MIME]").label == b"BODY[1.2.MIME]"
    assert item(b"BINARY.SIZE[2]").label == b"BINARY.SIZE[2]"
    assert item(b"BODY").label == b"BODY"
    assert item(b"PREVIEW (LAZY)").label == b"PREVIEW"
    assert [item(text).marks_seen for text in (b"BODY[1]", b"RFC822", b"RFC822.TEXT", b"BINARY[1]")] == [True] * 4
    assert not any(item(text).marks_seen for text in (b"BODY.PEEK[1]", b"RFC822.HEADER", b"BODY", b"BINARY.SIZE[1]"))


def test_fetch_modifiers() -> None:
    assert parse(b"UID FETCH 1 FLAGS (CHANGEDSINCE 7)") == c.Fetch(
        numbers(b"1"), simple(A.FLAGS), (ChangedSince(7),), uid=True
    )


@pytest.mark.covers("mail-server:D1", "mail-server:D4", "mail-server:D5", "mail-server:D6", "mail-server:D8")
@pytest.mark.parametrize(
    "line",
    BAD,
)
def test_bad_commands(line: bytes) -> None:
    with pytest.raises(BadCommand):
        parse(line)


@pytest.mark.parametrize(
    "line",
    [
        b"FETCH 1 MODSEQ",
        b"FETCH 1 BINARY[1]",
        b"SEARCH OLDER 5",
        b"SEARCH RETURN (ALL) ALL",
        b"SEARCH $",
        b"SEARCH FUZZY ALL",
        b"SORT (DATE) UTF-8 ALL",
        b"THREAD REFERENCES UTF-8 ALL",
        b'CANCELUPDATE "a"',
        b"STATUS a (SIZE)",
        b"SELECT a (CONDSTORE)",
        b"APPEND a {1+}\r\nx {1+}\r\ny",
        b"CREATE a (USE (\\Sent))",
        b"APPEND a UTF8 (~{1+}\r\nx)",
        b"APPEND a CATENATE (TEXT {1+}\r\nx)",
        b"REPLACE 1 a {1+}\r\nx",
        b"STORE 1 (UNCHANGEDSINCE 5) FLAGS ()",
        b"SETACL a b lr",
        b"DELETEACL a b",
        b"GETACL a",
        b"LISTRIGHTS a b",
        b"MYRIGHTS a",
        b'LIST "" * RETURN (MYRIGHTS)',
    ],
)
def test_extensions_not_on_offer_are_unknown(line: bytes) -> None:
    with pytest.raises(BadCommand):
        parse(line, ParserOptions())


def test_limits() -> None:
    for line in (
        b"FETCH 1 (" + b" ".join(b"BODY[%d]" % n for n in range(1, 200)) + b")",
        b"FETCH 1 BODY[" + b"1." * 80 + b"1]",
        b"STORE 1 FLAGS (" + b" ".join(b"k%d" % n for n in range(300)) + b")",
        b'LIST "" (' + b" ".join(b"k%d" % n for n in range(100)) + b")",
        b'ID ("a" "b"' + b' "c" "d"' * 31 + b")",
    ):
        with pytest.raises(ProtocolNo) as caught:
            parse(line)
        assert caught.value.code == "LIMIT"


def test_utf8_names_when_enabled() -> None:
    assert parse('SELECT "Entwürfe & mehr"'.encode(), UTF8) == c.Select("Entwürfe & mehr")
    assert parse(b"SELECT Entw&APw-rfe", UTF8) == c.Select("Entw&APw-rfe")
    with pytest.raises(BadCommand):
        parse('SELECT "Entwürfe"'.encode())
    message = c.AppendMessage((), None, b"x", binary=True, utf8=True)
    assert parse(b"APPEND a UTF8 (~{1+}\r\nx)", UTF8) == c.Append("a", (message,))
    with pytest.raises(BadCommand):
        parse(b'SEARCH SUBJECT "\xe9"', UTF8)


@pytest.mark.covers("RFC 6855 §3")
def test_utf8_in_quotes_is_a_name_also_before_it_is_enabled() -> None:
    offered = ParserOptions(capabilities=frozenset({"UTF8=ACCEPT"}))
    assert parse('SELECT "Entwürfe"'.encode(), offered) == c.Select("Entwürfe")
    assert parse(b"SELECT Entw&APw-rfe", offered) == c.Select("Entwürfe")
    with pytest.raises(BadCommand):
        parse(b'SELECT "\xe9"', offered)


@pytest.mark.covers("RFC 6855 §3")
def test_no_charset_beside_utf8() -> None:
    assert parse(b"SEARCH CHARSET UTF-8 ALL", ParserOptions(utf8=True)) == c.Search(And(), "UTF-8")
    with pytest.raises(BadCommand):
        parse(b"SEARCH CHARSET UTF-8 ALL", ParserOptions(utf8=True, charsets=False))


@pytest.mark.covers("RFC 8970 §6")
def test_preview_before_modifiers_of_fetch() -> None:
    lazy = parse(b"FETCH 1 PREVIEW ( LAZY ) (CHANGEDSINCE 5)")
    assert lazy == c.Fetch(numbers(b"1"), simple(A.PREVIEW_LAZY), (ChangedSince(5),))
    assert parse(b"FETCH 1 PREVIEW (CHANGEDSINCE 5)") == c.Fetch(numbers(b"1"), simple(A.PREVIEW), (ChangedSince(5),))
    for wrong in (b"FETCH 1 PREVIEW (LAZY x)", b"FETCH 1 PREVIEW (x)", b"FETCH 1 (PREVIEW (x))"):
        with pytest.raises(BadCommand):
            parse(wrong)


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(parse(b"LOGIN joe secret"))
    assert "joe" not in repr(parse(b"AUTHENTICATE PLAIN AGpvZQBwdw=="))


@pytest.mark.covers("mail-server:D9")
def test_done_and_sasl_lines() -> None:
    assert parse_done(b"done") == c.Done()
    assert parse_sasl_line(b"AGpvZQBwdw==") == b"\0joe\0pw"
    assert parse_sasl_line(b"") == b""
    for text in (b"", b"a NOOP", b"DONE x"):
        with pytest.raises(BadCommand):
            parse_done(text)
    for text in (b"*", b"===", b"a", b"\xff"):
        with pytest.raises(BadCommand):
            parse_sasl_line(text)


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


def sent(value: bytes) -> bytes:
    """As a client sends it: the server's own rendering with a non-synchronising literal."""
    return value.replace(b"}\r\n", b"+}\r\n", 1) if value[:1] == b"{" else value


@given(TEXTS, TEXTS, st.booleans())
def test_strings_round_trip(user: str, password: str, utf8: bool) -> None:
    line = b"LOGIN " + sent(render.astring(user.encode(), utf8=utf8)) + b" " + sent(render.string(password.encode()))
    assert parse(line) == c.Login(user, password)


@pytest.mark.covers("mail-server:D2")
@given(st.text('aü&/ 日"\\%', min_size=1, max_size=12), st.booleans())
def test_mailbox_names_round_trip(name: str, utf8: bool) -> None:
    options = ParserOptions(utf8=utf8)
    assert parse(b"SELECT " + render.mailbox(name, utf8=utf8), options) == c.Select(name)
    assert parse(b"SELECT " + sent(render.literal(encode_name(name, utf8=utf8))), options) == c.Select(name)


@pytest.mark.covers("mail-server:D8")
@given(
    st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31)),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_date_times_round_trip(when: datetime, offset: int) -> None:
    exact = when.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=offset)))
    assert Cursor(render.internal_date(exact)).date_time() == exact


@pytest.mark.covers("mail-server:D8")
@pytest.mark.parametrize(
    "text",
    [
        b"17-Jul-1996 02:44:25 -0700",
        b'"31-Feb-2026 00:00:00 +0000"',
        b'"1-Foo-2026 00:00:00 +0000"',
        b'"01-Jan-2026 24:00:00 +0000"',
        b'"01-Jan-2026 00:60:00 +0000"',
        b'"01-Jan-2026 00:00:61 +0000"',
        b'"01-Jan-2026 00:00:00 +2400"',
        b'"01-Jan-2026 00:00:00 +0060"',
        b'"01-Jan-2026 00:00:00"',
        b'"01-Jan-0000 00:00:00 +0000"',
        b'"01-Jan-0001 00:00:00 +0100"',
        b'"31-Dec-9999 23:59:59 -0100"',
        b'""',
    ],
)
def test_bad_date_times(text: bytes) -> None:
    with pytest.raises(BadCommand):
        Cursor(text).date_time()


def test_lax_date_times() -> None:
    day = datetime(2026, 1, 1, 5, 6, 59, tzinfo=UTC)
    for text in (b'" 1-Jan-2026 05:06:59 +0000"', b'"1-jan-2026 05:06:60 -0000"', b'"01-JAN-2026 05:06:59 +0000"'):
        assert Cursor(text).date_time() == day


WORDS = st.sampled_from(
    [
        *list(COMMANDS),
        b"UID",
        b"(",
        b")",
        b"[",
        b"]",
        b"<0.5>",
        b"1:*",
        b"1",
        b"*",
        b"$",
        b'"',
        b'"a"',
        b"\\Seen",
        b"\\",
        b"NIL",
        b"NOT",
        b"OR",
        b"BODY[",
        b"BODY.PEEK[1.HEADER.FIELDS",
        b"FLAGS",
        b"+FLAGS",
        b"RETURN",
        b"CHARSET",
        b"UTF-8",
        b"{3+}\r\nabc",
        b"~{3+}\r\na\x00c",
        b"SUBJECT",
        b"SINCE",
        b"1-Jan-2026",
        b'"1-Jan-2026 00:00:00 +0000"',
        b"&AOk-",
        b"\xff",
        b"\r",
        b"STATUS",
        b"MESSAGES",
        b"MODSEQ",
        b"PREVIEW",
        b"LAZY",
        b"a",
        b"=",
        b"%",
    ]
)


@pytest.mark.covers("mail-server:D1")
@given(st.lists(st.tuples(WORDS, st.sampled_from([b" ", b" ", b"", b"  "])), max_size=12), st.booleans())
def test_garbage_raises_only_declared_errors(words: list[tuple[bytes, bytes]], known: bool) -> None:
    line = b"".join(word + gap for word, gap in words)
    for event in CommandReader(authenticated=True).feed(b"a " + line + b"\r\n"):
        if isinstance(event, RawCommand):
            try:
                assert isinstance(parse_command(event, EVERYTHING if known else UTF8), c.Command)
            except CommandError as error:
                answer = render.failure(event.tag, error)
                assert answer.startswith((b"a BAD ", b"a NO [", b"a NO "))
                assert answer.count(b"\n") == 1


@given(st.binary(max_size=60), st.lists(st.binary(max_size=5), max_size=3))
def test_raw_commands_made_by_hand(text: bytes, literals: list[bytes]) -> None:
    for word in (b"", b"LOGIN ", b"UID FETCH 1 ", b"SEARCH ", b"APPEND a ", b"LIST "):
        try:
            parse_command(RawCommand(b"a", word + text, tuple(literals)), EVERYTHING)
        except CommandError:
            continue


def test_id_is_read_only() -> None:
    found = parse(b'ID ("a" "b")')
    assert isinstance(found, c.Id)
    assert isinstance(found.fields, Mapping)
    assert not hasattr(found.fields, "update")
