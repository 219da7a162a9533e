"""What a sender is told by mail about deliveries: a report for programs and people, or a note that nobody knows
(mail-server C7; RFC 3464). Pure: the same facts make the same octets, by which a second copy is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from postroom.mail.address import Address
from postroom.mail.compose.build import compose
from postroom.mail.compose.draft import AutoSubmitted, Draft
from postroom.mail.dsn import Action, RecipientReport, Report, Return, compose_dsn, xtext_encode

UNCERTAIN: Final = "uncertain"
"""The action of a note about an unknown outcome; the others are those of RFC 3464."""
DAEMON: Final = "MAILER-DAEMON"
MAX_READ: Final = 128 * 1024
"""Octets of the original that are needed: of more than half of that only the header comes back."""

_FALLBACK: Final = {Action.FAILED: "5.0.0", Action.DELAYED: "4.0.0"}


@dataclass(frozen=True, slots=True)
class Told:
    """One recipient of whom there is something to tell. `text` is the peer's reply, or our own words without a code."""

    recipient: str
    enhanced: str | None
    code: int | None
    text: str | None
    remote_mx: str | None
    orcpt: str | None
    last_attempt: datetime | None
    tried_until: datetime | None = None
    """Of what still waits: when the last attempt is due."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Everything a notice is made of. `id` becomes its Message-ID at `hostname`; `about` is the original's."""

    id: str
    action: str
    hostname: str
    to: str
    at: datetime
    arrival: datetime
    told: tuple[Told, ...]
    subject: str
    about: str | None = None
    envid: str | None = None
    ret: str | None = None
    smtputf8: bool = False


def write(notice: Notice, original: bytes) -> bytes:
    """The notice. `original` is the message that was sent, or at least its first `MAX_READ` octets. Raises
    ComposeError.
    """
    daemon = Address("Mail Delivery System", DAEMON, notice.hostname)
    to, message_id = _address(notice.to), f"{notice.id}@{notice.hostname}"
    if notice.action == UNCERTAIN:
        return compose(_note(notice, daemon, to, message_id), notice.id).to_bytes()
    action = Action(notice.action)
    report = Report(
        reporting_mta=notice.hostname,
        recipients=tuple(_report(one, action) for one in notice.told),
        arrival=notice.arrival,
        envid=None if notice.envid is None else xtext_encode(notice.envid),
    )
    composed = compose_dsn(
        report,
        original,
        from_=daemon,
        to=to,
        date=notice.at,
        message_id=message_id,
        boundary=notice.id,
        ret=Return.HDRS if notice.ret == Return.HDRS else Return.FULL,
        smtputf8=notice.smtputf8,
    )
    return composed.to_bytes()


def _report(one: Told, action: Action) -> RecipientReport:
    kind, _, original = (one.orcpt or "").partition(";")
    diagnostic = one.text
    if one.text and one.code is not None and not one.text.startswith(str(one.code)):
        diagnostic = f"{one.code} {one.text}"
    return RecipientReport(
        recipient=_address(one.recipient),
        action=action,
        status=one.enhanced or _FALLBACK.get(action, "2.0.0"),
        diagnostic=diagnostic,
        remote_mta=one.remote_mx,
        orcpt=f"{kind};{xtext_encode(original)}" if original else None,
        last_attempt=one.last_attempt,
        will_retry_until=one.tried_until,
    )


def _note(notice: Notice, daemon: Address, to: Address, message_id: str) -> Draft:
    about = (notice.about,) if notice.about is not None else ()
    return Draft(
        from_=daemon,
        date=notice.at,
        message_id=message_id,
        to=(to,),
        subject=f"Unknown outcome: {notice.subject or '(no subject)'}"[:200].rstrip(),
        text=_words(notice.hostname, [one.recipient for one in notice.told]),
        in_reply_to=notice.about,
        references=about,
        auto_submitted=AutoSubmitted.REPLIED,
    )


def _words(hostname: str, recipients: Sequence[str]) -> str:
    names = "\n".join(f"    {name}" for name in recipients)
    return (
        f"This is the mail server {hostname}.\n\n"
        "The connection was lost just after your message had been handed over, so it is not known whether it was "
        f"delivered to:\n\n{names}\n\n"
        "It is not sent again by itself, since it may have arrived. Ask the recipient, and send it again if it has not."
    )


def _address(text: str) -> Address:
    local, _, domain = text.rpartition("@")
    if local.startswith('"') and local.endswith('"') and len(local) > 1:
        local = local[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return Address("", local, domain)
