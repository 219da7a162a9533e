"""FETCH (mail-server D6): planned once, then page by page, the next one being read while this one is written (B16)."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from postroom.base import log as base_log
from postroom.blobs import StorageError
from postroom.imap import BadCommand, Code, ProtocolNo, render
from postroom.imap import commands as c
from postroom.imap.fetch import ChangedSince, FetchAtt, FetchItem, Vanished, Window
from postroom.imap.flags import SEEN
from postroom.imap.partial import window
from postroom.imap.sequence import paged
from postroom.mail import imap_data
from postroom.mail.tree import unpack_tree
from postroom.mailbox.flags import FlagsNow
from postroom.mailbox.reads import Columns
from postroom.mailbox.rules import FlagMode, Flags
from postroom.servers.imap import binary
from postroom.servers.imap.ahead import ReadAhead
from postroom.servers.imap.answers import Done
from postroom.servers.imap.bounds import bounded
from postroom.servers.imap.facts import Facts
from postroom.servers.imap.failures import Disconnected
from postroom.servers.imap.sections import Piece, SectionItem, UnknownEncoding, pieces, section_items
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.session import Session
from postroom.servers.imap.store import GONE
from postroom.servers.imap.vanished import tell_vanished

PAGE: Final = 1000
"""Messages of a page of facts."""
BYTES_PAGE: Final = 200
"""Messages of a page with octets."""
READ_BYTES: Final = 512 * 1024
"""Octets read from the store at a time."""
STREAM_BYTES: Final = 1024 * 1024
"""A section of more octets than this is never held whole."""

_log = base_log.get("servers.imap")

BODY_MISSING: Final = ProtocolNo(Code.SERVERBUG, "message body missing")
UNKNOWN_ENCODING: Final = ProtocolNo(Code.UNKNOWN_CTE, "A part has an unknown Content-Transfer-Encoding")
PREVIEW_CHARS: Final = 200
"""RFC 8970 §3.3."""


def _plain_structure(facts: Facts) -> bytes:
    return imap_data.body(unpack_tree(facts.part_tree or b""))


def _preview(facts: Facts) -> bytes:
    """Made when the message came, so it is never NIL; a literal unless it is ASCII (RFC 8970 §3.2)."""
    return render.string((facts.snippet or "")[:PREVIEW_CHARS].encode())


@dataclass(frozen=True, slots=True)
class _Fact:
    """How an item is made from the facts of a message, and what has to be read for it."""

    columns: Columns
    form: bytes
    value: Callable[[Facts], bytes | int]


_FACTS: Final = {
    FetchAtt.INTERNALDATE: _Fact(
        Columns.NONE, b"INTERNALDATE %b", lambda facts: render.internal_date(facts.internal_date)
    ),
    FetchAtt.RFC822_SIZE: _Fact(Columns.NONE, b"RFC822.SIZE %d", lambda facts: facts.size),
    FetchAtt.ENVELOPE: _Fact(Columns.ENVELOPE, b"ENVELOPE %b", lambda facts: facts.envelope or b""),
    FetchAtt.BODYSTRUCTURE: _Fact(Columns.STRUCTURE, b"BODYSTRUCTURE %b", lambda facts: facts.body_structure or b""),
    FetchAtt.BODY_STRUCTURE_PLAIN: _Fact(Columns.PARTS, b"BODY %b", _plain_structure),
    FetchAtt.EMAILID: _Fact(Columns.IDS, b"EMAILID (%b)", lambda facts: str(facts.message_id).encode()),
    FetchAtt.THREADID: _Fact(Columns.IDS, b"THREADID (%b)", lambda facts: str(facts.thread_id).encode()),
    FetchAtt.PREVIEW: _Fact(Columns.PREVIEW, b"PREVIEW %b", _preview),
    FetchAtt.PREVIEW_LAZY: _Fact(Columns.PREVIEW, b"PREVIEW %b", _preview),
    FetchAtt.SAVEDATE: _Fact(Columns.NONE, b"SAVEDATE %b", lambda facts: render.internal_date(facts.saved_at)),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a FETCH needs of every message."""

    items: tuple[FetchItem, ...]
    sections: tuple[SectionItem, ...]
    columns: Columns
    needs_facts: bool
    has_flags: bool
    has_modseq: bool
    marks_seen: bool

    @classmethod
    def of(cls, items: Sequence[FetchItem], *, uid: bool) -> Plan:
        """The plan of a command; the UID form always shows the UID (RFC 3501 §6.4.8)."""
        if uid and all(item.att is not FetchAtt.UID for item in items):
            items = (FetchItem(FetchAtt.UID), *items)
        sections = tuple(section_items(items))
        columns = Columns.NONE
        for item in items:
            if item.att in _FACTS:
                columns |= _FACTS[item.att].columns
        if sections:
            columns |= Columns.BYTES
        if any(section.needs_tree for section in sections):
            columns |= Columns.PARTS
        atts = {item.att for item in items}
        return cls(
            items=tuple(item for item in items if item.att in _FACTS or item.att in _OF_VIEW),
            sections=sections,
            columns=columns,
            needs_facts=bool(sections) or not atts.isdisjoint(_FACTS),
            has_flags=FetchAtt.FLAGS in atts,
            has_modseq=FetchAtt.MODSEQ in atts,
            marks_seen=any(section.marks_seen for section in sections),
        )


_OF_VIEW: Final = {FetchAtt.UID: b"UID %d", FetchAtt.FLAGS: b"FLAGS %b", FetchAtt.MODSEQ: b"MODSEQ (%d)"}


class _Shown(dict[Flags, bytes]):
    """Flags as the wire has them, made once."""

    def __missing__(self, words: Flags) -> bytes:
        shown = self[words] = render.flags(words)
        return shown


@dataclass(slots=True)
class _Page:
    """Messages of the session's list, by their places, with their facts if the plan needs them."""

    places: Sequence[int]
    uids: array[int]
    facts: list[Facts | None]


async def fetch(session: Session, command: c.Fetch) -> Done:
    """Messages that went meanwhile are left out; where they were named by number, that is a NO (D4, RFC 2180 §4.1)."""
    selected = session.folder()
    since, items = _changed_since(session, command)
    await session.refresh()
    resolved = selected.resolve(command.messages, uid=command.uid)
    for one in command.modifiers:
        if isinstance(one, Window):
            # Before what changed is looked for (RFC 9394 §3.4).
            resolved = window(resolved, one.partial.places(sum(map(len, resolved))))
    parts = tuple(resolved)
    if since is not None:
        if any(isinstance(one, Vanished) for one in command.modifiers):
            await tell_vanished(session, selected, since, command.messages)
        parts = tuple(selected.changed(resolved, since))
    wanted = bounded(session, selected, parts)
    plan = Plan.of(items, uid=command.uid)
    fetcher = Fetcher(session, selected, plan)
    await fetcher.run(wanted.parts)
    if fetcher.unreadable:
        # Octets go after the rows did: look whether these messages are still meant to be there.
        await session.refresh(force=True)
        if not all(map(selected.is_gone, fetcher.unreadable)):
            _log.error("message_body_missing", count=len(fetcher.unreadable))
            raise BODY_MISSING
        fetcher.gone = True
    if fetcher.has_unknown:
        raise UNKNOWN_ENCODING
    if fetcher.gone and not command.uid:
        raise GONE
    return Done(f"FETCH completed{wanted.suffix}", wanted.code)


def _changed_since(session: Session, command: c.Fetch) -> tuple[int | None, tuple[FetchItem, ...]]:
    """From which modseq on messages are meant, and the items: MODSEQ is among them then (RFC 7162 §3.1.4.1)."""
    since = next((one.modseq for one in command.modifiers if isinstance(one, ChangedSince)), None)
    if any(isinstance(one, Vanished) for one in command.modifiers) and not (
        command.uid and session.resyncs and since is not None
    ):
        raise BadCommand("VANISHED is for UID FETCH with CHANGEDSINCE, after QRESYNC was enabled")
    items = command.items
    if since is not None and all(item.att is not FetchAtt.MODSEQ for item in items):
        items = (*items, FetchItem(FetchAtt.MODSEQ))
    if any(item.att is FetchAtt.MODSEQ for item in items):
        session.enable("CONDSTORE")
    return since, items


class Fetcher:
    """Writes the responses of one FETCH, or of messages that are shown unasked. `run` raises what reading raises."""

    def __init__(self, session: Session, selected: Selected, plan: Plan) -> None:
        self._session = session
        self._selected = selected
        self._plan = plan
        self._shown = _Shown()
        self.gone = False
        self.unreadable: list[int] = []
        self.has_unknown = False

    async def run(self, parts: Iterable[range]) -> None:
        """Messages at these places; those that went are left out, and said so in `gone`."""
        if not self._plan.needs_facts:
            for places in paged(parts, PAGE):
                self._session.require_standing()
                self._write_rows(_Page(places, self._selected.uids_at(places), []))
                await self._session.drain()
            return
        write = self._write_with_bytes if self._plan.sections else self._write_facts
        async with ReadAhead(self._pages(parts)) as pages:
            async for page in pages:
                self._session.require_standing()
                await write(page)
                await self._session.drain()

    async def _pages(self, parts: Iterable[range]) -> AsyncIterator[_Page]:
        session, plan, view = self._session, self._plan, self._selected.view
        for places in paged(parts, BYTES_PAGE if plan.sections else PAGE):
            uids = self._selected.uids_at(places)
            facts = await session.shared.facts.load(view.ref, view.id, uids, plan.columns)
            yield _Page(places, uids, facts)

    # -- without octets

    async def _write_facts(self, page: _Page) -> None:
        self._write_rows(page)

    def _write_rows(self, page: _Page) -> None:
        """All responses of a page at once: a column for each item, then one format for each row."""
        flags: Sequence[Flags | None] = self._selected.flags_at(page.places)
        numbers: Sequence[int] = [place + 1 for place in page.places]
        modseqs = self._selected.modseqs_at(page.places) if self._plan.has_modseq else []
        uids: Sequence[int] = page.uids
        facts = page.facts
        if None in flags or not all(facts):
            self.gone = True
            kept = [
                place
                for place, words in enumerate(flags)
                if words is not None and (not facts or facts[place] is not None)
            ]
            flags = [flags[place] for place in kept]
            numbers = [numbers[place] for place in kept]
            uids = [uids[place] for place in kept]
            modseqs = [modseqs[place] for place in kept] if modseqs else modseqs
            facts = [facts[place] for place in kept] if facts else facts
        forms: list[bytes] = []
        columns: list[Sequence[object]] = []
        for item in self._plan.items:
            if item.att is FetchAtt.UID:
                columns.append(uids)
            elif item.att is FetchAtt.FLAGS:
                columns.append(self._flag_column(uids, flags))
            elif item.att is FetchAtt.MODSEQ:
                columns.append(modseqs)
            else:
                fact = _FACTS[item.att]
                columns.append([fact.value(known) for known in facts if known is not None])
            forms.append(_OF_VIEW.get(item.att) or _FACTS[item.att].form)
        row = b"* %%d FETCH (%b)\r\n" % b" ".join(forms)
        self._session.write(b"".join(map(row.__mod__, zip(numbers, *columns, strict=True))))

    def _flag_column(self, uids: Sequence[int], flags: Sequence[Flags | None]) -> list[bytes]:
        shown = self._shown
        column = [shown[words] for words in flags if words is not None]
        selected = self._selected
        if selected.recent and uids:
            for place, uid in enumerate(uids):
                if selected.is_recent(uid):
                    column[place] = render.flags(flags[place] or (), recent=True)
        return column

    # -- with octets

    async def _write_with_bytes(self, page: _Page) -> None:
        flags = self._selected.flags_at(page.places)
        alive = [
            (place, uid, facts, words)
            for place, uid, facts, words in zip(page.places, page.uids, page.facts, flags, strict=True)
            if facts is not None and words is not None
        ]
        self.gone = self.gone or len(alive) < len(page.uids)
        plans = list(self._plans(alive))
        seen = await self._mark_seen([uid for _, uid, _, words, _ in plans if SEEN not in words])
        wants = [
            piece.span
            for _, _, _, _, found in plans
            for piece in found or ()
            if piece.span is not None and not _is_streamed(piece)
        ]
        source = self._session.services.blobs.batches(wants, READ_BYTES)
        async with ReadAhead(source) as batches:
            results = _Results(batches)
            for place, uid, facts, words, found in plans:
                if found is None:
                    self.unreadable.append(uid)
                    continue
                head = self._head(uid, facts, words, seen.get(uid))
                if not await self._write_message(place + 1, head, found, results):
                    self.unreadable.append(uid)

    async def _mark_seen(self, uids: list[int]) -> dict[int, FlagsNow]:
        """Set \\Seen where it is not; what these messages have then (D5)."""
        session, selected = self._session, self._selected
        # Asked for each page: a grant may be lowered meanwhile.
        if not self._plan.marks_seen or selected.read_only or not selected.box.may_write or not uids:
            return {}
        stored = await session.services.mailboxes.set_flags(selected.ref, selected.view.id, uids, FlagMode.ADD, (SEEN,))
        for now in stored:
            selected.silence(now.uid, now.modseq)
        return {now.uid: now for now in stored}

    def _plans(
        self, alive: Iterable[tuple[int, int, Facts, Flags]]
    ) -> Iterator[tuple[int, int, Facts, Flags, list[Piece] | None]]:
        for place, uid, facts, words in alive:
            try:
                yield place, uid, facts, words, self._pieces(facts)
            except UnknownEncoding:
                self.has_unknown = True

    def _pieces(self, facts: Facts) -> list[Piece] | None:
        try:
            return pieces(facts, self._plan.sections)
        except ValueError:
            _log.error("part_tree_unreadable")
            return None

    def _head(self, uid: int, facts: Facts, words: Flags, seen: FlagsNow | None) -> list[bytes]:
        """The items that are no octets; FLAGS and, where it is followed, MODSEQ also when \\Seen was just set."""
        items = []
        for item in self._plan.items:
            if item.att is FetchAtt.UID:
                items.append(b"UID %d" % uid)
            elif item.att in _FACTS:
                fact = _FACTS[item.att]
                items.append(fact.form % fact.value(facts))
        if seen is not None or self._plan.has_flags:
            now = words if seen is None else seen.flags
            items.append(b"FLAGS " + render.flags(now, recent=self._selected.is_recent(uid)))
        if self._plan.has_modseq or (seen is not None and self._session.follows_modseq):
            items.append(b"MODSEQ (%d)" % (self._selected.modseq(uid) if seen is None else seen.modseq))
        return items

    async def _write_message(self, number: int, head: list[bytes], found: list[Piece], results: _Results) -> bool:
        """One FETCH response; none, and False, when its octets are missing."""
        session = self._session
        values: list[_Value] = []
        failed = False
        for piece in found:
            # All of them are asked for, also after a failure: the results come in this order.
            value = await self._value(piece, results)
            failed = failed or value is None
            values.append(value or _NIL)
        if failed:
            return False
        session.write(b"* %d FETCH (%b" % (number, b" ".join(head)))
        gap = b" " if head else b""
        for piece, value in zip(found, values, strict=True):
            session.write(b"%b%b %b" % (gap, piece.label, value.head), value.octets)
            if value.chunks is not None:
                await self._stream(value.size, value.chunks)
            gap = b" "
        session.write(b")\r\n")
        await session.drain()
        return True

    async def _value(self, piece: Piece, results: _Results) -> _Value | None:
        """What an item shows; None when its octets are missing."""
        if piece.number is not None:
            return _Value(b"%d" % piece.number)
        if piece.span is None:
            return _NIL
        if not _is_streamed(piece):
            data = await results.next()
            return None if isinstance(data, StorageError) else _shown(piece, piece.value(data))
        if piece.coded is not None:
            return await self._decoded(piece)
        chunks = await self._open(piece)
        return None if chunks is None else _Value(render.literal_header(piece.size), b"", chunks, piece.size)

    async def _decoded(self, piece: Piece) -> _Value | None:
        reader = self._session.shared.binary
        try:
            content = await reader.read(piece)
        except StorageError:
            return None
        if piece.is_size:
            return _Value(b"%d" % content.size)
        if content.octets is not None:
            return _shown(piece, piece.cut(content.octets))
        start, count = (0, content.size) if piece.partial is None else piece.partial
        start = min(start, content.size)
        end = min(start + count, content.size)
        head = render.literal_header(end - start, binary=content.has_nul)
        return _Value(head, b"", reader.stream(piece, start, end), end - start)

    async def _open(self, piece: Piece) -> AsyncIterator[bytes] | None:
        """The octets of a large section, once it is sure that there are any."""
        assert piece.span is not None
        stream = self._session.services.blobs.stream(piece.span.key, start=piece.span.start, end=piece.span.end)
        try:
            first = await anext(stream)
        except (StorageError, StopAsyncIteration):
            return None
        return _chain(first, stream)

    async def _stream(self, left: int, chunks: AsyncIterator[bytes]) -> None:
        session = self._session
        try:
            async for chunk in chunks:
                left -= len(chunk)
                session.write(chunk)
                await session.drain()
        except StorageError:
            _log.error("message_body_cut")
        if left:
            # The client was promised more: the only way to say so is to go.
            raise Disconnected


@dataclass(frozen=True, slots=True)
class _Value:
    """An item's value: what stands before octets, and these, or where they come from and how many there are."""

    head: bytes
    octets: bytes = b""
    chunks: AsyncIterator[bytes] | None = None
    size: int = 0


_NIL: Final = _Value(b"NIL")


def _shown(piece: Piece, value: bytes) -> _Value:
    if piece.is_size:
        return _Value(b"%d" % len(value))
    # Where there is no NUL the client is told so by the form (RFC 3516 §4.3).
    return _Value(render.literal_header(len(value), binary=piece.coded is not None and b"\0" in value), value)


def _is_streamed(piece: Piece) -> bool:
    if piece.coded is not None:
        return piece.size > binary.SMALL
    return piece.size > STREAM_BYTES and piece.is_streamable


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


class _Results:
    """Results of a batched read, one by one."""

    def __init__(self, batches: AsyncIterator[list[bytes | StorageError]]) -> None:
        self._batches = batches
        self._batch: Iterator[bytes | StorageError] = iter(())

    async def next(self) -> bytes | StorageError:
        while True:
            for result in self._batch:
                return result
            self._batch = iter(await anext(self._batches))
