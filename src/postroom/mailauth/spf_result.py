"""What comes of an SPF check, in the words of RFC 7208 §2.6 and RFC 8601 §2.7.2."""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

MAX_SHOWN: Final = 200
"""Characters of a stranger's record or name that a result repeats."""


class Status(StrEnum):
    """Results of `check_host()` (RFC 7208 §2.6)."""

    NONE = "none"
    NEUTRAL = "neutral"
    PASS = "pass"
    FAIL = "fail"
    SOFTFAIL = "softfail"
    TEMPERROR = "temperror"
    PERMERROR = "permerror"


class Identity(StrEnum):
    """Whose domain was checked; the values are RFC 8601's properties of `smtp`."""

    MAIL_FROM = "mailfrom"
    HELO = "helo"
    """The HELO name itself, or in place of a null reverse-path (RFC 7208 §2.4)."""


class Reason(StrEnum):
    """Why a check has its status."""

    MATCH = "match"
    """A mechanism matched; its qualifier is the status."""
    NO_MATCH = "no_match"
    """No mechanism matched and there is no redirect (RFC 7208 §4.7)."""
    INVALID_DOMAIN = "invalid_domain"
    """Not a domain name of several labels (RFC 7208 §4.3)."""
    NO_RECORD = "no_record"
    SEVERAL_RECORDS = "several_records"
    SYNTAX = "syntax"
    """A fault anywhere in a record counts, even behind what matches (RFC 7208 §4.6)."""
    RECORD_TOO_LARGE = "record_too_large"
    LOOKUP_LIMIT = "lookup_limit"
    VOID_LIMIT = "void_limit"
    MX_LIMIT = "mx_limit"
    """More than ten hosts behind one `mx` (RFC 7208 §4.6.4)."""
    INCLUDE_WITHOUT_RECORD = "include_without_record"
    REDIRECT_WITHOUT_RECORD = "redirect_without_record"
    DNS = "dns"
    """An answer could not be had."""

    @property
    def status(self) -> Status:
        """The status of this reason. For `MATCH`, whose status is the mechanism's, `PASS`."""
        return _STATUS.get(self, Status.PERMERROR)


_STATUS: Final = MappingProxyType(
    {
        Reason.MATCH: Status.PASS,
        Reason.NO_MATCH: Status.NEUTRAL,
        Reason.INVALID_DOMAIN: Status.NONE,
        Reason.NO_RECORD: Status.NONE,
        Reason.DNS: Status.TEMPERROR,
    }
)
"""The others are `permerror`."""


class SpfError(Exception):
    """Ends a check without a match. `term` is what was read or evaluated, if it is known."""

    def __init__(self, reason: Reason, term: str = "") -> None:
        super().__init__(reason.value)
        self.reason, self.term = reason, term


@dataclass(frozen=True, slots=True)
class SpfResult:
    """The result for one identity. Texts come from strangers, are printable ASCII and bounded."""

    status: Status
    reason: Reason
    identity: Identity
    domain: str
    """The domain that was checked and that `pass` speaks for: lower case, A-labels, without a final dot."""
    record_domain: str = ""
    """Where the record stands that decided, or is at fault: `domain`, or one that it includes or redirects to."""
    mechanism: str = ""
    """The mechanism that matched or is at fault, as written in that record."""
    explanation: str = ""
    """What the domain says to whoever is refused, when the status is `fail` (RFC 7208 §6.2); not to be trusted."""
    lookups: int = 0
    """Terms that asked the DNS, of the ten that may (RFC 7208 §4.6.4)."""
    void_lookups: int = 0
    """Those of them without an answer, of the two that may be."""

    def as_dict(self) -> dict[str, str | int]:
        """For JSON."""
        return {
            "status": self.status.value,
            "reason": self.reason.value,
            "identity": self.identity.value,
            "domain": self.domain,
            "record_domain": self.record_domain,
            "mechanism": self.mechanism,
            "explanation": self.explanation,
            "lookups": self.lookups,
            "void_lookups": self.void_lookups,
        }


def shown(text: str) -> str:
    """A stranger's text as a result may repeat it."""
    return "".join(char if " " <= char <= "~" else "?" for char in text[:MAX_SHOWN])
