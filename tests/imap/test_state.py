"""Commands and states."""

from __future__ import annotations

import pytest

from postroom.imap import commands as c
from postroom.imap.errors import BadCommand
from postroom.imap.parser import COMMANDS
from postroom.imap.search import And
from postroom.imap.sequence import SequenceSet
from postroom.imap.state import COMMAND_STATES, SessionState, allowed, require

S = SessionState
SET = SequenceSet.parse(b"1")


def all_commands(base: type[c.Command] = c.Command) -> set[type[c.Command]]:
    direct = {kind for kind in base.__subclasses__() if kind in vars(c).values()}
    return direct.union(*(all_commands(kind) for kind in direct))


@pytest.mark.covers("mail-server:D1")
def test_every_command_has_its_states() -> None:
    assert set(COMMAND_STATES) == all_commands()
    # EXAMINE is a Select, and Done has no name of its own.
    assert len(COMMANDS) == len(COMMAND_STATES)
    assert all(S.LOGOUT not in states for states in COMMAND_STATES.values())


@pytest.mark.covers("mail-server:D1", "decisions:D21", "mail-server:D3")
@pytest.mark.parametrize(
    ("command", "states"),
    [
        (c.Noop(), {S.NOT_AUTHENTICATED, S.AUTHENTICATED, S.SELECTED}),
        (c.Login("a", "b"), {S.NOT_AUTHENTICATED}),
        (c.StartTls(), {S.NOT_AUTHENTICATED}),
        (c.Select("INBOX"), {S.AUTHENTICATED, S.SELECTED}),
        (c.Idle(), {S.AUTHENTICATED, S.SELECTED}),
        (c.Append("INBOX", ()), {S.AUTHENTICATED, S.SELECTED}),
        (c.Fetch(SET, ()), {S.SELECTED}),
        (c.Search(And()), {S.SELECTED}),
        (c.Unselect(), {S.SELECTED}),
        (c.CancelUpdate((b"a",)), {S.SELECTED}),
        (c.Notify(), {S.AUTHENTICATED, S.SELECTED}),
    ],
)
def test_states(command: c.Command, states: set[SessionState]) -> None:
    assert {state for state in S if allowed(state, command)} == states
    for state in set(S) - states:
        with pytest.raises(BadCommand, match=r"^Command not valid in this state$"):
            require(state, command)
    for state in states:
        require(state, command)
