"""A blocking IMAP client that looks at answers only as far as it must: what is timed is the server."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import time
from collections.abc import Sequence
from typing import Final

_TAIL: Final = 4000
"""Octets of an answer's end in which its last line is looked for: lists of capabilities are long."""
_SECONDS: Final = 120.0
_COPYUID: Final = re.compile(rb"\[COPYUID \d+ [\d:,]+ (\d+)(?::(\d+))?\]")


class Client:
    """A connection, signed in. Raises RuntimeError when a command is refused or the server closes."""

    def __init__(self, port: int, user: str, password: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0
        self._until(b"* OK")
        self.ask(f'LOGIN {user} "{password}"'.encode())

    def close(self) -> None:
        self.sock.close()

    def ask(self, command: bytes) -> bytes:
        """Send a command; all that came up to its tagged OK."""
        self._number += 1
        tag = b"t%d" % self._number
        self.sock.sendall(b"%b %b\r\n" % (tag, command))
        return self._until(tag + b" OK")

    def idle(self) -> None:
        """Begin to idle, for good."""
        self.sock.sendall(b"i IDLE\r\n")
        self._until(b"+ idling")

    def move(self, first: int, last: int, folder: str) -> tuple[int, int]:
        """Move UIDs, which are consecutive; the first and last of the new ones."""
        answer = self.ask(b"UID MOVE %d:%d %b" % (first, last, folder.encode()))
        found = _COPYUID.search(answer)
        if found is None:
            raise RuntimeError("MOVE named no new UIDs, or not one run of them")
        return int(found[1]), int(found[2] or found[1])

    def timed(self, command: bytes) -> float:
        """Milliseconds that a command takes."""
        started = time.perf_counter()
        self.ask(command)
        return (time.perf_counter() - started) * 1e3

    def append_rate(self, folder: str, raws: Sequence[bytes], count: int) -> float:
        """Messages a second that are appended when commands are sent without waiting for answers (LITERAL+)."""
        sent = b"".join(
            b"p%d APPEND %b {%d+}\r\n%b\r\n" % (n, folder.encode(), len(raw), raw)
            for n in range(count)
            for raw in (raws[n % len(raws)],)
        )
        started = time.perf_counter()
        answered, tail, offset = 0, b"", 0
        self.sock.setblocking(False)
        while answered < count:
            writers = [self.sock] if offset < len(sent) else []
            readable, writable, _ = select.select([self.sock], writers, [], _SECONDS)
            if not readable and not writable:
                raise RuntimeError("APPEND is not answered")
            if writable:
                with contextlib.suppress(BlockingIOError):
                    offset += self.sock.send(sent[offset : offset + 65_536])
            if readable:
                lines = (tail + self._received()).split(b"\r\n")
                tail = lines.pop()
                for line in lines:
                    if line.startswith(b"p"):
                        if b" OK [APPENDUID" not in line:
                            raise RuntimeError(line.decode("latin-1"))
                        answered += 1
        self.sock.settimeout(_SECONDS)
        return count / (time.perf_counter() - started)

    def _received(self) -> bytes:
        data = self.sock.recv(1 << 20)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data

    def _until(self, mark: bytes) -> bytes:
        """All up to a last line that begins with *mark*."""
        pieces, tail = [], b""
        while True:
            data = self._received()
            pieces.append(data)
            tail = (tail + data)[-_TAIL:]
            if not tail.endswith(b"\r\n"):
                continue
            line = tail[:-2].rpartition(b"\r\n")[2]
            if line.startswith(mark):
                return b"".join(pieces)
            if re.match(rb"t\d+ (?:NO|BAD)", line):
                raise RuntimeError(line.decode("latin-1"))
