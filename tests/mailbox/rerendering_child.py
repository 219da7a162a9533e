"""A server process that renders messages anew and is killed in the middle: by itself, at the nth message."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from postroom.base.clock import SystemClock
from postroom.blobs import MaildirStore
from postroom.db import Database
from postroom.inbound.describe import describe
from postroom.mailbox import rerender
from postroom.mailbox.models import Content


async def main(url: str, directory: str, version: int, page: int, dies_at: int) -> None:
    count = 0

    async def dying(prefix: bytes, original: bytes, received_at: datetime) -> Content:
        nonlocal count
        count += 1
        if count == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(describe(prefix, original, received_at), envelope=b"(NEW)")

    rerender.PAGE = page  # type: ignore[misc] # a Final, small for the test
    blobs = MaildirStore(Path(directory))
    async with Database(url) as db:
        await rerender.Rerender(db, blobs, dying, SystemClock(), version=version).run_once()
    await blobs.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])))
