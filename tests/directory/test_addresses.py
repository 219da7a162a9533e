"""Addresses over time (inbound §4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from postroom.accounts import tenant_scope
from postroom.base.errors import PostroomError
from postroom.directory import Addresses, AddressStatus, Announcement, Identity

if TYPE_CHECKING:
    from tests.accounts.conftest import House

MakeDomain = Callable[..., Awaitable[str]]


async def code_of(work: Awaitable[object]) -> str | None:
    try:
        await work
    except PostroomError as error:
        return error.code
    return None


def states(identity: Identity) -> dict[str, tuple[str, str]]:
    return {one.address: (one.role.value, one.status.value) for one in identity.addresses}


@pytest.mark.covers("edge:A11", "FR-ADR-1")
async def test_adding(house: House, addresses: Addresses, make_domain: MakeDomain) -> None:
    acme, other = await house.tenant("acme"), await house.tenant("other")
    bot, rival = await house.identity(acme, "bot"), await house.identity(acme, "rival")
    ready, waiting = await make_domain(acme.id, "acme.example"), await make_domain(acme.id, "wait.example", "pending")
    going = await make_domain(acme.id, "going.example", "removing")
    scope = tenant_scope(acme.id)
    added = await addresses.add(scope, bot.public_id, "Support", ready)
    assert (added.address, added.status) == ("support@acme.example", AddressStatus.ACTIVE)
    pending = await addresses.add(scope, bot.public_id, "one", waiting)
    assert pending.status is AddressStatus.PENDING
    await addresses.add(scope, bot.public_id, "two", waiting)
    now = await house.identities.get(scope, bot.public_id)
    assert "one@wait.example" not in states(now)
    assert states(now)["two@wait.example"] == ("alias", "pending")
    for work, code in [
        (addresses.add(scope, rival.public_id, "support", ready), "address_taken"),
        (addresses.add(scope, bot.public_id, "abuse", ready), "address_reserved"),
        (addresses.add(scope, bot.public_id, "x" * 41, ready), "address_invalid"),
        (addresses.add(scope, bot.public_id, "x", going), "domain_not_ready"),
        (addresses.add(scope, bot.public_id, "x", "dom_x"), "domain_not_found"),
        (addresses.add(tenant_scope(other.id), bot.public_id, "x", ready), "identity_not_found"),
        (addresses.remove_pending(scope, bot.public_id, added.public_id), "address_in_use"),
        (addresses.remove_pending(scope, bot.public_id, pending.public_id), "address_not_found"),
    ]:
        assert await code_of(work) == code
    two = now.addresses[-1]
    await addresses.remove_pending(scope, bot.public_id, two.public_id)
    for n in range(18):
        await addresses.add(scope, bot.public_id, f"n{n}", ready)
    assert await code_of(addresses.add(scope, bot.public_id, "more", ready)) == "address_limit_reached"


@pytest.mark.covers("edge:A14", "FR-ADR-2", "FR-ADR-3", "FR-ADR-4")
async def test_promotion_retirement_and_the_way_back(
    house: House, addresses: Addresses, announced: list[Announcement], make_domain: MakeDomain
) -> None:
    acme = await house.tenant("acme")
    bot = await house.identity(acme, "bot")
    scope, domain = tenant_scope(acme.id), await make_domain(acme.id, "acme.example")
    first = await addresses.add(scope, bot.public_id, "first", domain)
    second = await addresses.add(scope, bot.public_id, "second", domain)
    platform = bot.primary
    announced.clear()
    # The platform address stays an active alias, and can neither be retired nor run out.
    promoted = await addresses.promote(scope, bot.public_id, first.public_id, 0)
    assert states(promoted) == {
        "first@acme.example": ("primary", "active"),
        "bot.acme@agents.example": ("alias", "active"),
        "second@acme.example": ("alias", "active"),
    }
    assert await code_of(addresses.retire(scope, bot.public_id, platform.public_id)) == "address_in_use"
    assert await code_of(addresses.retire(scope, bot.public_id, first.public_id)) == "address_is_primary"
    assert await code_of(addresses.promote(scope, bot.public_id, first.public_id)) == "address_is_primary"
    # Another address retires, and comes back before its time.
    moved = await addresses.promote(scope, bot.public_id, second.public_id, 90)
    assert states(moved)["first@acme.example"] == ("alias", "retiring")
    back = await addresses.promote(scope, bot.public_id, first.public_id)
    assert states(back)["first@acme.example"] == ("primary", "active")
    assert states(back)["second@acme.example"] == ("alias", "active")
    # Promoting the platform address rolls everything back.
    rolled = await addresses.promote(scope, bot.public_id, platform.public_id)
    assert rolled.primary.address == platform.address
    assert states(rolled)["first@acme.example"] == ("alias", "active")
    # Grace, then the end.
    await addresses.retire(scope, bot.public_id, first.public_id, 1)
    house.clock.advance(86_399)
    assert await addresses.retire_due() == 0
    house.clock.advance(1)
    house.changed.clear()
    assert await addresses.retire_due() == 1
    assert house.changed == [bot.public_id]
    assert await addresses.retire_due() == 0
    gone = await addresses.retire(scope, bot.public_id, second.public_id, 0)
    assert states(gone)["first@acme.example"] == states(gone)["second@acme.example"] == ("alias", "retired")
    for address in (first, second):
        assert await code_of(addresses.promote(scope, bot.public_id, address.public_id)) == "domain_not_ready"
        assert await code_of(addresses.retire(scope, bot.public_id, address.public_id)) == "address_not_found"
    assert [one.fact.value.removeprefix("identity.address_") for one in announced] == [
        *["promoted"] * 4,
        *["retired"] * 2,
    ]
    assert await code_of(addresses.add(scope, bot.public_id, "first", domain)) == "address_taken"


async def test_days_and_domains_are_checked(house: House, addresses: Addresses, make_domain: MakeDomain) -> None:
    acme = await house.tenant("acme")
    bot = await house.identity(acme, "bot")
    scope, domain = tenant_scope(acme.id), await make_domain(acme.id, "acme.example")
    alias = await addresses.add(scope, bot.public_id, "alias", domain)
    for days in (-1, 366):
        assert await code_of(addresses.retire(scope, bot.public_id, alias.public_id, days)) == "invalid_request"
        assert await code_of(addresses.promote(scope, bot.public_id, alias.public_id, days)) == "invalid_request"
    async with house.db.acquire() as conn:
        await conn.execute("UPDATE domains SET status = 'failing' WHERE public_id = $1", domain)
    assert await code_of(addresses.promote(scope, bot.public_id, alias.public_id)) == "domain_not_ready"
