"""What messages are sorted by, worked out once (RFC 5256 §2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from postroom.mail.envelope import render_envelope
from postroom.mail.header import Headers
from postroom.mailbox.models import FolderKey, MailboxRef
from postroom.mailbox.reads import Columns, FetchRow
from postroom.servers.imap.facts import FactCache
from postroom.servers.imap.values import Kind, ValueCache, values_of

REF, FOLDER = MailboxRef(1, 1), FolderKey(1)
ARRIVED = datetime(2030, 1, 1, tzinfo=UTC)


def _row(uid: int, **fields: str) -> FetchRow:
    block = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    envelope = render_envelope(Headers.parse(block.encode() + b"\r\n"))
    return FetchRow(uid, (), 1, ARRIVED, ARRIVED, 100, envelope=envelope)


class _Facts:
    """Messages 1 to `last`, each as often as it is asked for."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.asked: list[int] = []
        self.columns: set[Columns] = set()

    async def load(
        self, ref: Any, folder: Any, uids: Sequence[int], columns: Columns, *, keep: bool
    ) -> list[FetchRow | None]:
        self.columns.add(columns)
        assert keep
        self.asked += uids
        return [_row(uid, Subject=f"Re: number {uid}") if uid <= self.last else None for uid in uids]


async def _loaded(cache: ValueCache, uids: Sequence[int]) -> list[tuple[int, str]]:
    return [(uid, one[0]) async for batch in cache.load(REF, FOLDER, uids, (Kind.SUBJECT,)) for uid, one in batch]


@pytest.mark.covers("RFC 5256 §2.2", "RFC 5256 §3", "RFC 5957 §3")
def test_values() -> None:
    row = _row(
        1,
        Subject="Re: [x] =?utf-8?q?STRA=C3=9FE?= (fwd)",
        From='"Bear, A." <ABear@X.example>, other@x.example',
        To="Joe@Y.example",
        Date="Tue, 01 Jan 2030 01:00:00 +0100",
    )
    found = dict(zip(Kind, values_of(row, Kind), strict=True))
    assert found == {
        Kind.ARRIVAL: ARRIVED.timestamp(),
        Kind.SIZE: 100,
        Kind.SENT: ARRIVED.timestamp(),
        Kind.SUBJECT: "strasse",
        Kind.IS_REPLY: 1,
        Kind.AUTHOR: "abear",
        Kind.TO: "joe",
        Kind.CC: "",
        Kind.SHOWN_AUTHOR: "bear, a.",
        Kind.SHOWN_TO: "joe@y.example",
    }
    for date in ("no date", 'a "quoted" one', "t\u00f6day", ""):
        assert values_of(_row(1, Date=date), [Kind.SENT]) == [ARRIVED.timestamp()]
    odd = _row(1, Date="Tue, 01 Jan 2030 02:00:00 +0100 (\\a)")
    assert values_of(odd, [Kind.SENT]) == [ARRIVED.timestamp() + 3600]


async def test_values_are_kept_and_bounded() -> None:
    facts = _Facts(3000)
    cache = ValueCache(cast(FactCache, facts), limit=100_000)
    assert await _loaded(cache, [5, 3, 4000]) == [(3, "number 3"), (5, "number 5")]
    facts.asked.clear()
    assert [uid for uid, _ in await _loaded(cache, range(1, 601))] == list(range(1, 601))
    assert set(facts.asked) == set(range(1, 601)) - {3, 5}
    facts.asked.clear()
    await _loaded(cache, range(1, 601))
    assert facts.asked == []
    await _loaded(cache, range(1001, 2501))
    facts.asked.clear()
    await _loaded(cache, range(1, 601))
    assert len(facts.asked) == 600
    assert facts.columns == {Columns.ENVELOPE}


async def test_each_kind_is_kept_by_itself_and_small() -> None:
    facts = _Facts(5000)
    cache = ValueCache(cast(FactCache, facts))
    uids = range(1, 5001)
    for kinds in ((Kind.ARRIVAL, Kind.SIZE), (Kind.SENT,), (Kind.SENT, Kind.ARRIVAL)):
        found = [one async for batch in cache.load(REF, FOLDER, uids, kinds) for one in batch]
        assert [uid for uid, _ in found] == list(uids)
        assert {tuple(values) for _, values in found} == {
            tuple(100 if kind is Kind.SIZE else ARRIVED.timestamp() for kind in kinds)
        }
    # Dates and sizes are in the rows; of what is known nothing was asked again.
    assert facts.columns == {Columns.NONE, Columns.ENVELOPE}
    assert len(facts.asked) == 10_000
    assert cache.weight < 3 * 9 * 5000
