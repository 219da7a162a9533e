"""Why a message cannot be composed: a closed list."""

from enum import StrEnum


class Reason(StrEnum):
    CONTROL_CHARACTER = "control_character"
    """A carriage return, line feed, NUL or other control stands where it would end or distort a field."""
    SYNTAX = "syntax"
    TOO_LONG = "too_long"
    TOO_MANY = "too_many"
    MISSING = "missing"
    NOT_ASCII = "not_ascii"
    RESERVED = "reserved"
    """A field that the composer writes itself, or that callers may not set."""
    DUPLICATE = "duplicate"
    SIZE_MISMATCH = "size_mismatch"
    """A streamed attachment gave another number of octets than was announced."""


class ComposeError(ValueError):
    """A draft that cannot be written. `field` names the part of it, never its content."""

    def __init__(self, field: str, reason: Reason) -> None:
        super().__init__(f"{field}: {reason.value}")
        self.field = field
        self.reason = reason
