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
from postroom.servers.imap.values import ValueCache, values_of

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

    async def load(self, ref: Any, folder: Any, uids: Sequence[int], columns: Columns) -> list[FetchRow | None]:
        assert columns is Columns.ENVELOPE
        self.asked += uids
        return [_row(uid, Subject=f"Re: number {uid}") if uid <= self.last else None for uid in uids]


async def _loaded(cache: ValueCache, uids: Sequence[int]) -> list[tuple[int, str]]:
    return [(uid, one.subject) async for batch in cache.load(REF, FOLDER, uids) for uid, one in batch]


@pytest.mark.covers("RFC 5256 §2.2", "RFC 5256 §3", "RFC 5957 §3")
def test_values() -> None:
    found = values_of(
        _row(
            1,
            Subject="Re: [x] =?utf-8?q?STRA=C3=9FE?= (fwd)",
            From='"Bear, A." <ABear@X.example>, other@x.example',
            To="Joe@Y.example",
            Date="Tue, 01 Jan 2030 01:00:00 +0100",
        )
    )
    assert (found.subject, found.is_reply) == ("strasse", True)
    assert (found.author, found.to, found.cc) == ("abear", "joe", "")
    assert (found.shown_author, found.shown_to) == ("bear, a.", "joe@y.example")
    assert found.sent == found.arrival == ARRIVED.timestamp()
    assert values_of(_row(1, Date="no date")).sent == ARRIVED.timestamp()


async def test_values_are_kept_and_bounded() -> None:
    facts = _Facts(3000)
    cache = ValueCache(cast(FactCache, facts), limit=1000)
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
