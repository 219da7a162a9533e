"""The dispatcher: takes what is due, drives transports, has outcomes recorded (outbound §10; mail-server C3, C5).

Work is held by *destination*: a domain, or the relay. A destination that has not proved itself gets one connection and
no queue; one that took a message gets several, and a few messages ahead. What finds its destination unreachable is
answered from memory for a while. So a destination that hangs costs one place each, and whatever is behind it in the
database is reached all the same (`claiming`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.blobs.store import BlobMissing, BlobStore
from postroom.db import errors as db_errors
from postroom.db.pool import Database
from postroom.mail.compose.downgrade import DowngradeError, Obstacle
from postroom.outbound import claiming, rules, wire
from postroom.outbound.claiming import Group, Room
from postroom.outbound.fallback import FallBack, no_fallback
from postroom.outbound.gates import Way, gate, standstill
from postroom.outbound.models import RouteKind, Status
from postroom.outbound.outcomes import Outcomes, Report, Result
from postroom.outbound.return_paths import own_sender
from postroom.outbound.rules import Decided
from postroom.outbound.settling import PROVIDERS
from postroom.outbound.transports.base import (
    OFFLOAD_BYTES,
    Attempt,
    NoRoom,
    Offload,
    Transport,
    local_trouble,
    paused,
    unknown,
)
from postroom.smtp.outcome import Outcome, Reason

log = base_log.get("outbound")

RETRY_SECONDS: Final = 1.0
"""After which the database is asked again that did not answer."""
READ_AHEAD_BYTES: Final = 64 * 1024
"""Messages up to this size are read while it is recorded that they go out."""
MAX_REMEMBERED: Final = 10_000
RECORD_SECONDS: Final = 2.0
"""Given to what is known by then to be written, when the time of everything else is up."""

Sign = Callable[[bytes, str], Awaitable[bytes]]
"""Signs a message for a From domain; what is not ours to sign comes back as it is."""

ReturnPath = Callable[[Group], Awaitable[str]]
"""The envelope sender for an attempt (`ReturnPaths.of`)."""


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """`groups` are held by the process at a time, in attempts or ahead of them; `per_destination` attempts are made at
    a time, with `ahead` more groups waiting for them. `poll` and `down` in seconds; `down` is how long a destination
    that was found unreachable is not tried again. `no_room`: after which what found no free connection is due again.
    """

    groups: int = 400
    per_destination: int = 4
    ahead: int = 60
    poll: float = 10.0
    down: float = 30.0
    no_room: float = 1.0


@dataclass(slots=True)
class _Lane:
    """A destination that groups are held for. `failure` is what there was to say when it was found unreachable."""

    destination: str
    groups: deque[Group] = field(default_factory=deque)
    running: int = 0
    proven: bool = False
    failure: Report | None = None
    down_until: float = 0.0

    @property
    def held(self) -> int:
        return len(self.groups) + self.running


class Dispatcher:
    """One per worker process; any number of processes may run one. `run` it as a task, `wake` it when something was
    accepted, `drain` it before the process ends. `marketing_direct` (`outbound.marketing_direct`): marketing may leave
    from this server's address. `fall_back` sees to it that a message leaves from the platform address.
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
        fall_back: FallBack = no_fallback,
        limits: DispatchLimits | None = None,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._outcomes = outcomes
        self._transports = dict(transports)
        self._sign = sign
        self._offload = offload
        self._return_path = return_path
        self._marketing_direct = marketing_direct
        self._fall_back = fall_back
        self._limits = limits or DispatchLimits()
        self._lanes: dict[str, _Lane] = {}
        self._remembered: OrderedDict[str, _Lane] = OrderedDict()
        self._held: dict[object, Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._records: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopping = False
        self._fault: BaseException | None = None

    # -- from outside --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something is due. In the loop's thread."""
        self._wake.set()

    @property
    def held(self) -> int:
        """Groups in hand."""
        return len(self._held)

    async def run(self) -> None:
        """Until drained, or cancelled. Raises what is no passing trouble of the database."""
        heart = asyncio.create_task(self._extend_always())
        try:
            while not self._stopping:
                self._wake.clear()
                self._raise_fault()
                try:
                    if await self._claim():
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
        while self._tasks and (left := deadline - loop.time()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        await self._stop_tasks()
        await self._give_back(list(self._held.values()), self._clock.now())
        await self._outcomes.idle()
        for transport in self._transports.values():
            await transport.close()

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
        if self._records:
            await asyncio.wait(set(self._records), timeout=RECORD_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _give_back(self, groups: Sequence[Group], at: datetime) -> None:
        """Other workers may have them at once; what fails here comes back when the lease ends. What was begun to be
        sent is not given back by this."""
        if not groups:
            return
        try:
            async with self._database.acquire() as conn:
                await claiming.put_back(conn, groups, at=at)
        except Exception as error:
            if not db_errors.is_transient(error):
                raise
            log.warning("claims_not_given_back", count=len(groups), error=type(error).__name__)
        for group in groups:
            self._held.pop(group.token, None)

    # -- taking --------------------------------------------------------------------------------------------------------

    async def _claim(self) -> int:
        room = Room(
            self._limits.groups - len(self._held),
            {lane.destination: self._room(lane) for lane in self._lanes.values()},
        )
        if room.groups <= 0 or self._stopping:
            return 0
        async with self._database.acquire() as conn:
            groups = await claiming.claim(conn, now=self._clock.now(), room=room)
        for group in groups:
            self._held[group.token] = group
        if self._stopping:
            await self._give_back(groups, self._clock.now())
            return 0
        for group in groups:
            self._enter(group)
        return len(groups)

    def _room(self, lane: _Lane) -> int:
        """How many more groups it may get; none until half of what it may have is done, for a claim costs as much
        whether it takes one group or thirty."""
        capacity = self._capacity(lane)
        return capacity - lane.held if 2 * lane.held <= capacity else 0

    def _capacity(self, lane: _Lane) -> int:
        # What is known to be unreachable is answered without any waiting.
        return self._limits.per_destination + self._limits.ahead if lane.proven or self._is_down(lane) else 1

    def _enter(self, group: Group) -> None:
        lane = self._lanes.get(group.destination)
        if lane is None:
            lane = self._remembered.pop(group.destination, None) or _Lane(group.destination)
            self._lanes[group.destination] = lane
        lane.groups.append(group)
        limit = self._limits.per_destination if lane.proven else 1
        if lane.running < min(limit, lane.held):
            lane.running += 1
            self._spawn(self._serve(lane))

    async def _serve(self, lane: _Lane) -> None:
        try:
            while lane.groups and not self._stopping:
                group = lane.groups.popleft()
                await self._handle(lane, group)
                if self._room(lane):
                    self._wake.set()
        finally:
            lane.running -= 1
            if not lane.held:
                self._lanes.pop(lane.destination, None)
                self._remember(lane)
            self._wake.set()

    def _remember(self, lane: _Lane) -> None:
        if lane.proven or self._is_down(lane):
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

    async def _handle(self, lane: _Lane, group: Group) -> None:
        wait = standstill(group)
        if wait is not None:
            await self._give_back([group], self._clock.now() + wait)
            return
        began = self._clock.monotonic()
        result = await self._result(lane, group)
        if result is None:
            jitter = timedelta(seconds=self._limits.no_room)
            await self._give_back([group], self._clock.now() + jitter)
            return
        result = replace(result, duration_ms=int(1000 * (self._clock.monotonic() - began)))
        # The next message need not wait for the commit; the claim is held until then.
        task = self._spawn(self._record(result))
        self._records.add(task)
        task.add_done_callback(self._records.discard)

    async def _record(self, result: Result) -> None:
        group = result.group
        try:
            await self._outcomes.record(result)
        except Exception as error:  # noqa: BLE001 - the claim lapses; a fault with one message must not stop the others
            log.error("outcome_lost", message_id=group.letter.id, error=type(error).__name__)
        self._held.pop(group.token, None)
        if not self._held:
            self._wake.set()

    async def _result(self, lane: _Lane, group: Group) -> Result | None:
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
        held = gate(group, marketing_direct=self._marketing_direct)
        if held is Way.FALLBACK:
            held = await self._fall_back(group)
            if held is None:
                return None  # it is claimed anew, as it is by then
        if held is not None:
            return Result(group, _all(group, held), attempted=False)
        if group.letter.wire_key is None and group.route is not RouteKind.SIMULATOR:
            return Result(group, _all(group, _GONE))
        if lane.failure is not None and self._is_down(lane):
            return Result(group, tuple(replace(lane.failure, id=one.id) for one in group.recipients))
        return await self._attempt(lane, group)

    async def _attempt(self, lane: _Lane, group: Group) -> Result | None:
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
        parcel = _Parcel(group, return_path, self._blobs, self._outcomes, self._sign, self._offload)
        try:
            attempt = await transport.attempt(parcel)
        except BlobMissing:
            return Result(group, _all(group, _GONE), provider)
        except Exception as error:  # noqa: BLE001 - whatever a transport raises: what it means is known (§9.1)
            log.warning("transport_failed", route=group.route.value, error=type(error).__name__)
            return Result(group, parcel.after_fault(), provider)
        finally:
            await parcel.close()
        if isinstance(attempt, NoRoom):
            return None
        self._learn(lane, attempt)
        return Result(group, attempt.reports, provider, attempt.provider_message_id, attempted=attempt.made)

    def _learn(self, lane: _Lane, attempt: Attempt) -> None:
        if attempt.is_down and attempt.reports:
            lane.proven = False
            lane.failure = attempt.reports[0]
            lane.down_until = self._clock.monotonic() + self._limits.down
        elif attempt.made:
            lane.proven, lane.failure = True, None

    def _is_down(self, lane: _Lane) -> bool:
        return lane.failure is not None and self._clock.monotonic() < lane.down_until


_GONE: Final = Decided(Status.FAILED, reason=rules.LOCAL_FAULT, enhanced="5.3.0", text="The message's bytes are gone")


def _all(group: Group, outcome: Outcome | Decided) -> tuple[Report, ...]:
    return tuple(Report(one.id, outcome) for one in group.recipients)


async def _once(ahead: asyncio.Task[bytes]) -> AsyncIterator[bytes]:
    yield await ahead


class _Parcel:
    """A group's message, read from the store as it is needed."""

    def __init__(
        self, group: Group, return_path: str, blobs: BlobStore, outcomes: Outcomes, sign: Sign, offload: Offload
    ) -> None:
        self.group = group
        self.return_path = return_path
        self._key = group.letter.wire_key or ""
        self._blobs = blobs
        self._outcomes = outcomes
        self._sign = sign
        self._offload = offload
        self._begun: set[int] = set()
        self._ahead: asyncio.Task[bytes] | None = None

    def pieces(self) -> AsyncIterator[bytes]:
        ahead, self._ahead = self._ahead, None
        return self._blobs.stream(self._key) if ahead is None else _once(ahead)

    async def whole(self) -> bytes:
        return await self._blobs.get(self._key)

    async def seven_bit(self) -> bytes:
        raw = await self.whole()
        domain = (self.group.letter.from_address or "").rpartition("@")[2]
        if len(raw) < OFFLOAD_BYTES:
            changed = wire.seven_bit(raw, (domain,))
        else:
            changed = await self._offload(len(raw), wire.seven_bit, raw, (domain,))
        if changed is None:
            raise DowngradeError(Obstacle.STRUCTURE)
        return raw if changed is raw else await self._sign(changed, domain)

    async def begin(self, ids: Sequence[int]) -> bool:
        if self._ahead is None and self.group.letter.wire_size <= READ_AHEAD_BYTES:
            self._ahead = asyncio.create_task(self.whole())
        may = await self._outcomes.start(self.group, ids)
        if may:
            self._begun.update(ids)
        return may

    async def close(self) -> None:
        """What was read ahead for nothing, because the peer went away meanwhile, matters to nobody."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)

    def after_fault(self) -> tuple[Report, ...]:
        """What is known when a transport broke down: nothing of those who were being sent to (§9.1)."""
        lost = unknown(Reason.PROVIDER_OUTCOME_UNKNOWN, "It is not known whether the message was sent")
        return tuple(
            Report(one.id, lost if one.id in self._begun else local_trouble()) for one in self.group.recipients
        )
