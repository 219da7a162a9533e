"""GETMETADATA and SETMETADATA: their arguments (RFC 5464 §4.2, §4.3, §5), and names of entries (§3.2)."""

from __future__ import annotations

import re
from typing import Final

from postroom.imap import commands as c
from postroom.imap.cursor import MAX_NUMBER, Cursor
from postroom.imap.errors import BadCommand

MAX_ENTRIES: Final = 100
"""Names in one command (our limit)."""

# No empty component, no wildcard, no control character; the text is ASCII already.
_ENTRY: Final = re.compile(r"/(?:private|shared)(?:/[^/%*\x00-\x1f\x7f-\uffff]+)+")
ROOTS: Final = frozenset({"/private", "/shared"})
"""No entries of their own, but all are below them: KMail asks for ``/shared`` with DEPTH infinity."""
_MAX_NAME: Final = 255


def get_metadata(cursor: Cursor, _uid: bool) -> c.Command:
    """Options may stand before the mailbox, as the grammar has them, or after it, as some clients do."""
    cursor.space()
    options = _options(cursor) if cursor.at(b"(") else None
    if options is not None:
        cursor.space()
    mailbox = "" if cursor.take(b'""') else cursor.mailbox()
    cursor.space()
    if options is None and cursor.at(b"(") and _begins_with_option(cursor):
        options = _options(cursor)
        cursor.space()
    max_size, depth = options or (None, 0)
    if cursor.at(b"("):
        entries = tuple(cursor.items(lambda: _entry(cursor, roots=depth != 0), empty=False, limit=MAX_ENTRIES))
    else:
        entries = (_entry(cursor, roots=depth != 0),)
    return c.GetMetadata(mailbox, tuple(dict.fromkeys(entries)), max_size, depth)


def set_metadata(cursor: Cursor, _uid: bool) -> c.Command:
    cursor.space()
    mailbox = "" if cursor.take(b'""') else cursor.mailbox()
    cursor.space()

    def one() -> tuple[str, bytes | None]:
        entry = _entry(cursor)
        cursor.space()
        if cursor.at(b"~"):
            return entry, cursor.literal()[0]
        return entry, cursor.nstring()

    return c.SetMetadata(mailbox, tuple(cursor.items(one, empty=False, limit=MAX_ENTRIES)))


def _begins_with_option(cursor: Cursor) -> bool:
    at = cursor.pos
    cursor.open()
    found = cursor.peek_word() in (b"MAXSIZE", b"DEPTH")
    cursor.pos = at
    return found


def _options(cursor: Cursor) -> tuple[int | None, int | None]:
    found: dict[bytes, int | None] = {b"MAXSIZE": None, b"DEPTH": 0}

    def one() -> None:
        word = cursor.word()
        cursor.space()
        if word == b"MAXSIZE":
            found[word] = cursor.number(0, MAX_NUMBER)
        elif word == b"DEPTH":
            depth = cursor.word()
            if depth not in (b"0", b"1", b"INFINITY"):
                raise BadCommand("Invalid depth")
            found[word] = None if depth == b"INFINITY" else int(depth)
        else:
            raise BadCommand("Unknown GETMETADATA option")

    cursor.items(one, empty=False)
    return found[b"MAXSIZE"], found[b"DEPTH"]


def _entry(cursor: Cursor, *, roots: bool = False) -> str:
    name = cursor.unicode().lower()
    if roots and name in ROOTS:
        return name
    if len(name) > _MAX_NAME or not name.isascii() or _ENTRY.fullmatch(name) is None:
        raise BadCommand("Invalid entry name")
    return name
