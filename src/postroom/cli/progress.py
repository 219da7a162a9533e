"""Progress for people: one line that is written over on a terminal, one line for each folder elsewhere (A3)."""

from __future__ import annotations

import time
from typing import Final

from postroom.cli.output import Mode, Output, clean

_INTERVAL: Final = 0.2
"""Seconds between two lines on a terminal."""


class Progress:
    """Tells how far a folder is. Nothing is told with ``--json`` and ``--quiet``."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._on_terminal = output.mode is Mode.HUMAN and output.err.isatty()
        self._folder: str | None = None
        self._line = ""
        self._told = 0.0

    def tell(self, folder: str, done: int, total: int | None) -> None:
        """`done` messages of `total` (None: nobody knows)."""
        if self._folder is not None and self._folder != folder:
            self.end()
        self._folder = folder
        self._line = f"{folder}: {done:,}" + ("" if total is None else f" of {total:,}")
        if self._on_terminal and time.monotonic() - self._told >= _INTERVAL:
            self._told = time.monotonic()
            self._output.err.write(f"\r{clean(self._line)}\x1b[K")
            self._output.err.flush()

    def end(self) -> None:
        """The folder is done; its last line stays."""
        if self._folder is None:
            return
        if self._on_terminal:
            self._output.err.write("\r\x1b[K")
        self._output.note(self._line)
        self._folder = None
