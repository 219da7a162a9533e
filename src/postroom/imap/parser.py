"""From a complete command to a typed one: the table of commands (RFC 9051 §9, RFC 3501 §9, spec D1).

A new command is a class in `postroom.imap.commands`, a reader here, a row of `COMMANDS` and one of
`postroom.imap.state.COMMAND_STATES`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from postroom.imap import acl, metadata
from postroom.imap import commands as c
from postroom.imap.append import read_append, read_replace
from postroom.imap.cursor import (
    DEFAULT_OPTIONS,
    MAX_NUMBER,
    MAX_NUMBER64,
    Cursor,
    ParserOptions,
    Row,
    look_up,
)
from postroom.imap.errors import BadCommand
from postroom.imap.fetch import Window, read_items, read_modifiers
from postroom.imap.names import SEPARATOR
from postroom.imap.notify import read_notify
from postroom.imap.search_commands import read_cancel_update, read_search, read_sort, read_thread
from postroom.imap.sequence import STAR
from postroom.imap.wire import RawCommand

#: Our limits; the first is RFC 2971 §3.3.
MAX_ID_FIELDS = 30
MAX_ID_NAME = 30
MAX_ID_VALUE = 1024
MAX_PATTERNS = 64

_UNKNOWN = "Unknown command"
_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?").fullmatch


def parse_command(raw: RawCommand, options: ParserOptions = DEFAULT_OPTIONS) -> c.Command:
    """The typed command. Raises `BadCommand` (answer ``BAD``) or `ProtocolNo` (``NO [code]``) and nothing else."""
    cursor = Cursor(raw.text, raw.literals, options)
    word = cursor.word()
    uid = word == b"UID"
    if uid:
        cursor.space()
        word = cursor.word()
    row = COMMANDS.get(word)
    if row is None or not (row.uid if uid else row.plain):
        raise BadCommand(_UNKNOWN)
    command = row.read(cursor, uid)
    cursor.finish()
    return command


def parse_done(line: bytes) -> c.Done:
    """The line that a client sends during IDLE; anything but ``DONE`` raises `BadCommand` (spec D9)."""
    if line.rstrip(b" ").upper() != b"DONE":
        raise BadCommand("Expected DONE")
    return c.Done()


def parse_sasl_line(line: bytes) -> bytes:
    """One SASL response, decoded. Raises `BadCommand` for ``*`` (cancelled) and bad base64 (RFC 9051 §6.2.2)."""
    line = line.strip(b" ")
    if line == b"*":
        raise BadCommand("Authentication cancelled")
    if not _BASE64(line):
        raise BadCommand("Invalid base64")
    return binascii.a2b_base64(line)


# -- any state


def _id(cursor: Cursor, _uid: bool) -> c.Command:
    cursor.space()
    if not cursor.at(b"("):
        if cursor.nstring() is not None:
            raise BadCommand("Expected a list or NIL")
        return c.Id(None)
    pairs: dict[str, str | None] = {}

    def one() -> None:
        name = cursor.string()
        cursor.space()
        value = cursor.nstring()
        if len(name) > MAX_ID_NAME or (value is not None and len(value) > MAX_ID_VALUE):
            raise BadCommand("ID field too long")
        pairs[name.decode("utf-8", "replace").lower()] = None if value is None else value.decode("utf-8", "replace")

    cursor.items(one, limit=MAX_ID_FIELDS)
    return c.Id(c.id_fields(pairs))


def _enable(cursor: Cursor, _uid: bool) -> c.Command:
    names = []
    while cursor.more():
        names.append(cursor.atom().decode("ascii").upper())
    if not names:
        raise BadCommand("Missing argument")
    return c.Enable(tuple(dict.fromkeys(names)))


# -- sign-in


def _login(cursor: Cursor, _uid: bool) -> c.Command:
    cursor.space()
    username = cursor.unicode()
    cursor.space()
    return c.Login(username, cursor.unicode())


def _authenticate(cursor: Cursor, _uid: bool) -> c.Command:
    cursor.space()
    mechanism = cursor.atom().decode("ascii").upper()
    if not cursor.more():
        return c.Authenticate(mechanism)
    if cursor.take(b"="):
        return c.Authenticate(mechanism, b"")
    end = cursor.text.find(b" ", cursor.pos)
    response = cursor.text[cursor.pos : end if end >= 0 else cursor.end]
    cursor.pos += len(response)
    if not response or not _BASE64(response):
        raise BadCommand("Invalid base64")
    return c.Authenticate(mechanism, binascii.a2b_base64(response))


# -- folders


def _mailbox(cursor: Cursor) -> str:
    cursor.space()
    return cursor.mailbox()


def _one_mailbox(make: Callable[[str], c.Command]) -> ArgumentReader:
    return lambda cursor, _uid: make(_mailbox(cursor))


def _qresync(cursor: Cursor) -> c.SelectParameter:
    cursor.space()
    cursor.open()
    uid_validity = cursor.number(1, MAX_NUMBER)
    cursor.space()
    modseq = cursor.number(1, MAX_NUMBER64)
    known = None
    pairs_allowed = True
    if not cursor.closes():
        if not cursor.at(b"("):
            known = cursor.sequence_set()
            if known.saved or any(high == STAR for _, high in known.ranges):
                raise BadCommand("Known UIDs are numbers")
            pairs_allowed = not cursor.closes()
        if pairs_allowed:
            cursor.open()
            cursor.sequence_set()
            cursor.space()
            cursor.sequence_set()
            if not (cursor.closes() and cursor.closes()):
                raise BadCommand("Syntax error")
    return c.QResync(uid_validity, modseq, known)


SELECT_PARAMETERS: Mapping[bytes, Row[c.SelectParameter]] = MappingProxyType(
    {b"CONDSTORE": Row.constant(c.CondStore(), "CONDSTORE"), b"QRESYNC": Row(_qresync, "QRESYNC")}
)


def _select(*, read_only: bool) -> ArgumentReader:
    def read(cursor: Cursor, _uid: bool) -> c.Command:
        mailbox = _mailbox(cursor)
        if not cursor.more():
            return c.Select(mailbox, read_only)

        def one() -> c.SelectParameter:
            return look_up(SELECT_PARAMETERS, cursor.word(), cursor.options, "Unknown SELECT parameter").read(cursor)

        return c.Select(mailbox, read_only, tuple(cursor.items(one, empty=False)))

    return read


def _use_attributes(cursor: Cursor) -> tuple[str, ...]:
    def one() -> str:
        cursor.expect(b"\\")
        return "\\" + cursor.atom().decode("ascii").capitalize()

    cursor.space()
    return tuple(dict.fromkeys(cursor.items(one, limit=16)))


CREATE_PARAMETERS: Mapping[bytes, Row[tuple[str, ...]]] = MappingProxyType(
    {b"USE": Row(_use_attributes, "CREATE-SPECIAL-USE")}
)


def _create(cursor: Cursor, _uid: bool) -> c.Command:
    mailbox = _mailbox(cursor)
    if len(mailbox) > 1:
        mailbox = mailbox.removesuffix(SEPARATOR)
    if not cursor.more():
        return c.Create(mailbox)

    def one() -> tuple[str, ...]:
        return look_up(CREATE_PARAMETERS, cursor.word(), cursor.options, "Unknown CREATE parameter").read(cursor)

    uses = [use for found in cursor.items(one, empty=False) for use in found]
    return c.Create(mailbox, tuple(dict.fromkeys(uses)))


def _rename(cursor: Cursor, _uid: bool) -> c.Command:
    source = _mailbox(cursor)
    return c.Rename(source, _mailbox(cursor))


STATUS_ITEMS: Mapping[bytes, Row[c.StatusItem]] = MappingProxyType(
    {
        **{
            item.encode(): Row.constant(item)
            for item in (
                c.StatusItem.MESSAGES,
                c.StatusItem.RECENT,
                c.StatusItem.UIDNEXT,
                c.StatusItem.UIDVALIDITY,
                c.StatusItem.UNSEEN,
            )
        },
        b"DELETED": Row.constant(c.StatusItem.DELETED, "IMAP4rev2"),
        b"SIZE": Row.constant(c.StatusItem.SIZE, "STATUS=SIZE"),
        b"HIGHESTMODSEQ": Row.constant(c.StatusItem.HIGHESTMODSEQ, "CONDSTORE"),
        b"MAILBOXID": Row.constant(c.StatusItem.MAILBOXID, "OBJECTID"),
        b"APPENDLIMIT": Row.constant(c.StatusItem.APPENDLIMIT, "APPENDLIMIT"),
        b"DELETED-STORAGE": Row.constant(c.StatusItem.DELETED_STORAGE, "QUOTA=RES-STORAGE"),
    }
)


def _status_items(cursor: Cursor) -> tuple[c.StatusItem, ...]:
    def one() -> c.StatusItem:
        return look_up(STATUS_ITEMS, cursor.word(), cursor.options, "Unknown STATUS item").read(cursor)

    cursor.space()
    return tuple(dict.fromkeys(cursor.items(one, empty=False)))


def _status(cursor: Cursor, _uid: bool) -> c.Command:
    mailbox = _mailbox(cursor)
    return c.StatusCommand(mailbox, _status_items(cursor))


LIST_SELECTIONS: Mapping[bytes, Row[c.ListSelection]] = MappingProxyType(
    {option.encode(): Row.constant(option) for option in c.ListSelection}
)
LIST_RETURNS: Mapping[bytes, Row[c.ListReturn | c.ListStatus]] = MappingProxyType(
    {
        b"SUBSCRIBED": Row.constant(c.ListReturn.SUBSCRIBED),
        b"CHILDREN": Row.constant(c.ListReturn.CHILDREN),
        b"SPECIAL-USE": Row.constant(c.ListReturn.SPECIAL_USE),
        b"MYRIGHTS": Row.constant(c.ListReturn.MY_RIGHTS, "LIST-MYRIGHTS"),
        b"STATUS": Row(lambda cursor: c.ListStatus(_status_items(cursor))),
    }
)


def _pattern(cursor: Cursor) -> str:
    return cursor.name(cursor.list_mailbox())


def _list(cursor: Cursor, _uid: bool) -> c.Command:
    selection: frozenset[c.ListSelection] = frozenset()
    returns: tuple[c.ListReturn | c.ListStatus, ...] = ()
    cursor.space()
    extended = cursor.at(b"(")
    if extended:

        def select() -> c.ListSelection:
            return look_up(LIST_SELECTIONS, cursor.word(), cursor.options, "Unknown LIST option").read(cursor)

        selection = frozenset(cursor.items(select))
        if c.ListSelection.RECURSIVEMATCH in selection and selection <= _MODIFIERS_ONLY:
            raise BadCommand("RECURSIVEMATCH needs a further selection option")
        cursor.space()
    reference = cursor.name(cursor.astring())
    cursor.space()
    if cursor.at(b"("):
        extended = True
        patterns = tuple(cursor.items(lambda: _pattern(cursor), empty=False, limit=MAX_PATTERNS))
    else:
        patterns = (_pattern(cursor),)
    if cursor.more():
        extended = True
        if cursor.word() != b"RETURN":
            raise BadCommand("Expected RETURN")
        cursor.space()

        def give() -> c.ListReturn | c.ListStatus:
            return look_up(LIST_RETURNS, cursor.word(), cursor.options, "Unknown LIST option").read(cursor)

        returns = tuple(dict.fromkeys(cursor.items(give)))
    return c.List(reference, patterns, selection, returns, extended)


# RFC 5258 §3.1: RECURSIVEMATCH modifies another option and is an error alone or with REMOTE only.
_MODIFIERS_ONLY = frozenset({c.ListSelection.RECURSIVEMATCH, c.ListSelection.REMOTE})


def _lsub(cursor: Cursor, _uid: bool) -> c.Command:
    cursor.space()
    reference = cursor.name(cursor.astring())
    cursor.space()
    return c.Lsub(reference, _pattern(cursor))


def _get_quota(cursor: Cursor, _uid: bool) -> c.Command:
    cursor.space()
    return c.GetQuota(cursor.unicode())


def _compress(cursor: Cursor, _uid: bool) -> c.Command:
    cursor.space()
    return c.Compress(cursor.atom().decode("ascii").upper())


# -- messages


def _expunge(cursor: Cursor, uid: bool) -> c.Command:
    if not uid:
        return c.Expunge()
    cursor.space()
    return c.Expunge(cursor.sequence_set())


def _fetch(cursor: Cursor, uid: bool) -> c.Command:
    cursor.space()
    messages = cursor.sequence_set()
    cursor.space()
    items = read_items(cursor)
    modifiers = read_modifiers(cursor) if cursor.more() else ()
    if sum(isinstance(one, Window) for one in modifiers) > uid:
        raise BadCommand("PARTIAL is for UID FETCH, and once")
    return c.Fetch(messages, items, modifiers, uid)


def _unchanged_since(cursor: Cursor) -> c.StoreModifier:
    cursor.space()
    return c.UnchangedSince(cursor.number(0, MAX_NUMBER64))


STORE_MODIFIERS: Mapping[bytes, Row[c.StoreModifier]] = MappingProxyType(
    {b"UNCHANGEDSINCE": Row(_unchanged_since, "CONDSTORE")}
)
STORE_ITEMS: Mapping[bytes, tuple[c.StoreMode, bool]] = MappingProxyType(
    {
        mode.value.encode() + b"FLAGS" + suffix: (mode, bool(suffix))
        for mode in c.StoreMode
        for suffix in (b"", b".SILENT")
    }
)


def _store(cursor: Cursor, uid: bool) -> c.Command:
    cursor.space()
    messages = cursor.sequence_set()
    cursor.space()
    modifiers: tuple[c.StoreModifier, ...] = ()
    if cursor.at(b"("):

        def one() -> c.StoreModifier:
            return look_up(STORE_MODIFIERS, cursor.word(), cursor.options, "Unknown STORE modifier").read(cursor)

        modifiers = tuple(cursor.items(one, empty=False))
        cursor.space()
    item = STORE_ITEMS.get(cursor.word())
    if item is None:
        raise BadCommand("Unknown STORE item")
    cursor.space()
    return c.Store(messages, item[0], cursor.store_flags(), item[1], modifiers, uid)


def _to_mailbox(make: type[c.Copy] | type[c.Move]) -> ArgumentReader:
    def read(cursor: Cursor, uid: bool) -> c.Command:
        cursor.space()
        messages = cursor.sequence_set()
        return make(messages, _mailbox(cursor), uid)

    return read


# -- the table

ArgumentReader = Callable[[Cursor, bool], c.Command]


@dataclass(frozen=True, slots=True)
class CommandRow:
    """How a command's arguments are read, and in which forms it exists."""

    read: ArgumentReader
    plain: bool = True
    uid: bool = False


def _bare(command: c.Command) -> CommandRow:
    return CommandRow(lambda _cursor, _uid: command)


COMMANDS: Mapping[bytes, CommandRow] = MappingProxyType(
    {
        b"CAPABILITY": _bare(c.Capability()),
        b"NOOP": _bare(c.Noop()),
        b"LOGOUT": _bare(c.Logout()),
        b"ID": CommandRow(_id),
        b"ENABLE": CommandRow(_enable),
        b"STARTTLS": _bare(c.StartTls()),
        b"LOGIN": CommandRow(_login),
        b"AUTHENTICATE": CommandRow(_authenticate),
        b"SELECT": CommandRow(_select(read_only=False)),
        b"EXAMINE": CommandRow(_select(read_only=True)),
        b"CREATE": CommandRow(_create),
        b"DELETE": CommandRow(_one_mailbox(c.Delete)),
        b"RENAME": CommandRow(_rename),
        b"SUBSCRIBE": CommandRow(_one_mailbox(c.Subscribe)),
        b"UNSUBSCRIBE": CommandRow(_one_mailbox(c.Unsubscribe)),
        b"LIST": CommandRow(_list),
        b"LSUB": CommandRow(_lsub),
        b"NAMESPACE": _bare(c.Namespace()),
        b"STATUS": CommandRow(_status),
        b"APPEND": CommandRow(read_append),
        b"REPLACE": CommandRow(read_replace, uid=True),
        b"GETQUOTA": CommandRow(_get_quota),
        b"GETQUOTAROOT": CommandRow(_one_mailbox(c.GetQuotaRoot)),
        b"COMPRESS": CommandRow(_compress),
        b"GETMETADATA": CommandRow(metadata.get_metadata),
        b"SETMETADATA": CommandRow(metadata.set_metadata),
        b"SETACL": CommandRow(acl.set_acl),
        b"DELETEACL": CommandRow(acl.delete_acl),
        b"GETACL": CommandRow(acl.get_acl),
        b"LISTRIGHTS": CommandRow(acl.list_rights),
        b"MYRIGHTS": CommandRow(acl.my_rights),
        b"CHECK": _bare(c.Check()),
        b"CLOSE": _bare(c.Close()),
        b"UNSELECT": _bare(c.Unselect()),
        b"EXPUNGE": CommandRow(_expunge, uid=True),
        b"SEARCH": CommandRow(read_search, uid=True),
        b"SORT": CommandRow(read_sort, uid=True),
        b"THREAD": CommandRow(read_thread, uid=True),
        b"CANCELUPDATE": CommandRow(read_cancel_update),
        b"FETCH": CommandRow(_fetch, uid=True),
        b"STORE": CommandRow(_store, uid=True),
        b"COPY": CommandRow(_to_mailbox(c.Copy), uid=True),
        b"MOVE": CommandRow(_to_mailbox(c.Move), uid=True),
        b"IDLE": _bare(c.Idle()),
        b"NOTIFY": CommandRow(read_notify),
    }
)
