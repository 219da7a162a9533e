"""Message data after DATA (RFC 5321 §4.1.1.4, §4.5.2): end of data, dot-unstuffing, size, smuggling.

Only `CRLF . CRLF` ends the data, and a CR or LF that is not part of a CRLF is refused (RFC 5321 §2.3.8, rule A2): a
peer that sees another end of data than we do could otherwise smuggle a second message past its own checks.

The work is done chunk by chunk as the bytes come in, with whole-buffer operations only, so a large message costs the
event loop nothing at its end.
"""

from io import BytesIO
from typing import Final

_END: Final = b"\r\n.\r\n"
# A chunk may end in the middle of the end marker: these tails wait for the next chunk, longest first.
_PARTIAL_ENDS: Final = (b"\r\n.\r", b"\r\n.", b"\r\n", b"\r")
# The data begins as if after a CRLF (the one of the DATA line), so a first line of "." is an end too.
_VIRTUAL_START: Final = b"\r\n"

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


def count_received(message: bytes) -> int:
    """How many `Received` fields the header block has, looking at its first `HEADER_SCAN` octets."""
    if message.startswith(b"\r\n"):
        return 0
    end = message.find(b"\r\n\r\n", 0, HEADER_SCAN)
    head = message[: end if end >= 0 else HEADER_SCAN].lower()
    return head.count(b"\r\nreceived:") + head.startswith(b"received:")
