"""Budgets of the writer that need no clock, and data that would spoil a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database
from postroom.db.pool import set_up_codecs
from postroom.mailbox import append_sql as sql
from postroom.mailbox.append import Group, append
from postroom.mailbox.ingest import Delivery, Ingest
from postroom.mailbox.models import (
    GroupOutcome,
    Mailpoint,
    NewMessage,
    PartInfo,
    RecipientKind,
    Verification,
)

from .letters import Box, Pen, check_mailbox, make_boxes, raw_mail
from .stores import MemoryBlobs
from .test_ingest import running

MAX_STATEMENTS = 12


@pytest.mark.covers("decisions:B14", "decisions:B20")
async def test_a_batch_costs_the_same_statements_at_any_size(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    boxes = await make_boxes(db, ids, clock, 5)
    pen = Pen(ids, clock)
    conn = await db.connect()
    await set_up_codecs(conn)
    counts = []
    seen: list[str] = []
    try:
        for size in (1, 7, 300):
            seen.clear()
            groups = []
            for n in range(size):
                # Conflicts, replies, several recipients, attachments: all that could ask for a statement of its own.
                raw = raw_mail(
                    message_id=f"{n % 3}@example.com",
                    in_reply_to=f"{n % 5}@example.com",
                    references=[f"{k}@example.com" for k in range(8)],
                    body=f"{size} {n}",
                )
                groups.append([with_parts(pen.copy(boxes[(n + k) % 5], raw), ids, 2) for k in range(1 + n % 3)])
            with conn.query_logger(lambda record: seen.append(record.query)):
                outcomes = await pen.store(conn, *groups)
            assert all(isinstance(outcome, tuple) for outcome in outcomes)
            counts.append(len(seen))
        for box in boxes:
            await check_mailbox(conn, box.ref)
    finally:
        await conn.close()
    assert max(counts) <= MAX_STATEMENTS
    assert counts[1] == counts[2]


def with_parts(message: NewMessage, ids: IdGenerator, count: int, **changes: Any) -> NewMessage:
    """The message with so many attachments."""
    parts = tuple(PartInfo(f"{n}", f"{n}.pdf", "application/pdf", n, "attachment", None) for n in range(count))
    changes = {"attachments": parts, **changes}
    return replace(
        message,
        content=replace(message.content, **changes),
        attachment_ids=tuple(ids.new("att") for _ in parts),
    )


class Spoiled:
    """Deliveries that hold what a database can't, and their innocent neighbours."""

    def __init__(self, pen: Pen, ids: IdGenerator, box: Box, other: Box) -> None:
        self.pen, self.ids, self.box, self.other = pen, ids, box, other

    def neighbour(self, n: int) -> Delivery:
        return self.plain(raw_mail(message_id=f"n{n}@example.com", body=f"neighbour {n}"))

    def plain(self, raw: bytes, **changes: Any) -> Delivery:
        message = self.pen.copy(self.box, raw)
        return Delivery((raw,), (replace(message, content=replace(message.content, **changes)),))

    def twice(self) -> list[Delivery]:
        raw = raw_mail(message_id="twice@example.com")
        return [Delivery((raw,), (self.pen.copy(self.box, raw),)) for _ in range(2)]

    def alias_and_primary(self) -> Delivery:
        raw = raw_mail(message_id="alias@example.com")
        copies = (
            self.pen.copy(self.box, raw),
            self.pen.copy(self.other, raw),
            self.pen.copy(self.box, raw, delivered_to=self.box.alias),
        )
        return Delivery((raw,), copies)

    def many_parts(self, count: int) -> Delivery:
        raw = raw_mail(message_id="parts@example.com")
        people = tuple((RecipientKind.TO, Mailpoint(f"p{n}@example.com", f"P {n}")) for n in range(count))
        return Delivery((raw,), (with_parts(self.pen.copy(self.box, raw), self.ids, count, recipients=people),))


@pytest.mark.covers("decisions:B2", "decisions:B14", "decisions:B15")
async def test_one_batch_of_every_oddity(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, other = await make_boxes(db, ids, clock, 2)
    odd = Spoiled(Pen(ids, clock), ids, box, other)
    words = " ".join(f"w{n:x}q" for n in range(250_000))
    assert len(words) > 1_500_000
    deliveries = [
        odd.neighbour(1),
        *odd.twice(),
        odd.plain(raw_mail(body="nul"), text="a\0b", extracted_text="a\0b"),
        odd.neighbour(2),
        odd.plain(raw_mail(body="surrogate"), subject="\ud800", subject_fold="\ud800", thread_subject="\ud800"),
        odd.plain(raw_mail(body="surrogate text"), extracted_text="\udfff", text="\udfff"),
        odd.alias_and_primary(),
        odd.plain(raw_mail(body="words"), text=words, extracted_text=words),
        odd.neighbour(3),
        odd.many_parts(10_000),
        odd.plain(raw_mail(body="sender"), sender=Mailpoint("\0@example.com", "\udc00")),
        odd.plain(raw_mail(body="id"), rfc_message_id="x" * 2000 + "@example.com"),
        odd.plain(raw_mail(body="auth"), auth={"client": {"helo": "\0"}}),
        odd.plain(raw_mail(body="automated"), automated={"evidence": ["\ud800"]}),
        odd.plain(raw_mail(body="number"), automated={"hop": 2**64}),
        odd.plain(raw_mail(body="code"), verdict="pass", verifications=(Verification("code", "\0", "example.com"),)),
        odd.neighbour(4),
    ]
    attempts = count_attempts(monkeypatch)
    ingest = Ingest(db, MemoryBlobs(), clock, committed=lambda _: None)
    outcomes = await deliver_in_one_batch(ingest, deliveries)
    assert all(isinstance(outcome, tuple) for outcome in outcomes)
    assert len(attempts) <= 2 * len(deliveries) + 5
    async with db.acquire() as conn:
        for one in (box, other):
            await check_mailbox(conn, one.ref)
        degraded = await conn.fetchval("SELECT count(*) FROM messages WHERE 'parse_degraded' = ANY (facts)")
        assert degraded == 9
        assert await conn.fetchval("SELECT count(*) FROM messages WHERE mailbox_id = $1", other.ref.mailbox_id) == 1
        assert await conn.fetchval("SELECT count(*) FROM messages WHERE mailbox_id = $1", box.ref.mailbox_id) == 17
        assert await conn.fetchval("SELECT count(*) FROM attachments") == 10_000
        assert await conn.fetchval("SELECT max(length(text)) FROM message_texts") == len(words)


@pytest.mark.covers("decisions:B15")
async def test_one_culprit_among_many_is_found_by_halving(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, other = await make_boxes(db, ids, clock, 2)
    odd = Spoiled(Pen(ids, clock), ids, box, other)
    deliveries = [odd.neighbour(n) for n in range(127)]
    deliveries.insert(77, odd.plain(raw_mail(body="nul"), text="a\0b", extracted_text="a\0b"))
    attempts = count_attempts(monkeypatch)
    outcomes = await deliver_in_one_batch(Ingest(db, MemoryBlobs(), clock, committed=lambda _: None), deliveries)
    assert all(isinstance(outcome, tuple) for outcome in outcomes)
    # Two halvings of 64 to one, the one stored degraded, and the batches beside it.
    assert len(attempts) <= 2 * 6 + 2 + 10
    async with db.acquire() as conn:
        await check_mailbox(conn, box.ref)
        assert await conn.fetchval("SELECT count(*) FROM messages") == 128
        assert await conn.fetchval("SELECT count(*) FROM messages WHERE 'parse_degraded' = ANY (facts)") == 1


def count_attempts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that are tried, as they are tried."""
    tried: list[int] = []

    async def counting(conn: Connection, groups: Sequence[Group], **options: Any) -> list[GroupOutcome]:
        tried.append(len(groups))
        return await append(conn, groups, **options)

    monkeypatch.setattr("postroom.mailbox.committing.append", counting)
    return tried


async def deliver_in_one_batch(ingest: Ingest, deliveries: list[Delivery]) -> list[object]:
    """All are waiting before the first stage runs, so that they meet in one batch."""
    ingest.start()
    try:
        return list(await asyncio.gather(*(ingest.deliver(one) for one in deliveries)))
    finally:
        await ingest.stop()


_INDEX_USE = "SELECT indexrelname, idx_scan FROM pg_stat_user_indexes WHERE relname = 'messages'"


@pytest.mark.covers("decisions:B14")
async def test_a_database_without_statistics_is_read_by_the_right_indexes(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    """A plan made on empty tables serves a session until they are analysed: lists must not be scanned for a hash."""
    boxes = await make_boxes(db, ids, clock, 2)
    pen = Pen(ids, clock)
    async with running(db, clock) as ingest:
        for n in range(60):
            raw = raw_mail(message_id=f"{n}@example.com", body=str(n))
            await ingest.deliver(Delivery((raw,), (pen.copy(boxes[n % 2], raw),)))
    async with db.acquire() as conn:
        async with asyncio.timeout(30):
            used: dict[str, int] = {}
            while used.get("messages_raw", 0) < 60:  # the sessions report when they end
                await asyncio.sleep(0.05)
                used = {row["indexrelname"]: row["idx_scan"] for row in await conn.fetch(_INDEX_USE)}
    assert used["messages_rfc_id"] >= 60
    assert used["messages_pkey"] >= 60  # by the foreign keys of what belongs to a message
    assert used["messages_list"] == used["messages_thread"] == 0


async def test_the_types_of_rows_are_the_writers(db: Database) -> None:
    async with db.acquire() as conn:
        for rows in sql.ROW_SETS:
            columns = await conn.fetch(
                "SELECT attname, format_type(atttypid, NULL) AS kind FROM pg_attribute"
                " WHERE attrelid = $1::regclass ORDER BY attnum",
                rows.type,
            )
            names = {"int": "integer", "bool": "boolean", "timestamptz": "timestamp with time zone"}
            assert [(name, names.get(kind, kind)) for name, kind in rows.columns] == [tuple(c) for c in columns]
