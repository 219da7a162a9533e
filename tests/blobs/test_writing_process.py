"""The child that writes small messages: its frames, and what happens when it dies."""

import asyncio
import contextlib
import os
import signal
import struct
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.blobs import MaildirStore, PutGroup, StorageError, StorageFull, put_durably
from postroom.blobs.writing_process import (
    LARGEST_BATCH,
    decode_request,
    encode_answer,
    encode_request,
    take_answer,
)

GROUPS = st.lists(
    st.tuples(st.lists(st.binary(max_size=40), max_size=4), st.lists(st.text(max_size=20), max_size=3)), max_size=5
)
OUTCOMES = st.lists(
    st.none()
    | st.sampled_from(["EIO", "EROFS", "no_keys"]).map(StorageError)
    | st.sampled_from(["ENOSPC", "EDQUOT"]).map(StorageFull),
    max_size=6,
)


def child_of_this_process() -> psutil.Process:
    (child,) = (c for c in psutil.Process().children() if "postroom.blobs.writing_process" in " ".join(c.cmdline()))
    return child


@given(GROUPS)
def test_a_batch_survives_its_frame(groups: list[tuple[list[bytes], list[str]]]) -> None:
    frame = b"".join(encode_request([PutGroup(tuple(pieces), keys) for pieces, keys in groups]))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    found = decode_request(memoryview(frame)[4:])
    assert [(b"".join(g.pieces), list(g.keys)) for g in found] == [(b"".join(p), k) for p, k in groups]


@given(st.binary(max_size=200))
def test_a_frame_of_nonsense_is_refused(frame: bytes) -> None:
    with contextlib.suppress(struct.error, ValueError):
        decode_request(memoryview(frame))


@given(OUTCOMES, st.integers(1, 7))
def test_answers_arrive_in_any_pieces(outcomes: list[StorageError | None], step: int) -> None:
    answer = encode_answer(outcomes)
    buffer = bytearray()
    found = None
    for start in range(0, len(answer), step):
        assert found is None
        buffer += answer[start : start + step]
        found = take_answer(buffer)
    assert found is not None
    assert not buffer
    assert [(type(o), o and o.reason) for o in found] == [(type(o), o and o.reason) for o in outcomes]


@pytest.mark.covers("edge:J1", "decisions:B5")
async def test_a_child_that_dies_costs_what_was_under_way_and_nothing_more(tmp_path: Path) -> None:
    store = MaildirStore(tmp_path, writing_process=True)
    await store.put("a/1", b"one")
    child = child_of_this_process()
    child.suspend()
    lost = asyncio.create_task(store.put_many([PutGroup((b"two",), ("a/2",))]))
    await asyncio.sleep(0)
    os.kill(child.pid, signal.SIGKILL)
    (outcome,) = await asyncio.wait_for(lost, 30)
    assert isinstance(outcome, StorageError)
    assert outcome.reason == "writer_lost"
    # The retries of J1 find a new child.
    assert await put_durably(store, [PutGroup((b"two",), ("a/2",))]) == [None]
    assert await store.get("a/2") == b"two"
    assert child_of_this_process().pid != child.pid
    await store.close()


async def test_the_child_ends_with_its_server(tmp_path: Path) -> None:
    store = MaildirStore(tmp_path, writing_process=True)
    await store.put("a/1", b"one")
    child = child_of_this_process()
    await store.close()
    child.wait(10)


async def test_large_batches_do_not_go_through_the_child(tmp_path: Path) -> None:
    store = MaildirStore(tmp_path, writing_process=True)
    await store.put("a/large", bytes(LARGEST_BATCH + 1))
    assert await store.size("a/large") == LARGEST_BATCH + 1
    assert not [c for c in psutil.Process().children() if "writing_process" in " ".join(c.cmdline())]
    await store.close()


async def test_many_batches_at_once_are_answered_each(tmp_path: Path) -> None:
    store = MaildirStore(tmp_path, writing_process=True)
    batches = [[PutGroup((b"%d" % (10 * n + k),), (f"b/{n}/{k}",)) for k in range(5)] for n in range(40)]
    answers = await asyncio.gather(*map(store.put_many, batches))
    assert answers == [[None] * 5] * 40
    assert await store.get("b/39/4") == b"394"
    await store.close()
