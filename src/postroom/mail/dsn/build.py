"""Writing a delivery report: multipart/report (RFC 3462, RFC 3464), its internationalised form (RFC 6533)."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from postroom.mail import mime
from postroom.mail.address import Address
from postroom.mail.compose import fields
from postroom.mail.compose.build import Composed
from postroom.mail.compose.draft import Attachment, AutoSubmitted
from postroom.mail.compose.encodings import canonical_text, encode_text, shape_of
from postroom.mail.compose.entities import Boundaries, Leaf, attachment_leaf, memory_leaf, multipart, text_leaf
from postroom.mail.compose.errors import ComposeError, Reason
from postroom.mail.dsn.model import (
    MAX_DIAGNOSTIC_CHARS,
    Action,
    RecipientReport,
    Report,
    Return,
    read_orcpt,
    unicode_encode,
)
from postroom.mail.reports import one_line, xtext_decode

MAX_RECIPIENTS: Final = 1000
MAX_RETURNED: Final = 64 * 1024
"""Octets of a message that come back whole; of a longer one the header (mail-server C7)."""

_STATUS: Final = re.compile(r"[245]\.[0-9]{1,3}\.[0-9]{1,3}")
_BREAK: Final = re.compile(rb"\r\n?|\n")

# The first action that occurs gives subject and opening words.
_WORDS: Final = {
    Action.FAILED: ("Undelivered", "Your message could not be delivered to the recipients below."),
    Action.DELAYED: (
        "Delayed",
        "Your message has not been delivered yet; it is still being tried. Do not send it again: should it not be "
        "delivered in the end, you will be told.",
    ),
    Action.DELIVERED: ("Delivered", "Your message was delivered to the recipients below."),
    Action.RELAYED: ("Relayed", "Your message was passed on to a system that does not report deliveries."),
    Action.EXPANDED: ("Expanded", "Your message was passed on to the members of a list."),
}


def compose_dsn(
    report: Report,
    original: bytes,
    *,
    from_: Address,
    to: Address,
    date: datetime,
    message_id: str,
    boundary: str,
    ret: Return = Return.FULL,
    smtputf8: bool = False,
) -> Composed:
    """A report about `original`, from `from_` (MAILER-DAEMON) to the return path `to`; sent with the null sender.

    The message comes back whole only for a failure, when `ret` says so and it has at most 64 KiB; else its header does.
    `smtputf8`: the way back takes UTF-8, so that the forms of RFC 6533 are used where an address needs them. Raises
    ComposeError for a report without recipients or with over 1,000, a malformed status, or a malformed address.
    """
    if not 0 < len(report.recipients) <= MAX_RECIPIENTS:
        raise ComposeError("recipients", Reason.TOO_MANY if report.recipients else Reason.MISSING)
    message = mime.parse(original)
    international = smtputf8 and any(not item.recipient.local.isascii() for item in report.recipients)
    present = {item.action for item in report.recipients}
    leading = next(action for action in _WORDS if action in present)
    boundaries = Boundaries(boundary)
    parts = [
        text_leaf(_explanation(report, leading), "plain", boundaries),
        _status_leaf(report, international, boundaries),
        _returned(original, message, boundaries, whole=ret is Return.FULL and leading is Action.FAILED, utf8=smtputf8),
    ]
    body = multipart("report", boundaries, parts, (("report-type", "delivery-status"),))
    subject = f"{_WORDS[leading][0]}: {one_line(message.subject or '(no subject)')}"[:200].rstrip()
    header = [
        fields.address_list("From", (from_,)),
        fields.address_list("To", (to,)),
        fields.unstructured("Subject", subject),
        fields.date("Date", date),
        fields.message_ids("Message-ID", (message_id,)),
    ]
    answered = message.message_id
    if answered is not None and fields.is_writable_id(answered):
        header += [fields.message_ids(name, (answered,)) for name in ("In-Reply-To", "References")]
    header += [
        f"Auto-Submitted: {AutoSubmitted.REPLIED.value}\r\n".encode("ascii"),
        b"MIME-Version: 1.0\r\n",
        body.header,
        b"\r\n",
    ]
    return Composed(b"".join(header), body, not (to.local.isascii() and from_.local.isascii()))


def _explanation(report: Report, leading: Action) -> str:
    lines = [f"This is the mail server {one_line(report.reporting_mta)}.", "", _WORDS[leading][1], ""]
    for item in report.recipients:
        lines.append(f"{one_line(item.recipient.address)}: {item.action.value} ({item.status})")
        if item.remote_mta is not None:
            lines.append(f"    answered by {one_line(item.remote_mta)}")
        if item.diagnostic is not None:
            lines.append(f"    {_diagnostic(item.diagnostic)}")
        if item.will_retry_until is not None and item.action is Action.DELAYED:
            lines.append(f"    tried again until {item.will_retry_until.astimezone(UTC):%Y-%m-%d %H:%M} UTC")
    return "\n".join(lines)


def _diagnostic(text: str) -> str:
    return " ".join(one_line(text)[:MAX_DIAGNOSTIC_CHARS].split())


def _status_leaf(report: Report, international: bool, boundaries: Boundaries) -> Leaf:
    """RFC 3464 §2.1; the UTF-8 form may be encoded, the other is ASCII (RFC 6533 §4)."""
    groups = [b"".join(_message_fields(report, international))]
    groups += [b"".join(_recipient_fields(item, international)) for item in report.recipients]
    data = b"\r\n".join(groups)
    kind = "message/global-delivery-status" if international else "message/delivery-status"
    header = f"Content-Type: {kind}\r\n".encode("ascii")
    if not international:
        return memory_leaf(header, "7bit", data)
    return memory_leaf(header, *encode_text(data, forbidden=boundaries.mark))


def _message_fields(report: Report, international: bool) -> Iterator[bytes]:
    if report.envid is not None:
        yield _field("Original-Envelope-Id", xtext_decode(report.envid), international)
    yield _field("Reporting-MTA", f"dns; {report.reporting_mta}", international)
    if report.arrival is not None:
        yield fields.date("Arrival-Date", report.arrival)


def _recipient_fields(item: RecipientReport, international: bool) -> Iterator[bytes]:
    if _STATUS.fullmatch(item.status) is None:
        raise ComposeError("status", Reason.SYNTAX)
    named = None if item.orcpt is None else read_orcpt(item.orcpt)
    if named is not None:
        kind, address = named
        yield _field("Original-Recipient", f"{kind}; {_typed(kind, address, international)}", international)
    spec = fields.addr_spec(item.recipient, "recipients")
    kind = "rfc822" if spec.isascii() else "utf-8"
    yield _field("Final-Recipient", f"{kind}; {_typed(kind, spec, international)}", international)
    yield f"Action: {item.action.value}\r\nStatus: {item.status}\r\n".encode("ascii")
    if item.remote_mta is not None:
        yield _field("Remote-MTA", f"dns; {item.remote_mta}", international)
    if item.diagnostic is not None:
        yield _field("Diagnostic-Code", f"smtp; {_diagnostic(item.diagnostic)}", international)
    if item.last_attempt is not None:
        yield fields.date("Last-Attempt-Date", item.last_attempt)
    if item.will_retry_until is not None and item.action is Action.DELAYED:
        yield fields.date("Will-Retry-Until", item.will_retry_until)  # RFC 3464 §2.3.9


def _typed(kind: str, address: str, international: bool) -> str:
    return unicode_encode(address) if kind == "utf-8" and not international else address


def _field(name: str, value: str, international: bool) -> bytes:
    value = fields.whole_characters(one_line(value))
    if not international:
        value = value.encode("ascii", "replace").decode("ascii")
    return fields.fold(name, [(" ", word) for word in value.split()])


def _returned(original: bytes, message: mime.Message, boundaries: Boundaries, *, whole: bool, utf8: bool) -> Leaf:
    """The message, or its header where it is too long, cannot be sent as it stands, or is not asked for."""
    header = original[: message.root.body_start]
    utf8 = utf8 and not header.isascii()
    if whole and len(original) <= MAX_RETURNED and shape_of((original,), boundaries.mark).sendable:
        kind = "message/global" if utf8 else "message/rfc822"
        return attachment_leaf(Attachment(None, kind, original, inline=True), None, boundaries)
    lines = _BREAK.sub(b"\r\n", header[:MAX_RETURNED]).rstrip(b"\r\n")
    data = canonical_text(lines.decode("utf-8", "replace")).encode()
    kind = "message/global-headers" if utf8 else "text/rfc822-headers"
    parameters = (("charset", "utf-8"),) if not utf8 and not data.isascii() else ()
    return memory_leaf(
        fields.with_parameters("Content-Type", kind, parameters), *encode_text(data, forbidden=boundaries.mark)
    )
