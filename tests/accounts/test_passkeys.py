"""Passkeys below the edge: who wins when two do something at once, and what is left of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from postroom.accounts.audit import HOST
from postroom.accounts.models import Person, PersonSession
from postroom.accounts.passkeys import challenge_hash
from postroom.accounts.service import passkeys as service
from postroom.accounts.service.passkeys import MAX_PASSKEYS, PasskeyRefusedError, Passkeys
from postroom.accounts.service.sessions import Origin
from postroom.accounts.store import passkeys as store
from postroom.accounts.store import sessions as session_store
from tests.accounts.authenticator import PARTY, Authenticator, assertion, registration
from tests.accounts.home import HERE, Home
from tests.accounts.test_people import code_of


async def registered(home: Home, person: Person | None = None) -> tuple[Authenticator, str]:
    person, passkeys = person or home.person, home.house.passkeys
    authenticator = Authenticator()
    options = await passkeys.ask_to_register(person, 0)
    made = await passkeys.register(person, "Laptop", registration(authenticator.create(options.public_key)), HOST)
    return authenticator, made.public_id


async def enter(home: Home, authenticator: Authenticator) -> tuple[str, PersonSession]:
    options = await home.house.passkeys.ask_to_sign_in()
    answer = assertion(authenticator.get(options.public_key))
    return await home.house.entrance.sign_in_by_passkey(answer, Origin(HERE))


@pytest.mark.covers("decisions:A4")
async def test_a_passkey_that_is_removed_while_somebody_signs_in(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was right when it was looked at, and gone before the session was there."""
    house = home.house
    authenticator, name = await registered(home)
    proved = house.passkeys.prove

    async def slow(answer: Any) -> Any:
        found = await proved(answer)
        await house.passkeys.remove(home.person, name, HOST)
        return found

    monkeypatch.setattr(house.passkeys, "prove", slow)
    assert await code_of(enter(home, authenticator)) == "invalid_credentials"
    assert await house.sessions.page(home.person.id) == []


@pytest.mark.covers("mail-server:F1")
async def test_a_password_that_is_reset_while_somebody_signs_in(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    house = home.house
    authenticator, _ = await registered(home)
    proved = house.passkeys.prove

    async def slow(answer: Any) -> Any:
        found = await proved(answer)
        await house.people.set_password(home.person.public_id, "another horse")
        return found

    monkeypatch.setattr(house.passkeys, "prove", slow)
    assert await code_of(enter(home, authenticator)) == "invalid_credentials"
    assert await house.sessions.page(home.person.id) == []


async def test_sessions_and_removals_at_once(home: Home) -> None:
    """Whichever is first: no session outlives its passkey."""
    house = home.house
    for _ in range(5):
        authenticator, name = await registered(home)
        await asyncio.gather(
            *(code_of(enter(home, authenticator)) for _ in range(3)),
            house.passkeys.remove(home.person, name, HOST),
        )
        assert await house.sessions.page(home.person.id) == []


@pytest.mark.parametrize("module", [store, session_store], ids=["looked at", "made"])
async def test_a_removal_waits_for_whoever_signs_in(
    home: Home, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    """It comes between two statements of the transaction that opens the session, and ends that."""
    house = home.house
    authenticator, name = await registered(home)
    step = "is_there" if module is store else "insert"
    known = getattr(module, step)
    removals: list[asyncio.Task[None]] = []

    async def then_removed(*given: Any) -> Any:
        found = await known(*given)
        removals.append(asyncio.create_task(house.passkeys.remove(home.person, name, HOST)))
        await asyncio.wait(removals, timeout=0.3)
        return found

    monkeypatch.setattr(module, step, then_removed)
    token, _ = await enter(home, authenticator)
    await asyncio.wait_for(asyncio.gather(*removals), 10)
    assert await code_of(house.sessions.verify(token)) == "unauthenticated"
    assert await house.passkeys.page(home.person.id) == []


async def test_a_token_ends_with_its_passkey_alone(home: Home) -> None:
    house = home.house
    (one, name), (other, _) = await registered(home), await registered(home)
    first, _ = await enter(home, one)
    second, session = await enter(home, other)
    assert session.passkey_id is not None
    await house.passkeys.remove(home.person, name, HOST)
    assert await code_of(house.sessions.verify(first)) == "unauthenticated"
    assert await code_of(house.sessions.verify(second)) is None


async def test_the_limit_is_exact(home: Home) -> None:
    for _ in range(MAX_PASSKEYS - 1):
        await registered(home)
    passkeys = home.house.passkeys
    options = await passkeys.ask_to_register(home.person, 0)
    await registered(home)
    late = registration(Authenticator().create(options.public_key))
    assert await code_of(passkeys.register(home.person, "x", late, HOST)) == "invalid_request", "void by the next one"
    assert await code_of(passkeys.ask_to_register(home.person, 0)) == "passkey_limit_reached"
    async with home.house.db.acquire() as conn:
        digest, until = challenge_hash(b"c" * 32), home.house.clock.now() + timedelta(minutes=1)
        await store.ask_to_register(conn, digest, home.person.id, 0, until)
    options.public_key["challenge"] = "Y2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2M"
    late = registration(Authenticator().create(options.public_key))
    assert await code_of(passkeys.register(home.person, "x", late, HOST)) == "passkey_limit_reached"


async def test_other_peoples_passkeys_are_not_there(home: Home) -> None:
    passkeys = home.house.passkeys
    _, name = await registered(home)
    other = Person(
        **{one: getattr(home.person, one) for one in home.person.__slots__} | {"id": 10**6, "public_id": "usr_x"}
    )
    for missing in (name, "pky_01ARZ3NDEKTSV4RRFFQ69G5FAV", "pky_x", ""):
        assert await code_of(passkeys.remove(other, missing, HOST)) == "passkey_not_found"
        assert await code_of(passkeys.rename(other.id, missing, "x")) == "passkey_not_found"
    assert await passkeys.remove_all(other, HOST) == 0
    assert [one.public_id for one in await passkeys.page(home.person.id)] == [name]


@pytest.mark.covers("NFR-SEC-1")
async def test_strangers_do_not_fill_the_table(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SLOTS", 4)
    house, clock = home.house, home.house.clock
    authenticator, _ = await registered(home)
    first = (await house.passkeys.ask_to_sign_in()).public_key
    codes = [await code_of(house.passkeys.ask_to_sign_in()) for _ in range(60)]
    assert codes[-1] == "unavailable"
    async with house.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM passkey_challenges WHERE slot IS NOT NULL") == 4
    # Whoever had one keeps it, and when they are over there is room again.
    await house.entrance.sign_in_by_passkey(assertion(authenticator.get(first)), Origin(HERE))
    clock.advance(300)
    assert await code_of(enter(home, authenticator)) is None


async def test_nodes_share_challenges(home: Home) -> None:
    """What one process asked another is answered."""
    house = home.house
    there = Passkeys(house.db, house.ids, house.clock, PARTY)
    authenticator = Authenticator()
    options = await house.passkeys.ask_to_register(home.person, 0)
    await there.register(home.person, "x", registration(authenticator.create(options.public_key)), HOST)
    answer = assertion(authenticator.get((await house.passkeys.ask_to_sign_in()).public_key))
    assert (await there.prove(answer)).person_id == home.person.id
    with pytest.raises(PasskeyRefusedError):
        await house.passkeys.prove(answer)


@pytest.mark.covers("decisions:A2")
async def test_they_go_with_the_person(home: Home) -> None:
    house = home.house
    authenticator, _ = await registered(home)
    await enter(home, authenticator)
    await house.passkeys.ask_to_register(home.person, 0)
    await house.people.remove(home.box.tenant_id, home.person.public_id)
    async with house.db.acquire() as conn:
        for table in ("people", "sessions", "person_passkeys", "passkey_challenges"):
            assert await conn.fetchval(f"SELECT count(*) FROM {table}") == 0, table  # names of ours
