"""What never changes of a message, kept in one bounded cache: a UID is for ever (RFC 3501 §2.3.1.1).

Entries are grouped by runs of UIDs, so that using a page costs one move in the order of use, whatever its size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from postroom.imap.render import internal_date
from postroom.mailbox.models import FolderKey, MailboxRef
from postroom.mailbox.reads import Columns, FetchRow, FolderReads

_PAGE_BITS: Final = 8
_OVERHEAD: Final = 400
"""Octets that an entry costs beside its texts, roughly."""
_RANGE_SLACK: Final = 2
"""UIDs of a range per message wanted, up to which the whole range is read."""


class Facts:
    """Immutable facts of one placement. `has` says which groups of columns were read (bits of `Columns`)."""

    __slots__ = (
        "_date",
        "_internal_date",
        "blob_key",
        "envelope",
        "has",
        "message_id",
        "saved_at",
        "size",
        "structure",
        "thread_id",
        "tree",
    )

    def __init__(self, row: FetchRow) -> None:
        self.has = 0
        self.size: int = row.size
        self.saved_at = row.saved_at
        self._internal_date = row.internal_date
        self._date: bytes = b""
        self.envelope: bytes = b""
        self.structure: bytes = b""
        self.tree: bytes = b""
        self.blob_key: str = ""
        self.message_id: str = ""
        self.thread_id: str = ""

    def take(self, row: FetchRow, columns: int) -> int:
        """Add what a row brings; returns the octets it adds."""
        before = self._weight()
        self.has |= columns
        self.envelope = row.envelope or self.envelope
        self.structure = row.body_structure or self.structure
        self.tree = row.part_tree or self.tree
        self.blob_key = row.blob_key or self.blob_key
        self.message_id = row.message_id or self.message_id
        self.thread_id = row.thread_id or self.thread_id
        return self._weight() - before

    @property
    def date(self) -> bytes:
        """INTERNALDATE as it is shown."""
        if not self._date:
            self._date = internal_date(self._internal_date)
        return self._date

    def _weight(self) -> int:
        return len(self.envelope) + len(self.structure) + len(self.tree) + len(self.blob_key)


class _Page:
    __slots__ = ("facts", "weight")

    def __init__(self) -> None:
        self.facts: dict[int, Facts] = {}
        self.weight = 0


class FactCache:
    """At most about `max_bytes` of facts, the latest used."""

    def __init__(self, reads: FolderReads, max_bytes: int) -> None:
        self._reads = reads
        self._max_bytes = max_bytes
        self._pages: OrderedDict[tuple[FolderKey, int], _Page] = OrderedDict()
        self.weight = 0

    def cached(self, folder: FolderKey, uids: Sequence[int], columns: Columns) -> list[Facts | None]:
        """What is known with these columns, in the order of `uids` (ascending); None where it must be read."""
        need = columns.value
        found: list[Facts | None] = []
        for number, run in _runs(uids):
            page = self._pages.get((folder, number))
            if page is None:
                found += [None] * len(run)
                continue
            self._pages.move_to_end((folder, number))
            get = page.facts.get
            found += [facts if (facts := get(uid)) is not None and facts.has & need == need else None for uid in run]
        return found

    async def load(
        self, ref: MailboxRef, folder: FolderKey, uids: Sequence[int], columns: Columns
    ) -> list[Facts | None]:
        """The facts of `uids` (ascending); None for messages that do not exist any more."""
        found = self.cached(folder, uids, columns)
        missing = [uid for uid, facts in zip(uids, found, strict=True) if facts is None]
        if not missing:
            return found
        wanted: Sequence[int] = missing
        if missing[-1] - missing[0] < _RANGE_SLACK * len(missing):
            wanted = range(missing[0], missing[-1] + 1)
        fresh: dict[int, Facts] = {}
        async for rows in self._reads.fetch_rows(ref, folder, wanted, columns, page=max(len(wanted), 1)):
            for row in rows:
                fresh[row.uid] = self._keep(folder, row, columns.value)
        self._shrink()
        return [facts or fresh.get(uid) for uid, facts in zip(uids, found, strict=True)]

    def _keep(self, folder: FolderKey, row: FetchRow, columns: int) -> Facts:
        key = (folder, row.uid >> _PAGE_BITS)
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _Page()
        facts = page.facts.get(row.uid)
        added = 0
        if facts is None:
            facts = page.facts[row.uid] = Facts(row)
            added = _OVERHEAD
        added += facts.take(row, columns)
        page.weight += added
        self.weight += added
        return facts

    def _shrink(self) -> None:
        while self.weight > self._max_bytes and len(self._pages) > 1:
            _, page = self._pages.popitem(last=False)
            self.weight -= page.weight


def _runs(uids: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """`uids` cut where a page of the cache ends."""
    start, end = 0, len(uids)
    while start < end:
        number = uids[start] >> _PAGE_BITS
        stop = start + 1
        last = ((number + 1) << _PAGE_BITS) - 1
        reach = min(end, start + (1 << _PAGE_BITS))
        if uids[reach - 1] <= last:
            stop = reach
        else:
            while stop < reach and uids[stop] <= last:
                stop += 1
        yield number, uids[start:stop]
        start = stop
