"""GETMETADATA and SETMETADATA (RFC 5464): notes on a folder, or, without one, on the mailbox as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from postroom.imap import Code, ProtocolNo, render
from postroom.imap import commands as c
from postroom.imap.metadata import ROOTS
from postroom.mailbox.annotations import MAX_VALUE, SHARED, Entry
from postroom.mailbox.models import FolderKey, MailboxRef
from postroom.mailbox.rules import LimitExceeded
from postroom.servers.imap.answers import Done
from postroom.servers.imap.folders import find
from postroom.servers.imap.session import Session

_PRIVATE: Final = "/private/"
AGENT: Final = "agent"
"""The owner of what an agent keeps for itself."""


async def get_metadata(session: Session, command: c.GetMetadata) -> Done:
    """What was named and is not there is NIL; what is larger than wanted is left out and told in the answer."""
    ref, folder = await _place(session, command.mailbox)
    known = await session.services.mailboxes.annotations.read(ref, folder, owner_of(session))
    shown: dict[str, bytes | None] = {}
    longest = 0
    for name in command.entries:
        for found in _below(known, name, command.depth):
            value = known[found]
            if command.max_size is not None and len(value) > command.max_size:
                longest = max(longest, len(value))
            else:
                shown[found] = value
        if name not in known and name not in ROOTS:
            shown[name] = None
    if shown:
        session.write(render.metadata_line(command.mailbox, shown.items(), utf8=session.utf8))
    return Done("GETMETADATA completed", f"METADATA LONGENTRIES {longest}" if longest else None)


def _below(known: Mapping[str, bytes], name: str, depth: int | None) -> Iterator[str]:
    """The entry itself and those below it, so many levels down (None: all)."""
    prefix = f"{name}/"
    for found in known:
        if found == name or (
            found.startswith(prefix) and depth != 0 and (depth is None or "/" not in found[len(prefix) :])
        ):
            yield found


async def set_metadata(session: Session, command: c.SetMetadata) -> Done:
    """All of the values or none (RFC 5464 §4.3)."""
    ref, folder = await _place(session, command.mailbox, write=True)
    if any(value is not None and len(value) > MAX_VALUE for _, value in command.values):
        raise ProtocolNo(f"METADATA MAXSIZE {MAX_VALUE}", "Value is too large")
    if not command.mailbox and any(not name.startswith(_PRIVATE) for name, _ in command.values):
        raise ProtocolNo(Code.NOPERM, "What the server says of itself is not for clients to set")
    owner = owner_of(session)
    values = [(Entry(owner if name.startswith(_PRIVATE) else SHARED, name), value) for name, value in command.values]
    try:
        await session.services.mailboxes.annotations.write(ref, folder, values)
    except LimitExceeded:
        raise ProtocolNo("METADATA TOOMANY", "Too many entries") from None
    return Done("SETMETADATA completed")


async def _place(session: Session, name: str, *, write: bool = False) -> tuple[MailboxRef, FolderKey | None]:
    """What the notes are on; without a name that is the session's own mailbox as a whole."""
    if name:
        found = await find(session, name, write=write)
        return found.box.ref, found.folder.id
    if write:
        session.require_write(session.boxes.own)
    return session.boxes.own.ref, None


def owner_of(session: Session) -> str:
    """Whose private entries are meant: several people may open one mailbox. An agent is one whatever key it has."""
    assert session.principal is not None
    return AGENT if session.is_key else session.principal.public_id
