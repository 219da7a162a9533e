"""A DMARC policy record, read (RFC 7489 §6.3, §6.4; RFC 9989 §4.7, §4.8).

Both are lenient in the same way: the version stands first and is exact, all other faults cost no more than the tag
that has them, and a record whose policy cannot be read still asks for reports.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

MAX_RECORD_BYTES: Final = 4096
MAX_TAGS: Final = 100
MAX_URIS: Final = 20

_VERSION: Final = re.compile(rb"[vV][ \t]*+=[ \t]*+DMARC1[ \t]*+(?:;|\Z)")
_TAG: Final = re.compile(rb"[ \t]*+([A-Za-z]++)[ \t]*+=([ -:<-~\t]*+)")
_URI: Final = re.compile(r"([a-z][a-z0-9+.-]*+):([\"-~]++)")  # `!` would have to be encoded
_SIZE: Final = re.compile(r"!([0-9]{1,15})([kmgt]?)\Z")
_MAILTO: Final = re.compile(r"[^@?\s]++@[^@?\s]++(?:\?[^\s]*+)?")
_Choice = TypeVar("_Choice", bound=StrEnum)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Policy(StrEnum):
    """What the owner of a domain asks for mail that fails (`p=`)."""

    NONE = "none"
    QUARANTINE = "quarantine"
    REJECT = "reject"

    def milder(self, other: "Policy") -> "Policy":
        """Of both that which does less to the mail (mail-server B4)."""
        order = tuple(Policy)
        return min(self, other, key=order.index)


class Mode(StrEnum):
    """How much alike two domains have to be to be aligned (RFC 7489 §3.1)."""

    RELAXED = "r"
    STRICT = "s"


class SuffixFlag(StrEnum):
    """`psd=`, by which a domain says whether it is a public suffix (RFC 9989 §4.7)."""

    YES = "y"
    NO = "n"
    UNKNOWN = "u"


@dataclass(frozen=True, slots=True)
class ReportUri:
    """Where reports are wanted, in the order of the record."""

    uri: str
    max_bytes: int | None = None
    """The largest report that is wanted (RFC 7489 §6.2); RFC 9990 does without."""

    @property
    def mailbox(self) -> str | None:
        """The address of a `mailto:` URI as it stands in it, percent-encoding included; None for another scheme."""
        scheme, _, rest = self.uri.partition(":")
        return rest.partition("?")[0] if scheme == "mailto" else None


@dataclass(frozen=True, slots=True)
class Record:
    """What a record says, defaults filled in."""

    policy: Policy
    subdomain_policy: Policy | None = None
    """`sp=`"""
    missing_policy: Policy | None = None
    """`np=`: for sub-domains that do not exist."""
    dkim_mode: Mode = Mode.RELAXED
    spf_mode: Mode = Mode.RELAXED
    suffix: SuffixFlag = SuffixFlag.UNKNOWN
    testing: bool = False
    """`t=y`; ignored for verdicts (decisions B9)."""
    percent: int = 100
    """`pct=`; ignored for verdicts (decisions B9), and gone in RFC 9989."""
    aggregate_reports: tuple[ReportUri, ...] = ()
    """`rua=`"""
    failure_reports: tuple[ReportUri, ...] = ()
    """`ruf=`"""
    failure_options: frozenset[str] = frozenset("0")
    """`fo=`: of `0`, `1`, `d`, `s`."""

    def policy_for_subdomain(self, *, exists: bool | None) -> Policy:
        """What holds for a sub-domain of the record's domain that has no record; `exists` is None if not known."""
        if exists is False and self.missing_policy is not None:
            return self.missing_policy
        return self.policy if self.subdomain_policy is None else self.subdomain_policy


def is_record(text: bytes) -> bool:
    """Whether a TXT record is one of DMARC at all; others are discarded (RFC 7489 §6.6.3)."""
    return _VERSION.match(text) is not None


def parse_record(text: bytes) -> Record | None:
    """Read a record; None for one that is not DMARC's, or whose policy is unreadable and that wants no reports.

    Of a tag that is there twice the first counts; names and values are read without regard to case, as ABNF has it.
    Without `p=` the policy is `none` (RFC 9989 §4.7). With a bad `p=`, `sp=` or `np=` it is so only if somebody wants
    reports (RFC 7489 §6.6.3).
    """
    if len(text) > MAX_RECORD_BYTES or not is_record(text):
        return None
    tags = _tags(text)
    policies = {name: _choice(Policy, tags.get(name)) for name in ("p", "sp", "np")}
    aggregate = _uris(tags.get("rua", ""))
    if any(name in tags and policy is None for name, policy in policies.items()):
        if not aggregate:
            return None
        policies = {"p": None, "sp": None, "np": None}
    percent = tags.get("pct", "")
    return Record(
        policy=policies["p"] or Policy.NONE,
        subdomain_policy=policies["sp"],
        missing_policy=policies["np"],
        dkim_mode=_choice(Mode, tags.get("adkim")) or Mode.RELAXED,
        spf_mode=_choice(Mode, tags.get("aspf")) or Mode.RELAXED,
        suffix=_choice(SuffixFlag, tags.get("psd")) or SuffixFlag.UNKNOWN,
        testing=tags.get("t", "").lower() == "y",
        percent=int(percent) if percent.isdigit() and len(percent) <= 3 and int(percent) <= 100 else 100,
        aggregate_reports=aggregate,
        failure_reports=_uris(tags.get("ruf", "")),
        failure_options=_options(tags.get("fo", "0")),
    )


def choose_record(texts: Sequence[bytes]) -> tuple[int, Record | None]:
    """How many of the TXT records of a name are DMARC's, and what it says if it is one (RFC 7489 §6.6.3)."""
    found = [text for text in texts if is_record(text)]
    return len(found), parse_record(found[0]) if len(found) == 1 else None


def _tags(text: bytes) -> dict[str, str]:
    tags: dict[str, str] = {}
    for part in text.split(b";", MAX_TAGS)[:MAX_TAGS]:
        match = _TAG.fullmatch(part)
        if match is not None:
            tags.setdefault(match[1].decode("ascii").lower(), match[2].decode("ascii").strip(" \t"))
    return tags


def _choice(kind: type[_Choice], text: str | None) -> _Choice | None:
    try:
        return None if text is None else kind(text.lower())
    except ValueError:
        return None


def _uris(text: str) -> tuple[ReportUri, ...]:
    """Those of a list that are URIs; the others are ignored."""
    found = (_uri(part.strip(" \t")) for part in text.split(",", MAX_URIS)[:MAX_URIS])
    return tuple(uri for uri in found if uri is not None)


def _uri(text: str) -> ReportUri | None:
    limit = None
    size = _SIZE.search(text.lower())
    if size is not None:
        text, limit = text[: size.start()], int(size[1]) * _UNITS[size[2]]
    scheme, colon, rest = text.partition(":")
    uri = f"{scheme.lower()}{colon}{rest}"
    match = _URI.fullmatch(uri)
    if match is None or (match[1] == "mailto" and _MAILTO.fullmatch(match[2]) is None):
        return None
    return ReportUri(uri, limit)


def _options(text: str) -> frozenset[str]:
    found = {option.strip(" \t").lower() for option in text.split(":")}
    return frozenset(found) if found <= set("01ds") else frozenset("0")
