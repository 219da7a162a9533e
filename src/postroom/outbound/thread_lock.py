"""One send into a thread at a time (outbound §7, C4, FR-OUT-9), so that the next can name it in References.

A lease on the thread's row. The message that is accepted takes it over and keeps it while it is `queued`; whoever
crashed loses it after 120 s.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.db.pool import Connection, Database
from postroom.mailbox.models import MailboxRef
from postroom.outbound.store import THREAD_LEASE

WAIT_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.25
MAX_RETRY_AFTER: Final = 60

_TAKE: Final = """
UPDATE threads SET lock_owner = $4, lock_until = $6
WHERE tenant_id = $1 AND mailbox_id = $2 AND public_id = $3
  AND (lock_owner IS NULL OR lock_until <= $5 OR lock_owner = $4)
RETURNING public_id
"""
_HELD_UNTIL: Final = "SELECT lock_until FROM threads WHERE tenant_id = $1 AND mailbox_id = $2 AND public_id = $3"
# Of a message that was accepted after all, the lock is the dispatcher's to release.
_RELEASE: Final = """
UPDATE threads SET lock_owner = NULL, lock_until = NULL
WHERE tenant_id = $1 AND mailbox_id = $2 AND public_id = $3 AND lock_owner = $4
  AND ($5 OR NOT EXISTS (SELECT FROM messages m WHERE m.tenant_id = $1 AND m.public_id = $4))
"""


class ThreadLocks:
    """Takes the locks. `wait` and `poll` are seconds."""

    def __init__(
        self, database: Database, clock: Clock, *, wait: float = WAIT_SECONDS, poll: float = POLL_SECONDS
    ) -> None:
        self._database = database
        self._clock = clock
        self._wait = wait
        self._poll = poll

    async def acquire(self, ref: MailboxRef, thread_id: str, owner: str) -> None:
        """Take the lock for the message `owner`. Raises `thread_busy` when somebody else has it for 10 s, with
        `details.retry_after` in whole seconds, and `thread_not_found`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait
        where = (ref.tenant_id, ref.mailbox_id, thread_id)
        while True:
            now = self._clock.now()
            async with self._database.acquire() as conn:
                if await conn.fetchval(_TAKE, *where, owner, now, now + THREAD_LEASE) is not None:
                    return
                held = await conn.fetchrow(_HELD_UNTIL, *where)
            if held is None:
                raise PostroomError("thread_not_found")
            if loop.time() + self._poll > deadline:
                left = (held["lock_until"] - now).total_seconds() if held["lock_until"] is not None else 0.0
                seconds = min(max(math.ceil(left), 1), MAX_RETRY_AFTER)
                raise PostroomError("thread_busy", details={"retry_after": seconds}, retry_after=seconds)
            await asyncio.sleep(self._poll)


async def release(conn: Connection, ref: MailboxRef, thread_id: str, owner: str, *, accepted: bool = False) -> None:
    """Give the lock back, if it is `owner`'s, unless that message was stored; with `accepted` even then."""
    await conn.execute(_RELEASE, ref.tenant_id, ref.mailbox_id, thread_id, owner, accepted)
