"""A MIME tree to be written (RFC 2046): leaves with streamed octets, multiparts with given boundaries."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from postroom.mail import params
from postroom.mail.compose import encodings, fields
from postroom.mail.compose.draft import Attachment
from postroom.mail.compose.errors import ComposeError, Reason

MAX_BOUNDARY_CHARS: Final = 60

# RFC 2045 §6.7 suggests `=_`, which neither quoted-printable nor base64 can hold: no encoded content is a boundary.
_MARK: Final = "=_"
_BOUNDARY: Final = re.compile(r"[A-Za-z0-9._-]{1,60}")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_OCTET_STREAM: Final = "application/octet-stream"
_NOT_KEPT: Final = frozenset(("name", "boundary"))
_ENCODABLE_MESSAGES: Final = frozenset(
    ("message/global", "message/global-headers", "message/global-delivery-status")
)  # RFC 6532 §3.7, RFC 6533 §6


@dataclass(frozen=True, slots=True)
class Leaf:
    """`header` is its Content-* fields; `size` the octets that `chunks` gives; `last` how those end."""

    header: bytes
    size: int
    chunks: Callable[[], Iterable[bytes]] = field(repr=False)
    eight_bit: bool = False
    ends_line: bool = False


@dataclass(frozen=True, slots=True)
class Multipart:
    header: bytes
    boundary: bytes
    children: "Sequence[Entity]"
    ends_line: bool = False

    @property
    def eight_bit(self) -> bool:
        return any(child.eight_bit for child in self.children)

    @property
    def size(self) -> int:
        frame = len(self.boundary) + 4
        inner = sum(len(child.header) + 2 + child.size + 2 for child in self.children)
        return inner + frame * len(self.children) + frame + 2 - 2

    def chunks(self) -> Iterator[bytes]:
        for child in self.children:
            yield b"--" + self.boundary + b"\r\n" + child.header + b"\r\n"
            yield from child.chunks()
            yield b"\r\n"
        yield b"--" + self.boundary + b"--"


Entity = Leaf | Multipart


class Boundaries:
    """Boundaries of one message, numbered after a token that the caller chose, each at most 70 characters."""

    __slots__ = ("_count", "_token")

    def __init__(self, token: str) -> None:
        """ComposeError unless `token` has 1 to 60 letters, digits, dots, hyphens and underscores."""
        if _BOUNDARY.fullmatch(token) is None:
            raise ComposeError("boundary", Reason.SYNTAX)
        self._token = token
        self._count = 0

    @property
    def mark(self) -> bytes:
        """What every boundary line of the message begins with."""
        return f"--{_MARK}{self._token}".encode()

    def next(self) -> str:
        self._count += 1
        return f"{_MARK}{self._token}_{self._count}"


def multipart(
    subtype: str, boundaries: Boundaries, children: "Sequence[Entity]", parameters: Sequence[tuple[str, str]] = ()
) -> Multipart:
    boundary = boundaries.next()
    header = fields.with_parameters("Content-Type", f"multipart/{subtype}", (*parameters, ("boundary", boundary)))
    if any(child.eight_bit for child in children):
        header += b"Content-Transfer-Encoding: 8bit\r\n"  # RFC 2045 §6.4
    return Multipart(header, boundary.encode("ascii"), tuple(children))


def memory_leaf(header: bytes, encoding: str, data: bytes) -> Leaf:
    if encoding != "7bit":
        header += f"Content-Transfer-Encoding: {encoding}\r\n".encode("ascii")
    return Leaf(header, len(data), lambda: (data,), encoding in ("8bit", "binary"), data.endswith(b"\r\n"))


def text_leaf(text: str, subtype: str, boundaries: Boundaries, *, eight_bit: bool = False) -> Leaf:
    """A text part, labelled us-ascii or utf-8 (RFC 2046 §4.1.2)."""
    data = encodings.canonical_text(text).encode()
    encoding, encoded = encodings.encode_text(data, eight_bit=eight_bit, forbidden=boundaries.mark)
    charset = "us-ascii" if data.isascii() else "utf-8"
    header = fields.with_parameters("Content-Type", f"text/{subtype}", (("charset", charset),))
    return memory_leaf(header, encoding, encoded)


def attachment_leaf(attachment: Attachment, filename: str | None, boundaries: Boundaries) -> Leaf:
    """A file in base64; a message as it stands, because it may not be encoded (RFC 2046 §5.2.1).

    Its name stands twice: as `filename` in the form of RFC 2231, and as `name` in encoded words for the Outlooks and
    Gmails that read only those.

    A message that cannot be sent as it stands (bare line breaks, NUL, lines over 998 octets) becomes
    application/octet-stream, so that its octets stay what they are.
    """
    kind, parameters = _media_type(attachment.content_type)
    size = attachment.octets
    source = _source(attachment, size)
    encoding, eight_bit = "base64", False
    if kind.startswith("message/") and kind not in _ENCODABLE_MESSAGES:
        shape = encodings.shape_of(source(), boundaries.mark)
        if shape.sendable:
            encoding, eight_bit = ("8bit", True) if shape.eight_bit else ("7bit", False)
        else:
            kind, parameters = _OCTET_STREAM, []
    header = fields.with_parameters("Content-Type", kind, parameters, words=("name", filename) if filename else None)
    header += _disposition(attachment, filename)
    if encoding != "7bit":
        header += f"Content-Transfer-Encoding: {encoding}\r\n".encode("ascii")
    if encoding != "base64":
        return Leaf(header, size, source, eight_bit)
    return Leaf(header, encodings.base64_size(size), lambda: encodings.base64_chunks(source()))


def _source(attachment: Attachment, size: int) -> encodings.Source:
    content = attachment.content
    if isinstance(content, bytes):
        return lambda: (content,)
    return lambda: encodings.counted(content(), size, "attachments")


def _media_type(content_type: str) -> tuple[str, list[tuple[str, str]]]:
    """Type and parameters that are kept. ComposeError for what is no type, and for multiparts."""
    content_type = fields.refuse_controls(content_type, "content_type")
    kind = content_type.partition(";")[0].strip().lower()
    if _MEDIA_TYPE.fullmatch(kind) is None or kind.startswith("multipart/"):
        raise ComposeError("content_type", Reason.SYNTAX)
    if len(content_type) > fields.MAX_TEXT_CHARS:
        raise ComposeError("content_type", Reason.TOO_LONG)
    found = params.parse_parameters(content_type)
    return kind, [(key, value) for key, value in found.items() if key not in _NOT_KEPT]


def _disposition(attachment: Attachment, filename: str | None) -> bytes:
    """Content-Disposition (RFC 2183) and Content-ID (RFC 2392)."""
    kind = "inline" if attachment.inline else "attachment"
    header = fields.with_parameters("Content-Disposition", kind, (("filename", filename),) if filename else ())
    if attachment.content_id is not None:
        header += fields.message_ids("Content-ID", (attachment.content_id.removeprefix("<").removesuffix(">"),))
    return header
