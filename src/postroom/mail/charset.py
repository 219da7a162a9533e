"""Charsets of mail (RFC 2046 §4.1.2, RFC 2047 §2; edge row B5): bytes and a label to clean Unicode text.

Labels are looked up in a closed table, because Python's codec registry also holds transformations (`zlib`,
`unicode_escape`, `idna`) that outside text must never reach.
"""

import re
from typing import Final

from postroom.mail.charset_guess import guess

# What browsers and mail programs agree on: a label of a subset is read as its common superset.
_CODECS: Final[dict[str, str]] = {
    "usascii": "ascii",
    "ascii": "ascii",
    "ansix341968": "ascii",
    "ansix341986": "ascii",
    "iso646us": "ascii",
    "iso646irv1991": "ascii",
    "isoir6": "ascii",
    "usa7": "ascii",
    "us": "ascii",
    "utf8": "utf-8",
    "unicode11utf8": "utf-8",
    "unicode20utf8": "utf-8",
    "xunicode20utf8": "utf-8",
    "xutf8": "utf-8",
    "utf8n": "utf-8",
    "utf8bom": "utf-8",
    "utf8mac": "utf-8",
    "utf8mb4": "utf-8",
    "cesu8": "utf-8",
    "utf7": "utf-7",
    "unicode11utf7": "utf-7",
    "unicode20utf7": "utf-7",
    "csunicode11utf7": "utf-7",
    "xunicode20utf7": "utf-7",
    "utf16": "utf-16",
    "utf16le": "utf-16-le",
    "utf16be": "utf-16-be",
    "ucs2": "utf-16",
    "unicode": "utf-16",
    "iso10646ucs2": "utf-16",
    "csunicode": "utf-16",
    "utf32": "utf-32",
    "utf32le": "utf-32-le",
    "utf32be": "utf-32-be",
    "latin1": "cp1252",
    "iso88591": "cp1252",
    "l1": "cp1252",
    "cp819": "cp1252",
    "ansi": "cp1252",
    "isoir100": "cp1252",
    "iso885911987": "cp1252",
    "iso88591windows31latin1": "cp1252",
    "isolatin1": "cp1252",
    "windowslatin1": "cp1252",
    "ansix31101983": "cp1252",  # ANSI_X3.110-1983, by which old Windows programs mean their own
    "ansix3110": "cp1252",
    "csiso99naplps": "cp1252",
    "latin2": "iso8859-2",
    "latin3": "iso8859-3",
    "latin4": "iso8859-4",
    "cyrillic": "iso8859-5",
    "arabic": "iso8859-6",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "iso88598i": "iso8859-8",
    "iso88598e": "iso8859-8",
    "iso88598logical": "iso8859-8",
    "iso88598visual": "iso8859-8",
    "visual": "iso8859-8",
    "logical": "iso8859-8",
    "dos862": "cp862",
    "iso88596i": "iso8859-6",
    "iso88596e": "iso8859-6",
    "asmo708": "iso8859-6",
    "ecma114": "iso8859-6",
    "ecma118": "iso8859-7",
    "elot928": "iso8859-7",
    "suneugreek": "iso8859-7",
    "latin5": "cp1254",
    "iso88599": "cp1254",
    "latin6": "iso8859-10",
    "latin9": "iso8859-15",
    "iso885911": "cp874",
    "tis620": "cp874",
    "windows874": "cp874",
    "koi8r": "koi8-r",
    "koi8": "koi8-r",
    "koi": "koi8-r",
    "koi8u": "koi8-u",
    "koi8ru": "koi8-u",
    "koi8t": "koi8-t",
    "ptcp154": "ptcp154",
    "macintosh": "mac-roman",
    "macroman": "mac-roman",
    "xmacroman": "mac-roman",
    "mac": "mac-roman",
    "xmaccyrillic": "mac-cyrillic",
    "xmacukrainian": "mac-cyrillic",
    "xmaccentraleurope": "mac-latin2",
    "xmacce": "mac-latin2",
    "xmacgreek": "mac-greek",
    "xmacturkish": "mac-turkish",
    "xmacicelandic": "mac-iceland",
    "xmaccroatian": "mac-croatian",
    "xmacromanian": "mac-romanian",
    "xmacjapanese": "cp932",
    "xmackorean": "cp949",
    "xmacchinesesimp": "gb18030",
    "xmacchinesetrad": "big5hkscs",
    "gb2312": "gb18030",
    "csgb2312": "gb18030",
    "euccn": "gb18030",
    "xeuccn": "gb18030",
    "chinese": "gb18030",
    "cngb": "gb18030",
    "csiso58gb231280": "gb18030",
    "isoir58": "gb18030",
    "xgb2312": "gb18030",
    "xgb18030": "gb18030",
    "xcp936": "gb18030",
    "cp54936": "gb18030",
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
    "xbig5": "big5hkscs",
    "cnbig5": "big5hkscs",
    "big5eten": "big5hkscs",
    "ms950": "cp950",
    "xcp950": "cp950",
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
    "cswindows31j": "cp932",
    "ms932": "cp932",
    "windows932": "cp932",
    "xmscp932": "cp932",
    "shiftjisms": "cp932",
    "xsjisjp": "cp932",
    "eucjp": "euc-jp",
    "xeucjp": "euc-jp",
    "ujis": "euc-jp",
    "xeuc": "euc-jp",
    "eucpkdfmtjapanese": "euc-jp",
    "cseucpkdfmtjapanese": "euc-jp",
    "cp51932": "euc-jp",
    "iso2022jp": "iso2022_jp_ext",
    "csiso2022jp": "iso2022_jp_ext",
    "iso2022jp1": "iso2022_jp_ext",
    "iso2022jp2": "iso2022_jp_2",
    "iso2022jp3": "iso2022_jp_3",
    "iso2022jp2004": "iso2022_jp_2004",
    "iso2022jpms": "iso2022_jp_ext",
    "cp50220": "iso2022_jp_ext",
    "cp50221": "iso2022_jp_ext",
    "cp50222": "iso2022_jp_ext",
    "jis": "iso2022_jp_ext",
    "jisencoding": "iso2022_jp_ext",
    "csjisencoding": "iso2022_jp_ext",
    "euckr": "cp949",
    "kscc5601": "cp949",
    "ksc5601": "cp949",
    "ksc56011987": "cp949",
    "ksc56011989": "cp949",
    "korean": "cp949",
    "csksc56011987": "cp949",
    "isoir149": "cp949",
    "ksx1001": "cp949",
    "cseuckr": "cp949",
    "ms949": "cp949",
    "xwindows949": "cp949",
    "windows949": "cp949",
    "cp949": "cp949",
    "uhc": "cp949",
    "johab": "johab",
    "iso2022kr": "iso2022_kr",
    "csiso2022kr": "iso2022_kr",
    "isoir101": "iso8859-2",
    "isolatin2": "iso8859-2",
    "isoir144": "iso8859-5",
    "cyrillicwin": "cp1251",
    "cyrillicasian": "ptcp154",
    "dos866": "cp866",
    "tis6202533": "cp874",
    "xwindows874": "cp874",
    "viscii": "cp1258",
}
for _n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16):
    _CODECS[f"iso8859{_n}"] = f"iso8859-{_n}"
for _n, _suffix in ((2, "1987"), (3, "1988"), (4, "1988"), (5, "1988"), (6, "1987"), (7, "1987"), (8, "1988")):
    _CODECS[f"iso8859{_n}{_suffix}"] = f"iso8859-{_n}"
for _n in range(1250, 1259):
    _CODECS[f"windows{_n}"] = _CODECS[f"cp{_n}"] = _CODECS[f"xcp{_n}"] = _CODECS[f"win{_n}"] = f"cp{_n}"
    _CODECS[f"xwindows{_n}"] = _CODECS[f"ibm{_n}"] = f"cp{_n}"
for _n in (437, 720, 737, 775, 850, 852, 855, 856, 857, 858, 860, 861, 862, 863, 864, 865, 866, 869, 874, 1125):
    _CODECS[f"cp{_n}"] = _CODECS[f"ibm{_n}"] = _CODECS[f"xcp{_n}"] = f"cp{_n}"

_LABEL_NOISE: Final = re.compile(r"[^a-z0-9]")
_UNWANTED: Final = re.compile("[\x00\ud800-\udfff]")
_ESCAPE_JIS: Final = re.compile(rb"\x1b(?:\$[@B]|\([BJI])")
_JIS_SEGMENT: Final = re.compile(rb"\x1b\$[@B]([^\x1b\r\n]*+)(?:\x1b\([BJ])?")
_FOREIGN: Final = re.compile(r"[^\x00-\x7f]")
_HIGH_OCTETS: Final = bytes(range(0x80, 0x100))
_UTF8_CHARACTER: Final = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_NO_CP1252: Final = re.compile(rb"[\x81\x8d\x8f\x90\x9d\xff]")
_CUT_SHORT: Final = "unexpected end of data"
_WIDE: Final = frozenset({"gb18030", "cp932", "euc-jp", "cp949", "johab", "big5hkscs"})
_SURE: Final = 12
"""Octets beyond ASCII from which on letters count for more than the label `windows-1252`, which programs just write."""
_LOOK: Final = 64 * 1024
_LABEL_LIMIT: Final = 64


def codec_for(label: str) -> str | None:
    """The Python codec for a charset label as written in mail, or None when the label is unknown."""
    name = _LABEL_NOISE.sub("", label[:_LABEL_LIMIT].lower())
    return _CODECS.get(name) or _CODECS.get(name.removeprefix("cs"))


def is_stateful(label: str) -> bool:
    """Whether characters of the charset depend on what stands before them (ISO-2022, HZ, UTF-7)."""
    codec = codec_for(label)
    return codec is not None and codec.startswith(("iso2022", "hz", "utf-7"))


def decode(data: bytes, label: str | None = None) -> tuple[str, bool]:
    """Decode `data`, labelled `label` (None: no label), to text without U+0000 and lone surrogates.

    Returns the text and whether it is clean: False when bytes had to be replaced by U+FFFD that the source does not
    spell itself (inbound §10, B5). Without a label that is known, it is read as UTF-8, else as what `guess` says, else
    as windows-1252; so is what is labelled UTF-8 and never was. Octets that the label's charset cannot hold, or that
    read better so, are read as UTF-8 if they are that; what is labelled windows-1252, as `guess` says. Never raises.
    """
    codec = codec_for(label) if label else "ascii"
    if codec in ("ascii", "utf-8", None):
        text, clean = _decode_utf8_first(data, strict=codec == "utf-8")
    else:
        text, clean = _decode_as(data, codec)
    if _needs_scrub(text):
        text = _UNWANTED.sub("", text)
    return text, clean


def decode_raw_text(data: bytes, label: str | None = None) -> str:
    """Text of header octets that say no charset; `label` is that of the body, which is mostly the same. Loses nothing.

    UTF-8 when valid, ISO-2022-JP where its escape sequences stand, else the body's charset, else as `guess` says, else
    windows-1252, else latin-1.
    """
    if b"\x1b" in data and _ESCAPE_JIS.search(data):
        text, clean = _decode_as(data, "iso2022_jp_ext")
        if clean:
            return text
    codec = codec_for(label) if label else None
    for name in ("utf-8", None if codec in _UNTOLD else codec, guess, "cp1252"):
        found = name(data) if callable(name) else name
        if found is None:
            continue
        try:
            return data.decode(found)
        except UnicodeDecodeError:
            continue
    return data.decode("latin-1")


_UNTOLD: Final = frozenset({"ascii", "utf-8", "cp1252", None})
"""Labels that programs write without looking at what they label."""


def _needs_scrub(text: str) -> bool:
    return "\x00" in text or (not text.isascii() and _UNWANTED.search(text) is not None)


def _decode_utf8_first(data: bytes, *, strict: bool) -> tuple[str, bool]:
    if not strict and b"\x1b" in data and _ESCAPE_JIS.search(data):
        # Old Japanese mail often omits the label; its escape sequences mean nothing else.
        text, clean = _decode_as(data, "iso2022_jp_ext")
        if clean:
            return text, True
    try:
        return data.decode("utf-8"), True
    except UnicodeDecodeError as error:
        codec = guess(data) or "cp1252"
        if strict and (error.reason == _CUT_SHORT or not _never_was_utf8(data, codec)):
            return data.decode("utf-8", "replace"), False
    return _decode_as(data, codec)


def _never_was_utf8(data: bytes, codec: str) -> bool:
    """Whether octets labelled UTF-8 are text in `codec` instead, and not UTF-8 that was damaged.

    Characters of several octets come by chance in the East Asian charsets, and in windows-1252 not at all. No text has
    the octet 0xFF (`ÿ`).
    """
    sample = data[:_LOOK]
    high = len(sample) - len(sample.translate(None, _HIGH_OCTETS))
    well_formed = sum(map(len, _UTF8_CHARACTER.findall(sample)))
    if codec == "cp1252":
        return not well_formed and _NO_CP1252.search(data) is None
    return well_formed * 4 < high * 3


def _decode_as(data: bytes, codec: str) -> tuple[str, bool]:
    if codec.startswith(("utf-16", "utf-32")) and _is_plain(data):
        return data.decode("ascii"), True
    if codec == "utf-16" and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        codec = "utf-16-le" if data[1::2].count(0) >= data[::2].count(0) else "utf-16-be"
    if not data.isascii():
        if (found := _utf8_by_its_looks(data, codec)) is not None:
            return found, True
        if codec == "cp1252":
            codec = guess(data, least=_SURE) or codec
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
        return data.decode("utf-8"), True
    except UnicodeDecodeError:
        pass
    try:
        return data.decode(codec, "replace"), False
    except (UnicodeError, ValueError):
        return data.decode("latin-1"), False


def _utf8_by_its_looks(data: bytes, codec: str) -> str | None:
    """UTF-8 that is labelled as something else: as windows-1252 it would be the likes of `Ã¼`, which nobody writes.

    `NESTLÉ®` is valid UTF-8 too. Letters between U+0100 and U+07FF, as such pairs give them, do not come alone. Where
    two octets are a character, only those of three are a sign.
    """
    if codec.startswith(("utf", "iso2022", "hz", "ascii")):
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    foreign = _FOREIGN.findall(text, 0, _LOOK)
    if codec == "cp1252":
        return text if len(foreign) > 2 or not any("\u0100" <= char < "\u0800" for char in foreign) else None
    if codec in _WIDE:
        foreign = [char for char in foreign if char >= "\u0800"]
    return text if len(foreign) > 2 else None


def _is_plain(data: bytes) -> bool:
    """Whether octets labelled as 16 or 32 bits wide are ASCII: Windows programs say `unicode` of their 7-bit text."""
    return data.isascii() and b"\x00" not in data and (b" " in data or b"\n" in data or len(data) % 2 == 1)


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
