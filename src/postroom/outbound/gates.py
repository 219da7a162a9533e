"""Whether a message may leave now: looked at again before every attempt, for much may have changed since it was
accepted (outbound §6.2, §10 step 1; edges G7, G9).

What is passed on for others, and notices of ours, have a From that is not their sender's, so that its domain says
nothing about them.
"""

from __future__ import annotations

from typing import Final

from postroom.outbound.claiming import FromDomain, Group
from postroom.outbound.models import Operation, RouteKind, SendKind, Status
from postroom.outbound.rules import Decided
from postroom.outbound.transports.base import paused
from postroom.smtp.outcome import Outcome

NO_FALLBACK: Final = "domain_failing_no_fallback"
DOMAIN_GONE: Final = "sender_domain_unavailable"
MARKETING: Final = "marketing_needs_ses"

_READY: Final = frozenset({"healthy", "degraded", "active"})
_BROKEN: Final = frozenset({"failing", "suspended"})
_LEAVING: Final = frozenset({"removing", "removed"})
_OTHERS: Final = frozenset({Operation.REDIRECT, Operation.BOUNCE})


def gate(group: Group, *, marketing_direct: bool) -> Outcome | Decided | None:
    """What becomes of all recipients of a claimed group, without anybody being asked; None when it may be tried.

    `marketing_direct`: whether marketing may share this server's address (FR-OUT-15).
    """
    letter = group.letter
    if letter.is_stopped:
        return _stopped(group)
    scripted = group.route is RouteKind.SIMULATOR and not _is_untouched(group)
    if scripted or letter.operation in _OTHERS:
        return None
    verdict = None if letter.domain is None else _of_domain(letter.domain, group)
    if verdict is None and letter.kind is SendKind.MARKETING and not letter.is_test:
        from_platform = letter.domain is not None and letter.domain.is_platform
        if from_platform or not marketing_direct:
            text = "Marketing may not be sent from this domain"
            return Decided(Status.REJECTED, reason=MARKETING, enhanced="5.7.1", text=text, counts=False)
    return verdict


def _of_domain(domain: FromDomain, group: Group) -> Outcome | Decided | None:
    if domain.status in _LEAVING:
        text = "The sender's domain is being removed"
        return Decided(Status.REJECTED, reason=DOMAIN_GONE, enhanced="5.7.1", text=text, counts=False)
    if not domain.enabled:
        return paused("The sender's domain is disabled")
    if domain.status in _READY:
        return None
    # Between attempts nothing is decided anew: somebody may have the message already. What the system tells people
    # waits, too, for it has no other address.
    if domain.status not in _BROKEN or not _is_untouched(group) or group.letter.is_system:
        return paused("The sender's domain is not ready")
    text = "The sender's domain fails its checks"
    return Decided(Status.FAILED, reason=NO_FALLBACK, enhanced="5.7.1", text=text, counts=False)


def _stopped(group: Group) -> Outcome | Decided:
    """Identity or tenant send nothing now: what none of was sent is canceled, the rest waits. So does what is passed
    on: it was taken from somebody else, who would not learn that it was let go (FR-TEN-3)."""
    waits = group.letter.operation is Operation.REDIRECT or group.letter.was_sent or not _is_waiting_whole(group)
    return paused("Sending is stopped for the sender") if waits else Decided(Status.CANCELED)


def _is_waiting_whole(group: Group) -> bool:
    return all(one.status is Status.QUEUED for one in group.recipients)


def _is_untouched(group: Group) -> bool:
    """Whether no server was asked to take the message yet."""
    return not group.letter.was_sent and all(one.status is Status.QUEUED and not one.tries for one in group.recipients)
