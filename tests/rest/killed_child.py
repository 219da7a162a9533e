"""A server process that is killed in the middle of one request: right before its COMMIT, or right after it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from postroom.accounts import idempotency
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import MaildirStore
from postroom.db import Database
from postroom.events.live import LiveHub
from postroom.mailbox.service import Mailboxes
from postroom.servers.http import create_http
from tests.rest.world import NoHints, services_of


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(when: str, url: str, mail: str, now: str, path: str, key: str, body: str) -> None:
    clock = ManualClock(datetime.fromisoformat(now))
    ids = IdGenerator(clock)
    blobs = MaildirStore(Path(mail), fsync=False, clock=clock)
    async with Database(url) as db:
        mailboxes = Mailboxes(db, blobs, clock, ids, die if when == "after" else lambda ref, modseq: None)
        if when == "before":
            kept = idempotency.complete

            async def completed(*args: Any, **more: Any) -> None:
                await kept(*args, **more)
                die()

            idempotency.complete = completed  # what follows is the log and the commit
        app = create_http(services_of(db, clock, ids, blobs, LiveHub(NoHints()), mailboxes))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://api.example") as client:
            await client.post(path, headers={"authorization": key}, json=json.loads(body))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
