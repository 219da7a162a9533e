"""Whatever comes in, the answer is a defined one: never a fault of ours, always the envelope."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rest.contract import check
from tests.rest.world import World, simple_mail

_settings = settings(
    max_examples=60,
    deadline=None,
    # One deployment serves all examples: they only read, or change what the next ones do not mind.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

_text = st.text(st.characters(codec="utf-8"), max_size=30)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=12,
)
_parameters = st.sampled_from(
    [
        "limit",
        "cursor",
        "status",
        "label",
        "folder",
        "after",
        "before",
        "direction",
        "thread_id",
        "include",
        "messages_limit",
        "from",
        "kind",
        "since",
        "timeout",
        "subject_contains",
        "archived",
        "is_unread",
        "needs_reply_gte",
        "category",
        "address",
        "tenant_id",
        "purpose",
        "client_id",
        "x",
    ]
)
_values = st.one_of(
    _text,
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(
        [
            "true",
            "inbound",
            "received",
            "a,b",
            "quoted,html",
            "2030-01-01T00:00:00Z",
            "9999-12-31T23:59:59-14:00",
            "1e3",
            "nan",
            "inf",
            "-0",
        ]
    ),
)
_path = st.text(st.characters(codec="utf-8"), max_size=20)


def fine(response: httpx.Response) -> None:
    assert response.status_code < 500, (response.request.url, response.text)
    if response.status_code >= 400:
        check("Error", response.json())
    assert response.headers["request-id"].startswith("req_")


async def _send(world: World, method: str, path: str, **more: Any) -> None:
    headers = {**world.platform, **more.pop("headers", {})}
    fine(await world.client.request(method, path, headers=headers, **more))
    world.clock.advance(61)  # a new window for the rate limits


@pytest.mark.covers("FR-API-2")
async def test_query_strings(world: World) -> None:
    one = await world.deliver(simple_mail())
    paths = (
        *("/v1/identities", "/v1/identities/lookup", f"/v1/tenants/{world.tenant.public_id}/identities"),
        *(world.at("/messages"), world.at("/threads"), world.at(f"/messages/{one.message_id}")),
        world.at(f"/threads/{one.thread_id}"),
    )

    @_settings
    @given(st.sampled_from(paths), st.lists(st.tuples(_parameters, _values), max_size=4))
    async def inner(path: str, params: list[tuple[str, str]]) -> None:
        await _send(world, "GET", path, params=params)

    await run(inner)


async def test_raw_query_strings(world: World) -> None:
    @_settings
    @given(st.binary(max_size=40))
    async def inner(query: bytes) -> None:
        printable = bytes(byte for byte in query if 33 <= byte <= 126 and byte not in b"#")
        await _send(world, "GET", world.at("/messages?") + printable.decode())

    await run(inner)


@pytest.mark.covers("FR-API-2")
async def test_bodies(world: World) -> None:
    one = await world.deliver(simple_mail())
    targets = (
        ("POST", f"/v1/tenants/{world.tenant.public_id}/identities"),
        ("PATCH", world.at(f"/messages/{one.message_id}")),
        ("PATCH", world.at(f"/threads/{one.thread_id}")),
    )
    members = st.sampled_from(
        [
            "username",
            "display_name",
            "purpose",
            "owner",
            "signature",
            "domain_id",
            "client_id",
            "send_policy",
            "metadata",
            "labels_add",
            "labels_remove",
            "read",
            "archived",
        ]
    )
    likely = st.one_of(
        _json,
        st.lists(_text, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "email", "text", "html", "daily_cap", "auto_reply"]), _json, max_size=3
        ),
    )

    @_settings
    @given(st.sampled_from(targets), st.dictionaries(members, likely, max_size=5) | _json)
    async def shaped(target: tuple[str, str], body: Any) -> None:
        await _send(world, *target, json=body)

    @_settings
    @given(st.sampled_from(targets), st.binary(max_size=60))
    async def unshaped(target: tuple[str, str], body: bytes) -> None:
        await _send(world, *target, content=body, headers={"content-type": "application/json"})

    await run(shaped)
    await run(unshaped)


async def test_paths(world: World) -> None:
    @_settings
    @given(st.lists(_path, max_size=5), st.sampled_from(["GET", "POST", "PATCH", "DELETE", "PUT"]))
    async def inner(parts: list[str], method: str) -> None:
        await _send(world, method, "/v1/" + "/".join(quote(part, safe="") for part in parts))

    await run(inner)


async def test_authorization(world: World) -> None:
    @_settings
    @given(st.binary(max_size=100))
    async def inner(value: bytes) -> None:
        clean = bytes(byte for byte in value if byte not in b"\r\n\x00")
        response = await world.client.get("/v1/me", headers=[(b"authorization", b"Bearer " + clean)])
        fine(response)
        assert response.status_code == 401
        world.clock.advance(61)

    await run(inner)


async def run(property_: Any) -> None:
    """A hypothesis property that awaits, on this loop: examples are drawn in a thread, run here, one at a time."""

    loop = asyncio.get_running_loop()
    wrapped = property_.hypothesis.inner_test

    def example(*args: Any, **kwargs: Any) -> None:
        asyncio.run_coroutine_threadsafe(wrapped(*args, **kwargs), loop).result(60)

    property_.hypothesis.inner_test = example
    await asyncio.to_thread(property_)
