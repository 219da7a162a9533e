"""The outside of a CMS object (RFC 5652): which type of content it is, and the content of one that is only signed.

A reader of BER (X.690 §8), as much as that takes: lengths definite and indefinite, octet strings whole and in pieces.
Nothing is verified or decrypted.
"""

from enum import Enum
from typing import Final, NamedTuple

MAX_PIECES: Final = 100_000
_MAX_DEPTH: Final = 8

_OBJECT: Final = 0x06
_OCTETS: Final = 0x04
_OCTETS_IN_PIECES: Final = 0x24
_SEQUENCE: Final = 0x30
_CONTEXT_0: Final = 0xA0


class ContentKind(Enum):
    """The object identifiers of content types, as their octets (RFC 5652, RFC 5083, RFC 3274)."""

    DATA = bytes.fromhex("2a864886f70d010701")
    SIGNED = bytes.fromhex("2a864886f70d010702")
    ENVELOPED = bytes.fromhex("2a864886f70d010703")
    ENCRYPTED = bytes.fromhex("2a864886f70d010706")
    COMPRESSED = bytes.fromhex("2a864886f70d0109100109")
    AUTH_ENVELOPED = bytes.fromhex("2a864886f70d0109100117")


class _Element(NamedTuple):
    """Content at `start` to `end`; `end` is None of an indefinite length, which ends at two zero octets."""

    tag: int
    start: int
    end: int | None


class _Malformed(Exception):
    pass


def content_kind(data: bytes) -> ContentKind | None:
    """What a CMS object holds, from its first octets; None for other data. Never raises on content."""
    try:
        outer = _expect(data, 0, _SEQUENCE)
        kind = _expect(data, outer.start, _OBJECT)
        return ContentKind(data[kind.start : kind.end])
    except (_Malformed, ValueError):
        return None


def signed_content(data: bytes) -> bytes | None:
    """The content that a signed-data object carries: for S/MIME a MIME entity (RFC 8551 §3.5.2).

    None when it carries none, as certificates alone and detached signatures do, or is malformed. Never raises.
    """
    if content_kind(data) is not ContentKind.SIGNED:
        return None
    try:
        outer = _expect(data, 0, _SEQUENCE)
        kind = _expect(data, outer.start, _OBJECT)
        wrapped = _expect(data, _end(kind), _CONTEXT_0)
        signed = _expect(data, wrapped.start, _SEQUENCE)
        version = _element(data, signed.start)
        algorithms = _element(data, _end(version))
        inner = _expect(data, _skip(data, algorithms), _SEQUENCE)
        inner_kind = _expect(data, inner.start, _OBJECT)
        if inner.end is not None and _end(inner_kind) >= inner.end:
            return None
        content = _expect(data, _end(inner_kind), _CONTEXT_0)
        return _octets(data, content.start)
    except _Malformed:
        return None


def _element(data: bytes, at: int) -> _Element:
    """X.690 §8.1; tags of more than one octet do not occur here."""
    if at + 2 > len(data) or data[at] & 0x1F == 0x1F:
        raise _Malformed
    tag, length = data[at], data[at + 1]
    start = at + 2
    if length == 0x80:
        if not tag & 0x20:
            raise _Malformed
        return _Element(tag, start, None)
    if length > 0x80:
        octets = length & 0x7F
        if octets > 8 or start + octets > len(data):
            raise _Malformed
        length = int.from_bytes(data[start : start + octets], "big")
        start += octets
    return _Element(tag, start, start + length)


def _expect(data: bytes, at: int, tag: int) -> _Element:
    found = _element(data, at)
    if found.tag != tag:
        raise _Malformed
    return found


def _end(found: _Element) -> int:
    if found.end is None:
        raise _Malformed
    return found.end


def _skip(data: bytes, found: _Element) -> int:
    """Where what comes after begins; of an indefinite length, after the elements within."""
    if found.end is not None:
        return found.end
    at, open_elements, seen = found.start, 1, 0
    while open_elements:
        seen += 1
        if seen > MAX_PIECES or open_elements > _MAX_DEPTH:
            raise _Malformed
        if data[at : at + 2] == b"\x00\x00":
            open_elements -= 1
            at += 2
            continue
        inner = _element(data, at)
        if inner.end is None:
            open_elements += 1
            at = inner.start
        else:
            at = inner.end
    return at


def _octets(data: bytes, at: int) -> bytes:
    """An octet string, also one in pieces that are in pieces (X.690 §8.7)."""
    first = _element(data, at)
    if first.tag == _OCTETS:
        if _end(first) > len(data):
            raise _Malformed
        return data[first.start : first.end]
    if first.tag != _OCTETS_IN_PIECES:
        raise _Malformed
    pieces: list[bytes] = []
    ends: list[int | None] = [first.end]  # of the strings that are open
    at = first.start
    for _ in range(MAX_PIECES):
        end = ends[-1]
        if end is not None and at >= end:
            ends.pop()
        elif end is None and data[at : at + 2] == b"\x00\x00":
            ends.pop()
            at += 2
        else:
            piece = _element(data, at)
            if piece.tag == _OCTETS_IN_PIECES and len(ends) < _MAX_DEPTH:
                ends.append(piece.end)
                at = piece.start
            elif piece.tag == _OCTETS and _end(piece) <= len(data):
                pieces.append(data[piece.start : piece.end])
                at = _end(piece)
            else:
                raise _Malformed
        if not ends:
            return b"".join(pieces)
    raise _Malformed
