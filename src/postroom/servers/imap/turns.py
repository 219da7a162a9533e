"""Long work of the loop, with turns for others between."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from postroom.imap.turns import Turns

T = TypeVar("T")


async def in_turns(work: Turns[T]) -> T:
    """What `work` returns."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            value: T = done.value
            return value
        await asyncio.sleep(0)
