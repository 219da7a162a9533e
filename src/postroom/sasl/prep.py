"""SASLprep (RFC 4013): how a name or a password is written before it is compared."""

from __future__ import annotations

import stringprep
import unicodedata
from typing import Final

# RFC 4013 §2.3, in its order.
_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class PrepError(ValueError):
    """The text cannot be prepared. The message holds nothing of it."""


def saslprep(text: str, *, stored: bool = False) -> str:
    """The text in the form that is compared; it may come out empty.

    As a query, code points that Unicode 3.2 did not have yet are let through; as a `stored` string they are not (RFC
    3454 §7). Raises `PrepError`.
    """
    if text.isascii():
        # Nothing is mapped, and the only characters that are prohibited are the controls (§2.3).
        if any(char < " " or char == "\x7f" for char in text):
            raise PrepError("a prohibited character")
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for char in prepared:
        if any(prohibits(char) for prohibits in _PROHIBITED):
            raise PrepError("a prohibited character")
        if stored and stringprep.in_table_a1(char):
            raise PrepError("an unassigned code point")
    _check_directions(prepared)
    return prepared


def _check_directions(text: str) -> None:
    """What is written from right to left stands alone, and at both ends (RFC 3454 §6)."""
    if not any(map(stringprep.in_table_d1, text)):
        return
    if any(map(stringprep.in_table_d2, text)):
        raise PrepError("two directions of writing")
    if not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])):
        raise PrepError("a direction of writing that changes")
