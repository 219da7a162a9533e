"""Reading files of somebody else: no symbolic links, nothing but files, and not more than is wanted."""

from __future__ import annotations

import os
import stat
from typing import Final

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class TooLarge(Exception):
    """The file holds more than is wanted."""


def open_below(root: bytes, place: bytes, flags: int = _FLAGS) -> int:
    """A descriptor of what is at `place` below `root`, where neither it nor a directory on the way to it is a link.

    A link could lead whoever imports, perhaps root, to what the owner of the Maildir may not read.
    """
    fd = os.open(root, _DIRECTORY)
    steps = [step for step in place.split(b"/") if step not in (b"", b".")]
    for at, step in enumerate(steps, 1):
        try:
            below = os.open(step, flags if at == len(steps) else _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def names_below(root: bytes, place: bytes) -> list[tuple[bytes, bool]]:
    """Name, and whether it is certainly a directory, of what a directory holds. Raises OSError."""
    fd = open_below(root, place, _DIRECTORY | os.O_NOFOLLOW)
    try:
        with os.scandir(fd) as entries:
            return [(os.fsencode(one.name), _is_certainly_directory(one)) for one in entries]
    finally:
        os.close(fd)


def read_file(root: bytes, place: bytes, limit: int) -> tuple[bytes, os.stat_result]:
    """The bytes of a regular file below `root`. Raises TooLarge, OSError; another kind of file is an OSError too."""
    fd = open_below(root, place)
    with open(fd, "rb", buffering=0) as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError("not a file")
        if info.st_size > limit:
            raise TooLarge
        pieces: list[bytes] = []
        room = limit + 1
        while room and (piece := file.read(min(room, 1 << 20))):
            pieces.append(piece)
            room -= len(piece)
    if not room:
        raise TooLarge
    return b"".join(pieces), info


def read_small(root: bytes, place: bytes, limit: int) -> bytes | None:
    """The bytes of a file that need not be there; None also when it cannot be read."""
    try:
        return read_file(root, place, limit)[0]
    except (OSError, TooLarge):
        return None


def is_directory(path: bytes) -> bool:
    """Whether it is one, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _is_certainly_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
