"""Where parsing runs: what is quick in the loop, everything else in spawned processes with limits (B2, B18).

A thread would not do: it holds the interpreter for ten milliseconds at a time. A process that dies or dawdles costs the
message its description, never the message: it is then described by its headers alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import datetime
from typing import Final, ParamSpec, TypeVar

from postroom.base import log as base_log
from postroom.inbound.describe import describe, describe_quickly, looks_quick
from postroom.mail.suffix import public_suffixes
from postroom.mailbox.models import Content

log = base_log.get("parsing")

P = ParamSpec("P")
T = TypeVar("T")

PROCESSES: Final = 2
LARGE_BYTES: Final = 1024 * 1024
"""Messages from this size on leave one process to the others."""
CPU_SECONDS: Final = 30
"""What one message may cost a parser process."""
TIMEOUT_SECONDS: Final = 60.0
WAIT_SECONDS: Final = 60.0
"""How long a message waits for a process. With two attempts at it this stays far under `receive_timeout`."""
IDLE_SECONDS: Final = 180.0
"""After which a process without work ends, so that its memory returns."""
MEMORY_BYTES: Final = 2 * 1024**3
TASKS_PER_PROCESS: Final = 200


class ParsingFailed(Exception):
    """A process could not do it: it died twice, took too long, or the function raised."""


class ParserBusy(Exception):
    """No process became free in time; later it may work."""


class Parser:
    """Describes messages. One per process of the server; `close` ends its child processes, which start when needed.

    `timeout` is for one piece of work in a process, `wait` for getting a process, both in seconds.
    """

    def __init__(
        self,
        *,
        processes: int = PROCESSES,
        timeout: float = TIMEOUT_SECONDS,
        wait: float = WAIT_SECONDS,
        idle: float = IDLE_SECONDS,
    ) -> None:
        public_suffixes()  # read now, not while others wait
        self._timeout = timeout
        self._wait = wait
        self._turn = asyncio.Lock()
        self._idle = idle
        self._children = [_Child() for _ in range(processes)]
        # The last one used comes first, so that the others can rest and end.
        self._resting = list(self._children)
        # So that the time limit is of parsing, not of waiting, and a process that is ended has no other work.
        self._free = asyncio.Semaphore(processes)
        self._free_for_large = asyncio.Semaphore(max(1, processes - 1))
        self._timer: asyncio.TimerHandle | None = None

    @property
    def process_ids(self) -> list[int]:
        """The child processes that there are now."""
        return [pid for child in self._children for pid in child.process_ids]

    async def describe(
        self, prefix: bytes, original: bytes, received_at: datetime, *, with_codes: bool = True
    ) -> Content:
        """The description of `prefix + original`: headers only and `parse_degraded` if parsing failed or took long."""
        if looks_quick(original):
            try:
                # Many come at once, when a batch has been answered; the transaction under way must not wait for all of
                # them at each of its statements. So one in each turn of the loop.
                async with self._turn:
                    await asyncio.sleep(0)
                    content = describe_quickly(prefix, original, received_at, with_codes=with_codes)
            except Exception as error:  # noqa: BLE001 - whatever fails in parsing costs the description only (B2)
                log.error("parse_failed", error=type(error).__name__, size=len(original))
                return describe(prefix, original, received_at, headers_only=True)
            if content is not None:
                return content
        try:
            return await self.run(len(original), describe, prefix, original, received_at, with_codes=with_codes)
        except (ParsingFailed, ParserBusy):
            return await asyncio.to_thread(describe, prefix, original, received_at, headers_only=True)

    async def run(self, size: int, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a pure function of a module in a child process, for input of `size` octets.

        Function, arguments and result are pickled. Raises ParserBusy and ParsingFailed, which say enough: the cause is
        in the log.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._wait):
                    if size >= LARGE_BYTES:
                        await stack.enter_async_context(self._free_for_large)
                    await stack.enter_async_context(self._free)
            except TimeoutError:
                log.warning("parse_not_begun", size=size)
                raise ParserBusy from None
            child = await stack.enter_async_context(self._child())
            # Once more if the process died: it may have been the fault of the message before.
            for _ in range(2):
                try:
                    future = child.submit(function, arguments, named)
                    return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout)
                except BrokenProcessPool:
                    log.warning("parse_process_died", size=size)
                except TimeoutError:
                    log.warning("parse_timed_out", size=size)
                    child.kill()
                    break
                except asyncio.CancelledError:
                    child.kill()  # nobody waits for what it does
                    raise
                except Exception as error:  # noqa: BLE001 - whatever fails in parsing costs the description only (B2)
                    log.error("parse_failed", error=type(error).__name__, size=size)
                    break
                child.kill()
            raise ParsingFailed

    @contextlib.asynccontextmanager
    async def _child(self) -> AsyncIterator[_Child]:
        """A child that nobody else uses meanwhile."""
        child = self._resting.pop()
        try:
            yield child
        finally:
            child.rest_if_tired()
            child.used = asyncio.get_running_loop().time()
            self._resting.append(child)
            self._look_later()

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._end_idle)

    def _end_idle(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for child in self._resting:
            if now - child.used >= self._idle:
                child.rest()
        if self.process_ids:
            self._look_later()

    def close(self) -> None:
        """End the child processes, whatever they do."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for child in self._children:
            child.kill()


class _Child:
    """A process for one piece of work at a time, started when there is some."""

    def __init__(self) -> None:
        self.used = 0.0
        self._pool: ProcessPoolExecutor | None = None
        self._tasks = 0

    @property
    def process_ids(self) -> list[int]:
        return list(self._processes())

    def _processes(self) -> dict[int, multiprocessing.Process]:
        return getattr(self._pool, "_processes", None) or {}

    def submit(self, function: Callable[..., T], arguments: tuple[object, ...], named: dict[str, object]) -> Future[T]:
        """Begin. Raises BrokenProcessPool, as the future does, when the process has died."""
        if self._pool is None:
            self._tasks = 0
            self._pool = ProcessPoolExecutor(
                1, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare_child
            )
        self._tasks += 1
        return self._pool.submit(_in_child, function, arguments, named)

    def kill(self) -> None:
        """End the process at once; its work ends with BrokenProcessPool."""
        for process in list(self._processes().values()):
            process.kill()
        self.rest()

    def rest(self) -> None:
        """Let the process end; another one is started when there is work again."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def rest_if_tired(self) -> None:
        if self._tasks >= TASKS_PER_PROCESS:
            self.rest()


def _prepare_child() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's; it is the parent who ends us
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_parent() -> None:
    """A server that was killed cannot end its children."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _in_child(function: Callable[..., T], arguments: tuple[object, ...], named: dict[str, object]) -> T:
    """Runs in the child: the CPU limit moves on with each piece of work; past it the kernel ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CPU_SECONDS, hard))
    return function(*arguments, **named)
