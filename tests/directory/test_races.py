"""Two at a time: whatever comes first, what is left is one of the states that the table has (decisions B10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from postroom.accounts import Tenant, tenant_scope
from postroom.base.errors import PostroomError
from postroom.db import Database
from postroom.directory import Addresses, Deletions, HostedAddress, Identity, NewIdentity
from postroom.directory.tombstones import address_hash
from postroom.mailbox.writing import close_mailbox

if TYPE_CHECKING:
    from tests.accounts.conftest import House

MakeDomain = Callable[..., Awaitable[str]]
HASH_KEY = b"h" * 32

IDENTITY = "SELECT FROM identities WHERE id = $1 FOR NO KEY UPDATE"
_WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"


async def outcome(work: Awaitable[Any]) -> Any:
    """The result, or the code of the error."""
    try:
        return await work
    except PostroomError as error:
        return error.code


@dataclass
class Hold:
    """A transaction of somebody else's."""

    conn: asyncpg.Connection[asyncpg.Record]

    async def waiting(self, number: int) -> None:
        """Until so many statements wait for locks."""
        async with asyncio.timeout(20):
            while await self.conn.fetchval(_WAITING) < number:  # noqa: ASYNC110 - the database has no event for it
                await asyncio.sleep(0.01)


HoldUp = Callable[..., AbstractAsyncContextManager[Hold]]


@pytest.fixture
def held_up(database_url: str, db: Database) -> HoldUp:
    """`async with held_up(statement, *values)`: a transaction holds what the statement locks until the block ends; then
    it commits.
    """

    @asynccontextmanager
    async def hold(statement: str, *values: object) -> AsyncIterator[Hold]:
        conn = await asyncpg.connect(database_url)
        try:
            async with conn.transaction():
                await conn.execute(statement, *values)
                yield Hold(conn)
        finally:
            await conn.close()

    return hold


@pytest.fixture
async def acme(house: House) -> Tenant:
    return await house.tenant("acme")


@pytest.fixture
async def bot(house: House, acme: Tenant) -> Identity:
    return await house.identity(acme, "bot")


@pytest.fixture
def deletions(house: House) -> Deletions:
    return Deletions(house.db, house.ids, house.clock, HASH_KEY, close_mailbox, house.changed.append)


async def all_of(house: House, bot: Identity) -> dict[str, tuple[str, str]]:
    now = await house.identities.get(tenant_scope(bot.tenant_id), bot.public_id)
    return {one.address: (one.role.value, one.status.value) for one in now.addresses}


@pytest.mark.covers("FR-ADR-2", "FR-ADR-4", "decisions:B10")
@pytest.mark.parametrize("promotion_first", [True, False])
async def test_promote_against_retire(
    house: House, held_up: HoldUp, addresses: Addresses, bot: Identity, make_domain: MakeDomain, promotion_first: bool
) -> None:
    scope, domain = tenant_scope(bot.tenant_id), await make_domain(bot.tenant_id, "acme.example")
    one = await addresses.add(scope, bot.public_id, "one", domain)
    works: list[Callable[[], Awaitable[Any]]] = [
        lambda: addresses.promote(scope, bot.public_id, one.public_id),
        lambda: addresses.retire(scope, bot.public_id, one.public_id, 0),
    ]
    tasks = []
    async with held_up(IDENTITY, bot.id) as hold:
        for number, work in enumerate(works if promotion_first else reversed(works), 1):
            tasks.append(asyncio.create_task(outcome(work())))
            await hold.waiting(number)
    first, second = await asyncio.gather(*tasks)
    platform = bot.primary.address
    if promotion_first:
        assert second == "address_is_primary"
        assert await all_of(house, bot) == {one.address: ("primary", "active"), platform: ("alias", "active")}
    else:
        assert isinstance(first, Identity)
        assert second == "domain_not_ready"
        assert await all_of(house, bot) == {platform: ("primary", "active"), one.address: ("alias", "retired")}


@pytest.mark.covers("FR-ADR-3", "FR-ADR-4")
async def test_a_promotion_taken_back_in_the_last_moment(
    house: House, held_up: HoldUp, addresses: Addresses, bot: Identity, make_domain: MakeDomain
) -> None:
    """The address is due, and somebody takes it back before the job does: it stays."""
    scope, domain = tenant_scope(bot.tenant_id), await make_domain(bot.tenant_id, "acme.example")
    one = await addresses.add(scope, bot.public_id, "one", domain)
    await addresses.retire(scope, bot.public_id, one.public_id, 1)
    house.clock.advance(86_400)
    await addresses.promote(scope, bot.public_id, one.public_id)
    assert await addresses.retire_due() == 0
    # The job found it due; until the job had the identity's row, somebody else had it.
    await addresses.promote(scope, bot.public_id, bot.primary.public_id)
    await addresses.retire(scope, bot.public_id, one.public_id, 1)
    house.clock.advance(86_400)
    async with held_up(IDENTITY, bot.id):
        assert await addresses.retire_due() == 0
    assert await addresses.retire_due() == 1


@pytest.mark.covers("FR-IDN-1", "FR-ADR-5")
async def test_the_same_name_twice(house: House, addresses: Addresses, acme: Tenant, make_domain: MakeDomain) -> None:
    async def create(**more: Any) -> Any:
        return await outcome(house.identities.create(acme.id, NewIdentity("ann", "Ann", **more)))

    found = await asyncio.gather(*(create() for _ in range(4)))
    assert found.count("username_taken") == 3
    known = NewIdentity("ben", "Ben", client_id="c1")
    made = await asyncio.gather(*(house.identities.create(acme.id, known) for _ in range(4)))
    assert len({identity.public_id for identity, _ in made}) == 1
    assert sorted(new for _, new in made) == [False, False, False, True]
    # And two identities that want one address.
    domain = await make_domain(acme.id, "acme.example")
    pair = [await house.identity(acme, name) for name in ("cat", "dan")]
    scope = tenant_scope(acme.id)
    both = await asyncio.gather(*(outcome(addresses.add(scope, one.public_id, "sales", domain)) for one in pair * 2))
    assert [one for one in both if one != "address_taken"] == [one for one in both if isinstance(one, HostedAddress)]
    assert both.count("address_taken") == 3


@pytest.mark.covers("edge:A5", "FR-ADR-5")
async def test_an_address_that_is_buried_while_it_is_asked_for(
    house: House, held_up: HoldUp, addresses: Addresses, bot: Identity, make_domain: MakeDomain
) -> None:
    """Whoever asked first whether it is free would not see the tombstone that came in between."""
    scope, domain = tenant_scope(bot.tenant_id), await make_domain(bot.tenant_id, "acme.example")
    address = "one@acme.example"
    async with held_up("SELECT pg_advisory_xact_lock(hashtextextended('address:' || $1, 0))", address) as hold:
        asked = asyncio.create_task(outcome(addresses.add(scope, bot.public_id, "one", domain)))
        await hold.waiting(1)
        await hold.conn.execute(
            "INSERT INTO address_tombstones (address_hash, tenant_id, identity_id, reason, created_at)"
            " VALUES ($1, $2, $3, 'deleted', $4)",
            *(address_hash(HASH_KEY, address), bot.tenant_id, bot.id + 1, house.clock.now()),
        )
    assert await asked == "address_taken"


@pytest.mark.covers("decisions:B10")
@pytest.mark.parametrize("status", ["removing", "failing"])
async def test_a_domain_that_changes_meanwhile(
    house: House, held_up: HoldUp, addresses: Addresses, bot: Identity, make_domain: MakeDomain, status: str
) -> None:
    scope, domain = tenant_scope(bot.tenant_id), await make_domain(bot.tenant_id, "acme.example")
    one = await addresses.add(scope, bot.public_id, "one", domain)
    change = "UPDATE domains SET status = $2 WHERE public_id = $1"
    async with held_up(change, domain, status) as hold:
        works = (
            addresses.add(scope, bot.public_id, "two", domain),
            addresses.promote(scope, bot.public_id, one.public_id),
            house.identities.create(bot.tenant_id, NewIdentity("ann", "Ann", domain=domain)),
        )
        tasks = [asyncio.create_task(outcome(work)) for work in works]
        await hold.waiting(3)
    added, *others = await asyncio.gather(*tasks)
    assert others == ["domain_not_ready"] * 2
    if status == "removing":
        assert added == "domain_not_ready"
    else:
        assert isinstance(added, HostedAddress)
        assert added.status == "pending"


@pytest.mark.covers("FR-IDN-4", "edge:A13")
async def test_deleted_by_several(
    house: House, held_up: HoldUp, addresses: Addresses, deletions: Deletions, bot: Identity, make_domain: MakeDomain
) -> None:
    scope, domain = tenant_scope(bot.tenant_id), await make_domain(bot.tenant_id, "acme.example")
    tasks = []
    async with held_up(IDENTITY, bot.id) as hold:
        works: list[Callable[[], Awaitable[Any]]] = [
            lambda: deletions.delete(scope, bot.public_id),
            lambda: addresses.add(scope, bot.public_id, "late", domain),
            lambda: deletions.delete(scope, bot.public_id),
        ]
        for number, work in enumerate(works, 1):
            tasks.append(asyncio.create_task(outcome(work())))
            await hold.waiting(number)
    first, added, second = await asyncio.gather(*tasks)
    assert added == "identity_not_found"
    assert first[0] == second[0]
    assert [first[1], second[1]] == [True, False]
    assert await all_of(house, bot) == {}
