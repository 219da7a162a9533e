"""The word index: never less than a search through the text, whatever is half done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import Span, StorageError
from postroom.db import Connection, Database
from postroom.mailbox import words
from postroom.mailbox.folding import fold
from postroom.mailbox.models import MailboxRef, Mailpoint, RecipientKind
from postroom.mailbox.words import QUEUE, WordIndexer, candidates, pieces_of, words_of

from .letters import Box, Pen, check_mailbox, make_boxes, raw_mail

# What databases, queries and foldings stumble over.
ODD = st.sampled_from(
    [
        *("%", "_", "\\", "'", '"', "''", "\\'", "&", "|", "!", ":*", "<->", "(", "a_b_c", "100%", "O'Neil"),
        *("ß", "SS", "İ", "ı", "ﬁ", "Ǆ", "Σ", "ς", "Å", "é", "naïve", "ａｂｃ", "½", "\u0301", "\u200d"),
        *("日本語", "中文", "한국", "😀", "١٢٣", "x" * 260),
    ]
)
PLAIN = st.sampled_from(["invoice", "Invoices", "meeting", "voice", "INV", "tion", "nation", "the", "a", "x1", "1x"])
LETTER = st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\0")
TEXT = st.lists(ODD | PLAIN | st.text(LETTER, max_size=6) | st.sampled_from([" ", "\n", "-", "."]), max_size=8).map(
    "".join
)


async def no_headers(spans: Sequence[Span]) -> list[bytes | StorageError]:
    """What is stored here has texts only."""
    return [b"" for _ in spans]


async def store(db: Database, pen: Pen, box: Box, n: object, text: str, **changes: Any) -> None:
    raw = raw_mail(body=f"{n}")
    message = pen.copy(box, raw)
    content = replace(message.content, text=text, extracted_text=text, **changes)
    async with db.acquire() as conn:
        (outcome,) = await pen.store(conn, [replace(message, content=content)])
    assert isinstance(outcome, tuple)


async def brute_force(conn: Connection, ref: MailboxRef, needle: str) -> set[int]:
    """Keys of the messages that hold the needle in one of the texts a search looks at."""
    rows = await conn.fetch(
        "SELECT m.id, m.subject, m.from_name, m.from_address, x.text, "
        "(SELECT array_agg(r.address) || array_agg(r.name) FROM recipients r WHERE r.message_id = m.id) AS people, "
        "(SELECT array_agg(a.filename) FROM attachments a WHERE a.message_id = m.id) AS files "
        "FROM messages m JOIN message_texts x ON x.message_id = m.id WHERE m.mailbox_id = $1",
        ref.mailbox_id,
    )
    found = set()
    for row in rows:
        texts = [row["subject"], row["from_name"], row["from_address"], row["text"]]
        texts += [*(row["people"] or ()), *(row["files"] or ())]
        if any(text and fold(needle) in fold(text) for text in texts):
            found.add(row["id"])
    return found


@pytest.mark.covers("decisions:B20", "edge:F1")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(TEXT, min_size=1, max_size=6),
    subject=TEXT,
    name=TEXT,
    needles=st.lists(TEXT, max_size=4),
    cut=st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(3, 12)),
    indexed=st.integers(0, 6),
)
async def test_candidates_hold_every_hit(
    db: Database,
    clock: ManualClock,
    ids: IdGenerator,
    texts: list[str],
    subject: str,
    name: str,
    needles: list[str],
    cut: tuple[int, int, int],
    indexed: int,
) -> None:
    box, other = await make_boxes(db, ids, clock, 2)
    pen, indexer = Pen(ids, clock), WordIndexer(db, clock, no_headers)
    await store(db, pen, other, "other", "".join(texts))
    for n, text in enumerate(texts):
        if n == indexed:
            await indexer.run_once()
        point = Mailpoint("p@example.com", name)
        await store(db, pen, box, n, text, subject=subject, sender=point, recipients=((RecipientKind.TO, point),))
    n, start, length = cut
    searched = texts[n % len(texts)]
    async with db.acquire() as conn:
        for needle in [*needles, searched[start : start + length], subject[start : start + length], name[:length]]:
            found = await candidates(conn, box.ref, needle)
            if found is not None:
                assert found >= await brute_force(conn, box.ref, needle)
        await check_mailbox(conn, box.ref)


@pytest.mark.covers("decisions:B20")
async def test_candidates_are_few_and_of_one_mailbox(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    box, other = await make_boxes(db, ids, clock, 2)
    pen, indexer = Pen(ids, clock), WordIndexer(db, clock, no_headers)
    for n in range(20):
        await store(db, pen, box, n, f"common unique{n}x")
        await store(db, pen, other, n, f"common unique{n}x")
    assert await indexer.run_once() == 40
    async with db.acquire() as conn:
        assert len(await candidates(conn, box.ref, "nique7") or ()) == 1
        assert len(await candidates(conn, box.ref, "common") or ()) == 20
        assert await candidates(conn, box.ref, "nowhere") == frozenset()
        assert len(await candidates(conn, box.ref, "COMMON, unique1x!") or ()) == 1
        assert await candidates(conn, box.ref, "un") is None
    # The tail is always looked at.
    await store(db, pen, box, "tail", "something else")
    async with db.acquire() as conn:
        assert len(await candidates(conn, box.ref, "nowhere") or ()) == 1


@pytest.mark.covers("decisions:B20")
async def test_a_piece_of_too_many_words_narrows_nothing(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "MAX_EXPANSION", 5)
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    await store(db, pen, box, 1, " ".join(f"abc{n}" for n in range(10)) + " rare")
    await store(db, pen, box, 2, "abc1")
    await WordIndexer(db, clock, no_headers).run_once()
    async with db.acquire() as conn:
        assert await candidates(conn, box.ref, "abc") is None
        assert len(await candidates(conn, box.ref, "abc rare") or ()) == 1


@pytest.mark.covers("decisions:B20")
@pytest.mark.parametrize("size", [3, 255, 256])
@pytest.mark.parametrize("letter", ["a", "ж", "語", "𝒳"])
async def test_large_vocabularies_stay_within_a_tsvector(
    db: Database, clock: ManualClock, ids: IdGenerator, size: int, letter: str
) -> None:
    """25,000 words, as long as words may be: what is left out makes the message a candidate always."""
    (box,) = await make_boxes(db, ids, clock)
    text = " ".join(f"{n:05}".ljust(size, fold(letter)) for n in range(25_000))
    await store(db, Pen(ids, clock), box, 1, text)
    await WordIndexer(db, clock, no_headers).run_once()
    async with db.acquire() as conn:
        row = await conn.fetchrow("SELECT words, complete FROM message_words WHERE mailbox_id = $1", box.ref.mailbox_id)
        assert row is not None
        assert row["complete"] is False
        for n in (0, 1, 1999, 19_999, 24_999):
            assert len(await candidates(conn, box.ref, f"{n:05}") or ()) == 1
        # What the database gives back is what was given: nothing wrapped around.
        lexemes = await conn.fetchval("SELECT tsvector_to_array(words) FROM message_words")
        assert set(lexemes) <= words_of([text]).words | words_of(["5 box agents example 1 anna hello com Anna"]).words


@pytest.mark.covers("decisions:B20")
async def test_a_message_indexed_during_the_query_is_not_missed(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indexer commits between any two statements of a query."""
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    conn = await db.connect()
    try:
        statements = 1
        step = 0
        while step < statements:
            needle = f"needle{step}"
            await store(db, pen, box, step, needle)
            spy = _Interrupted(conn, step, WordIndexer(db, clock, no_headers))
            found = await candidates(spy, box.ref, needle)  # type: ignore[arg-type] # looks on in between
            statements = spy.statements
            assert found is not None
            assert found >= await brute_force(conn, box.ref, needle)
            step += 1
        assert statements >= 2
    finally:
        await conn.close()


class _Interrupted:
    """A connection during whose use the index is brought up to date, before a given statement."""

    def __init__(self, conn: Any, at: int, indexer: WordIndexer) -> None:
        self._conn, self._at, self._indexer = conn, at, indexer
        self.statements = 0

    async def fetch(self, *arguments: Any) -> Any:
        if self.statements == self._at:
            await self._indexer.run_once()
        self.statements += 1
        return await self._conn.fetch(*arguments)


@pytest.mark.covers("decisions:B1", "decisions:B20", "edge:J2")
async def test_indexing_twice_and_by_two_changes_nothing(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    for n in range(40):
        await store(db, pen, box, n, f"word{n} common" + " filler" * (n % 3))
    one, two = WordIndexer(db, clock, no_headers, batch=3), WordIndexer(db, clock, no_headers, batch=5)

    async def work(indexer: WordIndexer) -> None:
        while await indexer.run_once():
            pass

    await asyncio.gather(work(one), work(two), work(one))
    async with db.acquire() as conn:
        before = await conn.fetch("SELECT * FROM message_words ORDER BY message_id")
        assert len(before) == 40
        assert await conn.fetchval("SELECT count(*) FROM word_tasks") == 0
        # The same work again, as after a lost answer.
        await conn.execute(
            "INSERT INTO word_tasks (tenant_id, mailbox_id, first_id, last_id, next_attempt_at) "
            "SELECT tenant_id, mailbox_id, min(id), max(id), $1 FROM messages GROUP BY 1, 2",
            clock.now(),
        )
    assert await WordIndexer(db, clock, no_headers).run_once() == 1
    async with db.acquire() as conn:
        assert await conn.fetch("SELECT * FROM message_words ORDER BY message_id") == before
        await check_mailbox(conn, box.ref)


@pytest.mark.covers("decisions:B1", "decisions:B20")
async def test_a_crash_between_the_steps_is_made_up_for(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    await store(db, pen, box, 1, "findable words")
    async with db.acquire() as conn:
        claimed = await QUEUE.claim(conn, now=clock.now(), limit=10)  # and then the worker dies
        assert len(claimed.claims) == 1
        assert len(await candidates(conn, box.ref, "findable") or ()) == 1
    assert await WordIndexer(db, clock, no_headers).run_once() == 0
    clock.advance(61)
    assert await WordIndexer(db, clock, no_headers).run_once() == 1
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM word_tasks") == 0
        assert len(await candidates(conn, box.ref, "findable") or ()) == 1
        # The dead worker comes back and finishes: too late to do harm.
        assert await QUEUE.finish(conn, claimed.claims) == frozenset()


@pytest.mark.covers("decisions:B1", "decisions:B20")
async def test_a_task_that_kills_its_worker_is_parked(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    await store(db, Pen(ids, clock), box, 1, "deadly words")
    async with db.acquire() as conn:
        for _ in range(5):
            assert len((await QUEUE.claim(conn, now=clock.now(), limit=10)).claims) == 1
            clock.advance(61)
        last = await QUEUE.claim(conn, now=clock.now(), limit=10)
        assert (last.claims, len(last.parked)) == ((), 1)
        # Given up by the indexer, found all the same.
        assert len(await candidates(conn, box.ref, "deadly") or ()) == 1


@pytest.mark.covers("decisions:B1", "decisions:B15", "decisions:B20")
async def test_a_task_that_fails_is_parked_alone(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    for n in range(6):
        await store(db, pen, box, n, "poison" if n == 3 else f"harmless{n}")

    def poisoned(texts: Any) -> words.Words:
        found = words_of(texts)
        if "poison" in found.words:
            raise asyncpg.DataError("what is it")
        return found

    monkeypatch.setattr(words, "words_of", poisoned)
    indexer = WordIndexer(db, clock, no_headers)
    assert await indexer.run_once() == 6
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM message_words") == 5
    for _ in range(4):
        clock.advance(61)
        assert await indexer.run_once() == 1
    clock.advance(3600)
    assert await indexer.run_once() == 0
    async with db.acquire() as conn:
        (parked,) = await QUEUE.parked(conn)
        assert (parked.attempts, parked.last_error) == (5, "DataError")
        assert len(await candidates(conn, box.ref, "poison") or ()) == 1


@pytest.mark.covers("decisions:B20")
async def test_much_work_is_done_in_portions(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "_PORTION", 10)
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    async with db.acquire() as conn:
        for size in (3, 4, 5, 25, 1, 9, 1):
            await pen.store(conn, *([pen.copy(box, raw_mail(body=f"{size} {n} {ids.ulid()}"))] for n in range(size)))
    assert await WordIndexer(db, clock, no_headers).run_once() == 7
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM message_words") == 48
        assert await conn.fetchval("SELECT count(*) FROM word_tasks") == 0


@pytest.mark.covers("decisions:B20")
async def test_a_message_that_went_meanwhile_is_skipped(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    await store(db, pen, box, 1, "gone soon")
    await store(db, pen, box, 2, "stays here")
    async with db.acquire() as conn:
        await conn.execute("DELETE FROM placements WHERE uid = 1")
        await conn.execute("DELETE FROM messages WHERE id = (SELECT min(id) FROM messages)")
    assert await WordIndexer(db, clock, no_headers).run_once() == 2
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM message_words") == 1


@settings(max_examples=300)
@given(text=TEXT, start=st.integers(0, 30), length=st.integers(0, 20))
def test_each_piece_of_a_part_lies_in_a_word_of_the_whole(text: str, start: int, length: int) -> None:
    part = fold(text)[start : start + length]
    found = words_of([text])
    for piece in pieces_of(part):
        assert not found.complete or fold(part) not in fold(text) or any(piece in word for word in found.words)


@settings(max_examples=300)
@given(st.text())
def test_folding_twice_is_folding_once(text: str) -> None:
    assert fold(fold(text)) == fold(text)


@pytest.mark.covers("mail-server:D7")
def test_folding_makes_equals_meet() -> None:
    for a, b in (("Straße", "STRASSE"), ("ｆｕｌｌ", "FULL"), ("É", "e\u0301"), ("Ὀδυσσεύς", "ὈΔΥΣΣΕΎΣ"), ("ﬁ", "FI")):
        assert fold(a) == fold(b)


@pytest.mark.covers("decisions:B20", "mail-server:D7")
async def test_header_fields_are_indexed_as_they_read(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    head = (
        b"X-Order: =?utf-8?q?Sm=C3=B8rrebr=C3=B8d?=\r\nReceived: from relay.example.com\r\n\tby mx.example\r\n\r\nbody"
    )

    async def headers(spans: Sequence[Span]) -> list[bytes | StorageError]:
        return [head if n == 0 else StorageError("EIO") for n in range(len(spans))]

    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    await store(db, pen, box, 1, "one")
    await store(db, pen, box, 2, "two")
    assert await WordIndexer(db, clock, headers).run_once() == 2
    async with db.acquire() as conn:
        keys = [row["id"] for row in await conn.fetch("SELECT id FROM messages ORDER BY id")]
        for needle in ("smørreb", "x-order: smør"):
            # The second one's header could not be read, so it may hold anything.
            assert await candidates(conn, box.ref, needle) == frozenset(keys), needle
        assert await candidates(conn, box.ref, "nowhere") == frozenset({keys[1]})


@pytest.mark.covers("decisions:B20")
async def test_a_burst_is_indexed_at_its_end_or_when_it_lasts(
    db: Database, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.mailbox.words.MAX_LAG_SECONDS", 1.0)
    (box,) = await make_boxes(db, ids, clock)
    pen = Pen(ids, clock)
    quiet = [0.0]
    indexer = WordIndexer(db, clock, no_headers, idle_seconds=0.01, quiet_for=lambda: quiet[0])
    running = asyncio.ensure_future(indexer.run())

    async def indexed(count: int, within: float) -> bool:
        async with db.acquire() as conn:
            until = asyncio.get_running_loop().time() + within
            while await conn.fetchval("SELECT count(*) FROM message_words") < count:
                if asyncio.get_running_loop().time() > until:
                    return False
                await asyncio.sleep(0.01)
        return True

    try:
        await asyncio.sleep(0.1)
        await store(db, pen, box, 1, "burst")
        indexer.wake()
        assert not await indexed(1, 0.5)
        assert await indexed(1, 30)  # it lasts
        await store(db, pen, box, 2, "burst")
        indexer.wake()
        assert not await indexed(2, 0.3)
        quiet[0] = 5.0  # its end
        assert await indexed(2, 30)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
