"""What a delivery report says, to whom one may be sent, and the encodings of its parameters (RFC 3461, 3464, 6533)."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from postroom.mail.address import Address
from postroom.mail.reports import unicode_decode, xtext_decode

MAX_DIAGNOSTIC_CHARS: Final = 512
MAX_PARAMETER_CHARS: Final = 500
"""Of ORCPT (RFC 3461 §4.2); ENVID has 100 (§4.4)."""

_TO_XTEXT: Final = re.compile(rb"[^!-*,-<>-~]")
_ADDRESS_TYPE: Final = re.compile(r"[A-Za-z0-9-]{1,40}")


class Action(StrEnum):
    """RFC 3464 §2.3.3."""

    FAILED = "failed"
    DELAYED = "delayed"
    DELIVERED = "delivered"
    RELAYED = "relayed"
    EXPANDED = "expanded"


class Return(StrEnum):
    """How much of the message comes back with a failure (RFC 3461 §4.3)."""

    FULL = "FULL"
    HDRS = "HDRS"


class Notify(StrEnum):
    """RFC 3461 §4.1."""

    NEVER = "NEVER"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    DELAY = "DELAY"


@dataclass(frozen=True, slots=True)
class RecipientReport:
    """What became of one recipient. `status` is an enhanced code (RFC 3463), `diagnostic` the peer's reply."""

    recipient: Address
    action: Action
    status: str
    diagnostic: str | None = None
    remote_mta: str | None = None
    orcpt: str | None = None
    """The ORCPT parameter as it came with RCPT."""
    last_attempt: datetime | None = None
    will_retry_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Facts about one message. `reporting_mta` is our host name, `envid` the ENVID parameter as it came with MAIL."""

    reporting_mta: str
    recipients: tuple[RecipientReport, ...]
    arrival: datetime | None = None
    envid: str | None = None


class Withheld(StrEnum):
    """Why no report is sent (mail-server C7; RFC 5321 §6.1, RFC 3461 §5.2.2)."""

    NULL_SENDER = "null_sender"
    BOUNCE = "bounce"
    UNAUTHENTICATED = "unauthenticated"
    SUPPRESSED = "suppressed"
    NOT_WANTED = "not_wanted"


_WANTED_BY: Final = {
    Action.FAILED: Notify.FAILURE,
    Action.DELAYED: Notify.DELAY,
    Action.DELIVERED: Notify.SUCCESS,
    Action.RELAYED: Notify.SUCCESS,
    Action.EXPANDED: Notify.SUCCESS,
}
_WANTED_BY_DEFAULT: Final = frozenset((Notify.FAILURE, Notify.DELAY))


def withheld(
    return_path: Address | None,
    action: Action,
    *,
    is_bounce: bool,
    authenticated: bool,
    suppressed: bool,
    notify: Collection[Notify] | None = None,
) -> Withheld | None:
    """Why a report of `action` must not go to `return_path`; None when it may.

    `is_bounce`: the message is itself a report (`kind` dsn or mdn). `authenticated`: the sender was proved, by sign-in
    or by an SPF pass, so that the report does not hit a bystander (N19). `notify` None: RCPT had no NOTIFY.
    """
    wanted = _WANTED_BY_DEFAULT if notify is None else notify
    reasons = (
        (return_path is None, Withheld.NULL_SENDER),
        (is_bounce, Withheld.BOUNCE),
        (not authenticated, Withheld.UNAUTHENTICATED),
        (suppressed, Withheld.SUPPRESSED),
        (Notify.NEVER in wanted or _WANTED_BY[action] not in wanted, Withheld.NOT_WANTED),
    )
    return next((reason for applies, reason in reasons if applies), None)


def xtext_encode(text: str) -> str:
    """RFC 3461 §4: every octet but visible ASCII, and `+` and `=`, as `+` and two hexadecimal digits."""
    return _TO_XTEXT.sub(lambda found: b"+%02X" % found[0][0], text.encode("utf-8", "replace")).decode("ascii")


def read_orcpt(orcpt: str) -> tuple[str, str] | None:
    """Address type (lower case) and address of an ORCPT parameter (RFC 3461 §4.2, RFC 6533 §3); None if it is none."""
    if len(orcpt) > MAX_PARAMETER_CHARS:
        return None
    kind, semicolon, value = orcpt.partition(";")
    if not semicolon or not value or _ADDRESS_TYPE.fullmatch(kind) is None:
        return None
    address = unicode_decode(value) if kind.lower() == "utf-8" else xtext_decode(value)
    return kind.lower(), address


def unicode_encode(text: str) -> str:
    """`utf-8-addr-xtext` of RFC 6533 §3: ASCII with `\\x{…}` for all else, for backslash, plus and equals sign."""
    return "".join(char if "!" <= char <= "~" and char not in "\\+=" else f"\\x{{{ord(char):02X}}}" for char in text)
