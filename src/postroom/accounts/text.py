"""Text from outside, as far as the database can hold it. Pure."""

from __future__ import annotations

from postroom.base.errors import PostroomError


def invalid(path: str, message: str) -> PostroomError:
    """`invalid_request` about one member of the request."""
    return PostroomError("invalid_request", details={"errors": [{"path": path, "message": message}]})


def is_storable(text: str) -> bool:
    """Whether PostgreSQL can hold the text: no U+0000, no lone surrogate (data-model §0)."""
    if text.isascii():
        return "\0" not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def check_name(path: str, value: str, limit: int) -> None:
    """Raises `invalid_request` unless `value` has 1 to `limit` characters, all printable, in any script (FR-ADR-7)."""
    if not 1 <= len(value) <= limit or not is_storable(value) or any(char < " " or char == "\x7f" for char in value):
        raise invalid(path, f"must have 1 to {limit} characters and no control characters")


def check_text(path: str, value: str | None, limit: int) -> None:
    """Raises `invalid_request` for text that is longer than `limit` octets or that the database cannot hold."""
    if value is not None and not (is_storable(value) and len(value.encode()) <= limit):
        raise invalid(path, f"must be text of at most {limit} bytes")
