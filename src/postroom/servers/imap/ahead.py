"""Reading the next piece while this one is used (B16)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

T = TypeVar("T")


class ReadAhead(AsyncIterator[T]):
    """An iterator whose next item is being made while this one is used. Use it as a context manager."""

    def __init__(self, source: AsyncIterator[T]) -> None:
        self._source = source
        self._next: asyncio.Task[T] | None = None

    async def __aenter__(self) -> ReadAhead[T]:
        self._advance()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)

    def __aiter__(self) -> ReadAhead[T]:
        return self

    async def __anext__(self) -> T:
        if self._next is None:
            raise StopAsyncIteration
        try:
            item = await self._next
        except BaseException:
            self._next = None
            raise
        self._advance()
        return item

    def _advance(self) -> None:
        self._next = asyncio.get_running_loop().create_task(self._step())

    async def _step(self) -> T:
        return await anext(self._source)
