"""References of a message: which packs look at what, and how many are kept."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from postroom.mail.refs import core, vehicle
from postroom.mail.refs.custom import CustomRef

MAX_PER_KIND: Final = 50
MAX_REFS: Final = 200
MAX_VALUE: Final = 64
MAX_TEXT: Final = 256 * 1024
"""Characters of a text that are looked at."""
_UNFENCED: Final = re.compile(r"[A-Z0-9][A-Z0-9:.+/-]{0,39}")
_FENCED_KINDS: Final = frozenset({"email", "domain"})


class Ref(NamedTuple):
    """One reference. `source` is `subject`, `body` or `att:{attachment}:{page}`."""

    kind: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class RefRules:
    """What is looked for. `country` (ISO 3166) is whose national telephone numbers are understood; `day_first` reads
    2/3/2026 as the second of March (`Europe/*` zones); the pack `core` is always on."""

    country: str = "GB"
    day_first: bool = True
    uk_vehicle: bool = False
    custom: tuple[CustomRef, ...] = ()


def extract(texts: Iterable[tuple[str, str]], rules: RefRules) -> tuple[Ref, ...]:
    """References in `(source, text)` pairs, each once, in order of texts: at most 50 of a kind and 200 in all.

    What was there first counts. Values of more than 64 characters are left out.
    """
    kept: dict[tuple[str, str], Ref] = {}
    counts: Counter[str] = Counter()
    for source, text in texts:
        for kind, value in _found(text[:MAX_TEXT], rules):
            if (kind, value) in kept or counts[kind] >= MAX_PER_KIND or not 0 < len(value) <= MAX_VALUE:
                continue
            counts[kind] += 1
            kept[kind, value] = Ref(kind, value, source)
            if len(kept) == MAX_REFS:
                return tuple(kept.values())
    return tuple(kept.values())


def _found(text: str, rules: RefRules) -> Iterator[tuple[str, str]]:
    yield from core.find(text, country=rules.country, day_first=rules.day_first)
    if rules.uk_vehicle:
        yield from vehicle.find(text)
    for custom in rules.custom:
        for value in custom.values(text):
            yield custom.kind, value


def may_stand_unfenced(ref: Ref) -> bool:
    """Whether the value may be shown to a model outside a fence: short, plain, and no address (E1)."""
    return ref.kind not in _FENCED_KINDS and _UNFENCED.fullmatch(ref.value.upper()) is not None
