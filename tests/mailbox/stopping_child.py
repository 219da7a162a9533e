"""A server process that is stopped in the middle of a transaction: it stops itself right before its COMMIT."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from postroom.base.clock import SystemClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.ingest import Delivery, Ingest
from postroom.mailbox.models import MailboxRef
from tests.mailbox.letters import Box, Pen, raw_mail
from tests.mailbox.stores import MemoryBlobs


async def main(url: str, tenant: int, mailbox: int, tenant_id: str, identity_id: str) -> None:
    clock = SystemClock()
    box = Box(MailboxRef(tenant, mailbox), tenant_id, identity_id, "box@agents.example", "alias@agents.example")
    raw = raw_mail(message_id="stopped@example.com")
    async with Database(url) as db:
        ingest = Ingest(
            db,
            MemoryBlobs(),
            clock,
            committed=lambda _: None,
            before_commit=lambda: os.kill(os.getpid(), signal.SIGSTOP),
        )
        ingest.start()
        outcome = await ingest.deliver(Delivery((raw,), (Pen(IdGenerator(clock), clock).copy(box, raw),)))
        assert isinstance(outcome, tuple)
        await ingest.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]))
