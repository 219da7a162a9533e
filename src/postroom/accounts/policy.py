"""A tenant's policy as far as the program goes by it (rest-api §6.5; outbound §21): which members it has, what each may
be, and what holds where nothing is set. Pure.

What is stored are the members that somebody set. One that cannot be read, such as a newer release may have written,
counts as not set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from postroom.accounts.text import invalid, is_storable

MAX_DISCLOSURE: Final = 1000
"""Characters of the text that says that an AI wrote a message."""
DISCLOSURE: Final = "An AI assistant helped to write this message."

Stored = Mapping[str, Any]


class LargeAttachments(StrEnum):
    """What becomes of a message that its attachments make too large (G5)."""

    REFUSE = "refuse"
    LINK = "link"


class Disclosure(StrEnum):
    """How a message says that an AI wrote it (E8)."""

    NONE = "none"
    FOOTER = "footer"
    HEADER = "header"


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What holds for a tenant. `link_ttl_hours`: how long a link to a large attachment opens."""

    max_recipients: int = 10
    auto_reply_allowed: bool = True
    max_automatic_exchanges: int = 2
    large_attachments: LargeAttachments = LargeAttachments.REFUSE
    link_ttl_hours: int = 72
    disclosure: Disclosure = Disclosure.NONE
    disclosure_text: str = DISCLOSURE
    domain_fallback: bool = True


DEFAULT_POLICY: Final = TenantPolicy()


@dataclass(frozen=True, slots=True)
class _Member:
    """`field` of TenantPolicy. `read` raises ValueError, whose words say what the value must be."""

    field: str
    read: Callable[[Any], Any]


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _number(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return read


def _word(words: type[StrEnum]) -> Callable[[Any], StrEnum]:
    def read(value: Any) -> StrEnum:
        if not isinstance(value, str) or value not in tuple(words):
            raise ValueError(f"must be one of {', '.join(words)}")
        return words(value)

    return read


def _disclosure_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_DISCLOSURE or not is_storable(value):
        raise ValueError(f"must be a text of at most {MAX_DISCLOSURE} characters")
    if not all(char.isprintable() or char == "\n" for char in value):
        raise ValueError("must not contain control characters")
    return value


MEMBERS: Final[Mapping[str, _Member]] = MappingProxyType(
    {
        "max_recipients": _Member("max_recipients", _number(1, 49)),
        "auto_reply.allowed": _Member("auto_reply_allowed", _flag),
        "auto_reply.max_automatic_exchanges": _Member("max_automatic_exchanges", _number(0, 1000)),
        "large_attachments": _Member("large_attachments", _word(LargeAttachments)),
        "link_ttl_hours": _Member("link_ttl_hours", _number(1, 168)),
        "ai_disclosure.mode": _Member("disclosure", _word(Disclosure)),
        "ai_disclosure.text": _Member("disclosure_text", _disclosure_text),
        "domain_fallback": _Member("domain_fallback", _flag),
    }
)
"""Every member by its path in the document."""


def read_policy(stored: Stored, defaults: TenantPolicy = DEFAULT_POLICY) -> TenantPolicy:
    """What holds: the stored members, and the defaults of the others."""
    found: dict[str, Any] = {}
    for path, member in MEMBERS.items():
        value = _at(stored, path)
        if value is None:
            continue
        try:
            found[member.field] = member.read(value)
        except ValueError:
            continue
    return replace(defaults, **found) if found else defaults


def document(policy: TenantPolicy) -> dict[str, Any]:
    """The whole policy as the document that the interfaces show."""
    shown: dict[str, Any] = {}
    for path, member in MEMBERS.items():
        value = getattr(policy, member.field)
        outer, dot, inner = path.partition(".")
        if dot:
            shown.setdefault(outer, {})[inner] = value
        else:
            shown[outer] = value
    return shown


def changed(stored: Stored, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be stored once `changes` are made: paths and their values, of which None stands for the default.

    Raises PostroomError `invalid_request` for a path that there is not, and a value that is not one of it.
    """
    after: dict[str, Any] = {key: dict(value) if isinstance(value, Mapping) else value for key, value in stored.items()}
    for path, value in changes.items():
        member = MEMBERS.get(path)
        if member is None:
            raise invalid(f"policy.{path}", "is no member of the policy")
        if value is not None:
            try:
                value = member.read(value)
            except ValueError as error:
                raise invalid(f"policy.{path}", str(error)) from None
        _put(after, path, value)
    return after


def _at(stored: Stored, path: str) -> Any:
    outer, dot, inner = path.partition(".")
    value = stored.get(outer)
    if not dot:
        return value
    return value.get(inner) if isinstance(value, Mapping) else None


def _put(stored: dict[str, Any], path: str, value: Any) -> None:
    outer, dot, inner = path.partition(".")
    place, name = stored, outer
    if dot:
        held = stored.get(outer)
        place, name = held if isinstance(held, dict) else {}, inner
        stored[outer] = place
    if value is None:
        place.pop(name, None)
    else:
        place[name] = value
    if dot and not place:
        del stored[outer]
