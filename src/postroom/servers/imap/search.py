"""SEARCH (mail-server D7; RFC 3501 §6.4.4, RFC 4731, RFC 5032).

The tree is evaluated over sets of UIDs. What the session knows (numbers, UIDs, flags, \\Recent) is answered from
memory; other keys are questions to the database, asked of what the keys before them left over, cheap ones first.
Headers are read from the store only for keys that no column answers, texts only for BODY and TEXT.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from postroom.blobs import Span, StorageError
from postroom.imap import commands as c
from postroom.imap import render, search
from postroom.imap.search import DateKind, DateTest, ReturnOption, TextField
from postroom.imap.sequence import compress
from postroom.mail.date import parse_date
from postroom.mail.header import Headers
from postroom.mail.tree import unpack_tree
from postroom.mailbox.folding import fold
from postroom.mailbox.reads import Columns
from postroom.mailbox.search import Question
from postroom.mailbox.words import is_machine_made
from postroom.servers.imap.ahead import ReadAhead
from postroom.servers.imap.facts import Facts
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Done, Session

Found = frozenset[int] | set[int]
"""UIDs."""

_PAGE: Final = 100
"""Headers read at a time; usual ones are looked through in a few milliseconds."""
_LONG: Final = 16_384
"""Octets of a header that takes a millisecond to look through, so that others have their turn after it."""
_FACTS_PAGE: Final = 1000
_FOLDING: Final = re.compile(rb"\r*\n(?=[ \t])")


async def run(session: Session, command: c.Search) -> Done:
    """SEARCH, UID SEARCH; with RETURN the answer is ESEARCH."""
    selected = session.folder()
    by_modseq = _asks_modseq(command.key)
    if by_modseq:
        session.enable("CONDSTORE")
    await session.refresh()
    universe = selected.told_uids()
    found = await _Search(session, selected).find(command.key, frozenset(universe))
    uids = [uid for uid in universe if uid in found]
    numbers: Sequence[int] = uids
    if not command.uid:
        numbers = [place + 1 for place, uid in enumerate(universe) if uid in found]
    modseq = max(map(selected.modseq, uids), default=0) if by_modseq else 0
    if command.returns is None:
        session.write(render.search_line(numbers, modseq or None))
    else:
        results = _results(command.returns, numbers)
        if modseq:
            results.append(("MODSEQ", b"%d" % modseq))
        session.write(render.esearch_line(session.tag, results, uid=command.uid))
    return Done("SEARCH completed")


def _asks_modseq(key: search.SearchKey) -> bool:
    """Whether MODSEQ stands anywhere in the tree (RFC 7162 §3.1.5)."""
    match key:
        case search.ModSeq():
            return True
        case search.And():
            return any(map(_asks_modseq, key.keys))
        case search.Or():
            return _asks_modseq(key.left) or _asks_modseq(key.right)
        case search.Not():
            return _asks_modseq(key.key)
    return False


def _results(wanted: Iterable[ReturnOption], numbers: Sequence[int]) -> list[tuple[str, bytes]]:
    """Parts of an ESEARCH response; MIN, MAX and ALL are left out when nothing was found (RFC 4731 §3.1)."""
    results = []
    for option in wanted:
        if option is ReturnOption.COUNT:
            results.append(("COUNT", b"%d" % len(numbers)))
        elif numbers and option is ReturnOption.MIN:
            results.append(("MIN", b"%d" % numbers[0]))
        elif numbers and option is ReturnOption.MAX:
            results.append(("MAX", b"%d" % numbers[-1]))
        elif numbers and option is ReturnOption.ALL:
            results.append(("ALL", compress(numbers)))
    return results


class _Search:
    """One SEARCH. Every `_of_…` method answers with those of `among` that meet its key."""

    def __init__(self, session: Session, selected: Selected) -> None:
        self._session = session
        self._selected = selected
        self._candidates: dict[str, frozenset[int] | None] = {}

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

    # -- what the session knows

    async def of_flag(self, key: search.HasFlag, among: Found) -> Found:
        view = self._selected.view
        return among & {uid for uid, words in zip(view.uids, view.flags, strict=True) if key.flag in words}

    async def of_modseq(self, key: search.ModSeq, among: Found) -> Found:
        view = self._selected.view
        return among & {uid for uid, modseq in zip(view.uids, view.modseqs, strict=True) if modseq >= key.modseq}

    async def of_recent(self, key: search.Recent, among: Found) -> Found:
        return {uid for uid in among if self._selected.is_recent(uid)}

    async def of_uids(self, key: search.Uids, among: Found) -> Found:
        return among & self._at(key.uids.resolve_uids(self._selected.told_uids()))

    async def of_numbers(self, key: search.Numbers, among: Found) -> Found:
        return among & self._at(key.numbers.resolve_sequence(self._selected.count, strict=False))

    def _at(self, parts: Iterable[range]) -> set[int]:
        uids = self._selected.uids
        return {uid for part in parts for uid in uids[part.start : part.stop]}

    # -- columns

    async def _test(self, test: Question, argument: int | str | date | datetime, among: Found) -> Found:
        return among & await self._session.shared.search.test(self._session.ref, self._selected.view.id, test, argument)

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
        async for uid, facts in self._facts(among, Columns.ENVELOPE):
            day = _sent_day(facts.envelope or b"")
            if day is not None and compare(day, key.day):
                found.add(uid)
        return found

    # -- texts

    async def of_contains(self, key: search.Contains, among: Found) -> Found:
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
            self._session.ref, self._selected.view.id, needle, sorted(among)
        ):
            found.update(uids)
        return found & among

    async def _narrowed(self, needle: str, among: Found) -> Found:
        """Those of `among` that the word index does not rule out."""
        if needle not in self._candidates:
            session = self._session
            folder = self._selected.view.id
            self._candidates[needle] = await session.shared.search.candidates(session.ref, folder, needle)
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
                    if _has_text(block, name, needle):
                        found.add(uid)
                    if len(block) > _LONG:
                        await asyncio.sleep(0)
        return found

    async def _headers(self, among: Found) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Header blocks of messages as stored, in pages; one that cannot be read is passed over."""
        blobs = self._session.services.blobs
        spans: list[tuple[int, Span]] = []

        async def read() -> list[tuple[int, bytes]]:
            results = await blobs.get_many([span for _, span in spans])
            return [
                (uid, data) for (uid, _), data in zip(spans, results, strict=True) if not isinstance(data, StorageError)
            ]

        async for uid, facts in self._facts(among, Columns.BYTES | Columns.PARTS):
            root = unpack_tree(facts.part_tree or b"")
            spans.append((uid, Span(str(facts.blob_key), root.header_start, max(root.header_start, root.body_start))))
            if len(spans) >= _PAGE:
                yield await read()
                spans.clear()
        yield await read()

    async def _facts(self, among: Found, columns: Columns) -> AsyncIterator[tuple[int, Facts]]:
        uids = sorted(among)
        shared, folder = self._session.shared, self._selected.view.id
        for start in range(0, len(uids), _FACTS_PAGE):
            part = uids[start : start + _FACTS_PAGE]
            for uid, facts in zip(part, await shared.facts.load(self._session.ref, folder, part, columns), strict=True):
                if facts is not None:
                    yield uid, facts


def _has_text(block: bytes, name: str | None, needle: str) -> bool:
    """Whether a header block has `needle` (folded) in a field called `name`, or in any that a person may read."""
    # Where nothing is to be decoded, whatever a field can hold stands there, and most blocks are done with at once.
    plain = needle and needle.isascii() and block.isascii() and b"=?" not in block
    if plain and needle.encode() not in _FOLDING.sub(b"", block).lower():
        return False
    headers = Headers.parse(block)
    if name is None:
        return any(needle in fold(f"{field}: {value}") for field, value in headers if not is_machine_made(field))
    return any(needle in fold(value) for value in headers.get_all(name))


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


_Answer = Callable[[_Search, Any, Found], Awaitable[Found]]

_KEYS: Final[Mapping[type[search.SearchKey], _Answer]] = MappingProxyType(
    {
        search.And: _Search.of_and,
        search.Or: _Search.of_or,
        search.Not: _Search.of_not,
        search.HasFlag: _Search.of_flag,
        search.ModSeq: _Search.of_modseq,
        search.Recent: _Search.of_recent,
        search.Uids: _Search.of_uids,
        search.Numbers: _Search.of_numbers,
        search.Larger: _Search.of_larger,
        search.Smaller: _Search.of_smaller,
        search.Older: _Search.of_older,
        search.Younger: _Search.of_younger,
        search.ObjectId: _Search.of_object_id,
        search.Dated: _Search.of_dated,
        search.Contains: _Search.of_contains,
        search.Header: _Search.of_header,
    }
)

_IN_MEMORY: Final = (search.HasFlag, search.ModSeq, search.Recent, search.Uids, search.Numbers)


def _cost(key: search.SearchKey) -> int:
    """What a key costs, roughly: memory, a column, a text column, the bytes of messages."""
    if isinstance(key, _IN_MEMORY):
        return 0
    if isinstance(key, search.Not):
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
