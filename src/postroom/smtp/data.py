"""Message data: after DATA (RFC 5321 §4.1.1.4, §4.5.2) end of data, dot-unstuffing, size, smuggling; BDAT chunks.

Only `CRLF . CRLF` ends the data, and a CR or LF that is not part of a CRLF is refused (RFC 5321 §2.3.8, rule A2): a
peer that sees another end of data than we do could otherwise smuggle a second message past its own checks.

The work is done chunk by chunk as the bytes come in, with whole-buffer operations only, so a large message costs the
event loop nothing at its end.
"""

import re
from io import BytesIO
from typing import Final

_END: Final = b"\r\n.\r\n"
# A chunk may end in the middle of the end marker: these tails wait for the next chunk, longest first.
_PARTIAL_ENDS: Final = (b"\r\n.\r", b"\r\n.", b"\r\n", b"\r")
# The data begins as if after a CRLF (the one of the DATA line), so a first line of "." is an end too.
_VIRTUAL_START: Final = b"\r\n"

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")

# Received lines are looked for in this much of the header block; relays put theirs on top.
HEADER_SCAN: Final = 256 * 1024


class BareLineEndingError(ValueError):
    """The data holds a CR or LF that is not part of a CRLF."""


class DataReceiver:
    """Collects one message. `limit` is the largest size kept, in octets as RFC 1870 §3 counts them (unstuffed).

    Over the limit the collected bytes are dropped and what follows is counted, not kept.
    """

    __slots__ = ("_carry", "_limit", "_sink", "_skip", "size")

    def __init__(self, limit: int) -> None:
        self._carry = _VIRTUAL_START
        self._skip = len(_VIRTUAL_START)
        self._limit = limit
        # BytesIO hands its own buffer out, so taking the finished message copies nothing.
        self._sink = BytesIO()
        self.size = 0

    @property
    def is_oversize(self) -> bool:
        """Whether the message has passed the limit."""
        return self.size > self._limit

    @property
    def held(self) -> int:
        """Octets held in memory."""
        return 0 if self.size > self._limit else self.size

    def feed(self, chunk: bytes) -> bytes | None:
        """Take the next bytes. Returns what follows the end of data, or `None` while there is more to come.

        Raises `BareLineEndingError`, after which the receiver is of no further use.
        """
        data = self._carry + chunk
        end = data.find(_END)
        rest: bytes | None = None
        if end >= 0:
            rest = data[end + len(_END) :]
            body = data[: end + 2]
        else:
            body = data
            self._carry = b""
            for tail in _PARTIAL_ENDS:
                if data.endswith(tail):
                    self._carry = tail
                    body = data[: -len(tail)]
                    break
        # No chunk boundary splits a CRLF here: a trailing CR always waits. So all three counts agree, or one is bare.
        pairs = body.count(b"\r\n")
        if body.count(b"\n") != pairs or body.count(b"\r") != pairs:
            raise BareLineEndingError
        self._keep(body.replace(b"\r\n.", b"\r\n"))
        return rest

    def _keep(self, body: bytes) -> None:
        if self._skip and body:
            body = body[self._skip :]
            self._skip = 0
        was_oversize = self.is_oversize
        self.size += len(body)
        if not self.is_oversize:
            self._sink.write(body)
        elif not was_oversize:
            self._sink = BytesIO()

    def take(self) -> bytes:
        """The message, once `feed` has returned its end."""
        return self._sink.getvalue()


class ChunkReceiver:
    """Collects one message out of BDAT chunks (RFC 3030 §2), for whose octets nothing is special.

    `limit` is the largest size kept, in octets. A chunk that is not wanted is passed over.
    """

    __slots__ = ("_left", "_limit", "_sink", "_wanted", "is_last", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sink = BytesIO()
        self._left = 0
        self._wanted = True
        self.size = 0
        self.is_last = False

    @property
    def is_oversize(self) -> bool:
        """Whether the chunks so far, with the one that is coming in, pass the limit."""
        return self.size > self._limit

    @property
    def held(self) -> int:
        """Octets held in memory."""
        return self._sink.tell()

    def begin(self, size: int, *, last: bool, wanted: bool) -> None:
        """A chunk of `size` octets follows. Over the limit, what was collected is dropped."""
        self.size += size
        self.is_last = last
        self._left = size
        self._wanted = wanted and not self.is_oversize
        if not self._wanted:
            self._sink = BytesIO()

    def feed(self, chunk: bytes) -> bytes | None:
        """Take the next bytes. Returns what follows the chunk, or `None` while there is more of it to come."""
        ours = chunk if len(chunk) <= self._left else chunk[: self._left]
        if self._wanted:
            self._sink.write(ours)
        self._left -= len(ours)
        return None if self._left else chunk[len(ours) :]

    def take(self) -> bytes:
        """The message, once its last chunk is complete."""
        return self._sink.getvalue()


class DotStuffer:
    """Makes message data fit to follow DATA, piece by piece (RFC 5321 §4.5.2): dots doubled, lines ended by CRLF.

    A CR or LF on its own must not be sent (RFC 5321 §2.3.8), since a receiver that takes it for a line end would see
    another end of data than we do; it becomes CRLF here. What was signed should hold none to begin with.
    """

    __slots__ = ("_at_line_start", "_pending_cr")

    def __init__(self) -> None:
        self._at_line_start = True
        self._pending_cr = False

    def feed(self, piece: bytes) -> bytes:
        """The next octets to send."""
        if self._pending_cr:
            piece = b"\r" + piece
        self._pending_cr = piece.endswith(b"\r")
        if self._pending_cr:
            piece = piece[:-1]
        if not piece:
            return b""
        pairs = piece.count(b"\r\n")
        if piece.count(b"\n") != pairs or piece.count(b"\r") != pairs:
            piece = _LINE_END.sub(b"\r\n", piece)
        stuffed = piece.replace(b"\r\n.", b"\r\n..")
        if self._at_line_start and stuffed.startswith(b"."):
            stuffed = b"." + stuffed
        self._at_line_start = piece.endswith(b"\r\n")
        return stuffed

    def end(self) -> bytes:
        """What closes the data: the final dot, with the line end before it if the message lacks one."""
        unfinished = self._pending_cr or not self._at_line_start
        self._pending_cr = False
        self._at_line_start = True
        return b"\r\n.\r\n" if unfinished else b".\r\n"


def count_received(message: bytes) -> int:
    """How many `Received` fields the header block has, looking at its first `HEADER_SCAN` octets."""
    if message.startswith(b"\r\n"):
        return 0
    end = message.find(b"\r\n\r\n", 0, HEADER_SCAN)
    head = message[: end if end >= 0 else HEADER_SCAN].lower()
    return head.count(b"\r\nreceived:") + head.startswith(b"received:")
