"""What IMAP serves of a message: ENVELOPE, BODY, BODYSTRUCTURE, and sections (RFC 3501 §6.4.5, §7.4.2; mail server D6).

Structures come from the part tree alone, sections are byte ranges of the raw message.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from postroom.mail.envelope import imap_string, imap_text, render_envelope
from postroom.mail.mime import Message, Part, find_part

# What stands for the content of a multipart or message that was not opened: both must contain something.
_EMPTY_TEXT: Final = '("text" "plain" ("charset" "us-ascii") NIL NIL "7bit" 0 0)'
_EMPTY_ENVELOPE: Final = "(NIL NIL NIL NIL NIL NIL NIL NIL NIL NIL)"
_ATTRIBUTE_SAFE: Final = "!#$&+-.^_`{|}~"  # RFC 2231 §7 attribute-char beside letters and digits

_HEADER_CHUNK: Final = re.compile(rb"(?:([!-9;-~]++)[ \t]*+:)?[^\n]*+(?:\n[ \t][^\n]*+)*+(?:\n|\Z)")


def envelope(message: Message) -> bytes:
    """ENVELOPE of a parsed message, e.g. `("date" "subject" ((…)) …)`."""
    return render_envelope(message.headers)


def body(root: Part) -> bytes:
    """BODY: the structure without extension data."""
    return _render(root, extended=False).encode("latin-1")


def bodystructure(root: Part) -> bytes:
    """BODYSTRUCTURE: with MD5, disposition, language and location."""
    return _render(root, extended=True).encode("latin-1")


def _render(part: Part, extended: bool) -> str:
    if part.type == "multipart":
        inner = "".join([_render(child, extended) for child in part.children]) or _EMPTY_TEXT
        tail = f" {_params(part.params)}{_extension(part)}" if extended else ""
        return f"({inner} {imap_string(part.subtype)}{tail})"
    size = part.body_end - part.body_start
    params = part.params
    if part.type == "text" and part.subtype == "plain" and not params:
        params = {"charset": "us-ascii"}  # RFC 2045 §5.2
    out = (
        f"({imap_string(part.type)} {imap_string(part.subtype)} {_params(params)} {_nstring(part.content_id)} "
        f"{_ntext(part.description)} {imap_string(part.encoding)} {size}"
    )
    if part.type == "text":
        out += f" {part.lines or 0}"
    elif part.type == "message" and part.subtype in ("rfc822", "global"):
        nested = part.nested
        inner = _EMPTY_TEXT if nested is None else _render(nested, extended)
        facts = nested.envelope.decode("latin-1") if nested is not None and nested.envelope else _EMPTY_ENVELOPE
        out += f" {facts} {inner} {part.lines or 0}"
    return f"{out} {_nstring(part.md5)}{_extension(part)})" if extended else f"{out})"


def _extension(part: Part) -> str:
    if part.disposition is None:
        disposition = "NIL"
    else:
        disposition = f"({imap_string(part.disposition)} {_params(part.disposition_params)})"
    if not part.language:
        language = "NIL"
    elif len(part.language) == 1:
        language = imap_string(part.language[0])
    else:
        language = f"({' '.join(imap_string(tag) for tag in part.language)})"
    return f" {disposition} {language} {_nstring(part.location)}"


def _params(params: dict[str, str]) -> str:
    if not params:
        return "NIL"
    out: list[str] = []
    for name, value in params.items():
        if value.isascii():
            out.append(f"{imap_string(name)} {imap_string(value)}")
        else:
            encoded = quote(value, safe=_ATTRIBUTE_SAFE, errors="replace")
            out.append(f"{imap_string(name + '*')} \"utf-8''{encoded}\"")
    return f"({' '.join(out)})"


def _nstring(text: str | None) -> str:
    return "NIL" if text is None else imap_string(text)


def _ntext(text: str | None) -> str:
    return "NIL" if text is None else imap_text(text)


class SectionKind(StrEnum):
    """The `section-text` of a FETCH item (RFC 3501 §9)."""

    HEADER = "HEADER"
    HEADER_FIELDS = "HEADER.FIELDS"
    HEADER_FIELDS_NOT = "HEADER.FIELDS.NOT"
    TEXT = "TEXT"
    MIME = "MIME"


@dataclass(frozen=True, slots=True)
class Section:
    """What stands between the brackets of `BODY[…]`: part numbers, then a kind (None: the content itself)."""

    parts: tuple[int, ...] = ()
    kind: SectionKind | None = None
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SectionSlice:
    """Bytes `start` to `end` of the raw message; with `fields` not None, only those fields of that header."""

    start: int
    end: int
    fields: tuple[str, ...] | None = None
    negate: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the section is the byte range itself, so that it can be streamed and cut without being read."""
        return self.fields is None

    def apply(self, data: bytes) -> bytes:
        """The section, given the bytes of its range."""
        return data if self.fields is None else filter_fields(data, self.fields, self.negate)


def section_slices(raw_size: int, root: Part, section: Section) -> SectionSlice | None:
    """Where a section lies in a message of `raw_size` octets; None if there is no such part (RFC 3501 §6.4.5)."""
    kind = section.kind
    if not section.parts:
        if kind is None:
            return SectionSlice(0, raw_size)
        return None if kind is SectionKind.MIME else _of_message(root, section)
    part = find_part(root, section.parts)
    if part is None:
        return None
    if kind is None:
        return SectionSlice(part.body_start, part.body_end)
    if kind is SectionKind.MIME:
        return SectionSlice(part.header_start, part.body_start)
    nested = part.nested
    return None if nested is None else _of_message(nested, section)


def _of_message(root: Part, section: Section) -> SectionSlice:
    if section.kind is SectionKind.TEXT:
        return SectionSlice(root.body_start, root.body_end)
    if section.kind is SectionKind.HEADER:
        return SectionSlice(root.header_start, root.body_start)
    return SectionSlice(
        root.header_start, root.body_start, section.fields, section.kind is SectionKind.HEADER_FIELDS_NOT
    )


def filter_fields(header: bytes, fields: Sequence[str], negate: bool) -> bytes:
    """The fields of `header` that are named (or, with `negate`, are not), as they stand, and a blank line.

    Names compare without case. Lines that are no field belong to the fields that are not named.
    """
    wanted = {name.lower().encode("utf-8", "replace") for name in fields}
    kept: list[bytes] = []
    for chunk in _HEADER_CHUNK.finditer(header):
        text = chunk[0]
        if not text.strip(b"\r\n"):
            continue  # the blank line, or the end
        name = chunk[1]
        if (name is not None and name.lower() in wanted) is not negate:
            kept.append(text)
    line_end = b"\n" if b"\n" in header and b"\r\n" not in header else b"\r\n"
    if kept and not kept[-1].endswith(b"\n"):
        kept[-1] += line_end
    kept.append(line_end)
    return b"".join(kept)
