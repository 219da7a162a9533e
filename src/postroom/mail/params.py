"""Values with parameters: Content-Type (RFC 2045 §5), Content-Disposition (RFC 2183), RFC 2231 continuations."""

import re
from itertools import islice
from typing import Final
from urllib.parse import unquote_to_bytes

from postroom.mail import charset
from postroom.mail.header import unfold

MAX_PARAMETERS: Final = 200
MAX_BOUNDARY_BYTES: Final = 1000
_MAX_SEGMENTS: Final = 999

_TYPE: Final = re.compile(r"\s*+([A-Za-z0-9!#$&^_.+-]++)\s*+/\s*+([A-Za-z0-9!#$&^_.+'*%-]++)")
_TOKEN: Final = re.compile(r"\s*+(?:\([^()]*+\)\s*+)?\"?([^\s()<>@,;:\\\"/\[\]?=]++)")
_LEADING_COMMENT: Final = re.compile(r"\s*+\([^()]*+\)")
_PARAMETER: Final = re.compile(r';\s*+([^\s=;"]++)\s*+=\s*+(?:"((?:[^"\\]++|\\.)*+)"?|([^;]*+))', re.DOTALL)
_TRAILING_COMMENT: Final = re.compile(r"\s\([^()]*+\)\s*+\Z")
_SEGMENT: Final = re.compile(r"([^*]++)(?:\*([0-9]{1,3}))?(\*)?\Z")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def text_of(value: bytes) -> str:
    """Unfolded text of a structured field value, raw 8-bit read as UTF-8 or windows-1252."""
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
    if found is None:
        return "text", "plain", parsed
    return found[1].lower(), found[2].lower(), parsed


def parse_disposition(text: str) -> tuple[str | None, dict[str, str]]:
    """Disposition in lower case and its parameters (RFC 2183 §2)."""
    return parse_token(text), parse_parameters(text)


def parse_parameters(text: str) -> dict[str, str]:
    """Parameters by lower-case name, RFC 2231 segments joined and decoded; of repeated names the first counts.

    Encoded words (RFC 2047), which do not belong here, stay as they are.
    """
    if ";" not in text:
        return {}
    plain: dict[str, str] = {}
    extended = False
    for found in islice(_PARAMETER.finditer(text), MAX_PARAMETERS):
        name, quoted, token = found.groups()
        if quoted is None:
            token = token.strip()
            value = _TRAILING_COMMENT.sub("", token) if token.endswith(")") else token
        else:
            value = _ESCAPED.sub(r"\1", quoted) if "\\" in quoted else quoted
        if "\x00" in value:
            value = value.replace("\x00", "")
        name = name.lower()
        extended = extended or "*" in name
        plain.setdefault(name, value)
    return _join_extended(plain) if extended else plain


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
    label: str | None = None
    data = bytearray()
    numbers = [-1] if -1 in series else range(_MAX_SEGMENTS + 1)
    for number in numbers:
        if number not in series:
            break
        encoded, value = series[number]
        if encoded and number <= 0 and value.count("'") >= 2:
            label, _, value = value.split("'", 2)
        data += unquote_to_bytes(value) if encoded else value.encode("utf-8", "replace")
    text, _ = charset.decode(bytes(data), label)
    return "".join(c for c in text if c.isprintable() or c == " ")


def boundary(found: dict[str, str]) -> bytes | None:
    """The delimiter of a multipart (RFC 2046 §5.1.1) without trailing white space; None when unusable."""
    value = found.get("boundary", "").rstrip()
    if not value:
        return None
    data = value.encode("latin-1", "ignore") if value.isascii() else value.encode("utf-8", "ignore")
    return data if len(data) <= MAX_BOUNDARY_BYTES else None
