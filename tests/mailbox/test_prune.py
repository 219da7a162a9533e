"""The change log loses its beginning only, and says how much of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox import prune
from postroom.mailbox.prune import prune_changes

from .letters import Pen, make_boxes, raw_mail


@pytest.mark.covers("decisions:A7", "decisions:D12")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.integers(-5000, 5000), min_size=1, max_size=12), age=st.integers(-6000, 6000))
async def test_what_is_left_has_no_gaps(
    db: Database, clock: ManualClock, ids: IdGenerator, steps: list[int], age: int
) -> None:
    """The clock goes back and forth between changes."""
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    async with db.acquire() as conn:
        for n, step in enumerate(steps):
            clock.set(clock.now() + timedelta(seconds=step))
            await pen.store(conn, [pen.copy(box, raw_mail(body=f"{n}"))])
        before = await conn.fetch("SELECT * FROM changes WHERE mailbox_id = $1 ORDER BY seq", box.ref.mailbox_id)
    limit = clock.now() - timedelta(seconds=age)
    await prune_changes(db, limit)
    async with db.acquire() as conn:
        left = [r["seq"] for r in await conn.fetch("SELECT seq FROM changes WHERE mailbox_id = $1", box.ref.mailbox_id)]
        pruned = await conn.fetch("SELECT id, pruned_modseq FROM folders WHERE mailbox_id = $1", box.ref.mailbox_id)
    last = before[-1]["seq"]
    first = next((row["seq"] for row in before if row["at"] >= limit), last + 1)
    assert sorted(left) == list(range(first, last + 1))
    for folder in pruned:
        gone = [r["modseq"] for r in before if r["folder_id"] == folder["id"] and r["seq"] < first]
        assert folder["pruned_modseq"] == max(gone, default=0)


@pytest.mark.covers("decisions:A7", "decisions:B14")
async def test_a_mailbox_that_is_being_written_is_left_for_later(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    one, two = await make_boxes(db, ids, clock, 2)
    clock.advance(86_400)
    other = await db.connect()
    try:
        async with other.transaction():
            await other.execute("SELECT FROM mailboxes WHERE id = $1 FOR NO KEY UPDATE", one.ref.mailbox_id)
            assert await prune_changes(db, clock.now()) == 6
    finally:
        await other.close()
    assert await prune_changes(db, clock.now()) == 6
    assert await prune_changes(db, clock.now()) == 0
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM changes") == 0
        # The counter goes on: a number is never given twice.
        pen = Pen(ids, clock)
        await pen.store(conn, [pen.copy(two, raw_mail())])
        assert await conn.fetchval("SELECT seq FROM changes") == 7


@pytest.mark.covers("decisions:A7")
async def test_each_round_is_bounded(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_boxes(db, ids, clock, 5)
    clock.advance(86_400)
    monkeypatch.setattr(prune, "MAX_MAILBOXES", 2)
    monkeypatch.setattr(prune, "MAX_ROWS", 4)
    rounds = []
    while done := await prune_changes(db, clock.now()):
        rounds.append(done)
    assert sum(rounds) == 30
    assert max(rounds) <= 8
