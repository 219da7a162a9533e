"""Access rights: what letters mean, and the arguments of the commands that have them (RFC 4314 §2, §3)."""

from __future__ import annotations

from typing import Final

from postroom.imap import commands as c
from postroom.imap.cursor import Cursor
from postroom.imap.errors import BadCommand

RIGHTS: Final = "lrswipkxtea"
"""All rights of §2.1, in the order in which they are written."""
OBSOLETE: Final = {"c": "kx", "d": "et"}
"""Rights of RFC 2086, each with what it stands for (§2.1.1)."""
_KNOWN: Final = frozenset(RIGHTS).union(OBSOLETE)
_MAX_RIGHTS: Final = 64
_MAX_IDENTIFIER: Final = 1024
_MODES: Final = {"+": c.StoreMode.ADD, "-": c.StoreMode.REMOVE}


def shown(rights: frozenset[str]) -> str:
    """Rights as they are written. Who has part of an obsolete one is said to have it (§2.1.1)."""
    old = [word for word, meant in OBSOLETE.items() if rights.intersection(meant)]
    return "".join([word for word in RIGHTS if word in rights] + old)


def changed(now: frozenset[str], mode: c.StoreMode, rights: frozenset[str]) -> frozenset[str]:
    """What SETACL makes of the rights that there are (§3.1)."""
    match mode:
        case c.StoreMode.ADD:
            return now | rights
        case c.StoreMode.REMOVE:
            return now - rights
        case c.StoreMode.REPLACE:
            return rights


def set_acl(cursor: Cursor, _uid: bool) -> c.Command:
    mailbox, identifier = _mailbox(cursor), _identifier(cursor)
    cursor.space()
    word = cursor.unicode()
    mode = _MODES.get(word[:1], c.StoreMode.REPLACE)
    return c.SetAcl(mailbox, identifier, mode, _rights(word if mode is c.StoreMode.REPLACE else word[1:]))


def delete_acl(cursor: Cursor, _uid: bool) -> c.Command:
    return c.DeleteAcl(_mailbox(cursor), _identifier(cursor))


def get_acl(cursor: Cursor, _uid: bool) -> c.Command:
    return c.GetAcl(_mailbox(cursor))


def list_rights(cursor: Cursor, _uid: bool) -> c.Command:
    return c.ListRights(_mailbox(cursor), _identifier(cursor))


def my_rights(cursor: Cursor, _uid: bool) -> c.Command:
    return c.MyRights(_mailbox(cursor))


def _mailbox(cursor: Cursor) -> str:
    if "ACL" not in cursor.options.capabilities:
        raise BadCommand("Unknown command")
    cursor.space()
    return cursor.mailbox()


def _identifier(cursor: Cursor) -> str:
    cursor.space()
    identifier = cursor.unicode()
    if not 0 < len(identifier) <= _MAX_IDENTIFIER:
        raise BadCommand("Invalid identifier")
    return identifier


def _rights(word: str) -> frozenset[str]:
    """An unknown right is a mistake, never passed over (§3.1)."""
    if len(word) > _MAX_RIGHTS or not _KNOWN.issuperset(word):
        raise BadCommand("Unknown right")
    return frozenset("".join(OBSOLETE.get(right, right) for right in word))
