"""MailboxMetadataChange and ServerMetadataChange (RFC 5465 §5.6, §5.7): which notes others changed since a client knew.

Notes have no log. A session that wants to hear of them keeps what there was, names and digests, and compares when the
mailbox changed: a change of notes raises its modseq like any other, so that every node is woken.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from hashlib import md5
from typing import Final

from postroom.imap import ProtocolNo
from postroom.imap import commands as c
from postroom.mailbox.annotations import Marks
from postroom.mailbox.models import FolderKey, MailboxRef
from postroom.servers.imap.boxes import Box
from postroom.servers.imap.metadata import owner_of
from postroom.servers.imap.session import Session

MAX_NOTES: Final = 5_000
"""Entries that a session follows, of all mailboxes together (our limit)."""
MAX_OWN: Final = 1_000

_NONE: Final[Mapping[str, str]] = {}
_NOTHING: Final[Marks] = {}


class TooManyNotes(ProtocolNo):
    """More than a session follows (§5.8)."""

    def __init__(self) -> None:
        super().__init__("NOTIFICATIONOVERFLOW", "Too many entries")


class Notes:
    """What one session was told of, or knows because it asks from now on, of each mailbox that it hears of."""

    __slots__ = ("_own", "_session", "_told")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: dict[MailboxRef, Marks] = {}
        self._own: dict[MailboxRef, dict[tuple[str, str], str | None]] = {}

    @classmethod
    async def begin(cls, session: Session, boxes: Sequence[Box]) -> Notes:
        """Raises `TooManyNotes`."""
        notes = cls(session)
        notes._told.update(await notes.read(boxes))
        return notes

    def caused(self, command: c.SetMetadata) -> None:
        """What a client set itself it is not told of (§5), unless somebody else sets it again."""
        if sum(map(len, self._own.values())) + len(command.values) > MAX_OWN:
            self._own.clear()
        box, local = self._session.boxes.known(command.mailbox)
        own = self._own.setdefault(box.ref, {})
        for entry, value in command.values:
            digest = None if value is None else md5(value, usedforsecurity=False).hexdigest()
            own[box.prefix + local, entry] = digest

    async def read(self, boxes: Sequence[Box]) -> dict[MailboxRef, Marks]:
        """What there is now in these, each to be given to `changes`. Raises `TooManyNotes`."""
        annotations, owner = self._session.services.mailboxes.annotations, owner_of(self._session)
        found = {box.ref: _NOTHING for box in boxes}
        room = MAX_NOTES - sum(_count(marks) for ref, marks in self._told.items() if ref not in found)
        for ref in found:
            found[ref] = await annotations.marks(ref, owner, room + 1)
            room -= _count(found[ref])
            if room < 0:
                raise TooManyNotes
        return found

    def changes(
        self, box: Box, now: Marks, names: Mapping[FolderKey, str]
    ) -> Sequence[tuple[FolderKey | None, list[str]]]:
        """Entries that are not what they were, of folders with these names and of the session's own mailbox (None).
        They are told then. Of a mailbox that is reached only now nothing was changed.
        """
        told, self._told[box.ref] = self._told.get(box.ref, now), now
        own = self._own.pop(box.ref, {})
        found: list[tuple[FolderKey | None, list[str]]] = []
        for key in dict.fromkeys((*told, *now)):
            # What is on another mailbox as a whole is nobody's here; of a folder that is gone it is told that it is.
            name = names.get(key) if key is not None else "" if box.is_own else None
            if name is None:
                continue
            entries = list(_different(told.get(key, _NONE), now.get(key, _NONE), own, name))
            if entries:
                found.append((key, entries))
        return found

    def keep(self, refs: Container[MailboxRef]) -> None:
        """Others are reached no more."""
        self._told = {ref: marks for ref, marks in self._told.items() if ref in refs}
        self._own = {ref: own for ref, own in self._own.items() if ref in refs}


def _different(
    old: Mapping[str, str], new: Mapping[str, str], own: Mapping[tuple[str, str], str | None], name: str
) -> Iterator[str]:
    for entry in dict.fromkeys((*old, *new)):
        digest = new.get(entry)
        if old.get(entry) != digest and ((name, entry) not in own or own[name, entry] != digest):
            yield entry


def _count(marks: Marks) -> int:
    return sum(map(len, marks.values()))
