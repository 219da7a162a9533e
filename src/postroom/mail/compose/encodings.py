"""Content-Transfer-Encoding (RFC 2045 §6) of what is sent: which one, and its octets, streamed where they are many."""

import re
from base64 import b64encode
from binascii import b2a_qp
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from postroom.mail.compose.errors import ComposeError, Reason
from postroom.mail.compose.fields import MAX_LINE, whole_characters

Source = Callable[[], Iterable[bytes]]
"""Octets in chunks of any size; every call starts at the beginning."""

_LINE_OCTETS: Final = 57  # makes 76 characters, RFC 2045 §6.8
_STEP: Final = 1024 * _LINE_OCTETS
_SHORT: Final = 64  # octets that are not worth an unreadable form
_BREAK: Final = re.compile(r"\r\n?|\n")
_WIDTH: Final = 78  # RFC 5322 §2.1.1
_FROM: Final = re.compile(rb"(?m)^From ")
# Controls that have no place in text as it stands: all but tab, line break and form feed.
_ODD: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")


def canonical_text(text: str) -> str:
    """`text` with CRLF line ends, the last one included, without NUL and lone surrogates (both become U+FFFD)."""
    text = whole_characters(text).replace("\x00", "\ufffd")
    text = _BREAK.sub("\r\n", text)
    return text if not text or text.endswith("\r\n") else text + "\r\n"


def lines_fit(data: bytes, ending: bytes = b"\r\n", limit: int = MAX_LINE) -> bool:
    """Whether no line has over `limit` octets, CRLF not counted. Looks at few octets of each stretch of lines."""
    at, size = 0, len(data)
    while size - at > limit:
        last = data.rfind(ending, at, at + limit + 2)
        if last < 0:
            return False
        at = last + len(ending)
    return True


def has_lone_break(data: bytes) -> bool:
    """Whether a CR or an LF stands by itself. Counting is far quicker than a pattern."""
    pairs = data.count(b"\r\n")
    return data.count(b"\n") != pairs or data.count(b"\r") != pairs


def encode_text(data: bytes, *, eight_bit: bool = False, forbidden: bytes = b"") -> tuple[str, bytes]:
    """The name of the encoding and the encoded octets of canonical text.

    As it stands only when every line has at most 78 octets, as it should (RFC 5322 §2.1.1; paragraphs in one line keep
    their shape in quoted-printable, whoever wraps lines on the way), no line begins with `From `, which stores of the
    mbox kind rewrite, and `forbidden` (the beginning of a boundary) does not occur; beyond ASCII only with `eight_bit`.
    Else as `encode_compactly`.
    """
    if not (data.isascii() or eight_bit) or not lines_fit(data, limit=_WIDTH):
        return encode_compactly(data)
    if _ODD.search(data) or _FROM.search(data) or has_lone_break(data) or (forbidden and forbidden in data):
        return encode_compactly(data)
    return ("7bit" if data.isascii() else "8bit"), data


def encode_compactly(data: bytes) -> tuple[str, bytes]:
    """Base64 where it saves a fifth or the line ends are not canonical, else quoted-printable, which can be read."""
    if not has_lone_break(data):
        quoted = quoted_printable(data)
        if len(quoted) <= base64_size(len(data)) * 5 // 4 + _SHORT:
            return "quoted-printable", quoted
    return "base64", b"".join(base64_chunks([data]))


def quoted_printable(data: bytes) -> bytes:
    """RFC 2045 §6.7 of text whose line ends are CRLF, lines of at most 76 characters, none that begins with `From `."""
    encoded = b2a_qp(data.replace(b"\r\n", b"\n"), quotetabs=False, istext=True, header=False)
    # A soft break after the escape keeps the line within its limit.
    return _FROM.sub(b"=46rom=\n ", encoded).replace(b"\n", b"\r\n")


def base64_size(octets: int) -> int:
    """Length of `base64_chunks` of so many octets: lines of 76 with CRLF between them."""
    lines = -(-octets // _LINE_OCTETS)
    return 4 * -(-octets // 3) + 2 * max(0, lines - 1)


def base64_chunks(source: Iterable[bytes]) -> Iterator[bytes]:
    """RFC 2045 §6.8, lines of 76 characters with CRLF between them and none at the end."""
    rest, first = b"", True
    for chunk in source:
        view = memoryview(chunk)
        for at in range(0, len(view), _STEP):
            data = rest + view[at : at + _STEP]
            whole = len(data) - len(data) % _LINE_OCTETS
            rest = data[whole:]
            if whole:
                yield _lines(data[:whole], first)
                first = False
    if rest:
        yield _lines(rest, first)


def _lines(data: bytes, first: bool) -> bytes:
    encoded = b64encode(data)
    lines = b"\r\n".join([encoded[at : at + 76] for at in range(0, len(encoded), 76)])
    return lines if first else b"\r\n" + lines


def counted(source: Iterable[bytes], size: int, field: str) -> Iterator[bytes]:
    """The chunks of `source`; ComposeError as soon as they exceed `size` octets, or if they fall short of it."""
    seen = 0
    for chunk in source:
        seen += len(chunk)
        if seen > size:
            raise ComposeError(field, Reason.SIZE_MISMATCH)
        yield chunk
    if seen != size:
        raise ComposeError(field, Reason.SIZE_MISMATCH)


@dataclass(frozen=True, slots=True)
class Shape:
    """What matters of octets that may not be encoded (message/rfc822, RFC 2046 §5.2.1)."""

    eight_bit: bool
    lines_fit: bool
    """All lines end in CRLF, hold no NUL and at most 998 octets."""
    holds_mark: bool

    @property
    def sendable(self) -> bool:
        return self.lines_fit and not self.holds_mark


def shape_of(source: Iterable[bytes], mark: bytes) -> Shape:
    """One pass over `source`; `mark` is the beginning of a boundary, which must not occur."""
    eight_bit = holds_mark = False
    fits = True
    rest = seam = b""
    for chunk in source:
        eight_bit = eight_bit or not chunk.isascii()
        holds_mark = holds_mark or mark in seam + chunk[: len(mark)] or mark in chunk
        seam = (seam + chunk)[-(len(mark) - 1) :] if len(chunk) < len(mark) else chunk[-(len(mark) - 1) :]
        if fits:
            data = rest + chunk
            end = data.rfind(b"\r\n") + 2
            lines, rest = (data[:end], data[end:]) if end > 1 else (b"", data)
            loose = rest.removesuffix(b"\r")
            fits = not (
                b"\x00" in data
                or has_lone_break(lines)
                or has_lone_break(loose)
                or len(rest) > MAX_LINE + 1
                or not lines_fit(lines)
            )
    fits = fits and not rest.endswith(b"\r") and len(rest) <= MAX_LINE
    return Shape(eight_bit, fits, holds_mark)
