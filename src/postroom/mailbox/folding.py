"""How text is compared without case: one folding for what is stored beside a message and for what is asked."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_MAX_MARKS: Final = 30
"""Marks in a row, beyond which they are parted: no script comes near (UAX #15 §13, stream-safe text)."""
_JOINER: Final = "\u034f"  # COMBINING GRAPHEME JOINER: begins a new run of marks, and stands for nothing itself
_LIKE_MARKS: Final = "\u0f73\u0f75\u0f81\uff9e\uff9f"  # no marks by themselves, but nothing else once decomposed
_MAYBE_MARKS: Final = re.compile(rf"(?:[^\w\x00-\u02ff]|[{_LIKE_MARKS}]){{{_MAX_MARKS + 1},}}")


def fold(text: str) -> str:
    """Compatibility-composed and case-folded, so that `Straße`, `STRASSE` and full-width letters meet (D7).

    Takes time in proportion to the text, whatever it holds.
    """
    if text.isascii():
        return text.lower()
    # Marks in a row are put in order by insertion, whose time grows with the square of their number.
    text = _MAYBE_MARKS.sub(_parted, text)
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _parted(match: re.Match[str]) -> str:
    parts: list[str] = []
    marks = 0
    for char in match[0]:
        if unicodedata.combining(char) or char in _LIKE_MARKS:
            if marks == _MAX_MARKS:
                parts.append(_JOINER)
                marks = 0
            marks += 1
        else:
            marks = 0
        parts.append(char)
    return "".join(parts)
