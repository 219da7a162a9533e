"""Lists: pages, cursors, filters (rest-api §2.4)."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts import Level
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.mailbox.models import Appended, Direction
from postroom.servers.http.cursors import TTL_MS, CursorKey, CursorKeys, scope_of, seal, unseal
from tests.rest.world import World, simple_mail


async def all_pages(world: World, path: str, limit: int, **params: Any) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        more: dict[str, str] = {} if cursor is None else {"cursor": cursor}
        body = (await world.get(path, limit=limit, **params, **more)).json()
        assert len(body["data"]) <= limit
        found += [item["id"] for item in body["data"]]
        cursor = body["next_cursor"]
        if cursor is None:
            return found


def errors_of(response: httpx.Response) -> list[str]:
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == "invalid_request"
    return [item["path"] for item in response.json()["error"]["details"]["errors"]]


@pytest.mark.covers("FR-API-3")
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_are_complete(world: World, limit: int) -> None:
    stored = [await world.deliver(simple_mail(f"Mail {n}", f"{n}")) for n in range(7)]
    expected = [one.message_id for one in reversed(stored)]
    assert await all_pages(world, world.at("/messages"), limit) == expected
    assert await all_pages(world, world.at("/threads"), limit) == [one.thread_id for one in reversed(stored)]


async def test_messages_of_the_same_moment(world: World) -> None:
    """The keyset has a second part: nothing is lost or doubled when times are equal."""
    now = world.clock.now()
    stored = []
    for n in range(5):
        stored.append((await world.deliver(simple_mail(f"Mail {n}", f"{n}"))).message_id)
        world.clock.set(now)
    found = await all_pages(world, world.at("/messages"), 2)
    assert sorted(found) == sorted(stored)
    assert found == list(reversed(stored))


@pytest.mark.covers("FR-API-3")
async def test_new_mail_between_pages_shifts_nothing(world: World) -> None:
    old = [(await world.deliver(simple_mail(f"Old {n}", f"{n}"))).message_id for n in range(6)]
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        params = {"cursor": cursor} if cursor else {}
        body = (await world.get(world.at("/messages"), limit=2, **params)).json()
        found += [item["id"] for item in body["data"]]
        cursor = body["next_cursor"]
        await world.deliver(simple_mail(f"New {len(found)}", f"new {len(found)}"))
    assert found == list(reversed(old))


@pytest.mark.covers("FR-API-3")
@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_a_clock_that_goes_back_an_hour_between_pages(world: World, limit: int) -> None:
    """Nothing is lost or repeated, a cursor of before the step stays good, and ids go on ascending."""
    before = [await world.deliver(simple_mail(f"Before {n}", f"{n}")) for n in range(6)]
    old = [(one.message_id, one.thread_id) for one in before]
    after: list[Appended] = []
    for path, which in ((world.at("/messages"), 0), (world.at("/threads"), 1)):
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            params = {"cursor": cursor} if cursor else {}
            answer = await world.get(path, limit=limit, **params)
            assert answer.status_code == 200, answer.text
            found += [item["id"] for item in answer.json()["data"]]
            cursor = answer.json()["next_cursor"]
            if not after:
                world.clock.set(world.clock.now() - timedelta(hours=1))
                after = [await world.deliver(simple_mail(f"After {n}", f"after {n}")) for n in range(5)]
        new = [(one.message_id, one.thread_id) for one in after]
        # What was stored after the step has times before all that was there.
        assert found == [ids[which] for ids in reversed(new + old)]
        assert await all_pages(world, path, limit) == found
    made = [ids[0] for ids in old + new]
    assert made == sorted(made)
    assert [one.uid for one in after] == list(range(before[-1].uid + 1, before[-1].uid + 6))


async def test_concurrent_readers_and_writers(world: World) -> None:
    stored = [(await world.deliver(simple_mail(f"Mail {n}", f"{n}"))).message_id for n in range(12)]

    async def write() -> None:
        for n in range(12):
            await world.deliver(simple_mail(f"Late {n}", f"late {n}"))

    pages, *_ = await asyncio.gather(all_pages(world, world.at("/messages"), 3), write())
    assert len(pages) == len(set(pages))
    assert [item for item in pages if item in set(stored)] == list(reversed(stored))


async def test_identities_of_all_tenants(world: World) -> None:
    made = [world.box.public_id, world.other_box.public_id]
    for n in range(5):
        world.clock.advance(1)
        tenant = world.tenant if n % 2 else world.other_tenant
        made.append((await world.new_identity(tenant, f"agent{n}")).public_id)

    async def pages(headers: dict[str, str], **params: Any) -> list[str]:
        found: list[str] = []
        more: dict[str, str] = {}
        while True:
            body = (await world.get("/v1/identities", headers, limit=2, **params, **more)).json()
            found += [item["id"] for item in body["data"]]
            if body["next_cursor"] is None:
                return found
            more = {"cursor": body["next_cursor"]}

    assert await pages(world.platform) == list(reversed(made))
    own = await pages(world.key)
    assert own == await pages(world.platform, tenant_id=world.tenant.public_id)
    assert own == [item for item in reversed(made) if item in own]
    path = f"/v1/tenants/{world.tenant.public_id}/identities"
    assert await all_pages(world, path, 1) == own


async def test_filters(world: World) -> None:
    first = await world.deliver(simple_mail("One", "1", Message_ID="<one@example.com>"))
    answer = await world.deliver(
        simple_mail("Re: One", "2", In_Reply_To="<one@example.com>"), direction=Direction.OUTBOUND
    )
    other = await world.deliver(simple_mail("Two", "3"))
    await world.patch(world.at(f"/messages/{other.message_id}"), {"labels_add": ["todo"]})

    async def listed(**params: Any) -> list[str]:
        response = await world.get(world.at("/messages"), **params)
        assert response.status_code == 200, response.text
        return [item["id"] for item in response.json()["data"]]

    assert await listed(direction="outbound") == [answer.message_id]
    assert await listed(thread_id=first.thread_id) == [answer.message_id, first.message_id]
    assert await listed(label="todo") == [other.message_id]
    assert await listed(status="received") == [other.message_id, first.message_id]
    assert await listed(after="2030-01-01T00:00:01Z") == [other.message_id]
    assert await listed(before="2030-01-01T00:00:01Z") == [first.message_id]
    assert await listed(before="2030-01-01T01:00:01+01:00") == [first.message_id]
    assert await listed(after="2035-01-01T00:00:00Z") == []
    assert await listed(status="quarantined") == []
    assert await listed(status="bounced") == []

    async def threads(**params: Any) -> list[str]:
        response = await world.get(world.at("/threads"), **params)
        assert response.status_code == 200, response.text
        return [item["id"] for item in response.json()["data"]]

    assert await threads() == [other.thread_id, first.thread_id]
    assert await threads(direction="outbound") == [first.thread_id]
    assert await threads(label="todo") == [other.thread_id]
    assert await threads(category="billing") == []
    assert await threads(needs_reply_gte="0") == []
    await world.patch(world.at(f"/threads/{first.thread_id}"), {"archived": True, "read": True})
    assert await threads() == [other.thread_id]
    assert await threads(archived="true") == [first.thread_id]
    assert await threads(is_unread="true") == [other.thread_id]
    assert await threads(is_unread="false") == []


@pytest.mark.covers("security-privacy:A4.4", "edge:F7")
async def test_hidden_mail_is_not_listed_without_review(world: World) -> None:
    headers = await world.new_key(Level.IDENTITY, ["messages:read"], identity=world.box)
    for status in ("quarantined", "hidden", "throttled"):
        response = await world.get(world.at("/messages"), headers, status=status)
        assert (response.status_code, response.json()) == (200, {"data": [], "next_cursor": None})


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"limit": "1.5"}, "limit"),
        ({"limit": ""}, "limit"),
        ({"cursor": ""}, "cursor"),
        ({"cursor": "c_"}, "cursor"),
        ({"cursor": "c_k1"}, "cursor"),
        ({"cursor": "nonsense"}, "cursor"),
        ({"cursor": "c_k1" + "A" * 2000}, "cursor"),
        ({"cursor": "c_k1\u00e9"}, "cursor"),
        ({"direction": "sideways"}, "direction"),
        ({"status": "lost"}, "status"),
        ({"label": "Not A Label"}, "label"),
        ({"label": "a\x00"}, "label"),
        ({"thread_id": "thr_1"}, "thread_id"),
        ({"after": "yesterday"}, "after"),
        ({"after": "2030-01-01"}, "after"),
        ({"after": "2030-01-01T00:00:00"}, "after"),
        ({"after": "2030-02-30T00:00:00Z"}, "after"),
        ({"after": "1893456000"}, "after"),
        ({"before": "2030-01-01T00:00:00+99:99"}, "before"),
    ],
)
async def test_wrong_parameters(world: World, params: dict[str, str], path: str) -> None:
    assert errors_of(await world.get(world.at("/messages"), **params)) == [path]


async def test_times_at_the_edges(world: World) -> None:
    one = await world.deliver(simple_mail())
    for name, value, found in (
        ("after", "0001-01-01T00:00:00+14:00", True),
        ("before", "9999-12-31T23:59:59.999999999-12:00", True),
        ("after", "9999-12-31T23:59:59Z", False),
        ("before", "0001-01-01T00:00:00Z", False),
    ):
        body = (await world.get(world.at("/messages"), **{name: value})).json()
        if "data" in body:
            assert [item["id"] for item in body["data"]] == ([one.message_id] if found else []), (name, value)
        else:
            assert body["error"]["code"] == "invalid_request"


@pytest.mark.covers("FR-API-3")
async def test_a_cursor_fits_its_list_only(world: World) -> None:
    for n in range(3):
        await world.deliver(simple_mail(f"Mail {n}", f"{n}"))
        await world.deliver(simple_mail(f"Mail {n}", f"{n}"), to=world.other_box)
    cursor = (await world.get(world.at("/messages"), limit=1)).json()["next_cursor"]
    assert (await world.get(world.at("/messages"), limit=2, cursor=cursor)).status_code == 200
    second_key = await world.new_key(Level.TENANT, tenant=world.tenant)
    other = f"/v1/identities/{world.other_box.public_id}/messages"
    for response in (
        await world.get(world.at("/threads"), cursor=cursor),
        await world.get(world.at("/messages"), cursor=cursor, direction="inbound"),
        await world.get(world.at("/messages"), second_key, cursor=cursor),
        await world.get(other, world.platform, cursor=cursor),
        await world.get(world.at("/messages"), cursor=cursor[:-1]),
        await world.get(world.at("/messages"), cursor=cursor[:-2] + ("A" if cursor[-2] != "A" else "B") + cursor[-1]),
        await world.get(world.at("/messages"), cursor="c_k2" + cursor[4:]),
    ):
        assert errors_of(response) == ["cursor"]


@pytest.mark.covers("FR-API-3")
async def test_a_cursor_lives_for_a_day(world: World) -> None:
    for n in range(2):
        await world.deliver(simple_mail(f"Mail {n}", f"{n}"))
    cursor = (await world.get(world.at("/messages"), limit=1)).json()["next_cursor"]
    world.clock.advance(24 * 3600)
    assert (await world.get(world.at("/messages"), limit=1, cursor=cursor)).status_code == 200
    world.clock.advance(1)
    response = await world.get(world.at("/messages"), limit=1, cursor=cursor)
    assert (response.status_code, response.json()["error"]["code"]) == (410, "cursor_expired")


# -- the codec

_START = datetime(2030, 1, 1, tzinfo=UTC)
_KEYS = CursorKeys(CursorKey("k1", b"1" * 32))
_values = st.one_of(st.integers(-(2**53), 2**53), st.text(max_size=40))
_names = st.text("abcdef_", min_size=1, max_size=8)
_scopes = st.builds(
    scope_of,
    st.sampled_from(["listMessages", "listThreads"]),
    st.dictionaries(_names, st.text(max_size=20), max_size=3),
    st.dictionaries(_names, st.none() | st.text(max_size=20) | st.booleans(), max_size=3),
    st.text(max_size=30),
)


@given(_scopes, _values, _values)
def test_round_trip(scope: Any, first: Any, second: Any) -> None:
    clock = ManualClock(_START)
    cursor = seal(_KEYS, scope, (first, second), clock.now())
    assert cursor.startswith("c_k1")
    assert unseal(_KEYS, scope, cursor, clock.now()) == (first, second)
    clock.advance(TTL_MS / 1000 + 1)
    with pytest.raises(PostroomError) as caught:
        unseal(_KEYS, scope, cursor, clock.now())
    assert caught.value.code == "cursor_expired"


@given(_scopes, st.data())
def test_any_change_of_a_byte_is_noticed(scope: Any, data: st.DataObject) -> None:
    now = ManualClock(_START).now()
    cursor = seal(_KEYS, scope, (1, "msg_1"), now)
    sealed = bytearray(base64.urlsafe_b64decode(cursor[4:] + "=" * (-len(cursor[4:]) % 4)))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    forged = "c_k1" + base64.urlsafe_b64encode(bytes(sealed)).decode().rstrip("=")
    with pytest.raises(PostroomError) as caught:
        unseal(_KEYS, scope, forged, now)
    assert caught.value.code == "invalid_request"


@given(_scopes, st.text(max_size=200))
def test_arbitrary_text_is_no_cursor(scope: Any, text: str) -> None:
    with pytest.raises(PostroomError) as caught:
        unseal(_KEYS, scope, text, ManualClock(_START).now())
    assert caught.value.code == "invalid_request"


def test_a_rotated_key_still_verifies() -> None:
    now = ManualClock(_START).now()
    scope = scope_of("listMessages", {}, {}, "key_1")
    old = seal(_KEYS, scope, (1, 2), now)
    rotated = CursorKeys(CursorKey("k2", b"2" * 32), (CursorKey("k1", b"1" * 32),))
    assert unseal(rotated, scope, old, now) == (1, 2)
    assert unseal(rotated, scope, seal(rotated, scope, (3, 4), now), now) == (3, 4)
    with pytest.raises(PostroomError):
        unseal(CursorKeys(CursorKey("k2", b"2" * 32)), scope, old, now)


@pytest.mark.parametrize(
    ("kid", "secret"), [("", b"x" * 32), ("K1", b"x" * 32), ("k1", b"x" * 31), ("k" * 17, b"x" * 32)]
)
def test_keys_must_be_keys(kid: str, secret: bytes) -> None:
    with pytest.raises(ValueError, match="cursor key"):
        CursorKey(kid, secret)
