"""parse_command: every command in its spellings, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.imap import commands as c
from postroom.imap import render
from postroom.imap.cursor import SAVED_RESULT, Cursor, ParserOptions
from postroom.imap.errors import BadCommand, CommandError, ProtocolNo
from postroom.imap.fetch import ChangedSince, FetchAtt, FetchItem, Section, SectionText
from postroom.imap.names import encode_name
from postroom.imap.parser import COMMANDS, parse_command, parse_done, parse_sasl_line
from postroom.imap.partial import Partial
from postroom.imap.search import And, Fuzzy, HasFlag, Not, Numbers, ReturnOption
from postroom.imap.sequence import SequenceSet
from postroom.imap.sort import SortCriterion, SortKey
from postroom.imap.threads import Algorithm
from postroom.imap.wire import CommandReader, RawCommand

EVERYTHING = ParserOptions(
    capabilities=frozenset(
        {"CONDSTORE", "OBJECTID", "SAVEDATE", "PREVIEW", "BINARY", "ESEARCH", "SEARCHRES", "WITHIN", "MULTIAPPEND"}
        | {
            "QRESYNC",
            "QUOTA=RES-STORAGE",
            "CREATE-SPECIAL-USE",
            "STATUS=SIZE",
            "IMAP4rev2",
            "APPENDLIMIT",
            "CATENATE",
            "REPLACE",
        }
        | {"SORT", "SORT=DISPLAY", "ESORT", "PARTIAL"}
        | {"THREAD=REFERENCES", "THREAD=ORDEREDSUBJECT", "CONTEXT=SEARCH", "CONTEXT=SORT", "SEARCH=FUZZY", "NOTIFY"}
        | {"ACL", "LIST-MYRIGHTS"}
    )
)
UTF8 = ParserOptions(utf8=True)


def parse(line: bytes, options: ParserOptions = EVERYTHING) -> c.Command:
    """What a client's bytes (non-synchronising literals, no tag) become."""
    (raw,) = CommandReader(authenticated=True).feed(b"a1 " + line + b"\r\n")
    assert isinstance(raw, RawCommand)
    return parse_command(raw, options)


def numbers(text: bytes) -> SequenceSet:
    return SequenceSet.parse(text)


M = c.StatusItem
JULY = datetime(1996, 7, 17, 2, 44, 25, tzinfo=timezone(-timedelta(hours=7)))

SESSION: list[tuple[bytes, c.Command]] = [
    (b"CAPABILITY", c.Capability()),
    (b"capability ", c.Capability()),
    (b"NOOP", c.Noop()),
    (b"LogOut", c.Logout()),
    (b"ID NIL", c.Id(None)),
    (b"id nil", c.Id(None)),
    (b"ID ()", c.Id({})),
    (b'ID ("name" "Thunderbird" "version" "115.0")', c.Id({"name": "Thunderbird", "version": "115.0"})),
    (b'ID ("name" "Mac OS X Mail" "os" NIL)', c.Id({"name": "Mac OS X Mail", "os": None})),
    (b'ID ( "Name" {3+}\r\nfoo )', c.Id({"name": "foo"})),
    (b"ENABLE UTF8=ACCEPT condstore", c.Enable(("UTF8=ACCEPT", "CONDSTORE"))),
    (b"STARTTLS", c.StartTls()),
    (b"LOGIN joe secret", c.Login("joe", "secret")),
    (rb'LOGIN "joe@example.com" "p\"a\\ss w"', c.Login("joe@example.com", 'p"a\\ss w')),
    (b'login joe@example.com ""', c.Login("joe@example.com", "")),
    (b"LOGIN {3+}\r\njoe {4+}\r\np\r\nw", c.Login("joe", "p\r\nw")),
    (b'LOGIN j]oe "p\xc3\xa4ss"', c.Login("j]oe", "päss")),
    (b"AUTHENTICATE plain", c.Authenticate("PLAIN")),
    (b"AUTHENTICATE PLAIN =", c.Authenticate("PLAIN", b"")),
    (b"AUTHENTICATE PLAIN AGpvZQBwdw==", c.Authenticate("PLAIN", b"\0joe\0pw")),
    (b"IDLE", c.Idle()),
    (b"NOTIFY none", c.Notify()),
]
FOLDERS: list[tuple[bytes, c.Command]] = [
    (b"SELECT inbox", c.Select("INBOX")),
    (b'SELECT "Sent Messages"', c.Select("Sent Messages")),
    (b"SELECT {5+}\r\nInBoX", c.Select("INBOX")),
    (b"select Entw&APw-rfe", c.Select("Entwürfe")),
    (b'SELECT "A \\"B\\""', c.Select('A "B"')),
    (b'SELECT "INBOX" (CONDSTORE)', c.Select("INBOX", False, (c.CondStore(),))),
    (b"SELECT a (QRESYNC (67890007 20050715))", c.Select("a", False, (c.QResync(67890007, 20050715),))),
    (
        b"EXAMINE a (QRESYNC (1 2 41,43:211 (1:3 5:7)))",
        c.Select("a", True, (c.QResync(1, 2, SequenceSet(((41, 41), (43, 211)))),)),
    ),
    (b"SELECT a (QRESYNC (1 2 (1 5)) CONDSTORE)", c.Select("a", False, (c.QResync(1, 2), c.CondStore()))),
    (b'GETQUOTA ""', c.GetQuota("")),
    (b"GETQUOTAROOT inbox", c.GetQuotaRoot("INBOX")),
    (b"COMPRESS deflate", c.Compress("DEFLATE")),
    (
        b"GETMETADATA (MAXSIZE 1024 DEPTH 1) inbox (/shared/A /private/b/c)",
        c.GetMetadata("INBOX", ("/shared/a", "/private/b/c"), 1024, 1),
    ),
    (b'GETMETADATA "" (DEPTH infinity) /private/b', c.GetMetadata("", ("/private/b",), None, None)),
    (b'SETMETADATA a (/shared/x "y" /shared/z NIL)', c.SetMetadata("a", (("/shared/x", b"y"), ("/shared/z", None)))),
    (b"EXAMINE a]b/c", c.Select("a]b/c", read_only=True)),
    (b"CREATE Work/2026/", c.Create("Work/2026")),
    (b"CREATE MySent (USE (\\sent))", c.Create("MySent", ("\\Sent",))),
    (b"DELETE Work", c.Delete("Work")),
    (b'RENAME Work "Old Work"', c.Rename("Work", "Old Work")),
    (b"RENAME {4+}\r\nWork {3+}\r\nOld", c.Rename("Work", "Old")),
    (b"SUBSCRIBE Work", c.Subscribe("Work")),
    (b"UNSUBSCRIBE Work", c.Unsubscribe("Work")),
    (b'LIST "" ""', c.List("", ("",))),
    (b'LIST "" *', c.List("", ("*",))),
    (b'list "" "%"', c.List("", ("%",))),
    (b"LIST Work/ %", c.List("Work/", ("%",))),
    (b'LIST "" {2+}\r\n*a', c.List("", ("*a",))),
    (b'LIST "" &APw-*', c.List("", ("ü*",))),
    (
        b'list (subscribed) "" "*" return (special-use)',
        c.List("", ("*",), frozenset({c.ListSelection.SUBSCRIBED}), (c.ListReturn.SPECIAL_USE,), extended=True),
    ),
    (
        b'LIST (SPECIAL-USE) "" "*"',
        c.List("", ("*",), frozenset({c.ListSelection.SPECIAL_USE}), extended=True),
    ),
    (b'LIST () "" (INBOX "Dr%" Sent)', c.List("", ("INBOX", "Dr%", "Sent"), extended=True)),
    (
        b'LIST "" "*" RETURN (CHILDREN STATUS (MESSAGES UNSEEN) SUBSCRIBED)',
        c.List(
            "",
            ("*",),
            returns=(c.ListReturn.CHILDREN, c.ListStatus((M.MESSAGES, M.UNSEEN)), c.ListReturn.SUBSCRIBED),
            extended=True,
        ),
    ),
    (
        b'LIST (SUBSCRIBED RECURSIVEMATCH) "" %',
        c.List("", ("%",), frozenset({c.ListSelection.SUBSCRIBED, c.ListSelection.RECURSIVEMATCH}), extended=True),
    ),
    (b'LSUB "" "%"', c.Lsub("", "%")),
    (b'LSUB "" *', c.Lsub("", "*")),
    (b"NAMESPACE", c.Namespace()),
    (
        b'LIST "" "%" RETURN (MYRIGHTS)',
        c.List("", ("%",), returns=(c.ListReturn.MY_RIGHTS,), extended=True),
    ),
    (b"SETACL inbox Bob@example.com lr", c.SetAcl("INBOX", "Bob@example.com", c.StoreMode.REPLACE, frozenset("lr"))),
    (b'setacl a "b c" {0+}\r\n', c.SetAcl("a", "b c", c.StoreMode.REPLACE, frozenset())),
    (b"SETACL a b +wc", c.SetAcl("a", "b", c.StoreMode.ADD, frozenset("wkx"))),
    (b'SETACL a -b "-da"', c.SetAcl("a", "-b", c.StoreMode.REMOVE, frozenset("eta"))),
    (b"DELETEACL a anyone", c.DeleteAcl("a", "anyone")),
    (b'GETACL "Other Users/b@c.d/INBOX"', c.GetAcl("Other Users/b@c.d/INBOX")),
    (b"LISTRIGHTS a b", c.ListRights("a", "b")),
    (b"MYRIGHTS inbox", c.MyRights("INBOX")),
    (b"STATUS INBOX (MESSAGES)", c.StatusCommand("INBOX", (M.MESSAGES,))),
    (
        b'STATUS "x" (UIDNEXT UIDVALIDITY UNSEEN RECENT MESSAGES )',
        c.StatusCommand("x", (M.UIDNEXT, M.UIDVALIDITY, M.UNSEEN, M.RECENT, M.MESSAGES)),
    ),
    (b"STATUS x ( size HIGHESTMODSEQ )", c.StatusCommand("x", (M.SIZE, M.HIGHESTMODSEQ))),
]


def _catenated(flags: tuple[str, ...], text: bytes, *urls: bytes) -> c.AppendMessage:
    return c.AppendMessage(flags, None, b"", parts=(*((text,) if text else ()), *map(c.UrlPart, urls)))


MESSAGES: list[tuple[bytes, c.Command]] = [
    (b"APPEND INBOX {4+}\r\na\0\r\n", c.Append("INBOX", (c.AppendMessage((), None, b"a\0\r\n"),))),
    (
        b'APPEND "Sent" (\\Seen \\RECENT Foo) {2+}\r\nhi',
        c.Append("Sent", (c.AppendMessage(("$seen", "foo"), None, b"hi"),)),
    ),
    (
        b'append {4+}\r\nSent () "17-Jul-1996 02:44:25 -0700" {0+}\r\n',
        c.Append("Sent", (c.AppendMessage((), JULY, b""),)),
    ),
    (
        b'APPEND a {1+}\r\n1 (\\Draft) {1+}\r\n2 "17-Jul-1996 02:44:25 -0700" ~{1+}\r\n\0',
        c.Append(
            "a",
            (
                c.AppendMessage((), None, b"1"),
                c.AppendMessage(("$draft",), None, b"2"),
                c.AppendMessage((), JULY, b"\0", binary=True),
            ),
        ),
    ),
    (
        b'APPEND a (\\Seen) CATENATE (TEXT {2+}\r\n1\n URL "/b;UIDVALIDITY=3/;UID=2/;SECTION=1" url {6+}\r\n;UID=9)',
        c.Append("a", (_catenated(("$seen",), b"1\n", b"/b;UIDVALIDITY=3/;UID=2/;SECTION=1", b";UID=9"),)),
    ),
    (
        b'APPEND a CATENATE (URL ";UID=1") {1+}\r\nx',
        c.Append("a", (_catenated((), b"", b";UID=1"), c.AppendMessage((), None, b"x"))),
    ),
    (b"REPLACE * Drafts {1+}\r\nx", c.Replace(numbers(b"*"), "Drafts", c.AppendMessage((), None, b"x"))),
    (
        b'uid replace 7 {6+}\r\nDrafts (\\Draft) "17-Jul-1996 02:44:25 -0700" ~{2+}\r\n\0y',
        c.Replace(numbers(b"7"), "Drafts", c.AppendMessage(("$draft",), JULY, b"\0y", binary=True), uid=True),
    ),
    (b"CHECK", c.Check()),
    (b"CLOSE", c.Close()),
    (b"UNSELECT", c.Unselect()),
    (b"EXPUNGE", c.Expunge()),
    (b"UID EXPUNGE 3:5,9", c.Expunge(numbers(b"3:5,9"))),
    (b"SEARCH ALL", c.Search(And())),
    (b"uid search charset utf-8 seen", c.Search(HasFlag("$seen"), "UTF-8", uid=True)),
    (
        b"SORT (reverse date Subject) us-ascii UNSEEN $",
        c.Sort(
            (SortCriterion(SortKey.DATE, reverse=True), SortCriterion(SortKey.SUBJECT)),
            And((Not(HasFlag("$seen")), Numbers(SAVED_RESULT))),
            "US-ASCII",
        ),
    ),
    (
        b"UID SORT RETURN (PARTIAL -1:-20 UPDATE CONTEXT) (DISPLAYFROM RELEVANCY DISPLAYTO) UTF-8 FUZZY SEEN",
        c.Sort(
            (SortCriterion(SortKey.DISPLAYFROM), SortCriterion(SortKey.RELEVANCY), SortCriterion(SortKey.DISPLAYTO)),
            Fuzzy(HasFlag("$seen")),
            "UTF-8",
            (Partial(-1, -20), ReturnOption.UPDATE, ReturnOption.CONTEXT),
            uid=True,
        ),
    ),
    (b"THREAD references UTF-8 ALL", c.Thread(Algorithm.REFERENCES, And(), "UTF-8")),
    (b"UID THREAD ORDEREDSUBJECT US-ASCII ALL", c.Thread(Algorithm.ORDEREDSUBJECT, And(), "US-ASCII", uid=True)),
    (b'CANCELUPDATE "a1" "a2"', c.CancelUpdate((b"a1", b"a2"))),
    (b"SEARCH RETURN (PARTIAL 500:400) ALL", c.Search(And(), None, (Partial(500, 400),))),
    (b"SEARCH RETURN (MIN COUNT) SEEN", c.Search(HasFlag("$seen"), None, (ReturnOption.MIN, ReturnOption.COUNT))),
    (
        b"UID SEARCH RETURN () CHARSET US-ASCII ALL",
        c.Search(And(), "US-ASCII", (ReturnOption.ALL,), uid=True),
    ),
    (b"STORE 1 FLAGS ()", c.Store(numbers(b"1"), c.StoreMode.REPLACE, ())),
    (b"uid store 5 +Flags (\\Seen)", c.Store(numbers(b"5"), c.StoreMode.ADD, ("$seen",), uid=True)),
    (
        b"UID STORE 1,2 +FLAGS.SILENT (\\Deleted)",
        c.Store(numbers(b"1,2"), c.StoreMode.ADD, ("$deleted",), silent=True, uid=True),
    ),
    (b"STORE 2:4 -FLAGS \\Seen $Label1 ", c.Store(numbers(b"2:4"), c.StoreMode.REMOVE, ("$seen", "$label1"))),
    (b"STORE * FLAGS ( \\Seen $Seen seen )", c.Store(numbers(b"*"), c.StoreMode.REPLACE, ("$seen", "seen"))),
    (b"STORE 1 FLAGS (\\Recent)", c.Store(numbers(b"1"), c.StoreMode.REPLACE, ())),
    (
        b"STORE 1 (UNCHANGEDSINCE 12) -FLAGS.SILENT (Work)",
        c.Store(numbers(b"1"), c.StoreMode.REMOVE, ("work",), True, (c.UnchangedSince(12),)),
    ),
    (b"COPY 2:4 Trash", c.Copy(numbers(b"2:4"), "Trash")),
    (b'UID COPY 7 "Deleted Items"', c.Copy(numbers(b"7"), "Deleted Items", uid=True)),
    (b"MOVE 1:* Archive", c.Move(numbers(b"1:*"), "Archive")),
    (b"UID MOVE 9 {7+}\r\nArchive", c.Move(numbers(b"9"), "Archive", uid=True)),
]


@pytest.mark.covers("mail-server:D1", "mail-server:D2", "mail-server:D3", "mail-server:D5", "mail-server:D8")
@pytest.mark.parametrize(("line", "expected"), SESSION + FOLDERS + MESSAGES)
def test_commands(line: bytes, expected: c.Command) -> None:
    assert parse(line) == expected


def test_every_row_has_an_example() -> None:
    lines = [line.upper().split() for line, _ in SESSION + FOLDERS + MESSAGES] + [[b"FETCH"], [b"UID", b"FETCH"]]
    assert {words[0] for words in lines} - {b"UID"} == set(COMMANDS)
    assert {words[1] for words in lines if words[0] == b"UID"} == {word for word, row in COMMANDS.items() if row.uid}


def simple(*atts: FetchAtt) -> tuple[FetchItem, ...]:
    return tuple(FetchItem(att) for att in atts)


def body(part: tuple[int, ...] = (), text: SectionText = SectionText.ALL, *fields: bytes) -> FetchItem:
    return FetchItem(FetchAtt.SECTION, Section(part, text, fields))


A = FetchAtt
T = SectionText
FAST = simple(A.FLAGS, A.INTERNALDATE, A.RFC822_SIZE)
FETCHES: list[tuple[bytes, tuple[FetchItem, ...]]] = [
    (b"FLAGS", simple(A.FLAGS)),
    (b"(FLAGS)", simple(A.FLAGS)),
    (b"( UID FLAGS  UID )", simple(A.UID, A.FLAGS)),
    (b"fast", FAST),
    (b"ALL", FAST + simple(A.ENVELOPE)),
    (b"FULL", FAST + simple(A.ENVELOPE, A.BODY_STRUCTURE_PLAIN)),
    (b"(BODY BODYSTRUCTURE)", simple(A.BODY_STRUCTURE_PLAIN, A.BODYSTRUCTURE)),
    (b"RFC822", (FetchItem(A.RFC822, peek=False),)),
    (b"(RFC822.HEADER RFC822.TEXT)", (FetchItem(A.RFC822_HEADER), FetchItem(A.RFC822_TEXT, peek=False))),
    (b"(UID RFC822.SIZE BODY.PEEK[])", (*simple(A.UID, A.RFC822_SIZE), body())),
    (b"BODY[]", (FetchItem(A.SECTION, Section(), peek=False),)),
    (b"body.peek[header]<0.1024>", (FetchItem(A.SECTION, Section(text=T.HEADER), (0, 1024)),)),
    (b"BODY.PEEK[1.2.3]", (body((1, 2, 3)),)),
    (b"BODY.PEEK[2.MIME]", (body((2,), T.MIME),)),
    (b"BODY.PEEK[1.2.Header]", (body((1, 2), T.HEADER),)),
    (b"BODY.PEEK[1.TEXT]", (body((1,), T.TEXT),)),
    (
        b"(BODY.PEEK[1.2.HEADER.FIELDS (A B)]<0.100>)",
        (FetchItem(A.SECTION, Section((1, 2), T.HEADER_FIELDS, (b"A", b"B")), (0, 100)),),
    ),
    (b'BODY.PEEK[HEADER.FIELDS.NOT ("To" {2+}\r\nCc)]', (body((), T.HEADER_FIELDS_NOT, b"To", b"Cc"),)),
    (
        b"(UID FLAGS INTERNALDATE RFC822.SIZE BODY.PEEK[HEADER.FIELDS ( DATE FROM X-LABEL )])",
        (
            *simple(A.UID, A.FLAGS, A.INTERNALDATE, A.RFC822_SIZE),
            body((), T.HEADER_FIELDS, b"DATE", b"FROM", b"X-LABEL"),
        ),
    ),
    (b"(MODSEQ EMAILID THREADID SAVEDATE)", simple(A.MODSEQ, A.EMAILID, A.THREADID, A.SAVEDATE)),
    (b"(PREVIEW UID)", simple(A.PREVIEW, A.UID)),
    (b"(PREVIEW (LAZY) UID)", simple(A.PREVIEW_LAZY, A.UID)),
    (b"BINARY.PEEK[1.2]<5.6>", (FetchItem(A.BINARY, Section((1, 2)), (5, 6)),)),
    (b"BINARY.SIZE[3]", (FetchItem(A.BINARY_SIZE, Section((3,))),)),
]


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
    [
        b"FOO",
        b"UID",
        b"UID NOOP",
        b"UID FOO 1",
        b"NOOP x",
        b'"NOOP"',
        b"LOGIN joe",
        b"LOGIN joe ",
        b"LOGIN",
        b"IDLE x",
        b'LOGIN "joe pw',
        b'LOGIN "j\\oe" pw',
        b"LOGIN joe {3+}\r\na\x00b",
        b'LOGIN joe "\xff"',
        b"LOGIN j(e pw",
        b"LOGIN joe pw extra",
        b"LOGIN j\xc3\xa9 pw",
        b"AUTHENTICATE",
        b"AUTHENTICATE PLAIN a",
        b"AUTHENTICATE PLAIN a b",
        b"AUTHENTICATE PLAIN {4+}\r\nAGpv",
        b"SELECT",
        b"SELECT a b",
        b"SELECT &",
        b"SELECT a ()",
        b"SELECT a (X)",
        b"CREATE a (USE)",
        b"RENAME a",
        b'LIST ""',
        b'LIST "" a b',
        b'LIST (X) "" *',
        b'LIST "" ()',
        b"LIST",
        b'LIST (RECURSIVEMATCH) "" *',
        b'LIST "" * RETURN (X)',
        b'LIST "" * RETURN',
        b"STATUS a",
        b"STATUS a ()",
        b"STATUS a (X)",
        b"STATUS a MESSAGES",
        b"ENABLE",
        b"ENABLE (a)",
        b"ID",
        b"ID x",
        b'ID ("a")',
        b'ID ("a" b)',
        b"ID (" + b"x" * 31 + b' "v")',
        b'ID ("' + b"x" * 31 + b'" "v")',
        b"APPEND a",
        b"APPEND a {1+}\r\nx y",
        b'APPEND a "x"',
        b"APPEND a (\\Foo) {1+}\r\nx",
        b"APPEND a (\\*) {1+}\r\nx",
        b'APPEND a "1-Jan-2026" {1+}\r\nx',
        b"APPEND a (b {1+}\r\nx",
        b"APPEND a (b(c)) {1+}\r\nx",
        b"APPEND a (b)",
        b"APPEND a ~{2+}\r\nab c",
        b"APPEND a CATENATE ()",
        b"APPEND a CATENATE (TEXT x)",
        b"APPEND a CATENATE (UTF8 (~{1+}\r\nx))",
        b"APPEND a CATENATE (TEXT {1+}\r\nx URL)",
        b"REPLACE 1:2 a {1+}\r\nx",
        b"REPLACE 1,2 a {1+}\r\nx",
        b"REPLACE $ a {1+}\r\nx",
        b"REPLACE 1 a {1+}\r\nx {1+}\r\ny",
        b"UID REPLACE a {1+}\r\nx",
        b"FETCH",
        b"FETCH 1",
        b"FETCH 0 FLAGS",
        b"FETCH a FLAGS",
        b"FETCH 1 ()",
        b"FETCH 1 (FLAGS",
        b"FETCH 1 FLAGS)",
        b"FETCH 1 (FLAGS(UID))",
        b"FETCH 1 (ALL)",
        b"FETCH 1 FOO",
        b"FETCH 1 FLAGS UID",
        b"FETCH 1 BODY[",
        b"FETCH 1 BODY[]<>",
        b"FETCH 1 BODY[]<0>",
        b"FETCH 1 BODY[]<0.0>",
        b"FETCH 1 BODY[]<-1.5>",
        b"FETCH 1 BODY[0]",
        b"FETCH 1 BODY[1.]",
        b"FETCH 1 BODY[.1]",
        b"FETCH 1 BODY[1..2]",
        b"FETCH 1 BODY[MIME]",
        b"FETCH 1 BODY[FOO]",
        b"FETCH 1 BODY[1HEADER]",
        b"FETCH 1 BODY[HEADER.FIELDS]",
        b"FETCH 1 BODY[HEADER.FIELDS ()]",
        b'FETCH 1 BODY[HEADER.FIELDS ("a b")]',
        b"FETCH 1 BODY[HEADER.FIELDS (a:b)]",
        b"FETCH 1 BODY[99999999999]",
        b"FETCH 1 FLAGS[1]",
        b"FETCH 1 BINARY[TEXT]",
        b"FETCH 1 BODY[4294967296]",
        b"FETCH 1 FLAGS (X 1)",
        b"FETCH 1 PREVIEW (EAGER)",
        b"FETCH 1 BODY.PEEK",
        b"STORE 1",
        b"STORE 1 FLAGS",
        b"STORE 1 FOO (a)",
        b"STORE 1 +FLAGS (\\Foo)",
        b"STORE 1 FLAGS (\\*)",
        b"STORE 1 FLAGS (a\xc3\xa9)",
        b"STORE 1 FLAGS (" + b"k" * 256 + b")",
        b"STORE 1 FLAGS (a]b)",
        b"STORE 1 (X) FLAGS ()",
        b'STORE 1 FLAGS ("a")',
        b"STORE 1 FLAGS (\\)",
        b"COPY 1",
        b"COPY 1:0 a",
        b"COPY 4294967296 a",
        b"MOVE a 1",
        b"EXPUNGE 1",
        b"UID EXPUNGE",
        b"SEARCH",
        b"SEARCH RETURN (X) ALL",
        b"SEARCH RETURN (PARTIAL) ALL",
        b"SEARCH RETURN (PARTIAL 1) ALL",
        b"SEARCH RETURN (PARTIAL 0:1) ALL",
        b"SEARCH RETURN (PARTIAL 1:*) ALL",
        b"SEARCH RETURN (PARTIAL -1:2) ALL",
        b"SEARCH RETURN (PARTIAL 1:-2) ALL",
        b"SEARCH RETURN (PARTIAL 1:2 ALL) ALL",
        b"SEARCH RETURN (PARTIAL 1:2 PARTIAL 3:4) ALL",
        b"SEARCH RETURN (PARTIAL 1:2 PARTIAL 1:2) ALL",
        b"SEARCH RETURN (RELEVANCY) SEEN",
        b"SEARCH FUZZY",
        b"SEARCH $,1",
        b"SORT () UTF-8 ALL",
        b"SORT (REVERSE) UTF-8 ALL",
        b"SORT (REVERSE REVERSE DATE) UTF-8 ALL",
        b"SORT (UID) UTF-8 ALL",
        b"SORT (RELEVANCY) UTF-8 ALL",
        b"SORT DATE UTF-8 ALL",
        b"SORT (DATE) UTF-8",
        b"THREAD ALL",
        b"THREAD X-OTHER UTF-8 ALL",
        b"THREAD REFERENCES UTF-8",
        b"CANCELUPDATE",
        b"CANCELUPDATE a1",
        b"UID FETCH 1 FLAGS (PARTIAL)",
        b"FETCH 1 FLAGS (PARTIAL 1:2)",
        b"SEARCH RETURN ALL",
        b"NO\rOP",
        b"SETACL a b",
        b"SETACL a b q",
        b"SETACL a b LR",
        b"SETACL a b ++l",
        b"SETACL a b " + b"l" * 100,
        b'SETACL a "" lr',
        b"SETACL a " + b"b" * 2000 + b" lr",
        b"DELETEACL a",
        b"GETACL",
        b"LISTRIGHTS a",
        b"MYRIGHTS a b",
    ],
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
