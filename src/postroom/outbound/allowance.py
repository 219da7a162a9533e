"""How much an account may send, whichever way it sends (mail-server A7): counted from the rows of what was accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from postroom.accounts.models import Principal
from postroom.base.errors import PostroomError
from postroom.db.pool import Connection
from postroom.outbound import senders

AGAIN_SECONDS: Final = 60.0
"""`Retry-After` of who sent too much within an hour: some of it is a minute older then."""


@dataclass(frozen=True, slots=True)
class SubmissionLimits:
    """A7: `messages` within an hour, `recipients` within a day (UTC), of one person or one agent."""

    messages: int = 50
    recipients: int = 500


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock
    users: int = 0


class Allowance:
    """One per process and way of sending."""

    def __init__(self, limits: SubmissionLimits | None = None) -> None:
        self._limits = limits or SubmissionLimits()
        self._turns: dict[str, _Turn] = {}

    async def exceeded(
        self, conn: Connection, account: Principal, recipients: int, now: datetime
    ) -> PostroomError | None:
        """Why the account may not send to so many more now: `rate_limited`, `daily_cap_reached`; None if it may."""
        used = await senders.used(conn, account, now)
        if used.messages >= self._limits.messages:
            return PostroomError("rate_limited", details={"bucket": "send"}, retry_after=AGAIN_SECONDS)
        if used.recipients + recipients > self._limits.recipients:
            midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
            return PostroomError("daily_cap_reached", retry_after=(midnight - now).total_seconds())
        return None

    @asynccontextmanager
    async def turn(self, account: Principal) -> AsyncIterator[None]:
        """One acceptance of an account after the other, so that each sees what the ones before have used up.

        Other processes, and other ways of sending, do not wait: together they can exceed a limit by one message for
        each of them.
        """
        turn = self._turns.setdefault(account.public_id, _Turn(asyncio.Lock()))
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                self._turns.pop(account.public_id, None)
