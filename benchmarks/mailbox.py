"""The writer of mailboxes on its own: ingest with durable bytes, flags, moves, and how ingest bears a large mailbox.

Flags and moves stand beside Dovecot's, over IMAP, where it is installed. Messages are parsed beforehand; what is timed
is from the accepted message to the commit (blob, fsync, rows, thread, event, change), on a PostgreSQL of the
benchmark's own with the settings of an installation.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

import uvloop

from benchmarks import flags, peers
from benchmarks.common import Row, row, work_directory
from benchmarks.messages import Load
from postroom.base.clock import SystemClock
from postroom.base.ids import IdGenerator
from postroom.blobs import MaildirStore
from postroom.db import Connection, ConnectionTarget, Database, LocalPostgres, Migrator
from postroom.db.statistics import analyze_grown
from postroom.events.catalogue import message_received
from postroom.inbound.describe import describe
from postroom.inbound.receive import raw_key
from postroom.mail.mime import PARSER_VERSION
from postroom.mailbox.folders import ensure_standard, insert_mailbox
from postroom.mailbox.ingest import Delivery, Ingest
from postroom.mailbox.models import Direction, FolderKey, MailboxRef, NewMessage, Source
from postroom.mailbox.rules import FlagMode
from postroom.mailbox.service import Mailboxes
from postroom.mailbox.words import WordIndexer
from postroom.mailbox.writing import begin_write

TRACE = b"Return-Path: <a@north.example>\r\nReceived: from north.example by mx; Mon, 02 Feb 2026 10:00:00 +0000\r\n"
CLOCK = SystemClock()
RECORDED_STORE_MS = 23.0
"""What Dovecot took for a STORE of 1,000 on the reference machine: used where none is installed."""


@dataclass(frozen=True, slots=True)
class Box:
    """A mailbox and the public ids of its keys."""

    ref: MailboxRef
    tenant_id: str
    identity_id: str


async def make_boxes(db: Database, ids: IdGenerator, count: int) -> list[Box]:
    """Mailboxes of one new tenant."""
    now, tenant_id, boxes = CLOCK.now(), ids.new("ten"), []
    slug = tenant_id[-12:].lower()
    async with db.transaction() as conn:
        tenant = await conn.fetchval(
            "INSERT INTO tenants (public_id, slug, name, mode, address_suffix, suffix_fold, created_at, updated_at) "
            "VALUES ($1, $2, 'T', 'live', $2, $2, $3, $3) RETURNING id",
            *(tenant_id, slug, now),
        )
        for n in range(count):
            identity_id = ids.new("idn")
            key = await conn.fetchval(
                "INSERT INTO identities (tenant_id, public_id, kind, username, username_fold, display_name, "
                "created_at, updated_at) VALUES ($1, $2, 'agent', $3, $3, 'Box', $4, $4) RETURNING id",
                *(tenant, identity_id, f"box{n}", now),
            )
            ref = MailboxRef(tenant, key)
            await insert_mailbox(
                conn, ref, identity_id=identity_id, tenant_id=tenant_id, quota_bytes=None, is_system=False, now=now
            )
            write = await begin_write(conn, ref, now)
            await ensure_standard(write, ids.new)
            await write.finish()
            boxes.append(Box(ref, tenant_id, identity_id))
    return boxes


def deliveries(ids: IdGenerator, boxes: Sequence[Box], load: Load, start: int, count: int) -> Iterator[Delivery]:
    """Distinct messages, dealt to the mailboxes in turn."""
    for n in range(start, start + count):
        box, raw = boxes[n % len(boxes)], load.message(n)
        now, content, message_id = CLOCK.now(), describe(TRACE, raw, CLOCK.now()), ids.new("msg")
        copy = NewMessage(
            id=message_id,
            mailbox=box.ref,
            source=Source.MX,
            direction=Direction.INBOUND,
            blob_key=raw_key(box.tenant_id, box.identity_id, message_id),
            content=content,
            thread_id=ids.new("thr"),
            event_id=ids.new("evt"),
            attachment_ids=tuple(ids.new("att") for _ in content.attachments),
            received_at=now,
            internal_date=now.replace(microsecond=0),
            delivered_to="box@agents.example",
            announce=message_received,
        )
        yield Delivery((TRACE, raw), (copy,))


async def pour(ingest: Ingest, work: Sequence[Delivery], in_flight: int) -> float:
    """Seconds that it takes with so many senders at once."""
    queue = iter(work)

    async def sender() -> None:
        for delivery in queue:
            await ingest.deliver(delivery)

    started = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(in_flight)))
    return time.perf_counter() - started


@contextlib.asynccontextmanager
async def ingesting(db: Database, root: Path) -> AsyncIterator[Ingest]:
    blobs = MaildirStore(root)
    ingest = Ingest(db, blobs, CLOCK, committed=lambda _: None)
    ingest.start()
    try:
        yield ingest
    finally:
        await ingest.stop()
        await blobs.close()


async def warm_up(db: Database, root: Path, count: int = 600) -> None:
    """Fill some mailboxes and bring the planner's statistics up to date, as a running server does."""
    ids = IdGenerator(CLOCK)
    boxes = await make_boxes(db, ids, 20)
    async with ingesting(db, root) as ingest:
        await pour(ingest, list(deliveries(ids, boxes, Load(99), 0, count)), 50)
    async with db.acquire() as conn:
        await conn.execute("ANALYZE")


def _process(url: str, root: str, boxes: list[Box], seed: int, plan: list[tuple[int, int]], barrier: Barrier) -> None:
    async def main() -> None:
        ids, load = IdGenerator(CLOCK), Load(seed)
        async with Database(url, max_size=10) as db, ingesting(db, Path(root)) as ingest:
            start = 0
            for count, in_flight in plan:
                work = list(deliveries(ids, boxes, load, start, count))
                start += count
                await pour(ingest, list(deliveries(ids, boxes, load, start, 100)), in_flight)  # its own connections
                start += 100
                barrier.wait()
                await pour(ingest, work, in_flight)
                barrier.wait()

    uvloop.run(main())


def ingest_rates(url: str, root: str, boxes: list[Box], processes: int, plan: list[tuple[int, int]]) -> list[float]:
    """Messages a second of all processes together, for each step (messages of a process, senders of a process)."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes + 1)
    children = [
        context.Process(target=_process, args=(url, root, boxes, time.time_ns() % 10**6 + n, plan, barrier))
        for n in range(processes)
    ]
    for child in children:
        child.start()
    rates = []
    for count, _ in plan:
        barrier.wait()
        started = time.perf_counter()
        barrier.wait()
        rates.append(processes * count / (time.perf_counter() - started))
    for child in children:
        child.join()
    return rates


# $1 tenant, $2 mailbox, $3 folder, $4 count, $5 now
_FILL = (
    """
    INSERT INTO threads (tenant_id, mailbox_id, seq, public_id, subject, first_at, last_at, message_count)
    SELECT $1::bigint, $2::bigint, 1000000 + g, 'thr_01' || lpad(($2::bigint * 10000000 + g)::text, 24, '0'), 'Filled',
           $5::timestamptz, $5, 1
    FROM generate_series(1, $4::int) g WHERE $3::bigint > 0
    """,
    """
    WITH m AS (
      INSERT INTO messages (tenant_id, id, public_id, mailbox_id, thread_seq, source, direction, status, rfc_message_id,
        in_reply_to, reference_ids, raw_sha256, body_sha256, blob_key, raw_size, raw_prefix_len, from_address,
        from_name, delivered_to, is_bcc, is_primary_recipient, subject, subject_fold, snippet, sent_at, received_at,
        kind, verdict, facts, parser_version, envelope, body_structure, part_tree)
      SELECT $1::bigint, nextval('message_ids'), 'msg_01' || lpad(($2::bigint * 10000000 + g)::text, 24, '0'),
        $2::bigint, 1000000 + g, 'mx', 'inbound', 'received', md5(g::text) || '@example.com', NULL, '{}',
        sha256(g::text::bytea), sha256('b'), 't/x/i/y/m/' || g, 4500, 120, 'p' || g % 50 || '@example.com', 'P',
        'box@agents.example', false, true, 'Subject ' || g, 'subject ' || g, repeat('snippet ', 20), $5::timestamptz,
        $5::timestamptz - interval '1s' * g, 'normal', 'pass', '{}', """
    + str(PARSER_VERSION)
    + """, repeat('e', 400)::bytea,
        repeat('s', 300)::bytea, repeat('t', 200)::bytea
      FROM generate_series(1, $4::int) g ORDER BY g RETURNING id, received_at
    ), x AS (
      INSERT INTO message_texts SELECT $1, id, repeat('text ', 300), NULL, NULL FROM m
    ), r AS (
      INSERT INTO recipients SELECT $1, id, 'to', 0, 'box@agents.example', 'Box' FROM m
    ), p AS (
      INSERT INTO placements
      SELECT $1, $3::bigint, row_number() OVER (ORDER BY id), $2, id, 4500, 1, received_at, $5, '{}' FROM m
    )
    INSERT INTO changes
    SELECT $1, $2, 1000 + row_number() OVER (ORDER BY id), 1, 'placed', $3, row_number() OVER (ORDER BY id), 'msg',
           NULL, '{}', $5 FROM m
    """,
    """
    UPDATE folders SET uid_next = $4::int + 1, message_count = $4, unseen_count = $4, total_bytes = 4500 * $4::bigint
    WHERE tenant_id = $1::bigint AND mailbox_id = $2::bigint AND id = $3::bigint AND $5::timestamptz IS NOT NULL
    """,
    """
    UPDATE mailboxes SET change_seq = 1000 + $4::int, next_thread_seq = 2000000, used_bytes = 4500 * $4::bigint
    WHERE tenant_id = $1::bigint AND id = $2::bigint AND $3::bigint > 0 AND $5::timestamptz IS NOT NULL
    """,
)


async def fill(db: Database, boxes: Sequence[Box], count: int) -> None:
    """Put `count` messages into the inbox of each mailbox by plain SQL: UIDs from 1."""
    async with db.transaction() as conn:
        for box in boxes:
            folder = await folder_key(conn, box, "inbox")
            for statement in _FILL:
                arguments = (box.ref.tenant_id, box.ref.mailbox_id, folder, count, CLOCK.now())
                await conn.execute(statement, *arguments, timeout=600)
    async with db.acquire() as conn:
        await conn.execute("VACUUM ANALYZE", timeout=600)


async def folder_key(conn: Connection, box: Box, use: str) -> FolderKey:
    statement = "SELECT id FROM folders WHERE tenant_id = $1 AND mailbox_id = $2 AND special_use = $3"
    return FolderKey(await conn.fetchval(statement, box.ref.tenant_id, box.ref.mailbox_id, use))


async def flags_and_moves(
    db: Database, url: str, root: Path, peer: peers.PostfixDovecot | None, rounds: int
) -> list[Row]:
    """STORE and MOVE at 1 and 200 mailboxes, by one process and two; the peer's rates are those of its processes."""
    load = Load(17)
    raws = [load.message(n) for n in range(1000)] if peer is not None else []
    rows = await _thousand(db, root, peer, raws, 2 * rounds)
    for boxes in (1, 200):
        made = await make_boxes(db, IdGenerator(CLOCK), boxes)
        await fill(db, made, flags.PORTION * (flags.ONE_MAILBOX_PORTIONS if boxes == 1 else 1))
        theirs = None
        if peer is not None:
            measure = (peer, 10 * boxes, boxes, raws, rounds)
            theirs = await asyncio.to_thread(flags.measure_dovecot, *measure)
        portions = await _portions(db, made)
        for processes in (1, 2):
            # Each round ends where it began, but for UIDs.
            mine = await asyncio.to_thread(flags.measure, url, str(root), portions, processes, rounds)
            portions = await _portions(db, made)
            where = f"{flags.PORTION} at a time, {boxes} mailboxes, {processes} processes"
            for name, value, other in (
                ("STORE", mine.store, theirs.store if theirs else None),
                ("MOVE", mine.move, theirs.move if theirs else None),
            ):
                # STORE may take three times as long; nothing is set for MOVE.
                target = other / 3 if other and name == "STORE" else None
                found = row(f"{name}, {where}", value, "messages/s", target=target, peer=other, peer_name="Dovecot")
                rows.append(found)
    return rows


async def _portions(db: Database, boxes: Sequence[Box]) -> list[flags.Portion]:
    """What is in the inboxes, in runs of UIDs."""
    found = []
    async with db.acquire() as conn:
        for box in boxes:
            folder, other = await folder_key(conn, box, "inbox"), await folder_key(conn, box, "archive")
            statement = "SELECT uid FROM placements WHERE tenant_id = $1 AND folder_id = $2 ORDER BY uid"
            uids = [row["uid"] for row in await conn.fetch(statement, box.ref.tenant_id, folder)]
            for start in range(0, len(uids), flags.PORTION):
                run = range(uids[start], uids[start] + flags.PORTION)
                if list(run) != uids[start : start + flags.PORTION]:
                    raise RuntimeError("a portion is not one run of UIDs")
                found.append(flags.Portion(box.ref, folder, other, run))
    return found


async def _thousand(
    db: Database, root: Path, peer: peers.PostfixDovecot | None, raws: Sequence[bytes], rounds: int
) -> list[Row]:
    """One command on 1,000 messages of a mailbox that nobody else uses."""
    ids = IdGenerator(CLOCK)
    (box,) = made = await make_boxes(db, ids, 1)
    await fill(db, made, 1000)
    blobs = MaildirStore(root)
    mailboxes = Mailboxes(db, blobs, CLOCK, ids, lambda _ref, _modseq: None)
    async with db.acquire() as conn:
        at, other = await folder_key(conn, box, "inbox"), await folder_key(conn, box, "archive")
    stores, moves, uids = [], [], list(range(1, 1001))
    for _ in range(rounds):
        for mode in (FlagMode.ADD, FlagMode.REMOVE):
            started = time.perf_counter()
            await mailboxes.set_flags(box.ref, at, uids, mode, {"$flagged"})
            stores.append((time.perf_counter() - started) * 1e3)
        for _ in range(2):
            started = time.perf_counter()
            result = await mailboxes.move(box.ref, at, uids, other)
            moves.append((time.perf_counter() - started) * 1e3)
            at, other, uids = other, at, [new for _, new in result.pairs]
    await blobs.close()
    store, move, name = RECORDED_STORE_MS, None, "Dovecot (recorded)"
    if peer is not None:
        store, move = await asyncio.to_thread(flags.dovecot_thousand, peer, 1, raws, rounds)
        name = "Dovecot"
    return [
        row("STORE of 1,000", min(stores), "ms", target=3 * store, peer=store, peer_name=name),
        row("MOVE of 1,000", min(moves), "ms", peer=move, peer_name=name),
    ]


async def large_and_empty(db: Database, root: Path, size: int, count: int) -> list[Row]:
    """Rates into one mailbox of `size` messages and one of none, by turns."""
    ids = IdGenerator(CLOCK)
    large, empty = await make_boxes(db, ids, 2)
    await fill(db, [large], size)
    load, seconds = Load(11), {large: 0.0, empty: 0.0}
    async with ingesting(db, root) as ingest:
        await pour(ingest, list(deliveries(ids, [large, empty], load, 0, 200)), 50)
        for turn in range(4):
            for box in (large, empty) if turn % 2 else (empty, large):
                start = 1000 + (turn * 2 + (box is large)) * count
                seconds[box] += await pour(ingest, list(deliveries(ids, [box], load, start, count)), 50)
    name = f"ingest into a mailbox of {size:,}, of the rate into an empty one"
    return [row(name, 100 * seconds[empty] / seconds[large], "%", target=80, better="higher")]


async def indexing(db: Database, root: Path, seconds: float) -> list[Row]:
    """How fast the words of what was stored are indexed: it has to keep up with ingest."""
    blobs = MaildirStore(root)
    indexer = WordIndexer(db, CLOCK, blobs.get_many)
    waiting = await _not_indexed(db)
    started = time.perf_counter()
    while await indexer.run_once() and time.perf_counter() - started < seconds:
        pass
    taken = time.perf_counter() - started
    await blobs.close()
    return [row("word index", (waiting - await _not_indexed(db)) / taken, "messages/s")]


async def _not_indexed(db: Database) -> int:
    async with db.acquire() as conn:
        return int(
            await conn.fetchval(
                "SELECT count(*) FROM word_tasks t JOIN messages m ON m.mailbox_id = t.mailbox_id "
                "AND m.id BETWEEN t.first_id AND t.last_id"
            )
        )


def run(quick: bool) -> list[Row]:
    """The rows of the table."""
    return uvloop.run(_run(quick))


async def _run(quick: bool) -> list[Row]:
    rows: list[Row] = []
    count = 600 if quick else 4000
    with work_directory("postroom-bench-") as root:
        server = LocalPostgres(root, watch=False)
        await server.start()
        try:
            await Migrator(ConnectionTarget(server.dsn)).run()
            async with Database(server, max_size=10) as db:
                blobs = root / "blobs"
                await warm_up(db, blobs)
                for boxes in (1, 200):
                    made = await make_boxes(db, IdGenerator(CLOCK), boxes)
                    for processes in (1, 2):
                        plan = [(count // processes, 20 // processes), (count // processes, 100 // processes)]
                        work = (server.dsn, str(blobs), made, processes, plan)
                        rates = await asyncio.to_thread(ingest_rates, *work)
                        for (_, each), rate in zip(plan, rates, strict=True):
                            name = f"ingest, {boxes} mailboxes, {processes} processes, {each * processes} in flight"
                            rows.append(row(name, rate, "messages/s"))
                        async with db.acquire() as conn:
                            await analyze_grown(conn)
                rows += await indexing(db, blobs, 5.0 if quick else 60.0)
                with peers.PostfixDovecot(users=1) if peers.available() else contextlib.nullcontext() as peer:
                    rows += await flags_and_moves(db, server.dsn, blobs, peer, 1 if quick else 8)
                rows += await large_and_empty(db, blobs, 20_000 if quick else 100_000, count // 2)
        finally:
            await server.stop()
    return rows


if __name__ == "__main__":
    import sys

    for line in run("--quick" in sys.argv):
        print(line)
