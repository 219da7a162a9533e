"""Line ends: mail travels with CRLF (RFC 5322 §2.1), files often hold LF."""

from __future__ import annotations

import re
from typing import Final

_LONE_LF: Final = re.compile(rb"(?<!\r)\n")


def to_wire(raw: bytes) -> bytes:
    """The message with CRLF. One whose first line ends so is left as it is, to the octet."""
    first = raw.find(b"\n")
    if first < 0 or (first > 0 and raw[first - 1] == 0x0D):
        return raw
    return _LONE_LF.sub(b"\r\n", raw)
