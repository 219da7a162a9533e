"""That messages go out is recorded before they do (mail-server C3). To a destination that answers quickly, the wait for
the disk would be longer than that for the peer: there it is recorded of the next few messages in the same transaction.

Whoever is killed leaves marks of those that it had not begun to send (`unsent`). Where the machine itself stops, they
are uncertain. So it is done only while messages go out one after the other, and taken back when they do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from uuid import UUID

from postroom.outbound.claiming import Group
from postroom.outbound.outcomes import Outcomes
from postroom.outbound.unsent import Unsent


class Beginnings:
    """Which of the groups in hand are recorded as begun, and not sent yet. Without `marks`, whoever is killed leaves
    all of them as uncertain.
    """

    def __init__(self, outcomes: Outcomes, marks: Unsent | None = None) -> None:
        self._outcomes = outcomes
        self._marks = marks
        self._ahead: dict[UUID, asyncio.Future[bool]] = {}
        self._revoked: set[UUID] = set()

    def __contains__(self, group: Group) -> bool:
        return group.token in self._ahead

    @property
    def any(self) -> bool:
        """Whether there are some."""
        return bool(self._ahead)

    def is_unsent(self, group: Group) -> bool:
        """Whether it was recorded as begun, and has certainly not been sent."""
        return group.token in self._ahead or group.token in self._revoked

    def ahead(self, group: Group) -> None:
        """Have it recorded that the group's message goes out, to all of its recipients, soon."""
        if self._marks is not None and not self._marks.mark(group):
            return
        self._ahead[group.token] = early = self._outcomes.begin(group)
        early.add_done_callback(_heard)

    async def begin(self, group: Group, ids: Sequence[int]) -> bool:
        """As `Outcomes.start`. True at once for what was recorded before."""
        early = self._ahead.get(group.token)
        if early is None:
            may = await self._outcomes.start(group, ids)
        else:
            await self._outcomes.writable()
            may = await early
            self._ahead.pop(group.token, None)
        self._unmark(group)
        return may

    def revoke(self, groups: Iterable[Group]) -> None:
        """These do not go out soon after all. What is being recorded at the moment is left as it is."""
        for group in groups:
            early = self._ahead.get(group.token)
            if early is not None and early.done():
                # The mark stays: it is true until the message goes out.
                del self._ahead[group.token]
                self._revoked.add(group.token)
                self._outcomes.revoke(group)

    def forget(self, group: Group) -> None:
        """The group is out of hand."""
        self._ahead.pop(group.token, None)
        self._unmark(group)

    def leave(self, group: Group) -> None:
        """This process ends, and the group could not be given back: if it is marked, it stays so."""
        if self._marks is not None:
            self._marks.leave(group.token)

    def _unmark(self, group: Group) -> None:
        self._revoked.discard(group.token)
        if self._marks is not None:
            self._marks.clear(group.token)


def _heard(early: asyncio.Future[bool]) -> None:
    """Whoever would send the message is told of the error; if nobody does, nobody needs to be."""
    if not early.cancelled():
        early.exception()
