"""Sections of a message as byte ranges of its blob (RFC 3501 §6.4.5, mail-server D6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from postroom.blobs import Span
from postroom.imap.fetch import FetchAtt, FetchItem, SectionText
from postroom.imap.fetch import Section as WireSection
from postroom.mail.imap_data import Section, SectionKind, SectionSlice, section_slices
from postroom.mail.mime import Part
from postroom.mail.tree import unpack_tree
from postroom.servers.imap.facts import Facts

_WHOLE: Final = Section()
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

    @property
    def needs_tree(self) -> bool:
        """Whether the part tree is needed to find it."""
        return self.section is not _WHOLE


@dataclass(frozen=True, slots=True)
class Piece:
    """Where an item's octets are: a span of the blob, what of it is shown, and which part of that the client wants.

    Without a span the item is NIL: there is no such part.
    """

    label: bytes
    span: Span | None
    slice: SectionSlice | None = None
    partial: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Octets to read."""
        return 0 if self.span is None else self.span.end - self.span.start

    @property
    def is_streamable(self) -> bool:
        """Whether the span's octets are the value as they stand."""
        return self.slice is None

    def value(self, data: bytes) -> bytes:
        """The item's octets, given those of the span."""
        if self.slice is None:
            return data
        shown = self.slice.apply(data)
        return shown if self.partial is None else shown[self.partial[0] : self.partial[0] + self.partial[1]]


def section_items(items: Iterable[FetchItem]) -> list[SectionItem]:
    """Those of `items` whose value is octets of the message."""
    found = []
    for item in items:
        section = _OF_RFC822.get(item.att)
        if section is None and item.att is FetchAtt.SECTION and item.section is not None:
            section = _section(item.section)
        if section is not None:
            found.append(SectionItem(item.label, section, item.partial, item.marks_seen))
    return found


def _section(wire: WireSection) -> Section:
    if not wire.part and wire.text is SectionText.ALL:
        return _WHOLE
    kind = SectionKind(wire.text.value) if wire.text else None
    return Section(wire.part, kind, tuple(name.decode("latin-1") for name in wire.fields))


def pieces(facts: Facts, items: Iterable[SectionItem]) -> list[Piece]:
    """Where the octets of each item are. Raises ValueError when the stored part tree cannot be read."""
    root: Part | None = None
    found = []
    for item in items:
        if item.needs_tree:
            root = root or unpack_tree(facts.part_tree or b"")
            where = section_slices(facts.size, root, item.section)
        else:
            where = SectionSlice(0, facts.size)
        found.append(_piece(facts, item, where))
    return found


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
