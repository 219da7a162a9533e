"""Small writes that come from many tasks, done together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from postroom.outbound.gathering import Gathering


class Writer:
    """Remembers what it was given, and takes so long for each flush."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.flushed: list[tuple[str, tuple[int, ...]]] = []
        self.times: list[float] = []
        self.running = self.most = 0

    async def __call__(self, key: str, items: Sequence[int]) -> list[int]:
        self.times.append(asyncio.get_running_loop().time())
        self.flushed.append((key, tuple(items)))
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        if 13 in items:
            raise ValueError("13")
        return [item * 2 for item in items]


async def test_what_comes_while_one_is_written_is_written_together() -> None:
    writer = Writer(0.01)
    gathering = Gathering(writer, most=3, parallel=5)
    answers = await asyncio.gather(*(gathering.add("a", n) for n in range(8)))
    assert answers == [n * 2 for n in range(8)]
    assert writer.flushed == [("a", (0, 1, 2)), ("a", (3, 4, 5)), ("a", (6, 7))]
    assert writer.most == 1


async def test_keys_are_written_side_by_side_so_many_at_a_time() -> None:
    writer = Writer(0.01)
    gathering = Gathering(writer, most=9, parallel=2)
    await asyncio.gather(*(gathering.add(key, 1) for key in "abcd"))
    assert [key for key, _ in writer.flushed] == ["a", "b", "c", "d"]
    assert writer.most == 2


async def test_an_error_is_of_those_who_were_written_together() -> None:
    gathering = Gathering(Writer(0.01), most=2, parallel=1)
    answers = await asyncio.gather(*(gathering.add("a", n) for n in (1, 13, 2)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ValueError, ValueError, int]


async def test_what_comes_alone_does_not_wait_and_what_follows_is_paced() -> None:
    writer = Writer()
    gathering = Gathering(writer, most=100, parallel=1, pace=0.2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await gathering.add("a", 0) == 0
    assert loop.time() - began < 0.15
    await asyncio.gather(*(gathering.add("a", n) for n in range(1, 6)))
    assert writer.flushed == [("a", (0,)), ("a", (1, 2, 3, 4, 5))]
    assert writer.times[1] - writer.times[0] >= 0.19


async def test_a_full_batch_does_not_wait() -> None:
    writer = Writer()
    gathering = Gathering(writer, most=4, parallel=1, pace=30)
    async with asyncio.timeout(5):
        await gathering.add("a", 0)
        await asyncio.gather(*(gathering.add("a", n) for n in range(1, 5)))
    assert [len(items) for _, items in writer.flushed] == [1, 4]


@pytest.mark.parametrize("pace", [0.0, 0.01])
async def test_work_goes_on_when_who_asked_for_it_is_gone(pace: float) -> None:
    writer = Writer(0.01)
    gathering = Gathering(writer, most=4, parallel=1, pace=pace)
    task = asyncio.create_task(gathering.add("a", 1))
    await asyncio.sleep(0)
    task.cancel()
    gathering.put("b", 2)
    await gathering.idle()
    assert sorted(writer.flushed) == [("a", (1,)), ("b", (2,))]
