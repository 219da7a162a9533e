"""What the clients know: every message sent, and every change made, with what was answered.

A change that was not answered for sure is *pending*: it happened or it didn't, and the check after the restart says
which. Nothing else is done to that message until then, so there are never more than two possibilities.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tests.torture.letters import Letter

FOLDERS: Final = ("INBOX", "Archive", "Trash", "Junk")
"""Where the IMAP clients put their messages."""

Place = tuple[str, int]
"""Folder name and UID."""
Flags = frozenset[str]
Places = dict[Place, Flags]


class Kind(StrEnum):
    APPEND = "append"
    STORE = "store"
    COPY = "copy"
    MOVE = "move"
    EXPUNGE = "expunge"


@dataclass(frozen=True, slots=True)
class Pending:
    """A change whose answer did not come: of the placement `at`, into the folder `target`, to the flags `flags`."""

    kind: Kind
    at: Place | None = None
    target: str = ""
    flags: Flags = frozenset()

    def fits(self, before: Places, now: Places) -> bool:
        """Whether `now` is what the change makes of `before` (that it is `before` itself is for the caller to see)."""
        kept = dict(before)
        if self.kind is Kind.STORE and self.at is not None:
            kept[self.at] = self.flags
            return now == kept
        if self.kind in (Kind.MOVE, Kind.EXPUNGE) and self.at is not None:
            del kept[self.at]
        if self.kind is Kind.EXPUNGE:
            return now == kept
        flags = before[self.at] if self.at is not None else self.flags
        added = [place for place in now if place not in kept]
        return (
            len(added) == 1
            and added[0][0] == self.target
            and now[added[0]] == flags
            and {place: flags for place, flags in now.items() if place != added[0]} == kept
        )


@dataclass(slots=True)
class Document:
    """A message that an IMAP client appended to mailbox `box`, and where it stands."""

    box: int
    message_id: str
    token: str
    text: bytes = field(repr=False)
    places: Places = field(default_factory=dict)
    pending: Pending | None = None


@dataclass(slots=True)
class Marks:
    """Labels that a REST client put on a message: answered for, and perhaps."""

    box: int
    sure: set[str] = field(default_factory=set)
    perhaps: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Tally:
    """What happened in one round."""

    stored: int = 0
    deferred: Counter[str] = field(default_factory=Counter)
    """Temporary refusals by their code, enhanced code and text."""
    lost: int = 0
    retried: int = 0
    imap: int = 0
    rest: int = 0
    logins_refused: int = 0


@dataclass(slots=True)
class Ledger:
    seed: int
    boxes: int
    letters: list[Letter] = field(default_factory=list)
    again: deque[Letter] = field(default_factory=deque)
    """Those to be sent again."""
    documents: dict[tuple[int, str], Document] = field(default_factory=dict)
    marks: dict[str, Marks] = field(default_factory=dict)
    """By the public id of the message."""
    uids: dict[tuple[int, str, int], str] = field(default_factory=dict)
    """Every UID ever seen, in an answer or in a check: mailbox, folder, UID → Message-ID."""
    tally: Tally = field(default_factory=Tally)
    faults: list[str] = field(default_factory=list)
    """What clients saw that must never be, whatever is killed."""

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def saw_uid(self, box: int, folder: str, uid: int, message_id: str) -> None:
        """A UID stands for one message for ever."""
        known = self.uids.setdefault((box, folder, uid), message_id)
        if known != message_id:
            self.fault(f"UID {uid} of {folder} in mailbox #{box} was given to {known} and to {message_id}")

    def wanted(self) -> Iterator[tuple[int, str, Letter]]:
        """Every copy of every letter: mailbox, Message-ID."""
        for letter in self.letters:
            for box in letter.to:
                yield box, letter.message_id, letter
