"""Threads that are known by their number: a token names it, or it was taken before the first message was written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.db.pool import set_up_codecs
from postroom.mailbox import append_sql as sql
from postroom.mailbox.append import append
from postroom.mailbox.models import FLAG_DELETED, Appended, Direction, Filing, MailboxRef, Source
from postroom.mailbox.rules import FlagMode
from postroom.mailbox.service import Mailboxes
from postroom.mailbox.threads import take_number
from tests.mailbox.letters import Box, Pen, check_mailbox, make_boxes, raw_mail
from tests.mailbox.stores import MemoryBlobs

ANNA, BEN = "Anna <anna@example.com>", "Ben <ben@example.com>"


@dataclass
class Desk:
    """A mailbox that has written to Anna, and a connection."""

    db: Database
    conn: Connection
    box: Box
    pen: Pen
    seen: list[str]

    async def store(self, raw: bytes, filing: Filing | None = None, **changes: Any) -> Appended:
        (outcome,) = await self.pen.store(self.conn, [self.pen.copy(self.box, raw, filing=filing, **changes)])
        assert isinstance(outcome, tuple), outcome
        return outcome[0]

    async def sent(self, filing: Filing | None = None, **fields: Any) -> Appended:
        raw = raw_mail(sender=self.box.address, to="anna@example.com", **fields)
        return await self.store(
            raw, filing, source=Source.SEND, direction=Direction.OUTBOUND, delivered_to=None, announce=None
        )

    async def facts(self, stored: Appended) -> list[str]:
        statement = "SELECT facts FROM messages WHERE public_id = $1"
        return list(await self.conn.fetchval(statement, stored.message_id))

    async def threads(self) -> dict[int, str]:
        statement = "SELECT seq, public_id FROM threads WHERE mailbox_id = $1 ORDER BY seq"
        return {row["seq"]: row["public_id"] for row in await self.conn.fetch(statement, self.box.ref.mailbox_id)}

    async def said(self) -> list[str]:
        """The statements since it was asked last."""
        await asyncio.sleep(0)  # loggers are told a turn later
        said, self.seen[:] = self.seen[:], []
        return said

    async def expunge(self, stored: Appended) -> None:
        """The message goes, its thread stays as an empty row."""
        boxes = Mailboxes(self.db, MemoryBlobs(), self.pen.clock, self.pen.ids, changed=lambda ref, modseq: None)
        await boxes.set_flags(self.box.ref, stored.folder, [stored.uid], FlagMode.ADD, [FLAG_DELETED])
        assert await boxes.expunge(self.box.ref, stored.folder, [stored.uid]) == [stored.uid]

    async def erase(self, stored: Appended) -> None:
        """Nothing is left of it."""
        await self.expunge(stored)
        await self.conn.execute("DELETE FROM threads WHERE public_id = $1", stored.thread_id)


@pytest.fixture
async def desk(db: Database, clock: ManualClock, ids: IdGenerator) -> AsyncIterator[Desk]:
    (box,) = await make_boxes(db, ids, clock)
    conn = await db.connect()
    await set_up_codecs(conn)
    seen: list[str] = []
    try:
        with conn.query_logger(lambda record: seen.append(record.query)):
            yield Desk(db, conn, box, Pen(ids, clock), seen)
        await check_mailbox(conn, box.ref)
    finally:
        await conn.close()


# -- a token's thread


@pytest.mark.covers("edge:C1", "FR-THR-1")
async def test_the_number_comes_before_the_headers(desk: Desk) -> None:
    first = await desk.sent(message_id="1@agents.example")
    second = await desk.sent(message_id="2@agents.example")
    raw = raw_mail(sender=ANNA, in_reply_to="2@agents.example", subject="Something else")
    joined = await desk.store(raw, Filing(joins=1))
    assert joined.thread_id == first.thread_id != second.thread_id
    count = await desk.conn.fetchval("SELECT message_count FROM threads WHERE public_id = $1", first.thread_id)
    assert count == 2


@pytest.mark.covers("edge:C1", "edge:C8")
async def test_without_headers_only_the_number_joins(desk: Desk) -> None:
    first = await desk.sent(subject="Hello")
    joined = await desk.store(raw_mail(sender=ANNA, subject="Re: Hello"), Filing(joins=1))
    apart = await desk.store(raw_mail(sender=ANNA, subject="Re: Hello", body="another"))
    assert joined.thread_id == first.thread_id
    assert await desk.threads() == {1: first.thread_id, 2: apart.thread_id}


@pytest.mark.covers("edge:C9", "edge:D10")
@pytest.mark.parametrize(
    ("sender", "header", "filing", "unverified"),
    [
        (ANNA, None, Filing(joins=1), False),
        (BEN, None, Filing(joins=1), True),  # a stranger by token alone
        (BEN, "1@agents.example", Filing(joins=1), False),  # a header says the same
        (BEN, "2@agents.example", Filing(joins=1), True),  # a header says another
        (ANNA, "2@agents.example", Filing(joins=1), False),
        (BEN, "1@agents.example", None, True),  # by header alone
        (ANNA, "1@agents.example", None, False),
        (ANNA, "1@agents.example", Filing(is_suspect=True), True),  # a token that is none
        (ANNA, None, Filing(is_suspect=True), True),
        (BEN, None, Filing(joins=9), False),  # a token of a thread that is gone says nothing
        (BEN, "1@agents.example", Filing(joins=9), True),
        (ANNA, "1@agents.example", Filing(joins=9), False),
    ],
)
async def test_who_joined_how(
    desk: Desk, sender: str, header: str | None, filing: Filing | None, unverified: bool
) -> None:
    first = await desk.sent(message_id="1@agents.example")
    await desk.sent(message_id="2@agents.example")
    stored = await desk.store(raw_mail(message_id="x@example.com", sender=sender, in_reply_to=header), filing)
    assert await desk.facts(stored) == ["thread_join_unverified"] * unverified
    joins = header is not None or filing == Filing(joins=1)
    assert (stored.thread_id == first.thread_id, len(await desk.threads())) == (joins, 2 if joins else 3)


@pytest.mark.covers("edge:C1")
async def test_a_number_whose_thread_was_erased_names_nothing(desk: Desk) -> None:
    first = await desk.sent(message_id="1@agents.example")
    newest = await desk.sent(message_id="2@agents.example")
    await desk.erase(newest)
    late = await desk.store(raw_mail(sender=ANNA), Filing(joins=2))
    later = await desk.store(raw_mail(sender=ANNA, in_reply_to="1@agents.example", body="2"), Filing(joins=2))
    assert await desk.threads() == {1: first.thread_id, 3: late.thread_id}
    assert later.thread_id == first.thread_id


async def test_an_emptied_thread_is_found(desk: Desk) -> None:
    only = await desk.sent()
    await desk.expunge(only)
    late = await desk.store(raw_mail(sender=ANNA), Filing(joins=1))
    assert late.thread_id == only.thread_id
    # Nobody is left whose thread it was.
    assert "thread_join_unverified" in await desk.facts(late)


@pytest.mark.covers("decisions:B12")
async def test_a_number_is_of_one_mailbox(desk: Desk) -> None:
    (other,) = await make_boxes(desk.db, desk.pen.ids, desk.pen.clock)
    await desk.store(raw_mail(sender=ANNA, body="1"))
    await desk.store(raw_mail(sender=ANNA, body="2"))
    (outcome,) = await desk.pen.store(
        desk.conn, [desk.pen.copy(box, raw_mail(body="3"), filing=Filing(joins=2)) for box in (other, desk.box)]
    )
    assert isinstance(outcome, tuple)
    assert outcome[1].thread_id == (await desk.threads())[2] != outcome[0].thread_id


@pytest.mark.covers("edge:A2", "mail-server:A8")
async def test_who_takes_part_is_named_without_a_token(desk: Desk) -> None:
    local, _, domain = desk.box.address.partition("@")
    tokened = f"{local}+t01.0123abcd@{domain}"
    first = await desk.store(
        raw_mail(
            sender=ANNA, to=f"{tokened}, ben+x@example.com, cy+t01.0123abcd@example.com", message_id="1@example.com"
        )
    )
    await desk.store(raw_mail(sender=BEN, to=tokened, in_reply_to="1@example.com"))
    statement = "SELECT participants_json FROM threads WHERE public_id = $1"
    wanted = ["anna@example.com", "ben+x@example.com", "cy@example.com", "ben@example.com"]
    assert [one["address"] for one in await desk.conn.fetchval(statement, first.thread_id)] == wanted
    last = await desk.store(raw_mail(sender=ANNA, to=tokened, in_reply_to="1@example.com", body="3"))
    await desk.expunge(last)  # the list is made again
    assert [one["address"] for one in await desk.conn.fetchval(statement, first.thread_id)] == wanted


# -- what it costs


@pytest.mark.covers("decisions:B14")
async def test_mail_without_a_token_asks_nothing_more(desk: Desk) -> None:
    await desk.sent(message_id="1@agents.example")
    await desk.said()
    for filing, more in ((None, []), (Filing(is_suspect=True), []), (Filing(joins=1), [sql.THREADS_BY_NUMBER])):
        await desk.store(raw_mail(sender=ANNA, body=str(filing), message_id=f"{len(more)}{filing}@example.com"), filing)
        assert await desk.said() == [sql.BEGIN, sql.READ, *more, sql.WRITE, "COMMIT"]
    groups = [
        [desk.pen.copy(desk.box, raw_mail(sender=ANNA, body=f"{n}"), filing=Filing(joins=1 + n % 7))] for n in range(50)
    ]
    await desk.pen.store(desk.conn, *groups)
    assert await desk.said() == [sql.BEGIN, sql.READ, sql.THREADS_BY_NUMBER, sql.WRITE, "COMMIT"]


# -- numbers that are taken


@pytest.mark.covers("edge:C1")
async def test_a_taken_number_is_that_of_the_new_thread(desk: Desk) -> None:
    taken = [await take_number(desk.db, desk.box.ref) for _ in range(3)]
    assert taken == [1, 2, 3]
    between = await desk.store(raw_mail(body="between"))
    mine = await desk.sent(Filing(begins=2), message_id="mine@agents.example")
    after = await desk.store(raw_mail(body="after"))
    assert await desk.threads() == {2: mine.thread_id, 4: between.thread_id, 5: after.thread_id}


async def test_what_begins_a_thread_joins_none(desk: Desk) -> None:
    """Its token says so already."""
    first = await desk.sent(message_id="1@agents.example")
    number = await take_number(desk.db, desk.box.ref)
    second = await desk.sent(Filing(begins=number), in_reply_to="1@agents.example", message_id="2@agents.example")
    assert await desk.threads() == {1: first.thread_id, number: second.thread_id}


@pytest.mark.covers("edge:C1")
async def test_no_two_threads_have_one_number(desk: Desk) -> None:
    """Whatever the database was restored to while a message was under way."""
    first = await desk.sent(Filing(begins=1), body="1")
    same = await desk.sent(Filing(begins=1), body="2")
    ahead = await desk.sent(Filing(begins=8), body="3")
    after = await desk.sent(body="4")
    assert await desk.threads() == {1: first.thread_id, 2: same.thread_id, 8: ahead.thread_id, 9: after.thread_id}
    groups = [
        [desk.pen.copy(desk.box, raw_mail(body=f"g{n}"), filing=filing)]
        for n, filing in enumerate((None, Filing(begins=10), None, Filing(begins=10), Filing(begins=11)))
    ]
    outcomes = await desk.pen.store(desk.conn, *groups)
    made = [outcome[0].thread_id for outcome in outcomes if isinstance(outcome, tuple)]
    assert list(await desk.threads())[4:] == [10, 11, 12, 13, 14]
    assert len(set(made)) == 5


@pytest.mark.covers("edge:C1")
async def test_many_take_numbers_while_mail_comes(desk: Desk, database_url: str) -> None:
    async with Database(database_url, min_size=1, max_size=10) as other:
        taking = asyncio.gather(*(take_number(db, desk.box.ref) for db in (desk.db, other) for _ in range(20)))
        await asyncio.gather(*(_alone(desk, n) for n in range(10)))
        taken = await taking
    numbers = [*taken, *(await desk.threads())]
    assert sorted(numbers) == list(range(1, 51))


async def _alone(desk: Desk, n: int) -> None:
    """A message by a connection of its own, which waits for the mailbox."""
    copy = desk.pen.copy(desk.box, raw_mail(body=f"alone {n}"))
    async with desk.db.acquire() as conn:
        await conn.execute(sql.BEGIN)
        (outcome,) = await append(conn, [[copy]], now=desk.pen.clock.now(), wait_for=[copy.mailbox])
        await conn.execute("COMMIT")
    assert isinstance(outcome, tuple)


async def test_numbers_of_mailboxes_that_are_not_there(desk: Desk) -> None:
    for ref in (MailboxRef(desk.box.ref.tenant_id + 1, desk.box.ref.mailbox_id), MailboxRef(0, 0)):
        with pytest.raises(PostroomError) as raised:
            await take_number(desk.db, ref)
        assert raised.value.code == "identity_not_found"
    await desk.conn.execute("UPDATE mailboxes SET erased = true")
    with pytest.raises(PostroomError) as raised:
        await take_number(desk.db, desk.box.ref)
    assert raised.value.code == "identity_not_found"


async def test_a_mailbox_that_is_held(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.mailbox.threads._TAKE_SETTINGS", "SET LOCAL lock_timeout = '20ms'")
    async with desk.conn.transaction():
        await desk.conn.execute("SELECT FROM mailboxes WHERE id = $1 FOR NO KEY UPDATE", desk.box.ref.mailbox_id)
        with pytest.raises(PostroomError) as raised:
            await take_number(desk.db, desk.box.ref)
    assert (raised.value.code, raised.value.retry_after) == ("unavailable", 1)
    assert await take_number(desk.db, desk.box.ref) == 1
