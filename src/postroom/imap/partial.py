"""A window of a list of results, from its beginning or from its end (RFC 9394, RFC 5267 §4.4)."""

from __future__ import annotations

from dataclasses import dataclass

from postroom.imap.cursor import Cursor
from postroom.imap.errors import BadCommand


@dataclass(frozen=True, slots=True)
class Partial:
    """``PARTIAL 1:100``, or ``PARTIAL -1:-100`` for the last hundred; the ends as the client gave them."""

    first: int
    last: int

    def places(self, count: int) -> range:
        """Which of `count` results, from 0, are in the window."""
        low, high = sorted((self.first, self.last))
        if low < 0:
            low, high = count + 1 + low, count + 1 + high
        return range(min(max(low, 1) - 1, count), max(min(high, count), 0))

    def __bytes__(self) -> bytes:
        return b"%d:%d" % (self.first, self.last)


def read_partial(cursor: Cursor) -> Partial:
    """The argument, with the space before it: two numbers of one sign, and no ``*`` (RFC 9394 §4)."""
    cursor.space()
    sign = -1 if cursor.at(b"-") else 1
    ends = []
    for mark in (b"", b":"):
        cursor.expect(mark)
        if cursor.take(b"-") is not (sign < 0):
            raise BadCommand("Invalid range")
        ends.append(sign * cursor.number(1))
    return Partial(*ends)


def window(parts: tuple[range, ...], places: range) -> tuple[range, ...]:
    """Those indices of disjoint, ascending `parts` that stand at `places` when all are counted in order."""
    found = []
    before = 0
    for part in parts:
        low = max(places.start - before, 0)
        high = min(places.stop - before, len(part))
        if low < high:
            found.append(part[low:high])
        before += len(part)
    return tuple(found)
