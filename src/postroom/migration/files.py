"""Reading files of somebody else: no symbolic links, nothing but files, and not more than is wanted."""

from __future__ import annotations

import os
import stat
from typing import Final

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class TooLarge(Exception):
    """The file holds more than is wanted."""


def read_file(path: bytes, limit: int) -> tuple[bytes, os.stat_result]:
    """The bytes of a regular file. Raises TooLarge, OSError; another kind of file is an OSError too.

    A link could lead whoever imports, perhaps root, to what the owner of the Maildir may not read.
    """
    fd = os.open(path, _FLAGS)
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


def read_small(path: bytes, limit: int) -> bytes | None:
    """The bytes of a file that need not be there; None also when it cannot be read."""
    try:
        return read_file(path, limit)[0]
    except (OSError, TooLarge):
        return None


def is_directory(path: bytes) -> bool:
    """Whether it is one, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
