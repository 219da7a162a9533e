"""Searches that are kept up to date while their folder is selected (RFC 5267 §4.3).

What changes is known as IDLE knows it: from the view's journal. The keys are then asked again, of the messages that
changed or came, and the client is told what the answer adds to its results and takes from them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from postroom.imap import render
from postroom.imap.sequence import compress
from postroom.servers.imap.views import FolderView

MAX_CONTEXTS: Final = 16
MAX_HELD: Final = 100_000
"""Results of all contexts of a session together; beyond it there is only one context, whatever its size."""
_LINE: Final = 100
"""Pairs of one response."""

SortedUid = tuple[Any, ...]
"""What a message is sorted by, and at last its UID."""


class Told(Protocol):
    """What the client knows of the folder: `Selected`, as far as it matters here."""

    view: FolderView

    def index(self, uid: int) -> int | None: ...

    def told_uids(self) -> Sequence[int]: ...


class Context(ABC):
    """One search that was asked to be kept up to date. `find` answers with those of some UIDs that it finds.

    Without an order results are a set, and all positions are 0 (RFC 5267 §4.3.3).
    """

    __slots__ = ("_find", "tag", "uid")

    def __init__(self, tag: bytes, find: Callable[[frozenset[int]], Awaitable[Sequence[Any]]], *, uid: bool) -> None:
        self.tag = tag
        self.uid = uid
        self._find = find

    @abstractmethod
    def __len__(self) -> int:
        """How many results it holds."""

    @abstractmethod
    def remove(self, told: Told, uids: Iterable[int]) -> Iterator[bytes]:
        """Take results away; what to say of it."""

    @abstractmethod
    def ask(self, told: Told, uids: frozenset[int]) -> AsyncIterator[bytes]:
        """Ask again about `uids`; what to say of it."""

    def _line(self, told: Told, word: bytes, pairs: Iterable[tuple[int, Sequence[int]]]) -> Iterator[bytes]:
        found = iter(pairs)
        while piece := list(islice(found, _LINE)):
            shown = []
            for position, uids in piece:
                numbers = uids if self.uid else [place + 1 for one in uids if (place := told.index(one)) is not None]
                shown.append(b"%d %b" % (position, compress(numbers)))
            yield render.esearch_line(self.tag, [(word.decode(), b"(%b)" % b" ".join(shown))], uid=self.uid)


class SetContext(Context):
    """Of a SEARCH."""

    __slots__ = ("_results",)

    def __init__(
        self,
        tag: bytes,
        find: Callable[[frozenset[int]], Awaitable[Sequence[int]]],
        results: Iterable[int],
        *,
        uid: bool,
    ) -> None:
        super().__init__(tag, find, uid=uid)
        self._results = set(results)

    def __len__(self) -> int:
        return len(self._results)

    def remove(self, told: Told, uids: Iterable[int]) -> Iterator[bytes]:
        gone = sorted(self._results.intersection(uids))
        if gone:
            yield from self._line(told, b"REMOVEFROM", [(0, gone)])
            self._results.difference_update(gone)

    async def ask(self, told: Told, uids: frozenset[int]) -> AsyncIterator[bytes]:
        found = set(await self._find(uids))
        for line in self.remove(told, uids - found):
            yield line
        new = sorted(found - self._results)
        if new:
            for line in self._line(told, b"ADDTO", [(0, new)]):
                yield line
            self._results.update(new)


class OrderedContext(Context):
    """Of a SORT: results keep their places."""

    __slots__ = ("_keys", "_results")

    def __init__(
        self,
        tag: bytes,
        find: Callable[[frozenset[int]], Awaitable[Sequence[SortedUid]]],
        results: Iterable[SortedUid],
        *,
        uid: bool,
    ) -> None:
        super().__init__(tag, find, uid=uid)
        self._results = list(results)
        self._keys: dict[int, SortedUid] = {key[-1]: key for key in self._results}

    def __len__(self) -> int:
        return len(self._results)

    def remove(self, told: Told, uids: Iterable[int]) -> Iterator[bytes]:
        return self._line(told, b"REMOVEFROM", self._taken(sorted(self._keys.keys() & set(uids))))

    def _taken(self, uids: Iterable[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Each pair is to be read after the ones before it were done (RFC 5267 §4.3.2)."""
        for uid in uids:
            place = bisect_left(self._results, self._keys.pop(uid))
            del self._results[place]
            yield place + 1, (uid,)

    async def ask(self, told: Told, uids: frozenset[int]) -> AsyncIterator[bytes]:
        found = await self._find(uids)
        for line in self.remove(told, uids.difference(key[-1] for key in found)):
            yield line
            await asyncio.sleep(0)
        for line in self._line(told, b"ADDTO", self._put([key for key in found if key[-1] not in self._keys])):
            yield line
            await asyncio.sleep(0)

    def _put(self, keys: Iterable[SortedUid]) -> Iterator[tuple[int, Sequence[int]]]:
        for key in keys:
            self._keys[key[-1]] = key
            insort(self._results, key)
            yield bisect_left(self._results, key) + 1, (key[-1],)


class Contexts:
    """All of a session's, for the folder that is selected."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._contexts: dict[bytes, Context] = {}
        self._position = 0
        self._top = 0
        self._changed: set[int] = set()
        self._gone: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._contexts)

    def has(self, tag: bytes) -> bool:
        """Whether a context is called so."""
        return tag in self._contexts

    def begin(self) -> None:
        """Before the search of the first context: what happens from now on is news to it."""
        if not self._contexts:
            uids = self._told.told_uids()
            self._position, self._top = self._told.view.journal_end, uids[-1] if uids else 0
            self._changed.clear()
            self._gone.clear()

    def room_for(self, results: int) -> bool:
        """Whether one more may be kept. The first always may (RFC 5267 §4.3.1)."""
        held = sum(map(len, self._contexts.values()))
        return not self._contexts or (len(self._contexts) < MAX_CONTEXTS and held + results <= MAX_HELD)

    def add(self, context: Context) -> None:
        self._contexts[context.tag] = context

    def cancel(self, tags: Iterable[bytes]) -> None:
        """Tell no more of these; those that are not there are none."""
        for tag in tags:
            self._contexts.pop(tag, None)

    def before(self, *, expunge: bool) -> Iterator[bytes]:
        """To be said before `Selected.updates` tells what happened: numbers of what went are valid until then."""
        self._read_journal()
        if expunge and self._gone:
            gone = [uid for uid in self._gone if self._told.view.index(uid) is None]
            self._gone.clear()
            for context in self._contexts.values():
                yield from context.remove(self._told, gone)

    async def after(self) -> AsyncIterator[bytes]:
        """To be said afterwards: what changed, and what the client was just told of. Raises what the search raises; it
        stays to be told then.
        """
        uids = self._told.told_uids()
        # The list may be the view's own, to which others add while we wait.
        top = uids[-1] if uids else self._top
        new = uids[bisect_right(uids, self._top) :]
        asked = frozenset(uid for uid in (*self._changed, *new) if self._told.index(uid) is not None)
        for context in tuple(self._contexts.values()) if asked else ():
            async for line in context.ask(self._told, asked):
                yield line
        self._changed.clear()
        self._top = top

    def _read_journal(self) -> None:
        view = self._told.view
        start = self._position - view.journal_base
        if start < 0:
            now = set(view.uids)
            self._gone.update(uid for uid in self._told.told_uids() if uid not in now)
            self._changed.update(now)
        else:
            for entry in view.journal[start:]:
                if entry > 0:
                    self._changed.add(entry)
                else:
                    self._gone.add(-entry)
        self._position = view.journal_end
