"""Wake-ups: at least once for every commit after the watch began, on this node and on others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.events.live import CHANNEL, LiveHub, Watch
from tests.mailbox.letters import Pen, make_boxes, raw_mail


@dataclass(slots=True)
class Hints:
    """What would have been sent to the other nodes."""

    sent: list[tuple[str, int | str, int]] = field(default_factory=list)

    def hint(self, channel: str, key: int | str, value: int = 0) -> None:
        self.sent.append((channel, key, value))


@pytest.mark.covers("decisions:B13")
def test_a_change_wakes_its_watches_and_hints_the_others() -> None:
    hints, woken = Hints(), []
    hub = LiveHub(hints)
    one = hub.watch(1, lambda: woken.append("one"))
    hub.watch(1, lambda: woken.append("too"))
    hub.watch(2, lambda: woken.append("two"))
    hub.changed(1, 5)
    assert woken == ["one", "too"]
    assert hints.sent == [(CHANNEL, 1, 5)]
    # Its own hint comes back, and an older one: nobody is woken again.
    hub.hinted("1", 5)
    hub.hinted("1", 4)
    assert len(woken) == 2
    hub.hinted("1", 6)
    assert woken[2:] == ["one", "too"]
    one.close()
    one.close()
    hub.changed(1, 7)
    assert woken[4:] == ["too"]
    hub.wake_all()
    assert woken[5:] == ["too", "two"]


@pytest.mark.covers("decisions:B13")
@given(key=st.text(max_size=8), modseq=st.integers(-(2**63), 2**63))
def test_a_malformed_hint_is_ignored(key: str, modseq: int) -> None:
    hub = LiveHub(Hints())
    hub.watch(1, lambda: None)
    hub.hinted(key, modseq)


@pytest.mark.covers("decisions:B13")
@given(
    st.lists(st.tuples(st.sampled_from(["watch", "close", "changed", "hinted", "gap"]), st.integers(1, 2)), max_size=40)
)
def test_every_new_modseq_wakes_every_watch(steps: list[tuple[str, int]]) -> None:
    hub, modseqs = LiveHub(Hints()), {1: 0, 2: 0}
    watches: list[tuple[int, list[int], Watch]] = []
    for step, mailbox in steps:
        before = [(m, len(woken)) for m, woken, _ in watches]
        if step == "watch":
            woken: list[int] = []
            # No type is inferred for a default.
            watches.append((mailbox, woken, hub.watch(mailbox, lambda woken=woken: woken.append(1))))  # type: ignore[misc]
            continue
        if step == "close":
            if watches:
                watches.pop()[2].close()
            continue
        if step == "gap":
            hub.wake_all()
        else:
            modseqs[mailbox] += 1
            hub.changed(mailbox, modseqs[mailbox]) if step == "changed" else hub.hinted(str(mailbox), modseqs[mailbox])
        for (watched, count), (_, woken, _) in zip(before, watches, strict=True):
            assert len(woken) == count + (step == "gap" or watched == mailbox)


@pytest.mark.covers("decisions:B13")
async def test_polling_covers_hints_that_were_lost(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    box, quiet = await make_boxes(db, ids, clock, 2)
    pen, hub, woken = Pen(ids, clock), LiveHub(Hints()), asyncio.Queue[int]()
    for one in (box, quiet):
        # No type is inferred for a default.
        hub.watch(one.ref.mailbox_id, lambda key=one.ref.mailbox_id: woken.put_nowait(key))  # type: ignore[misc]
    task = asyncio.create_task(hub.poll(db, every=0.001))
    try:
        # The first look tells of what came before the watch; afterwards only of what is new.
        assert {await woken.get(), await woken.get()} == {box.ref.mailbox_id, quiet.ref.mailbox_id}
        async with db.acquire() as conn:
            await pen.store(conn, [pen.copy(box, raw_mail())])
        assert await woken.get() == box.ref.mailbox_id
        assert woken.empty()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
