"""What every blob store does, run against each of them."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from postroom.blobs import (
    BlobMissing,
    BlobStore,
    Discarded,
    InvalidKey,
    MaildirStore,
    MarkerMismatch,
    PutGroup,
    Span,
    StorageError,
    put_durably,
)
from postroom.blobs.objects import ObjectStore

TENANT, OTHER = "ten_01J9Z3K8V4QW7X2M5N6P8R0T1A", "ten_01J9Z3K8V4QW7X2M5N6P8R0T1B"
IDENTITY, SECOND = "idn_01J9Z3K8V4QW7X2M5N6P8R0T1A", "idn_01J9Z3K8V4QW7X2M5N6P8R0T1B"


def raw(n: int, identity: str = IDENTITY, tenant: str = TENANT) -> str:
    return f"t/{tenant}/i/{identity}/m/msg_01J9Z3K8V4QW7X2M5N6P8R{n:04d}/raw.eml"


def part(n: int, name: str = "att_1") -> str:
    return raw(n).removesuffix("raw.eml") + f"a/{name}"


@pytest.fixture(params=["maildir", "maildir-process", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BlobStore]:
    made: MaildirStore | ObjectStore
    if request.param == "memory":
        made = ObjectStore(MemoryStore())
    else:
        made = MaildirStore(tmp_path / "blobs", writing_process=request.param == "maildir-process")
    yield made
    await made.close()


@pytest.mark.parametrize("key", [raw(1), part(1), raw(1).replace("/m/", "/out/").replace("/raw", ""), "a"])
@pytest.mark.parametrize("data", [b"", b"x", b"\r\n" * 100_000, bytearray(b"abc"), memoryview(b"0123456789")[2:5]])
async def test_what_is_put_is_got(store: BlobStore, key: str, data: bytes) -> None:
    await store.put(key, data)
    assert await store.get(key) == bytes(data)
    assert await store.size(key) == len(data)
    assert await store.list() == [key]


async def test_putting_again_replaces(store: BlobStore) -> None:
    await store.put(raw(1), b"one" * 1000)
    await store.put(raw(1), b"two")
    assert await store.get(raw(1)) == b"two"
    assert await store.list() == [raw(1)]


async def test_missing_is_missing(store: BlobStore) -> None:
    await store.put(part(1), b"x")
    for key in (raw(1), part(2), part(1).rpartition("/")[0]):
        for asked in (store.get(key), store.get_range(key, 0, 1), store.size(key), store.link(key, raw(9))):
            with pytest.raises(BlobMissing):
                await asked
        with pytest.raises(BlobMissing):
            await anext(store.stream(key))
    assert await store.list() == [part(1)]


async def test_malformed_keys_are_refused_everywhere(store: BlobStore) -> None:
    for key in ("", "../x", "/x", "a//b", "a\0"):
        for asked in (
            store.put(key, b""),
            store.get(key),
            store.get_range(key, 0, 1),
            store.size(key),
            store.link(key, "a"),
            store.link("a", key),
            store.delete([key]),
        ):
            with pytest.raises(InvalidKey):
                await asked
    with pytest.raises(InvalidKey):
        await store.list("../")


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 3), (2, 5), (9, 10), (9, 99), (10, 10), (50, 60)])
async def test_ranges(store: BlobStore, start: int, end: int) -> None:
    data = b"0123456789"
    await store.put(raw(1), data)
    assert await store.get_range(raw(1), start, end) == data[start:end]
    with pytest.raises(ValueError, match="span"):
        await store.get_range(raw(1), 3, 2)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
async def test_streams(store: BlobStore, chunk: int) -> None:
    data = bytes(range(100))
    await store.put(raw(1), data)
    pieces = [piece async for piece in store.stream(raw(1), chunk)]
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= chunk for piece in pieces)
    assert b"".join([piece async for piece in store.stream(raw(1), chunk, start=10, end=30)]) == data[10:30]
    assert [piece async for piece in store.stream(raw(1), chunk, start=200)] == []


async def test_a_stream_may_be_left_early(store: BlobStore) -> None:
    await store.put(raw(1), bytes(100))
    stream = store.stream(raw(1), 10)
    assert await anext(stream) == bytes(10)
    await stream.aclose()  # type: ignore[attr-defined] # every store's stream is a generator


@pytest.mark.covers("decisions:B5", "mail-server:E2")
async def test_many_groups_with_many_keys(store: BlobStore) -> None:
    groups = [
        PutGroup((b"Received: x\r\n", memoryview(b"Subject: %d\r\n\r\n" % n)), (raw(n), raw(n, SECOND), raw(n)))
        for n in range(150)
    ]
    assert await store.put_many(groups) == [None] * 150
    for n in (0, 77, 149):
        for key in (raw(n), raw(n, SECOND)):
            assert await store.get(key) == b"Received: x\r\nSubject: %d\r\n\r\n" % n
    assert len(await store.list(limit=1000)) == 300
    assert await store.put_many([]) == []


@pytest.mark.covers("decisions:B15", "mail-server:E2")
async def test_a_bad_group_fails_alone(store: BlobStore) -> None:
    results = await store.put_many(
        [
            PutGroup((b"a",), (raw(1),)),
            PutGroup((b"b",), ("../b",)),
            PutGroup((b"c",), ()),
            PutGroup((b"d",), (raw(4),)),
        ]
    )
    assert [type(result) for result in results] == [type(None), InvalidKey, StorageError, type(None)]
    assert await store.list() == [raw(1), raw(4)]


async def test_the_same_key_twice_in_one_batch(store: BlobStore) -> None:
    assert await store.put_many([PutGroup((b"same",), (raw(1),))] * 2) == [None, None]
    assert await store.get(raw(1)) == b"same"


async def test_get_many_answers_each(store: BlobStore) -> None:
    await store.put(raw(1), b"0123456789")
    whole, span, missing, bad = await store.get_many([raw(1), Span(raw(1), 2, 4), raw(2), "../x"])
    assert (whole, span) == (b"0123456789", b"23")
    assert isinstance(missing, BlobMissing)
    assert isinstance(bad, InvalidKey)
    assert await store.get_many([]) == []


@given(sizes=st.lists(st.integers(0, 60), max_size=12), budget=st.integers(1, 100))
@settings(max_examples=25, deadline=None)
def test_batches_keep_order_and_budget(sizes: list[int], budget: int) -> None:
    async def run() -> None:
        store = ObjectStore(MemoryStore())
        await check_batches(store, sizes, budget)

    asyncio.run(run())


@given(sizes=st.lists(st.integers(0, 60), max_size=12), budget=st.integers(1, 100))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batches_of_files_keep_order_and_budget(tmp_path: Path, sizes: list[int], budget: int) -> None:
    async def run() -> None:
        store = MaildirStore(tmp_path / "blobs", fsync=False)
        await check_batches(store, sizes, budget)
        await store.close()

    asyncio.run(run())


async def check_batches(store: BlobStore, sizes: Sequence[int], budget: int) -> None:
    wants = [raw(n) for n in range(len(sizes))]
    await store.put_many([PutGroup((bytes([n]) * size,), (raw(n),)) for n, size in enumerate(sizes)])
    batches = [batch async for batch in store.batches(wants, budget)]
    assert [data for batch in batches for data in batch] == [bytes([n]) * size for n, size in enumerate(sizes)]
    for batch in batches:
        assert batch
        assert len(batch) == 1 or sum(len(data) for data in batch if isinstance(data, bytes)) <= budget


async def test_batches_report_what_is_missing_in_its_place(store: BlobStore) -> None:
    await store.put(raw(2), b"x")
    found = [result async for batch in store.batches([raw(1), raw(2), raw(3)]) for result in batch]
    assert [isinstance(result, BlobMissing) for result in found] == [True, False, True]


async def test_links_share_and_outlive(store: BlobStore) -> None:
    await store.put(raw(1), b"x")
    await store.link(raw(1), raw(2, SECOND))
    await store.put(raw(3), b"old")
    await store.link(raw(1), raw(3))
    await store.link(raw(1), raw(3))
    await store.delete([raw(1)])
    assert await store.get_many([raw(2, SECOND), raw(3)]) == [b"x", b"x"]
    with pytest.raises(BlobMissing):
        await store.get(raw(1))


@pytest.mark.parametrize("durably", [True, False])
async def test_delete_is_idempotent_and_leaves_neighbours(store: BlobStore, durably: bool) -> None:
    await store.put_many([PutGroup((b"x",), (raw(1), part(1), part(1, "att_1.md"), part(2)))])
    await store.delete([part(1), raw(1), raw(8), part(9)], durably=durably)
    await store.delete([part(1)], durably=durably)
    await store.delete([], durably=durably)
    assert await store.list() == [part(1, "att_1.md"), part(2)]
    await store.put(part(1), b"again")
    assert await store.get(part(1)) == b"again"


async def test_listing_in_order_by_prefix_and_page(store: BlobStore) -> None:
    keys = sorted(
        [raw(n, identity, tenant) for n in (1, 2, 3) for identity in (IDENTITY, SECOND) for tenant in (TENANT, OTHER)]
        + [part(1), part(1, "att_1.md"), part(2), part(2, "att-1"), raw(1).replace("/m/", "/out/").replace("/raw", "")]
        + ["inbound-staging/2026/01/02/x.eml", f"t/{TENANT}/exports/exp_1.zip", "z"]
    )
    await store.put_many([PutGroup((b"x",), (key,)) for key in keys])
    assert await store.list() == keys
    for prefix in ("t", "t/", f"t/{TENANT}", f"t/{TENANT}/i/{SECOND}/", part(1).rpartition("/")[0], "none", "inbound"):
        bare = prefix.rstrip("/") + "/"
        assert await store.list(prefix) == [key for key in keys if key.startswith(bare)]
    for limit in (1, 3, 7):
        pages, after = [], ""
        while page := await store.list("", after, limit):
            assert len(page) <= limit
            pages += page
            after = page[-1]
        assert pages == keys
    assert (
        await store.list(f"t/{TENANT}", raw(2), 2)
        == [k for k in keys if k.startswith(f"t/{TENANT}/") and k > raw(2)][:2]
    )
    assert await store.list(limit=0) == []


@pytest.mark.covers("decisions:B5")
async def test_marker(store: BlobStore) -> None:
    with pytest.raises(MarkerMismatch):
        await store.check_marker("store-1")
    await store.check_marker("store-1", create=True)
    await store.check_marker("store-1")
    await store.check_marker("store-1", create=True)
    with pytest.raises(MarkerMismatch):
        await store.check_marker("store-2")
    with pytest.raises(MarkerMismatch):
        await store.check_marker("store-2", create=True)
    assert await store.list() == []


@pytest.mark.covers("decisions:B5")
async def test_a_store_with_blobs_is_never_claimed(store: BlobStore) -> None:
    await store.put(raw(1), b"x")
    with pytest.raises(MarkerMismatch):
        await store.check_marker("store-1", create=True)


@pytest.mark.covers("edge:J1")
async def test_failed_groups_are_tried_again_and_no_others() -> None:
    class Flaky(ObjectStore):
        def __init__(self, failures: int) -> None:
            super().__init__(MemoryStore())
            self.failures = failures
            self.calls: list[int] = []

        async def put_many(self, groups: Sequence[PutGroup]) -> list[StorageError | None]:
            self.calls.append(len(groups))
            results = await super().put_many(groups)
            if self.failures:
                self.failures -= 1
                results[-1] = StorageError("EIO")
            return results

    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    groups = [PutGroup((b"x",), (raw(n),)) for n in range(3)]
    flaky = Flaky(2)
    assert await put_durably(flaky, groups, sleep=sleep) == [None] * 3
    assert flaky.calls == [3, 1, 1]
    assert len(pauses) == 2
    broken = Flaky(9)
    results = await put_durably(broken, groups, sleep=sleep)
    assert [result is None for result in results] == [True, True, False]
    assert broken.calls == [3, 1, 1]


@pytest.mark.covers("edge:I9", "mail-server:E2")
async def test_only_what_is_old_is_discarded(store: BlobStore) -> None:
    now = datetime.now(UTC)
    later, earlier = now + timedelta(hours=1), now - timedelta(hours=1)
    assert (
        await store.put_many([PutGroup((b"12345",), (raw(1), part(1))), PutGroup((b"123",), (raw(2),))]) == [None] * 2
    )
    everything = [raw(1), part(1), raw(2), raw(9)]
    assert await store.discard(everything, earlier) == Discarded()
    assert len(await store.list()) == 3
    assert (await store.discard(everything, later, dry_run=True)).count == 3
    assert len(await store.list()) == 3
    assert await store.discard([raw(2), raw(9)], later) == Discarded(1, 3)
    assert await store.list() == sorted([raw(1), part(1)])
    assert (await store.discard([raw(1)], later)).count == 1
    assert await store.get(part(1)) == b"12345"
    assert await store.discard([part(1)], later) == Discarded(1, 5)
    assert await store.list() == []
    with pytest.raises(InvalidKey):
        await store.discard(["../x"], later)


@pytest.mark.covers("edge:I9")
async def test_a_new_name_of_old_bytes_is_young(store: BlobStore) -> None:
    await store.put(raw(1), b"x")
    if isinstance(store, MaildirStore):
        os.utime(store.path(raw(1)), (0, 0))
    between = datetime.now(UTC)
    await asyncio.sleep(0.02)
    await store.link(raw(1), raw(2))
    assert await store.discard([raw(2)], between) == Discarded()
    assert await store.get(raw(2)) == b"x"
