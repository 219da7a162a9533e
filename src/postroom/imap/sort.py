"""SORT: its criteria (RFC 5256 §3, RFC 5957, RFC 6203 §6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from postroom.imap.cursor import Cursor, Row, look_up

MAX_CRITERIA = 32
"""Our limit; there are ten, and each a second time changes nothing."""


class SortKey(StrEnum):
    """What messages are sorted by; the value is the word on the wire."""

    ARRIVAL = "ARRIVAL"
    CC = "CC"
    DATE = "DATE"
    FROM = "FROM"
    SIZE = "SIZE"
    SUBJECT = "SUBJECT"
    TO = "TO"
    DISPLAYFROM = "DISPLAYFROM"
    DISPLAYTO = "DISPLAYTO"
    RELEVANCY = "RELEVANCY"


@dataclass(frozen=True, slots=True)
class SortCriterion:
    """A key, and whether its order is turned round; that of messages which are alike in it is not."""

    key: SortKey
    reverse: bool = False


_CAPABILITIES = {
    SortKey.DISPLAYFROM: "SORT=DISPLAY",
    SortKey.DISPLAYTO: "SORT=DISPLAY",
    SortKey.RELEVANCY: "SEARCH=FUZZY",
}
SORT_KEYS: Mapping[bytes, Row[SortKey]] = MappingProxyType(
    {key.encode(): Row.constant(key, _CAPABILITIES.get(key)) for key in SortKey}
)


def read_criteria(cursor: Cursor) -> tuple[SortCriterion, ...]:
    """``(REVERSE DATE FROM)``."""

    def one() -> SortCriterion:
        word = cursor.word()
        reverse = word == b"REVERSE"
        if reverse:
            cursor.space()
            word = cursor.word()
        return SortCriterion(look_up(SORT_KEYS, word, cursor.options, "Unknown sort criterion").read(cursor), reverse)

    return tuple(dict.fromkeys(cursor.items(one, empty=False, limit=MAX_CRITERIA)))
