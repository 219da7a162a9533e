"""What only the store on disk does: its files, their order, and what goes wrong with disks."""

import asyncio
import errno
import mailbox
import os
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.base.clock import ManualClock, SystemClock
from postroom.blobs import BlobMissing, MaildirStore, PutGroup, StorageError, StorageFull, listing
from postroom.blobs.durable import SLICE

TENANT = "ten_01J9Z3K8V4QW7X2M5N6P8R0T1A"
IDENTITY, SECOND = "idn_01J9Z3K8V4QW7X2M5N6P8R0T1A", "idn_01J9Z3K8V4QW7X2M5N6P8R0T1B"


def raw(n: int, identity: str = IDENTITY) -> str:
    return f"t/{TENANT}/i/{identity}/m/msg_01J9Z3K8V4QW7X2M5N6P8R{n:04d}/raw.eml"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MaildirStore]:
    made = MaildirStore(tmp_path / "blobs")
    yield made
    await made.close()


def staged(store: MaildirStore) -> list[str]:
    return os.listdir(store.root / "tmp")


@pytest.mark.covers("decisions:B5", "mail-server:E1")
async def test_an_identity_has_a_real_maildir(store: MaildirStore) -> None:
    await store.put(raw(1), b"Subject: hello\r\n\r\nbody\r\n")
    directory = store.root / "mail" / TENANT / IDENTITY
    assert sorted(os.listdir(directory)) == ["cur", "new", "tmp"]
    assert os.listdir(directory / "cur") == ["msg_01J9Z3K8V4QW7X2M5N6P8R0001:2,"]
    reader = mailbox.Maildir(directory, create=False)
    assert [message["Subject"] for message in reader] == ["hello"]


@pytest.mark.covers("decisions:B5")
async def test_recipients_share_one_file(store: MaildirStore) -> None:
    assert await store.put_many([PutGroup((b"a", b"b"), (raw(1), raw(2, SECOND), raw(3)))]) == [None]
    files = [store.path(key).stat() for key in (raw(1), raw(2, SECOND), raw(3))]
    assert len({file.st_ino for file in files}) == 1
    assert files[0].st_nlink == 3
    assert staged(store) == []
    await store.link(raw(1), raw(4))
    assert store.path(raw(4)).stat().st_nlink == 4


@pytest.mark.covers("mail-server:E1")
async def test_nobody_else_may_look(store: MaildirStore) -> None:
    old = os.umask(0)
    try:
        await store.put(raw(1), b"x")
        await store.put("a/b", b"x")
    finally:
        os.umask(old)
    for path in store.root.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert store.root.stat().st_mode & 0o777 == 0o700


class Trace:
    """The order of the system calls that matter, by path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        lock = threading.Lock()
        self.fail: Callable[[str, str], int | None] = lambda call, path: None

        def wrap(name: str, where: Callable[..., str]) -> None:
            real = getattr(os, name)

            def traced(*args: Any, **kwargs: Any) -> Any:
                path = where(*args)
                code = self.fail(name, path)
                if code is not None:
                    raise OSError(code, os.strerror(code))
                result = real(*args, **kwargs)
                with lock:
                    self.calls.append((name, path))
                return result

            monkeypatch.setattr(os, name, traced)

        wrap("fsync", lambda fd: os.readlink(f"/proc/self/fd/{fd}"))
        wrap("writev", lambda fd, _: os.readlink(f"/proc/self/fd/{fd}"))
        wrap("rename", lambda source, target: f"{source} {target}")
        wrap("link", lambda source, target: f"{source} {target}")
        wrap("mkdir", lambda path, _mode: str(path))


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    return Trace(monkeypatch)


@pytest.mark.covers("mail-server:E2", "edge:J1")
@pytest.mark.parametrize("count", [1, 5, SLICE + 3])
async def test_order_of_a_durable_write(store: MaildirStore, trace: Trace, count: int) -> None:
    groups = [PutGroup((b"x",), (raw(n), raw(n, SECOND)) if n % 2 else (raw(n),)) for n in range(count)]
    assert await store.put_many(groups) == [None] * count
    calls = trace.calls
    for group in groups:
        paths = [str(store.path(key)) for key in group.keys]
        (moved,) = [i for i, (name, path) in enumerate(calls) if name == "rename" and path.endswith(paths[-1])]
        source = calls[moved][1].split(" ")[0]
        wrote, synced = calls.index(("writev", source)), calls.index(("fsync", source))
        assert wrote < synced < moved
        for path in paths:
            (placed,) = [i for i, (name, where) in enumerate(calls) if name != "mkdir" and where.endswith(" " + path)]
            assert synced < placed
            assert ("fsync", os.path.dirname(path)) in calls[placed:]
    for i, (name, path) in enumerate(calls):
        if name == "mkdir":
            assert ("fsync", os.path.dirname(path)) in calls[i:], "a new directory's parent is made durable too"


@pytest.mark.covers("mail-server:E2")
async def test_directories_are_made_once(store: MaildirStore, trace: Trace) -> None:
    await store.put(raw(1), b"x")
    trace.calls.clear()
    await store.put(raw(2), b"x")
    assert [name for name, _ in trace.calls] == ["writev", "fsync", "rename", "fsync"]


@pytest.mark.covers("mail-server:E2")
async def test_one_wait_for_each_directory_of_a_batch(store: MaildirStore, trace: Trace) -> None:
    await store.put(raw(0), b"x")
    trace.calls.clear()
    await store.put_many([PutGroup((b"x",), (raw(n),)) for n in range(20)])
    directory = str(store.path(raw(0)).parent)
    assert [call for call in trace.calls if call == ("fsync", directory)] == [("fsync", directory)]


@pytest.mark.covers("mail-server:E2", "edge:J1")
@pytest.mark.parametrize("call", ["writev", "fsync", "rename", "link"])
@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, StorageError)]
)
async def test_a_failing_disk_fails_the_group_and_leaves_nothing(
    store: MaildirStore, trace: Trace, call: str, code: int, kind: type[StorageError]
) -> None:
    await store.put_many([PutGroup((b"x",), (raw(90), raw(90, SECOND)))])
    seen: list[str] = []

    def fail(name: str, path: str) -> int | None:
        # The second file that comes by; every later call on the same file too.
        if name != call or "/tmp/" not in path:
            return None
        seen.append(path)
        return code if len(seen) == 2 else None

    trace.fail = fail
    groups = [PutGroup((b"x%d" % n,), (raw(n), raw(n, SECOND))) for n in range(4)]
    results = await store.put_many(groups)
    failed = [n for n, result in enumerate(results) if result is not None]
    assert len(failed) == 1
    (error,) = [result for result in results if result is not None]
    assert type(error) is kind
    assert error.reason == errno.errorcode[code]
    assert staged(store) == []
    for n in range(4):
        if n not in failed:
            assert await store.get(raw(n, SECOND)) == b"x%d" % n
    trace.fail = lambda name, path: None
    assert await store.put_many(groups) == [None] * 4


@pytest.mark.covers("mail-server:E2", "edge:J1")
async def test_a_directory_that_cannot_be_synced_fails_its_groups_only(store: MaildirStore, trace: Trace) -> None:
    await store.put_many([PutGroup((b"x",), (raw(90), raw(90, SECOND)))])
    bad = str(store.path(raw(1, SECOND)).parent)
    trace.fail = lambda name, path: errno.EIO if name == "fsync" and path == bad else None
    results = await store.put_many(
        [
            PutGroup((b"x",), (raw(1),)),
            PutGroup((b"x",), (raw(1, SECOND),)),
            PutGroup((b"x",), (raw(2), raw(2, SECOND))),
        ]
    )
    assert [result is None for result in results] == [True, False, False]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.covers("mail-server:E2", "edge:J1")
async def test_a_really_full_disk(small_disk: Path) -> None:
    store = MaildirStore(small_disk / "blobs")
    results = await store.put_many([PutGroup((bytes(40_000),), (raw(n),)) for n in range(10)])
    stored = [n for n, result in enumerate(results) if result is None]
    assert 0 < len(stored) < 10
    assert {type(result) for result in results if result is not None} == {StorageFull}
    assert await store.get_many([raw(n) for n in stored]) == [bytes(40_000)] * len(stored)
    assert len(await store.list()) == len(stored)
    await store.delete([raw(n) for n in stored])
    await store.put(raw(1), bytes(40_000))
    await store.close()


@pytest.mark.covers("mail-server:E2")
async def test_symbolic_links_are_not_followed(store: MaildirStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b").write_bytes(b"canary")
    (store.root / "objects" / "dir").symlink_to(outside)
    (store.root / "objects" / "file").symlink_to(outside / "b")
    (store.root / "mail" / TENANT).symlink_to(outside)
    for key in ("dir/b", "file", raw(1)):
        with pytest.raises(BlobMissing):
            await store.get(key)
    for key in ("dir/new", raw(1)):
        with pytest.raises(StorageError, match="ENOTDIR"):
            await store.put(key, b"x")
    assert await store.list() == []
    await store.delete(["dir/b", "file", raw(1)])
    assert os.listdir(outside) == ["b"]
    await store.put("file", b"mine")
    assert (outside / "b").read_bytes() == b"canary"


async def test_a_file_in_the_way_of_a_directory(store: MaildirStore) -> None:
    await store.put("a/b", b"x")
    with pytest.raises(StorageError):
        await store.put("a/b/c", b"x")
    with pytest.raises(StorageError):
        await store.put("a", b"x")
    assert await store.list() == ["a/b"]
    assert staged(store) == []


async def test_directories_that_vanish_are_made_again(store: MaildirStore) -> None:
    await store.put_many([PutGroup((b"x",), (raw(1), "a/b/c"))])
    await store.delete(["a/b/c"])
    assert not (store.root / "objects" / "a").exists()
    for path in sorted((store.root / "mail" / TENANT).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (store.root / "mail" / TENANT).rmdir()
    assert await store.put_many([PutGroup((b"y",), (raw(2), "a/b/c"))]) == [None]
    assert await store.get_many([raw(2), "a/b/c"]) == [b"y", b"y"]


async def test_more_pieces_than_one_call_takes(store: MaildirStore) -> None:
    pieces = [b"%d," % n for n in range(3000)]
    assert await store.put_many([PutGroup((b"", *pieces, b""), (raw(1),))]) == [None]
    assert store.sync_read(raw(1)) == b"".join(pieces)


async def test_short_writes_are_continued(store: MaildirStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: real(fd, [views[0][:7]]))
    assert await store.put_many([PutGroup((b"0123456789" * 5, b"abc", b"defghijk"), (raw(1),))]) == [None]
    assert await store.get(raw(1)) == b"0123456789" * 5 + b"abcdefghijk"


@pytest.mark.covers("mail-server:E2")
async def test_sweep(store: MaildirStore, tmp_path: Path) -> None:
    other = store.root / "tmp" / "000000000000-1"
    other.write_bytes(b"half")
    assert await store.sweep() == 0
    late = MaildirStore(store.root, clock=ManualClock(SystemClock().now() + timedelta(seconds=3700)))
    assert await late.sweep() == 1
    other.write_bytes(b"half")
    assert await late.sweep(0) == 1
    assert staged(store) == []
    await late.close()


@pytest.mark.covers("decisions:B5")
async def test_two_stores_that_start_together_agree_on_one_marker(store: MaildirStore) -> None:
    other = MaildirStore(store.root)
    await store.check_marker("one", create=True)
    with pytest.raises(StorageError):
        await other.check_marker("two", create=True)
    await other.close()


@pytest.mark.covers("decisions:B5")
async def test_addresses_lead_to_the_maildir(store: MaildirStore) -> None:
    await store.put(raw(1), b"x")
    await store.put(raw(2, SECOND), b"y")
    await store.link_address("agents.example", "ann", TENANT, IDENTITY)
    link = store.root / "mail" / "by-address" / "agents.example" / "ann"
    assert os.listdir(link / "cur") == [store.path(raw(1)).name]
    await store.link_address("agents.example", "ann", TENANT, SECOND)
    assert os.listdir(link / "cur") == [store.path(raw(2, SECOND)).name]
    assert not os.path.isabs(os.readlink(link))
    await store.unlink_address("agents.example", "ann")
    await store.unlink_address("agents.example", "ann")
    assert not link.is_symlink()
    assert len(await store.list()) == 2


async def test_a_link_to_the_root_is_the_operators_choice(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = MaildirStore(tmp_path / "link")
    await store.put(raw(1), b"x")
    assert await store.get(raw(1)) == b"x"
    await store.close()


async def test_readers_that_go_away_leave_no_file_open(store: MaildirStore) -> None:
    await store.put(raw(1), bytes(1000))

    async def read() -> None:
        async for _ in store.stream(raw(1), 10):
            pass

    before = len(os.listdir("/proc/self/fd"))
    for turns in range(40):
        reader = asyncio.create_task(read())
        for _ in range(turns):
            await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    await store.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_tree_that_vanishes_with_its_parents_is_made_again(store: MaildirStore) -> None:
    await store.put_many([PutGroup((b"x",), ("a/x", "a/b/x", "a/b/c/x"))])
    shutil.rmtree(store.root / "objects" / "a")
    await store.put("a/b/c/x", b"y")
    assert await store.get("a/b/c/x") == b"y"
    assert await store.list() == ["a/b/c/x"]


@pytest.mark.covers("edge:I9")
async def test_a_large_directory_is_listed_in_pieces(store: MaildirStore, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [raw(n, identity) for n in range(23) for identity in (IDENTITY, SECOND)]
    keys += [key.replace("/m/", "/out/").replace("/raw", "") for key in keys[::3]]
    keys += [f"a{n % 5}/b{n}/{name}" for n in range(9) for name in ("c", "c.d", "c-e")]
    assert not any(await store.put_many([PutGroup((b"x",), (key,)) for key in keys]))
    for at_once in (1, 2, 7, 1000):
        monkeypatch.setattr(listing, "NAMES_AT_ONCE", at_once)
        assert await store.list() == sorted(keys)
        for limit in (1, 5, 7, 50):
            found: list[str] = []
            while page := await store.list("", found[-1] if found else "", limit):
                found += page
            assert found == sorted(keys)
