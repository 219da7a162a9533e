"""Where parsing runs: small messages in the loop, large ones in a spawned process with limits (B2, B18).

A thread would not do: it holds the interpreter for ten milliseconds at a time. A process that dies or dawdles costs the
message its description, never the message: it is then described by its headers alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import datetime
from typing import Final

from postroom.base import log as base_log
from postroom.inbound.describe import describe
from postroom.mailbox.models import Content

log = base_log.get("parsing")

INLINE_BYTES: Final = 128 * 1024
CPU_SECONDS: Final = 30
"""What one message may cost a parser process."""
TIMEOUT_SECONDS: Final = 60.0
MEMORY_BYTES: Final = 2 * 1024**3
TASKS_PER_PROCESS: Final = 200


class Parser:
    """Describes messages. One per process of the server; `close` ends its child processes."""

    def __init__(
        self, *, processes: int = 1, inline_bytes: int = INLINE_BYTES, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        self._processes = processes
        self._inline_bytes = inline_bytes
        self._timeout = timeout
        self._pool: ProcessPoolExecutor | None = None
        # So that the time limit is of parsing, not of waiting, and a process that is ended has no other work.
        self._free = asyncio.Semaphore(processes)

    async def describe(self, prefix: bytes, original: bytes, received_at: datetime) -> Content:
        """The description of `prefix + original`: headers only and `parse_degraded` if parsing failed or took long."""
        if len(original) <= self._inline_bytes:
            try:
                return describe(prefix, original, received_at)
            except Exception as error:  # noqa: BLE001 - whatever fails in parsing costs the description only (B2)
                log.error("parse_failed", error=type(error).__name__, size=len(original))
                return describe(prefix, original, received_at, headers_only=True)
        async with self._free:
            content = await self._in_pool(prefix, original, received_at)
        if content is not None:
            return content
        return await asyncio.to_thread(describe, prefix, original, received_at, headers_only=True)

    async def _in_pool(self, prefix: bytes, original: bytes, received_at: datetime) -> Content | None:
        # Once more if the process died: it may have been the fault of the message before.
        for _ in range(2):
            pool = self._pool or self._start()
            try:
                future = pool.submit(_in_child, prefix, original, received_at)
                return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout)
            except BrokenProcessPool:
                self._discard(pool)
                log.warning("parse_process_died", size=len(original))
            except TimeoutError:
                self._discard(pool)
                log.warning("parse_timed_out", size=len(original))
                break
            except Exception as error:  # noqa: BLE001 - whatever fails in parsing costs the description only (B2)
                log.error("parse_failed", error=type(error).__name__, size=len(original))
                break
        return None

    def _start(self) -> ProcessPoolExecutor:
        self._pool = ProcessPoolExecutor(
            self._processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_limit_child,
            max_tasks_per_child=TASKS_PER_PROCESS,
        )
        return self._pool

    def _discard(self, pool: ProcessPoolExecutor) -> None:
        """Forget a pool whose process died or hangs; whoever still waits for it gets BrokenProcessPool."""
        if self._pool is pool:
            self._pool = None
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """End the child processes, whatever they do."""
        if self._pool is not None:
            self._discard(self._pool)


def _limit_child() -> None:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _in_child(prefix: bytes, original: bytes, received_at: datetime) -> Content:
    """Runs in the child: the CPU limit moves on with each message; past it the kernel ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CPU_SECONDS, hard))
    return describe(prefix, original, received_at)
