"""What the tests of DMARC, ARC and verdicts share: results of SPF and DKIM as wanted, and answers of DNS."""

from collections.abc import Mapping, Sequence

from postroom.mailauth.dkim_result import Reason, SignatureResult, Status
from postroom.mailauth.dmarc import UNCHECKED, DmarcResult, SpfOutcome, SpfStatus, evaluate
from postroom.mailauth.resolver import TemporaryResolverError
from tests.mailauth.dkim_tools import Answers, done

REASONS = {status: next(reason for reason in Reason if reason.status is status) for status in Status}
DOWN = TemporaryResolverError("down")


def dkim(domain: str, status: str = "pass", selector: str = "s") -> SignatureResult:
    return SignatureResult(REASONS[Status(status)], domain=domain, selector=selector)


def spf(domain: str | None, result: str = "pass", source: str | None = "smtp") -> SpfOutcome:
    return SpfOutcome(SpfStatus(result), domain, source)


def zone(records: Mapping[str, str | Sequence[str] | Exception]) -> Answers:
    """A resolver with these DMARC records, by the domain that they are for."""
    made: dict[str, Sequence[bytes] | Exception] = {}
    for name, value in records.items():
        texts = (value,) if isinstance(value, str) else value
        made[f"_dmarc.{name}"] = texts if isinstance(texts, Exception) else [text.encode() for text in texts]
    return Answers(made)


def judged(
    author: str | None,
    records: Mapping[str, str | Sequence[str] | Exception] | Answers,
    *signatures: SignatureResult,
    by: SpfOutcome = UNCHECKED,
    exists: bool | None = None,
) -> DmarcResult:
    resolver = records if isinstance(records, Answers) else zone(records)
    return done(evaluate(author, by, signatures, resolver, author_exists=exists))
