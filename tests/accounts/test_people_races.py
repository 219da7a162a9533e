"""What is done to a person while somebody else draws them in or takes them out (A2; W9, W36)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

import pytest

from postroom.accounts import GrantRole, MemberRole, NewPerson, Person
from postroom.accounts.audit import HOST
from postroom.accounts.models import MailboxKey
from postroom.accounts.service.sharing import Sharing
from postroom.accounts.store import people as store
from postroom.base.errors import PostroomError
from postroom.directory import IdentityKind

if TYPE_CHECKING:
    from tests.accounts.conftest import House

MOMENT = 0.3
NEW = "another horse battery staple"


def apart(work: Awaitable[object]) -> asyncio.Task[object]:
    """As another node does it."""

    async def do() -> object:
        return await work

    return asyncio.get_running_loop().create_task(do(), context=Context())


class Meanwhile:
    """Begins `work` just before a statement of the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, statement: str, work: Callable[[], Awaitable[object]]) -> None:
        self.task: asyncio.Task[object] | None = None
        real = getattr(store, statement)

        async def after(*arguments: Any) -> Any:
            if self.task is None:
                self.task = apart(work())
                await asyncio.wait({self.task}, timeout=MOMENT)
            return await real(*arguments)

        monkeypatch.setattr(store, statement, after)

    async def done(self) -> None:
        assert self.task is not None
        await self.task


async def count(house: House, table: str, tenant: int, person: Person) -> int:
    async with house.db.acquire() as conn:
        found: int = await conn.fetchval(
            f"SELECT count(*) FROM {table} WHERE tenant_id = $1 AND person_id = $2", tenant, person.id
        )
    return found


@pytest.mark.covers("edge:W9", "decisions:A2")
@pytest.mark.parametrize("elsewhere", [True, False])
async def test_a_mailbox_is_given_to_whoever_is_being_removed(
    house: House, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    acme, other = await house.tenant("acme"), await house.tenant("other")
    box = await house.identity(acme, "box", IdentityKind.PERSON)
    person = await house.people.create(NewPerson("Bo"))
    await house.people.put_member(acme.id, person.public_id, MemberRole.MEMBER)
    if elsewhere:
        await house.people.put_member(other.id, person.public_id, MemberRole.MEMBER, by_operator=True)
    removal = Meanwhile(monkeypatch, "put_grant", lambda: house.people.remove_member(acme.id, person.public_id))
    await house.people.grant(acme.id, box.public_id, person.public_id, GrantRole.OWNER)
    await removal.done()
    assert await count(house, "mailbox_grants", acme.id, person) == 0


@pytest.mark.covers("edge:W9")
async def test_a_mailbox_is_shared_with_whoever_is_being_removed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    acme, other = await house.tenant("acme"), await house.tenant("other")
    box = await house.identity(acme, "box", IdentityKind.PERSON)
    owner, person = await house.people.create(NewPerson("Al")), await house.people.create(NewPerson("Bo"))
    await house.people.grant(acme.id, box.public_id, owner.public_id, GrantRole.OWNER)
    await house.people.put_member(acme.id, person.public_id, MemberRole.MEMBER)
    await house.people.put_member(other.id, person.public_id, MemberRole.MEMBER, by_operator=True)
    removal = Meanwhile(monkeypatch, "put_grant", lambda: house.people.remove_member(acme.id, person.public_id))
    await Sharing(house.db, house.ids, house.clock).change(
        *(MailboxKey(acme.id, box.id), box.public_id, person.public_id, lambda before: GrantRole.FULL),
        owner=owner.id,
        by=HOST,
    )
    await removal.done()
    assert await count(house, "mailbox_grants", acme.id, person) == 0


async def test_a_member_is_made_of_whoever_is_going_away(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    acme, other = await house.tenant("acme"), await house.tenant("other")
    person = await house.people.create(NewPerson("Bo"))
    await house.people.put_member(other.id, person.public_id, MemberRole.MEMBER)
    removal = Meanwhile(monkeypatch, "put_member", lambda: house.people.remove_member(other.id, person.public_id))
    await house.people.put_member(acme.id, person.public_id, MemberRole.MEMBER, by_operator=True)
    await removal.done()
    assert await count(house, "members", acme.id, person) == 1


@pytest.mark.covers("decisions:A2")
@pytest.mark.parametrize("what", ["password", "disabled"])
async def test_nobody_resets_whoever_is_coming_into_another_tenant(house: House, what: str) -> None:
    acme, other = await house.tenant("acme"), await house.tenant("other")
    person = await house.people.create(NewPerson("Bo"))
    await house.people.put_member(acme.id, person.public_id, MemberRole.MEMBER)
    async with house.db.transaction() as conn:  # as accepting an invitation does it
        await store.lock(conn, person.id)
        await house.people.join(conn, other.id, person, MemberRole.ADMIN, HOST)
        people = house.people
        reset = apart(
            people.set_password(person.public_id, NEW, tenant_id=acme.id)
            if what == "password"
            else people.set_enabled(person.public_id, False, tenant_id=acme.id)
        )
        await asyncio.wait({reset}, timeout=MOMENT)
    with pytest.raises(PostroomError) as refused:
        await reset
    assert refused.value.code == "person_not_found"
