"""Small writes that come from many tasks, done together: while one transaction commits, the next ones gather."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")


class Gathering(Generic[K, T, R]):
    """`flush` gets what has gathered under one key, at most `most`, and answers each; one flush at a time for a key,
    `parallel` of them in all. Its errors go to all whose items it was given.
    """

    def __init__(self, flush: Callable[[K, Sequence[T]], Awaitable[Sequence[R]]], *, most: int, parallel: int) -> None:
        self._flush = flush
        self._most = most
        self._slots = asyncio.Semaphore(parallel)
        self._waiting: dict[K, deque[tuple[T, asyncio.Future[R]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, key: K, item: T) -> R:
        """What `flush` answers for the item. The work goes on when the caller is cancelled."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque([(item, future)])
            task = asyncio.create_task(self._run(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            waiting.append((item, future))
        return await future

    async def _run(self, key: K) -> None:
        waiting = self._waiting[key]
        try:
            while waiting:
                async with self._slots:
                    batch = [waiting.popleft() for _ in range(min(len(waiting), self._most))]
                    await self._answer(key, batch)
        finally:
            del self._waiting[key]
            for _, future in waiting:
                future.cancel()

    async def _answer(self, key: K, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._flush(key, [item for item, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - it is raised where the item came from
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
