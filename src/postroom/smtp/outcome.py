"""What an attempt came to: evidence in, outcome out (outbound §9.2, §9.3, §11; mail-server C5, C6).

Four verdicts, and one rule above the tables: what is not known not to have been sent is never sent again. After the end
of the message is out, only a reply in the 2xx, 4xx or 5xx is an answer; silence, a lost connection or nonsense is
`UNCERTAIN` (edge G2, N15).
"""

import enum
from dataclasses import dataclass, replace
from typing import Final

from postroom.smtp.evidence import Evidence, Fault, Stage
from postroom.smtp.schedule import Backoff, Route


class Verdict(enum.Enum):
    """What is known about one recipient after one attempt."""

    DELIVERED = "delivered"
    """The other side took it."""
    TEMPORARY = "temporary"
    """Certainly not sent; try again."""
    PERMANENT = "permanent"
    """Certainly not sent, and never will be."""
    UNCERTAIN = "uncertain"
    """May have been sent; never try again by ourselves."""


class DeliveryStatus(enum.Enum):
    """The delivery's status that follows (outbound §20)."""

    QUEUED = "queued"
    SUBMITTED = "submitted"
    DELIVERED = "delivered"
    DEFERRED = "deferred"
    BOUNCED = "bounced"
    REJECTED = "rejected"
    FAILED = "failed"
    UNCERTAIN = "uncertain"


class Reason(enum.Enum):
    """`data.reason` of the event (outbound §20, decision B8)."""

    PROVIDER_VALIDATION = "provider_validation"
    SENDER_DOMAIN_UNAVAILABLE = "sender_domain_unavailable"
    QUOTA_EXHAUSTED = "quota_exhausted"
    DELIVERY_EXPIRED = "delivery_expired"
    TRANSPORT_TIMEOUT = "transport_timeout"
    TRANSPORT_CONNECTION_LOST = "transport_connection_lost"
    PROVIDER_OUTCOME_UNKNOWN = "provider_outcome_unknown"


class BounceType(enum.Enum):
    """Whether the address is no good, or only this message."""

    HARD = "hard"
    SOFT = "soft"


class Issue(enum.Enum):
    """A relay's set-up is wrong: a health issue of a tenant's domain, an alert for the smarthost (N14, N16)."""

    AUTH_FAILED = "smtp_auth_failed"
    TLS_REQUIRED = "smtp_tls_required"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The judgement on one recipient.

    `status` is an enhanced status code (RFC 3463), the server's or ours; `code` the basic one, `None` without a reply.
    `text` is for people: the server's own words, or ours.
    """

    verdict: Verdict
    delivery: DeliveryStatus
    status: str
    code: int | None
    text: str
    reason: Reason | None = None
    bounce: BounceType | None = None
    suppress: bool = False
    """The address goes on the suppression list, for good (`hard_bounce`)."""
    backoff: Backoff | None = None
    """What kind of wait comes before the next attempt; only of a temporary outcome."""
    next_host: bool = False
    """Another host of the same destination may be tried within this attempt."""
    issue: Issue | None = None


# RFC 3463, where a fault has no reply to take the code from: (status, text). The class digit is added by the verdict.
_FAULTS: Final[dict[Fault, tuple[str, str]]] = {
    Fault.NO_SUCH_DOMAIN: ("1.2", "The domain does not exist"),
    Fault.NULL_MX: ("1.10", "The domain takes no mail"),
    Fault.DNS_FAILURE: ("4.3", "The domain's mail servers could not be looked up"),
    Fault.BLOCKED_TARGET: ("4.4", "The domain's mail server has an address that is not allowed"),
    Fault.CONNECT_FAILED: ("4.1", "No connection to the mail server"),
    Fault.CONNECTION_LOST: ("4.2", "The connection was lost"),
    Fault.TIMEOUT: ("4.2", "The mail server did not answer in time"),
    Fault.TLS_FAILED: ("7.5", "TLS could not be established"),
    Fault.TLS_MISSING: ("7.10", "The mail server does not offer the TLS that is required"),
    Fault.AUTH_MISSING: ("7.0", "The mail server offers no way to sign in"),
    Fault.BAD_REPLY: ("5.0", "The mail server broke the protocol"),
    Fault.TOO_LARGE: ("3.4", "The message is larger than the mail server takes"),
    Fault.UTF8_MISSING: ("6.7", "The mail server does not take internationalised mail"),
    Fault.EIGHT_BIT_MISSING: ("6.3", "The mail server does not take 8-bit content"),
    Fault.BINARY_MISSING: ("6.3", "The mail server does not take binary content"),
    Fault.REQUIRETLS_MISSING: ("7.30", "The mail server cannot promise TLS onward"),
}
_CONTENT_FAULTS: Final = frozenset(
    {Fault.TOO_LARGE, Fault.UTF8_MISSING, Fault.EIGHT_BIT_MISSING, Fault.BINARY_MISSING, Fault.REQUIRETLS_MISSING}
)
_ADDRESS_FAULTS: Final = frozenset({Fault.NO_SUCH_DOMAIN, Fault.NULL_MX})
# outbound §9.2: at RCPT these say that the address itself is no good.
_HARD_STATUSES: Final = frozenset({"5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10", "5.2.1", "5.4.1"})
_HARD_CODES: Final = frozenset({550, 551, 553})
_NULL_MX_CODE: Final = 556  # RFC 7505 §4.2


def classify(evidence: Evidence, route: Route) -> Outcome:
    """Judge what happened to one recipient on `route`."""
    reply = evidence.reply
    if evidence.fault is not None or reply is None:
        return _of_fault(evidence, route)
    if reply.is_positive and evidence.stage is Stage.FINAL:
        delivery = DeliveryStatus.DELIVERED if route is Route.DIRECT else DeliveryStatus.SUBMITTED
        return Outcome(Verdict.DELIVERED, delivery, reply.enhanced or "2.0.0", reply.code, reply.text)
    if not reply.is_refusal:
        return _of_fault(replace(evidence, fault=Fault.BAD_REPLY), route)
    if evidence.stage is Stage.AUTH and reply.is_permanent:
        return _setup_fault(route, Issue.AUTH_FAILED, reply.enhanced or "5.0.0", reply.code, reply.text)
    if reply.is_permanent and evidence.stage >= Stage.MAIL:
        return _permanent(evidence, route)
    return _temporary(evidence, route)


def expire(outcome: Outcome, route: Route) -> Outcome:
    """The last temporary `outcome` when there will be no further attempt (decision B8, outbound §12).

    What the receiver put off is a soft bounce; what our side held back has failed. Raises `ValueError` for an outcome
    that is not temporary.
    """
    if outcome.verdict is not Verdict.TEMPORARY:
        raise ValueError("only what may be tried again can expire")
    final = replace(outcome, verdict=Verdict.PERMANENT, status="4.4.7", backoff=None, next_host=False)
    if route is Route.DIRECT:
        return replace(
            final,
            delivery=DeliveryStatus.BOUNCED,
            reason=Reason.DELIVERY_EXPIRED,
            bounce=BounceType.SOFT,
        )
    return replace(final, delivery=DeliveryStatus.FAILED, reason=Reason.QUOTA_EXHAUSTED)


def _permanent(evidence: Evidence, route: Route) -> Outcome:
    reply = evidence.reply
    assert reply is not None, "only a reply is classified here"
    status = reply.enhanced
    hard = evidence.stage is Stage.RCPT and (
        status in _HARD_STATUSES if status is not None else reply.code in _HARD_CODES
    )
    return _refused(route, status or "5.0.0", reply.code, reply.text, hard=hard)


def _refused(route: Route, status: str, code: int | None, text: str, *, hard: bool) -> Outcome:
    if route is Route.DIRECT:
        bounce = BounceType.HARD if hard else BounceType.SOFT
        return Outcome(Verdict.PERMANENT, DeliveryStatus.BOUNCED, status, code, text, bounce=bounce, suppress=hard)
    return Outcome(Verdict.PERMANENT, DeliveryStatus.REJECTED, status, code, text, reason=Reason.PROVIDER_VALIDATION)


def _temporary(evidence: Evidence, route: Route) -> Outcome:
    """Not sent, and not for good: refused for now, or broken off before the end of the message."""
    reply, fault = evidence.reply, evidence.fault
    if reply is not None and fault is None:
        # A 5xx before MAIL is about this host and us, not about the recipient (C5).
        enhanced = reply.enhanced if reply.is_temporary else None
        status, text = enhanced or "4.0.0", reply.text
    else:
        detail, text = _FAULTS[fault or Fault.BAD_REPLY]
        status = f"4.{detail}"
    direct = route is Route.DIRECT
    return Outcome(
        Verdict.TEMPORARY,
        DeliveryStatus.DEFERRED if direct else DeliveryStatus.QUEUED,
        status,
        reply.code if reply is not None else None,
        text,
        backoff=Backoff.RECEIVER if direct else Backoff.RELAY,
        next_host=direct and Stage.CONNECT <= evidence.stage <= Stage.AUTH,
    )


def _setup_fault(route: Route, issue: Issue, status: str, code: int | None, text: str) -> Outcome:
    """A relay's login or TLS: a tenant's own affair is final, the deployment's waits for its operator (C6, §9.3)."""
    if route is Route.TENANT_RELAY:
        return Outcome(
            Verdict.PERMANENT,
            DeliveryStatus.REJECTED,
            status,
            code,
            text,
            reason=Reason.SENDER_DOMAIN_UNAVAILABLE,
            issue=issue,
        )
    return Outcome(
        Verdict.TEMPORARY,
        DeliveryStatus.QUEUED,
        f"4{status[1:]}",
        code,
        text,
        backoff=Backoff.PAUSED,
        issue=issue,
    )


def _of_fault(evidence: Evidence, route: Route) -> Outcome:
    fault = evidence.fault or Fault.BAD_REPLY
    detail, text = _FAULTS[fault]
    if evidence.stage is Stage.FINAL:
        return _uncertain(evidence, fault, text)
    if fault in _CONTENT_FAULTS:
        return _refused(route, f"5.{detail}", None, text, hard=False)
    if route is Route.DIRECT:
        if fault in _ADDRESS_FAULTS:
            code = _NULL_MX_CODE if fault is Fault.NULL_MX else None
            return _refused(route, f"5.{detail}", code, text, hard=True)
        if fault is Fault.BLOCKED_TARGET:
            return replace(_refused(route, f"5.{detail}", None, text, hard=False), next_host=True)
    elif fault is Fault.TLS_MISSING:
        return _setup_fault(route, Issue.TLS_REQUIRED, f"5.{detail}", None, text)
    elif fault is Fault.AUTH_MISSING:
        return _setup_fault(route, Issue.AUTH_FAILED, f"5.{detail}", None, text)
    return _temporary(replace(evidence, fault=fault), route)


def _uncertain(evidence: Evidence, fault: Fault, text: str) -> Outcome:
    reason = {
        Fault.TIMEOUT: Reason.TRANSPORT_TIMEOUT,
        Fault.CONNECTION_LOST: Reason.TRANSPORT_CONNECTION_LOST,
    }.get(fault, Reason.PROVIDER_OUTCOME_UNKNOWN)
    code = evidence.reply.code if evidence.reply is not None else None
    # RFC 3463 has no class for "unknown"; the fault's code is what there is to say.
    status = f"4.{_FAULTS[fault][0]}"
    return Outcome(Verdict.UNCERTAIN, DeliveryStatus.UNCERTAIN, status, code, text, reason=reason)
