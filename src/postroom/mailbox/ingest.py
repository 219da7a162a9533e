"""The ingest batcher: what waits is stored together (architecture §1.5; decisions B2, B14, B15).

A message's bytes are handed to a *writer* as soon as they are there, which makes the bytes of everything that waits
durable in one go. Meanwhile the message is described. A *committer* stores everything that is described and whose
mailboxes nobody in this process is just writing to, in one transaction, and commits it when all its bytes are durable.
Neither waits for company: a batch is what has gathered while the one before was under way, so a lone message is stored
at once and a flood in large batches. A second committer joins when there is a batch's worth more, or the first is slow.

A mailbox that another process holds is skipped and tried again; after two skips its deliveries go to a lane of their
own, which waits for that lock, and holds no other, while everything else goes on. A connection lost at COMMIT leaves
open what happened: ids are fixed before the batch, so after reconnecting the database is asked. Only errors in the data
split a batch.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.blobs.store import BlobStore, PutGroup, StorageError, StorageFull, put_durably
from postroom.db import errors as db_errors
from postroom.db.pool import Database
from postroom.mailbox.committing import Committing, DatabaseAway, LockTimeout, Session
from postroom.mailbox.degraded import degraded_copy
from postroom.mailbox.models import Appended, Busy, GroupOutcome, MailboxRef, NewMessage, Refused

log = base_log.get("ingest")

MAX_BATCH: Final = 64
_MIN_BATCH: Final = 4
"""Up to here a cohort is stored in one piece: with 20 senders, halves took 0.9 ms of CPU for a message, wholes 0.6."""
WORTH_JOINING: Final = 16
"""Deliveries that wait, for which a further committer joins. Small batches cost more: with 20 senders, two committers
that shared them took 1.85 ms of CPU for a message, one that had them all 1.5."""
SLOW_SECONDS: Final = 0.05
"""After which a committer at work is slow, and another one takes what has gathered."""
BYTES_SECONDS: Final = 1.0
"""How long a transaction, and with it locks, is kept open for bytes on their way to the disk."""
MAX_SKIPS: Final = 2
MAX_WAITS: Final = 4
"""Lanes that one delivery is put into, should its mailboxes be held in turn, before it waits for them all at once."""
MAX_LANES: Final = 4
"""Lanes that wait for their lock at a time: each holds a connection."""
RETRY_SECONDS: Final = 20.0
"""How long a batch is tried again while the database is away, before its senders are told to come back (B2)."""


class Failure(enum.StrEnum):
    """Why a delivery was not stored through a fault of ours; always temporary for the sender (J1)."""

    BUSY = "busy"
    STORAGE = "storage"
    STORAGE_FULL = "storage_full"
    DATABASE = "database"
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"


class IngestError(Exception):
    """The delivery was not stored, and nothing of it remains but perhaps bytes that no row names."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.value)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message for all its recipients: the pieces of its raw bytes and a copy for each mailbox."""

    pieces: tuple[bytes, ...]
    copies: tuple[NewMessage, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


class Committed(Protocol):
    """Called in the loop after each commit, with what it stored; must not block."""

    def __call__(self, stored: Sequence[Appended], /) -> None: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    puts: tuple[PutGroup, ...]
    written: asyncio.Future[StorageError | None]
    done: asyncio.Future[GroupOutcome]
    copies: tuple[NewMessage, ...] = ()
    boxes: frozenset[int] = frozenset()
    skips: int = 0
    degraded: bool = False
    bytes_first: bool = False
    """Its transaction is not begun before the bytes are durable: they were slow."""

    @property
    def keys(self) -> list[str]:
        return [key for put in self.puts for key in put.keys]

    @property
    def size(self) -> int:
        return sum(len(piece) for put in self.puts for piece in put.pieces)


class _BytesMissing(Exception):
    """Of a batch in its transaction: the bytes of some are not durable, and will not be or not soon."""


class Ticket:
    """A message whose bytes are being written. `commit` it, once; leaving the block without gives the bytes up."""

    def __init__(self, ingest: Ingest, waiting: _Waiting) -> None:
        self._ingest = ingest
        self._waiting = waiting
        self._open = True

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self._open = False
            self._ingest._abandon(self._waiting)

    async def commit(self, copies: tuple[NewMessage, ...]) -> GroupOutcome:
        """Store the message in every mailbox or in none; the copies' `blob_key` are the keys the bytes were begun
        with. Returns after the commit.

        `Refused` says why a mailbox can't take it; `IngestError` is a fault of ours, temporary for the sender.
        """
        self._open = False
        return await self._ingest._enqueue(self._waiting, copies)


class Ingest:
    """One per process. `start` it inside the loop; `deliver` from any number of tasks; `stop` waits for what is
    under way. `broken` is called when a stage ends by itself, which is a fault: the process is to be replaced.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        *,
        committed: Committed,
        committers: int = 2,
        writers: int = 2,
        max_batch: int = MAX_BATCH,
        max_pending_bytes: int = 64 * 1024 * 1024,
        max_pending: int = 2000,
        retry_seconds: float = RETRY_SECONDS,
        before_commit: Callable[[], None] | None = None,
        broken: Callable[[], None] | None = None,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._committed = committed
        self._max_batch = max_batch
        self._max_pending_bytes = max_pending_bytes
        self._max_pending = max_pending
        self._broken = broken
        self._committing = Committing(database, clock, retry_seconds=retry_seconds, before_commit=before_commit)
        self._sessions = [Session(database) for _ in range(committers)]
        self._writers = writers
        self._to_write: deque[_Waiting] = deque()
        self._to_commit: deque[_Waiting] = deque()
        self._coming = 0
        self._at_work: dict[int, float] = {}
        self._busy: set[int] = set()
        self._lanes: dict[int, deque[_Waiting]] = {}
        self._lane_slots = asyncio.Semaphore(MAX_LANES)
        self._wake_writers = asyncio.Event()
        self._wake_committers = asyncio.Event()
        self._pending = 0
        self._pending_bytes = 0
        self._last_begun = float("-inf")
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._discards: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(self) -> None:
        stages = [self._write_stage() for _ in range(self._writers)]
        stages += [self._commit_stage(number, session) for number, session in enumerate(self._sessions)]
        for stage in stages:
            _spawn(stage, self._tasks).add_done_callback(self._stage_ended)

    def _stage_ended(self, task: asyncio.Task[None]) -> None:
        """A stage ends only when it is told to; otherwise deliveries would wait for ever, so the owner has to know."""
        if not task.cancelled():
            log.error("ingest_stage_ended", exc_info=task.exception())
            if self._broken is not None:
                self._broken()

    async def stop(self) -> None:
        """Store what is waiting, refuse what comes, end the tasks."""
        self._stopping = True
        await self._idle.wait()
        await asyncio.gather(*self._discards, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(session.close() for session in self._sessions))

    @property
    def pending(self) -> int:
        """Deliveries accepted by `deliver` and not yet answered."""
        return self._pending

    def quiet_for(self) -> float:
        """Seconds since the last message came."""
        return asyncio.get_running_loop().time() - self._last_begun

    async def deliver(self, delivery: Delivery) -> GroupOutcome:
        """`begin` and `Ticket.commit` in one, for a message that is described already."""
        with self.begin(delivery.pieces, [copy.blob_key for copy in delivery.copies]) as ticket:
            return await ticket.commit(delivery.copies)

    async def deliver_together(self, deliveries: Sequence[Delivery]) -> GroupOutcome:
        """Store several messages in one transaction or none of them; the outcome has all their copies in order.

        As `Ticket.commit`; a refusal is of the whole.
        """
        puts = tuple(PutGroup(one.pieces, [copy.blob_key for copy in one.copies]) for one in deliveries)
        with self._begin(puts) as ticket:
            return await ticket.commit(tuple(copy for one in deliveries for copy in one.copies))

    def begin(self, pieces: tuple[bytes, ...], keys: Sequence[str]) -> Ticket:
        """Have the bytes written under the keys, while the caller makes the copies for them. Raises IngestError."""
        return self._begin((PutGroup(pieces, tuple(keys)),))

    def _begin(self, puts: tuple[PutGroup, ...]) -> Ticket:
        if self._stopping:
            raise IngestError(Failure.SHUTTING_DOWN)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(puts, loop.create_future(), loop.create_future())
        size = waiting.size
        if self._pending and (
            self._pending_bytes + size > self._max_pending_bytes or self._pending >= self._max_pending
        ):
            raise IngestError(Failure.OVERLOADED)
        self._last_begun = loop.time()
        self._pending += 1
        self._pending_bytes += size
        self._coming += 1
        self._idle.clear()
        waiting.done.add_done_callback(lambda _: self._forget(size))
        self._to_write.append(waiting)
        self._wake_writers.set()
        self._wake_committers.set()
        return Ticket(self, waiting)

    async def _enqueue(self, waiting: _Waiting, copies: tuple[NewMessage, ...]) -> GroupOutcome:
        self._coming -= 1
        waiting.copies = copies
        waiting.boxes = frozenset(ref.mailbox_id for copy in copies for ref in copy.mailboxes)
        self._to_commit.append(waiting)
        self._wake_committers.set()
        # The work goes on when the caller is cancelled: bytes may be durable already, and the commit is not to be torn.
        outcome = await asyncio.shield(waiting.done)
        if isinstance(outcome, Busy):
            raise IngestError(Failure.BUSY)
        return outcome

    def _abandon(self, waiting: _Waiting) -> None:
        self._coming -= 1
        self._discard([waiting], waiting.keys)
        waiting.done.cancel()

    def _forget(self, size: int) -> None:
        self._pending -= 1
        self._pending_bytes -= size
        if not self._pending:
            self._idle.set()

    # -- stage one: bytes ---------------------------------------------------------------------------------------------

    async def _write_stage(self) -> None:
        while True:
            await self._wake_writers.wait()
            batch = self._take(self._to_write, lambda _: True)
            if not batch:
                self._wake_writers.clear()
                continue
            results = iter(await self._put([put for w in batch for put in w.puts]))
            for waiting in batch:
                errors = [next(results) for _ in waiting.puts]
                waiting.written.set_result(next((error for error in errors if error is not None), None))
                if waiting.bytes_first:
                    self._wake_committers.set()

    async def _put(self, groups: list[PutGroup]) -> Sequence[StorageError | None]:
        """Make the bytes durable, with two retries (J1); an answer for each group, whatever happens."""
        try:
            results = await put_durably(self._blobs, groups)
        except Exception as error:  # noqa: BLE001 - every delivery is answered, whatever failed
            failure = error if isinstance(error, StorageError) else StorageError(type(error).__name__)
            results = [failure] * len(groups)
        failed = [error for error in results if error is not None]
        if failed:
            log.error("blobs_not_stored", messages=len(failed), reason=failed[0].reason)
        return results

    # -- stage two: rows ----------------------------------------------------------------------------------------------

    async def _commit_stage(self, number: int, session: Session) -> None:
        while True:
            await self._wake_committers.wait()
            self._wake_committers.clear()
            if not self._is_wanted():
                continue
            loop = asyncio.get_running_loop()
            self._at_work[number] = loop.time()
            slow = loop.call_later(1.1 * SLOW_SECONDS, self._wake_committers.set)
            try:
                await self._commit_once(session)
            finally:
                slow.cancel()
                del self._at_work[number]
                # What came meanwhile may have woken only those who were not wanted then.
                if self._to_commit:
                    self._wake_committers.set()

    async def _commit_once(self, session: Session) -> None:
        # While the transaction begins, more gathers.
        await session.begin()
        batch = self._take(self._to_commit, self._may_commit)
        if not batch:
            await session.abandon()
            return
        boxes = frozenset().union(*(w.boxes for w in batch))
        self._busy |= boxes
        try:
            await self._store(batch, session=session)
        finally:
            self._busy -= boxes

    def _is_wanted(self) -> bool:
        """Whether one more committer is to begin a transaction."""
        ready = any(map(self._may_commit, self._to_commit))
        if not self._at_work:
            return ready or self._coming > 0
        slow = asyncio.get_running_loop().time() - max(self._at_work.values()) >= SLOW_SECONDS
        return ready and (slow or len(self._to_commit) >= WORTH_JOINING)

    def _may_commit(self, waiting: _Waiting) -> bool:
        return self._busy.isdisjoint(waiting.boxes) and (waiting.written.done() or not waiting.bytes_first)

    def _take(self, queue: deque[_Waiting], fits: Callable[[_Waiting], bool]) -> list[_Waiting]:
        """Up to a batch from the queue, keeping the order of what does not fit yet."""
        taken: list[_Waiting] = []
        left: list[_Waiting] = []
        blocked: set[int] = set()
        # Half of a large cohort, so that its bytes are written while the other half's rows are committed.
        limit = min(self._max_batch, max(_MIN_BATCH, (self._pending + 1) // 2))
        while queue and len(taken) < limit:
            waiting = queue.popleft()
            if fits(waiting) and blocked.isdisjoint(waiting.boxes):
                taken.append(waiting)
            else:
                blocked |= waiting.boxes
                left.append(waiting)
        queue.extendleft(reversed(left))
        return taken

    async def _store(
        self, batch: list[_Waiting], wait_for: Collection[MailboxRef] = (), session: Session | None = None
    ) -> Failure | None:
        """Commit a batch and answer each of its deliveries, whatever happens; what went wrong with all of it."""
        batch = self._with_bytes(batch)
        if not batch:
            return None
        try:
            groups = [w.copies for w in batch]
            outcomes = await self._committing.store(groups, wait_for, lambda *_: _all_written(batch), session)
        except _BytesMissing:
            self._put_back(batch)
            return None
        except LockTimeout:
            return self._fail_all(batch, Failure.BUSY)
        except DatabaseAway:
            return self._fail_all(batch, Failure.DATABASE)
        except Exception as error:
            if db_errors.is_disk_full(error):
                return self._fail_all(batch, Failure.STORAGE_FULL)
            if not _is_datas_fault(error):
                log.error("ingest_batch_failed", messages=len(batch), exc_info=error)
                return self._fail_all(batch, Failure.DATABASE)
            await self._bisect(batch, error, wait_for)
            return None
        self._answer(batch, outcomes)
        return None

    def _with_bytes(self, batch: list[_Waiting]) -> list[_Waiting]:
        """Those of the batch whose bytes are durable or under way; the others have failed."""
        kept = []
        for waiting in batch:
            error = waiting.written.result() if waiting.written.done() else None
            if error is None:
                kept.append(waiting)
            else:
                _fail(waiting, Failure.STORAGE_FULL if isinstance(error, StorageFull) else Failure.STORAGE)
        return kept

    def _put_back(self, batch: list[_Waiting]) -> None:
        """The batch was not stored since the bytes of some were not durable: those wait for them from now on."""
        batch = self._with_bytes(batch)
        for waiting in batch:
            waiting.bytes_first = not waiting.written.done()
        self._to_commit.extendleft(reversed(batch))
        self._wake_committers.set()

    def _fail_all(self, batch: Sequence[_Waiting], failure: Failure) -> Failure:
        for waiting in batch:
            _fail(waiting, failure)
        if failure is Failure.BUSY:  # the one failure after which it is certain that no row names the bytes
            self._discard(batch, [key for waiting in batch for key in waiting.keys])
        return failure

    async def _bisect(self, batch: list[_Waiting], error: BaseException, wait_for: Collection[MailboxRef]) -> None:
        """Something in the data was refused: halve until the culprit is alone, then store it with its headers only
        (B2, B15)."""
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._store(batch[:middle], wait_for)
            await self._store(batch[middle:], wait_for)
            return
        waiting = batch[0]
        if not waiting.degraded:
            log.warning("ingest_degraded", message_id=waiting.copies[0].id, sqlstate=_sqlstate(error))
            waiting.degraded = True
            waiting.copies = tuple(map(degraded_copy, waiting.copies))
            await self._store(batch, wait_for)
            return
        log.error("ingest_refused_by_database", message_id=waiting.copies[0].id, sqlstate=_sqlstate(error))
        _fail(waiting, Failure.DATABASE)

    def _answer(self, batch: list[_Waiting], outcomes: list[GroupOutcome]) -> None:
        stored: list[Appended] = []
        orphans: list[str] = []
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Busy):
                self._skipped(waiting, outcome.mailbox)
                continue
            if isinstance(outcome, Refused):
                orphans += waiting.keys
            else:
                stored += [one for one in outcome if not one.duplicate]
                orphans += [key for one in outcome for key in one.replaced_keys]
                orphans += [
                    copy.blob_key
                    for copy, one in zip(waiting.copies, outcome, strict=True)
                    if one.duplicate and one.message_id != copy.id
                ]
            if not waiting.done.done():
                waiting.done.set_result(outcome)
        if stored:
            try:
                self._committed(stored)
            except Exception as error:  # noqa: BLE001 - it is stored and answered; who listens is another matter
                log.error("committed_hook_failed", error=type(error).__name__)
        if orphans:
            self._discard(batch, orphans)

    def _discard(self, written: Sequence[_Waiting], keys: Sequence[str]) -> None:
        _spawn(self._delete([w.written for w in written], keys), self._discards)

    async def _delete(self, written: Sequence[asyncio.Future[StorageError | None]], keys: Sequence[str]) -> None:
        """Delete what no row names, not before it is written."""
        await asyncio.wait(written)
        try:
            await self._blobs.delete(keys)
        except StorageError:
            log.warning("orphan_blobs_left", count=len(keys))

    # -- mailboxes that somebody else holds
    # ---------------------------------------------------------------------------------

    def _skipped(self, waiting: _Waiting, held: MailboxRef) -> None:
        """The mailbox `held` was somebody else's: try again, then wait for it apart from the others (B14)."""
        waiting.skips += 1
        if waiting.skips < MAX_SKIPS:
            self._to_commit.append(waiting)
            self._wake_committers.set()
            return
        if waiting.skips >= MAX_SKIPS + MAX_WAITS:
            _spawn(self._wait_for_all(waiting), self._tasks)
            return
        lane = self._lanes.get(held.mailbox_id)
        if lane is None:
            lane = self._lanes[held.mailbox_id] = deque()
            _spawn(self._run_lane(held, lane), self._tasks)
        lane.append(waiting)

    async def _run_lane(self, held: MailboxRef, lane: deque[_Waiting]) -> None:
        """Wait for one mailbox, at most one such wait per mailbox and `MAX_LANES` at a time."""
        while lane:
            async with self._lane_slots:
                batch = self._take(lane, lambda _: True)
                behind = len(lane)
                if await self._store(batch, (held,)) is Failure.BUSY:
                    # Those behind waited as long: each its own five seconds in turn would keep senders for minutes.
                    self._fail_all([lane.popleft() for _ in range(behind)], Failure.BUSY)
        del self._lanes[held.mailbox_id]

    async def _wait_for_all(self, waiting: _Waiting) -> None:
        """The last resort in a crowd: each of the mailboxes could be had, but never all of them at a time."""
        async with self._lane_slots:
            await self._store([waiting], {ref for copy in waiting.copies for ref in copy.mailboxes})


async def _all_written(batch: Sequence[_Waiting]) -> None:
    """Until the bytes of the whole batch are durable. Raises _BytesMissing."""
    late = [w.written for w in batch if not w.written.done()]
    if late:
        _, late_still = await asyncio.wait(late, timeout=BYTES_SECONDS)
        if late_still:
            raise _BytesMissing
    if any(w.written.result() is not None for w in batch):
        raise _BytesMissing


def _is_datas_fault(error: BaseException) -> bool:
    """The rows could not be stored, or not even made, for what they hold: others can (B15)."""
    return db_errors.is_data_error(error) or isinstance(error, TypeError | ValueError | ArithmeticError)


def _spawn(work: Coroutine[None, None, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def _fail(waiting: _Waiting, failure: Failure) -> None:
    if not waiting.done.done():
        waiting.done.set_exception(IngestError(failure))


def _sqlstate(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or type(error).__name__)
