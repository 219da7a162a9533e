"""What a reader makes of one client's bytes, however they are cut."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Final

from postroom.imap.wire import CommandReader, Event, RawCommand, ReaderLimits

# As a session does: after these it asks for a line that is no command.
_WANTS_LINE: Final = re.compile(rb"(?:IDLE|AUTHENTICATE +[^ ]+) *", re.IGNORECASE).fullmatch
_LITERAL: Final = re.compile(rb"~?\{[0-9]+\}\r\n")
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\["\\])*)"')

Heard = list[tuple[Event, int]]
"""Events, each with the number of octets that had come."""


def hear(pieces: Iterable[bytes], limits: ReaderLimits | None = None, *, authenticated: bool = True) -> Heard:
    """Feed `pieces`, and look after each of them that no more is kept than may be."""
    reader = CommandReader(limits, authenticated=authenticated)
    heard: Heard = []
    octets = 0
    for piece in pieces:
        octets += len(piece)
        for event in reader.feed(piece):
            heard.append((event, octets))
            if isinstance(event, RawCommand) and _WANTS_LINE(event.text):
                reader.expect_line()
        kept = weight(reader)
        assert reader.held <= kept <= most(reader.limits), (reader.held, kept)
    return heard


def in_two(whole: bytes, at: int) -> tuple[bytes, bytes]:
    return whole[:at], whole[at:]


def cut_anywhere(
    whole: bytes,
    limits: ReaderLimits | None = None,
    *,
    authenticated: bool = True,
    cuts: Iterable[int] | None = None,
) -> Heard:
    """What is heard byte by byte, which is the same in one piece and in two, cut anywhere, and comes as soon as the
    last octet that it takes.
    """
    singly = hear((whole[at : at + 1] for at in range(len(whole))), limits, authenticated=authenticated)
    assert hear((whole,), limits, authenticated=authenticated) == [(event, len(whole)) for event, _ in singly]
    for cut in range(1, len(whole)) if cuts is None else cuts:
        expected = [(event, cut if at <= cut else len(whole)) for event, at in singly]
        assert hear(in_two(whole, cut), limits, authenticated=authenticated) == expected, cut
    return singly


def cut_twice(whole: bytes, limits: ReaderLimits | None = None) -> None:
    """The same of all three pieces that there are."""
    singly = hear((whole[at : at + 1] for at in range(len(whole))), limits)
    for first, second in itertools.combinations(range(1, len(whole)), 2):
        ends = (first, second, len(whole))
        expected = [(event, next(end for end in ends if at <= end)) for event, at in singly]
        assert hear((whole[:first], whole[first:second], whole[second:]), limits) == expected, (first, second)


def most(limits: ReaderLimits) -> int:
    """Octets that a reader may keep: one command with all that it may bring, and its markers."""
    markers = 4 * (limits.max_literals + 1)
    return limits.max_line + markers + limits.max_literal_total + limits.max_append_total + 64


def weight(reader: CommandReader) -> int:
    """All octets that a reader keeps, in whatever it keeps them; that they are really let go of is looked at too."""
    octets = allocated = 0
    for name in CommandReader.__slots__:
        value = getattr(reader, name)
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, bytes | bytearray):
                octets += len(one)
                allocated += sys.getsizeof(one)
    assert allocated <= 2 * most(reader.limits) + 64 * (reader.limits.max_literals + 16)
    return octets


def wants_line(command: bytes) -> bool:
    """Whether a session reads a line that is no command after it."""
    return _WANTS_LINE(command) is not None


def spellings(line: bytes) -> Iterator[list[bytes]]:
    """A command in groups of spellings that mean the same: its literals announced in every way, its quoted strings as
    they are and as literals.
    """
    found = [event for event, _ in hear((b"a " + line + b"\r\n",)) if isinstance(event, RawCommand)]
    if len(found) != 1:
        yield [line]
        return
    (raw,) = found
    texts = _LITERAL.split(raw.text)
    for binary, quoted in itertools.product((b"", b"~"), (True, False)):
        if not (raw.literals or (not quoted and b'"' in line)):
            continue
        group = []
        for mark in (b"{%d+}\r\n", b"{%d}\r\n", b"{000%d+}\r\n"):
            literals = [binary + mark % len(value) + value for value in raw.literals]
            said = texts if quoted else [_unquoted(text, binary + mark) for text in texts]
            group.append(
                b"".join(part for pair in itertools.zip_longest(said, literals, fillvalue=b"") for part in pair)
            )
        yield group
    yield [line]


def _unquoted(text: bytes, mark: bytes) -> bytes:
    def literal(found: re.Match[bytes]) -> bytes:
        value = re.sub(rb'\\(["\\])', rb"\1", found[1])
        return mark % len(value) + value

    return _QUOTED.sub(literal, text)
