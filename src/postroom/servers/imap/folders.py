"""Folders: NAMESPACE, LIST, LSUB, STATUS, CREATE, DELETE, RENAME, SUBSCRIBE, UNSUBSCRIBE (mail-server D2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from postroom.accounts.permissions import Permission
from postroom.base.errors import PostroomError
from postroom.imap import Code, ProtocolNo, render
from postroom.imap import commands as c
from postroom.imap.commands import ListReturn, ListSelection, StatusItem
from postroom.imap.names import INBOX, SEPARATOR, ListPattern, any_match
from postroom.mailbox.models import Folder, SpecialUse
from postroom.mailbox.rules import is_quarantine
from postroom.servers.imap.session import Done, Session

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


async def visible_folders(session: Session) -> list[Folder]:
    """The folders this principal may know of: quarantine is for those who review it (A6)."""
    folders = await session.services.mailboxes.list_folders(session.ref)
    return [folder for folder in folders if is_visible(session, folder.name)]


def is_visible(session: Session, name: str) -> bool:
    """Whether a folder of this name may be known to the principal."""
    if not session.is_key or not is_quarantine(name):
        return True
    return session.principal is not None and session.principal.may(Permission.QUARANTINE_REVIEW)


async def find(session: Session, name: str, *, missing: str = Code.NONEXISTENT) -> Folder:
    """The folder of a name. Raises `ProtocolNo` with the code `missing`."""
    try:
        if not is_visible(session, name):
            raise PostroomError("folder_not_found")
        return await session.services.mailboxes.folder(session.ref, name)
    except PostroomError as error:
        if error.code != "folder_not_found":
            raise
        raise ProtocolNo(missing, "No such mailbox") from None


async def namespace(session: Session, command: c.Namespace) -> Done:
    session.write(render.namespace_line())
    return Done("NAMESPACE completed")


# -- LIST and LSUB


async def list_(session: Session, command: c.List) -> Done:
    """LIST, plain or extended (RFC 5258); special uses and children are told in either (RFC 6154 §2, RFC 3348)."""
    if not command.extended and command.patterns == ("",):
        session.write(render.list_line(("\\Noselect",), ""))
        return Done("LIST completed")
    folders = await visible_folders(session)
    patterns = _patterns(command.reference, command.patterns)
    parents = parents_of(folders)
    for folder in folders:
        if not any_match(patterns, folder.name):
            continue
        chosen, inside = _chosen(folder, command.selection, folders)
        if not chosen and not inside:
            continue
        attributes = attributes_of(folder, parents)
        if folder.subscribed and (
            ListSelection.SUBSCRIBED in command.selection or ListReturn.SUBSCRIBED in command.returns
        ):
            attributes.insert(0, "\\Subscribed")
        extended = b'("CHILDINFO" ("SUBSCRIBED"))' if inside else b""
        session.write(render.list_line(attributes, folder.name, utf8=session.utf8, extended=extended))
        for wanted in command.returns:
            if isinstance(wanted, c.ListStatus):
                note_items(session, wanted.items)
                await _write_status(session, folder, wanted.items)
        await session.drain()
    return Done("LIST completed")


def _chosen(folder: Folder, selection: frozenset[ListSelection], folders: Sequence[Folder]) -> tuple[bool, bool]:
    """Whether the selection options pick the folder, and whether it is shown for the sake of what is below it."""
    chosen = not (ListSelection.SUBSCRIBED in selection and not folder.subscribed) and not (
        ListSelection.SPECIAL_USE in selection and folder.special_use not in USES
    )
    inside = (
        ListSelection.RECURSIVEMATCH in selection
        and ListSelection.SUBSCRIBED in selection
        and any(other.subscribed and other.name.startswith(folder.name + SEPARATOR) for other in folders)
    )
    return chosen, inside


async def lsub(session: Session, command: c.Lsub) -> Done:
    """LSUB: also, for `%`, the levels above a subscribed folder, as \\Noselect (RFC 3501 §6.3.9)."""
    folders = await visible_folders(session)
    patterns = _patterns(command.reference, (command.pattern,))
    parents = parents_of(folders)
    shown: dict[str, list[str]] = {}
    for folder in folders:
        if not folder.subscribed:
            continue
        if any_match(patterns, folder.name):
            shown[folder.name] = attributes_of(folder, parents)
        elif "%" in command.pattern:
            above = folder.name
            while SEPARATOR in above:
                above = above.rpartition(SEPARATOR)[0]
                if any_match(patterns, above):
                    shown.setdefault(above, ["\\Noselect"])
    for name, attributes in shown.items():
        session.write(render.list_line(attributes, name, utf8=session.utf8, command="LSUB"))
    return Done("LSUB completed")


def _patterns(reference: str, patterns: Iterable[str]) -> list[ListPattern]:
    return [
        ListPattern(pattern if pattern.startswith(SEPARATOR) else reference + pattern)
        for pattern in patterns
        if pattern
    ]


def parents_of(folders: Iterable[Folder]) -> frozenset[str]:
    """Names below which there is something."""
    return frozenset(folder.name.rpartition(SEPARATOR)[0] for folder in folders)


def attributes_of(folder: Folder, parents: frozenset[str]) -> list[str]:
    """Those that LIST always tells."""
    attributes = ["\\HasChildren" if folder.name in parents else "\\HasNoChildren"]
    if folder.special_use in USES:
        attributes.append(USES[folder.special_use])
    return attributes


# -- STATUS


async def status(session: Session, command: c.StatusCommand) -> Done:
    folder = await find(session, command.mailbox)
    note_items(session, command.items)
    await _write_status(session, folder, command.items)
    return Done("STATUS completed")


async def _write_status(session: Session, folder: Folder, items: Sequence[StatusItem]) -> None:
    shown = await status_items(session, folder, items)
    session.write(render.status_line(folder.name, shown, utf8=session.utf8))


def note_items(session: Session, items: Iterable[StatusItem]) -> None:
    """Who asks for HIGHESTMODSEQ follows it (RFC 7162 §3.1)."""
    if StatusItem.HIGHESTMODSEQ in items:
        session.enable("CONDSTORE")


def in_units(octets: int) -> int:
    """Octets in units of storage, begun ones counted."""
    return -(-octets // STORAGE_UNIT)


async def status_items(session: Session, folder: Folder, items: Sequence[StatusItem]) -> list[tuple[str, int | str]]:
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
        size = await session.services.mailboxes.reads.deleted_bytes(session.ref, folder.id)
        values[StatusItem.DELETED_STORAGE] = in_units(size)
    return [(item.value, values[item]) for item in items]


# -- changes of the tree


async def create(session: Session, command: c.Create) -> Done:
    session.require_write()
    if command.mailbox == INBOX:
        raise ProtocolNo(Code.ALREADYEXISTS, "INBOX always exists")
    use: SpecialUse | None = None
    if command.special_use:
        if len(command.special_use) > 1 or command.special_use[0] not in _BY_USE:
            raise ProtocolNo("USEATTR", "Not a special use that can be given")
        use = _BY_USE[command.special_use[0]]
        if any(folder.special_use is use for folder in await session.services.mailboxes.list_folders(session.ref)):
            raise ProtocolNo("USEATTR", "Another mailbox has this special use")
    if not is_visible(session, command.mailbox):
        raise ProtocolNo(Code.NOPERM, "Not permitted")
    folder = await session.services.mailboxes.create_folder(session.ref, command.mailbox, use)
    return Done("CREATE completed", f"MAILBOXID ({folder.public_id})")


async def delete(session: Session, command: c.Delete) -> Done:
    session.require_write()
    session.forbid_keys()
    folder = await find(session, command.mailbox)
    if folder.special_use is not None:
        raise ProtocolNo(Code.CANNOT, "This mailbox cannot be deleted")
    # Its sessions are told BYE; the one that deletes goes back to where nothing is selected.
    if session.selected is not None and session.selected.view.id == folder.id:
        session.deselect()
    await session.services.mailboxes.delete_folder(session.ref, folder.id)
    return Done("DELETE completed")


async def rename(session: Session, command: c.Rename) -> Done:
    session.require_write()
    folder = await find(session, command.source)
    if not is_visible(session, command.target):
        raise ProtocolNo(Code.NOPERM, "Not permitted")
    await session.services.mailboxes.rename_folder(session.ref, folder.id, command.target)
    return Done("RENAME completed")


async def subscribe(session: Session, command: c.Subscribe) -> Done:
    return await _subscribe(session, command.mailbox, True, "SUBSCRIBE completed")


async def unsubscribe(session: Session, command: c.Unsubscribe) -> Done:
    return await _subscribe(session, command.mailbox, False, "UNSUBSCRIBE completed")


async def _subscribe(session: Session, name: str, subscribed: bool, text: str) -> Done:
    session.require_write()
    folder = await find(session, name)
    await session.services.mailboxes.subscribe(session.ref, folder.id, subscribed)
    return Done(text)
