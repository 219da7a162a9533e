"""Signing in to a mailbox by SCRAM: application passwords that are proved and never shown (RFC 5802; B11, D20)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from postroom.accounts import GrantRole, NewPerson, Principal, SignIn, SignInError, SignInFailure
from postroom.accounts.audit import HOST
from postroom.accounts.scram import ITERATIONS, ScramKeys
from postroom.accounts.service import sign_in as service
from postroom.accounts.service.app_passwords import AppPasswords
from postroom.accounts.store import credentials
from postroom.base.sealing import Keyring, UnsealError
from postroom.db import DatabaseUnavailable
from postroom.directory import IdentityKind
from postroom.sasl import MECHANISM, Challenge, Exchange, Keys, Proof, derive_keys
from postroom.sasl.scram import write_final
from tests.accounts.home import ALICE, HERE, RIGHT, Home
from tests.sasl.client import Client

INVALID = SignInError(SignInFailure.INVALID)
OTHER = "192.0.2.77"


def proof_of(client: Client, scram: ScramKeys) -> Proof:
    exchange = Exchange(MECHANISM, scram.offer(), None)
    step = exchange.respond(client.first())
    assert isinstance(step, Challenge)
    proof = exchange.respond(client.final(step.data))
    assert isinstance(proof, Proof)
    return proof


async def prove(
    home: Home, password: str, address: str = ALICE, remote: str = HERE, by: SignIn | None = None
) -> Principal | SignInError:
    """What comes of an exchange; whoever is let in has seen that we have the keys."""
    client = Client(address, password)
    answer = await (by or home.house.sign_in).prove(proof_of(client, home.house.scram), remote)
    if isinstance(answer, SignInError):
        return answer
    client.check(write_final(answer.signature))
    return answer.account


@pytest.mark.covers("RFC 5802 §3", "mail-server:F5", "decisions:B11")
async def test_an_application_password_is_proved(home: Home) -> None:
    house = home.house
    public_id, text = await home.new()
    shown = await home.mail(text)
    house.clock.advance(61)
    found = await prove(home, text)
    # Whoever proves it is let in as whoever shows it.
    assert found == shown
    assert isinstance(found, Principal)
    assert (found.public_id, found.identity_id, found.grant) == (home.person.public_id, home.box.id, GrantRole.OWNER)
    (listed,) = await house.app_passwords.page(home.person.id)
    assert (listed.public_id, listed.last_used_at) == (public_id, house.clock.now())
    assert await house.sign_in.stands(found)
    # Any of the living ones, and the address as people write it.
    _, second = await home.new("tablet")
    for one in (text, second):
        assert isinstance(await prove(home, one, " Alice@Agents.Example"), Principal)
    # Nothing else: not one that nobody has, not the person's own password, not another mailbox.
    other = await house.identity(await house.tenants.get(home.box.tenant_public_id), "bob", IdentityKind.PERSON)
    for password, address in (
        (text[:-1] + ("a" if text[-1] != "a" else "b"), ALICE),
        (RIGHT, ALICE),
        (text, other.primary.address),
        (text, "nobody@agents.example"),
        (text, "x"),
    ):
        assert await prove(home, password, address) == INVALID


@pytest.mark.covers("mail-server:F5", "RFC 5802 §3")
async def test_who_is_let_in_no_more(home: Home) -> None:
    house = home.house
    public_id, text = await home.new()
    found = await prove(home, text)
    assert isinstance(found, Principal)
    await house.people.set_enabled(home.person.public_id, False)
    assert await prove(home, text) == INVALID
    await house.people.set_enabled(home.person.public_id, True)
    assert isinstance(await prove(home, text), Principal)
    ended: list[int] = []
    again = await prove(home, text)
    assert isinstance(again, Principal)
    house.standing.watch(again, lambda: ended.append(1))
    await house.app_passwords.revoke(home.person, public_id, HOST)
    await house.standing.check()
    assert ended == [1]
    assert not await house.sign_in.stands(again)
    assert await prove(home, text) == INVALID
    # And nothing is kept to prove it by.
    async with house.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM app_passwords WHERE scram_sealed IS NOT NULL") == 0


@pytest.mark.covers("mail-server:F3", "security-privacy:A5")
async def test_guesses_count_as_any(home: Home) -> None:
    house = home.house
    _, text = await home.new()
    for at in range(10):
        assert await prove(home, "ap_wrong", remote=f"192.0.2.{10 + at}") == INVALID
    throttled = await prove(home, "ap_wrong", remote=OTHER)
    assert isinstance(throttled, SignInError)
    assert throttled.kind is SignInFailure.THROTTLED
    assert throttled.retry_after
    # Guesses count wherever they are made.
    shown = await home.mail(RIGHT, remote=OTHER)
    assert isinstance(shown, SignInError)
    assert shown.kind is SignInFailure.THROTTLED
    # The lock, which anybody can bring about, does not keep out whoever has the right one, who begins no count anew.
    assert isinstance(await prove(home, text, remote=OTHER), Principal)
    assert isinstance(await home.mail(RIGHT, remote=OTHER), SignInError)
    house.clock.advance(960)
    assert isinstance(await home.mail(RIGHT, remote=OTHER), Principal)


@pytest.mark.covers("mail-server:F3")
async def test_a_network_is_locked(home: Home) -> None:
    _, text = await home.new()
    for at in range(30):
        await prove(home, "ap_wrong", f"nobody{at % 5}{at}@agents.example")
    for password, address in ((text, ALICE), ("ap_wrong", ALICE), (text, "nobody@agents.example")):
        answer = await prove(home, password, address)
        assert isinstance(answer, SignInError)
        assert answer.kind is SignInFailure.THROTTLED
    assert isinstance(await prove(home, text, remote=OTHER), Principal)


async def test_a_mailbox_of_several_people(home: Home) -> None:
    house = home.house
    bob = await house.people.create(NewPerson("Bob", "bob@example.com", password="bobs own horse"))
    silent = await house.people.create(NewPerson("Cay", "cay@example.com"))  # who has no password
    for person, role in ((bob, GrantRole.READ), (silent, GrantRole.FULL)):
        await house.people.grant(home.box.tenant_id, home.box.public_id, person.public_id, role)
    for person, role in ((home.person, GrantRole.OWNER), (bob, GrantRole.READ), (silent, GrantRole.FULL)):
        _, text = await house.app_passwords.create(person, "phone", HOST)
        found = await prove(home, text)
        assert isinstance(found, Principal)
        assert (found.public_id, found.grant) == (person.public_id, role)
    # Each of them is guessed at, as by passwords that are shown.
    for _ in range(9):
        assert await prove(home, "ap_wrong") == INVALID
    assert await home.mail("wrong horses") == INVALID
    for password in (RIGHT, "bobs own horse"):
        answer = await home.mail(password)
        assert isinstance(answer, SignInError)
        assert answer.kind is SignInFailure.THROTTLED


async def test_what_was_made_before_signs_in_by_plain(home: Home) -> None:
    house = home.house
    before = AppPasswords(house.db, house.ids, house.clock, b"p" * 32)
    _, text = await before.create(home.person, "old phone", HOST)
    assert isinstance(await home.mail(text), Principal)
    assert await prove(home, text) == INVALID
    _, text = await home.new("new phone")
    assert isinstance(await prove(home, text), Principal)
    plain = SignIn(house.db, house.clock, house.passwords, house.verifier, b"h" * 32)
    assert await prove(home, text, by=plain) == INVALID


@pytest.mark.covers("decisions:D20", "decisions:B11")
async def test_what_is_stored_is_sealed(home: Home) -> None:
    house = home.house
    public_id, text = await home.new()
    other_id, _ = await home.new("tablet")
    async with house.db.acquire() as conn:
        sealed = await conn.fetchval("SELECT scram_sealed FROM app_passwords WHERE public_id = $1", public_id)
    keys = house.scram.opened(sealed, public_id)
    assert keys == derive_keys(text, house.scram.offer().salt, ITERATIONS)
    assert keys.stored not in sealed
    assert keys.server not in sealed
    # It opens at its place alone, and with its key.
    with pytest.raises(UnsealError):
        house.scram.opened(sealed, other_id)
    with pytest.raises(UnsealError):
        ScramKeys(Keyring(b"n" * 32), b"p" * 32).opened(sealed, public_id)
    assert ScramKeys(Keyring(b"n" * 32, b"m" * 32), b"p" * 32).opened(sealed, public_id) == keys
    # Where the master key is another, nobody is let in, and others are not kept out.
    async with house.db.acquire() as conn:
        await conn.execute("UPDATE app_passwords SET scram_sealed = $2 WHERE public_id = $1", other_id, sealed)
    assert isinstance(await prove(home, text), Principal)
    parts = (house.db, house.clock, house.passwords, house.verifier, b"h" * 32)
    strange = SignIn(*parts, scram=ScramKeys(Keyring(b"n" * 32), b"p" * 32))
    assert await prove(home, text, by=strange) == INVALID


@pytest.mark.covers("RFC 5802 §9", "mail-server:F3")
async def test_what_is_said_first_tells_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks learns the salt of everybody: nothing is looked up before there is a proof."""
    house = home.house

    def never(*_: object) -> None:
        raise AssertionError("looked up")

    monkeypatch.setattr(house.db, "acquire", never)
    first = [Exchange(MECHANISM, house.scram.offer(), None) for _ in range(3)]
    said = [
        exchange.respond(Client(name, "x", nonce="same").first())
        for exchange, name in zip(first, (ALICE, "nobody@agents.example", "x"), strict=True)
    ]
    rest = {step.data.partition(b",")[2] for step in said if isinstance(step, Challenge)}
    assert len(rest) == 1
    assert len({step.data for step in said if isinstance(step, Challenge)}) == 3  # the nonces
    # Each deployment has a salt of its own, and always the same.
    assert ScramKeys(Keyring(b"m" * 32), b"q" * 32).offer().salt != house.scram.offer().salt
    assert ScramKeys(Keyring(b"n" * 32), b"p" * 32).offer().salt == house.scram.offer().salt


@pytest.mark.covers("mail-server:F3")
async def test_as_much_is_done_for_nobody(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    await home.new()
    asked: list[str] = []
    inner = credentials.scram_of_mailbox
    verified = Proof.verified

    async def counted(*args: object) -> object:
        asked.append("database")
        work: Callable[..., Awaitable[object]] = inner
        return await work(*args)

    def counting(proof: Proof, keys: Keys) -> bytes | None:
        asked.append("keys")
        return verified(proof, keys)

    monkeypatch.setattr(credentials, "scram_of_mailbox", counted)
    monkeypatch.setattr(Proof, "verified", counting)
    assert await prove(home, "ap_wrong", "nobody@agents.example") == INVALID
    assert asked == ["database", "keys"]
    asked.clear()
    assert await prove(home, "ap_wrong") == INVALID
    assert asked == ["database", "keys", "keys"]


@pytest.mark.covers("mail-server:F3")
async def test_the_database_is_asked_as_often_for_nobody_as_for_several(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = home.house
    for name in ("Bob", "Cay", "Dan"):
        person = await house.people.create(NewPerson(name, f"{name.lower()}@example.com", "a long password"))
        await house.people.grant(home.box.tenant_id, home.box.public_id, person.public_id, GrantRole.READ)
    acquired = 0
    acquire = house.db.acquire

    def counting() -> object:
        nonlocal acquired
        acquired += 1
        return acquire()

    monkeypatch.setattr(house.db, "acquire", counting)
    found = []
    for address in ("nobody@agents.example", ALICE):
        acquired = 0
        assert await prove(home, "ap_wrong", address) == INVALID
        found.append(acquired)
    assert found[0] == found[1]


async def test_only_so_many_are_tried(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    house = home.house
    monkeypatch.setattr(service, "MAX_SCRAM_KEYS", 2)
    made = []
    for label in ("a", "b", "c"):
        house.clock.advance(61)
        made.append((await home.new(label))[1])
    assert await prove(home, made[0]) == INVALID
    # Showing it is using it: those used last come first.
    house.clock.advance(61)
    assert isinstance(await home.mail(made[0]), Principal)
    assert isinstance(await prove(home, made[0]), Principal)
    assert await prove(home, made[1]) == INVALID


@pytest.mark.covers("mail-server:F3")
async def test_without_the_database(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> object:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(credentials, "scram_of_mailbox", away)
    answer = await prove(home, "ap_x")
    assert isinstance(answer, SignInError)
    assert answer.kind is SignInFailure.UNAVAILABLE
