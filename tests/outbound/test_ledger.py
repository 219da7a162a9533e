"""Idempotency of sends: what is the same request, who holds a key, what is left of it (outbound §3)."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.db import Database
from postroom.mailbox.models import MailboxRef
from postroom.outbound import ledger
from postroom.outbound.ledger import Ledger, NotCanonical, Recorded, Reservation, fingerprint_json, key_hash
from postroom.outbound.models import Operation
from tests.mailbox.letters import make_boxes

HASH = key_hash("task-1:step-2")
A, B = "a" * 64, "b" * 64

# -- what is the same

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def _shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shuffled(value[name]) for name in reversed(list(value))}
    return [_shuffled(one) for one in value] if isinstance(value, list) else value


def _printed(value: Any, **spaces: Any) -> str:
    return fingerprint_json(json.dumps(value, **spaces).encode(), Operation.SEND, "idn_1")


@pytest.mark.covers("edge:G1", "FR-OUT-1")
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_order_spaces_and_escapes_do_not_matter(body: dict[str, Any]) -> None:
    same = _printed(body)
    assert _printed(_shuffled(body), indent=3) == same
    assert _printed(body, ensure_ascii=False, separators=(" , ", " : ")) == same
    assert ledger.fingerprint(body, Operation.SEND, "idn_1") == same


@pytest.mark.covers("edge:G1")
@given(st.dictionaries(st.text(), json_values, min_size=1, max_size=4), json_values)
def test_every_value_matters(body: dict[str, Any], other: Any) -> None:
    name = next(iter(body))
    changed = {**body, name: other}
    assert (_printed(changed) == _printed(body)) is (json.dumps(_sorted(changed)) == json.dumps(_sorted(body)))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _sorted(value[name])) for name in sorted(value)]
    return [[_sorted(one) for one in value]] if isinstance(value, list) else value


@pytest.mark.covers("edge:G1")
def test_operation_and_target_matter() -> None:
    prints = {
        fingerprint_json(b"{}", operation, target)
        for operation in (Operation.SEND, Operation.REPLY, Operation.REPLY_ALL, Operation.FORWARD)
        for target in ("idn_1", "idn_1/msg_1", "idn_1/msg_2")
    }
    assert len(prints) == 12


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b'[{"a":1,"\\u0061":2}]',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":"\\ud800"}',
        b'{"a":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b"{",
        b"\xff",
    ],
)
def test_what_not_everybody_reads_the_same(body: bytes) -> None:
    with pytest.raises(NotCanonical):
        fingerprint_json(body, Operation.SEND, "idn_1")


@pytest.mark.parametrize("key", ["", "k" * 256, "a\tb", "ä", "\x7f", "line\n"])
def test_unusable_keys(key: str) -> None:
    with pytest.raises(PostroomError) as caught:
        key_hash(key)
    assert caught.value.code == "invalid_idempotency_key"


def test_usable_keys() -> None:
    assert len({key_hash(key) for key in (" ", "k" * 255, "bk-2291 confirm", "~")}) == 4


# -- who holds a key


@pytest.fixture
async def ref(db: Database, ids: IdGenerator, clock: ManualClock) -> MailboxRef:
    return (await make_boxes(db, ids, clock))[0].ref


async def _record(db: Database, held: Reservation, message: str) -> bool:
    """As acceptance does."""
    async with db.acquire() as conn:
        done = await conn.execute(
            "UPDATE send_ledger SET message = $5, response = $6 WHERE tenant_id = $1 AND mailbox_id = $2 "
            "AND key_hash = $3 AND holder = $4 AND message IS NULL",
            *(held.ref.tenant_id, held.ref.mailbox_id, held.key_hash, held.holder, message, {"id": message}),
        )
    return bool(done == "UPDATE 1")


async def _refused(ledger_: Ledger, ref: MailboxRef, print_: str) -> PostroomError:
    with pytest.raises(PostroomError) as caught:
        await ledger_.begin(ref, HASH, print_, Operation.SEND)
    return caught.value


async def _count(db: Database) -> int:
    async with db.acquire() as conn:
        return int(await conn.fetchval("SELECT count(*) FROM send_ledger"))


@pytest.mark.covers("edge:G1", "FR-OUT-1")
async def test_running_recorded_conflict(db: Database, clock: ManualClock, ids: IdGenerator, ref: MailboxRef) -> None:
    book, message = Ledger(db, clock), ids.new("msg")
    held = await book.begin(ref, HASH, A, Operation.SEND)
    assert isinstance(held, Reservation)
    for print_ in (A, B):  # nobody knows yet whose the key will be
        error = await _refused(book, ref, print_)
        assert (error.code, error.retryable) == ("request_in_progress", True)
    assert await _record(db, held, message)
    assert await book.begin(ref, HASH, A, Operation.SEND) == Recorded(message, {"id": message})
    error = await _refused(book, ref, B)
    assert (error.code, error.details) == ("idempotency_conflict", {"original_message_id": message})


async def test_keys_are_an_identitys(db: Database, clock: ManualClock, ids: IdGenerator) -> None:
    book = Ledger(db, clock)
    for box in await make_boxes(db, ids, clock, 2):
        assert isinstance(await book.begin(box.ref, HASH, A, Operation.SEND), Reservation)


@pytest.mark.covers("edge:G1")
async def test_a_refusal_leaves_no_trace(db: Database, clock: ManualClock, ref: MailboxRef) -> None:
    book = Ledger(db, clock)
    held = await book.begin(ref, HASH, A, Operation.SEND)
    assert isinstance(held, Reservation)
    async with db.acquire() as conn:
        await ledger.release(conn, held)
    assert await _count(db) == 0
    assert isinstance(await book.begin(ref, HASH, B, Operation.REPLY), Reservation)


@pytest.mark.covers("edge:G1")
async def test_what_was_accepted_is_not_released(
    db: Database, clock: ManualClock, ids: IdGenerator, ref: MailboxRef
) -> None:
    book = Ledger(db, clock)
    held = await book.begin(ref, HASH, A, Operation.SEND)
    assert isinstance(held, Reservation)
    assert await _record(db, held, ids.new("msg"))
    async with db.acquire() as conn:
        await ledger.release(conn, held)
    assert isinstance(await book.begin(ref, HASH, A, Operation.SEND), Recorded)


@pytest.mark.covers("edge:G1")
async def test_a_dead_request_is_taken_over(
    db: Database, clock: ManualClock, ids: IdGenerator, ref: MailboxRef
) -> None:
    book = Ledger(db, clock)
    dead = await book.begin(ref, HASH, A, Operation.SEND)
    assert isinstance(dead, Reservation)
    clock.advance(44)
    assert (await _refused(book, ref, A)).code == "request_in_progress"
    clock.advance(1)
    heir = await book.begin(ref, HASH, B, Operation.SEND)
    assert isinstance(heir, Reservation)
    # Whoever was only slow can neither record nor give back what is another's.
    assert not await _record(db, dead, ids.new("msg"))
    async with db.acquire() as conn:
        await ledger.release(conn, dead)
    message = ids.new("msg")
    assert await _record(db, heir, message)
    assert await book.begin(ref, HASH, B, Operation.SEND) == Recorded(message, {"id": message})


@pytest.mark.covers("FR-OUT-1")
async def test_thirty_days(db: Database, clock: ManualClock, ids: IdGenerator, ref: MailboxRef) -> None:
    book = Ledger(db, clock)
    held = await book.begin(ref, HASH, A, Operation.SEND)
    assert isinstance(held, Reservation)
    assert await _record(db, held, ids.new("msg"))
    clock.advance(timedelta(days=30).total_seconds() - 1)
    assert isinstance(await book.begin(ref, HASH, A, Operation.SEND), Recorded)
    assert await book.prune() == 0
    clock.advance(1)
    assert isinstance(await book.begin(ref, HASH, B, Operation.SEND), Reservation)


async def test_pruning(db: Database, clock: ManualClock, ref: MailboxRef) -> None:
    book = Ledger(db, clock)
    for number in range(5):
        await book.begin(ref, key_hash(str(number)), A, Operation.SEND)
    clock.advance(timedelta(days=30).total_seconds())
    await book.begin(ref, HASH, A, Operation.SEND)
    assert [await book.prune(limit=3), await book.prune(limit=3), await book.prune(limit=3)] == [3, 2, 0]
    assert await _count(db) == 1


@pytest.mark.covers("edge:G1")
@pytest.mark.parametrize("lapsed", [False, True])
async def test_one_of_many_nodes_gets_it(
    db: Database, database_url: str, clock: ManualClock, ref: MailboxRef, lapsed: bool
) -> None:
    if lapsed:
        await Ledger(db, clock).begin(ref, HASH, A, Operation.SEND)
        clock.advance(46)
    async with Database(database_url, min_size=1, max_size=10) as other:
        books = [Ledger(db, clock), Ledger(other, clock)] * 8
        found = await asyncio.gather(
            *(book.begin(ref, HASH, A, Operation.SEND) for book in books), return_exceptions=True
        )
    held = [one for one in found if isinstance(one, Reservation)]
    refused = [one for one in found if isinstance(one, PostroomError) and one.code == "request_in_progress"]
    assert (len(held), len(refused)) == (1, 15)
