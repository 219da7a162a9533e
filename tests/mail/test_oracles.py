"""Well-formed mail is read as the standard library reads it, by both of its policies. Where one of the three differs,
the test says which section of an RFC it is that the two others follow.
"""

from __future__ import annotations

import base64
import email
import email.header
import email.policy
import email.utils
import quopri
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from email.message import EmailMessage, Message
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail import mime
from postroom.mail.body import filename
from postroom.mail.transfer import decoded

CHARSETS = ("us-ascii", "utf-8", "iso-8859-15", "koi8-r", "shift_jis", "gb18030", "euc-kr")
WORDS = st.text("abcdefghijklmnopqrstuvwxyzABC0123456789", min_size=1, max_size=12)
ANY_WORDS = st.sampled_from(
    ["plain", "words", "Grüße", "日本", "Привет", "한국어", "ﬁ", "😀", "a=b", "x?y", "5_6", "e.g."]
)
PHRASE = st.lists(ANY_WORDS, min_size=1, max_size=5).map(" ".join)


@dataclass(frozen=True)
class Leaf:
    content_type: str
    charset: str | None
    encoding: str
    name: str | None
    content: bytes


@st.composite
def encoded(draw: st.DrawFn, text: str) -> str:
    """Words of an unstructured field or phrase in any of the forms of RFC 2047, folded or not."""
    pieces = []
    for word in text.split(" "):
        form = draw(st.sampled_from("qQbB")) if not word.isascii() or draw(st.booleans()) else ""
        data = word.encode()
        if form in ("b", "B"):
            pieces.append(f"=?UTF-8?{form}?{base64.b64encode(data).decode()}?=")
        elif form:
            pieces.append(f"=?utf-8?{form}?{''.join(f'={octet:02X}' for octet in data)}?=")
        else:
            pieces.append(word)
    # White space between encoded words vanishes (RFC 2047 §6.2): a blank that is meant stands in a word.
    joined = pieces[0]
    for before, after in pairwise(pieces):
        gap = draw(st.sampled_from([" ", "\r\n ", "\r\n\t"]))
        both = before.startswith("=?") and after.startswith("=?")
        joined += (" =?utf-8?q?_?=" if both else "") + gap + after
    return joined


@st.composite
def leaves(draw: st.DrawFn) -> Leaf:
    kind = draw(st.sampled_from(["text/plain", "text/html", "application/pdf", "image/png"]))
    charset = draw(st.sampled_from(CHARSETS)) if kind.startswith("text/") else None
    if charset is None:
        content = draw(st.binary(max_size=200))
    else:
        codec = "ascii" if charset == "us-ascii" else charset
        content = draw(PHRASE).encode(codec, "ignore") + b"\r\n"
    encoding = draw(st.sampled_from(["base64", "quoted-printable"]))
    return Leaf(kind, charset, encoding, draw(st.none() | WORDS.map(lambda word: word + ".pdf")), content)


def written_leaf(leaf: Leaf) -> str:
    head = f"Content-Type: {leaf.content_type}"
    head += f"; charset={leaf.charset}\r\n" if leaf.charset else "\r\n"
    head += f"Content-Transfer-Encoding: {leaf.encoding}\r\n"
    if leaf.name:
        head += "Content-Disposition: attachment;\r\n"
        head += f" filename*0*=utf-8''{leaf.name[:2]};\r\n filename*1={leaf.name[2:]}\r\n"
    if leaf.encoding == "base64":
        body = base64.encodebytes(leaf.content)
    else:
        body = quopri.encodestring(leaf.content, quotetabs=True)
    return head + "\r\n" + body.decode().replace("\r\n", "\n").replace("\n", "\r\n")


@st.composite
def bodies(draw: st.DrawFn, depth: int = 2, prefix: str = "b") -> str:
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return written_leaf(draw(leaves()))
    kind = draw(st.sampled_from(["mixed", "alternative", "related", "x-unknown"]))
    preamble = draw(st.sampled_from(["", "This is MIME.\r\n", "--no boundary\r\n"]))
    parts = [draw(bodies(depth - 1, f"{prefix}{number}")) for number in range(draw(st.integers(1, 3)))]
    padding = draw(st.sampled_from(["", " ", "\t "]))
    text = "".join(f"--{prefix}{padding}\r\n{part}\r\n" for part in parts)
    return (
        f'Content-Type: multipart/{kind};\r\n\tboundary="{prefix}"\r\n\r\n{preamble}{text}--{prefix}--{padding}\r\n'
        + draw(st.sampled_from(["", "epilogue\r\n"]))
    )


@dataclass(frozen=True)
class Letter:
    raw: bytes
    subject: str
    people: tuple[tuple[str, str], ...]
    date: datetime


@st.composite
def letters(draw: st.DrawFn) -> Letter:
    subject = draw(PHRASE)
    people, written = [], []
    for local in draw(st.lists(WORDS, min_size=1, max_size=3)):
        name = draw(st.just("") | PHRASE)
        spec = f"{local}@example.com"
        if not name:
            written.append(draw(st.sampled_from([spec, f"<{spec}>"])))
        elif name.isascii() and draw(st.booleans()):
            written.append(f'"{name}" <{spec}>')
        else:
            # In a phrase `=`, `?` and the like stand in encoded words only (RFC 2047 §5 (3)).
            token = base64.b64encode(name.encode()).decode()
            written.append(f"=?utf-8?b?{token}?= <{spec}>")
        people.append((name, spec))
    date = draw(st.datetimes(datetime(1970, 1, 1), datetime(2049, 1, 1))).replace(microsecond=0)
    minutes = draw(st.integers(-14 * 60, 14 * 60))
    moment = date.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    comment = draw(st.sampled_from(["", " (CET)", " (a (nested) comment)"]))
    head = (
        f"From: {written[0]}\r\nTo: {draw(st.sampled_from([', ', ',' + chr(13) + chr(10) + ' '])).join(written)}\r\n"
        f"Subject: {draw(encoded(subject))}\r\nDate: {email.utils.format_datetime(moment)}{comment}\r\n"
        "MIME-Version: 1.0\r\n"
    )
    return Letter((head + draw(bodies())).encode(), subject, tuple(people), moment)


def side_by_side(theirs: Message, ours: mime.Part) -> list[tuple[Message, mime.Part]]:
    found = [(theirs, ours)]
    below = theirs.get_payload()
    if isinstance(below, list):
        assert len(below) == len(ours.children)
        for their_child, our_child in zip(below, ours.children, strict=True):
            assert isinstance(their_child, Message)
            found += side_by_side(their_child, our_child)
    else:
        assert not ours.children
    return found


@settings(max_examples=150, deadline=None)
@given(letters())
def test_both_policies_read_the_same(letter: Letter) -> None:
    message = mime.parse(letter.raw)
    assert not message.degraded
    modern = email.message_from_bytes(letter.raw, policy=email.policy.default)
    assert isinstance(modern, EmailMessage)
    old = email.message_from_bytes(letter.raw, policy=email.policy.compat32)
    # A tab that folds a line stays one (RFC 5322 §2.2.3); the standard library's default policy makes it a blank.
    assert (message.subject or "").split() == letter.subject.split()
    assert str(modern["subject"]).split() == letter.subject.split()
    # compat32 leaves decoding to email.header, which keeps folds as they are (RFC 5322 §2.2.3 wants them removed).
    decoded_header = str(email.header.make_header(email.header.decode_header(re.sub(r"\r?\n", "", old["subject"]))))
    assert decoded_header.split() == letter.subject.split()
    assert [(item.name, item.address) for item in message.to] == list(letter.people)
    assert [(item.display_name, item.addr_spec) for item in modern["to"].addresses] == list(letter.people)
    assert [spec for _, spec in email.utils.getaddresses([old["to"]])] == [spec for _, spec in letter.people]
    assert message.date == letter.date
    assert modern["date"].datetime.astimezone(UTC) == letter.date.astimezone(UTC)
    assert email.utils.parsedate_to_datetime(old["date"]).astimezone(UTC) == letter.date.astimezone(UTC)
    for theirs in (modern, old):
        for their_part, part in side_by_side(theirs, message.root):
            assert part.content_type == their_part.get_content_type()
            if part.children:
                continue
            assert part.params.get("charset") == their_part.get_param("charset")
            assert part.disposition == their_part.get_content_disposition()
            assert filename(part) == their_part.get_filename()
            content = decoded(letter.raw, part)
            their_content = their_part.get_payload(decode=True)
            assert isinstance(their_content, bytes)
            # The library keeps blanks at the ends of quoted-printable lines, which RFC 2045 §6.7 (3) has deleted; ours
            # writes none.
            assert content == their_content
