"""The deployment row and tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.accounts import DeploymentMismatch, Mode, NewTenant, TenantStatus, ensure_deployment, tenant_scope
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database

if TYPE_CHECKING:
    from tests.accounts.conftest import House


async def test_a_deployment_is_recorded_once(db: Database, ids: IdGenerator, clock: ManualClock) -> None:
    await ensure_deployment(db, ids, clock, "store-1", "agents.example")
    await ensure_deployment(db, ids, clock, "store-1", "agents.example")
    async with db.acquire() as conn:
        rows = await conn.fetch("SELECT name, kind, tenant_id FROM domains")
    assert [tuple(row) for row in rows] == [("agents.example", "platform", None)]


@pytest.mark.parametrize(
    ("store", "domain", "says"),
    [("store-2", "agents.example", "mail store"), ("store-1", "other.example", "platform domain")],
)
async def test_another_deployment_is_refused(
    db: Database, ids: IdGenerator, clock: ManualClock, store: str, domain: str, says: str
) -> None:
    await ensure_deployment(db, ids, clock, "store-1", "agents.example")
    with pytest.raises(DeploymentMismatch, match=says):
        await ensure_deployment(db, ids, clock, store, domain)


@pytest.mark.covers("edge:D12", "FR-TEN-1")
async def test_suffixes_keep_tenants_apart(house: House) -> None:
    default = await house.tenant("main", is_default=True)
    acme = await house.tenant("acme")
    assert (default.address_suffix, acme.address_suffix) == ("", ".acme")
    for new, code in [
        (NewTenant("acme", "x"), "slug_taken"),
        (NewTenant("acrne", "x"), "suffix_taken"),
        (NewTenant("other", "x", address_suffix=".acme"), "suffix_taken"),
        (NewTenant("main2", "x", is_default=True), "suffix_taken"),
        (NewTenant("stripe", "x", address_suffix=".supp0rt"), "address_reserved"),
        (NewTenant("stripe", "x"), "address_reserved"),
        (NewTenant("shop", "x", address_suffix=".paypa1"), "address_reserved"),
        (NewTenant("billing", "x"), "address_reserved"),
        (NewTenant("X", "x"), "invalid_request"),
        (NewTenant("ok-name", ""), "invalid_request"),
    ]:
        with pytest.raises(PostroomError) as refused:
            await house.tenants.create(new)
        assert refused.value.code == code, new


async def test_tenants_are_read_and_paged(house: House) -> None:
    made = []
    for name in ("one", "two", "three"):
        house.clock.advance(1)
        made.append(await house.tenant(name, mode=Mode.TEST))
    assert await house.tenants.get(made[0].public_id) == made[0]
    assert await house.tenants.get_by_slug("two") == made[1]
    first = await house.tenants.page(limit=2)
    rest = await house.tenants.page(limit=2, after=(first[-1].created_at, first[-1].public_id))
    assert [*first, *rest] == made[::-1]
    with pytest.raises(PostroomError, match="No such tenant"):
        await house.tenants.get("ten_01J9Z3K8V4QW7X2M5N6P8R0T1Y")


@pytest.mark.covers("FR-TEN-3", "edge:A7")
async def test_suspension_pauses_what_was_active_and_resuming_reverses_only_that(house: House) -> None:
    tenant = await house.tenant("acme")
    running, resting = await house.identity(tenant, "running"), await house.identity(tenant, "resting")
    scope = tenant_scope(tenant.id)
    await house.identities.pause(scope, resting.public_id)
    suspended = await house.identities.suspend_tenant(tenant.id, "partner")
    assert (suspended.status, suspended.suspended_by) == (TenantStatus.SUSPENDED, "partner")
    assert (await house.identities.get(scope, running.public_id)).pause_reason == "tenant_suspended"
    with pytest.raises(PostroomError) as refused:
        await house.identities.resume(scope, running.public_id)
    assert refused.value.code == "identity_paused"
    # The platform takes a partner's suspension over, keeping its time; the partner can no longer lift it (J17).
    house.clock.advance(60)
    taken = await house.identities.suspend_tenant(tenant.id, "platform")
    assert (taken.suspended_by, taken.suspended_at) == ("platform", suspended.suspended_at)
    assert (await house.identities.suspend_tenant(tenant.id, "partner")).suspended_by == "platform"
    with pytest.raises(PostroomError) as refused:
        await house.identities.resume_tenant(tenant.id, "partner")
    assert refused.value.code == "scope_denied"
    await house.identities.resume_tenant(tenant.id)
    assert (await house.identities.get(scope, running.public_id)).status == "active"
    assert (await house.identities.get(scope, resting.public_id)).pause_reason == "manual"
