"""The directory of a ZIP archive (APPNOTE.TXT), read without inflating, and checked against what the archive holds.

Programs disagree on damaged archives, and an attacker chooses which of them sees what. So an archive counts as readable
only when there is one directory, and each of its entries stands where it says, under the same name, apart from the
others, with nothing hidden between them.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

MAX_ENTRIES: Final = 10_000

_END: Final = b"PK\x05\x06"
_END_BYTES: Final = 22
_MAX_COMMENT: Final = 0xFFFF
_LOCATOR: Final = b"PK\x06\x07"
_LOCATOR_BYTES: Final = 20
_END64: Final = b"PK\x06\x06"
_END64_BYTES: Final = 56
_CENTRAL: Final = b"PK\x01\x02"
_CENTRAL_HEAD: Final = struct.Struct("<4s6H3I5H2I")
_LOCAL: Final = b"PK\x03\x04"
_LOCAL_HEAD: Final = struct.Struct("<4s5H3I2H")
_FULL: Final = 0xFFFFFFFF
_ZIP64_FIELD: Final = 0x0001
_UNICODE_PATH_FIELD: Final = 0x7075
_STORED: Final = 0
_DEFLATED: Final = 8
_ENCRYPTED: Final = 1
_DESCRIPTOR_BYTES: Final = 24


class Problem(Enum):
    """Why a directory is not to be relied on."""

    TOO_MANY = "too_many"
    OVERLAP = "overlap"
    UNREADABLE = "unreadable"


class Entry(NamedTuple):
    """`names` are all that it goes by: in the directory, before its content, and its Unicode path."""

    names: tuple[str, ...]
    encrypted: bool
    method: int
    packed: int
    size: int
    start: int
    """Where its content begins; of a damaged archive 0."""

    @property
    def name(self) -> str:
        return self.names[0]


class Archive(NamedTuple):
    """At most 10,000 entries, in the order of the directory; with a problem, those that were read."""

    entries: tuple[Entry, ...]
    problem: Problem | None


class _Malformed(Exception):
    pass


class _Head(NamedTuple):
    """An entry of the directory as written."""

    name: bytes
    unicode_name: str | None
    flags: int
    method: int
    packed: int
    size: int
    offset: int


def read_archive(data: bytes) -> Archive:
    """Entries of a ZIP archive. Never raises on content; time is linear in the octets and in at most 10,000 entries."""
    try:
        start, end, count, shift = _directory(data)
    except _Malformed:
        return Archive((), Problem.UNREADABLE)
    heads: list[_Head] = []
    problem: Problem | None = None
    try:
        for head in _heads(data, start, end):
            if len(heads) == MAX_ENTRIES:
                problem = Problem.TOO_MANY
                break
            heads.append(head)
    except _Malformed:
        problem = Problem.UNREADABLE
    if problem is None and count != len(heads):
        problem = Problem.TOO_MANY if count > MAX_ENTRIES else Problem.UNREADABLE
    if problem is not None:
        return Archive(tuple(_bare(head) for head in heads), problem)
    return _located(data, heads, start, shift)


def _directory(data: bytes) -> tuple[int, int, int, int]:
    """Start and end of the directory, its number of entries, and by how much the archive is shifted: what stands before
    it, such as a program that unpacks it."""
    at = _end_record(data)
    count, size, offset = struct.unpack_from("<HII", data, at + 10)
    end = at
    if data[at - _LOCATOR_BYTES : at - _LOCATOR_BYTES + 4] == _LOCATOR and at >= _LOCATOR_BYTES:
        (at64,) = struct.unpack_from("<Q", data, at - _LOCATOR_BYTES + 8)
        stands = at - _LOCATOR_BYTES - _END64_BYTES
        if stands < 0 or data[stands : stands + 4] != _END64:
            raise _Malformed
        count64, size64, offset64 = struct.unpack_from("<QQQ", data, stands + 32)
        if at64 > stands:
            raise _Malformed
        # Both records are of one directory, for a reader that knows the longer one only by its absence.
        for short, long, full in ((count, count64, 0xFFFF), (size, size64, _FULL), (offset, offset64, _FULL)):
            if short not in (full, long):
                raise _Malformed
        count, size, offset, end = count64, size64, offset64, stands
    start = end - size
    if size > end or offset > start:
        raise _Malformed
    return start, end, count, start - offset


def _end_record(data: bytes) -> int:
    """Where the record at the end is: the only one whose comment ends the file, else the last whose comment fits."""
    floor = max(0, len(data) - _END_BYTES - _MAX_COMMENT)
    exact: list[int] = []
    loose: int | None = None
    at = data.rfind(_END, floor)
    while at >= 0:
        ends = at + _END_BYTES + int.from_bytes(data[at + 20 : at + 22], "little")
        if at + _END_BYTES <= len(data) and ends == len(data):
            exact.append(at)
        elif at + _END_BYTES <= len(data) and ends < len(data) and loose is None:
            loose = at
        at = data.rfind(_END, floor, at)
    if len(exact) > 1:
        raise _Malformed
    if exact:
        return exact[0]
    if loose is None:
        raise _Malformed
    return loose


def _heads(data: bytes, at: int, end: int) -> Iterator[_Head]:
    while at < end:
        if at + _CENTRAL_HEAD.size > end:
            raise _Malformed
        found = _CENTRAL_HEAD.unpack_from(data, at)
        signature, _, _, flags, method, _, _, _, packed, size, names, extras, comments, _, _, _, offset = found
        if signature != _CENTRAL:
            raise _Malformed
        name_at = at + _CENTRAL_HEAD.size
        extra_at = name_at + names
        at = extra_at + extras + comments
        if at > end:
            raise _Malformed
        fields = dict(_extra_fields(data[extra_at : extra_at + extras]))
        packed, size, offset = _zip64(fields.get(_ZIP64_FIELD, b""), packed, size, offset)
        unicode_name = fields.get(_UNICODE_PATH_FIELD, b"")[5:].decode("utf-8", "replace") or None
        yield _Head(data[name_at:extra_at], unicode_name, flags, method, packed, size, offset)


def _extra_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        kind, size = struct.unpack_from("<HH", data, at)
        yield kind, data[at + 4 : at + 4 + size]
        at += 4 + size


def _zip64(field: bytes, packed: int, size: int, offset: int) -> tuple[int, int, int]:
    """Numbers that have no room in the entry itself, in this order (APPNOTE §4.5.3)."""
    at = 0
    values: list[int] = []
    for short in (size, packed, offset):
        if short == _FULL and at + 8 <= len(field):
            short = int.from_bytes(field[at : at + 8], "little")
            at += 8
        values.append(short)
    return values[1], values[0], values[2]


def _bare(head: _Head) -> Entry:
    return Entry(_names(head, None), bool(head.flags & _ENCRYPTED), head.method, head.packed, head.size, 0)


def _names(head: _Head, local: bytes | None) -> tuple[str, ...]:
    found = [_decode(head.name)]
    if local is not None and local != head.name:
        found.append(_decode(local))
    if head.unicode_name is not None:
        found.append(head.unicode_name)
    return tuple(found)


def _decode(name: bytes) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        return name.decode("cp437")


def _located(data: bytes, heads: list[_Head], directory: int, shift: int) -> Archive:
    """The entries with the place of their content, if all is where it should be."""
    problem: Problem | None = None
    entries: list[Entry] = []
    spans: list[tuple[int, int]] = []
    for head in heads:
        at = head.offset + shift
        if at + _LOCAL_HEAD.size > directory or data[at : at + 4] != _LOCAL:
            entries.append(_bare(head))
            problem = problem or Problem.UNREADABLE
            continue
        found = _LOCAL_HEAD.unpack_from(data, at)
        name_at = at + _LOCAL_HEAD.size
        start = name_at + found[9] + found[10]
        local = data[name_at : name_at + found[9]]
        flags = head.flags | found[2]
        entries.append(Entry(_names(head, local), bool(flags & _ENCRYPTED), head.method, head.packed, head.size, start))
        if start + head.packed > directory or (local != head.name and not head.flags & 0x2000):
            problem = problem or Problem.UNREADABLE
        spans.append((at, start + head.packed))
    return Archive(tuple(entries), _between(data, spans, directory) or problem)


def _between(data: bytes, spans: list[tuple[int, int]], directory: int) -> Problem | None:
    """Whether entries share octets, or others are hidden between them."""
    spans.sort()
    reached = 0
    hidden = False
    for start, end in spans:
        if start < reached:
            return Problem.OVERLAP
        hidden = hidden or data.find(_LOCAL, reached, start) >= 0
        reached = end
    return Problem.UNREADABLE if hidden or data.find(_LOCAL, reached, directory) >= 0 else None


def content(data: bytes, entry: Entry, limit: int) -> bytes | None:
    """Content of an entry that is stored or deflated, of at most `limit` octets; None when it cannot be had.

    Raises OverflowError when it is longer. A stored one is not copied beyond that either.
    """
    if entry.start == 0 or entry.encrypted:
        return None
    if entry.method == _STORED:
        if entry.packed > limit:
            raise OverflowError
        return data[entry.start : entry.start + entry.packed]
    if entry.method != _DEFLATED:
        return None
    packed = memoryview(data)[entry.start : entry.start + entry.packed]
    inflater = zlib.decompressobj(-15)
    try:
        made = inflater.decompress(packed, limit + 1)
    except zlib.error:
        return None
    if len(made) > limit:
        raise OverflowError
    return made if inflater.eof else None


def is_stored(entry: Entry) -> bool:
    """Whether its content stands in the archive as it is."""
    return entry.method == _STORED and not entry.encrypted and entry.start > 0
