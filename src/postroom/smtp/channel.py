"""What lies under a receiving session: input cut into lines, output gathered, and what the session waits for.

Nothing here knows a command. `Channel` holds every octet that has come in and was not yet looked at, so that what a
session costs in memory can be told.
"""

import enum
from typing import Final

from postroom.smtp import replies
from postroom.smtp.config import ServerConfig
from postroom.smtp.replies import Reply

# RFC 5321 §4.5.3.1.4, CRLF included.
COMMAND_LINE_LIMIT: Final = 512
# RFC 4954 §5 and RFC 3461 §5 lengthen MAIL and RCPT by 500 octets each where AUTH= or the DSN parameters are offered.
PARAMETER_ALLOWANCE: Final = 1000
# RFC 4954 §4: an authentication line, CRLF included.
AUTH_LINE_LIMIT: Final = 12_288
_LENGTHENED: Final = (b"MAIL ", b"RCPT ")


class Waiting(enum.Enum):
    """What a session waits for before it looks at further input."""

    FOR_INPUT = enum.auto()
    FOR_CREDENTIALS = enum.auto()
    FOR_SENDER = enum.auto()
    FOR_RECIPIENT = enum.auto()
    FOR_MESSAGE = enum.auto()
    FOR_TLS_ANSWER = enum.auto()
    FOR_HANDSHAKE = enum.auto()
    CLOSED = enum.auto()


class SessionStateError(RuntimeError):
    """The driver gave an answer that nothing asked for."""


class Channel:
    """Bytes in as lines, replies out as bytes. A session derives from it."""

    # More attributes than a shared-key dict takes (30): without slots every access would be slower.
    __slots__ = (
        "_command_limit",
        "_config",
        "_discarding_line",
        "_input",
        "_line_limit",
        "_output",
        "_output_size",
        "_position",
        "_unproductive",
        "_waiting",
    )

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._waiting = Waiting.FOR_INPUT
        self._input = b""
        self._position = 0
        self._command_limit = COMMAND_LINE_LIMIT + (PARAMETER_ALLOWANCE if config.auth or config.dsn else 0)
        self._line_limit = self._command_limit
        self._discarding_line = False
        self._output: list[bytes] = []
        self._output_size = 0
        self._unproductive = False

    # -- what the driver may look at

    @property
    def is_closed(self) -> bool:
        """Whether the session is over."""
        return self._waiting is Waiting.CLOSED

    @property
    def backlog(self) -> int:
        """Octets of unread input."""
        return len(self._input) - self._position

    @property
    def output_size(self) -> int:
        """Octets waiting for `take_output`."""
        return self._output_size

    # -- bytes

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._waiting is Waiting.CLOSED:
            return
        if self._position == len(self._input):
            self._input = data
        else:
            self._input = self._input[self._position :] + data
        self._position = 0
        if self._waiting in (Waiting.FOR_TLS_ANSWER, Waiting.FOR_HANDSHAKE):
            # Plain text behind STARTTLS would be taken as if it had come under TLS (A5, CVE-2011-0411).
            self.close(replies.PIPELINING_VIOLATED)

    def take_output(self) -> bytes:
        """The bytes to send, which are thereby forgotten here."""
        output = self._output[0] if len(self._output) == 1 else b"".join(self._output)
        self._output.clear()
        self._output_size = 0
        return output

    def close(self, reply: Reply) -> None:
        """End the session with `reply`, at any time; what was being received or decided is dropped."""
        if self._waiting is not Waiting.CLOSED:
            self._shut()
            self._say(reply)

    def _shut(self) -> None:
        self._waiting = Waiting.CLOSED
        self._input, self._position = b"", 0
        self._drop()

    def _drop(self) -> None:
        """Forget what was under way: the session is over."""

    def _expect(self, waiting: Waiting) -> None:
        if self._waiting is not waiting:
            raise SessionStateError(f"not waiting {waiting.name.lower().replace('_', ' ')}")
        self._waiting = Waiting.FOR_INPUT

    # -- output

    def _say(self, reply: Reply) -> None:
        wire = reply.wire if self._config.advertise_extensions else reply.bare
        self._output.append(wire)
        self._output_size += len(wire)

    def _decline(self, reply: Reply) -> None:
        """Say a refusal; one for good counts as unproductive, a temporary one may be our own fault."""
        if reply.code == 421:
            self.close(reply)
            return
        self._say(reply)
        self._unproductive = reply.is_permanent

    # -- input

    def _next_line(self) -> bytes | None:
        """The next line without its CRLF, or `None`. Answers lines that are none."""
        if self._discarding_line:
            end = self._input.find(b"\r\n", self._position)
            if end < 0:
                # Only a CR may be of use when the rest of the line comes.
                self._position = len(self._input) - self._input.endswith(b"\r", self._position)
                return None
            self._position = end + 2
            self._discarding_line = False
            self._refuse_long_line()
            return None
        start = self._position
        end = self._input.find(b"\n", start, start + COMMAND_LINE_LIMIT)
        if end < 0:
            end = self._find_long_end(start)
            if end < 0:
                return None if not self._discarding_line else self._next_line()
        if end == start or self._input[end - 1] != 0x0D:
            # Taking a bare LF for a line end, or skipping over it, both let a command hide inside another.
            self.close(replies.BARE_LINE_FEED)
            return None
        self._position = end + 1
        return self._input[start : end - 1]

    def _find_long_end(self, start: int) -> int:
        """Where a line over the ordinary limit ends, if it may be that long; -1 if it is not all here, or too long."""
        have = len(self._input) - start
        if have < COMMAND_LINE_LIMIT:
            return -1
        limit = self._line_limit if self._may_be_long(start) else COMMAND_LINE_LIMIT
        end = self._input.find(b"\n", start, start + limit)
        self._discarding_line = end < 0 and have >= limit
        return end

    def _may_be_long(self, start: int) -> bool:
        return self._line_limit == AUTH_LINE_LIMIT or self._input[start : start + 5].upper() in _LENGTHENED

    def _refuse_long_line(self) -> None:
        self._decline(replies.LINE_TOO_LONG)
