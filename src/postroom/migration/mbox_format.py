"""The mbox formats: messages one after the other, each behind a line `From …` (RFC 4155 and its older kin).

They differ in how a line of a message that begins with `From ` is told from that: mboxrd puts a `>` before it and
before lines that look quoted already, mboxo before bare ones only, mboxcl2 says by Content-Length where the message
ends, and mboxcl does both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Final

from postroom.mail.date import parse_date
from postroom.migration.flags import MOZILLA_EXPUNGED, mozilla_bits, of_status, status_of


class Dialect(StrEnum):
    MBOXRD = "mboxrd"
    MBOXO = "mboxo"
    MBOXCL = "mboxcl"
    MBOXCL2 = "mboxcl2"

    @property
    def has_lengths(self) -> bool:
        return self in (Dialect.MBOXCL, Dialect.MBOXCL2)


MAX_LINE: Final = 1024
"""Octets of a `From ` line that are looked at."""
MAX_STATUS: Final = 64 * 1024
_MAX_NAME: Final = 128
_TIME: Final = re.compile(rb"\d:\d\d")
_YEAR: Final = re.compile(rb"\b(?:19|20)\d\d\b")
_QUOTED: Final = re.compile(rb"^>(>*From )", re.MULTILINE)
_TO_QUOTE: Final = re.compile(rb"^(>*From )", re.MULTILINE)
_QUOTED_ONCE: Final = re.compile(rb"^>(From )", re.MULTILINE)
_FIELDS: Final = (b"status", b"x-status", b"x-keywords", b"x-mozilla-status")
_SCAFFOLD: Final = (
    *_FIELDS,
    b"x-mozilla-status2",
    b"x-mozilla-keys",
    b"x-imap",
    b"x-imapbase",
    b"x-uid",
    b"content-length",
)
"""Fields that belong to the file, not to the message."""
_SCAFFOLD_FIELD: Final = re.compile(
    rb"^(%b)[ \t]*:[^\n]*+(?:\n[ \t][^\n]*+)*+\n?" % b"|".join(_SCAFFOLD), re.MULTILINE | re.IGNORECASE
)
_BLANK: Final = re.compile(rb"^\r?\n", re.MULTILINE)
_OURS: Final = (b"status", b"x-status", b"x-keywords")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A message as it was before it was put into the file, still with the file's line ends."""

    raw: bytes
    flags: tuple[str, ...]
    is_expunged: bool
    """Thunderbird keeps what was deleted until it compacts the file."""


def is_separator(line: bytes) -> bool:
    """Whether a line, after a blank one, begins a message: `From `, and a time and a year somewhere in it."""
    if not line.startswith(b"From "):
        return False
    looked_at = line[:MAX_LINE]
    return _TIME.search(looked_at) is not None and _YEAR.search(looked_at) is not None


def date_of(line: bytes) -> datetime | None:
    """The moment in a `From ` line, UTC unless it names a zone."""
    words = line[:MAX_LINE].decode("latin-1").split()
    for start in range(1, min(len(words), 6)):
        if re.fullmatch(r"(?:mon|tue|wed|thu|fri|sat|sun),?", words[start].lower()):
            return parse_date(" ".join(words[start:]))
    return None


def separator_line(date: datetime) -> bytes:
    """`From ` line with asctime in UTC. Nobody is named: what the envelope said is in the message."""
    return b"From MAILER-DAEMON %s\n" % date.astimezone(UTC).strftime("%a %b %e %H:%M:%S %Y").encode()


def quote(raw: bytes) -> bytes:
    """As mboxrd has it; `raw` has LF."""
    return _TO_QUOTE.sub(rb">\1", raw)


def unpack(raw: bytes, dialect: Dialect) -> Unpacked:
    """A message without what the file added to it: quoting, and the fields that hold flags.

    Where such fields stand together at the very top, as we write them, the message's own stay.
    """
    if dialect in (Dialect.MBOXRD, Dialect.MBOXCL):
        raw = _QUOTED.sub(rb"\1", raw)
    elif dialect is Dialect.MBOXO:
        raw = _QUOTED_ONCE.sub(rb"\1", raw)
    fields = list(islice(_header_fields(raw), len(_OURS)))
    is_ours = tuple(name for name, _, _ in fields) == _OURS
    removed = fields if is_ours else list(_scaffold(raw))
    values: dict[bytes, str] = {}
    for name, start, stop in removed:
        value = raw[start:stop].partition(b":")[2][:MAX_STATUS].decode("latin-1")
        values.setdefault(name, value.strip())
    status = [values.get(name, "") for name in _FIELDS]
    return Unpacked(
        _without(raw, removed),
        tuple(of_status(*status)) + tuple(values.get(b"x-mozilla-keys", "").split()),
        bool(mozilla_bits(status[3]) & MOZILLA_EXPUNGED),
    )


def pack(raw: bytes, flags: tuple[str, ...], date: datetime) -> bytes:
    """A message as mboxrd holds it: `From ` line, fields with its flags, quoted text with LF, a blank line."""
    status, x_status, keywords = status_of(flags)
    head = f"Status: {status}\nX-Status: {x_status}\nX-Keywords: {keywords}\n".encode()
    body = quote(raw.replace(b"\r\n", b"\n"))
    end = b"\n" if body.endswith(b"\n") else b"\n\n"
    return separator_line(date) + head + body + end


def _scaffold(raw: bytes) -> Iterator[tuple[bytes, int, int]]:
    """As `_header_fields`, but for fields of the message: of those there may be millions."""
    blank = _BLANK.search(raw)
    for found in _SCAFFOLD_FIELD.finditer(raw, 0, len(raw) if blank is None else blank.start()):
        yield found[1].lower(), found.start(), found.end()


def _header_fields(raw: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Name in lower case, start and end of each field of the header."""
    name, start, at = b"", 0, 0
    while at < len(raw):
        end = raw.find(b"\n", at) + 1 or len(raw)
        line = raw[at : min(end, at + _MAX_NAME)]
        if not line.strip(b"\r\n") and end - at <= _MAX_NAME:
            break
        if line[:1] not in b" \t" or not at:
            if at:
                yield name, start, at
            name, start = line.partition(b":")[0].strip().lower(), at
        at = end
    if at:
        yield name, start, at


def _without(raw: bytes, fields: Iterable[tuple[bytes, int, int]]) -> bytes:
    pieces: list[bytes] = []
    at = 0
    for _, start, end in fields:
        pieces.append(raw[at:start])
        at = end
    return b"".join([*pieces, raw[at:]])


def content_length(head: bytes) -> int | None:
    """What Content-Length says in the beginning of a message; None when the header does not end there, or has none."""
    end = 0
    length: int | None = None
    for name, start, end in _header_fields(head):
        if name == b"content-length" and length is None:
            text = head[start:end].partition(b":")[2].strip()
            length = int(text) if text.isdigit() and len(text) < 12 else -1
    return None if end >= len(head) or length == -1 else length
