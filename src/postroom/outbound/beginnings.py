"""That messages go out is recorded before they do (mail-server C3). To a destination that answers quickly, the wait for
the disk would be longer than that for the peer: there it is recorded of the next few messages in the same transaction.

Whoever is killed then leaves a few messages as uncertain that it had not begun to send. So it is done only while
messages go out one after the other, and taken back when they do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from uuid import UUID

from postroom.outbound.claiming import Group
from postroom.outbound.outcomes import Outcomes


class Beginnings:
    """Which of the groups in hand are recorded as begun, and not sent yet."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._ahead: dict[UUID, asyncio.Future[bool]] = {}

    def __contains__(self, group: Group) -> bool:
        return group.token in self._ahead

    @property
    def any(self) -> bool:
        """Whether there are some."""
        return bool(self._ahead)

    def ahead(self, group: Group) -> None:
        """Have it recorded that the group's message goes out, to all of its recipients, soon."""
        self._ahead[group.token] = early = self._outcomes.begin(group)
        early.add_done_callback(_heard)

    async def begin(self, group: Group, ids: Sequence[int]) -> bool:
        """As `Outcomes.start`. True at once for what was recorded before."""
        early = self._ahead.get(group.token)
        if early is None:
            return await self._outcomes.start(group, ids)
        await self._outcomes.writable()
        may = await early
        self._ahead.pop(group.token, None)
        return may

    def revoke(self, groups: Iterable[Group]) -> None:
        """These do not go out soon after all. What is being recorded at the moment is left as it is."""
        for group in groups:
            early = self._ahead.get(group.token)
            if early is not None and early.done():
                del self._ahead[group.token]
                self._outcomes.revoke(group)

    def forget(self, group: Group) -> None:
        """The group is out of hand."""
        self._ahead.pop(group.token, None)


def _heard(early: asyncio.Future[bool]) -> None:
    """Whoever would send the message is told of the error; if nobody does, nobody needs to be."""
    if not early.cancelled():
        early.exception()
