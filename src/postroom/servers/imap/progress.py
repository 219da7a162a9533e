"""INPROGRESS (RFC 9585): who waits long for an answer is told that it is being worked on."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Protocol

from postroom.imap import Status, render
from postroom.imap import commands as c

INTERVAL: Final = 10.0
"""Seconds of silence after which, again and again, a client is told."""

#: Commands that write whole lines at a time: none of their answers can be cut in two.
_WHOLE_LINES: Final = (c.Search, c.Sort, c.Copy, c.Move, c.Store, c.Expunge, c.Close, c.Select, c.Delete, c.Rename)


class Output(Protocol):
    """Where a session's answers go."""

    def write(self, *data: bytes | memoryview) -> None: ...

    def flush(self) -> None: ...


class StillAtIt:
    """While it is entered, a slow command is told of. How far it is nobody knows: it has no numbers (§4.2)."""

    __slots__ = ("_out", "_tag", "_timer")

    def __init__(self, out: Output, tag: bytes, command: c.Command) -> None:
        self._out = out
        self._tag = tag
        self._timer: asyncio.TimerHandle | None = None
        if isinstance(command, _WHOLE_LINES):
            self._begin()

    def _begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._tell)

    def _tell(self) -> None:
        # Not every client reads on beyond a bracket in a code.
        tag = render.NIL if b"]" in self._tag else render.quoted(self._tag)
        code = f"INPROGRESS ({tag.decode('ascii')} NIL NIL)"
        self._out.write(render.untagged(Status.OK, "Still at it", code))
        self._out.flush()
        self._begin()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
