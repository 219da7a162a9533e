"""What mail programs really send, and how long hostile input may take."""

from __future__ import annotations

import pytest

from postroom.imap.cursor import ParserOptions
from postroom.imap.errors import CommandError
from postroom.imap.parser import parse_command
from postroom.imap.wire import CommandReader, RawCommand

OFFERED = ParserOptions(capabilities=frozenset({"CONDSTORE", "ESEARCH", "STATUS=SIZE"}))

SCRIPTS = {
    "Thunderbird": rb"""
1 capability
2 authenticate PLAIN AGpvZUBleGFtcGxlLmNvbQBwdw==
3 ID ("name" "Thunderbird" "version" "128.0")
4 namespace
5 list (subscribed) "" "*" return (special-use)
6 lsub "" "*"
7 list "" "INBOX"
8 select "INBOX" (CONDSTORE)
9 getquotaroot "INBOX"
10 UID fetch 1:* (FLAGS)
11 UID fetch 10,12:15 (UID RFC822.SIZE FLAGS BODY.PEEK[HEADER.FIELDS (From To Cc Bcc Subject Date References)])
12 UID fetch 15 (UID RFC822.SIZE BODY.PEEK[])
13 uid store 15 +Flags (\Seen $label1)
14 uid store 15 -Flags (NonJunk Junk)
15 UID SEARCH UNDELETED SINCE 5-May-2026
16 UID SEARCH CHARSET UTF-8 OR SUBJECT "a" OR FROM "b" TO "c"
17 uid copy 15 "Trash"
18 STATUS "Sent" (UIDNEXT MESSAGES UNSEEN RECENT)
19 append "Drafts" (\Seen \Draft) "05-May-2026 10:11:12 +0200" {5+}
hello
20 expunge
21 IDLE""",
    "Apple Mail": rb"""
1.1 CAPABILITY
2.1 ID ("name" "Mac OS X Mail" "version" "16.0 (3774)" "os" "Mac OS X" "os-version" "14.5 (23F79)" "vendor" "Apple")
3.1 LOGIN joe@example.com "pass word"
4.1 LIST "" "*" RETURN (SPECIAL-USE)
5.1 LIST "" ""
6.1 STATUS "Sent Messages" (MESSAGES UIDNEXT UIDVALIDITY UNSEEN)
7.1 SELECT INBOX
8.1 FETCH 1:5 (FLAGS UID)
9.1 UID FETCH 1:* (FLAGS)
10.1 UID FETCH 3:5 (INTERNALDATE UID RFC822.SIZE FLAGS BODY.PEEK[HEADER.FIELDS (date subject from to cc message-id)])
11.1 UID FETCH 5 (BODYSTRUCTURE BODY.PEEK[HEADER])
12.1 UID FETCH 5 BODY.PEEK[1.2]<0.65536>
13.1 UID STORE 5 +FLAGS.SILENT (\Seen)
14.1 UID SEARCH 1:* NOT DELETED
15.1 CREATE "Archive/2026"
16.1 CLOSE""",
    "Outlook": rb"""
a0 CAPABILITY
a1 LOGIN "joe@example.com" "p\\w\""
a2 ID ("name" "Microsoft Outlook" "os" "Windows")
a3 LIST "" "%"
a4 LSUB "" "INBOX*"
a5 SELECT "INBOX"
a6 UID SEARCH UID 1:* SINCE 1-Jan-2026
a7 UID FETCH 1:100 (UID FLAGS)
a8 UID FETCH 7 (BODY.PEEK[] FLAGS RFC822.SIZE INTERNALDATE)
a9 UID STORE 7 -FLAGS.SILENT (\Seen)
b0 UID MOVE 7 "Deleted Items"
b1 SUBSCRIBE "Junk E-mail"
b2 NOOP
b3 LOGOUT""",
    "mutt": rb"""
a0000 CAPABILITY
a0001 AUTHENTICATE PLAIN =
a0002 ENABLE UTF8=ACCEPT
a0003 LIST "" ""
a0004 STATUS "INBOX" (MESSAGES RECENT UNSEEN UIDNEXT UIDVALIDITY)
a0005 SELECT "INBOX"
a0006 FETCH 1:20 (UID FLAGS INTERNALDATE RFC822.SIZE BODY.PEEK[HEADER.FIELDS (DATE FROM SUBJECT TO CC X-LABEL)])
a0007 UID FETCH 20 BODY.PEEK[]
a0008 UID STORE 1,3:5 +FLAGS.SILENT (\Deleted)
a0009 UID EXPUNGE 1,3:5
a0010 APPEND "=Sent" (\Seen) {2+}
hi
a0011 CLOSE""",
    "K-9": rb"""
1 CAPABILITY
2 NAMESPACE
3 LIST (SUBSCRIBED) "" "*"
4 SELECT "INBOX"
5 UID SEARCH 81:100 NOT DELETED
6 UID FETCH 5,6 (UID FLAGS INTERNALDATE RFC822.SIZE BODY.PEEK[HEADER.FIELDS (date subject from content-type to cc)])
7 UID FETCH 5 (UID BODYSTRUCTURE)
8 UID FETCH 5 (UID BODY.PEEK[1.1])
9 UID STORE 5 +FLAGS.SILENT (\Seen \Answered)
10 UID SEARCH HEADER MESSAGE-ID "<1@example.com>"
11 UID COPY 5 "Archive"
12 IDLE""",
    "mbsync": rb"""
1 CAPABILITY
2 LOGIN "joe" "pw"
3 SELECT "INBOX"
4 UID FETCH 1:1000 (UID FLAGS RFC822.SIZE BODY.PEEK[HEADER.FIELDS (X-TUID MESSAGE-ID)])
5 UID FETCH 2147483647:* (UID)
6 UID STORE 5 +FLAGS.SILENT (\Flagged)
7 APPEND "INBOX" (\Seen) " 5-May-2026 10:11:12 +0200" {3+}
a
b
8 LOGOUT""",
}


@pytest.mark.covers("mail-server:D1", "mail-server:D2", "mail-server:D6", "mail-server:D7", "mail-server:D8")
@pytest.mark.parametrize("client", SCRIPTS)
def test_client_scripts(client: str) -> None:
    script = SCRIPTS[client].lstrip().replace(b"\n", b"\r\n").replace(b"a\r\nb\r\n", b"a\nb\r\n") + b"\r\n"
    refused = []
    tags = []
    for raw in CommandReader(authenticated=True).feed(script):
        assert isinstance(raw, RawCommand)
        tags.append(raw.tag)
        try:
            parse_command(raw, OFFERED)
        except CommandError as error:
            refused.append((raw.text.split()[0].lower(), error.text))
    assert refused == []
    assert len(tags) == len(set(tags)) >= 8


FULL = 60_000


@pytest.mark.covers("mail-server:D1")
@pytest.mark.parametrize(
    "text",
    [
        b"x" * FULL,
        b"SEARCH " + b"(" * FULL,
        b"SEARCH " + b"NOT " * (FULL // 4),
        b'SEARCH SUBJECT "' + b"\\" * FULL,
        b'SEARCH SUBJECT "' + b'\\"' * (FULL // 2),
        b"FETCH " + b"1," * (FULL // 2) + b" FLAGS",
        b"FETCH " + b"1:" * (FULL // 2) + b" FLAGS",
        b"FETCH " + b"9" * FULL + b" FLAGS",
        b"FETCH 1 BODY[" + b"1." * (FULL // 2) + b"]",
        b"FETCH 1 (" + b"FLAGS " * (FULL // 6),
        b"FETCH 1 BODY[HEADER.FIELDS (" + b"a " * (FULL // 2) + b")]",
        b"STORE 1 FLAGS (" + b"a " * (FULL // 2) + b")",
        b"SELECT " + b"&" * FULL,
        b"SELECT &" + b"AOkA" * (FULL // 4) + b"-",
        b'LIST "" ' + b"%*" * (FULL // 2),
        b"NOOP" + b" " * FULL + b"x",
        b"AUTHENTICATE PLAIN " + b"A" * FULL + b"!",
        b"ID (" + b'"a" "b" ' * (FULL // 8) + b")",
        b"ENABLE " + b"a " * (FULL // 2),
        b"APPEND a " + b"(" * FULL,
    ],
)
def test_full_lines_of_nonsense_end(text: bytes) -> None:
    (raw,) = CommandReader().feed(b"a " + text + b"\r\n")
    assert isinstance(raw, RawCommand)
    try:
        parse_command(raw, OFFERED)
    except CommandError as error:
        text = error.text.encode()
    else:
        text = b""
    assert len(text) < 100
