"""Content-Transfer-Encoding (RFC 2045 §6): encoded bytes to content, tolerant of what real mail does wrong."""

import binascii
import re
from typing import Final

from postroom.mail.mime import Part

_BASE64_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_NOT_BASE64: Final = bytes(set(range(256)) - set(_BASE64_ALPHABET))
_BLANKS_AND_BASE64: Final = _BASE64_ALPHABET + b" \t\r\n"
_PADDED_END: Final = re.compile(rb"={0,2}\s*\Z")
_TRAILING_BLANKS: Final = re.compile(rb"(?<![ \t])[ \t]++(?=\r?\n|\Z)")
_BLANKS_BEFORE_BREAK: Final = (b" \r\n", b" \n", b"\t\r\n", b"\t\n")
_BROKEN_SOFT: Final = re.compile(rb"=\r(?:\r++\n?|(?!\n))")
_FOOTER: Final = re.compile(rb"=[ \t]*+\r?\n(?!\s*+\Z)")
_INNER_BLANK: Final = re.compile(rb"[^\s][ \t]+[^\s]")
_MISLABELLED: Final = 0.1
LOOK: Final = 2048
"""Octets at the start of a text that tell whether it is base64 at all."""
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_UU_BEGIN: Final = re.compile(rb"(?m)^begin [0-7]{3,4} [^\n]*\n")


def decode_base64(data: bytes) -> bytes:
    """RFC 2045 §6.8; characters outside the alphabet are skipped, missing padding is supplied, and padded blocks that
    were strung together are all decoded. Text after the padding is none: mailing lists put their footers there."""
    try:
        pad = data.find(b"=")
        if pad < 0 or _PADDED_END.match(data, pad):
            return binascii.a2b_base64(data)
    except binascii.Error:
        pass
    if (footer := _FOOTER.search(data)) and data[footer.end() :].translate(None, _BLANKS_AND_BASE64):
        data = data[: footer.start() + 1]
    elif (b"-" in data or b"_" in data) and not data.translate(None, _BLANKS_AND_BASE64 + b"-_"):
        data = data.translate(_URL_SAFE)  # RFC 4648 §5
    blocks: list[bytes] = []
    for block in data.translate(None, _NOT_BASE64).split(b"="):
        spare = len(block) % 4
        if spare == 1:
            block = block[:-1]  # six bits make no byte
        if block:
            blocks.append(binascii.a2b_base64(block + b"=" * (-len(block) % 4)))
    return b"".join(blocks)


def decode_quoted_printable(data: bytes) -> bytes:
    """RFC 2045 §6.7; blanks at line ends are transport padding, malformed `=` sequences stay as written."""
    if data.endswith((b" ", b"\t")) or any(blank in data for blank in _BLANKS_BEFORE_BREAK):
        data = _TRAILING_BLANKS.sub(b"", data)
    if b"=\r" in data:
        data = _BROKEN_SOFT.sub(b"=\r\n", data)  # else everything up to the next line feed would be lost
    return binascii.a2b_qp(data)


def decode_uuencode(data: bytes) -> bytes:
    """The `x-uuencode` of old mail; from its `begin` line (or the start) to `end`, malformed lines are skipped."""
    begin = _UU_BEGIN.search(data)
    out: list[bytes] = []
    for line in data[begin.end() if begin else 0 :].split(b"\n"):
        line = line.rstrip(b"\r")
        if line == b"end":
            break
        if not line:
            continue
        try:
            out.append(binascii.a2b_uu(line))
        except binascii.Error:
            # Encoders that miscount padding: the first byte says how much of the line is meant.
            size = (((line[0] - 32) & 63) * 4 + 5) // 3
            try:
                out.append(binascii.a2b_uu(line[:size]))
            except binascii.Error:
                continue
    return b"".join(out)


_UNENCODED: Final = frozenset({"", "7bit", "8bit", "binary"})
_DECODERS: Final = {
    "base64": decode_base64,
    "quoted-printable": decode_quoted_printable,
    "x-uuencode": decode_uuencode,
    "uuencode": decode_uuencode,
    "x-uue": decode_uuencode,
}


def decode(data: bytes, encoding: str) -> bytes:
    """`data` decoded by the lower-case Content-Transfer-Encoding; an unknown one counts as binary. Never raises."""
    decoder = _DECODERS.get(encoding)
    return data if decoder is None else decoder(data)


def decoded(raw: bytes, part: Part, limit: int | None = None) -> bytes:
    """Content of a leaf part, decoded; of multiparts and nested messages as it stands (RFC 2045 §6.4).

    With `limit`, only the first `limit` encoded bytes are looked at.
    """
    end = part.body_end if limit is None else min(part.body_end, part.body_start + limit)
    return content(raw[part.body_start : end], part)


def content(data: bytes, part: Part) -> bytes:
    """As `decoded`, given the part's own octets."""
    if part.children or is_unencoded_text(data[:LOOK], part):
        return data
    return decode(data, part.encoding)


def is_identity(part: Part) -> bool:
    """Whether a part's octets are its content as they stand (RFC 2045 §6.2, §6.4)."""
    return bool(part.children) or part.encoding in _UNENCODED


def is_known(part: Part) -> bool:
    """Whether a part's encoding is one that can be decoded."""
    return is_identity(part) or part.encoding in _DECODERS


def is_unencoded_text(start: bytes, part: Part) -> bool:
    """Whether text that is labelled base64 was never encoded: there are blanks between words in its `start`."""
    if part.encoding != "base64" or part.type != "text":
        return False
    return len(_INNER_BLANK.findall(start)) > len(start) * _MISLABELLED / 2


def decoded_size(raw: bytes, part: Part) -> int:
    """Octets of `decoded(raw, part)` by counting, without decoding: exact for well-formed content."""
    start, end = part.body_start, part.body_end
    size = end - start
    if part.children:
        return size
    if part.encoding == "base64":
        tail = raw.find(b"=", start, end)
        pads = 0 if tail < 0 else raw.count(b"=", tail, end)
        blank = sum(raw.count(char, start, end) for char in (b"\n", b"\r", b" ", b"\t"))
        return max(0, (size - blank - pads) * 3 // 4)
    if part.encoding == "quoted-printable":
        escapes = raw.count(b"=", start, end)
        return max(0, size - 2 * escapes - raw.count(b"=\r\n", start, end))
    return size
