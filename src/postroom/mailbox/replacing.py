"""New messages that take the place of others (RFC 8508): the old go for good in the transaction that stores the new.

Both changes have one modseq; the log has the new message first, so that whoever follows it never sees neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from postroom.db.pool import Connection
from postroom.mailbox import expunge, placing
from postroom.mailbox.models import GroupOutcome, NewMessage, Place, Refusal, Refused
from postroom.mailbox.placing import PlacementRow
from postroom.mailbox.writing import go_on_writing


class Replacing:
    """What the messages of one batch replace, as read under the locks of their mailboxes."""

    def __init__(self, conn: Connection, now: datetime) -> None:
        self._conn = conn
        self._now = now
        self._rows: dict[Place, PlacementRow] = {}
        self._taken: dict[str, tuple[NewMessage, PlacementRow]] = {}

    @classmethod
    async def read(cls, conn: Connection, messages: Iterable[NewMessage], now: datetime) -> Replacing:
        """Read what is to be replaced; nothing is asked when there is nothing, as in nearly every batch."""
        found = cls(conn, now)
        for message in messages:
            place = message.replaces
            if place is not None and place not in found._rows:
                for row in await placing.read_rows(conn, message.mailbox, place.folder, [place.uid]):
                    found._rows[place] = row
        return found

    def refusal(self, group: Sequence[NewMessage]) -> Refused | None:
        """Why what a group replaces cannot go."""
        for message in group:
            if message.replaces is None:
                continue
            row = self._rows.get(message.replaces)
            if row is None:
                return Refused(Refusal.REPLACED_GONE)
            if row.leaves:
                return Refused(Refusal.REPLACED_IN_USE)
        return None

    def freed(self, group: Sequence[NewMessage]) -> int:
        """Octets that go with what a group replaces: only the net use counts for the quota (RFC 8508 §3.4)."""
        rows = [self._rows[message.replaces] for message in group if message.replaces is not None]
        return sum(row.size for row in rows if row.copies == 1)

    def take(self, group: Sequence[NewMessage]) -> None:
        """The group is stored: nobody else in the batch replaces the same."""
        for message in group:
            if message.replaces is not None:
                self._taken[message.id] = message, self._rows.pop(message.replaces)

    async def finish(self, outcomes: list[GroupOutcome]) -> list[GroupOutcome]:
        """Remove what was taken, once the new messages are written; the outcomes with the keys of its bytes."""
        keys: dict[str, tuple[str, ...]] = {}
        for message_id, (message, row) in self._taken.items():
            write = await go_on_writing(self._conn, message.mailbox, self._now)
            keys[message_id] = (await expunge.remove(write, [row])).blob_keys
            await write.finish()
        if not keys:
            return outcomes
        return [
            tuple(replace(one, replaced_keys=keys.get(one.message_id, ())) for one in outcome)
            if isinstance(outcome, tuple)
            else outcome
            for outcome in outcomes
        ]
