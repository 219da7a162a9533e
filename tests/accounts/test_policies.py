"""What holds for tenants, as each process knows it (FR-TEN-4): remembered, and forgotten everywhere after a change."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from postroom.accounts import NewTenant, Tenants
from postroom.accounts.policy import TenantPolicy
from postroom.accounts.policy_rules import Stance, stance_of
from postroom.accounts.service.policies import CHANNEL, LIFE_SECONDS, Policies
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database, Listener, Notifier


async def test_what_was_read_is_remembered_until_it_is_forgotten(
    db: Database, ids: IdGenerator, clock: ManualClock
) -> None:
    policies = Policies(db, clock, Stance(), max_entries=2)
    tenants = Tenants(db, ids, clock, policy_changed=policies.forget)
    quiet = Tenants(db, ids, clock)
    one, two, three = [await tenants.create(NewTenant(f"t{at}", "T")) for at in range(3)]
    assert (await policies.of(one.id)).max_recipients == 10
    await quiet.change_policy(one.id, {"max_recipients": 5})
    assert (await policies.of(one.id)).max_recipients == 10
    policies.forget(two.public_id)
    policies.forget("ten_nobody")
    assert (await policies.of(one.id)).max_recipients == 10
    await tenants.change_policy(one.id, {"link_ttl_hours": 5})
    assert (await policies.of(one.id)).max_recipients == 5
    # A lost hint costs half a minute.
    await quiet.change_policy(one.id, {"max_recipients": 6})
    clock.advance(LIFE_SECONDS)
    assert (await policies.of(one.id)).max_recipients == 6
    # No more are remembered than there is room for.
    for tenant in (two, three):
        await policies.of(tenant.id)
    await quiet.change_policy(one.id, {"max_recipients": 7})
    assert (await policies.of(one.id)).max_recipients == 7
    policies.forget()
    assert await policies.of(two.id) == TenantPolicy()
    with pytest.raises(PostroomError):
        await policies.of(10**9)


async def test_what_changes_while_it_is_read_is_not_remembered(
    db: Database, ids: IdGenerator, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = Tenants(db, ids, clock)
    tenant = await tenants.create(NewTenant("one", "One"))
    stance = Stance()
    policies = Policies(db, clock, stance)
    original = Stance.effective

    def overtaken(self: Stance, stored: object) -> TenantPolicy:
        policies.forget(tenant.public_id)
        return original(self, stored)  # type: ignore[arg-type] # as it was given

    with monkeypatch.context() as patched:
        patched.setattr(Stance, "effective", overtaken)
        assert (await policies.of(tenant.id)).max_recipients == 10
    await tenants.change_policy(tenant.id, {"max_recipients": 5})
    assert (await policies.of(tenant.id)).max_recipients == 5


async def test_a_change_reaches_another_node(db: Database, ids: IdGenerator, clock: ManualClock) -> None:
    """By the database's notifications, as two processes would."""
    notifier = Notifier(db)
    await notifier.start()
    there = Policies(db, clock, Stance())
    forgotten = asyncio.Event()

    def hinted(key: object, _: object) -> None:
        there.forget(str(key))
        forgotten.set()

    listener = Listener(db)
    listener.add(CHANNEL, hinted)
    await listener.start()
    try:
        here = Tenants(db, ids, clock, policy_changed=partial(notifier.hint, CHANNEL))
        tenant = await here.create(NewTenant("one", "One"))
        assert (await there.of(tenant.id)).max_recipients == 10
        await here.change_policy(tenant.id, {"max_recipients": 5})
        async with asyncio.timeout(20):
            await forgotten.wait()
        assert (await there.of(tenant.id)).max_recipients == 5
    finally:
        await listener.stop()
        await notifier.stop()


async def test_the_deployments_defaults(db: Database, ids: IdGenerator, clock: ManualClock) -> None:
    """They hold where nobody has set anything, and bound what tenants may set (rest-api §6.7)."""
    stance = stance_of({"max_recipients": 4, "ai_disclosure": {"mode": "header"}}, keys_decide=False)
    assert (stance.defaults.max_recipients, stance.defaults.disclosure, stance.keys_decide) == (4, "header", False)
    assert stance_of({}, keys_decide=True) == Stance()
    tenant = await Tenants(db, ids, clock, stance).create(NewTenant("one", "One"))
    assert stance.effective(tenant.policy).max_recipients == 4
    for wrong, word in (
        ({"max_recipients": 0}, "max_recipients"),
        ({"x": 1}, r"default_policy\.x"),
        ({"triage": 1}, "triage"),
    ):
        with pytest.raises(ValueError, match=word):
            stance_of(wrong, keys_decide=True)
