"""What messages are sorted and threaded by, worked out once and kept for a while: a UID is for ever, as in `facts`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from postroom.imap.subject import base_subject
from postroom.mail.date import parse_date
from postroom.mail.envelope_reading import Person, read_envelope
from postroom.mailbox.folding import fold
from postroom.mailbox.models import FolderKey, MailboxRef
from postroom.mailbox.reads import Columns
from postroom.servers.imap.facts import FactCache, Facts

MAX_KEPT: Final = 50_000
"""Messages; about 25 MB."""
_PAGE_BITS: Final = 8
_PORTION: Final = 64
"""Messages whose values are worked out in one go, in about a millisecond."""
_BATCH: Final = 500


class SortValues(NamedTuple):
    """Dates in seconds, texts folded (RFC 5256 §2.1, §2.2, §5.1). "" for what is not there, so that it comes first."""

    arrival: float
    size: int
    sent: float
    """The internal date where the message has none (RFC 5256 §2.2)."""
    subject: str
    """Its base."""
    is_reply: bool
    author: str
    """The local part, as `to` and `cc`."""
    to: str
    cc: str
    shown_author: str
    """The display name, else the address (RFC 5957 §3)."""
    shown_to: str


def values_of(facts: Facts) -> SortValues:
    """Of a message read with `Columns.ENVELOPE`."""
    envelope = read_envelope(facts.envelope or b"")
    arrival = facts.internal_date.timestamp()
    sent = parse_date(envelope.date) if envelope.date else None
    subject, is_reply = base_subject(envelope.subject)
    author, to = fold(envelope.author.local), fold(envelope.to.local)
    return SortValues(
        arrival,
        facts.size,
        arrival if sent is None else sent.timestamp(),
        fold(subject),
        is_reply,
        author,
        to,
        fold(envelope.cc.local),
        _shown(envelope.author, author),
        _shown(envelope.to, to),
    )


def _shown(person: Person, local: str) -> str:
    if person.name:
        return fold(person.name)
    return f"{local}@{fold(person.domain)}" if person.domain else local


class ValueCache:
    """Values of at most about `limit` messages, the latest used; runs of UIDs come and go together."""

    def __init__(self, facts: FactCache, limit: int = MAX_KEPT) -> None:
        self._facts = facts
        self._limit = limit
        self._pages: OrderedDict[tuple[FolderKey, int], dict[int, SortValues]] = OrderedDict()
        self._kept = 0

    async def load(
        self, ref: MailboxRef, folder: FolderKey, uids: Iterable[int]
    ) -> AsyncIterator[list[tuple[int, SortValues]]]:
        """Values of those of `uids` that still exist, in order of UID, a batch at a time, with turns for others."""
        ordered = sorted(uids)
        for start in range(0, len(ordered), _BATCH):
            batch = ordered[start : start + _BATCH]
            known = self._known(folder, batch)
            missing = [uid for uid in batch if uid not in known]
            if missing:
                rows = await self._facts.load(ref, folder, missing, Columns.ENVELOPE)
                for place, (uid, facts) in enumerate(zip(missing, rows, strict=True)):
                    if facts is not None:
                        known[uid] = values_of(facts)
                    if not place % _PORTION:
                        await asyncio.sleep(0)
                self._keep(folder, {uid: known[uid] for uid in missing if uid in known})
            yield [(uid, known[uid]) for uid in batch if uid in known]
            await asyncio.sleep(0)

    def _known(self, folder: FolderKey, uids: list[int]) -> dict[int, SortValues]:
        known: dict[int, SortValues] = {}
        for number in dict.fromkeys(uid >> _PAGE_BITS for uid in uids):
            page = self._pages.get((folder, number))
            if page is not None:
                self._pages.move_to_end((folder, number))
                known.update(page)
        return known

    def _keep(self, folder: FolderKey, values: dict[int, SortValues]) -> None:
        for uid, value in values.items():
            page = self._pages.setdefault((folder, uid >> _PAGE_BITS), {})
            self._kept += uid not in page
            page[uid] = value
        while self._kept > self._limit and len(self._pages) > 1:
            _, gone = self._pages.popitem(last=False)
            self._kept -= len(gone)
