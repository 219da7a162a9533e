"""Header fields that are made here, folded where white space is allowed (RFC 5322 §2.2.3, RFC 6376 §3.5)."""

from typing import Final

MAX_LINE: Final = 78
"""Characters of a line, where one value that cannot be folded allows it (RFC 5322 §2.1.1)."""


class Lines:
    """A field in the making."""

    __slots__ = ("_done", "_line")

    def __init__(self, start: str) -> None:
        self._done: list[str] = []
        self._line = start

    def add(self, text: str) -> None:
        """Add after a space or a fold."""
        if len(self._line) + 1 + len(text) <= MAX_LINE:
            self._line += f" {text}"
        else:
            self.fold(text)

    def append(self, text: str) -> None:
        """Add directly, or after a fold."""
        if len(self._line) + len(text) <= MAX_LINE:
            self._line += text
        else:
            self.fold(text)

    def fill(self, text: str) -> None:
        """Add directly, folded anywhere."""
        room = MAX_LINE - len(self._line)
        self._line += text[:room]
        for at in range(room, len(text), MAX_LINE - 1):
            self.fold(text[at : at + MAX_LINE - 1])

    def fold(self, text: str) -> None:
        """Add on a line of its own."""
        self._done.append(self._line)
        self._line = f" {text}"

    def text(self) -> str:
        """All lines, without a CRLF at the end."""
        return "\r\n".join((*self._done, self._line))
