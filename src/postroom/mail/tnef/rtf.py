"""The rich text of a TNEF message to plain text, for messages that have no other (MS-OXRTFCP, RTF 1.9)."""

import re
from typing import Final

from postroom.mail import charset

MAX_RTF_BYTES: Final = 2 * 1024 * 1024
MAX_TEXT_CHARS: Final = 512 * 1024

_COMPRESSED: Final = b"LZFu"
_PLAIN: Final = b"MELA"
_HEADER: Final = 16
_WINDOW: Final = 4096
# What compressor and reader know beforehand (MS-OXRTFCP §2.1.2.1).
_DICTIONARY: Final = (
    rb"{\rtf1\ansi\mac\deff0\deftab720{\fonttbl;}{\f0\fnil \froman \fswiss \fmodern \fscript \fdecor "
    rb"MS Sans SerifSymbolArialTimes New RomanCourier{\colortbl\red0\green0\blue0" + b"\r\n"
    rb"\par \pard\plain\f0\fs20\b\i\u\tab\tx"
)
_TOKEN: Final = re.compile(
    rb"\\([a-zA-Z]{1,32})(-?\d{1,10})? ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|[\r\n]+|([^\\{}\r\n]+)", re.DOTALL
)
_SKIPPED: Final = frozenset(
    (
        b"fonttbl",
        b"colortbl",
        b"stylesheet",
        b"info",
        b"pict",
        b"object",
        b"header",
        b"footer",
        b"generator",
        b"listtable",
    )
)
_BREAKS: Final = {
    b"par": "\n", b"line": "\n", b"sect": "\n", b"page": "\n", b"row": "\n", b"tab": "\t", b"cell": "\t",
    b"emdash": "—", b"endash": "–", b"bullet": "•", b"lquote": "‘", b"rquote": "’", b"ldblquote": "“",
    b"rdblquote": "”",
}  # fmt: skip
_MAX_GROUPS: Final = 1000


def decompress(data: bytes, limit: int = MAX_RTF_BYTES) -> bytes | None:
    """RTF of a PidTagRtfCompressed value, at most `limit` octets; None for what is none. Never raises on content."""
    if len(data) < _HEADER:
        return None
    raw_size = int.from_bytes(data[4:8], "little")
    kind = data[8:12]
    if kind == _PLAIN:
        return data[_HEADER : _HEADER + min(raw_size, limit)]
    if kind != _COMPRESSED:
        return None
    return _inflate(data, min(raw_size, limit))


def _inflate(data: bytes, limit: int) -> bytes:
    """Eight tokens after an octet of flags: a literal, or 12 bits of place and 4 of length (MS-OXRTFCP §2.2)."""
    window = bytearray(_DICTIONARY.ljust(_WINDOW, b"\x00"))
    write = len(_DICTIONARY)
    out = bytearray()
    at, end = _HEADER, len(data)
    while at < end and len(out) < limit:
        flags = data[at]
        at += 1
        for bit in range(8):
            if at >= end or len(out) >= limit:
                break
            if not flags >> bit & 1:
                out.append(data[at])
                window[write] = data[at]
                write = (write + 1) % _WINDOW
                at += 1
                continue
            if at + 1 >= end:
                return bytes(out)
            place = data[at] << 4 | data[at + 1] >> 4
            length = (data[at + 1] & 0x0F) + 2
            at += 2
            if place == write:
                return bytes(out[:limit])
            for _ in range(length):
                octet = window[place]
                out.append(octet)
                window[write] = octet
                write = (write + 1) % _WINDOW
                place = (place + 1) % _WINDOW
    return bytes(out[:limit])


def rtf_text(rtf: bytes) -> str:
    """Plain text of RTF; of HTML wrapped in RTF (MS-OXRTFEX) the text between its tags. Linear time; never raises."""
    return _Reader(rtf[:MAX_RTF_BYTES]).text()


class _Reader:
    def __init__(self, rtf: bytes) -> None:
        self._rtf = rtf
        self._out: list[str] = []
        self._size = 0
        self._octets = bytearray()  # of the codepage, not decoded yet
        self._codepage = "cp1252"
        self._silent = False
        self._skip = 0  # characters that stand in for the `\u` before them
        self._replaced = 1
        self._groups: list[tuple[bool, int]] = []
        self._first = False  # the next control word names what its group is

    def text(self) -> str:
        for found in _TOKEN.finditer(self._rtf):
            word, argument, octet, symbol, brace, plain = found.groups()
            if brace == b"{":
                if len(self._groups) >= _MAX_GROUPS:
                    break
                self._groups.append((self._silent, self._replaced))
                self._first = True
                continue
            if brace == b"}":
                if self._groups:
                    self._silent, self._replaced = self._groups.pop()
                self._skip = 0
            elif word is not None:
                self._word(word, argument)
            elif octet is not None:
                self._add(bytes((int(octet, 16),)))
            elif symbol is not None:
                self._symbol(symbol)
                if symbol == b"*":
                    continue
            elif plain is not None:
                self._add(plain)
            self._first = False
            if self._size > MAX_TEXT_CHARS:
                break
        self._flush()
        # `\u` gives units of UTF-16.
        text = "".join(self._out)[:MAX_TEXT_CHARS].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        lines = text.replace("\x00", "").split("\n")
        return "\n".join(line.rstrip() for line in lines).strip()

    def _word(self, word: bytes, argument: bytes | None) -> None:
        number = int(argument) if argument else 0
        if self._first and word in _SKIPPED:
            self._silent = True
        elif word == b"htmlrtf":
            self._silent = argument != b"0"  # what stands here in place of HTML
        elif word == b"ansicpg":
            self._codepage = charset.codec_for(f"cp{number}") or ("utf-8" if number == 65001 else "cp1252")
        elif word == b"uc":
            self._replaced = min(max(number, 0), 16)
        elif word == b"u":
            self._put(chr(number % 0x10000))
            self._skip = self._replaced
        elif word == b"bin":
            self._silent = True  # raw octets follow, which are no text
        elif word in _BREAKS:
            self._put(_BREAKS[word])

    def _symbol(self, symbol: bytes) -> None:
        if symbol in b"\\{}":
            self._add(symbol)
        elif symbol == b"~":
            self._put(" ")
        elif symbol == b"_":
            self._put("-")
        elif symbol == b"*" and self._first:
            self._silent = True
        elif symbol in b"\r\n":
            self._put("\n")

    def _add(self, octets: bytes) -> None:
        if self._skip:
            taken = min(self._skip, len(octets))
            self._skip -= taken
            octets = octets[taken:]
        if not self._silent:
            self._octets += octets
            self._size += len(octets)

    def _put(self, text: str) -> None:
        if not self._silent:
            self._flush()
            self._out.append(text)
            self._size += 1

    def _flush(self) -> None:
        if self._octets:
            self._out.append(self._octets.decode(self._codepage, "replace"))
            self._octets.clear()
