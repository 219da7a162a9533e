"""What messages are sorted and threaded by, worked out once and kept for a while: a UID is for ever, as in `facts`.

Each kind of value is worked out and kept by itself, in columns that are small and that the collector of garbage need
not look at: sorting 200,000 messages by date keeps 1.6 MB.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from math import isnan, nan
from types import MappingProxyType
from typing import Any, Final

from postroom.imap.subject import base_subject
from postroom.mail.date import parse_date
from postroom.mail.envelope_reading import EnvelopeValues, Person, read_envelope
from postroom.mailbox.folding import fold
from postroom.mailbox.models import FolderKey, MailboxRef
from postroom.mailbox.reads import Columns
from postroom.servers.imap.facts import FactCache, Facts

MAX_KEPT: Final = 32 * 1024 * 1024
"""Octets, roughly."""
_PAGE_BITS: Final = 8
_PAGE: Final = 1 << _PAGE_BITS
_PORTION: Final = 64
"""Messages whose values are worked out in one go, in about a millisecond."""
_BATCH: Final = 500
_STRING: Final = 60
"""Octets that a string costs beside its text."""


class Kind(Enum):
    """A value of a message. Dates in seconds, texts folded (RFC 5256 §2.1, §2.2, §5.1), "" for what is not there, so
    that it comes first.
    """

    ARRIVAL = auto()
    SIZE = auto()
    SENT = auto()
    """The internal date where the message has none (RFC 5256 §2.2)."""
    SUBJECT = auto()
    """Its base."""
    IS_REPLY = auto()
    """1 or 0: whether the subject says so."""
    AUTHOR = auto()
    """The local part, as `TO` and `CC`."""
    TO = auto()
    CC = auto()
    SHOWN_AUTHOR = auto()
    """The display name, else the address (RFC 5957 §3)."""
    SHOWN_TO = auto()


NUMBERS: Final = frozenset({Kind.ARRIVAL, Kind.SIZE, Kind.SENT, Kind.IS_REPLY})
_OF_ROW: Final = frozenset({Kind.ARRIVAL, Kind.SIZE})

Value = Any
"""A float or a str, as its kind says."""


def values_of(facts: Facts, kinds: Iterable[Kind]) -> list[Value]:
    """The values of a message; all but ARRIVAL and SIZE need it to be read with `Columns.ENVELOPE`."""
    envelope: EnvelopeValues | None = None
    values: list[Value] = []
    for kind in kinds:
        if kind is Kind.ARRIVAL:
            values.append(facts.internal_date.timestamp())
        elif kind is Kind.SIZE:
            values.append(float(facts.size))
        elif kind is Kind.SENT:
            sent = parse_date(written) if (written := _date(facts.envelope or b"")) else None
            values.append((facts.internal_date if sent is None else sent).timestamp())
        else:
            envelope = envelope or read_envelope(facts.envelope or b"")
            values.append(_OF_ENVELOPE[kind](envelope))
    return values


def _date(envelope: bytes) -> str:
    """The Date field: the first string, which is quoted but for odd ones."""
    if envelope.startswith(b'("'):
        written = envelope[2 : envelope.find(b'"', 2)]
        if b"\\" not in written:
            return written.decode("utf-8", "replace")
    return read_envelope(envelope).date


def _shown(person: Person) -> str:
    if person.name:
        return fold(person.name)
    local = fold(person.local)
    return f"{local}@{fold(person.domain)}" if person.domain else local


_OF_ENVELOPE: Final[Mapping[Kind, Callable[[EnvelopeValues], Value]]] = MappingProxyType(
    {
        Kind.SUBJECT: lambda envelope: fold(base_subject(envelope.subject).text),
        Kind.IS_REPLY: lambda envelope: float(base_subject(envelope.subject).is_reply),
        Kind.AUTHOR: lambda envelope: fold(envelope.author.local),
        Kind.TO: lambda envelope: fold(envelope.to.local),
        Kind.CC: lambda envelope: fold(envelope.cc.local),
        Kind.SHOWN_AUTHOR: lambda envelope: _shown(envelope.author),
        Kind.SHOWN_TO: lambda envelope: _shown(envelope.to),
    }
)


class _Page:
    """Values of one kind of a run of UIDs; what is not known is nan or None."""

    __slots__ = ("values", "weight")

    def __init__(self, kind: Kind) -> None:
        self.values: Any = array("d", [nan]) * _PAGE if kind in NUMBERS else [None] * _PAGE
        self.weight = 8 * _PAGE


class ValueCache:
    """At most about `limit` octets of values, the latest used; runs of UIDs come and go together."""

    def __init__(self, facts: FactCache, limit: int = MAX_KEPT) -> None:
        self._facts = facts
        self._limit = limit
        self._pages: OrderedDict[tuple[FolderKey, int, Kind], _Page] = OrderedDict()
        self.weight = 0

    async def load(
        self, ref: MailboxRef, folder: FolderKey, uids: Iterable[int], kinds: Sequence[Kind]
    ) -> AsyncIterator[list[tuple[int, list[Value]]]]:
        """Values of those of `uids` that still exist, in order of UID, a batch at a time, with turns for others."""
        ordered = sorted(uids)
        keep = len(ordered) <= FactCache.SCAN
        columns = Columns.NONE if _OF_ROW.issuperset(kinds) else Columns.ENVELOPE
        for start in range(0, len(ordered), _BATCH):
            batch = ordered[start : start + _BATCH]
            known = self._known(folder, batch, kinds)
            missing = [uid for uid in batch if uid not in known]
            if missing:
                rows = await self._facts.load(ref, folder, missing, columns, keep=keep)
                for place, (uid, facts) in enumerate(zip(missing, rows, strict=True)):
                    if facts is not None:
                        known[uid] = values = values_of(facts, kinds)
                        self._keep(folder, uid, kinds, values)
                    if not place % _PORTION:
                        await asyncio.sleep(0)
                self._trim()
            yield [(uid, known[uid]) for uid in batch if uid in known]
            await asyncio.sleep(0)

    def _known(self, folder: FolderKey, uids: Sequence[int], kinds: Sequence[Kind]) -> dict[int, list[Value]]:
        """Those of which all kinds are known."""
        known: dict[int, list[Value]] = {}
        number, columns = -1, None
        for uid in uids:
            if uid >> _PAGE_BITS != number:
                number = uid >> _PAGE_BITS
                columns = self._columns(folder, number, kinds)
            if columns is not None:
                at = uid & (_PAGE - 1)
                values = [column[at] for column in columns]
                if not any(value is None or (isinstance(value, float) and isnan(value)) for value in values):
                    known[uid] = values
        return known

    def _columns(self, folder: FolderKey, number: int, kinds: Sequence[Kind]) -> list[Sequence[Value]] | None:
        columns: list[Sequence[Value]] = []
        for kind in kinds:
            page = self._pages.get((folder, number, kind))
            if page is None:
                return None
            self._pages.move_to_end((folder, number, kind))
            columns.append(page.values)
        return columns

    def _keep(self, folder: FolderKey, uid: int, kinds: Sequence[Kind], values: Sequence[Value]) -> None:
        for kind, value in zip(kinds, values, strict=True):
            key = (folder, uid >> _PAGE_BITS, kind)
            page = self._pages.get(key)
            if page is None:
                page = self._pages[key] = _Page(kind)
                self.weight += page.weight
            at = uid & (_PAGE - 1)
            if isinstance(value, str) and page.values[at] is None:
                page.weight += _STRING + len(value)
                self.weight += _STRING + len(value)
            page.values[at] = value

    def _trim(self) -> None:
        while self.weight > self._limit and len(self._pages) > 1:
            _, gone = self._pages.popitem(last=False)
            self.weight -= gone.weight
