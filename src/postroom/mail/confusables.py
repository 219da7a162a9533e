"""Look-alike names: the confusable fold and the mixed-script test of UTS #39 (inbound §3, A4, D12).

The tables are those of the Unicode version named by `confusables_data.UNICODE_VERSION`, cut down to what a comparison
with ASCII names needs: prototypes that are entirely ASCII.
"""

import unicodedata
from bisect import bisect_right
from functools import cache
from typing import Final

from postroom.mail.confusables_data import PROTOTYPES, SCRIPTS

MAX_LENGTH: Final = 1024
"""Characters of a name that are looked at; no name that is folded may be longer."""

_ROUNDS: Final = 3

# Default_Ignorable_Code_Point (DerivedCoreProperties): they draw nothing, so a name with them looks like the name
# without.
_IGNORABLE: Final = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
    *((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF)),
    *((0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)


def fold(text: str) -> str:
    """The skeleton of `text`: equal folds mean that the eye may take one for the other.

    Full case fold, then: NFD, ignorables out, each character to its prototype, NFD, lower case; repeated until
    stable, at most three times, because prototypes may be upper case (`0` → `O` → `o`) and of several characters (`m`
    → `rn`). Text beyond `MAX_LENGTH` raises ValueError.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError("the name is too long to be folded")
    table = _table()
    folded = text.casefold()
    for _ in range(_ROUNDS):
        before = folded
        folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", folded).translate(table)).lower()
        if folded == before:
            break
    return folded


def is_mixed_script(text: str) -> bool:
    """Whether no single writing system has all characters of `text` (UTS #39 §5.1); digits and punctuation go with
    any.
    """
    common: frozenset[str] | None = None
    for char in text:
        scripts = _scripts_of(char)
        if scripts is None:
            continue
        common = scripts if common is None else common & scripts
        if not common:
            return True
    return False


def has_right_to_left(text: str) -> bool:
    """Whether a character of `text` is strongly right-to-left."""
    return any(unicodedata.bidirectional(char) in ("R", "AL") for char in text)


@cache
def _table() -> dict[int, str | None]:
    table: dict[int, str | None] = {}
    for prototype, runs in PROTOTYPES:
        for first, last in _runs(runs):
            table.update(dict.fromkeys(range(first, last + 1), prototype))
    for first, last in _IGNORABLE:
        table.update(dict.fromkeys(range(first, last + 1)))
    return table


@cache
def _script_runs() -> tuple[list[int], list[int], list[frozenset[str]]]:
    rows = sorted(
        (first, last, scripts)
        for scripts, first, last in ((names, first, last) for names, runs in SCRIPTS for first, last in _runs(runs))
    )
    sets = {names: frozenset(names.split()) for names, _ in SCRIPTS}
    return [row[0] for row in rows], [row[1] for row in rows], [sets[row[2]] for row in rows]


def _scripts_of(char: str) -> frozenset[str] | None:
    firsts, lasts, scripts = _script_runs()
    at = bisect_right(firsts, ord(char)) - 1
    return scripts[at] if at >= 0 and ord(char) <= lasts[at] else None


def _runs(text: str) -> list[tuple[int, int]]:
    found = []
    for run in text.split():
        first, _, last = run.partition("-")
        found.append((int(first, 16), int(last or first, 16)))
    return found
