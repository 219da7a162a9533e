"""What commands print (cli-config-ops A3): for people, as one JSON document, or the essential value alone.

Text that came from outside cannot play tricks on a terminal: in what people read, control characters are replaced
and characters that reorder or hide text are spelled out. JSON is left as it is.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, TextIO

MAX_CELL: Final = 64
"""Characters of a table's cell; the rest is cut."""
_PIPE_WIDTH: Final = 10_000
"""Width of a table that no terminal shows: nothing is wrapped."""

# C0 without tab and newline, DEL, C1, and lone surrogates, which could not even be written.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Bidirectional controls, zero-width and other invisible characters, line and paragraph separators, tags.
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


class Mode(Enum):
    """Who reads the output."""

    HUMAN = "human"
    JSON = "json"
    QUIET = "quiet"


def clean(text: str) -> str:
    """*text* as it may be shown on a terminal: it cannot move the cursor, reorder or hide anything."""
    return _INVISIBLE.sub(lambda match: f"<U+{ord(match[0]):04X}>", _CONTROLS.sub("\ufffd", text))


def cell(value: object) -> str:
    """*value* for a table: one line, not too long; what is missing is a dash."""
    if value is None or value in ("", [], ()):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        value = ", ".join(str(item) for item in value)
    text = clean(str(value)).replace("\n", "⏎").replace("\t", " ")
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def dump(document: object, *, indent: int | None = None) -> str:
    """*document* as JSON text."""
    return json.dumps(document, ensure_ascii=False, indent=indent)


class Output:
    """Where and how one command prints."""

    def __init__(self, mode: Mode, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.mode = mode
        self.out = out if out is not None else sys.stdout
        self.err = err if err is not None else sys.stderr

    @property
    def interactive(self) -> bool:
        """Whether questions may be asked: a person reads, and one may type."""
        return self.mode is not Mode.JSON and sys.stdin.isatty()

    def result(self, document: Mapping[str, Any], *, essential: str = "id", human: str | None = None) -> None:
        """One thing. `essential` names the value that ``--quiet`` prints, which prints nothing where there is none of
        that name; `human` replaces the indented JSON.
        """
        if self.mode is Mode.JSON:
            self._line(self.out, dump(document))
        elif self.mode is Mode.QUIET:
            if essential in document:
                self._line(self.out, clean(str(document[essential])))
        else:
            self._line(self.out, clean(dump(document, indent=2)) if human is None else human)

    def listing(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        *,
        next_cursor: str | None = None,
        essential: str = "id",
        empty: str = "Nothing here yet.",
    ) -> None:
        """Many things. Each of `columns` is the key of a value and its heading."""
        if self.mode is Mode.JSON:
            self._line(self.out, dump({"data": rows, "next_cursor": next_cursor}))
        elif self.mode is Mode.QUIET:
            for row in rows:
                self._line(self.out, clean(str(row[essential])))
        elif not rows:
            self.note(empty)
        else:
            self.table(columns, [[cell(row.get(name)) for name in columns] for row in rows])
            if next_cursor is not None:
                self.note(f"There is more: add --cursor {next_cursor}")

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table of clean text. Only for people."""
        # Imported where a table is drawn: it takes longer than most commands.
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        terminal = self.out.isatty()
        console = Console(
            file=self.out,
            width=None if terminal else _PIPE_WIDTH,
            no_color=not terminal or "NO_COLOR" in os.environ,
            highlight=False,
            soft_wrap=not terminal,
        )
        table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, header_style="bold")
        for heading in headings:
            table.add_column(heading.replace("_", " ").upper(), overflow="fold")
        for row in rows:
            table.add_row(*(Text(text) for text in row))
        console.print(table)

    def line(self, text: str) -> None:
        """A step or a sentence for people, on standard output."""
        if self.mode is Mode.HUMAN:
            self._line(self.out, clean(text))

    def note(self, text: str) -> None:
        """A remark for people, on standard error."""
        if self.mode is Mode.HUMAN:
            self._line(self.err, clean(text))

    @staticmethod
    def _line(stream: TextIO, text: str) -> None:
        # A terminal of another encoding shows what it can.
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
