"""How a stream of events goes on, and how it ends: resuming at every point, slow clients, revoked keys, stopping."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts import Level, NewKey
from postroom.accounts.models import Principal, PrincipalKind
from postroom.accounts.permissions import Permission
from postroom.accounts.service.standing import Standing
from postroom.base.errors import PostroomError
from postroom.events.feed import Feed
from postroom.servers.http import CursorKey, CursorKeys, HttpApp, create_http
from postroom.servers.http.positions import TTL_MS, Sealer, unseal
from postroom.servers.http.streams import MAX_PER_CALLER, Streams, Timing
from tests.rest.streaming import connected
from tests.rest.test_events import deliver, partner_key
from tests.rest.world import World, simple_mail

RIGHTS: Final = (Permission.WEBHOOKS_READ, Permission.MESSAGES_READ, Permission.IDENTITIES_READ)


@asynccontextmanager
async def node(world: World, *, timing: Timing | None = None, **kept: int) -> AsyncIterator[HttpApp]:
    """Another process of the deployment."""
    feed = Feed(world.db, poll=0.02, **kept)
    standing = Standing(world.db, world.clock, interval=0.05)
    tasks = [asyncio.create_task(feed.run()), asyncio.create_task(standing.run())]
    streams = Streams(world.db, feed, standing, timing=timing)
    try:
        yield create_http(replace(world.app.services, streams=streams, stopping=asyncio.Event()))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def key_of(world: World, **more: Any) -> NewKey:
    return NewKey("k", Level.TENANT, RIGHTS, world.tenant.id, **more)


@pytest.mark.covers("NFR-REL-4")
async def test_it_goes_on_wherever_it_was_cut_on_either_node(world: World) -> None:
    """Whatever was told last, what another node tells next is what follows: nothing is lost, nothing doubled."""
    async with node(world) as other:
        async with connected(world.app, world.key) as stream:
            positions = [stream.last_id]
            told = []
            for n in range(6):
                await deliver(world, simple_mail(f"Mail {n}"))
                await deliver(world, simple_mail("Elsewhere"), to=world.other_box)
                line = await stream.next()
                told.append(line.data["id"])
                positions.append(line.id)
        assert len(set(positions)) == len(positions)
        for cut, position in enumerate(positions):
            for app in (world.app, other):
                async with connected(app, world.key, last_id=position) as again:
                    rest = [one["id"] for one in await again.events(len(told) - cut)]
                    assert rest == told[cut:]
                    assert again.waiting == 0


async def test_what_comes_while_it_catches_up_follows(world: World) -> None:
    async with connected(world.app, world.key) as stream:
        position = stream.last_id
    for n in range(230):  # more than two pages
        await deliver(world, simple_mail(f"Mail {n}"))
    async with node(world) as other, connected(other, world.key, last_id=position) as again:
        first = await again.events(150)
        late = await deliver(world, simple_mail("Late"))
        rest = await again.events(81)
    sequences = [one["sequence"] for one in first + rest]
    assert sequences == sorted(set(sequences))
    assert rest[-1]["data"]["message"]["id"] == late.message_id


@pytest.mark.covers("decisions:A7")
async def test_the_header_of_who_connects_again_counts_before_the_url_that_they_began_with(world: World) -> None:
    async with connected(world.app, world.key) as stream:
        began = stream.last_id
    await deliver(world, simple_mail("One"))
    async with connected(world.app, world.key, last_event_id=began) as stream:
        one = await stream.next()
    two = await deliver(world, simple_mail("Two"))
    async with connected(world.app, world.key, last_id=one.id, last_event_id=began) as again:
        assert (await again.next()).data["data"]["message"]["id"] == two.message_id


async def test_positions_are_of_a_reach_and_of_an_age(world: World) -> None:
    async with connected(world.app, world.key) as stream:
        position = stream.last_id
    for headers, text in ((world.other_key, position), (world.platform, position), (world.key, position[:-2] + "xx")):
        async with connected(world.app, headers, last_id=text) as refused:
            assert (refused.status, b"last_event_id" in refused.body) == (400, True)
    second = await world.new_key(Level.TENANT, tenant=world.tenant)
    await deliver(world, simple_mail())
    async with connected(world.app, second, last_event_id=position) as again:  # another key of the same reach
        assert (await again.next()).kind == "message.received"
    world.clock.advance(TTL_MS / 1000 + 1)
    async with connected(world.app, world.key, last_id=position) as refused:
        assert (refused.status, b"cursor_expired" in refused.body) == (410, True)


@pytest.mark.covers("FR-PRV-2")
async def test_a_position_is_no_older_than_what_its_tenant_keeps(world: World) -> None:
    """What was deleted is not passed over in silence."""
    where = f"/v1/tenants/{world.tenant.public_id}/policy"
    answer = await world.patch(where, {"retention": {"events_days": 2}}, world.platform)
    assert answer.status_code == 200, answer.text
    async with connected(world.app, world.key) as stream:
        position = stream.last_id
    async with connected(world.app, world.platform, tenant_id=world.tenant.public_id) as stream:
        of_platform = stream.last_id
    world.clock.advance(2 * 86400 - 1)
    for key, text in ((world.key, position), (world.platform, of_platform)):
        async with connected(world.app, key, last_id=text, tenant_id=world.tenant.public_id) as again:
            assert again.status == 200
    world.clock.advance(2)
    for key, text in ((world.key, position), (world.platform, of_platform)):
        async with connected(world.app, key, last_id=text, tenant_id=world.tenant.public_id) as refused:
            assert (refused.status, b"cursor_expired" in refused.body) == (410, True)


@pytest.mark.covers("FR-PRV-2", "edge:J30")
async def test_a_position_in_a_stream_of_many_is_no_older_than_what_any_of_them_keeps(world: World) -> None:
    """Of those within reach: a tenant of nobody's, or of another partner, makes no difference to a partner."""
    (ours, partner), (theirs, _) = await partner_key(world, "Ours"), await partner_key(world, "Theirs")
    async with world.db.acquire() as conn:
        await conn.execute(
            "INSERT INTO partner_tenants (partner_id, tenant_id) VALUES ($1, $2)", partner, world.tenant.id
        )
    where = f"/v1/tenants/{world.tenant.public_id}/policy"
    answer = await world.patch(where, {"retention": {"events_days": 2}}, world.platform)
    assert answer.status_code == 200, answer.text
    positions = []
    for key in (world.platform, ours, theirs):
        async with connected(world.app, key) as stream:
            positions.append((key, stream.last_id))
    for seconds, expected in ((2 * 86400 - 1, [200, 200, 200]), (2, [410, 410, 200]), (5 * 86400, [410, 410, 410])):
        world.clock.advance(seconds)
        statuses = []
        for key, text in positions:
            async with connected(world.app, key, last_id=text) as again:
                statuses.append(again.status)
        assert statuses == expected


async def test_positions_do_not_show_how_much_happens_elsewhere(world: World) -> None:
    """What comes after one another has nothing in common but the name of the key."""
    keys = await world.app.services.cursor_keys.keys_for(None)
    sealer, now = Sealer(keys, b"tenant/-/ten_1/-"), world.clock.now()
    made = [sealer.seal(number, now) for number in range(1000, 1200)]
    assert {len(one) for one in made} == {len(made[0])}
    assert len(made[0]) < 60
    assert len({one[4:12] for one in made}) == len({one[-8:] for one in made}) == len(made)
    for number, one in zip(range(1000, 1200), made, strict=True):
        assert unseal(keys, b"tenant/-/ten_1/-", one, now) == number


@given(st.text(max_size=140) | st.binary(max_size=60).map(lambda raw: "c_k1" + base64.urlsafe_b64encode(raw).decode()))
def test_whatever_is_no_position_is_refused(text: str) -> None:
    keys = CursorKeys(CursorKey("k1", b"c" * 32))
    with pytest.raises(PostroomError) as caught:
        unseal(keys, b"platform/-/-/-", text, datetime(2030, 1, 1, tzinfo=UTC))
    assert caught.value.code == "invalid_request"


async def test_heartbeats_move_the_position(world: World) -> None:
    """Who hears nothing, since all that happens is elsewhere, does not read all of that when they come back."""
    async with node(world, timing=Timing(heartbeat=0.05)) as app, connected(app, world.key) as stream:
        first = stream.last_id
        await deliver(world, simple_mail("Elsewhere"), to=world.other_box)
        async with asyncio.timeout(10):
            while stream.last_id == first:  # noqa: ASYNC110  a comment wakes nobody
                await asyncio.sleep(0.01)
        assert stream.waiting == 0


@pytest.mark.covers("security-privacy:A3.2")
async def test_a_revoked_key_ends_it(world: World) -> None:
    made, text = await world.keys.create(None, key_of(world))
    async with node(world) as app, connected(app, {"authorization": f"Bearer {text}"}) as stream:
        await deliver(world, simple_mail("Before"))
        assert (await stream.next()).kind == "message.received"
        await world.keys.revoke(None, made.public_id)
        line = await stream.next()
        assert (line.kind, line.data["code"]) == ("error", "key_revoked")
        async with asyncio.timeout(5):
            await stream.ended.wait()
        await deliver(world, simple_mail("After"))
        assert stream.waiting == 0


async def test_a_key_that_expires_ends_it(world: World) -> None:
    expires = world.clock.now() + timedelta(seconds=1)
    _, text = await world.keys.create(None, key_of(world, expires_at=expires))
    async with connected(world.app, {"authorization": f"Bearer {text}"}) as stream:
        world.clock.advance(2)
        line = await stream.next()
        assert (line.kind, line.data["code"]) == ("error", "key_expired")


async def test_a_rotated_key_goes_on_until_its_secret_is_void(world: World) -> None:
    made, text = await world.keys.create(None, key_of(world))
    async with node(world) as app, connected(app, {"authorization": f"Bearer {text}"}) as stream:
        await world.keys.rotate(None, made.public_id, overlap_hours=1)
        await asyncio.sleep(0.3)
        await deliver(world, simple_mail())
        assert (await stream.next()).kind == "message.received"
        world.clock.advance(3601)
        assert (await stream.next()).data["code"] == "unauthenticated"


async def test_a_slow_client_is_cut_and_goes_on_without_loss(world: World) -> None:
    async with node(world, kept_events=4) as app:
        async with connected(app, world.key) as stream:
            streams = app.services.streams
            assert streams is not None
            async with asyncio.timeout(10):
                # Until it is told live: who stops while it catches up has no queue yet that could be cut.
                while not streams.feed.count:  # noqa: ASYNC110  nobody tells
                    await asyncio.sleep(0.001)
            stream.taking.clear()
            written = [(await deliver(world, simple_mail(f"Mail {n}"))).message_id for n in range(12)]
            async with asyncio.timeout(10):
                while not any(one.cut for there in streams.feed._places.values() for one in there):  # noqa: ASYNC110  a cut is seen here only
                    await asyncio.sleep(0.01)
            stream.taking.set()
            got = []
            while (line := await stream.next()).kind == "message.received":
                got.append(line.data["data"]["message"]["id"])
            assert (line.kind, line.data["code"]) == ("error", "slow_consumer")
            position = stream.last_id
        assert got == written[: len(got)] != written
        async with connected(app, world.key, last_id=position) as again:
            rest = [one["data"]["message"]["id"] for one in await again.events(len(written) - len(got))]
        assert got + rest == written


async def test_who_takes_nothing_is_given_up(world: World) -> None:
    async with node(world, timing=Timing(send=0.1)) as app, connected(app, world.key) as stream:
        stream.taking.clear()
        await deliver(world, simple_mail())
        async with asyncio.timeout(10):
            await stream.ended.wait()
        streams = app.services.streams
        assert streams is not None
        assert streams.feed.count == 0


async def test_stopping_ends_it_with_a_word(world: World) -> None:
    async with node(world) as app, connected(app, world.key) as stream:
        app.services.stopping.set()
        line = await stream.next()
        assert (line.kind, line.data["code"]) == ("end", "stopping")
        async with asyncio.timeout(5):
            await stream.ended.wait()


async def test_it_ends_when_it_was_asked_to(world: World) -> None:
    async with connected(world.app, world.key, max_seconds="1") as stream:
        line = await stream.next()
        assert (line.kind, line.data["code"]) == ("end", "done")


async def test_who_leaves_is_forgotten(world: World) -> None:
    async with node(world) as app:
        streams = app.services.streams
        assert streams is not None
        async with connected(app, world.key):
            assert streams.feed.count == 1
        assert (streams.feed.count, streams._open.total()) == (0, 0)


async def test_a_caller_has_so_many_and_no_more(world: World) -> None:
    async with node(world) as app:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            left = asyncio.Event()
            ready = asyncio.Semaphore(0)

            async def hold() -> None:
                async with connected(app, world.key) as stream:
                    assert stream.status == 200
                    ready.release()
                    await left.wait()

            for _ in range(MAX_PER_CALLER):
                group.create_task(hold())
            for _ in range(MAX_PER_CALLER):
                await ready.acquire()
            async with connected(app, world.key) as refused:
                assert (refused.status, b'"bucket":"streams"' in refused.body) == (429, True)
            async with connected(app, world.other_key) as other:
                assert other.status == 200
            left.set()
        async with connected(app, world.key) as again:
            assert again.status == 200


def test_a_tenants_keys_have_a_part_of_all_streams_and_no_more(world: World) -> None:
    streams = Streams(world.db, Feed(world.db), max_streams=4 * MAX_PER_CALLER)

    def of(number: int, tenant: str | None) -> Principal:
        return Principal(
            *(PrincipalKind.KEY, f"key_{number}", number, Level.PLATFORM if tenant is None else Level.TENANT),
            permissions=frozenset(),
            tenant_public_id=tenant,
        )

    with ExitStack() as held:
        for number in range(MAX_PER_CALLER):
            held.enter_context(streams.admitted(of(number, "ten_a")))
        with pytest.raises(PostroomError) as refused:
            held.enter_context(streams.admitted(of(99, "ten_a")))
        assert refused.value.code == "rate_limited"
        held.enter_context(streams.admitted(of(100, "ten_b")))
        for number in range(200, 205):
            held.enter_context(streams.admitted(of(number, None)))
    with streams.admitted(of(99, "ten_a")):
        pass
