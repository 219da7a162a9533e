"""Sequence sets (RFC 9051 §9 ``sequence-set``, spec D4, decision D28) and their compression for COPYUID and ESEARCH."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from postroom.imap.errors import BadCommand, Code, ProtocolNo

MAX_NUMBER = 0xFFFF_FFFF
#: Stands for ``*``; greater than any number, so that ranges can be kept in order.
STAR = MAX_NUMBER + 1
#: Elements of one set (our limit; a command line of 64 KiB could hold 32,768).
MAX_ELEMENTS = 20_000

_NUMBER = r"(?:[1-9][0-9]{0,9}|\*)"
_ELEMENT = rf"{_NUMBER}(?::{_NUMBER})?"
SEQUENCE_SET = re.compile(rf"{_ELEMENT}(?:,{_ELEMENT})*+".encode())


@dataclass(frozen=True, slots=True)
class SequenceSet:
    """Closed ranges as sent, each with its ends in order; an end may be `STAR`. `saved` is ``$`` (RFC 5182)."""

    ranges: tuple[tuple[int, int], ...]
    saved: bool = False

    @classmethod
    def parse(cls, text: bytes) -> SequenceSet:
        """Parse a whole set. Raises `BadCommand` for bad syntax or numbers, `ProtocolNo` [LIMIT] for too long ones."""
        if text == b"1:*":
            return _EVERYTHING
        if SEQUENCE_SET.fullmatch(text) is None:
            raise BadCommand("Invalid sequence set")
        if text.count(b",") >= MAX_ELEMENTS:
            raise ProtocolNo(Code.LIMIT, "Too many elements in the sequence set")
        ranges = []
        for element in text.split(b","):
            first, colon, last = element.partition(b":")
            low = _number(first)
            high = _number(last) if colon else low
            ranges.append((low, high) if low <= high else (high, low))
        return cls(tuple(ranges))

    @classmethod
    def of(cls, numbers: Iterable[int]) -> SequenceSet:
        """The set of these numbers, each in 1..`MAX_NUMBER`, in their order."""
        return cls(tuple(_runs(numbers)))

    def __bytes__(self) -> bytes:
        return b"$" if self.saved else b",".join(_element(low, high) for low, high in self.ranges)

    def resolve_uids(self, uids: Sequence[int]) -> tuple[range, ...]:
        """Index ranges of `uids` (ascending, e.g. ``array('I')``) that are in the set: sorted, disjoint, not empty.

        ``*`` is the last of `uids` (so ``559:*`` has at least that one), nothing when there is none. UIDs that do not
        exist are ignored (RFC 9051 §6.4.9). The cost is two bisections per element, whatever the ranges' sizes.
        """
        if not uids:
            return ()
        top = uids[-1]
        found = []
        for low, high in self._pinned(top):
            start, stop = bisect_left(uids, low), bisect_right(uids, high)
            if start < stop:
                found.append((start, stop))
        return _merge(found)

    def resolve_sequence(self, count: int, *, strict: bool = True) -> tuple[range, ...]:
        """Index ranges (message number − 1) in a folder that shows `count` messages.

        ``*`` is `count`, and nothing in an empty folder. A number above `count` raises `BadCommand` when `strict`, else
        it is ignored (SEARCH); a range that ends in ``*`` is never an error.
        """
        found = []
        for low, high in self.ranges:
            if high == STAR:
                low, high = min(low, count), count
            elif high > count:
                if strict:
                    raise BadCommand("Invalid message sequence number")
                high = count
            if 0 < low <= high:
                found.append((low - 1, high))
        return _merge(found)

    def overlap(self, parts: Iterable[tuple[int, int]], largest: int) -> Iterator[tuple[int, int]]:
        """What of closed ranges (ascending, disjoint) is in the set when ``*`` stands for `largest`; ascending."""
        mine = _merge([(low, high + 1) for low, high in self._pinned(largest) if low <= high])
        at = 0
        for low, high in parts:
            while at < len(mine) and mine[at].stop <= low:
                at += 1
            for other in mine[at:]:
                if other.start > high:
                    break
                yield max(low, other.start), min(high, other.stop - 1)

    def contains(self, number: int, largest: int) -> bool:
        """Whether `number` is in the set when ``*`` stands for `largest`."""
        return any(low <= number <= high for low, high in self._pinned(largest))

    def _pinned(self, top: int) -> Iterator[tuple[int, int]]:
        for low, high in self.ranges:
            if high == STAR:
                yield (low, top) if low <= top else (top, top if low == STAR else low)
            else:
                yield low, high


def indices(ranges: Iterable[range]) -> Iterator[int]:
    """All indices of resolved ranges, ascending."""
    for part in ranges:
        yield from part


def paged(ranges: Iterable[range], size: int) -> Iterator[Sequence[int]]:
    """The indices of resolved ranges, at most `size` at a time: each page is full but the last, however the ranges are
    cut, and a range where it can be one.
    """
    gathered: list[int] = []
    for part in ranges:
        start = part.start
        while start < part.stop:
            stop = min(part.stop, start + size - len(gathered))
            if not gathered and stop - start == size:
                yield range(start, stop)
            else:
                gathered += range(start, stop)
                if len(gathered) == size:
                    yield _as_range(gathered)
                    gathered = []
            start = stop
    if gathered:
        yield _as_range(gathered)


def _as_range(numbers: list[int]) -> Sequence[int]:
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return range(numbers[0], numbers[-1] + 1)
    return numbers


def compress_ranges(parts: Iterable[tuple[int, int]]) -> bytes:
    """Closed ranges as they stand on the wire."""
    return b",".join(_element(low, high) for low, high in parts)


def gaps(numbers: Iterable[int], upto: int) -> Iterator[tuple[int, int]]:
    """The closed ranges from 1 to `upto` that hold none of `numbers` (ascending)."""
    after = 1
    for number in numbers:
        if number > upto:
            break
        if number > after:
            yield after, number - 1
        after = number + 1
    if after <= upto:
        yield after, upto


def runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """`numbers` as closed ranges, in their order."""
    return _runs(numbers)


def compress(numbers: Iterable[int]) -> bytes:
    """``[1, 2, 3, 5]`` → ``b'1:3,5'``; keeps the order given, as COPYUID pairs two sets by position (RFC 4315 §3)."""
    return b",".join(_element(low, high) for low, high in _runs(numbers))


_EVERYTHING = SequenceSet(((1, STAR),))


def _number(text: bytes) -> int:
    if text == b"*":
        return STAR
    value = int(text)
    if value > MAX_NUMBER:
        raise BadCommand("Number out of range")
    return value


def _element(low: int, high: int) -> bytes:
    if low == high:
        return b"*" if low == STAR else b"%d" % low
    return b"%d:*" % low if high == STAR else b"%d:%d" % (low, high)


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = 0
    for number in numbers:
        if number == last + 1 and first:
            last = number
            continue
        if first:
            yield first, last
        first = last = number
    if first:
        yield first, last


def _merge(found: list[tuple[int, int]]) -> tuple[range, ...]:
    if len(found) <= 1:
        return tuple(range(start, stop) for start, stop in found)
    found.sort()
    merged: list[range] = []
    start, stop = found[0]
    for low, high in found[1:]:
        if low > stop:
            merged.append(range(start, stop))
            start, stop = low, high
        elif high > stop:
            stop = high
    merged.append(range(start, stop))
    return tuple(merged)
