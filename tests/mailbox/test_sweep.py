"""The sweep: what rows name stays, what no row names goes when it is old, whoever is killed when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.blobs import MarkerMismatch, StorageError
from postroom.db import Database
from postroom.mailbox import append_sql, sweep
from postroom.mailbox.append import append
from postroom.mailbox.ingest import Delivery, Ingest
from postroom.mailbox.sweep import AGE, GAP, LEAST_AGE, PASS, SKEW, Swept
from tests.logs import Log

from .letters import make_boxes, raw_mail
from .sweeping import Killed, MortalStore, Place, many, open_place


@pytest.fixture(params=["maildir", "objects"])
async def place(request: pytest.FixtureRequest, db: Database, tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(db, request.param, tmp_path / "blobs") as made:
        yield made


@pytest.fixture
async def files(db: Database, tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(db, "maildir", tmp_path / "blobs") as made:
        yield made


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LISTED", 7), ("ASKED", 3), ("MAX_KEYS", 5)):
        monkeypatch.setattr(sweep, name, value)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(sweep, "log", log)
    return log


async def to_the_end(place: Place) -> Swept:
    """Runs until the pass is over."""
    total = Swept()
    for _ in range(500):
        total += await place.sweep().run_once()
        if await place.is_done():
            return total
    raise AssertionError("the pass never ends")


@pytest.mark.covers("edge:I9", "mail-server:E2")
async def test_old_bytes_without_a_row_go(place: Place) -> None:
    box, other, third = place.boxes
    await place.stored(box, other)
    await place.killed_before_commit(box)
    await place.killed_before_commit(box, other, third)
    await place.killed_in_removal(box)
    await place.killed_in_removal(other, third)
    await place.age()
    young = await place.killed_before_commit(box, other)
    swept = await to_the_end(place)
    assert swept.removed == 6
    assert await place.keys() == set(place.named) | set(young)
    await place.check_named()


@pytest.mark.covers("edge:I9", "edge:J2")
@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("seed", range(6))
async def test_whoever_is_killed_when(place: Place, seed: int) -> None:
    rng = random.Random(seed)
    await many(place, rng, 30)
    old = set(place.nobodys)
    await place.age()
    await many(place, rng, 10)

    async def mortal() -> None:
        with suppress(Killed):
            await place.sweep(MortalStore(place.blobs, rng, rng.choice((0.05, 0.3)))).run_once()

    for _ in range(rng.randint(5, 25)):
        # Two nodes at a time, too.
        await asyncio.gather(*(mortal() for _ in range(rng.randint(1, 3))))
        await place.check_named()
    await to_the_end(place)
    assert await place.keys() == set(place.named) | (place.nobodys - old)
    await place.check_named()


@pytest.mark.covers("edge:I9")
@pytest.mark.usefixtures("small_steps")
async def test_a_run_is_bounded_and_the_next_goes_on(place: Place) -> None:
    for _ in range(20):
        await place.stored(place.boxes[0])
    await place.age()
    counts = []
    while not await place.is_done():
        counts.append((await place.sweep().run_once()).keys)
    assert sum(counts) == 20
    assert max(counts) <= 6
    assert await place.sweep().run_once() == Swept()
    place.clock.advance(PASS.total_seconds())
    assert (await to_the_end(place)).keys == 20


@pytest.mark.covers("edge:I9", "decisions:B12")
async def test_a_key_under_another_tenant_is_not_that_message(place: Place) -> None:
    box = place.boxes[0]
    (key,) = await place.stored(box)
    (stranger,) = await make_boxes(place.db, place.ids, place.clock)
    wrong = key.replace(box.tenant_id, stranger.tenant_id).replace(box.identity_id, stranger.identity_id)
    beside = key.replace(box.identity_id, place.boxes[1].identity_id)
    nobody = key.replace(box.tenant_id, place.ids.new("ten"))
    for one in (wrong, beside, nobody):
        await place.blobs.put(one, b"x")
    await place.age()
    assert (await to_the_end(place)).removed == 3
    assert await place.keys() == {key}


@pytest.mark.covers("edge:I9")
async def test_keys_of_other_forms_are_left_alone(place: Place) -> None:
    tenant = place.boxes[0].tenant_id
    others = {f"t/{tenant}/exports/exp_1.zip", f"t/{tenant}/i/idn_x/m/msg_x/raw.eml", "inbound-staging/x.eml"}
    for key in others:
        await place.blobs.put(key, b"x")
    await place.age()
    assert await to_the_end(place) == Swept(keys=2, unknown=2)
    assert await place.keys() == others


# -- what is about to be named ----------------------------------------------------------------------------------------


async def elsewhere(work: Coroutine[Any, Any, Swept]) -> Swept:
    """In a task of its own, which may hold a connection while ours does."""
    return await asyncio.create_task(work)


@pytest.mark.covers("edge:I9", "mail-server:E2", "mail-server:E7")
async def test_a_row_that_is_about_to_be_committed(place: Place) -> None:
    raw = raw_mail()
    copy = place.pen.copy(place.boxes[0], raw)
    await place.blobs.put(copy.blob_key, raw)
    place.clock.advance(LEAST_AGE.total_seconds() / 2)
    await place.ready()
    async with place.db.acquire() as conn:
        await conn.execute(append_sql.BEGIN)
        await append(conn, [[copy]], now=place.clock.now())
        assert (await elsewhere(place.sweep().run_once())).keys == 1
        assert (await elsewhere(place.sweep().collect(timedelta(0)))).removed == 0
        assert await place.blobs.get(copy.blob_key) == raw
        # Nothing but its age keeps it.
        place.clock.advance(LEAST_AGE.total_seconds() + 1)
        assert (await elsewhere(place.sweep().collect(timedelta(0), dry_run=True))).removed == 1
        await conn.execute("COMMIT")
    assert (await place.sweep().collect(timedelta(0))).removed == 0
    assert await place.blobs.get(copy.blob_key) == raw


@pytest.mark.covers("edge:I9")
async def test_beside_mail_that_comes_in(files: Place) -> None:
    files.clock.advance(LEAST_AGE.total_seconds() / 2)
    ingest = Ingest(files.db, files.blobs, files.clock, committed=lambda _: None)
    ingest.start()
    done = asyncio.Event()

    async def sweeping() -> int:
        runs = 0
        while not done.is_set():
            await files.ready()
            await asyncio.gather(files.sweep().run_once(), files.sweep().collect(timedelta(0)))
            runs += 1
        return runs

    beside = asyncio.create_task(sweeping())
    try:
        for _ in range(5):
            raws = [raw_mail(body=f"{n} {files.ids.ulid()}") for n in range(20)]
            copies = [tuple(files.pen.copy(box, raw) for box in files.boxes) for raw in raws]
            await asyncio.gather(
                *(ingest.deliver(Delivery((raw,), one)) for raw, one in zip(raws, copies, strict=True))
            )
            files.named |= {c.blob_key: raw for raw, one in zip(raws, copies, strict=True) for c in one}
    finally:
        done.set()
        assert await beside > 0
        await ingest.stop()
    await files.check_named()
    assert await files.keys() == set(files.named)


# -- when it must not -------------------------------------------------------------------------------------------------


async def removed_now(place: Place) -> int:
    """What a run at this time removes."""
    return (await place.sweep().run_once()).removed


@pytest.mark.covers("edge:I9")
async def test_a_database_that_has_just_come_removes_nothing_for_long(place: Place) -> None:
    await place.killed_before_commit(place.boxes[0])
    place.clock.advance(2 * AGE.total_seconds())
    start = place.clock.now()
    while place.clock.now() - start < AGE:
        assert await removed_now(place) == 0
        place.clock.advance(PASS.total_seconds() / 2)
    assert await removed_now(place) == 1


@pytest.mark.covers("edge:I9")
@pytest.mark.parametrize("gap", [GAP + timedelta(seconds=1), 10 * AGE, -2 * SKEW])
async def test_an_old_copy_of_the_database_or_a_wrong_clock(place: Place, logs: Log, gap: timedelta) -> None:
    await place.killed_before_commit(place.boxes[0])
    await place.age()
    place.clock.advance(2 * AGE.total_seconds())
    await place.ready()
    place.clock.set(place.clock.now() + gap)
    assert await removed_now(place) == 0
    assert logs.events == ["blob_sweep_held"]
    for _ in range(AGE // PASS):
        assert await removed_now(place) == 0
        place.clock.advance(PASS.total_seconds())
    assert await removed_now(place) == 1


@pytest.mark.covers("edge:I9", "decisions:B5")
async def test_the_store_of_another_deployment(place: Place) -> None:
    await place.killed_before_commit(place.boxes[0])
    await place.age()
    async with place.db.acquire() as conn:
        await conn.execute("UPDATE deployment SET store_id = 'store-2'")
    assert await removed_now(place) == 0
    with pytest.raises(MarkerMismatch):
        await place.sweep().collect(AGE)
    async with place.db.acquire() as conn:
        await conn.execute("DELETE FROM deployment")
    assert await removed_now(place) == 0
    assert len(await place.keys()) == 1


@pytest.mark.covers("edge:I9", "edge:J1")
async def test_trouble_with_the_store_is_waited_out(place: Place, logs: Log) -> None:
    await place.killed_before_commit(place.boxes[0])
    await place.age()

    class Broken:
        def __getattr__(self, name: str) -> Any:
            if name == "discard":
                return self._fail
            return getattr(place.blobs, name)

        async def _fail(self, *_: Any, **__: Any) -> None:
            raise StorageError("EIO")

    await place.sweep(Broken()).run_once()
    assert logs.told == [("warning", "blob_sweep_interrupted", {"reason": "EIO"})]
    assert (await to_the_end(place)).removed == 1


# -- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.covers("edge:I5", "edge:I9")
async def test_one_line_of_counts(files: Place, logs: Log) -> None:
    await files.killed_before_commit(files.boxes[0], files.boxes[1])
    await files.stored(files.boxes[0])
    await files.age()
    await files.sweep().run_once()
    await files.sweep().run_once()
    counts = {"keys": 3, "removed": 2, "octets": len(raw_mail()), "unknown": 0, "done": True}
    assert logs.told == [("info", "blobs_swept", counts)]


@pytest.mark.covers("mail-server:E7")
async def test_an_operator_sees_first_and_then_does(files: Place) -> None:
    await files.killed_before_commit(files.boxes[0])
    await files.stored(files.boxes[0])
    files.clock.set(datetime.now(UTC) + timedelta(hours=2))
    assert (await files.sweep().collect(timedelta(hours=3))).removed == 0
    seen = await files.sweep().collect(LEAST_AGE, dry_run=True)
    assert (seen.keys, seen.removed, seen.octets) == (2, 1, len(raw_mail()))
    assert len(await files.keys()) == 2
    assert await files.sweep().collect(LEAST_AGE) == seen
    assert await files.keys() == set(files.named)
