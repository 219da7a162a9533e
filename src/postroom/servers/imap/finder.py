"""Which of a folder's messages meet a key of SEARCH (RFC 3501 §6.4.4).

The tree is evaluated over sets of UIDs. What the session knows (numbers, UIDs, flags, \\Recent) is answered from
memory; other keys are questions to the database, asked of what the keys before them left over, cheap ones first.
Headers are read from the store only for keys that no column answers, texts only for BODY and TEXT.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import compress
from types import MappingProxyType
from typing import Any, Final, TypeVar

from postroom.blobs import Span, StorageError
from postroom.imap import search
from postroom.imap.search import DateKind, DateTest, TextField
from postroom.mail.date import parse_date
from postroom.mail.header import Headers, decode_value
from postroom.mail.mime import MAX_HEADER_BYTES
from postroom.mail.tree import unpack_tree
from postroom.mailbox.folding import fold
from postroom.mailbox.reads import Columns
from postroom.mailbox.rules import Flags
from postroom.mailbox.search import Question
from postroom.mailbox.words import is_machine_made
from postroom.servers.imap.ahead import ReadAhead
from postroom.servers.imap.facts import FactCache, Facts
from postroom.servers.imap.fuzzy import similar_fields, similar_texts
from postroom.servers.imap.results import PORTION
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session
from postroom.servers.imap.values import Kind, Value

T = TypeVar("T")

Found = frozenset[int] | set[int]
"""UIDs."""

_PAGE: Final = 100
"""Headers read at a time; usual ones are looked through in a few milliseconds."""
_PAGE_BYTES: Final = 1024 * 1024
"""Octets of headers read at a time."""
_LONG: Final = 16_384
"""Octets of a header that takes a millisecond to look through, so that others have their turn after it."""
_FACTS_PAGE: Final = 1000
_TURN: Final = 250
"""Messages whose facts are looked at in one go."""
_FOLDING: Final = re.compile(rb"\r*\n(?=[ \t])")


class Finder:
    """One search. Every `of_…` method answers with those of `among` that meet its key.

    `scores` has how well a message fits, out of 100, where FUZZY found less than what was asked for (RFC 6203 §4).
    """

    def __init__(self, session: Session, selected: Selected) -> None:
        self._session = session
        self._selected = selected
        self._candidates: dict[str, frozenset[int] | None] = {}
        self._fuzzy = False
        self.scores: dict[int, int] = {}

    def forget(self, uids: Iterable[int]) -> None:
        """What is known of these, and what the word index said, is of yesterday."""
        self._candidates.clear()
        for uid in uids:
            self.scores.pop(uid, None)

    async def find(self, key: search.SearchKey, among: Found) -> Found:
        """Those of `among` that `key` matches."""
        if not among:
            return among
        found: Found = await _KEYS[type(key)](self, key, among)
        return found

    # -- combinations

    async def of_and(self, key: search.And, among: Found) -> Found:
        for part in sorted(key.keys, key=_cost):
            among = await self.find(part, among)
        return among

    async def of_or(self, key: search.Or, among: Found) -> Found:
        left, right = sorted((key.left, key.right), key=_cost)
        found = await self.find(left, among)
        return found | await self.find(right, among - found)

    async def of_not(self, key: search.Not, among: Found) -> Found:
        return among - await self.find(key.key, among)

    async def of_fuzzy(self, key: search.Fuzzy, among: Found) -> Found:
        outer, self._fuzzy = self._fuzzy, True
        try:
            return await self.find(key.key, among)
        finally:
            self._fuzzy = outer

    # -- what the session knows

    async def of_flag(self, key: search.HasFlag, among: Found) -> Found:
        having: dict[Flags, bool] = {}

        def choose(uids: Sequence[int], flags: Sequence[Flags]) -> Iterable[int]:
            for words in set(flags):
                if words not in having:
                    having[words] = key.flag in words
            return compress(uids, map(having.__getitem__, flags))

        view = self._selected.view
        return await self._chosen(view.uids, view.flags, choose, among)

    async def of_modseq(self, key: search.ModSeq, among: Found) -> Found:
        view = self._selected.view
        return await self._chosen(
            view.uids, view.modseqs, lambda uids, modseqs: compress(uids, map(key.modseq.__le__, modseqs)), among
        )

    async def _chosen(
        self,
        uids: Sequence[int],
        states: Sequence[T],
        choose: Callable[[Sequence[int], Sequence[T]], Iterable[int]],
        among: Found,
    ) -> Found:
        """Those of `among` that `choose` takes from `uids`, with the state of each beside it; a portion at a time."""
        found: set[int] = set()
        for start in range(0, len(uids), PORTION):
            found.update(choose(uids[start : start + PORTION], states[start : start + PORTION]))
            await asyncio.sleep(0)
        return among & found

    async def of_recent(self, key: search.Recent, among: Found) -> Found:
        return {uid for uid in among if self._selected.is_recent(uid)}

    async def of_uids(self, key: search.Uids, among: Found) -> Found:
        return among & self._at(key.uids.resolve_uids(self._selected.told_uids()))

    def _at(self, parts: Iterable[range]) -> set[int]:
        uids = self._selected.uids
        return {uid for part in parts for uid in uids[part.start : part.stop]}

    # -- columns

    async def _test(self, test: Question, argument: int | str | date | datetime, among: Found) -> Found:
        return among & await self._session.shared.search.test(
            self._selected.ref, self._selected.view.id, test, argument
        )

    async def of_larger(self, key: search.Larger, among: Found) -> Found:
        return await self._test(Question.LARGER, key.octets, among)

    async def of_smaller(self, key: search.Smaller, among: Found) -> Found:
        return await self._test(Question.SMALLER, key.octets, among)

    async def of_older(self, key: search.Older, among: Found) -> Found:
        return await self._test(Question.OLDER, self._ago(key.seconds), among)

    async def of_younger(self, key: search.Younger, among: Found) -> Found:
        return await self._test(Question.YOUNGER, self._ago(key.seconds), among)

    def _ago(self, seconds: int) -> datetime:
        now = self._session.services.clock.now()
        # Nothing is older than the epoch, and the calendar ends sooner than the range of numbers.
        return now - timedelta(seconds=min(seconds, int(now.timestamp())))

    async def of_object_id(self, key: search.ObjectId, among: Found) -> Found:
        return await self._test(
            Question.THREAD_ID if key.thread else Question.EMAIL_ID, key.id.replace("\0", ""), among
        )

    async def of_dated(self, key: search.Dated, among: Found) -> Found:
        if key.kind is not DateKind.SENT:
            return await self._test(_DATE_TESTS[key.kind, key.test], key.day, among)
        # The column is the moment, bounded to what is likely; the key is about the day that the header names.
        compare = _COMPARE[key.test]
        found = set()
        async for uid, facts in self.facts(among, Columns.ENVELOPE):
            day = _sent_day(facts.envelope or b"")
            if day is not None and compare(day, key.day):
                found.add(uid)
        return found

    # -- texts

    async def of_contains(self, key: search.Contains, among: Found) -> Found:
        if not self._fuzzy:
            return await self._containing(key, among)
        if key.field in (TextField.BODY, TextField.TEXT):
            # What has it as it stands fits best; the index knows what is like it.
            exact = await self._containing(key, among)
            scores = await similar_texts(self._session, self._selected.ref, self._selected.view.id, key.text)
            found = {uid: score for uid, score in scores.items() if uid in among and uid not in exact}
        else:
            exact = frozenset()
            found = await similar_fields(self.facts(among, Columns.ENVELOPE), key)
        for uid, score in found.items():
            self.scores[uid] = min(score, self.scores.get(uid, score))
        return exact | found.keys()

    async def _containing(self, key: search.Contains, among: Found) -> Found:
        needle = fold(key.text)
        if key.field is TextField.SUBJECT:
            return among if not needle else await self._test(Question.SUBJECT, needle.replace("\0", ""), among)
        if key.field in (TextField.BODY, TextField.TEXT):
            if not needle:
                return among
            found = await self._in_bodies(needle, among)
            if key.field is TextField.BODY:
                return found
            return found | await self._in_headers(None, needle, among - found)
        return await self._in_headers(key.field.value, needle, among)

    async def of_header(self, key: search.Header, among: Found) -> Found:
        return await self._in_headers(key.name, fold(key.text), among)

    async def _in_bodies(self, needle: str, among: Found) -> set[int]:
        if "\0" in needle:
            return set()
        among = await self._narrowed(needle, among)
        found: set[int] = set()
        async for uids in self._session.shared.search.in_text(
            self._selected.ref, self._selected.view.id, needle, sorted(among)
        ):
            found.update(uids)
        return found & among

    async def _narrowed(self, needle: str, among: Found) -> Found:
        """Those of `among` that the word index does not rule out."""
        if needle not in self._candidates:
            session = self._session
            folder = self._selected.view.id
            self._candidates[needle] = await session.shared.search.candidates(self._selected.ref, folder, needle)
        candidates = self._candidates[needle]
        return among if candidates is None else among & candidates

    async def _in_headers(self, name: str | None, needle: str, among: Found) -> set[int]:
        """Messages with `needle` in a field called `name`, or in any that a person may read; without a needle the field
        is enough.
        """
        if name is None or not is_machine_made(name):
            among = await self._narrowed(needle, among)
        found: set[int] = set()
        async with ReadAhead(self._headers(among)) as pages:
            async for page in pages:
                for uid, block in page:
                    if await _has_text(block, name, needle):
                        found.add(uid)
        return found

    async def _headers(self, among: Found) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Header blocks of messages as stored, in pages; one that cannot be read is passed over."""
        blobs = self._session.services.blobs
        spans: list[tuple[int, Span]] = []
        octets = 0

        async def read() -> list[tuple[int, bytes]]:
            results = await blobs.get_many([span for _, span in spans])
            return [
                (uid, data) for (uid, _), data in zip(spans, results, strict=True) if not isinstance(data, StorageError)
            ]

        async for uid, facts in self.facts(among, Columns.BYTES | Columns.PARTS):
            root = unpack_tree(facts.part_tree or b"")
            # What is longer is nobody's to read: ENVELOPE and the word index end there as well.
            end = min(max(root.header_start, root.body_start), root.header_start + MAX_HEADER_BYTES)
            spans.append((uid, Span(str(facts.blob_key), root.header_start, end)))
            octets += end - root.header_start
            if len(spans) >= _PAGE or octets >= _PAGE_BYTES:
                yield await read()
                spans.clear()
                octets = 0
        yield await read()

    async def facts(self, among: Iterable[int], columns: Columns) -> AsyncIterator[tuple[int, Facts]]:
        """Facts of those that are still there, in mailbox order."""
        uids = sorted(among)
        shared, folder = self._session.shared, self._selected.view.id
        keep = len(uids) <= FactCache.SCAN
        for start in range(0, len(uids), _FACTS_PAGE):
            part = uids[start : start + _FACTS_PAGE]
            rows = await shared.facts.load(self._selected.ref, folder, part, columns, keep=keep)
            for place, (uid, facts) in enumerate(zip(part, rows, strict=True)):
                if facts is not None:
                    yield uid, facts
                if not place % _TURN:
                    await asyncio.sleep(0)

    def values(self, uids: Iterable[int], kinds: Sequence[Kind]) -> AsyncIterator[list[tuple[int, list[Value]]]]:
        """What those that are still there are sorted by, in mailbox order, a batch at a time."""
        return self._session.shared.values.load(self._selected.ref, self._selected.view.id, uids, kinds)


async def _has_text(block: bytes, name: str | None, needle: str) -> bool:
    """Whether a header block has `needle` (folded) in a field called `name`, or in any that a person may read. Others
    have their turn after every so many octets.
    """
    # Where nothing is to be decoded, whatever a field can hold stands there, and most blocks are done with at once.
    plain = needle and needle.isascii() and block.isascii() and b"=?" not in block
    if plain and needle.encode() not in _FOLDING.sub(b"", block).lower():
        return False
    headers = Headers.parse(block)
    if name is not None:
        values: Iterable[str] = (decode_value(value) for value in headers.get_all_raw(name))
    else:
        values = (f"{field}: {value}" for field, value in headers if not is_machine_made(field))
    since = 0
    for value in values:
        if needle in fold(value):
            return True
        since += len(value)
        if since > _LONG:
            since = 0
            await asyncio.sleep(0)
    return False


_DATE_TESTS: Final = {
    (DateKind.INTERNAL, DateTest.BEFORE): Question.INTERNAL_BEFORE,
    (DateKind.INTERNAL, DateTest.ON): Question.INTERNAL_ON,
    (DateKind.INTERNAL, DateTest.SINCE): Question.INTERNAL_SINCE,
    (DateKind.SAVED, DateTest.BEFORE): Question.SAVED_BEFORE,
    (DateKind.SAVED, DateTest.ON): Question.SAVED_ON,
    (DateKind.SAVED, DateTest.SINCE): Question.SAVED_SINCE,
}
_COMPARE: Final[Mapping[DateTest, Callable[[date, date], bool]]] = MappingProxyType(
    {
        DateTest.BEFORE: lambda day, asked: day < asked,
        DateTest.ON: lambda day, asked: day == asked,
        DateTest.SINCE: lambda day, asked: day >= asked,
    }
)


def _sent_day(envelope: bytes) -> date | None:
    """The day of the Date field, which is the first string of an ENVELOPE, its zone disregarded (RFC 3501 §6.4.4)."""
    if not envelope.startswith(b'("'):
        return None
    when = parse_date(envelope[2 : envelope.find(b'"', 2)].decode("latin-1"))
    return None if when is None else when.date()


_Answer = Callable[[Finder, Any, Found], Awaitable[Found]]

_KEYS: Final[Mapping[type[search.SearchKey], _Answer]] = MappingProxyType(
    {
        search.And: Finder.of_and,
        search.Or: Finder.of_or,
        search.Not: Finder.of_not,
        search.HasFlag: Finder.of_flag,
        search.ModSeq: Finder.of_modseq,
        search.Recent: Finder.of_recent,
        search.Uids: Finder.of_uids,
        search.Fuzzy: Finder.of_fuzzy,
        search.Larger: Finder.of_larger,
        search.Smaller: Finder.of_smaller,
        search.Older: Finder.of_older,
        search.Younger: Finder.of_younger,
        search.ObjectId: Finder.of_object_id,
        search.Dated: Finder.of_dated,
        search.Contains: Finder.of_contains,
        search.Header: Finder.of_header,
    }
)

_IN_MEMORY: Final = (search.HasFlag, search.ModSeq, search.Recent, search.Uids)


def _cost(key: search.SearchKey) -> int:
    """What a key costs, roughly: memory, a column, a text column, the bytes of messages."""
    if isinstance(key, _IN_MEMORY):
        return 0
    if isinstance(key, search.Not | search.Fuzzy):
        return _cost(key.key)
    if isinstance(key, search.Or):
        return max(_cost(key.left), _cost(key.right))
    if isinstance(key, search.And):
        return max(map(_cost, key.keys), default=0)
    if isinstance(key, search.Header):
        return 4
    if isinstance(key, search.Contains):
        return {TextField.SUBJECT: 2, TextField.BODY: 3}.get(key.field, 4)
    return 1
