"""What is worth knowing of a message, as a pure function of its bytes (inbound.md §10, §13; edge rows B2–B5, B13)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from postroom.inbound import packed
from postroom.mail import automation, body, imap_data, mime
from postroom.mail.address import Address
from postroom.mail.content import EMPTY, Reading, TooMuchToRead, read
from postroom.mail.impersonation import display_name_spoof, reply_to_mismatch
from postroom.mail.invisible import TOLERATED_ZERO_WIDTH, Stripped, strip_invisible, visible
from postroom.mail.links import is_deceptive
from postroom.mail.protection import protection
from postroom.mail.safety import UNKNOWN, Risk, inspect
from postroom.mail.subject import clean_subject, normalise_subject
from postroom.mail.tnef import is_tnef
from postroom.mail.transfer import decoded
from postroom.mail.tree import pack_tree
from postroom.mail.verification import find_verification
from postroom.mailauth.organisational import organisational_domain
from postroom.mailbox.folding import fold
from postroom.mailbox.models import Content, Mailpoint, PartInfo, RecipientKind, Verification

MAX_NAME: Final = 256
MAX_SUBJECT: Final = 998
MAX_RECIPIENTS: Final = 200
"""Addresses kept of each of To and Cc; of Reply-To ten."""
MAX_REPLY_TO: Final = 10
MAX_ATTACHMENTS: Final = 500
HEAD_BYTES: Final = mime.MAX_HEADER_BYTES
"""How much is read of a message that is described by its headers alone."""
MAX_ADDRESS: Final = 320

QUICK_BYTES: Final = 32 * 1024
QUICK_HEADER_BYTES: Final = 8 * 1024
QUICK_SPECIALS: Final = 600
QUICK_PARTS: Final = 50
QUICK_EFFORT: Final = 400
"""What of each a message may have that is described while others wait: two milliseconds' worth, measured apart. Effort
is in tags of HTML."""

_PIECE: Final = 1024 * 1024
_NULL_SENDER: Final = b"Return-Path: <>"
"""How our own trace lines begin of mail from nobody, that wants no answer."""
_CONTAINERS: Final = (b"PK", b"\xd0\xcf\x11\xe0", b"\x1f\x8b")
"""Beginnings of files whose inspection may take longer than two milliseconds, however small they are."""
_SPECIALS: Final = b'()<>@,;:\\"'
_NESTING: Final = re.compile(rb"822|global|digest", re.IGNORECASE)

_OLDEST: Final = timedelta(days=3652)
_NEWEST: Final = timedelta(days=1)


def looks_quick(original: bytes) -> bool:
    """Whether `describe_quickly` is worth trying: a few looks at the bytes, which take microseconds.

    What makes a header slow to read is its length and the characters that give address lists their structure.
    """
    if len(original) > QUICK_BYTES:
        return False
    end = original.find(b"\n\r\n") + 1 or original.find(b"\n\n") + 1 or len(original)
    if end > QUICK_HEADER_BYTES or _specials(original[:end]) > QUICK_SPECIALS:
        return False
    # The header of a message within the message is read, too.
    return len(original) - end < QUICK_SPECIALS or (
        _specials(original) <= 2 * QUICK_SPECIALS or _NESTING.search(original) is None
    )


def _specials(text: bytes) -> int:
    return len(text) - len(text.translate(None, _SPECIALS))


def describe_quickly(
    prefix: bytes, original: bytes, received_at: datetime, *, with_codes: bool = True
) -> Content | None:
    """`describe`, if that takes about two milliseconds at most; else None. For mail that `looks_quick`."""
    full = prefix + original
    message = mime.parse(full, trace=len(prefix), max_parts=QUICK_PARTS)
    if message.degraded and _has_parts(message.root, QUICK_PARTS):
        return None
    try:
        return _content(
            full, len(prefix), message, received_at, headers_only=False, with_codes=with_codes, effort=QUICK_EFFORT
        )
    except TooMuchToRead:
        return None


def _has_parts(root: mime.Part, number: int) -> bool:
    """Whether there are at least so many parts in all."""
    pending = [root]
    for part in pending:
        pending += part.children
    return len(pending) >= number


def describe(
    prefix: bytes, original: bytes, received_at: datetime, *, headers_only: bool = False, with_codes: bool = True
) -> Content:
    """Describe the message `prefix + original`, where `prefix` holds our own trace lines.

    Never raises on the content of a message. `headers_only` leaves out what needs the body's structure: for mail that
    could not be parsed in time (B2). `with_codes` looks for what it would confirm, which counts only for mail that is
    known to come from whom it says.
    """
    full = prefix + original
    message = _head_of(full, len(prefix)) if headers_only else mime.parse(full, trace=len(prefix))
    return _content(full, len(prefix), message, received_at, headers_only=headers_only, with_codes=with_codes)


def _head_of(full: bytes, trace: int) -> mime.Message:
    """The message as one part: only the beginning is read, however long the header is."""
    message = mime.parse(full[:HEAD_BYTES], trace=trace, max_depth=1, max_parts=1)
    root = message.root
    root.body_end = len(full)
    if root.lines is not None:
        # In pieces, between which other threads may run.
        root.lines = sum(full.count(b"\n", at, at + _PIECE) for at in range(root.body_start, len(full), _PIECE))
    return message


def _content(
    full: bytes,
    prefix_len: int,
    message: mime.Message,
    received_at: datetime,
    *,
    headers_only: bool,
    with_codes: bool,
    effort: int | None = None,
) -> Content:
    """The description of a parsed message. Raises `TooMuchToRead` if there is a limit to that."""
    facts: list[str] = []
    degraded = message.degraded or headers_only

    raw_sha256 = hashlib.sha256(memoryview(full)[prefix_len:])
    rfc_message_id = message.message_id
    if rfc_message_id is None:
        rfc_message_id = f"{raw_sha256.hexdigest()}@synthetic.invalid"
        facts.append("message_id_synthetic")

    senders, alone = message.addresses("from", 1)
    if not senders or not alone:
        degraded = True
    recipients, cut = _recipients(message)
    degraded |= cut
    references, complete = message.kept_references()
    degraded |= not complete
    in_reply_to = message.in_reply_to
    raw_subject = message.subject
    shown = strip_invisible(raw_subject or "")
    subject = clean_subject(shown.text)[:MAX_SUBJECT]
    hidden = _hides(shown) or bool(senders and _hides(strip_invisible(senders[0].name)))

    found = EMPTY
    attachments: tuple[PartInfo, ...] = ()
    null_sender = prefix_len > 0 and full.startswith(_NULL_SENDER)
    if not headers_only:
        if effort is not None and automation.reads_content(message, null_sender=null_sender):
            raise TooMuchToRead
        found = read(full, message, effort=effort, serve=False)  # HTML is made when somebody asks for it
        degraded |= not found.clean
        attachments = tuple(islice(_attachments(full, message, quick=effort is not None), MAX_ATTACHMENTS))
    kind = automation.classify(full, message, null_sender=null_sender)
    facts += _facts(found, hidden)
    sender = _point(senders[0]) if senders else None
    if sender is not None:
        facts += _posing(sender, recipients)
    if degraded:
        facts.append("parse_degraded")
    return Content(
        rfc_message_id=rfc_message_id,
        in_reply_to=in_reply_to[0] if in_reply_to else None,
        reference_ids=tuple(references),
        raw_sha256=raw_sha256.digest(),
        body_sha256=hashlib.sha256(memoryview(full)[message.root.body_start :]).digest(),
        raw_size=len(full),
        prefix_len=prefix_len,
        sender=sender,
        recipients=recipients,
        subject=subject,
        thread_subject=normalise_subject(shown.text),
        subject_fold=fold(subject),
        snippet=found.snippet,
        text=found.text,
        html=found.html,
        extracted_text=found.extracted_text,
        sent_at=_sent_at(message.date, received_at),
        kind=kind.kind.value,
        verdict="unverified",
        facts=tuple(facts),
        parser_version=mime.PARSER_VERSION,
        envelope=imap_data.envelope(message),
        body_structure=imap_data.bodystructure(message.root),
        part_tree=pack_tree(message.root),
        attachments=attachments,
        auth=_signature(full, message),
        automated=_evidence(kind),
        verifications=tuple(_verifications(subject, found, senders)) if with_codes else (),
    )


def _evidence(kind: automation.Classification) -> Mapping[str, Any] | None:
    told = kind.to_json()
    return told if told["evidence"] or len(told) > 1 else None


def _signature(full: bytes, message: mime.Message) -> Mapping[str, Any] | None:
    """What is known before anybody was asked: that there is a signature of another kind, which nobody verifies (B9)."""
    found = protection(full, message).signature
    return None if found is None else {"signature": {"type": found.type.value, "status": found.status}}


def _verifications(subject: str, found: Reading, senders: Sequence[Address]) -> Iterable[Verification]:
    """What the message would confirm, if it is from whom it says. That is not known yet."""
    domain = organisational_domain(senders[0].domain) if senders and senders[0].domain else None
    handed = None if domain is None else find_verification(subject, found.extracted_text, found.links)
    if handed is not None and domain is not None:
        for kind, value in (("code", handed.code), ("link", handed.link)):
            if value is not None:
                yield Verification(kind, value, domain)


def _attachments(full: bytes, message: mime.Message, *, quick: bool) -> Iterable[PartInfo]:
    """Attachments with what they are and what makes them dangerous. Raises `TooMuchToRead` where that takes long and
    there is no time."""
    texts = body.named_texts(message, full)
    for one in (*body.attachments(message, full), *texts)[:MAX_ATTACHMENTS]:
        part = mime.find_part(message.root, one.path)
        data = b"" if part is None else decoded(full, part)
        holds_more = is_tnef(data)
        if quick and (holds_more or data.startswith(_CONTAINERS)):
            raise TooMuchToRead
        inspected = inspect(data, one.content_type, one.filename)
        sniffed = None if inspected.sniffed_type == UNKNOWN else inspected.sniffed_type
        risk = inspected.risk or _risk_of_other_names(data, one, part)
        if risk is None and part is not None and packed.holds_message(part):
            if quick and (part.nested is None or body.body_parts(part.nested).attachments):
                raise TooMuchToRead
            risk = packed.worst_within(full, part)
        if risk is None and one in texts:
            continue  # it is the text of the message, and no more
        found = replace(_part_info(one), sniffed_type=sniffed, risk=None if risk is None else risk.value)
        if holds_more:
            yield from packed.opened(found, data)
        else:
            yield found


def _risk_of_other_names(data: bytes, one: body.AttachmentInfo, part: mime.Part | None) -> Risk | None:
    """A part may give itself two names, of which some programs go by the other."""
    others = () if part is None else (name for name in body.filenames(part) if name != one.filename)
    return next((risk for name in others if (risk := inspect(data, one.content_type, name).risk)), None)


def _facts(found: Reading, hidden: bool) -> Iterable[str]:
    if found.truncated:
        yield "body_truncated"
    if found.encrypted:
        yield "encrypted"
    if found.hidden or hidden:
        yield "hidden_text"
    if any(map(is_deceptive, found.links)):
        yield "deceptive_link"


def _posing(sender: Mailpoint, recipients: Iterable[tuple[RecipientKind, Mailpoint]]) -> Iterable[str]:
    """What needs no look-up of whom the message would pass for (inbound §18, D2, D3)."""
    if display_name_spoof(sender.name, sender.address):
        yield "display_name_spoof"
    answers = [point.address for kind, point in recipients if kind is RecipientKind.REPLY_TO]
    if answers and reply_to_mismatch(sender.address, answers):
        yield "reply_to_mismatch"


def _hides(shown: Stripped) -> bool:
    return shown.marked or shown.zero_width > TOLERATED_ZERO_WIDTH


def _recipients(message: mime.Message) -> tuple[tuple[tuple[RecipientKind, Mailpoint], ...], bool]:
    kept: list[tuple[RecipientKind, Mailpoint]] = []
    cut = False
    for kind, name, limit in (
        (RecipientKind.TO, "to", MAX_RECIPIENTS),
        (RecipientKind.CC, "cc", MAX_RECIPIENTS),
        (RecipientKind.REPLY_TO, "reply-to", MAX_REPLY_TO),
    ):
        found, complete = message.addresses(name, limit)
        cut |= not complete
        kept += ((kind, _point(address)) for address in found)
    return tuple(kept), cut


def _point(address: Address) -> Mailpoint:
    return Mailpoint(_clean(address.address.lower())[:MAX_ADDRESS], _clean(visible(address.name))[:MAX_NAME])


def _clean(text: str) -> str:
    """Without control characters; everything printable passes untouched and fast."""
    return text if text.isprintable() else "".join(_printable(text))


def _printable(text: str) -> Iterable[str]:
    return (char for char in text if char.isprintable())


def _sent_at(date: datetime | None, received_at: datetime) -> datetime:
    """The Date field, if it can be true (inbound.md §10); else when we received it."""
    if date is None or not received_at - _OLDEST <= date <= received_at + _NEWEST:
        return received_at
    return date


def _part_info(found: body.AttachmentInfo) -> PartInfo:
    return PartInfo(
        part_path=".".join(map(str, found.path)),
        filename=found.filename,
        content_type=found.content_type,
        size=found.size,
        disposition=found.disposition if found.disposition in ("attachment", "inline") else None,
        content_id=_clean(found.content_id) if found.content_id else None,
    )
