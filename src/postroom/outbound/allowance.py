"""How much an account may send, whichever way it sends (mail-server A7): counted from the rows of what was accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from postroom.accounts.models import Principal, PrincipalKind
from postroom.base.errors import PostroomError
from postroom.db.pool import Connection
from postroom.events import quotas
from postroom.events.quotas import Warned
from postroom.outbound import senders
from postroom.outbound.accept import Also
from postroom.outbound.models import Outgoing

_HOLD: Final = "SELECT pg_advisory_xact_lock(hashtextextended('sends of ' || $1::text, 0))"
NEAR: Final = 10
"""A threshold is near at a tenth of the limit below it: so much may several processes send at once that do not see one
another, and still the one that gets there warns. Should they send more, the next message does."""

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
    """One per process and way of sending. `hash_key` makes ids of warnings."""

    def __init__(self, limits: SubmissionLimits | None, hash_key: bytes) -> None:
        self._limits = limits or SubmissionLimits()
        self._hash_key = hash_key
        self._turns: dict[str, _Turn] = {}

    async def exceeded(
        self, conn: Connection, account: Principal, recipients: int, now: datetime
    ) -> PostroomError | None:
        """Why the account may not send to so many more now: `rate_limited`, `daily_cap_reached`; None if it may."""
        return self._refusal(await senders.used(conn, account, now), recipients, now)

    async def admit(self, conn: Connection, account: Principal, outgoing: Outgoing, now: datetime) -> Also | None:
        """What belongs to the transaction that accepts the message, when it may be the one that uses up 80 % or 100 %
        of the day (`quota.warning`). Raises what `exceeded` finds.
        """
        recipients = sum(one.suppressed is None for one in outgoing.recipients)
        warnings = self._warnings(account, now)
        used = await senders.used(conn, account, now, warnings)
        refusal = self._refusal(used, recipients, now)
        if refusal is not None:
            raise refusal
        near = used.recipients + recipients + self._limits.recipients // NEAR
        if not recipients or all(reached > near for one, reached in warnings.items() if one not in used.told):
            return None

        async def warn(conn: Connection) -> None:
            # Other processes may send for the account from other mailboxes: whoever comes later sees what they did.
            await conn.execute(_HOLD, _counter(account))
            used = await senders.used(conn, account, now, warnings)
            due = [one for one, reached in warnings.items() if one not in used.told and reached <= used.recipients]
            limit = self._limits.recipients
            said = Warned(outgoing.mailbox, outgoing.tenant_id, outgoing.identity_id, used.recipients, limit)
            await quotas.warn(conn, due, said, now)

        return warn

    def _refusal(self, used: senders.Used, recipients: int, now: datetime) -> PostroomError | None:
        if used.messages >= self._limits.messages:
            return PostroomError("rate_limited", details={"bucket": "send"}, retry_after=AGAIN_SECONDS)
        if used.recipients + recipients > self._limits.recipients:
            again = senders.midnight(now) + timedelta(days=1)
            return PostroomError("daily_cap_reached", retry_after=(again - now).total_seconds())
        return None

    def _warnings(self, account: Principal, now: datetime) -> dict[str, int]:
        """The ids of the day's warnings, and from how many recipients on each is due."""
        counter, day = _counter(account), senders.midnight(now)
        return {
            quotas.warning_id(self._hash_key, counter, day, percent): quotas.mark(self._limits.recipients, percent)
            for percent in quotas.THRESHOLDS
        }

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


def _counter(account: Principal) -> str:
    """What is counted: a person's sending in a tenant, or an agent's, whichever of its keys it uses."""
    if account.kind is PrincipalKind.PERSON:
        return f"{account.tenant_id}/person/{account.row_id}"
    return f"{account.tenant_id}/identity/{account.identity_id}"
