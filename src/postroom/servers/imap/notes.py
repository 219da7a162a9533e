"""MailboxMetadataChange and ServerMetadataChange (RFC 5465 §5.6, §5.7): which notes others changed since a client knew.

Notes have no log. A session that wants to hear of them keeps what there was, names and digests, and compares when the
mailbox changed: a change of notes raises its modseq like any other, so that every node is woken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import md5
from typing import Final

from postroom.imap import ProtocolNo
from postroom.imap import commands as c
from postroom.mailbox.annotations import Marks
from postroom.mailbox.models import FolderKey
from postroom.servers.imap.metadata import owner_of
from postroom.servers.imap.session import Session

MAX_NOTES: Final = 5_000
"""Entries of a mailbox that a session follows (our limit)."""
MAX_OWN: Final = 1_000

_NONE: Final[Mapping[str, str]] = {}


class TooManyNotes(ProtocolNo):
    """More than a session follows (§5.8)."""

    def __init__(self) -> None:
        super().__init__("NOTIFICATIONOVERFLOW", "Too many entries")


class Notes:
    """What one session was told of, or knows because it asks from now on."""

    __slots__ = ("_own", "_session", "_told")

    def __init__(self, session: Session, told: Marks) -> None:
        self._session = session
        self._told = told
        self._own: dict[tuple[str, str], str | None] = {}

    @classmethod
    async def begin(cls, session: Session) -> Notes:
        """Raises `TooManyNotes`."""
        return cls(session, await _read(session))

    def caused(self, command: c.SetMetadata) -> None:
        """What a client set itself it is not told of (§5), unless somebody else sets it again."""
        if len(self._own) + len(command.values) > MAX_OWN:
            self._own.clear()
        for entry, value in command.values:
            digest = None if value is None else md5(value, usedforsecurity=False).hexdigest()
            self._own[command.mailbox, entry] = digest

    async def read(self) -> Marks:
        """What there is now, to be given to `changes`. Raises `TooManyNotes`."""
        return await _read(self._session)

    def changes(self, now: Marks, names: Mapping[FolderKey, str]) -> Iterator[tuple[FolderKey | None, list[str]]]:
        """Entries that are not what they were, of folders with these names and of the mailbox (None). Consume it whole:
        they are told then.
        """
        told, self._told = self._told, now
        own, self._own = self._own, {}
        for key in dict.fromkeys((*told, *now)):
            name = "" if key is None else names.get(key)
            if name is None:
                continue  # the folder is gone, and that is told
            entries = list(_different(told.get(key, _NONE), now.get(key, _NONE), own, name))
            if entries:
                yield key, entries


def _different(
    old: Mapping[str, str], new: Mapping[str, str], own: Mapping[tuple[str, str], str | None], name: str
) -> Iterator[str]:
    for entry in dict.fromkeys((*old, *new)):
        digest = new.get(entry)
        if old.get(entry) != digest and ((name, entry) not in own or own[name, entry] != digest):
            yield entry


async def _read(session: Session) -> Marks:
    marks = await session.services.mailboxes.annotations.marks(session.ref, owner_of(session), MAX_NOTES + 1)
    if sum(map(len, marks.values())) > MAX_NOTES:
        raise TooManyNotes
    return marks
