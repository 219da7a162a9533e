"""FETCH items: types, and the table of words that read them (RFC 9051 §6.4.5, RFC 3501 §6.4.5, spec D6).

A new item is a member of `FetchAtt` and a row of `FETCH_ITEMS` (or `SECTION_ITEMS` when it takes ``[section]``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from postroom.imap.cursor import MAX_NUMBER, MAX_NUMBER64, Cursor, Row, look_up
from postroom.imap.errors import BadCommand, Code, ProtocolNo
from postroom.imap.render import astring

#: Our limits: items of one FETCH, names of one HEADER.FIELDS, depth of a part number.
MAX_ITEMS = 128
MAX_HEADER_NAMES = 1_000
MAX_PART_DEPTH = 64

_SECTION = re.compile(rb"([0-9.]*)([A-Za-z.]*)").match
_HEADER_NAME = re.compile(rb"[!-9;-~]{1,997}").fullmatch


class FetchAtt(StrEnum):
    """What a FETCH item asks for; the value is the word of the response."""

    FLAGS = "FLAGS"
    UID = "UID"
    INTERNALDATE = "INTERNALDATE"
    ENVELOPE = "ENVELOPE"
    BODYSTRUCTURE = "BODYSTRUCTURE"
    BODY_STRUCTURE_PLAIN = "BODY"
    SECTION = "BODY[]"
    BINARY = "BINARY"
    BINARY_SIZE = "BINARY.SIZE"
    RFC822 = "RFC822"
    RFC822_HEADER = "RFC822.HEADER"
    RFC822_TEXT = "RFC822.TEXT"
    RFC822_SIZE = "RFC822.SIZE"
    MODSEQ = "MODSEQ"
    EMAILID = "EMAILID"
    THREADID = "THREADID"
    SAVEDATE = "SAVEDATE"
    PREVIEW = "PREVIEW"
    PREVIEW_LAZY = "PREVIEW (LAZY)"


class SectionText(StrEnum):
    """Which text of a part a section names; `ALL` is the part itself."""

    ALL = ""
    HEADER = "HEADER"
    HEADER_FIELDS = "HEADER.FIELDS"
    HEADER_FIELDS_NOT = "HEADER.FIELDS.NOT"
    TEXT = "TEXT"
    MIME = "MIME"


@dataclass(frozen=True, slots=True)
class Section:
    """``section-spec``: part numbers from 1 (none: the message), the text, header names as the client wrote them."""

    part: tuple[int, ...] = ()
    text: SectionText = SectionText.ALL
    fields: tuple[bytes, ...] = ()

    def __bytes__(self) -> bytes:
        label = b".".join(b"%d" % number for number in self.part)
        if self.text:
            label += (b"." if label else b"") + self.text.encode()
        if self.text in _WITH_FIELDS:
            label += b" (" + b" ".join(astring(name) for name in self.fields) + b")"
        return label


@dataclass(frozen=True, slots=True)
class FetchItem:
    """One item. `section` only for `SECTION`, `BINARY`, `BINARY_SIZE`; `partial` is (offset, count) in octets."""

    att: FetchAtt
    section: Section | None = None
    partial: tuple[int, int] | None = None
    peek: bool = True

    @property
    def marks_seen(self) -> bool:
        """Whether fetching it sets ``\\Seen`` (spec D5)."""
        return not self.peek

    @property
    def label(self) -> bytes:
        """The item's name in the FETCH response, e.g. ``b'BODY[1.HEADER]<0>'``."""
        if self.section is None:
            return _LABELS[self.att]
        word = b"BODY" if self.att is FetchAtt.SECTION else self.att.encode()
        origin = b"" if self.partial is None else b"<%d>" % self.partial[0]
        return b"%b[%b]%b" % (word, bytes(self.section), origin)


class FetchModifier:
    """Base of what may follow the items in parentheses (RFC 4466 §2.4)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ChangedSince(FetchModifier):
    """``CHANGEDSINCE`` (RFC 7162 §3.1.4.1)."""

    modseq: int


@dataclass(frozen=True, slots=True)
class Vanished(FetchModifier):
    """``VANISHED``: also what went since (RFC 7162 §3.2.6)."""


_WITH_FIELDS = frozenset({SectionText.HEADER_FIELDS, SectionText.HEADER_FIELDS_NOT})
_TEXTS = {text.encode(): text for text in SectionText}
_LABELS = {att: b"PREVIEW" if att is FetchAtt.PREVIEW_LAZY else att.encode() for att in FetchAtt}


def _simple(att: FetchAtt, capability: str | None = None, *, peek: bool = True) -> Row[FetchItem]:
    return Row.constant(FetchItem(att, peek=peek), capability)


def _preview(cursor: Cursor) -> FetchItem:
    mark = cursor.pos
    cursor.skip_spaces()
    if cursor.take(b"("):
        cursor.skip_spaces()
        if cursor.peek_word() == b"LAZY":
            cursor.word()
            if not cursor.closes():
                raise BadCommand("Unknown PREVIEW modifier")
            return FetchItem(FetchAtt.PREVIEW_LAZY)
    cursor.pos = mark  # what stands in the parentheses may be modifiers of FETCH
    return FetchItem(FetchAtt.PREVIEW)


FETCH_ITEMS: Mapping[bytes, Row[FetchItem]] = MappingProxyType(
    {
        b"FLAGS": _simple(FetchAtt.FLAGS),
        b"UID": _simple(FetchAtt.UID),
        b"INTERNALDATE": _simple(FetchAtt.INTERNALDATE),
        b"ENVELOPE": _simple(FetchAtt.ENVELOPE),
        b"BODY": _simple(FetchAtt.BODY_STRUCTURE_PLAIN),
        b"BODYSTRUCTURE": _simple(FetchAtt.BODYSTRUCTURE),
        b"RFC822": _simple(FetchAtt.RFC822, peek=False),
        b"RFC822.HEADER": _simple(FetchAtt.RFC822_HEADER),
        b"RFC822.TEXT": _simple(FetchAtt.RFC822_TEXT, peek=False),
        b"RFC822.SIZE": _simple(FetchAtt.RFC822_SIZE),
        b"MODSEQ": _simple(FetchAtt.MODSEQ, "CONDSTORE"),
        b"EMAILID": _simple(FetchAtt.EMAILID, "OBJECTID"),
        b"THREADID": _simple(FetchAtt.THREADID, "OBJECTID"),
        b"SAVEDATE": _simple(FetchAtt.SAVEDATE, "SAVEDATE"),
        b"PREVIEW": Row(_preview, "PREVIEW"),
    }
)


def _body_section(cursor: Cursor, *, peek: bool) -> FetchItem:
    section = _section(cursor)
    return FetchItem(FetchAtt.SECTION, section, _partial(cursor), peek)


def _binary_section(cursor: Cursor, *, peek: bool) -> FetchItem:
    section = _part_only(cursor)
    return FetchItem(FetchAtt.BINARY, section, _partial(cursor), peek)


SECTION_ITEMS: Mapping[bytes, Row[FetchItem]] = MappingProxyType(
    {
        b"BODY": Row(lambda cursor: _body_section(cursor, peek=False)),
        b"BODY.PEEK": Row(lambda cursor: _body_section(cursor, peek=True)),
        b"BINARY": Row(lambda cursor: _binary_section(cursor, peek=False), "BINARY"),
        b"BINARY.PEEK": Row(lambda cursor: _binary_section(cursor, peek=True), "BINARY"),
        b"BINARY.SIZE": Row(lambda cursor: FetchItem(FetchAtt.BINARY_SIZE, _part_only(cursor)), "BINARY"),
    }
)


def _macro(*words: bytes) -> tuple[FetchItem, ...]:
    return tuple(FETCH_ITEMS[word].read(Cursor(b"")) for word in words)


_FAST = _macro(b"FLAGS", b"INTERNALDATE", b"RFC822.SIZE")
#: Macros stand alone, never in a list (RFC 9051 §6.4.5).
FETCH_MACROS: Mapping[bytes, tuple[FetchItem, ...]] = MappingProxyType(
    {b"FAST": _FAST, b"ALL": _FAST + _macro(b"ENVELOPE"), b"FULL": _FAST + _macro(b"ENVELOPE", b"BODY")}
)

FETCH_MODIFIERS: Mapping[bytes, Row[FetchModifier]] = MappingProxyType(
    {
        b"CHANGEDSINCE": Row(lambda cursor: ChangedSince(_modseq(cursor)), "CONDSTORE"),
        b"VANISHED": Row.constant(Vanished(), "QRESYNC"),
    }
)


def read_items(cursor: Cursor) -> tuple[FetchItem, ...]:
    """The items of a FETCH: a macro, one item, or a list. Repeated items are asked for once."""
    if cursor.at(b"("):
        found = cursor.items(lambda: read_item(cursor), empty=False, limit=MAX_ITEMS)
        return tuple(dict.fromkeys(found)) if len(found) > 1 else tuple(found)
    macro = FETCH_MACROS.get(cursor.peek_word())
    if macro is not None:
        cursor.word()
        return macro
    return (read_item(cursor),)


def read_item(cursor: Cursor) -> FetchItem:
    """One ``fetch-att``."""
    word = cursor.word()
    table = SECTION_ITEMS if cursor.take(b"[") else FETCH_ITEMS
    return look_up(table, word, cursor.options, "Unknown FETCH item").read(cursor)


def read_section(text: bytes) -> Section:
    """What may stand between the brackets of ``BODY[…]``, on its own (RFC 5092 §6). Raises as `read_item`."""
    cursor = Cursor(text + b"]")
    section = _section(cursor)
    cursor.finish()
    return section


def read_modifiers(cursor: Cursor) -> tuple[FetchModifier, ...]:
    """``fetch-modifiers`` in parentheses."""

    def one() -> FetchModifier:
        row = look_up(FETCH_MODIFIERS, cursor.word(), cursor.options, "Unknown FETCH modifier")
        return row.read(cursor)

    return tuple(cursor.items(one, empty=False))


def _modseq(cursor: Cursor) -> int:
    cursor.space()
    return cursor.number(0, MAX_NUMBER64)


def _section(cursor: Cursor) -> Section:
    found = _SECTION(cursor.text, cursor.pos)
    assert found is not None  # the pattern matches the empty string
    cursor.pos = found.end()
    numbers, word = found[1], found[2].upper()
    if word and numbers:
        if not numbers.endswith(b"."):
            raise BadCommand("Invalid section")
        numbers = numbers[:-1]
    part = _part(numbers) if numbers else ()
    text = _TEXTS.get(word)
    if text is None or (text is SectionText.MIME and not part):
        raise BadCommand("Invalid section")
    fields: tuple[bytes, ...] = ()
    if text in _WITH_FIELDS:
        cursor.skip_spaces()
        fields = tuple(cursor.items(lambda: _header_name(cursor), empty=False, limit=MAX_HEADER_NAMES))
    cursor.skip_spaces()
    cursor.expect(b"]")
    return Section(part, text, fields)


def _part_only(cursor: Cursor) -> Section:
    section = _section(cursor)
    if section.text is not SectionText.ALL:
        raise BadCommand("Invalid section")
    return section


def _part(numbers: bytes) -> tuple[int, ...]:
    pieces = numbers.split(b".")
    if len(pieces) > MAX_PART_DEPTH:
        raise ProtocolNo(Code.LIMIT, "Part number too deep")
    if any(not piece or piece[:1] == b"0" or len(piece) > 10 for piece in pieces):
        raise BadCommand("Invalid part number")
    part = tuple(int(piece) for piece in pieces)
    if max(part) > MAX_NUMBER:
        raise BadCommand("Invalid part number")
    return part


def _header_name(cursor: Cursor) -> bytes:
    name = cursor.astring()
    if not _HEADER_NAME(name):
        raise BadCommand("Invalid header field name")
    return name


def _partial(cursor: Cursor) -> tuple[int, int] | None:
    if not cursor.take(b"<"):
        return None
    offset = cursor.number(0, MAX_NUMBER64)
    cursor.expect(b".")
    count = cursor.number(1, MAX_NUMBER64)
    cursor.expect(b">")
    return offset, count
