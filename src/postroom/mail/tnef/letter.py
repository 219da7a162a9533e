"""A message within a TNEF stream as a message of RFC 5322, which every program opens (MS-OXCMSG; inbound §28.6, B6).

It never was one where it was written by the sender's program; where it came by mail, its header is kept beside it
(PidTagTransportMessageHeaders) and says who wrote it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

from postroom.mail.address import Address
from postroom.mail.compose import ComposeError, fields
from postroom.mail.compose.draft import Attachment
from postroom.mail.compose.entities import Boundaries, Entity, attachment_leaf, multipart, text_leaf
from postroom.mail.header import Headers

MAX_HEADER_CHARS: Final = 64 * 1024
_MAX_VALUE_CHARS: Final = 8 * 1024
_COPIED: Final = ("From", "Sender", "Reply-To", "To", "Cc", "Date", "Message-ID", "In-Reply-To", "References")
_EPOCH: Final = datetime(1601, 1, 1, tzinfo=UTC)
_MAX_TICKS: Final = 10**18  # the year 4769; each is 100 ns


@dataclass(frozen=True, slots=True)
class Enclosed:
    """One file of the message; `content_id` without angle brackets."""

    filename: str | None
    content_type: str
    data: bytes
    content_id: str | None


@dataclass(frozen=True, slots=True)
class Letter:
    """What a message within a stream says of itself. `header` is the one that it came with, unless empty."""

    subject: str
    text: str | None
    html: str | None
    header: str
    author: str
    address: str
    message_id: str
    sent: int
    """When, in ticks of 100 ns since 1601 (PtypTime); 0 when it does not say."""
    files: Sequence[Enclosed]


def write_letter(letter: Letter, token: str) -> bytes:
    """Its octets: lines of ASCII that end in CRLF. `token` is of what it was made of, so that the same comes out each
    time. Never raises on content: a field that cannot be written is left out."""
    boundaries = Boundaries(token)
    content = _content(letter, boundaries)
    head = b"".join(_fields(letter)) + b"MIME-Version: 1.0\r\n" + content.header
    return b"".join((head, b"\r\n", *content.chunks()))


def token_of(data: memoryview) -> str:
    """For boundaries of what is made of `data`."""
    return sha256(data).hexdigest()[:32]


def _content(letter: Letter, boundaries: Boundaries) -> Entity:
    bodies: list[Entity] = []
    if letter.text is not None or letter.html is None:
        bodies.append(text_leaf(letter.text or "", "plain", boundaries))
    if letter.html is not None:
        bodies.append(text_leaf(letter.html, "html", boundaries))
    body = bodies[0] if len(bodies) == 1 else multipart("alternative", boundaries, bodies)
    if not letter.files:
        return body
    return multipart("mixed", boundaries, [body, *(_file(one, boundaries) for one in letter.files)])


def _file(one: Enclosed, boundaries: Boundaries) -> Entity:
    kept = one.content_id if one.content_id and fields.is_writable_id(one.content_id) else None
    for kind, name in ((one.content_type, one.filename), ("application/octet-stream", None)):
        try:
            return attachment_leaf(Attachment(name, kind, one.data, None, kept is not None, kept), name, boundaries)
        except ComposeError:
            continue  # a type or name that nothing can be written with
    raise AssertionError("a file without name, of a type that says nothing, can be written")


def _fields(letter: Letter) -> Iterator[bytes]:
    known = Headers.parse(letter.header[:MAX_HEADER_CHARS].replace("\n", "\r\n").encode("utf-8", "replace"))
    for name in _COPIED:
        value = known.get(name)
        written = None if value is None else _unstructured(name, value)
        if written is None:
            written = _said(letter, name)
        if written is not None:
            yield written
    subject = _unstructured("Subject", letter.subject)
    if subject is not None:
        yield subject


def _said(letter: Letter, name: str) -> bytes | None:
    """A field made of properties."""
    try:
        if name == "From" and "@" in letter.address:
            local, _, domain = letter.address.rpartition("@")
            return fields.address_list(name, [Address(letter.author[:256], local, domain)])
        if name == "Date" and 0 < letter.sent < _MAX_TICKS:
            return fields.date(name, _EPOCH + timedelta(microseconds=letter.sent // 10))
        if name == "Message-ID" and fields.is_writable_id(letter.message_id.strip(" <>")):
            return fields.message_ids(name, [letter.message_id.strip(" <>")])
    except ComposeError:
        return None
    return None


def _unstructured(name: str, value: str) -> bytes | None:
    shown = " ".join(value[:_MAX_VALUE_CHARS].split())
    try:
        return fields.unstructured(name, shown, machine=name != "Subject") if shown else None
    except ComposeError:
        return None


__all__ = ["Enclosed", "Letter", "token_of", "write_letter"]
