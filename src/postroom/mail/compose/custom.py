"""Header fields that callers may set (outbound §6.6), checked at submit so that none fails later (G10)."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

MAX_VALUE_BYTES: Final = 2048
MAX_TOTAL_BYTES: Final = 16 * 1024
MAX_X_NAME_BYTES: Final = 100

_X_NAME: Final = re.compile(r"[Xx]-[A-Za-z0-9_-]+")
_RESERVED_PREFIX: Final = "x-postroom-"
_RESERVED: Final = "x-ai-generated"
_CONTROLS: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# Lower-case name -> spelling on the wire and the values that it may have (none listed: any).
_NAMED: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "importance": ("Importance", frozenset(("high", "normal", "low"))),
    "priority": ("Priority", frozenset(("non-urgent", "normal", "urgent"))),
    "sensitivity": ("Sensitivity", frozenset(("personal", "private", "company-confidential"))),
    "keywords": ("Keywords", frozenset()),
    "comments": ("Comments", frozenset()),
    "organization": ("Organization", frozenset()),
}


class HeaderRefusal(StrEnum):
    """The error code of the refusal."""

    NOT_ALLOWED = "header_not_allowed"
    INVALID = "invalid_request"


class CustomHeaderError(ValueError):
    """A header field that a caller may not set, or not so; `name` as the caller wrote it."""

    def __init__(self, name: str, refusal: HeaderRefusal) -> None:
        super().__init__(f"headers: {refusal.value}")
        self.name = name
        self.refusal = refusal


def custom_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The admitted fields in the order given, named as they are sent. Raises CustomHeaderError for the first bad one.

    The limit of 20 names other than `X-…` cannot be reached: only six may be set.
    """
    admitted: list[tuple[str, str]] = []
    seen: set[str] = set()
    total = 0
    for name, value in headers.items():
        wire_name = _wire_name(name)
        lower = name.lower()
        values = _NAMED[lower][1] if lower in _NAMED else frozenset()
        size = len(value.encode("utf-8", "surrogatepass"))
        total += size + len(name)
        bad = (
            lower in seen
            or not value.strip(" \t")
            or _CONTROLS.search(value)
            or size > MAX_VALUE_BYTES
            or total > MAX_TOTAL_BYTES
            or (values and value not in values)
        )
        if bad:
            raise CustomHeaderError(name, HeaderRefusal.INVALID)
        seen.add(lower)
        admitted.append((wire_name, value))
    return tuple(admitted)


def _wire_name(name: str) -> str:
    lower = name.lower()
    if lower in _NAMED:
        return _NAMED[lower][0]
    reserved = lower.startswith(_RESERVED_PREFIX) or lower == _RESERVED
    if reserved or len(name) > MAX_X_NAME_BYTES or _X_NAME.fullmatch(name) is None:
        raise CustomHeaderError(name, HeaderRefusal.NOT_ALLOWED)
    return name
