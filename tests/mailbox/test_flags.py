"""STORE and its kin: what changes, what is counted, what is logged."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.flags import FlagResult
from postroom.mailbox.rules import FlagMode, LimitExceeded

from .seed import World, make_world


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator) -> World:
    return await make_world(db, clock, ids)


async def log_length(world: World) -> int:
    length: int = await world.value("SELECT count(*) FROM changes WHERE tenant_id = $1 AND mailbox_id = $2")
    return length


@pytest.mark.covers("decisions:A5", "mail-server:D5")
async def test_only_what_changes_is_logged(world: World) -> None:
    inbox = await world.folder("INBOX")
    seen, unseen = await world.add(flags=["$seen"]), await world.add()
    before = await log_length(world)
    answer = await world.boxes.set_flags(
        world.ref, inbox, [unseen.uid, 77, seen.uid, seen.uid], FlagMode.ADD, ["$Seen"]
    )
    assert [(row.uid, row.flags, row.result) for row in answer] == [
        (seen.uid, ("$seen",), FlagResult.SAME),
        (unseen.uid, ("$seen",), FlagResult.CHANGED),
    ]
    assert answer[0].modseq < answer[1].modseq == world.told[-1][1]
    assert await log_length(world) == before + 1
    world.told.clear()
    await world.boxes.set_flags(world.ref, inbox, [seen.uid, unseen.uid], FlagMode.ADD, ["$seen"])
    assert world.told == []
    assert await log_length(world) == before + 1


@pytest.mark.covers("mail-server:D5")
async def test_the_order_of_stored_flags_means_nothing(world: World) -> None:
    m = await world.add(flags=["work", "$seen"])
    answer = await world.boxes.set_flags(
        world.ref, await world.folder("INBOX"), [m.uid], FlagMode.REPLACE, ["$seen", "WORK"]
    )
    assert answer[0].result is FlagResult.SAME


@pytest.mark.covers("mail-server:D5")
async def test_unchanged_since(world: World) -> None:
    inbox = await world.folder("INBOX")
    a, b = await world.add(), await world.add()
    point = (await world.boxes.folder(world.ref, "INBOX")).highest_modseq
    await world.boxes.set_flags(world.ref, inbox, [b.uid], FlagMode.ADD, ["mine"])
    answer = await world.boxes.set_flags(world.ref, inbox, [a.uid, b.uid], FlagMode.ADD, ["$flagged"], point)
    assert [(row.uid, row.result) for row in answer] == [(a.uid, FlagResult.CHANGED), (b.uid, FlagResult.MODIFIED)]
    assert answer[1].flags == ("mine",)
    assert answer[1].modseq > point


@pytest.mark.covers("mail-server:D5")
async def test_too_many_keywords_change_nothing(world: World) -> None:
    inbox = await world.folder("INBOX")
    m = await world.add(flags=[f"k{n}" for n in range(64)])
    other = await world.add()
    before = await log_length(world)
    with pytest.raises(LimitExceeded):
        await world.boxes.set_flags(world.ref, inbox, [other.uid, m.uid], FlagMode.ADD, ["more"])
    with pytest.raises(LimitExceeded):
        await world.boxes.change_message(world.ref, m.id, add=["more"])
    assert await log_length(world) == before
    await world.boxes.change_message(world.ref, m.id, add=["more", "$seen"], remove=["k1"])


@pytest.mark.covers("decisions:A5")
async def test_a_message_is_changed_wherever_it_stands(world: World) -> None:
    m = await world.add()
    inbox = await world.folder("INBOX")
    await world.boxes.copy(world.ref, inbox, [m.uid], await world.folder("Archive"))
    await world.boxes.change_message(world.ref, m.id, add=["$seen", "Later"])
    flags = await world.rows("SELECT flags FROM placements WHERE tenant_id = $1 AND mailbox_id = $2")
    assert [row["flags"] for row in flags] == [["$seen", "later"]] * 2
    for name in ("INBOX", "Archive"):
        assert (await world.boxes.folder(world.ref, name)).unseen_count == 0
    with pytest.raises(PostroomError) as caught:
        await world.boxes.change_message(world.ref, "msg_nothing", add=["$seen"])
    assert caught.value.code == "message_not_found"


@pytest.mark.covers("decisions:A5")
async def test_a_copy_does_not_decide_what_is_read(world: World) -> None:
    m = await world.add()
    inbox, archive = await world.folder("INBOX"), await world.folder("Archive")
    world.clock.advance(1)
    copied = await world.boxes.copy(world.ref, inbox, [m.uid], archive)
    unread = "SELECT unread_count FROM threads WHERE tenant_id = $1 AND mailbox_id = $2"
    await world.boxes.set_flags(world.ref, archive, [copied.pairs[0][1]], FlagMode.ADD, ["$seen"])
    assert await world.value(unread) == 1
    await world.boxes.set_flags(world.ref, inbox, [m.uid], FlagMode.ADD, ["$deleted"])
    await world.boxes.expunge(world.ref, inbox)
    assert await world.value(unread) == 0


@pytest.mark.covers("decisions:A5")
async def test_a_clock_that_went_back_changes_which_placement_is_the_oldest(world: World) -> None:
    m = await world.add()
    inbox, archive, junk = [await world.folder(name) for name in ("INBOX", "Archive", "Junk")]
    world.clock.advance(1)
    copied = await world.boxes.copy(world.ref, inbox, [m.uid], archive)
    await world.boxes.set_flags(world.ref, archive, [copied.pairs[0][1]], FlagMode.ADD, ["$seen"])
    assert not (await world.boxes.queries.get_message(world.ref, m.id)).read
    world.clock.set(world.clock.now() - timedelta(hours=1))
    await world.boxes.copy(world.ref, archive, [copied.pairs[0][1]], junk)
    assert (await world.boxes.queries.get_message(world.ref, m.id)).read
    unread = "SELECT unread_count FROM threads WHERE tenant_id = $1 AND mailbox_id = $2"
    assert await world.value(unread) == 0
    world.clock.set(world.clock.now() - timedelta(hours=1))
    await world.boxes.move(world.ref, inbox, [m.uid], archive)
    assert await world.value(unread) == 1


async def test_a_thread_is_changed_as_a_whole(world: World) -> None:
    first = await world.add()
    await world.add(thread=first)
    await world.add("Sent", thread=first, direction="outbound")
    await world.add()
    await world.boxes.change_thread(world.ref, first.thread, add=["$seen", "done"], archived=True)
    view = await world.boxes.queries.get_thread(world.ref, first.thread)
    assert (view.unread_count, view.labels, view.archived) == (0, ("done",), True)
    await world.boxes.change_thread(world.ref, first.thread, remove=["$seen"])
    view = await world.boxes.queries.get_thread(world.ref, first.thread)
    assert (view.unread_count, view.archived) == (2, True)
    await world.boxes.change_thread(world.ref, first.thread, archived=False)
    assert not (await world.boxes.queries.get_thread(world.ref, first.thread)).archived
    with pytest.raises(PostroomError) as caught:
        await world.boxes.change_thread(world.ref, "thr_nothing", archived=True)
    assert caught.value.code == "thread_not_found"


@pytest.mark.covers("decisions:B14")
async def test_many_messages_go_in_chunks(world: World) -> None:
    uids = await world.fill("INBOX", 2500, per_thread=3)
    world.told.clear()
    answer = await world.boxes.set_flags(world.ref, await world.folder("INBOX"), uids, FlagMode.ADD, ["$seen"])
    assert [row.uid for row in answer] == list(uids)
    assert len(world.told) == 3
    assert (await world.boxes.folder(world.ref, "INBOX")).unseen_count == 0
    assert await world.value("SELECT sum(unread_count) FROM threads WHERE tenant_id = $1 AND mailbox_id = $2") == 0
    kinds = await world.rows(
        "SELECT modseq, count(*) FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 AND kind = 'flags' GROUP BY 1"
    )
    assert sorted(row["count"] for row in kinds) == [500, 1000, 1000]


@pytest.mark.covers("decisions:B10", "decisions:B14")
async def test_concurrent_writers_do_not_lock_each_other_out(world: World) -> None:
    a = await world.fill("INBOX", 60, per_thread=4)
    inbox, archive = await world.folder("INBOX"), await world.folder("Archive")
    boxes, ref = world.boxes, world.ref

    async def flagger(words: list[str]) -> None:
        for n in range(8):
            mode = FlagMode.ADD if n % 2 else FlagMode.REMOVE
            await boxes.set_flags(ref, inbox, list(reversed(a)), mode, words)

    async def mover() -> None:
        for n in range(6):
            moved = await boxes.move(ref, inbox, a[n * 5 : n * 5 + 5], archive)
            await boxes.copy(ref, archive, [uid for _, uid in moved.pairs], inbox)

    async def threader() -> None:
        for row in await world.rows("SELECT public_id FROM threads WHERE tenant_id = $1 AND mailbox_id = $2"):
            await boxes.change_thread(ref, row["public_id"], add=["$seen"], archived=True)
            await boxes.mark_recent(ref, inbox)

    await asyncio.gather(
        flagger(["$seen"]), flagger(["$flagged"]), mover(), threader(), boxes.create_folder(ref, "x/y")
    )
    async with world.db.acquire() as conn:
        assert await conn.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    seqs = await world.rows("SELECT seq FROM changes WHERE tenant_id = $1 AND mailbox_id = $2 ORDER BY seq")
    assert [row["seq"] for row in seqs] == list(range(1, len(seqs) + 1))
    told = [modseq for _, modseq in world.told]
    assert len(told) == len(set(told))
