"""What a delivery report from outside says of deliveries of ours: pure (outbound §13.3, §13.5, §16; RFC 3464; G6, D11).

What came back to a return path that we signed is trusted; what came to an address is where `vouched` says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from postroom.mail.dsn import Action, DeliveryReport, Notify, ReportedRecipient
from postroom.mailauth.organisational import same_organisation
from postroom.outbound import rules
from postroom.outbound.models import Status
from postroom.outbound.rules import Decided
from postroom.smtp.address import AddressSyntaxError, parse_path

MAX_RECIPIENTS: Final = 100
"""Entries of a report that are looked at (inbound §27)."""

_CODE: Final = re.compile(r"([245]\d\d)(?=[ -]|\Z)")
_TAKEN: Final = frozenset({Action.DELIVERED, Action.RELAYED, Action.EXPANDED})
_WANTED_BY: Final = {Action.FAILED: Notify.FAILURE, Action.DELAYED: Notify.DELAY}


@dataclass(frozen=True, slots=True)
class Reported:
    """A delivery as it stands when a report on it comes. `sent`: its message went out, or is just going out."""

    status: Status
    bounce: str | None
    sent: bool


def attribute(report: DeliveryReport, recipients: Mapping[int, str]) -> dict[int, ReportedRecipient]:
    """Which of the deliveries, by id, of one message at one destination the report is about.

    By the address that we sent to, which is the original recipient where the report names one, the final one else. Of
    only one delivery the report must be, whatever became of the address on the way. What names others is nothing here,
    and of several entries for one the first holds.
    """
    named = _named(report.recipients, {address: key for key, address in recipients.items()})
    if len(recipients) == 1 and report.recipients:
        (only,) = recipients
        worst = next((one for one in report.recipients if one.action is Action.FAILED), report.recipients[0])
        return {only: named.get(only, worst)}
    return named


def vouched(
    report: DeliveryReport, recipients: Mapping[int, str], relayed: Collection[int], author: str, relay: str
) -> dict[int, ReportedRecipient]:
    """Which of the deliveries of a message a report may speak of that came to an address, and so proves nothing by it
    (D11, N19, inbound §27.2): those whose recipient is of the organisation that wrote it, whose domain is `author`; and
    those that went by the relay (`relayed`), if it is the relay's.

    Here the address must be named: of what became of it on the way, nobody has proof.
    """
    is_relays = same_organisation(relay, author)
    named = _named(report.recipients[:MAX_RECIPIENTS], {address: key for key, address in recipients.items()})
    return {
        key: entry
        for key, entry in named.items()
        if (is_relays and key in relayed) or same_organisation(recipients[key].rpartition("@")[2], author)
    }


def _named(entries: Sequence[ReportedRecipient], ids: Mapping[str, int]) -> dict[int, ReportedRecipient]:
    found: dict[int, ReportedRecipient] = {}
    for entry in entries:
        keys = (ids.get(address) for address in _addresses(entry))
        key = next((key for key in keys if key is not None), None)
        if key is not None:
            found.setdefault(key, entry)
    return found


def _addresses(entry: ReportedRecipient) -> Iterable[str]:
    """The addresses of an entry as deliveries have them, the original one first."""
    for text in (entry.original_recipient, entry.final_recipient):
        if text is not None:
            try:
                path = parse_path(f"<{text}>".encode())
            except (AddressSyntaxError, UnicodeEncodeError):
                continue
            if path.address is not None and not path.parameters:
                yield path.address.key
                yield str(path.address).lower()


def decide(entry: ReportedRecipient, standing: Reported) -> Decided | None:
    """What becomes of a delivery by an entry of a report; None when nothing does.

    The same report again decides nothing: what has bounced only bounces again, once, for good where it was for now.
    A delay is somebody else's, who has the message and tries: it says that an uncertain one was taken, and leaves all
    else as it is, for `deferred` means here that we try again. What never went out nobody can report on: it is about an
    earlier time, before an operator had it sent again.
    """
    decided = _decided(entry, standing.status)
    if decided is None or not standing.sent or not rules.may_become(standing.status, decided.status):
        return None
    if standing.status is Status.BOUNCED and (standing.bounce, decided.bounce) != ("soft", "hard"):
        return None
    return decided


def _decided(entry: ReportedRecipient, status: Status) -> Decided | None:
    text = rules.storable(entry.diagnostic_code) if entry.diagnostic_code else None
    if entry.action is Action.FAILED:
        code = _CODE.match(text or "")
        bounce = "hard" if (entry.status or "").startswith("5.") else "soft"
        return Decided(
            Status.BOUNCED,
            code=int(code[1]) if code is not None and code[1][0] != "2" else None,
            enhanced=entry.status,
            text=text,
            bounce=bounce,
            counts=False,
        )
    if entry.action in _TAKEN:
        return Decided(Status.DELIVERED, enhanced=entry.status, text=text, counts=False)
    if entry.action is Action.DELAYED and status is Status.UNCERTAIN:
        return Decided(Status.SUBMITTED, enhanced=entry.status, text=text, counts=False)
    return None


def is_wanted(entry: ReportedRecipient, notify: Sequence[str] | None) -> bool:
    """Whether the sender's NOTIFY lets this be told (RFC 3461 §4.1), of which a host without DSN knew nothing."""
    if notify is None or entry.action is None:
        return True
    return _WANTED_BY.get(entry.action, Notify.SUCCESS).value in notify
