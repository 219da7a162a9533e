"""Answers of the DNS that may be used again: bounded by number and by size, forgotten at the end of their time."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, TypeAlias

from postroom.net.dns_types import Failure, IpAddress, Kind, MxRecord, TlsaRecord

AnyRecord: TypeAlias = IpAddress | MxRecord | TlsaRecord | bytes | str

_ENTRY_BYTES: Final = 400
_RECORD_BYTES: Final = 100
"""What the objects of an entry and of a record weigh beside their text, about."""


@dataclass(frozen=True, slots=True)
class Found:
    """Records. `ttl` in seconds, as the name server gave it."""

    canonical: str
    records: tuple[AnyRecord, ...]
    ttl: int
    authenticated: bool


@dataclass(frozen=True, slots=True)
class Absent:
    """No record; `name_exists` tells NODATA from NXDOMAIN. `ttl` by RFC 2308 §5; `None`: not to be kept."""

    canonical: str
    name_exists: bool
    ttl: int | None
    authenticated: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """Nobody could say."""

    reason: Failure


Outcome: TypeAlias = Found | Absent | Failed
Question: TypeAlias = tuple[str, Kind]


@dataclass(frozen=True, slots=True)
class _Entry:
    outcome: Outcome
    until: float
    weight: int


class AnswerCache:
    """The outcomes used last. Times are those of one monotonic clock, which the caller reads."""

    def __init__(self, *, entries: int, size_bytes: int) -> None:
        self._most, self._most_bytes = entries, size_bytes
        self._kept: OrderedDict[Question, _Entry] = OrderedDict()
        self.weight = 0
        """Bytes of all entries, estimated."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, question: Question, now: float) -> tuple[Outcome, float] | None:
        """The outcome and the seconds that are left to it, or `None`."""
        entry = self._kept.get(question)
        if entry is None:
            return None
        if entry.until <= now:
            self._drop(question)
            return None
        self._kept.move_to_end(question)
        return entry.outcome, entry.until - now

    def put(self, question: Question, outcome: Outcome, now: float, seconds: float) -> None:
        """Keep `outcome` for `seconds`; what was used longest ago makes room. Nothing is kept for no time."""
        if question in self._kept:
            self._drop(question)
        weight = _weight(question, outcome)
        if seconds <= 0 or weight > self._most_bytes or self._most < 1:
            return
        self._kept[question] = _Entry(outcome, now + seconds, weight)
        self.weight += weight
        while len(self._kept) > self._most or self.weight > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        self._kept.clear()
        self.weight = 0

    def _drop(self, question: Question) -> None:
        self.weight -= self._kept.pop(question).weight


def _weight(question: Question, outcome: Outcome) -> int:
    weight = _ENTRY_BYTES + len(question[0])
    if isinstance(outcome, Found):
        weight += len(outcome.canonical) + sum(_RECORD_BYTES + _text(record) for record in outcome.records)
    return weight


def _text(record: AnyRecord) -> int:
    if isinstance(record, bytes | str):
        return len(record)
    if isinstance(record, MxRecord):
        return len(record.exchange)
    return len(record.data) if isinstance(record, TlsaRecord) else 0
