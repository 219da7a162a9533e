"""The two directions of a compressed connection (RFC 4978): raw DEFLATE (RFC 1951), bounded in memory and time."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from typing import Final

LEVEL: Final = 5
_WINDOW: Final = 13
"""Of what is sent: 8 KiB, which mail is compressed nearly as well with as with 32, for 64 KiB less of each session."""
_MEMORY: Final = 6
PIECE: Final = 32 * 1024
"""Octets that are worked on at a time: a millisecond."""


class Inflater:
    """What comes in. `feed`, then `read` until it gives nothing; what is not read yet stays compressed, so that little
    that is received cannot become much that is held. Raises `zlib.error` on what is no DEFLATE."""

    __slots__ = ("_left", "_machine")

    def __init__(self) -> None:
        self._machine = zlib.decompressobj(-15)
        self._left = b""

    @property
    def waiting(self) -> int:
        """Compressed octets that are not read yet."""
        return len(self._left)

    def feed(self, data: bytes) -> None:
        # A stream that was ended (Z_FINISH) is followed by nothing; the machine would keep what is.
        if not self._machine.eof:
            self._left += data

    def read(self) -> bytes:
        """The next octets in clear, at most `PIECE`; nothing when more has to come first."""
        while self._left:
            data = self._machine.decompress(self._left, PIECE)
            self._left = self._machine.unconsumed_tail
            if self._machine.eof:
                self._left = b""
            if data:
                return data
        # What fits the window may still be held back for want of room.
        return self._machine.decompress(b"", PIECE) if not self._machine.eof else b""


class Deflater:
    """What goes out: `add`, then `take` piece by piece. Each piece can be read by itself (Z_SYNC_FLUSH at the end)."""

    __slots__ = ("_machine", "_unflushed", "_waiting", "waiting")

    def __init__(self) -> None:
        self._machine = zlib.compressobj(LEVEL, zlib.DEFLATED, -_WINDOW, _MEMORY)
        self._waiting: deque[memoryview] = deque()
        self._unflushed = False
        self.waiting = 0
        """Octets in clear that are to be compressed yet."""

    def add(self, buffers: Iterable[bytes | memoryview]) -> None:
        for buffer in buffers:
            if len(buffer):
                self._waiting.append(memoryview(buffer))
                self.waiting += len(buffer)

    def take(self) -> bytes:
        """Compress the next `PIECE` octets at most; ends what can be read at once when nothing waits any more."""
        made: list[bytes] = []
        room = PIECE
        while self._waiting and room:
            first = self._waiting.popleft()
            part = first[:room]
            if len(part) < len(first):
                self._waiting.appendleft(first[len(part) :])
            made.append(self._machine.compress(part))
            self._unflushed = True
            room -= len(part)
            self.waiting -= len(part)
        if not self._waiting and self._unflushed:
            made.append(self._machine.flush(zlib.Z_SYNC_FLUSH))
            self._unflushed = False
        return b"".join(made)
