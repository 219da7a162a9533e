"""Work that goes on beside the listeners for as long as the process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Final

from postroom.base import log as base_log
from postroom.db import is_transient

log = base_log.get("node")

RESTART_SECONDS: Final = 1.0
"""After which background work is begun anew that the database let down."""
CANCEL_SECONDS: Final = 0.5
"""After which a task that goes on is cancelled once more."""

Work = Callable[[], Coroutine[None, None, None]]


class Background:
    """Work by name. None of it is to end before `cancel`."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self.failed = asyncio.Event()
        """Set when work ended by itself, which is a fault: the process is to be replaced."""

    def begin(self, work: Work, name: str) -> None:
        """Begin work, and anew whenever a loss of the database ended it."""
        task = asyncio.create_task(_lasting(work, name), name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    async def cancel(self) -> None:
        """End all of it."""
        await _cancel(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            log.error("background_work_ended", work=task.get_name(), error=type(task.exception()).__name__)
            self.failed.set()


async def _lasting(work: Work, name: str) -> None:
    """Work that survives its database: begun anew when a loss of the database ended it."""
    while True:
        try:
            return await work()
        except Exception as error:
            if not is_transient(error):
                raise
            log.warning("background_work_interrupted", work=name, error=type(error).__name__)
        await asyncio.sleep(RESTART_SECONDS)


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks until they end: before Python 3.12 `wait_for` loses a cancellation that comes with its result."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_SECONDS)
