"""The deployment's own MAC keys: made once, sealed, rotated, honoured for a while."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from postroom.accounts.signing_keys import KIDS, Purpose, Rotation, SigningKeys
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.sealing import Keyring
from postroom.db import Connection, Database

MASTER = Keyring(b"m" * 32)


@pytest.mark.covers("edge:D10")
async def test_the_first_key_is_made_once_however_many_need_it(db: Database, clock: ManualClock) -> None:
    processes = [SigningKeys(db, MASTER, clock) for _ in range(5)]
    made = await asyncio.gather(*(keys.current(Purpose.THREAD) for keys in processes * 2))
    assert {(key.kid, key.secret) for key in made} == {("0", made[0].secret)}
    assert len(made[0].secret) == 32
    other = await processes[0].current(Purpose.BOUNCE)
    assert other.secret != made[0].secret


@pytest.mark.covers("edge:D10")
@pytest.mark.parametrize(("purpose", "days"), [(Purpose.THREAD, 90), (Purpose.BOUNCE, 30), (Purpose.FORWARD, 30)])
async def test_a_rotated_key_is_honoured_for_its_overlap(
    db: Database, clock: ManualClock, purpose: Purpose, days: int
) -> None:
    keys = SigningKeys(db, MASTER, clock)
    old = await keys.current(purpose)
    new = (await keys.rotate(purpose)).key
    assert [key.kid for key in await keys.ring(purpose)] == [new.kid, old.kid] == ["1", "0"]
    assert (await keys.current(purpose)).secret == new.secret != old.secret
    clock.advance(timedelta(days=days).total_seconds() - 1)
    assert [key.secret for key in await keys.ring(purpose)] == [new.secret, old.secret]
    clock.advance(2)
    assert [key.secret for key in await keys.ring(purpose)] == [new.secret]


async def test_revoking_ends_every_key_before_at_once(db: Database, clock: ManualClock) -> None:
    keys = SigningKeys(db, MASTER, clock)
    await keys.rotate(Purpose.BOUNCE)
    new = (await keys.rotate(Purpose.BOUNCE, revoke_previous=True)).key
    assert [key.secret for key in await SigningKeys(db, MASTER, clock).ring(Purpose.BOUNCE)] == [new.secret]


async def test_ids_of_keys_wrap_and_replace_what_holds_them(db: Database, clock: ManualClock) -> None:
    keys = SigningKeys(db, MASTER, clock)
    first = await keys.current(Purpose.THREAD)
    for turn in range(len(KIDS)):
        clock.advance(1)
        last = (await keys.rotate(Purpose.THREAD)).key
        assert last.kid == KIDS[(turn + 1) % len(KIDS)]
    ring = await keys.ring(Purpose.THREAD)
    assert (len(ring), ring[0].secret, last.kid) == (len(KIDS), last.secret, first.kid)
    assert all(key.secret != first.secret for key in ring)


@pytest.mark.covers("edge:D10")
async def test_another_process_sees_a_rotation_when_a_key_is_named_that_it_does_not_know(
    db: Database, clock: ManualClock
) -> None:
    here, there = SigningKeys(db, MASTER, clock), SigningKeys(db, MASTER, clock)
    await here.current(Purpose.THREAD)
    new = (await there.rotate(Purpose.THREAD)).key
    # At most once a minute: a guesser makes no queries.
    assert (await here.ring(Purpose.THREAD, kid=new.kid))[0].kid == "0"
    clock.advance(60)
    assert (await here.ring(Purpose.THREAD))[0].kid == "0"
    assert (await here.ring(Purpose.THREAD, kid=new.kid))[0].kid == "1"
    newest = (await there.rotate(Purpose.THREAD)).key
    clock.advance(300)
    assert (await here.current(Purpose.THREAD)).secret == newest.secret


async def test_a_key_opens_only_in_its_own_place_and_under_its_master_key(db: Database, clock: ManualClock) -> None:
    made = await SigningKeys(db, MASTER, clock).current(Purpose.THREAD)
    renewed = SigningKeys(db, Keyring(b"n" * 32, b"m" * 32), clock)
    assert (await renewed.current(Purpose.THREAD)).secret == made.secret
    with pytest.raises(PostroomError) as raised:
        await SigningKeys(db, Keyring(b"n" * 32), clock).current(Purpose.THREAD)
    assert raised.value.code == "unavailable"
    async with db.acquire() as conn:
        sealed = await conn.fetchval("SELECT sealed FROM signing_keys")
        assert made.secret not in bytes(sealed)
        await conn.execute("UPDATE signing_keys SET purpose = 'bounce'")
    with pytest.raises(PostroomError):
        await SigningKeys(db, MASTER, clock).current(Purpose.BOUNCE)


@pytest.mark.covers("security-privacy:A6.2")
async def test_a_key_that_is_followed_can_be_retired_at_once(db: Database, clock: ManualClock) -> None:
    keys = SigningKeys(db, MASTER, clock)
    first = await keys.current(Purpose.BOUNCE)
    turn = await keys.rotate(Purpose.BOUNCE)
    assert (turn.previous, turn.verify_until, turn.revoked) == ("0", clock.now() + timedelta(days=30), False)
    await keys.rotate(Purpose.THREAD)
    assert not await keys.retire(Purpose.BOUNCE, "1"), "the current key went"
    assert await keys.retire(Purpose.BOUNCE, first.kid)
    assert not await keys.retire(Purpose.BOUNCE, first.kid)
    assert [key.kid for key in await keys.ring(Purpose.BOUNCE)] == ["1"]
    assert len(await keys.ring(Purpose.THREAD)) == 2, "a key of another purpose went"


async def test_a_rotation_that_cannot_be_recorded_did_not_happen(db: Database, clock: ManualClock) -> None:
    keys = SigningKeys(db, MASTER, clock)

    async def fail(conn: Connection, rotation: Rotation) -> None:
        raise PostroomError("request_in_progress")

    with pytest.raises(PostroomError):
        await keys.rotate(Purpose.BOUNCE, revoke_previous=True, also=fail)
    assert [key.kid for key in await SigningKeys(db, MASTER, clock).ring(Purpose.BOUNCE)] == ["0"]
