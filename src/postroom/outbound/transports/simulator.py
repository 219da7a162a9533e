"""The test tenants' destination: what becomes of mail is what the address says (outbound §19.1; edge L2, FR-OUT-12).

What happens later is stored as a due time, so it happens once, on whatever node, also after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from postroom.base.clock import Clock
from postroom.outbound.claiming import Claimed
from postroom.outbound.models import Status
from postroom.outbound.outcomes import Report
from postroom.outbound.rules import Decided
from postroom.outbound.transports.base import Attempt, NewMessageId, NoRoom, Parcel

DOMAIN: Final = "simulator.invalid"
HOST: Final = "simulator.invalid"

_OK: Final = Decided(Status.DELIVERED, code=250, enhanced="2.0.0", text="Simulated delivery")
_HARD: Final = Decided(
    Status.BOUNCED, code=550, enhanced="5.1.1", text="550 5.1.1 Simulated unknown recipient", bounce="hard"
)
_SOFT: Final = Decided(
    Status.BOUNCED, code=451, enhanced="4.2.0", text="451 4.2.0 Simulated temporary failure", bounce="soft"
)
_LATER: Final = Decided(Status.DEFERRED, code=451, enhanced="4.2.0", text="451 4.2.0 Simulated temporary failure")
_REPORTED: Final = Decided(Status.COMPLAINED)
_REJECTED: Final = Decided(Status.REJECTED, reason="provider_validation", text="E_SIMULATED_REJECT")
_UNKNOWN: Final = Decided(Status.UNCERTAIN, reason="transport_timeout")


@dataclass(frozen=True, slots=True)
class _Step:
    """An event, and the seconds after the one before."""

    after: float
    event: Decided


_SCRIPTS: Final[dict[str, tuple[_Step, ...]]] = {
    "delivered": (_Step(1, _OK),),
    "bounce": (_Step(1, _HARD),),
    "softbounce": (_Step(1, _LATER), _Step(2, _SOFT)),
    "complaint": (_Step(1, _OK), _Step(2, _REPORTED)),
    "deferred": (_Step(1, _LATER),),
}
_REJECT: Final = "reject"
_TIMEOUT: Final = "timeout"


class Simulator:
    """Never talks to anybody."""

    def __init__(self, clock: Clock, *, new_id: NewMessageId) -> None:
        self._clock = clock
        self._new_id = new_id

    async def attempt(self, parcel: Parcel) -> Attempt | NoRoom:
        """The next step of each recipient's script; the first is of all together: any `reject` refuses the message,
        else any `timeout` leaves it unknown."""
        recipients = parcel.group.recipients
        first = [one for one in recipients if one.status is Status.QUEUED]
        locals_ = {_local(one) for one in first}
        verdict = _REJECTED if _REJECT in locals_ else _UNKNOWN if _TIMEOUT in locals_ else None
        reports = [self._report(one, verdict or self._after(one, Decided(Status.SUBMITTED), 0)) for one in first]
        for one in recipients:
            if one.status is not Status.QUEUED:
                # Each step so far counted as a try, acceptance as the first.
                script, place = _script(one), one.tries - 1
                event = script[place].event if 0 <= place < len(script) else _OK
                reports.append(self._report(one, self._after(one, event, place + 1)))
        return Attempt(tuple(reports), self._new_id(parcel.group))

    def _after(self, one: Claimed, event: Decided, place: int) -> Decided:
        """The event, with the time of the one at `place` of the script."""
        script = _script(one)
        if place >= len(script):
            return event
        return replace(event, next_at=self._clock.now() + timedelta(seconds=script[place].after))

    def _report(self, one: Claimed, decided: Decided) -> Report:
        return Report(one.id, decided, HOST if decided.code is not None else None)

    async def close(self) -> None:
        """There is nothing to let go of."""


def _local(one: Claimed) -> str:
    return one.recipient.rpartition("@")[0].partition("+")[0]


def _script(one: Claimed) -> tuple[_Step, ...]:
    return _SCRIPTS.get(_local(one), _SCRIPTS["delivered"])
