"""IDLE (mail-server D9, decision D21; RFC 2177)."""

from __future__ import annotations

import asyncio
from typing import Final

from postroom.imap import BadCommand, Line, parse_done, render
from postroom.imap import commands as c
from postroom.servers.imap.answers import Done
from postroom.servers.imap.failures import Disconnected, as_answer
from postroom.servers.imap.session import Session

RETRY: Final = 5.0
"""Seconds after which what could not be read is looked at again."""


async def idle(session: Session, command: c.Idle) -> Done:
    """Tell what happens in the selected folder as it happens, until the client says DONE."""
    config = session.shared.config
    session.reader.expect_line()
    session.write(render.continuation("idling"))
    selected = session.selected
    if selected is not None:
        selected.view.listeners.append(session.wire.notify)
    session.wire.expect(config.max_idle, "Idle timeout")
    again: asyncio.TimerHandle | None = None
    try:
        force = True
        while (event := session.reader.next_event()) is None:
            if again is not None:
                again.cancel()
            is_told = await _push(session, force=force)
            again = None if is_told else asyncio.get_running_loop().call_later(RETRY, session.wire.notify)
            force = False
            session.flush()
            await session.wire.drained()
            await session.wire.wait()
    finally:
        if again is not None:
            again.cancel()
        if selected is not None:
            selected.view.listeners.remove(session.wire.notify)
    if not isinstance(event, Line):
        raise BadCommand("Expected DONE")
    parse_done(event.data)
    return Done("IDLE completed")


async def _push(session: Session, *, force: bool) -> bool:
    """False when it could not be told, and nobody else sees to it that it is."""
    try:
        if session.notices is not None:
            # The same as between commands (RFC 5465 §4).
            await session.notices.tell_idle(force=force)
        else:
            await session.tell_updates(expunge=True, force=force)
    except Disconnected:
        raise
    except Exception as error:  # noqa: BLE001 - it is tried again; the cause is in the log
        as_answer(error)
        return False
    return True
