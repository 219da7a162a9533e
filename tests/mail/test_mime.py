"""The scanner: offsets, structure, caps, agreement with the standard library, any bytes at all."""

import email
import email.policy
import tracemalloc
from email.message import EmailMessage

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail.body import body_parts
from postroom.mail.content import read
from postroom.mail.imap_data import body, bodystructure, envelope
from postroom.mail.invisible import visible
from postroom.mail.mime import Message, Part, find_part, parse, walk
from postroom.mail.transfer import decoded, decoded_size
from postroom.mail.tree import moved_tree, pack_tree, packed_version, unpack_tree


def crlf(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode()


MIXED = """\
From: a@example.com
Content-Type: multipart/mixed; boundary="out"

preamble
--out

one
--out
Content-Type: message/rfc822

Subject: inner
Content-Type: multipart/alternative; boundary=in

--in
Content-Type: text/plain

plain
--in
Content-Type: text/html

<p>html
--in--
--out
Content-Type: message/rfc822

Subject: plain inner

inner body
--out
Content-Type: multipart/digest; boundary=dig

--dig

Subject: digested

text
--dig--
--out--
epilogue
"""


def check_invariants(raw: bytes, root: Part, max_depth: int = 32, max_parts: int = 500) -> None:
    """Offsets nest, siblings do not overlap, caps hold, and the tree survives storage."""
    assert (root.header_start, root.body_end) == (0, len(raw))
    count = 0
    pending = [(root, 1)]
    while pending:
        part, depth = pending.pop()
        count += 1
        assert depth <= max_depth
        assert 0 <= part.header_start <= part.body_start <= part.body_end <= len(raw)
        at = part.body_start
        for child in part.children:
            assert at <= child.header_start
            assert child.body_end <= part.body_end
            at = child.body_end
            pending.append((child, depth + 1))
    assert count <= max_parts
    assert unpack_tree(pack_tree(root)) == root


@pytest.mark.covers("FR-THR-2")
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_parts_and_their_numbers(line_end: str) -> None:
    raw = MIXED.replace("\n", line_end).encode()
    message = parse(raw)
    assert not message.degraded
    check_invariants(raw, message.root)
    found = {path: (part.content_type, raw[part.body_start : part.body_end]) for path, part in walk(message.root)}
    assert found[(1,)] == ("text/plain", b"one")
    assert found[(2, 1)] == ("text/plain", b"plain")
    assert found[(2, 2)] == ("text/html", b"<p>html")
    assert found[(3,)][0] == "message/rfc822"
    assert found[(3, 1)] == ("text/plain", b"inner body")
    assert found[(4, 1)][0] == "message/rfc822"
    assert found[(4, 1, 1)] == ("text/plain", b"text")
    assert list(found) == [(1,), (2,), (2, 1), (2, 2), (3,), (3, 1), (4,), (4, 1), (4, 1, 1)]
    for path, part in walk(message.root):
        assert message.part(path) is part
    for missing in [(0,), (5,), (1, 1), (2, 3), (3, 2), (3, 1, 1), (-1,)]:
        assert message.part(missing) is None
    assert message.part(()) is message.root


def test_single_part_is_part_one() -> None:
    raw = crlf("Subject: x\n\nhello\n")
    message = parse(raw)
    part = message.part((1,))
    assert part is message.root
    assert raw[part.body_start : part.body_end] == b"hello\r\n"
    assert part.lines == 1
    assert message.part((2,)) is None
    assert message.part((1, 1)) is None


@pytest.mark.covers("FR-THR-2")
def test_message_as_whole_body_of_a_message() -> None:
    raw = crlf("Content-Type: message/rfc822\n\nSubject: in\n\ntext")
    message = parse(raw)
    assert message.part((1,)) is message.root
    inner = message.part((1, 1))
    assert inner is not None
    assert raw[inner.body_start :] == b"text"


@pytest.mark.covers("edge:B2")
@pytest.mark.parametrize(
    ("text", "content_type", "content"),
    [
        ("", "text/plain", b""),
        ("\n", "text/plain", b""),
        ("no header here\n\nmore", "text/plain", b"no header here\r\n\r\nmore"),
        ("Subject: only header", "text/plain", b""),
        ("Content-Type: multipart/mixed\n\nno boundary", "text/plain", b"no boundary"),
        ("Content-Type: multipart/mixed; boundary=x\n\nnever comes", "text/plain", b"never comes"),
        ("Content-Type: multipart/mixed; boundary=x\n\n--x--\n", "text/plain", b"--x--\r\n"),
        ("Content-Type: nonsense\n\nbody", "text/plain", b"body"),
        ("Content-Type:\n\nbody", "text/plain", b"body"),
    ],
)
def test_broken_structure_shows_what_there_is(text: str, content_type: str, content: bytes) -> None:
    raw = crlf(text)
    message = parse(raw)
    check_invariants(raw, message.root)
    assert message.root.content_type == content_type
    assert raw[message.root.body_start : message.root.body_end] == content


@pytest.mark.covers("edge:B2")
@pytest.mark.parametrize(
    "text",
    [
        "Content-Type: multipart/mixed\n\nx",
        "Content-Type: multipart/mixed; boundary=b\n\n--b\n\nnot closed",
        "Content-Type: multipart/mixed; boundary=b\n\n--b\nno blank line after header\n--b--\n",
        "not a header\nSubject: x\n\nbody",
    ],
)
def test_broken_structure_is_flagged(text: str) -> None:
    assert parse(crlf(text)).degraded


def test_unclosed_inner_multipart_ends_at_the_outer_boundary() -> None:
    raw = crlf(
        "Content-Type: multipart/mixed; boundary=o\n\n--o\nContent-Type: multipart/mixed; boundary=i\n\n"
        "--i\n\na\n--o\n\nb\n--o--\n"
    )
    message = parse(raw)
    assert message.degraded
    inner, last = message.part((1, 1)), message.part((2,))
    assert inner is not None
    assert last is not None
    assert raw[inner.body_start : inner.body_end] == b"a"
    assert raw[last.body_start : last.body_end] == b"b"


def test_boundary_that_begins_another() -> None:
    raw = crlf(
        "Content-Type: multipart/mixed; boundary=bound\n\n--bound\nContent-Type: multipart/mixed; boundary=bound1\n\n"
        "--bound1\n\na\n--bound1--\n--bound  \n\nb\n--bound--\n"
    )
    message = parse(raw)
    assert not message.degraded
    assert [path for path, _ in walk(message.root)] == [(1,), (1, 1), (2,)]


def test_same_boundary_inside_and_outside() -> None:
    raw = crlf(
        "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: multipart/mixed; boundary=b\n\n"
        "--b\n\na\n--b--\n--b\n\nc\n--b--\n"
    )
    message = parse(raw)
    check_invariants(raw, message.root)
    assert not message.degraded
    assert [path for path, _ in walk(message.root)] == [(1,), (1, 1), (2,)]


def test_boundary_with_colon_is_no_field() -> None:
    raw = crlf('Content-Type: multipart/mixed; boundary="a:b"\n\n--a:b\nX: y\n--a:b\n\ntext\n--a:b--\n')
    message = parse(raw)
    assert [path for path, _ in walk(message.root)] == [(1,), (2,)]


@pytest.mark.covers("edge:B2")
def test_caps() -> None:
    deep = b"".join(b"Content-Type: multipart/mixed; boundary=%d\n\n--%d\n" % (n, n) for n in range(10_000))
    message = parse(deep)
    assert message.degraded
    check_invariants(deep, message.root)
    bodystructure(message.root)
    messages = b"Content-Type: message/rfc822\n\n" * 1000
    message = parse(messages)
    assert message.degraded
    check_invariants(messages, message.root)
    assert bodystructure(message.root).count(b"message") == 32
    flood = b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\n\nx\n" * 100_000
    message = parse(flood)
    assert message.degraded
    assert len(message.root.children) == 499
    check_invariants(flood, message.root)
    headers = b"a: b\n" * 300_000
    message = parse(headers)
    assert message.degraded
    assert len(message.headers) <= 10_000
    small = parse(MIXED.encode(), max_depth=2, max_parts=3)
    check_invariants(MIXED.encode(), small.root, 2, 3)
    assert small.degraded


@pytest.mark.covers("edge:B2")
def test_flood_of_lines_that_look_like_boundaries() -> None:
    raw = (
        b"Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: multipart/mixed; boundary=b+\n\n"
        b"--b+\n\n" + b"--bx\n" * 5000 + b"--b+  \n\n" + b"--\n" * 5000 + b"--b+--\n--b\n\nlast\n--b--"
    )
    message = parse(raw)
    assert not message.degraded
    assert [path for path, _ in walk(message.root)] == [(1,), (1, 1), (1, 2), (2,)]
    check_invariants(raw, message.root)


def test_mbox_line_and_stray_header_lines_are_passed() -> None:
    message = parse(b"From a@example.com Mon\nSubject: x\nstray line\nTo: b@example.com\n\nbody")
    assert message.subject == "x"
    assert [a.address for a in message.to] == ["b@example.com"]


def test_content_fields() -> None:
    raw = crlf(
        "Content-Type: TEXT/Plain (note); Charset = \"utf-8\" ; name*0*=utf-8'en'%C3%A4; name*1=b; name=old\n"
        "Content-Transfer-Encoding: (c) Quoted-Printable\nContent-Disposition: ATTACHMENT;\n"
        ' filename="a \\"b\\".txt"\nContent-ID: <x@example.com>\nContent-Description: some\n thing\n'
        "Content-MD5: Q2hlY2s=\nContent-Language: en, de\nContent-Location: http://example.com/a\n b\n\nx"
    )
    part = parse(raw).root
    assert (part.type, part.subtype, part.params) == ("text", "plain", {"charset": "utf-8", "name": "äb"})
    assert part.encoding == "quoted-printable"
    assert (part.disposition, part.disposition_params) == ("attachment", {"filename": 'a "b".txt'})
    assert (part.content_id, part.description, part.md5) == ("<x@example.com>", "some thing", "Q2hlY2s=")
    assert (part.language, part.location) == (("en", "de"), "http://example.com/ab")


def test_field_access() -> None:
    message = parse(
        crlf(
            "Subject: =?utf-8?q?=C3=A4?=\n b\nsubject: second\nFrom: A <a@example.com>\nFrom: b@example.com\n"
            "Message-ID: <A@EXAMPLE.com>\nIn-Reply-To: <p@x>\nReferences: <a@X> junk\n <b@y>\n"
            "Date: Mon, 2 Feb 2026 10:00:00 +0100\n\n"
        )
    )
    assert message.headers.get("SUBJECT") == "ä b"
    assert message.headers.get_raw("subject") == b" =?utf-8?q?=C3=A4?=\r\n b\r"
    assert message.headers.get_all("Subject") == ["ä b", "second"]
    assert "x-none" not in message.headers
    assert message.headers.get("x-none") is None
    assert [a.address for a in message.from_] == ["a@example.com", "b@example.com"]
    assert (message.message_id, message.in_reply_to, message.references) == ("A@example.com", ["p@x"], ["a@x", "b@y"])
    assert message.date is not None
    assert message.date.isoformat() == "2026-02-02T10:00:00+01:00"


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=200)
TOKEN = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)


@st.composite
def messages(draw: st.DrawFn, depth: int = 2) -> EmailMessage:
    """A message as the standard library composes it: text, alternatives, attachments, nested messages."""
    message = EmailMessage()
    message["Subject"] = " ".join(draw(TEXT).split())
    message["From"] = f"{draw(TOKEN)}@example.com"
    message["To"] = ", ".join(f"{name} <{name}@example.net>" for name in draw(st.lists(TOKEN, max_size=4)))
    cte = draw(st.sampled_from(["quoted-printable", "base64", "8bit"]))
    message.set_content(draw(TEXT) + "\n", cte=cte)
    if draw(st.booleans()):
        message.add_alternative(f"<p>{draw(TOKEN)}</p>", subtype="html")
    for data in draw(st.lists(st.binary(max_size=300), max_size=3)):
        message.add_attachment(data, maintype="application", subtype=draw(TOKEN), filename=draw(TEXT) or None)
    if depth and draw(st.booleans()):
        message.add_attachment(draw(messages(depth=depth - 1)))
    return message


def pairs(theirs: email.message.Message, ours: Part) -> list[tuple[email.message.Message, Part]]:
    """Walk both trees side by side."""
    found = [(theirs, ours)]
    below = theirs.get_payload()
    if isinstance(below, list):
        assert len(below) == len(ours.children)
        for their_child, our_child in zip(below, ours.children, strict=True):
            found += pairs(their_child, our_child)
    else:
        assert not ours.children
    return found


@settings(max_examples=60, deadline=None)
@given(messages(), st.booleans())
def test_agrees_with_the_standard_library(composed: EmailMessage, bare: bool) -> None:
    raw = composed.as_bytes(policy=email.policy.default if bare else email.policy.SMTP)
    theirs = email.message_from_bytes(raw, policy=email.policy.default)
    message = parse(raw)
    assert not message.degraded
    check_invariants(raw, message.root)
    signed = b"DKIM-Signature: v=1;\r\n b=00\r\n" + raw
    assert moved_tree(pack_tree(message.root), len(signed) - len(raw)) == pack_tree(parse(signed).root)
    assert (message.subject or "").split() == str(theirs["subject"] or "").split()
    assert [a.address for a in message.from_] == [a.addr_spec for a in theirs["from"].addresses]
    if theirs["to"] is not None:
        assert [(a.name, a.address) for a in message.to] == [
            (a.display_name, a.addr_spec) for a in theirs["to"].addresses
        ]
    for their_part, part in pairs(theirs, message.root):
        assert part.content_type == their_part.get_content_type()
        assert part.disposition == their_part.get_content_disposition()
        if not part.children:
            content = decoded(raw, part)
            assert content == their_part.get_payload(decode=True)
            assert decoded_size(raw, part) == len(content)
    body_part = theirs.get_body(("plain",))
    assert body_part is not None
    plain = visible(body_part.get_content().rstrip()).rstrip()
    if plain.strip():  # else the text comes from the HTML
        assert read(raw, message).text.rstrip() == plain


FRAGMENTS = st.sampled_from(
    [
        b"Content-Type: multipart/mixed; boundary=a\n\n",
        b'Content-Type: multipart/alternative;\r\n boundary="b"\r\n\r\n',
        b"Content-Type: message/rfc822\n\n",
        b"Content-Type: multipart/digest; boundary=\xff\n",
        b'Content-Type: text/html; charset="utf-7"\r\n',
        b"Content-Transfer-Encoding: base64\n",
        b"Content-Transfer-Encoding: quoted-printable\n",
        b"Content-Disposition: attachment; filename*0*=x'y'%zz; filename*1=\"\n",
        b'From: "a (b <c@d>, group: x@y; <@r:z@q> =?q?b?_?=\n',
        b"Subject: =?utf-8?b?w6Q?= =?x?q?=C3?=\r\n",
        b"--a\n",
        b"--a\r\n",
        b"--a--\n",
        b"--b\n",
        b"--b--\r\n",
        b"\n",
        b"\r\n",
        b"\r",
        b"\x00",
        b"--",
        b"=3D=\r\n",
        b"QUJD=",
        b'<p>&#x0;<a href="x',
        b" folded\n",
        b"\xe4\xf6",
    ]
)


def exercise(raw: bytes) -> None:
    """Everything that is done with a stranger's message."""
    message = parse(raw)
    check_invariants(raw, message.root)
    for rendered in (envelope(message), body(message.root), bodystructure(message.root)):
        assert b"\x00" not in rendered
        assert rendered.startswith(b"(")
    for name in ("from_", "sender", "reply_to", "to", "cc", "bcc", "date", "message_id", "in_reply_to", "references"):
        getattr(message, name)
    for _, value in message.headers:
        value.encode()
    found = read(raw, message, 1000)
    assert len(found.text.encode()) <= 1000
    assert "\x00" not in found.text
    body_parts(message.root)
    for path, part in walk(message.root):
        decoded(raw, part)
        assert find_part(message.root, path) is part


@pytest.mark.covers("edge:B2")
@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(FRAGMENTS, st.binary(max_size=12)), max_size=40))
def test_any_bytes(fragments: list[bytes]) -> None:
    exercise(b"".join(fragments))


@pytest.mark.covers("edge:B2")
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_mutated_messages(data: st.DataObject) -> None:
    raw = bytearray(crlf(MIXED))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(raw) - 1))
        end = at + data.draw(st.integers(0, 20))
        raw[at:end] = data.draw(st.one_of(st.binary(max_size=8), FRAGMENTS, st.just(bytes(raw[: at // 2]))))
        if not raw:
            raw = bytearray(b"\n")
    exercise(bytes(raw))


@given(st.integers(1, 5), st.integers(1, 9), st.lists(FRAGMENTS, max_size=60))
def test_caps_hold_for_any_nesting(depth: int, parts: int, fragments: list[bytes]) -> None:
    raw = b"Content-Type: multipart/mixed; boundary=a\n\n" + b"".join(fragments)
    check_invariants(raw, parse(raw, max_depth=depth, max_parts=parts).root, depth, parts)


def test_stored_tree_is_refused_when_it_is_none() -> None:
    root = parse(MIXED.encode()).root
    assert packed_version(pack_tree(root)) >= 1
    for wrong in (b"", b"{}", b"[1]", b"[1,[]]", b"[1,null]", b"7"):
        with pytest.raises(ValueError):
            unpack_tree(wrong)


TRACE = (
    b"Return-Path: <ann@example.com>\r\nReceived: from a.example by b.example;\r\n\tMon, 02 Feb 2026 10:00:00 +0000\r\n"
)
BEGINNINGS = (
    b" folded\r\n",
    b"From ann Mon Feb  2\n",
    b">From x\r\n",
    b"no field\r\n",
    b"\r\n",
    b"--b\r\n",
    b"\r",
    b"a: b\r",
    b"",
)


@pytest.mark.covers("edge:B2", "RFC 5321 §4.4")
@given(
    st.sampled_from(BEGINNINGS),
    st.lists(st.sampled_from([b"Subject: x", b"Content-Type: multipart/mixed; boundary=b", b"--b", b" y", b"", b"z"])),
    st.sampled_from([b"\r\n", b"\n", b"\r"]),
)
def test_trace_fields_change_nothing(beginning: bytes, lines: list[bytes], end: bytes) -> None:
    """A message is read as if our own fields did not stand before it, whatever it begins with."""
    raw = beginning + end.join(lines)
    alone, traced = parse(raw), parse(TRACE + raw, trace=len(TRACE))
    assert traced.headers.fields[:2] == parse(TRACE).headers.fields
    assert traced.headers.fields[2:] == alone.headers.fields
    assert traced.degraded is alone.degraded

    def parts(message: Message, before: int) -> list[tuple[str, int, int, int | None]]:
        return [(p.content_type, p.body_start - before, p.body_end - before, p.lines) for _, p in walk(message.root)]

    assert parts(traced, len(TRACE)) == parts(alone, 0)


@pytest.mark.covers("edge:B2")
def test_a_large_message_is_not_copied() -> None:
    """A part tree is of offsets: 25 MB of attachment, or of lines, cost no memory worth telling."""
    head = b"From: a@example.com\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nHello\r\n--b\r\n"
    for piece in (b"Content-Transfer-Encoding: base64\r\n\r\n" + b"A" * 76 + b"\r\n", b"\r\nline after line\r\n"):
        raw = head + piece * (25_000_000 // len(piece)) + b"--b--\r\n"
        tracemalloc.start()
        try:
            message = parse(raw)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(message.root.children) >= 2
        assert peak < len(raw) // 10
