"""Keys of four levels: what each makes and manages, who is behind them, and what ends them (security-privacy A3)."""

from __future__ import annotations

import asyncio
import hmac
import itertools
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts import ApiKey, Level, MemberRole, Mode, NewKey, NewPerson, Permission, Principal, PrincipalKind
from postroom.accounts import keys as rules
from postroom.accounts.audit import Actor
from postroom.accounts.keys import KeyRequest
from postroom.accounts.models import Scope, partner_scope
from postroom.accounts.permissions import MAY_HOLD, MAY_MINT, OWNER_ONLY, ROOM_OF_ROLE, including_implied
from postroom.accounts.rates import Bucket, RateLimiter
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from tests.rest.contract import CONTRACT

if TYPE_CHECKING:
    from tests.accounts.conftest import House

READ = ("messages:read",)
MANAGE = ("keys:manage", "messages:read")


async def code(work: Awaitable[object]) -> str | None:
    """What it is refused with."""
    try:
        await work
    except PostroomError as error:
        return error.code
    return None


async def partner_of(house: House, name: str, *tenants: int, status: str = "active") -> tuple[int, str]:
    """A partner with tenants, as the department of partners will write them."""
    public_id = house.ids.new("ptn_")
    async with house.db.acquire() as conn:
        key = await conn.fetchval(
            "INSERT INTO partners (public_id, name, status, created_at) VALUES ($1, $2, $3, $4) RETURNING id",
            *(public_id, name, status, house.clock.now()),
        )
        for tenant in tenants:
            await conn.execute("INSERT INTO partner_tenants (partner_id, tenant_id) VALUES ($1, $2)", key, tenant)
    return key, public_id


async def execute(house: House, statement: str, *values: object) -> None:
    async with house.db.acquire() as conn:
        await conn.execute(statement, *values)


async def set_status(house: House, partner: int, status: str) -> None:
    # The row of one that is deleted has no name.
    await execute(
        house,
        "UPDATE partners SET status = $2, name = CASE WHEN $2 = 'deleted' THEN '' ELSE name END WHERE id = $1",
        partner,
        status,
    )


async def audited(house: House) -> list[dict[str, Any]]:
    async with house.db.acquire() as conn:
        rows = await conn.fetch(
            "SELECT a.action, a.target_id, a.details, a.actor_key, t.public_id AS tenant FROM audit_log a"
            " LEFT JOIN tenants t ON t.id = a.tenant_id WHERE a.target_type = 'key' ORDER BY a.id"
        )
    return [dict(row) for row in rows]


@dataclass
class Ladder:
    """Two tenants of a partner, one of another's, one of nobody's, and keys that manage on every level."""

    house: House
    made: dict[str, tuple[ApiKey, str]]
    names: dict[str, str]
    """Public ids of tenants, identities and partners, by what they are called here."""
    partner: int

    async def who(self, name: str) -> Principal:
        return await self.house.verifier.verify(self.made[name][1])


@pytest.fixture
async def ladder(house: House) -> Ladder:
    one, two = await house.tenant("one"), await house.tenant("two", mode=Mode.TEST)
    theirs, free = await house.tenant("theirs"), await house.tenant("free")
    bots = {
        name: await house.identity(tenant, "bot")
        for name, tenant in {"one.bot": one, "two.bot": two, "theirs.bot": theirs, "free.bot": free}.items()
    }
    sibling = await house.identity(one, "sibling")
    mine, mine_id = await partner_of(house, "Mine", one.id, two.id)
    other, other_id = await partner_of(house, "Other", theirs.id)
    create = house.keys.create
    made = {
        "platform": await create(None, NewKey("k", Level.PLATFORM, MANAGE)),
        "partner": await create(None, NewKey("k", Level.PARTNER, MANAGE, partner_id=mine)),
        "other partner": await create(None, NewKey("k", Level.PARTNER, MANAGE, partner_id=other)),
        "one": await create(None, NewKey("k", Level.TENANT, MANAGE, one.id)),
        "two": await create(None, NewKey("k", Level.TENANT, MANAGE, two.id)),
        "theirs": await create(None, NewKey("k", Level.TENANT, MANAGE, theirs.id)),
        "free": await create(None, NewKey("k", Level.TENANT, MANAGE, free.id)),
        "one.bot": await create(None, NewKey("k", Level.IDENTITY, MANAGE, one.id, bots["one.bot"].id)),
        "sibling": await create(None, NewKey("k", Level.IDENTITY, MANAGE, one.id, sibling.id)),
        "theirs.bot": await create(None, NewKey("k", Level.IDENTITY, MANAGE, theirs.id, bots["theirs.bot"].id)),
    }
    tenants = {"one": one, "two": two, "theirs": theirs, "free": free}
    names = {name: tenant.public_id for name, tenant in tenants.items()}
    names |= {name: bot.public_id for name, bot in bots.items()}
    names |= {"sibling": sibling.public_id, "mine": mine_id, "other": other_id}
    return Ladder(house, made, names, mine)


# -- what a key may hold and make


@pytest.mark.covers("FR-KEY-1", "security-privacy:A3.4")
def test_what_each_level_may_hold_is_what_the_contract_says() -> None:
    published = CONTRACT["permission_levels"]
    assert set(published) == {permission.value for permission in Permission}
    for level in Level:
        held = {name for name, levels in published.items() if level.value in levels}
        assert {permission.value for permission in MAY_HOLD[level]} == held


def _caller(level: Level, held: frozenset[Permission], place: tuple[int | None, int | None, int | None]) -> Principal:
    partner, tenant, identity = place
    return Principal(
        *(PrincipalKind.KEY, "key_x", 1, level, including_implied(held & MAY_HOLD[level]), Mode.LIVE),
        tenant_id=tenant,
        identity_id=identity,
        partner_id=partner,
    )


# Partner 1 has the tenants 10 and 11, partner 2 has 20; 30 is nobody's.
TENANTS_OF: dict[int | None, set[int | None]] = {1: {10, 11}, 2: {20}}
PLACES: list[tuple[Level, tuple[int | None, int | None, int | None]]] = [
    (Level.PLATFORM, (None, None, None)),
    (Level.PARTNER, (1, None, None)),
    (Level.PARTNER, (2, None, None)),
    *((Level.TENANT, (None, tenant, None)) for tenant in (10, 11, 20, 30)),
    *((Level.IDENTITY, (None, tenant, box)) for tenant in (10, 11, 20, 30) for box in (tenant + 100, tenant + 200)),
]


def _inside(outer: tuple[int | None, int | None, int | None], tenant: int | None, box: int | None) -> bool:
    """Whether an identity of a tenant is in a place, said in another way than the code says it."""
    partner, room, own = outer
    if partner is not None:
        return tenant in TENANTS_OF[partner]
    if room is not None and room != tenant:
        return False
    return own is None or own == box


@pytest.mark.covers("FR-KEY-1", "FR-KEY-3", "FR-KEY-4", "SEC-2", "edge:J11")
@given(
    st.sampled_from(PLACES),
    st.lists(st.tuples(st.sampled_from(PLACES), st.frozensets(st.sampled_from(Permission), min_size=1)), max_size=4),
    st.frozensets(st.sampled_from(Permission)),
)
def test_a_key_never_grants_what_its_minter_lacks(
    place: tuple[Level, tuple[int | None, int | None, int | None]],
    wishes: list[tuple[tuple[Level, tuple[int | None, int | None, int | None]], frozenset[Permission]]],
    held: frozenset[Permission],
) -> None:
    """Along a whole chain of keys that make keys: nothing that a descendant holds or reaches was out of an ancestor's
    hands, but for `identities:sign`, which a platform or partner key may give.
    """
    chain = [_caller(place[0], held, place[1])]
    for (level, wanted), permissions in wishes:
        parent = chain[-1]
        new = NewKey("k", level, tuple(permissions), wanted[1], wanted[2], partner_id=wanted[0])
        try:
            allowed = rules.check_permissions(level, new.permissions)
            is_partners = wanted[1] in TENANTS_OF.get(parent.partner_id, set())
            rules.check_reach(parent, new, allowed, is_partners=is_partners)
        except PostroomError:
            continue
        chain.append(_caller(level, allowed, wanted))
    for parent, child in itertools.combinations(chain, 2):
        extra = child.permissions - parent.permissions
        may_give = any(one.level in (Level.PLATFORM, Level.PARTNER) for one in chain[: chain.index(child)])
        assert extra <= ({Permission.IDENTITIES_SIGN} if may_give else frozenset())
        assert child.level.rank <= parent.level.rank
        assert child.level in MAY_MINT[parent.level]
        assert child.level is not Level.PARTNER or parent.level is Level.PLATFORM
        outer, inner = ((one.partner_id, one.tenant_id, one.identity_id) for one in (parent, child))
        for _, (_, tenant, box) in PLACES:
            if box is not None and _inside(inner, tenant, box):
                assert _inside(outer, tenant, box)
    assert not any(one.permissions & OWNER_ONLY for one in chain[1:] if one.level is Level.TENANT)


@pytest.mark.covers("edge:J10", "edge:J11", "FR-KEY-4", "security-privacy:A3.5")
async def test_who_makes_what(ladder: Ladder) -> None:
    names = ladder.names
    missing_tenant, missing_box, missing_partner = (ladder.house.ids.new(one) for one in ("ten_", "idn_", "ptn_"))
    wishes = {
        "platform": KeyRequest("k", Level.PLATFORM, READ),
        "partner": KeyRequest("k", Level.PARTNER, READ, partner=names["mine"]),
        "no partner": KeyRequest("k", Level.PARTNER, READ, partner=missing_partner),
        **{name: KeyRequest("k", Level.TENANT, READ, names[name]) for name in ("one", "two", "theirs", "free")},
        "nowhere": KeyRequest("k", Level.TENANT, READ, missing_tenant),
        "one.bot": KeyRequest("k", Level.IDENTITY, READ, names["one"], names["one.bot"]),
        "sibling": KeyRequest("k", Level.IDENTITY, READ, names["one"], names["sibling"]),
        "theirs.bot": KeyRequest("k", Level.IDENTITY, READ, names["theirs"], names["theirs.bot"]),
        "mixed": KeyRequest("k", Level.IDENTITY, READ, names["one"], names["theirs.bot"]),
        "nobody": KeyRequest("k", Level.IDENTITY, READ, names["one"], missing_box),
    }
    exceeded = "key_scope_exceeded"
    expected = {
        "platform": {"no partner": "partner_not_found", "nowhere": "tenant_not_found"}
        | dict.fromkeys(("mixed", "nobody"), "identity_not_found"),
        "partner": dict.fromkeys(
            ("platform", "partner", "no partner", "theirs", "free", "nowhere", "theirs.bot"), exceeded
        )
        | dict.fromkeys(("mixed", "nobody"), "identity_not_found"),
        "one": dict.fromkeys(
            ("platform", "partner", "no partner", "two", "theirs", "free", "nowhere", "theirs.bot"), exceeded
        )
        | dict.fromkeys(("mixed", "nobody"), "identity_not_found"),
        "one.bot": dict.fromkeys(set(wishes) - {"one.bot"}, exceeded),
    }
    for who, refusals in expected.items():
        caller = await ladder.who(who)
        for name, wish in wishes.items():
            assert await code(ladder.house.keys.mint(caller, wish)) == refusals.get(name), (who, name)
    made = await ladder.house.keys.mint(await ladder.who("partner"), wishes["two"])
    assert made[1].startswith("pmk_test_")


@pytest.mark.covers("edge:J11", "security-privacy:A3.5", "FR-KEY-1")
async def test_the_one_exception_is_audited(ladder: Ladder) -> None:
    house, sign = ladder.house, ("identities:sign", "messages:read")
    partner = await ladder.who("partner")
    by = Actor(key=partner.public_id, request_id=house.ids.new("req_"))
    wish = KeyRequest("k", Level.TENANT, sign, ladder.names["one"])
    made, _ = await house.keys.mint(partner, wish, by=by)
    last = (await audited(house))[-1]
    assert last == {
        "action": "key.create",
        "target_id": made.public_id,
        "details": {"level": "tenant", "granted_without_holding": ["identities:sign"]},
        "actor_key": partner.public_id,
        "tenant": ladder.names["one"],
    }
    assert made.created_by_key == partner.public_id
    before = await audited(house)
    assert await code(house.keys.mint(await ladder.who("one"), wish)) == "key_scope_exceeded"
    assert await audited(house) == before
    for level, named in ((Level.PLATFORM, None), (Level.PARTNER, ladder.names["mine"])):
        refused = house.keys.mint(None, KeyRequest("k", level, sign, partner=named))
        assert await code(refused) == "invalid_request"
    # Whoever may give it may take it away: it makes no key wider than them (J20).
    await house.keys.rotate(partner, made.public_id)
    await house.keys.revoke(partner, made.public_id)
    assert [row["action"] for row in await audited(house)][-2:] == ["key.rotate", "key.revoke"]


@pytest.mark.covers("edge:J22", "security-privacy:A3.5")
async def test_a_partner_has_ten_active_keys(ladder: Ladder) -> None:
    keys, new = ladder.house.keys, KeyRequest("k", Level.PARTNER, READ, partner=ladder.names["mine"])
    tried = await asyncio.gather(*(code(keys.mint(None, new)) for _ in range(14)))
    assert sorted(str(one) for one in tried) == ["None"] * 9 + ["key_limit_reached"] * 5
    await keys.revoke(None, ladder.made["partner"][0].public_id)
    assert await code(keys.mint(None, new)) is None
    await set_status(ladder.house, ladder.partner, "deleted")
    assert await code(keys.mint(None, new)) == "partner_not_found"


# -- managing


@pytest.mark.covers("edge:J20", "edge:J10", "FR-KEY-4", "security-privacy:A3.6")
async def test_who_manages_what(ladder: Ladder) -> None:
    house, keys = ladder.house, ladder.house.keys
    everyone = set(ladder.made)
    reach = {
        "platform": everyone,
        "partner": {"one", "two", "one.bot", "sibling"},
        "other partner": {"theirs", "theirs.bot"},
        "one": {"one", "one.bot", "sibling"},
        "free": {"free"},
        "one.bot": {"one.bot"},
    }
    missing = house.ids.new("key_")
    before = await audited(house)
    for who, reached in reach.items():
        caller = await ladder.who(who)
        listed = {key.public_id for key in await keys.page(caller, limit=100)}
        assert listed == {ladder.made[name][0].public_id for name in reached}, who
        for name in everyone - reached:
            for act in (keys.get, keys.revoke, keys.rotate):
                assert await code(act(caller, ladder.made[name][0].public_id)) == "key_not_found", (who, name)
        for name in reached:
            assert (await keys.get(caller, ladder.made[name][0].public_id)).public_id in listed
        assert await code(keys.get(caller, missing)) == "key_not_found"
        assert caller.key is not None
        assert caller.key.public_id == caller.public_id
    assert await audited(house) == before


@pytest.mark.covers("edge:J20", "security-privacy:A3.6")
async def test_a_wider_key_is_told_apart_and_left_alone(ladder: Ladder) -> None:
    house, keys = ladder.house, ladder.house.keys
    tenant = ladder.made["one"][0].tenant_id
    wide, text = await keys.create(None, NewKey("k", Level.TENANT, ("keys:manage", "audit:read"), tenant))
    caller, before = await ladder.who("one"), await audited(house)
    for act in (keys.get, keys.revoke, keys.rotate):
        assert await code(act(caller, wide.public_id)) == "key_scope_exceeded"
    assert wide.public_id not in {key.public_id for key in await keys.page(caller)}
    assert await audited(house) == before
    # It passes for itself, and what a newer release knows of is nobody's to manage.
    itself = await house.verifier.verify(text)
    assert (await keys.get(itself, wide.public_id)).public_id == wide.public_id
    async with house.db.acquire() as conn:
        await conn.execute(
            "UPDATE api_keys SET permissions = '{messages:read,of:tomorrow}' WHERE id = $1",
            ladder.made["sibling"][0].id,
        )
    assert await code(keys.revoke(caller, ladder.made["sibling"][0].public_id)) == "key_scope_exceeded"


async def test_pages_are_whole_where_some_keys_are_wider(ladder: Ladder) -> None:
    house, keys = ladder.house, ladder.house.keys
    tenant = ladder.made["free"][0].tenant_id
    for number in range(12):
        names = READ if number % 3 == 0 else ("audit:read",)
        await keys.create(None, NewKey(f"k{number}", Level.TENANT, names, tenant))
        house.clock.advance(1)
    caller = await ladder.who("free")
    first = await keys.page(caller, limit=3)
    assert [key.name for key in first] == ["k9", "k6", "k3"]
    rest = await keys.page(caller, limit=3, after=(first[-1].created_at, first[-1].public_id))
    assert [key.name for key in rest] == ["k0", "k"]


@pytest.mark.covers("FR-KEY-2", "edge:J6", "security-privacy:A3.6")
async def test_rotated_twice_at_once_two_secrets_stay(ladder: Ladder) -> None:
    house, (key, first) = ladder.house, ladder.made["one"]
    rotated = await asyncio.gather(*(house.keys.rotate(None, key.public_id, 1) for _ in range(4)))
    texts = [first, *(text for _, text in rotated)]
    refused = [await code(house.verifier.verify(text)) for text in texts]
    assert sorted(str(one) for one in refused) == ["None", "None", *["unauthenticated"] * 3]
    assert refused[0] == "unauthenticated"
    house.clock.advance(3600)
    assert [await code(house.verifier.verify(text)) for text in texts].count(None) == 1
    assert [row["details"] for row in await audited(house) if row["action"] == "key.rotate"] == [
        {"overlap_hours": 1}
    ] * 4


@pytest.mark.covers("FR-KEY-2")
async def test_what_would_open_nothing_is_not_rotated(ladder: Ladder) -> None:
    house = ladder.house
    ends = house.clock.now() + timedelta(hours=1)
    key, text = await house.keys.create(None, NewKey("k", Level.PLATFORM, READ, expires_at=ends))
    _, fresh = await house.keys.rotate(None, key.public_id, 168)
    house.clock.advance(3600)
    for one in (text, fresh):  # the overlap lengthens no life
        assert await code(house.verifier.verify(one)) == "key_expired"
    with pytest.raises(PostroomError) as refused:
        await house.keys.rotate(None, key.public_id)
    assert (refused.value.code, refused.value.details) == ("invalid_request", {"reason": "key_expired"})


@pytest.mark.covers("edge:J6", "security-privacy:A3.6")
async def test_a_key_that_was_revoked_gets_no_secret_of_another(ladder: Ladder) -> None:
    """Whoever was let in a moment before: of a key that stays in force they learn nothing."""
    house, (other, text) = ladder.house, ladder.made["one"]
    caller = await ladder.who("platform")
    await house.keys.revoke(None, caller.public_id)
    assert await code(house.keys.rotate(caller, other.public_id, 0)) == "key_revoked"
    assert await code(house.verifier.verify(text)) is None


@pytest.mark.covers("edge:J6", "security-privacy:A3.6")
async def test_a_key_that_is_revoked_while_it_mints(ladder: Ladder) -> None:
    """What it makes is there when the revocation returns, or is not made: nothing appears afterwards."""
    house = ladder.house
    caller = await ladder.who("platform")
    wish = KeyRequest("k", Level.TENANT, READ, ladder.names["free"])
    minting = [asyncio.create_task(code(house.keys.mint(caller, wish))) for _ in range(30)]
    await asyncio.wait(minting, return_when=asyncio.FIRST_COMPLETED)
    await house.keys.revoke(None, caller.public_id)
    seen = {key.public_id for key in await house.keys.page(None, limit=101)}
    assert set(await asyncio.gather(*minting)) == {None, "key_revoked"}
    assert {key.public_id for key in await house.keys.page(None, limit=101)} == seen
    assert await code(house.keys.mint(caller, wish)) == "key_revoked"


# -- being let in


@pytest.mark.covers("security-privacy:A3.2", "edge:J13")
async def test_refusals_come_in_order(ladder: Ladder) -> None:
    """Revoked, expired, the tenant gone, the partner suspended: of several the first is told."""
    house, (key, text) = ladder.house, ladder.made["one"]
    await set_status(house, ladder.partner, "suspended")
    for name in ("partner", "one", "two", "one.bot", "sibling"):
        assert await code(house.verifier.verify(ladder.made[name][1])) == "partner_suspended"
    for name in ("platform", "other partner", "theirs", "free"):
        assert await code(house.verifier.verify(ladder.made[name][1])) is None
    await execute(house, "UPDATE tenants SET status = 'erasing' WHERE id = $1", key.tenant_id)
    assert await code(house.verifier.verify(text)) == "key_revoked"
    await execute(house, "UPDATE api_keys SET expires_at = $2 WHERE id = $1", key.id, house.clock.now())
    assert await code(house.verifier.verify(text)) == "key_expired"
    await house.keys.revoke(None, key.public_id)
    assert await code(house.verifier.verify(text)) == "key_revoked"
    assert await code(house.verifier.verify(text[:-1] + ("0" if text[-1] != "0" else "1"))) == "unauthenticated"
    await set_status(house, ladder.partner, "active")
    assert await code(house.verifier.verify(ladder.made["two"][1])) is None
    await set_status(house, ladder.partner, "deleted")
    assert await code(house.verifier.verify(ladder.made["partner"][1])) == "key_revoked"


@pytest.mark.covers("edge:J13")
async def test_connections_end_when_the_partner_is_suspended(ladder: Ladder) -> None:
    house, ended = ladder.house, list[str]()
    for name in ("one.bot", "theirs.bot"):
        house.standing.watch(await ladder.who(name), lambda name=name: ended.append(name))  # type: ignore[misc] # a default binds the name now
    await house.standing.check()
    assert ended == []
    await set_status(house, ladder.partner, "suspended")
    await house.standing.check()
    assert ended == ["one.bot"]


@pytest.mark.covers("security-privacy:A3.2", "decisions:B11")
async def test_a_miss_does_what_a_hit_does(ladder: Ladder, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read, one MAC and two comparisons, whatever of the key is wrong: nothing ends early."""
    house, text = ladder.house, ladder.made["one"][1]
    done: list[str] = []
    compare, digest = hmac.compare_digest, rules.mac

    def comparing(one: bytes, other: bytes) -> bool:
        done.append(f"compare {len(one)} {len(other)}")
        return compare(one, other)

    def digesting(pepper: bytes, token: str) -> bytes:
        done.append("mac")
        return digest(pepper, token)

    monkeypatch.setattr(hmac, "compare_digest", comparing)
    monkeypatch.setattr(rules, "mac", digesting)
    unknown = rules.draw(Mode.LIVE, lambda length: b"\5" * length).text
    wrong_secret = text[:30] + ("0" if text[30] != "0" else "1") + text[31:]
    work = []
    for one in (unknown, wrong_secret):
        done.clear()
        assert await code(house.verifier.verify(one)) == "unauthenticated"
        work.append(list(done))
    assert work[0] == work[1] == ["mac", "compare 32 32", "compare 32 32"]


@pytest.mark.covers("edge:J22")
def test_the_keys_of_a_partner_share_a_rate() -> None:
    rates = RateLimiter(ManualClock(datetime(2030, 1, 1, tzinfo=UTC)))
    keys = [
        replace(_caller(Level.PARTNER, frozenset(), (1, None, None)), public_id=f"key_{n}", partner_public_id="ptn_1")
        for n in range(4)
    ]
    refused = None
    for number in range(2000):
        decision = rates.hit_request(keys[number % 4])
        if not decision.allowed:
            refused = (number, decision.bucket)
            break
    assert refused == (1800, Bucket.PARTNER)
    stranger = replace(keys[0], public_id="key_9", partner_public_id="ptn_2")
    assert rates.hit_request(stranger).allowed


@pytest.mark.covers("security-privacy:A3.4")
async def test_usage_of_its_own_tenant_is_open_to_a_key(ladder: Ladder) -> None:
    for name, implicit in {"platform": False, "partner": False, "one": True, "one.bot": True}.items():
        assert (await ladder.who(name)).may(Permission.USAGE_READ) is implicit
        assert Permission.USAGE_READ not in ladder.made[name][0].permissions
    new = KeyRequest("k", Level.IDENTITY, ("usage:read",), ladder.names["one"], ladder.names["one.bot"])
    assert await code(ladder.house.keys.mint(await ladder.who("one"), new)) == "invalid_request"


@pytest.mark.covers("FR-KEY-4", "edge:J10")
async def test_a_partner_reaches_its_tenants_and_what_is_in_them(ladder: Ladder) -> None:
    house = ladder.house
    partner = await ladder.who("partner")
    for name in ("one", "two", "theirs", "free"):
        mine = name in ("one", "two")
        assert (await house.tenants.get(ladder.names[name])).is_reached_by(partner) is mine
        box = house.identities.get(partner.scope, ladder.names[f"{name}.bot"])
        assert await code(box) == (None if mine else "identity_not_found")
    nobody = partner_scope(2**40)
    assert await code(house.identities.get(nobody, ladder.names["free.bot"])) == "identity_not_found"
    for wrong in (Level.PARTNER, Level.TENANT):
        with pytest.raises(ValueError, match="keys of its level"):
            Scope(wrong)


# -- the people behind keys


@dataclass
class Office:
    """A tenant with an owner and an administrator, each with keys, and keys that those made."""

    house: House
    tenant: int
    people: dict[str, str]
    keys: dict[str, tuple[ApiKey, str]]

    async def state(self) -> dict[str, bool]:
        return {name: await code(self.house.verifier.verify(text)) is None for name, (_, text) in self.keys.items()}


@pytest.fixture
async def office(house: House) -> Office:
    tenant = await house.tenant("acme")
    people = {}
    for name, role in (("ada", MemberRole.OWNER), ("bo", MemberRole.ADMIN)):
        people[name] = (await house.people.create(NewPerson(name))).public_id
        await house.people.put_member(tenant.id, people[name], role, by_operator=True)
    keys: dict[str, tuple[ApiKey, str]] = {}
    for name, person in people.items():
        for which, names in (("wide", ("keys:manage", "audit:read")), ("narrow", ("messages:read",))):
            new = NewKey(which, Level.TENANT, names, tenant.id, person=person)
            keys[f"{name} {which}"] = await house.keys.create(None, new)
        parent = await house.verifier.verify(keys[f"{name} wide"][1])
        keys[f"{name} child"] = await house.keys.create(parent, NewKey("c", Level.TENANT, ("audit:read",), tenant.id))
    keys["nobody"] = await house.keys.create(None, NewKey("n", Level.TENANT, ("audit:read",), tenant.id))
    return Office(house, tenant.id, people, keys)


@pytest.mark.covers("FR-KEY-5", "edge:W36", "security-privacy:A3.7")
async def test_keys_inherit_who_is_behind_them_and_go_with_them(office: Office) -> None:
    house = office.house
    child = office.keys["bo child"][0]
    assert (child.created_by_person, child.created_by_role) == (office.people["bo"], MemberRole.ADMIN)
    assert child.created_by_key == office.keys["bo wide"][0].public_id
    assert office.keys["nobody"][0].created_by_person is None
    await house.people.remove(office.tenant, office.people["bo"])
    assert await office.state() == {name: not name.startswith("bo ") for name in office.keys}
    revoked = [row for row in await audited(house) if row["action"] == "key.revoke"]
    assert {row["target_id"] for row in revoked} == {
        key.public_id for name, (key, _) in office.keys.items() if name.startswith("bo ")
    }
    assert {row["details"]["reason"] for row in revoked} == {"creator_removed"}


@pytest.mark.covers("FR-KEY-5", "edge:W36", "security-privacy:A3.7")
async def test_a_lower_role_takes_the_keys_that_are_above_it(office: Office) -> None:
    house = office.house
    await house.people.put_member(office.tenant, office.people["bo"], MemberRole.MEMBER, by_operator=True)
    expected = {name: name not in ("bo wide", "bo child") for name in office.keys}
    assert await office.state() == expected
    assert (await house.keys.get(None, office.keys["bo narrow"][0].public_id)).created_by_role is MemberRole.MEMBER
    reasons = [row["details"] for row in await audited(house) if row["action"] == "key.revoke"]
    assert reasons == [{"reason": "creator_role_changed"}] * 2
    await house.people.put_member(office.tenant, office.people["bo"], MemberRole.ADMIN, by_operator=True)
    assert await office.state() == expected


@pytest.mark.covers("edge:W35", "FR-KEY-1", "security-privacy:A3.5")
async def test_erasing_a_tenant_wants_its_owner_behind_the_key(office: Office) -> None:
    house, names = office.house, ("tenants:erase", "erasure:manage", "keys:manage")

    def erasing(person: str | None) -> NewKey:
        return NewKey("e", Level.TENANT, names, office.tenant, person=person)

    for person in (None, office.people["bo"]):
        with pytest.raises(PostroomError) as refused:
            await house.keys.create(None, erasing(person))
        assert (refused.value.code, refused.value.details) == ("invalid_request", {"reason": "permission_owner_only"})
    _, text = await house.keys.create(None, erasing(office.people["ada"]))
    descendant = await house.verifier.verify(text)
    assert descendant.behind is MemberRole.OWNER
    child, _ = await house.keys.create(descendant, erasing(None))
    assert Permission.TENANTS_ERASE in child.permissions
    # A key of the owner's that lacks it gives it no more than any other.
    lacking = await house.verifier.verify(office.keys["ada wide"][1])
    assert await code(house.keys.create(lacking, erasing(None))) == "key_scope_exceeded"
    # The platform may hold it, and has no owner behind it.
    _, platform = await house.keys.create(None, NewKey("p", Level.PLATFORM, names))
    assert await code(house.keys.create(await house.verifier.verify(platform), erasing(None))) == "invalid_request"
    assert await code(house.keys.create(None, erasing(house.ids.new("usr_")))) == "person_not_found"
    assert await code(house.keys.create(None, NewKey("k", Level.PLATFORM, READ, person="usr_x"))) == "person_not_found"


@pytest.mark.covers("edge:W36")
async def test_who_is_removed_while_their_key_mints_leaves_no_key(office: Office) -> None:
    house = office.house
    caller = await house.verifier.verify(office.keys["bo wide"][1])
    new = NewKey("late", Level.TENANT, ("audit:read",), office.tenant)
    work = [code(house.keys.create(caller, new)) for _ in range(6)]
    work.insert(3, code(house.people.remove(office.tenant, office.people["bo"])))
    outcomes = await asyncio.gather(*work)
    assert outcomes[3] is None
    assert set(outcomes) <= {None, "key_revoked"}
    live = [key for key in await house.keys.page(None, limit=101) if key.revoked_at is None]
    assert not [key for key in live if key.created_by_person == office.people["bo"]]


def test_a_role_has_room_for_what_a_tenant_key_may_hold() -> None:
    assert ROOM_OF_ROLE["owner"] == MAY_HOLD[Level.TENANT]
    assert ROOM_OF_ROLE["admin"] == ROOM_OF_ROLE["owner"] - OWNER_ONLY
    assert ROOM_OF_ROLE["member"] < ROOM_OF_ROLE["admin"]
    assert Permission.KEYS_MANAGE not in ROOM_OF_ROLE["member"]
