"""What reports by machines have in common (RFC 6522): groups of fields, typed addresses, the message that came back.

Delivery status (`dsn`), disposition (`mdn`) and feedback (`arf`) notifications are read with this. Values are one line
of printable text, bounded, and addresses well-formed or absent.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from postroom.mail import mime, transfer
from postroom.mail.address import parse_addresses
from postroom.mail.charset import decode_raw_text
from postroom.mail.header import Headers
from postroom.mail.ids import normalise_message_id

MAX_PART_BYTES: Final = 256 * 1024
"""Of a report's text that are read."""
MAX_FIELDS: Final = 5000
MAX_VALUE_CHARS: Final = 4096
MAX_TEXT_CHARS: Final = 512
"""Of a value that is kept (inbound §10)."""
MAX_ADDRESS_CHARS: Final = 320

HEADER_TYPES: Final = frozenset(("text/rfc822-headers", "message/rfc822-headers", "message/global-headers"))
MESSAGE_TYPES: Final = frozenset(("message/rfc822", "message/global"))

_FIELD: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]{0,60})[ \t]*+:(.*)", re.DOTALL)
_TYPED: Final = re.compile(r"\s*+([A-Za-z0-9-]{1,40})\s*+;(.*)", re.DOTALL)
_DOMAIN: Final = re.compile(r"[\w-]++(?:\.[\w-]++)*+")
_XTEXT: Final = re.compile(r"\+([0-9A-F]{2})")
_UNI_ESCAPE: Final = re.compile(r"\\x\{([0-9A-F]{2,6})\}")
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_QUOTE: Final = re.compile(r"(?m)^(?:>[ \t]?|[ \t]+|\|[ \t]?)(?=[!-9;-~]+:)")


class Field(NamedTuple):
    """`after_blank`: an empty line came before it, which parts groups. `name` is in lower case, `value` unfolded."""

    after_blank: bool
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Returned:
    """Of the message that a report is about, as far as it came back: normalised id, author, and its header."""

    message_id: str | None
    author: str | None
    headers: Headers


def leaves(root: mime.Part) -> Iterator[mime.Part]:
    """Leaves in order, not going into nested messages."""
    pending = [root]
    while pending:
        part = pending.pop()
        if part.is_multipart:
            pending.extend(reversed(part.children))
        else:
            yield part


def is_report(root: mime.Part, report_type: str) -> bool:
    """Whether a message says that it is a report of that type (RFC 6522 §3)."""
    return root.content_type == "multipart/report" and root.params.get("report-type", "").strip().lower() == report_type


def part_text(raw: bytes, part: mime.Part) -> str:
    """Text of a part with fields, of which at most 256 KiB are read."""
    return decode_raw_text(transfer.decoded(raw, part, MAX_PART_BYTES))


def read_fields(text: str) -> Iterator[Field]:
    """The first 5,000 fields of all groups; other lines are skipped."""
    found: list[tuple[bool, str, list[str]]] = []
    blank = False
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        if line[:1] in (" ", "\t") and found and not blank and line.strip():
            found[-1][2].append(line)
            continue
        match = _FIELD.fullmatch(line)
        if match is not None:
            if len(found) == MAX_FIELDS:
                break
            found.append((blank, match[1].lower(), [match[2]]))
            blank = False
        else:
            blank = blank or not line.strip()
    for after_blank, name, lines in found:
        yield Field(after_blank, name, one_line(" ".join(lines)[:MAX_VALUE_CHARS]).strip())


def typed_address(value: str | None) -> str | None:
    """The address of a typed field, well-formed, or None; the type may be missing (RFC 3464 §2.3.1, RFC 6533 §3).

    Servers that copy the ORCPT parameter without decoding it (RFC 3461 §5.2.1) are understood where that is certain:
    when only the decoded text is an address.
    """
    if value is None:
        return None
    typed = _TYPED.fullmatch(value)
    if typed is not None:
        value = unicode_decode(typed[2]) if typed[1].lower() == "utf-8" else typed[2]
    if "@" not in value and "+40" in value:
        value = xtext_decode(value)
    return well_formed(value)


def well_formed(value: str) -> str | None:
    """The first complete mailbox in `value` as an addr-spec on one line, or None."""
    for item in parse_addresses(value[:MAX_VALUE_CHARS]):
        whole = len(item.local) <= 255 and len(item.domain) <= 255 and item.local.isprintable()
        if whole and len(item.address) <= MAX_ADDRESS_CHARS and _DOMAIN.fullmatch(item.domain):
            return item.address
    return None


def typed_text(value: str | None) -> str | None:
    """The text after the type (`smtp;`, `dns;`), which may be missing."""
    typed = None if value is None else _TYPED.fullmatch(value)
    return cut(value if typed is None else typed[2])


def cut(value: str | None) -> str | None:
    """White space collapsed, at most 512 characters; None when nothing is left."""
    text = " ".join((value or "").split())[:MAX_TEXT_CHARS]
    return text or None


def returned(raw: bytes, parts: list[mime.Part], fields_part: mime.Part | None) -> Returned | None:
    """What came back of the message: a nested message, a header part, else a text that quotes its header."""
    headers = _returned_headers(raw, parts, fields_part)
    return None if headers is None else said_by(headers)


def said_by(headers: Headers) -> Returned:
    """Id and author of the message with this header."""
    author = parse_addresses(headers.get_raw("from") or b"")
    message_id = headers.get("message-id")
    return Returned(
        None if message_id is None else normalise_message_id(message_id),
        well_formed(author[0].address) if author else None,
        headers,
    )


def quoted_headers(text: str) -> Headers | None:
    """Header fields that stand in a text, also quoted with `>` or indented; None without a Message-ID among them."""
    data = text[:MAX_PART_BYTES]
    for candidate in (data, _QUOTE.sub("", data)):
        found = Headers.parse(candidate.encode("utf-8", "replace"))
        if "message-id" in found:
            return found
    return None


def _returned_headers(raw: bytes, parts: list[mime.Part], fields_part: mime.Part | None) -> Headers | None:
    for part in parts:
        nested = part.nested
        if part.content_type in MESSAGE_TYPES and nested is not None:
            return mime.nested_headers(raw, nested)
        if part.content_type in MESSAGE_TYPES or part.content_type in HEADER_TYPES:
            encoded = transfer.decode(raw[part.body_start : part.body_end][:MAX_PART_BYTES], part.encoding)
            return mime.parse(encoded, max_depth=1, max_parts=1).headers
    for part in reversed(parts):
        if part is not fields_part and part.type == "text" and (found := quoted_headers(part_text(raw, part))):
            return found
    return None


def xtext_decode(text: str) -> str:
    """RFC 3461 §4; what is no escape stays as written, controls become one space."""
    data = bytearray()
    at = 0
    for found in _XTEXT.finditer(text):
        data += text[at : found.start()].encode("utf-8", "replace")
        data.append(int(found[1], 16))
        at = found.end()
    data += text[at:].encode("utf-8", "replace")
    return one_line(bytes(data).decode("utf-8", "replace"))


def unicode_decode(text: str) -> str:
    """The forms of an address of type utf-8 (RFC 6533 §3) to plain text; what is no code point stays as written."""
    return one_line(_UNI_ESCAPE.sub(_code_point, text))


def _code_point(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    return chr(number) if number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF else found[0]


def one_line(text: str) -> str:
    """`text` with each run of control characters made one space."""
    return text if text.isprintable() else _UNPRINTABLE.sub(" ", text)
