"""What an IMAP server answers, as far as an import asks: lists in parentheses, strings, literals (RFC 3501 §7, §9)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

MAX_DEPTH: Final = 50
_MAX_NUMBER: Final = 2**32 - 1

Value = bytes | None | list["Value"]
"""An atom or string, NIL, or a list."""
Piece = bytes | tuple[bytes, bytes]
"""As imaplib gives them: a response ends with bytes; before it stand pairs of a text that ends in `{n}`, and n octets.
"""

_TOKEN: Final = re.compile(rb'\s*+(?:([()])|"((?:[^"\\]|\\.)*+)"|~?\{(\d++)\+?\}|([^\s()"]++))', re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


class BadReply(Exception):
    """The server's answer makes no sense."""


def responses(pieces: Iterable[object]) -> Iterator[list[Value]]:
    """The values of each response. Raises BadReply."""
    text: list[bytes] = []
    literals: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, tuple):
            head, literal = piece
            text.append(head)
            literals.append(literal)
        elif isinstance(piece, bytes):
            text.append(piece)
            yield parse(b" ".join(text), literals)
            text, literals = [], []


def parse(text: bytes, literals: Sequence[bytes] = ()) -> list[Value]:
    """The values of one response; `{n}` stands for the literals, in order. Raises BadReply."""
    stack: list[list[Value]] = [[]]
    waiting = iter(literals)
    at = 0
    text = text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise BadReply
        at = token.end()
        bracket, quoted, literal, atom = token.groups()
        if bracket == b"(":
            if len(stack) > MAX_DEPTH:
                raise BadReply
            stack.append([])
        elif bracket == b")":
            if len(stack) == 1:
                raise BadReply
            done = stack.pop()
            stack[-1].append(done)
        elif quoted is not None:
            stack[-1].append(_ESCAPED.sub(rb"\1", quoted))
        elif literal is not None:
            octets = next(waiting, None)
            if octets is None:
                raise BadReply
            stack[-1].append(octets)
        else:
            stack[-1].append(None if atom.upper() == b"NIL" else atom)
    if len(stack) != 1:
        raise BadReply
    return stack[0]


def pairs(values: Value) -> dict[bytes, Value]:
    """Name in capitals → value, of a list such as FETCH and STATUS give. Raises BadReply."""
    if not isinstance(values, list) or len(values) % 2:
        raise BadReply
    found: dict[bytes, Value] = {}
    for name, value in zip(values[::2], values[1::2], strict=True):
        if not isinstance(name, bytes):
            raise BadReply
        found[name.upper()] = value
    return found


def number(value: Value) -> int:
    """Raises BadReply unless it is a number of 32 bits."""
    if not isinstance(value, bytes) or not value.isdigit() or len(value) > 10 or int(value) > _MAX_NUMBER:
        raise BadReply
    return int(value)


def words(value: Value) -> tuple[str, ...]:
    """A list of atoms, such as flags."""
    return tuple(one.decode("latin-1") for one in value or () if isinstance(one, bytes)) if value != b"" else ()


def moment(value: Value) -> datetime | None:
    """INTERNALDATE: `"17-Jul-1996 02:44:25 -0700"` (RFC 3501 §9, date-time)."""
    if not isinstance(value, bytes):
        return None
    try:
        return datetime.strptime(value.decode("ascii").strip(), "%d-%b-%Y %H:%M:%S %z")
    except ValueError:
        return None
