"""IDLE (mail-server D9, decision D21; RFC 2177)."""

from __future__ import annotations

from postroom.imap import BadCommand, Line, parse_done, render
from postroom.imap import commands as c
from postroom.servers.imap.failures import Disconnected, as_answer
from postroom.servers.imap.session import Done, Session


async def idle(session: Session, command: c.Idle) -> Done:
    """Tell what happens in the selected folder as it happens, until the client says DONE."""
    config = session.shared.config
    session.reader.expect_line()
    session.write(render.continuation("idling"))
    selected = session.selected
    if selected is not None:
        selected.view.listeners.append(session.wire.notify)
    session.wire.expect(config.max_idle, "Idle timeout")
    try:
        force = True
        while (event := session.reader.next_event()) is None:
            await _push(session, force=force)
            force = False
            session.flush()
            await session.wire.drained()
            await session.wire.wait()
    finally:
        if selected is not None:
            selected.view.listeners.remove(session.wire.notify)
    if not isinstance(event, Line):
        raise BadCommand("Expected DONE")
    parse_done(event.data)
    return Done("IDLE completed")


async def _push(session: Session, *, force: bool) -> None:
    try:
        if session.notices is not None:
            # The same as between commands (RFC 5465 §4).
            await session.notices.tell_idle(force=force)
        else:
            await session.tell_updates(expunge=True, force=force)
    except Disconnected:
        raise
    except Exception as error:  # noqa: BLE001 - the next wake-up, or the poll behind it, tries again
        as_answer(error)
