"""STORE, EXPUNGE, UID EXPUNGE (mail-server D5, D8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from postroom.imap import Code, ProtocolNo, Status, render
from postroom.imap import commands as c
from postroom.imap.commands import StoreMode
from postroom.imap.flags import DELETED
from postroom.imap.sequence import paged
from postroom.mailbox.flags import FlagResult, FlagsNow
from postroom.mailbox.rules import FlagMode, Flags, LimitExceeded, change_flags
from postroom.servers.imap.answers import Done
from postroom.servers.imap.bounds import bounded, last_of
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session

_MODES: Final = {StoreMode.ADD: FlagMode.ADD, StoreMode.REMOVE: FlagMode.REMOVE, StoreMode.REPLACE: FlagMode.REPLACE}
_CHUNK: Final = 1000

GONE: Final = ProtocolNo(Code.EXPUNGEISSUED, "Some of the messages do not exist any more")


async def store(session: Session, command: c.Store) -> Done:
    """Change flags; answer with what each message has then, unless `.SILENT` (RFC 3501 §6.4.6)."""
    selected = session.writable_folder()
    if DELETED in command.flags and command.mode is not StoreMode.REMOVE:
        session.forbid_keys()
    since = next((one.modseq for one in command.modifiers if isinstance(one, c.UnchangedSince)), None)
    if since is not None:
        session.enable("CONDSTORE")
    await session.refresh()
    wanted = bounded(session, selected, selected.resolve(command.messages, uid=command.uid))
    mode, words = _MODES[command.mode], frozenset(command.flags)
    missing = False
    modified: list[int] = []
    for number, places in enumerate(paged(wanted.parts, _CHUNK)):
        if number:
            await session.tell_meanwhile()
        session.require_standing()
        session.require_write(selected.box)
        uids = selected.uids_at(places).tolist()
        before = dict(zip(uids, selected.flags_at(places), strict=True))
        stored = await session.services.mailboxes.set_flags(selected.ref, selected.view.id, uids, mode, words, since)
        missing = missing or len(stored) < len(uids)
        refused = [now for now in stored if now.result is FlagResult.MODIFIED]
        modified += (now.uid for now in refused)
        if command.silent:
            _keep_silent(selected, stored, before, mode, words)
            _tell(session, selected, refused, uid=command.uid)
            if session.follows_modseq:
                _tell_modseqs(session, selected, stored, uid=command.uid)
        else:
            _tell(session, selected, stored, uid=command.uid)
        await session.drain()
    if wanted.code is not None and modified:
        # There is room for one code behind the tag, and this one is of what was not done.
        session.write(render.untagged(Status.OK, "Only the last messages were looked at", wanted.code))
    if missing and not command.uid and not modified:
        raise GONE
    if not modified:
        return Done(f"STORE completed{wanted.suffix}", wanted.code)
    return _left_alone(selected, modified, missing=missing and not command.uid, uid=command.uid)


def _left_alone(selected: Selected, modified: list[int], *, missing: bool, uid: bool) -> Done:
    """The answer with what a conditional STORE left alone; a NO where messages named by number went."""
    places = (selected.index(one) for one in modified)
    shown = modified if uid else [place + 1 for place in places if place is not None]
    status = Status.NO if missing else Status.OK
    return Done("Some of the messages were changed meanwhile", render.code_modified(shown), status)


def _tell(session: Session, selected: Selected, stored: list[FlagsNow], *, uid: bool) -> None:
    for now in stored:
        place = selected.index(now.uid)
        if place is None:
            continue
        selected.silence(now.uid, now.modseq)
        head = b"UID %d " % now.uid if uid else b""
        tail = b" MODSEQ (%d)" % now.modseq if session.follows_modseq else b""
        shown = render.flags(now.flags, recent=selected.is_recent(now.uid))
        session.write(b"* %d FETCH (%bFLAGS %b%b)\r\n" % (place + 1, head, shown, tail))


def _tell_modseqs(session: Session, selected: Selected, stored: list[FlagsNow], *, uid: bool) -> None:
    """Silent as it was, a change has a modseq that the client has to know (RFC 7162 §3.1.3)."""
    for now in stored:
        place = selected.index(now.uid)
        if place is not None and now.result is FlagResult.CHANGED:
            head = b"UID %d " % now.uid if uid else b""
            session.write(b"* %d FETCH (%bMODSEQ (%d))\r\n" % (place + 1, head, now.modseq))


def _keep_silent(
    selected: Selected,
    stored: list[FlagsNow],
    before: dict[int, Flags | None],
    mode: FlagMode,
    words: frozenset[str],
) -> None:
    """The client knows what its own change made; what others changed meanwhile it is told all the same."""
    untold = selected.untold()
    expected: dict[Flags, Flags] = {}
    for now in stored:
        old = before[now.uid]
        if old is None or now.uid in untold or now.result is FlagResult.MODIFIED:
            continue
        new = expected.get(old)
        if new is None:
            try:
                new = expected[old] = change_flags(old, mode, words)
            except LimitExceeded:
                continue
        if new == now.flags or set(new) == set(now.flags):
            selected.silence(now.uid, now.modseq)


async def expunge(session: Session, command: c.Expunge) -> Done:
    """Remove what is \\Deleted; the answers are those of everything that went (RFC 3501 §6.4.3, RFC 4315 §2.1)."""
    selected = session.writable_folder()
    session.forbid_keys()
    uids: Sequence[int] | None = None
    code = None
    if command.uids is not None:
        parts = selected.resolve(command.uids, uid=True)
        uids = [uid for part in parts for uid in selected.uids[part.start : part.stop]]
        if len(uids) > session.shared.config.message_limit:
            # Only what can go counts, so that the same command again goes on with the rest (RFC 9738 §3.1).
            await session.refresh()
            uids, code = last_of(session, [uid for part in parts for uid in _deleted(selected, part)])
    gone: list[int] = []
    if uids is None or uids:
        gone = await session.services.mailboxes.expunge(selected.ref, selected.view.id, uids)
    return Done("EXPUNGE completed", code, went=bool(gone))


def _deleted(selected: Selected, places: range) -> list[int]:
    uids = selected.uids[places.start : places.stop]
    return [uid for uid, words in zip(uids, selected.flags_at(places), strict=True) if words and DELETED in words]
