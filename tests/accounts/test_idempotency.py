"""Idempotency records: run once, answer the same again (data-model §4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts import idempotency
from postroom.accounts.idempotency import Claim, Replay, Request, Slot
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.db import Database

SLOT = Slot("ten_1", "key_1", "abc")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def request(body: Any = None, *, slot: Slot = SLOT, path: str = "/v1/keys") -> Request:
    return Request(slot, "POST", path, idempotency.fingerprint("POST", path, body))


async def begin(db: Database, clock: ManualClock, wanted: Request) -> Claim | Replay | str:
    async with db.acquire() as conn:
        try:
            return await idempotency.begin(conn, clock, wanted)
        except PostroomError as error:
            return error.code


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_the_fingerprint_ignores_the_order_of_members(body: dict[str, Any]) -> None:
    turned = dict(reversed(body.items()))
    assert idempotency.fingerprint("POST", "/v1/x", body) == idempotency.fingerprint("POST", "/v1/x", turned)
    assert idempotency.fingerprint("POST", "/v1/x", body) != idempotency.fingerprint("POST", "/v1/y", body)
    assert idempotency.fingerprint("POST", "/v1/x", body) != idempotency.fingerprint("POST", "/v1/x", [body])


def test_a_body_that_is_too_deep_is_refused() -> None:
    deep: Any = []
    for _ in range(1020):  # the parser takes a little more
        deep = [deep]
    with pytest.raises(PostroomError) as refused:
        idempotency.fingerprint("POST", "/v1/keys", {"name": "k", "unknown": deep})
    assert refused.value.code == "invalid_request"


@pytest.mark.parametrize(
    ("key", "valid"),
    [("a", True), ("a b", True), ("x" * 255, True)]
    + [(bad, False) for bad in ("", " ", "x" * 256, "a\n", "é", "\x00", " a")],
)
def test_keys(key: str, valid: bool) -> None:
    if valid:
        assert idempotency.check_key(key) == key
        return
    with pytest.raises(PostroomError) as refused:
        idempotency.check_key(key)
    assert refused.value.code == "invalid_idempotency_key"


@pytest.mark.covers("FR-KEY-2")
async def test_the_first_answer_is_replayed_without_its_secret(db: Database, clock: ManualClock) -> None:
    claim = await begin(db, clock, request({"a": 1}))
    assert isinstance(claim, Claim)
    assert await begin(db, clock, request({"a": 1})) == "request_in_progress"
    async with db.transaction() as conn:
        await idempotency.complete(conn, claim, 201, {"id": "key_1", "secret": "pmk_"}, reference=None)
    expected = Replay(201, {"id": "key_1", "secret_replayed": False})
    assert await begin(db, clock, request({"a": 1})) == expected
    assert await begin(db, clock, request({"a": 2})) == "idempotency_conflict"
    assert await begin(db, clock, request({"a": 1}, path="/v1/other")) == "idempotency_conflict"
    # Another key, and another tenant, have slots of their own.
    assert isinstance(await begin(db, clock, request({"a": 1}, slot=Slot("ten_1", "key_2", "abc"))), Claim)
    assert isinstance(await begin(db, clock, request({"a": 1}, slot=Slot("ten_2", "key_1", "abc"))), Claim)
    clock.advance(30 * 86400)
    assert isinstance(await begin(db, clock, request({"a": 2})), Claim)


async def test_one_of_many_runs(db: Database, clock: ManualClock) -> None:
    answers = await asyncio.gather(*(begin(db, clock, request()) for _ in range(8)))
    assert sum(isinstance(answer, Claim) for answer in answers) == 1
    assert answers.count("request_in_progress") == 7


async def test_a_crashed_request_is_taken_over_once(db: Database, clock: ManualClock) -> None:
    crashed = await begin(db, clock, request())
    assert isinstance(crashed, Claim)
    clock.advance(59)
    assert await begin(db, clock, request()) == "request_in_progress"
    clock.advance(1)
    assert await begin(db, clock, request({"other": 1})) == "idempotency_conflict"
    answers = await asyncio.gather(*(begin(db, clock, request()) for _ in range(8)))
    (taken,) = (answer for answer in answers if isinstance(answer, Claim))

    # The first one was only slow: its transaction is undone, and its abandoning touches nothing.
    async def finish() -> None:
        async with db.transaction() as conn:
            await conn.execute("INSERT INTO lexicon VALUES ('effect')")
            await idempotency.complete(conn, crashed, 200, None, reference=None)

    with pytest.raises(PostroomError) as refused:
        await finish()
    assert refused.value.code == "request_in_progress"
    async with db.transaction() as conn:
        assert await conn.fetchval("SELECT count(*) FROM lexicon") == 0
        await idempotency.abandon(conn, crashed)
        await idempotency.complete(conn, taken, 200, None, reference=None)
    assert await begin(db, clock, request()) == Replay(200, None)


async def test_an_abandoned_key_can_be_used_again(db: Database, clock: ManualClock) -> None:
    claim = await begin(db, clock, request())
    assert isinstance(claim, Claim)
    async with db.acquire() as conn:
        await idempotency.abandon(conn, claim)
    assert isinstance(await begin(db, clock, request({"other": 1})), Claim)


async def test_long_answers_are_kept_by_reference(db: Database, clock: ManualClock) -> None:
    claim = await begin(db, clock, request())
    assert isinstance(claim, Claim)
    reference = {"kind": "identity", "id": "idn_1"}
    async with db.transaction() as conn:
        await idempotency.complete(conn, claim, 200, {"x": "é" * 40_000}, reference=reference)
    assert await begin(db, clock, request()) == Replay(200, {"$ref": reference})


async def test_expired_records_are_pruned(db: Database, clock: ManualClock) -> None:
    for n in range(5):
        await begin(db, clock, request(slot=Slot("ten_1", "key_1", f"k{n}")))
    clock.advance(30 * 86400)
    await begin(db, clock, request(slot=Slot("ten_1", "key_1", "new")))
    async with db.acquire() as conn:
        assert await idempotency.prune(conn, clock.now(), limit=3) == 3
        assert await idempotency.prune(conn, clock.now(), limit=3) == 2
        assert await conn.fetchval("SELECT idem_key FROM idempotency_records") == "new"
