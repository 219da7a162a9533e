"""NOTIFY: its arguments (RFC 5465 §3.1, §5, §6, §8)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from postroom.imap import commands as c
from postroom.imap.cursor import Cursor
from postroom.imap.errors import BadCommand, ProtocolNo
from postroom.imap.fetch import FetchItem, read_items

MAX_GROUPS: Final = 64
MAX_NAMES: Final = 1_000
"""Names of mailboxes in one command (our limit)."""

_EVENTS: Final[Mapping[bytes, c.NotifyEvent]] = MappingProxyType(
    {event.value.upper().encode(): event for event in c.NotifyEvent}
)
_FILTERS: Final[Mapping[bytes, c.NotifyFilter]] = MappingProxyType(
    {filter_.value.upper().encode(): filter_ for filter_ in c.NotifyFilter}
)
_OF_SELECTED: Final = frozenset({c.NotifyFilter.SELECTED, c.NotifyFilter.SELECTED_DELAYED})
_NAMED: Final = frozenset({c.NotifyFilter.SUBTREE, c.NotifyFilter.MAILBOXES})
_NEW_AND_EXPUNGE: Final = frozenset({c.NotifyEvent.MESSAGE_NEW, c.NotifyEvent.MESSAGE_EXPUNGE})
_OF_MESSAGES: Final = _NEW_AND_EXPUNGE | {c.NotifyEvent.FLAG_CHANGE}
#: Events of messages that we do not have.
_OTHER_OF_MESSAGES: Final = frozenset({b"ANNOTATIONCHANGE"})

BAD_EVENT: Final = f"BADEVENT ({' '.join(event.value for event in c.NotifyEvent)})"
"""Names all that there are (§3.1)."""


def read_notify(cursor: Cursor, _uid: bool) -> c.Command:
    """Raises `ProtocolNo` with the code BADEVENT for events that we do not have, once all else is right."""
    if "NOTIFY" not in cursor.options.capabilities:
        raise BadCommand("Unknown command")
    cursor.space()
    word = cursor.word()
    if word == b"NONE":
        return c.Notify()
    if word != b"SET":
        raise BadCommand("Expected SET or NONE")
    cursor.space()
    status = cursor.peek_word() == b"STATUS"
    if status:
        cursor.word()
        cursor.space()
    reader = _Groups(cursor)
    groups = [reader.group()]
    while cursor.more():
        if len(groups) >= MAX_GROUPS:
            raise ProtocolNo("NOTIFICATIONOVERFLOW", "Too many event groups")
        groups.append(reader.group())
    if sum(group.filter in _OF_SELECTED for group in groups) > 1:
        raise BadCommand("The selected mailbox is named twice")  # §6.1
    cursor.finish()
    if reader.has_unknown:
        raise ProtocolNo(BAD_EVENT, "There is no such event here")
    if sum(len(group.names) for group in groups) > MAX_NAMES:
        raise ProtocolNo("NOTIFICATIONOVERFLOW", "Too many mailboxes")
    return c.Notify(tuple(groups), status)


class _Groups:
    """Reads event groups; `has_unknown` says afterwards whether there were events that we do not have."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.has_unknown = False

    def group(self) -> c.EventGroup:
        cursor = self._cursor
        cursor.open()
        which = _FILTERS.get(cursor.word())
        if which is None:
            raise BadCommand("Unknown mailbox filter")
        names: tuple[str, ...] = ()
        cursor.space()
        if which in _NAMED:
            names = self._names()
            cursor.space()
        events: frozenset[c.NotifyEvent] = frozenset()
        items: tuple[FetchItem, ...] = ()
        if cursor.at(b"("):
            events, items = self._events(selected=which in _OF_SELECTED)
        elif cursor.word() != b"NONE":
            raise BadCommand("Expected events")
        if not cursor.closes():
            raise BadCommand("Syntax error")
        return c.EventGroup(which, events, names, items)

    def _names(self) -> tuple[str, ...]:
        cursor = self._cursor
        if not cursor.at(b"("):
            return (cursor.mailbox(),)
        # One more than there may be, so that too many are told as such.
        found = cursor.items(cursor.mailbox, empty=False, limit=MAX_NAMES + 1)
        return tuple(dict.fromkeys(found))

    def _events(self, *, selected: bool) -> tuple[frozenset[c.NotifyEvent], tuple[FetchItem, ...]]:
        cursor = self._cursor
        items: list[FetchItem] = []
        found: set[c.NotifyEvent] = set()
        unknown: set[bytes] = set()

        cursor.open()
        while True:
            word = cursor.atom().upper()
            event = _EVENTS.get(word)
            if event is None:
                unknown.add(word)
            else:
                found.add(event)
            cursor.skip_spaces()
            if event is c.NotifyEvent.MESSAGE_NEW and cursor.at(b"("):
                items.extend(read_items(cursor))
                cursor.skip_spaces()
            if cursor.take(b")"):
                break
            if cursor.text[cursor.pos - 1] != 0x20:
                raise BadCommand("Syntax error")
        self._check(found, unknown, selected=selected)
        self.has_unknown = self.has_unknown or bool(unknown)
        return frozenset(found), tuple(dict.fromkeys(items))

    @staticmethod
    def _check(found: set[c.NotifyEvent], unknown: set[bytes], *, selected: bool) -> None:
        """What may stand together (§5, §6.1)."""
        of_messages = bool(found & _OF_MESSAGES or unknown & _OTHER_OF_MESSAGES)
        if of_messages and not found >= _NEW_AND_EXPUNGE:
            raise BadCommand("MessageNew and MessageExpunge go together, and with other events of messages")
        if selected and found - _OF_MESSAGES:
            raise BadCommand("Only events of messages are of the selected mailbox")
