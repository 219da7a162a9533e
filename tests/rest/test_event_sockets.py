"""The stream as a WebSocket, through the real listener, and what a proxy of lines sees of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from postroom.accounts import Level, NewKey
from postroom.accounts.service.standing import Standing
from postroom.events.feed import Feed
from postroom.servers.http import create_http
from postroom.servers.http.listener import HttpLimits, HttpListener, _Socket
from postroom.servers.http.streams import Streams, Timing
from tests.events.hooks import Room
from tests.rest.test_event_streams import RIGHTS
from tests.rest.test_events import GONE, deliver, partner_key, write_policy
from tests.rest.world import World, simple_mail

PATIENCE: Final = 10


@asynccontextmanager
async def served(world: World, timing: Timing | None = None, **limits: Any) -> AsyncIterator[HttpListener]:
    feed = Feed(world.db, poll=0.02, kept_events=50)
    standing = Standing(world.db, world.clock, interval=0.05)
    tasks = [asyncio.create_task(feed.run()), asyncio.create_task(standing.run())]
    streams = Streams(world.db, feed, standing, timing=timing)
    services = replace(world.app.services, streams=streams, stopping=asyncio.Event())
    listener = HttpListener(
        create_http(services), ids=world.ids, limits=HttpLimits(**limits), on_drain=services.stopping.set
    )
    await listener.start("127.0.0.1", 0)
    try:
        yield listener
    finally:
        await listener.drain(1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def socket(
    listener: HttpListener, headers: dict[str, str], query: str = "", path: str = "/v1/events/stream"
) -> connect:
    url = f"ws://127.0.0.1:{listener.port}{path}{query}"
    return connect(url, additional_headers=headers, open_timeout=PATIENCE, proxy=None)


async def frame(client: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        found: dict[str, Any] = json.loads(await client.recv())
        return found


async def closing(client: ClientConnection) -> tuple[int, str]:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ConnectionClosed):
            await client.recv()
    assert client.close_code is not None
    return client.close_code, client.close_reason or ""


@pytest.mark.covers("decisions:A7", "RFC 6455 §4")
async def test_tells_the_same_and_goes_on_where_it_was(world: World) -> None:
    async with served(world) as listener:
        async with socket(listener, world.key) as client:
            assert (await frame(client))["type"] == "hello"
            stored = [await deliver(world, simple_mail(f"Mail {n} ✓")) for n in range(3)]
            got = [await frame(client) for _ in stored]
        assert [one["event"]["data"]["message"]["id"] for one in got] == [one.message_id for one in stored]
        async with world.db.acquire() as conn:
            payload = await conn.fetchval("SELECT payload FROM events WHERE public_id = $1", got[0]["event"]["id"])
        assert json.loads(payload) == got[0]["event"]
        async with socket(listener, world.key, f"?last_event_id={got[0]['id']}&types=message.received") as again:
            assert (await frame(again))["type"] == "hello"
            assert [(await frame(again))["event"] for _ in range(2)] == [one["event"] for one in got[1:]]


@pytest.mark.covers("RFC 6455 §4.2.2", "security-privacy:A4.1")
async def test_who_is_not_let_in_gets_the_answer_of_http(world: World) -> None:
    unread = await world.new_key(Level.TENANT, ["messages:read"], tenant=world.tenant)
    foreign = f"?identity_id={world.other_box.public_id}"
    async with served(world) as listener:
        for headers, query, path, status, code in (
            ({}, "", "/v1/events/stream", 401, "unauthenticated"),
            (unread, "", "/v1/events/stream", 403, "permission_denied"),
            (world.key, foreign, "/v1/events/stream", 404, "identity_not_found"),
            (world.key, "?types=nothing", "/v1/events/stream", 400, "invalid_request"),
            (world.key, "?last_event_id=c_kx", "/v1/events/stream", 400, "invalid_request"),
            (world.key, "", "/v1/me", 404, "route_not_found"),
        ):
            with pytest.raises(InvalidStatus) as caught:
                async with socket(listener, headers, query, path):
                    pass
            answer = caught.value.response
            assert (answer.status_code, json.loads(answer.body)["error"]["code"]) == (status, code)
            assert answer.headers["request-id"].startswith("req_")


@pytest.mark.covers("edge:J15", "SEC-1", "security-privacy:A4.2", "FR-KEY-4")
async def test_each_key_hears_its_own_mail_and_no_other_by_either_way(world: World) -> None:
    """The matrix of levels and transports, while mail comes for this tenant and for another."""
    sibling = await world.new_identity(world.tenant, "sibling")
    ours, theirs = await partner_key(world, "Ours"), await partner_key(world, "Theirs")
    async with world.db.acquire() as conn:
        await conn.execute(
            "INSERT INTO partner_tenants (partner_id, tenant_id) VALUES ($1, $2)", ours[1], world.tenant.id
        )
    own, kin, foreign = world.box.public_id, sibling.public_id, world.other_box.public_id
    reaches = {
        "platform": (world.platform, {own, kin, foreign}),
        "partner": (ours[0], {own, kin}),
        "other partner": (theirs[0], set()),
        "tenant": (world.key, {own, kin}),
        "other tenant": (world.other_key, {foreign}),
        "identity": (await world.new_key(Level.IDENTITY, identity=world.box), {own}),
        "sibling": (await world.new_key(Level.IDENTITY, identity=sibling), {kin}),
    }
    async with served(world, Timing(heartbeat=0.3)) as listener, contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}"))
        told: list[tuple[str, asyncio.Task[set[str]], set[str]]] = []
        for name, (key, expected) in reaches.items():
            client = await stack.enter_async_context(socket(listener, key, "?types=message.received"))
            assert (await frame(client))["type"] == "hello"
            asked = {"types": "message.received"}
            answer = await stack.enter_async_context(http.stream("GET", "/v1/events/stream", params=asked, headers=key))
            assert (answer.status_code, answer.headers.get_list("cache-control")) == (200, ["no-store"])
            lines = answer.aiter_lines()
            while await anext(lines):
                pass  # the first position
            told.append((f"{name}, WebSocket", asyncio.create_task(_by_socket(client)), expected))
            told.append((f"{name}, SSE", asyncio.create_task(_by_lines(lines)), expected))
        stored = {}
        for mailbox in (world.box, sibling, world.other_box):
            stored[mailbox.public_id] = (await deliver(world, simple_mail(), to=mailbox)).message_id
        async with asyncio.timeout(3 * PATIENCE):
            for name, reading, expected in told:
                assert await reading == expected, name
        for name, (key, expected) in reaches.items():
            listed = await http.get("/v1/events", params={"types": "message.received"}, headers=key)
            assert {one["identity_id"] for one in listed.json()["data"]} == expected, f"{name}, list"
            for box in (own, kin, foreign):
                asked = {"since": "2020-01-01T00:00:00Z", "timeout": "1"}
                waited = await http.get(f"/v1/identities/{box}/wait", params=asked, headers=key)
                if box in expected:
                    assert waited.json()["message"]["id"] == stored[box], f"{name}, wait"
                else:  # as if it were not: nothing is waited for
                    answered = (waited.status_code, waited.json()["error"]["code"])
                    assert answered == (404, "identity_not_found"), f"{name}, wait"


async def _by_socket(client: ClientConnection) -> set[str]:
    """Whose events come until nothing does for two heartbeats."""
    found: set[str] = set()
    quiet = 0
    while quiet < 2:
        told = await frame(client)
        quiet = quiet + 1 if told["type"] == "heartbeat" else 0
        found |= {told["event"]["identity_id"]} if told["type"] == "event" else set()
    return found


async def _by_lines(lines: AsyncIterator[str]) -> set[str]:
    found: set[str] = set()
    quiet, has_data = 0, False
    while quiet < 2:
        line = await anext(lines)
        if line.startswith("data: "):
            has_data = True
            found.add(json.loads(line.removeprefix("data: "))["identity_id"])
        elif not line:
            quiet, has_data = (0 if has_data else quiet + 1), False
    return found


async def test_how_it_is_closed(world: World) -> None:
    made, text = await world.keys.create(None, NewKey("k", Level.TENANT, RIGHTS, world.tenant.id))
    async with served(world) as listener:
        async with socket(listener, {"authorization": f"Bearer {text}"}) as client:
            await frame(client)
            await world.keys.revoke(None, made.public_id)
            assert (await frame(client))["code"] == "key_revoked"
            assert await closing(client) == (1008, "key_revoked")
        async with socket(listener, world.key, "?max_seconds=1") as client:
            await frame(client)
            assert (await frame(client))["code"] == "done"
            assert await closing(client) == (1000, "done")
        async with socket(listener, world.key) as client:
            await frame(client)
            drained = asyncio.create_task(listener.drain(5))
            assert (await frame(client))["code"] == "stopping"
            assert (await closing(client))[0] == 1012
            await asyncio.wait_for(drained, PATIENCE)


async def test_it_outlasts_the_limits_of_a_request(world: World) -> None:
    """The time that a request may take ends where the socket begins."""
    async with served(world, head_timeout=0.3, body_timeout=0.3) as listener, socket(listener, world.key) as client:
        await frame(client)
        await asyncio.sleep(0.8)
        await deliver(world, simple_mail())
        assert (await frame(client))["event"]["type"] == "message.received"


async def test_what_clients_say_has_a_limit(world: World) -> None:
    async with served(world) as listener, socket(listener, world.key) as client:
        await frame(client)
        await client.send('{"type":"whatever"}')
        await client.send(b"\x00" * 4096)
        await deliver(world, simple_mail())
        assert (await frame(client))["event"]["type"] == "message.received"
        await client.send("x" * 5000)
        assert (await closing(client))[0] == 1009


async def test_nothing_is_logged_of_who_asks(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with served(world) as listener, socket(listener, world.key, "?types=message.received") as client:
            await frame(client)
    ours = [one for one in caplog.records if not one.name.startswith(("websockets.client", "asyncio"))]
    text = " ".join(one.getMessage() for one in ours)
    assert "message.received" not in text
    assert world.key["authorization"].split()[1] not in text


async def test_who_is_refused_is_no_fault_of_ours(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with served(world) as listener:
        with pytest.raises(InvalidStatus):
            async with socket(listener, {}) as client:
                await frame(client)
    assert _faults(caplog) == []


async def test_words_that_are_no_text_close_it_and_are_no_fault_of_ours(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """RFC 6455 §8.1. Whole, in pieces, and several at once: whoever is let in could fill a log with them."""
    bad = b"\x81\x82\0\0\0\0\xff\xfe"
    async with served(world) as listener:
        async with socket(listener, world.key) as client:
            await frame(client)
            await client.send(b"\xc3\x28", text=True)
            assert (await closing(client))[0] == 1007
        async with socket(listener, world.key) as client:
            await frame(client)
            await client.send([b"\xe2\x82", b"\xac"], text=True)  # a character in two pieces is well
            await client.send([b"\xe2\x82", b"x"], text=True)
            assert (await closing(client))[0] == 1007
        async with socket(listener, world.key) as client:
            await frame(client)
            client.transport.write(bad * 500)
            await deliver(world, simple_mail())
            assert (await closing(client))[0] == 1007
    assert _faults(caplog) == []


async def test_what_is_told_to_a_socket_that_is_closed_is_no_fault_of_ours(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Who answers no ping is closed by the protocol alone; the stream may be about to tell them something."""
    async with served(world, Timing(heartbeat=0.02)) as listener, socket(listener, world.key) as client:
        await frame(client)
        (one,) = (one for one in listener._server.server_state.connections if isinstance(one, _Socket))
        one.close_sent = True  # as after a ping without an answer, while they take nothing of what was written
        for n in range(3):
            await deliver(world, simple_mail(f"Mail {n}"))
        await asyncio.sleep(0.2)
    assert _faults(caplog) == []


@pytest.mark.covers("decisions:A7")
async def test_lines_that_are_not_taken_are_no_fault_of_ours(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is cut off; nothing at all is said about it where faults are looked for."""
    monkeypatch.setattr("postroom.servers.http.rest.events.FINISH_SECONDS", 0.1)
    async with served(world, Timing(send=0.1)) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        head = f"GET /v1/events/stream HTTP/1.1\r\nhost: a\r\nauthorization: {world.key['authorization']}"
        writer.write(f"{head}\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE):
            await reader.readuntil(b": hello")
            (one,) = listener._server.server_state.connections
            one.pause_writing()  # as the transport does, once enough waits to be taken
            await deliver(world, simple_mail())
            with contextlib.suppress(ConnectionResetError):
                assert b"0\r\n\r\n" not in await reader.read()
            while listener.connection_count:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.01)
        writer.close()
    assert _faults(caplog) == []


def _faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


async def test_heartbeats(world: World) -> None:
    async with served(world, Timing(heartbeat=0.05)) as listener, socket(listener, world.key) as client:
        hello = await frame(client)
        await deliver(world, simple_mail("Elsewhere"), to=world.other_box)
        while (beat := await frame(client))["id"] == hello["id"]:
            assert beat["type"] == "heartbeat"
        assert beat["type"] == "heartbeat"


async def test_lines_through_the_listener(world: World) -> None:
    """The stream of lines over a real connection, and that its end is the end of the body."""
    async with served(world) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        head = f"GET /v1/events/stream?max_seconds=2 HTTP/1.1\r\nhost: a\r\nauthorization: {world.key['authorization']}"
        writer.write(f"{head}\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE):
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"transfer-encoding: chunked" in answer.lower()
            assert b"content-type: text/event-stream\r\n" in answer
            await reader.readuntil(b": hello")
            await deliver(world, simple_mail())
            assert b"id: c_" in await reader.readuntil(b"event: message.received\n")
            assert b'"code":"done"' in await reader.readuntil(b"0\r\n\r\n")
        writer.close()


@pytest.mark.covers("decisions:A7")
@pytest.mark.parametrize(
    "flood",
    [
        b"\x89\x80\0\0\0\0" * 20_000,
        (b"\x89\xfd\0\0\0\0" + b"x" * 125) * 1000,
        b"\x01\x80\0\0\0\0" + b"\0\x80\0\0\0\0" * 20_000,
    ],
    ids=["pings", "long pings", "pieces"],
)
async def test_a_flood_ends_the_connection(world: World, flood: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with served(world) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        lines = ["GET /v1/events/stream HTTP/1.1", "Host: api.example", "Upgrade: websocket", "Connection: Upgrade"]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
        lines += [f"{name}: {value}" for name, value in world.key.items()]
        writer.write("\r\n".join((*lines, "", "")).encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(flood)
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                while await reader.read(65536):
                    pass
        writer.close()
    assert "socket_internal_error" not in caplog.text


@pytest.mark.covers("edge:J15")
async def test_a_partner_is_told_of_its_own_endpoint(world: World) -> None:
    key, partner = await partner_key(world)
    room = Room(world.db, world.clock, world.ids)
    mine = await room.hook(partner=partner)
    room.receivers.answers[mine.url] = GONE
    async with served(world) as listener, socket(listener, key) as client:
        assert (await frame(client))["type"] == "hello"
        tenant = await room.tenant("hers", partner)
        await write_policy(world, await room.value("SELECT public_id FROM tenants WHERE id = $1", tenant))
        await room.told()
        told = [(await frame(client))["event"] for _ in range(2)]
    assert [one["type"] for one in told] == ["tenant.policy_updated", "webhook.disabled"]
    assert told[1]["data"]["webhook_id"] == mine.public_id
