"""Partners, and the tenants that their keys make (FR-KEY-4; A3.8; J10–J13, J17, J18)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.accounts import Level, NewTenant, Permission, Principal, PrincipalKind, Tenant, Tenants
from postroom.accounts.models import BillingMode, TenantChanges, TenantStatus
from postroom.accounts.partners import NewPartner, Partner, PartnerChanges, PartnerStatus
from postroom.accounts.permissions import MAY_HOLD
from postroom.accounts.policy_rules import Stance
from postroom.accounts.service.partners import Partners
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Connection, Database


def key_of(partner: Partner, *, at: int = 1) -> Principal:
    """A caller with a key of the partner."""
    return Principal(
        kind=PrincipalKind.KEY,
        public_id=f"key_{at:026d}",
        row_id=at,
        level=Level.PARTNER,
        permissions=MAY_HOLD[Level.PARTNER],
        partner_id=partner.id,
        partner_public_id=partner.public_id,
    )


def tenant_key(tenant: Tenant) -> Principal:
    return Principal(
        kind=PrincipalKind.KEY,
        public_id="key_00000000000000000000000009",
        row_id=9,
        level=Level.TENANT,
        permissions=frozenset({Permission.POLICY_WRITE}),
        tenant_id=tenant.id,
        tenant_public_id=tenant.public_id,
    )


async def nobody_follows(conn: Connection, tenant: Tenant, now: object) -> None:
    pass


@pytest.fixture
def partners(db: Database, ids: IdGenerator, clock: ManualClock) -> Partners:
    return Partners(db, ids, clock)


@pytest.fixture
def tenants(db: Database, ids: IdGenerator, clock: ManualClock) -> Tenants:
    return Tenants(db, ids, clock, Stance(keys_decide=False))


async def code_of(doing: Any) -> tuple[str, dict[str, Any]]:
    with pytest.raises(PostroomError) as caught:
        await doing
    return caught.value.code, dict(caught.value.details or {})


async def erase(db: Database, tenant: Tenant, status: str = "erased") -> None:
    async with db.acquire() as conn:
        await conn.execute("UPDATE tenants SET status = $2, suspended_by = NULL WHERE id = $1", tenant.id, status)


async def actions(db: Database, target: str) -> list[str]:
    async with db.acquire() as conn:
        rows = await conn.fetch("SELECT action FROM audit_log WHERE target_id = $1 ORDER BY id", target)
    return [row["action"] for row in rows]


async def test_a_partner_is_made_read_and_changed(partners: Partners, db: Database) -> None:
    made = await partners.create(NewPartner("Integrator"))
    assert (made.status, made.max_tenants, made.default_billing_mode, made.ramp_exempt) == (
        *(PartnerStatus.ACTIVE, 25, BillingMode.METERED, False),
    )
    after = await partners.update(made.public_id, PartnerChanges(name="Other", max_tenants=0, ramp_exempt=True))
    assert (after.name, after.max_tenants, after.ramp_exempt) == ("Other", 0, True)
    assert await partners.get(made.public_id) == after
    assert await actions(db, made.public_id) == ["partner.create", "partner.update"]
    for wrong in (
        partners.create(NewPartner("")),
        partners.create(NewPartner("a\nb")),
        partners.create(NewPartner("a", max_tenants=-1)),
        partners.create(NewPartner("a", BillingMode.DISABLED)),
        partners.update(made.public_id, PartnerChanges(status=PartnerStatus.DELETED)),
    ):
        assert (await code_of(wrong))[0] == "invalid_request"
    assert (await code_of(partners.get("ptn_nothing")))[0] == "partner_not_found"


@pytest.mark.covers("FR-KEY-4")
async def test_a_partners_tenant_is_its_own_for_good(partners: Partners, tenants: Tenants) -> None:
    partner = await partners.create(NewPartner("One", BillingMode.EXEMPT))
    other = await partners.create(NewPartner("Two"))
    mine = await tenants.create(NewTenant("mine", "Mine"), caller=key_of(partner))
    free = await tenants.create(NewTenant("free", "Free"))
    assert (mine.partner_id, mine.partner_public_id) == (partner.id, partner.public_id)
    assert mine.is_reached_by(key_of(partner))
    assert not mine.is_reached_by(key_of(other))
    # A tenant of no partner is not that of a key without one (A3.8).
    nobody = Principal(PrincipalKind.KEY, "key_1", 1, Level.PARTNER, frozenset())
    assert not free.is_reached_by(nobody)
    assert not free.is_reached_by(key_of(partner))
    assert [one.slug for one in await tenants.search(partner_id=partner.id)] == ["mine"]
    assert await code_of(
        tenants.create(NewTenant("x1", "X", billing_mode=BillingMode.DISABLED), caller=key_of(partner))
    ) == ("scope_denied", {"field": "billing"})


@pytest.mark.covers("edge:J18")
async def test_the_last_tenant_that_a_partner_may_have(
    partners: Partners, tenants: Tenants, db: Database, ids: IdGenerator, clock: ManualClock
) -> None:
    """From many connections at once: exactly as many as it may have, also when one of them is erased meanwhile."""
    partner = await partners.create(NewPartner("One", max_tenants=2))
    nodes = [Tenants(db, ids, clock) for _ in range(6)]
    done = await asyncio.gather(
        *(node.create(NewTenant(f"t{at}", "T"), caller=key_of(partner)) for at, node in enumerate(nodes)),
        return_exceptions=True,
    )
    made = [one for one in done if isinstance(one, Tenant)]
    refused = [one for one in done if isinstance(one, PostroomError)]
    assert (len(made), len(refused)) == (2, 4)
    assert {(one.code, (one.details or {})["max_tenants"]) for one in refused} == {("partner_tenant_limit", 2)}
    await erase(db, made[0])
    await tenants.create(NewTenant("again", "Again"), caller=key_of(partner))
    assert (await code_of(tenants.create(NewTenant("over", "Over"), caller=key_of(partner))))[0] == (
        "partner_tenant_limit"
    )
    # Fewer than there are takes none away.
    await partners.update(partner.public_id, PartnerChanges(max_tenants=0))
    assert len(await tenants.search(partner_id=partner.id, status=TenantStatus.ACTIVE)) == 2


@pytest.mark.covers("edge:J12")
async def test_a_partner_goes_with_its_last_tenant(partners: Partners, tenants: Tenants, db: Database) -> None:
    partner = await partners.create(NewPartner("One"))
    mine = await tenants.create(NewTenant("mine", "Mine"), caller=key_of(partner))
    for status in ("active", "suspended", "erasing"):
        await erase(db, mine, status)
        assert await code_of(partners.delete(partner.public_id)) == ("partner_has_tenants", {"tenants": 1})
    assert (await partners.get(partner.public_id)).name == "One"
    await erase(db, mine)
    await partners.delete(partner.public_id)
    gone = await partners.get(partner.public_id)
    assert (gone.status, gone.name) == (PartnerStatus.DELETED, "")
    assert (await tenants.get(mine.public_id)).partner_public_id == partner.public_id
    for again in (
        partners.delete(partner.public_id),
        partners.update(partner.public_id, PartnerChanges(name="Back")),
        partners.update(partner.public_id, PartnerChanges(status=PartnerStatus.ACTIVE)),
    ):
        assert (await code_of(again))[0] == "partner_not_found"
    assert (await code_of(tenants.create(NewTenant("late", "Late"), caller=key_of(partner))))[0] == "key_revoked"


@pytest.mark.covers("edge:J12")
async def test_a_tenant_made_while_its_partner_goes(partners: Partners, tenants: Tenants) -> None:
    """One of the two happens, never both: no live tenant is left of a deleted partner."""
    for at in range(5):
        partner = await partners.create(NewPartner(f"P{at}"))
        made, deleted = await asyncio.gather(
            tenants.create(NewTenant(f"race{at}", "R"), caller=key_of(partner)),
            partners.delete(partner.public_id),
            return_exceptions=True,
        )
        if isinstance(made, Tenant):
            assert isinstance(deleted, PostroomError)
            assert deleted.code == "partner_has_tenants"
        else:
            assert isinstance(made, PostroomError)
            assert made.code == "key_revoked"
            assert deleted is None


async def test_what_else_goes_with_a_partner_goes_with_it_or_not_at_all(
    db: Database, ids: IdGenerator, clock: ManualClock
) -> None:
    told: list[str] = []

    async def keys_go(conn: Connection, partner: Partner, now: object) -> None:
        told.append(partner.public_id)
        if len(told) == 1:
            raise PostroomError("unavailable")

    partners = Partners(db, ids, clock, ended=(keys_go,))
    partner = await partners.create(NewPartner("One"))
    assert (await code_of(partners.delete(partner.public_id)))[0] == "unavailable"
    assert (await partners.get(partner.public_id)).status is PartnerStatus.ACTIVE
    await partners.delete(partner.public_id)
    assert told == [partner.public_id] * 2


@pytest.mark.covers("edge:J17")
async def test_a_partner_does_not_undo_what_the_platform_did(
    partners: Partners, tenants: Tenants, db: Database
) -> None:
    partner = await partners.create(NewPartner("One"))
    key = key_of(partner)
    mine = await tenants.create(NewTenant("mine", "Mine"), caller=key)

    async def move(status: TenantStatus, caller: Principal | None) -> Tenant:
        return await tenants.update(mine.id, TenantChanges(status=status), caller=caller, follow=nobody_follows)

    assert (await move(TenantStatus.SUSPENDED, key)).suspended_by == "partner"
    assert (await move(TenantStatus.ACTIVE, key)).suspended_by is None
    assert (await move(TenantStatus.SUSPENDED, None)).suspended_by == "platform"
    assert (await move(TenantStatus.SUSPENDED, key)).suspended_by == "platform"
    assert await code_of(move(TenantStatus.ACTIVE, key)) == ("scope_denied", {"field": "status"})
    lift = TenantChanges(resume_sending=True)
    assert await code_of(tenants.update(mine.id, lift, caller=key, follow=nobody_follows)) == (
        *("scope_denied", {"field": "sending_paused"}),
    )
    # Whatever else is asked for with it is not done either.
    both = TenantChanges(name="Other", policy={"link_ttl_hours": 9}, status=TenantStatus.ACTIVE)
    assert (await code_of(tenants.update(mine.id, both, caller=key, follow=nobody_follows)))[0] == "scope_denied"
    now = await tenants.get(mine.public_id)
    assert (now.name, now.policy_version, now.suspended_by) == ("Mine", 0, "platform")
    assert (await actions(db, mine.public_id)).count("tenant.update") == 4


async def test_a_suspended_partner_makes_no_tenants(partners: Partners, tenants: Tenants) -> None:
    partner = await partners.create(NewPartner("One"))
    await partners.update(partner.public_id, PartnerChanges(status=PartnerStatus.SUSPENDED))
    refused = await code_of(tenants.create(NewTenant("mine", "Mine"), caller=key_of(partner)))
    assert refused[0] == "partner_suspended"
    await partners.update(partner.public_id, PartnerChanges(status=PartnerStatus.ACTIVE))
    await tenants.create(NewTenant("mine", "Mine"), caller=key_of(partner))


@pytest.mark.covers("edge:J26", "edge:J16")
async def test_ceilings_of_platform_and_partner_are_kept(partners: Partners, tenants: Tenants) -> None:
    partner = await partners.create(NewPartner("One"))
    policy = {"max_recipients": 8, "quarantine": {"key_release": True, "spam_threshold": 0.9}}
    mine = await tenants.create(NewTenant("mine", "Mine", policy=policy), caller=key_of(partner))
    assert mine.policy.partner == {"max_recipients": 8}
    assert mine.policy.platform == {}
    assert mine.policy_version == 0
    told = await code_of(tenants.change_policy(mine.id, {"max_recipients": 9}, caller=tenant_key(mine)))
    wanted = {"field": "max_recipients", "reason": "above_ceiling", "ceiling": 8, "ceiling_source": "partner"}
    assert told == ("scope_denied", wanted)
    await tenants.change_policy(mine.id, {"max_recipients": 5})
    for caller in (key_of(partner), tenant_key(mine)):
        told = await code_of(tenants.change_policy(mine.id, {"max_recipients": 6}, caller=caller))
        assert told[1]["ceiling_source"] == "platform"
    over = NewTenant("over", "Over", policy={"tenant_daily_send_cap": 5001})
    told = await code_of(tenants.create(over, caller=key_of(partner)))
    assert (told[0], told[1]["ceiling_source"]) == ("scope_denied", "deployment")
    # Keys may take people's decisions here, since the partner has said so.
    after = await tenants.change_policy(mine.id, {"quarantine": {"on_auth_fail": False}}, caller=tenant_key(mine))
    assert not after.policy.under().quarantine_on_auth_fail


@pytest.mark.covers("edge:J27")
async def test_policies_written_at_once(tenants: Tenants, db: Database, ids: IdGenerator, clock: ManualClock) -> None:
    """Two nodes: both are there, each checked against what it replaced, with a row of its own in the audit log."""
    tenant = await tenants.create(NewTenant("one", "One"))
    other = Tenants(db, ids, clock)
    for at in range(5):
        await asyncio.gather(
            tenants.change_policy(tenant.id, {"max_recipients": 10 + at}),
            other.change_policy(tenant.id, {"link_ttl_hours": 10 + at}),
        )
        held = (await tenants.get(tenant.public_id)).policy.under()
        assert (held.max_recipients, held.link_ttl_hours) == (10 + at, 10 + at)
    assert (await tenants.get(tenant.public_id)).policy_version == 10
    assert (await actions(db, tenant.public_id)).count("tenant.policy_update") == 10


@pytest.mark.covers("edge:J27")
async def test_who_loses_three_times_is_told_to_come_again(
    tenants: Tenants, db: Database, ids: IdGenerator, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else writes between the reading and the writing, each time."""
    tenant = await tenants.create(NewTenant("one", "One"))
    faster, slow = Tenants(db, ids, clock), Tenants(db, ids, clock)
    original, tries = slow._write_policy, 0

    async def overtaken(*args: Any) -> None:
        nonlocal tries
        tries += 1
        # In a task of its own: this one holds a connection.
        await asyncio.create_task(faster.change_policy(tenant.id, {"link_ttl_hours": 50 + tries}))
        await original(*args)

    monkeypatch.setattr(slow, "_write_policy", overtaken)
    assert (await code_of(slow.change_policy(tenant.id, {"max_recipients": 3})))[0] == "unavailable"
    after = await tenants.get(tenant.public_id)
    held = after.policy.under()
    assert (after.policy_version, held.max_recipients, held.link_ttl_hours, tries) == (3, 10, 53, 3)


@pytest.mark.covers("edge:D12")
async def test_one_slug_twice_at_once(tenants: Tenants, db: Database, ids: IdGenerator, clock: ManualClock) -> None:
    other = Tenants(db, ids, clock)
    done = await asyncio.gather(
        tenants.create(NewTenant("same", "Same")), other.create(NewTenant("same", "Same")), return_exceptions=True
    )
    assert [one.code for one in done if isinstance(one, PostroomError)] == ["slug_taken"]
    assert len([one for one in done if isinstance(one, Tenant)]) == 1


@pytest.mark.parametrize("status", ["erasing", "erased"])
async def test_what_is_erased_is_written_no_more(
    partners: Partners, tenants: Tenants, db: Database, status: str
) -> None:
    """The platform is told why; others that it is not there (I8)."""
    partner = await partners.create(NewPartner("One"))
    mine = await tenants.create(NewTenant("mine", "Mine"), caller=key_of(partner))
    await erase(db, mine, status)
    for changes in (
        TenantChanges(name="Back"),
        TenantChanges(status=TenantStatus.ACTIVE),
        TenantChanges(policy={"max_recipients": 1}),
    ):
        for caller, code in ((None, "tenant_erased"), (key_of(partner), "tenant_not_found")):
            refused = await code_of(tenants.update(mine.id, changes, caller=caller, follow=nobody_follows))
            assert refused[0] == code


@pytest.mark.covers("edge:H13")
async def test_a_zone_with_domains_stays(tenants: Tenants, db: Database, ids: IdGenerator, clock: ManualClock) -> None:
    tenant = await tenants.create(NewTenant("one", "One"))
    await tenants.change_policy(tenant.id, {"domains": {"dns_zones": ["example.com", "example.net"]}})
    domain = ids.new("dom_")
    async with db.acquire() as conn:
        await conn.execute(
            "INSERT INTO domains (public_id, tenant_id, name, kind, status, created_at, updated_at)"
            " VALUES ($1, $2, 'mail.example.com', 'zone', 'healthy', $3, $3)",
            *(domain, tenant.id, clock.now()),
        )
    await tenants.change_policy(tenant.id, {"domains": {"dns_zones": ["example.com"]}})
    told = await code_of(tenants.change_policy(tenant.id, {"domains": {"dns_zones": None}}))
    assert told == ("domain_in_use", {"reason": "zone_has_domains", "domain_ids": [domain]})
    async with db.acquire() as conn:
        await conn.execute("UPDATE domains SET status = 'removed' WHERE public_id = $1", domain)
    await tenants.change_policy(tenant.id, {"domains": {"dns_zones": []}})
