"""API keys: verification, minting, management (security-privacy A3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts import Level, Mode, NewKey, Permission, Principal, PrincipalKind, bearer
from postroom.accounts import keys as rules
from postroom.accounts.permissions import MAY_HOLD
from postroom.base.errors import PostroomError

if TYPE_CHECKING:
    from tests.accounts.conftest import House

READ = ("messages:read",)


def test_the_form_of_a_key() -> None:
    token = rules.draw(Mode.LIVE, lambda length: b"\xff" * length)
    assert token.text == "pmk_live_" + "z" * 12 + "_" + "z" * 52
    assert rules.parse(token.text) == token
    assert token.text not in repr(token)


@given(st.text(max_size=90) | st.from_regex(r"pmk_(live|test)_[0-9a-z]{12}_[0-9a-z]{52}", fullmatch=True))
def test_parsing_takes_only_the_form(text: str) -> None:
    token = rules.parse(text)
    if token is not None:
        assert token.text == text
        assert not set("iluo") & set(text[9:])
        assert text.split("_")[1:3] == [token.mode, token.lookup]


@pytest.mark.parametrize("tail", ["\n", " ", "x", "_"])
def test_nothing_follows_a_key(tail: str) -> None:
    assert rules.parse(rules.draw(Mode.TEST, lambda length: b"\1" * length).text + tail) is None


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (None, None),
        ("", None),
        ("Bearer x", "x"),
        ("bearer  x ", "x"),
        ("Basic x", None),
        ("Bearer", None),
        ("Bearer ", None),
    ],
)
def test_bearer(header: str | None, token: str | None) -> None:
    assert bearer(header) == token


async def answer(house: House, text: str | None) -> bytes | Principal:
    """What the edge would send."""
    try:
        return await house.verifier.verify(text)
    except PostroomError as error:
        return f"{error.status} {error.envelope('req_1')} {error.retry_after}".encode()


def refusal(work: Callable[[], object]) -> str | None:
    try:
        work()
    except PostroomError as error:
        return error.code
    return None


def spoil(text: str, at: int) -> str:
    return text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]


@pytest.mark.covers("decisions:B11", "FR-KEY-2")
async def test_every_wrong_key_gets_the_same_answer(house: House) -> None:
    tenant = await house.tenant("acme")
    key, text = await house.keys.create(None, NewKey("k", Level.TENANT, READ, tenant.id))
    _, fresh = await house.keys.rotate(None, key.public_id, 1)
    principal = await answer(house, text)
    assert isinstance(principal, Principal)
    assert principal == await answer(house, fresh)
    house.clock.advance(3600)
    swapped = fresh.replace("_live_", "_test_")
    wrong = [None, "", "nonsense", spoil(fresh, 10), spoil(fresh, 30), swapped, text, fresh + "0", fresh.upper()]
    answers = {await answer(house, one) for one in wrong}
    assert len(answers) == 1
    assert b"unauthenticated" in answers.pop()  # type: ignore[operator] # a Principal would fail as well
    async with house.db.acquire() as conn:
        assert await conn.fetchval("SELECT hash FROM api_keys") == rules.mac(b"p" * 32, fresh)
        await conn.execute("UPDATE api_keys SET mode = 'test'")
    assert b"unauthenticated" in await answer(house, fresh)  # type: ignore[operator] # a Principal would fail as well


@pytest.mark.covers("FR-KEY-2", "FR-KEY-3")
async def test_revoked_and_expired_are_told_to_the_holder_only(house: House) -> None:
    tenant = await house.tenant("acme")
    soon = house.clock.now() + timedelta(minutes=1)
    _, expiring = await house.keys.create(None, NewKey("k", Level.TENANT, READ, tenant.id, expires_at=soon))
    key, revoked = await house.keys.create(None, NewKey("k", Level.TENANT, READ, tenant.id))
    principal = await answer(house, expiring)
    assert isinstance(principal, Principal)
    assert (principal.tenant_id, principal.tenant_public_id) == (tenant.id, tenant.public_id)
    house.clock.advance(60)
    await house.keys.revoke(None, key.public_id)
    await house.keys.revoke(None, key.public_id)
    assert b"key_expired" in await answer(house, expiring)  # type: ignore[operator] # a Principal would fail as well
    assert b"key_revoked" in await answer(house, revoked)  # type: ignore[operator] # a Principal would fail as well
    for text in (expiring, revoked):
        # A Principal would fail as well.
        assert b"unauthenticated" in await answer(house, spoil(text, 40))  # type: ignore[operator]
    with pytest.raises(PostroomError) as refused:
        await house.keys.rotate(None, key.public_id)
    # Not the code of a caller whose own key is revoked.
    assert (refused.value.code, refused.value.details) == ("invalid_request", {"reason": "key_revoked"})


async def test_keys_follow_their_tenant(house: House) -> None:
    tenant = await house.tenant("acme", mode=Mode.TEST)
    identity = await house.identity(tenant, "bot")
    _, text = await house.keys.create(None, NewKey("k", Level.IDENTITY, READ, tenant.id, identity.id))
    assert text.startswith("pmk_test_")
    for status, passes in [("suspended", True), ("erasing", False), ("erased", False)]:
        async with house.db.acquire() as conn:
            await conn.execute("UPDATE tenants SET status = $1", status)
        found = await answer(house, text)
        assert isinstance(found, Principal) is passes
        if not passes:
            assert b"key_revoked" in found  # type: ignore[operator] # a Principal would fail as well


@pytest.mark.covers("FR-KEY-1")
@pytest.mark.parametrize(
    ("level", "permissions", "reason"),
    [
        (Level.TENANT, (), None),
        (Level.TENANT, ("messages:fly",), None),
        (Level.IDENTITY, ("policy:write",), "permission_not_allowed_for_level"),
        (Level.TENANT, ("platform:ops",), "permission_not_allowed_for_level"),
        (Level.PLATFORM, ("identities:sign",), "permission_not_allowed_for_level"),
        (Level.TENANT, ("tenants:erase",), "permission_owner_only"),
    ],
)
def test_permissions_a_level_cannot_hold(level: Level, permissions: tuple[str, ...], reason: str | None) -> None:
    with pytest.raises(PostroomError) as refused:
        rules.check_permissions(level, permissions)
    assert refused.value.code == "invalid_request"
    assert (refused.value.details or {}).get("reason") == reason


def caller(level: Level, permissions: frozenset[Permission], tenant: int | None, identity: int | None) -> Principal:
    return Principal(
        PrincipalKind.KEY, "key_x", 1, level, permissions, Mode.LIVE, tenant_id=tenant, identity_id=identity
    )


PLACES = [
    (Level.PLATFORM, None, None),
    (Level.TENANT, 1, None),
    (Level.TENANT, 2, None),
    (Level.IDENTITY, 1, 11),
    (Level.IDENTITY, 1, 12),
    (Level.IDENTITY, 2, 21),
]


@pytest.mark.covers("FR-KEY-1", "FR-KEY-3", "SEC-2")
@given(
    st.sampled_from(PLACES),
    st.sampled_from(PLACES),
    st.frozensets(st.sampled_from(Permission)),
    st.frozensets(st.sampled_from(Permission), min_size=1),
)
def test_no_key_mints_a_wider_one(
    mine: tuple[Level, int | None, int | None],
    theirs: tuple[Level, int | None, int | None],
    held: frozenset[Permission],
    wanted: frozenset[Permission],
) -> None:
    parent = caller(mine[0], held & MAY_HOLD[mine[0]], mine[1], mine[2])
    new = NewKey("k", theirs[0], tuple(wanted), theirs[1], theirs[2])
    refused = refusal(lambda: rules.check_reach(parent, new, wanted))
    if refused is not None:
        assert refused == "key_scope_exceeded"
        return
    extra = {Permission.IDENTITIES_SIGN} if mine[0] is Level.PLATFORM else set()
    implied = {Permission.ACCOUNTS_REQUEST, Permission.WEBHOOKS_READ}
    assert wanted <= parent.permissions | extra | implied
    if mine[0] is not Level.PLATFORM:
        assert theirs[1] == mine[1]
    if mine[0] is Level.IDENTITY:
        assert theirs == mine


@given(st.sampled_from(PLACES), st.sampled_from([(1, 11), (1, 12), (2, 21)]))
def test_reach(mine: tuple[Level, int | None, int | None], target: tuple[int, int]) -> None:
    principal = caller(mine[0], frozenset(), mine[1], mine[2])
    tenant, identity = target
    assert principal.reaches_tenant(tenant) is (
        mine[0] is Level.PLATFORM or (mine[0] is Level.TENANT and mine[1] == tenant)
    )
    assert principal.reaches_identity(tenant, identity) is (
        principal.reaches_tenant(tenant) or (mine[1], mine[2]) == target
    )


@pytest.mark.covers("FR-KEY-3", "SEC-1")
async def test_keys_of_others_look_missing(house: House) -> None:
    acme, other = await house.tenant("acme"), await house.tenant("other")
    bot = await house.identity(acme, "bot")
    manage = ("keys:manage", "messages:read")
    made = {
        "platform": await house.keys.create(None, NewKey("p", Level.PLATFORM, manage)),
        "acme": await house.keys.create(None, NewKey("t", Level.TENANT, manage, acme.id)),
        "other": await house.keys.create(None, NewKey("t", Level.TENANT, manage, other.id)),
        "bot": await house.keys.create(None, NewKey("i", Level.IDENTITY, READ, acme.id, bot.id)),
        "strong": await house.keys.create(None, NewKey("s", Level.TENANT, ("erasure:manage",), acme.id)),
    }
    expected = {
        ("platform", "other"): None,
        ("acme", "platform"): "key_not_found",
        ("acme", "other"): "key_not_found",
        ("acme", "bot"): None,
        ("acme", "strong"): "key_scope_exceeded",
        ("other", "bot"): "key_not_found",
        ("bot", "acme"): "key_not_found",
        ("bot", "bot"): None,
    }
    for (who, target), code in expected.items():
        principal = await house.verifier.verify(made[who][1])
        listed = {key.public_id for key in await house.keys.page(principal)}
        public_id = made[target][0].public_id
        assert (public_id in listed) is (code is None)
        if code is None:
            assert (await house.keys.get(principal, public_id)).public_id == public_id
        else:
            for act in (house.keys.get, house.keys.revoke, house.keys.rotate):
                with pytest.raises(PostroomError) as refused:
                    await act(principal, public_id)
                assert refused.value.code == code
    for _, text in made.values():
        assert isinstance(await house.verifier.verify(text), Principal)


async def test_minting_checks_what_is_there(house: House) -> None:
    acme, other = await house.tenant("acme"), await house.tenant("other")
    bot = await house.identity(acme, "bot")
    for new, code in [
        (NewKey("k", Level.TENANT, READ), "invalid_request"),
        (NewKey("k", Level.PLATFORM, READ, acme.id), "invalid_request"),
        (NewKey("k", Level.PARTNER, READ), "invalid_request"),
        (NewKey("", Level.PLATFORM, READ), "invalid_request"),
        (NewKey("k", Level.PLATFORM, READ, expires_at=house.clock.now()), "invalid_request"),
        (NewKey("k", Level.TENANT, READ, 999_999), "tenant_not_found"),
        (NewKey("k", Level.IDENTITY, READ, other.id, bot.id), "identity_not_found"),
    ]:
        with pytest.raises(PostroomError) as refused:
            await house.keys.create(None, new)
        assert refused.value.code == code


async def test_a_tenant_has_a_hundred_active_keys(house: House) -> None:
    tenant = await house.tenant("acme")
    for _ in range(100):
        key, _ = await house.keys.create(None, NewKey("k", Level.TENANT, READ, tenant.id))
    with pytest.raises(PostroomError) as refused:
        await house.keys.create(None, NewKey("k", Level.TENANT, READ, tenant.id))
    assert (refused.value.code, refused.value.details) == ("key_limit_reached", {"limit": 100})
    await house.keys.revoke(None, key.public_id)
    await house.keys.create(None, NewKey("k", Level.TENANT, READ, tenant.id))


async def test_the_bootstrap_key_is_made_once_and_lives_a_day(house: House) -> None:
    text = await house.keys.bootstrap()
    assert text is not None
    assert await house.keys.bootstrap() is None
    principal = await house.verifier.verify(text)
    assert principal.level is Level.PLATFORM
    assert principal.may(Permission.PLATFORM_OPS, Permission.KEYS_MANAGE)
    house.clock.advance(24 * 3600)
    assert b"key_expired" in await answer(house, text)  # type: ignore[operator] # a Principal would fail as well


async def test_last_use_is_written_once_a_minute(house: House) -> None:
    tenant = await house.tenant("acme")
    key, text = await house.keys.create(None, NewKey("k", Level.TENANT, READ, tenant.id))
    first = house.clock.now()
    for _ in range(3):
        await house.verifier.verify(text)
        await house.verifier.flush_used()
        house.clock.advance(19)
    assert (await house.keys.get(None, key.public_id)).last_used_at == first
    house.clock.advance(10)
    await house.verifier.verify(text)
    await house.verifier.flush_used()
    assert (await house.keys.get(None, key.public_id)).last_used_at == house.clock.now()


@pytest.mark.covers("decisions:B10")
async def test_noting_uses_waits_for_nobody(house: House, database_url: str) -> None:
    """Another node notes the same keys in another order, and holds one of them."""
    tenant = await house.tenant("acme")
    made = [await house.keys.create(None, NewKey("k", Level.TENANT, READ, tenant.id)) for _ in range(2)]
    conn = await asyncpg.connect(database_url)
    try:
        async with conn.transaction():
            await conn.execute("SELECT FROM api_keys WHERE public_id = $1 FOR NO KEY UPDATE", made[0][0].public_id)
            for _, text in made:
                await house.verifier.verify(text)
            async with asyncio.timeout(20):
                await house.verifier.flush_used()
    finally:
        await conn.close()
    used = [(await house.keys.get(None, key.public_id)).last_used_at for key, _ in made]
    assert used == [None, house.clock.now()]
