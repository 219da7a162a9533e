"""Characters that a reader does not see and a program does (inbound §12, edge row B11).

Removed wherever an agent reads: zero-width characters, fillers that look like nothing, bidirectional controls, tag
characters, and joiners but for those that make one emoji of two. U+200E and U+200F stay: they only tell how to set
mixed scripts.
"""

import re
from typing import Final, NamedTuple

# Extended_Pictographic (UTS #51, emoji-data), joined where the gaps hold nothing that is assigned.
_PICTOGRAPHIC: Final = (
    "\xa9\xae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa"
    "\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714"
    "\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1"
    "\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001f0ff"
    "\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e\U0001f17f\U0001f18e\U0001f191-\U0001f19a"
    "\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f"
    "\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f774-\U0001f77f"
    "\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f\U0001f85a-\U0001f85f\U0001f888-\U0001f88f"
    "\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001faff\U0001fc00-\U0001fffd"
)
_SKIN: Final = "\U0001f3fb-\U0001f3ff"
_ALWAYS: Final = (
    "\u200b\u200c\u2060-\u2064\ufeff\xad\u034f\u180e\u115f\u1160\u3164\uffa0\u202a-\u202e\u2066-\u2069"
    "\U000e0000-\U000e007f"
)
_HIDDEN: Final = re.compile(f"[{_ALWAYS}]")
_SUSPECT: Final = re.compile(f"[{_ALWAYS}\u200d]")
# Before a joiner there may stand a skin tone or the selector of the coloured form (UTS #51 §1.4.9). Looks behind from
# after the joiner, so that the search is for one character.
_LOOSE_JOINER: Final = re.compile(
    f"\u200d(?:(?![{_PICTOGRAPHIC}])|(?<![{_PICTOGRAPHIC}]\u200d)(?<![{_PICTOGRAPHIC}][\ufe0f{_SKIN}]\u200d))"
)
_ZERO_WIDTH: Final = "\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u2064\ufeff\u034f\u180e"
_MARKED: Final = re.compile("[\u202d\u202e\U000e0000-\U000e007f]")
# England, Scotland and Wales: emoji that are spelt in tags, always the same ones, so that nothing can be said in them.
_TAGGED_FLAG: Final = re.compile(
    "\U0001f3f4(?:"
    + "|".join("".join(chr(0xE0000 + ord(letter)) for letter in region) for region in ("gbeng", "gbsct", "gbwls"))
    + ")\U000e007f"
)
# Scripts that are written with joiners inside words: Arabic, Indic and their neighbours.
_JOINED: Final = "\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\ufb50-\ufdff\ufe70-\ufefc"
_WRITTEN_JOINER: Final = re.compile(f"(?<=[{_JOINED}])[\u200c\u200d](?=[{_JOINED}])")

TOLERATED_ZERO_WIDTH: Final = 2
"""Zero-width characters that a message may have before they count as hidden text."""


class Stripped(NamedTuple):
    """A text without its hidden characters, and what was taken out of it."""

    text: str
    zero_width: int
    """Zero-width characters, without those that belong to emoji or to the spelling of Arabic and Indic words."""
    marked: bool
    """There were tag characters or bidirectional overrides, which only serve to hide something."""


def strip_invisible(text: str) -> Stripped:
    """Take the hidden characters out. Linear; idempotent; takes nanoseconds for ASCII."""
    if text.isascii() or _SUSPECT.search(text) is None:
        return Stripped(text, 0, False)
    # Joiners first: what stands beside them in the original decides.
    shown = _HIDDEN.sub("", _LOOSE_JOINER.sub("", text))
    width = sum(text.count(char) - shown.count(char) for char in _ZERO_WIDTH)
    if width:
        width -= len(_WRITTEN_JOINER.findall(text))
    marked = _MARKED.search(text) is not None and _MARKED.search(_TAGGED_FLAG.sub("", text)) is not None
    return Stripped(shown, width, marked)


def visible(text: str) -> str:
    """The text alone."""
    return strip_invisible(text).text
