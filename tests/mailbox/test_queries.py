"""What the API reads: lists by page, filters, one message, threads, what `wait` waits for; and that indexes serve
it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.mailbox import query_sql as sql
from postroom.mailbox.models import Direction, Mailpoint
from postroom.mailbox.queries import Arrival, Include, MessageFilter, MessageQueries, ThreadFilter

from .seed import Seeded, World, make_world


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator) -> World:
    return await make_world(db, clock, ids)


async def found(world: World, **filters: Any) -> list[str]:
    return [m.id for m in await world.boxes.queries.list_messages(world.ref, MessageFilter(**filters), limit=100)]


async def threads(world: World, **filters: Any) -> list[str]:
    return [t.id for t in await world.boxes.queries.list_threads(world.ref, ThreadFilter(**filters), limit=100)]


async def conversation(world: World) -> list[Seeded]:
    """Three threads: asked and answered, unanswered, and one of ours without an answer."""
    start = world.clock.now()
    asked = await world.add(received_at=start, subject="Offer 12", flags=["work"])
    answer = await world.add(
        "Sent", thread=asked, direction="outbound", received_at=start + timedelta(hours=1), flags=["$seen"]
    )
    lonely = await world.add(
        received_at=start + timedelta(hours=2), sender=("carl@other.example", "Carl"), flags=["$seen"]
    )
    ours = await world.add(
        "Sent", direction="outbound", received_at=start + timedelta(hours=3), flags=["$seen", "later"]
    )
    return [asked, answer, lonely, ours]


@pytest.mark.covers("decisions:A5")
async def test_filters_of_messages(world: World) -> None:
    asked, answer, lonely, ours = await conversation(world)
    at = world.clock.now()
    everything = [ours.id, lonely.id, answer.id, asked.id]
    assert await found(world) == everything
    assert await found(world, direction=Direction.OUTBOUND) == [ours.id, answer.id]
    assert await found(world, thread_id=asked.thread) == [answer.id, asked.id]
    assert await found(world, thread_id="thr_nothing") == []
    assert await found(world, label="work") == [asked.id]
    assert await found(world, label="$seen'--") == []
    assert await found(world, status="received") == [lonely.id, asked.id]
    assert await found(world, status="quarantined") == []
    assert await found(world, after=at) == everything[:-1]
    assert await found(world, before=at + timedelta(hours=2)) == [answer.id, asked.id]
    assert await found(world, after=at, before=at + timedelta(hours=3), direction=Direction.INBOUND) == [lonely.id]


async def test_pages_follow_one_another(world: World) -> None:
    await world.fill("INBOX", 30, per_thread=3)
    # Times that are the same are told apart by the row.
    at = world.clock.now() + timedelta(days=1)
    same = [await world.add(received_at=at) for _ in range(5)]
    seen: list[str] = []
    before = None
    while page := await world.boxes.queries.list_messages(world.ref, MessageFilter(), before=before, limit=3):
        seen += [m.id for m in page]
        before = page[-1].key
    assert len(seen) == len(set(seen)) == 35
    assert seen[:5] == [m.id for m in reversed(same)]
    listed: list[str] = []
    before = None
    while some := await world.boxes.queries.list_threads(world.ref, ThreadFilter(), before=before, limit=4):
        listed += [t.id for t in some]
        before = some[-1].key
    assert len(listed) == len(set(listed)) == 15


async def test_one_message(world: World) -> None:
    m = await world.add(
        flags=["$seen", "work", "$flagged"],
        cc=[("eve@example.com", "Eve")],
        attachments=2,
        text="New",
        facts=["message_id_conflict"],
    )
    view = await world.boxes.queries.get_message(world.ref, m.id)
    assert (view.id, view.thread_id, view.read, view.labels) == (m.id, m.thread, True, ("work",))
    assert view.identity_id.startswith("idn_")
    assert view.sender == Mailpoint("anna@example.com", "Anna")
    assert (view.to, view.cc, view.bcc) == (
        (Mailpoint("box@agents.example", "Box"),),
        (Mailpoint("eve@example.com", "Eve"),),
        (),
    )
    assert (view.extracted_text, view.text, view.html) == ("New", None, None)
    assert view.facts == ("message_id_conflict",)
    assert (view.blob_key, view.raw_size, view.prefix_len) == (m.blob_key, 1000, 120)
    full = await world.boxes.queries.get_message(world.ref, m.id, include=Include.QUOTED | Include.HTML)
    assert (full.extracted_text, full.text, full.html) == (None, "New all", "<p>New")
    source = await world.boxes.queries.get_attachment(world.ref, m.id, view.attachments[1].id)
    assert (source.attachment, source.blob_key, source.part_tree) == (view.attachments[1], m.blob_key, b"parts")


@pytest.mark.covers("decisions:B12")
async def test_what_is_missing_and_what_is_not_ours(world: World) -> None:
    m = await world.add(attachments=1)
    other = await make_world(world.db, world.clock, world.ids)
    attachment = (await world.boxes.queries.get_message(world.ref, m.id)).attachments[0].id
    for code, attempt in (
        ("message_not_found", world.boxes.queries.get_message(other.ref, m.id)),
        ("message_not_found", world.boxes.queries.get_attachment(other.ref, m.id, attachment)),
        ("attachment_not_found", world.boxes.queries.get_attachment(world.ref, m.id, "att_nothing")),
        ("thread_not_found", world.boxes.queries.get_thread(other.ref, m.thread)),
        ("message_not_found", world.boxes.change_message(other.ref, m.id, add=["x"])),
        ("thread_not_found", world.boxes.change_thread(other.ref, m.thread, archived=True)),
    ):
        with pytest.raises(PostroomError) as caught:
            await attempt
        assert caught.value.code == code
    assert await world.boxes.queries.list_messages(other.ref, MessageFilter(), limit=10) == []
    assert await world.boxes.queries.thread_messages(other.ref, m.thread, limit=10) == []


async def test_filters_of_threads(world: World) -> None:
    asked, _, lonely, ours = await conversation(world)
    at = world.clock.now()
    assert await threads(world) == [ours.thread, lonely.thread, asked.thread]
    assert await threads(world, is_unread=True) == [asked.thread]
    assert await threads(world, is_unread=False) == [ours.thread, lonely.thread]
    assert await threads(world, direction=Direction.OUTBOUND) == [ours.thread, asked.thread]
    assert await threads(world, label="work") == [asked.thread]
    assert await threads(world, after=at + timedelta(hours=1), before=at + timedelta(hours=3)) == [lonely.thread]
    await world.boxes.change_thread(world.ref, lonely.thread, archived=True)
    assert await threads(world) == [ours.thread, asked.thread]
    assert await threads(world, archived=True) == [lonely.thread]
    assert len(await threads(world, archived=None)) == 3
    await world.remove(ours.id)
    assert await threads(world) == [asked.thread]


async def test_one_thread(world: World) -> None:
    asked, answer, *_ = await conversation(world)
    view = await world.boxes.queries.get_thread(world.ref, asked.thread)
    assert (view.message_count, view.unread_count, view.last_direction) == (2, 1, Direction.OUTBOUND)
    assert (view.labels, view.snippet) == (("work",), "Hello there")
    first = await world.boxes.queries.thread_messages(world.ref, asked.thread, limit=1)
    rest = await world.boxes.queries.thread_messages(world.ref, asked.thread, after=first[-1].key, limit=5)
    assert [m.id for m in (*first, *rest)] == [asked.id, answer.id]


async def test_what_wait_waits_for(world: World) -> None:
    start = world.clock.now() - timedelta(seconds=1)
    asked, answer, lonely, _ = await conversation(world)
    later = world.clock.now() + timedelta(hours=4)
    doubted = await world.add(thread=asked, received_at=later, facts=["thread_join_unverified"])
    reply = await world.add(thread=asked, received_at=later + timedelta(hours=1), subject="Re: OFFER 12")

    async def first(**wanted: Any) -> str | None:
        message = await world.boxes.queries.next_message_after(world.ref, Arrival(**({"since": start} | wanted)))
        return message.id if message else None

    assert await first() == asked.id
    assert await first(since=world.clock.now()) == lonely.id
    assert await first(sender="carl@other.example") == lonely.id
    assert await first(sender="@other.example") == lonely.id
    assert await first(sender="@ther.example") is None
    assert await first(subject_contains="offer 12", since=world.clock.now()) == reply.id
    assert await first(subject_contains="%") is None
    assert await first(thread_id=asked.thread, since=world.clock.now()) == doubted.id
    assert await first(reply=True) == reply.id
    assert await first(since=later + timedelta(hours=2)) is None
    assert answer.id not in (await first(), await first(reply=True))


# -- how it is done ----------------------------------------------------------------------------------------------------


async def plan_of(world: World, statement: str, values: list[object]) -> list[dict[str, Any]]:
    """The nodes of the plan."""
    async with world.db.acquire() as conn:
        (plan,) = await conn.fetchval("EXPLAIN (FORMAT JSON) " + statement, *values)
    nodes, rest = [], [plan["Plan"]]
    while rest:
        nodes.append(rest.pop())
        rest += nodes[-1].get("Plans", ())
    return nodes


async def indexed(world: World) -> None:
    """As the indexer leaves it, but for the words."""
    async with world.db.acquire() as conn:
        await conn.execute(
            "INSERT INTO message_words (tenant_id, mailbox_id, message_id, words, complete, gleaned) "
            "SELECT tenant_id, mailbox_id, id, '', true, true FROM messages"
        )
        await conn.execute("DELETE FROM word_tasks")
        await conn.execute("ANALYZE message_words")


async def test_indexes_serve_every_list(world: World) -> None:
    await world.fill("INBOX", 6000, per_thread=3)
    await indexed(world)
    at = world.clock.now()
    m = (await world.boxes.queries.list_messages(world.ref, MessageFilter(), limit=1))[0]

    messages = sql.Query(world.ref, at + timedelta(seconds=3000), 10**6, at)
    messages.text(sql.MESSAGES_BEFORE)
    in_thread = sql.Query(world.ref, at, 0)
    in_thread.text(sql.MESSAGES_AFTER)
    in_thread.where(sql.MESSAGE_THREAD, m.thread_id)
    one = sql.Query(world.ref)
    one.where(sql.MESSAGE_ID, m.id)
    listed = sql.Query(world.ref, at + timedelta(seconds=3000), 10**6, at)
    listed.text(sql.THREADS_BEFORE)
    texts = [True, False, False]
    for query, statement, index in (
        (messages, messages.messages(sql.NEWEST_FIRST, 25, texts), "messages_list"),
        (in_thread, in_thread.messages(sql.OLDEST_FIRST, 25, texts), "messages_thread"),
        (one, one.messages(sql.NEWEST_FIRST, 1, texts), "messages_public_id_key"),
        (listed, listed.threads(25), "threads_list"),
    ):
        plan = await plan_of(world, statement, query.values)
        assert index in [node.get("Index Name") for node in plan]
        scanned = {node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"}
        # A handful of mailboxes is read faster without an index.
        assert scanned <= {"mailboxes"}


class CountingDatabase:
    """Hands out connections of another database and notes what is asked on them."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.statements: list[str] = []

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        async with self.db.acquire() as conn:
            with conn.query_logger(lambda record: self.statements.append(record.query)):
                yield conn


async def test_a_page_takes_as_many_statements_whatever_its_length(world: World) -> None:
    await world.fill("INBOX", 60, per_thread=2)
    await indexed(world)
    counting = CountingDatabase(world.db)
    queries = MessageQueries(counting)  # type: ignore[arg-type] # counts in between
    for limit in (2, 50):
        counting.statements.clear()
        assert len(await queries.list_messages(world.ref, MessageFilter(), limit=limit)) == limit
        assert len(counting.statements) == 4
    for limit in (2, 25):
        counting.statements.clear()
        assert len(await queries.list_threads(world.ref, ThreadFilter(), limit=limit)) == limit
        assert len(counting.statements) == 1
