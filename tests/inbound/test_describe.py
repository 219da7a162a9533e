"""What is known of a message: never an exception, never text that can't be stored (B2, B3, B5, B13)."""

from __future__ import annotations

import base64
import hashlib
from base64 import b64encode
from dataclasses import astuple
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.inbound.describe import MAX_ATTACHMENTS, MAX_RECIPIENTS, describe, describe_quickly
from postroom.inbound.packed import taken_out
from postroom.mail.content import safe_html
from postroom.mailbox.gleaned import glean
from postroom.mailbox.models import Content, RecipientKind
from tests.mail.containers import STRING8, UNICODE, Packed, Prop, embedded, tnef

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TRACE = b"Return-Path: <>\r\nReceived: from x; Tue, 01 Jan 2030 00:00:00 +0000\r\n"

# Pieces of which broken mail is made.
PIECES = st.sampled_from(
    [
        *(b"From: ", b"To: ", b"Cc: ", b"Subject: ", b"Message-ID: ", b"In-Reply-To: ", b"References: ", b"Date: "),
        *(b"Reply-To: ", b"Content-Type: ", b"Content-Disposition: ", b"Content-Transfer-Encoding: ", b"Content-ID: "),
        *(
            b"\r\n",
            b"\r\n\r\n",
            b"\n",
            b"\r",
            b" ",
            b"\t",
            b"\0",
            b";",
            b",",
            b":",
            b"<",
            b">",
            b"@",
            b'"',
            b"\\",
            b"(",
        ),
        *(
            b"anna@example.com",
            b"<a@example.com>",
            b"undisclosed-recipients:;",
            b"=?utf-8?q?=00=ED=A0=80?=",
            b"=?x?q?y?=",
        ),
        *(b"=?utf-8?b?2A==?=", b"=?utf-16?b?2AA=?=", b"=?iso-2022-jp?b?GyRCJCI=?=", b"multipart/mixed; boundary=b"),
        *(
            b"multipart/alternative; boundary=b",
            b"message/rfc822",
            b"text/html; charset=utf-7",
            b"text/plain; charset=utf-16",
        ),
        *(b"--b\r\n", b"--b--\r\n", b"base64", b"quoted-printable", b"8bit", b"=ED=A0=80", b"=00", b"AAAA", b"2A=="),
        *(b"\xed\xa0\x80", b"\xff", b"<p>&#0;&#xd800;</p>", b"attachment; filename*=utf-8''%00%ed%a0%80", b"name=x"),
        *(b"Tue, 01 Jan 2030 00:00:00 +0000", b"Fri, 99 Foo 0000 25:61:61 +9999", b"x" * 300),
    ]
)
BROKEN = st.lists(PIECES | st.binary(max_size=8), max_size=40).map(b"".join)


def check(content: Content, raw: bytes) -> None:
    texts = [content.rfc_message_id, content.subject, content.thread_subject, content.subject_fold, content.snippet]
    texts += [
        content.text,
        content.extracted_text,
        content.html or "",
        content.in_reply_to or "",
        *content.reference_ids,
    ]
    texts += [part for point in content.recipients for part in (point[1].address, point[1].name)]
    if content.sender:
        texts += [content.sender.address, content.sender.name]
    for part in content.attachments:
        texts += [part.filename or "", part.content_type, part.content_id or "", part.disposition or ""]
    for text in texts:
        assert "\0" not in text
        text.encode()
        orjson.dumps(text)
    # Lists travel to the database as words.
    assert not any(set(one) & set(" \t\r\n") for one in content.reference_ids)
    assert len(content.rfc_message_id.encode()) <= 998
    assert "@" in content.rfc_message_id
    assert content.raw_sha256 == hashlib.sha256(raw).digest()
    assert content.raw_size == len(TRACE) + len(raw)
    assert NOW - timedelta(days=3652) <= content.sent_at <= NOW + timedelta(days=1)


@pytest.mark.covers("edge:B2", "edge:B3", "edge:B5", "edge:B13")
@settings(max_examples=400, deadline=None)
@given(raw=BROKEN, headers_only=st.booleans())
def test_anything_can_be_described(raw: bytes, headers_only: bool) -> None:
    check(describe(TRACE, raw, NOW, headers_only=headers_only), raw)


@pytest.mark.covers("edge:B2", "edge:B3", "edge:B5")
@settings(max_examples=300, deadline=None)
@given(head=BROKEN, body=BROKEN, kind=st.sampled_from([b"multipart/mixed", b"multipart/alternative", b"text/html"]))
def test_anything_in_a_frame_can_be_described(head: bytes, body: bytes, kind: bytes) -> None:
    raw = b"From: a@example.com\r\n" + head + b"\r\nContent-Type: " + kind + b"; boundary=b\r\n\r\n--b\r\n" + body
    check(describe(TRACE, raw, NOW), raw)


def facts(raw: bytes) -> set[str]:
    return set(describe(TRACE, raw, NOW).facts)


@pytest.mark.covers("edge:B3")
@pytest.mark.parametrize("header", [b"", b"Message-ID: nonsense\r\n", b"Message-ID:\r\n", b"Message-ID: <>\r\n"])
def test_a_missing_message_id_is_synthetic(header: bytes) -> None:
    raw = b"From: a@example.com\r\n" + header + b"\r\nHello\r\n"
    content = describe(TRACE, raw, NOW)
    assert content.rfc_message_id == f"{hashlib.sha256(raw).hexdigest()}@synthetic.invalid"
    assert content.facts == ("message_id_synthetic",)


@pytest.mark.covers("edge:B13")
def test_no_sender_or_several() -> None:
    tail = b"Message-ID: <1@example.com>\r\n\r\nHello\r\n"
    assert facts(b"From: a@example.com\r\n" + tail) == set()
    assert facts(b"To: a@example.com\r\n" + tail) == {"parse_degraded"}
    several = describe(TRACE, b"From: A <a@example.com>, b@example.com\r\n" + tail, NOW)
    assert several.facts == ("parse_degraded",)
    assert several.sender is not None
    assert several.sender.address == "a@example.com"


@pytest.mark.covers("edge:B5")
def test_bytes_that_are_no_text_degrade() -> None:
    head = b"From: a@example.com\r\nMessage-ID: <1@example.com>\r\nContent-Type: text/plain; charset=%s\r\n\r\n"
    assert describe(TRACE, head % b"windows-1252" + b"Gr\xfc\xdfe", NOW).text.strip() == "Grüße"
    lied = describe(TRACE, head % b"utf-8" + b"Gr\xfc\xdfe", NOW)
    assert (lied.text.strip(), lied.facts) == ("Grüße", ())
    broken = describe(TRACE, head % b"utf-8" + b"Gr\xc3\xbc\xdfe", NOW)
    assert "parse_degraded" in broken.facts
    assert "\ufffd" in broken.text


@pytest.mark.covers("edge:B2", "FR-IN-3")
def test_depth_and_number_of_parts_are_bounded() -> None:
    deep = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(200))
    head = b"From: a@example.com\r\nMessage-ID: <1@example.com>\r\n"
    assert facts(head + deep) == {"parse_degraded"}
    wide = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\nx\r\n" * 5000 + b"--b--\r\n"
    content = describe(TRACE, head + wide, NOW)
    assert "parse_degraded" in content.facts
    assert len(content.attachments) <= MAX_ATTACHMENTS


@pytest.mark.covers("edge:B2", "decisions:D5")
def test_limits() -> None:
    crowd = b", ".join(b"p%d@example.com" % n for n in range(5000))
    raw = b"From: a@example.com\r\nTo: " + crowd + b"\r\nMessage-ID: <1@example.com>\r\n\r\n" + b"word " * 200_000
    content = describe(TRACE, raw, NOW)
    assert sum(kind is RecipientKind.TO for kind, _ in content.recipients) == MAX_RECIPIENTS
    assert set(content.facts) == {"parse_degraded", "body_truncated"}
    assert len(content.text.encode()) <= 512 * 1024
    assert len(content.extracted_text.encode()) <= 256 * 1024
    assert len(content.snippet) <= 240


@pytest.mark.covers("edge:B2", "FR-IN-3")
def test_headers_only_says_so() -> None:
    raw = b"From: a@example.com\r\nSubject: Hi\r\nMessage-ID: <1@example.com>\r\n\r\nHello\r\n"
    content = describe(TRACE, raw, NOW, headers_only=True)
    assert (content.subject, content.text, content.facts) == ("Hi", "", ("parse_degraded",))
    whole = describe(TRACE, raw, NOW)
    assert (content.raw_sha256, content.body_sha256) == (whole.raw_sha256, whole.body_sha256)


@pytest.mark.covers("edge:B14")
def test_our_trace_lines_are_in_no_hash() -> None:
    raw = b"From: a@example.com\r\nMessage-ID: <1@example.com>\r\n\r\nHello\r\n"
    one, two = describe(TRACE, raw, NOW), describe(TRACE.replace(b"from x", b"from elsewhere"), raw, NOW)
    assert (one.raw_sha256, one.body_sha256) == (two.raw_sha256, two.body_sha256)
    assert one.raw_size != two.raw_size


def html(markup: str, head: str = "") -> bytes:
    fields = f"From: a@example.com\r\nMessage-ID: <1@example.com>\r\n{head}"
    return f"{fields}Content-Type: text/html; charset=utf-8\r\n\r\n{markup}".encode()


@pytest.mark.covers("edge:B4", "edge:B7", "edge:B11", "FR-IN-7", "FR-IN-9")
def test_html_is_safe_and_what_is_hidden_is_told() -> None:
    raw = html('<p onclick=x>Seen <img src="https://example.com/x">.</p><p hidden>Not seen.</p>')
    content = describe(TRACE, raw, NOW)
    assert content.html is None  # made of the octets when somebody asks for it
    assert safe_html(raw) == "<p>Seen <img>.</p>"
    assert (content.text, content.extracted_text, content.snippet) == ("Seen .", "Seen .", "Seen .")
    assert content.facts == ("hidden_text",)
    assert describe(TRACE, html("<p>Seen.</p>"), NOW).facts == ()


@pytest.mark.covers("edge:B11")
@pytest.mark.parametrize(
    "head",
    [
        "Subject: =?utf-8?q?In=E2=80=8Bvo=E2=80=8Bi=E2=80=8Bce?=\r\n",
        "Subject: =?utf-8?q?Invoice=F3=A0=81=81?=\r\n",
    ],
)
def test_hidden_characters_of_the_subject(head: str) -> None:
    content = describe(TRACE, html("<p>Seen.</p>", head), NOW)
    assert (content.subject, content.thread_subject, content.facts) == ("Invoice", "Invoice", ("hidden_text",))


@pytest.mark.covers("edge:B11")
def test_hidden_characters_of_names() -> None:
    head = b"Message-ID: <1@example.com>\r\nFrom: =?utf-8?q?=E2=80=AEA=E2=80=8Bnn?= <a@example.com>\r\n"
    content = describe(TRACE, head + b"To: =?utf-8?q?B=E2=81=A0o?= <b@example.com>\r\n\r\nHello\r\n", NOW)
    assert content.sender is not None
    assert (content.sender.name, content.recipients[0][1].name, content.facts) == ("Ann", "Bo", ("hidden_text",))


@pytest.mark.covers("edge:D2")
def test_a_link_that_says_something_else_is_told() -> None:
    markup = '<a href="https://evil.example.net/">https://bank.example.com/</a>'
    assert describe(TRACE, html(markup), NOW).facts == ("deceptive_link",)


@pytest.mark.covers("edge:B9")
def test_encrypted_mail_has_no_texts() -> None:
    raw = (
        b"From: a@example.com\r\nMessage-ID: <1@example.com>\r\n"
        b'Content-Type: multipart/encrypted; protocol="application/pgp-encrypted"; boundary=b\r\n\r\n'
        b"--b\r\nContent-Type: application/pgp-encrypted\r\n\r\nVersion: 1\r\n"
        b"--b\r\nContent-Type: application/octet-stream\r\n\r\nhello\r\n--b--\r\n"
    )
    content = describe(TRACE, raw, NOW)
    assert (content.text, content.html, content.extracted_text, content.facts) == ("", None, "", ("encrypted",))
    assert len(content.attachments) == 2


@pytest.mark.covers("edge:D2", "edge:D3")
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ("From: Ann <ann@example.com>", ()),
        ("From: ann@example.com <ann@example.com>\r\nReply-To: Ann <ann@mail.example.com>", ()),
        ('From: "boss@example.com" <ann@example.com>', ("display_name_spoof",)),
        ("From: =?utf-8?Q?boss=40example.com?= <ann@example.com>", ("display_name_spoof",)),
        ("From: Ann <ann@example.com>\r\nReply-To: ann@example.org", ("reply_to_mismatch",)),
        ("Reply-To: ann@example.org", ("parse_degraded",)),
    ],
)
def test_whom_a_message_would_pass_for(fields: str, wanted: tuple[str, ...]) -> None:
    raw = f"{fields}\r\nMessage-ID: <1@example.com>\r\n\r\nHello\r\n".encode()
    assert describe(TRACE, raw, NOW).facts == wanted


@pytest.mark.covers("edge:C1")
@pytest.mark.parametrize(("number", "length", "degraded"), [(200, 20, False), (201, 20, True), (40, 900, True)])
def test_references_that_were_cut_are_told(number: int, length: int, degraded: bool) -> None:
    ids = "\r\n ".join(f"<{n}{'x' * length}@example.com>" for n in range(number))
    raw = f"From: a@example.com\r\nMessage-ID: <1@example.com>\r\nReferences: {ids}\r\n\r\nHello\r\n".encode()
    content = describe(TRACE, raw, NOW)
    assert ("parse_degraded" in content.facts) is degraded
    assert content.reference_ids[-1].startswith(f"{number - 1}x")


@pytest.mark.covers("FR-IN-7")
def test_what_is_new_is_told_from_what_is_quoted() -> None:
    head = b"From: a@example.com\r\nMessage-ID: <1@example.com>\r\n\r\n"
    content = describe(TRACE, head + b"Yes.\r\n\r\nOn Monday Bob wrote:\r\n> Well?\r\n", NOW)
    assert (content.extracted_text, content.snippet) == ("Yes.", "Yes.")
    assert "> Well?" in content.text


@pytest.mark.covers("FR-SRCH-4")
def test_references_and_language_are_of_what_is_new() -> None:
    new = "Bitte überweisen Sie den Betrag bis zum Ende des Monats auf unser Konto, vielen Dank."
    text = f"Rechnung 88213. {new}\r\n\r\nOn 1 Feb 2026, Bob wrote:\r\n> Invoice 99999\r\n"
    raw = f"From: a@example.com\r\nSubject: Order 4711-A\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{text}"
    content = describe(TRACE, raw.encode(), NOW)
    found = glean(content.subject, content.extracted_text)
    assert [tuple(astuple(ref)) for ref in found.refs] == [
        ("order", "4711-A", "subject"),
        ("invoice", "88213", "body"),
    ]
    assert found.language == "de"


def winmail(stream: bytes, kind: str = "application/ms-tnef; name=winmail.dat", body: str = "Hello") -> bytes:
    """Text, and a file that is TNEF."""
    return (
        (
            f"From: a@example.com\r\nMessage-ID: <1@example.com>\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
            f"--b\r\n\r\n{body}\r\n--b\r\nContent-Type: {kind}\r\nContent-Transfer-Encoding: base64\r\n\r\n"
        ).encode()
        + b64encode(stream)
        + b"\r\n--b--\r\n"
    )


HARMLESS, PROGRAM = Packed("a.txt", b"Hello"), Packed("run.exe", b"MZ" + bytes(200))
PICTURE = Packed("P.PNG", b"\x89PNG\r\n\x1a\n", [Prop(0x370E, STRING8, "image/png"), Prop(0x3712, UNICODE, "<p@x>")])


@pytest.mark.covers("edge:B6", "edge:B10")
def test_what_is_packed_in_winmail_dat_is_listed() -> None:
    letter = embedded(tnef([PROGRAM], [Prop(0x0037, UNICODE, "Notes")]))
    found = describe(TRACE, winmail(tnef([HARMLESS, PROGRAM, PICTURE, letter])), NOW).attachments
    assert [(one.part_path, one.filename, one.content_type, one.disposition, one.content_id) for one in found] == [
        ("2/1", "a.txt", "application/octet-stream", "attachment", None),
        ("2/2", "run.exe", "application/octet-stream", "attachment", None),
        ("2/3", "P.PNG", "image/png", "inline", "p@x"),
        ("2/4", "Notes.eml", "message/rfc822", "attachment", None),
    ]
    assert [one.size for one in found[:3]] == [5, 202, 8]
    assert [one.risk for one in found] == [None, "executable", None, "executable"]
    assert [one.sniffed_type for one in found[:3]] == [
        "text/plain",
        "application/vnd.microsoft.portable-executable",
        "image/png",
    ]


@pytest.mark.covers("edge:B6", "edge:B10")
def test_what_cannot_be_unpacked_is_kept_as_it_is() -> None:
    def listed(raw: bytes) -> list[tuple[str, str | None, str | None]]:
        return [(one.part_path, one.filename, one.risk) for one in describe(TRACE, raw, NOW).attachments]

    kept = [("2", "winmail.dat", None)]
    assert listed(winmail(tnef([HARMLESS])[:-3])) == kept
    assert listed(winmail(b"not TNEF at all")) == kept
    assert listed(winmail(tnef([]))) == kept
    link = Packed("link.txt", b"", with_data=False)
    assert listed(winmail(tnef([link, PROGRAM]))) == [
        ("2", "winmail.dat", "executable"),
        ("2/1", "run.exe", "executable"),
    ]
    octets = "application/octet-stream; name=a.bin"
    assert listed(winmail(tnef([PROGRAM]), octets)) == [("2", "a.bin", "executable")]


@pytest.mark.covers("edge:B6")
def test_the_body_in_winmail_dat_is_the_text_where_there_is_no_other() -> None:
    stream = tnef([], [Prop(0x1000, UNICODE, "Packed text")])
    alone, beside = (describe(TRACE, winmail(stream, body=body), NOW) for body in ("", "Hello"))
    assert (alone.text, beside.text) == ("Packed text", "Hello")
    empty = b"Content-Type: text/html\r\n\r\n<p> <br></p>"
    raw = winmail(stream).replace(b"\r\nHello", empty)
    assert describe(TRACE, raw, NOW).text == "Packed text"
    assert alone.attachments == beside.attachments == ()


@pytest.mark.covers("edge:B6")
def test_packed_files_are_no_more_than_attachments_may_be() -> None:
    one = b"--b\r\nContent-Type: image/png\r\nContent-Disposition: attachment\r\n\r\nx\r\n"
    raw = winmail(tnef([HARMLESS] * MAX_ATTACHMENTS)).replace(b"--b\r\n\r\n", one + b"--b\r\n\r\n", 1)
    found = describe(TRACE, raw, NOW)
    assert len(found.attachments) == MAX_ATTACHMENTS
    assert found.attachments[-1].part_path == f"3/{MAX_ATTACHMENTS - 1}"


@given(st.binary(max_size=60), st.integers(0, 700))
def test_any_winmail_dat_is_listed_and_taken_out(junk: bytes, at: int) -> None:
    """What is listed is there, in the size that is said."""
    stream = tnef([HARMLESS, PICTURE, embedded(tnef([PROGRAM], [Prop(0x1000, UNICODE, "body")]))])
    encoded = b64encode(stream[:at] + junk + stream[at + len(junk) :])
    raw = winmail(b"").replace(b"\r\n\r\n\r\n--b--", b"\r\n\r\n" + encoded + b"\r\n--b--")
    for one in describe(TRACE, raw, NOW).attachments:
        if "/" in one.part_path:
            data = taken_out(encoded, "base64", one.part_path)
            assert data is not None
            assert len(data) == one.size
    assert taken_out(encoded, "base64", "2/0") is None
    assert taken_out(encoded, "base64", "2/501") is None


EXE = b"--b\r\nContent-Type: application/octet-stream; name=a.exe\r\n\r\nMZ\r\n--b--\r\n"
INNER = b"Subject: in\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n#! text\r\n" + EXE


@pytest.mark.covers("edge:B10")
@pytest.mark.parametrize(
    ("head", "content", "risk"),
    [
        (b"message/rfc822", INNER, "executable"),
        (b"message/rfc822\r\nContent-Transfer-Encoding: base64", base64.encodebytes(INNER), "executable"),
        (b"message/rfc822", b"Content-Type: message/rfc822\r\n\r\n" + INNER, "executable"),
        (b"message/rfc822", b"Subject: in\r\n\r\n#! text\r\n", None),
    ],
)
def test_an_attached_message_is_as_risky_as_what_it_holds(head: bytes, content: bytes, risk: str | None) -> None:
    outer = b"From: a@example.com\r\nContent-Type: multipart/mixed; boundary=o\r\n\r\n--o\r\n\r\nhi\r\n--o\r\n"
    raw = outer + b"Content-Type: " + head + b"\r\n\r\n" + content + b"\r\n--o--\r\n"
    (found,) = describe(TRACE, raw, NOW).attachments
    assert (found.content_type, found.risk) == ("message/rfc822", risk)
    quick = describe_quickly(TRACE, raw, NOW)
    assert quick is None or quick.attachments == (found,)


@pytest.mark.covers("edge:B10")
def test_either_of_two_names_makes_a_file_risky() -> None:
    raw = (
        b"From: a@example.com\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
        b"--b\r\n\r\nHello\r\n--b\r\nContent-Type: application/pdf; name=a.exe\r\n"
        b"Content-Disposition: attachment; filename=a.pdf\r\n\r\n%PDF-1.4\r\n--b--\r\n"
    )
    (found,) = describe(b"", raw, NOW).attachments
    assert (found.filename, found.risk) == ("a.pdf", "executable")


@pytest.mark.covers("edge:B10")
def test_a_program_that_is_called_a_text_is_listed() -> None:
    head = b"From: a@example.com\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; name=%b\r\n"
    program = base64.encodebytes(b"MZ\x90\x00" + bytes(60)).replace(b"\n", b"\r\n")
    (found,) = describe(b"", head % b"a.exe" + b"Content-Transfer-Encoding: base64\r\n\r\n" + program, NOW).attachments
    assert (found.part_path, found.filename, found.risk) == ("1", "a.exe", "executable")
    assert describe(b"", head % b"notes.txt" + b"\r\nHello\r\n", NOW).attachments == ()
