"""Several messages in one transaction, and messages in the place of others: all or nothing, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import StorageError
from postroom.db import Database
from postroom.mailbox.ingest import Delivery, Failure, Ingest, IngestError
from postroom.mailbox.models import Appended, Place, Refusal, Refused, Source, changed_mailboxes

from .letters import Box, Pen, check_mailbox, inbox, make_boxes, raw_mail
from .stores import MemoryBlobs
from .test_ingest import held, running, stored
from .test_ingest_outage import NAME, Killer
from .wire import Fault, gate


def _delivery(pen: Pen, box: Box, text: str, *, replaces: Place | None = None) -> Delivery:
    raw = raw_mail(message_id="one@example.com", body=text)
    copy = pen.copy(box, raw, source=Source.APPEND, announce=None, content=None)
    return Delivery((raw,), (replace(copy, replaces=replaces),))


async def _first(db: Database, ingest: Ingest, pen: Pen, box: Box) -> tuple[Place, str]:
    """A stored message: where it is, and the key of its bytes."""
    one = _delivery(pen, box, "first")
    (placed,) = stored(await ingest.deliver(one))
    return Place(placed.folder, placed.uid), one.copies[0].blob_key


async def _texts(db: Database, box: Box) -> list[str]:
    async with db.acquire() as conn:
        await check_mailbox(conn, box.ref)
        rows = await conn.fetch("SELECT public_id FROM messages WHERE mailbox_id = $1 ORDER BY id", box.ref.mailbox_id)
    return [row["public_id"] for row in rows]


@pytest.mark.covers("RFC 8508 §3.4", "decisions:A7", "decisions:B14")
async def test_one_transaction_one_modseq(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen, blobs = Pen(ids, clock), MemoryBlobs()
    async with running(db, clock, blobs) as ingest:
        old, key = await _first(db, ingest, pen, box)
        new = _delivery(pen, box, "second", replaces=old)
        (placed,) = stored(await ingest.deliver(new))
    assert placed.replaced_keys == (key,)
    assert set(blobs.kept) == {new.copies[0].blob_key}
    assert await _texts(db, box) == [new.copies[0].id]
    async with db.acquire() as conn:
        changes = await conn.fetch(
            "SELECT kind, uid, modseq FROM changes WHERE mailbox_id = $1 ORDER BY seq DESC LIMIT 2", box.ref.mailbox_id
        )
        modseq = await conn.fetchval("SELECT modseq FROM mailboxes WHERE id = $1", box.ref.mailbox_id)
    # Whoever follows the log sees the new one come before the old one goes.
    assert [tuple(row) for row in changes] == [("removed", old.uid, modseq), ("placed", placed.uid, modseq)]
    assert placed.modseq == modseq


@pytest.mark.covers("RFC 8508 §3.4", "decisions:B12")
async def test_only_what_is_of_the_mailbox_goes(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    mine, other = await make_boxes(db, ids, clock, 2)
    pen = Pen(ids, clock)
    async with running(db, clock) as ingest:
        theirs, _ = await _first(db, ingest, pen, other)
        outcome = await ingest.deliver(_delivery(pen, mine, "second", replaces=theirs))
        assert outcome == Refused(Refusal.REPLACED_GONE)
    assert await _texts(db, mine) == []
    assert len(await _texts(db, other)) == 1


@pytest.mark.covers("RFC 8508 §3.4", "edge:C4")
async def test_of_many_at_once_one_replaces(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen, blobs = Pen(ids, clock), MemoryBlobs()
    async with running(db, clock, blobs) as ingest, running(db, clock, blobs) as another:
        old, _ = await _first(db, ingest, pen, box)
        new = [_delivery(pen, box, str(n), replaces=old) for n in range(12)]
        outcomes = await asyncio.gather(*((ingest, another)[n % 2].deliver(one) for n, one in enumerate(new)))
    done = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, tuple)]
    assert len(done) == 1
    assert [one for one in outcomes if one != Refused(Refusal.REPLACED_GONE)] == [outcomes[done[0]]]
    assert await _texts(db, box) == [new[done[0]].copies[0].id]
    assert set(blobs.kept) == {new[done[0]].copies[0].blob_key}


@pytest.mark.covers("decisions:B15", "edge:J2", "RFC 8508 §3.4", "RFC 3502 §6.3.11")
async def test_a_session_killed_before_its_commit(database_url: str, clock: ManualClock, ids: IdGenerator) -> None:
    async with Database(database_url, application_name=NAME) as db:
        (box,) = await make_boxes(db, ids, clock)
        pen, blobs, killer = Pen(ids, clock), MemoryBlobs(), Killer(database_url, 0)
        async with running(db, clock, blobs, committers=1, before_commit=killer) as ingest:
            old, key = await _first(db, ingest, pen, box)
            killer.shots = 1
            new = _delivery(pen, box, "second", replaces=old)
            (placed,) = stored(await ingest.deliver(new))
            killer.shots = 2
            many = [_delivery(pen, box, str(n)) for n in range(5)]
            outcome = stored(await ingest.deliver_together(many))
        assert killer.fired == 2
        assert placed.replaced_keys == (key,)
        assert await _texts(db, box) == [copy.id for one in (new, *many) for copy in one.copies]
        assert [one.uid for one in outcome] == list(range(placed.uid + 1, placed.uid + 6))


@pytest.mark.covers("decisions:B15", "edge:J2", "RFC 8508 §3.4", "RFC 3502 §6.3.11")
@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.NEVER])
async def test_a_connection_lost_at_the_commit(
    database_url: str, clock: ManualClock, ids: IdGenerator, fault: Fault
) -> None:
    async with (
        Database(database_url) as watcher,
        gate(database_url) as (between, url),
        Database(url, application_name=NAME) as db,
    ):
        (box,) = await make_boxes(watcher, ids, clock)
        pen, blobs = Pen(ids, clock), MemoryBlobs()
        told: list[Appended] = []
        async with running(db, clock, blobs, committers=1, committed=lambda stored: told.extend(stored)) as ingest:
            old, _ = await _first(db, ingest, pen, box)
            between.fault = fault
            new = _delivery(pen, box, "second", replaces=old)
            stored(await ingest.deliver(new))
            between.fault = fault
            many = [_delivery(pen, box, str(n)) for n in range(3)]
            stored(await ingest.deliver_together(many))
        assert between.faults == 2
        expected = [copy for one in (new, *many) for copy in one.copies]
        assert await _texts(watcher, box) == [copy.id for copy in expected]
        assert set(blobs.kept) == {copy.blob_key for copy in expected}
        assert {one.message_id for one in told} >= {copy.id for copy in expected}


@pytest.mark.covers("RFC 3502 §6.3.11", "mail-server:J1")
async def test_none_of_several_when_the_bytes_of_one_fail(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    failing: Any = MemoryBlobs(lambda number: StorageError("EIO") if number == 0 else None)
    async with running(db, clock, failing) as ingest:
        with pytest.raises(IngestError) as caught:
            await ingest.deliver_together([_delivery(pen, box, str(n)) for n in range(3)])
        assert caught.value.failure is Failure.STORAGE
        assert ingest.pending == 0
    assert await _texts(db, box) == []


@pytest.mark.covers("RFC 3502 §6.3.11", "mail-server:E4")
async def test_a_refusal_leaves_no_bytes(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock, quota_bytes=1500)
    pen, blobs = Pen(ids, clock), MemoryBlobs()
    async with running(db, clock, blobs) as ingest:
        outcome = await ingest.deliver_together([_delivery(pen, box, "x" * 300) for _ in range(4)])
        assert outcome == Refused(Refusal.MAILBOX_FULL)
    assert not blobs.kept
    assert await _texts(db, box) == []


@pytest.mark.covers("decisions:B14", "RFC 8508 §3.4")
async def test_a_mailbox_that_another_holds_is_waited_for(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    async with running(db, clock) as ingest:
        old, _ = await _first(db, ingest, pen, box)
        async with held(db, box):
            replacing = asyncio.ensure_future(ingest.deliver(_delivery(pen, box, "second", replaces=old)))
            together = asyncio.ensure_future(ingest.deliver_together([_delivery(pen, box, n) for n in "ab"]))
            await asyncio.sleep(0.3)
            assert not replacing.done()
            assert not together.done()
        stored(await replacing)
        stored(await together)
    assert len(await _texts(db, box)) == 3


@pytest.mark.covers("RFC 8508 §3.4", "decisions:A5")
async def test_what_stands_elsewhere_keeps_its_bytes(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen, blobs = Pen(ids, clock), MemoryBlobs()
    async with running(db, clock, blobs) as ingest:
        old, key = await _first(db, ingest, pen, box)
        async with db.acquire() as conn:
            assert old.folder == await inbox(conn, box.ref)
            archive = await conn.fetchval(
                "SELECT id FROM folders WHERE mailbox_id = $1 AND name = 'Archive'", box.ref.mailbox_id
            )
            await conn.execute(
                "INSERT INTO placements (tenant_id, folder_id, uid, mailbox_id, message_id, size, modseq, "
                "internal_date, saved_at, flags) SELECT tenant_id, $2, 1, mailbox_id, message_id, size, modseq, "
                "internal_date, saved_at, flags FROM placements WHERE mailbox_id = $1",
                box.ref.mailbox_id,
                archive,
            )
        (placed,) = stored(await ingest.deliver(_delivery(pen, box, "second", replaces=old)))
    assert placed.replaced_keys == ()
    assert key in blobs.kept


async def _moving(db: Database, ingest: Ingest, pen: Pen, source: Box, target: Box, count: int) -> list[Delivery]:
    """Messages of one mailbox on their way to another: one group."""
    made = []
    for n in range(count):
        old, _ = await _first(db, ingest, pen, source)
        made.append(_delivery(pen, target, f"number {n}", replaces=replace(old, mailbox=source.ref)))
    return made


@pytest.mark.covers("decisions:A7", "decisions:B10", "RFC 6851 §3.3")
async def test_what_is_replaced_may_stand_in_another_mailbox(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    one, two = await make_boxes(db, ids, clock, 2)
    pen, blobs, told = Pen(ids, clock), MemoryBlobs(), list[Appended]()
    async with running(db, clock, blobs, committed=lambda stored: told.extend(stored)) as ingest:
        for source, target in ((one, two), (two, one)):
            group = await _moving(db, ingest, pen, source, target, 3)
            async with db.acquire() as conn:
                before = await conn.fetchval("SELECT modseq FROM mailboxes WHERE id = $1", source.ref.mailbox_id)
            told.clear()
            placed = stored(await ingest.deliver_together(group))
            assert changed_mailboxes(told) == {
                target.ref.mailbox_id: placed[0].modseq,
                source.ref.mailbox_id: before + 1,
            }
            async with db.acquire() as conn:
                log = await conn.fetch(
                    "SELECT kind, modseq FROM changes WHERE mailbox_id = $1 ORDER BY seq DESC LIMIT 3",
                    source.ref.mailbox_id,
                )
            assert [tuple(row) for row in log] == [("removed", before + 1)] * 3
    for box in (one, two):
        assert len(await _texts(db, box)) == 3
    assert len(blobs.kept) == 6


@pytest.mark.covers("decisions:B10", "decisions:B14")
async def test_moves_in_both_directions_and_at_once_lose_nothing(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    one, two = await make_boxes(db, ids, clock, 2)
    pen, blobs = Pen(ids, clock), MemoryBlobs()
    async with running(db, clock, blobs) as ingest, running(db, clock, blobs) as another:
        there = [await _moving(db, ingest, pen, one, two, 2) for _ in range(4)]
        back = [await _moving(db, ingest, pen, two, one, 2) for _ in range(4)]
        # The same once more, from another node: one of both moves it.
        groups = [*there, *back, *([replace(d, copies=_renamed(ids, d)) for d in group] for group in (*there, *back))]
        outcomes = await asyncio.gather(
            *((ingest, another)[n // 8].deliver_together(group) for n, group in enumerate(groups))
        )
    for n in range(8):
        pair = outcomes[n], outcomes[n + 8]
        assert sum(isinstance(outcome, tuple) for outcome in pair) == 1
        assert Refused(Refusal.REPLACED_GONE) in pair
    assert len(await _texts(db, one)) == len(await _texts(db, two)) == 8
    assert len(blobs.kept) == 16


def _renamed(ids: IdGenerator, delivery: Delivery) -> tuple[Any, ...]:
    """The same for other ids."""
    return tuple(
        replace(
            copy, id=ids.new("msg"), blob_key=copy.blob_key + "x", thread_id=ids.new("thr"), event_id=ids.new("evt")
        )
        for copy in delivery.copies
    )


@pytest.mark.covers("decisions:D9", "mail-server:D8")
async def test_what_goes_from_another_mailbox_makes_no_room_in_this(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    one, two = await make_boxes(db, ids, clock, 2)
    pen = Pen(ids, clock)
    async with running(db, clock, MemoryBlobs()) as ingest:
        group = await _moving(db, ingest, pen, one, two, 1)
        async with db.acquire() as conn:
            await conn.execute("UPDATE mailboxes SET quota_bytes = 10 WHERE id = $1", two.ref.mailbox_id)
        assert await ingest.deliver_together(group) == Refused(Refusal.MAILBOX_FULL)
    assert len(await _texts(db, one)) == 1
    assert await _texts(db, two) == []


@pytest.mark.covers("decisions:B12")
async def test_nothing_goes_from_a_folder_of_some_other_mailbox(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    one, two = await make_boxes(db, ids, clock, 2)
    pen = Pen(ids, clock)
    async with running(db, clock, MemoryBlobs()) as ingest:
        old, _ = await _first(db, ingest, pen, one)
        # The folder is not of the mailbox that is named.
        wrong = _delivery(pen, two, "wrong", replaces=replace(old, mailbox=two.ref))
        assert await ingest.deliver(wrong) == Refused(Refusal.REPLACED_GONE)
    assert len(await _texts(db, one)) == 1
