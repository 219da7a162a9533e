"""Re-encoding a message for a peer without 8BITMIME (RFC 6152 §3, RFC 2045 §6).

It must happen before the message is signed: it changes the body, hence breaks every signature over it (RFC 6376 §5.3).
"""

import re
from enum import StrEnum
from typing import Final

from postroom.mail import mime, params, transfer
from postroom.mail.address import read_addresses
from postroom.mail.compose import fields
from postroom.mail.compose.encodings import base64_chunks, encode_compactly, lines_fit
from postroom.mail.compose.errors import ComposeError
from postroom.mail.header import FIELD, decode_value

MAX_DEPTH: Final = 100
MAX_PARTS: Final = 10_000

_HIGH: Final = re.compile(rb"[\x00\x80-\xff]")
_UNLABELLED: Final = frozenset(("", "7bit", "8bit", "binary"))
_ADDRESS_FIELDS: Final = frozenset(
    (
        *(b"from", b"sender", b"reply-to", b"to", b"cc", b"bcc"),
        *(b"resent-from", b"resent-sender", b"resent-to", b"resent-cc", b"resent-bcc"),
    )
)
_PARAMETER_FIELDS: Final = frozenset((b"content-type", b"content-disposition"))


class Obstacle(StrEnum):
    SIGNED = "signed"
    """8-bit octets stand in a multipart/signed, which nobody may change (RFC 1847 §2.1)."""
    STRUCTURE = "structure"
    """The structure is broken or beyond the limits, so that 8-bit octets belong to no part that can be labelled."""
    ADDRESS = "address"
    """A header names an address beyond ASCII, which has no 7-bit form (RFC 6531 §3.1)."""


class DowngradeError(ValueError):
    """The message has no 7-bit form: for such a peer a permanent failure, `5.6.3` (RFC 3463 §3.7)."""

    def __init__(self, obstacle: Obstacle) -> None:
        # The argument itself: by that it is made anew when it comes from another process.
        super().__init__(obstacle)
        self.obstacle = obstacle


def is_7bit(raw: bytes) -> bool:
    """Whether any SMTP peer can take these octets: ASCII without NUL, lines of at most 998 octets (RFC 2045 §2.7)."""
    return _is_clean(raw) and lines_fit(raw, b"\n")


def downgrade_to_7bit(raw: bytes) -> bytes:
    """`raw` with every part that needs it in quoted-printable or base64, nested messages included; content unchanged.

    Header fields with octets beyond ASCII become encoded words or RFC 2231 parameters. A message that needs nothing is
    returned as it is. Raises DowngradeError.
    """
    if is_7bit(raw):
        return raw
    message = mime.parse(raw, max_depth=MAX_DEPTH, max_parts=MAX_PARTS)
    rewriter = _Rewriter(raw, message.degraded)
    try:
        rewriter.message(message.root)
    except ComposeError:
        raise DowngradeError(Obstacle.STRUCTURE) from None
    result = rewriter.result()
    return result if result.endswith(b"\n") else result + b"\r\n"


class _Rewriter:
    """Walks the tree in the order of the octets and copies them with changes; recursion is bounded by MAX_DEPTH."""

    __slots__ = ("_at", "_degraded", "_out", "_raw")

    def __init__(self, raw: bytes, degraded: bool) -> None:
        self._raw = raw
        self._degraded = degraded
        self._out: list[bytes] = []
        self._at = 0

    def result(self) -> bytes:
        self._copy_gap(len(self._raw))
        return b"".join(self._out)

    def message(self, part: mime.Part) -> None:
        self._part(part, is_message=True)

    def _part(self, part: mime.Part, *, is_message: bool = False) -> None:
        self._copy_gap(part.header_start)
        signed = part.is_multipart and part.subtype == "signed"
        content = b"" if part.children and not signed else self._raw[part.body_start : part.body_end]
        self._at = part.body_end
        if signed and not _is_clean(content):
            raise DowngradeError(Obstacle.SIGNED)
        # What has children is not looked at as a whole: at a hundred levels that would be a hundred times.
        if signed or (not part.children and is_7bit(content)):
            self._header(part, "7bit" if part.encoding in ("8bit", "binary") else None, is_message)
            self._out.append(content)
        elif part.children:
            if not part.params.get("boundary", "").isascii():
                raise DowngradeError(Obstacle.STRUCTURE)
            self._header(part, "7bit" if part.encoding != "7bit" else None, is_message)
            self._at = part.body_start
            for child in part.children:
                self._part(child, is_message=part.type == "message")
            self._copy_gap(part.body_end)
        elif part.is_multipart or (part.type == "message" and part.subtype in ("rfc822", "partial", "external-body")):
            raise DowngradeError(Obstacle.STRUCTURE)  # may not be encoded, and was not taken apart
        else:
            data = content if part.encoding in _UNLABELLED else transfer.decode(content, part.encoding)
            if part.type in ("text", "message"):
                encoding, encoded = encode_compactly(data)
            else:
                encoding, encoded = "base64", b"".join(base64_chunks([data]))
            self._header(part, encoding, is_message)
            self._out.append(encoded)

    def _copy_gap(self, end: int) -> None:
        """Copy boundary lines and what stands beside parts; octets there mean nothing (RFC 2046 §5.1.1)."""
        gap = self._raw[self._at : end]
        self._at = max(self._at, end)
        if not _is_clean(gap):
            if self._degraded:
                raise DowngradeError(Obstacle.STRUCTURE)
            gap = _HIGH.sub(b"?", gap)
        self._out.append(gap)

    def _header(self, part: mime.Part, encoding: str | None, is_message: bool) -> None:
        """The header block of `part` with its Content-Transfer-Encoding set to `encoding`, in ASCII."""
        block = self._raw[part.header_start : part.body_start]
        if encoding is None and _is_clean(block):
            self._out.append(block)
            return
        found = list(FIELD.finditer(block))
        label = b"" if encoding is None else f"Content-Transfer-Encoding: {encoding}\r\n".encode("ascii")
        if is_message and label and not any(match[1].lower() == b"mime-version" for match in found):
            label = b"MIME-Version: 1.0\r\n" + label  # without it readers may ignore the label, RFC 2045 §4
        at = found[0].start() if found else 0
        self._loose(block[:at])  # the line of an mbox
        self._out.append(label)
        for match in found:
            self._loose(block[at : match.start()])
            at = match.end()
            if encoding is None or match[1].lower() != b"content-transfer-encoding":
                self._out.append(_in_ascii(match))
        self._loose(block[at:])
        if not found and not block.endswith(b"\n"):
            self._out.append(b"\r\n")  # the part had no header at all, not even its blank line

    def _loose(self, octets: bytes) -> None:
        if not _is_clean(octets):
            raise DowngradeError(Obstacle.STRUCTURE)
        self._out.append(octets)


def _is_clean(octets: bytes) -> bool:
    return octets.isascii() and b"\x00" not in octets


def _in_ascii(match: re.Match[bytes]) -> bytes:
    """A field, its text beyond ASCII in encoded words (RFC 2047), parameters in RFC 2231 form."""
    if _is_clean(match[0]):
        return match[0]
    name, lower, value = match[1].decode("ascii"), match[1].lower(), match[2]
    if lower in _ADDRESS_FIELDS:
        addresses, complete = read_addresses([value], fields.MAX_ADDRESSES)
        if not addresses or not complete or any(not item.local.isascii() for item in addresses):
            raise DowngradeError(Obstacle.ADDRESS)
        return fields.address_list(name, addresses)
    if lower in _PARAMETER_FIELDS:
        text = params.text_of(value)
        return fields.with_parameters(name, text.partition(";")[0].strip(), params.parse_parameters(text).items())
    return fields.unstructured(name, decode_value(value))
