"""Identities: made with mailbox and addresses, idempotent, in scope only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from postroom.accounts import (
    PLATFORM_SCOPE,
    GrantRole,
    MemberRole,
    NewPerson,
    Scope,
    identity_scope,
    tenant_scope,
)
from postroom.accounts.models import partner_scope
from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.directory import (
    Addresses,
    AddressRole,
    Announcement,
    Identities,
    IdentityChanges,
    IdentityKind,
    IdentityStatus,
    NewIdentity,
    NewMailbox,
    PauseReason,
    bury_identity,
    send_refusal,
)

if TYPE_CHECKING:
    from tests.accounts.conftest import House

MakeDomain = Callable[..., Awaitable[str]]


async def code_of(work: Awaitable[object]) -> str | None:
    try:
        await work
    except PostroomError as error:
        return error.code
    return None


def new(username: str, **changes: object) -> NewIdentity:
    # Wrong values are tests, too.
    return NewIdentity(**{"username": username, "display_name": username or "x", **changes})  # type: ignore[arg-type]


@pytest.mark.covers("FR-IDN-1", "edge:A1")
async def test_one_transaction_makes_everything(house: House, announced: list[Announcement]) -> None:
    acme = await house.tenant("acme")
    made, is_new = await house.identities.create(acme.id, new("Bookings.Desk", metadata={"a": "b"}))
    assert is_new
    assert (made.username, made.kind, made.status) == ("bookings.desk", IdentityKind.AGENT, IdentityStatus.ACTIVE)
    (address,) = made.addresses
    assert address.address == "bookings.desk.acme@agents.example"
    assert (address.role, address.is_platform) == (AddressRole.PRIMARY, True)
    assert made.primary == address
    assert made.metadata == {"a": "b"}
    assert [(one.fact, one.identity) for one in announced] == [("identity.created", made)]
    async with house.db.acquire() as conn:
        assert await conn.fetchval("SELECT identity_public_id FROM mailboxes WHERE id = $1", made.id) == made.public_id


@pytest.mark.covers("FR-IDN-1")
async def test_a_failure_beside_it_leaves_nothing(house: House) -> None:
    acme = await house.tenant("acme")

    async def fail(conn: Connection, mailbox: NewMailbox) -> None:
        raise RuntimeError("no mailbox")

    async def announce(conn: Connection, announcement: Announcement) -> None:
        pass

    broken = Identities(house.db, house.ids, house.clock, b"h", fail, announce, house.changed.append)
    with pytest.raises(RuntimeError):
        await broken.create(acme.id, new("bot"))
    assert await house.identities.page(PLATFORM_SCOPE, acme.id) == []
    assert await code_of(house.identities.create(acme.id, new("bot"))) is None


@pytest.mark.covers("FR-IDN-1")
async def test_a_client_id_makes_one_identity(house: House, announced: list[Announcement]) -> None:
    acme, other = await house.tenant("acme"), await house.tenant("other")
    wanted = new("bot", client_id="c-1")
    answers = await asyncio.gather(*(house.identities.create(acme.id, wanted) for _ in range(6)))
    assert len({identity.public_id for identity, _ in answers}) == 1
    assert [is_new for _, is_new in answers].count(True) == 1
    assert len(announced) == 1
    assert await code_of(house.identities.create(acme.id, new("bot2", client_id="c-1"))) == "client_id_conflict"
    assert (await house.identities.create(other.id, wanted))[1]


@pytest.mark.covers("edge:A4", "edge:A5")
async def test_what_is_taken(house: House, make_domain: MakeDomain) -> None:
    acme, other, default = (
        await house.tenant("acme"),
        await house.tenant("other"),
        await house.tenant("main", is_default=True),
    )
    domain = await make_domain(acme.id, "acme.example")
    waiting = await make_domain(acme.id, "later.example", "verifying")
    await house.people.create(NewPerson("Ana", contact_email="ana@agents.example"))
    await house.identities.create(acme.id, new("mail1"))
    for tenant, wanted, code in [
        (acme, new("MAIL1"), "username_taken"),
        (acme, new("maill"), "username_taken"),
        (acme, new("rnail1"), "username_taken"),
        (other, new("mail1"), None),
        (default, new("ana"), "address_taken"),
        (default, new("mail1.acme"), "address_taken"),
        (default, new("sales"), "address_reserved"),
        (acme, new("sales"), None),
        (acme, new("postmaster"), "address_reserved"),
        (acme, new("x", domain=domain), None),
        (other, new("x", domain=domain), "domain_not_found"),
        (acme, new("y", domain=waiting), "domain_not_ready"),
        (acme, new("z", display_name=""), "invalid_request"),
        (acme, new("z", display_name="a\r\nBcc: x"), "invalid_request"),
        (acme, new("z", owner_email="nobody"), "address_invalid"),
        (acme, new("z", metadata={str(n): "" for n in range(17)}), "invalid_request"),
        (acme, new("z", metadata={"a": "x" * 513}), "invalid_request"),
        (acme, new("z", purpose="a\0b"), "invalid_request"),
        (acme, new("z", signature_text="\ud800"), "invalid_request"),
    ]:
        assert await code_of(house.identities.create(tenant.id, wanted)) == code, wanted
    assert await code_of(house.identities.create(999_999, new("bot"))) == "tenant_not_found"
    x = await house.identities.by_address(PLATFORM_SCOPE, "X@acme.example")
    assert [(one.address, one.role) for one in x.addresses] == [
        ("x@acme.example", "primary"),
        ("x.acme@agents.example", "alias"),
    ]


@pytest.mark.covers("FR-IDN-1", "FR-KEY-3", "SEC-1")
async def test_what_is_out_of_scope_is_missing(house: House) -> None:
    acme, other = await house.tenant("acme"), await house.tenant("other")
    mine, sibling = await house.identity(acme, "mine"), await house.identity(acme, "sibling")
    theirs = await house.identity(other, "theirs")
    everything = {mine.public_id, sibling.public_id, theirs.public_id}
    reach: list[tuple[Scope, set[str]]] = [
        (PLATFORM_SCOPE, everything),
        (tenant_scope(acme.id), {mine.public_id, sibling.public_id}),
        (tenant_scope(other.id), {theirs.public_id}),
        (identity_scope(acme.id, mine.id), {mine.public_id}),
        (identity_scope(other.id, mine.id), set()),
    ]
    for scope, visible in reach:
        listed = set()
        for tenant in (acme, other):
            listed |= {one.public_id for one in await house.identities.page(scope, tenant.id)}
        assert listed == visible
        for identity in (mine, sibling, theirs):
            inside = identity.public_id in visible
            for work in (
                house.identities.get(scope, identity.public_id),
                house.identities.update(scope, identity.public_id, IdentityChanges(purpose="p")),
                house.identities.pause(scope, identity.public_id),
                house.identities.resume(scope, identity.public_id),
            ):
                assert await code_of(work) == (None if inside else "identity_not_found")
            found = await code_of(house.identities.by_address(scope, identity.primary.address))
            assert found == (None if inside else "address_not_found")
    with pytest.raises(ValueError, match="scope"):
        Scope(tenant_scope(1).level)


async def test_pages_and_filters(house: House) -> None:
    acme = await house.tenant("acme")
    scope = tenant_scope(acme.id)
    made = []
    for n in range(5):
        house.clock.advance(0 if n % 2 else 1)
        made.append(
            (await house.identities.create(acme.id, new(f"bot{n}x", purpose=f"p{n % 2}", client_id=f"c{n}")))[0]
        )
    made.reverse()
    seen: list[str] = []
    after = None
    while page := await house.identities.page(scope, acme.id, limit=2, after=after):
        seen += [one.public_id for one in page]
        after = (page[-1].created_at, page[-1].public_id)
    assert seen == [one.public_id for one in made]
    assert len(await house.identities.page(scope, acme.id, purpose="p0")) == 3
    assert [one.username for one in await house.identities.page(scope, acme.id, client_id="c3")] == ["bot3x"]
    await house.identities.pause(scope, made[0].public_id)
    paused = await house.identities.page(scope, acme.id, statuses=[IdentityStatus.PAUSED])
    assert [one.public_id for one in paused] == [made[0].public_id]


@pytest.mark.covers("edge:A7", "edge:A8", "FR-IDN-2", "FR-IDN-3")
async def test_who_may_send(house: House, announced: list[Announcement]) -> None:
    acme = await house.tenant("acme")
    scope = tenant_scope(acme.id)
    bot, _ = await house.identities.create(acme.id, new("bot"))
    refused = send_refusal(bot)
    assert refused is not None
    assert refused.code == "identity_owner_required"
    owned = await house.identities.update(
        scope, bot.public_id, IdentityChanges(owner_name="Ana", owner_email="ana@example.com", purpose="")
    )
    assert send_refusal(owned) is None
    paused = await house.identities.pause(scope, bot.public_id, PauseReason.ABUSE_THRESHOLD)
    refused = send_refusal(paused)
    assert refused is not None
    assert (refused.code, refused.details) == ("identity_paused", {"reason": "abuse_threshold"})
    own = identity_scope(acme.id, bot.id)
    assert await code_of(house.identities.resume(own, bot.public_id)) == "scope_denied"
    assert send_refusal(await house.identities.resume(scope, bot.public_id)) is None
    await house.identities.resume(scope, bot.public_id)
    facts = [(one.fact, one.changed) for one in announced]
    assert facts == [
        ("identity.created", ()),
        ("identity.updated", ("owner",)),
        ("identity.paused", ()),
        ("identity.resumed", ()),
    ]


@pytest.mark.covers("edge:A5", "edge:A13", "FR-ADR-5")
async def test_a_deleted_address_is_nobodys_for_ever(house: House) -> None:
    acme, default = await house.tenant("acme"), await house.tenant("main", is_default=True)
    bot = await house.identity(acme, "bot")
    async with house.db.transaction() as conn:
        await bury_identity(conn, b"h" * 32, bot, "deleted", house.clock.now())
        # What the erasure does in the end: the username is free again, the address never.
        await conn.execute("UPDATE identities SET status = 'deleted' WHERE id = $1", bot.id)
    assert await code_of(house.identities.create(acme.id, new("bot"))) == "address_taken"
    assert await code_of(house.identities.create(default.id, new("bot.acme"))) == "address_taken"
    async with house.db.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM addresses") == 0
        assert b"bot" not in b"".join(row[0] for row in await conn.fetch("SELECT address_hash FROM address_tombstones"))
    scope = tenant_scope(acme.id)
    assert (await house.identities.get(scope, bot.public_id)).status is IdentityStatus.DELETED
    assert await code_of(house.identities.pause(scope, bot.public_id)) == "identity_not_found"


@pytest.mark.covers("edge:A15")
async def test_the_system_identity_is_the_platforms_alone(house: House, announced: list[Announcement]) -> None:
    default = await house.tenant("main", is_default=True)
    system = await house.identities.create_system(default.id, "no-reply", "Postroom", "postmaster@agents.example")
    again = await house.identities.create_system(default.id, "no-reply", "Postroom", "postmaster@agents.example")
    assert again.public_id == system.public_id
    assert system.primary.address == "no-reply@agents.example"
    assert announced == []
    scope = tenant_scope(default.id)
    assert await code_of(house.identities.get(scope, system.public_id)) == "identity_not_found"
    own = identity_scope(default.id, system.id)
    assert await code_of(house.identities.get(own, system.public_id)) == "identity_not_found"
    assert await code_of(house.identities.by_address(scope, "no-reply@agents.example")) == "address_not_found"
    assert await house.identities.page(PLATFORM_SCOPE, default.id) == []
    assert (await house.identities.get(PLATFORM_SCOPE, system.public_id)).is_system


@pytest.mark.parametrize("text", ["", "\0", "idn_\0", "\ud800", "x" * 10_000, "idn_01J9Z3K8V4QW7X2M5N6P8R0T1Y"])
async def test_ids_that_name_nothing(house: House, addresses: Addresses, text: str) -> None:
    acme = await house.tenant("acme")
    bot = await house.identity(acme, "bot")
    scope = tenant_scope(acme.id)
    for work, code in [
        (house.tenants.get(text), "tenant_not_found"),
        (house.tenants.get_by_slug(text), "tenant_not_found"),
        (house.people.get(text), "person_not_found"),
        (house.people.get(text, tenant_id=acme.id), "person_not_found"),
        (house.people.set_enabled(text, False), "person_not_found"),
        (house.people.set_password(text, "correct horse"), "person_not_found"),
        (house.people.grant(acme.id, bot.public_id, text, GrantRole.READ), "person_not_found"),
        (house.people.put_member(acme.id, text, MemberRole.ADMIN), "person_not_found"),
        (house.keys.get(None, text), "key_not_found"),
        (house.identities.get(scope, text), "identity_not_found"),
        (house.identities.pause(scope, text), "identity_not_found"),
        (house.identities.by_address(scope, text), "address_not_found"),
        (addresses.add(scope, bot.public_id, "x", text), "domain_not_found"),
        (addresses.add(scope, text, "x", text), "identity_not_found"),
        (addresses.retire(scope, bot.public_id, text), "address_not_found"),
    ]:
        assert await code_of(work) == code


@pytest.mark.covers("edge:J17")
async def test_a_pause_for_abuse_at_a_partner_is_the_platforms_to_lift(house: House) -> None:
    acme = await house.tenant("acme")
    scope = tenant_scope(acme.id)
    bot, _ = await house.identities.create(acme.id, new("bot"))
    await house.identities.pause(scope, bot.public_id, PauseReason.ABUSE_THRESHOLD)
    async with house.db.acquire() as conn:
        partner = await conn.fetchval(
            "INSERT INTO partners (public_id, name, created_at) VALUES ($1, 'One', now()) RETURNING id",
            house.ids.new("ptn_"),
        )
        await conn.execute("INSERT INTO partner_tenants VALUES ($1, $2)", partner, acme.id)
    for of in (scope, partner_scope(partner)):
        assert await code_of(house.identities.resume(of, bot.public_id)) == "scope_denied"
    assert (await house.identities.resume(PLATFORM_SCOPE, bot.public_id)).status is IdentityStatus.ACTIVE
