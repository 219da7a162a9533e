"""Mail programs as they speak today, against the listener.

Their sessions are in `clients/`, one file for a program; they are reconstructed from documentation, public source and
published logs, not captured (`tests.imap_server.scripts` says how they are read). Every answer is read by the strict
grammar, and compared with what the program needs of it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.imap_server import scripts


@pytest.mark.covers(
    "mail-server:D1", "mail-server:D6", "mail-server:D8", "mail-server:D9", "RFC 7162", "RFC 5465", "RFC 2177"
)
@pytest.mark.parametrize("program", scripts.PROGRAMS)
async def test_program(office: Any, program: str) -> None:
    await scripts.run(office, program)


@pytest.mark.covers("RFC 9051 §7")
async def test_a_script_that_is_not_met_fails(office: Any) -> None:
    _, messages = scripts.read(scripts.PROGRAMS[0])
    for wrong in (
        (("C:", b"a NONSENSE"), ("C:", b"b NOOP")),
        (("C:", b"a NOOP"), ("S:", b"* 1 EXISTS")),
        (("C:", b"a CAPABILITY"), ("S!", "* CAPABILITY …".encode()), ("C:", b"b NOOP")),
        (("C:", b"a NOOP"), ("S:", b"a NO")),
    ):
        session = scripts.Run.of(office, messages)
        await session.reconnect()
        *first, last = (scripts.Step("here", kind, text) for kind, text in wrong)
        for step in first:
            await session.take(step)
        with pytest.raises(AssertionError):
            await session.take(last)
