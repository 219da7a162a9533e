"""What a transport is given and what it answers (outbound §9.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from postroom.outbound.claiming import Group
from postroom.outbound.outcomes import Report
from postroom.smtp.outcome import DeliveryStatus, Outcome, Reason, Verdict
from postroom.smtp.schedule import Backoff


class Parcel(Protocol):
    """One attempt's message. The bytes are read anew by each call; all raise StorageError."""

    @property
    def group(self) -> Group: ...

    @property
    def return_path(self) -> str:
        """The envelope sender for this attempt, empty for the null sender."""
        ...

    async def content(self) -> bytes | AsyncIterator[bytes]:
        """The message as it goes over the wire: in one piece when it is small, else in pieces."""
        ...

    async def whole(self) -> bytes:
        """The message in one piece."""
        ...

    async def seven_bit(self) -> bytes:
        """The message for a peer without 8BITMIME, signed again if it had to be changed. Raises DowngradeError."""
        ...

    async def begin(self, ids: Sequence[int]) -> bool:
        """To be called right before the message goes out to these deliveries; it may only go out if this is True."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of it, for each recipient of the group.

    `made`: False when nobody was asked, so that it is no try. `is_down`: no host could be talked to, and another
    message would fare no better at the moment.
    """

    reports: tuple[Report, ...]
    provider_message_id: str | None = None
    made: bool = True
    is_down: bool = False


@dataclass(frozen=True, slots=True)
class NoRoom:
    """All connections that the destination's hosts may have are in use; nothing was done."""


class Transport(Protocol):
    """What it raises means that nothing is known: of those for whom `begin` was called the outcome is uncertain, the
    others are tried again."""

    async def attempt(self, parcel: Parcel) -> Attempt | NoRoom: ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


NewMessageId = Callable[[Group], str]
"""Makes the id by which the transport knows a message (`provider_message_id`)."""

Offload = Callable[..., Awaitable[bytes]]
"""`Parser.run`: size, function of a module, arguments; calls it in a child process."""

OFFLOAD_BYTES: Final = 32 * 1024
"""From this size on, work on all of a message is not done in the loop."""


def for_all(group: Group, outcome: Outcome, remote_mx: str | None = None) -> tuple[Report, ...]:
    """The same for every recipient."""
    return tuple(Report(recipient.id, outcome, remote_mx) for recipient in group.recipients)


def verdict_of(report: Report) -> Verdict | None:
    """What is known about a recipient; None where a script decided."""
    return report.outcome.verdict if isinstance(report.outcome, Outcome) else None


def paused(text: str) -> Outcome:
    """Nothing is sent there for the time being, for reasons on our side (outbound §12)."""
    return Outcome(Verdict.TEMPORARY, DeliveryStatus.QUEUED, "4.3.2", None, text, backoff=Backoff.PAUSED)


def local_trouble(text: str = "A temporary fault of our own") -> Outcome:
    """It did not leave us; the schedule of attempts applies."""
    return Outcome(Verdict.TEMPORARY, DeliveryStatus.DEFERRED, "4.3.0", None, text, backoff=Backoff.RECEIVER)


def unknown(reason: Reason, text: str) -> Outcome:
    """It may have been sent (G2)."""
    return Outcome(Verdict.UNCERTAIN, DeliveryStatus.UNCERTAIN, "4.4.2", None, text, reason=reason)
