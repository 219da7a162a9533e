"""What somebody reaches, and what an owner does to the rights of others: roles, races, other tenants' people."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.accounts import GrantRole, NewPerson, Person
from postroom.accounts.audit import Actor
from postroom.accounts.models import Holder, MailboxKey, PersonKey, SharedMailbox
from postroom.accounts.service.sharing import Decide, Sharing
from postroom.accounts.store import sharing as store
from postroom.base.errors import PostroomError
from postroom.directory import IdentityKind
from tests.accounts.conftest import House

OWNER, FULL, READ = GrantRole.OWNER, GrantRole.FULL, GrantRole.READ


class Street:
    """Two tenants; people with mailboxes."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.sharing = Sharing(house.db, house.ids, house.clock, house.hints.append)
        self.boxes: dict[str, Any] = {}
        self.people: dict[str, Person] = {}

    async def move_in(self, tenant: Any, name: str) -> None:
        self.house.clock.advance(1)
        self.boxes[name] = await self.house.identity(tenant, name, IdentityKind.PERSON)
        self.people[name] = await self.house.people.create(NewPerson(name))
        await self.grant(name, name, OWNER)

    async def grant(self, box: str, name: str, role: GrantRole) -> None:
        found = self.boxes[box]
        await self.house.people.grant(
            found.tenant_id, found.public_id, self.people[name].public_id, role, by_operator=True
        )

    async def ungrant(self, box: str, name: str) -> None:
        await self.house.people.ungrant(
            self.boxes[box].tenant_id, self.boxes[box].public_id, self.people[name].public_id
        )

    def key(self, box: str) -> MailboxKey:
        return MailboxKey(self.boxes[box].tenant_id, self.boxes[box].id)

    def address(self, box: str) -> str:
        return str(self.boxes[box].primary.address)

    async def change(self, by: str, box: str, identifier: str, decide: Decide | GrantRole | None) -> None:
        await self.sharing.change(
            self.key(box),
            self.boxes[box].public_id,
            identifier,
            decide if callable(decide) else lambda before: decide,
            owner=PersonKey(self.people[by].id),
            by=Actor(person=self.people[by].public_id),
        )

    async def holders(self, box: str) -> dict[str, GrantRole]:
        return {one.identifier: one.role for one in await self.sharing.holders(self.key(box))}


@pytest.fixture
async def street(house: House) -> Street:
    made = Street(house)
    acme, other = await house.tenant("acme"), await house.tenant("other")
    for name in ("alice", "bob", "carol"):
        await made.move_in(acme, name)
    await made.move_in(other, "mallory")
    return made


@pytest.mark.covers("decisions:A2")
async def test_an_owner_shares_and_takes_back(street: Street) -> None:
    alice, bob = street.address("alice"), street.address("bob")
    for role in (READ, FULL, OWNER, READ):
        await street.change("alice", "alice", bob.upper(), role)
        # With a second owner the address says no more who is meant.
        first = street.people["alice"].public_id if role is OWNER else alice
        assert await street.holders("alice") == {first: OWNER, bob: role}
        assert street.house.hints[-1] == street.people["bob"].public_id
    await street.change("alice", "alice", bob, None)
    assert await street.holders("alice") == {alice: OWNER}
    told = len(street.house.hints)
    await street.change("alice", "alice", bob, None)
    assert len(street.house.hints) == told, "nothing changed"
    async with street.house.db.acquire() as conn:
        rows = await conn.fetch("SELECT action, actor_person, details FROM audit_log ORDER BY id DESC LIMIT 2")
    assert [(row["action"], row["actor_person"]) for row in rows] == [
        ("grant.remove", street.people["alice"].public_id),
        ("grant.put", street.people["alice"].public_id),
    ]


@pytest.mark.covers("decisions:A2", "SEC-2")
async def test_who_is_not_of_the_tenant_is_nobody(street: Street) -> None:
    """Whether there is such an address elsewhere is not to be learnt."""
    answers = set()
    for identifier in (
        street.address("mallory"),
        street.people["mallory"].public_id,
        "nobody@acme.agents.example",
        "nobody@example.com",
        "nobody",
        "usr_nonsense",
        "x" * 1000 + "@example.com",
        "a\0b@example.com",
    ):
        with pytest.raises(PostroomError) as caught:
            await street.change("alice", "alice", identifier, READ)
        answers.add((caught.value.code, str(caught.value), str(caught.value.details)))
    assert len(answers) == 1
    assert {code for code, _, _ in answers} == {"person_not_found"}


@pytest.mark.covers("decisions:A2")
async def test_an_address_names_only_who_owns_it_alone(street: Street) -> None:
    await street.grant("carol", "bob", OWNER)
    carol = street.people["carol"].public_id
    with pytest.raises(PostroomError, match="person"):
        await street.change("alice", "alice", street.address("carol"), READ)
    await street.change("alice", "alice", carol, READ)
    assert await street.holders("alice") == {street.address("alice"): OWNER, carol: READ}
    # Who may only read a mailbox is not who it is.
    await street.ungrant("carol", "bob")
    await street.grant("carol", "bob", FULL)
    assert await street.holders("alice") == {street.address("alice"): OWNER, street.address("carol"): READ}


@pytest.mark.covers("decisions:A2")
@pytest.mark.parametrize("after", [FULL, READ, None])
async def test_the_last_owner_stays(street: Street, after: GrantRole | None) -> None:
    with pytest.raises(PostroomError) as caught:
        await street.change("alice", "alice", street.address("alice"), after)
    assert caught.value.code == "owner_required"
    await street.change("alice", "alice", street.address("bob"), OWNER)
    await street.change("alice", "alice", street.people["alice"].public_id, after)
    assert (await street.holders("alice"))[street.address("bob")] is OWNER


@pytest.mark.covers("decisions:A2")
async def test_an_owner_who_cannot_sign_in_is_no_other_owner(street: Street) -> None:
    await street.change("alice", "alice", street.address("bob"), OWNER)
    async with street.house.db.acquire() as conn:
        await conn.execute("UPDATE people SET enabled = false WHERE public_id = $1", street.people["bob"].public_id)
    with pytest.raises(PostroomError) as caught:
        await street.change("alice", "alice", street.people["alice"].public_id, None)
    assert caught.value.code == "owner_required"


@pytest.mark.covers("decisions:A2")
async def test_two_owners_who_remove_each_other(street: Street) -> None:
    for _ in range(8):
        await street.grant("alice", "alice", OWNER)
        await street.grant("alice", "bob", OWNER)
        names = [street.people[name].public_id for name in ("alice", "bob")]
        done = await asyncio.gather(
            street.change("alice", "alice", names[1], None),
            street.change("bob", "alice", names[0], None),
            return_exceptions=True,
        )
        codes = [one.code if isinstance(one, PostroomError) else one for one in done]
        assert sorted(map(str, codes)) == ["None", "scope_denied"]
        assert list((await street.holders("alice")).values()) == [OWNER]


@pytest.mark.parametrize("role", [FULL, READ, None])
async def test_who_does_not_own_a_mailbox_shares_it_with_nobody(street: Street, role: GrantRole | None) -> None:
    if role is not None:
        await street.grant("alice", "bob", role)
    with pytest.raises(PostroomError) as caught:
        await street.change("bob", "alice", street.address("carol"), READ)
    assert caught.value.code == "scope_denied"


async def test_what_the_decision_raises_leaves_all_as_it_was(street: Street) -> None:
    def refuse(before: GrantRole | None) -> GrantRole | None:
        raise LookupError(before)

    with pytest.raises(LookupError, match="None"):
        await street.change("alice", "alice", street.address("bob"), refuse)
    assert await street.holders("alice") == {street.address("alice"): OWNER}


# -- what somebody reaches


def _names(found: tuple[SharedMailbox, ...]) -> list[tuple[str, str]]:
    return [(str(one.address).partition(".")[0], one.role.value) for one in found]


@pytest.mark.covers("decisions:A2")
async def test_what_is_reached_is_remembered_until_it_changes(street: Street) -> None:
    told: list[tuple[SharedMailbox, ...]] = []
    bob = street.people["bob"].id
    end = street.sharing.watch(bob, told.append)
    await street.grant("alice", "bob", READ)
    await street.grant("mallory", "bob", FULL)
    first = await street.sharing.mailboxes(bob)
    assert _names(first) == [("alice", "read"), ("bob", "owner"), ("mallory", "full")]
    assert await street.sharing.mailboxes(bob) is first
    await street.sharing.check()
    assert told == []
    await street.grant("alice", "bob", FULL)
    await street.ungrant("mallory", "bob")
    assert await street.sharing.mailboxes(bob) is first
    await street.sharing.check()
    assert [_names(one) for one in told] == [[("alice", "full"), ("bob", "owner")]]
    assert _names(await street.sharing.mailboxes(bob)) == [("alice", "full"), ("bob", "owner")]
    end()
    await street.ungrant("alice", "bob")
    await street.sharing.check()
    assert len(told) == 1
    assert _names(await street.sharing.mailboxes(bob)) == [("bob", "owner")]
    assert not street.sharing._reaches


async def test_looks_that_cross_end_with_what_is(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that was begun earlier and comes later is not what stays."""
    bob, told = street.people["bob"].id, list[Any]()
    street.sharing.watch(bob, told.append)
    read, gates = store.reached, [asyncio.Event(), asyncio.Event()]
    order = iter(gates)

    async def slowly(*arguments: Any) -> Any:
        found = await read(*arguments)
        gate = next(order, None)
        if gate is not None:
            await gate.wait()
        return found

    monkeypatch.setattr(store, "reached", slowly)
    early = asyncio.create_task(street.sharing.mailboxes(bob))
    await asyncio.sleep(0.05)
    await street.grant("alice", "bob", READ)
    later = asyncio.create_task(street.sharing.check())
    await asyncio.sleep(0.05)
    gates[1].set()
    await later
    gates[0].set()
    assert _names(await early) == [("alice", "read"), ("bob", "owner")]
    assert _names(await street.sharing.mailboxes(bob)) == [("alice", "read"), ("bob", "owner")]


def test_a_holder_is_called_by_address_or_id() -> None:
    assert Holder(PersonKey(1), "usr_1", "a@b.c", READ).identifier == "a@b.c"
    assert Holder(PersonKey(1), "usr_1", None, READ).identifier == "usr_1"
    assert "a@b.c" not in repr(Holder(PersonKey(1), "usr_1", "a@b.c", READ))
