"""The first of several addresses to connect (Happy Eyeballs, RFC 8305): one that nobody answers at costs a quarter of a
second, not the patience of a whole attempt.

Which addresses there are and in which order is the caller's business, who has checked them: nothing is looked up here,
and nothing else is connected to. So RFC 8305 §3, which would begin before both families are known, is left out: whoever
is to refuse a name for one bad address must have seen all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import zip_longest
from typing import Any, Final, Protocol, TypeVar

from postroom.net.dns_types import IpAddress

ATTEMPT_DELAY_SECONDS: Final = 0.25
"""Connection Attempt Delay, as recommended (RFC 8305 §5)."""


class Closable(Protocol):
    def close(self) -> object: ...


_Connected = TypeVar("_Connected", bound=Closable)
Connect = Callable[[IpAddress], Coroutine[Any, Any, _Connected]]
"""Raises OSError where there is no connection; leaves nothing open then, nor when it is cancelled."""


def interleaved(v6: Sequence[IpAddress], v4: Sequence[IpAddress]) -> list[IpAddress]:
    """Both families in turn, IPv6 first, each in its own order (RFC 8305 §4, First Address Family Count 1)."""
    return [address for pair in zip_longest(v6, v4) for address in pair if address is not None]


async def first_connected(
    addresses: Iterable[IpAddress], connect: Connect[_Connected], *, delay: float = ATTEMPT_DELAY_SECONDS
) -> tuple[IpAddress, _Connected]:
    """The first connection that comes about, and where it leads. Attempts begin in the order of `addresses`, each
    `delay` seconds after the one before, or as soon as one fails. Those that lose are closed; nobody waits for that.

    Raises OSError if none comes about. It waits for as long as attempts do: the caller has the deadline.
    """
    left = deque(addresses)
    running: dict[asyncio.Task[_Connected], IpAddress] = {}
    try:
        while left or running:
            if left:
                address = left.popleft()
                running[asyncio.create_task(connect(address), name="connect")] = address
            done, _ = await asyncio.wait(running, timeout=delay if left else None, return_when=asyncio.FIRST_COMPLETED)
            for task in [one for one in running if one in done]:
                error = task.exception()
                if error is None:
                    return running.pop(task), task.result()
                if not isinstance(error, OSError):
                    raise error
                del running[task]
    finally:
        for task in running:
            task.add_done_callback(_close)
            task.cancel()
    raise ConnectionError("no address answers")


def _close(task: asyncio.Task[_Connected]) -> None:
    """It may have come about before it was cancelled."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()
