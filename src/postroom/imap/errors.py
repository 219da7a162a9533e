"""Status words, response codes and the two errors a command may end in.

Every failure of this package is a :class:`CommandError`: `BadCommand` for what breaks the grammar (tagged ``BAD``) and
`ProtocolNo` for well-formed requests that are refused (tagged ``NO`` with a response code, RFC 9051 §7.1, RFC 5530).
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Status responses of RFC 9051 §7.1."""

    OK = "OK"
    NO = "NO"
    BAD = "BAD"
    BYE = "BYE"
    PREAUTH = "PREAUTH"


class Code(StrEnum):
    """Response codes without an argument; those with one are built by functions of `postroom.imap.render`."""

    ALERT = "ALERT"
    ALREADYEXISTS = "ALREADYEXISTS"
    AUTHENTICATIONFAILED = "AUTHENTICATIONFAILED"
    BADCHARSET = "BADCHARSET (UTF-8)"
    CANNOT = "CANNOT"
    CLIENTBUG = "CLIENTBUG"
    CLOSED = "CLOSED"
    EXPUNGEISSUED = "EXPUNGEISSUED"
    HASCHILDREN = "HASCHILDREN"
    INUSE = "INUSE"
    LIMIT = "LIMIT"
    NONEXISTENT = "NONEXISTENT"
    NOPERM = "NOPERM"
    OVERQUOTA = "OVERQUOTA"
    PARSE = "PARSE"
    PRIVACYREQUIRED = "PRIVACYREQUIRED"
    READ_ONLY = "READ-ONLY"
    READ_WRITE = "READ-WRITE"
    SERVERBUG = "SERVERBUG"
    TOOBIG = "TOOBIG"
    TRYCREATE = "TRYCREATE"
    UNAVAILABLE = "UNAVAILABLE"
    UNKNOWN_CTE = "UNKNOWN-CTE"


class CommandError(Exception):
    """A command that ends in ``BAD`` or ``NO``. `text` is fit for the client and never quotes what the client sent."""

    status: Status = Status.BAD

    def __init__(self, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class BadCommand(CommandError):
    """The command breaks the grammar or is not valid now: ``tag BAD text``."""

    status = Status.BAD


class ProtocolNo(CommandError):
    """The command is understood and refused: ``tag NO [code] text``."""

    status = Status.NO

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text, code)
