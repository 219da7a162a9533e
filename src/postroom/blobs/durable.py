"""Writing files so that a crash at any point leaves each of them whole or absent (mail-server E2).

The order for a batch: write all to the staging directory, fsync all, rename or link all into place, fsync every
directory that changed, answer. Going through a batch phase by phase lets one journal commit of the file system serve
many files; starting the write-back of all files before waiting for the first, and waiting for several at a time, is
worth another factor of two. Staging is one directory for the whole store, so that a batch for fifty mailboxes changes
fifty-one directories and not a hundred.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final, TypeVar

from .layout import MAIL, path_under
from .store import Data, PutGroup, StorageError, StorageFull

T = TypeVar("T")

STAGING: Final = "tmp"
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
# Files open at one time within one batch.
SLICE: Final = 64
MAX_KNOWN_DIRECTORIES: Final = 100_000
# Below this many waits a second thread costs more than it saves.
_MIN_SPREAD: Final = 3
_MAX_IOVEC: Final = 512
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def storage_error(error: OSError) -> StorageError:
    """The store's error for one of the operating system: StorageFull for no room, else by its errno's name."""
    reason = errno.errorcode.get(error.errno or 0, "EIO")
    return StorageFull(reason) if error.errno in _FULL else StorageError(reason)


class Directories:
    """Makes directories below the root, once each, and remembers which are known to be real and durable.

    Symbolic links are never followed: a component below the root that is not a directory itself is an error.
    """

    __slots__ = ("_durable", "_real", "_root")

    def __init__(self, root: str) -> None:
        self._root = root
        self._real: set[str] = set()
        self._durable: set[str] = set()

    def check(self, path: str) -> None:
        """Raise FileNotFoundError if a component is missing, NotADirectoryError if one is a link or a file."""
        if path in self._real:
            return
        for ancestor in self._chain(path):
            if not stat.S_ISDIR(os.lstat(ancestor).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory")
        self._remember(self._real, (path,))

    def prepare(self, path: str) -> list[str]:
        """Make `path` where it is missing. The directories to fsync before it is durable; then call `settle`."""
        if path in self._durable:
            return []
        parents = []
        for ancestor in self._chain(path):
            if ancestor in self._durable:
                continue
            make_directory(ancestor)
            parents.append(os.path.dirname(ancestor))
            if ancestor == path and path.startswith(f"{self._root}/{MAIL}/"):
                # A Maildir is three directories (decisions B5); `path` is its `cur`.
                for sibling in ("new", STAGING):
                    make_directory(f"{os.path.dirname(path)}/{sibling}")
        return parents

    def settle(self, paths: Iterable[str]) -> None:
        """All of these are durable, and so are their ancestors."""
        self._remember(self._durable, paths)
        self._remember(self._real, paths)

    def forget(self, path: str) -> None:
        """`path` is or may be gone, and perhaps directories above it too."""
        for ancestor in self._chain(path):
            self._real.discard(ancestor)
            self._durable.discard(ancestor)

    def _chain(self, path: str) -> list[str]:
        parts = path[len(self._root) + 1 :].split("/")
        return [f"{self._root}/{'/'.join(parts[: i + 1])}" for i in range(len(parts))]

    @staticmethod
    def _remember(known: set[str], paths: Iterable[str]) -> None:
        if len(known) >= MAX_KNOWN_DIRECTORIES:
            known.clear()
        known.update(paths)


class DurableWriter:
    """Writes batches below `root`. Its methods block and may be called from several threads.

    `spread` is where waits for the disk are spread over; it must not be the executor the caller runs in. With
    `fsync` off nothing is waited for, and durability is the operating system's: for throw-away set-ups only.
    """

    def __init__(
        self, root: str, directories: Directories, spread: ThreadPoolExecutor, width: int, fsync: bool
    ) -> None:
        self._root = root
        self._staging = f"{root}/{STAGING}"
        self._directories = directories
        self._spread = spread
        self._width = width
        self._fsync = fsync
        self._names = count()
        self.token = os.urandom(6).hex()

    def write(self, groups: Sequence[PutGroup]) -> list[StorageError | None]:
        """Store each group under each of its keys; durable where the result is None."""
        results: list[StorageError | None] = []
        for first in range(0, len(groups), SLICE):
            results += self._write_slice(groups[first : first + SLICE])
        return results

    def link(self, source: str, directory: str, path: str) -> None:
        """Make `path` in `directory` another name of the file `source`, durably. Raises OSError."""
        dirty = {directory, *self._directories.prepare(directory)}
        self._link(source, path)
        self._sync_or_raise(dirty)
        self._directories.settle((directory,))

    def sync_directories(self, paths: Iterable[str]) -> None:
        """fsync those that (still) exist. Raises OSError."""
        self._sync_or_raise({path for path in paths if os.path.isdir(path)})

    def staging_name(self) -> str:
        return f"{self._staging}/{self.token}-{next(self._names)}"

    def _write_slice(self, groups: Sequence[PutGroup]) -> list[StorageError | None]:
        jobs = [_Job(group) for group in groups]
        try:
            for job in jobs:
                self._attempt(job, self._stage)
            if self._fsync:
                self._sync_files([job for job in jobs if job.error is None])
        finally:
            for job in jobs:
                if job.fd >= 0:
                    os.close(job.fd)
        for job in jobs:
            self._attempt(job, self._place)
        if self._fsync:
            self._sync_dirty(jobs)
        for job in jobs:
            if job.error is None:
                self._directories.settle(directory for directory, _ in job.targets)
            elif job.staged:
                _remove_quietly(job.staged)
        return [job.error for job in jobs]

    @staticmethod
    def _attempt(job: "_Job", step: "Callable[[_Job], None]") -> None:
        """Run one step of one group, whose failure is then its own."""
        if job.error is not None:
            return
        try:
            step(job)
        except OSError as error:
            job.error = storage_error(error)
        except StorageError as error:
            job.error = error

    def _stage(self, job: "_Job") -> None:
        if not job.group.keys:
            raise StorageError("no_keys")
        job.targets = [path_under(self._root, key) for key in dict.fromkeys(job.group.keys)]
        name = self.staging_name()
        job.fd = os.open(name, _CREATE, FILE_MODE)
        job.staged = name
        write_all(job.fd, job.group.pieces)

    def _sync_files(self, jobs: "Sequence[_Job]") -> None:
        if len(jobs) > 1:
            for job in jobs:
                # Starts write-back without waiting: blocks are allocated for all files before the first commit.
                os.posix_fadvise(job.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for job, error in zip(jobs, self._each(lambda job: os.fsync(job.fd), jobs), strict=True):
            if error is not None:
                job.error = storage_error(error)

    def _place(self, job: "_Job") -> None:
        for directory, _ in job.targets:
            job.dirty.update(self._directories.prepare(directory))
            job.dirty.add(directory)
        try:
            self._move(job)
        except FileNotFoundError:
            # A directory that was known is gone: an emptied one was removed meanwhile. Make it again, once.
            for directory, _ in job.targets:
                self._directories.forget(directory)
                job.dirty.update(self._directories.prepare(directory))
            self._move(job)

    def _move(self, job: "_Job") -> None:
        *others, (_, last) = job.targets
        for _, path in others:
            self._link(job.staged, path)
        os.rename(job.staged, last)

    def _link(self, source: str, path: str) -> None:
        try:
            os.link(source, path, follow_symlinks=False)
        except FileExistsError:
            spare = self.staging_name()
            os.link(source, spare, follow_symlinks=False)
            os.rename(spare, path)
            # Renaming onto another name of the same file does nothing and leaves the old name (rename(2)).
            _remove_quietly(spare)

    def _sync_dirty(self, jobs: "Sequence[_Job]") -> None:
        paths = list({path for job in jobs if job.error is None for path in job.dirty})
        failed = {p: e for p, e in zip(paths, self._each(sync_directory, paths), strict=True) if e is not None}
        for job in jobs if failed else ():
            error = next((failed[path] for path in job.dirty if path in failed), None)
            if error is not None and job.error is None:
                job.error = storage_error(error)

    def _sync_or_raise(self, paths: set[str]) -> None:
        if self._fsync:
            for error in self._each(sync_directory, list(paths)):
                if error is not None:
                    raise error

    def _each(self, wait: Callable[[T], None], items: Sequence[T]) -> list[OSError | None]:
        """Apply `wait` to all, several at a time; the error of each, in order."""
        errors: list[OSError | None] = [None] * len(items)

        def run(first: int, step: int) -> None:
            for i in range(first, len(items), step):
                try:
                    wait(items[i])
                except OSError as error:
                    errors[i] = error

        if len(items) < _MIN_SPREAD or self._width < 2:
            run(0, 1)
        else:
            width = min(self._width, len(items))
            others = [self._spread.submit(run, first, width) for first in range(1, width)]
            run(0, width)
            for other in others:
                other.result()
        return errors


class _Job:
    """One group on its way through the phases."""

    __slots__ = ("dirty", "error", "fd", "group", "staged", "targets")

    def __init__(self, group: PutGroup) -> None:
        self.group = group
        self.targets: list[tuple[str, str]] = []
        self.staged = ""
        self.fd = -1
        self.dirty: set[str] = set()
        self.error: StorageError | None = None


def make_directory(path: str) -> None:
    """Make one directory, for the owner alone; one that exists must be a directory and not a link. Raises OSError."""
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory") from None


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. Raises OSError."""
    fd = os.open(path, _OPEN_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, pieces: Sequence[Data]) -> None:
    """Write all pieces one after the other, with one system call where the kernel takes them whole. Raises OSError."""
    left = [view for piece in pieces if (view := memoryview(piece).cast("B")).nbytes]
    while left:
        written = os.writev(fd, left[:_MAX_IOVEC])
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]


def _remove_quietly(path: str) -> None:
    """Remove a staging file that may be gone already; if it cannot be removed, the sweep will try again."""
    try:
        os.unlink(path)
    except OSError:
        return
