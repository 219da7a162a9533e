"""Mail that people submit: what is mended, what stays octet for octet, what is refused."""

from datetime import UTC, datetime
from email.utils import formataddr
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail import mime
from postroom.mail.submission import (
    SubmissionError,
    SubmissionProblem,
    Submitted,
    canonical_line_ends,
    prepare,
)

NOW = datetime(2026, 3, 5, 9, 7, 3, tzinfo=UTC)
DATE = b"Date: Thu, 05 Mar 2026 09:07:03 +0000\r\n"
MESSAGE_ID = b"Message-ID: <new@example.com>\r\n"
FULL = b"Date: x\r\nMessage-ID: <Own@Example.COM>\r\nFrom: Ann <ann@example.com>\r\n"


def mended(raw: bytes) -> Submitted:
    return prepare(raw, date=NOW, message_id="new@example.com")


def problem(raw: bytes) -> SubmissionProblem:
    with pytest.raises(SubmissionError) as caught:
        mended(raw)
    return caught.value.problem


@pytest.mark.covers("mail-server:A3", "RFC 6409 §8")
def test_missing_fields_are_added_on_top() -> None:
    raw = b"From: ann@example.com\r\nSubject:  odd\r\n   folding \r\n\r\nbody \xff\r\n"
    found = mended(raw)
    assert found.wire == found.sent_copy == DATE + MESSAGE_ID + raw
    assert found.added == ("Date", "Message-ID")
    assert found.message_id == "new@example.com"
    assert mime.parse(found.wire).message_id == "new@example.com"


def test_complete_mail_stays_octet_for_octet() -> None:
    raw = FULL + b"X:y\r\nReceived : a\r\n\r\n.\r\nBcc: in the body\r\n"
    found = mended(raw)
    assert found.wire == found.sent_copy == raw
    assert (found.added, found.message_id) == ((), "Own@example.com")


@pytest.mark.parametrize("empty", [b"Date:\r\n", b"date : \r\n", b"Date: \r\n \t\r\n"])
def test_empty_fields_count_as_missing(empty: bytes) -> None:
    found = mended(b"From: a@example.com\r\n" + empty + b"Message-Id: \r\n\r\nx\r\n")
    assert found.wire == DATE + MESSAGE_ID + b"From: a@example.com\r\n\r\nx\r\n"


@pytest.mark.covers("mail-server:A3", "edge:C7")
def test_blind_recipients_stay_only_in_the_copy() -> None:
    raw = (
        b"Return-Path: <x@example.com>\r\nbCC: secret@example.com,\r\n more@example.com\r\n" + FULL
        + b"Resent-Bcc : other@example.com\r\nBcc: \r\n\r\nBcc: body\r\n"
    )  # fmt: skip
    found = mended(raw)
    assert found.wire == FULL + b"\r\nBcc: body\r\n"
    assert b"secret" in found.sent_copy
    assert b"other" in found.sent_copy
    assert b"Return-Path" not in found.sent_copy
    assert not mime.parse(found.wire).bcc


@pytest.mark.covers("edge:N13")
def test_the_hop_of_a_client_goes() -> None:
    hop = b"X-Postroom-Hop: 1\r\n"
    found = mended(hop + FULL + b"x-postroom-hop :\r\n 0\r\n" + hop + b"\r\n" + hop)
    assert found.wire == found.sent_copy == FULL + b"\r\n" + hop


@pytest.mark.covers("mail-server:A3")
def test_everybody_whom_the_message_names_as_author() -> None:
    raw = (
        b'From: "x@evil.example" <ann@example.com>, Group: bob@example.com, C <c@example.com>;\r\n'
        b"Sender: dan@example.com\r\nResent-From: eve@example.com\r\nResent-Sender: f@example.com\r\n\r\n"
    )
    found = mended(raw)
    assert [item.address for item in found.authors] == [
        "ann@example.com", "bob@example.com", "c@example.com", "eve@example.com"]  # fmt: skip
    assert [item.address for item in found.senders] == ["dan@example.com", "f@example.com"]


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b"", SubmissionProblem.NO_AUTHOR),
        (b"\r\nFrom: a@example.com\r\n", SubmissionProblem.NO_AUTHOR),
        (b"no header at all\r\n", SubmissionProblem.NO_AUTHOR),
        (b" folded: x\r\nFrom: a@example.com\r\n\r\n", SubmissionProblem.MALFORMED_HEADER),
        (b"Subject: x\r\n\r\n", SubmissionProblem.NO_AUTHOR),
        (b"From: nobody\r\n\r\n", SubmissionProblem.NO_AUTHOR),
        (b"From:\r\nResent-From: a@example.com\r\n\r\n", SubmissionProblem.NO_AUTHOR),
        (b"From: a@example.com\r\nfrom : b@example.com\r\n\r\n", SubmissionProblem.SEVERAL_FROM),
        (FULL + b"Sender: a@example.com\r\nSender: b@example.com\r\n\r\n", SubmissionProblem.SEVERAL_FROM),
        (b"From: " + b"a@example.com, " * 101 + b"\r\n\r\n", SubmissionProblem.TOO_MANY_AUTHORS),
        (FULL + b"odd line\r\nBcc: x@example.com\r\n\r\n", SubmissionProblem.MALFORMED_HEADER),
        (FULL + b"odd line\r\nodd line\r\n\r\n", SubmissionProblem.MALFORMED_HEADER),
        (FULL + b"--x: y\r\nBcc: x@example.com\r\n\r\n", SubmissionProblem.MALFORMED_HEADER),
        (FULL + b"\r\nbare\n", SubmissionProblem.BARE_LINE_BREAK),
        (FULL + b"\r\nbare\rx", SubmissionProblem.BARE_LINE_BREAK),
        (FULL + b"\r\nbare\r", SubmissionProblem.BARE_LINE_BREAK),
        (FULL + b"X: " + b"x" * 262_144 + b"\r\nBcc: s@example.com\r\n\r\n", SubmissionProblem.HEADER_TOO_LARGE),
        (FULL + b"X: x\r\n" * 10_000 + b"Bcc: s@example.com\r\n\r\n", SubmissionProblem.HEADER_TOO_LARGE),
    ],
)
@pytest.mark.covers("mail-server:A2", "edge:B13")
def test_refusals(raw: bytes, wanted: SubmissionProblem) -> None:
    assert problem(raw) is wanted


@pytest.mark.covers("mail-server:A3", "edge:B13")
@pytest.mark.parametrize("field", [b"From", b"Sender", b"Resent-From", b"Resent-Sender"])
@pytest.mark.parametrize(
    "value",
    [
        b"<a@example.com> <b@example.com>", b"<a@example.com> b@example.com", b"a@example.com b@example.com",
        b"a@example.com <b@example.com>", b"Ceo ceo@example.com", b"a@example.com, Bob", b"a@example.com, <bob>",
        b"Smith, Ann <a@example.com>", b"<@b.example a@example.com>", b"<@b.example,:a@example.com>",
        b"<a@example.com", b"a@example.com>", b"<<a@example.com>>", b"Group: a@example.com", b"a@example.com;",
        b'"Ann <a@example.com>', b"(Ann <a@example.com>", b"Ann) <a@example.com>", b"a . b@example.com",
        b"a@b@example.com", b"<a@example.com>x", b"A\x00B <a@example.com>", b"=?utf-8?q?ceo@x?= <a@example.com>",
        b"a@(x)example.com", b"\\a@example.com", b"<a@example.com>\r\n <b@example.com>",
    ],
)  # fmt: skip
def test_authors_that_readers_disagree_on(field: bytes, value: bytes) -> None:
    other = b"" if field == b"From" else b"From: ann@example.com\r\n"
    raw = other + field + b": " + value + b"\r\n\r\nx\r\n"
    assert problem(raw) in (
        (SubmissionProblem.AMBIGUOUS_AUTHOR, SubmissionProblem.NO_AUTHOR)
        if field == b"From"
        else (SubmissionProblem.AMBIGUOUS_AUTHOR,)
    )


@pytest.mark.covers("mail-server:A3")
@pytest.mark.parametrize(
    "value",
    [
        b"a@example.com", b"<a@example.com>", b"Ann <a@example.com>", b"Ann<a@example.com>", b"< a@example.com >",
        b'"Smith, Ann (a@b) <x@y>" <a@example.com>', b'"q\\"x" <a@example.com>', b"Dr. A. O'Neil <a@example.com>",
        b"=?utf-8?q?J=C3=B6rg?= =?utf-8?B?w7Y=?= <a@example.com>", b"J\xc3\xb6rg <a@example.com>",
        b"a@example.com (Ann (of \\) x@y) B)", b"Ann (Work) <a@example.com>", b"[Team] Ann <a@example.com>",
        b"Ann\r\n <a@example.com>", b"a@example.com,", b"<@b.example,@c.example:a@example.com>",
        b"Ann <a@example.com>,\r\n\tBob <a@example.com>", b"Us: a@example.com, A <a@example.com>;",
        b"\ta@example.com\t",
    ],
)  # fmt: skip
def test_authors_as_mail_programs_write_them(value: bytes) -> None:
    found = mended(b"From: " + value + b"\r\nSender: " + value + b"\r\n\r\n")
    assert {item.address for item in (*found.authors, *found.senders)} == {"a@example.com"}


PHRASES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp")), max_size=30)


@pytest.mark.covers("mail-server:A3")
@given(st.lists(st.tuples(PHRASES, st.from_regex(r"[a-z0-9]+(\.[a-z]+)?", fullmatch=True)), min_size=1, max_size=5))
def test_authors_as_the_standard_library_writes_them(people: list[tuple[str, str]]) -> None:
    listed = ", ".join(formataddr((name, f"{local}@example.com")) for name, local in people)
    found = mended(f"From: {listed}\r\n\r\n".encode())
    assert [item.address for item in found.authors] == [f"{local}@example.com" for _, local in people]


@pytest.mark.parametrize(
    "piece", [b"(", b"()", b'"', b"<", b"a ", b"a.", b"a@x,", b"a:", b"\\", b"[", b", ", b"@a,", b"<@a,"]
)
def test_long_fields_take_linear_time(piece: bytes) -> None:
    raw = b"From: a@example.com\r\nSender: " + piece * (200_000 // len(piece)) + b"\r\n\r\n"
    start = process_time()
    with pytest.raises(SubmissionError):
        mended(raw)
    assert process_time() - start < 2


def test_header_without_body() -> None:
    assert mended(FULL).wire == FULL


def test_mbox_line_goes() -> None:
    assert mended(b"From ann Thu Mar  5\r\n" + FULL + b"\r\nx\r\n").wire == FULL + b"\r\nx\r\n"


@given(st.binary(max_size=60) | st.text(st.sampled_from("a\r\n")).map(str.encode))
def test_line_ends(raw: bytes) -> None:
    made = canonical_line_ends(raw)
    assert made.replace(b"\r\n", b"\n") == raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert b"\r" not in made.replace(b"\r\n", b"")
    assert canonical_line_ends(made) is made


LINES = st.sampled_from(
    [b"From: ann@example.com\r\n", b"Bcc: secret@example.com\r\n", b" secret\r\n", b"\r\n", b"text\r\n", b"Date: x\r\n",
     b"Message-ID: <x@example.com>\r\n", b"RESENT-BCC:secret\r\n", b"--b\r\n", b"Return-Path: <x>\r\n", b"From x\r\n"]
)  # fmt: skip


@given(st.lists(LINES | st.binary(max_size=8), max_size=12))
def test_any_message(lines: list[bytes]) -> None:
    try:
        found = mended(b"".join(lines))
    except SubmissionError:
        return
    message = mime.parse(found.wire)
    assert "bcc" not in message.headers
    assert "resent-bcc" not in message.headers
    assert "return-path" not in message.headers
    assert message.headers.get("date")
    assert message.headers.get("message-id")
    assert found.authors
    assert mended(found.wire).wire == found.wire
