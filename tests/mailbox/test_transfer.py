"""COPY and MOVE: new UIDs in order, one message in several places, nothing lost on the way."""

from __future__ import annotations

import pytest

from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.rules import FlagMode

from .seed import World, make_world


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator) -> World:
    return await make_world(db, clock, ids)


@pytest.mark.covers("decisions:A5", "mail-server:D4", "mail-server:D8")
async def test_copying_keeps_order_flags_and_date(world: World) -> None:
    first = await world.add(flags=["$seen", "work"])
    second = await world.add()
    await world.add("Archive")
    inbox, archive = await world.folder("INBOX"), await world.folder("Archive")
    world.clock.advance(60)
    result = await world.boxes.copy(world.ref, inbox, [second.uid, 50, first.uid], archive)
    assert result.uid_validity == (await world.boxes.folder(world.ref, "Archive")).uid_validity
    assert result.pairs == ((first.uid, 2), (second.uid, 3))
    rows = await world.rows(
        "SELECT * FROM placements WHERE tenant_id = $1 AND mailbox_id = $2 AND message_id = $3 ORDER BY saved_at",
        first.key,
    )
    assert [row["flags"] for row in rows] == [["$seen", "work"]] * 2
    assert rows[0]["internal_date"] == rows[1]["internal_date"]
    assert rows[1]["saved_at"] == world.clock.now() > rows[0]["saved_at"]


@pytest.mark.covers("decisions:A5", "mail-server:D8")
async def test_a_copy_keeps_the_message_alive(world: World) -> None:
    m = await world.add()
    inbox, archive = await world.folder("INBOX"), await world.folder("Archive")
    await world.boxes.copy(world.ref, inbox, [m.uid], archive)
    await world.boxes.set_flags(world.ref, inbox, [m.uid], FlagMode.ADD, ["$deleted"])
    await world.boxes.expunge(world.ref, inbox)
    view = await world.boxes.queries.get_message(world.ref, m.id)
    assert (view.id, view.thread_id) == (m.id, m.thread)
    snapshot = await world.boxes.reads.folder_snapshot(world.ref, archive)
    assert list(snapshot.uids) == [1]
    assert world.blobs.deleted == []
    assert await world.value("SELECT used_bytes FROM mailboxes WHERE tenant_id = $1 AND id = $2") == 1000


@pytest.mark.covers("decisions:A5", "decisions:A7", "mail-server:D4", "mail-server:D8")
async def test_moving_leaves_a_tombstone(world: World) -> None:
    m = await world.add(flags=["$flagged"])
    inbox, trash = await world.folder("INBOX"), await world.folder("Trash")
    result = await world.boxes.move(world.ref, inbox, [m.uid], trash)
    assert result.pairs == ((m.uid, 1),)
    log = await world.rows("SELECT * FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 ORDER BY seq DESC LIMIT 2")
    assert [(row["kind"], row["folder_id"], row["uid"], row["message"]) for row in reversed(log)] == [
        ("placed", trash, 1, m.id),
        ("removed", inbox, m.uid, m.id),
    ]
    assert log[0]["modseq"] == log[1]["modseq"]
    source = await world.boxes.folder(world.ref, "INBOX")
    target = await world.boxes.folder(world.ref, "Trash")
    assert (source.message_count, source.uid_next, source.total_bytes) == (0, 2, 0)
    assert (target.message_count, target.uid_next, target.total_bytes) == (1, 2, 1000)


@pytest.mark.covers("mail-server:D4", "mail-server:D8")
async def test_source_and_target_may_be_the_same(world: World) -> None:
    m = await world.add()
    inbox = await world.folder("INBOX")
    assert (await world.boxes.copy(world.ref, inbox, [m.uid], inbox)).pairs == ((1, 2),)
    assert (await world.boxes.move(world.ref, inbox, [1], inbox)).pairs == ((1, 3),)
    assert list((await world.boxes.reads.folder_snapshot(world.ref, inbox)).uids) == [2, 3]
    assert (await world.boxes.folder(world.ref, "INBOX")).message_count == 2


@pytest.mark.covers("mail-server:D8", "mail-server:E4")
async def test_quota_stops_copies_but_not_moves_and_flags(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    world = await make_world(db, clock, ids, quota_bytes=1500)
    m = await world.add()
    inbox, archive = await world.folder("INBOX"), await world.folder("Archive")
    # Bytes are shared: a copy charges nothing.
    await world.boxes.copy(world.ref, inbox, [m.uid], archive)
    assert await world.value("SELECT used_bytes FROM mailboxes WHERE tenant_id = $1 AND id = $2") == 1000
    over = await world.add()
    for attempt in (
        world.boxes.copy(world.ref, inbox, [over.uid], archive),
        world.boxes.copy_messages(world.ref, [over.id], archive),
    ):
        with pytest.raises(PostroomError) as caught:
            await attempt
        assert caught.value.code == "mailbox_full"
    await world.boxes.set_flags(world.ref, inbox, [over.uid], FlagMode.ADD, ["$seen"])
    await world.boxes.move(world.ref, inbox, [over.uid], archive)


@pytest.mark.covers("mail-server:D4")
async def test_uids_run_out_rather_than_repeat(world: World) -> None:
    a, b = await world.add(), await world.add()
    inbox, archive = await world.folder("INBOX"), await world.folder("Archive")
    await world.rows(
        "UPDATE folders SET uid_next = 4294967295 WHERE tenant_id = $1 AND mailbox_id = $2 AND id = $3", archive
    )
    with pytest.raises(PostroomError) as caught:
        await world.boxes.move(world.ref, inbox, [a.uid, b.uid], archive)
    assert caught.value.code == "mailbox_full"
    assert (await world.boxes.copy(world.ref, inbox, [a.uid], archive)).pairs == ((a.uid, 4294967295),)
    with pytest.raises(PostroomError):
        await world.boxes.copy(world.ref, inbox, [b.uid], archive)


@pytest.mark.covers("decisions:B14", "mail-server:D4")
async def test_large_moves_go_in_chunks_and_keep_order(world: World) -> None:
    uids = await world.fill("INBOX", 2100)
    world.told.clear()
    result = await world.boxes.move(
        world.ref, await world.folder("INBOX"), reversed(uids), await world.folder("Archive")
    )
    assert result.pairs == tuple(zip(uids, range(1, 2101), strict=True))
    assert len(world.told) == 3
    empty = await world.boxes.move(world.ref, await world.folder("INBOX"), [], await world.folder("Archive"))
    assert (empty.uid_validity, empty.pairs) == (result.uid_validity, ())


async def test_messages_by_id(world: World) -> None:
    m, n = await world.add(), await world.add()
    inbox, trash = await world.folder("INBOX"), await world.folder("Trash")
    await world.boxes.copy_messages(world.ref, [m.id, m.id], await world.folder("Archive"))
    await world.boxes.copy_messages(world.ref, [m.id], inbox)
    await world.boxes.move_messages(world.ref, [n.id, m.id], trash)
    rows = await world.rows(
        "SELECT folder_id, uid, message_id FROM placements WHERE tenant_id = $1 AND mailbox_id = $2"
    )
    assert sorted(map(tuple, rows)) == [(trash, 1, m.key), (trash, 2, n.key)]
    with pytest.raises(PostroomError) as caught:
        await world.boxes.move_messages(world.ref, [m.id, "msg_nothing"], inbox)
    assert caught.value.code == "message_not_found"
