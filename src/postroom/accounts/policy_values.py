"""What the members of a tenant's policy may be (rest-api §6.7; cli-config-ops B3): one reader for each kind of value.

A reader takes what JSON gave and returns what is stored, or raises ValueError, whose words say what it must be. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from math import prod
from typing import Any, Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

from postroom.accounts.text import is_storable

Reader = Callable[[Any], Any]

MAX_DISCLOSURE: Final = 1000
"""Characters of the text that says that an AI wrote a message."""
MAX_COUNT: Final = 2**31 - 1
"""Of numbers that the contract gives no other end."""
MAX_CATEGORIES: Final = 20
MAX_RULES: Final = 50
MAX_PATTERNS: Final = 20
MAX_ZONES: Final = 50
MAX_WORDS: Final = 20
"""Values of one condition of a rule."""
MAX_WORD: Final = 200
MAX_RULE_LABELS: Final = 10
MAX_TITLE: Final = 64
MAX_DESCRIPTION: Final = 1000
MAX_PATTERN: Final = 200
"""Characters of a pattern."""
MAX_REPEATS: Final = 1000
MAX_WEIGHT: Final = 20
"""Large sets of characters, such as `\\w` or `.`, of all patterns together, repetitions included: each costs a
millisecond to compile and up to 64 KiB."""

_LABEL: Final = re.compile(r"[a-z0-9][a-z0-9_:-]{0,63}")
_RULE_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_ZONE: Final = re.compile(r"[a-z0-9.-]{1,253}")
_REPEATED: Final = re.compile(r"\{(\d{1,6})(?:,(\d{0,6}))?\}", re.ASCII)
_LARGE_SETS: Final = re.compile(r"\\[wWDSpP]|\[\^|\.|\[:")
_ADDRESS: Final = re.compile(r"[^\s@]{1,64}@[^\s@]{1,189}")


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def number(least: int, most: int = MAX_COUNT) -> Reader:
    """Whole numbers; a fraction of zero, as `10.0`, is one to JSON."""

    def read(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return read


def share(value: Any) -> float:
    """A number from 0 to 1; not NaN, which is neither."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError("must be a number from 0 to 1")
    return float(value)


def word(words: type[StrEnum]) -> Reader:
    def read(value: Any) -> StrEnum:
        if not isinstance(value, str) or value not in tuple(words):
            raise ValueError(f"must be one of {', '.join(words)}")
        return words(value)

    return read


def some_of(*words: str) -> Reader:
    """A list of some of `words`, none twice, kept in the order in which it came."""

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) and one in words for one in value):
            raise ValueError(f"must be a list of some of {', '.join(words)}")
        if len(set(value)) != len(value):
            raise ValueError("must not name anything twice")
        return tuple(value)

    return read


def disclosure_text(value: Any) -> str:
    found = _text(value, MAX_DISCLOSURE)
    if not all(char.isprintable() or char == "\n" for char in found):
        raise ValueError("must not contain control characters")
    return found


def or_none(read: Reader) -> Reader:
    def either(value: Any) -> Any:
        return None if value is None else read(value)

    return either


def zones(value: Any) -> tuple[str, ...]:
    """Zones of the deployment's DNS accounts, as A-labels."""
    found = _list(value, MAX_ZONES)
    if not all(isinstance(one, str) and _ZONE.fullmatch(one) for one in found) or len(set(found)) != len(found):
        raise ValueError(f"must be at most {MAX_ZONES} different names in lower-case ASCII")
    return tuple(found)


def categories(value: Any) -> tuple[Mapping[str, str], ...]:
    found = []
    for one in _list(value, MAX_CATEGORIES):
        item = _object(one, {"name", "description"}, {"name", "description"})
        found.append({"name": _text(item["name"], MAX_TITLE), "description": _text(item["description"])})
    if len({one["name"] for one in found}) != len(found):
        raise ValueError("must not have two categories of one name")
    return tuple(found)


def patterns(value: Any) -> tuple[Mapping[str, str], ...]:
    """References of the tenant's own. Only what a matcher without backtracking takes, so that no mail is slow to look
    through: there are no back-references and no look-around.
    """
    found, weight = [], 0
    for one in _list(value, MAX_PATTERNS):
        item = _object(one, {"name", "pattern"}, {"name", "pattern", "normalise"})
        kept = {"name": _text(item["name"], MAX_TITLE), "pattern": _text(item["pattern"], MAX_PATTERN)}
        try:
            weight += _linear(kept["pattern"])
        except SchemaError:
            raise ValueError("has a pattern that is no regular expression in linear-time syntax") from None
        if item.get("normalise") is not None:
            kept["normalise"] = _text(item["normalise"], MAX_TITLE)
        found.append(kept)
    if weight > MAX_WEIGHT:
        raise ValueError("has patterns that are too large together")
    if len({one["name"] for one in found}) != len(found):
        raise ValueError("must not have two patterns of one name")
    return tuple(found)


def rules(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Rules of triage (FR-TRI-2). Text that is compared is kept folded, as it is compared."""
    found = []
    for one in _list(value, MAX_RULES):
        item = _object(one, {"id", "match", "set"}, {"id", "match", "set", "stop"}, closed=True)
        if not isinstance(item["id"], str) or _RULE_ID.fullmatch(item["id"]) is None:
            raise ValueError("has a rule whose id is not 1 to 48 of a-z, 0-9, _ and -")
        kept: dict[str, Any] = {"id": item["id"], "match": _match(item["match"]), "set": _set(item["set"])}
        if "stop" in item:
            kept["stop"] = flag(item["stop"])
        found.append(kept)
    if len({one["id"] for one in found}) != len(found):
        raise ValueError("must not have two rules of one id")
    return tuple(found)


def _match(value: Any) -> Mapping[str, Any]:
    item = _object(value, set(), {*_CONDITIONS, "has_attachment"}, closed=True)
    if not item:
        raise ValueError("has a rule that matches nothing in particular")
    kept: dict[str, Any] = {}
    for name, given in item.items():
        if name == "has_attachment":
            kept[name] = flag(given)
        else:
            kept[name] = [_CONDITIONS[name](one) for one in _list(given, MAX_WORDS)]
    return kept


def _set(value: Any) -> Mapping[str, Any]:
    item = _object(value, set(), {"category", "labels_add", "urgency_min", "needs_reply", "skip_model"}, closed=True)
    if not item:
        raise ValueError("has a rule that sets nothing")
    readers: Mapping[str, Reader] = {
        "category": lambda given: _text(given, MAX_TITLE),
        "labels_add": lambda given: [_label(one) for one in _list(given, MAX_RULE_LABELS)],
        "urgency_min": number(0, 3),
        "needs_reply": share,
        "skip_model": flag,
    }
    return {name: readers[name](given) for name, given in item.items()}


def _folded(value: Any) -> str:
    folded = unicodedata.normalize("NFKC", _text(value, MAX_WORD)).lower()
    # Folding may lengthen.
    return _text(folded, MAX_WORD)


def _address(value: Any) -> str:
    folded = _folded(value)
    if _ADDRESS.fullmatch(folded) is None:
        raise ValueError("has a rule with something that is no address")
    return folded


def _label(value: Any) -> str:
    if not isinstance(value, str) or _LABEL.fullmatch(value) is None:
        raise ValueError("has something that is no label")
    return value


_CONDITIONS: Final[Mapping[str, Reader]] = {
    "from": _address,
    "from_domain": _folded,
    "to_identity": lambda value: _text(value, MAX_WORD),
    "subject_contains": _folded,
    "body_contains": _folded,
    "label": _label,
}


def _linear(pattern: str) -> int:
    """Whether an engine without backtracking takes it, which raises SchemaError otherwise; and its weight, in sets of
    characters that are large.
    """
    times = prod(int(most or least) or 1 for least, most in _REPEATED.findall(pattern))
    weight = len(_LARGE_SETS.findall(pattern)) * times
    if times > MAX_REPEATS or weight > MAX_WEIGHT:
        raise ValueError("has a pattern that is too large: repeat less, or name the characters")
    SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    return weight


def _list(value: Any, most: int) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or len(value) > most:
        raise ValueError(f"must be a list of at most {most}")
    return value


def _object(value: Any, required: set[str], known: set[str], *, closed: bool = False) -> Mapping[str, Any]:
    """An object with at least the `required` members. Those that nobody knows are left out, or refused if `closed`."""
    if not isinstance(value, Mapping) or not required <= value.keys():
        raise ValueError(f"must be objects with {', '.join(sorted(required)) or 'members'}")
    if closed and not value.keys() <= known:
        raise ValueError(f"must be objects of no more than {', '.join(sorted(known))}")
    return {name: one for name, one in value.items() if name in known}


def _text(value: Any, most: int = MAX_DESCRIPTION) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > most or not is_storable(value):
        raise ValueError(f"must be a text of at most {most} characters")
    return value
