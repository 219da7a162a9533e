"""Reading one command's text from left to right: the terminals of RFC 9051 §9.

A `Cursor` never backtracks by itself and every pattern is linear. Where real clients are lax it is too: several spaces
for one, spaces inside parentheses, spaces before the line's end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Generic, TypeVar

from postroom.imap.errors import BadCommand, Code, ProtocolNo
from postroom.imap.flags import flag_word
from postroom.imap.names import canonical_name, decode_name
from postroom.imap.sequence import SEQUENCE_SET, SequenceSet

T = TypeVar("T")

MAX_NUMBER = 0xFFFF_FFFF
MAX_NUMBER64 = 0x7FFF_FFFF_FFFF_FFFF
#: Flags in one list (our limit; D5 allows 64 keywords on a message).
MAX_FLAGS = 256

_SPACES = re.compile(rb" +").match
_ATOM = re.compile(rb'[^\x00-\x20\x7f-\xff(){%*"\\\]]+').match
_ASTRING = re.compile(rb'[^\x00-\x20\x7f-\xff(){%*"\\]+').match
_LIST_MAILBOX = re.compile(rb'[^\x00-\x20\x7f-\xff(){"\\]+').match
_WORD = re.compile(rb"[A-Za-z0-9.=+$_-]+").match
_QUOTED = re.compile(rb'"((?:[^"\\\r\n\x00]|\\["\\])*+)"').match
_LITERAL = re.compile(rb"(~?)\{[0-9]+\}\r\n").match
_DIGITS = re.compile(rb"[0-9]{1,20}").match
_FLAG = re.compile(rb'\\?[^\x00-\x20\x7f-\xff(){%*"\\\]]+').match
_SET = SEQUENCE_SET.match
_ESCAPE = re.compile(rb'\\(["\\])')
_MONTHS = {
    name: number
    for number, name in enumerate(
        (b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"), 1
    )
}
_DATE = re.compile(rb'("?)([0-9]{1,2})-([A-Za-z]{3})-([0-9]{4})\1').match
_DATE_TIME = re.compile(
    rb'"( ?[0-9]{1,2})-([A-Za-z]{3})-([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) ([+-])([0-9]{2})([0-9]{2})"'
).match


@dataclass(frozen=True, slots=True)
class ParserOptions:
    """What this session may say.

    `utf8`: mailbox names are UTF-8, not modified UTF-7 (after ENABLE of IMAP4rev2 or UTF8=ACCEPT). `capabilities`: the
    extensions on offer beyond spec D1; table rows that belong to another one are unknown words. Without `charsets` no
    command may name one (RFC 6855 §3).
    """

    utf8: bool = False
    capabilities: frozenset[str] = frozenset()
    charsets: bool = True


DEFAULT_OPTIONS = ParserOptions()


class Cursor:
    """A position in the text of one command, and its literals."""

    __slots__ = ("end", "literals", "options", "pos", "text", "used")

    def __init__(self, text: bytes, literals: tuple[bytes, ...] = (), options: ParserOptions = DEFAULT_OPTIONS) -> None:
        self.text = text
        self.literals = literals
        self.options = options
        self.pos = 0
        self.used = 0
        self.end = len(text)

    # -- punctuation

    def space(self) -> None:
        """One space (or several). Raises `BadCommand` when there is none."""
        found = _SPACES(self.text, self.pos)
        if found is None:
            raise BadCommand("Missing argument")
        self.pos = found.end()

    def skip_spaces(self) -> None:
        """Spaces, if any."""
        found = _SPACES(self.text, self.pos)
        if found is not None:
            self.pos = found.end()

    def at(self, byte: bytes) -> bool:
        """Whether the next octet is `byte`; nothing is consumed."""
        return self.text.startswith(byte, self.pos)

    def take(self, byte: bytes) -> bool:
        """Consume `byte` if it comes next."""
        if self.text.startswith(byte, self.pos):
            self.pos += len(byte)
            return True
        return False

    def expect(self, byte: bytes) -> None:
        """Consume `byte` or raise `BadCommand`."""
        if not self.text.startswith(byte, self.pos):
            raise BadCommand("Syntax error")
        self.pos += len(byte)

    def open(self) -> None:
        """An opening parenthesis and lax spaces."""
        self.expect(b"(")
        self.skip_spaces()

    def closes(self) -> bool:
        """Consume lax spaces and a closing parenthesis, if that is what comes next."""
        self.skip_spaces()
        return self.take(b")")

    def more(self) -> bool:
        """Whether a further argument follows; consumes the spaces before it (or before the line's end)."""
        found = _SPACES(self.text, self.pos)
        if found is None:
            return False
        self.pos = found.end()
        return self.pos < self.end

    def finish(self) -> None:
        """The end of the command, or `BadCommand`."""
        self.skip_spaces()
        if self.pos != self.end:
            raise BadCommand("Unexpected argument")

    # -- words and strings

    def word(self) -> bytes:
        """A keyword of the grammar, in upper case."""
        found = _WORD(self.text, self.pos)
        if found is None:
            raise BadCommand("Syntax error")
        self.pos = found.end()
        return found[0].upper()

    def peek_word(self) -> bytes:
        """The keyword that comes next in upper case, or b''; nothing is consumed."""
        found = _WORD(self.text, self.pos)
        return found[0].upper() if found else b""

    def atom(self) -> bytes:
        """``atom``."""
        found = _ATOM(self.text, self.pos)
        if found is None:
            raise BadCommand("Syntax error")
        self.pos = found.end()
        return found[0]

    def astring(self) -> bytes:
        """``astring``: quoted, literal, or a run of ASTRING-CHARs. NUL raises `BadCommand`."""
        found = _ASTRING(self.text, self.pos)
        if found is not None:
            self.pos = found.end()
            return found[0]
        return self.string()

    def list_mailbox(self) -> bytes:
        """``list-mailbox``: like astring, with the wildcards."""
        found = _LIST_MAILBOX(self.text, self.pos)
        if found is not None:
            self.pos = found.end()
            return found[0]
        return self.string()

    def string(self) -> bytes:
        """``string``: quoted or literal, without NUL."""
        text = self.text
        if text.startswith(b'"', self.pos):
            found = _QUOTED(text, self.pos)
            if found is None:
                raise BadCommand("Invalid quoted string")
            self.pos = found.end()
            value = found[1]
            if self.options.utf8 and not value.isascii() and not _is_utf8(value):
                raise BadCommand("Invalid quoted string")  # RFC 6855 §3
            return _ESCAPE.sub(rb"\1", value) if b"\\" in value else value
        value, binary = self.literal()
        if binary or b"\0" in value:
            raise BadCommand("Invalid literal")
        return value

    def literal(self) -> tuple[bytes, bool]:
        """A ``literal`` or ``literal8`` (True; RFC 3516 §4), octets untouched."""
        found = _LITERAL(self.text, self.pos)
        if found is None or self.used >= len(self.literals):
            raise BadCommand("Syntax error")
        self.pos = found.end()
        value = self.literals[self.used]
        self.used += 1
        return value, bool(found[1])

    def nstring(self) -> bytes | None:
        """``nstring``: a string or NIL."""
        if self.text[self.pos : self.pos + 3].upper() == b"NIL":
            self.pos += 3
            return None
        return self.string()

    def unicode(self) -> str:
        """An astring as text; octets that are not UTF-8 raise `BadCommand`."""
        try:
            return self.astring().decode("utf-8")
        except UnicodeDecodeError:
            raise BadCommand("Invalid character encoding") from None

    # -- values

    def number(self, low: int = 0, high: int = MAX_NUMBER) -> int:
        """``number`` (or ``nz-number`` with `low` 1, ``number64`` with `high`); out of range raises `BadCommand`."""
        found = _DIGITS(self.text, self.pos)
        value = int(found[0]) if found else -1
        if found is None or not low <= value <= high:
            raise BadCommand("Invalid number")
        self.pos = found.end()
        return value

    def mailbox(self) -> str:
        """``mailbox``: Unicode, NFC, INBOX in upper case."""
        return canonical_name(self.name(self.astring()))

    def name(self, data: bytes) -> str:
        """A mailbox name or pattern as sent. Where UTF8=ACCEPT is on offer, who sends UTF-8 is understood at once."""
        options = self.options
        utf8 = options.utf8 or ("UTF8=ACCEPT" in options.capabilities and not data.isascii())
        return decode_name(data, utf8=utf8)

    def sequence_set(self) -> SequenceSet:
        """``sequence-set``; ``$`` where SEARCHRES is on offer."""
        if self.at(b"$") and "SEARCHRES" in self.options.capabilities:
            self.pos += 1
            return SAVED_RESULT
        found = _SET(self.text, self.pos)
        if found is None:
            raise BadCommand("Invalid sequence set")
        self.pos = found.end()
        return SequenceSet.parse(found[0])

    def flag(self) -> str | None:
        """One ``flag`` as stored word; None for ``\\Recent``."""
        found = _FLAG(self.text, self.pos)
        if found is None:
            raise BadCommand("Invalid flag")
        self.pos = found.end()
        return flag_word(found[0])

    def flag_list(self) -> tuple[str, ...]:
        """``flag-list``: in parentheses, without duplicates and ``\\Recent``."""
        return self._flags(parenthesised=True)

    def store_flags(self) -> tuple[str, ...]:
        """What STORE allows: a list in parentheses, or bare flags up to the line's end."""
        return self._flags(parenthesised=self.at(b"("))

    def _flags(self, *, parenthesised: bool) -> tuple[str, ...]:
        words: dict[str, None] = {}
        count = 0
        if parenthesised:
            self.open()
            if self.closes():
                return ()
        while True:
            count += 1
            if count > MAX_FLAGS:
                raise ProtocolNo(Code.LIMIT, "Too many flags")
            word = self.flag()
            if word is not None:
                words[word] = None
            if parenthesised and self.closes():
                break
            if not parenthesised and not self.more():
                break
            if parenthesised and self.text[self.pos - 1] != 0x20:
                raise BadCommand("Invalid flag list")
        return tuple(words)

    def date(self) -> date:
        """``date``, quoted or not. Days that do not exist raise `BadCommand`."""
        found = _DATE(self.text, self.pos)
        if found is None:
            raise BadCommand("Invalid date")
        self.pos = found.end()
        try:
            return date(int(found[4]), _MONTHS[found[3].lower()], int(found[2]))
        except (ValueError, KeyError):
            raise BadCommand("Invalid date") from None

    def date_time(self) -> datetime:
        """``date-time`` with its zone; a day of one digit is accepted without padding, second 60 becomes 59."""
        found = _DATE_TIME(self.text, self.pos)
        if found is None:
            raise BadCommand("Invalid date-time")
        self.pos = found.end()
        day, month, year, hour, minute, second, sign, zone_hours, zone_minutes = found.groups()
        try:
            if int(zone_minutes) > 59:
                raise ValueError
            offset = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
            zone = timezone(-offset if sign == b"-" else offset)
            when = datetime(
                int(year),
                _MONTHS[month.lower()],
                int(day),
                int(hour),
                int(minute),
                59 if second == b"60" else int(second),
                tzinfo=zone,
            )
            when.astimezone(UTC)  # raises for what leaves the calendar
        except (ValueError, KeyError, OverflowError):
            raise BadCommand("Invalid date-time") from None
        return when

    def items(self, read: Callable[[], T], *, empty: bool = True, limit: int = 256) -> list[T]:
        """A list in parentheses, its members read by `read` and divided by spaces."""
        found: list[T] = []
        self.open()
        if self.closes():
            if empty:
                return found
            raise BadCommand("Empty list")
        while True:
            if len(found) >= limit:
                raise ProtocolNo(Code.LIMIT, "List too long")
            found.append(read())
            if self.take(b")"):
                return found
            self.space()
            if self.take(b")"):
                return found


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


SAVED_RESULT = SequenceSet((), saved=True)


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    """An entry of a table of words: how to read what follows, and the extension that brings it (None: always there)."""

    read: Callable[[Cursor], T]
    capability: str | None = field(default=None)

    @classmethod
    def constant(cls, value: T, capability: str | None = None) -> Row[T]:
        """A word that stands for itself."""
        return cls(lambda _cursor: value, capability)


def look_up(table: Mapping[bytes, Row[T]], word: bytes, options: ParserOptions, error: str) -> Row[T]:
    """The row of `word`; `BadCommand` with `error` when there is none or its extension is not on offer."""
    row = table.get(word)
    if row is None or (row.capability is not None and row.capability not in options.capabilities):
        raise BadCommand(error)
    return row
