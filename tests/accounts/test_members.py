"""Members and invitations: the codes, and what several processes at once come to."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts import MemberRole, NewPerson, Tenant
from postroom.accounts.invitations import Code, hint, kid_of, mint, verify
from postroom.accounts.service.members import Members
from postroom.accounts.signing_keys import SigningKeys
from postroom.base.errors import PostroomError
from tests.accounts.conftest import HASH_KEY, MASTER, House

INVITATION = "inv_01ARZ3NDEKTSV4RRFFQ69G5FAV"


def secret(number: int) -> bytes:
    return bytes([number]) * 32


@pytest.mark.covers("FR-CON-4")
@given(st.integers(1, 999_999_999), st.integers(0, 255), st.integers(0, 255))
def test_a_code_is_of_one_key_and_one_issue(issue: int, ours: int, theirs: int) -> None:
    code = mint("k", secret(ours), Code(INVITATION, issue))
    assert kid_of(code) == "k"
    assert (verify(code, {"k": secret(theirs)}) == Code(INVITATION, issue)) == (ours == theirs)
    assert verify(code, {"j": secret(ours)}) is None


@given(st.integers(0, 70), st.sampled_from("abcXYZ019-_"))
def test_a_changed_code_opens_nothing(at: int, char: str) -> None:
    code = mint("k", secret(1), Code(INVITATION, 1))
    at %= len(code)
    changed = code[:at] + char + code[at + 1 :]
    assert (verify(changed, {"k": secret(1)}) is None) == (changed != code)


@given(st.text(max_size=200))
def test_anything_is_no_code(text: str) -> None:
    assert verify(text, {"k": secret(1)}) is None


def test_a_code_names_an_invitation() -> None:
    with pytest.raises(ValueError, match="invitation"):
        mint("k", secret(1), Code("ten_01ARZ3NDEKTSV4RRFFQ69G5FAV", 1))


def test_a_hint_is_no_address() -> None:
    assert hint("anna.k@example.com") == "a***@example.com"


# -- two processes


def of_members(house: House) -> Members:
    return Members(house.db, house.ids, house.clock, house.people, SigningKeys(house.db, MASTER, house.clock), HASH_KEY)


async def at_once(house: House, url: str, *things: Sequence[Any]) -> list[str]:
    """What each process says that does one of these, all begun together."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "tests.accounts.member_child",
                url,
                house.clock.now().isoformat(),
                *map(str, thing),
            ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        for thing in things
    ]
    said = []
    async with asyncio.timeout(120):
        for child in children:
            assert child.stdout is not None
            while (line := await child.stdout.readline()) != b"ready\n":
                assert line, "it ended before it was ready"
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"\n")
        for child in children:
            out, _ = await child.communicate()
            said.append(out.decode().splitlines()[-1])
    return said


async def roles(house: House, tenant: Tenant) -> list[str]:
    return sorted(one.role.value for one in await house.people.members(tenant.id))


@pytest.mark.covers("edge:W10", "FR-CON-2")
async def test_whoever_becomes_the_owner_is_not_removed(house: House, database_url: str) -> None:
    """The one or the other: never a tenant whose owner was taken out, or somebody half in."""
    tenant = await house.tenant("acme")
    await house.people.create(NewPerson("Ada", "ada@example.com"))
    for number in range(3):
        person = await house.people.create(NewPerson("Bo", f"bo{number}@example.com"))
        await house.people.put_member(tenant.id, person.public_id, MemberRole.ADMIN)
        said = await at_once(
            house, database_url, ("remove", tenant.id, person.public_id), ("own", tenant.id, person.public_id)
        )
        assert said in (["owner_required", "done"], ["done", "person_not_found"]), said
        if said[1] == "done":
            assert await roles(house, tenant) == ["owner"]
            break
        assert await roles(house, tenant) == []


@pytest.mark.covers("edge:W10")
async def test_two_who_remove_the_same_member_or_the_owner(house: House, database_url: str) -> None:
    tenant = await house.tenant("acme")
    owner, member = [await house.people.create(NewPerson(name)) for name in ("Ada", "Bo")]
    await house.people.put_member(tenant.id, owner.public_id, MemberRole.OWNER)
    await house.people.put_member(tenant.id, member.public_id, MemberRole.MEMBER)
    said = await at_once(
        house,
        database_url,
        ("remove", tenant.id, member.public_id),
        ("remove", tenant.id, member.public_id),
        ("remove", tenant.id, owner.public_id),
    )
    assert sorted(said[:2]) == ["done", "member_not_found"]
    assert said[2] == "owner_required"
    assert await roles(house, tenant) == ["owner"]


@pytest.mark.covers("FR-CON-2", "FR-CON-4")
async def test_a_code_counts_once_and_a_tenant_has_one_owner(house: House, database_url: str) -> None:
    tenant, members = await house.tenant("acme"), of_members(house)
    first = await members.code(await members.invite(tenant.id, "a@example.net", MemberRole.ADMIN))
    second = await members.code(await members.invite(tenant.id, "b@example.net", MemberRole.ADMIN))
    said = await at_once(
        house, database_url, ("join", tenant.id, first), ("join", tenant.id, first), ("join", tenant.id, second)
    )
    assert len([one for one in said[:2] if one in ("owner", "admin")]) == 1, said
    assert {*said[:2]} & {"invitation_not_found", "address_taken"}, said
    assert await roles(house, tenant) == ["admin", "owner"]


@pytest.mark.covers("edge:W44")
async def test_the_last_of_the_day_is_one(house: House, database_url: str) -> None:
    """Nine mails to somebody were sent; of two more one is, and there is one invitation whoever was first."""
    tenant, members = await house.tenant("acme"), of_members(house)
    for _ in range(9):
        await members.invite(tenant.id, "a@example.net", MemberRole.MEMBER)
    said = await at_once(house, database_url, *[("invite", tenant.id, "a@example.net")] * 2)
    assert Counter(said) == {"done": 1, "daily_cap_reached": 1}
    assert len((await members.roll(tenant.id)).invitations) == 1


async def test_the_command_line_invites(house: House) -> None:
    tenant, members = await house.tenant("acme"), of_members(house)
    for wrong in ("", "bo", "@x.example", '"b o"@x.example', "bo@", "bo@[192.0.2.1]", "b\0o@x.example"):
        with pytest.raises(PostroomError) as refused:
            await members.invite(tenant.id, wrong, MemberRole.MEMBER)
        assert refused.value.code == "invalid_request"
    made = await members.invite(tenant.id, "Bo@Bücher.example", MemberRole.MEMBER)
    assert made.email == "bo@xn--bcher-kva.example"
    with pytest.raises(PostroomError) as refused:
        await members.invite(tenant.id, "bo@x.example", MemberRole.OWNER)
    assert refused.value.code == "invalid_request"
