"""Passkeys below the edge: who wins when two do something at once, and what is left of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from postroom.accounts.audit import HOST
from postroom.accounts.models import Person, PersonSession
from postroom.accounts.passkeys import challenge_hash, from_text, to_text
from postroom.accounts.service.passkeys import MAX_PASSKEYS, PasskeyRefusedError, Passkeys
from postroom.accounts.service.sessions import Origin
from postroom.accounts.store import passkeys as store
from postroom.accounts.store import sessions as session_store
from tests.accounts.authenticator import PARTY, Authenticator, assertion, registration
from tests.accounts.conftest import PEPPER
from tests.accounts.home import HERE, Home
from tests.accounts.test_people import code_of


async def registered(
    home: Home, person: Person | None = None, authenticator: Authenticator | None = None
) -> tuple[Authenticator, str]:
    person, passkeys = person or home.person, home.house.passkeys
    authenticator = authenticator or Authenticator()
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


async def rows(home: Home) -> list[int]:
    tables = ("passkey_challenges", "passkey_answers")
    async with home.house.db.acquire() as conn:
        return [await conn.fetchval(f"SELECT count(*) FROM {table}") for table in tables]  # names of ours


@pytest.mark.covers("NFR-SEC-1")
async def test_strangers_fill_nothing(home: Home) -> None:
    """However many ask from however many networks: whoever has a passkey signs in, and what was asked first counts."""
    house, clock = home.house, home.house.clock
    authenticator, _ = await registered(home)
    first = (await house.passkeys.ask_to_sign_in()).public_key
    asked = [(await house.passkeys.ask_to_sign_in()).public_key["challenge"] for _ in range(500)]
    assert len(set(asked)) == 500
    stranger = Authenticator(handle=b"x")
    for challenge in asked[:50]:
        with pytest.raises(PasskeyRefusedError):
            await house.passkeys.prove(assertion(stranger.get({"challenge": challenge})))
    assert await rows(home) == [0, 0], "wrong ones neither"
    await house.entrance.sign_in_by_passkey(assertion(authenticator.get(first)), Origin(HERE))
    assert await rows(home) == [0, 1]
    clock.advance(300)
    await house.passkeys.prune()
    assert await rows(home) == [0, 1], "the clock of another process may be behind"
    clock.advance(300)
    await house.passkeys.prune()
    assert await rows(home) == [0, 0]
    with pytest.raises(PasskeyRefusedError):
        await house.passkeys.prove(assertion(authenticator.get(first)))


@pytest.mark.covers("decisions:C5", "NFR-SEC-1")
async def test_challenges_that_are_not_ours(home: Home) -> None:
    """Nobody makes one, nor makes one last: whatever octet of it is another, and of whatever length it is."""
    house = home.house
    authenticator, _ = await registered(home)
    right = (await house.passkeys.ask_to_sign_in()).public_key["challenge"]
    octets = from_text(right)
    elsewhere = Passkeys(house.db, house.ids, house.clock, PARTY, b"another pepper, of 32 octets too")
    wrong = [bytes([*octets[:at], octets[at] ^ 1, *octets[at + 1 :]]) for at in range(len(octets))]
    wrong += [octets[:-1], octets + b"x", octets[1:], b"", b"x" * 32, octets[:40]]
    wrong.append(from_text((await elsewhere.ask_to_sign_in()).public_key["challenge"]))
    for challenge in wrong:
        with pytest.raises(PasskeyRefusedError):
            await house.passkeys.prove(assertion(authenticator.get({"challenge": to_text(challenge)})))
    assert await rows(home) == [0, 0]
    await house.passkeys.prove(assertion(authenticator.get({"challenge": right})))


@pytest.mark.covers("decisions:C5")
async def test_an_answer_that_comes_twice_is_no_copied_passkey(home: Home) -> None:
    """It is refused, and nothing of a counter that went back is written down, nor counted for the account."""
    house = home.house
    authenticator, _ = await registered(home, authenticator=Authenticator(counter=1, counts=True))
    answer = assertion(authenticator.get((await house.passkeys.ask_to_sign_in()).public_key))
    await house.passkeys.prove(answer)
    with pytest.raises(PasskeyRefusedError) as refused:
        await house.passkeys.prove(answer)
    assert refused.value.person is None
    assert "passkey.counter_went_back" not in await home.audited()


async def test_nodes_share_challenges(home: Home) -> None:
    """What one process asked another is answered."""
    house = home.house
    there = Passkeys(house.db, house.ids, house.clock, PARTY, PEPPER)
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
