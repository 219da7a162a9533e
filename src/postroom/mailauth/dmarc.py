"""DMARC: does somebody who answers for a message belong to its author's domain (RFC 7489, RFC 9989; inbound §17)?

`evaluate` takes the results of SPF and DKIM. What it will ask DNS for, `queries` names beforehand.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from postroom.mail.domain import domain_name
from postroom.mailauth.dkim_result import SignatureResult, Status
from postroom.mailauth.dmarc_policy import (
    Discovery,
    Lookup,
    Organisation,
    Records,
    discover,
    find_organisation,
    queries_for,
)
from postroom.mailauth.dmarc_record import Mode, Policy, Record
from postroom.mailauth.organisational import is_below
from postroom.mailauth.resolver import TxtResolver


class SpfStatus(StrEnum):
    """Results of SPF (RFC 7208 §2.6, RFC 8601 §2.7.2)."""

    PASS = "pass"
    FAIL = "fail"
    SOFTFAIL = "softfail"
    NEUTRAL = "neutral"
    NONE = "none"
    TEMPERROR = "temperror"
    PERMERROR = "permerror"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class SpfOutcome:
    """What is known of SPF: the result, the domain that it is about, and who says so."""

    result: SpfStatus = SpfStatus.NONE
    domain: str | None = None
    """Of MAIL FROM, or HELO when that is empty (RFC 7489 §3.1.2)."""
    source: str | None = None
    """`smtp`, `header` or `ses` (inbound §17 step 5); None: nobody checked."""
    identity: str | None = None
    """`mailfrom` or `helo`: whose domain it is, where we checked ourselves."""
    reason: str | None = None
    """Why the result is what it is, in one word of `spf_result.Reason`, where we checked ourselves."""

    @property
    def checked(self) -> bool:
        return self.source is not None


UNCHECKED = SpfOutcome()


class DmarcStatus(StrEnum):
    """Results of DMARC (RFC 7489 §11.2)."""

    PASS = "pass"
    FAIL = "fail"
    TEMPERROR = "temperror"
    NONE = "none"


class DmarcReason(StrEnum):
    """Why DMARC came out as it did; each belongs to one status."""

    ALIGNED = "aligned"
    NOT_ALIGNED = "not_aligned"
    NO_AUTHOR = "no_author"
    """There is no one domain that the message is from."""
    NO_RECORD = "no_record"
    SEVERAL_RECORDS = "several_records"
    UNUSABLE_RECORD = "unusable_record"
    DNS_POLICY = "dns_policy"
    """DNS did not tell the policy."""
    DNS_IDENTIFIERS = "dns_identifiers"
    """Nothing aligned passed, and what might have could not be looked up (RFC 9989 §5.3)."""

    @property
    def status(self) -> DmarcStatus:
        return _STATUS.get(self, DmarcStatus.NONE)


_STATUS = {
    DmarcReason.ALIGNED: DmarcStatus.PASS,
    DmarcReason.NOT_ALIGNED: DmarcStatus.FAIL,
    DmarcReason.DNS_POLICY: DmarcStatus.TEMPERROR,
    DmarcReason.DNS_IDENTIFIERS: DmarcStatus.TEMPERROR,
}
_WITHOUT_RECORD = {
    Lookup.NONE: DmarcReason.NO_RECORD,
    Lookup.SEVERAL: DmarcReason.SEVERAL_RECORDS,
    Lookup.UNUSABLE: DmarcReason.UNUSABLE_RECORD,
    Lookup.DNS: DmarcReason.DNS_POLICY,
}


@dataclass(frozen=True, slots=True)
class DmarcResult:
    """The result for one message. Alignment is told without a record, too, and then is relaxed (edge case D1)."""

    reason: DmarcReason
    author_domain: str | None = None
    """In A-labels."""
    organisation: str | None = None
    """The author's organisational domain."""
    policy: Policy | None = None
    """In force: `sp=` or `np=` where they apply; None without a record."""
    record: Record | None = None
    record_domain: str | None = None
    aligned_by: str | None = None
    """`dkim` or `spf`, which passed and is aligned; `dkim` where both are."""
    dkim_aligned: tuple[bool, ...] = ()
    """For each signature whether its domain is aligned, passing or not."""
    spf_aligned: bool = False
    """Whether the domain of SPF is aligned, passing or not."""

    @property
    def status(self) -> DmarcStatus:
        return self.reason.status

    @property
    def existence_matters(self) -> bool:
        """Whether the policy depends on DNS knowing the author's domain (`np=`): see `with_existence`."""
        return (
            self.record is not None
            and self.record.missing_policy is not None
            and self.record_domain != self.author_domain
        )

    def with_existence(self, exists: bool) -> "DmarcResult":
        """The result, it being known whether the author's domain exists (A, AAAA or MX)."""
        if self.record is None or not self.existence_matters:
            return self
        return replace(self, policy=self.record.policy_for_subdomain(exists=exists))

    def document(self) -> dict[str, str | None]:
        """As JSON keeps it (inbound §17 step 8)."""
        return {
            "result": self.status.value,
            "policy": None if self.policy is None else self.policy.value,
            "record_domain": self.record_domain,
            "aligned_by": self.aligned_by,
            "reason": self.reason.value,
        }


def author_domain(domains: Iterable[str]) -> str | None:
    """The one domain of the addresses in From, in A-labels; None when there is none, several, or none that is valid.

    Several addresses of one domain are no hindrance (RFC 9989 §5.3.1).
    """
    names = {domain_name(domain) for domain in domains}
    return names.pop() if len(names) == 1 else None


def queries(author: str | None, identifiers: Iterable[str]) -> tuple[str, ...]:
    """The names whose TXT records `evaluate` will ask for, each once: to be asked for beforehand, all at a time.

    `identifiers`: the domains of DKIM signatures and of SPF.
    """
    name = None if author is None else domain_name(author)
    if name is None:
        return ()
    others = (domain_name(domain) for domain in identifiers)
    return queries_for(name, tuple(dict.fromkeys(domain for domain in others if domain is not None)))


async def evaluate(
    author: str | None,
    spf: SpfOutcome,
    dkim: Sequence[SignatureResult],
    resolver: TxtResolver,
    *,
    author_exists: bool | None = None,
) -> DmarcResult:
    """Judge a message whose From has the domain `author`, by what SPF and DKIM found (inbound §17 step 6).

    `author_exists`: whether DNS knows that domain (A, AAAA or MX), of which only `np=` wants to know; None: unknown. A
    name that DNS did not answer for makes the result `temperror` unless something passed that is aligned whatever the
    answer is. Never raises on what comes from outside.
    """
    name = None if author is None else domain_name(author)
    if name is None:
        return DmarcResult(DmarcReason.NO_AUTHOR, dkim_aligned=(False,) * len(dkim))
    records = Records(resolver)
    found = await discover(records, name)
    alignment = _Alignment(records, name, found)
    # What passed is asked for first, as there is a limit to look-ups.
    passed = sorted(range(len(dkim)), key=lambda at: dkim[at].status is not Status.PASS)
    dkim_mode = Mode.RELAXED if found.record is None else found.record.dkim_mode
    spf_mode = Mode.RELAXED if found.record is None else found.record.spf_mode
    aligned_spf = await alignment.of(spf.domain, spf_mode)
    aligned = {at: await alignment.of(dkim[at].domain, dkim_mode) for at in passed}
    by_dkim = any(aligned[at] is True and dkim[at].status is Status.PASS for at in passed)
    by_spf = aligned_spf is True and spf.result is SpfStatus.PASS
    # What may be aligned, or may pass, as far as one knows.
    open_dkim = any(aligned[at] is not False and _may_pass(dkim[at].status, aligned[at]) for at in passed)
    open_spf = aligned_spf is not False and _may_pass(spf.result, aligned_spf)
    return DmarcResult(
        reason=_reason(found, aligned=by_dkim or by_spf, undecided=open_dkim or open_spf),
        author_domain=name,
        organisation=found.organisation.domain,
        policy=found.policy(author_exists=author_exists),
        record=found.record,
        record_domain=found.domain,
        aligned_by="dkim" if by_dkim else "spf" if by_spf else None,
        dkim_aligned=tuple(aligned[at] is True for at in range(len(dkim))),
        spf_aligned=aligned_spf is True,
    )


def _reason(found: Discovery, *, aligned: bool, undecided: bool) -> DmarcReason:
    if found.record is None:
        return _WITHOUT_RECORD[found.lookup]
    if aligned:
        return DmarcReason.ALIGNED
    if found.inherited and not found.organisation.certain:
        return DmarcReason.DNS_POLICY  # another record might have applied
    return DmarcReason.DNS_IDENTIFIERS if undecided else DmarcReason.NOT_ALIGNED


def _may_pass(status: Status | SpfStatus, aligned: bool | None) -> bool:
    """Whether a look-up that failed could have made it an aligned pass."""
    return status.value == "temperror" or (status.value == "pass" and aligned is None)


class _Alignment:
    """Alignment with one author; None where DNS did not tell (RFC 7489 §3.1, RFC 9989 §4.10)."""

    __slots__ = ("_author", "_found", "_known", "_records")

    def __init__(self, records: Records, author: str, found: Discovery) -> None:
        self._records = records
        self._author = author
        self._found = found
        self._known: dict[str, bool | None] = {}

    async def of(self, domain: str | None, mode: Mode) -> bool | None:
        name = None if domain is None else domain_name(domain)
        if name is None:
            return False
        if name == self._author:
            return True
        if mode is Mode.STRICT:
            return False
        if name not in self._known:
            self._known[name] = await self._relaxed(name)
        return self._known[name]

    async def _relaxed(self, name: str) -> bool | None:
        ours = self._found.organisation
        # A smaller organisation than the one that is known is all that DNS can have withheld.
        if not is_below(name, ours.domain):
            return False
        theirs = await self._organisation(name)
        if theirs.domain != ours.domain:
            return False
        if self._found.lookup is Lookup.DNS:
            return None  # for all one knows, alignment is to be strict
        return True if ours.certain and theirs.certain else None

    async def _organisation(self, name: str) -> Organisation:
        if name == self._found.organisation.domain:
            return self._found.organisation
        return await find_organisation(self._records, name)
