"""Whether a person wrote a message, and what kind of machine did (RFC 3834, RFC 2919, RFC 2369; inbound §16, D6, B8).

The table of inbound §16, its first row that applies being the kind; what spoke for it, and for the rows below, is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import orjson

from postroom.mail import mime, reports
from postroom.mail.arf import Feedback, parse_arf
from postroom.mail.calendar import Invitation, find_invitation, is_calendar
from postroom.mail.dsn import DeliveryReport, Evidence, ReportedRecipient, informal, parse_dsn
from postroom.mail.mdn import Receipt, parse_mdn
from postroom.mail.params import parse_token
from postroom.mail.srs import MAX_HOP, hops

MAX_JSON_BYTES: Final = 64 * 1024
_SHORTER_DIAGNOSTICS: Final = (512, 160, 0)
_MAX_SUBJECT: Final = 512


class Kind(StrEnum):
    """Of a received message."""

    NORMAL = "normal"
    AUTOMATED = "automated"
    DSN = "dsn"
    LIST = "list"
    CALENDAR = "calendar"
    MDN = "mdn"


class Sign(StrEnum):
    """What speaks for a row of the table, or is worth knowing beside it."""

    DELIVERY_STATUS_REPORT = "delivery_status_report"
    BOUNCE_SHAPE = "bounce_shape"
    BOUNCE_TEXT = "bounce_text"
    DISPOSITION_REPORT = "disposition_report"
    LIST_ID = "list_id"
    LIST_UNSUBSCRIBE = "list_unsubscribe"
    LIST_POST = "list_post"
    PRECEDENCE_LIST = "precedence_list"
    PRECEDENCE_BULK = "precedence_bulk"
    AUTO_SUBMITTED = "auto_submitted"
    X_AUTOREPLY = "x_autoreply"
    X_AUTORESPOND = "x_autorespond"
    AUTO_RESPONSE_SUPPRESS = "auto_response_suppress"
    PRECEDENCE_JUNK = "precedence_junk"
    PRECEDENCE_AUTO_REPLY = "precedence_auto_reply"
    SUBJECT = "subject"
    FROM_LOCAL_PART = "from_local_part"
    NULL_SENDER = "null_sender"
    HOP_LIMIT = "hop_limit"
    FEEDBACK_REPORT = "feedback_report"
    REPORT = "report"
    CALENDAR_PART = "calendar_part"
    POSTROOM_AGENT = "postroom_agent"
    MDN_REQUESTED = "mdn_requested"


_KIND_OF: Final = {
    Sign.DELIVERY_STATUS_REPORT: Kind.DSN,
    Sign.BOUNCE_SHAPE: Kind.DSN,
    Sign.BOUNCE_TEXT: Kind.DSN,
    Sign.DISPOSITION_REPORT: Kind.MDN,
    Sign.LIST_ID: Kind.LIST,
    Sign.LIST_UNSUBSCRIBE: Kind.LIST,
    Sign.LIST_POST: Kind.LIST,
    Sign.PRECEDENCE_LIST: Kind.LIST,
    Sign.PRECEDENCE_BULK: Kind.LIST,
    Sign.CALENDAR_PART: Kind.CALENDAR,
    Sign.POSTROOM_AGENT: Kind.NORMAL,
    Sign.MDN_REQUESTED: Kind.NORMAL,
}
_ORDER: Final = (Kind.DSN, Kind.MDN, Kind.LIST, Kind.AUTOMATED, Kind.CALENDAR, Kind.NORMAL)
_ANSWERABLE: Final = frozenset((Kind.NORMAL, Kind.CALENDAR))

_PRECEDENCE: Final = {
    "list": Sign.PRECEDENCE_LIST,
    "bulk": Sign.PRECEDENCE_BULK,
    "junk": Sign.PRECEDENCE_JUNK,
    "auto_reply": Sign.PRECEDENCE_AUTO_REPLY,
}
_PRESENT: Final = (
    ("list-id", Sign.LIST_ID),
    ("list-unsubscribe", Sign.LIST_UNSUBSCRIBE),
    ("list-post", Sign.LIST_POST),
    ("x-autoreply", Sign.X_AUTOREPLY),
    ("x-autorespond", Sign.X_AUTORESPOND),
    ("disposition-notification-to", Sign.MDN_REQUESTED),
)
_SUBJECTS: Final = (
    "out of office",
    "automatic reply:",
    "auto:",
    "autosvar:",
    "abwesenheitsnotiz",
    "réponse automatique",
    "re\u0301ponse automatique",  # decomposed
)
_NO_REPLY: Final = frozenset(("noreply", "no-reply", "donotreply", "do-not-reply"))


@dataclass(frozen=True, slots=True)
class Classification:
    """What a message is. `hop` is the highest `X-Postroom-Hop`, None without one."""

    kind: Kind
    evidence: tuple[Sign, ...]
    hop: int | None = None
    dsn: DeliveryReport | None = None
    mdn: Receipt | None = None
    feedback: Feedback | None = None
    calendar: Invitation | None = None

    @property
    def automated(self) -> bool:
        """`trust.automated`: machines are not answered automatically (D6)."""
        return self.kind not in _ANSWERABLE

    def to_json(self) -> dict[str, Any]:
        """`automated_json`: what is known, without what is not; at most 64 KiB when serialised."""
        found: dict[str, Any] = {"evidence": [sign.value for sign in self.evidence]}
        if self.hop is not None:
            found["hop"] = self.hop
        if self.calendar is not None:
            found["calendar"] = _known(self.calendar, "method", "summary", "dtstart", "dtend", "organizer", "location")
        if self.mdn is not None:
            found["mdn"] = _receipt(self.mdn)
        if self.feedback is not None:
            found["feedback"] = _feedback(self.feedback)
        if self.dsn is not None:
            room = MAX_JSON_BYTES - len(orjson.dumps(found)) - 16
            found["dsn"] = _report(self.dsn, room)
        return found


def reads_content(message: mime.Message, *, null_sender: bool) -> bool:
    """Whether `classify` looks at more than the header: then it may take a tenth of a second for hostile mail, and
    belongs in another process; else it takes a tenth of a millisecond."""
    return (
        _may_be_bounce(message, informal.author_local(message), null_sender)
        or message.root.content_type == "multipart/report"
        or any(is_calendar(part) for part in reports.leaves(message.root))
    )


def classify(raw: bytes, message: mime.Message | None = None, *, null_sender: bool) -> Classification:
    """What kind of message it is. `null_sender`: it came with MAIL FROM:<>. Never raises on content; linear time.

    `message` is `mime.parse(raw)`, if it is at hand; parsed by its header alone, it is classified as far as that goes.
    """
    message = mime.parse(raw) if message is None else message
    author = informal.author_local(message)
    signs = set(_header_signs(message, author, null_sender))
    hop = _hop(message)
    if hop is not None and hop >= 1:
        signs.add(Sign.POSTROOM_AGENT)
    if hop is not None and hop >= MAX_HOP:
        signs.add(Sign.HOP_LIMIT)
    delivery, receipt, feedback, invitation = None, None, None, None
    if _may_be_bounce(message, author, null_sender):
        delivery, sign = _delivery_report(raw, message, author, null_sender)
        if sign is not None:
            signs.add(sign)
    root = message.root
    if root.content_type == "multipart/report":
        receipt, feedback = parse_mdn(raw, message), parse_arf(raw, message)
        if receipt is not None or reports.is_report(root, "disposition-notification"):
            signs.add(Sign.DISPOSITION_REPORT)
        if feedback is not None or reports.is_report(root, "feedback-report"):
            signs.add(Sign.FEEDBACK_REPORT)
        signs.add(Sign.REPORT)
    if any(is_calendar(part) for part in reports.leaves(root)):
        invitation = find_invitation(raw, message)
        signs.add(Sign.CALENDAR_PART)
    kinds = {_KIND_OF.get(sign, Kind.AUTOMATED) for sign in signs}
    return Classification(
        kind=next((one for one in _ORDER if one in kinds), Kind.NORMAL),
        evidence=tuple(sign for sign in Sign if sign in signs) if signs else (),
        hop=hop,
        dsn=delivery,
        mdn=receipt,
        feedback=feedback,
        calendar=invitation,
    )


def _hop(message: mime.Message) -> int | None:
    values = message.headers.get_all("x-postroom-hop")
    return hops(values, 0).hop if values else None


def _header_signs(message: mime.Message, author: str, null_sender: bool) -> Iterator[Sign]:
    headers = message.headers
    for name, sign in _PRESENT:
        if name in headers:
            yield sign
    for value in headers.get_all("precedence"):
        if (found := _PRECEDENCE.get(_token(value).replace("-", "_"))) is not None:
            yield found
    # RFC 3834 §5: a keyword, after which parameters and comments may follow.
    if any(_token(value) not in ("", "no") for value in headers.get_all("auto-submitted")):
        yield Sign.AUTO_SUBMITTED
    for value in headers.get_all("x-auto-response-suppress"):
        if {"all", "oof"} & {item.strip() for item in value.lower().split(",")}:
            yield Sign.AUTO_RESPONSE_SUPPRESS
    if (message.subject or "")[:_MAX_SUBJECT].lstrip().lower().startswith(_SUBJECTS):
        yield Sign.SUBJECT
    if author in _NO_REPLY:
        yield Sign.FROM_LOCAL_PART
    if null_sender:
        yield Sign.NULL_SENDER


def _token(value: str) -> str:
    return parse_token(value) or ""


def _may_be_bounce(message: mime.Message, author: str, null_sender: bool) -> bool:
    return null_sender or author in informal.DAEMONS or message.root.content_type == "multipart/report"


def _delivery_report(
    raw: bytes, message: mime.Message, author: str, null_sender: bool
) -> tuple[DeliveryReport | None, Sign | None]:
    """Row 1. What is no report in form counts by its text alone only when it came as bounces must, with the null sender
    (RFC 3464 §2, RFC 5321 §4.5.5): whoever forwards a bounce has not bounced."""
    root = message.root
    declared = reports.is_report(root, "delivery-status")
    has_daemon = author in informal.DAEMONS
    shaped = has_daemon and informal.has_bounce_subject(message) and informal.has_returned_part(message)
    found = parse_dsn(raw, message)
    is_standard = found is not None and found.evidence is Evidence.STANDARD
    if declared or (is_standard and (null_sender or has_daemon or root.content_type == "multipart/report")):
        return found or _returned_only(raw, message), Sign.DELIVERY_STATUS_REPORT
    if shaped:
        return found or _returned_only(raw, message), Sign.BOUNCE_SHAPE
    if found is not None and null_sender:
        return found, Sign.BOUNCE_TEXT
    return None, None


def _returned_only(raw: bytes, message: mime.Message) -> DeliveryReport:
    """A bounce that names nobody still says which message it is about."""
    came_back = reports.returned(raw, list(reports.leaves(message.root)), None)
    return DeliveryReport(
        reporting_mta=None,
        original_envelope_id=None,
        original_message_id=None if came_back is None else came_back.message_id,
        original_from=None if came_back is None else came_back.author,
        recipients=(),
        evidence=Evidence.HEURISTIC,
    )


def _known(found: object, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(found, name)) not in (None, (), "")}


def _receipt(found: Receipt) -> dict[str, Any]:
    return _known(
        found,
        "original_message_id",
        "final_recipient",
        "original_recipient",
        "disposition",
        "modifiers",
        "automatic",
        "reporting_ua",
    )


def _feedback(found: Feedback) -> dict[str, Any]:
    made = {"type": found.kind} | _known(
        found,
        "user_agent",
        "reporting_mta",
        "source_ip",
        "arrival_date",
        "incidents",
        "original_mail_from",
        "original_envelope_id",
        "original_message_id",
        "original_from",
        "original_to",
        "reported_domains",
    )
    if found.original_recipients:
        made["original_recipients"] = found.original_recipients[:10]
    if found.auth_failure is not None:
        made["auth_failure"] = _known(
            found.auth_failure, "kind", "delivery_result", "identity_alignment", "dkim_domain", "dkim_selector"
        )
    return made


def _report(found: DeliveryReport, room: int) -> dict[str, Any]:
    """The report in at most `room` octets of JSON: diagnostics become shorter first, then recipients fewer."""
    made: dict[str, Any] = {
        "reporting_mta": found.reporting_mta,
        "original_envelope_id": found.original_envelope_id,
        "original_message_id": found.original_message_id,
        "original_from": found.original_from,
        "evidence": found.evidence.value,
        "class": None if found.report_class is None else found.report_class.value,
    }
    room -= len(orjson.dumps(made)) + 16
    for limit in _SHORTER_DIAGNOSTICS:
        entries = [_recipient(item, limit) for item in found.recipients]
        sizes = [len(orjson.dumps(entry)) + 1 for entry in entries]
        if sum(sizes) <= room:
            break
    while sum(sizes) > room:
        entries.pop()
        sizes.pop()
    made["recipients"] = entries
    return made


def _recipient(item: ReportedRecipient, limit: int) -> dict[str, Any]:
    made = {
        "final_recipient": item.final_recipient,
        "action": None if item.action is None else item.action.value,
        "status": item.status,
        "diagnostic_code": (item.diagnostic_code or "")[:limit] or None,
    }
    if item.original_recipient not in (None, item.final_recipient):
        made["original_recipient"] = item.original_recipient  # it was passed on before it failed
    return made
