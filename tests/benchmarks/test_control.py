"""The control plane as it is measured: over HTTP, and at two sizes that are filled by plain SQL."""

import asyncio

import asyncpg
import pytest

from benchmarks import control, control_scale
from benchmarks.common import Server
from benchmarks.control_fill import Size
from postroom.accounts import tenant_scope
from postroom.accounts.models import PLATFORM_SCOPE, partner_scope
from postroom.directory import Recipient

SMALL, LARGE = Size(2, 30), Size(12, 30)


def test_gets_are_measured_with_keys_that_may() -> None:
    with Server(people=0, agents=2, roles="smtp,http,worker") as server:
        keys = server.platform_keys(3)
        assert len(set(keys)) == 3
        asker = control.Asker(server.http_port, keys)
        for path, _ in control.paths(server).values():
            load = asyncio.run(asker.load(path, 10, 3))
            assert len(load.times) == 10
            assert load.rate > 0
            assert 0 < load.p50 <= max(load.times)
        with pytest.raises(RuntimeError, match="identity_not_found"):
            asyncio.run(asker.load("/v1/identities/idn_0", 1, 1))


async def test_what_is_filled_is_as_the_services_make_it(database_url: str) -> None:
    async with control_scale.opened(database_url, LARGE) as house:
        for identity in (1, 12, 13, LARGE.all_identities):
            tenant = LARGE.tenant_of(identity)
            found = await house.directory.resolve(LARGE.address_of(identity))
            assert isinstance(found, Recipient)
            assert (found.tenant_id, found.mailbox_id) == (tenant, identity)
            made = await house.identities.by_address(tenant_scope(tenant), LARGE.address_of(identity))
            assert (made.created_at, made.public_id) == LARGE.made(identity)
        (newest, *_) = await house.identities.page(PLATFORM_SCOPE, None)
        assert newest.id == LARGE.all_identities
        assert len(await house.identities.page(tenant_scope(3), 3, limit=100)) == LARGE.identities
        # Of the first partner's ten tenants, and of the two that the second has.
        for partner, tenants in ((1, range(1, 11)), (2, range(11, 13))):
            assert sorted(one.id for one in await house.tenants.search(partner_id=partner)) == list(tenants)
            listed = await house.identities.page(partner_scope(partner), None, limit=100)
            assert {one.tenant_id for one in listed} == set(tenants)
        for question in house.questions().values():
            assert await question() != []


async def test_keys_that_are_filled_can_be_used(database_url: str) -> None:
    """New rows are numbered after those that are there."""
    async with control_scale.opened(database_url, SMALL) as house:
        assert {(await house.verifier.verify(secret)).tenant_id for secret in house.secrets} == {1, 2}
    connection = await asyncpg.connect(database_url, server_settings={"search_path": "postroom, public"})
    try:
        keys = await connection.fetchval("SELECT count(*) FROM api_keys")
    finally:
        await connection.close()
    assert keys == len(house.secrets) + SMALL.all_identities // 10


async def test_both_sizes_and_their_ratio_are_told() -> None:
    filling, *rows = await control_scale.measure(SMALL, LARGE, 20)
    assert filling["name"] == "filling 12 tenants, 360 identities"
    assert len(rows) % 3 == 0
    for few, many, ratio in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert few["name"].endswith("2 tenants, p50")
        assert many["name"].endswith("12 tenants, p50")
        assert ratio["target"] == control_scale.RATIO
        assert ratio["value"] == pytest.approx(many["value"] / few["value"], rel=0.01)
