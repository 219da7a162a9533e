"""Language and references of a text: found with the words, and by whoever asks before that."""

from __future__ import annotations

import asyncio
import threading

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox import gleaned
from postroom.mailbox.gleaned import Gleaned, glean_aside
from postroom.mailbox.models import RefInfo
from postroom.mailbox.queries import Include, MessageFilter, MessageQueries
from postroom.mailbox.words import WordIndexer
from tests.mailbox.letters import Box, Pen, make_boxes
from tests.mailbox.test_words import no_headers, store

TEXT = "Bitte überweisen Sie den Betrag von 412,80 € bis zum Ende des Monats auf unser Konto, vielen Dank."
FOUND = Gleaned("de", (RefInfo("amount", "EUR:412.80", "body"), RefInfo("order", "4711-A", "subject")))

pytestmark = pytest.mark.covers("FR-SRCH-4", "decisions:B20")


async def _read(db: Database, box: Box) -> list[Gleaned]:
    views = await MessageQueries(db).list_messages(box.ref, MessageFilter(), limit=10, include=Include.NONE)
    return [Gleaned(view.language, tuple(sorted(view.refs, key=lambda ref: ref.kind))) for view in views]


async def test_the_same_is_said_before_and_after_the_indexer(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, other = await make_boxes(db, ids, clock, 2)
    pen = Pen(ids, clock)
    await store(db, pen, other, "other", "Invoice 88213, please pay")
    await store(db, pen, box, "one", TEXT, subject="Order 4711-A")
    assert await _read(db, box) == [FOUND]
    assert await WordIndexer(db, clock, no_headers).run_once() == 2

    def never(subject: str, text: str) -> Gleaned:
        raise AssertionError("it was found before")

    monkeypatch.setattr(gleaned, "glean", never)
    assert await _read(db, box) == [FOUND]
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM refs WHERE mailbox_id = $1", other.ref.mailbox_id) == 1


async def test_mail_that_a_release_before_indexed_is_read_by_who_asks(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    (box,) = await make_boxes(db, ids, clock)
    await store(db, Pen(ids, clock), box, "one", TEXT, subject="Order 4711-A")
    async with db.acquire() as conn:
        await conn.execute(
            "INSERT INTO message_words (tenant_id, mailbox_id, message_id, words, complete) "
            "SELECT tenant_id, mailbox_id, id, '', true FROM messages"
        )
    assert await _read(db, box) == [FOUND]


async def test_what_cannot_be_read_keeps_its_words(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    (box,) = await make_boxes(db, ids, clock)
    await store(db, Pen(ids, clock), box, "one", TEXT)

    def fails(subject: str, text: str) -> Gleaned:
        raise RuntimeError

    monkeypatch.setattr(gleaned, "glean", fails)
    assert await WordIndexer(db, clock, no_headers).run_once() == 1
    assert await _read(db, box) == [Gleaned(None, ())]
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT words @@ 'betrag' FROM message_words")


async def test_a_long_text_leaves_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    inner = gleaned.glean

    def watched(subject: str, text: str) -> Gleaned:
        threads.append(threading.current_thread() is threading.main_thread())
        return inner(subject, text)

    monkeypatch.setattr(gleaned, "glean", watched)
    short, long = await asyncio.gather(
        glean_aside("", TEXT), glean_aside("", TEXT + " " * gleaned.QUICK_CHARS + "Order 4711-A")
    )
    assert threads == [True, False]
    assert (short.language, long.language) == ("de", "de")
    assert [ref.kind for ref in long.refs] == ["amount", "order"]
