"""Claims that are given back: what was not begun, and what was begun ahead and not sent (mail-server C3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.db import errors as db_errors
from postroom.db.pool import Database
from postroom.outbound import claiming
from postroom.outbound.beginnings import Beginnings
from postroom.outbound.claiming import Group

log = base_log.get("outbound")


@dataclass(frozen=True, slots=True)
class _Owed:
    groups: Sequence[Group]
    at: datetime
    until: float


class GivingBack:
    """Others may have at once what is given back. What the database would not take is owed: `again` tries it until the
    claims have lapsed by themselves.
    """

    def __init__(self, database: Database, beginnings: Beginnings, clock: Clock) -> None:
        self._database, self._beginnings, self._clock = database, beginnings, clock
        self._owed: list[_Owed] = []

    async def give(self, groups: Sequence[Group], at: datetime) -> None:
        """Due again at `at`. What was begun to be sent is not given back by this."""
        if groups:
            lapse = self._clock.monotonic() + claiming.LEASE.total_seconds()
            await self._give(_Owed(groups, at, lapse))

    async def again(self) -> None:
        """Try what is owed once more."""
        owed, self._owed = self._owed, []
        for one in owed:
            if self._clock.monotonic() < one.until:
                await self._give(one)
            else:
                self._forget(one)

    def leave(self) -> None:
        """This process ends: what is owed is left to who finds the marks."""
        for one in self._owed:
            for group in one.groups:
                self._beginnings.leave(group)
        self._owed.clear()

    async def _give(self, owed: _Owed) -> None:
        # What is marked is unsent for as long as it is: the mark goes when it is given back, and not before.
        unsent = [group.token for group in owed.groups if self._beginnings.is_unsent(group)]
        try:
            async with self._database.acquire() as conn:
                await claiming.put_back(conn, owed.groups, at=owed.at, unsent=unsent)
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            log.warning("claims_not_given_back", count=len(owed.groups), error=type(error).__name__)
            self._owed.append(owed)
        else:
            self._forget(owed)

    def _forget(self, owed: _Owed) -> None:
        for group in owed.groups:
            self._beginnings.forget(group)
