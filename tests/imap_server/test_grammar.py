"""The grammar that reads every answer in these tests refuses what it must."""

from __future__ import annotations

import pytest

from tests.imap_server import grammar

GOOD = (
    b"* OK [CAPABILITY IMAP4rev1 IDLE] hello",
    b"a1 NO [TRYCREATE] no",
    b"+ idling",
    b'* LIST (\\HasNoChildren) "/" INBOX',
    b'* STATUS "a b" (MESSAGES 3 MAILBOXID (x1))',
    b"* SEARCH",
    b"* SEARCH 1 2 (MODSEQ 5)",
    b'* ESEARCH (TAG "a") UID MIN 1 ALL 1:3',
    b"* THREAD (2)(3 6 (4 23)(44 7 96))((1)(5))",
    b'* 1 FETCH (UID 5 ENVELOPE (NIL "x" ((NIL NIL "a" "b.c")) NIL NIL NIL NIL NIL NIL {2}\r\nab))',
    b'* 1 FETCH (BODYSTRUCTURE ("TEXT" "PLAIN" ("CHARSET" "x") NIL NIL "7BIT" 3 1 NIL ("INLINE" NIL) NIL NIL))',
    b'* 2 FETCH (BODY[HEADER.FIELDS (DATE "a b")] {0}\r\n BODY[1.2]<5> NIL FLAGS (\\Seen $x))',
    b"* VANISHED (EARLIER) 1:3,5",
    b"* ACL INBOX",
    b'* ACL "a b" b@c.d lr "x y" lrswipkxtecda',
    b'* LISTRIGHTS INBOX b@c.d "" lr swipkxtecd a',
    b"* MYRIGHTS INBOX lr",
)
BAD = (
    b"* OK",
    b"* OK  twice",
    b"* OK [NOSUCHCODE] x",
    b"* SEARCH 1 ",
    b"* SEARCH 0",
    b"* 1 FETCH ()",
    b"* 0 EXPUNGE",
    b"* 1 FETCH (UID 0)",
    b"* 1 FETCH (FLAGS (a  b))",
    b"* 1 FETCH (FLAGS (\\Seen)) ",
    b'* LIST (HasNoChildren) "/" x',
    b'* LIST () "/" a b',
    b'* 1 FETCH (ENVELOPE (NIL "x" () NIL NIL NIL NIL NIL NIL NIL))',
    b'* 1 FETCH (RFC822 "\xc3\xa4")',
    b'* 1 FETCH (INTERNALDATE "1-Jan-2030 00:00:00 +0000")',
    b"* VANISHED 3:*",
    b"* WHAT",
    b"* ACL INBOX b@c.d",
    b"* ACL INBOX b@c.d LR",
    b"* LISTRIGHTS INBOX b@c.d",
    b"* MYRIGHTS INBOX",
    b"* MYRIGHTS INBOX lr ",
    b"a+ OK x",
)


@pytest.mark.covers("RFC 9051 §9")
def test_what_is_right_and_what_is_not() -> None:
    for line in GOOD:
        grammar.check(line)
    for line in BAD:
        with pytest.raises(AssertionError):
            grammar.check(line)
