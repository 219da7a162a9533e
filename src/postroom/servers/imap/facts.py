"""What never changes of a message, kept in one bounded cache: a UID is for ever (RFC 3501 §2.3.1.1).

Entries are grouped by runs of UIDs, so that using a page costs one move in the order of use, whatever its size. Rows
read with different columns are different entries; most clients ask for few combinations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from postroom.mailbox.models import FolderKey, MailboxRef
from postroom.mailbox.reads import Columns, FetchRow, FolderReads

Facts = FetchRow
"""A row as it was read; its flags and modseq are of that moment and not to be used."""

_PAGE_BITS: Final = 8
_OVERHEAD: Final = 500
"""Octets that an entry costs beside its texts, roughly."""
_REFERENCE: Final = 120
"""Octets of an identifier, roughly."""
_RANGE_SLACK: Final = 2
"""UIDs of a range per message wanted, up to which the whole range is read."""

_Key = tuple[FolderKey, int, int]
"""Folder, number of the run, columns."""


class _Page:
    __slots__ = ("rows", "weight")

    def __init__(self) -> None:
        self.rows: dict[int, Facts] = {}
        self.weight = 0


class FactCache:
    """At most about `max_bytes` of facts, the latest used."""

    SCAN: Final = 10_000
    """Whoever goes through more messages than this has no use for what is kept of them, and leaves what others have."""

    def __init__(self, reads: FolderReads, max_bytes: int) -> None:
        self._reads = reads
        self._max_bytes = max_bytes
        self._pages: OrderedDict[_Key, _Page] = OrderedDict()
        self.weight = 0

    def cached(self, folder: FolderKey, uids: Sequence[int], columns: Columns) -> list[Facts | None]:
        """What is known with these columns, in the order of `uids` (ascending); None where it must be read."""
        found: list[Facts | None] = []
        for number, run in _runs(uids):
            key = (folder, number, columns.value)
            page = self._pages.get(key)
            if page is None:
                found += [None] * len(run)
                continue
            self._pages.move_to_end(key)
            found += map(page.rows.get, run)
        return found

    async def load(
        self, ref: MailboxRef, folder: FolderKey, uids: Sequence[int], columns: Columns, *, keep: bool = True
    ) -> list[Facts | None]:
        """The facts of `uids` (ascending), to `keep` or not; None for messages that do not exist any more."""
        found = self.cached(folder, uids, columns)
        if all(found):
            return found
        missing = [uid for uid, facts in zip(uids, found, strict=True) if facts is None]
        wanted: Sequence[int] = missing
        if missing[-1] - missing[0] < _RANGE_SLACK * len(missing):
            wanted = range(missing[0], missing[-1] + 1)
        fresh: dict[int, Facts] = {}
        async for rows in self._reads.fetch_rows(ref, folder, wanted, columns, page=max(len(wanted), 1)):
            fresh.update((row.uid, row) for row in rows)
            if keep:
                self._keep(folder, rows, columns)
        return [facts or fresh.get(uid) for uid, facts in zip(uids, found, strict=True)]

    def _keep(self, folder: FolderKey, rows: Sequence[Facts], columns: Columns) -> None:
        """Add rows (by UID) to the cache, and drop what was not used for longest."""
        for number, uids in _runs([row.uid for row in rows]):
            key = (folder, number, columns.value)
            page = self._pages.get(key)
            if page is None:
                page = self._pages[key] = _Page()
            part, rows = rows[: len(uids)], rows[len(uids) :]
            page.rows.update((row.uid, row) for row in part)
            # Rows read twice at the same time are weighed twice, which makes up for nothing worse than a smaller cache.
            added = _weight(part, columns)
            page.weight += added
            self.weight += added
        while self.weight > self._max_bytes and len(self._pages) > 1:
            _, page = self._pages.popitem(last=False)
            self.weight -= page.weight


def _weight(rows: Sequence[Facts], columns: Columns) -> int:
    weight = _OVERHEAD * len(rows)
    if Columns.ENVELOPE in columns:
        weight += sum(len(row.envelope or b"") for row in rows)
    if Columns.STRUCTURE in columns:
        weight += sum(len(row.body_structure or b"") for row in rows)
    if Columns.PARTS in columns:
        weight += sum(len(row.part_tree or b"") for row in rows)
    if Columns.PREVIEW in columns:
        weight += sum(len(row.subject or "") + len(row.snippet or "") for row in rows)
    if Columns.REFERENCES in columns:
        weight += sum(_REFERENCE * len(row.reference_ids or ()) for row in rows)
    return weight


def _runs(uids: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """`uids` cut where a page of the cache ends."""
    start, end = 0, len(uids)
    while start < end:
        number = uids[start] >> _PAGE_BITS
        last = ((number + 1) << _PAGE_BITS) - 1
        stop = min(end, start + (1 << _PAGE_BITS))
        if uids[stop - 1] > last:
            stop = bisect_right(uids, last, start, stop)
        yield number, uids[start:stop]
        start = stop
