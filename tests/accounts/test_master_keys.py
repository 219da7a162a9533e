"""Master keys over time: sealing anew, who holds what, and keys of another database (security-privacy A6.3)."""

from __future__ import annotations

import asyncio
import io
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from postroom.accounts.service.master_keys import A_RUN, MasterKeys, lacking
from postroom.accounts.signing_keys import Purpose, SigningKeys
from postroom.base import log as base_log
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.base.sealed_columns import REGISTRY, SCRAM_KEYS, SIGNING_KEY, SealedColumn
from postroom.base.sealing import Keyring, kid_of, sealed_under
from postroom.base.secrets import Secrets
from postroom.base.settings import SettingsError
from postroom.db import Database, reseal
from tests.accounts.home import Home
from tests.accounts.sealed_rows import VALUES, fill, opened, stored
from tests.base.old_seals import old_seal

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def keys_of(db: Database, clock: ManualClock, ring: Keyring, node: str = "one") -> MasterKeys:
    return MasterKeys(db, IdGenerator(clock), clock, ring, node=node)


def secrets_of(active: bytes, other: bytes | None = None) -> Secrets:
    return Secrets(active, b"p" * 32, b"h" * 32, other)


async def audited(db: Database) -> list[tuple[str, str]]:
    async with db.acquire() as conn:
        rows = await conn.fetch("SELECT action, target_id FROM audit_log ORDER BY id")
    return [(row["action"], row["target_id"]) for row in rows]


# -- the sweep ---------------------------------------------------------------------------------------------------------


@pytest.mark.covers("edge:O8", "security-privacy:A6.3")
async def test_everything_is_sealed_anew_and_is_the_same(db: Database, clock: ManualClock) -> None:
    await fill(db, Keyring(A))
    ring = Keyring(B, A)
    assert await reseal.remaining(db, ring.active) == len(VALUES)
    assert (await reseal.sweep(db, ring)).resealed == len(VALUES)
    assert await reseal.remaining(db, ring.active) == 0
    assert await opened(db, Keyring(B)) == VALUES
    assert {sealed_under(one) for one in (await stored(db)).values()} == {kid_of(B)}
    again = await stored(db)
    assert await reseal.sweep(db, ring) == reseal.Swept()
    assert await stored(db) == again


@pytest.mark.covers("decisions:D20")
async def test_values_of_before_are_sealed_anew(db: Database, clock: ManualClock) -> None:
    """A data directory of before 0.1 goes on working, under its key and under the next one."""

    def before(column: SealedColumn, value: bytes, *row: object) -> bytes:
        if column.before is None:  # it is younger than that
            return Keyring(A).seal(column, value, *row)
        return old_seal(A, column.before.purpose, column.before.place.format(*row), value)

    await fill(db, Keyring(A), seal=before)
    assert await opened(db, Keyring(A)) == VALUES
    keys = keys_of(db, clock, Keyring(A))
    await keys.check()
    newest = await keys.newest()
    assert newest is not None
    assert (newest.kid, newest.resealed_at) == (kid_of(A), None)
    await keys.run_once()
    assert {sealed_under(one) for one in (await stored(db)).values()} == {kid_of(A)}
    assert await opened(db, Keyring(A)) == VALUES
    assert await audited(db) == [("master_key.resealed", kid_of(A))]


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
async def test_by_the_page(db: Database, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr(reseal, "PAGE", page)
    await fill(db, Keyring(A))
    assert (await reseal.sweep(db, Keyring(B, A))).resealed == len(VALUES)
    assert await opened(db, Keyring(B)) == VALUES


async def test_what_no_key_opens_stays_as_it_is_and_stops_nothing(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reseal, "PAGE", 1)
    await fill(db, Keyring(A))
    strange = Keyring(C).seal(SIGNING_KEY, b"lost", "thread", "0")
    async with db.acquire() as conn:
        await conn.execute("UPDATE signing_keys SET sealed = $1 WHERE purpose = 'thread'", strange)
    out = io.StringIO()
    base_log.configure("info", "json", out)
    swept = await reseal.sweep(db, Keyring(B, A))
    base_log.configure("critical", "text")
    assert (swept.resealed, swept.unopened) == (len(VALUES) - 1, 1)
    assert (await stored(db))[SIGNING_KEY, ("thread", "0")] == strange
    assert await reseal.remaining(db, kid_of(B)) == 1
    assert kid_of(C) in out.getvalue()
    assert "signing_keys.sealed" in out.getvalue()
    assert strange.decode() not in out.getvalue()
    assert (await reseal.standing(db))["signing_keys.sealed"] == {kid_of(B): 2, kid_of(C): 1}


@pytest.mark.covers("security-privacy:A6.3")
@pytest.mark.parametrize("page", [1, 2, 100])
@pytest.mark.parametrize("column", REGISTRY, ids=lambda one: one.name)
async def test_each_value_is_opened_once_and_broken_ones_are_told(
    db: Database, monkeypatch: pytest.MonkeyPatch, page: int, column: SealedColumn
) -> None:
    """In every column, and wherever it was cut off or changed; what is only under another key is not among them."""
    monkeypatch.setattr(reseal, "PAGE", page)
    ring, lost = Keyring(b"m" * 32), Keyring(b"l" * 32)
    await fill(db, ring)
    for cut in (0, 3, 21, 22, 40, -1):

        def seal(where: SealedColumn, value: bytes, *row: object, cut: int = cut) -> bytes:
            return ring.seal(where, value, *row)[:cut]

        await fill(db, ring, seal=seal, only=column)
        found = [one async for one in reseal.look(db, ring)]
        assert sum(one.values for one in found) == len(VALUES)
        assert {one.column: one.broken for one in found if one.broken} == {column: 1}, cut
    await fill(db, lost, only=column)
    assert not any([one.broken async for one in reseal.look(db, ring)])


@pytest.mark.parametrize("column", REGISTRY, ids=lambda column: column.name)
async def test_whoever_writes_meanwhile_wins(
    db: Database, monkeypatch: pytest.MonkeyPatch, column: SealedColumn
) -> None:
    """The new value stands, under whichever key it was written; a row that went stays away."""
    await fill(db, Keyring(A))
    row = next(key for one, key in VALUES if one == column)
    where = " AND ".join(f"{name} = ${at}::{kind}" for at, (name, kind) in enumerate(column.row, 2))
    newer = Keyring(A).seal(column, b"newer", *row)
    real = reseal._reseal

    async def overtaken(database: Database, ring: Keyring, one: SealedColumn, rows: Any) -> reseal.Swept:
        if one == column:
            async with database.acquire() as conn:
                await conn.execute(f"UPDATE {one.table} SET {one.column} = $1 WHERE {where}", newer, *row)
        return await real(database, ring, one, rows)

    monkeypatch.setattr(reseal, "_reseal", overtaken)
    swept = await reseal.sweep(db, Keyring(B, A))
    assert (swept.resealed, swept.overtaken) == (len(VALUES) - 1, 1)
    assert (await stored(db))[column, row] == newer
    monkeypatch.setattr(reseal, "_reseal", real)
    assert (await reseal.sweep(db, Keyring(B, A))).resealed == 1
    assert (await opened(db, Keyring(B)))[column, row] == b"newer"


async def test_sweeps_and_writers_at_once(db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sweeps, two of which are cancelled, while keys are rotated by a process that seals under the old key: every
    key that anybody was given opens in the end, under the new one alone.
    """
    monkeypatch.setattr(reseal, "PAGE", 2)
    await fill(db, Keyring(A))
    writer = SigningKeys(db, Keyring(A, B), clock)
    made = {}

    async def write() -> None:
        for _ in range(20):
            clock.advance(1)
            done = await writer.rotate(Purpose.BOUNCE)
            made[done.key.kid] = done.key.secret

    sweeps = [asyncio.create_task(reseal.sweep(db, Keyring(B, A))) for _ in range(4)]
    writing = asyncio.create_task(write())
    await asyncio.sleep(0.01)
    for one in sweeps[:2]:
        one.cancel()
    await asyncio.gather(*sweeps, writing, return_exceptions=True)
    await writing
    while await reseal.remaining(db, kid_of(B)):
        await reseal.sweep(db, Keyring(B, A))
    ring = await SigningKeys(db, Keyring(B), clock).ring(Purpose.BOUNCE)
    assert {key.kid: key.secret for key in ring} | made == {key.kid: key.secret for key in ring}
    assert len(ring) >= 20


async def test_what_no_key_opens_is_looked_at_once_an_hour(db: Database, clock: ManualClock) -> None:
    """Not every minute; and once its key is there, it is sealed anew."""
    await fill(db, Keyring(A))
    await fill(db, Keyring(C), only=SCRAM_KEYS)
    ring = Keyring(B, A)
    keys = keys_of(db, clock, ring)
    assert (await keys.run_once()).unopened == 1
    newest = await keys.newest()
    assert newest is not None
    assert newest.resealed_at is None
    assert await keys.run_once() == reseal.Swept()
    ring.replace(B, C)
    clock.advance(timedelta(hours=1).total_seconds() + 1)
    assert (await keys.run_once()).resealed == 1
    assert await audited(db) == [("master_key.activated", kid_of(B)), ("master_key.resealed", kid_of(B))]


# -- the periodic work -------------------------------------------------------------------------------------------------


@pytest.mark.covers("security-privacy:A6.3")
async def test_a_new_key_is_noticed_and_told_of_once(db: Database, clock: ManualClock) -> None:
    await fill(db, Keyring(A))
    await keys_of(db, clock, Keyring(A)).check()
    ring = Keyring(B, A)
    first, second = keys_of(db, clock, ring), keys_of(db, clock, ring)
    clock.advance(60)
    await asyncio.gather(first.run_once(), second.run_once())
    newest = await first.newest()
    assert newest is not None
    assert (newest.kid, newest.activated_at, newest.resealed_at) == (kid_of(B), clock.now(), clock.now())
    assert await audited(db) == [("master_key.activated", kid_of(B)), ("master_key.resealed", kid_of(B))]
    assert await opened(db, Keyring(B)) == VALUES
    clock.advance(60)
    await first.run_once()
    assert len(await audited(db)) == 2


async def test_a_run_does_a_part(db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert A_RUN == 500
    monkeypatch.setattr(reseal, "PAGE", 2)
    monkeypatch.setattr("postroom.accounts.service.master_keys.A_RUN", 2)
    await fill(db, Keyring(A))
    keys = keys_of(db, clock, Keyring(B, A))
    await keys.check()
    runs = 0
    while await keys.remaining():
        assert 1 <= (await keys.run_once()).resealed <= 3
        runs += 1
    assert runs >= len(VALUES) // 3
    assert await audited(db) == [("master_key.resealed", kid_of(B))]


async def test_a_straggler_is_found_within_the_hour(db: Database, clock: ManualClock) -> None:
    await fill(db, Keyring(A))
    keys = keys_of(db, clock, Keyring(B, A))
    await keys.run_once()
    await fill(db, Keyring(A), only=SCRAM_KEYS)
    assert await keys.run_once() == reseal.Swept()
    clock.advance(timedelta(hours=1).total_seconds() + 1)
    assert (await keys.run_once()).resealed == 1
    assert await keys.remaining() == 0


@pytest.mark.covers("security-privacy:A6.3")
async def test_no_key_seals_that_a_process_lacks(db: Database, clock: ManualClock) -> None:
    await fill(db, Keyring(A))
    there = keys_of(db, clock, Keyring(A), "two")
    await there.check()
    await there.follow(lambda: secrets_of(A))
    here = keys_of(db, clock, Keyring(B, A))
    await here.follow(lambda: secrets_of(B, A))
    await here.run_once()
    newest = await here.newest()
    assert newest is not None
    assert newest.kid == kid_of(A), "the other machine lacks it"
    (lacks,) = lacking(await here.holders(), kid_of(B), active=False)
    assert (lacks.node, lacks.active, lacks.kids) == ("two", kid_of(A), (kid_of(A),))
    await there.follow(lambda: secrets_of(A, B))
    assert lacking(await here.holders(), kid_of(B), active=False) == ()
    await here.follow(lambda: secrets_of(B, A))
    assert [one.node for one in lacking(await here.holders(), kid_of(B), active=True)] == ["two"]
    await here.run_once()
    assert await opened(db, Keyring(B)) == VALUES
    # The other machine's selector is still the old one: that turns nothing back.
    await there.run_once()
    assert await opened(db, Keyring(B)) == VALUES
    # The operator turns back everywhere.
    await there.leave()
    await here.leave()
    clock.advance(1)
    back = keys_of(db, clock, Keyring(A, B))
    await back.run_once()
    assert await opened(db, Keyring(A)) == VALUES


@pytest.mark.covers("security-privacy:A6.3")
async def test_a_key_that_another_process_lacks_does_not_seal_whatever_the_secrets_say(
    db: Database, clock: ManualClock
) -> None:
    """An operator who restarts machine after machine with new key and new selector at once."""
    rings = [Keyring(A), Keyring(A)]
    first, second = (keys_of(db, clock, ring, str(at)) for at, ring in enumerate(rings))
    for keys in (first, second):
        await keys.check()
        await keys.follow(lambda: secrets_of(A))
    await first.leave()
    ring = Keyring(B, A)
    restarted = keys_of(db, clock, ring)
    await restarted.check()
    assert ring.active == kid_of(A), "from the first moment"
    await restarted.follow(lambda: secrets_of(B, A))
    await restarted.run_once()
    assert ring.active == kid_of(A)
    assert rings[1].open(SCRAM_KEYS, ring.seal(SCRAM_KEYS, b"value", "apw_1"), "apw_1") == b"value"
    clock.advance(1)
    await second.follow(lambda: secrets_of(B, A))
    assert rings[1].active == kid_of(B), "now everybody has it"
    await restarted.follow(lambda: secrets_of(B, A))
    assert ring.active == kid_of(B)
    await restarted.run_once()
    newest = await restarted.newest()
    assert newest is not None
    assert newest.kid == kid_of(B)


@pytest.mark.covers("security-privacy:A6.3")
async def test_a_key_that_another_process_dropped_does_not_seal(db: Database, clock: ManualClock) -> None:
    """One machine has the selector of before the rotation, and on another the key before was taken away since."""
    ring, late = Keyring(A), Keyring(A, B)
    keys, stale = keys_of(db, clock, ring), keys_of(db, clock, late)
    await keys.check()
    for held in ([A, B], [B, A]):
        await keys.follow(partial(secrets_of, *held))
    clock.advance(1)
    await keys.run_once()
    await stale.check()
    await stale.follow(lambda: secrets_of(A, B))
    assert late.active == kid_of(A), "everybody opens it"
    await keys.follow(lambda: secrets_of(B))
    await stale.follow(lambda: secrets_of(A, B))
    assert late.active == kid_of(B)
    assert {one.active for one in await keys.holders()} == {kid_of(B)}


async def test_a_process_that_is_gone_is_waited_for_no_longer(db: Database, clock: ManualClock) -> None:
    keys = keys_of(db, clock, Keyring(A))
    await keys.follow(lambda: secrets_of(A))
    assert len(await keys.holders()) == 1
    async with db.acquire() as conn:
        await conn.execute("UPDATE master_key_holders SET seen_at = seen_at - interval '46 s'")
    assert await keys.holders() == ()
    async with db.acquire() as conn:
        await conn.execute("UPDATE master_key_holders SET seen_at = seen_at - interval '1 day'")
    await keys.run_once()
    async with db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM master_key_holders") == 0


async def test_secrets_that_cannot_be_read_change_nothing(db: Database, clock: ManualClock) -> None:
    ring = Keyring(A, B)
    keys = keys_of(db, clock, ring)

    def broken() -> Secrets:
        raise SettingsError(["POSTROOM_MASTER_KEY: missing"])

    await keys.follow(broken)
    assert ring.kids == (kid_of(A), kid_of(B))
    assert [one.kids for one in await keys.holders()] == [ring.kids]


@pytest.mark.covers("security-privacy:A6.3")
async def test_secrets_without_the_key_that_is_needed_are_not_taken(db: Database, clock: ManualClock) -> None:
    """Somebody edited the file of a server that runs: it goes on, and its start would have been refused."""
    ring = Keyring(A)
    keys = keys_of(db, clock, ring)
    await keys.check()
    await fill(db, Keyring(A))
    for held in ([C], [C, B]):
        await keys.follow(partial(secrets_of, *held))
        await keys.run_once()
        assert ring.kids == (kid_of(A),)
    newest = await keys.newest()
    assert newest is not None
    assert newest.kid == kid_of(A)
    await keys.follow(lambda: secrets_of(B, A))
    clock.advance(1)
    await keys.run_once()
    assert await opened(db, Keyring(B)) == VALUES
    await keys.follow(lambda: secrets_of(B))
    assert ring.kids == (kid_of(B),), "nothing is left under the other one"


async def test_it_says_what_it_has_before_it_looks(db: Database, clock: ManualClock) -> None:
    """Whoever adds a key and sees no process that lacks it may switch: the process that came then finds the key."""
    keys = keys_of(db, clock, Keyring(A))
    seen = []
    loop = asyncio.get_running_loop()

    def reload() -> Secrets:
        seen.append(asyncio.run_coroutine_threadsafe(keys.holders(), loop).result(10))
        return secrets_of(A, B)

    await keys.follow(reload)
    assert [one.kids for one in seen[0]] == [(kid_of(A),)]
    assert [one.kids for one in await keys.holders()] == [(kid_of(A), kid_of(B))]


# -- the start ---------------------------------------------------------------------------------------------------------


@pytest.mark.covers("security-privacy:A6.3")
async def test_a_key_of_another_database_is_refused(db: Database, clock: ManualClock) -> None:
    await keys_of(db, clock, Keyring(A)).check()
    await fill(db, Keyring(A))
    for ring in (Keyring(A), Keyring(A, B), Keyring(B, A)):
        await keys_of(db, clock, ring).check()
    with pytest.raises(SettingsError) as caught:
        await keys_of(db, clock, Keyring(C, B)).check()
    (problem,) = caught.value.problems
    assert problem.startswith("POSTROOM_MASTER_KEY: ")
    assert all(kid_of(key) in problem for key in (A, B, C))
    assert not any(key.decode() in problem for key in (A, B, C))
    assert await audited(db) == []


async def test_a_key_of_another_database_is_refused_where_none_is_known_yet(db: Database, clock: ManualClock) -> None:
    await fill(db, Keyring(A))
    with pytest.raises(SettingsError, match=f"{kid_of(C)} opens nothing"):
        await keys_of(db, clock, Keyring(C)).check()
    await keys_of(db, clock, Keyring(A)).check()


async def test_where_nothing_is_sealed_any_key_will_do(db: Database, clock: ManualClock) -> None:
    await keys_of(db, clock, Keyring(A)).check()
    later = keys_of(db, clock, Keyring(B))
    await later.check()
    clock.advance(1)
    await later.run_once()
    newest = await later.newest()
    assert newest is not None
    assert newest.kid == kid_of(B)


@pytest.mark.covers("security-privacy:A6.3")
async def test_a_backup_of_before_the_rotation(db: Database, clock: ManualClock) -> None:
    """It opens with the other slot, and the sweep seals it anew."""
    await keys_of(db, clock, Keyring(A)).check()
    await fill(db, Keyring(A))
    clock.advance(1)
    after = keys_of(db, clock, Keyring(B, A))
    await after.check()
    await after.follow(lambda: secrets_of(B, A))
    await after.run_once()
    assert await opened(db, Keyring(B)) == VALUES


# -- the services go on ------------------------------------------------------------------------------------------------


@pytest.mark.covers("edge:O8")
async def test_the_second_step_works_through_a_rotation(home: Home) -> None:
    """And where the key is missing it is a fault of ours that passes, not a wrong code."""
    await home.two_steps()
    ring = home.house.two_step._keyring = Keyring(b"m" * 32)

    async def sign_in() -> None:
        await home.web(code=home.code())
        home.house.clock.advance(60)

    ring.replace(B, b"m" * 32)
    await sign_in()
    await reseal.sweep(home.house.db, ring)
    ring.replace(B)
    await sign_in()
    ring.replace(C)
    for _ in range(10):
        with pytest.raises(PostroomError) as caught:
            await sign_in()
        assert caught.value.code == "unavailable"
    ring.replace(C, B)
    await sign_in()
