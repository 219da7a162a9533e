"""What APPEND and REPLACE take (RFC 9051 §6.3.12, RFC 3502, RFC 4469, RFC 6855 §4, RFC 8508)."""

from __future__ import annotations

from postroom.imap import commands as c
from postroom.imap.cursor import Cursor
from postroom.imap.errors import BadCommand, Code, ProtocolNo

#: Our limits: messages of one APPEND, parts of one message.
MAX_MESSAGES = 512
MAX_CATENATE = 256


def read_append(cursor: Cursor, _uid: bool) -> c.Command:
    """The arguments of APPEND; several messages where MULTIAPPEND is on offer."""
    mailbox = _mailbox(cursor)
    messages = []
    cursor.space()
    while True:
        messages.append(_append_message(cursor))
        if not cursor.more():
            break
        if "MULTIAPPEND" not in cursor.options.capabilities:
            raise BadCommand("Unexpected argument")
        if len(messages) >= MAX_MESSAGES:
            raise ProtocolNo(Code.LIMIT, "Too many messages")
    return c.Append(mailbox, tuple(messages))


def _append_message(cursor: Cursor) -> c.AppendMessage:
    flags: tuple[str, ...] = ()
    date = None
    if cursor.at(b"("):
        flags = cursor.flag_list()
        cursor.space()
    if cursor.at(b'"'):
        date = cursor.date_time()
        cursor.space()
    word = cursor.peek_word()
    if word == b"CATENATE" and "CATENATE" in cursor.options.capabilities:
        cursor.word()
        cursor.space()
        parts = cursor.items(lambda: _catenated(cursor), empty=False, limit=MAX_CATENATE)
        return c.AppendMessage(flags, date, b"", parts=tuple(parts))
    if word == b"UTF8" and cursor.options.utf8:
        data, binary = _utf8_literal(cursor)
        return c.AppendMessage(flags, date, data, binary, utf8=True)
    data, binary = cursor.literal()
    return c.AppendMessage(flags, date, data, binary)


def _utf8_literal(cursor: Cursor) -> tuple[bytes, bool]:
    cursor.word()
    cursor.space()
    cursor.open()
    found = cursor.literal()
    if not cursor.closes():
        raise BadCommand("Syntax error")
    return found


def _catenated(cursor: Cursor) -> bytes | c.UrlPart:
    word = cursor.peek_word()
    if word == b"UTF8" and cursor.options.utf8:
        return _utf8_literal(cursor)[0]
    cursor.word()
    cursor.space()
    if word == b"TEXT":
        return cursor.literal()[0]
    if word == b"URL":
        return c.UrlPart(cursor.astring())
    raise BadCommand("Unknown CATENATE part")


def read_replace(cursor: Cursor, uid: bool) -> c.Command:
    """The arguments of REPLACE: a message, a mailbox, and what takes its place there."""
    if "REPLACE" not in cursor.options.capabilities:
        raise BadCommand("Unknown command")
    cursor.space()
    target = cursor.sequence_set()
    if len(target.ranges) != 1 or target.ranges[0][0] != target.ranges[0][1]:
        raise BadCommand("REPLACE takes one message")
    mailbox = _mailbox(cursor)
    cursor.space()
    return c.Replace(target, mailbox, _append_message(cursor), uid)


def _mailbox(cursor: Cursor) -> str:
    cursor.space()
    return cursor.mailbox()
