"""New messages that take the place of others (RFC 8508): the old go for good in the transaction that stores the new.

What goes may stand in another mailbox: then the message has moved there. In one mailbox both changes have one modseq,
and the log has the new message first, so that whoever follows it never sees neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from postroom.db.pool import Connection
from postroom.mailbox import expunge, placing
from postroom.mailbox.models import FolderKey, GroupOutcome, MailboxRef, NewMessage, Place, Refusal, Refused
from postroom.mailbox.placing import PlacementRow
from postroom.mailbox.writing import go_on_writing

_Key = tuple[FolderKey, int]


class Replacing:
    """What the messages of one batch replace, as read under the locks of their mailboxes."""

    def __init__(self, conn: Connection, now: datetime) -> None:
        self._conn = conn
        self._now = now
        self._rows: dict[_Key, PlacementRow] = {}
        self._taken: dict[MailboxRef, list[tuple[NewMessage, PlacementRow]]] = {}

    @classmethod
    async def read(cls, conn: Connection, messages: Iterable[NewMessage], now: datetime) -> Replacing:
        """Read what is to be replaced; nothing is asked when there is nothing, as in nearly every batch."""
        found = cls(conn, now)
        wanted: dict[tuple[MailboxRef, FolderKey], set[int]] = {}
        for message in messages:
            place = message.replaces
            if place is not None:
                wanted.setdefault((_home(message, place), place.folder), set()).add(place.uid)
        for (ref, folder), uids in wanted.items():
            for row in await placing.read_rows(conn, ref, folder, sorted(uids)):
                found._rows[folder, row.uid] = row
        return found

    def refusal(self, group: Sequence[NewMessage]) -> Refused | None:
        """Why what a group replaces cannot go."""
        for message in group:
            if message.replaces is None:
                continue
            row = self._rows.get(_key(message.replaces))
            if row is None:
                return Refused(Refusal.REPLACED_GONE)
            if row.leaves:
                return Refused(Refusal.REPLACED_IN_USE)
        return None

    def freed(self, group: Sequence[NewMessage]) -> int:
        """Octets of the group's mailbox that go with what it replaces: only the net use counts for the quota (RFC 8508
        §3.4)."""
        rows = [
            self._rows[_key(message.replaces)]
            for message in group
            if message.replaces is not None and len(message.mailboxes) == 1
        ]
        return sum(row.size for row in rows if row.copies == 1)

    def take(self, group: Sequence[NewMessage]) -> Sequence[NewMessage]:
        """The group, to be stored: nobody else in the batch replaces the same."""
        return [message if message.replaces is None else self._take(message, message.replaces) for message in group]

    def _take(self, message: NewMessage, place: Place) -> NewMessage:
        row = self._rows.pop(_key(place))
        self._taken.setdefault(_home(message, place), []).append((message, row))
        return replace(message, flags=row.flags) if message.takes_flags else message

    async def finish(self, outcomes: list[GroupOutcome], written: Collection[int]) -> list[GroupOutcome]:
        """Remove what was taken, once the new messages are written; the outcomes with the keys of its bytes.

        `written`: mailboxes whose modseq this transaction has raised already.
        """
        keys: dict[str, tuple[str, ...]] = {}
        emptied: dict[str, tuple[tuple[MailboxRef, int], ...]] = {}
        for ref, taken in self._taken.items():
            write = await go_on_writing(self._conn, ref, self._now, raised=ref.mailbox_id in written)
            removed = await expunge.remove(write, [row for _, row in taken])
            await write.finish()
            first = taken[0][0].id
            keys[first] = (*keys.get(first, ()), *removed.blob_keys)
            emptied |= {message.id: ((ref, write.modseq),) for message, _ in taken if ref in message.mailboxes[1:]}
        if not self._taken:
            return outcomes
        return [
            tuple(
                replace(
                    one, replaced_keys=keys.get(one.message_id, ()), emptied=emptied.get(one.message_id, one.emptied)
                )
                for one in outcome
            )
            if isinstance(outcome, tuple)
            else outcome
            for outcome in outcomes
        ]


def _key(place: Place) -> _Key:
    return place.folder, place.uid


def _home(message: NewMessage, place: Place) -> MailboxRef:
    """The mailbox that it stands in."""
    return place.mailbox or message.mailbox
