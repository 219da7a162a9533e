"""Lists, page by page or item by item. Nothing is asked before somebody looks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from .errors import DecodeError


class Page(Protocol):
    """One page: `data`, and `next_cursor` unless it is the last."""

    @property
    def data(self) -> tuple[Any, ...]: ...
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=Page)
T = TypeVar("T")


class _Walk:
    """From cursor to cursor."""

    def __init__(self, cursor: str | None) -> None:
        self.cursor = cursor
        self.more = True
        self._mark, self._left, self._round = cursor, 1, 1

    def on(self, page: Page) -> None:
        """Raises DecodeError where the pages would never end: a circle of any length comes by the mark, which moves on
        after twice as many pages each time.
        """
        following = page.next_cursor
        if following is not None and following in (self.cursor, self._mark):
            raise DecodeError("the list goes in a circle")
        self._left -= 1
        if not self._left:
            self._round *= 2
            self._mark, self._left = following, self._round
        self.cursor, self.more = following, following is not None


class Pages(Generic[P, T]):
    """A list: iterate over it for the items of all pages, over `pages()` for the pages.

    Each iteration begins at `cursor`, by default the start. It ends with the error of the page that failed:
    `CursorExpired` where 24 hours went by between two pages. What was given until then stays good.
    """

    def __init__(self, fetch: Callable[[str | None], P], cursor: str | None) -> None:
        self._fetch = fetch
        self._cursor = cursor

    def first(self) -> P:
        """One page, by one request."""
        return self._fetch(self._cursor)

    def pages(self) -> Iterator[P]:
        """Each page, by one request each."""
        walk = _Walk(self._cursor)
        while walk.more:
            page = self._fetch(walk.cursor)
            walk.on(page)
            yield page

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            yield from page.data


class AsyncPages(Generic[P, T]):
    """As `Pages`, with `async for` and `await`."""

    def __init__(self, fetch: Callable[[str | None], Awaitable[P]], cursor: str | None) -> None:
        self._fetch = fetch
        self._cursor = cursor

    async def first(self) -> P:
        """One page, by one request."""
        return await self._fetch(self._cursor)

    async def pages(self) -> AsyncIterator[P]:
        """Each page, by one request each."""
        walk = _Walk(self._cursor)
        while walk.more:
            page = await self._fetch(walk.cursor)
            walk.on(page)
            yield page

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for item in page.data:
                yield item
