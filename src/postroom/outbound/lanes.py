"""Destinations that a process holds groups for: how many each may have, and how quickly they go (mail-server C5)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from postroom.outbound.claiming import Group
from postroom.outbound.outcomes import Report

AHEAD_MS: Final = 40.0
"""What goes out within this time may be recorded as begun before its turn."""
_WEIGHT: Final = 0.25


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """`groups` are held by the process at a time, in attempts or ahead of them; `per_destination` attempts are made at
    a time, with `ahead` more groups waiting for them. `poll` and `down` in seconds; `down` is how long a destination
    that was found unreachable is not tried again. `no_room`: after which what found no free connection is due again.
    `begin_ahead`: so many messages for each connection are recorded as begun before their turn, at the most.
    """

    groups: int = 400
    per_destination: int = 4
    ahead: int = 60
    poll: float = 10.0
    down: float = 30.0
    no_room: float = 1.0
    begin_ahead: int = 0


@dataclass(slots=True)
class Lane:
    """A destination that groups are held for. `failure` is what there was to say when it was found unreachable. `dry`:
    nothing was due for it beyond what is held, when that was last looked at.

    `pace` is how long a message takes, in milliseconds, the last ones counting most; None where it is not known.
    `handled` counts attempts, `seen` is how many there were when somebody last looked whether anything moves.
    """

    destination: str
    groups: deque[Group] = field(default_factory=deque)
    running: int = 0
    proven: bool = False
    dry: bool = False
    failure: Report | None = None
    down_until: float = 0.0
    pace: float | None = None
    handled: int = 0
    seen: int = 0

    @property
    def held(self) -> int:
        return len(self.groups) + self.running

    def is_down(self, now: float) -> bool:
        """Whether it was found unreachable a short while ago."""
        return self.failure is not None and now < self.down_until

    def room(self, limits: DispatchLimits, now: float) -> int:
        """How many more groups it may get; none until half of what it may have is done, for a claim costs as much
        whether it takes one group or thirty."""
        # What is known to be unreachable is answered without any waiting.
        capacity = limits.per_destination + limits.ahead if self.proven or self.is_down(now) else 1
        held = self.held
        return capacity - held if 2 * held <= capacity else 0

    def took(self, milliseconds: float) -> None:
        """An attempt ended, which took so long."""
        self.handled += 1
        pace = milliseconds if self.pace is None else self.pace
        self.pace = pace + _WEIGHT * (milliseconds - pace)

    def ahead(self, limits: DispatchLimits) -> int:
        """How many groups may be begun ahead of their turn: what goes out in a moment."""
        if self.pace is None or not self.proven:
            return 0
        return self.running * min(limits.begin_ahead, int(AHEAD_MS / max(self.pace, 1.0)))
