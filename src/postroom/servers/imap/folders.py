"""Folders: NAMESPACE, STATUS, CREATE, DELETE, RENAME, SUBSCRIBE, UNSUBSCRIBE (mail-server D2). LIST: `listing`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from postroom.base.errors import PostroomError
from postroom.imap import Code, ProtocolNo, render
from postroom.imap import commands as c
from postroom.imap.commands import StatusItem
from postroom.imap.names import INBOX, SEPARATOR
from postroom.mailbox.models import Folder, SpecialUse
from postroom.servers.imap.answers import Done
from postroom.servers.imap.boxes import OTHERS, Box, Found, is_reserved
from postroom.servers.imap.session import Session

STORAGE_UNIT: Final = 1024
"""Octets in which quotas are told (RFC 9208 §5.1)."""

#: How each special use is called on the wire (RFC 6154 §2); INBOX has no attribute.
USES: Final = {
    SpecialUse.SENT: "\\Sent",
    SpecialUse.DRAFTS: "\\Drafts",
    SpecialUse.TRASH: "\\Trash",
    SpecialUse.JUNK: "\\Junk",
    SpecialUse.ARCHIVE: "\\Archive",
    SpecialUse.ALL: "\\All",
    SpecialUse.FLAGGED: "\\Flagged",
}
_BY_USE: Final = {word: use for use, word in USES.items()}


async def find(session: Session, name: str, *, missing: str = Code.NONEXISTENT, write: bool = False) -> Found:
    """The folder of a name. Raises `ProtocolNo` with the code `missing`, or [NOPERM] where it is to be written into
    and the mailbox may only be read.
    """
    box, local = await session.boxes.locate(name)
    if write:
        session.require_write(box)
    try:
        if box.hides(local):
            raise PostroomError("folder_not_found")
        return Found(box, await session.services.mailboxes.folder(box.ref, local))
    except PostroomError as error:
        if error.code != "folder_not_found":
            raise
    if is_reserved(local):
        missing = Code.NONEXISTENT  # it cannot be created either
    raise ProtocolNo(missing, "No such mailbox")


async def namespace(session: Session, command: c.Namespace) -> Done:
    """The personal one and, for people, that of others' mailboxes, whether there are any or not (RFC 2342 §5)."""
    session.write(render.namespace_line(others=None if session.is_key else OTHERS + SEPARATOR))
    return Done("NAMESPACE completed")


# -- STATUS


async def status(session: Session, command: c.StatusCommand) -> Done:
    found = await find(session, command.mailbox)
    note_items(session, command.items)
    await write_status(session, found.box, found.folder, command.items)
    return Done("STATUS completed")


async def write_status(session: Session, box: Box, folder: Folder, items: Sequence[StatusItem]) -> None:
    """The STATUS response of a folder."""
    session.write(await status_line(session, box, folder, items))


async def status_line(session: Session, box: Box, folder: Folder, items: Sequence[StatusItem]) -> bytes:
    """As `write_status`, to be written later."""
    shown = await _status_items(session, box, folder, items)
    return render.status_line(box.prefix + folder.name, shown, utf8=session.utf8)


def note_items(session: Session, items: Iterable[StatusItem]) -> None:
    """Who asks for HIGHESTMODSEQ follows it (RFC 7162 §3.1)."""
    if StatusItem.HIGHESTMODSEQ in items:
        session.enable("CONDSTORE")


def in_units(octets: int) -> int:
    """Octets in units of storage, begun ones counted."""
    return -(-octets // STORAGE_UNIT)


async def _status_items(
    session: Session, box: Box, folder: Folder, items: Sequence[StatusItem]
) -> list[tuple[str, int | str]]:
    """Pairs of a STATUS response, from the folder's counters; the size of what is \\Deleted has to be summed up."""
    values: dict[StatusItem, int | str] = {
        StatusItem.MESSAGES: folder.message_count,
        # UIDs that nobody was told of; some of their messages may be gone.
        StatusItem.RECENT: min(folder.message_count, max(0, folder.uid_next - 1 - folder.recent_uid)),
        StatusItem.UIDNEXT: folder.uid_next,
        StatusItem.UIDVALIDITY: folder.uid_validity,
        StatusItem.UNSEEN: folder.unseen_count,
        StatusItem.DELETED: folder.deleted_count,
        StatusItem.SIZE: folder.total_bytes,
        StatusItem.HIGHESTMODSEQ: folder.highest_modseq,
        StatusItem.MAILBOXID: f"({folder.public_id})",
        StatusItem.APPENDLIMIT: session.shared.config.max_append_size,
    }
    if StatusItem.DELETED_STORAGE in items:
        size = await session.services.mailboxes.reads.deleted_bytes(box.ref, folder.id)
        values[StatusItem.DELETED_STORAGE] = in_units(size)
    return [(item.value, values[item]) for item in items]


# -- changes of the tree


async def create(session: Session, command: c.Create) -> Done:
    box, name = await session.boxes.locate(command.mailbox)
    session.require_write(box)
    if name == INBOX:
        raise ProtocolNo(Code.ALREADYEXISTS, "INBOX always exists")
    use = await _use_of(session, box, command.special_use)
    _check_free(session, box, name)
    folder = await session.services.mailboxes.create_folder(box.ref, name, use)
    return Done("CREATE completed", f"MAILBOXID ({folder.public_id})")


async def _use_of(session: Session, box: Box, words: Sequence[str]) -> SpecialUse | None:
    """The special use that a folder is to be made for (RFC 6154 §3)."""
    if not words:
        return None
    if len(words) > 1 or words[0] not in _BY_USE or not box.is_own:
        raise ProtocolNo("USEATTR", "Not a special use that can be given")
    use = _BY_USE[words[0]]
    if any(folder.special_use is use for folder in await session.services.mailboxes.list_folders(box.ref)):
        raise ProtocolNo("USEATTR", "Another mailbox has this special use")
    return use


def _check_free(session: Session, box: Box, name: str) -> None:
    """Raises `ProtocolNo` for a name that this session may not give."""
    if not name or (is_reserved(name) and not session.is_key):
        raise ProtocolNo(Code.CANNOT, "This name is for mailboxes of other people")
    if box.hides(name):
        raise ProtocolNo(Code.NOPERM, "Not permitted")


async def delete(session: Session, command: c.Delete) -> Done:
    session.forbid_keys()
    box, folder = await find(session, command.mailbox, write=True)
    if folder.special_use is not None:
        raise ProtocolNo(Code.CANNOT, "This mailbox cannot be deleted")
    # Its sessions are told BYE; the one that deletes goes back to where nothing is selected.
    if session.selected is not None and session.selected.view.id == folder.id:
        session.deselect()
    await session.services.mailboxes.delete_folder(box.ref, folder.id)
    return Done("DELETE completed")


async def rename(session: Session, command: c.Rename) -> Done:
    box, folder = await find(session, command.source, write=True)
    target, name = await session.boxes.locate(command.target)
    if target.ref != box.ref:
        # It would be another folder, with other messages: those can be moved.
        raise ProtocolNo(Code.CANNOT, "A folder stays in its mailbox")
    _check_free(session, target, name)
    await session.services.mailboxes.rename_folder(box.ref, folder.id, name)
    return Done("RENAME completed")


async def subscribe(session: Session, command: c.Subscribe) -> Done:
    return await _subscribe(session, command.mailbox, True, "SUBSCRIBE completed")


async def unsubscribe(session: Session, command: c.Unsubscribe) -> Done:
    return await _subscribe(session, command.mailbox, False, "UNSUBSCRIBE completed")


async def _subscribe(session: Session, name: str, subscribed: bool, text: str) -> Done:
    """In the mailbox of somebody else everybody has subscriptions of their own, who may read it."""
    box, folder = await find(session, name)
    person = session.boxes.person
    if box.is_own or person is None:
        session.require_write(box)
        await session.services.mailboxes.subscribe(box.ref, folder.id, subscribed)
    else:
        await session.services.mailboxes.subscriptions.put(box.ref, person, folder.id, subscribed)
    return Done(text)
