"""What is recorded as begun and has certainly not been sent yet, kept where killing this process does not reach it.

The database says of a message that it goes out before it does (mail-server C3). Where that is said ahead of the
message's turn (`beginnings`), a killed worker would leave messages as uncertain that never left. So each is marked in a
file that is mapped into memory, and its mark taken away before its first byte goes out. Memory that is mapped from a
file outlives the process, not the machine: a mark counts only while the machine has not been started anew, and whatever
has none is uncertain, as ever.

A file is its worker's for as long as that holds the lock on it. Where the lock is free, the worker is gone, and who
finds the file gives back what it has marks of.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

from postroom.outbound.claiming import Group, Mark

DIRECTORY: Final = "unsent"
"""Below the data directory."""
SUFFIX: Final = ".marks"
SLOTS: Final = 1024
"""More than a worker holds groups."""
MAX_FILES: Final = 64
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_HEAD: Final = struct.Struct("<16s48s")
_MAGIC: Final = b"postroom unsent1"
_SLOT: Final = struct.Struct("<16sqqq")
"""The claim's token, its tenant, its delivery; and, of eight octets, whether the mark stands."""
_STANDS: Final = _SLOT.size - 8
_SIZE: Final = _HEAD.size + SLOTS * _SLOT.size


def running_since() -> str | None:
    """What names this run of the machine; None where there is nothing that does. Linux has it."""
    try:
        return _BOOT.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


class Unsent:
    """The marks of one worker. In one thread. `open` it, and `close` it when the worker ends in order."""

    def __init__(self, path: Path, boot: str, fd: int, mapped: mmap.mmap) -> None:
        self._path, self._boot, self._fd, self._map = path, boot, fd, mapped
        self._free = list(range(SLOTS - 1, -1, -1))
        self._slots: dict[UUID, int] = {}
        self._is_left = False

    @classmethod
    def open(cls, directory: Path, name: str, boot: str) -> Unsent:
        """`name` is no other worker's. Raises OSError."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / (name + SUFFIX)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Really there: where the disk is full, touching a page that is not would end the process.
            os.posix_fallocate(fd, 0, _SIZE)
            mapped = mmap.mmap(fd, _SIZE)
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        mapped[: _HEAD.size] = _HEAD.pack(_MAGIC, boot.encode())
        return cls(path, boot, fd, mapped)

    def mark(self, group: Group) -> bool:
        """Before it is recorded that the group's message goes out. False when there is no room; of several recipients
        nothing is marked. What was begun, taken back and is begun again has its mark already."""
        if group.token in self._slots:
            return True  # a second one would stay when it goes out
        if not self._free or len(group.recipients) != 1:
            return False
        slot = self._slots[group.token] = self._free.pop()
        at = _HEAD.size + slot * _SLOT.size
        tenant = group.letter.ref.tenant_id
        self._map[at : at + _STANDS] = _SLOT.pack(group.token.bytes, tenant, group.recipients[0].id, 0)[:_STANDS]
        self._map[at + _STANDS] = 1
        return True

    def clear(self, token: UUID) -> None:
        """The message goes out now, or is out of hand."""
        slot = self._slots.pop(token, None)
        if slot is not None:
            self._map[_HEAD.size + slot * _SLOT.size + _STANDS] = 0
            self._free.append(slot)

    def leave(self, token: UUID) -> None:
        """The message does not go out from here any more, and that could not be recorded: the mark stays, and the
        file."""
        if self._slots.pop(token, None) is not None:
            self._is_left = True

    def close(self) -> None:
        """What was left is for who finds the file."""
        if not self._is_left:
            self._path.unlink(missing_ok=True)
        self._map.close()
        os.close(self._fd)

    @contextlib.contextmanager
    def left_behind(self) -> Iterator[tuple[Mark, ...]]:
        """What workers that are gone had marks of. When the block is left without an error it has been given back, and
        their files are removed; else somebody finds them again.

        What is no such file, or of an earlier run of the machine, has no marks that count.
        """
        with contextlib.ExitStack() as held:
            marks: list[Mark] = []
            found: list[Path] = []
            for path in _files(self._path.parent):
                fd = _take(path)
                if fd is None:
                    continue
                held.callback(os.close, fd)
                marks += _read(fd, self._boot)
                found.append(path)
            yield tuple(marks)
            for path in found:
                path.unlink(missing_ok=True)


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)[:MAX_FILES]
    except OSError:
        return []


def _take(path: Path) -> int | None:
    """The file, locked; None when its worker is alive, or somebody else has it by now."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no file")
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _read(fd: int, boot: str) -> list[Mark]:
    data = os.pread(fd, _SIZE, 0)
    if len(data) != _SIZE or data[: _HEAD.size] != _HEAD.pack(_MAGIC, boot.encode()):
        return []
    return [
        Mark(UUID(bytes=token), tenant, delivery)
        for token, tenant, delivery, stands in _SLOT.iter_unpack(data[_HEAD.size :])
        if stands
    ]
