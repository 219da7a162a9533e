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

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.events.webhooks import claiming, dispatch
from postroom.events.webhooks.outcomes import Outcomes
from postroom.net.guarded_http import Response
from tests.events.hooks import OK, Receivers, Room

STEPS: Final = (*("tasks made", "dispatched", "claimed", "sending", "sent", "written", "recorded"),)


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


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
