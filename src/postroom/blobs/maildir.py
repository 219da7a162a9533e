"""The store on disk: raw mail in Maildirs, everything else in a plain tree (decisions B5, mail-server E1, E2).

A local store belongs to one machine. Several processes of that machine may use it at once.
"""

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from postroom.base.clock import Clock, SystemClock

from . import layout, listing
from .durable import STAGING, Directories, DurableWriter, make_directory, storage_error
from .store import (
    BATCH_BYTES,
    STREAM_CHUNK,
    BlobMissing,
    Data,
    Discarded,
    Keys,
    MarkerMismatch,
    PutGroup,
    Results,
    Span,
    StorageError,
    Want,
    check_prefix,
)
from .writing_process import LARGEST_BATCH, WritingProcess

R = TypeVar("R")

MARKER: Final = "store-id"
SWEEP_AGE_SECONDS: Final = 3600.0
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})


class MaildirStore:
    """A `BlobStore` in the directory `root`, which is made, for its owner alone, if it is not there.

    Work on the disk runs in threads of the store's own: `write_threads` batches and `read_threads` reads at a time,
    and `sync_threads` waits for the disk within a batch; with `writing_process` batches of small messages are written
    by a child process instead, started when the first comes. `clock` is asked for the age of what is swept.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        write_threads: int = 2,
        read_threads: int = 4,
        sync_threads: int = 4,
        writing_process: bool = False,
        fsync: bool = True,
        clock: Clock | None = None,
    ) -> None:
        os.makedirs(root, mode=0o700, exist_ok=True)
        # The root itself may be reached by a link, an operator's choice; nothing below it may.
        self._root = os.path.realpath(root)
        for name in (STAGING, layout.MAIL, layout.OBJECTS):
            make_directory(f"{self._root}/{name}")
        self._clock = clock if clock is not None else SystemClock()
        self._writes = ThreadPoolExecutor(write_threads, "blob-write")
        self._reads = ThreadPoolExecutor(read_threads, "blob-read")
        self._syncs = ThreadPoolExecutor(sync_threads, "blob-sync")
        self._directories = Directories(self._root)
        self._writer = DurableWriter(self._root, self._directories, self._syncs, sync_threads, fsync)
        self._process = WritingProcess(self._root, fsync=fsync) if writing_process else None

    @property
    def root(self) -> Path:
        return Path(self._root)

    def path(self, key: str) -> Path:
        """Where the blob of a key is, or would be. Raises InvalidKey."""
        return Path(layout.path_under(self._root, key)[1])

    # -- writing

    async def put(self, key: str, data: Data) -> None:
        error = (await self.put_many((PutGroup((data,), (key,)),)))[0]
        if error is not None:
            raise error

    async def put_many(self, groups: Sequence[PutGroup]) -> list[StorageError | None]:
        """As the protocol says, all in one hop to a process or thread. The recipients of a group share one file."""
        if self._process is not None and sum(len(p) for group in groups for p in group.pieces) <= LARGEST_BATCH:
            return await self._process.write(groups) if groups else []
        return await self._in(self._writes, self._writer.write, groups) if groups else []

    async def link(self, existing: str, new: str) -> None:
        await self._in(self._writes, self._link, existing, new)

    def _link(self, existing: str, new: str) -> None:
        directory, source = layout.path_under(self._root, existing)
        target_directory, target = layout.path_under(self._root, new)
        try:
            self._directories.check(directory)
            if not stat.S_ISREG(os.lstat(source).st_mode):
                raise BlobMissing(existing)
            # A new name of old bytes is as young as its row is to be (`discard`).
            os.utime(source, follow_symlinks=False)
        except OSError as error:
            raise _read_error(existing, error) from None
        try:
            self._writer.link(source, target_directory, target)
        except OSError as error:
            raise storage_error(error) from None

    async def delete(self, keys: Iterable[str], *, durably: bool = True) -> None:
        await self._in(self._writes, self._delete, list(keys), durably)

    def _delete(self, keys: Sequence[str], durably: bool) -> None:
        paths = [layout.path_under(self._root, key) for key in keys]
        changed = set()
        try:
            for directory, path in paths:
                try:
                    self._directories.check(directory)
                    os.unlink(path)
                except OSError as error:
                    if error.errno not in _MISSING:
                        raise
                    continue
                changed.add(directory)
            if not durably:
                return
            changed |= {parent for directory in changed for parent in self._prune(directory)}
            self._writer.sync_directories(changed)
        except OSError as error:
            raise storage_error(error) from None

    async def discard(self, keys: Iterable[str], before: datetime, *, dry_run: bool = False) -> Discarded:
        return await self._in(self._writes, self._discard, list(keys), before.timestamp(), dry_run)

    def _discard(self, keys: Sequence[str], before: float, dry_run: bool) -> Discarded:
        gone, changed = Discarded(), set()
        try:
            for key in keys:
                directory, path = layout.path_under(self._root, key)
                try:
                    self._directories.check(directory)
                    status = os.lstat(path)
                    # Not the inode's own time: it changes whenever another name of the same bytes goes.
                    if not stat.S_ISREG(status.st_mode) or status.st_mtime >= before:
                        continue
                    if not dry_run:
                        os.unlink(path)
                        changed.add(directory)
                except OSError as error:
                    if error.errno not in _MISSING:
                        raise
                    continue
                gone += Discarded(1, status.st_size if status.st_nlink == 1 else 0)
            for directory in changed:
                for _ in self._prune(directory):
                    pass
        except OSError as error:
            raise storage_error(error) from None
        return gone

    def _prune(self, directory: str) -> Iterator[str]:
        """Remove a directory of the plain tree that has become empty, and its parents; the last parent changed."""
        tree = f"{self._root}/{layout.OBJECTS}"
        while directory.startswith(tree + "/"):
            try:
                os.rmdir(directory)
            except OSError:
                return
            self._directories.forget(directory)
            directory = os.path.dirname(directory)
            yield directory

    # -- reading

    async def get(self, key: str) -> bytes:
        return await self._in(self._reads, self.sync_read, key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._in(self._reads, self._read, Span(key, start, end))

    def sync_read(self, key: str) -> bytes:
        """`get` for a caller that is in a thread or process of its own already."""
        return self._read(key)

    async def get_many(self, wants: Sequence[Want]) -> Results:
        return await self._in(self._reads, self._read_some, wants, 0, None) if wants else []

    async def batches(self, wants: Sequence[Want], max_bytes: int = BATCH_BYTES) -> AsyncIterator[Results]:
        done = 0
        while done < len(wants):
            batch = await self._in(self._reads, self._read_some, wants, done, max_bytes)
            done += len(batch)
            yield batch

    async def stream(
        self, key: str, chunk: int = STREAM_CHUNK, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        opening = asyncio.get_running_loop().run_in_executor(self._reads, self._open, key)
        try:
            fd, _ = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise
        try:
            while end is None or start < end:
                wanted = chunk if end is None else min(chunk, end - start)
                piece = await self._in(self._reads, _pread, key, fd, wanted, start)
                if not piece:
                    break
                start += len(piece)
                yield piece
        finally:
            os.close(fd)

    async def size(self, key: str) -> int:
        return await self._in(self._reads, self._size, key)

    def _size(self, key: str) -> int:
        fd, size = self._open(key)
        os.close(fd)
        return size

    def _open(self, key: str) -> tuple[int, int]:
        """(descriptor, length in bytes) of a blob."""
        directory, path = layout.path_under(self._root, key)
        try:
            self._directories.check(directory)
            fd = os.open(path, _READ)
        except OSError as error:
            raise _read_error(key, error) from None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise BlobMissing(key)
        return fd, status.st_size

    def _read(self, want: Want) -> bytes:
        return self._read_within(want, None) or b""

    def _read_within(self, want: Want, room: int | None) -> bytes | None:
        """The bytes, or None when they are more than `room`."""
        key = want if isinstance(want, str) else want.key
        fd, size = self._open(key)
        try:
            start, end = (0, size) if isinstance(want, str) else (want.start, min(want.end, size))
            if room is not None and end - start > room:
                return None
            return _pread_all(key, fd, start, end)
        finally:
            os.close(fd)

    def _read_some(self, wants: Sequence[Want], first: int, room: int | None) -> Results:
        """Results for `wants` from `first` on, at least one, until `room` bytes are taken."""
        results: Results = []
        for want in islice(wants, first, None):
            try:
                data = self._read_within(want, room if results else None)
            except StorageError as error:
                results.append(error)
                continue
            if data is None:
                break
            results.append(data)
            if room is not None:
                room -= len(data)
                if room <= 0:
                    break
        return results

    async def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> Keys:
        return await self._in(self._reads, self._list, prefix, after, limit)

    def _list(self, prefix: str, after: str, limit: int) -> Keys:
        below = check_prefix(prefix)
        try:
            return list(islice(listing.keys(self._root, below, after), limit))
        except OSError as error:
            raise storage_error(error) from None

    # -- housekeeping

    async def check_marker(self, store_id: str, *, create: bool = False) -> None:
        await self._in(self._writes, self._check_marker, store_id, create)

    def _check_marker(self, store_id: str, create: bool) -> None:
        path = Path(self._root, MARKER)
        try:
            found = path.read_text("ascii", "replace").strip()
        except FileNotFoundError:
            if not create or self._list("", "", 1):
                raise MarkerMismatch("no_marker") from None
            self._write_marker(store_id)
            return
        except OSError as error:
            raise storage_error(error) from None
        if found != store_id:
            raise MarkerMismatch("other_marker")

    def _write_marker(self, store_id: str) -> None:
        staged = Path(self._writer.staging_name())
        try:
            with staged.open("x", encoding="ascii") as file:
                file.write(store_id + "\n")
                file.flush()
                os.fsync(file.fileno())
            # A link and not a rename: of two processes that start together one must lose.
            os.link(staged, Path(self._root, MARKER))
            self._writer.sync_directories((self._root,))
        except FileExistsError:
            self._check_marker(store_id, create=False)
        except OSError as error:
            raise storage_error(error) from None
        finally:
            staged.unlink(missing_ok=True)

    async def sweep(self, max_age: float = SWEEP_AGE_SECONDS, *, dry_run: bool = False) -> int:
        """Remove what interrupted writes left in the staging directory for `max_age` seconds; how many it removed, or
        with `dry_run` would.

        Zero, for the start of the program before any other process of it writes, removes all but this store's own.
        """
        return await self._in(self._writes, self._sweep, max_age, dry_run)

    def _sweep(self, max_age: float, dry_run: bool) -> int:
        oldest = self._clock.now().timestamp() - max_age
        removed = 0
        try:
            with os.scandir(f"{self._root}/{STAGING}") as entries:
                for entry in entries:
                    if entry.name.startswith(self._writer.token):
                        continue
                    with suppress(FileNotFoundError):
                        if max_age <= 0 or entry.stat(follow_symlinks=False).st_mtime < oldest:
                            if not dry_run:
                                os.unlink(entry.path)
                            removed += 1
        except OSError as error:
            raise storage_error(error) from None
        return removed

    async def link_address(self, domain: str, local: str, tenant: str, identity: str) -> None:
        """Let `mail/by-address/<domain>/<local>` lead to the Maildir of an identity, for people at a shell.

        A convenience that the program itself never reads, so it is not waited for. Raises InvalidKey, StorageError.
        """
        await self._in(self._writes, self._link_address, domain, local, tenant, identity)

    def _link_address(self, domain: str, local: str, tenant: str, identity: str) -> None:
        directory, name = layout.address_path(domain, local)
        maildir = layout.identity_directory(tenant, identity)
        parent = f"{self._root}/{directory}"
        staged = self._writer.staging_name()
        try:
            make_directory(os.path.dirname(parent))
            make_directory(parent)
            os.symlink(os.path.relpath(maildir, directory), staged)
            os.rename(staged, f"{parent}/{name}")
        except OSError as error:
            raise storage_error(error) from None

    async def unlink_address(self, domain: str, local: str) -> None:
        """Remove the link of an address, if there is one."""
        directory, name = layout.address_path(domain, local)
        await self._in(self._writes, _unlink, f"{self._root}/{directory}/{name}")

    async def close(self) -> None:
        if self._process is not None:
            await self._process.close()
        for pool in (self._writes, self._reads, self._syncs):
            await asyncio.to_thread(pool.shutdown)

    @staticmethod
    async def _in(pool: ThreadPoolExecutor, function: Callable[..., R], *args: object) -> R:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *args)


def _read_error(key: str, error: OSError) -> StorageError:
    # A link in the place of a blob is not the blob, and neither is a directory.
    return BlobMissing(key) if error.errno in _MISSING or error.errno == errno.ELOOP else storage_error(error)


def _close_opened(opening: asyncio.Future[tuple[int, int]]) -> None:
    """Let go of a file whose reader went away while it was being opened."""
    if not opening.cancelled() and opening.exception() is None:
        os.close(opening.result()[0])


def _pread(key: str, fd: int, length: int, offset: int) -> bytes:
    try:
        return os.pread(fd, length, offset)
    except OSError as error:
        raise _read_error(key, error) from None


def _pread_all(key: str, fd: int, start: int, end: int) -> bytes:
    pieces = []
    while start < end:
        piece = _pread(key, fd, end - start, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error) from None
