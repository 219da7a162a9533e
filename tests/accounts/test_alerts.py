"""Alerts fire once, last, and end by themselves (cli-config-ops C5, part F)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts.alerts import MISSES, Alerts, Condition, Severity, firing, turn
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database, DatabaseUnavailable

abouts = st.sampled_from(("a", "b", "c"))


@pytest.mark.covers("cli-config-ops:C5")
@given(st.lists(st.sets(abouts), max_size=12))
def test_an_alert_fires_once_and_ends_after_two_looks(looks: list[set[str]]) -> None:
    """Against a plain reading: it begins with the first look that finds it, and ends with the second in a row that does
    not."""
    state: dict[str, int] = {}
    for number, found in enumerate(looks):
        done = turn(state, sorted(found))
        for about in "abc":
            before = [about in look for look in looks[:number]]
            was = True in before and not any(
                before[at : at + MISSES] == [False] * MISSES and True not in before[at:] for at in range(len(before))
            )
            ends = was and about not in found and (before[-1:] == [False])
            assert (about in done.fired) == (about in found and not was), about
            assert (about in done.resolved) == ends, about
        for about in done.fired:
            state[about] = 0
        for about in done.missed:
            state[about] += 1
        for about in done.back:
            state[about] = 0
        for about in done.resolved:
            del state[about]
        assert len({*done.fired, *done.missed, *done.resolved, *done.back}) == sum(
            map(len, (done.fired, done.missed, done.resolved, done.back))
        )


class Wrong:
    """What there is to be found."""

    def __init__(self) -> None:
        self.abouts: Sequence[str] = ()
        self.error: Exception | None = None

    async def look(self, conn: Connection, now: datetime, most: int) -> Sequence[str]:
        if self.error is not None:
            raise self.error
        return self.abouts[:most]


@pytest.fixture
def wrong() -> Wrong:
    return Wrong()


@pytest.fixture
def alerts(db: Database, clock: ManualClock, ids: IdGenerator, wrong: Wrong) -> Alerts:
    conditions = (Condition("broken", Severity.TICKET, wrong.look), Condition("quiet", Severity.PAGE, _nothing))
    return Alerts(db, clock, ids, conditions)


async def _nothing(conn: Connection, now: datetime, most: int) -> Sequence[str]:
    return ()


async def names(db: Database) -> list[str]:
    async with db.acquire() as conn:
        return [one.name for one in await firing(conn)]


async def audited(db: Database) -> list[tuple[Any, ...]]:
    async with db.acquire() as conn:
        rows = await conn.fetch("SELECT action, target_id, details, tenant_id FROM audit_log ORDER BY id")
    return [tuple(row) for row in rows]


@pytest.mark.covers("cli-config-ops:C5")
async def test_it_is_told_when_it_begins_and_when_it_ends(
    alerts: Alerts, db: Database, clock: ManualClock, wrong: Wrong
) -> None:
    await alerts.run()
    assert await names(db) == []
    wrong.abouts = ["whk_1", ""]
    for _ in range(3):
        await alerts.run()
        clock.advance(60)
    assert sorted(await names(db)) == ["broken", "broken:whk_1"]
    assert await alerts.counts() == {("broken", "ticket"): 2, ("quiet", "page"): 0}
    wrong.abouts = [""]
    await alerts.run()
    assert sorted(await names(db)) == ["broken", "broken:whk_1"]
    await alerts.run()
    assert await names(db) == ["broken"]
    ticket = {"severity": "ticket"}
    assert await audited(db) == [
        ("alert.fired", "broken:whk_1", ticket, None),
        ("alert.fired", "broken", ticket, None),
        ("alert.resolved", "broken:whk_1", ticket, None),
    ]


async def test_what_cannot_be_looked_at_stays_as_it_is(alerts: Alerts, db: Database, wrong: Wrong) -> None:
    wrong.abouts = ["x"]
    await alerts.run()
    wrong.error = ZeroDivisionError()
    for _ in range(3):
        await alerts.run()
    assert await names(db) == ["broken:x"]
    wrong.error = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        await alerts.run()


async def test_two_nodes_look_at_once(alerts: Alerts, db: Database, wrong: Wrong) -> None:
    wrong.abouts = ["x", "y"]
    await asyncio.gather(*(alerts.run() for _ in range(4)))
    assert sorted(await names(db)) == ["broken:x", "broken:y"]
    assert len(await audited(db)) == 2


async def test_those_to_look_at_now_are_shown_first(
    db: Database, clock: ManualClock, ids: IdGenerator, wrong: Wrong
) -> None:
    wrong.abouts = [f"x{number:04}" for number in range(1100)]
    await Alerts(db, clock, ids, (Condition("page", Severity.PAGE, wrong.look),)).run()
    clock.advance(1)
    await Alerts(db, clock, ids, (Condition("ticket", Severity.TICKET, wrong.look),)).run()
    shown = await names(db)
    assert len(shown) == 500
    assert all(name.startswith("page:") for name in shown)
    assert (await Alerts(db, clock, ids, ()).counts())["page", "page"] == 1000
