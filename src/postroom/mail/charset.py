"""Charsets of mail (RFC 2046 §4.1.2, RFC 2047 §2; edge row B5): bytes and a label to clean Unicode text.

Labels are looked up in a closed table, because Python's codec registry also holds transformations (`zlib`,
`unicode_escape`, `idna`) that outside text must never reach.
"""

import re
from typing import Final

# What browsers and mail programs agree on: a label of a subset is read as its common superset.
_CODECS: Final[dict[str, str]] = {
    "usascii": "ascii",
    "ascii": "ascii",
    "ansix341968": "ascii",
    "iso646us": "ascii",
    "us": "ascii",
    "utf8": "utf-8",
    "unicode11utf8": "utf-8",
    "utf8mb4": "utf-8",
    "cesu8": "utf-8",
    "utf7": "utf-7",
    "unicode11utf7": "utf-7",
    "utf16": "utf-16",
    "utf16le": "utf-16-le",
    "utf16be": "utf-16-be",
    "ucs2": "utf-16",
    "utf32": "utf-32",
    "utf32le": "utf-32-le",
    "utf32be": "utf-32-be",
    "latin1": "cp1252",
    "iso88591": "cp1252",
    "l1": "cp1252",
    "cp819": "cp1252",
    "ansi": "cp1252",
    "latin2": "iso8859-2",
    "latin3": "iso8859-3",
    "latin4": "iso8859-4",
    "cyrillic": "iso8859-5",
    "arabic": "iso8859-6",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "iso88598i": "iso8859-8",
    "iso88598e": "iso8859-8",
    "latin5": "cp1254",
    "iso88599": "cp1254",
    "latin6": "iso8859-10",
    "latin9": "iso8859-15",
    "iso885911": "cp874",
    "tis620": "cp874",
    "windows874": "cp874",
    "koi8r": "koi8-r",
    "koi8": "koi8-r",
    "koi8u": "koi8-u",
    "koi8ru": "koi8-u",
    "koi8t": "koi8-t",
    "ptcp154": "ptcp154",
    "macintosh": "mac-roman",
    "macroman": "mac-roman",
    "xmacroman": "mac-roman",
    "xmaccyrillic": "mac-cyrillic",
    "xmaccentraleurope": "mac-latin2",
    "gb2312": "gb18030",
    "csgb2312": "gb18030",
    "euccn": "gb18030",
    "gb231280": "gb18030",
    "gbk": "gb18030",
    "xgbk": "gb18030",
    "cp936": "gb18030",
    "ms936": "gb18030",
    "windows936": "gb18030",
    "gb18030": "gb18030",
    "hz": "hz",
    "hzgb2312": "hz",
    "big5": "big5hkscs",
    "big5hkscs": "big5hkscs",
    "csbig5": "big5hkscs",
    "xxbig5": "big5hkscs",
    "cp950": "cp950",
    "windows950": "cp950",
    "euctw": "big5hkscs",
    "shiftjis": "cp932",
    "sjis": "cp932",
    "xsjis": "cp932",
    "mskanji": "cp932",
    "csshiftjis": "cp932",
    "cp932": "cp932",
    "windows31j": "cp932",
    "eucjp": "euc-jp",
    "xeucjp": "euc-jp",
    "iso2022jp": "iso2022_jp_ext",
    "csiso2022jp": "iso2022_jp_ext",
    "iso2022jp1": "iso2022_jp_ext",
    "iso2022jp2": "iso2022_jp_2",
    "iso2022jp3": "iso2022_jp_3",
    "iso2022jp2004": "iso2022_jp_2004",
    "iso2022jpms": "iso2022_jp_ext",
    "cp50220": "iso2022_jp_ext",
    "cp50221": "iso2022_jp_ext",
    "euckr": "cp949",
    "kscc5601": "cp949",
    "ksc5601": "cp949",
    "ksc56011987": "cp949",
    "ksc56011989": "cp949",
    "korean": "cp949",
    "windows949": "cp949",
    "cp949": "cp949",
    "uhc": "cp949",
    "johab": "johab",
    "iso2022kr": "iso2022_kr",
    "viscii": "cp1258",
}
for _n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16):
    _CODECS[f"iso8859{_n}"] = f"iso8859-{_n}"
for _n in range(1250, 1259):
    _CODECS[f"windows{_n}"] = _CODECS[f"cp{_n}"] = _CODECS[f"xcp{_n}"] = _CODECS[f"win{_n}"] = f"cp{_n}"
for _n in (437, 850, 852, 855, 857, 858, 860, 861, 862, 863, 864, 865, 866, 869, 874):
    _CODECS[f"cp{_n}"] = _CODECS[f"ibm{_n}"] = f"cp{_n}"

_LABEL_NOISE: Final = re.compile(r"[^a-z0-9]")
_UNWANTED: Final = re.compile("[\x00\ud800-\udfff]")
_ESCAPE_JIS: Final = re.compile(rb"\x1b(?:\$[@B]|\([BJI])")
_JIS_SEGMENT: Final = re.compile(rb"\x1b\$[@B]([^\x1b\r\n]*+)(?:\x1b\([BJ])?")
_LABEL_LIMIT: Final = 64


def codec_for(label: str) -> str | None:
    """The Python codec for a charset label as written in mail, or None when the label is unknown."""
    return _CODECS.get(_LABEL_NOISE.sub("", label[:_LABEL_LIMIT].lower()))


def decode(data: bytes, label: str | None = None) -> tuple[str, bool]:
    """Decode `data`, labelled `label` (None: no label), to text without U+0000 and lone surrogates.

    Returns the text and whether it is clean: False when bytes had to be replaced by U+FFFD that the source does not
    spell itself (inbound §10, B5). An unknown label is read as UTF-8, else windows-1252. Never raises.
    """
    codec = codec_for(label) if label else "ascii"
    if codec in ("ascii", "utf-8", None):
        text, clean = _decode_utf8_first(data, strict=codec == "utf-8")
    else:
        text, clean = _decode_as(data, codec)
    if _needs_scrub(text):
        text = _UNWANTED.sub("", text)
    return text, clean


def decode_raw_text(data: bytes) -> str:
    """Text of unlabelled 8-bit header bytes: UTF-8 when valid, else windows-1252, then latin-1. Loses nothing."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _needs_scrub(text: str) -> bool:
    return "\x00" in text or (not text.isascii() and _UNWANTED.search(text) is not None)


def _decode_utf8_first(data: bytes, *, strict: bool) -> tuple[str, bool]:
    if not strict and _ESCAPE_JIS.search(data):
        # Old Japanese mail often omits the label; its escape sequences mean nothing else.
        text, clean = _decode_as(data, "iso2022_jp_ext")
        if clean:
            return text, True
    try:
        return data.decode("utf-8"), True
    except UnicodeDecodeError:
        if strict:
            return data.decode("utf-8", "replace"), False
    return _decode_as(data, "cp1252")


def _decode_as(data: bytes, codec: str) -> tuple[str, bool]:
    if codec == "utf-16" and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        codec = "utf-16-le" if data[1::2].count(0) >= data[::2].count(0) else "utf-16-be"
    try:
        return data.decode(codec), True
    except (UnicodeDecodeError, ValueError):
        pass
    if codec.startswith("iso2022_jp"):
        try:
            return _decode_jis_vendor(data), True
        except UnicodeDecodeError:
            pass
    try:
        return data.decode(codec, "replace"), False
    except (UnicodeError, ValueError):
        return data.decode("latin-1"), False


def _decode_jis_vendor(data: bytes) -> str:
    """ISO-2022-JP with the vendor rows (circled digits and the like) that Python's codec lacks, by way of cp932."""
    out: list[str] = []
    at = 0
    for match in _JIS_SEGMENT.finditer(data):
        out.append(data[at : match.start()].decode("iso2022_jp_ext"))
        out.append(_jis_to_sjis(match[1]).decode("cp932"))
        at = match.end()
    out.append(data[at:].decode("iso2022_jp_ext"))
    return "".join(out)


def _jis_to_sjis(segment: bytes) -> bytes:
    """Shift the two-byte JIS X 0208 code points of `segment` into Shift-JIS (JIS X 0208 annex 1)."""
    out = bytearray()
    for at in range(0, len(segment) - 1, 2):
        row, cell = segment[at], segment[at + 1]
        if row & 1:
            cell += 0x1F if cell < 0x60 else 0x20
        else:
            cell += 0x7E
        row = ((row - 0x21) >> 1) + 0x81
        if row > 0x9F:
            row += 0x40
        out.append(row & 0xFF)
        out.append(cell & 0xFF)
    if len(segment) & 1:
        out.append(segment[-1] | 0x80)
    return bytes(out)
