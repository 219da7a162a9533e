"""Bounces in no standard form: old servers, qmail, Exim's header field, and notices that are text for people.

Read are the addresses that stand where such notices name recipients, each with the reason beside it. Nothing counts
without a sign of failure (or delay) in the text, and without the look of a bounce: its sender, or its subject. The
sender's machine said nothing that a machine was meant to read, so this is evidence of the weaker kind.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from postroom.mail import mime, reports
from postroom.mail.address import parse_addresses
from postroom.mail.charset import decode
from postroom.mail.dsn.model import Action
from postroom.mail.dsn.report import (
    MAX_RECIPIENTS,
    DeliveryReport,
    Evidence,
    ReportedRecipient,
    enhanced_in,
    reply_status_in,
)
from postroom.mail.dsn.words import (
    BOUNCE_SUBJECT,
    BOUNCE_SUBJECT_START,
    action_said,
    status_said,
)
from postroom.mail.header import Headers
from postroom.mail.html_text import html_to_text
from postroom.mail.reports import MAX_PART_BYTES, cut, one_line, typed_text, well_formed
from postroom.mail.transfer import decoded

MAX_TEXT_BYTES: Final = 64 * 1024
"""Of the explanation; what comes after is taken for the returned message."""
MAX_LINES: Final = 2000
_MAX_REASON_LINES: Final = 12

DAEMONS: Final = frozenset(("mailer-daemon", "postmaster"))
"""Local parts of the mail system itself (inbound §16, row 1)."""
_OTHER_DAEMONS: Final = re.compile(r"mail-?daemon|mailerdaemon|mdaemon|daemon|microsoftexchange[0-9a-f]{32}", re.I)
_QSBMF: Final = "Hi. This is the"  # the first words of a bounce in qmail's format
_QSBMF_RECIPIENT: Final = re.compile(r"(?ms)^<([^<>\n]{1,500})>:[ \t]*\n(.*?)(?:\n[ \t]*\n|\Z)")

# From here on the text is the message that came back.
_RETURNED: Final = re.compile(
    r"(?mi)^[ \t>]{0,8}(?:"
    r"[-_=*]{2,}[^\n]{0,40}\b(?:copy of|(?:original|returned|undelivered|unsent|forwarded) (?:message|mail)|"
    r"headers? of|message (?:headers?|text|follows))\b[^\n]{0,80}"
    r"|(?:the )?(?:original|returned|unsent) message(?: headers?| text| follows)?[^\n]{0,20}:[ \t\r]*$"
    r"|(?:Received|Return-Path|DKIM-Signature|MIME-Version|Message-ID|X-Mailer):"
    r")"
)
# The domain possessive, so that no shorter one is taken when what follows does not fit.
_ADDRESS: Final = r"[^\s<>()\[\],;:\"'@]{1,64}@[\w-]{1,63}+(?:\.[\w-]{1,63}+){0,20}+"
_AT_START: Final = re.compile(
    rf"[ \t]*(?:[-*•·][ \t]+)?(?:<({_ADDRESS})>|'({_ADDRESS})'|({_ADDRESS}))(?=[\s:.,;(<]|\Z)(.*)", re.DOTALL
)
_LABELLED: Final = re.compile(
    rf"[ \t]*(?:(?:failed |final |original )?recipients?(?: address)?|address|empfänger|destinataire|destinatario)"
    rf"[ \t]*:[ \t]*<?({_ADDRESS})",
    re.IGNORECASE,
)
_NAMED: Final = re.compile(
    rf"[ \t]*(?![^\n]* (?:to|at) [<(])[\"'A-ZÀ-Þ][^<>()@:\n]{{0,63}}[ \t][<(]({_ADDRESS})[>)][ \t]*\Z"
)
_REPLY: Final = re.compile(rf"[ \t]*(?:<<<[ \t]*)?[45]\d\d[ -](?:[45]\.\d{{1,3}}\.\d{{1,3}}[ \t]+)?<({_ADDRESS})>")
_TRANSCRIPT: Final = re.compile(rf"[ \t]*>>>[ \t]*RCPT TO:[ \t]*<({_ADDRESS})>", re.IGNORECASE)
_ABOUT_MAILBOXES: Final = ("5.1.", "5.2.")
_ASK: Final = re.compile(r"contact|write|help|assist|question", re.IGNORECASE)
_ANY: Final = re.compile(rf"(?<![^\s<(\[:\"'“„«]){_ADDRESS}")


def author_local(message: mime.Message) -> str:
    """Local part of the first author in lower case; empty without one."""
    author = message.addresses("from", 1)[0]
    return author[0].local.lower() if author else ""


def has_bounce_subject(message: mime.Message) -> bool:
    """Whether words of the subject are those of bounces (inbound §16, row 1), in the languages that servers speak."""
    return BOUNCE_SUBJECT.search((message.subject or "")[:512]) is not None


def has_returned_part(message: mime.Message) -> bool:
    """Whether a message, or the header of one, came back as a part of its own."""
    return any(
        part.content_type in reports.MESSAGE_TYPES or part.content_type in reports.HEADER_TYPES
        for part in reports.leaves(message.root)
    )


def read(raw: bytes, message: mime.Message, parts: list[mime.Part]) -> DeliveryReport | None:
    """The report in a message without a status part; None when it names no recipient."""
    failed_field = "x-failed-recipients" in message.headers
    if not (failed_field or _looks_like_bounce(message) or _is_qmail(raw, parts)):
        return None
    text = _text(raw, parts)
    explanation, rest = _split(text)
    recipients: list[ReportedRecipient] = []
    if text.lstrip().startswith(_QSBMF):
        recipients = list(islice(_qmail_recipients(explanation), MAX_RECIPIENTS))
    if not recipients:
        recipients = _in_text(message, explanation)
    if failed_field:
        recipients = list(islice(_failed_recipients(message.headers, explanation, recipients), MAX_RECIPIENTS))
    if not recipients:
        return None
    came_back = reports.returned(raw, [part for part in parts if part.type != "text" or _is_headers(part)], None)
    if came_back is None and (quoted := reports.quoted_headers(rest)) is not None:
        came_back = reports.said_by(quoted)
    if came_back is None:
        came_back = reports.returned(raw, parts[1:], None)
    return DeliveryReport(
        reporting_mta=typed_text(message.headers.get("reporting-mta")),
        original_envelope_id=None,
        original_message_id=None if came_back is None else came_back.message_id,
        original_from=None if came_back is None else came_back.author,
        recipients=tuple(recipients),
        evidence=Evidence.HEURISTIC,
    )


def _is_headers(part: mime.Part) -> bool:
    return part.content_type in reports.HEADER_TYPES


def is_daemon(local: str) -> bool:
    """Whether a local part, in lower case, is the mail system's own, which nobody is given for an address."""
    return local in DAEMONS or _OTHER_DAEMONS.fullmatch(local) is not None


def _looks_like_bounce(message: mime.Message) -> bool:
    return (
        is_daemon(author_local(message))
        or BOUNCE_SUBJECT_START.match((message.subject or "")[:512].lstrip()) is not None
    )


def _is_qmail(raw: bytes, parts: list[mime.Part]) -> bool:
    first = parts[0] if parts else None
    if first is None or first.type != "text":
        return False
    return decoded(raw, first, 256).lstrip().startswith(_QSBMF.encode())


def _text(raw: bytes, parts: list[mime.Part]) -> str:
    """The text that people read, with LF line ends: the first plain part that is not blank, else the first HTML."""
    for subtype in ("plain", "html"):
        for part in parts:
            if part.type == "text" and part.subtype == subtype:
                text, _ = decode(decoded(raw, part, MAX_PART_BYTES), part.params.get("charset"))
                if subtype == "html":
                    text = html_to_text(text[:MAX_TEXT_BYTES], MAX_TEXT_BYTES)
                if text.strip():
                    return text.replace("\r\n", "\n").replace("\r", "\n")
    return ""


def _split(text: str) -> tuple[str, str]:
    found = _RETURNED.search(text, 0, MAX_TEXT_BYTES)
    at = min(len(text), MAX_TEXT_BYTES) if found is None else found.start()
    return text[:at], text[at:]


def _failed_recipients(
    headers: Headers, explanation: str, explained: list[ReportedRecipient]
) -> Iterator[ReportedRecipient]:
    """`X-Failed-Recipients`, with which Exim and others name them; the text may say why."""
    known = {item.final_recipient.lower(): item for item in explained}
    seen: set[str] = set()
    for value in headers.get_all_raw("x-failed-recipients")[:MAX_RECIPIENTS]:
        for item in parse_addresses(value[:MAX_PART_BYTES])[: 2 * MAX_RECIPIENTS]:
            address = well_formed(item.address)
            if address is None or address.lower() in seen:
                continue
            seen.add(address.lower())
            plain = ReportedRecipient(address, Action.FAILED, "5.0.0", None)
            if action_said(explanation) is Action.DELAYED:
                plain = ReportedRecipient(address, Action.DELAYED, "4.0.0", None)
            yield known.get(address.lower(), plain)


def _qmail_recipients(text: str) -> Iterator[ReportedRecipient]:
    """Paragraphs `<address>:` and a reason. qmail writes when it gives up, also on what was temporary."""
    for found in _QSBMF_RECIPIENT.finditer(text):
        address, reason = well_formed(found[1]), cut(one_line(found[2]))
        if address is not None:
            status = _status(reason or "") or "5.0.0"
            yield ReportedRecipient(address, Action.FAILED, status, reason)


def _in_text(message: mime.Message, explanation: str) -> list[ReportedRecipient]:
    said = action_said(explanation)
    ours = {item.address.lower() for item in message.addresses("to", 20)[0]}  # a notice may name whom it is for
    found = _Explanation(explanation)
    made = [
        item
        for address, reason in found.entries.items()
        if address.lower() not in ours and (item := _judged(address, "\n".join(reason), said)) is not None
    ]
    return made[:MAX_RECIPIENTS]


def _judged(address: str, reason: str, said: Action | None) -> ReportedRecipient | None:
    """What the words beside an address, and else those of the whole notice, say of it; None when they say nothing."""
    status = _status(reason)
    if said is None and status is None:
        return None
    action = said if said is Action.DELAYED and not (status or "4").startswith("5") else Action.FAILED
    status = status or ("4.0.0" if action is Action.DELAYED else "5.0.0")
    if status.startswith("2"):
        return None
    return ReportedRecipient(address, action, status, cut(one_line(reason)))


def _status(reason: str) -> str | None:
    """An enhanced code in it, else that which fits its words, unless a reply code is of another class."""
    code, words = reply_status_in(reason), status_said(reason)
    if words is not None and (code is None or code[0] == words[0]):
        code = words
    return enhanced_in(reason) or code


class _Explanation:
    """Addresses where notices name recipients, with the lines that follow each."""

    def __init__(self, text: str) -> None:
        self.entries: dict[str, list[str]] = {}
        self._lines: list[str] | None = None  # of the entry in hand
        self._blanks = 0
        for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
            self._read(line[:2000].rstrip())

    def _read(self, line: str) -> None:
        if not line.strip():
            self._blanks += 1
            if self._blanks > 1:
                self._lines = None
            return
        transcript = _TRANSCRIPT.match(line)
        reply = _REPLY.match(line)
        start = _AT_START.match(line)
        named = _LABELLED.match(line) or _NAMED.match(line)
        if transcript is not None:
            self._enter(transcript[1], "")
        elif named is not None:
            self._enter(named[1], "")
        elif reply is not None:
            self._enter(reply[1], line)
        elif start is not None:
            self._enter(start[1] or start[2] or start[3], start[4].lstrip(" \t:.,;"))
        elif (found := self._sentence(line)) is not None:
            self._enter(found, line)
        elif self._lines is not None and len(self._lines) < _MAX_REASON_LINES:
            self._lines.append(line.strip())
        self._blanks = 0

    def _sentence(self, line: str) -> str | None:
        """The one address of a line that says that something failed: `could not be delivered to bob@example.org`."""
        if "@" not in line:
            return None
        if action_said(line) is None and not (status_said(line) or "").startswith(_ABOUT_MAILBOXES):
            return None
        found = {
            item[0].rstrip(".")
            for item in islice(_ANY.finditer(line), 3)
            if _ASK.search(line, max(0, item.start() - 40), item.start()) is None
        }
        return found.pop() if len(found) == 1 else None

    def _enter(self, text: str, reason: str) -> None:
        address = well_formed(text)
        if address is None:
            return
        # Boilerplate names the postmaster.
        if address.partition("@")[0].lower() in DAEMONS or len(self.entries) >= 2 * MAX_RECIPIENTS:
            return
        key = next((key for key in (address, address.lower()) if key in self.entries), address)
        self._lines = self.entries.setdefault(key, [])
        if reason.strip() and len(self._lines) < _MAX_REASON_LINES:
            self._lines.append(reason.strip())
