"""What IMAP reads: snapshots, differences, rows in pages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox import reads
from postroom.mailbox.models import FolderKey
from postroom.mailbox.reads import Columns, FetchRow, FolderChanges, Snapshot
from postroom.mailbox.rules import FlagMode

from .seed import World, make_world
from .test_model import Driver


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator) -> World:
    return await make_world(db, clock, ids)


async def fetch(
    world: World, folder: FolderKey, uids: Sequence[int], columns: Columns = Columns.NONE, page: int = 7
) -> list[FetchRow]:
    pages = [rows async for rows in world.boxes.reads.fetch_rows(world.ref, folder, uids, columns, page=page)]
    assert all(0 < len(rows) <= page for rows in pages)
    return [row for rows in pages for row in rows]


async def test_an_empty_folder(world: World) -> None:
    inbox = await world.folder("INBOX")
    snapshot = await world.boxes.reads.folder_snapshot(world.ref, inbox)
    assert (len(snapshot.uids), snapshot.flags, snapshot.folder.uid_next) == (0, [], 1)
    assert await fetch(world, inbox, range(1, 10)) == []
    assert await fetch(world, inbox, [1, 2, 3]) == []
    assert await fetch(world, inbox, []) == []


async def test_a_snapshot(world: World) -> None:
    a, b, c = await world.add(flags=["$seen", "x"]), await world.add(), await world.add(flags=["$deleted"])
    inbox = await world.folder("INBOX")
    snapshot = await world.boxes.reads.folder_snapshot(world.ref, inbox)
    assert list(snapshot.uids) == [a.uid, b.uid, c.uid]
    assert snapshot.flags == [("$seen", "x"), (), ("$deleted",)]
    assert list(snapshot.modseqs) == sorted(snapshot.modseqs)
    (state,) = await world.rows("SELECT modseq, change_seq FROM mailboxes WHERE tenant_id = $1 AND id = $2")
    assert (state["modseq"], state["change_seq"]) == (snapshot.modseq, snapshot.seq)
    with pytest.raises(PostroomError) as caught:
        await world.boxes.reads.folder_snapshot(world.ref, FolderKey(inbox + 1000))
    assert caught.value.code == "folder_not_found"


@pytest.mark.covers("decisions:B16")
@pytest.mark.parametrize("page", [1, 3, 7, 100])
async def test_rows_in_pages(world: World, page: int) -> None:
    uids = await world.fill("INBOX", 20)
    inbox = await world.folder("INBOX")
    await world.boxes.set_flags(world.ref, inbox, uids[3:9], FlagMode.ADD, ["$deleted"])
    await world.boxes.expunge(world.ref, inbox)
    left = [uid for uid in uids if uid not in uids[3:9]]
    for asked in (range(1, 1000), list(range(1, 30)), range(1, 5), range(7, 12), [2, 5, 11], range(3, 3)):
        assert [row.uid for row in await fetch(world, inbox, asked, page=page)] == [u for u in left if u in asked]


async def test_columns_that_are_asked_for(world: World) -> None:
    m = await world.add(flags=["x"], subject="Subject", text="Text")
    inbox = await world.folder("INBOX")
    (bare,) = await fetch(world, inbox, [m.uid])
    assert (bare.flags, bare.size, bare.message_id, bare.envelope) == (("x",), 1000, None, None)
    everything = ~Columns.NONE
    (full,) = await fetch(world, inbox, range(1, 5), everything)
    assert (full.message_id, full.thread_id, full.blob_key, full.prefix_len) == (m.id, m.thread, m.blob_key, 120)
    assert (full.envelope, full.body_structure, full.part_tree) == (b"envelope", b"structure", b"parts")
    assert (full.subject, full.snippet) == ("Subject", "Text")
    for column in Columns:
        (row,) = await fetch(world, inbox, [m.uid], column)
        assert (row.envelope is not None) == (column is Columns.ENVELOPE)
        assert (row.blob_key is not None) == (column is Columns.BYTES)


def apply(known: dict[int, tuple[frozenset[str], int]], changes: FolderChanges) -> None:
    for state in (*changes.placed, *changes.flags):
        known[state.uid] = (frozenset(state.flags), state.modseq)
    for uid in changes.removed:
        known.pop(uid, None)


def contents(snapshot: Snapshot) -> dict[int, tuple[frozenset[str], int]]:
    rows = zip(snapshot.uids, map(frozenset, snapshot.flags), snapshot.modseqs, strict=True)
    return {uid: (flags, modseq) for uid, flags, modseq in rows}


@pytest.mark.covers("decisions:A7")
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
async def test_whoever_follows_the_changes_knows_the_folder(
    db: Database, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(reads, "STATES_PAGE", data.draw(st.sampled_from((1, 2, 3, 20_000)), label="page"))
    clock = ManualClock(datetime.fromisoformat("2030-01-01T00:00:00+00:00"))
    world = await make_world(db, clock, IdGenerator(clock))
    driver = Driver(world, data)
    await driver.start()
    steps = (Driver.add, Driver.add, Driver.store, Driver.copy, Driver.move, Driver.expunge, Driver.edit_message)
    inbox = await world.folder("INBOX")
    snapshot = await world.boxes.reads.folder_snapshot(world.ref, inbox)
    known, point = contents(snapshot), (snapshot.modseq, snapshot.seq, snapshot.folder.uid_next)
    for _ in range(data.draw(st.integers(1, 4))):
        for step in data.draw(st.lists(st.sampled_from(steps), max_size=6)):
            await step(driver)
        modseq, seq, uid_next = point
        changes = await world.boxes.reads.changes_since(world.ref, inbox, modseq=modseq, uid_next=uid_next, seq=seq)
        same = await world.boxes.reads.changes_since(world.ref, inbox, modseq=modseq, uid_next=uid_next)
        assert changes == same
        assert changes.complete
        assert all(state.uid in known for state in changes.flags)
        assert not any(state.uid in known for state in changes.placed)
        apply(known, changes)
        point = (changes.modseq, changes.seq, changes.folder.uid_next)
        snapshot = await world.boxes.reads.folder_snapshot(world.ref, inbox)
        assert known == contents(snapshot)
        assert point[:2] == (snapshot.modseq, snapshot.seq)


@pytest.mark.covers("decisions:A7")
async def test_a_point_before_the_pruned_log(world: World) -> None:
    m = await world.add()
    inbox = await world.folder("INBOX")
    snapshot = await world.boxes.reads.folder_snapshot(world.ref, inbox)
    await world.boxes.move(world.ref, inbox, [m.uid], await world.folder("Trash"))
    await world.rows(
        "UPDATE folders SET pruned_modseq = $3 WHERE tenant_id = $1 AND mailbox_id = $2", snapshot.modseq + 1
    )
    changes = await world.boxes.reads.changes_since(world.ref, inbox, modseq=snapshot.modseq, uid_next=2)
    assert not changes.complete
    assert not changes.removed
