"""Stored renderings follow the parser: once each, whatever dies, and never for the worse (B21)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import MaildirStore
from postroom.blobs.store import BlobMissing, StorageError
from postroom.db import Database
from postroom.inbound.describe import describe
from postroom.inbound.parsing import Parser
from postroom.mail.mime import PARSER_VERSION, Part, find_part
from postroom.mail.tree import pack_tree, unpack_tree
from postroom.mailbox import rerender
from postroom.mailbox.models import Content, NewMessage
from postroom.mailbox.rerender import Rerender
from postroom.worker import Periodic, Worker
from tests.mailbox.letters import TRACE, Box, Pen, make_boxes, raw_mail

RISEN = PARSER_VERSION + 1


def mixed(number: int, *, files: int = 1) -> bytes:
    parts = ["Content-Type: text/plain\r\n\r\nHello\r\n"]
    parts += [
        f'Content-Type: text/csv\r\nContent-Disposition: attachment; filename="f{n}.csv"\r\n\r\n{number},{n}\r\n'
        for n in range(files)
    ]
    body = "".join(f"--b\r\n{part}" for part in parts) + "--b--\r\n"
    return (
        f"From: Anna <anna@example.com>\r\nSubject: Files {number}\r\nMIME-Version: 1.0\r\n"
        f'Content-Type: multipart/mixed; boundary="b"\r\n\r\n{body}'
    ).encode()


class Blobs:
    """Raw messages in memory; `faults` are what reading a key gives instead."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.faults: dict[str, StorageError] = {}
        self.reads = 0

    async def batches(self, wants: Sequence[str], /) -> AsyncIterator[list[bytes | StorageError]]:
        for start in range(0, len(wants), 3):
            await asyncio.sleep(0)
            batch = wants[start : start + 3]
            self.reads += len(batch)
            yield [self.faults.get(key) or self.kept.get(key) or BlobMissing(key) for key in batch]


@dataclass(slots=True)
class World:
    """Mailboxes whose messages are to be rendered anew, and what the newer parser makes of them."""

    db: Database
    clock: ManualClock
    pen: Pen
    boxes: list[Box]
    blobs: Blobs = field(default_factory=Blobs)
    described: list[bytes] = field(default_factory=list)
    stored: list[NewMessage] = field(default_factory=list)

    async def store(self, raws: Sequence[bytes], **changes: Any) -> list[NewMessage]:
        copies = [self.pen.copy(self.boxes[n % len(self.boxes)], raw, **changes) for n, raw in enumerate(raws)]
        async with self.db.acquire() as conn:
            await self.pen.store(conn, *([copy] for copy in copies))
        for copy, raw in zip(copies, raws, strict=True):
            self.blobs.kept[copy.blob_key] = TRACE + raw
        self.stored += copies
        return copies

    async def newer(self, prefix: bytes, original: bytes, received_at: datetime) -> Content:
        """The newer parser: its renderings are new, its tree has the same parts."""
        await asyncio.sleep(0)
        self.described.append(original)
        content = describe(prefix, original, received_at)
        return replace(content, envelope=b"new " + content.envelope, body_structure=b"new " + content.body_structure)

    def job(self, describe: Callable[[bytes, bytes, datetime], Awaitable[Content]] | None = None) -> Rerender:
        return Rerender(self.db, self.blobs, describe or self.newer, self.clock, version=RISEN)

    async def rows(self) -> dict[str, asyncpg.Record]:
        async with self.db.acquire() as conn:
            return {row["public_id"]: row for row in await conn.fetch("SELECT * FROM messages")}

    async def paths(self) -> list[str]:
        async with self.db.acquire() as conn:
            return [r["part_path"] for r in await conn.fetch("SELECT part_path FROM attachments ORDER BY public_id")]

    async def stale(self) -> int:
        async with self.db.acquire() as conn:
            return int(await conn.fetchval("SELECT count(*) FROM messages WHERE parser_version < $1", RISEN))


async def rise(db: Database, version: int = RISEN) -> None:
    """What the migration does that comes with a version."""
    async with db.transaction() as conn:
        await conn.execute("DROP INDEX messages_stale")
        await conn.execute(
            f"CREATE INDEX messages_stale ON messages (parser_version, tenant_id, id) WHERE parser_version < {version}"
        )


@pytest.fixture
async def world(db: Database, clock: ManualClock, ids: IdGenerator) -> World:
    # Two tenants: the work goes through both.
    boxes = [*await make_boxes(db, ids, clock, 2), *await make_boxes(db, ids, clock, 1)]
    return World(db, clock, Pen(ids, clock), boxes)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerender, "PAGE", 4)


@pytest.mark.covers("decisions:B21")
async def test_the_schema_is_made_for_this_parser(db: Database, world: World) -> None:
    """A rise of the version comes with a migration that makes `messages_stale` anew; nothing is stale after it."""
    await world.store([raw_mail()])
    async with db.acquire() as conn:
        indexed = await conn.fetchval("SELECT pg_get_indexdef(to_regclass('messages_stale'))")
    assert indexed.endswith(f"(parser_version, tenant_id, id) WHERE (parser_version < {PARSER_VERSION})")
    job = Rerender(db, world.blobs, world.newer, world.clock)
    assert not await job.run_once()
    assert world.blobs.reads == 0


@pytest.mark.covers("decisions:B21")
async def test_a_look_for_work_reads_the_index_only(db: Database, world: World) -> None:
    await world.store([raw_mail(body=f"{n}") for n in range(20)])
    await rise(db)
    async with db.acquire() as conn:
        # Whatever the statistics say: in this order of rows no other index comes.
        for analyzed in (False, True):
            if analyzed:
                await conn.execute("ANALYZE messages")
            await conn.execute("SET enable_seqscan = off")
            plan = await conn.fetch("EXPLAIN " + rerender._PAGE.format(version=RISEN), -1, 0, 0, 64)
            await conn.execute("RESET enable_seqscan")
            text = "\n".join(row[0] for row in plan)
            assert "messages_stale" in text
            assert "messages_pkey" not in text


@pytest.mark.covers("decisions:B21")
@pytest.mark.usefixtures("small_pages")
async def test_renderings_are_made_anew_and_nothing_else_changes(db: Database, world: World) -> None:
    copies = await world.store([mixed(n) for n in range(6)] + [raw_mail(body=f"{n}") for n in range(7)])
    before = await world.rows()
    assert not await world.job().run_once()  # Not before the schema says so.
    await rise(db)
    tally = await world.job().run_once()
    assert (tally.rendered, tally.missing, tally.damaged, tally.kept, tally.failed) == (13, 0, 0, 0, 0)
    after = await world.rows()
    renewed = {"envelope", "body_structure", "part_tree", "parser_version"}
    for copy in copies:
        old, new = before[copy.id], after[copy.id]
        assert new["parser_version"] == RISEN
        assert new["envelope"] == b"new " + old["envelope"]
        assert new["body_structure"] == b"new " + old["body_structure"]
        assert {k: v for k, v in new.items() if k not in renewed} == {k: v for k, v in old.items() if k not in renewed}
    assert not await world.job().run_once()
    assert len(world.described) == 13


@pytest.mark.covers("decisions:B21")
async def test_an_older_release_leaves_the_work_and_its_late_mail_is_found(db: Database, world: World) -> None:
    """During a rolling upgrade nodes of the release before go on to write."""
    await rise(db)
    old = Rerender(db, world.blobs, world.newer, world.clock)
    job = world.job()
    for n in range(3):
        await world.store([raw_mail(body=f"late {n}")])
        assert not await old.run_once()
        assert (await job.run_once()).rendered == 1
    assert await world.stale() == 0


@pytest.mark.covers("decisions:B21", "decisions:B1")
@pytest.mark.usefixtures("small_pages")
async def test_two_workers_at_once(db: Database, world: World) -> None:
    """Without any claim, as after a lease ran out: each message is renewed, none is counted twice."""
    await world.store([raw_mail(body=f"{n}") for n in range(40)])
    await rise(db)
    tallies = await asyncio.gather(*(world.job().run_once() for _ in range(2)))
    assert await world.stale() == 0
    assert sum(tally.rendered for tally in tallies) == 40
    assert all(row["envelope"].startswith(b"new (") for row in (await world.rows()).values())


@pytest.mark.covers("decisions:B21", "decisions:B1")
@pytest.mark.usefixtures("small_pages")
async def test_nodes_share_the_work_by_their_schedule(db: Database, world: World) -> None:
    await world.store([raw_mail(body=f"{n}") for n in range(20)])
    await rise(db)
    nodes = [
        Worker(db, world.clock, [Periodic("rerender", timedelta(seconds=10), world.job().run_once)]) for _ in range(2)
    ]
    for node in nodes:
        await node.ensure()
    await asyncio.gather(*(node.run_due() for node in nodes))
    assert await world.stale() == 0
    assert len(world.described) == 20


@pytest.mark.covers("decisions:B21", "edge:J2")
async def test_killed_in_between(
    db: Database, database_url: str, world: World, tmp_path: Path, ids: IdGenerator
) -> None:
    """What was written before the kill stays; another process does the rest, and only that."""
    copies = await world.store([raw_mail(body=f"{n}") for n in range(20)])
    store = MaildirStore(tmp_path)
    for copy in copies:
        await store.put(copy.blob_key, world.blobs.kept[copy.blob_key])
    await rise(db)
    child = Path(__file__).with_name("rerendering_child.py")
    arguments = [str(child), database_url, str(tmp_path), str(RISEN), "4"]
    for left in (12, 4):
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, *arguments, "10"], capture_output=True, timeout=60
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert await world.stale() == left
    assert (await world.job().run_once()).rendered == 4
    rows = await world.rows()
    assert sum(row["envelope"] == b"(NEW)" for row in rows.values()) == 16
    assert {row["parser_version"] for row in rows.values()} == {RISEN}
    await store.close()


@pytest.mark.covers("decisions:B21", "edge:B6")
async def test_packed_files_follow_the_part_that_they_are_in(db: Database, world: World) -> None:
    raw = mixed(1, files=3)
    told = describe(TRACE, raw, world.clock.now())
    root = unpack_tree(told.part_tree)
    other = replace_children(root, [root.children[n] for n in (2, 3, 0, 1)])
    files = tuple(
        replace(part, part_path=path) for part, path in zip(told.attachments, ("4/1", "1/12", "2"), strict=True)
    )
    await world.store([raw], content=replace(told, part_tree=other, attachments=files))
    await rise(db)
    assert (await world.job().run_once()).rendered == 1
    assert await world.paths() == ["2/1", "3/12", "4"]


@pytest.mark.covers("decisions:B21", "decisions:B2")
@pytest.mark.usefixtures("small_pages")
async def test_messages_that_cannot_be_rendered_keep_what_they_have(db: Database, world: World) -> None:
    gone, damaged, poison, fine = await world.store([raw_mail(body=body) for body in ("a", "b", "poison", "d")])
    before = await world.rows()
    del world.blobs.kept[gone.blob_key]
    world.blobs.kept[damaged.blob_key] = world.blobs.kept[damaged.blob_key][:-3]

    async def failing(prefix: bytes, original: bytes, received_at: datetime) -> Content:
        if b"poison" in original:
            raise ZeroDivisionError
        return await world.newer(prefix, original, received_at)

    await rise(db)
    tally = await world.job(failing).run_once()
    assert (tally.rendered, tally.missing, tally.damaged, tally.kept, tally.failed) == (1, 1, 1, 1, 0)
    after = await world.rows()
    for copy in (gone, damaged, poison):
        assert {**after[copy.id], "parser_version": PARSER_VERSION} == dict(before[copy.id])
    assert {row["parser_version"] for row in after.values()} == {RISEN}
    assert after[fine.id]["envelope"].startswith(b"new ")


@pytest.mark.covers("decisions:B21", "edge:J1")
@pytest.mark.usefixtures("small_pages")
async def test_a_store_that_fails_holds_up_nothing_and_is_asked_again(db: Database, world: World) -> None:
    copies = await world.store([raw_mail(body=f"{n}") for n in range(20)])
    for copy in copies[::3]:
        world.blobs.faults[copy.blob_key] = StorageError("EIO")
    await rise(db)
    job = world.job()
    for _ in range(8):
        await job.run_once()
    assert await world.stale() == 7
    world.blobs.faults.clear()
    for _ in range(3):
        await job.run_once()
    assert await world.stale() == 0
    assert len(world.described) == 20


@pytest.mark.covers("decisions:B21")
async def test_a_call_ends_in_time_and_the_next_goes_on(db: Database, world: World) -> None:
    await world.store([raw_mail(body=f"{n}") for n in range(10)])
    await rise(db)

    async def slow(prefix: bytes, original: bytes, received_at: datetime) -> Content:
        world.clock.advance(rerender.SLICE_SECONDS / 2)
        return await world.newer(prefix, original, received_at)

    job = world.job(slow)
    for left in (8, 6, 4, 2, 0):
        assert (await job.run_once()).rendered == 2
        assert await world.stale() == left
    assert len(world.described) == 10


@pytest.mark.covers("decisions:B21")
async def test_rows_held_by_others_are_left_for_later(db: Database, world: World) -> None:
    first, _ = await world.store([raw_mail(body=f"{n}") for n in range(2)])
    await rise(db)
    job = world.job()
    other = await db.connect()
    try:
        async with other.transaction():
            await other.execute("SELECT FROM messages WHERE public_id = $1 FOR UPDATE", first.id)
            assert (await job.run_once()).rendered == 1
    finally:
        await other.close()
    assert (await job.run_once()).rendered == 1
    assert await world.stale() == 0


@pytest.mark.covers("decisions:B21")
async def test_a_message_that_goes_meanwhile_is_no_trouble(db: Database, world: World) -> None:
    copies = await world.store([raw_mail(body=f"{n}") for n in range(2)])
    await rise(db)

    async def deleting(prefix: bytes, original: bytes, received_at: datetime) -> Content:
        async with db.acquire() as conn:
            await conn.execute("DELETE FROM placements WHERE message_id IN (SELECT id FROM messages)")
            await conn.execute("DELETE FROM messages WHERE public_id = $1", copies[0].id)
        return await world.newer(prefix, original, received_at)

    assert (await world.job(deleting).run_once()).rendered == 1
    assert set(await world.rows()) == {copies[1].id}


@pytest.mark.covers("decisions:B21")
async def test_attachments_follow_their_bytes(db: Database, world: World) -> None:
    """The older parser saw the parts in another order: an attachment's id still means the same bytes."""
    raw = mixed(1, files=3)
    told = describe(TRACE, raw, world.clock.now())
    root = unpack_tree(told.part_tree)
    other = replace_children(root, [root.children[n] for n in (2, 3, 0, 1)])
    files = tuple(replace(part, part_path=path) for part, path in zip(told.attachments, ("4", "1", "2"), strict=True))
    (copy,) = await world.store([raw], content=replace(told, part_tree=other, attachments=files))
    before = [find_part(unpack_tree(other), (int(path),)) for path in await world.paths()]
    await rise(db)
    assert (await world.job().run_once()).rendered == 1
    tree = unpack_tree((await world.rows())[copy.id]["part_tree"])
    assert await world.paths() == ["2", "3", "4"]
    assert [find_part(tree, (int(path),)) for path in await world.paths()] == before


@pytest.mark.covers("decisions:B21", "decisions:B2")
@pytest.mark.parametrize("files", [0, 2])
async def test_a_tree_that_was_cut_short_is_not_taken(db: Database, world: World, files: int) -> None:
    """Parsing may die or run out of time this once; the older rendering is better than headers alone."""
    (copy,) = await world.store([mixed(1, files=files)])
    before = await world.rows()
    await rise(db)

    async def cut(prefix: bytes, original: bytes, received_at: datetime) -> Content:
        return describe(prefix, original, received_at, headers_only=True)

    assert (await world.job(cut).run_once()).kept == 1
    after = await world.rows()
    assert after[copy.id]["part_tree"] == before[copy.id]["part_tree"]
    assert after[copy.id]["body_structure"] == before[copy.id]["body_structure"]
    assert await world.stale() == 0


@pytest.mark.covers("decisions:B21")
async def test_an_attachment_is_not_lost(db: Database, world: World) -> None:
    (copy,) = await world.store([mixed(1, files=2)])
    before, paths = await world.rows(), await world.paths()
    await rise(db)

    async def blind(prefix: bytes, original: bytes, received_at: datetime) -> Content:
        content = describe(prefix, original, received_at)
        root = unpack_tree(content.part_tree)
        return replace(content, part_tree=replace_children(root, list(root.children[:2])))

    assert (await world.job(blind).run_once()).kept == 1
    assert (await world.rows())[copy.id]["part_tree"] == before[copy.id]["part_tree"]
    assert await world.paths() == paths


@pytest.mark.covers("decisions:B21", "decisions:B18")
async def test_large_messages_are_parsed_in_their_process(db: Database, world: World) -> None:
    raws = [raw_mail(body=f"{n}") for n in range(3)]
    large = raw_mail(body="some lines that are long enough\r\n" * 10_000)
    await world.store([*raws, large])
    async with db.acquire() as conn:
        await conn.execute("UPDATE messages SET envelope = 'old', body_structure = 'old', part_tree = 'old'")
    await rise(db)
    parser = Parser()
    try:
        assert (await world.job(parser.describe).run_once()).rendered == 4
    finally:
        parser.close()
    rows = await world.rows()
    for copy in world.stored:
        row = rows[copy.id]
        assert (row["envelope"], row["body_structure"]) == (copy.content.envelope, copy.content.body_structure)
        assert row["part_tree"] == copy.content.part_tree


def replace_children(root: Part, children: list[Part]) -> bytes:
    return pack_tree(replace(root, children=children))
