"""Reading delivery reports, with tolerance for how they are written in the wild (RFC 3464; inbound §16, FR-DLV-5)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from postroom.mail import mime, transfer
from postroom.mail.address import parse_addresses
from postroom.mail.charset import decode_raw_text
from postroom.mail.dsn.model import MAX_DIAGNOSTIC_CHARS, Action, one_line, unicode_decode
from postroom.mail.header import Headers
from postroom.mail.ids import normalise_message_id

MAX_RECIPIENTS: Final = 100
MAX_STATUS_BYTES: Final = 256 * 1024
MAX_FIELDS: Final = 5000
MAX_VALUE_CHARS: Final = 4096

_STATUS_TYPES: Final = frozenset(("message/delivery-status", "message/global-delivery-status"))
_HEADER_TYPES: Final = frozenset(("text/rfc822-headers", "message/rfc822-headers", "message/global-headers"))
_MESSAGE_TYPES: Final = frozenset(("message/rfc822", "message/global"))
_LOOKS_LIKE_STATUS: Final = re.compile(rb"(?mi)^(?:final|original)-recipient[ \t]*+:")
_FIELD: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]{0,60})[ \t]*+:(.*)", re.DOTALL)
_TYPED: Final = re.compile(r"\s*+([A-Za-z0-9-]{1,40})\s*+;(.*)", re.DOTALL)
_DOMAIN: Final = re.compile(r"[\w-]++(?:\.[\w-]++)*+")
_STATUS: Final = re.compile(r"(?<![\d.])([245])\.(\d{1,3})\.(\d{1,3})(?![\d.]*\d)")
_REPLY_CODE: Final = re.compile(r"(?:\A|: )([245])\d\d(?=[ -]|\Z)")
_WORD: Final = re.compile(r"[a-z]+")
_QSBMF: Final = "Hi. This is the"  # the first words of a bounce in qmail's format
_QSBMF_RECIPIENT: Final = re.compile(r"(?ms)^<([^<>\n]{1,500})>:[ \t]*\n(.*?)(?:\n[ \t]*\n|\Z)")

# Words that stand for actions: those of RFC 3464, and how some servers spell them.
_ACTIONS: Final = {
    **{action.value: action for action in Action},
    "fail": Action.FAILED,
    "failure": Action.FAILED,
    "bounced": Action.FAILED,
    "undeliverable": Action.FAILED,
    "delay": Action.DELAYED,
    "deferred": Action.DELAYED,
    "success": Action.DELIVERED,
    "deliverable": Action.DELIVERED,
}
_ACTION_OF_CLASS: Final = {"5": Action.FAILED, "4": Action.DELAYED, "2": Action.DELIVERED}


@dataclass(frozen=True, slots=True)
class ReportedRecipient:
    """One recipient. `final_recipient` is a well-formed address; the rest as far as the report says it.

    `status` is an enhanced code, taken from the diagnostic text or its reply code when there is none of its own.
    """

    final_recipient: str
    action: Action | None
    status: str | None
    diagnostic_code: str | None
    original_recipient: str | None = None
    remote_mta: str | None = None


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """A parsed report; id (normalised) and author are those of the returned message (inbound §16)."""

    reporting_mta: str | None
    original_envelope_id: str | None
    original_message_id: str | None
    original_from: str | None
    recipients: tuple[ReportedRecipient, ...]


def parse_dsn(raw: bytes, message: mime.Message | None = None) -> DeliveryReport | None:
    """The report that a message is, with its first 100 recipients; None when it is none. Never raises on content.

    `message` is `mime.parse(raw)`, if it is at hand. Reports inside attached messages do not count. Besides RFC 3464 it
    reads status parts that are labelled as text, `X-Failed-Recipients`, and qmail's format.
    """
    message = mime.parse(raw) if message is None else message
    leaves = list(_leaves(message.root))
    status = _status_part(raw, message.root, leaves)
    if status is not None:
        general, groups = _groups(_text(raw, status))
        recipients = [found for group in groups if (found := _recipient(group)) is not None]
    else:
        general = {}
        recipients = _first(_failed_recipients(message.headers)) or _first(_qmail_recipients(raw, leaves))
        if not recipients:
            return None
    returned = _returned_headers(raw, leaves, status)
    author = parse_addresses(returned.get_raw("from") or b"") if returned is not None else []
    original_id = returned.get("message-id") if returned is not None else None
    return DeliveryReport(
        reporting_mta=_host(general.get("reporting-mta")),
        original_envelope_id=_cut(general.get("original-envelope-id")),
        original_message_id=None if original_id is None else normalise_message_id(original_id),
        original_from=author[0].address if author else None,
        recipients=tuple(recipients[:MAX_RECIPIENTS]),
    )


def _first(found: Iterator[ReportedRecipient]) -> list[ReportedRecipient]:
    return list(islice(found, MAX_RECIPIENTS))


def _leaves(root: mime.Part) -> Iterator[mime.Part]:
    """Leaves in order, not going into nested messages."""
    pending = [root]
    while pending:
        part = pending.pop()
        if part.is_multipart:
            pending.extend(reversed(part.children))
        else:
            yield part


def _status_part(raw: bytes, root: mime.Part, leaves: list[mime.Part]) -> mime.Part | None:
    for part in leaves:
        if part.content_type in _STATUS_TYPES:
            return part
    if root.content_type != "multipart/report":
        return None
    for part in leaves:
        if part.type not in ("text", "application") or part.content_type in _HEADER_TYPES:
            continue
        if _LOOKS_LIKE_STATUS.search(transfer.decoded(raw, part, MAX_STATUS_BYTES)):
            return part
    return None


def _text(raw: bytes, part: mime.Part) -> str:
    return decode_raw_text(transfer.decoded(raw, part, MAX_STATUS_BYTES))


def _groups(text: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Fields about the message, and those about each recipient.

    Groups are parted by blank lines (RFC 3464 §2.1), which some servers leave out and others put in between; so a
    group begins with the field that names a recipient, unless the group in hand can still take it.
    """
    general: dict[str, str] = {}
    groups: list[dict[str, str]] = []
    for after_blank, name, value in _fields(text):
        group = groups[-1] if groups else None
        if name == "final-recipient":
            begins = group is None or name in group or "action" in group
        elif name == "original-recipient":
            begins = group is None or after_blank or name in group or {"final-recipient", "action"} <= group.keys()
        else:
            begins = False
        if begins:
            if len(groups) > MAX_RECIPIENTS:
                break
            group = {}
            groups.append(group)
        (general if group is None else group).setdefault(name, value)
    return general, groups


def _fields(text: str) -> Iterator[tuple[bool, str, str]]:
    """Unfolded fields: whether a blank line came before, the name in lower case, the value."""
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
        yield after_blank, name, one_line(" ".join(lines)[:MAX_VALUE_CHARS]).strip()


def _recipient(group: dict[str, str]) -> ReportedRecipient | None:
    original = _address(group.get("original-recipient"))
    final = _address(group.get("final-recipient")) or original
    if final is None:
        return None
    diagnostic = _diagnostic(group.get("diagnostic-code"))
    status = _status(group.get("status"), diagnostic)
    word = _WORD.search(group.get("action", "").lower())
    action = _ACTIONS.get(word[0]) if word else None
    if action is None and status is not None:
        action = _ACTION_OF_CLASS[status[0]]
    return ReportedRecipient(final, action, status, diagnostic, original, _host(group.get("remote-mta")))


def _address(value: str | None) -> str | None:
    """The address of a typed field, well-formed, or None; the type may be missing (RFC 3464 §2.3.1, RFC 6533 §3)."""
    if value is None:
        return None
    typed = _TYPED.fullmatch(value)
    if typed is not None:
        value = unicode_decode(typed[2]) if typed[1].lower() == "utf-8" else typed[2]
    return _well_formed(value)


def _well_formed(value: str) -> str | None:
    for item in parse_addresses(value[:MAX_VALUE_CHARS]):
        whole = len(item.local) <= 255 and len(item.domain) <= 255 and item.local.isprintable()
        if whole and _DOMAIN.fullmatch(item.domain):
            return item.address
    return None


def _status(value: str | None, diagnostic: str | None) -> str | None:
    for text in (value, diagnostic):
        if text is not None and (found := _STATUS.search(text)):
            return f"{found[1]}.{int(found[2])}.{int(found[3])}"
    for text in (value, diagnostic):
        if text is not None and (found := _REPLY_CODE.search(text)):
            return f"{found[1]}.0.0"
    return None


def _diagnostic(value: str | None) -> str | None:
    """The text after the type (`smtp;`), which may be missing."""
    if value is None:
        return None
    typed = _TYPED.fullmatch(value)
    return _cut(value if typed is None else typed[2])


def _host(value: str | None) -> str | None:
    typed = None if value is None else _TYPED.fullmatch(value)
    return _cut(value if typed is None else typed[2])


def _cut(value: str | None) -> str | None:
    text = " ".join((value or "").split())[:MAX_DIAGNOSTIC_CHARS]
    return text or None


def _returned_headers(raw: bytes, leaves: list[mime.Part], status: mime.Part | None) -> Headers | None:
    """Header of the message that came back: of a nested message, of a header part, else of a text that quotes it."""
    for part in leaves:
        nested = part.nested
        if part.content_type in _MESSAGE_TYPES and nested is not None:
            return mime.nested_headers(raw, nested)
        if part.content_type in _MESSAGE_TYPES or part.content_type in _HEADER_TYPES:
            encoded = transfer.decode(raw[part.body_start : part.body_end][:MAX_STATUS_BYTES], part.encoding)
            return _first_block(encoded)
    for part in reversed(leaves):
        if part is not status and part.type == "text":
            quoted = Headers.parse(transfer.decoded(raw, part, MAX_STATUS_BYTES))
            if "message-id" in quoted:
                return quoted
    return None


def _first_block(data: bytes) -> Headers:
    return mime.parse(data, max_depth=1, max_parts=1).headers


def _failed_recipients(headers: Headers) -> Iterator[ReportedRecipient]:
    """`X-Failed-Recipients`, with which some servers name them in a bounce without a status part."""
    for value in headers.get_all_raw("x-failed-recipients")[:MAX_RECIPIENTS]:
        for item in parse_addresses(value[:MAX_STATUS_BYTES])[:MAX_RECIPIENTS]:
            address = _well_formed(item.address)
            if address is not None:
                yield ReportedRecipient(address, Action.FAILED, "5.0.0", None)


def _qmail_recipients(raw: bytes, leaves: list[mime.Part]) -> Iterator[ReportedRecipient]:
    """Paragraphs `<address>:` and a reason, in a text that begins with the format's fixed words."""
    first = leaves[0] if leaves else None
    if first is None or first.type != "text":
        return
    text = _text(raw, first).replace("\r\n", "\n")
    if not text.lstrip().startswith(_QSBMF):
        return
    for found in _QSBMF_RECIPIENT.finditer(text):
        address, reason = _well_formed(found[1]), _cut(one_line(found[2]))
        if address is not None:
            status = _status(None, reason) or "5.0.0"
            yield ReportedRecipient(address, _ACTION_OF_CLASS[status[0]], status, reason)
