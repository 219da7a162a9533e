"""What an export writes, and what it says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from postroom.mailbox.models import Folder


class ExportFormat(StrEnum):
    MAILDIR = "maildir"
    MBOX = "mbox"


class ExportRefused(Exception):
    """The directory is not one to export to; the words are for the person."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message, self.fix = message, fix


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message of a folder with its bytes."""

    uid: int
    message_id: str
    flags: tuple[str, ...]
    date: datetime
    raw: bytes = field(repr=False)


@dataclass(slots=True)
class FolderExported:
    """`place` is the directory or file, below the target. `earlier`: an interrupted run had written them."""

    folder: str
    place: str
    exported: int = 0
    earlier: int = 0
    missing: int = 0
    """Messages whose bytes are not in the store."""
    lost_keywords: int = 0
    """Messages with keywords that the format has no room for."""


@dataclass(slots=True)
class ExportReport:
    folders: list[FolderExported] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not any(one.missing for one in self.folders)


class FolderWriter(Protocol):
    """One folder being written. Every method may block, and is called from one thread at a time."""

    @property
    def is_done(self) -> bool:
        """Whether an earlier run finished it."""
        ...

    def has(self, uid: int, message_id: str, flags: tuple[str, ...], date: datetime, size: int) -> bool:
        """Whether the message is there already; its flags are then those given."""
        ...

    def write(self, messages: Sequence[Outgoing]) -> int:
        """Write them; how many lost keywords."""
        ...

    def finish(self) -> None:
        """The folder is complete."""
        ...


class Writer(Protocol):
    """An export being written."""

    def begin(self, folders: Sequence[Folder]) -> None:
        """Make or find the directory. Raises ExportRefused, OSError."""
        ...

    def folder(self, folder: Folder) -> FolderWriter: ...

    def place(self, folder: Folder) -> str:
        """Where the folder is, below the target."""
        ...

    def finish(self) -> None:
        """Everything is complete, and on the disk."""
        ...
