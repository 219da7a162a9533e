"""Whether a message may leave now: looked at again before every attempt, for much may have changed since it was
accepted (outbound §6.2, §10 step 1; edges G7, G9).

What is passed on for others, and notices of ours, have a From that is not their sender's, so that its domain says
nothing about them.
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
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
COMPOSED: Final = frozenset({Operation.SEND, Operation.REPLY, Operation.REPLY_ALL, Operation.FORWARD})
"""What was written here. What a person submitted is never rewritten (D10)."""
READ_ONLY_WAIT: Final = timedelta(seconds=300)


FALLBACK_FAILED: Final = Decided(
    Status.FAILED,
    reason=NO_FALLBACK,
    enhanced="5.7.1",
    text="The sender's domain fails its checks",
    counts=False,
)
"""What becomes of mail from a domain that fails where there is no other to send from."""


class Way(Enum):
    """How it leaves, if not as it was written."""

    FALLBACK = "fallback"
    """From the identity's platform address (`fallback`)."""


def standstill(group: Group) -> timedelta | None:
    """How long the group is put back for, since nothing leaves the deployment: no try and no wait counts, however long
    that lasts. What a lost worker had begun is told apart all the same."""
    letter = group.letter
    begun = any(one.data_started_at is not None for one in group.recipients)
    return READ_ONLY_WAIT if letter.is_read_only and not _is_of_system(group) and not begun else None


def gate(group: Group, *, marketing_direct: bool, falls_back: bool = True) -> Outcome | Decided | Way | None:
    """What becomes of all recipients of a claimed group, without anybody being asked; None when it may be tried as it
    is.

    `marketing_direct`: whether marketing may share this server's address (FR-OUT-15). `falls_back`: whether mail of a
    domain that fails leaves from the platform address where its tenant has not said.
    """
    letter = group.letter
    if letter.is_stopped:
        return _stopped(group)
    if letter.is_read_only and not _is_of_system(group):
        return paused("Nothing leaves this deployment at the moment")
    scripted = group.route is RouteKind.SIMULATOR and not _is_untouched(group)
    if scripted:
        return None
    if letter.is_paused and not _is_of_system(group):
        return paused("Sending is paused for the tenant")
    if letter.operation in _OTHERS:
        return None
    verdict = None if letter.domain is None else _of_domain(letter.domain, group, falls_back)
    leaves = verdict is None or verdict is Way.FALLBACK
    if leaves and letter.kind is SendKind.MARKETING and not letter.is_test:
        from_platform = verdict is Way.FALLBACK or (letter.domain is not None and letter.domain.is_platform)
        if from_platform or not marketing_direct:
            text = "Marketing may not be sent from this domain"
            return Decided(Status.REJECTED, reason=MARKETING, enhanced="5.7.1", text=text, counts=False)
    return verdict


def _is_of_system(group: Group) -> bool:
    """Whether the deployment itself speaks, as with a notice; what is passed on has a hidden owner, too, but is not its
    own."""
    letter = group.letter
    return letter.operation is Operation.BOUNCE or (letter.is_system and letter.operation is not Operation.REDIRECT)


def _of_domain(domain: FromDomain, group: Group, falls_back: bool) -> Outcome | Decided | Way | None:
    letter = group.letter
    if domain.status in _LEAVING:
        text = "The sender's domain is being removed"
        return Decided(Status.REJECTED, reason=DOMAIN_GONE, enhanced="5.7.1", text=text, counts=False)
    if not domain.enabled:
        return paused("The sender's domain is disabled")
    if domain.is_paused and not letter.is_system:
        return paused("Sending is paused for the sender's domain")
    if domain.status in _READY:
        return None
    # Between attempts nothing is decided anew: somebody may have the message already. What the system tells people
    # waits, too, for it has no other address.
    if domain.status not in _BROKEN or not _is_untouched(group) or letter.is_system:
        return paused("The sender's domain is not ready")
    may_fall_back = falls_back if letter.may_fall_back is None else letter.may_fall_back
    if may_fall_back and letter.operation in COMPOSED and not domain.is_platform:
        return Way.FALLBACK
    return FALLBACK_FAILED


def is_ready(status: str, enabled: bool) -> bool:
    """Whether mail leaves from a domain of that state."""
    return enabled and status in _READY


def is_broken(status: str) -> bool:
    """Whether a domain that was ready once fails by now."""
    return status in _BROKEN or status in _LEAVING


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
