"""COPY and MOVE (mail-server D4, D8; RFC 4315, RFC 6851)."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.imap import Code, Status, render
from postroom.imap import commands as c
from postroom.mailbox.models import FolderKey
from postroom.mailbox.transfer import CopyResult
from postroom.servers.imap.bounds import Bounded, bounded
from postroom.servers.imap.folders import find
from postroom.servers.imap.session import Done, Session
from postroom.servers.imap.store import GONE


async def copy(session: Session, command: c.Copy) -> Done:
    session.require_write()
    target = await find(session, command.mailbox, missing=Code.TRYCREATE)
    uids = _uids(session, (await _wanted(session, command)).all_or_none(), command)
    if not uids:
        return Done("No messages to copy")
    done = await session.services.mailboxes.copy(session.ref, session.folder().view.id, uids, target.id)
    return Done("COPY completed", _code(done))


async def move(session: Session, command: c.Move) -> Done:
    """The code stands in an untagged OK before the EXPUNGE responses (RFC 6851 §4.3)."""
    selected = session.writable_folder()
    target = await find(session, command.mailbox, missing=Code.TRYCREATE)
    wanted = await _wanted(session, command)
    uids = _uids(session, wanted.parts, command)
    if not uids:
        return Done("No messages to move", wanted.code)
    source: FolderKey = selected.view.id
    done = await session.services.mailboxes.move(session.ref, source, uids, target.id)
    code = _code(done)
    if code is not None:
        session.write(render.untagged(Status.OK, "Moved", code))
    return Done(f"MOVE completed{wanted.suffix}", wanted.code, went=bool(done.pairs))


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
