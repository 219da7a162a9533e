"""What sources and writers tell each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from postroom.mailbox.models import SpecialUse

PAGE: Final = 500
"""Messages of one page of a source."""
MAX_LISTED: Final = 200
"""Problems that a report lists; all are counted."""


class SourceError(Exception):
    """The source cannot be used at all. `kind` says what to do about it; the words are for the person."""

    def __init__(self, kind: SourceErrorKind, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.fix = kind, message, fix


class AnotherImport(Exception):
    """Another run brings the same messages into the same mailbox just now."""


class SourceErrorKind(StrEnum):
    PATH = "path"
    """Not there, not readable, or not of this format."""
    ACCESS = "access"
    """Sign-in refused."""
    REMOTE = "remote"
    """The other server is not reached, breaks off or makes no sense."""


class Trouble(StrEnum):
    """Why a message stayed behind."""

    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    EMPTY = "empty"
    GONE = "gone"
    """It was listed, and was not there any more when it was to be read."""
    REFUSED = "refused"
    """The database took it in no form."""


@dataclass(frozen=True, slots=True)
class SourceFolder:
    """A folder of the source. `key` names it there, `path` is that name in words, a segment for each level."""

    key: bytes
    path: tuple[str, ...]
    role: SpecialUse | None = None
    """What the source says it is for (RFC 6154)."""
    uid_validity: int = 0
    """0: the source has no UIDs to be kept."""
    uid_next: int = 0
    count: int | None = None
    subscribed: bool | None = None
    """None: the source does not say."""


@dataclass(frozen=True, slots=True)
class Item:
    """A message that the source lists. `key` is the same in every run; `place` is the source's own."""

    key: bytes
    uid: int = 0
    place: object = None


@dataclass(frozen=True, slots=True)
class Letter:
    """A message as it was read, in wire form (CRLF). `flags` are our words."""

    item: Item
    raw: bytes = field(repr=False)
    flags: tuple[str, ...] = ()
    date: datetime | None = None
    """INTERNALDATE, if the source knows it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A message that stayed behind."""

    item: Item
    trouble: Trouble


class Source(Protocol):
    """Where messages come from. Every method may block, and is called from one thread at a time."""

    @property
    def label(self) -> bytes:
        """Kind and account: what distinguishes its keys from those of other sources."""
        ...

    def folders(self) -> Sequence[SourceFolder]:
        """All folders, parents first. Raises SourceError."""
        ...

    def pages(self, folder: SourceFolder) -> Iterator[Sequence[Item]]:
        """What is in a folder, up to `PAGE` at a time, UIDs ascending. Raises SourceError."""
        ...

    def read(self, folder: SourceFolder, items: Sequence[Item]) -> Iterator[Letter | Problem]:
        """These messages of the page that was listed last, in their order. Raises SourceError."""
        ...

    def close(self) -> None:
        """Let go of everything; may be called from another thread, and ends what waits."""
        ...


class Uids(StrEnum):
    """What became of a folder's UIDs."""

    KEPT = "kept"
    NEW = "new"
    NONE = "none"
    """The source had none."""


@dataclass(slots=True)
class FolderReport:
    """What became of one folder."""

    source: str
    folder: str
    renamed: bool = False
    uids: Uids = Uids.NONE
    found: int = 0
    imported: int = 0
    earlier: int = 0
    """An earlier run had brought them."""
    duplicates: int = 0
    """The same bytes were in the folder."""
    dropped_keywords: int = 0
    """Messages that lost keywords which cannot be kept."""


@dataclass(slots=True)
class ImportReport:
    """What an import did. `problems` are (folder, name of the message there, trouble), the first `MAX_LISTED`."""

    folders: list[FolderReport] = field(default_factory=list)
    troubles: dict[Trouble, int] = field(default_factory=dict)
    problems: list[tuple[str, str, Trouble]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Folders of the source that only show mail of others."""
    full: bool = False
    """It ended because the mailbox is full."""

    def note(self, folder: str, problem: Problem) -> None:
        self.troubles[problem.trouble] = self.troubles.get(problem.trouble, 0) + 1
        if len(self.problems) < MAX_LISTED:
            name = problem.item.key.decode("utf-8", "backslashreplace")
            self.problems.append((folder, name, problem.trouble))

    @property
    def is_whole(self) -> bool:
        """Whether all that there was is here now. What vanished while it was looked at was somebody's wish."""
        return not self.full and not set(self.troubles) - {Trouble.GONE}
