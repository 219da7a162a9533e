"""A worker of webhooks that is killed at one step. What it sends is noted in a file, as a receiver would."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import asyncpg

from postroom.accounts.audit import HOST
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.events.webhooks import claiming, dispatch
from postroom.events.webhooks.outcomes import Outcomes
from postroom.events.webhooks.windows import ByIds
from postroom.net.guarded_http import Response
from tests.events.hooks import OK, PLATFORM, Receivers, Room

STEPS: Final = (*("tasks made", "dispatched", "claimed", "sending", "sent", "written", "recorded"),)
ONE_TRANSACTION: Final = ("hold", "resume", "replay", "disable")
"""Each done whole or not at all, and never twice; killed before its commit, or right after it."""
GONE: Final = Response(410, 2, b"", complete=True)


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Noting(Receivers):
    """Notes what was received before it answers."""

    def __init__(self, path: Path, step: str) -> None:
        super().__init__()
        self._path, self._step = path, step

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], **_: Any) -> Response:
        if self._step == "sending":
            die()
        with self._path.open("a") as file:
            file.write(f"{url} {headers['webhook-id']}\n")
        if self._step == "sent":
            die()
        return OK


async def main(step: str, url: str, now: str, noted: str) -> None:
    clock = ManualClock(datetime.fromisoformat(now))
    async with Database(url, min_size=1, max_size=4) as db:
        room = Room(db, clock, IdGenerator(clock), Noting(Path(noted), step))
        if step == "tasks made":
            made = dispatch.Dispatcher._make_tasks

            async def making(*args: Any) -> int:
                await made(*args)
                die()
                return 0

            dispatch.Dispatcher._make_tasks = making  # type: ignore[assignment, method-assign] # what follows is the commit
        if step == "claimed":
            claim = claiming.claim

            async def claiming_(*args: Any, **more: Any) -> Any:
                found = await claim(*args, **more)
                die()
                return found

            claiming.claim = claiming_
        if step == "written":
            write = Outcomes.write

            async def writing(*args: Any) -> Any:
                await write(*args)
                die()

            Outcomes.write = writing  # type: ignore[assignment, method-assign] # what follows is the commit
        await room.dispatch()
        if step == "dispatched":
            die()
        await room.deliverer().run_due()
        if step == "recorded":
            die()


class Dying:
    """Dies at the end of the transaction in which `marks` was said first: before the commit, or after it."""

    def __init__(self, marks: str, when: str) -> None:
        self._marks, self._when, self._said = marks, when, False

    def install(self) -> None:
        execute, commit = asyncpg.Connection.execute, asyncpg.transaction.Transaction.commit

        async def executing(connection: Any, query: str, *values: Any, **more: Any) -> Any:
            done = await execute(connection, query, *values, **more)
            self._said = self._said or self._marks in query
            return done

        async def committing(transaction: Any) -> None:
            if self._said and self._when == "before":
                die()
            await commit(transaction)
            if self._said:
                die()

        asyncpg.Connection.execute = executing  # type: ignore[assignment, method-assign] # in this process alone
        asyncpg.transaction.Transaction.commit = committing  # type: ignore[assignment, method-assign] # the same


async def one_transaction(step: str, when: str, url: str, now: str, *more: str) -> None:
    """`more`: of a replay the webhook and the event. What is to be held, resumed or sent is there already."""
    clock = ManualClock(datetime.fromisoformat(now))
    async with Database(url, min_size=1, max_size=4) as db:
        room = Room(db, clock, IdGenerator(clock))
        marks = {"hold": "SET held_at = $1", "resume": "SET held_at = NULL", "replay": "webhook_tasks.held_at IS NULL"}
        Dying(marks.get(step, "INSERT INTO events"), when).install()
        if step == "hold":
            await room.upkeep.set_aside()
        elif step == "resume":
            await room.upkeep.resume()
        elif step == "replay":
            await room.replays.replay(PLATFORM, more[0], ByIds((more[1],)), by=HOST)
        else:
            room.receivers.post = _gone  # type: ignore[method-assign]  # of this one alone
            await room.deliverer().run_due()


async def _gone(*_: Any, **__: Any) -> Response:
    return GONE


if __name__ == "__main__":
    asyncio.run((one_transaction if sys.argv[1] in ONE_TRANSACTION else main)(*sys.argv[1:]))
