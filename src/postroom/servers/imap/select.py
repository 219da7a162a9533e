"""Selection: SELECT, EXAMINE, CHECK, CLOSE, UNSELECT (mail-server D3)."""

from __future__ import annotations

from contextlib import suppress

from postroom.imap import Code, ProtocolNo, Status, render
from postroom.imap import commands as c
from postroom.imap.flags import DELETED, SEEN, SYSTEM_FLAGS
from postroom.mailbox.expunge import MessagesInUse
from postroom.servers.imap.folders import find
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Done, Session
from postroom.servers.imap.views import FolderGone, FolderView


async def select(session: Session, command: c.Select) -> Done:
    """SELECT and EXAMINE. A failed one leaves nothing selected; the folder left is not expunged (RFC 3501 §6.3.1)."""
    session.deselect()
    folder = await find(session, command.mailbox)
    try:
        view = await session.shared.views.open(session.ref, folder.id)
    except FolderGone:
        raise ProtocolNo(Code.NONEXISTENT, "No such mailbox") from None
    read_only = command.read_only or not session.may_write
    try:
        recent = await _recent(view, read_only)
    except BaseException:
        session.shared.views.release(view)
        raise
    selected = Selected(view, read_only=read_only, recent=recent)
    session.select(selected)
    _describe(session, selected)
    if read_only:
        return Done("EXAMINE completed" if command.read_only else "SELECT completed", Code.READ_ONLY, quiet=True)
    return Done("SELECT completed", Code.READ_WRITE, quiet=True)


async def _recent(view: FolderView, read_only: bool) -> range:
    """What is \\Recent here: only a session that may write takes it away from others (RFC 3501 §6.3.2)."""
    if read_only:
        return range(max(view.recent_upto, view.folder.recent_uid) + 1, view.folder.uid_next)
    return await view.claim_recent(view.folder.uid_next - 1)


def _describe(session: Session, selected: Selected) -> None:
    view, folder = selected.view, selected.view.folder
    words = (*SYSTEM_FLAGS, *view.keywords)
    permanent = [word for word in words if word != DELETED or not session.is_key]
    session.write(
        render.flags_line(words),
        render.exists(selected.count),
        render.recent(selected.recent_count()),
    )
    first = next((place for place, flags in enumerate(view.flags) if SEEN not in flags), None)
    if first is not None:
        session.write(render.untagged(Status.OK, "First unseen message", f"UNSEEN {first + 1}"))
    code = "PERMANENTFLAGS ()" if selected.read_only else render.code_permanent_flags(permanent)
    session.write(
        render.untagged(Status.OK, "UIDs are valid", f"UIDVALIDITY {folder.uid_validity}"),
        render.untagged(Status.OK, "Predicted next UID", f"UIDNEXT {folder.uid_next}"),
        render.untagged(Status.OK, "Flags permitted", code),
        render.untagged(Status.OK, "Mailbox id", f"MAILBOXID ({folder.public_id})"),
    )


async def check(session: Session, command: c.Check) -> Done:
    return Done("CHECK completed")


async def close(session: Session, command: c.Close) -> Done:
    """Leave the folder and remove what is \\Deleted, silently; not when it is read-only or the client is a key."""
    selected = session.folder()
    folder, expunges = selected.view.id, not selected.read_only and session.may_write and not session.is_key
    session.deselect()
    if expunges:
        # What is still to be sent stays, flagged as it is.
        with suppress(MessagesInUse):
            await session.services.mailboxes.expunge(session.ref, folder)
    return Done("CLOSE completed", quiet=True)


async def unselect(session: Session, command: c.Unselect) -> Done:
    session.deselect()
    return Done("UNSELECT completed", quiet=True)
