"""Patterns of a tenant's own (`search.custom_refs`), in an engine that takes linear time whatever they say."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import re2  # type: ignore[import-untyped]  # it has no types

MAX_CUSTOM: Final = 20
MAX_PATTERN: Final = 500
PROGRAM_BYTES: Final = 64 * 1024
MAX_TEXT: Final = 64 * 1024
"""Characters of a text in which they are looked for."""
_MAX_MATCHES: Final = 100
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")


class Normalise(StrEnum):
    UPPER = "upper"
    LOWER = "lower"
    NONE = "none"


class CustomRefError(ValueError):
    """A pattern that is refused; `reason` says why, in words of ours and of the engine, never of the pattern."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CustomRef:
    """A compiled entry. Its kind is `custom:{name}`."""

    name: str
    normalise: Normalise
    pattern: Any
    """Of re2, which has no types."""

    @property
    def kind(self) -> str:
        return f"custom:{self.name}"

    def values(self, text: str) -> Iterator[str]:
        """Group 1 of each match, or all of it; trimmed and normalised. The first 100 matches are looked at."""
        group = 1 if self.pattern.groups else 0
        for number, found in enumerate(self.pattern.finditer(text[:MAX_TEXT])):
            if number == _MAX_MATCHES:
                return
            value = (found.group(group) or "").strip()
            if self.normalise is Normalise.UPPER:
                value = value.upper()
            elif self.normalise is Normalise.LOWER:
                value = value.lower()
            if value:
                yield value


def compile_custom(name: str, pattern: str, normalise: Normalise = Normalise.NONE) -> CustomRef:
    """Compile an entry. Raises CustomRefError for a name or pattern that is not taken: when a policy is saved."""
    if _NAME.fullmatch(name) is None:
        raise CustomRefError("the name must be lower-case letters, digits and underscores, 32 at most")
    if not 0 < len(pattern) <= MAX_PATTERN:
        raise CustomRefError(f"the pattern must have 1 to {MAX_PATTERN} characters")
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        raise CustomRefError(_reason(error)) from None
    if compiled.search("") is not None:
        raise CustomRefError("the pattern matches nothing at all")
    return CustomRef(name, normalise, compiled)


def _reason(error: Exception) -> str:
    words = error.args[0] if error.args else ""
    text = words.decode("utf-8", "replace") if isinstance(words, bytes) else str(words)
    if "too large" in text or "repetition size" in text:
        return "the pattern is too large: 64 KB when compiled, 1000 repetitions"
    # What stands after the colon is of the pattern.
    return f"the pattern is not RE2 syntax: {text.partition(':')[0]}"
