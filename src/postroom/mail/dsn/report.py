"""What a delivery report that was read says (RFC 3464; inbound §16, §27)."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.mail.dsn.model import Action

MAX_RECIPIENTS: Final = 100
"""Of a report that are kept (inbound §16)."""

_STATUS: Final = re.compile(r"(?<![\d.])([245])\.(\d{1,3})\.(\d{1,3})(?![\d.]*\d)")
_REPLY_CODE: Final = re.compile(r"(?:\A|: |\n|<<< |[Cc]ode )([245])\d\d(?=[ -]|\Z)")


class Evidence(StrEnum):
    """What a report was read from: the fields of RFC 3464, or words and shapes that servers use in their place."""

    STANDARD = "standard"
    HEURISTIC = "heuristic"


class ReportClass(StrEnum):
    """What became of mail to a recipient: refused for good, given up for now, still tried, or taken."""

    PERMANENT = "permanent"
    TEMPORARY = "temporary"
    DELAY = "delay"
    SUCCESS = "success"


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

    @property
    def report_class(self) -> ReportClass | None:
        """A failure is permanent unless its status is 4.x.x (outbound §13.5); None when nothing is said."""
        if self.action is Action.FAILED:
            return ReportClass.TEMPORARY if (self.status or "").startswith("4.") else ReportClass.PERMANENT
        if self.action is Action.DELAYED:
            return ReportClass.DELAY
        return None if self.action is None else ReportClass.SUCCESS


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """A parsed report; id (normalised) and author are those of the returned message (inbound §16)."""

    reporting_mta: str | None
    original_envelope_id: str | None
    original_message_id: str | None
    original_from: str | None
    recipients: tuple[ReportedRecipient, ...]
    evidence: Evidence = Evidence.STANDARD

    @property
    def report_class(self) -> ReportClass | None:
        """The worst of its recipients; None when it says nothing of any."""
        found = {item.report_class for item in self.recipients}
        return next((one for one in ReportClass if one in found), None)


def status_in(*texts: str | None) -> str | None:
    """The enhanced code (RFC 3463) in the first text that has one, else one made of a reply code: `550` is `5.0.0`."""
    return _first(enhanced_in, texts) or _first(reply_status_in, texts)


def enhanced_in(text: str) -> str | None:
    """The first enhanced code in a text."""
    found = _STATUS.search(text)
    return None if found is None else f"{found[1]}.{int(found[2])}.{int(found[3])}"


def reply_status_in(text: str) -> str | None:
    """What the first reply code in a text says of the status, which is its class."""
    found = _REPLY_CODE.search(text)
    return None if found is None else f"{found[1]}.0.0"


def _first(read: Callable[[str], str | None], texts: tuple[str | None, ...]) -> str | None:
    found = (read(text) for text in texts if text is not None)
    return next((status for status in found if status is not None), None)
