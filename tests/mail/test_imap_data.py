"""ENVELOPE, BODY, BODYSTRUCTURE and sections as IMAP serves them; imapclient reads them back."""

import email
import email.policy
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imapclient.response_parser import parse_fetch_response

from postroom.mail.imap_data import (
    Section,
    SectionKind,
    body,
    bodystructure,
    envelope,
    filter_fields,
    section_slices,
)
from postroom.mail.mime import parse

RAW = (
    b"Date: Mon, 2 Feb 2026 10:00:00 +0100\r\n"
    b"From: =?utf-8?q?J=C3=B6rg?= <j@example.com>\r\n"
    b'To: Team: a@example.com;, "Doe, \\"J\\"" <d@example.com>\r\n'
    b'Subject: a "quoted" \\ subject\r\n folded\r\n'
    b"Message-ID: <M@Example.com>\r\n"
    b'Content-Type: multipart/mixed; boundary="b"\r\n'
    b"\r\n"
    b"--b\r\n\r\none\r\n\r\n"
    b"--b\r\n"
    b"Content-Type: message/rfc822\r\n"
    b"\r\n"
    b"Subject: inner\r\nFrom: x@example.com\r\nX-Long: a\r\n b\r\n\r\ninner text\r\n"
    b"\r\n"
    b"--b\r\n"
    b'Content-Type: image/png; name="a.png"\r\n'
    b"Content-Disposition: attachment; filename*=utf-8''%C3%A4.png\r\n"
    b"Content-Transfer-Encoding: base64\r\nContent-ID: <c@x>\r\nContent-MD5: abc\r\n"
    b"Content-Language: en, de\r\nContent-Location: http://example.com/\r\n"
    b"\r\nQUJD\r\n--b--\r\n"
)


def test_envelope() -> None:
    jorg = b'(("=?utf-8?q?J=C3=B6rg?=" NIL "j" "example.com"))'
    assert envelope(parse(RAW)) == (
        b'("Mon, 2 Feb 2026 10:00:00 +0100" "a \\"quoted\\" \\\\ subject folded" '
        + b" ".join([jorg] * 3)
        + b' ((NIL NIL "Team" NIL)(NIL NIL "a" "example.com")(NIL NIL NIL NIL)("Doe, \\"J\\"" NIL "d" "example.com"))'
        b' NIL NIL NIL "<M@Example.com>")'
    )


def test_body_and_bodystructure() -> None:
    root = parse(RAW).root
    inner = b'(NIL "inner" ((NIL NIL "x" "example.com")) ((NIL NIL "x" "example.com")) ((NIL NIL "x" "example.com")) '
    assert body(root) == (
        b'(("text" "plain" ("charset" "us-ascii") NIL NIL "7bit" 5 1)'
        b'("message" "rfc822" NIL NIL NIL "7bit" 66 ' + inner + b"NIL NIL NIL NIL NIL) "
        b'("text" "plain" ("charset" "us-ascii") NIL NIL "7bit" 12 1) 6)'
        b'("image" "png" ("name" "a.png") "<c@x>" NIL "base64" 4) "mixed")'
    )
    assert bodystructure(root) == (
        b'(("text" "plain" ("charset" "us-ascii") NIL NIL "7bit" 5 1 NIL NIL NIL NIL)'
        b'("message" "rfc822" NIL NIL NIL "7bit" 66 ' + inner + b"NIL NIL NIL NIL NIL) "
        b'("text" "plain" ("charset" "us-ascii") NIL NIL "7bit" 12 1 NIL NIL NIL NIL) 6 NIL NIL NIL NIL)'
        b'("image" "png" ("name" "a.png") "<c@x>" NIL "base64" 4 "abc" '
        b'("attachment" ("filename*" "utf-8\'\'%C3%A4.png")) ("en" "de") "http://example.com/") '
        b'"mixed" ("boundary" "b") NIL NIL NIL)'
    )


def test_raw_8_bit_is_made_safe() -> None:
    message = parse(
        "Subject: grüß\nFrom: Jörg <jörg@exämple.com>\nMessage-ID: <ä@x>\nContent-Description: ü\n\n".encode()
    )
    made = envelope(message)
    assert b'"=?UTF-8?B?Z3LDvMOf?="' in made
    assert b'("=?UTF-8?B?SsO2cmc=?=" NIL {5}\r\nj\xc3\xb6rg {12}\r\nex\xc3\xa4mple.com)' in made
    assert b"{6}\r\n<\xc3\xa4@x>" in made
    assert b'"=?UTF-8?B?w7w=?="' in body(message.root)


def test_parts_that_were_not_opened_stay_well_formed() -> None:
    raw = b"Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\nQUJD"
    assert b'("text" "plain" ("charset" "us-ascii") NIL NIL "7bit" 0 0) 0' in body(parse(raw).root)
    raw = b"Content-Type: multipart/mixed; boundary=a\n\n--a\n\nx\n--a--\n"
    assert body(parse(raw, max_depth=1).root).endswith(b'"7bit" 0 0) "mixed")')


H, T, M = SectionKind.HEADER, SectionKind.TEXT, SectionKind.MIME
F, N = SectionKind.HEADER_FIELDS, SectionKind.HEADER_FIELDS_NOT


@pytest.mark.parametrize(
    ("section", "content"),
    [
        (Section(), RAW),
        (Section((), H), RAW[: RAW.index(b"\r\n\r\n") + 4]),
        (Section((), T), RAW[RAW.index(b"\r\n\r\n") + 4 :]),
        (Section((), M), None),
        (Section((), F, ("message-id",)), b"Message-ID: <M@Example.com>\r\n\r\n"),
        (Section((), F, ("x-none",)), b"\r\n"),
        (Section((1,)), b"one\r\n"),
        (Section((1,), M), b"\r\n"),
        (Section((1,), H), None),
        (Section((1,), T), None),
        (Section((1, 1)), None),
        (Section((2,)), b"Subject: inner\r\nFrom: x@example.com\r\nX-Long: a\r\n b\r\n\r\ninner text\r\n"),
        (Section((2,), M), b"Content-Type: message/rfc822\r\n\r\n"),
        (Section((2,), H), b"Subject: inner\r\nFrom: x@example.com\r\nX-Long: a\r\n b\r\n\r\n"),
        (Section((2,), T), b"inner text\r\n"),
        (Section((2,), F, ("x-long",)), b"X-Long: a\r\n b\r\n\r\n"),
        (Section((2,), N, ("x-long",)), b"Subject: inner\r\nFrom: x@example.com\r\n\r\n"),
        (Section((2, 1)), b"inner text\r\n"),
        (Section((2, 2)), None),
        (Section((3,)), b"QUJD"),
        (Section((4,)), None),
    ],
)  # fmt: skip
def test_sections(section: Section, content: bytes | None) -> None:
    found = section_slices(len(RAW), parse(RAW).root, section)
    if content is None:
        assert found is None
    else:
        assert found is not None
        assert found.apply(RAW[found.start : found.end]) == content
        assert found.is_plain is (section.kind not in (F, N))


def test_single_part_sections() -> None:
    raw = b"Subject: x\r\n\r\nbody\r\n"
    root = parse(raw).root
    for section in (Section((1,)), Section((), T)):
        found = section_slices(len(raw), root, section)
        assert found is not None
        assert raw[found.start : found.end] == b"body\r\n"
    assert section_slices(len(raw), root, Section((1, 1))) is None


@given(st.binary(max_size=300), st.lists(st.sampled_from(["a", "Subject", "x-y"])))
def test_filtering_splits_the_header_in_two(header: bytes, names: list[str]) -> None:
    taken = filter_fields(header, names, negate=False)
    left = filter_fields(header, names, negate=True)
    assert taken.endswith(b"\n")
    assert left.endswith(b"\n")
    if not names:
        assert not taken.strip(b"\r\n")


def read_back(item: str, value: bytes) -> object:
    """What imapclient makes of it; literals come as imaplib hands them over."""
    lines: list[object] = []
    rest = b"1 (" + item.encode() + b" " + value + b")"
    while found := re.search(rb"\{(\d+)\}\r\n", rest):
        end = found.end() + int(found[1])
        lines.append((rest[: found.end() - 2], rest[found.end() : end]))
        rest = rest[end:]
    lines.append(rest)
    return parse_fetch_response(lines)[1][item.encode()]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=5, max_size=5), st.sampled_from([b"\n", b"\r\n"]))
def test_any_values_give_well_formed_responses(values: list[bytes], line_end: bytes) -> None:
    names = [
        b"Subject: ",
        b"From: ",
        b"Message-ID: ",
        b"Content-Description: ",
        b"Content-Type: multipart/mixed; boundary=b; x=",
    ]
    raw = line_end.join(name + re.sub(rb"[\r\n]", b"", value) for name, value in zip(names, values, strict=True))
    raw += line_end * 2 + b"--b" + line_end + raw + line_end * 2 + b"--b--"
    message = parse(raw)
    made = read_back("ENVELOPE", envelope(message))
    assert hasattr(made, "subject")
    assert isinstance(read_back("BODYSTRUCTURE", bodystructure(message.root)), tuple)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.from_regex(r"\A[A-Za-z]{1,8} <[a-z]{1,8}@example\.com>\Z"), min_size=1, max_size=4))
def test_envelope_addresses_agree_with_the_standard_library(boxes: list[str]) -> None:
    raw = f"From: {boxes[0]}\r\nTo: {', '.join(boxes)}\r\n\r\n".encode()
    made = read_back("ENVELOPE", envelope(parse(raw)))
    theirs = email.message_from_bytes(raw, policy=email.policy.default)["to"].addresses
    # Read back as an Envelope.
    ours = [(a.name.decode(), a.mailbox.decode(), a.host.decode()) for a in made.to]  # type: ignore[attr-defined]
    assert ours == [(a.display_name, a.username, a.domain) for a in theirs]
