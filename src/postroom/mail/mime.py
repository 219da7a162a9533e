"""MIME structure (RFC 2045, RFC 2046, RFC 2183, RFC 2231): one scan over a message to a tree of byte offsets.

The scan looks only at header blocks and at lines that begin with two hyphens; bodies are passed by `bytes.find`. It
never recurses, never raises on content, and stops opening parts at the caps of edge row B2, setting `degraded`.
Line ends may be CRLF or bare LF, also mixed, and bare CR where there is no LF at all.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from postroom.mail import params as parameters
from postroom.mail.address import MAX_ADDRESSES, Address, read_addresses
from postroom.mail.date import parse_date
from postroom.mail.envelope import render_envelope
from postroom.mail.header import FIELD, Headers, decode_value
from postroom.mail.ids import kept_references, normalise_message_id, parse_references

PARSER_VERSION: Final = 4
"""Raised whenever the same bytes would give another tree or other derived values (decision B21)."""

MAX_DEPTH: Final = 32
MAX_PARTS: Final = 500
_PATIENCE: Final = 1000  # lines that look like boundaries and are none, before the search changes its method
_DEPTH_CEILING: Final = 100  # rendering and packing recurse once a level
MAX_HEADER_BYTES: Final = 256 * 1024
MAX_FIELDS: Final = 10_000

# Possessive throughout: the scanner must take linear time on any bytes.
_FIELD_LINES: Final = re.compile(rb"(?:(?!--)[!-9;-~]++[ \t]*+:[^\n]*+(?:\n[ \t][^\n]*+)*+(?:\n|\Z))*+")
_FIELD_START: Final = re.compile(rb"(?!--)[!-9;-~]++[ \t]*+:")
_BLANK_LINE: Final = re.compile(rb"\r*+\n")
_MBOX_LINE: Final = re.compile(rb">?From (?![ \t]*:)[^\n]*+\n")
# Fields with which a header goes on where something else stands before it.
_SURE_FIELD: Final = re.compile(
    rb"(?:return-path|received|delivered-to|date|from|sender|to|cc|reply-to|subject|message-id|mime-version|content-type"
    rb"|dkim-signature|resent-[a-z-]{2,10}+|x-[!-9;-~]{1,60}+)[ \t]*+:",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Part:
    """One entity of the tree. Offsets count bytes of the raw message; treat instances as read-only.

    The MIME header is `raw[header_start:body_start]`, blank line included; the content `raw[body_start:body_end]`.
    Text values are unfolded but not RFC 2047 decoded (IMAP serves them so); `params` are RFC 2231 decoded.
    """

    header_start: int
    body_start: int
    body_end: int
    type: str = "text"
    subtype: str = "plain"
    params: dict[str, str] = field(default_factory=dict)
    disposition: str | None = None
    disposition_params: dict[str, str] = field(default_factory=dict)
    content_id: str | None = None
    description: str | None = None
    encoding: str = "7bit"
    md5: str | None = None
    language: tuple[str, ...] = ()
    location: str | None = None
    lines: int | None = None
    """Line feeds in the content; counted for text and nested messages only."""
    envelope: bytes | None = None
    """Rendered IMAP ENVELOPE; only on the root of a nested message."""
    children: list["Part"] = field(default_factory=list)

    @property
    def content_type(self) -> str:
        return f"{self.type}/{self.subtype}"

    @property
    def is_multipart(self) -> bool:
        return self.type == "multipart"

    @property
    def nested(self) -> "Part | None":
        """The root of the message that this part contains, if it is a parsed message/rfc822 or message/global."""
        return self.children[0] if self.type == "message" and self.children else None


def find_part(root: Part, path: tuple[int, ...]) -> Part | None:
    """The part with IMAP number `path` (RFC 3501 §6.4.5), numbers from 1; `()` is the root. None: no such part."""
    part = root
    at_message = True  # whether `part` is a message root whose own body may be meant by the number 1
    for number in path:
        nested = None if at_message else part.nested
        if nested is not None:
            part, at_message = nested, True
        if part.is_multipart:
            if not 1 <= number <= len(part.children):
                return None
            part = part.children[number - 1]
        elif not at_message or number != 1:
            return None
        at_message = False
    return part


def walk(root: Part) -> Iterator[tuple[tuple[int, ...], Part]]:
    """Every numbered part with its IMAP path in order of appearance, parts of nested messages included.

    A multipart that is the whole of a message has no number of its own and is left out.
    """
    pending: list[tuple[tuple[int, ...], Part, bool]] = [((), root, True)]
    while pending:
        path, part, is_message = pending.pop()
        if is_message and not part.is_multipart:
            path = (*path, 1)
        if not (is_message and part.is_multipart):
            yield path, part
        if part.is_multipart:
            below = [((*path, n), child, False) for n, child in enumerate(part.children, start=1)]
            pending.extend(reversed(below))
        elif part.children:
            pending.append((path, part.children[0], True))


@dataclass(slots=True)
class Message:
    """A parsed message. Field values are decoded when asked for; keep what is needed more than once."""

    root: Part
    headers: Headers
    size: int
    degraded: bool
    """The structure is broken or was cut at a cap (edge row B2)."""

    def part(self, path: tuple[int, ...]) -> Part | None:
        """See `find_part`."""
        return find_part(self.root, path)

    @property
    def subject(self) -> str | None:
        return self.headers.get("subject")

    def addresses(self, name: str, limit: int = MAX_ADDRESSES) -> tuple[list[Address], bool]:
        """The first `limit` complete mailboxes of every field of that name, and whether there are no more.

        All fields of the name count: what one reader checks and another shows must be one list.
        """
        return read_addresses(self.headers.get_all_raw(name), limit, self.headers.label)

    def _addresses(self, name: str) -> list[Address]:
        return self.addresses(name)[0]

    @property
    def from_(self) -> list[Address]:
        """Complete mailboxes of every From field; more than one lowers trust (edge row B13)."""
        return self._addresses("from")

    @property
    def sender(self) -> list[Address]:
        return self._addresses("sender")

    @property
    def reply_to(self) -> list[Address]:
        return self._addresses("reply-to")

    @property
    def to(self) -> list[Address]:
        return self._addresses("to")

    @property
    def cc(self) -> list[Address]:
        return self._addresses("cc")

    @property
    def bcc(self) -> list[Address]:
        return self._addresses("bcc")

    @property
    def date(self) -> datetime | None:
        value = self.headers.get("date")
        return None if value is None else parse_date(value)

    @property
    def message_id(self) -> str | None:
        """Normalised (inbound §28.5), without angle brackets; None when missing or unparseable."""
        value = self.headers.get("message-id")
        return None if value is None else normalise_message_id(value)

    @property
    def in_reply_to(self) -> list[str]:
        return parse_references(self.headers.get("in-reply-to") or "")

    @property
    def references(self) -> list[str]:
        """Normalised ids, the last 200, malformed ones skipped."""
        return self.kept_references()[0]

    def kept_references(self) -> tuple[list[str], bool]:
        """`references`, and whether that is all of them."""
        return kept_references(self.headers.get("references") or "")


def parse(raw: bytes, *, trace: int = 0, max_depth: int = MAX_DEPTH, max_parts: int = MAX_PARTS) -> Message:
    """Scan `raw` once. Never raises on content; time is linear in its size, memory bounded by the caps.

    The first `trace` octets are whole fields that we wrote before the message: how it begins, and what its line ends
    are, is what comes after them.
    """
    lines = raw
    if raw.find(b"\n", trace) < 0 and raw.find(b"\r", trace) >= 0:
        # The line ends of old Macs; offsets stay what they are.
        lines = raw[:trace] + raw[trace:].replace(b"\r", b"\n")
    scan = _Scan(lines, max_depth, max_parts, trace)
    root, headers = scan.run()
    headers.label = _label_of(root)
    return Message(root, headers, len(raw), scan.degraded)


def _label_of(root: Part) -> str | None:
    """The charset of a message: that which its first part names."""
    part = root
    while "charset" not in part.params and part.is_multipart and part.children:
        part = part.children[0]
    return part.params.get("charset")


class _Scan:
    """The open parts form a path from the root; boundaries of its open multiparts map to their place on it."""

    __slots__ = (
        "boundaries",
        "capped",
        "count",
        "degraded",
        "max_depth",
        "max_parts",
        "path",
        "places",
        "raw",
        "shadowed",
        "trace",
    )

    def __init__(self, raw: bytes, max_depth: int, max_parts: int, trace: int = 0) -> None:
        self.raw = raw
        self.trace = trace
        self.max_depth = min(max(1, max_depth), _DEPTH_CEILING)
        self.max_parts = max(1, max_parts)
        self.degraded = False
        self.capped = False
        self.count = 0
        self.path: list[Part] = []
        self.boundaries: list[bytes | None] = []  # by place on the path; None: no open multipart there
        self.shadowed: list[int | None] = []  # place that the same boundary had further out
        self.places: dict[bytes, int] = {}

    def run(self) -> tuple[Part, Headers]:
        raw, places = self.raw, self.places
        find, place_of = raw.find, places.get
        at, headers = self._open(0)
        root = self.path[0]
        misses = 0
        while places:
            if misses > _PATIENCE:
                at, misses = self._next_boundary(at), 0
            # The line feed before a boundary belongs to it (RFC 2046 §5.1.1); bodies start after one.
            hit = find(b"\n--", at - 1 if at else 0)
            if hit < 0:
                break
            line_end = find(b"\n", hit + 3)
            at = line_end + 1 if line_end >= 0 else len(raw)
            line = raw[hit + 3 : at].rstrip()
            place = place_of(line)
            closing = place is None and line[-2:] == b"--"
            if closing:
                place = place_of(line[:-2])
            if place is None:
                misses += 1
                continue
            self._close_below(place, hit - 1 if hit and raw[hit - 1] == 0x0D else hit)
            if closing:
                self._retire(place)
            elif self.count >= self.max_parts:
                self.degraded = self.capped = True
                break
            else:
                at, _ = self._open(at)
        self._close_below(-1, len(raw))
        return root, headers

    def _next_boundary(self, at: int) -> int:
        """Skip lines that merely look like boundaries; returns where to look on. Compiled, hence only for floods."""
        names = b"|".join(map(re.escape, self.places))
        found = re.compile(rb"\n--(?:%b)(?:--)?[ \t\r]*+(?:\n|\Z)" % names).search(self.raw, at - 1)
        return len(self.raw) if found is None else found.start() + 1

    def _open(self, start: int) -> tuple[int, Headers]:
        """Open the part whose header starts at `start` and, for messages, those nested at its very beginning.

        Returns where the content of the innermost begins and the fields of the first.
        """
        first: Headers | None = None
        is_message = not self.path
        while True:
            body_start, fields = self._header(start, is_message)
            parent = self.path[-1] if self.path else None
            digest = parent is not None and parent.type == "multipart" and parent.subtype == "digest"
            part = _describe(fields, digest)
            part.header_start, part.body_start, part.body_end = start, body_start, body_start
            if first is None:
                first = Headers(fields)
            if parent is not None:
                parent.children.append(part)
                if is_message:
                    part.envelope = render_envelope(Headers(fields))
            self.path.append(part)
            self.boundaries.append(None)
            self.shadowed.append(None)
            self.count += 1
            if part.type == "multipart":
                self._enter_multipart(part)
            elif part.type == "message" and part.subtype in ("rfc822", "global") and self._is_unencoded(part):
                if len(self.path) < self.max_depth and self.count < self.max_parts:
                    start, is_message = body_start, True
                    continue
                self.degraded = self.capped = True
            return body_start, first

    def _is_unencoded(self, part: Part) -> bool:
        """Whether a nested message can be read where it stands (RFC 2046 §5.2.1 allows nothing else)."""
        if part.encoding in _UNENCODED:
            return True
        if part.encoding == "base64" and _SURE_FIELD.match(self.raw, part.body_start):
            part.encoding = "7bit"  # the label is wrong: a colon is no base64
            return True
        return False

    def _enter_multipart(self, part: Part) -> None:
        boundary = parameters.boundary(part.params)
        if boundary is None:
            self.degraded = True
            _make_plain(part)
        elif len(self.path) >= self.max_depth:
            self.degraded = self.capped = True
        else:
            place = len(self.path) - 1
            self.boundaries[place] = boundary
            self.shadowed[place] = self.places.get(boundary)
            self.places[boundary] = place

    def _close_below(self, place: int, end: int) -> None:
        """End every open part deeper than `place` at `end`; multiparts among them lack their closing line."""
        while len(self.path) - 1 > place:
            deepest = len(self.path) - 1
            if self.boundaries[deepest] is not None:
                self.degraded = True
                self._retire(deepest)
            part = self.path.pop()
            self.boundaries.pop()
            self.shadowed.pop()
            end = part.body_end = max(end, part.body_start)
            if part.type == "multipart" and not part.children and not self.capped:
                # Its boundary never came: show what there is rather than nothing.
                self.degraded = True
                _make_plain(part)
            if part.type in ("text", "message"):
                part.lines = self.raw.count(b"\n", part.body_start, end)

    def _retire(self, place: int) -> None:
        """Forget the boundary of the multipart at `place`; what follows up to its parent's boundary is epilogue."""
        boundary = self.boundaries[place]
        if boundary is None:
            return
        outer = self.shadowed[place]
        if outer is None:
            del self.places[boundary]
        else:
            self.places[boundary] = outer
        self.boundaries[place] = None

    def _header(self, start: int, is_message: bool) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Find the end of the header block at `start`; returns where the content begins, and the fields.

        A line that is no field ends the header if no field follows it directly (there is no blank line then), else it
        is skipped.
        """
        raw = self.raw
        begin = start or self.trace
        end = self._first_line(begin) if is_message else begin
        while True:
            lines = _FIELD_LINES.match(raw, end)
            end = lines.end() if lines else end
            if end >= len(raw):
                body_start = end
                break
            blank = _BLANK_LINE.match(raw, end)
            if blank is not None:
                body_start = blank.end()
                break
            self.degraded = True
            next_line = raw.find(b"\n", end) + 1
            if end == begin or raw.startswith(b"--", end) or not next_line or not _FIELD_START.match(raw, next_line):
                body_start = end
                break
            end = next_line
        if end - start > MAX_HEADER_BYTES:
            self.degraded = True
            end = start + MAX_HEADER_BYTES
        fields: list[tuple[bytes, bytes]] = FIELD.findall(raw, begin, end)
        if begin > start:
            fields = FIELD.findall(raw, start, begin) + fields  # a folded line at the beginning is no part of ours
        if len(fields) > MAX_FIELDS:
            self.degraded = True
            del fields[MAX_FIELDS:]
        return body_start, fields

    def _first_line(self, start: int) -> int:
        """Where the header of a message begins: after the line of an mbox, and a line that is none of the header."""
        raw = self.raw
        mbox = _MBOX_LINE.match(raw, start)
        if mbox is not None:
            start = mbox.end()
        if _FIELD_START.match(raw, start) or _BLANK_LINE.match(raw, start) or raw.startswith(b"--", start):
            return start
        after = raw.find(b"\n", start) + 1
        if after and _SURE_FIELD.match(raw, after):
            self.degraded = True
            return after
        return start


_UNENCODED: Final = frozenset({"", "7bit", "8bit", "binary"})


def _make_plain(part: Part) -> None:
    part.type, part.subtype, part.params = "text", "plain", {}


def _describe(fields: list[tuple[bytes, bytes]], digest: bool) -> Part:
    """A part without offsets from its Content-* fields; of repeated fields the first counts.

    Of repeated types the first that is a multipart: a program that wrote parts wrote that one.
    """
    part = Part(0, 0, 0)
    content: dict[bytes, bytes] = {}
    for name, value in fields:
        if len(name) > 8 and name[7] == 0x2D and name[:8].lower() == b"content-":
            key = name[8:].lower()
            if key == b"type" and key in content:
                kind, _, found = parameters.parse_content_type(parameters.text_of(content[key]))
                if kind != "multipart" or parameters.boundary(found) is None:
                    repeated = parameters.parse_content_type(parameters.text_of(value))
                    if repeated[0] == "multipart" and parameters.boundary(repeated[2]) is not None:
                        content[key] = value
            else:
                content.setdefault(key, value)
    value = content.get(b"type", b"")
    if value:
        part.type, part.subtype, part.params = parameters.parse_content_type(parameters.text_of(value))
    elif digest:
        part.type, part.subtype = "message", "rfc822"  # RFC 2046 §5.1.5
    if len(content) <= (1 if value else 0):
        return part
    for name, raw_value in content.items():
        if name == b"type":
            continue
        text = parameters.text_of(raw_value)
        if name == b"transfer-encoding":
            part.encoding = parameters.parse_encoding(text)
        elif not text:
            continue
        elif name == b"disposition":
            part.disposition, part.disposition_params = parameters.parse_disposition(text)
        elif name == b"id":
            part.content_id = text
        elif name == b"description":
            part.description = text
        elif name == b"md5":
            part.md5 = text
        elif name == b"language":
            part.language = tuple(tag for tag in (t.strip() for t in text[:1024].split(",")) if tag)
        elif name == b"location":
            part.location = "".join(text.split())
    return part


def nested_headers(raw: bytes, part: Part) -> Headers:
    """Header fields of any part, or of a nested message given its root part."""
    end = min(part.body_start, part.header_start + MAX_HEADER_BYTES)
    return Headers.parse(raw[part.header_start : end])


def nested_subject(raw: bytes, part: Part) -> str | None:
    """Decoded subject of the message that a message/rfc822 part contains."""
    root = part.nested
    value = None if root is None else nested_headers(raw, root).get_raw("subject")
    return None if value is None else decode_value(value)
