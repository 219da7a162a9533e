"""Aliases: who may have which, where mail to them goes, and that an address is never two things."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.accounts import Mode, NewPerson, Tenant
from postroom.accounts.models import PLATFORM_SCOPE
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.db import Connection, Database
from postroom.directory import (
    Addresses,
    Aliases,
    Directory,
    Forward,
    Identity,
    NewIdentity,
    Recipient,
    Refusal,
    bury_identity,
    resolver,
    routes,
    rules,
)
from postroom.directory.models import Alias
from postroom.directory.rules import Step
from tests.logs import Log

if TYPE_CHECKING:
    from tests.accounts.conftest import House

MakeDomain = Callable[..., Awaitable[str]]
DOMAIN = "agents.example"
HASH_KEY = b"h" * 32
BOT = "bot.acme@agents.example"


@pytest.fixture
def directory(db: Database, clock: ManualClock) -> Directory:
    return Directory(db, clock, DOMAIN, security_contact=BOT, query_seconds=60)


@pytest.fixture
def aliases(house: House, directory: Directory) -> Aliases:
    def changed(what: str) -> None:
        house.changed.append(what)
        directory.invalidate(what)

    return Aliases(house.db, house.ids, house.clock, HASH_KEY, DOMAIN, changed)


@pytest.fixture
async def acme(house: House) -> Tenant:
    return await house.tenant("acme")


@pytest.fixture
async def bot(house: House, acme: Tenant) -> Identity:
    return await house.identity(acme, "bot")


async def execute(house: House, statement: str, *values: object) -> None:
    async with house.db.acquire() as conn:
        await conn.execute(statement, *values)


async def refused(work: Awaitable[object]) -> str:
    with pytest.raises(PostroomError) as caught:
        await work
    return caught.value.code


# -- where mail goes


@pytest.mark.covers("mail-server:A6")
async def test_an_alias_of_a_mailbox(
    house: House, aliases: Aliases, directory: Directory, bot: Identity, make_domain: MakeDomain
) -> None:
    await make_domain(bot.tenant_id, "acme.example")
    assert await directory.resolve("sales@acme.example") == rules.UNKNOWN
    made = await aliases.create(bot.tenant_id, "Sales@ACME.example", "Bot.Acme@Agents.example")
    assert (made.address, made.domain, made.target) == ("sales@acme.example", "acme.example", BOT)
    assert made.public_id.startswith("als_")
    for _ in range(2):  # asked, and remembered
        found = await directory.resolve("Sales+T07@acme.example")
        assert isinstance(found, Recipient)
        assert (found.mailbox_id, found.base, found.via) == (bot.id, BOT, ("sales@acme.example",))
        assert (found.address, found.detail) == ("sales+t07@acme.example", "T07")
    assert await directory.owner_of("sales@acme.example") is not None
    await aliases.delete(bot.tenant_id, made.public_id)
    assert house.changed[-2:] == ["sales@acme.example", "sales@acme.example"]
    assert await directory.resolve("sales@acme.example") == rules.UNKNOWN


@pytest.mark.covers("mail-server:A6", "edge:A2")
async def test_a_bare_target_is_of_the_same_domain_and_its_detail_stands_in_for_none(
    aliases: Aliases, directory: Directory, bot: Identity
) -> None:
    made = await aliases.create(bot.tenant_id, "hello.acme@agents.example", "Bot.acme+web")
    assert made.target == "bot.acme+web@agents.example"
    for asked, detail in (("hello.acme", "web"), ("hello.acme+x", "x")):
        found = await directory.resolve(f"{asked}@agents.example")
        assert isinstance(found, Recipient)
        assert (found.base, found.detail) == (BOT, detail)


@pytest.mark.covers("mail-server:A6", "decisions:C4")
async def test_an_alias_that_leads_elsewhere(
    house: House, aliases: Aliases, directory: Directory, bot: Identity, make_domain: MakeDomain
) -> None:
    await make_domain(bot.tenant_id, "acme.example")
    await aliases.create(bot.tenant_id, "out@acme.example", "Ann+x@Bücher.example")
    await aliases.create(bot.tenant_id, "first.acme@agents.example", "out+y@acme.example")
    for asked, written in (("out+z@acme.example", "out@acme.example"), ("first.acme@agents.example",) * 2):
        for _ in range(2):
            assert await directory.resolve(asked) == Forward(
                bot.tenant_id,
                bot.tenant_public_id,
                Mode.LIVE,
                "out@acme.example",
                written,
                "ann+x@xn--bcher-kva.example",
            )
    assert await directory.owner_of("out@acme.example") is None
    # It counts at once that what is in between went, and what is at the end came.
    (alias,) = [one for one in await aliases.page(bot.tenant_id) if one.address == "out@acme.example"]
    await aliases.delete(bot.tenant_id, alias.public_id)
    assert await directory.resolve("first.acme@agents.example") == rules.UNKNOWN
    await aliases.create(bot.tenant_id, "out@acme.example", BOT)
    assert isinstance(await directory.resolve("first.acme@agents.example"), Recipient)


@pytest.mark.covers("mail-server:A6")
async def test_five_aliases_may_lead_to_one_another_and_no_more(
    house: House,
    aliases: Aliases,
    directory: Directory,
    bot: Identity,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tenant = bot.tenant_id
    target = BOT
    for number in range(5):
        made = await aliases.create(tenant, f"a{number}.acme@agents.example", target)
        target = made.address
    found = await directory.resolve(target)
    assert isinstance(found, Recipient)
    assert found.via == tuple(f"a{number}.acme@agents.example" for number in (4, 3, 2, 1, 0))
    assert await refused(aliases.create(tenant, "a5.acme@agents.example", target)) == "invalid_request"
    assert await refused(aliases.create(tenant, "me.acme@agents.example", "me.acme+x")) == "invalid_request"
    # Put in at the other end it is found out when mail comes.
    await aliases.create(tenant, "z.acme@agents.example", BOT)
    await execute(house, "UPDATE aliases SET target = 'z.acme@agents.example' WHERE address = 'a0.acme@agents.example'")
    directory.invalidate("*")
    log = Log()
    monkeypatch.setattr(resolver, "_log", log)
    assert await directory.resolve(target) is rules.BROKEN_CHAIN
    assert isinstance(await directory.resolve("a3.acme@agents.example"), Recipient)
    await execute(house, "UPDATE aliases SET target = $1 WHERE address = 'z.acme@agents.example'", target)
    directory.invalidate("*")
    for address in ("z.acme@agents.example", target):
        assert await directory.resolve(address) is rules.BROKEN_CHAIN
    assert (rules.BROKEN_CHAIN.code, rules.BROKEN_CHAIN.enhanced) == (451, "4.3.0")
    # Of the same aliases an operator hears once in an hour, whichever of them is written to, and however often.
    assert len(log.told) == 1
    clock.advance(3599)
    assert await directory.resolve("a3.acme@agents.example") is rules.BROKEN_CHAIN
    assert len(log.told) == 1
    clock.advance(1)
    assert await directory.resolve("a3.acme@agents.example") is rules.BROKEN_CHAIN
    assert await directory.owner_of("a2.acme@agents.example") is None
    assert len(log.told) == 2
    await execute(house, "UPDATE aliases SET target = address WHERE address = 'a0.acme@agents.example'")
    directory.invalidate("*")
    assert await directory.resolve("a0.acme@agents.example") is rules.BROKEN_CHAIN
    assert len(log.told) == 3, "another circle"
    assert all("alias chain without end" in str(line) and "@" not in str(line) for line in log.told)
    # Nobody can make a circle knowingly.
    await execute(house, "DELETE FROM aliases")
    await aliases.create(tenant, "one.acme@agents.example", "two.acme")
    await aliases.create(tenant, "two.acme@agents.example", "three.acme+x")
    assert await refused(aliases.create(tenant, "three.acme@agents.example", "one.acme+y")) == "invalid_request"


@pytest.mark.covers("mail-server:A6", "edge:A6", "FR-TEN-3")
async def test_what_is_at_the_end_answers(
    house: House, aliases: Aliases, directory: Directory, bot: Identity, make_domain: MakeDomain
) -> None:
    globex = await house.tenant("globex")
    await make_domain(globex.id, "globex.example")
    await aliases.create(globex.id, "in@globex.example", BOT)

    async def answers(expected: Refusal | None) -> None:
        directory.invalidate("*")
        found = await directory.resolve("in@globex.example")
        assert (found if isinstance(found, Refusal) else None) == expected

    await answers(None)
    undo = {
        "UPDATE addresses SET status = 'retired'": (rules.RETIRED, "UPDATE addresses SET status = 'active'"),
        "UPDATE addresses SET status = 'pending'": (rules.UNKNOWN, "UPDATE addresses SET status = 'active'"),
        "UPDATE mailboxes SET quota_bytes = 1, used_bytes = 1": (rules.FULL, "UPDATE mailboxes SET quota_bytes = NULL"),
        "UPDATE domains SET enabled = name <> 'agents.example'": (
            rules.DISABLED_DOMAIN,
            "UPDATE domains SET enabled = true",
        ),
        "UPDATE domains SET enabled = name <> 'globex.example'": (
            rules.DISABLED_DOMAIN,
            "UPDATE domains SET enabled = true",
        ),
        "UPDATE tenants SET status = 'suspended', suspended_at = '2029-12-31' WHERE slug = 'globex'": (
            rules.SUSPENDED,
            "UPDATE tenants SET status = 'active'",
        ),
        "UPDATE tenants SET status = 'suspended', suspended_at = '2029-12-01' WHERE slug = 'acme'": (
            rules.SUSPENDED_FOR_LONG,
            "UPDATE tenants SET status = 'active'",
        ),
        "UPDATE tenants SET status = 'erasing' WHERE slug = 'globex'": (
            rules.UNKNOWN,
            "UPDATE tenants SET status = 'active'",
        ),
        "UPDATE aliases SET target = 'nobody.acme@agents.example'": (
            rules.UNKNOWN,
            f"UPDATE aliases SET target = '{BOT}'",
        ),
    }
    for change, (refusal, back) in undo.items():
        await execute(house, change)
        await answers(refusal)
        await execute(house, back)
        await answers(None)


@pytest.mark.covers("edge:A4", "mail-server:A6")
async def test_an_alias_may_lead_to_a_role_of_the_platform(
    house: House, aliases: Aliases, directory: Directory, bot: Identity, make_domain: MakeDomain, clock: ManualClock
) -> None:
    await make_domain(bot.tenant_id, "acme.example")
    await aliases.create(bot.tenant_id, "hostmaster@acme.example", "hostmaster@agents.example")
    found = await directory.resolve("hostmaster@acme.example")
    assert isinstance(found, Recipient)
    assert (found.mailbox_id, found.role, found.via) == (bot.id, True, ("hostmaster@acme.example",))
    # A contact that leads back to a role is nobody, and no circle.
    circular = Directory(house.db, clock, DOMAIN, security_contact="hostmaster@acme.example")
    assert await circular.resolve("hostmaster@agents.example") == rules.UNKNOWN
    await execute(house, "UPDATE tenants SET status = 'erasing'")
    other = Directory(house.db, clock, DOMAIN, security_contact=BOT, query_seconds=60)
    assert await other.resolve("hostmaster@acme.example") == rules.UNKNOWN


@pytest.mark.covers("decisions:D22")
async def test_what_an_answer_depends_on_makes_it_forgotten(
    house: House, aliases: Aliases, directory: Directory, bot: Identity, make_domain: MakeDomain
) -> None:
    globex = await house.tenant("globex")
    await make_domain(globex.id, "globex.example")
    await aliases.create(bot.tenant_id, "two.acme@agents.example", BOT)
    await aliases.create(globex.id, "one@globex.example", "two.acme@agents.example")
    for what in (
        *("one@globex.example", "two.acme@agents.example", BOT, "@globex.example", "@agents.example"),
        *(bot.public_id, bot.tenant_public_id, globex.public_id, "*"),
    ):
        assert isinstance(await directory.resolve("one@globex.example"), Recipient)
        await execute(house, "UPDATE aliases SET target = 'x@elsewhere.example' WHERE tenant_id = $1", globex.id)
        assert isinstance(await directory.resolve("one@globex.example"), Recipient)
        directory.invalidate(what)
        assert isinstance(await directory.resolve("one@globex.example"), Forward), what
        await execute(house, "UPDATE aliases SET target = 'two.acme@agents.example' WHERE tenant_id = $1", globex.id)
        directory.invalidate("*")


@pytest.mark.covers("decisions:D22")
async def test_an_address_that_somebody_has_costs_no_second_query(
    directory: Directory, bot: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = routes.steps

    async def steps(conn: asyncpg.Connection[asyncpg.Record], base: str) -> tuple[Step, ...]:
        asked.append(base)
        return await real(conn, base)

    monkeypatch.setattr(routes, "steps", steps)
    assert isinstance(await directory.resolve(BOT), Recipient)
    assert await directory.resolve("x@elsewhere.example") == rules.FOREIGN
    assert asked == []
    assert await directory.resolve("nobody.acme@agents.example") == rules.UNKNOWN
    assert asked == ["nobody.acme@agents.example"]


@pytest.mark.covers("edge:A16")
async def test_an_alias_to_nobody_is_no_guess(aliases: Aliases, directory: Directory, bot: Identity) -> None:
    await aliases.create(bot.tenant_id, "lost.acme@agents.example", "nobody.acme")
    for _ in range(30):
        assert await directory.resolve("lost.acme@agents.example") == rules.UNKNOWN
    assert await directory.resolve("nobody.acme@agents.example") == rules.UNKNOWN
    assert directory.guard.refused == 0
    for number in range(30):
        await directory.resolve(f"guess{number}.acme@agents.example")
    assert directory.guard.refused > 0


# -- who may have which


@pytest.mark.covers("mail-server:A6", "edge:A4", "edge:A3", "FR-ADR-6")
@pytest.mark.parametrize(
    ("address", "target", "code"),
    [
        ("sales@elsewhere.example", "x@example.com", "domain_not_found"),
        ("sales@globex.example", "x@example.com", "domain_not_found"),
        ("sales@new.example", "x@example.com", "domain_not_ready"),
        ("sales@off.example", "x@example.com", "domain_not_ready"),
        ("sales@agents.example", "x@example.com", "address_invalid"),
        ("sales.globex@agents.example", "x@example.com", "address_invalid"),
        (".acme@agents.example", "x@example.com", "address_invalid"),
        ("sales", "x@example.com", "address_invalid"),
        ("sales+x@acme.example", "x@example.com", "address_invalid"),
        ("SRS0=aa=bb=c=d@acme.example", "x@example.com", "address_invalid"),
        ('"a b"@acme.example', "x@example.com", "address_invalid"),
        ("postmaster@acme.example", "x@example.com", "address_reserved"),
        ("mailer-daemon@acme.example", "x@example.com", "address_reserved"),
        ("pm-x@acme.example", "x@example.com", "address_reserved"),
        ("böb@acme.example", "x@example.com", "address_unsupported"),
        ("x" * 41 + "@acme.example", "x@example.com", "address_invalid"),
        ("x" * 24 + ".acme@agents.example", "", "address_invalid"),
        ("sales@acme.example", "", "address_invalid"),
        ("sales@acme.example", "x@", "address_invalid"),
        ("sales@acme.example", "@example.com", "address_invalid"),
        ("sales@acme.example", "+x@example.com", "address_invalid"),
        ("sales@acme.example", "a b@example.com", "address_invalid"),
        ("sales@acme.example", "x@[192.0.2.1]", "address_invalid"),
        ("sales@acme.example", "x@example.com> SIZE=1", "address_invalid"),
        ("sales@acme.example", "x@" + "a" * 63 + "." + "b" * 63 + "." + "c" * 63 + "." + "d" * 61, "address_invalid"),
        ("sales@acme.example", "böb@example.com", "address_unsupported"),
        ("sales@acme.example", "sales", "invalid_request"),
        (BOT, "x@example.com", "address_taken"),
        ("gone@acme.example", "x@example.com", "address_taken"),
        ("buried.acme@agents.example", "x@example.com", "address_taken"),
        ("human@acme.example", "x@example.com", "address_taken"),
    ],
)
async def test_what_nobody_may_have(
    house: House,
    aliases: Aliases,
    addresses: Addresses,
    bot: Identity,
    acme: Tenant,
    make_domain: MakeDomain,
    address: str,
    target: str,
    code: str,
) -> None:
    await house.tenant("globex")
    own = await make_domain(acme.id, "acme.example")
    await make_domain(acme.id, "new.example", "pending")
    await make_domain(acme.id, "off.example")
    await execute(house, "UPDATE domains SET enabled = false WHERE name = 'off.example'")
    added = await addresses.add(PLATFORM_SCOPE, bot.public_id, "gone", own)
    await addresses.retire(PLATFORM_SCOPE, bot.public_id, added.public_id, 0)
    buried = await house.identity(acme, "buried")
    async with house.db.transaction() as conn:
        await bury_identity(conn, HASH_KEY, buried, "erased", house.clock.now())
    await house.people.create(NewPerson("Human", "human@acme.example"))
    assert await refused(aliases.create(acme.id, address, target)) == code
    assert await aliases.page(acme.id) == []


@pytest.mark.covers("mail-server:A6", "FR-TEN-3")
async def test_tenants_that_make_none(house: House, aliases: Aliases, acme: Tenant) -> None:
    await house.identities.suspend_tenant(acme.id)
    assert await refused(aliases.create(acme.id, "a.acme@agents.example", "x@example.com")) == "tenant_suspended"
    await execute(house, "UPDATE tenants SET status = 'erasing'")
    assert await refused(aliases.create(acme.id, "a.acme@agents.example", "x@example.com")) == "tenant_not_found"
    assert await refused(aliases.create(10**6, "a.acme@agents.example", "x@example.com")) == "tenant_not_found"


@pytest.mark.covers("mail-server:A6")
async def test_an_address_is_never_two_things(
    house: House, aliases: Aliases, addresses: Addresses, bot: Identity, acme: Tenant, make_domain: MakeDomain
) -> None:
    own = await make_domain(acme.id, "acme.example")
    await aliases.create(acme.id, "sales@acme.example", "bot.acme@agents.example")
    await aliases.create(acme.id, "new.acme@agents.example", "bot.acme")
    assert await refused(aliases.create(acme.id, "sales@acme.example", "x@example.com")) == "address_taken"
    assert await refused(addresses.add(PLATFORM_SCOPE, bot.public_id, "sales", own)) == "address_taken"
    assert await refused(house.identity(acme, "new")) == "address_taken"
    named = NewIdentity(username="sales", display_name="Sales", domain=own)
    assert await refused(house.identities.create(acme.id, named)) == "address_taken"


@pytest.mark.covers("mail-server:A6")
@pytest.mark.parametrize("first", ["alias", "address"])
async def test_of_two_at_once_one_has_the_address(
    house: House, bot: Identity, acme: Tenant, make_domain: MakeDomain, first: str
) -> None:
    """Neither sees what the other has not committed, so it is the database that keeps them apart."""
    await make_domain(acme.id, "acme.example")
    make = {
        "alias": "INSERT INTO aliases (tenant_id, public_id, address, domain_id, target, created_at)"
        " SELECT $1, $2, 'x@acme.example', id, 'y@example.com', now() FROM domains WHERE name = 'acme.example'",
        "address": "INSERT INTO addresses (tenant_id, public_id, address, local_part, domain_id, identity_id, role,"
        " status, created_at, updated_at)"
        " SELECT $1, $2, 'x@acme.example', 'x', d.id, i.id, 'alias', 'active', now(), now()"
        " FROM domains d, identities i WHERE d.name = 'acme.example'",
    }
    second = "address" if first == "alias" else "alias"
    ids = {"alias": house.ids.new("als_"), "address": house.ids.new("adr_")}
    async with house.db.transaction() as conn:
        await conn.execute(make[first], acme.id, ids[first])
        waiting = asyncio.create_task(execute(house, make[second], acme.id, ids[second]))
        await asyncio.sleep(0.1)
        assert not waiting.done()
    with pytest.raises(asyncpg.UniqueViolationError) as caught:
        await waiting
    assert caught.value.constraint_name == ("addresses_address_key" if second == "address" else "aliases_address_key")


@pytest.mark.covers("mail-server:A6")
async def test_of_two_at_once_that_lead_to_each_other_one_is_refused(
    house: House, aliases: Aliases, acme: Tenant, make_domain: MakeDomain
) -> None:
    """Of two tenants, so that nothing else keeps them apart."""
    other = await house.tenant("other")
    await make_domain(acme.id, "acme.example")
    await make_domain(other.id, "other.example")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(conn: Connection, alias: Alias) -> None:
        begun.set()
        await go_on.wait()

    first = asyncio.create_task(aliases.create(acme.id, "a@acme.example", "b@other.example", then=wait))
    await begun.wait()
    second = asyncio.create_task(aliases.create(other.id, "b@other.example", "a@acme.example"))
    await asyncio.sleep(0.1)
    assert not second.done()
    go_on.set()
    await first
    assert await refused(second) == "invalid_request"


@pytest.mark.covers("mail-server:A6")
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (0, 1, 3, 4, 2), (4, 0, 3, 1, 2), (2, 0, 4, 3, 1)])
async def test_five_aliases_may_lead_to_one_another_whichever_is_made_last(
    house: House, aliases: Aliases, directory: Directory, acme: Tenant, make_domain: MakeDomain, order: tuple[int, ...]
) -> None:
    await make_domain(acme.id, "acme.example")
    for number in order:
        await aliases.create(acme.id, f"a{number}@acme.example", f"a{number + 1}+x")
    # A sixth fits at neither end, but beside them.
    assert await refused(aliases.create(acme.id, "a5@acme.example", "out@example.com")) == "invalid_request"
    assert await refused(aliases.create(acme.id, "first@acme.example", "a0")) == "invalid_request"
    await aliases.create(acme.id, "side@acme.example", "a1")
    # Another tenant's do not say what this one may have: it is theirs that lead too far.
    other = await house.tenant("other")
    await make_domain(other.id, "other.example")
    await aliases.create(other.id, "x@other.example", "b@acme.example")
    for number in range(4):
        await aliases.create(acme.id, f"b{number or ''}@acme.example", f"b{number + 1}")
    await aliases.create(acme.id, "b4@acme.example", "out@example.com")
    assert isinstance(await directory.resolve("b@acme.example"), Forward)
    assert await directory.resolve("x@other.example") is rules.BROKEN_CHAIN


@pytest.mark.covers("mail-server:A6")
async def test_many_at_once(
    house: House, aliases: Aliases, addresses: Addresses, bot: Identity, acme: Tenant, make_domain: MakeDomain
) -> None:
    own = await make_domain(acme.id, "acme.example")

    work: list[Awaitable[object]] = []
    for _ in range(4):
        work.append(aliases.create(acme.id, "x@acme.example", "y@example.com"))
        work.append(addresses.add(PLATFORM_SCOPE, bot.public_id, "x", own))
    answers = await asyncio.gather(*work, return_exceptions=True)
    failures = [one.code for one in answers if isinstance(one, PostroomError)]
    assert failures == ["address_taken"] * 7


# -- lists


async def test_lists_are_of_one_tenant_newest_first_and_in_pages(
    house: House, aliases: Aliases, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    globex = await house.tenant("globex")
    theirs = await aliases.create(globex.id, "a.globex@agents.example", "x@example.com")
    for number in range(5):
        await aliases.create(acme.id, f"a{number}.acme@agents.example", "x@example.com")
        house.clock.advance(number % 2)
    seen: list[str] = []
    after = None
    while page := await aliases.page(acme.id, limit=2, after=after):
        seen += [one.address.partition(".")[0] for one in page]
        after = (page[-1].created_at, page[-1].public_id)
    assert seen == ["a4", "a3", "a2", "a1", "a0"]
    assert (await aliases.by_address(acme.id, "A3.acme@agents.example")).address == "a3.acme@agents.example"
    for work in (
        aliases.get(acme.id, theirs.public_id),
        aliases.delete(acme.id, theirs.public_id),
        aliases.by_address(acme.id, theirs.address),
        aliases.by_address(acme.id, "nonsense"),
        aliases.get(acme.id, "als_x"),
        aliases.delete(acme.id, "als_\0"),
    ):
        assert await refused(work) == "address_not_found"
    assert await aliases.get(globex.id, theirs.public_id) == theirs
    monkeypatch.setattr("postroom.directory.service.aliases.MAX_ALIASES", 5)
    assert await refused(aliases.create(acme.id, "b.acme@agents.example", "x@example.com")) == "address_limit_reached"
    await aliases.delete(acme.id, (await aliases.page(acme.id))[0].public_id)
    await aliases.create(acme.id, "b.acme@agents.example", "x@example.com")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40), st.text(max_size=40))
async def test_whatever_is_asked_for_is_answered(aliases: Aliases, acme: Tenant, address: str, target: str) -> None:
    for name in (address, f"{address}.acme@agents.example"):
        try:
            made = await aliases.create(acme.id, name, target)
        except PostroomError as error:
            if error.status >= 500:
                raise
        else:
            await aliases.delete(acme.id, made.public_id)
