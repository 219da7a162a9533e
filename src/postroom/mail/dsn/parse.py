"""Reading delivery reports, with tolerance for how they are written in the wild (RFC 3464; inbound §16, FR-DLV-5)."""

import re
from typing import Final

from postroom.mail import mime, reports, transfer
from postroom.mail.dsn import informal
from postroom.mail.dsn.model import Action
from postroom.mail.dsn.report import (
    MAX_RECIPIENTS,
    DeliveryReport,
    Evidence,
    ReportedRecipient,
    status_in,
)
from postroom.mail.reports import MAX_PART_BYTES, cut, typed_address, typed_text

_STATUS_TYPES: Final = frozenset(("message/delivery-status", "message/global-delivery-status"))
_LOOKS_LIKE_STATUS: Final = re.compile(rb"(?mi)^(?:final|original)-recipient[ \t]*+:")
_WORD: Final = re.compile(r"[a-z]+")

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


def parse_dsn(raw: bytes, message: mime.Message | None = None) -> DeliveryReport | None:
    """The report that a message is, with its first 100 recipients; None when it is none. Never raises on content.

    `message` is `mime.parse(raw)`, if it is at hand. Reports inside attached messages do not count. Besides RFC 3464 it
    reads status parts that are labelled as text, and bounces in no standard form (`informal`): of those the report says
    that its evidence is heuristic, and whoever acts on it looks at the envelope first.
    """
    message = mime.parse(raw) if message is None else message
    parts = list(reports.leaves(message.root))
    status = _status_part(raw, message.root, parts)
    if status is None:
        return informal.read(raw, message, parts)
    general, groups = _groups(reports.part_text(raw, status))
    recipients = [found for group in groups if (found := _recipient(group)) is not None]
    came_back = reports.returned(raw, parts, status)
    return DeliveryReport(
        reporting_mta=typed_text(general.get("reporting-mta")),
        original_envelope_id=cut(general.get("original-envelope-id")),
        original_message_id=None if came_back is None else came_back.message_id,
        original_from=None if came_back is None else came_back.author,
        recipients=tuple(recipients[:MAX_RECIPIENTS]),
        evidence=Evidence.STANDARD,
    )


def _status_part(raw: bytes, root: mime.Part, parts: list[mime.Part]) -> mime.Part | None:
    for part in parts:
        if part.content_type in _STATUS_TYPES:
            return part
    if root.content_type != "multipart/report":
        return None
    for part in parts:
        if part.type not in ("text", "application") or part.content_type in reports.HEADER_TYPES:
            continue
        if _LOOKS_LIKE_STATUS.search(transfer.decoded(raw, part, MAX_PART_BYTES)):
            return part
    return None


def _groups(text: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Fields about the message, and those about each recipient.

    Groups are parted by blank lines (RFC 3464 §2.1), which some servers leave out and others put in between; so a
    group begins with the field that names a recipient, unless the group in hand can still take it.
    """
    general: dict[str, str] = {}
    groups: list[dict[str, str]] = []
    for after_blank, name, value in reports.read_fields(text):
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


def _recipient(group: dict[str, str]) -> ReportedRecipient | None:
    original = typed_address(group.get("original-recipient"))
    final = typed_address(group.get("final-recipient")) or original
    if final is None:
        return None
    diagnostic = typed_text(group.get("diagnostic-code"))
    status = status_in(group.get("status"), diagnostic)
    word = _WORD.search(group.get("action", "").lower())
    action = _ACTIONS.get(word[0]) if word else None
    if action is None and status is not None:
        action = _ACTION_OF_CLASS[status[0]]
    return ReportedRecipient(final, action, status, diagnostic, original, typed_text(group.get("remote-mta")))
