"""The state machine of the receiving side, drawn as a table (RFC 5321 §4.1.4, rule A2).

::

    Connected --HELO/EHLO--> Greeted --MAIL--> Mail --RCPT--> Rcpt --DATA--> (data) --dot--> Greeted
    RSET from any state -> Greeted (Connected stays Connected)

A row is a command, a column a state, a cell what happens: a `Step`, or the reply that refuses it. While data is coming
in, and while the driver decides, no command is looked at, so those times need no column.
"""

import enum
from collections.abc import Mapping
from typing import Final

from postroom.smtp import replies
from postroom.smtp.replies import Reply


class State(enum.IntEnum):
    """Where a session stands between commands; the value is the column of the table."""

    CONNECTED = 0
    GREETED = 1
    MAIL = 2
    RCPT = 3


class Step(enum.Enum):
    """What a legal command does."""

    HELO = enum.auto()
    EHLO = enum.auto()
    MAIL = enum.auto()
    RCPT = enum.auto()
    DATA = enum.auto()
    RSET = enum.auto()
    NOOP = enum.auto()
    QUIT = enum.auto()
    VRFY = enum.auto()
    HELP = enum.auto()
    STARTTLS = enum.auto()


class Profile(enum.Enum):
    """What a listener is for. The profile picks the command table; there is one engine."""

    MX = "mx"


Cell = Step | Reply
Row = tuple[Cell, Cell, Cell, Cell]


def _always(cell: Cell) -> Row:
    return (cell, cell, cell, cell)


_SEND_HELO: Final = replies.SEND_HELO
_NEED_MAIL: Final = replies.NEED_MAIL
_NEED_RCPT: Final = replies.NEED_RCPT
_SPECIFIED: Final = replies.SENDER_SPECIFIED
_NOT_IMPLEMENTED: Final = replies.NOT_IMPLEMENTED

# fmt: off
_MX: Final[Mapping[bytes, Row]] = {
    #            CONNECTED    GREETED           MAIL              RCPT
    b"EHLO":     _always(Step.EHLO),
    b"HELO":     _always(Step.HELO),
    b"MAIL":     (_SEND_HELO, Step.MAIL,        _SPECIFIED,       _SPECIFIED),
    b"RCPT":     (_NEED_MAIL, _NEED_MAIL,       Step.RCPT,        Step.RCPT),
    b"DATA":     (_NEED_RCPT, _NEED_RCPT,       _NEED_RCPT,       Step.DATA),
    b"RSET":     _always(Step.RSET),
    b"NOOP":     _always(Step.NOOP),
    b"QUIT":     _always(Step.QUIT),
    b"VRFY":     _always(Step.VRFY),
    b"HELP":     _always(Step.HELP),
    b"STARTTLS": _always(Step.STARTTLS),
    b"AUTH":     (_SEND_HELO, _NOT_IMPLEMENTED, _NOT_IMPLEMENTED, _NOT_IMPLEMENTED),
    b"EXPN":     _always(_NOT_IMPLEMENTED),
    b"BDAT":     _always(_NOT_IMPLEMENTED),
}
# fmt: on

COMMANDS: Final[Mapping[Profile, Mapping[bytes, Row]]] = {Profile.MX: _MX}


def verbs(profile: Profile) -> list[str]:
    """The commands that a profile serves, for HELP."""
    return [verb.decode("ascii") for verb, row in COMMANDS[profile].items() if not _is_refused(row)]


def _is_refused(row: Row) -> bool:
    return all(isinstance(cell, Reply) for cell in row)
