"""Responses, also as imapclient reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imapclient.response_parser import parse_fetch_response, parse_response

from postroom.imap import render
from postroom.imap.cursor import Cursor
from postroom.imap.errors import BadCommand, Code, ProtocolNo, Status
from postroom.imap.flags import wire_flag


def test_strings() -> None:
    assert render.string(b"a b") == b'"a b"'
    assert render.string(b'a"\\') == b'"a\\"\\\\"'
    assert render.string(b"a\r\n") == b"{3}\r\na\r\n"
    assert render.string("é".encode()) == b"{2}\r\n\xc3\xa9"
    assert render.string("é".encode(), utf8=True) == b'"\xc3\xa9"'
    assert render.string(b"\xff", utf8=True) == b"{1}\r\n\xff"
    assert render.string(b"\xc3\xa9\n", utf8=True) == b"{3}\r\n\xc3\xa9\n"
    assert render.string(b"x" * 2000).startswith(b"{2000}\r\n")
    assert render.nstring(None) == b"NIL"
    assert render.astring(b"abc]") == b"abc]"
    assert render.astring(b"nil") == b'"nil"'
    assert render.astring(b"") == b'""'
    assert render.mailbox("Entwürfe") == b"Entw&APw-rfe"
    assert render.mailbox("Entwürfe", utf8=True) == '"Entwürfe"'.encode()
    assert render.literal_header(5, binary=True) == b"~{5}\r\n"


@given(st.binary(max_size=40).filter(lambda b: b"\0" not in b), st.booleans())
def test_strings_round_trip(value: bytes, utf8: bool) -> None:
    def read(text: bytes) -> bytes:
        literals = (value,) if text.startswith(b"{") else ()
        cursor = Cursor(text[: -len(value)] if literals and value else text, literals)
        found = cursor.astring()
        cursor.finish()
        return found

    assert read(render.string(value, utf8=utf8)) == value
    assert read(render.astring(value, utf8=utf8)) == value


@pytest.mark.covers("mail-server:D5")
def test_flags() -> None:
    assert render.flags(("$seen", "$label1", "foo")) == b"(\\Seen $label1 foo)"
    assert render.flags(("$answered", "$flagged", "$deleted", "$draft")) == b"(\\Answered \\Flagged \\Deleted \\Draft)"
    assert render.flags((), recent=True) == b"(\\Recent)"
    assert render.flags(()) == b"()"
    assert render.flags_line(["$seen"]) == b"* FLAGS (\\Seen)\r\n"
    assert wire_flag("$forwarded") == b"$forwarded"


@given(st.lists(st.sampled_from(["$seen", "$draft", "$label1", "work"]), unique=True))
def test_flags_round_trip(words: list[str]) -> None:
    assert Cursor(render.flags(tuple(words))).flag_list() == tuple(words)


def test_internal_date() -> None:
    zone = timezone(-timedelta(hours=7, minutes=30))
    assert render.internal_date(datetime(1996, 7, 7, 2, 44, 25, tzinfo=zone)) == b'" 7-Jul-1996 02:44:25 -0730"'
    assert render.internal_date(datetime(2026, 12, 31, 23, 59, 59, 5, UTC)) == b'"31-Dec-2026 23:59:59 +0000"'


@pytest.mark.covers("mail-server:D1", "mail-server:D3", "mail-server:D8")
def test_status_lines_and_codes() -> None:
    assert render.tagged(b"a]1", Status.OK, "done", Code.READ_WRITE) == b"a]1 OK [READ-WRITE] done\r\n"
    assert render.tagged(b"a", Status.OK, "x", render.code_appenduid(7, [9])) == b"a OK [APPENDUID 7 9] x\r\n"
    assert render.untagged(Status.OK, "moved", render.code_copyuid(7, [1, 2, 4], [8, 9, 10])) == (
        b"* OK [COPYUID 7 1:2,4 8:10] moved\r\n"
    )
    assert render.code_permanent_flags(["$seen"]) == "PERMANENTFLAGS (\\Seen \\*)"
    assert render.code_permanent_flags([], new_keywords=False) == "PERMANENTFLAGS ()"
    assert render.code_capability(["IMAP4rev1", "IDLE"]) == "CAPABILITY IMAP4rev1 IDLE"
    assert render.tagged(b"a", Status.NO, "two\r\nlines é") == b"a NO two lines  \r\n"
    assert render.untagged(Status.BYE, "") == b"* BYE .\r\n"
    assert render.failure(b"a", ProtocolNo(Code.TRYCREATE, "no folder")) == b"a NO [TRYCREATE] no folder\r\n"
    assert render.failure(None, BadCommand("what")) == b"* BAD what\r\n"
    assert render.continuation() == b"+ OK\r\n"
    assert render.continuation("idling") == b"+ idling\r\n"


@pytest.mark.covers("mail-server:D1", "mail-server:D2")
def test_data_lines() -> None:
    assert render.capability_line(["IMAP4rev1", "IDLE"]) == b"* CAPABILITY IMAP4rev1 IDLE\r\n"
    assert render.enabled_line([]) == b"* ENABLED\r\n"
    assert render.enabled_line(["CONDSTORE"]) == b"* ENABLED CONDSTORE\r\n"
    assert render.id_line(None) == b"* ID NIL\r\n"
    assert render.id_line({"name": "Postroom", "os": None}) == b'* ID ("name" "Postroom" "os" NIL)\r\n'
    assert render.namespace_line() == b'* NAMESPACE (("" "/")) NIL NIL\r\n'
    assert render.namespace_line(others="Other Users/") == (b'* NAMESPACE (("" "/")) (("Other Users/" "/")) NIL\r\n')
    assert render.my_rights_line("a b", "lr") == b'* MYRIGHTS "a b" lr\r\n'
    assert render.acl_line("INBOX", [("b@c.d", "lr"), ("a b", "")]) == b'* ACL INBOX b@c.d lr "a b" ""\r\n'
    assert render.acl_line("INBOX", []) == b"* ACL INBOX\r\n"
    assert render.list_rights_line("INBOX", "b@c.d", "", ("lr", "a")) == b'* LISTRIGHTS INBOX b@c.d "" lr a\r\n'
    assert render.list_line(["\\HasNoChildren", "\\Sent"], "Sent Mail") == (
        b'* LIST (\\HasNoChildren \\Sent) "/" "Sent Mail"\r\n'
    )
    assert render.list_line(["\\Noselect"], "") == b'* LIST (\\Noselect) "/" ""\r\n'
    assert render.list_line([], "a", sep=None, command="LSUB", extended=b"(X)") == b"* LSUB () NIL a (X)\r\n"
    assert render.status_line("ü", [("MESSAGES", 3), ("MAILBOXID", "(F1)")]) == (
        b"* STATUS &APw- (MESSAGES 3 MAILBOXID (F1))\r\n"
    )
    assert render.exists(3) + render.recent(0) + render.expunge(2) == b"* 3 EXISTS\r\n* 0 RECENT\r\n* 2 EXPUNGE\r\n"
    assert b"".join(render.found_line(b"SEARCH", [])) == b"* SEARCH\r\n"
    assert b"".join(render.found_line(b"SORT", [b"2 4", b"3"], 7)) == b"* SORT 2 4 3 (MODSEQ 7)\r\n"
    assert render.esearch_line(b"a1", [("MIN", b"2"), ("ALL", b"2:4")], uid=True) == (
        b'* ESEARCH (TAG "a1") UID MIN 2 ALL 2:4\r\n'
    )
    assert render.esearch_line(b"a1", []) == b'* ESEARCH (TAG "a1")\r\n'


def test_fetch_lines() -> None:
    assert b"".join(render.fetch_buffers(3, [b"UID 7", b"FLAGS ()"])) == b"* 3 FETCH (UID 7 FLAGS ())\r\n"
    octets = b"x" * 50
    buffers = render.fetch_buffers(3, [(b"BODY[]", octets), b"UID 7", (b"BODY[1]", memoryview(octets)[:2])])
    assert buffers[2] is octets
    assert b"".join(buffers) == b"* 3 FETCH (BODY[] {50}\r\n" + octets + b" UID 7 BODY[1] {2}\r\nxx)\r\n"


@pytest.mark.covers("mail-server:D6")
@given(st.binary(max_size=60), st.lists(st.sampled_from(["$seen", "work", "$label1"]), unique=True))
def test_imapclient_reads_fetch(octets: bytes, words: list[str]) -> None:
    when = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    items = [b"UID 7", b"FLAGS " + render.flags(tuple(words)), b"INTERNALDATE " + render.internal_date(when)]
    line = b"".join(render.fetch_buffers(3, [*items, (b"BODY[]", octets)]))
    head, tail = line.split(b"}\r\n", 1)
    response = parse_fetch_response([(head.removeprefix(b"* ").replace(b"FETCH ", b"", 1) + b"}", octets), b")"], False)
    assert tail == octets + b")\r\n"
    assert response[7][b"BODY[]"] == octets
    assert response[7][b"FLAGS"] == tuple(wire_flag(word) for word in words)
    assert response[7][b"INTERNALDATE"] == when


def test_imapclient_reads_list() -> None:
    line = render.list_line(["\\HasNoChildren"], 'Entwürfe "neu"').removeprefix(b"* LIST ").strip()
    assert parse_response([line]) == ((b"\\HasNoChildren",), b"/", b'Entw&APw-rfe "neu"')
