"""Searches that are kept up to date, apart from any mailbox (RFC 5267 §4.3)."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any, cast

import pytest

from postroom.servers.imap.contexts import Context, Contexts, OrderedContext, SetContext
from postroom.servers.imap.selected import Selected


class _Folder:
    """A folder of which the client knows all that it has, as it comes."""

    def __init__(self, count: int) -> None:
        self.uids = array("I", range(1, count + 1))
        self.view = cast(
            Any, SimpleNamespace(journal=array("q"), journal_base=0, journal_end=0, uids=self.uids, index=self.index)
        )

    def index(self, uid: int) -> int | None:
        return self.uids.index(uid) if uid in self.uids else None

    def told_uids(self) -> array[int]:
        return self.uids


async def _news(contexts: Contexts) -> list[bytes]:
    return [*contexts.before(expunge=True)] + [line async for line in contexts.after()]


@pytest.mark.covers("RFC 5267 §4.3.3")
async def test_what_comes_while_it_is_asked_is_told_afterwards() -> None:
    folder = _Folder(2)

    async def find(uids: frozenset[int]) -> list[int]:
        if len(folder.uids) < 4:
            folder.uids.append(len(folder.uids) + 1)
        return sorted(uids)

    contexts = Contexts(folder)
    contexts.begin()
    contexts.add(SetContext(b"a", find, [1, 2], uid=True))
    assert await _news(contexts) == []
    folder.uids.append(3)
    assert await _news(contexts) == [b'* ESEARCH (TAG "a") UID ADDTO (0 3)\r\n']
    assert await _news(contexts) == [b'* ESEARCH (TAG "a") UID ADDTO (0 4)\r\n']
    assert await _news(contexts) == []


async def test_what_could_not_be_asked_is_asked_later() -> None:
    folder = _Folder(2)
    broken = True

    async def find(uids: frozenset[int]) -> list[tuple[int, int]]:
        if broken:
            raise OSError
        return [(-uid, uid) for uid in uids]

    contexts = Contexts(folder)
    contexts.begin()
    contexts.add(OrderedContext(b"a", find, [(-2, 2), (-1, 1)], uid=False))
    folder.uids.append(3)
    with pytest.raises(OSError):
        await _news(contexts)
    broken = False
    assert await _news(contexts) == [b'* ESEARCH (TAG "a") ADDTO (1 3)\r\n']


@pytest.mark.covers("RFC 5267 §4.3.1")
async def test_a_session_that_lags_behind_the_journal_asks_of_everything() -> None:
    folder = _Folder(3)
    asked: list[frozenset[int]] = []

    async def find(uids: frozenset[int]) -> list[int]:
        asked.append(uids)
        return [2]

    contexts = Contexts(folder)
    contexts.begin()
    contexts.add(SetContext(b"a", find, [1], uid=True))
    folder.view.journal_base = folder.view.journal_end = 100
    assert await _news(contexts) == [
        b'* ESEARCH (TAG "a") UID REMOVEFROM (0 1)\r\n',
        b'* ESEARCH (TAG "a") UID ADDTO (0 2)\r\n',
    ]
    assert asked == [frozenset({1, 2, 3})]


def test_the_first_may_be_of_any_size() -> None:
    contexts = Contexts(cast(Selected, _Folder(0)))
    assert contexts.room_for(10**9)

    async def find(uids: frozenset[int]) -> list[int]:
        return []

    first: Context = SetContext(b"a", find, range(99_999), uid=True)
    contexts.add(first)
    assert contexts.room_for(1)
    assert not contexts.room_for(2)
