"""Sections of a message as byte ranges of its blob (RFC 3501 §6.4.5, mail-server D6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from postroom.blobs import Span
from postroom.imap.fetch import FetchAtt, FetchItem, SectionText
from postroom.imap.fetch import Section as WireSection
from postroom.mail import transfer
from postroom.mail.imap_data import Section, SectionKind, SectionSlice, section_slices
from postroom.mail.mime import Part, find_part
from postroom.mail.tree import unpack_tree
from postroom.servers.imap.facts import Facts

_WHOLE: Final = Section()
_BINARY: Final = frozenset({FetchAtt.BINARY, FetchAtt.BINARY_SIZE})
_OF_RFC822: Final = {
    FetchAtt.RFC822: _WHOLE,
    FetchAtt.RFC822_HEADER: Section(kind=SectionKind.HEADER),
    FetchAtt.RFC822_TEXT: Section(kind=SectionKind.TEXT),
}


@dataclass(frozen=True, slots=True)
class SectionItem:
    """A FETCH item whose value is octets of the message."""

    label: bytes
    section: Section
    partial: tuple[int, int] | None
    marks_seen: bool
    att: FetchAtt = FetchAtt.SECTION

    @property
    def needs_tree(self) -> bool:
        """Whether the part tree is needed to find it."""
        return self.section is not _WHOLE


@dataclass(frozen=True, slots=True)
class Piece:
    """Where an item's octets are: a span of the blob, what of it is shown, and which part of that the client wants.

    Without a span the item is NIL: there is no such part. `coded` is the part whose octets are to be decoded, `number`
    what a BINARY.SIZE shows that is known already.
    """

    label: bytes
    span: Span | None
    slice: SectionSlice | None = None
    partial: tuple[int, int] | None = None
    coded: Part | None = None
    number: int | None = None
    is_size: bool = False

    @property
    def size(self) -> int:
        """Octets to read."""
        return 0 if self.span is None else self.span.end - self.span.start

    @property
    def is_streamable(self) -> bool:
        """Whether the span's octets are the value as they stand."""
        return self.slice is None and self.coded is None

    def value(self, data: bytes) -> bytes:
        """The item's octets, given those of the span."""
        if self.coded is not None:
            return self.cut(transfer.content(data, self.coded))
        return data if self.slice is None else self.cut(self.slice.apply(data))

    def cut(self, shown: bytes) -> bytes:
        """What of a value the client wants."""
        return shown if self.partial is None else shown[self.partial[0] : self.partial[0] + self.partial[1]]


class UnknownEncoding(Exception):
    """A part has a Content-Transfer-Encoding that nobody knows (RFC 3516 §4.3)."""


def section_items(items: Iterable[FetchItem]) -> list[SectionItem]:
    """Those of `items` whose value is octets of the message."""
    found = []
    for item in items:
        section = _OF_RFC822.get(item.att)
        if section is None and item.section is not None:
            section = _section(item.section)
        if section is not None:
            found.append(SectionItem(item.label, section, item.partial, item.marks_seen, item.att))
    return found


def _section(wire: WireSection) -> Section:
    if not wire.part and wire.text is SectionText.ALL:
        return _WHOLE
    kind = SectionKind(wire.text.value) if wire.text else None
    return Section(wire.part, kind, tuple(name.decode("latin-1") for name in wire.fields))


def pieces(facts: Facts, items: Iterable[SectionItem]) -> list[Piece]:
    """Where the octets of each item are.

    Raises ValueError when the stored part tree cannot be read, `UnknownEncoding`.
    """
    root: Part | None = None
    found = []
    for item in items:
        if item.needs_tree:
            root = root or unpack_tree(facts.part_tree or b"")
            where = section_slices(facts.size, root, item.section)
        else:
            where = SectionSlice(0, facts.size)
        if item.att in _BINARY:
            found.append(_binary(facts, item, where, root))
        else:
            found.append(_piece(facts, item, where))
    return found


def _binary(facts: Facts, item: SectionItem, where: SectionSlice | None, root: Part | None) -> Piece:
    """A part to be decoded. The message itself, and what holds other parts, is its own content (RFC 2045 §6.4)."""
    is_size = item.att is FetchAtt.BINARY_SIZE
    if where is None:
        return Piece(item.label, None, number=0 if is_size else None)
    start, end = where.start, max(where.start, where.end)
    part = Part(start, start, end)
    if item.section.parts and root is not None:
        part = find_part(root, item.section.parts) or part
    if not transfer.is_known(part):
        raise UnknownEncoding
    if is_size and transfer.is_identity(part):
        return Piece(item.label, None, number=end - start)
    return Piece(item.label, Span(str(facts.blob_key), start, end), None, item.partial, part, is_size=is_size)


def _piece(facts: Facts, item: SectionItem, where: SectionSlice | None) -> Piece:
    if where is None:
        return Piece(item.label, None)
    start, end = where.start, max(where.start, where.end)
    if not where.is_plain:
        return Piece(item.label, Span(str(facts.blob_key), start, end), where, item.partial)
    if item.partial is not None:
        offset, count = item.partial
        start = min(start + offset, end)
        end = min(start + count, end)
    return Piece(item.label, Span(str(facts.blob_key), start, end))
