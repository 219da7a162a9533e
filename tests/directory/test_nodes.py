"""Two processes: what one of them changes, the other's memory does not outlive (inbound §7.4; D22)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from postroom.accounts import tenant_scope
from postroom.db import Connection, Database
from postroom.db.notify import Listener, Notifier
from postroom.directory import Addresses, Announcement, Deletions, Directory, Recipient, rules
from postroom.mailbox.writing import close_mailbox

if TYPE_CHECKING:
    from tests.accounts.conftest import House

MakeDomain = Callable[..., Awaitable[str]]
CHANNEL = "postroom_directory"
HASH_KEY = b"h" * 32


@pytest.fixture
async def elsewhere(house: House, database_url: str) -> AsyncIterator[Directory]:
    """The directory of another process, which hears of changes as processes do. The clock stands still, so that nothing
    is forgotten for its age.
    """
    async with Database(database_url, min_size=0, max_size=2) as database:
        directory = Directory(database, house.clock, "agents.example", query_seconds=60)
        listener = Listener(database)
        listener.add(CHANNEL, lambda key, _: directory.invalidate(key))
        await listener.start()
        yield directory
        await listener.stop()


@pytest.fixture
async def hint(house: House) -> AsyncIterator[Callable[[str], None]]:
    notifier = Notifier(house.db)
    await notifier.start()
    yield partial(notifier.hint, CHANNEL)
    await notifier.stop()


async def becomes(directory: Directory, address: str, expected: Any) -> None:
    async with asyncio.timeout(20):
        while await directory.resolve(address) != expected:  # noqa: ASYNC110 - a hint has no receipt
            await asyncio.sleep(0.01)


async def until_own(directory: Directory, address: str, own: tuple[str, ...]) -> None:
    """The mailbox of the address comes to have these addresses."""
    async with asyncio.timeout(20):
        while True:
            found = await directory.resolve(address)
            assert isinstance(found, Recipient)
            if found.own_addresses == own:
                return
            await asyncio.sleep(0.01)


@pytest.mark.covers("decisions:D22", "edge:A6", "FR-ADR-3", "FR-ADR-5")
async def test_every_end_is_heard_of(
    house: House, elsewhere: Directory, hint: Callable[[str], None], make_domain: MakeDomain
) -> None:
    async def announce(conn: Connection, announcement: Announcement) -> None:
        pass

    addresses = Addresses(house.db, house.ids, house.clock, HASH_KEY, announce, hint)
    deletions = Deletions(house.db, house.ids, house.clock, HASH_KEY, close_mailbox, hint)
    acme = await house.tenant("acme")
    bot, scope = await house.identity(acme, "bot"), tenant_scope(acme.id)
    domain = await make_domain(acme.id, "acme.example")
    # What was missing a moment ago is looked up again, without anybody telling (D22).
    names = [f"{local}@acme.example" for local in ("one", "two", "three")]
    assert [await elsewhere.resolve(name) for name in names] == [rules.UNKNOWN] * 3
    made = [await addresses.add(scope, bot.public_id, name.partition("@")[0], domain) for name in names]
    own = tuple(sorted([bot.primary.address, *names]))
    for name in (bot.primary.address, *names):
        found = await elsewhere.resolve(name)
        assert isinstance(found, Recipient)
        assert found.own_addresses == own
    # Retired at once; by promoting another; when its time had come; and with its identity.
    await addresses.retire(scope, bot.public_id, made[0].public_id, 0)
    await becomes(elsewhere, names[0], rules.RETIRED)
    # Others of the identity no longer name it as theirs, once that is heard of as well.
    await until_own(elsewhere, names[1], tuple(one for one in own if one != names[0]))
    await addresses.promote(scope, bot.public_id, made[1].public_id)
    await addresses.promote(scope, bot.public_id, made[2].public_id, 0)
    await becomes(elsewhere, names[1], rules.RETIRED)
    assert isinstance(await elsewhere.resolve(names[2]), Recipient)
    await deletions.delete(scope, bot.public_id)
    for name in (bot.primary.address, names[2]):
        await becomes(elsewhere, name, rules.UNKNOWN)


@pytest.mark.covers("edge:A11", "FR-ADR-1")
async def test_what_waits_for_its_domain(
    house: House, elsewhere: Directory, hint: Callable[[str], None], make_domain: MakeDomain
) -> None:
    told: list[Announcement] = []

    async def announce(conn: Connection, announcement: Announcement) -> None:
        told.append(announcement)

    addresses = Addresses(house.db, house.ids, house.clock, HASH_KEY, announce, hint)
    acme = await house.tenant("acme")
    bot, scope = await house.identity(acme, "bot"), tenant_scope(acme.id)
    domain = await make_domain(acme.id, "acme.example", "verifying")
    await addresses.add(scope, bot.public_id, "one", domain)
    assert await elsewhere.resolve("one@acme.example") == rules.UNKNOWN
    assert await addresses.activate_ready() == 0
    async with house.db.acquire() as conn:
        await conn.execute("UPDATE domains SET status = 'degraded'")
    assert await addresses.activate_ready() == 1
    assert await addresses.activate_ready() == 0
    assert isinstance(await elsewhere.resolve("one@acme.example"), Recipient)
    assert [one.fact.value for one in told] == ["identity.address_added", "identity.address_activated"]
