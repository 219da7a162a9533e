"""The state machine of the receiving side, drawn as a table (RFC 5321 §4.1.4, rule A2).

::

    Connected --HELO/EHLO--> Greeted --MAIL--> Mail --RCPT--> Rcpt --DATA--> (data) --dot--> Greeted
                                                              Rcpt --BDAT--> Chunks --BDAT LAST--> Greeted
    RSET from any state -> Greeted (Connected stays Connected)

A row is a command, a column a state, a cell what happens: a `Step`, or the reply that refuses it. While data is coming
in, and while the driver decides, no command is looked at, so those times need no column. `authenticated` and
`encrypted` are flags beside the state.
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
    CHUNKS = 4
    """At least one chunk of the message is here, the last is not (RFC 3030 §2)."""


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
    AUTH = enum.auto()
    BDAT = enum.auto()


class Profile(enum.Enum):
    """What a listener is for. The profile picks the command table; there is one engine."""

    MX = "mx"
    SUBMISSION = "submission"
    LMTP = "lmtp"


Cell = Step | Reply
Row = tuple[Cell, Cell, Cell, Cell, Cell]


def _always(cell: Cell) -> Row:
    return (cell, cell, cell, cell, cell)


_SEND_HELO: Final = replies.SEND_HELO
_NEED_MAIL: Final = replies.NEED_MAIL
_NEED_RCPT: Final = replies.NEED_RCPT
_SPECIFIED: Final = replies.SENDER_SPECIFIED
_IN_MAIL: Final = replies.AUTH_IN_TRANSACTION
_BEGUN: Final = replies.CHUNKS_BEGUN
_NOT_IMPLEMENTED: Final = replies.NOT_IMPLEMENTED

# BDAT is a step everywhere: what follows it is data, which has to be passed over even where the command is refused.
# fmt: off
_SMTP: Final[Mapping[bytes, Row]] = {
    #            CONNECTED    GREETED           MAIL              RCPT              CHUNKS
    b"EHLO":     _always(Step.EHLO),
    b"HELO":     _always(Step.HELO),
    b"MAIL":     (_SEND_HELO, Step.MAIL,        _SPECIFIED,       _SPECIFIED,       _SPECIFIED),
    b"RCPT":     (_NEED_MAIL, _NEED_MAIL,       Step.RCPT,        Step.RCPT,        _BEGUN),
    b"DATA":     (_NEED_RCPT, _NEED_RCPT,       _NEED_RCPT,       Step.DATA,        replies.NEED_BDAT),
    b"BDAT":     _always(Step.BDAT),
    b"RSET":     _always(Step.RSET),
    b"NOOP":     _always(Step.NOOP),
    b"QUIT":     _always(Step.QUIT),
    b"VRFY":     _always(Step.VRFY),
    b"HELP":     _always(Step.HELP),
    b"STARTTLS": _always(Step.STARTTLS),
    b"AUTH":     (_SEND_HELO, Step.AUTH,        _IN_MAIL,         _IN_MAIL,         _IN_MAIL),
    b"EXPN":     _always(_NOT_IMPLEMENTED),
}
# fmt: on


def _for_lmtp() -> Mapping[bytes, Row]:
    """LHLO takes the place of EHLO and HELO (RFC 2033 §4.1), and there is no AUTH (A1)."""
    row = {verb: row for verb, row in _SMTP.items() if verb not in (b"EHLO", b"HELO")}
    mail = row[b"MAIL"]
    return {
        b"LHLO": _always(Step.EHLO),
        **row,
        b"MAIL": (replies.SEND_LHLO, *mail[1:]),
        b"AUTH": _always(_NOT_IMPLEMENTED),
    }


COMMANDS: Final[Mapping[Profile, Mapping[bytes, Row]]] = {
    Profile.MX: _SMTP,
    Profile.SUBMISSION: _SMTP,
    Profile.LMTP: _for_lmtp(),
}


def verbs(profile: Profile, *, auth: bool) -> list[str]:
    """The commands that a profile serves, for HELP; AUTH only with `auth`."""
    rows = COMMANDS[profile].items()
    return [verb.decode("ascii") for verb, row in rows if not _is_refused(row) and (auth or verb != b"AUTH")]


def _is_refused(row: Row) -> bool:
    return all(isinstance(cell, Reply) for cell in row)
