"""The domain of From, and what kind of mail it is, are looked at again when a message is to leave (outbound §6.2,
§10 step 1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.partners import NewPartner, PartnerChanges, PartnerStatus
from postroom.accounts.service.partners import Partners
from postroom.accounts.service.tenants import Tenants
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.directory.sending_controls import SendingControls, Switch
from postroom.outbound.dispatch import Dispatcher
from postroom.outbound.models import Operation, RouteKind, SendKind
from tests.mailbox.letters import check_mailbox
from tests.outbound.fake_mx import FakeMx
from tests.outbound.mail_room import MailRoom, in_process, unsigned


@pytest.fixture
async def room(db: Database, clock: ManualClock, ids: IdGenerator, tmp_path: Path) -> AsyncIterator[MailRoom]:
    made = await MailRoom.open(db, clock, ids, tmp_path)
    yield made
    async with db.acquire() as conn:
        await check_mailbox(conn, made.box.ref)
    await made.close()


async def domain(room: MailRoom, assignments: str) -> None:
    async with room.db.acquire() as conn:
        done = await conn.execute(
            f"UPDATE domains SET {assignments} WHERE name = $1",
            room.box.address.rpartition("@")[2],
        )
    assert done == "UPDATE 1"


async def policy(room: MailRoom, **members: Any) -> None:
    await Tenants(room.db, room.ids, room.clock).change_policy(room.box.ref.tenant_id, members)


async def attempt(room: MailRoom, message: str, *, marketing_direct: bool = False) -> tuple[str, str | None, int]:
    """What becomes of it: status, reason, and how many messages arrived."""
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        dispatcher = Dispatcher(
            *(room.db, room.blobs, room.clock, room.outcomes, room.transports),
            sign=unsigned,
            offload=in_process,
            marketing_direct=marketing_direct,
        )
        await dispatcher.run_due()
        (delivery,) = (await room.state(message)).deliveries
        return delivery.status.value, delivery.reason, len(mx.messages)


@pytest.mark.covers("FR-DOM-5", "FR-DOM-6", "edge:G7")
@pytest.mark.parametrize(
    ("state", "status", "reason", "sent"),
    [
        ("status = 'healthy'", "delivered", None, 1),
        ("status = 'degraded'", "delivered", None, 1),
        ("status = 'pending'", "queued", None, 0),
        ("status = 'verifying'", "queued", None, 0),
        ("status = 'failing'", "failed", "domain_failing_no_fallback", 0),
        ("status = 'suspended'", "failed", "domain_failing_no_fallback", 0),
        ("status = 'removing'", "rejected", "sender_domain_unavailable", 0),
        ("status = 'removed'", "rejected", "sender_domain_unavailable", 0),
        ("enabled = false", "queued", None, 0),
        ("status = 'something new'", "queued", None, 0),
    ],
)
async def test_the_domain_is_read_again(room: MailRoom, state: str, status: str, reason: str | None, sent: int) -> None:
    message = await room.accept("anna@example.com")
    await domain(room, state)
    assert await attempt(room, message) == (status, reason, sent)
    assert await room.status(message) == status
    told = {"delivered": ["message.sent", "message.delivered"], "queued": []}
    assert [kind for kind, _ in await room.events(message)] == told.get(status, [f"message.{status}"])
    async with room.db.acquire() as conn:
        # Nobody was asked, so nothing is in the log of attempts.
        assert await conn.fetchval("SELECT count(*) FROM delivery_attempts") == sent


@pytest.mark.covers("edge:G3", "edge:G7")
async def test_what_is_held_goes_once_the_domain_is_ready_or_fails_after_a_day(room: MailRoom) -> None:
    first = await room.accept("anna@example.com")
    await domain(room, "status = 'verifying'")
    assert (await attempt(room, first))[0] == "queued"
    await domain(room, "status = 'healthy'")
    room.clock.advance(3600)
    assert (await attempt(room, first))[0] == "delivered"
    await domain(room, "status = 'verifying'")
    second = await room.accept("anna@example.com")
    for _ in range(40):
        status, reason, sent = await attempt(room, second)
        assert sent == 0
        if status != "queued":
            break
        room.clock.advance(3 * 3600)
    assert (status, reason) == ("failed", "quota_exhausted")
    state = await room.state(second)
    assert state.deliveries[0].tries == 0


@pytest.mark.covers("edge:G7")
async def test_between_attempts_it_is_held_and_that_ends_with_the_schedule(room: MailRoom) -> None:
    async with FakeMx(replies={"anna@example.com": ["450 4.2.0 Later"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        await room.dispatcher().run_due()
    await domain(room, "status = 'failing'")
    began = room.clock.now()
    while True:
        row = await room.row(message)
        if row["next_attempt_at"] is None:
            break
        assert (row["status"], row["tries"]) == ("deferred", 1)
        assert row["next_attempt_at"] - began < timedelta(days=8)
        room.clock.advance(max((row["next_attempt_at"] - room.clock.now()).total_seconds(), 6 * 3600))
        await room.dispatcher().run_due()
    assert timedelta(days=6) < room.clock.now() - began < timedelta(days=8)
    assert (row["status"], row["reason"]) == ("failed", "quota_exhausted")


async def test_what_the_system_says_waits_for_its_domain(room: MailRoom) -> None:
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE identities SET is_system = true WHERE id = $1", room.box.ref.mailbox_id)
    message = await room.accept("anna@example.com")
    await domain(room, "status = 'failing'")
    assert (await attempt(room, message))[0] == "queued"


@pytest.mark.parametrize("operation", [Operation.REDIRECT, Operation.BOUNCE])
async def test_of_what_others_wrote_the_domain_says_nothing(room: MailRoom, operation: Operation) -> None:
    message = await room.accept("anna@example.com", operation=operation)
    await domain(room, "status = 'failing'")
    assert (await attempt(room, message))[0] == "delivered"


async def test_anothers_domain_says_nothing(room: MailRoom) -> None:
    """Nor does one that is none of ours."""
    async with room.db.acquire() as conn:
        other = await conn.fetchval(
            "INSERT INTO tenants (public_id, slug, name, mode, address_suffix, suffix_fold, created_at, updated_at) "
            "VALUES ($1, 'other', 'T', 'live', 'other', 'other', now(), now()) RETURNING id",
            room.ids.new("ten"),
        )
    await domain(room, f"status = 'removed', tenant_id = {other}")
    message = await room.accept("anna@example.com")
    assert (await attempt(room, message))[0] == "delivered"


async def test_the_simulator_goes_on_with_what_it_took(room: MailRoom) -> None:
    message = await room.accept("delivered@simulator.invalid", route=RouteKind.SIMULATOR)
    await room.dispatcher().run_due()
    await domain(room, "status = 'failing'")
    room.clock.advance(2)
    await room.dispatcher().run_due()
    assert await room.status(message) == "delivered"
    refused = await room.accept("delivered@simulator.invalid", route=RouteKind.SIMULATOR)
    await room.dispatcher().run_due()
    assert await room.status(refused) == "failed"


@pytest.mark.covers("edge:G9", "FR-OUT-15")
@pytest.mark.parametrize(
    ("allowed", "platform", "status"),
    [(True, False, "delivered"), (False, False, "rejected"), (True, True, "rejected"), (False, True, "rejected")],
)
async def test_marketing_is_looked_at_again(room: MailRoom, allowed: bool, platform: bool, status: str) -> None:
    message = await room.accept("anna@example.com", kind=SendKind.MARKETING)
    if platform:
        await domain(room, "kind = 'platform', tenant_id = NULL")
    reason = "marketing_needs_ses" if status == "rejected" else None
    assert await attempt(room, message, marketing_direct=allowed) == (status, reason, int(status == "delivered"))
    if status == "rejected":
        ((kind, data),) = await room.events(message)
        assert (kind, data["reason"]) == ("message.rejected", "marketing_needs_ses")


@pytest.mark.covers("edge:G9")
async def test_a_failing_domain_is_told_before_the_kind(room: MailRoom) -> None:
    message = await room.accept("anna@example.com", kind=SendKind.MARKETING)
    await policy(room, domain_fallback=False)
    await domain(room, "status = 'failing'")
    found = await attempt(room, message)
    assert found[:2] == ("failed", "domain_failing_no_fallback")


@pytest.mark.covers("edge:G9", "FR-OUT-15")
async def test_marketing_never_falls_back(room: MailRoom) -> None:
    """The platform address would be everybody's."""
    message = await room.accept("anna@example.com", kind=SendKind.MARKETING)
    await domain(room, "status = 'failing'")
    found = await attempt(room, message, marketing_direct=True)
    assert found == ("rejected", "marketing_needs_ses", 0)


# -- what is paused


@pytest.mark.covers("edge:G12", "edge:J33")
@pytest.mark.parametrize("of", ["tenant", "domain"])
async def test_what_is_paused_is_held_and_never_falls_back(room: MailRoom, of: str) -> None:
    controls = SendingControls(room.db, room.clock, room.ids)
    message = await room.accept("anna@example.com")
    name = room.box.address.rpartition("@")[2]
    if of == "tenant":
        await controls.pause_tenant(room.box.ref.tenant_id)
    else:
        await controls.pause_domain(name)
    # Not even if the domain fails as well.
    await domain(room, "status = 'failing'")
    assert await attempt(room, message) == ("queued", None, 0)
    assert await room.events(message) == []
    await domain(room, "status = 'healthy'")
    if of == "tenant":
        await controls.resume_tenant(room.box.ref.tenant_id)
    else:
        await controls.resume_domain(name)
    room.clock.advance(3600)
    assert await attempt(room, message) == ("delivered", None, 1)


@pytest.mark.covers("edge:G12", "edge:G3")
async def test_what_is_paused_for_a_day_fails(room: MailRoom) -> None:
    await SendingControls(room.db, room.clock, room.ids).pause_tenant(room.box.ref.tenant_id)
    message = await room.accept("anna@example.com")
    for _ in range(60):
        found = await attempt(room, message)
        if found[0] != "queued":
            break
        room.clock.advance(3600)
    assert found == ("failed", "quota_exhausted", 0)
    assert (await room.state(message)).deliveries[0].tries == 0


@pytest.mark.covers("edge:G12")
async def test_between_attempts_a_pause_holds_too(room: MailRoom) -> None:
    async with FakeMx(replies={"anna@example.com": ["450 4.2.0 Later"]}) as mx:
        room.net.add("example.com", mx)
        message = await room.accept("anna@example.com")
        await room.dispatcher().run_due()
    await SendingControls(room.db, room.clock, room.ids).pause_domain(room.box.address.rpartition("@")[2])
    room.clock.advance(3600)
    assert (await attempt(room, message))[::2] == ("deferred", 0)


@pytest.mark.covers("edge:G12")
@pytest.mark.parametrize(("operation", "status"), [(Operation.REDIRECT, "queued"), (Operation.BOUNCE, "delivered")])
async def test_a_paused_tenant_passes_nothing_on_but_notices_leave(
    room: MailRoom, operation: Operation, status: str
) -> None:
    message = await room.accept("anna@example.com", operation=operation)
    await SendingControls(room.db, room.clock, room.ids).pause_tenant(room.box.ref.tenant_id)
    assert (await attempt(room, message))[0] == status


@pytest.mark.covers("edge:J33")
async def test_what_the_system_says_is_not_paused(room: MailRoom) -> None:
    async with room.db.acquire() as conn:
        await conn.execute("UPDATE identities SET is_system = true WHERE id = $1", room.box.ref.mailbox_id)
    controls = SendingControls(room.db, room.clock, room.ids)
    await controls.pause_tenant(room.box.ref.tenant_id)
    await controls.switch(Switch.READ_ONLY, on=True, reason="a test")
    message = await room.accept("anna@example.com")
    assert (await attempt(room, message))[0] == "delivered"


@pytest.mark.covers("edge:J33")
async def test_a_deployment_that_is_read_only_sends_nothing_however_long(room: MailRoom) -> None:
    controls = SendingControls(room.db, room.clock, room.ids)
    await controls.switch(Switch.READ_ONLY, on=True, reason="a test")
    message = await room.accept("anna@example.com")
    for _ in range(150):
        await attempt(room, message)
        row = await room.row(message)
        assert (row["status"], row["attempts"], row["tries"]) == ("queued", 0, 0)
        assert row["next_attempt_at"] == room.clock.now() + timedelta(seconds=300)
        room.clock.advance(1000)
    await controls.switch(Switch.READ_ONLY, on=False, reason="a test")
    assert await attempt(room, message) == ("delivered", None, 1)


@pytest.mark.covers("edge:J33", "edge:G2")
async def test_what_a_lost_worker_began_is_told_while_nothing_leaves(room: MailRoom) -> None:
    message = await room.accept("anna@example.com", "bo@example.com")
    async with room.db.acquire() as conn:
        await conn.execute(
            "UPDATE deliveries SET data_started_at = $1 WHERE recipient = 'anna@example.com'", room.clock.now()
        )
    await SendingControls(room.db, room.clock, room.ids).switch(Switch.READ_ONLY, on=True, reason="a test")
    async with FakeMx() as mx:
        room.net.add("example.com", mx)
        await room.dispatcher().run_due()
        assert not mx.messages
    assert await room.deliveries(message) == {"anna@example.com": "uncertain", "bo@example.com": "queued"}


@pytest.mark.covers("edge:J13")
@pytest.mark.parametrize("suspended", [True, False])
async def test_what_a_suspended_partners_tenant_has_queued_is_canceled(room: MailRoom, suspended: bool) -> None:
    """Before transport, without a word in the tenant's own row."""
    partners = Partners(room.db, room.ids, room.clock)
    partner = await partners.create(NewPartner("Integrator"))
    async with room.db.acquire() as conn:
        await conn.execute(
            "INSERT INTO partner_tenants (partner_id, tenant_id) VALUES ($1, $2)", partner.id, room.box.ref.tenant_id
        )
    message = await room.accept("anna@example.com")
    if suspended:
        await partners.update(partner.public_id, PartnerChanges(status=PartnerStatus.SUSPENDED))
    wanted = ("canceled", 0) if suspended else ("delivered", 1)
    assert await attempt(room, message) == (wanted[0], None, wanted[1])
