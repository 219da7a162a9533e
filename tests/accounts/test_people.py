"""People, members and grants, and who may touch whom (A2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.accounts import GrantRole, MemberRole, NewPerson
from postroom.base.errors import PostroomError
from postroom.directory import IdentityKind

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.accounts.conftest import House


async def code_of(work: Awaitable[object]) -> str | None:
    try:
        await work
    except PostroomError as error:
        return error.code
    return None


async def test_people_are_made_read_and_paged(house: House) -> None:
    made = []
    for name in ("Ana", "Ben", "Cleo"):
        house.clock.advance(1)
        made.append(await house.people.create(NewPerson(name, contact_email=f"{name}@Example.com")))
    assert made[0].contact_email == "ana@example.com"
    assert not made[0].has_password
    assert await house.people.get(made[1].public_id) == made[1]
    first = await house.people.page(limit=2)
    rest = await house.people.page(after=(first[-1].created_at, first[-1].public_id))
    assert [*first, *rest] == made[::-1]
    for new, code in [
        (NewPerson("Ana", contact_email="ANA@example.com"), "address_taken"),
        (NewPerson(""), "invalid_request"),
        (NewPerson("a\nb"), "invalid_request"),
        (NewPerson("Ana", contact_email="nowhere"), "address_invalid"),
        (NewPerson("Ana", password="short"), "invalid_request"),
    ]:
        assert await code_of(house.people.create(new)) == code


@pytest.mark.covers("FR-ADR-7")
async def test_names_are_of_any_script(house: House) -> None:
    for name in ("Алиса", "山田 太郎", "שרה", "José 🦊"):
        assert (await house.people.create(NewPerson(name))).display_name == name


@pytest.mark.covers("decisions:A2", "FR-KEY-3")
async def test_a_tenant_touches_only_people_who_are_wholly_its_own(house: House) -> None:
    acme, other = await house.tenant("acme"), await house.tenant("other")
    box = await house.identity(acme, "box", IdentityKind.PERSON)
    foreign_box = await house.identity(other, "box", IdentityKind.PERSON)
    people = house.people
    mine = await people.create(NewPerson("Mine"))
    theirs = await people.create(NewPerson("Theirs"))
    both = await people.create(NewPerson("Both"))
    operator = await people.create(NewPerson("Operator", is_operator=True))
    await people.grant(acme.id, box.public_id, mine.public_id, GrantRole.OWNER)
    await people.put_member(other.id, theirs.public_id, MemberRole.ADMIN)
    await people.put_member(acme.id, both.public_id, MemberRole.MEMBER)
    await people.grant(other.id, foreign_box.public_id, both.public_id, GrantRole.READ, by_operator=True)
    # Reading: whoever has to do with the tenant.
    assert await code_of(people.get(mine.public_id, tenant_id=acme.id)) is None
    assert await code_of(people.get(both.public_id, tenant_id=acme.id)) is None
    assert await code_of(people.get(theirs.public_id, tenant_id=acme.id)) == "person_not_found"
    assert {person.public_id for person in await people.page(tenant_id=acme.id)} == {mine.public_id, both.public_id}
    # Resetting: whoever has to do with no other.
    for person, code in [(mine, None), (both, "person_not_found"), (theirs, "person_not_found")]:
        assert await code_of(people.set_password(person.public_id, "correct horse", tenant_id=acme.id)) == code
        assert await code_of(people.set_enabled(person.public_id, False, tenant_id=acme.id)) == code
    assert (await people.get(both.public_id)).enabled
    assert await code_of(people.set_password(both.public_id, "correct horse")) is None
    # Drawing in: nobody else's people, and no operator.
    for person in (theirs, operator):
        assert (
            await code_of(people.grant(acme.id, box.public_id, person.public_id, GrantRole.READ)) == "person_not_found"
        )
        assert await code_of(people.put_member(acme.id, person.public_id, MemberRole.ADMIN)) == "person_not_found"
    # Nor mailboxes of another tenant.
    assert (
        await code_of(people.grant(acme.id, foreign_box.public_id, mine.public_id, GrantRole.READ))
        == "identity_not_found"
    )
    assert [grant.person_public_id for grant in await people.grants(acme.id)] == [mine.public_id]


async def test_a_tenant_keeps_one_owner(house: House) -> None:
    acme = await house.tenant("acme")
    owner, admin = await house.people.create(NewPerson("Owner")), await house.people.create(NewPerson("Admin"))
    await house.people.put_member(acme.id, owner.public_id, MemberRole.OWNER)
    await house.people.put_member(acme.id, admin.public_id, MemberRole.MEMBER)
    await house.people.put_member(acme.id, admin.public_id, MemberRole.ADMIN)
    assert [(one.person.public_id, one.role) for one in await house.people.members(acme.id)] == [
        (owner.public_id, "owner"),
        (admin.public_id, "admin"),
    ]
    for work in (
        house.people.put_member(acme.id, admin.public_id, MemberRole.OWNER),
        house.people.put_member(acme.id, owner.public_id, MemberRole.MEMBER),
    ):
        assert await code_of(work) == "owner_required"


async def test_grants_change(house: House) -> None:
    acme = await house.tenant("acme")
    box = await house.identity(acme, "box", IdentityKind.PERSON)
    person = await house.people.create(NewPerson("P"))
    for role in GrantRole:
        await house.people.grant(acme.id, box.public_id, person.public_id, role)
        (grant,) = await house.people.grants(acme.id, mailbox_id=box.id, person_id=person.id)
        assert (grant.role, grant.identity_public_id) == (role, box.public_id)
    assert [grant.role for grant in await house.people.grants(acme.id)] == [role]
