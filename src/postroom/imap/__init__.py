"""IMAP without I/O: bytes to typed commands, typed answers to bytes (RFC 9051, RFC 3501; spec D1–D9).

A session feeds its socket's bytes to a `CommandReader`, parses each `RawCommand` with `parse_command`, checks it
against its `SessionState` with `require`, does the work, and writes what `postroom.imap.render` makes of the result.
Extensions are rows: of `parser.COMMANDS`, `fetch.FETCH_ITEMS`, `search.SEARCH_KEYS` and their neighbours. A row that
names a capability is read only when `ParserOptions.capabilities` has it.
"""

from postroom.imap.cursor import ParserOptions
from postroom.imap.errors import BadCommand, Code, CommandError, ProtocolNo, Status
from postroom.imap.parser import parse_command, parse_done, parse_sasl_line
from postroom.imap.sequence import SequenceSet, compress
from postroom.imap.state import SessionState, require
from postroom.imap.wire import CommandReader, Continuation, Event, Line, RawCommand, ReaderLimits, Rejected

__all__ = [
    "BadCommand",
    "Code",
    "CommandError",
    "CommandReader",
    "Continuation",
    "Event",
    "Line",
    "ParserOptions",
    "ProtocolNo",
    "RawCommand",
    "ReaderLimits",
    "Rejected",
    "SequenceSet",
    "SessionState",
    "Status",
    "compress",
    "parse_command",
    "parse_done",
    "parse_sasl_line",
    "require",
]
