"""Removal: what goes, what stays, and when the bytes go."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import asyncpg
import pytest

from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs import StorageError
from postroom.db import Database
from postroom.mailbox.expunge import MessagesInUse
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.rules import FlagMode
from postroom.mailbox.service import Mailboxes

from .seed import World, make_world


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator) -> World:
    return await make_world(db, clock, ids)


@pytest.mark.covers("mail-server:D8", "mail-server:E3")
async def test_only_what_is_deleted_and_named_goes(world: World) -> None:
    inbox = await world.folder("INBOX")
    kept = await world.add()
    a, b = await world.add(flags=["$deleted"]), await world.add(flags=["$deleted", "$seen"])
    assert await world.boxes.expunge(world.ref, inbox, [kept.uid, b.uid, 99]) == [b.uid]
    assert await world.boxes.expunge(world.ref, inbox) == [a.uid]
    assert await world.boxes.expunge(world.ref, inbox) == []
    assert world.blobs.deleted == [b.blob_key, a.blob_key]
    folder = await world.boxes.folder(world.ref, "INBOX")
    assert (folder.message_count, folder.unseen_count, folder.deleted_count, folder.uid_next) == (1, 1, 0, 4)


@pytest.mark.covers("decisions:A5", "mail-server:D8")
async def test_everything_of_a_message_goes_with_it(world: World) -> None:
    m = await world.add(attachments=2)
    await world.remove(m.id)
    for table in ("messages", "message_texts", "recipients", "attachments", "placements"):
        assert await world.value(f"SELECT count(*) FROM {table} WHERE tenant_id = $1 AND $2::bigint > 0") == 0
    with pytest.raises(PostroomError):
        await world.boxes.queries.get_message(world.ref, m.id)
    with pytest.raises(PostroomError) as caught:
        await world.boxes.queries.get_thread(world.ref, m.thread)
    assert caught.value.code == "thread_not_found"


async def test_what_a_thread_says_afterwards(world: World) -> None:
    start = world.clock.now()
    first = await world.add(sender=("anna@example.com", "Anna"), to=[("box@agents.example", "")], received_at=start)
    await world.add(
        "Sent",
        thread=first,
        direction="outbound",
        to=[("carl@example.com", "Carl")],
        received_at=start + timedelta(hours=1),
    )
    last = await world.add(
        thread=first,
        sender=("dora@example.com", "Dora"),
        cc=[("eve@example.com", "Eve")],
        received_at=start + timedelta(hours=2),
    )
    await world.remove(last.id)
    view = await world.boxes.queries.get_thread(world.ref, first.thread)
    assert (view.message_count, view.unread_count) == (2, 1)
    assert (view.last_at, view.last_inbound_at, view.last_outbound_at) == (
        *(start + timedelta(hours=1), start, start + timedelta(hours=1)),
    )
    assert [p.address for p in view.participants] == ["anna@example.com", "box@agents.example", "carl@example.com"]
    assert view.last_direction == "outbound"


@pytest.mark.covers("decisions:B14", "mail-server:E2")
async def test_large_expunges_go_in_chunks(world: World) -> None:
    uids = await world.fill("INBOX", 2000, per_thread=5)
    inbox = await world.folder("INBOX")
    await world.boxes.set_flags(world.ref, inbox, uids, FlagMode.ADD, ["$deleted"])
    world.told.clear()
    assert await world.boxes.expunge(world.ref, inbox) == list(uids)
    assert len(world.told) == 2
    assert len(world.blobs.deleted) == 2000
    assert await world.value("SELECT used_bytes FROM mailboxes WHERE tenant_id = $1 AND id = $2") == 0
    assert (
        await world.value(
            "SELECT sum(message_count + unread_count) FROM threads WHERE tenant_id = $1 AND mailbox_id = $2"
        )
        == 0
    )


class FailingBlobs:
    """A store that cannot remove; notes whether the rows were gone when it was asked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows_left: list[int] = []

    async def delete(self, keys: Iterable[str]) -> None:
        self.rows_left.append(
            await self.world.value("SELECT count(*) FROM messages WHERE tenant_id = $1 AND mailbox_id = $2")
        )
        raise StorageError("no such luck")


@pytest.mark.covers("mail-server:E2")
async def test_bytes_go_after_the_commit_and_may_stay_behind(world: World) -> None:
    m = await world.add(flags=["$deleted"])
    blobs = FailingBlobs(world)
    told: list[tuple[MailboxRef, int]] = []
    boxes = Mailboxes(world.db, blobs, world.clock, world.ids, lambda ref, modseq: told.append((ref, modseq)))
    assert await boxes.expunge(world.ref, await world.folder("INBOX")) == [m.uid]
    assert blobs.rows_left == [0]
    assert len(told) == 1


async def test_a_mailbox_that_is_gone(world: World) -> None:
    await world.rows("UPDATE mailboxes SET erased = true WHERE tenant_id = $1 AND id = $2")
    inbox = await world.folder("INBOX")
    for attempt in (
        world.boxes.expunge(world.ref, inbox),
        world.boxes.set_flags(world.ref, inbox, [1], FlagMode.ADD, ["x"]),
        world.boxes.create_folder(world.ref, "x"),
    ):
        with pytest.raises(PostroomError) as caught:
            await attempt
        assert caught.value.code == "identity_not_found"


@pytest.mark.covers("mail-server:C3")
async def test_what_is_still_to_be_sent_stays(world: World) -> None:
    sent = await world.folder("Sent")
    waiting = await world.add("Sent", direction="outbound", flags=["$deleted"])
    gone = await world.add("Sent", direction="outbound", flags=["$deleted"])
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE messages SET status = 'queued' WHERE public_id = $1", waiting.id)
        with pytest.raises(asyncpg.RestrictViolationError):
            await conn.execute("DELETE FROM messages WHERE public_id = $1", waiting.id)
    with pytest.raises(MessagesInUse):
        await world.boxes.expunge(world.ref, sent)
    assert (await world.boxes.folder(world.ref, "Sent")).message_count == 1
    assert world.blobs.deleted == [gone.blob_key]
    with pytest.raises(MessagesInUse):
        await world.boxes.expunge(world.ref, sent, [waiting.uid])
    folder = await world.boxes.create_folder(world.ref, "Later")
    await world.boxes.move(world.ref, sent, [waiting.uid], folder.id)
    with pytest.raises(MessagesInUse):
        await world.boxes.delete_folder(world.ref, folder.id)
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE messages SET status = 'delivered' WHERE public_id = $1", waiting.id)
    await world.boxes.delete_folder(world.ref, folder.id)
    assert set(world.blobs.deleted) == {gone.blob_key, waiting.blob_key}
