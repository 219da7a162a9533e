"""COPY and MOVE (mail-server D4, D8; RFC 4315, RFC 6851). What goes into another mailbox: `across`."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.imap import Code, Status, render
from postroom.imap import commands as c
from postroom.mailbox.transfer import CopyResult
from postroom.servers.imap.across import copy_across, move_across
from postroom.servers.imap.answers import Done
from postroom.servers.imap.bounds import Bounded, bounded
from postroom.servers.imap.folders import find
from postroom.servers.imap.session import Session
from postroom.servers.imap.store import GONE


async def copy(session: Session, command: c.Copy) -> Done:
    selected = session.folder()
    target = await find(session, command.mailbox, missing=Code.TRYCREATE, write=True)
    uids = _uids(session, (await _wanted(session, command)).all_or_none(), command)
    if not uids:
        return Done("No messages to copy")
    if target.box.ref == selected.ref:
        done = await session.services.mailboxes.copy(selected.ref, selected.view.id, uids, target.folder.id)
    else:
        done = await copy_across(session, selected, uids, target)
    return Done("COPY completed", _code(done))


async def move(session: Session, command: c.Move) -> Done:
    """The code stands in an untagged OK before the EXPUNGE responses (RFC 6851 §4.3)."""
    selected = session.writable_folder()
    target = await find(session, command.mailbox, missing=Code.TRYCREATE, write=True)
    wanted = await _wanted(session, command)
    uids = _uids(session, wanted.parts, command)
    if not uids:
        return Done("No messages to move", wanted.code)
    if target.box.ref == selected.ref:
        done = await session.services.mailboxes.move(selected.ref, selected.view.id, uids, target.folder.id)
        _tell_moved(session, done)
    else:
        done = CopyResult(target.folder.uid_validity, ())
        try:
            async for part in move_across(session, selected, uids, target):
                done = CopyResult(part.uid_validity, (*done.pairs, *part.pairs))
        finally:
            # Also where some could not be moved: the others have been (RFC 6851 §4.3).
            _tell_moved(session, done)
    return Done(f"MOVE completed{wanted.suffix}", wanted.code, went=bool(done.pairs))


def _tell_moved(session: Session, done: CopyResult) -> None:
    code = _code(done)
    if code is not None:
        session.write(render.untagged(Status.OK, "Moved", code))


async def _wanted(session: Session, command: c.Copy | c.Move) -> Bounded:
    selected = session.folder()
    await session.refresh()
    return bounded(session, selected, selected.resolve(command.messages, uid=command.uid))


def _uids(session: Session, parts: Sequence[range], command: c.Copy | c.Move) -> list[int]:
    """The UIDs meant. By number, all of them must exist, or nothing is done (D4)."""
    selected = session.folder()
    uids = [uid for part in parts for uid in selected.uids[part.start : part.stop]]
    if not command.uid and any(selected.is_gone(uid) for uid in uids):
        raise GONE
    return uids


def _code(done: CopyResult) -> str | None:
    if not done.pairs:
        return None
    source, target = zip(*done.pairs, strict=True)
    return render.code_copyuid(done.uid_validity, source, target)
