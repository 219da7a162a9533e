"""SEARCH: the typed tree of keys and the table that reads them (RFC 9051 §6.4.4, RFC 3501 §6.4.4, RFC 4731, spec D7).

A new key is a subclass of `SearchKey` and a row of `SEARCH_KEYS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from types import MappingProxyType

from postroom.imap import flags
from postroom.imap.cursor import MAX_NUMBER, MAX_NUMBER64, Cursor, Row, look_up
from postroom.imap.errors import BadCommand, Code, ProtocolNo
from postroom.imap.partial import Partial, read_partial
from postroom.imap.sequence import SequenceSet

#: Our limits on one query: nesting of NOT, OR and parentheses, and keys in all.
MAX_DEPTH = 40
MAX_KEYS = 1_000

_HEADER_NAME = re.compile(rb"[!-9;-~]{1,997}").fullmatch
_CHARSETS = frozenset({b"US-ASCII", b"UTF-8", b"ASCII", b"UTF8"})


class SearchKey:
    """Base of every node of the tree."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class And(SearchKey):
    """All of the keys; none of them means ALL."""

    keys: tuple[SearchKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Or(SearchKey):
    """Either key."""

    left: SearchKey
    right: SearchKey


@dataclass(frozen=True, slots=True)
class Not(SearchKey):
    """The opposite."""

    key: SearchKey


@dataclass(frozen=True, slots=True)
class HasFlag(SearchKey):
    """The message has the flag; `flag` is the stored word (``$seen``, ``$label1``, ``work``)."""

    flag: str


@dataclass(frozen=True, slots=True)
class Recent(SearchKey):
    """``\\Recent`` in this session."""


class TextField(StrEnum):
    """Where a text key looks. `BODY` is the message without its header, `TEXT` all of it."""

    FROM = "from"
    TO = "to"
    CC = "cc"
    BCC = "bcc"
    SUBJECT = "subject"
    BODY = "body"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Contains(SearchKey):
    """Substring, without regard to case (spec D7); an empty `text` matches everything that has the field."""

    field: TextField
    text: str


@dataclass(frozen=True, slots=True)
class Header(SearchKey):
    """Substring of a header field of this name (lower case); an empty `text` asks only whether the field is there."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Larger(SearchKey):
    """RFC822.SIZE greater than `octets`."""

    octets: int


@dataclass(frozen=True, slots=True)
class Smaller(SearchKey):
    """RFC822.SIZE less than `octets`."""

    octets: int


class DateKind(StrEnum):
    """Which date: internal, of the Date header (zone ignored), or saved into the folder (RFC 8514)."""

    INTERNAL = "internal"
    SENT = "sent"
    SAVED = "saved"


class DateTest(StrEnum):
    """How a date compares: before it, on it, on it or later."""

    BEFORE = "before"
    ON = "on"
    SINCE = "since"


@dataclass(frozen=True, slots=True)
class Dated(SearchKey):
    """A date key; only the calendar day counts."""

    kind: DateKind
    test: DateTest
    day: date


@dataclass(frozen=True, slots=True)
class Older(SearchKey):
    """Internal date at least `seconds` ago (RFC 5032)."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Younger(SearchKey):
    """Internal date at most `seconds` ago (RFC 5032)."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Uids(SearchKey):
    """UIDs in the set."""

    uids: SequenceSet


@dataclass(frozen=True, slots=True)
class Numbers(SearchKey):
    """Message sequence numbers in the set (or ``$``, when it is `saved`)."""

    numbers: SequenceSet


@dataclass(frozen=True, slots=True)
class ModSeq(SearchKey):
    """Modification sequence at least `modseq` (RFC 7162 §3.1.5; entry names are read and ignored)."""

    modseq: int


@dataclass(frozen=True, slots=True)
class ObjectId(SearchKey):
    """EMAILID or, with `thread`, THREADID (RFC 8474 §6)."""

    id: str
    thread: bool = False


@dataclass(frozen=True, slots=True)
class Fuzzy(SearchKey):
    """``FUZZY``: the key, met also by what is only like it (RFC 6203)."""

    key: SearchKey


class ReturnOption(StrEnum):
    """What SEARCH RETURN and SORT RETURN ask for without an argument (RFC 4731, RFC 5182, RFC 5267, RFC 6203)."""

    MIN = "MIN"
    MAX = "MAX"
    ALL = "ALL"
    COUNT = "COUNT"
    SAVE = "SAVE"
    CONTEXT = "CONTEXT"
    UPDATE = "UPDATE"
    RELEVANCY = "RELEVANCY"


_RETURN_CAPABILITIES: Mapping[ReturnOption, str] = MappingProxyType(
    {
        ReturnOption.SAVE: "SEARCHRES",
        ReturnOption.CONTEXT: "CONTEXT=SEARCH",
        ReturnOption.UPDATE: "CONTEXT=SEARCH",
        ReturnOption.RELEVANCY: "SEARCH=FUZZY",
    }
)
SEARCH_RETURNS: Mapping[bytes, Row[ReturnOption | Partial]] = MappingProxyType(
    {
        **{option.encode(): Row.constant(option, _RETURN_CAPABILITIES.get(option)) for option in ReturnOption},
        b"PARTIAL": Row(read_partial, "PARTIAL"),
    }
)


class SearchReader:
    """Reads the keys of one SEARCH, counting them and their depth."""

    __slots__ = ("cursor", "depth", "keys")

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.depth = 0
        self.keys = 0

    def program(self) -> SearchKey:
        """All keys up to the end of the command, joined by AND."""
        found = [self.key()]
        while self.cursor.more():
            found.append(self.key())
        return found[0] if len(found) == 1 else And(tuple(found))

    def key(self) -> SearchKey:
        """One ``search-key``. Raises `BadCommand`, or `ProtocolNo` [LIMIT] beyond `MAX_DEPTH` or `MAX_KEYS`."""
        self.keys += 1
        self.depth += 1
        if self.depth > MAX_DEPTH or self.keys > MAX_KEYS:
            raise ProtocolNo(Code.LIMIT, "Search is too complex")
        cursor = self.cursor
        found: SearchKey
        if cursor.at(b"("):
            found = self._group()
        elif cursor.text[cursor.pos : cursor.pos + 1] in _SET_START:
            found = Numbers(cursor.sequence_set())
        else:
            row = look_up(SEARCH_KEYS, cursor.word(), cursor.options, "Unknown search key")
            found = row.read(cursor)(self)
        self.depth -= 1
        return found

    def argument(self) -> Cursor:
        """The cursor, past the space before an argument."""
        self.cursor.space()
        return self.cursor

    def nested(self) -> SearchKey:
        """A key that is the argument of another."""
        self.cursor.space()
        return self.key()

    def _group(self) -> SearchKey:
        found = self.cursor.items(self.key, empty=False, limit=MAX_KEYS)
        return found[0] if len(found) == 1 else And(tuple(found))


_SET_START = frozenset({b"%d" % digit for digit in range(10)} | {b"*", b"$"})

#: How a key's arguments become its node.
KeyBuilder = Callable[[SearchReader], SearchKey]


def _row(build: KeyBuilder, capability: str | None = None) -> Row[KeyBuilder]:
    return Row.constant(build, capability)


def _is(key: SearchKey) -> Row[KeyBuilder]:
    return _row(lambda _reader: key)


def _text(field: TextField) -> Row[KeyBuilder]:
    return _row(lambda reader: Contains(field, reader.argument().unicode()))


def _dated(kind: DateKind, test: DateTest, capability: str | None = None) -> Row[KeyBuilder]:
    return _row(lambda reader: Dated(kind, test, reader.argument().date()), capability)


def _keyword(reader: SearchReader) -> SearchKey:
    word = flags.flag_word(reader.argument().atom())
    assert word is not None  # an atom has no backslash
    return HasFlag(word)


def _header(reader: SearchReader) -> SearchKey:
    cursor = reader.argument()
    name = cursor.astring()
    if not _HEADER_NAME(name):
        raise BadCommand("Invalid header field name")
    cursor.space()
    return Header(name.decode("ascii").lower(), cursor.unicode())


def _or(reader: SearchReader) -> SearchKey:
    left = reader.nested()
    return Or(left, reader.nested())


def _modseq(reader: SearchReader) -> SearchKey:
    cursor = reader.argument()
    if cursor.at(b'"'):
        cursor.string()
        cursor.space()
        if cursor.word() not in (b"ALL", b"PRIV", b"SHARED"):
            raise BadCommand("Invalid MODSEQ entry type")
        cursor.space()
    return ModSeq(cursor.number(0, MAX_NUMBER64))


def _object_id(*, thread: bool) -> KeyBuilder:
    def build(reader: SearchReader) -> SearchKey:
        return ObjectId(reader.argument().unicode(), thread)

    return build


def _uids_between(first: int, last: int) -> SearchKey:
    return Uids(SequenceSet(((first, last),) if first <= last else ()))


def _flag_rows() -> dict[bytes, Row[KeyBuilder]]:
    words = {"SEEN": flags.SEEN, "ANSWERED": flags.ANSWERED, "FLAGGED": flags.FLAGGED, "DELETED": flags.DELETED}
    words["DRAFT"] = flags.DRAFT
    rows = {name.encode(): _is(HasFlag(word)) for name, word in words.items()}
    rows.update({b"UN" + name.encode(): _is(Not(HasFlag(word))) for name, word in words.items()})
    return rows


SEARCH_KEYS: Mapping[bytes, Row[KeyBuilder]] = MappingProxyType(
    {
        **_flag_rows(),
        **{field.name.encode(): _text(field) for field in TextField},
        b"ALL": _is(And()),
        b"RECENT": _is(Recent()),
        b"OLD": _is(Not(Recent())),
        b"NEW": _is(And((Recent(), Not(HasFlag(flags.SEEN))))),
        b"KEYWORD": _row(_keyword),
        b"UNKEYWORD": _row(lambda reader: Not(_keyword(reader))),
        b"HEADER": _row(_header),
        b"LARGER": _row(lambda reader: Larger(reader.argument().number(0, MAX_NUMBER64))),
        b"SMALLER": _row(lambda reader: Smaller(reader.argument().number(0, MAX_NUMBER64))),
        b"BEFORE": _dated(DateKind.INTERNAL, DateTest.BEFORE),
        b"ON": _dated(DateKind.INTERNAL, DateTest.ON),
        b"SINCE": _dated(DateKind.INTERNAL, DateTest.SINCE),
        b"SENTBEFORE": _dated(DateKind.SENT, DateTest.BEFORE),
        b"SENTON": _dated(DateKind.SENT, DateTest.ON),
        b"SENTSINCE": _dated(DateKind.SENT, DateTest.SINCE),
        b"SAVEDBEFORE": _dated(DateKind.SAVED, DateTest.BEFORE, "SAVEDATE"),
        b"SAVEDON": _dated(DateKind.SAVED, DateTest.ON, "SAVEDATE"),
        b"SAVEDSINCE": _dated(DateKind.SAVED, DateTest.SINCE, "SAVEDATE"),
        # Every folder has the date (RFC 8514 §4.3).
        b"SAVEDATESUPPORTED": _row(lambda _: And(), "SAVEDATE"),
        b"UID": _row(lambda reader: Uids(reader.argument().sequence_set())),
        # Never the last message whatever it is, as "n:*" would be (RFC 9738 §3.2).
        b"UIDAFTER": _row(lambda reader: _uids_between(reader.argument().number(1) + 1, MAX_NUMBER), "MESSAGELIMIT"),
        b"UIDBEFORE": _row(lambda reader: _uids_between(1, reader.argument().number(1) - 1), "MESSAGELIMIT"),
        b"NOT": _row(lambda reader: Not(reader.nested())),
        b"OR": _row(_or),
        b"OLDER": _row(lambda reader: Older(reader.argument().number(1, MAX_NUMBER)), "WITHIN"),
        b"YOUNGER": _row(lambda reader: Younger(reader.argument().number(1, MAX_NUMBER)), "WITHIN"),
        b"FUZZY": _row(lambda reader: Fuzzy(reader.nested()), "SEARCH=FUZZY"),
        b"MODSEQ": _row(_modseq, "CONDSTORE"),
        b"EMAILID": _row(_object_id(thread=False), "OBJECTID"),
        b"THREADID": _row(_object_id(thread=True), "OBJECTID"),
    }
)


def is_fuzzy(key: SearchKey) -> bool:
    """Whether FUZZY stands anywhere in the tree: without it there are no scores to ask for (RFC 6203 §4)."""
    match key:
        case Fuzzy():
            return True
        case And():
            return any(map(is_fuzzy, key.keys))
        case Or():
            return is_fuzzy(key.left) or is_fuzzy(key.right)
        case Not():
            return is_fuzzy(key.key)
    return False


def read_returns(cursor: Cursor, capability: str = "ESEARCH") -> tuple[ReturnOption | Partial, ...] | None:
    """``RETURN (…)`` and the space after it, if it comes next; an empty list means ALL (RFC 4731 §3.1)."""
    if cursor.peek_word() != b"RETURN":
        return None
    if capability not in cursor.options.capabilities:
        raise BadCommand("Unknown search key")
    cursor.word()
    cursor.space()

    def one() -> ReturnOption | Partial:
        return look_up(SEARCH_RETURNS, cursor.word(), cursor.options, "Unknown RETURN option").read(cursor)

    found = cursor.items(one)
    if sum(isinstance(option, Partial) for option in found) + (ReturnOption.ALL in found) > 1:
        raise BadCommand("One of PARTIAL and ALL, and once")
    cursor.space()
    return tuple(dict.fromkeys(found)) or (ReturnOption.ALL,)


def read_charset(cursor: Cursor) -> str | None:
    """``CHARSET x`` and the space after it, if it comes next. Raises `ProtocolNo` [BADCHARSET (UTF-8)] (spec D7)."""
    if cursor.peek_word() != b"CHARSET":
        return None
    if not cursor.options.charsets:
        raise BadCommand("UTF8=ACCEPT is enabled: there is no other charset")
    cursor.word()
    cursor.space()
    return read_charset_name(cursor)


def read_charset_name(cursor: Cursor) -> str:
    """The charset that SORT and THREAD are always given, and the space after it. Raises as `read_charset`."""
    charset = cursor.astring().upper()
    if charset not in _CHARSETS:
        raise ProtocolNo(Code.BADCHARSET, "Only US-ASCII and UTF-8 are known")
    cursor.space()
    return "UTF-8" if charset.startswith(b"UTF") else "US-ASCII"
