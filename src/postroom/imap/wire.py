"""From bytes to complete commands: lines, literals, limits, resynchronising (RFC 9051 §2.2, §4.3; RFC 7888; spec D1).

`CommandReader` is pulled: `feed` stores bytes, `next_event` hands out one event at a time and reads no further than
that event needs. So a session may change what comes next between two events of one network read: allow APPEND literals
after LOGIN, ask for a bare line after AUTHENTICATE or IDLE, throw the rest away before STARTTLS.

Memory is bounded by the limits plus what the caller feeds before it pulls; a server stops reading its socket while a
command is being worked on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from postroom.imap.errors import Code, Status

KIB = 1024
MIB = 1024 * KIB

# tag = 1*<any ASTRING-CHAR except "+"> (RFC 9051 §9); the length is our limit, because tags are echoed.
_TAG = re.compile(rb'([^\x00-\x20\x7f-\xff(){%*"\\+]{1,255}) ')
_MARKER = re.compile(rb"\{([0-9]{1,20})(\+?)\}\Z")
_MARKER_MAX = 32
# The first literal of `APPEND {n}` is the mailbox name; any later one is a message. So it is in REPLACE (RFC 8508).
_APPENDS = rb"[^ ]+ +(?:APPEND|(?:UID +)?REPLACE +[0-9*$]+) +"
_MESSAGE_LITERAL = re.compile(_APPENDS + rb"[^ {]", re.IGNORECASE)
_NAME_LITERAL = re.compile(_APPENDS + rb"\{", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Sizes in bytes. The first four are per command, `max_discard` is what one refused command may make us skip."""

    max_line: int = 64 * KIB  # D1: all text of a command, literals excluded
    max_literal: int = 64 * KIB  # D1: one literal that is not a message of APPEND
    max_literal_total: int = 256 * KIB  # all such literals of one command
    max_literals: int = 512
    max_append_size: int = 25 * MIB  # D8: one message
    max_append_total: int = 64 * MIB  # all messages of one APPEND (RFC 3502), and parts of them (RFC 4469)
    max_discard: int = 256 * MIB


@dataclass(frozen=True, slots=True)
class RawCommand:
    """One complete command, its tag split off.

    `text` keeps each literal's place as ``{n}CRLF``, the octets themselves are in `literals` in the same order. A CRLF
    in `text` can stand nowhere else, which is how the parser knows a literal from text that looks like one.
    """

    tag: bytes
    text: bytes
    literals: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Continuation:
    """The client waits for ``+ OK`` before it sends `size` octets. `text` is the command so far, without its tag.

    Answer with `render.continuation()` and go on pulling, or refuse with a tagged ``NO`` and call
    `CommandReader.abandon`.
    """

    tag: bytes
    text: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line without a tag, asked for by `CommandReader.expect_line` (SASL response, ``DONE``); line end removed."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Rejected:
    """A command that never became one. `tag` is None when it could not be read (answer ``* BAD``).

    With `close` the client announced more than may be discarded: answer ``BYE`` and close; no event follows.
    """

    tag: bytes | None
    status: Status
    text: str
    code: str | None = None
    close: bool = False


Event = RawCommand | Continuation | Line | Rejected


class CommandReader:
    """Incremental reader of one client's bytes. Results do not depend on how the bytes were cut into chunks."""

    __slots__ = (
        "_buf",
        "_closed",
        "_discarded",
        "_fault",
        "_last_tag",
        "_line_mode",
        "_literals",
        "_message_bytes",
        "_other_bytes",
        "_partial",
        "_scan",
        "_tag",
        "_tail",
        "_text",
        "_text_size",
        "_want",
        "authenticated",
        "limits",
    )

    def __init__(self, limits: ReaderLimits | None = None, *, authenticated: bool = False) -> None:
        self.limits = limits or ReaderLimits()
        # Until it is set, literals of APPEND are held to the small limit: nobody buffers 25 MiB for a stranger.
        self.authenticated = authenticated
        self._buf = bytearray()
        self._scan = 0
        self._line_mode = False
        self._closed = False
        self._last_tag: bytes | None = None
        self._partial = bytearray()
        self._reset()

    # -- what a session calls

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Event]:
        """Store `data` at once; the returned iterator pulls events lazily (it is `events()`)."""
        if not self._closed:
            self._buf += data
        return self.events()

    def events(self) -> Iterator[Event]:
        """Events that are complete, one `next_event` per step."""
        while (event := self.next_event()) is not None:
            yield event

    def next_event(self) -> Event | None:
        """The next event, or None when more bytes are needed (or the reader is closed)."""
        while not self._closed:
            if self._want and not self._take_literal():
                return None
            line = self._take_line()
            if isinstance(line, Rejected):
                return line
            if line is None:
                return None
            event = self._on_line(line)
            if event is not None:
                return event
        return None

    def expect_line(self) -> None:
        """Hand out the next line as `Line`, not as a command (after ``+`` of AUTHENTICATE, and for IDLE)."""
        self._line_mode = True

    def abandon(self) -> None:
        """Drop the command whose `Continuation` was refused; the client's next line is a new command."""
        self._reset()

    def discard_buffer(self) -> int:
        """Throw away everything not yet handed out; returns how many bytes (STARTTLS, RFC 9051 §6.2.1: injection)."""
        size = len(self._buf)
        self._buf.clear()
        self._scan = 0
        self._reset()
        return size

    def take_buffer(self) -> bytes:
        """Everything not yet handed out, which is no text of commands as it stands (COMPRESS)."""
        data = bytes(self._buf)
        self.discard_buffer()
        return data

    @property
    def buffered(self) -> int:
        """Bytes held that belong to no event yet."""
        return len(self._buf) + len(self._partial)

    @property
    def held(self) -> int:
        """Bytes held of what comes in, complete literals of an unfinished command among them."""
        held = len(self._buf) + len(self._partial)
        return held + sum(map(len, self._literals)) if self._literals else held

    @property
    def mid_command(self) -> bool:
        """True between the first and the last byte of a command."""
        return bool(self._text or self._fault or self._buf)

    # -- the machine

    def _reset(self) -> None:
        self._tag: bytes | None = None
        self._text: list[bytes] = []
        self._text_size = 0
        self._literals: list[bytes] = []
        self._message_bytes = 0
        self._other_bytes = 0
        self._want = 0
        self._fault: Rejected | None = None
        self._discarded = 0
        self._tail = b""
        if self._partial:
            self._partial = bytearray()

    def _take_literal(self) -> bool:
        buf = self._buf
        size = min(len(buf), self._want)
        self._want -= size
        if self._fault is None:
            if self._want or self._partial:
                self._partial += buf[:size] if size < len(buf) else buf
            if not self._want:
                self._literals.append(bytes(self._partial or buf[:size]))
                self._partial = bytearray()
        del buf[:size]
        return not self._want

    def _take_line(self) -> bytes | Rejected | None:
        buf = self._buf
        end = buf.find(b"\n", self._scan)
        if end >= 0:
            line = bytes(buf[:end])
            del buf[: end + 1]
            self._scan = 0
            content = line[:-1] if line.endswith(b"\r") else line
            if self._fault is None and self._text_size + len(content) > self.limits.max_line:
                self._start_overlong(content)
            if self._fault is not None:
                self._discarded += len(line)
                if self._discarded > self.limits.max_discard:
                    return self._close()
                tail = self._tail + line[-_MARKER_MAX:]
                return tail[:-1] if tail.endswith(b"\r") else tail
            return content
        if self._fault is None:
            pending = len(buf) - buf.endswith(b"\r")
            if self._text_size + pending <= self.limits.max_line:
                self._scan = len(buf)
                return None
            self._start_overlong(bytes(buf))
        # Only the end of a refused line matters: it may announce a literal that has to be skipped too.
        self._discarded += len(buf)
        self._tail = (self._tail + bytes(buf[-_MARKER_MAX:]))[-_MARKER_MAX:]
        buf.clear()
        self._scan = 0
        return self._close() if self._discarded > self.limits.max_discard else None

    def _start_overlong(self, line: bytes) -> None:
        if self._line_mode:
            tag = self._last_tag
        elif self._text:
            tag = self._tag
        else:
            match = _TAG.match(line, 0, self.limits.max_line)
            tag = match[1] if match else None
        self._fault = Rejected(tag, Status.BAD, "Command line too long")

    def _close(self) -> Rejected:
        fault = self._fault
        self._closed = True
        self._buf.clear()
        self._reset()
        return Rejected(fault.tag if fault else None, Status.BAD, "Too much data", close=True)

    def _on_line(self, line: bytes) -> Event | None:
        if self._line_mode and not self._text:
            return self._finish_line(line)
        if self._fault is None:
            fault = self._inspect(line)
            if fault is None and not line.endswith(b"}"):
                return self._complete(line)
            self._fault = fault
        match = _MARKER.search(line, max(0, len(line) - _MARKER_MAX)) if line.endswith(b"}") else None
        if match is None:
            return self._refuse() if self._fault else self._complete(line)
        size, synchronising = int(match[1]), not match[2]
        if self._fault is None:
            self._fault = self._admit(line, size)
        if self._fault is not None:
            return self._skip_literal(size, synchronising)
        return self._expect_literal(line, match.start(), size, synchronising)

    def _inspect(self, line: bytes) -> Rejected | None:
        if not self._text:
            match = _TAG.match(line)
            if match is None:
                return Rejected(None, Status.BAD, "Missing or invalid tag")
            self._tag = match[1]
        if b"\0" in line:
            return Rejected(self._tag, Status.BAD, "NUL is not allowed")
        return None

    def _admit(self, line: bytes, size: int) -> Rejected | None:
        limits = self.limits
        if len(self._literals) >= limits.max_literals:
            return Rejected(self._tag, Status.BAD, "Too many literals")
        if self.authenticated and self._is_message(line):
            if size > limits.max_append_size or self._message_bytes + size > limits.max_append_total:
                return Rejected(self._tag, Status.NO, "Message too large", Code.TOOBIG)
            self._message_bytes += size
            return None
        if size > limits.max_literal or self._other_bytes + size > limits.max_literal_total:
            return Rejected(self._tag, Status.BAD, "Literal too long")
        self._other_bytes += size
        return None

    def _is_message(self, line: bytes) -> bool:
        if self._text:
            return bool(_MESSAGE_LITERAL.match(self._text[0]) or _NAME_LITERAL.match(self._text[0]))
        return _MESSAGE_LITERAL.match(line) is not None

    def _skip_literal(self, size: int, synchronising: bool) -> Event | None:
        if synchronising:  # The client will not send it: without a continuation the command ends here.
            return self._refuse()
        self._discarded += size
        if self._discarded > self.limits.max_discard:
            return self._close()
        self._text, self._literals, self._tail = [b""], [], b""
        self._want = size
        return None

    def _expect_literal(self, line: bytes, marker: int, size: int, synchronising: bool) -> Event | None:
        self._text_size += len(line)
        self._text.append(b"%b{%d}\r\n" % (line[:marker], size))
        self._want = size
        if not size:
            self._literals.append(b"")
        if not synchronising:
            return None
        assert self._tag is not None
        return Continuation(self._tag, b"".join(self._text)[len(self._tag) + 1 :], size)

    def _complete(self, line: bytes) -> RawCommand:
        tag = self._tag
        assert tag is not None
        self._last_tag = tag
        if not self._text:  # the common case: nothing to join, nothing to clean up
            self._tag = None
            return RawCommand(tag, line[len(tag) + 1 :])
        self._text.append(line)
        command = RawCommand(tag, b"".join(self._text)[len(tag) + 1 :], tuple(self._literals))
        self._reset()
        return command

    def _refuse(self) -> Rejected:
        fault = self._fault
        assert fault is not None
        self._line_mode = False
        self._reset()
        return fault

    def _finish_line(self, line: bytes) -> Event:
        self._line_mode = False
        if self._fault is not None:
            return self._refuse()
        return Line(line)
