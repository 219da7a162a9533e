"""Values with parameters: Content-Type (RFC 2045 §5), Content-Disposition (RFC 2183), RFC 2231 continuations.

Programs forget semicolons, quotes and backslashes; what is read here is what their authors meant by it.
"""

import re
from itertools import islice
from typing import Final
from urllib.parse import unquote_to_bytes

from postroom.mail import charset
from postroom.mail.header import unfold

MAX_PARAMETERS: Final = 200
MAX_BOUNDARY_BYTES: Final = 1000
_MAX_SEGMENTS: Final = 999

# Names that begin a parameter even where the semicolon before them was forgotten.
_KNOWN: Final = (
    r"(?:charset|boundary|name|filename|format|delsp|type|protocol|micalg|method|size|smime-type|report-type|start"
    r"|(?:creation|modification|read)-date)(?:\*[0-9]{0,3}\*?)?"
)
_TYPE: Final = re.compile(
    r"\s*+(?:content-type\s*+:\s*+)?([A-Za-z0-9!#$&^_.+-]++)\s*+/\s*+([A-Za-z0-9!#$&^_.+'*%-]++)", re.IGNORECASE
)
_TOKEN: Final = re.compile(r"\s*+(?:\([^()]*+\)\s*+)?\"?([^\s()<>@,;:\\\"/\[\]?=]++)")
_LEADING_COMMENT: Final = re.compile(r"\s*+\([^()]*+\)")
# What nearly all fields look like, read at a glance.
_USUAL_PARAMETER: Final = r';\s*+([A-Za-z0-9-]++)=(?:"([^"\\]*+)"|([^\s;,"()\\=]++))'
_USUAL_ITEM: Final = re.compile(_USUAL_PARAMETER)
_USUAL: Final = re.compile(rf'[^;"=]*+(?:{_USUAL_PARAMETER}\s*+)*+;?\s*+\Z')
_IS_KNOWN: Final = re.compile(_KNOWN, re.IGNORECASE)
_NEXT: Final = re.compile(r"(\A[\s,;]*+|(?<![\s,;])[\s,;]++)([^\s,=;:\"]++)\s*+([=:])\s*+")
_QUOTED: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_END: Final = re.compile(rf"\s*+(?:[;(]|\Z|,?\s*+{_KNOWN}\s*+[=:])", re.IGNORECASE)
_FORGOTTEN: Final = re.compile(rf"(?<![\s,])[\s,]++{_KNOWN}\s*+=", re.IGNORECASE)
_TRAILING_COMMENT: Final = re.compile(r"\s\([^()]*+\)\s*+\Z")
_SEGMENT: Final = re.compile(r"([^*]++)(?:\*([0-9]{1,3}))?(\*)?\Z")
_ESCAPED: Final = re.compile(r'\\(["\\])')
_BREAKS: Final = re.compile(r"[\t\r\n]+")
_LABEL: Final = re.compile(r"[^\s,;\"']*+")
_UNMARKED: Final = re.compile(r"([A-Za-z0-9_.:-]{2,40})'[A-Za-z0-9-]*+'")
_PERCENT: Final = re.compile(r"%[0-9A-Fa-f]{2}")

# What a type without its other half, or with its halves exchanged, was meant to be. RFC 2045 §5.2 has text/plain for
# everything that is no type; these would show markup or binary data as text.
_MEANT: Final = {
    ("html", ""): ("text", "html"),
    ("multipart", ""): ("multipart", "mixed"),
    **dict.fromkeys(
        (("image", ""), ("audio", ""), ("video", ""), ("application", "")), ("application", "octet-stream")
    ),
    ("plain", "text"): ("text", "plain"),
    ("text", "text"): ("text", "plain"),
    ("html", "text"): ("text", "html"),
    ("text", "htm"): ("text", "html"),
}


_ENCODINGS: Final = {"7bit": "7bit", "8bit": "8bit", "binary": "binary", "base64": "base64"} | {
    "quotedprintable": "quoted-printable",
    "qp": "quoted-printable",
    "7": "7bit",
    "8": "8bit",
    "none": "7bit",
    "uuencode": "x-uuencode",
    "xuue": "x-uuencode",
}
_NOISE: Final = re.compile(r"[^a-z0-9]")
_ENCODING: Final = re.compile(r"[\s\"']*+([A-Za-z0-9][A-Za-z0-9 _-]{0,40})")


def text_of(value: bytes) -> str:
    """Unfolded text of a structured field value, raw 8-bit read as UTF-8 or what else it can be."""
    value = unfold(value)
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        return charset.decode_raw_text(value)


def parse_token(text: str) -> str | None:
    """The first token in lower case, comments and quotes aside; None when there is none."""
    found = _TOKEN.match(text)
    return found[1].lower() if found else None


def parse_content_type(text: str) -> tuple[str, str, dict[str, str]]:
    """Type, subtype (lower case) and parameters; what is no type is text/plain (RFC 2045 §5.2)."""
    found = _TYPE.match(text)
    if found is None and (comment := _LEADING_COMMENT.match(text)):
        found = _TYPE.match(text, comment.end())
    parsed = parse_parameters(text)
    kind, subtype = (parse_token(text) or "", "") if found is None else (found[1].lower(), found[2].lower())
    if found is None or subtype in ("text", "htm"):
        kind, subtype = _MEANT.get((kind, subtype), ("text", "plain") if found is None else (kind, subtype))
    return kind, subtype, parsed


def parse_disposition(text: str) -> tuple[str | None, dict[str, str]]:
    """Disposition in lower case and its parameters (RFC 2183 §2); parameters alone mean an attachment."""
    found = _TOKEN.match(text)
    if found is None:
        return None, parse_parameters(text)
    kind = "attachment" if text.startswith("=", found.end()) else found[1].lower()
    return kind, parse_parameters(text)


def parse_encoding(text: str) -> str:
    """Content-Transfer-Encoding as RFC 2045 §6.1 spells it, also for `8 bit`, `base-64` and `quoted printable`."""
    token = parse_token(text)
    if token in _ENCODINGS or token == "quoted-printable":
        return token
    found = _ENCODING.match(text)
    meant = _ENCODINGS.get(_NOISE.sub("", found[1].lower())) if found else None
    return meant or token or "7bit"


def parse_parameters(text: str) -> dict[str, str]:
    """Parameters by lower-case name, RFC 2231 segments joined and decoded; of repeated names the first counts.

    Encoded words (RFC 2047), which do not belong here, stay as they are.
    """
    if "=" not in text and ":" not in text:
        return {}
    plain: dict[str, str] = {}
    if _USUAL.match(text) and "'" not in text and text.isprintable():
        for name, quoted, token in islice(_USUAL_ITEM.findall(text), MAX_PARAMETERS):
            plain.setdefault(name.lower(), quoted or token)
        return plain
    extended = False
    at = count = 0
    while count < MAX_PARAMETERS and (found := _NEXT.search(text, at)):
        gap, name, sign = found.groups()
        if (sign == ":" or ";" not in gap) and _IS_KNOWN.fullmatch(name) is None:
            at = found.end()
            continue
        count += 1
        name = name.lower()
        value, at = _value(text, found.end())
        if "\x00" in value:
            value = value.replace("\x00", "")
        if not value.isprintable():
            value = _BREAKS.sub(" ", value)
        if name == "charset" and (label := _LABEL.match(value)):
            value = label[0] or value
        extended = extended or "*" in name
        plain.setdefault(name, value)
    found_all = _join_extended(plain) if extended else plain
    for name in ("filename", "name"):
        if name in found_all and "'" in found_all[name]:
            found_all[name] = _decode_unmarked(found_all[name])
    return found_all


def _value(text: str, at: int) -> tuple[str, int]:
    """The value that begins at `at`, and where it ends, blanks after it left out."""
    end = text.find(";", at)
    end = len(text) if end < 0 else end
    if text.startswith('"', at):
        quoted = _QUOTED.match(text, at)
        if quoted is not None and _END.match(text, quoted.end()):
            return _ESCAPED.sub(r"\1", quoted[1]), quoted.end()
        # Quotes within quotes, or a backslash that was meant as one: up to the last quote before the semicolon.
        whole = text[at + 1 : end].rstrip()
        if whole.endswith('"'):
            return _ESCAPED.sub(r"\1", whole[:-1]), at + 1 + len(whole)
        if quoted is not None:
            return _ESCAPED.sub(r"\1", quoted[1]), quoted.end()
        at += 1
    forgotten = _FORGOTTEN.search(text, at, end)
    value = text[at : forgotten.start() if forgotten else end].rstrip(" \t\r\n,")
    end = at + len(value)
    if value.endswith(")"):
        value = _TRAILING_COMMENT.sub("", value)
    return value.removesuffix('"'), end


def _decode_unmarked(value: str) -> str:
    """A value in the form of RFC 2231 §4 whose name lacks the asterisk that says so."""
    found = _UNMARKED.match(value)
    if found is None or charset.codec_for(found[1]) is None or not _PERCENT.search(value, found.end()):
        return value
    return _printable(charset.decode(unquote_to_bytes(value[found.end() :]), found[1])[0])


def _join_extended(found: dict[str, str]) -> dict[str, str]:
    """RFC 2231 §3 and §4: `name*0*=…; name*1=…` to one decoded `name`, which overrides a plain one."""
    joined: dict[str, str] = {}
    segments: dict[str, dict[int, tuple[bool, str]]] = {}
    for name, value in found.items():
        shape = _SEGMENT.match(name)
        if shape is None or (shape[2] is None and shape[3] is None):
            joined.setdefault(name, value)
            continue
        # `name*=…`, the whole in one, counts before a series.
        number = -1 if shape[2] is None else int(shape[2])
        segments.setdefault(shape[1], {}).setdefault(number, (shape[3] is not None, value))
        joined.setdefault(shape[1], "")
    for name, series in segments.items():
        value = _decode_series(series)
        if value or not joined[name]:
            joined[name] = value
    return joined


def _decode_series(series: dict[int, tuple[bool, str]]) -> str:
    """The segments up to the first that is missing; some programs number from 1."""
    label: str | None = None
    data = bytearray()
    first = -1 if -1 in series else 0 if 0 in series else 1
    numbers = [-1] if first == -1 else range(first, _MAX_SEGMENTS + 1)
    for number in numbers:
        if number not in series:
            break
        encoded, value = series[number]
        if encoded and number <= first and value.count("'") >= 2:
            label, _, value = value.split("'", 2)
        data += unquote_to_bytes(value) if encoded else value.encode("utf-8", "replace")
    return _printable(charset.decode(bytes(data), label)[0])


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c for c in text if c.isprintable())


def boundary(found: dict[str, str]) -> bytes | None:
    """The delimiter of a multipart (RFC 2046 §5.1.1) without trailing white space; None when unusable."""
    value = found.get("boundary", "").rstrip()
    if not value:
        return None
    data = value.encode("latin-1", "ignore") if value.isascii() else value.encode("utf-8", "ignore")
    return data if len(data) <= MAX_BOUNDARY_BYTES else None
