"""Signing in to a mailbox: who, with what, and how often (mail-server D1, F1, F3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from postroom.accounts import (
    GrantRole,
    Level,
    NewKey,
    NewPerson,
    Passwords,
    Permission,
    Principal,
    SignIn,
    SignInError,
    SignInFailure,
    tenant_scope,
)
from postroom.accounts.service.sign_in import client_network
from postroom.db import DatabaseUnavailable
from postroom.directory import Identity, IdentityKind

if TYPE_CHECKING:
    from tests.accounts.conftest import House

INVALID = SignInError(SignInFailure.INVALID)
ALICE, RIGHT, WRONG = "alice@agents.example", "correct horse", "wrong horses"


@pytest.fixture
async def alice(house: House) -> Identity:
    tenant = await house.tenant("main", is_default=True)
    identity = await house.identity(tenant, "alice", IdentityKind.PERSON)
    person = await house.people.create(NewPerson("Alice", password=RIGHT))
    await house.people.grant(tenant.id, identity.public_id, person.public_id, GrantRole.OWNER)
    return identity


@pytest.mark.covers("mail-server:D1", "mail-server:F1")
async def test_the_address_selects_the_mailbox(house: House, alice: Identity) -> None:
    principal = await house.sign_in.sign_in(" Alice@Agents.Example ", RIGHT, "192.0.2.1")
    assert isinstance(principal, Principal)
    assert principal.identity_id == alice.id
    assert principal.level is Level.IDENTITY
    assert principal.grant is GrantRole.OWNER
    assert principal.may(Permission.MESSAGES_READ, Permission.MESSAGES_SEND, Permission.MESSAGES_WRITE)
    assert not principal.may(Permission.KEYS_MANAGE)


@pytest.mark.covers("mail-server:D1")
async def test_aliases_open_the_same_mailbox_until_they_are_retired(house: House, alice: Identity) -> None:
    async with house.db.acquire() as conn:
        for status in ("active", "retiring", "pending", "retired"):
            await conn.execute(
                "INSERT INTO addresses (tenant_id, public_id, address, local_part, domain_id, identity_id, role,"
                " status, created_at, updated_at)"
                " SELECT $1, $2, $3 || '@agents.example', $3, id, $4, 'alias', $3, $5, $5 FROM domains",
                *(alice.tenant_id, house.ids.new("adr_"), status, alice.id, house.clock.now()),
            )
    for local, opens in [("active", True), ("retiring", True), ("pending", False), ("retired", False)]:
        found = await house.sign_in.sign_in(f"{local}@agents.example", RIGHT, "192.0.2.1")
        assert isinstance(found, Principal) is opens


async def test_every_failure_looks_the_same(house: House, alice: Identity) -> None:
    tenant = await house.tenants.get(alice.tenant_public_id)
    stranger = await house.people.create(NewPerson("Bob", password="another horse"))
    for address, password in [
        (ALICE, WRONG),
        (ALICE, "another horse"),
        (ALICE, ""),
        (ALICE, "x" * 100_000),
        (ALICE, "\0"),
        ("nobody@agents.example", RIGHT),
        ("alice", RIGHT),
        ("", RIGHT),
        ("a\0b@agents.example", RIGHT),
        ("alice@agents.example\r\n.", RIGHT),
        ("\ud800@agents.example", RIGHT),
    ]:
        assert await house.sign_in.sign_in(address, password, "2001:db8::1") == INVALID
        house.clock.advance(1000)
    await house.people.grant(tenant.id, alice.public_id, stranger.public_id, GrantRole.READ)
    reader = await house.sign_in.sign_in(ALICE, "another horse", "192.0.2.1")
    assert isinstance(reader, Principal)
    assert reader.public_id == stranger.public_id
    assert not reader.may(Permission.MESSAGES_WRITE)
    await house.people.set_enabled(stranger.public_id, False)
    assert await house.sign_in.sign_in(ALICE, "another horse", "192.0.2.1") == INVALID
    await house.people.set_enabled(stranger.public_id, True)
    async with house.db.acquire() as conn:
        await conn.execute("DELETE FROM mailbox_grants WHERE person_id = $1", stranger.id)
    assert await house.sign_in.sign_in(ALICE, "another horse", "192.0.2.1") == INVALID
    async with house.db.acquire() as conn:
        await conn.execute("UPDATE tenants SET status = 'erasing'")
    assert await house.sign_in.sign_in(ALICE, RIGHT, "192.0.2.1") == INVALID


@pytest.mark.covers("mail-server:F3")
async def test_ten_failures_lock_an_account_for_fifteen_minutes(house: House, alice: Identity) -> None:
    for attempt in range(10):
        assert await house.sign_in.sign_in(ALICE, WRONG, f"192.0.2.{attempt}") == INVALID
    locked = await house.sign_in.sign_in(ALICE, RIGHT, "198.51.100.1")
    assert isinstance(locked, SignInError)
    assert locked.kind is SignInFailure.THROTTLED
    assert locked.retry_after is not None
    assert 900 <= locked.retry_after <= 960
    # Another node sees the same lock.
    other = SignIn(house.db, house.clock, house.passwords, house.verifier, b"h" * 32)
    assert await other.sign_in(ALICE, RIGHT, "198.51.100.1") == locked
    house.clock.advance(899)
    still = await house.sign_in.sign_in(ALICE, RIGHT, "198.51.100.1")
    assert isinstance(still, SignInError)
    house.clock.advance(61)
    assert isinstance(await house.sign_in.sign_in(ALICE, RIGHT, "198.51.100.1"), Principal)


@pytest.mark.covers("mail-server:F3")
async def test_success_resets_the_account(house: House, alice: Identity) -> None:
    for _ in range(3):
        for attempt in range(9):
            assert await house.sign_in.sign_in(ALICE, WRONG, f"192.0.2.{attempt}") == INVALID
        assert isinstance(await house.sign_in.sign_in(ALICE, RIGHT, "198.51.100.1"), Principal)


@pytest.mark.covers("mail-server:F3")
async def test_a_network_is_locked_before_anything_is_hashed(
    house: House, alice: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt in range(30):
        answer = await house.sign_in.sign_in(f"user{attempt}@agents.example", WRONG, f"2001:db8::{attempt:x}")
        assert answer == INVALID

    async def never(*_: object) -> None:
        raise AssertionError("hashed")

    monkeypatch.setattr(Passwords, "verify", never)
    locked = await house.sign_in.sign_in(ALICE, RIGHT, "2001:db8::ffff:1")
    assert isinstance(locked, SignInError)
    assert locked.kind is SignInFailure.THROTTLED
    monkeypatch.undo()
    assert isinstance(await house.sign_in.sign_in(ALICE, RIGHT, "2001:db8:0:1::1"), Principal)


async def test_unknown_accounts_are_locked_like_known_ones(house: House, alice: Identity) -> None:
    for attempt in range(11):
        answer = await house.sign_in.sign_in("nobody@agents.example", WRONG, f"192.0.2.{attempt}")
        assert isinstance(answer, SignInError)
        assert (answer.kind is SignInFailure.THROTTLED) is (attempt == 10)


async def test_guesses_at_once_do_not_pass_the_limit(house: House, alice: Identity) -> None:
    answers = await asyncio.gather(
        *(house.sign_in.sign_in(ALICE, WRONG, f"192.0.2.{attempt}") for attempt in range(25))
    )
    assert answers.count(INVALID) == 10
    assert not house.sign_in.throttle._turns


async def test_an_unknown_account_costs_a_hash(house: House, alice: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[str | None] = []
    real = Passwords._matches

    def counted(pool: Passwords, phc: str, secret: bytes) -> bool:
        costs.append(phc)
        return real(pool, phc, secret)

    monkeypatch.setattr(Passwords, "_matches", counted)
    for address in (ALICE, "nobody@agents.example", "no address"):
        costs.clear()
        assert await house.sign_in.sign_in(address, WRONG, "192.0.2.1") == INVALID
        assert len(costs) == 1


@pytest.mark.covers("mail-server:D1")
async def test_an_agents_password_is_its_own_key(house: House, alice: Identity) -> None:
    tenant = await house.tenants.get(alice.tenant_public_id)
    bot, other = await house.identity(tenant, "bot"), await house.identity(tenant, "other")
    read, send = ("messages:read",), ("messages:send",)
    _, own = await house.keys.create(None, NewKey("k", Level.IDENTITY, read, tenant.id, bot.id))
    _, theirs = await house.keys.create(None, NewKey("k", Level.IDENTITY, read, tenant.id, other.id))
    _, weak = await house.keys.create(None, NewKey("k", Level.IDENTITY, send, tenant.id, bot.id))
    _, broad = await house.keys.create(None, NewKey("k", Level.TENANT, read, tenant.id))
    _, persons = await house.keys.create(None, NewKey("k", Level.IDENTITY, read, tenant.id, alice.id))
    principal = await house.sign_in.sign_in("bot@agents.example", own, "192.0.2.1")
    assert isinstance(principal, Principal)
    assert principal.identity_id == bot.id
    for address, password in [
        ("bot@agents.example", theirs),
        ("bot@agents.example", weak),
        ("bot@agents.example", broad),
        (ALICE, persons),
        (ALICE, own),
        ("nobody@agents.example", own),
    ]:
        assert await house.sign_in.sign_in(address, password, "192.0.2.1") == INVALID


async def test_stale_hashes_are_renewed(house: House, alice: Identity) -> None:
    stronger = Passwords(threads=1, memory_kib=128, time_cost=1)
    try:
        sign_in = SignIn(house.db, house.clock, stronger, house.verifier, b"h" * 32)
        assert isinstance(await sign_in.sign_in(ALICE, RIGHT, "192.0.2.1"), Principal)
    finally:
        stronger.close()
    async with house.db.acquire() as conn:
        assert "m=128" in await conn.fetchval("SELECT password_hash FROM people")


async def test_our_own_faults_are_no_failures(house: House, alice: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(house.db, "acquire", away)
    answer = await house.sign_in.sign_in(ALICE, RIGHT, "192.0.2.1")
    assert isinstance(answer, SignInError)
    assert answer.kind is SignInFailure.UNAVAILABLE


async def test_suspended_tenants_can_be_read(house: House, alice: Identity) -> None:
    await house.identities.suspend_tenant(alice.tenant_id)
    assert (await house.identities.get(tenant_scope(alice.tenant_id), alice.public_id)).status == "paused"
    assert isinstance(await house.sign_in.sign_in(ALICE, RIGHT, "192.0.2.1"), Principal)


@pytest.mark.parametrize(
    ("remote", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
    ],
)
def test_networks(remote: str, network: str) -> None:
    assert client_network(remote) == network
