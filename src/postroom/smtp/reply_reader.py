"""Replies of a server, read by a client (RFC 5321 §4.2): lines to replies, with limits for a hostile or broken peer.

A bare LF is taken for a line end, and octets that are no UTF-8 are replaced: a reply is only read, so nothing can be
smuggled by it. What cannot be read as a reply at all is an error, after which the conversation is out of step.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

# RFC 5321 §4.5.3.1.5 says 512 octets for a line; servers with long texts exist.
MAX_LINE: Final = 2048
MAX_LINES: Final = 128
MAX_REPLY: Final = 64 * 1024

_LINE: Final = re.compile(rb"([2-5][0-9]{2})(?:([ -])(.*))?", re.DOTALL)
_ENHANCED: Final = re.compile(r"([245])\.([0-9]{1,3})\.([0-9]{1,3})(?:\s|$)")


class ReplyError(ValueError):
    """What the server sent is no reply, or one beyond the limits. Its text holds nothing of it."""


@dataclass(frozen=True)
class ServerReply:
    """One reply: its three-digit `code` and the texts of its `lines`, without code and line end."""

    code: int
    lines: tuple[str, ...] = ("",)

    @cached_property
    def enhanced(self) -> str | None:
        """The enhanced status code (RFC 2034 §4) of the first line, if it has one of the class of `code`."""
        match = _ENHANCED.match(self.lines[0])
        if match is None or int(match[1]) != self.code // 100:
            return None
        return ".".join(str(int(number)) for number in match.groups())

    @property
    def text(self) -> str:
        """All lines, separated by newlines."""
        return "\n".join(self.lines)

    @property
    def is_positive(self) -> bool:
        """Whether it is a 2xx."""
        return 200 <= self.code < 300

    @property
    def is_temporary(self) -> bool:
        """Whether it is a 4xx."""
        return 400 <= self.code < 500

    @property
    def is_permanent(self) -> bool:
        """Whether it is a 5xx."""
        return self.code >= 500

    @property
    def is_refusal(self) -> bool:
        """Whether it is a 4xx or 5xx."""
        return self.code >= 400


class ReplyReader:
    """Cuts what a server sends into replies. After a `ReplyError` it is of no further use."""

    __slots__ = ("_code", "_input", "_lines", "_position", "_size")

    def __init__(self) -> None:
        self._input = b""
        self._position = 0
        self._code = 0
        self._lines: list[str] = []
        self._size = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left, not even a part of a reply."""
        return self._position == len(self._input) and not self._lines

    def feed(self, data: bytes) -> None:
        """Take bytes from the server."""
        self._input = self._input[self._position :] + data
        self._position = 0

    def next_reply(self) -> ServerReply | None:
        """The next complete reply, or `None`. Raises `ReplyError`."""
        while True:
            end = self._input.find(b"\n", self._position, self._position + MAX_LINE)
            if end < 0:
                if len(self._input) - self._position >= MAX_LINE:
                    raise ReplyError("line too long")
                return None
            line = self._input[self._position : end].removesuffix(b"\r")
            self._position = end + 1
            if self._take(line):
                reply = ServerReply(self._code, tuple(self._lines))
                self._lines.clear()
                self._size = 0
                return reply

    def _take(self, line: bytes) -> bool:
        """Take one line; whether it is the last of its reply."""
        match = _LINE.fullmatch(line)
        if match is None:
            raise ReplyError("no reply line")
        code = int(match[1])
        if self._lines and code != self._code:
            raise ReplyError("lines of one reply disagree")
        self._code = code
        self._size += len(line)
        if len(self._lines) >= MAX_LINES or self._size > MAX_REPLY:
            raise ReplyError("reply too long")
        self._lines.append((match[3] or b"").decode("utf-8", "replace"))
        return match[2] != b"-"
