"""The worker that tells endpoints of events (events-webhooks-errors §8; edge J4, J13).

Claims as many tasks as there is room for, has each sent, and writes outcomes down together. An endpoint that answers is
given more at a time, one that does not a single attempt, and after some of those a pause: whoever is slow or gone takes
no room from the others. A process that is killed leaves leases behind, which run out; what it had sent and not written
down is sent again, under the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.db import errors as db_errors
from postroom.db.pool import Database
from postroom.events.webhooks import claiming
from postroom.events.webhooks.models import Answered, Task, Trouble
from postroom.events.webhooks.outcomes import Outcome, Outcomes, Written
from postroom.events.webhooks.sending import Sender
from postroom.events.webhooks.store import Sealed
from postroom.events.webhooks.upkeep import Upkeep

log = base_log.get("webhooks")

MOST_AT_ONCE: Final = 256
"""Attempts of one process at a time."""
MOST_FOR_ONE: Final = 16
"""Of these for one endpoint."""
QUICK_MS: Final = 1000
"""For which an answer may take that is to let an endpoint have more attempts at a time."""
LAST_CLAIM_SECONDS: Final = 2.0
"""Given to a claim that is under way when the work is to end."""
POLL_SECONDS: Final = 1.0
SET_ASIDE_SECONDS: Final = 5.0
"""How often it is looked for tasks of endpoints that are disabled, or whose partner is suspended."""
_RETRY_SECONDS: Final = 1.0

Observe = Callable[[Written], None]


def unobserved(written: Written) -> None:
    """Counts nothing."""


class Deliverer:
    """`run` until cancelled; any number of processes may."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        sender: Sender,
        outcomes: Outcomes,
        upkeep: Upkeep,
        *,
        told: Callable[[], None] = lambda: None,
        observe: Observe = unobserved,
    ) -> None:
        """`told` is called after an endpoint was disabled, which is an event; `observe` of what was written."""
        self._database, self._clock, self._sender, self._outcomes = database, clock, sender, outcomes
        self._upkeep, self._told, self._observe = upkeep, told, observe
        self._wake = asyncio.Event()
        self._windows: dict[int, _Window] = {}
        self._busy: dict[asyncio.Task[None], Task] = {}
        self._over: list[Outcome] = []
        self._over_wake = asyncio.Event()
        self._after = 0
        self._set_aside_at = float("-inf")

    def wake(self) -> None:
        """There may be work."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled; then what is under way is given back."""
        self._windows.clear()  # of a run before, that ended with its database
        self._over.clear()
        recorder = asyncio.create_task(self._record(), name="webhook-outcomes")
        try:
            while not recorder.done():
                self._wake.clear()
                if await self._round():
                    continue
                waiter = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait({waiter, recorder}, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                waiter.cancel()
            await recorder
        finally:
            recorder.cancel()
            await asyncio.wait({recorder})
            await self._give_back()

    async def run_due(self) -> int:
        """Everything that is due now, and its outcomes; how many attempts were made."""
        count = 0
        while True:
            await self._upkeep.set_aside()
            taken = await self._take()
            if not taken:
                return count
            count += len(taken)
            await asyncio.gather(*taken)
            await self._write(self._take_over())

    # -- claiming

    async def _round(self) -> bool:
        """Whether anything was taken. A database that is away ends no attempt that is under way."""
        try:
            if self._clock.monotonic() - self._set_aside_at >= SET_ASIDE_SECONDS:
                await self._upkeep.set_aside()
                self._set_aside_at = self._clock.monotonic()
            return bool(await self._take())
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            log.warning("webhooks_not_claimed", error=type(error).__name__)
            return False

    async def _take(self) -> list[asyncio.Task[None]]:
        known = {key: window.room for key, window in self._windows.items()}
        room = claiming.Room(MOST_AT_ONCE - len(self._busy) - len(self._over), known)
        # Whoever stops us meanwhile gets what is claimed back with the rest, and does not wait for leases to run out.
        claim = asyncio.create_task(self._claim(room))
        try:
            claimed = await asyncio.shield(claim)
        except asyncio.CancelledError:
            await asyncio.wait({claim}, timeout=LAST_CLAIM_SECONDS)
            if claim.done() and not claim.cancelled() and claim.exception() is None:
                self._begin_all(claim.result())
            raise
        return self._begin_all(claimed)

    async def _claim(self, room: claiming.Room) -> claiming.Claimed:
        async with self._database.acquire() as conn:
            return await claiming.claim(conn, now=self._clock.now(), room=room, after=self._after)

    def _begin_all(self, claimed: claiming.Claimed) -> list[asyncio.Task[None]]:
        self._after = claimed.last_seen
        return [self._begin(task, sealed) for task, sealed in claimed.tasks]

    def _begin(self, task: Task, sealed: Sealed) -> asyncio.Task[None]:
        self._windows.setdefault(task.endpoint_id, _Window()).at_work += 1
        running = asyncio.create_task(self._attempt(task, sealed), name="webhook-attempt")
        self._busy[running] = task
        running.add_done_callback(self._ended)
        return running

    async def _attempt(self, task: Task, sealed: Sealed) -> None:
        if task.payload is None:
            result = Answered(None, Trouble.EVENT_UNAVAILABLE.value, None)
        else:
            result = await self._sender.send(task.endpoint_id, task.url, sealed, task.event_id, task.payload)
        self._over.append(Outcome(task, result, self._clock.now()))
        self._over_wake.set()

    def _ended(self, running: asyncio.Task[None]) -> None:
        task = self._busy.pop(running)
        if not running.cancelled() and (error := running.exception()) is not None:
            # Not the network's doing, of which `send` makes an outcome: the lease runs out, and a person is told in
            # the end (`claiming.MAX_CLAIMS`).
            log.error("webhook_attempt_failed", error=type(error).__name__)
            self._freed(task, None)

    def _freed(self, task: Task, answered: Answered | None) -> None:
        window = self._windows.get(task.endpoint_id)
        if window is None:
            return
        window.at_work -= 1
        if answered is not None:
            window.follow(answered)
        if not window.at_work:
            del self._windows[task.endpoint_id]

    # -- outcomes

    async def _record(self) -> None:
        while True:
            await self._over_wake.wait()
            self._over_wake.clear()
            # What ends in the same moment is written in one transaction; nothing waits for company.
            outcomes = self._take_over()
            while outcomes:
                try:
                    await self._write(outcomes)
                    break
                except asyncio.CancelledError:
                    # Written with the last of them; those that were committed are not ours any more.
                    self._over[:0] = outcomes
                    raise
                except Exception as error:
                    if not db_errors.is_transient(error):
                        raise
                    log.warning("outcomes_not_written", count=len(outcomes), error=type(error).__name__)
                # Until the next try they are among what is over, for whoever stops meanwhile.
                self._over[:0] = outcomes
                await asyncio.sleep(_RETRY_SECONDS)
                outcomes = self._take_over()
            self._wake.set()

    def _take_over(self) -> list[Outcome]:
        over, self._over = self._over, []
        return over

    async def _write(self, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            return
        async with self._database.transaction() as conn:
            written = await self._outcomes.write(conn, outcomes, self._clock.now())
        for one in outcomes:
            self._freed(one.task, one.answered)
        self._observe(written)
        if written.disabled:
            log.warning("webhooks_disabled", endpoints=[one.public_id for one in written.disabled])
            self._told()

    async def _give_back(self) -> None:
        """Leases of what is under way end with us; what was sent and not written down is sent again."""
        running = dict(self._busy)
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        over = self._take_over()
        done = {one.task.id for one in over}
        left = [task for task in running.values() if task.id not in done]
        try:
            await self._write(over)
            async with self._database.acquire() as conn:
                await claiming.release(conn, left)
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            log.warning("webhooks_not_given_back", error=type(error).__name__)
        for task in left:
            self._freed(task, None)


class _Window:
    """How much an endpoint is given at a time."""

    __slots__ = ("at_work", "most")

    def __init__(self) -> None:
        self.most, self.at_work = claiming.FIRST_ROOM, 0

    def follow(self, answered: Answered) -> None:
        """Who takes all of an attempt's time for an answer has no more of them at a time than at first: a few endpoints
        of one tenant must not hold every place there is.
        """
        if answered.error is not None:
            self.most = 1
        elif (answered.duration_ms or 0) <= QUICK_MS:
            self.most = min(self.most + 1, MOST_FOR_ONE)
        else:
            self.most = min(self.most, claiming.FIRST_ROOM)

    @property
    def room(self) -> int:
        return max(0, self.most - self.at_work)
