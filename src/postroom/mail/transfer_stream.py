"""Content-Transfer-Encoding in pieces (RFC 2045 §6): what `transfer.content` gives, without holding all of it.

Only what is encoded as the RFC says can be decoded piece by piece. For the rest, whose meaning shows when all of it is
there, these raise `Irregular`: then the whole is to be decoded at once.
"""

from __future__ import annotations

import binascii
from typing import Final, Protocol

from postroom.mail.mime import Part
from postroom.mail.transfer import LOOK, decode_quoted_printable, is_identity, is_unencoded_text

MAX_LINE: Final = 1024 * 1024
"""Octets of a quoted-printable line that is waited for."""

_BLANKS: Final = b" \t\r\n"
_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


class Irregular(Exception):
    """The octets are not encoded as the RFC says."""


class StreamDecoder(Protocol):
    """Decodes successive pieces."""

    def feed(self, data: bytes, /) -> bytes:
        """What is known of the content after these octets. Raises Irregular."""

    def finish(self) -> bytes:
        """The rest. Raises Irregular."""


def stream_decoder(part: Part, start: bytes) -> StreamDecoder:
    """The decoder for a part whose content begins with `start`, its first `LOOK` octets if there are as many.

    Raises Irregular for encodings that are only decoded as a whole.
    """
    if is_identity(part) or is_unencoded_text(start[:LOOK], part):
        return _Identity()
    if part.encoding == "base64":
        return _Base64()
    if part.encoding == "quoted-printable":
        return _QuotedPrintable()
    raise Irregular


class _Identity:
    __slots__ = ()

    def feed(self, data: bytes, /) -> bytes:
        return data

    def finish(self) -> bytes:
        return b""


class _Base64:
    __slots__ = ("_left", "_pads")

    def __init__(self) -> None:
        self._left = b""
        self._pads = 0

    def feed(self, data: bytes, /) -> bytes:
        data = data.translate(None, _BLANKS)
        if self._pads or b"=" in data:
            letters = data.rstrip(b"=")
            if self._pads and letters:
                raise Irregular
            self._pads += len(data) - len(letters)
            data = letters
        if data.translate(None, _BASE64):
            raise Irregular
        data = self._left + data
        whole = len(data) // 4 * 4
        self._left = data[whole:]
        return binascii.a2b_base64(data[:whole])

    def finish(self) -> bytes:
        spare = len(self._left)
        if self._pads and spare + self._pads != 4:
            raise Irregular
        if spare < 2:
            return b""  # six bits make no byte
        return binascii.a2b_base64(self._left + b"=" * (4 - spare))


class _QuotedPrintable:
    """Lines are decoded on their own: no rule of RFC 2045 §6.7 reaches beyond a line's end."""

    __slots__ = ("_left", "_size")

    def __init__(self) -> None:
        self._left: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, /) -> bytes:
        end = data.rfind(b"\n") + 1
        if not end:
            self._size += len(data)
            if self._size > MAX_LINE:
                raise Irregular
            self._left.append(data)
            return b""
        lines = b"".join((*self._left, data[:end]))
        self._left, self._size = [data[end:]], len(data) - end
        return decode_quoted_printable(lines)

    def finish(self) -> bytes:
        return decode_quoted_printable(b"".join(self._left))
