"""What commands are answered with: at once, or later and in their order, while the next ones are read (APPEND)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from postroom.imap import RawCommand, Status

MAX_IN_FLIGHT: Final = 64
MAX_IN_FLIGHT_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Done:
    """The tagged OK of a command. With `quiet` nothing else is told before it; with `nothing` it was given already.

    With `went`, something went from the selected folder: who follows it by modseq is told how far it is now (RFC 7162
    §3.2.7).
    """

    text: str
    code: str | None = None
    status: Status = Status.OK
    quiet: bool = False
    nothing: bool = False
    went: bool = False


class PendingAnswer(Protocol):
    """A command whose work goes on while the next ones are read (APPEND)."""

    tag: bytes
    size: int

    @property
    def ready(self) -> bool:
        """Whether its outcome is known."""

    def done(self) -> Done:
        """Its outcome. Raises what the work raised."""


class InFlight:
    """The pending answers of a session, the oldest first."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: deque[PendingAnswer] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def size(self) -> int:
        """Octets of messages that their commands hold."""
        return sum(pending.size for pending in self._pending)

    def add(self, pending: PendingAnswer) -> None:
        """One more, behind the others."""
        self._pending.append(pending)

    def take_ready(self) -> list[PendingAnswer]:
        """Those that are to be answered now, and no longer among them: whoever is ready waits for those before."""
        ready: list[PendingAnswer] = []
        while self._pending and self._pending[0].ready:
            ready.append(self._pending.popleft())
        return ready

    def is_over(self) -> bool:
        """Whether all are answered."""
        return not self._pending

    def room_for(self, event: object) -> Callable[[], bool]:
        """What says whether `event` may be handled beside them: another APPEND may, within limits."""
        if event is None:
            return lambda: True
        if not (isinstance(event, RawCommand) and event.text[:7].upper() == b"APPEND "):
            return self.is_over
        return lambda: len(self) < MAX_IN_FLIGHT and self.size < MAX_IN_FLIGHT_BYTES
