"""How deep and how much CBOR from outside is (RFC 8949 §3), before a library goes down into it. Pure.

Only lengths are read here. What is no item of the kinds that authenticators use (CTAP2 canonical form: no indefinite
lengths, tags or floating-point numbers) is out of bounds, too, so that nothing is seen otherwise than the library does.
"""

from __future__ import annotations

from typing import Final

MAX_DEPTH: Final = 8
"""Arrays and maps within one another; attestation objects have three."""
MAX_ITEMS: Final = 256
"""An attestation object with a statement and its certificates has some thirty."""

_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(2, 8)
_LONGEST_HEAD: Final = 27


def is_bounded(data: bytes) -> bool:
    """Whether the octets are whole items, one after the other, which nest no deeper and are no more than that."""
    at, items, size = 0, 0, len(data)
    open_items: list[int] = []
    while at < size:
        items += 1
        kind, count = data[at] >> 5, data[at] & 31
        at += 1
        if items > MAX_ITEMS or count > _LONGEST_HEAD or kind == _TAG or (kind == _SIMPLE and count >= 24):
            return False
        if count >= 24:
            width = 1 << (count - 24)
            count = int.from_bytes(data[at : at + width], "big")
            at += width
        if kind in (_BYTES, _TEXT):
            at += count
        if at > size:
            return False
        if kind in (_ARRAY, _MAP) and count:
            open_items.append(count if kind == _ARRAY else 2 * count)
            if len(open_items) > MAX_DEPTH:
                return False
            continue
        while open_items:
            open_items[-1] -= 1
            if open_items[-1]:
                break
            open_items.pop()
    return not open_items
