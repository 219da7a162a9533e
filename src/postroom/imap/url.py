"""IMAP URLs of messages and parts, relative to the session that names them (RFC 5092 §6, §7; RFC 4469 §3)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from postroom.imap.cursor import MAX_NUMBER, MAX_NUMBER64
from postroom.imap.errors import CommandError
from postroom.imap.fetch import Section, read_section
from postroom.imap.names import SEPARATOR, canonical_name, decode_name

_URL = re.compile(
    r"(?:(?P<absolute>/)?(?P<mailbox>[^;]*?)(?:;UIDVALIDITY=(?P<validity>[0-9]{1,10}))?/)?"
    r";UID=(?P<uid>[0-9]{1,10})"
    r"(?:/;SECTION=(?P<section>[^;]*?))?"
    r"(?:/;PARTIAL=(?P<offset>[0-9]{1,19})(?:\.(?P<count>[0-9]{1,19}))?)?",
    re.IGNORECASE,
).fullmatch
# A scheme, or an authority: of another server, whatever it names (RFC 3986 §4.2).
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//").match
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})").search
_UNSAFE = re.compile(rb"[^!-Z^-~]|\\")

WHOLE = Section()


@dataclass(frozen=True, slots=True)
class MessageUrl:
    """A message, or a part of one. `partial` is (offset, count) in octets, a count of None being the rest."""

    mailbox: str
    uid: int
    uid_validity: int | None = None
    section: Section = WHOLE
    partial: tuple[int, int | None] | None = None


def parse_message_url(url: bytes, selected: str | None = None) -> MessageUrl:
    """The message meant by a relative URL; `selected` is the mailbox that such a URL is relative to.

    Raises ValueError for everything else, absolute URLs among it: those are of other sessions (RFC 4469 §3).
    """
    text = url.decode("ascii")  # a UnicodeDecodeError is a ValueError
    found = _URL(text)
    if found is None or _ABSOLUTE(text) or _BAD_ESCAPE(text):
        raise ValueError("no relative URL of a message")
    name = _name(found["mailbox"] or "")
    if not name:
        if selected is None:
            raise ValueError("no mailbox")
        name = selected
    elif not found["absolute"] and selected is not None:
        # As RFC 3986 §5.2.3 merges paths: beside the selected mailbox, not below it.
        name = selected[: selected.rfind(SEPARATOR) + 1] + name
    count = None if found["count"] is None else _number(found["count"], MAX_NUMBER64)
    return MessageUrl(
        canonical_name(name),
        _number(found["uid"], MAX_NUMBER),
        None if found["validity"] is None else _number(found["validity"], MAX_NUMBER),
        WHOLE if found["section"] is None else _section(found["section"]),
        None if found["offset"] is None else (int(found["offset"]), count),
    )


def shown_url(url: bytes) -> str:
    """A URL as ``BADURL`` can hold it: without spaces, controls, 8-bit octets and ``]`` (RFC 4469 §5)."""
    return _UNSAFE.sub(lambda octet: b"%%%02X" % octet[0][0], url).decode("ascii")


def _name(path: str) -> str:
    try:
        return decode_name(unquote_to_bytes(path), utf8=True)
    except CommandError as error:
        raise ValueError(error.text) from None


def _section(text: str) -> Section:
    try:
        return read_section(unquote_to_bytes(text))
    except CommandError as error:
        raise ValueError(error.text) from None


def _number(digits: str, high: int) -> int:
    number = int(digits)
    if not 1 <= number <= high:
        raise ValueError("number out of range")
    return number
