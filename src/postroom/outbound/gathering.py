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

    `pace`: so many seconds lie between the beginnings of two flushes of a key, unless `most` has gathered before. What
    comes alone does not wait.
    """

    def __init__(
        self,
        flush: Callable[[K, Sequence[T]], Awaitable[Sequence[R]]],
        *,
        most: int,
        parallel: int,
        pace: float = 0.0,
    ) -> None:
        self._flush = flush
        self._most = most
        self._pace = pace
        self._hurry: dict[K, asyncio.Event] = {}
        self._slots = asyncio.Semaphore(parallel)
        self._waiting: dict[K, deque[tuple[T, asyncio.Future[R]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, key: K, item: T) -> R:
        """What `flush` answers for the item. The work goes on when the caller is cancelled."""
        return await self.put(key, item)

    def put(self, key: K, item: T) -> asyncio.Future[R]:
        """As `add`, for who need not wait."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque([(item, future)])
            task = asyncio.create_task(self._run(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            waiting.append((item, future))
            if len(waiting) >= self._most and key in self._hurry:
                self._hurry[key].set()
        return future

    async def idle(self) -> None:
        """Until nothing is under way that was added before."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, key: K) -> None:
        waiting = self._waiting[key]
        loop = asyncio.get_running_loop()
        try:
            while waiting:
                next_at = loop.time() + self._pace
                async with self._slots:
                    batch = [waiting.popleft() for _ in range(min(len(waiting), self._most))]
                    await self._answer(key, batch)
                if self._pace:
                    # Also with nothing waiting: what comes meanwhile is to gather, too.
                    await self._gather(key, next_at)
        finally:
            del self._waiting[key]
            for _, future in waiting:
                future.cancel()

    async def _gather(self, key: K, until: float) -> None:
        if len(self._waiting[key]) >= self._most:
            return
        hurry = self._hurry[key] = asyncio.Event()
        try:
            async with asyncio.timeout_at(until):
                await hurry.wait()
        except TimeoutError:
            return
        finally:
            del self._hurry[key]

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
