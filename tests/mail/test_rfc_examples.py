"""The examples of the RFCs give what the RFCs say. Addresses under domains that exist were moved to reserved ones."""

from __future__ import annotations

import pytest

from postroom.mail.address import parse_addresses
from postroom.mail.content import read
from postroom.mail.header import decode_value
from postroom.mail.mime import Message, parse, walk
from postroom.mail.params import parse_content_type
from postroom.mail.transfer import decode_base64, decode_quoted_printable


def message(text: str) -> Message:
    return parse(text.replace("\n", "\r\n").encode())


def boxes(text: str) -> list[tuple[str, str]]:
    return [(item.name, item.address) for item in parse_addresses(text)]


@pytest.mark.covers("RFC 2047 §8")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("(=?ISO-8859-1?Q?a?=)", "(a)"),
        ("(=?ISO-8859-1?Q?a?= b)", "(a b)"),
        ("(=?ISO-8859-1?Q?a?= =?ISO-8859-1?Q?b?=)", "(ab)"),
        ("(=?ISO-8859-1?Q?a?=  =?ISO-8859-1?Q?b?=)", "(ab)"),
        ("(=?ISO-8859-1?Q?a?=\r\n    =?ISO-8859-1?Q?b?=)", "(ab)"),
        ("(=?ISO-8859-1?Q?a_b?=)", "(a b)"),
        ("(=?ISO-8859-1?Q?a?= =?ISO-8859-2?Q?_b?=)", "(a b)"),
        ("=?US-ASCII?Q?Keith_Moore?= <moore@example.com>", "Keith Moore <moore@example.com>"),
        ("=?ISO-8859-1?Q?Keld_J=F8rn_Simonsen?= <keld@example.com>", "Keld Jørn Simonsen <keld@example.com>"),
        ("=?ISO-8859-1?Q?Andr=E9?= Pirard <pirard@example.com>", "André Pirard <pirard@example.com>"),
        (
            "=?ISO-8859-1?B?SWYgeW91IGNhbiByZWFkIHRoaXMgeW8=?=\r\n "
            "=?ISO-8859-2?B?dSB1bmRlcnN0YW5kIHRoZSBleGFtcGxlLg==?=",
            "If you can read this you understand the example.",
        ),
        ("=?ISO-8859-1?Q?Olle_J=E4rnefors?= <ojarnef@example.com>", "Olle Järnefors <ojarnef@example.com>"),
        ("=?ISO-8859-1?Q?Patrik_F=E4ltstr=F6m?= <paf@example.com>", "Patrik Fältström <paf@example.com>"),
        ("Nathaniel (=?iso-8859-8?b?7eXs+SDv4SDp7Oj08A==?=)", "Nathaniel (םולש ןב ילטפנ)"),
    ],
)
def test_encoded_words(value: str, shown: str) -> None:
    assert decode_value(value.encode()) == shown


@pytest.mark.covers("RFC 2231 §3", "RFC 2231 §4", "RFC 2231 §5")
def test_parameters() -> None:
    assert parse_content_type(
        'message/external-body; access-type=URL; URL*0="ftp://"; URL*1="files.example/pub/moore/bulk-mailer.tar"'
    ) == ("message", "external-body", {"access-type": "URL", "url": "ftp://files.example/pub/moore/bulk-mailer.tar"})
    assert parse_content_type("application/x-stuff; title*=us-ascii'en-us'This%20is%20%2A%2A%2Afun%2A%2A%2A")[2] == {
        "title": "This is ***fun***"
    }
    combined = (
        "application/x-stuff\n ;title*0*=us-ascii'en'This%20is%20even%20more%20\n"
        ' ;title*1*=%2A%2A%2Afun%2A%2A%2A%20\n ;title*2="isn\'t it!"'
    )
    assert parse_content_type(combined)[2] == {"title": "This is even more ***fun*** isn't it!"}
    assert decode_value(b"=?US-ASCII*EN?Q?Keith_Moore?=") == "Keith Moore"


@pytest.mark.covers("RFC 2045 §6.7", "RFC 2045 §6.8")
def test_transfer_encodings() -> None:
    folded = b"Now's the time =\r\nfor all folk to come=\r\n to the aid of their country."
    assert decode_quoted_printable(folded) == b"Now's the time for all folk to come to the aid of their country."
    for octets, encoded in ((b"f", b"Zg=="), (b"fo", b"Zm8="), (b"foo", b"Zm9v"), (b"foobar", b"Zm9vYmFy")):
        assert decode_base64(encoded) == octets  # RFC 4648 §10


MULTIPART = """\
From: Nathaniel <nsb@example.com>
To: Ned <ned@example.net>
Date: Sun, 21 Mar 1993 23:56:48 -0800 (PST)
Subject: Sample message
MIME-Version: 1.0
Content-type: multipart/mixed; boundary="simple boundary"

This is the preamble.  It is to be ignored.

--simple boundary

This is implicitly typed plain US-ASCII text.
It does NOT end with a linebreak.
--simple boundary
Content-type: text/plain; charset=us-ascii

This is explicitly typed plain US-ASCII text.
It DOES end with a linebreak.

--simple boundary--

This is the epilogue.  It is also to be ignored.
"""


@pytest.mark.covers("RFC 2046 §5.1.1")
def test_simple_multipart() -> None:
    raw = MULTIPART.replace("\n", "\r\n").encode()
    found = parse(raw)
    assert not found.degraded
    bodies = [raw[part.body_start : part.body_end] for _, part in walk(found.root)]
    assert [body.endswith(b"linebreak.") for body in bodies] == [True, False]
    assert [body.endswith(b"linebreak.\r\n") for body in bodies] == [False, True]
    assert read(raw, found).text.startswith("This is implicitly")
    assert "ignored" not in read(raw, found).text
    assert found.date is not None
    assert found.date.isoformat() == "1993-03-21T23:56:48-08:00"


@pytest.mark.covers("RFC 2046 §5.1.5")
def test_digest() -> None:
    found = message(
        'Subject: Digest\nContent-Type: multipart/mixed; boundary="----- main boundary ----"\n\n'
        "------- main boundary ----\n\n  ...Introductory text\n\n------- main boundary ----\n"
        'Content-Type: multipart/digest; boundary="---- next message ----"\n\n'
        "------ next message ----\n\nFrom: someone-else@example.com\nSubject: my opinion\n\n  ...body goes here ...\n\n"
        "------ next message ----\n\nFrom: someone-else-again@example.com\nSubject: my different opinion\n\n  ...\n\n"
        "------ next message ------\n\n------- main boundary ------\n"
    )
    assert not found.degraded
    assert [part.content_type for _, part in walk(found.root)] == [
        "text/plain", "multipart/digest", "message/rfc822", "text/plain", "message/rfc822", "text/plain"]  # fmt: skip


@pytest.mark.covers("RFC 5322 §3.6")
def test_a_1_addressing() -> None:
    found = message(
        "From: John Doe <jdoe@machine.example>\nSender: Michael Jones <mjones@machine.example>\n"
        "To: Mary Smith <mary@example.net>\nSubject: Saying Hello\nDate: Fri, 21 Nov 1997 09:55:06 -0600\n"
        "Message-ID: <1234@local.machine.example>\n\nThis is a message just to say hello.\n"
    )
    assert [item.address for item in (*found.from_, *found.sender, *found.to)] == [
        "jdoe@machine.example", "mjones@machine.example", "mary@example.net"]  # fmt: skip
    assert found.message_id == "1234@local.machine.example"
    assert found.date is not None
    assert found.date.isoformat() == "1997-11-21T09:55:06-06:00"
    assert boxes('"Joe Q. Public" <john.q.public@example.com>') == [("Joe Q. Public", "john.q.public@example.com")]
    assert boxes("Mary Smith <mary@x.test>, jdoe@example.org, Who? <one@y.test>") == [
        ("Mary Smith", "mary@x.test"), ("", "jdoe@example.org"), ("Who?", "one@y.test")]  # fmt: skip
    assert boxes('<boss@nil.test>, "Giant; \\"Big\\" Box" <sysservices@example.net>') == [
        ("", "boss@nil.test"), ('Giant; "Big" Box', "sysservices@example.net")]  # fmt: skip
    assert boxes("A Group:Ed Jones <c@a.test>,joe@where.test,John <jdoe@one.test>;") == [
        ("Ed Jones", "c@a.test"), ("", "joe@where.test"), ("John", "jdoe@one.test")]  # fmt: skip
    assert boxes("Undisclosed recipients:;") == []


@pytest.mark.covers("RFC 5322 §3.6.4")
def test_a_2_replies() -> None:
    found = message(
        'From: John Doe <jdoe@machine.example>\nReply-To: "Mary Smith: Personal Account" <smith@home.example>\n'
        "Subject: Re: Saying Hello\nMessage-ID: <abcd.1234@local.machine.test>\n"
        "In-Reply-To: <3456@example.net>\nReferences: <1234@local.machine.example> <3456@example.net>\n\nx\n"
    )
    assert [(item.name, item.address) for item in found.reply_to] == [
        ("Mary Smith: Personal Account", "smith@home.example")]  # fmt: skip
    assert found.in_reply_to == ["3456@example.net"]
    assert found.references == ["1234@local.machine.example", "3456@example.net"]


@pytest.mark.covers("RFC 5322 §3.6.6", "RFC 5322 §3.6.7")
def test_a_3_resent_and_a_4_traced() -> None:
    found = message(
        "Received: from x.y.test\n   by example.net\n   via TCP\n   with ESMTP\n   id ABC12345\n"
        "   for <mary@example.net>;  21 Nov 1997 10:05:43 -0600\n"
        "Received: from node.example by x.y.test; 21 Nov 1997 10:01:22 -0600\n"
        "Resent-From: Mary Smith <mary@example.net>\nResent-To: Jane Brown <j-brown@other.example>\n"
        "Resent-Date: Mon, 24 Nov 1997 14:22:01 -0800\nResent-Message-ID: <78910@example.net>\n"
        "From: John Doe <jdoe@node.example>\nTo: Mary Smith <mary@example.net>\nSubject: Saying Hello\n\nx\n"
    )
    assert len(found.headers.get_all("received")) == 2
    assert [item.address for item in found.addresses("resent-to")[0]] == ["j-brown@other.example"]
    assert [item.address for item in found.from_] == ["jdoe@node.example"]


@pytest.mark.covers("RFC 5322 §3.2.2")
def test_a_5_white_space_comments_and_other_oddities() -> None:
    found = message(
        "From: Pete(A nice \\) chap) <pete(his account)@silly.test(his host)>\n"
        "To:A Group(Some people)\n     :Chris Jones <c@(Chris's host.)public.example>,\n"
        "         joe@example.org,\n  John <jdoe@one.test> (my dear friend); (the end of the group)\n"
        "Cc:(Empty list)(start)Hidden recipients  :(nobody(that I know))  ;\n"
        "Date: Thu,\n      13\n        Feb\n          1969\n      23:32\n               -0330 (Newfoundland Time)\n"
        "Message-ID:              <testabcd.1234@silly.test>\n\nTesting.\n"
    )
    assert [(item.name, item.address) for item in found.from_] == [("Pete", "pete@silly.test")]
    assert [(item.name, item.address) for item in found.to] == [
        ("Chris Jones", "c@public.example"), ("", "joe@example.org"), ("John", "jdoe@one.test")]  # fmt: skip
    assert found.cc == []
    assert found.message_id == "testabcd.1234@silly.test"
    assert found.date is not None
    assert found.date.isoformat() == "1969-02-13T23:32:00-03:30"


@pytest.mark.covers("RFC 5322 §4")
def test_a_6_obsolete_forms() -> None:
    found = message(
        "From: Joe Q. Public <john.q.public@example.com>\n"
        "To: Mary Smith <@node.test:mary@example.net>, , jdoe@test  . example\n"
        "Date: Tue, 1 Jul 2003 10:52:37 +0200\nMessage-ID: <5678.21-Nov-1997@example.com>\n\nx\n"
    )
    assert [(item.name, item.address) for item in (*found.from_, *found.to)] == [
        ("Joe Q. Public", "john.q.public@example.com"), ("Mary Smith", "mary@example.net"), ("", "jdoe@test.example"),
    ]  # fmt: skip
    old = message("From: a@example.com\nDate: 21 Nov 97 09:55:06 GMT\n\nx\n").date
    assert old is not None
    assert old.isoformat() == "1997-11-21T09:55:06+00:00"
    spaced = message(
        "From  : John Doe <jdoe@machine(comment).  example>\nTo    : Mary Smith\n  \n          <mary@example.net>\n"
        "Subject     : Saying Hello\nDate  : Fri, 21 Nov 1997 09(comment):   55  :  06 -0600\n"
        "Message-ID  : <1234   @   local(blah)  .machine .example>\n\nThis is a message just to say hello.\n"
    )
    assert [(item.name, item.address) for item in (*spaced.from_, *spaced.to)] == [
        ("John Doe", "jdoe@machine.example"), ("Mary Smith", "mary@example.net")]  # fmt: skip
    assert spaced.subject == "Saying Hello"
    assert spaced.message_id == "1234@local.machine.example"
    assert spaced.date is not None
    assert spaced.date.isoformat() == "1997-11-21T09:55:06-06:00"


@pytest.mark.covers("RFC 6532", "RFC 6531 §3.3")
def test_utf_8_headers() -> None:
    found = message(
        'From: Jörg Müller <jörg@bücher.example>\nTo: 用户 <用户@例子.example>, "संपर्क" <संपर्क@example.com>\n'
        "Subject: Grüße – 你好\nMessage-ID: <größe@bücher.example>\n"
        "Content-Type: multipart/mixed; boundary=b\n\n"
        "--b\nContent-Type: message/global\nContent-Transfer-Encoding: base64\n\nU3ViamVjdDogw6QKCng=\n"
        "--b\nContent-Type: message/global\n\nSubject: Grüße\n\ninnen\n"
        '--b\nContent-Disposition: attachment; filename="ü.txt"\n\nx\n--b--\n'
    )
    assert [(item.name, item.address) for item in (*found.from_, *found.to)] == [
        ("Jörg Müller", "jörg@bücher.example"), ("用户", "用户@例子.example"), ("संपर्क", "संपर्क@example.com"),
    ]  # fmt: skip
    assert found.subject == "Grüße – 你好"
    assert found.message_id == "größe@bücher.example"
    encoded, plain, file = found.root.children
    assert encoded.nested is None  # RFC 6532 §3.7 allows an encoding here, so its text is that of an attachment
    assert plain.nested is not None
    assert file.disposition_params == {"filename": "ü.txt"}
