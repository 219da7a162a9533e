"""Work beside the listeners: it outlives its database, and its end by itself is a fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from postroom.db import DatabaseUnavailable
from postroom.node import background as module
from postroom.node.background import Background


@pytest.fixture
async def background(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Background]:
    monkeypatch.setattr(module, "RESTART_SECONDS", 0.0)
    monkeypatch.setattr(module, "CANCEL_SECONDS", 0.01)
    made = Background()
    yield made
    await made.cancel()


async def forever() -> None:
    await asyncio.Event().wait()


async def test_work_is_begun_anew_when_the_database_let_it_down(background: Background) -> None:
    begun = 0
    goes_on = asyncio.Event()

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise DatabaseUnavailable("away")
        goes_on.set()
        await forever()

    background.begin(work, "work")
    async with asyncio.timeout(5):
        await goes_on.wait()
    assert begun == 3
    assert not background.failed.is_set()


@pytest.mark.parametrize("error", [ValueError("a fault"), None])
async def test_work_that_ends_by_itself_is_a_fault(background: Background, error: Exception | None) -> None:
    async def work() -> None:
        if error is not None:
            raise error

    background.begin(forever, "other")
    background.begin(work, "work")
    async with asyncio.timeout(5):
        await background.failed.wait()


async def test_cancelled_work_is_none_and_is_cancelled_until_it_ends(background: Background) -> None:
    lost = 0
    begun = asyncio.Event()

    async def work() -> None:
        nonlocal lost
        begun.set()
        while True:
            try:
                await forever()
            except asyncio.CancelledError:
                lost += 1  # as `wait_for` loses one before Python 3.12
                if lost == 3:
                    raise

    background.begin(work, "work")
    await begun.wait()
    async with asyncio.timeout(5):
        await background.cancel()
    assert lost == 3
    assert not background.failed.is_set()
