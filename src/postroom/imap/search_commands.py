"""The arguments of the commands that search: SEARCH, SORT, THREAD, CANCELUPDATE."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from postroom.imap import commands as c
from postroom.imap.cursor import Cursor
from postroom.imap.errors import BadCommand, Code, NotSaved, ProtocolNo
from postroom.imap.partial import Partial
from postroom.imap.search import (
    ReturnOption,
    SearchKey,
    SearchReader,
    is_fuzzy,
    read_charset,
    read_charset_name,
    read_returns,
)
from postroom.imap.sort import SortKey, read_criteria
from postroom.imap.threads import Algorithm

T = TypeVar("T")


def read_search(cursor: Cursor, uid: bool) -> c.Command:
    """SEARCH (RFC 9051 §6.4.4)."""
    cursor.space()
    returns = read_returns(cursor)
    charset, key = _program(cursor, returns or (), read_charset)
    _check_relevancy(key, wanted=ReturnOption.RELEVANCY in (returns or ()))
    return c.Search(key, charset, returns, uid)


def _program(
    cursor: Cursor, returns: tuple[ReturnOption | Partial, ...], charset_of: Callable[[Cursor], T]
) -> tuple[T, SearchKey]:
    """The charset and the keys. What is refused is told apart where it was to be saved."""
    try:
        return charset_of(cursor), SearchReader(cursor).program()
    except ProtocolNo as error:
        if ReturnOption.SAVE in returns:
            raise NotSaved(error.code or Code.CANNOT, error.text) from None
        raise


def _check_relevancy(key: SearchKey, *, wanted: bool) -> None:
    if wanted and not is_fuzzy(key):
        raise BadCommand("RELEVANCY is of FUZZY searches")


def read_sort(cursor: Cursor, uid: bool) -> c.Command:
    """SORT (RFC 5256 §3, RFC 5267 §3)."""
    _require(cursor, "SORT")
    cursor.space()
    returns = read_returns(cursor, "ESORT")
    criteria = read_criteria(cursor)
    cursor.space()
    charset, key = _program(cursor, returns or (), read_charset_name)
    by_score = any(criterion.key is SortKey.RELEVANCY for criterion in criteria)
    _check_relevancy(key, wanted=by_score or ReturnOption.RELEVANCY in (returns or ()))
    return c.Sort(criteria, key, charset, returns, uid)


def read_thread(cursor: Cursor, uid: bool) -> c.Command:
    """THREAD (RFC 5256 §3)."""
    cursor.space()
    name = cursor.atom().decode("ascii").upper()
    _require(cursor, "THREAD=" + name)
    cursor.space()
    charset, key = _program(cursor, (), read_charset_name)
    return c.Thread(Algorithm(name), key, charset, uid)


def read_cancel_update(cursor: Cursor, _uid: bool) -> c.Command:
    """CANCELUPDATE (RFC 5267 §4.3.5)."""
    _require(cursor, "CONTEXT=SEARCH")
    tags = []
    while cursor.more():
        tags.append(cursor.string())
    if not tags:
        raise BadCommand("Missing argument")
    return c.CancelUpdate(tuple(tags))


def _require(cursor: Cursor, capability: str) -> None:
    if capability not in cursor.options.capabilities:
        raise BadCommand("Unknown command")
