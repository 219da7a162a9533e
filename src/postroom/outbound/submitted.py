"""Reading what was submitted: pure, so that a large message is read in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from postroom.mail import mime
from postroom.mail.address import Address
from postroom.mail.compose.downgrade import DowngradeError, downgrade_to_7bit
from postroom.mail.submission import SubmissionError, SubmissionProblem, Submitted, prepare
from postroom.mailbox.models import Mailpoint, RecipientKind
from postroom.outbound.models import RecipientField
from postroom.smtp import replies
from postroom.smtp.address import AddressSyntaxError, domain_to_ascii
from postroom.smtp.replies import Reply

MAX_FIELD_ADDRESSES: Final = 1_000
"""Addresses read of each of To, Cc and Bcc; who stands behind them is a recipient of the envelope."""
MAX_BLIND: Final = 200
MAX_ADDRESS: Final = 320
MAX_NAME: Final = 256

_FIELDS: Final = (("to", RecipientField.TO), ("cc", RecipientField.CC), ("bcc", RecipientField.BCC))


class Unfit(StrEnum):
    """Why a message cannot be taken, beside what `SubmissionProblem` names."""

    TOO_DEEP = "too_deep"
    """More parts, or deeper ones, than mail is read to (edge row B2)."""
    NOT_CONVERTIBLE = "not_convertible"
    """Binary content without a form that every server takes (RFC 3030 §3)."""


_MALFORMED: Final = Reply(554, "5.6.0", "The header of the message is malformed")
REPLIES: Final[Mapping[StrEnum, Reply]] = {
    SubmissionProblem.BARE_LINE_BREAK: replies.BARE_LINE_ENDING,
    SubmissionProblem.NO_AUTHOR: Reply(554, "5.6.0", "The message needs one From field with an address"),
    SubmissionProblem.SEVERAL_FROM: Reply(554, "5.6.0", "The message may have one From and one Sender field"),
    SubmissionProblem.TOO_MANY_AUTHORS: Reply(554, "5.6.0", "The message has too many authors"),
    SubmissionProblem.AMBIGUOUS_AUTHOR: Reply(554, "5.6.0", "From and Sender must be plain lists of addresses"),
    SubmissionProblem.HEADER_TOO_LARGE: Reply(552, "5.3.4", "The header of the message is too large"),
    SubmissionProblem.MALFORMED_HEADER: _MALFORMED,
    Unfit.TOO_DEEP: Reply(552, "5.3.4", "The message has too many parts, or too deep ones"),
    Unfit.NOT_CONVERTIBLE: Reply(554, "5.6.3", "Conversion required but not supported"),
}
"""What the client is told (A2, A3, A7)."""


@dataclass(frozen=True, slots=True)
class Read:
    """A submitted message: mended, and what its header says of those it concerns, as keys (see `key_of`)."""

    submitted: Submitted
    authors: tuple[str | None, ...]
    """Everybody of From and Sender, and of their Resent- forms; None for an address that cannot be one of ours."""
    author_domain: str
    """Of the first author: the domain that signs."""
    fields: Mapping[str, RecipientField]
    blind: tuple[tuple[RecipientKind, Mailpoint], ...]
    in_reply_to: str | None
    auto_replied: bool
    """Whether it says that a machine answers (RFC 3834 §5)."""
    eight_bit: bool
    utf8_header: bool
    """Whether the header holds octets beyond ASCII: with SMTPUTF8 they are characters (RFC 6532)."""


def read(raw: bytes, *, date: datetime, message_id: str, binary: bool) -> Read | StrEnum:
    """Read a message, or say what of `REPLIES` is wrong with it. `date` and `message_id` are added where they are
    missing; `binary` content becomes such that every server takes it, before anything is signed."""
    if binary:
        try:
            raw = downgrade_to_7bit(raw)
        except DowngradeError:
            return Unfit.NOT_CONVERTIBLE
    try:
        submitted = prepare(raw, date=date, message_id=message_id)
    except SubmissionError as error:
        return error.problem
    message = mime.parse(submitted.sent_copy, max_depth=mime.MAX_DEPTH + 1, max_parts=mime.MAX_PARTS + 1)
    if _is_over(message.root):
        return Unfit.TOO_DEEP
    fields: dict[str, RecipientField] = {}
    blind: list[tuple[RecipientKind, Mailpoint]] = []
    for name, field in _FIELDS:
        for address in message.addresses(name, MAX_FIELD_ADDRESSES)[0]:
            key = key_of(address)
            if key is not None:
                fields.setdefault(key, field)
            if field is RecipientField.BCC and len(blind) < MAX_BLIND:
                blind.append((RecipientKind.BCC, _point(address)))
    claimed = (*submitted.authors, *submitted.senders)
    keys = tuple(key_of(address) for address in claimed)
    return Read(
        submitted=submitted,
        authors=keys,
        author_domain=(keys[0] or "").rpartition("@")[2],
        fields=fields,
        blind=tuple(blind),
        in_reply_to=next(iter(message.in_reply_to), None),
        auto_replied=any(
            value.partition(";")[0].partition("(")[0].strip().lower() == "auto-replied"
            for value in message.headers.get_all("Auto-Submitted")
        ),
        eight_bit=not submitted.wire.isascii(),
        utf8_header=not submitted.sent_copy[: message.root.body_start].isascii(),
    )


def key_of(address: Address) -> str | None:
    """The form in which addresses are compared: lower case, the domain in A-labels; None for a domain that is none."""
    try:
        return f"{address.local.lower()}@{domain_to_ascii(address.domain.removesuffix('.'))}"
    except AddressSyntaxError:
        return None


def _is_over(root: mime.Part) -> bool:
    """Whether a part stands deeper than mail is read, or there are more of them (A7)."""
    pending = [(root, 1)]
    for part, depth in pending:
        if depth > mime.MAX_DEPTH or len(pending) > mime.MAX_PARTS:
            return True
        pending += [(child, depth + 1) for child in part.children]
    return False


def _point(address: Address) -> Mailpoint:
    return Mailpoint(_clean(address.address.lower())[:MAX_ADDRESS], _clean(address.name)[:MAX_NAME])


def _clean(text: str) -> str:
    return text if text.isprintable() else "".join(char for char in text if char.isprintable())
