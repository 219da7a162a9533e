"""Any sequence of what may happen to addresses, against the table of inbound §4 written down a second time."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.accounts import Tenant, tenant_scope
from postroom.base.errors import PostroomError
from postroom.directory import (
    Addresses,
    Announcement,
    Deletions,
    DictionaryGuard,
    Directory,
    Fact,
    Identity,
    NewIdentity,
    Recipient,
    rules,
)
from postroom.mailbox.writing import close_mailbox

if TYPE_CHECKING:
    from tests.accounts.conftest import House

DOMAIN = "agents.example"
HASH_KEY = b"h" * 32
LOCALS = ("one", "two")
NAMES = ("ann", "bob", "cat")
_NO_LIMIT = 1_000_000
_numbers = count()


@dataclass(slots=True)
class Held:
    """An address as the model has it."""

    owner: str
    role: str
    status: str
    platform: bool = False
    ends: int | None = None


@dataclass(slots=True)
class Model:
    """Who has what. `buried` are addresses of identities that were deleted."""

    held: dict[str, Held] = field(default_factory=dict)
    buried: set[str] = field(default_factory=set)
    domains: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def of(self, owner: str) -> dict[str, Held]:
        return {name: one for name, one in self.held.items() if one.owner == owner}

    def ready(self, address: str) -> bool:
        return self.held[address].platform or self.domains[address.rpartition("@")[2]] in ("healthy", "degraded")


class Driver:
    """Does a step, and says what the table makes of it. Days of the model are days of the clock."""

    def __init__(self, house: House, addresses: Addresses, announced: list[Announcement], data: st.DataObject) -> None:
        self.house, self.addresses, self.announced, self.data = house, addresses, announced, data
        self.model = Model()
        self.day = 0
        self.tenants: list[Tenant] = []
        self.identities: dict[str, Identity] = {}
        self.seen: dict[str, Identity] = {}
        self.domain_ids: dict[str, str] = {}
        self.deletions = Deletions(house.db, house.ids, house.clock, HASH_KEY, close_mailbox, house.changed.append)
        # One that remembers, told as processes are; each answer is compared with one that knows nothing.
        # What asks so often for who is not there would be a dictionary attack, which is another test's.
        self.cached = Directory(house.db, house.clock, DOMAIN, guard=DictionaryGuard(_NO_LIMIT), query_seconds=60)

    async def start(self, make_domain: Any) -> None:
        number = next(_numbers)
        for letter in "ab":
            tenant = await self.house.tenant(f"t{number}{letter}")
            self.tenants.append(tenant)
            for status in ("healthy", "pending"):
                name = f"{status}{number}{letter}.example"
                self.domain_ids[name] = await make_domain(tenant.id, name, status)
                self.model.domains[name] = status
        # Enough to begin with that most steps find something to do.
        for tenant, name in ((self.tenants[0], "ann"), (self.tenants[0], "bob"), (self.tenants[1], "ann")):
            await self.create_as(tenant, name, None)
        await self.check()
        for owner, local in zip(list(self.identities), LOCALS, strict=False):
            await self.add_to(owner, local, next(iter(self.domains_of(self.tenant_of(owner)))))

    def draw(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    async def expect(self, work: Awaitable[Any], code: str | None) -> Any:
        if code is None:
            return await work
        with pytest.raises(PostroomError) as refused:
            await work
        assert refused.value.code == code
        return None

    def owner(self) -> str | None:
        alive = [one for one in self.identities if one not in self.model.gone]
        return self.draw(*alive) if alive else None

    def tenant_of(self, owner: str) -> Tenant:
        return next(one for one in self.tenants if one.id == self.identities[owner].tenant_id)

    def domains_of(self, tenant: Tenant) -> list[str]:
        return [name for name in self.domain_ids if name.removesuffix(".example").endswith(tenant.slug[1:])]

    # -- steps

    async def create(self) -> None:
        tenant = self.draw(*self.tenants)
        await self.create_as(tenant, self.draw(*NAMES), self.draw(None, *self.domains_of(tenant)))

    async def create_as(self, tenant: Tenant, name: str, domain: str | None) -> None:
        own, platform = f"{name}@{domain}", f"{name}{tenant.address_suffix}@{DOMAIN}"
        taken = {*self.model.held, *self.model.buried}
        same = any(one.tenant_id == tenant.id and one.username == name for one in self.identities.values())
        code = None
        if domain is not None and self.model.domains[domain] not in ("healthy", "degraded"):
            code = "domain_not_ready"
        elif same:
            code = "username_taken"
        elif platform in taken or (domain is not None and own in taken):
            code = "address_taken"
        new = NewIdentity(name, name, domain=None if domain is None else self.domain_ids[domain])
        made = await self.expect(self.house.identities.create(tenant.id, new), code)
        if made is None:
            return
        identity = made[0]
        self.identities[identity.public_id] = identity
        self.model.held[platform] = Held(identity.public_id, "primary", "active", platform=True)
        if domain is not None:
            self.model.held[platform].role = "alias"
            self.model.held[own] = Held(identity.public_id, "primary", "active")

    async def add(self) -> None:
        owner = self.owner()
        if owner is None:
            return
        await self.add_to(owner, self.draw(*LOCALS, "ann"), self.draw(*self.domains_of(self.tenant_of(owner))))

    async def add_to(self, owner: str, local: str, domain: str) -> None:
        tenant = self.tenant_of(owner)
        address = f"{local}@{domain}"
        waiting = [
            name
            for name, one in self.model.of(owner).items()
            if one.status == "pending" and name.endswith(f"@{domain}")
        ]
        taken = (address in self.model.held and address not in waiting) or address in self.model.buried
        work = self.addresses.add(tenant_scope(tenant.id), owner, local, self.domain_ids[domain])
        if await self.expect(work, "address_taken" if taken else None) is None:
            return
        for name in waiting:
            del self.model.held[name]
        receives = self.model.domains[domain] in ("healthy", "degraded")
        self.model.held[address] = Held(owner, "alias", "active" if receives else "pending")

    def pick(self) -> tuple[str, str, str, Held] | None:
        owner = self.owner()
        if owner is None:
            return None
        # Now and then one of which the step cannot be.
        likely = [name for name, one in self.model.of(owner).items() if one.role == "alias" and not one.platform]
        name = self.draw(*(likely * 3), *self.model.of(owner))
        address_id = next(one.public_id for one in self.seen[owner].addresses if one.address == name)
        return owner, name, address_id, self.model.held[name]

    async def promote(self) -> None:
        picked = self.pick()
        if picked is None:
            return
        owner, name, address_id, one = picked
        days = self.draw(0, 1, 3)
        code = None
        if one.role == "primary":
            code = "address_is_primary"
        elif one.status not in ("active", "retiring") or not self.model.ready(name):
            code = "domain_not_ready"
        scope = tenant_scope(self.identities[owner].tenant_id)
        if await self.expect(self.addresses.promote(scope, owner, address_id, days), code) is None:
            return
        old = next(each for each in self.model.of(owner).values() if each.role == "primary")
        old.role = "alias"
        if not (old.platform or one.platform or one.status == "retiring"):
            old.status, old.ends = ("retired", None) if days == 0 else ("retiring", self.day + days)
        one.role, one.status, one.ends = "primary", "active", None

    async def retire(self) -> None:
        picked = self.pick()
        if picked is None:
            return
        owner, _, address_id, one = picked
        days = self.draw(0, 0, 1, 3)
        code = None
        if one.role == "primary":
            code = "address_is_primary"
        elif one.platform:
            code = "address_in_use"
        elif one.status not in ("active", "retiring"):
            code = "address_not_found"
        scope = tenant_scope(self.identities[owner].tenant_id)
        if await self.expect(self.addresses.retire(scope, owner, address_id, days), code) is not None:
            one.status, one.ends = ("retired", None) if days == 0 else ("retiring", self.day + days)

    async def remove(self) -> None:
        picked = self.pick()
        if picked is None:
            return
        owner, name, address_id, one = picked
        code = "address_is_primary" if one.role == "primary" else None if one.status == "pending" else "address_in_use"
        scope = tenant_scope(self.identities[owner].tenant_id)
        await self.expect(self.addresses.remove_pending(scope, owner, address_id), code)
        if code is None:
            del self.model.held[name]

    async def pass_a_day(self) -> None:
        self.day += 1
        self.house.clock.advance(timedelta(days=1).total_seconds())
        await self.addresses.retire_due()
        for one in self.model.held.values():
            if one.status == "retiring" and one.ends is not None and one.ends <= self.day:
                one.status, one.ends = "retired", None

    async def domain_changes(self) -> None:
        name, status = self.draw(*self.domain_ids), self.draw("pending", "healthy", "degraded", "failing")
        self.model.domains[name] = status
        async with self.house.db.acquire() as conn:
            await conn.execute("UPDATE domains SET status = $2 WHERE name = $1", name, status)
        await self.addresses.activate_ready()
        for address, one in self.model.held.items():
            if one.status == "pending" and self.model.ready(address):
                one.status = "active"

    async def delete(self) -> None:
        owner = self.owner()
        if owner is None:
            return
        scope = tenant_scope(self.identities[owner].tenant_id)
        first, made = await self.deletions.delete(scope, owner)
        again, anew = await self.deletions.delete(scope, owner)
        assert made
        assert (again, anew) == (first, False)
        for name in self.model.of(owner):
            del self.model.held[name]
            self.model.buried.add(name)
        self.model.gone.add(owner)

    # -- what must hold after each

    async def check(self) -> None:
        for what in self.house.changed:
            self.cached.invalidate(what)
        self.house.changed.clear()
        fresh = Directory(self.house.db, self.house.clock, DOMAIN, guard=DictionaryGuard(_NO_LIMIT), query_seconds=60)
        for owner, identity in self.identities.items():
            now = await self.house.identities.get(tenant_scope(identity.tenant_id), owner)
            self.seen[owner] = now
            shown = {one.address: (one.role.value, one.status.value) for one in now.addresses}
            assert shown == {name: (one.role, one.status) for name, one in self.model.of(owner).items()}
            primaries = [one for one in now.addresses if one.role == "primary"]
            assert len(primaries) == (0 if owner in self.model.gone else 1)
            assert all((one.retire_at is not None) == (one.status == "retiring") for one in now.addresses)
            assert all((one.retired_at is not None) == (one.status == "retired") for one in now.addresses)
        for address in (*self.model.held, *self.model.buried):
            one = self.model.held.get(address)
            answers = [await directory.resolve(address) for directory in (fresh, self.cached)]
            if one is not None and one.status in ("active", "retiring"):
                assert all(isinstance(found, Recipient) and found.identity_public_id == one.owner for found in answers)
            else:
                refusal = rules.RETIRED if one is not None and one.status == "retired" else rules.UNKNOWN
                assert answers == [refusal, refusal]


_STEPS = (
    *(Driver.create, Driver.add, Driver.add, Driver.add, Driver.promote, Driver.promote, Driver.promote),
    *(Driver.retire, Driver.retire, Driver.remove, Driver.pass_a_day, Driver.pass_a_day, Driver.domain_changes),
    Driver.delete,
)


@pytest.mark.covers("edge:A5", "edge:A11", "edge:A13", "edge:A14", "decisions:D22", "FR-IDN-4")
@pytest.mark.covers("FR-ADR-1", "FR-ADR-2", "FR-ADR-3", "FR-ADR-4", "FR-ADR-5")
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
async def test_any_sequence(
    house: House, addresses: Addresses, announced: list[Announcement], make_domain: Any, data: st.DataObject
) -> None:
    driver = Driver(house, addresses, announced, data)
    await driver.start(make_domain)
    await driver.check()
    announced.clear()
    retired = 0
    for step in data.draw(st.lists(st.sampled_from(_STEPS), min_size=8, max_size=18)):
        before = {name for name, one in driver.model.held.items() if one.status == "retired"}
        await step(driver)
        await driver.check()
        retired += len({name for name, one in driver.model.held.items() if one.status == "retired"} - before)
    # Each address is said to have retired once, however it came to that. The database has earlier sequences' too.
    ended = [one.address for one in announced if one.fact is Fact.ADDRESS_RETIRED and one.address is not None]
    told = [one.address for one in ended if one.domain in driver.model.domains]
    assert len(told) == len(set(told)) == retired
