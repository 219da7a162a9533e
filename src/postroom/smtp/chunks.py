"""The BDAT command (RFC 3030 §2), read on the receiving side and written on the sending side."""

import re
from dataclasses import dataclass
from typing import Final

_BDAT: Final = re.compile(rb"([0-9]{1,20})(?: +(LAST))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Bdat:
    """One chunk: `size` in octets, which follow the command line at once, and whether it ends the message."""

    size: int
    is_last: bool


def read_bdat(argument: bytes) -> Bdat | None:
    """What follows the word BDAT; `None` if it is ill-formed."""
    match = _BDAT.fullmatch(argument)
    return Bdat(int(match[1]), match[2] is not None) if match is not None else None


def write_bdat(size: int, *, is_last: bool) -> bytes:
    """The command line of a chunk of `size` octets."""
    return b"BDAT %d%s\r\n" % (size, b" LAST" if is_last else b"")
