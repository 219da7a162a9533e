"""The dispatcher: takes what is due, drives transports, has outcomes recorded (outbound §10; mail-server C3, C5).

Work is held by *destination*: a domain, or the relay. A destination that has not proved itself gets one connection and
no queue; one that took a message gets several, and a few messages ahead. What finds its destination unreachable is
answered from memory for a while. So a destination that hangs costs one place each, and whatever is behind it in the
database is reached all the same (`claiming`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.blobs.store import BlobMissing, BlobStore
from postroom.db import errors as db_errors
from postroom.db.pool import Database
from postroom.outbound import claiming, rules
from postroom.outbound.beginnings import Beginnings
from postroom.outbound.claiming import Claims, Group, Room
from postroom.outbound.fallback import FallBack, no_fallback
from postroom.outbound.gates import Way, gate, standstill
from postroom.outbound.giving_back import GivingBack
from postroom.outbound.lanes import DispatchLimits, Lane
from postroom.outbound.models import RouteKind, Status
from postroom.outbound.outcomes import Outcomes, Report, Result
from postroom.outbound.parcels import GroupParcel, ReadAhead, Sign
from postroom.outbound.return_paths import own_sender
from postroom.outbound.rules import Decided
from postroom.outbound.settling import PROVIDERS
from postroom.outbound.transports.base import Attempt, NoRoom, Offload, Transport, paused, unknown
from postroom.outbound.unsent import Unsent
from postroom.smtp.outcome import Outcome, Reason

log = base_log.get("outbound")

RETRY_SECONDS: Final = 1.0
"""After which the database is asked again that did not answer."""
MAX_REMEMBERED: Final = 10_000
REVOKE_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 1.0
"""How long it is believed that nothing else is due; claims of dead workers lapse unheard."""
RECORD_SECONDS: Final = 2.0
"""Given to what is known by then to be written, when the time of everything else is up."""

ReturnPath = Callable[[Group], Awaitable[str]]
"""The envelope sender for an attempt (`ReturnPaths.of`)."""


class Dispatcher:
    """One per worker process; any number of processes may run one. `run` it as a task, `wake` it when something was
    accepted, `drain` it before the process ends. `marketing_direct` (`outbound.marketing_direct`): marketing may leave
    from this server's address. `fall_back` sees to it that a message leaves from the platform address. `unsent` keeps
    marks of what was begun ahead of its turn; `drain` closes it.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        outcomes: Outcomes,
        transports: Mapping[RouteKind, Transport],
        *,
        sign: Sign,
        offload: Offload,
        return_path: ReturnPath = own_sender,
        marketing_direct: bool = False,
        falls_back: bool = True,
        fall_back: FallBack = no_fallback,
        limits: DispatchLimits | None = None,
        unsent: Unsent | None = None,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._ahead = ReadAhead(blobs)
        self._unsent = unsent
        self._beginnings = Beginnings(outcomes, unsent)
        self._giving_back = GivingBack(database, self._beginnings, clock)
        self._clock = clock
        self._outcomes = outcomes
        self._transports = dict(transports)
        self._sign = sign
        self._offload = offload
        self._return_path = return_path
        self._marketing_direct, self._falls_back = marketing_direct, falls_back
        self._fall_back = fall_back
        self._limits = limits or DispatchLimits()
        self._lanes: dict[str, Lane] = {}
        self._remembered: OrderedDict[str, Lane] = OrderedDict()
        self._held: dict[object, Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._offered: set[asyncio.Future[bool]] = set()
        self._records: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._wakes = 0
        self._behind: tuple[float, frozenset[str]] | None = None
        self._stopping = False
        self._fault: BaseException | None = None

    # -- from outside --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something is due. In the loop's thread."""
        self._wakes += 1
        self._wake.set()

    @property
    def held(self) -> int:
        """Groups in hand."""
        return len(self._held)

    async def run(self) -> None:
        """Until drained, or cancelled. Raises what is no passing trouble of the database."""
        heart = asyncio.gather(self._extend_always(), self._revoke_always())
        is_first = True
        try:
            while not self._stopping:
                self._wake.clear()
                self._raise_fault()
                try:
                    if is_first:
                        await self._give_back_left_behind()
                        is_first = False
                    if await self._claim() and self._may_find_more():
                        continue
                    pause = await self._until_due()
                except Exception as error:
                    if not db_errors.is_transient(error):
                        raise
                    log.warning("dispatch_interrupted", error=type(error).__name__)
                    pause = RETRY_SECONDS
                await self._sleep(pause)
        finally:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)
            if not self._stopping:
                await self._stop_tasks()

    async def run_due(self) -> int:
        """Attempt all that is due now, to the end; how many groups were taken. Not beside `run`."""
        total = 0
        while True:
            self._wake.clear()
            self._raise_fault()
            taken = await self._claim()
            total += taken
            if not taken:
                if not self._held:
                    await self._outcomes.idle()
                    return total
                await self._wake.wait()

    async def drain(self, timeout: float) -> None:
        """Take nothing more, give back what is not begun, finish what is within `timeout` seconds, stop the rest."""
        self._stopping = True
        self._wake.set()
        waiting = [group for lane in self._lanes.values() for group in lane.groups]
        for lane in self._lanes.values():
            lane.groups.clear()
        await self._give_back(waiting, self._clock.now())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        # Those that end begin others, which record what came of it.
        while (working := self._under_way()) and (left := deadline - loop.time()) > 0:
            await asyncio.wait(working, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        await self._stop_tasks()
        await self._give_back(list(self._held.values()), self._clock.now())
        await self._giving_back.again()
        self._giving_back.leave()
        await self._outcomes.idle()
        if self._unsent is not None:
            self._unsent.close()
        for transport in self._transports.values():
            await transport.close()

    def _under_way(self) -> set[asyncio.Future[Any]]:
        return {*self._tasks, *self._offered}

    def _being_written(self) -> set[asyncio.Future[Any]]:
        return {*self._records, *self._offered}

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that ends by a fault ends the run: groups that it held would wait for ever."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = self._fault or error
            self._wake.set()

    async def _stop_tasks(self) -> None:
        """Attempts at once; what is known of others is written first."""
        for task in self._tasks - self._records:
            task.cancel()
        await asyncio.gather(*(self._tasks - self._records), return_exceptions=True)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RECORD_SECONDS
        while (writing := self._being_written()) and (left := deadline - loop.time()) > 0:
            await asyncio.wait(writing, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for left_over in self._under_way():
            left_over.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _give_back(self, groups: Sequence[Group], at: datetime) -> None:
        await self._giving_back.give(groups, at)
        for group in groups:
            self._held.pop(group.token, None)
            self._ahead.forget(group.token)

    async def _give_back_left_behind(self) -> None:
        """What workers that were killed had begun, and certainly not sent, is due again."""
        if self._unsent is None:
            return
        with self._unsent.left_behind() as marks:
            if marks:
                async with self._database.acquire() as conn:
                    await claiming.put_back_marked(conn, marks, at=self._clock.now())
                log.info("unsent_given_back", count=len(marks))

    def _let_go(self, group: Group) -> None:
        self._held.pop(group.token, None)
        self._ahead.forget(group.token)
        self._beginnings.forget(group)

    # -- taking --------------------------------------------------------------------------------------------------------

    async def _claim(self) -> int:
        now, wakes = self._clock.monotonic(), self._wakes
        room = Room(
            self._limits.groups - len(self._held),
            {lane.destination: lane.room(self._limits, now) for lane in self._lanes.values()},
        )
        for lane in self._lanes.values():
            lane.dry = room.groups > 0 and room.known[lane.destination] > 0
        if room.groups <= 0 or self._stopping:
            return 0
        async with self._database.acquire() as conn:
            groups = await claiming.claim(conn, now=self._clock.now(), room=room)
        for group in groups:
            self._held[group.token] = group
        if self._stopping:
            await self._give_back(groups, self._clock.now())
            return 0
        self._note_what_waits(room, groups, is_new=wakes == self._wakes)
        self._ahead.expect(groups)
        for group in groups:
            self._enter(group)
        return len(groups)

    def _note_what_waits(self, room: Room, groups: Claims, *, is_new: bool) -> None:
        """`_behind`: destinations without room, whose groups are all that is due. A lane is not dry that got as many
        groups as it had room for, or may have more behind what was looked at."""
        got = Counter(group.destination for group in groups)
        all_held = len(groups) >= room.groups
        for destination, count in room.known.items():
            lane = self._lanes.get(destination)
            if lane is not None and (groups.is_cut or all_held or got[destination] >= count):
                lane.dry = False
        if not is_new:
            self._behind = None
        elif not groups.is_cut and not all_held:
            full = frozenset(one for one, count in room.known.items() if got[one] >= count)
            self._behind = self._clock.monotonic() + LOOK_SECONDS, full | (got.keys() - room.known.keys())

    def _may_find_more(self) -> bool:
        """Whether something may be due that the last claim had no eye for, and there is room for it now: a claim that
        passes over a destination without room looks at all that waits for it."""
        now = self._clock.monotonic()
        if self._behind is None or self._behind[0] <= now:
            return True
        lanes = (self._lanes.get(destination) for destination in self._behind[1])
        return any(lane is None or lane.room(self._limits, now) for lane in lanes)

    def _enter(self, group: Group) -> None:
        lane = self._lanes.get(group.destination)
        if lane is None:
            lane = self._remembered.pop(group.destination, None) or Lane(group.destination)
            self._lanes[group.destination] = lane
        lane.groups.append(group)
        limit = self._limits.per_destination if lane.proven else 1
        if lane.running < min(limit, lane.held):
            lane.running += 1
            self._spawn(self._serve(lane))

    async def _serve(self, lane: Lane) -> None:
        try:
            while lane.groups and not self._stopping:
                group = lane.groups.popleft()
                if lane.groups:
                    self._begin_ahead(lane)
                await self._handle(lane, group)
                if not lane.dry and lane.room(self._limits, self._clock.monotonic()):
                    self._wake.set()
        finally:
            lane.running -= 1
            if not lane.held:
                self._lanes.pop(lane.destination, None)
                self._remember(lane)
            if not lane.dry or self._stopping:
                self._wake.set()

    def _begin_ahead(self, lane: Lane) -> None:
        """Of what goes down the connections next: when half of it is used up, so that none has to wait."""
        count = min(lane.ahead(self._limits), len(lane.groups))
        if not count or lane.groups[count // 2] in self._beginnings:
            return
        for group in islice(lane.groups, count):
            if group not in self._beginnings and self._goes_out(group):
                self._beginnings.ahead(group)

    def _goes_out(self, group: Group) -> bool:
        """Whether it is to be sent over a connection, as far as is known now."""
        return (
            group.route is RouteKind.DIRECT
            and group.letter.wire_key is not None
            # Of several, some may be refused, or have a transaction of their own, and were never begun.
            and len(group.recipients) == 1
            and group.recipients[0].data_started_at is None
            and standstill(group) is None
            and gate(group, marketing_direct=self._marketing_direct, falls_back=self._falls_back) is None
        )

    def _remember(self, lane: Lane) -> None:
        if lane.proven or lane.is_down(self._clock.monotonic()):
            self._remembered[lane.destination] = lane
            while len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)

    async def _until_due(self) -> float:
        now = self._clock.now()
        async with self._database.acquire() as conn:
            due = await claiming.next_due(conn, now=now)
        if due is None:
            return self._limits.poll
        return min(max((due - now).total_seconds(), 0.001), self._limits.poll)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _extend_always(self) -> None:
        while True:
            await asyncio.sleep(claiming.EXTEND_SECONDS)
            await self.extend()

    async def _revoke_always(self) -> None:
        """What is begun ahead where nothing moves: nobody knows how long it would stay so."""
        while True:
            await asyncio.sleep(REVOKE_SECONDS)
            await self._giving_back.again()
            for lane in self._lanes.values() if self._beginnings.any else ():
                if lane.handled == lane.seen:
                    self._beginnings.revoke(lane.groups)
                lane.seen = lane.handled

    async def extend(self) -> None:
        """Hold what is in hand for another lease."""
        groups = list(self._held.values())
        if not groups:
            return
        try:
            async with self._database.acquire() as conn:
                await claiming.extend(conn, groups, until=self._clock.now() + claiming.LEASE)
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            log.warning("claims_not_extended", count=len(groups), error=type(error).__name__)

    # -- one group -----------------------------------------------------------------------------------------------------

    async def _handle(self, lane: Lane, group: Group) -> None:
        wait = standstill(group)
        if wait is not None:
            await self._give_back([group], self._clock.now() + wait)
            return
        began = self._clock.monotonic()
        result = await self._result(lane, group)
        if result is None:
            jitter = timedelta(seconds=self._limits.no_room)
            await self._give_back([group], self._clock.now() + jitter)
            self._wake.set()
            return
        took = 1000 * (self._clock.monotonic() - began)
        lane.took(took)
        result = replace(result, duration_ms=int(took))
        # The next message need not wait for the commit; the claim is held until then.
        written = self._outcomes.offer(result)
        self._offered.add(written)
        written.add_done_callback(partial(self._offer_answered, result))

    def _offer_answered(self, result: Result, written: asyncio.Future[bool]) -> None:
        self._offered.discard(written)
        if written.cancelled() or (written.exception() is None and written.result()):
            self._done_with(result.group)
            return
        task = self._spawn(self._insist(result))
        self._records.add(task)
        task.add_done_callback(self._records.discard)

    async def _insist(self, result: Result) -> None:
        try:
            await self._outcomes.insist(result)
        except Exception as error:  # noqa: BLE001 - the claim lapses; a fault with one message must not stop the others
            log.error("outcome_lost", message_id=result.group.letter.id, error=type(error).__name__)
        self._done_with(result.group)

    def _done_with(self, group: Group) -> None:
        self._let_go(group)
        if not self._held:
            self._wake.set()

    async def _result(self, lane: Lane, group: Group) -> Result | None:
        """What becomes of the group; None when it could not be tried at all, and is to be given back."""
        lost = tuple(one for one in group.recipients if one.data_started_at is not None)
        if lost:
            # A worker began to send, and never said how it ended (G2).
            text = "The connection was lost while the message was being sent"
            outcome = unknown(Reason.TRANSPORT_CONNECTION_LOST, text)
            reports = tuple(Report(one.id, outcome) for one in lost)
            rest = tuple(one for one in group.recipients if one.data_started_at is None)
            further = await self._result(lane, replace(group, recipients=rest)) if rest else None
            return Result(group, reports + (further.reports if further is not None else ()))
        held = gate(group, marketing_direct=self._marketing_direct, falls_back=self._falls_back)
        if held is Way.FALLBACK:
            held = await self._fall_back(group)
            if held is None:
                return None  # it is claimed anew, as it is by then
        if held is not None:
            return Result(group, _all(group, held), attempted=False)
        if group.letter.wire_key is None and group.route is not RouteKind.SIMULATOR:
            return Result(group, _all(group, _GONE))
        if lane.failure is not None and lane.is_down(self._clock.monotonic()):
            return Result(group, tuple(replace(lane.failure, id=one.id) for one in group.recipients))
        return await self._attempt(lane, group)

    async def _attempt(self, lane: Lane, group: Group) -> Result | None:
        provider = PROVIDERS[group.route]
        transport = self._transports.get(group.route)
        if transport is None:
            # The operator took the relay away, and may give it back.
            return Result(group, _all(group, paused("No such way out is configured")), attempted=False)
        try:
            return_path = await self._return_path(group)
        except PostroomError:
            # The log says what is wrong with the key; mail waits until an operator has mended it.
            return Result(group, _all(group, paused("The return path cannot be made")), attempted=False)
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            return None
        parcel = GroupParcel(group, return_path, self._blobs, self._ahead, self._beginnings, self._sign, self._offload)
        try:
            attempt = await transport.attempt(parcel)
        except BlobMissing:
            return Result(group, _all(group, _GONE), provider)
        except Exception as error:  # noqa: BLE001 - whatever a transport raises: what it means is known (§9.1)
            log.warning("transport_failed", route=group.route.value, error=type(error).__name__)
            return Result(group, parcel.after_fault(), provider)
        if isinstance(attempt, NoRoom):
            return None
        self._learn(lane, attempt)
        return Result(group, attempt.reports, provider, attempt.provider_message_id, attempted=attempt.made)

    def _learn(self, lane: Lane, attempt: Attempt) -> None:
        if attempt.is_down and attempt.reports:
            lane.proven = False
            lane.failure = attempt.reports[0]
            lane.down_until = self._clock.monotonic() + self._limits.down
        elif attempt.made:
            lane.proven, lane.failure = True, None


_GONE: Final = Decided(Status.FAILED, reason=rules.LOCAL_FAULT, enhanced="5.3.0", text="The message's bytes are gone")


def _all(group: Group, outcome: Outcome | Decided) -> tuple[Report, ...]:
    return tuple(Report(one.id, outcome) for one in group.recipients)
