"""Answers to RCPT: every row of inbound §7.5, and what is remembered for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.db import Database, DatabaseUnavailable
from postroom.directory import (
    Addresses,
    DictionaryGuard,
    Directory,
    Identity,
    NewIdentity,
    Recipient,
    Refusal,
    bury_identity,
    routes,
    rules,
)
from postroom.directory.rules import Route

if TYPE_CHECKING:
    from tests.accounts.conftest import House

MakeDomain = Callable[..., Awaitable[str]]
DOMAIN = "agents.example"


class Queries:
    """Counts the look-ups of a directory, and holds them up on request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.answered = asyncio.Event()
        self.answered.set()
        real = routes.route

        async def counted(conn: asyncpg.Connection[asyncpg.Record], base: str, domain: str) -> Route:
            self.count += 1
            found = await real(conn, base, domain)
            self.begun.put_nowait(base)
            await self.answered.wait()
            return found

        monkeypatch.setattr(routes, "route", counted)


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Queries:
    return Queries(monkeypatch)


@pytest.fixture
def directory(db: Database, clock: ManualClock) -> Directory:
    return Directory(db, clock, DOMAIN, query_seconds=60)


@pytest.fixture
async def bot(house: House) -> Identity:
    tenant = await house.tenant("acme")
    return await house.identity(tenant, "bot")


BOT = "bot.acme@agents.example"


async def execute(house: House, statement: str, *values: object) -> None:
    async with house.db.acquire() as conn:
        await conn.execute(statement, *values)


@pytest.mark.covers("edge:A1", "edge:A2", "FR-IN-1")
async def test_who_it_is(directory: Directory, bot: Identity) -> None:
    for spelling in (BOT, "<Bot.Acme@AGENTS.example.>", f" {BOT.upper()} "):
        found = await directory.resolve(spelling)
        assert isinstance(found, Recipient)
        assert (found.tenant_id, found.mailbox_id) == (bot.tenant_id, bot.id)
        assert (found.tenant_public_id, found.identity_public_id) == (bot.tenant_public_id, bot.public_id)
        assert (found.address, found.base, found.detail) == (BOT, BOT, "")
        assert found.own_addresses == (BOT,)
        assert not found.role
    tagged = await directory.resolve("Bot.acme+T03k+x@agents.example")
    assert isinstance(tagged, Recipient)
    assert (tagged.address, tagged.base, tagged.detail) == ("bot.acme+t03k+x@agents.example", BOT, "T03k+x")
    # Dots are significant, and a tag selects nobody.
    for other in ("bo.t.acme@agents.example", "botacme@agents.example", "x+bot.acme@agents.example"):
        assert await directory.resolve(other) == rules.UNKNOWN


@pytest.mark.covers("edge:A3", "edge:A6", "FR-IN-2")
@pytest.mark.parametrize(
    ("address", "answer"),
    [
        ("nobody@agents.example", rules.UNKNOWN),
        ("böt.acme@agents.example", rules.UNKNOWN),
        ("bot.acme\0@agents.example", rules.UNKNOWN),
        ("+tag@agents.example", rules.UNKNOWN),
        ("x" * 65 + "@agents.example", rules.UNKNOWN),
        ("somebody@elsewhere.example", rules.FOREIGN),
        ("böt@elsewhere.example", rules.FOREIGN),
        ("bot.acme", rules.MALFORMED),
        ("@agents.example", rules.MALFORMED),
        ("bot.acme@", rules.MALFORMED),
        ("bot.acme@[192.0.2.1]", rules.MALFORMED),
        ("bot.acme@-agents.example", rules.MALFORMED),
        ("bot.acme@agents..example", rules.MALFORMED),
        ("", rules.MALFORMED),
        ("<>", rules.MALFORMED),
    ],
)
async def test_who_it_is_not(directory: Directory, bot: Identity, address: str, answer: Refusal) -> None:
    assert await directory.resolve(address) == answer


@pytest.mark.covers("edge:A6", "edge:A7", "FR-IN-2", "FR-TEN-3", "FR-ADR-3")
async def test_every_row_of_the_table(
    house: House, directory: Directory, bot: Identity, addresses: Addresses, make_domain: MakeDomain
) -> None:
    async def answers(expected: Refusal | None) -> None:
        directory.invalidate("*")
        found = await directory.resolve(BOT)
        assert (found if isinstance(found, Refusal) else None) == expected

    await answers(None)
    for status, expected in [
        ("pending", rules.UNKNOWN),
        ("retired", rules.RETIRED),
        ("retiring", None),
        ("active", None),
    ]:
        await execute(house, "UPDATE addresses SET status = $1", status)
        await answers(expected)
    for status, expected in [
        ("paused", None),
        ("deleting", rules.UNKNOWN),
        ("deleted", rules.UNKNOWN),
        ("active", None),
    ]:
        await execute(house, "UPDATE identities SET status = $1", status)
        await answers(expected)
    await house.identities.suspend_tenant(bot.tenant_id)
    await answers(rules.SUSPENDED)
    house.clock.advance(5 * 86_400 - 1)
    await answers(rules.SUSPENDED)
    house.clock.advance(1)
    await answers(rules.SUSPENDED_FOR_LONG)
    await execute(house, "UPDATE addresses SET status = 'retired'")
    await answers(rules.RETIRED)
    await execute(house, "UPDATE addresses SET status = 'active'")
    for status in ("erasing", "erased"):
        await execute(house, "UPDATE tenants SET status = $1", status)
        await answers(rules.UNKNOWN)
    await execute(house, "UPDATE tenants SET status = 'active'")
    await execute(house, "UPDATE mailboxes SET quota_bytes = 100, used_bytes = 100")
    await answers(rules.FULL)
    await execute(house, "UPDATE mailboxes SET quota_bytes = 100, used_bytes = 99")
    await answers(None)
    await execute(house, "UPDATE mailboxes SET quota_bytes = NULL")
    await execute(house, "UPDATE domains SET enabled = false")
    await answers(rules.DISABLED_DOMAIN)
    assert await directory.resolve("nobody@agents.example") == rules.DISABLED_DOMAIN
    await execute(house, "UPDATE domains SET enabled = true")
    async with house.db.transaction() as conn:
        await bury_identity(conn, b"h" * 32, bot, "erased", house.clock.now())
    await answers(rules.UNKNOWN)


def test_the_codes_are_those_of_the_table() -> None:
    table = {
        rules.UNKNOWN: "550 5.1.1",
        rules.RETIRED: "550 5.1.6",
        rules.DISABLED_DOMAIN: "550 5.1.2",
        rules.FOREIGN: "550 5.7.1",
        rules.SUSPENDED: "450 4.2.1",
        rules.SUSPENDED_FOR_LONG: "550 5.2.1",
        rules.FULL: "452 4.2.2",
        rules.UNAVAILABLE: "451 4.3.0",
        rules.GUARDED: "451 4.7.1",
        rules.MALFORMED: "501 5.5.4",
    }
    for refusal, code in table.items():
        assert f"{refusal.code} {refusal.enhanced}" == code
        assert refusal.is_temporary is (str(refusal.code)[0] == "4") is (refusal.enhanced[0] == "4")
        assert refusal.text.isascii()
        assert refusal.text.isprintable()


@pytest.mark.covers("decisions:D22")
async def test_what_came_into_being_a_moment_ago_counts_at_once(
    house: House, directory: Directory, bot: Identity
) -> None:
    tenant = await house.tenants.get(bot.tenant_public_id)
    assert await directory.resolve("new.acme@agents.example") == rules.UNKNOWN
    made = await house.identity(tenant, "new")
    found = await directory.resolve("new.acme@agents.example")
    assert isinstance(found, Recipient)
    assert found.mailbox_id == made.id
    for change, answer in [
        ("UPDATE mailboxes SET quota_bytes = 1, used_bytes = 1", rules.FULL),
        ("UPDATE domains SET enabled = false", rules.DISABLED_DOMAIN),
        ("UPDATE addresses SET status = 'pending'", rules.UNKNOWN),
        ("UPDATE tenants SET status = 'suspended'", rules.SUSPENDED),
    ]:
        await execute(house, change)
        directory.invalidate("*")
        assert await directory.resolve("new.acme@agents.example") == answer
        undo = {
            "UPDATE mailboxes SET quota_bytes = NULL",
            "UPDATE domains SET enabled = true",
            "UPDATE addresses SET status = 'active'",
            "UPDATE tenants SET status = 'active'",
        }
        for statement in undo:
            await execute(house, statement)
        assert isinstance(await directory.resolve("new.acme@agents.example"), Recipient)


async def test_an_acceptance_is_remembered_for_a_minute(
    house: House, directory: Directory, bot: Identity, queries: Queries
) -> None:
    for _ in range(5):
        assert isinstance(await directory.resolve(BOT), Recipient)
        assert isinstance(await directory.resolve("bot.acme+tag@agents.example"), Recipient)
    assert queries.count == 1
    await execute(house, "UPDATE addresses SET status = 'retired'")
    house.clock.advance(59.9)
    assert isinstance(await directory.resolve(BOT), Recipient)
    house.clock.advance(0.1)
    assert await directory.resolve(BOT) == rules.RETIRED
    assert queries.count == 2


@pytest.mark.parametrize("which", ["address", "identity", "tenant", "domain", "all"])
async def test_invalidation(house: House, directory: Directory, bot: Identity, queries: Queries, which: str) -> None:
    what = {
        "address": BOT,
        "identity": bot.public_id,
        "tenant": bot.tenant_public_id,
        "domain": "@agents.example",
        "all": "*",
    }[which]
    assert isinstance(await directory.resolve(BOT), Recipient)
    for other in ("x@agents.example", "idn_x", "ten_x", "@other.example"):
        directory.invalidate(other)
    assert isinstance(await directory.resolve(BOT), Recipient)
    assert queries.count == 1
    await execute(house, "UPDATE addresses SET status = 'retired'")
    directory.invalidate(what)
    assert await directory.resolve(BOT) == rules.RETIRED


async def test_an_answer_on_its_way_is_not_remembered_past_an_invalidation(
    house: House, directory: Directory, bot: Identity, queries: Queries
) -> None:
    queries.answered.clear()
    asking = asyncio.create_task(directory.resolve(BOT))
    await queries.begun.get()
    await execute(house, "UPDATE addresses SET status = 'retired'")
    directory.invalidate(bot.public_id)
    queries.answered.set()
    assert isinstance(await asking, Recipient)
    assert await directory.resolve(BOT) == rules.RETIRED


async def test_one_query_answers_all_who_ask_at_once(directory: Directory, bot: Identity, queries: Queries) -> None:
    answers = await asyncio.gather(*(directory.resolve(BOT) for _ in range(50)))
    assert all(isinstance(answer, Recipient) for answer in answers)
    assert queries.count == 1
    assert not directory._flights


@pytest.mark.covers("decisions:D22")
async def test_a_query_begun_before_the_question_refuses_nobody(
    house: House, directory: Directory, bot: Identity, queries: Queries
) -> None:
    tenant = await house.tenants.get(bot.tenant_public_id)
    queries.answered.clear()
    early = asyncio.create_task(directory.resolve("new.acme@agents.example"))
    await queries.begun.get()
    await house.identity(tenant, "new")
    late = [asyncio.create_task(directory.resolve("new.acme@agents.example")) for _ in range(10)]
    await asyncio.sleep(0)
    queries.answered.set()
    assert await early == rules.UNKNOWN
    assert all(isinstance(answer, Recipient) for answer in await asyncio.gather(*late))
    assert queries.count == 2


async def test_whoever_goes_away_takes_nobodys_answer_along(
    directory: Directory, bot: Identity, queries: Queries
) -> None:
    queries.answered.clear()
    first = asyncio.create_task(directory.resolve(BOT))
    await queries.begun.get()
    second = asyncio.create_task(directory.resolve(BOT))
    await asyncio.sleep(0)
    first.cancel()
    queries.answered.set()
    assert isinstance(await second, Recipient)
    assert queries.count == 1


async def test_memory_is_bounded(db: Database, clock: ManualClock, house: House, queries: Queries) -> None:
    tenant = await house.tenant("acme")
    for n in range(4):
        await house.identity(tenant, f"bot{n}x")
    directory = Directory(db, clock, DOMAIN, cache_size=3)
    for n in (0, 1, 2, 0, 3):
        await directory.resolve(f"bot{n}x.acme@agents.example")
    assert queries.count == 4
    await directory.resolve("bot0x.acme@agents.example")
    assert queries.count == 4
    await directory.resolve("bot1x.acme@agents.example")
    assert queries.count == 5


@pytest.mark.covers("edge:A16")
async def test_the_dictionary_guard(
    house: House, directory: Directory, bot: Identity, queries: Queries, make_domain: MakeDomain
) -> None:
    await make_domain(bot.tenant_id, "acme.example")
    assert isinstance(await directory.resolve(BOT), Recipient)
    answers = [await directory.resolve(f"guess{n}@agents.example") for n in range(30)]
    assert answers == [rules.UNKNOWN] * 21 + [rules.GUARDED] * 9
    assert queries.count == 22
    assert directory.guard.refused == 9
    # What is remembered, and other domains, are served as ever.
    assert isinstance(await directory.resolve(BOT), Recipient)
    assert await directory.resolve("nobody@acme.example") == rules.UNKNOWN
    assert await directory.resolve("x@elsewhere.example") == rules.FOREIGN
    # A real address that is not remembered waits for the next second, and is never refused for good.
    directory.invalidate(BOT)
    assert await directory.resolve(BOT) == rules.GUARDED
    house.clock.advance(1)
    assert isinstance(await directory.resolve(BOT), Recipient)
    assert await directory.resolve("guess1@agents.example") == rules.UNKNOWN


@pytest.mark.covers("edge:A9", "edge:A16")
async def test_addresses_in_headers_are_no_guesses(house: House, directory: Directory, bot: Identity) -> None:
    for n in range(30):
        assert await directory.owner_of(f"guess{n}@agents.example") is None
    assert isinstance(await directory.resolve(BOT), Recipient)
    # Nor does a guard that others tripped keep us from knowing whose an address is.
    for n in range(30):
        await directory.resolve(f"guess{n}@agents.example")
    directory.invalidate(BOT)
    assert await directory.resolve(BOT) == rules.GUARDED
    owner = await directory.owner_of(BOT)
    assert owner is not None
    assert owner.identity_public_id == bot.public_id
    assert directory.guard.refused == 10
    for other in ("", "junk", "postmaster", "\u0430@agents.example", "x@elsewhere.example"):
        assert await directory.owner_of(other) is None


def test_the_guard_is_bounded() -> None:
    guard = DictionaryGuard()
    for n in range(20_000):
        guard.missed(f"d{n}.example", 1.0)
    assert len(guard._misses) == 10_000
    assert not guard.trips("d0.example", 1.9)


@pytest.mark.covers("edge:A4")
async def test_role_mail_of_the_platform_domain(db: Database, clock: ManualClock, house: House, bot: Identity) -> None:
    roles = ("postmaster", "Postmaster@agents.example", "abuse+x@agents.example", "<noc@agents.example>")
    for contact in (None, "operator@elsewhere.example", "postmaster@agents.example", "nobody@agents.example", "junk"):
        directory = Directory(db, clock, DOMAIN, security_contact=contact)
        for role in roles:
            assert await directory.resolve(role) == rules.UNKNOWN
    directory = Directory(db, clock, DOMAIN, security_contact="Bot.Acme+ops@agents.example")
    for role in roles:
        found = await directory.resolve(role)
        assert isinstance(found, Recipient)
        assert (found.identity_public_id, found.base, found.role) == (bot.public_id, BOT, True)
    found = await directory.resolve("abuse+x@agents.example")
    assert isinstance(found, Recipient)
    assert (found.address, found.detail) == ("abuse+x@agents.example", "x")
    for role in ("info@agents.example", "sales@agents.example", "journal@agents.example", "noreply@agents.example"):
        assert await directory.resolve(role) == rules.UNKNOWN
    await execute(house, "UPDATE mailboxes SET quota_bytes = 1, used_bytes = 1")
    directory.invalidate("*")
    assert await directory.resolve("postmaster") == rules.FULL


@pytest.mark.covers("edge:A4", "FR-ADR-6")
async def test_names_that_a_tenant_may_use_on_its_domain(
    house: House, directory: Directory, bot: Identity, make_domain: MakeDomain
) -> None:
    domain = await make_domain(bot.tenant_id, "acme.example")
    made, _ = await house.identities.create(
        bot.tenant_id, NewIdentity(username="security", display_name="Security", domain=domain)
    )
    found = await directory.resolve("security@acme.example")
    assert isinstance(found, Recipient)
    assert found.identity_public_id == made.public_id
    assert found.own_addresses == ("security.acme@agents.example", "security@acme.example")
    assert await directory.resolve("postmaster@acme.example") == rules.UNKNOWN


@pytest.mark.covers("edge:J7")
async def test_our_own_faults_are_temporary(
    db: Database, clock: ManualClock, house: House, bot: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(db, clock, DOMAIN, query_seconds=0.05)
    assert isinstance(await directory.resolve(BOT), Recipient)

    async def hang(*_: object) -> Route:
        await asyncio.Event().wait()
        raise AssertionError

    async def fail(*_: object) -> Route:
        raise asyncpg.ConnectionDoesNotExistError("gone")

    for broken in (hang, fail):
        monkeypatch.setattr(routes, "route", broken)
        assert await directory.resolve("nobody@agents.example") == rules.UNAVAILABLE
        assert await directory.resolve("x@elsewhere.example") == rules.UNAVAILABLE
        assert isinstance(await directory.resolve(BOT), Recipient)
        monkeypatch.undo()

    def away(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(db, "acquire", away)
    answers = await asyncio.gather(*(directory.resolve("nobody@agents.example") for _ in range(5)))
    assert answers == [rules.UNAVAILABLE] * 5
    monkeypatch.undo()
    assert await directory.resolve("nobody@agents.example") == rules.UNKNOWN


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    address=st.text(max_size=80)
    | st.builds(lambda local, domain: f"{local}@{domain}", st.text(max_size=70), st.sampled_from([DOMAIN, "x.example"]))
)
async def test_no_text_makes_it_fail(address: str, directory: Directory, bot: Identity) -> None:
    directory.guard = DictionaryGuard()
    found = await directory.resolve(address)
    assert isinstance(found, Refusal)
    assert found in (rules.UNKNOWN, rules.FOREIGN, rules.MALFORMED)


@given(st.text(max_size=40))
def test_the_detail_is_kept(local: str) -> None:
    base, detail = rules.split_detail(local)
    assert "+" not in base
    assert local.lower().startswith(base)
    assert local.endswith(detail)
