"""The two layers of a TNEF stream: attributes (MS-OXTNEF §2.1.3.1), and the properties in some of them (§2.1.3.4).

Every length is checked before it is believed. What does not fit raises `Malformed`; checksums are not looked at,
because too many programs write wrong ones.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

SIGNATURE: Final = b"\x78\x9f\x3e\x22"
HEADER_BYTES: Final = 6
"""The signature and a key that nobody needs."""
MAX_ATTRIBUTES: Final = 20_000
MAX_PROPERTIES: Final = 20_000
MAX_VALUES: Final = 10_000

_ATTRIBUTE_HEAD: Final = 9
_CHECKSUM: Final = 2
_MULTIVALUED: Final = 0x1000
_NAMED: Final = 0x8000  # from this id on a name comes before the value
_FIXED: Final = {
    0x0001: 0, 0x0002: 4, 0x0003: 4, 0x0004: 4, 0x0005: 8, 0x0006: 8, 0x0007: 8, 0x000A: 4, 0x000B: 4, 0x0014: 8,
    0x0040: 8, 0x0048: 16,
}  # fmt: skip
"""Octets of the types of one size, padded to four (MS-OXCDATA §2.11.1)."""


class Malformed(Exception):
    """The stream is not what it says."""


class Level(IntEnum):
    MESSAGE = 1
    ATTACHMENT = 2


class Attribute(IntEnum):
    """The ids that matter here, type included (MS-OXTNEF §2.1.3.2)."""

    SUBJECT = 0x00018004
    BODY = 0x0002800C
    ATTACH_DATA = 0x0006800F
    ATTACH_TITLE = 0x00018010
    ATTACH_TRANSPORT_FILENAME = 0x00069001
    ATTACH_REND_DATA = 0x00069002
    MESSAGE_PROPERTIES = 0x00069003
    ATTACH_PROPERTIES = 0x00069005
    OEM_CODEPAGE = 0x00069007


class Type(IntEnum):
    """Property types whose values are read (MS-OXCDATA §2.11.1)."""

    INTEGER = 0x0003
    OBJECT = 0x000D
    STRING8 = 0x001E
    UNICODE = 0x001F
    TIME = 0x0040
    BINARY = 0x0102


_VARIABLE: Final = frozenset((Type.OBJECT, Type.STRING8, Type.UNICODE, Type.BINARY))


class Property(NamedTuple):
    """The first value of a property."""

    id: int
    type: int
    value: memoryview


def attributes(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Level, id and value of each attribute. Raises Malformed, also after some were given."""
    if bytes(data[:4]) != SIGNATURE:
        raise Malformed("signature")
    at, end = HEADER_BYTES, len(data)
    for _ in range(MAX_ATTRIBUTES):
        # Some add a line end or zeros behind the last one.
        if end - at < _ATTRIBUTE_HEAD or not any(data[at : at + _ATTRIBUTE_HEAD]):
            return
        level = data[at]
        name = number(data, at + 1)
        size = number(data, at + 5)
        start = at + _ATTRIBUTE_HEAD
        if level not in (Level.MESSAGE, Level.ATTACHMENT) or size > end - start - _CHECKSUM:
            raise Malformed("attribute")
        yield level, name, data[start : start + size]
        at = start + size + _CHECKSUM
    raise Malformed("too many attributes")


def properties(data: memoryview) -> Iterator[Property]:
    """The unnamed properties with a value of a type that is read. Raises Malformed, also after some were given."""
    count = number(data, 0)
    if count > MAX_PROPERTIES:
        raise Malformed("too many properties")
    at = 4
    for _ in range(count):
        kind, name = _short(data, at), _short(data, at + 2)
        at += 4
        if name >= _NAMED:
            at = _after_name(data, at)
        multivalued = bool(kind & _MULTIVALUED)
        base = kind & ~_MULTIVALUED
        values = 1
        if multivalued or base in _VARIABLE:
            values = number(data, at)
            at += 4
            if values > MAX_VALUES:
                raise Malformed("too many values")
            if _FIXED.get(base) == 0:
                raise Malformed("many values of nothing")  # which take time, but no octets
        for index in range(values):
            value, at = _value(data, at, base)
            if index == 0 and name < _NAMED:
                yield Property(name, base, value)


def _value(data: memoryview, at: int, base: int) -> tuple[memoryview, int]:
    if base in _VARIABLE:
        size = number(data, at)
        at += 4
        if size > len(data) - at:
            raise Malformed("value")
        return data[at : at + size], at + _padded(size)
    fixed = _FIXED.get(base)
    if fixed is None:
        raise Malformed("type")
    if fixed > len(data) - at:
        raise Malformed("value")
    return data[at : at + fixed], at + fixed


def _after_name(data: memoryview, at: int) -> int:
    """Behind the set and name of a named property (MS-OXTNEF §2.1.3.4)."""
    kind = number(data, at + 16)
    if kind == 0:
        return at + 24
    size = number(data, at + 20)
    if kind != 1 or size > len(data) - at:
        raise Malformed("name")
    return at + 24 + _padded(size)


def _padded(size: int) -> int:
    return size + -size % 4


def number(data: memoryview, at: int) -> int:
    """Four octets, little-endian. Raises Malformed where there are none."""
    piece = data[at : at + 4]
    if len(piece) < 4:
        raise Malformed("end")
    return int.from_bytes(piece, "little")


def _short(data: memoryview, at: int) -> int:
    piece = data[at : at + 2]
    if len(piece) < 2:
        raise Malformed("end")
    return int.from_bytes(piece, "little")
