"""Selection: SELECT, EXAMINE, CHECK, CLOSE, UNSELECT (mail-server D3)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from postroom.imap import BadCommand, Code, ProtocolNo, Status, render
from postroom.imap import commands as c
from postroom.imap.flags import DELETED, SEEN, SYSTEM_FLAGS
from postroom.imap.sequence import paged
from postroom.mailbox.expunge import MessagesInUse
from postroom.servers.imap.answers import Done
from postroom.servers.imap.folders import find
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session
from postroom.servers.imap.vanished import tell_vanished
from postroom.servers.imap.views import FolderGone, FolderView

_CHUNK: Final = 1000
_MISSING: Final = ProtocolNo(Code.NONEXISTENT, "No such mailbox")


async def select(session: Session, command: c.Select) -> Done:
    """SELECT and EXAMINE. A failed one leaves nothing selected; the folder left is not expunged (RFC 3501 §6.3.1)."""
    had = session.selected is not None
    session.deselect()
    if had and (session.resyncs or session.is_rev2):
        # What follows is of the other mailbox (RFC 7162 §3.2.11, RFC 9051 §6.3.2).
        session.write(render.untagged(Status.OK, "Previous mailbox is closed", Code.CLOSED))
    resync = _resync_of(session, command)
    box, folder = await find(session, command.mailbox)
    try:
        view = await session.shared.views.open(box.ref, folder.id)
    except FolderGone:
        raise _MISSING from None
    read_only = command.read_only or not box.may_write
    try:
        recent = None if session.is_rev2 else await _recent(view, read_only)
        # The grant may have been another one until here; from here on the session is told.
        now = session.boxes.now(box)
        if now is None:
            raise _MISSING
    except BaseException:
        session.shared.views.release(view)
        raise
    read_only = read_only or not now.may_write
    selected = Selected(now, view, read_only=read_only, recent=recent)
    session.select(selected)
    if command.parameters:
        session.enable("CONDSTORE")
    _describe(session, selected)
    if resync is not None and resync.uid_validity == view.folder.uid_validity:
        await _catch_up(session, selected, resync)
    if read_only:
        return Done("EXAMINE completed" if command.read_only else "SELECT completed", Code.READ_ONLY, quiet=True)
    return Done("SELECT completed", Code.READ_WRITE, quiet=True)


def _resync_of(session: Session, command: c.Select) -> c.QResync | None:
    """What the client has of the mailbox. Raises `BadCommand` unless it said before that it knows what that means."""
    found = next((one for one in command.parameters if isinstance(one, c.QResync)), None)
    if found is not None and not session.resyncs:
        raise BadCommand("QRESYNC is not enabled")
    return found


async def _catch_up(session: Session, selected: Selected, resync: c.QResync) -> None:
    """What went and what changed since the client was here (RFC 7162 §3.2.5)."""
    await tell_vanished(session, selected, resync.modseq, resync.known)
    known = None if resync.known is None else resync.known.resolve_uids(selected.told_uids())
    changed = selected.changed((range(selected.count),) if known is None else known, resync.modseq)
    for places in paged(changed, _CHUNK):
        _tell_changed(session, selected, places)
        await session.drain()


def _tell_changed(session: Session, selected: Selected, places: Sequence[int]) -> None:
    """Other sessions may have brought the view on meanwhile: what went from it has its number here still."""
    states = zip(places, selected.flags_at(places), selected.modseqs_at(places), strict=True)
    for place, flags, modseq in states:
        if flags is not None:
            uid = selected.uids[place]
            shown = render.flags(flags, recent=selected.is_recent(uid))
            session.write(b"* %d FETCH (UID %d FLAGS %b MODSEQ (%d))\r\n" % (place + 1, uid, shown, modseq))


async def _recent(view: FolderView, read_only: bool) -> range:
    """What is \\Recent here: only a session that may write takes it away from others (RFC 3501 §6.3.2)."""
    if read_only:
        return range(max(view.recent_upto, view.folder.recent_uid) + 1, view.folder.uid_next)
    return await view.claim_recent(view.folder.uid_next - 1)


def _describe(session: Session, selected: Selected) -> None:
    view, folder = selected.view, selected.view.folder
    words = (*SYSTEM_FLAGS, *view.keywords)
    permanent = [word for word in words if word != DELETED or not session.is_key]
    session.write(render.flags_line(words), render.exists(selected.count))
    if session.is_rev2:
        # RFC 9051 §6.3.2: which mailbox it is; of RECENT and UNSEEN it knows nothing.
        session.write(render.list_line((), selected.name, utf8=session.utf8))
    else:
        session.write(render.recent(selected.recent_count()))
        first = next((place for place, flags in enumerate(view.flags) if SEEN not in flags), None)
        if first is not None:
            session.write(render.untagged(Status.OK, "First unseen message", f"UNSEEN {first + 1}"))
    code = "PERMANENTFLAGS ()" if selected.read_only else render.code_permanent_flags(permanent)
    session.write(
        render.untagged(Status.OK, "UIDs are valid", f"UIDVALIDITY {folder.uid_validity}"),
        render.untagged(Status.OK, "Predicted next UID", f"UIDNEXT {folder.uid_next}"),
        render.untagged(Status.OK, "Flags permitted", code),
        render.untagged(Status.OK, "Highest", render.code_highest_modseq(folder.highest_modseq)),
        render.untagged(Status.OK, "Mailbox id", f"MAILBOXID ({folder.public_id})"),
    )


async def check(session: Session, command: c.Check) -> Done:
    return Done("CHECK completed")


async def close(session: Session, command: c.Close) -> Done:
    """Leave the folder and remove what is \\Deleted, silently; not when it is read-only or the client is a key."""
    selected = session.folder()
    folder, ref = selected.view.id, selected.ref
    expunges = not selected.read_only and selected.box.may_write and not session.is_key
    session.deselect()
    if expunges:
        # What is still to be sent stays, flagged as it is.
        with suppress(MessagesInUse):
            await session.services.mailboxes.expunge(ref, folder)
    return Done("CLOSE completed", quiet=True)


async def unselect(session: Session, command: c.Unselect) -> Done:
    session.deselect()
    return Done("UNSELECT completed", quiet=True)
