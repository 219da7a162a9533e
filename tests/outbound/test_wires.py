"""The bytes that go out and nobody needs any more: what is left of them when a process ends at the wrong time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import BlobMissing, StorageError
from postroom.db import Database
from postroom.db.pool import Connection
from postroom.events.live import LiveHub
from postroom.mailbox.sent_copy import ledger_key
from postroom.mailbox.sweep import LEAST_AGE, BlobSweep, Swept
from postroom.outbound.ledger import LIFE
from postroom.outbound.outcomes import Outcomes
from postroom.outbound.queue import MailQueue
from postroom.outbound.rules import Action
from postroom.outbound.wires import STORED
from tests.outbound.fake_mx import FakeMx
from tests.outbound.mail_room import MailRoom, unsigned, until

STORE = "store-1"


@pytest.fixture
async def room(db: Database, tmp_path: Path) -> AsyncIterator[MailRoom]:
    clock = ManualClock(datetime.now(UTC))
    made = await MailRoom.open(db, clock, IdGenerator(clock), tmp_path, kind="person")
    await made.blobs.check_marker(STORE, create=True)
    async with db.acquire() as conn:
        await conn.execute(
            "INSERT INTO deployment (store_id, platform_domain, created_at) VALUES ($1, 'agents.example', now())", STORE
        )
    yield made
    await made.close()


async def swept(room: MailRoom, age: timedelta = LEAST_AGE) -> Swept:
    """What is removed when everything that is there is so old."""
    clock = ManualClock(datetime.now(UTC) + age + timedelta(seconds=1))
    return await BlobSweep(room.db, room.blobs, clock, STORED).collect(LEAST_AGE)


class Kept:
    """A store that removes nothing: the process ends before it comes to that."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def delete(self, *_: Any, **__: Any) -> None:
        raise StorageError("killed")


class LosesAnswers:
    """A database whose answer to a COMMIT is lost, once, when `armed`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    @asynccontextmanager
    async def transaction(self, *args: Any, **options: Any) -> AsyncIterator[Connection]:
        async with self._db.transaction(*args, **options) as conn:
            yield conn
        if self.armed:
            self.armed = False
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")


def outcomes_of(room: MailRoom, db: Any, blobs: Any, changed: Callable[..., None] = lambda *_: None) -> Outcomes:
    return Outcomes(
        db, blobs, room.clock, room.ids, random=random.Random(1).random, changed=changed, noticed=lambda: None
    )


@pytest.mark.covers("edge:I9", "mail-server:C2")
async def test_the_wire_of_a_settled_message_goes_in_the_end(room: MailRoom) -> None:
    room = replace(room, outcomes=outcomes_of(room, room.db, Kept(room.blobs)))
    async with FakeMx(replies={"later@example.com": ["451 Later"]}) as mx:
        room.net.add("example.com", mx)
        done, waiting = await room.accept("anna@example.com"), await room.accept("later@example.com")
        keys = {message: await room.wire_key(message) for message in (done, waiting)}
        assert all(keys.values())
        await room.dispatcher().run_due()
    assert (await room.status(done), await room.wire_key(done)) == ("delivered", None)
    assert await room.wire_key(waiting) == keys[waiting]
    assert await room.blobs.get(str(keys[done]))
    found = await swept(room)
    assert (found.removed, found.unknown) == (1, 0)
    with pytest.raises(BlobMissing):
        await room.blobs.get(str(keys[done]))
    assert await room.blobs.get(str(keys[waiting]))
    # Both copies in Sent are there.
    assert len(await room.blobs.list()) == 3


@pytest.mark.covers("edge:I9", "mail-server:C2")
async def test_bytes_that_were_made_anew_are_known(room: MailRoom) -> None:
    async with FakeMx(replies={"anna@example.com": ["550 5.1.1 No"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        await room.dispatcher().run_due()
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE bounce_tasks SET next_attempt_at = NULL")
        await conn.execute("UPDATE outbound_messages SET wire_key = NULL")
    queue = MailQueue(
        room.db, room.blobs, room.clock, room.ids, sign=unsigned, changed=lambda *_: None, wake=lambda: None
    )
    (item,) = await queue.list()
    assert [done.refused for done in await queue.act(Action.RETRY, [item.id])] == [None]
    key = await room.wire_key(message)
    assert key is not None
    # The first ones are nobody's by now.
    assert (await swept(room)).removed == 1
    assert await room.blobs.get(key)
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE outbound_messages SET wire_key = NULL")
    assert (await swept(room)).removed == 1


@pytest.mark.covers("edge:I9", "FR-OUT-2")
async def test_the_ledgers_part_stays_with_its_message_and_for_as_long_as_a_key_lives(room: MailRoom) -> None:
    message = await room.accept("anna@example.com")
    (of_row,) = [ledger_key(key) for key in await room.blobs.list() if "/m/" in key]
    of_nobody = of_row.replace(message, room.ids.new("msg"))
    for key in (of_row, of_nobody):
        await room.blobs.put(key, b"{}")
    assert await swept(room, LIFE - timedelta(days=1)) == Swept(keys=4)
    assert (await swept(room, LIFE)).removed == 1
    assert of_row in await room.blobs.list()
    assert of_nobody not in await room.blobs.list()


@pytest.mark.covers("decisions:B15", "edge:I9", "edge:G2")
async def test_a_lost_answer_to_the_commit_of_an_outcome(room: MailRoom) -> None:
    """Nobody is told and no bytes go, since it is not known that it was us; polling and the sweep make up for it."""
    db = LosesAnswers(room.db)
    told: list[object] = []
    room = replace(room, outcomes=outcomes_of(room, db, room.blobs, lambda *seen: told.append(seen)))
    woken: list[bool] = []
    hub = LiveHub(_Silent())
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        key = await room.wire_key(message)
        hub.watch(room.box.ref.mailbox_id, lambda: woken.append(True))
        await looked(hub, room.db, woken)
        db.armed = True
        await room.dispatcher().run_due()
        assert len(mx.delivered) == 1
    assert not db.armed
    assert (await room.status(message), await room.wire_key(message)) == ("delivered", None)
    assert [kind for kind, _ in await room.events(message)] == ["message.sent", "message.delivered"]
    assert told == []
    await looked(hub, room.db, woken)
    assert await room.blobs.get(str(key))
    assert (await swept(room)).removed == 1


async def looked(hub: LiveHub, db: Database, woken: list[bool]) -> None:
    """Until the poll has woken the watch."""
    polling = asyncio.create_task(hub.poll(db, every=0.01))
    try:
        await until(lambda: bool(woken))
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    woken.clear()


class _Silent:
    def hint(self, channel: str, key: int | str, value: int = 0) -> None:
        """Nobody hears it."""
