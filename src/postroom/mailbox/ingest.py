"""The ingest batcher: what waits is stored together (architecture §1.5; decisions B2, B14, B15).

Deliveries pass two stages. A *writer* makes the raw bytes of everything that waits durable in one go; a *committer*
stores everything whose mailboxes nobody in this process is just writing to, in one transaction. Neither waits for
company: a batch is what has gathered while the one before was under way, so a lone message is stored at once and a
flood in large batches.

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
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import asyncpg

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.blobs.store import BlobStore, PutGroup, StorageError, StorageFull, put_durably
from postroom.db import errors as db_errors
from postroom.db.pool import Database
from postroom.mailbox import append_sql as sql
from postroom.mailbox.append import append
from postroom.mailbox.degraded import degraded_copy
from postroom.mailbox.models import Appended, Busy, GroupOutcome, MailboxRef, NewMessage, Refused

log = base_log.get("ingest")

MAX_BATCH: Final = 64
_MIN_BATCH: Final = 4
"""Up to here a cohort is stored in one piece: with 20 senders, halves took 0.9 ms of CPU for a message, wholes 0.6."""
MAX_SKIPS: Final = 2
MAX_WAITS: Final = 4
"""Lanes that one delivery is put into, should its mailboxes be held in turn, before it waits for them all at once."""
MAX_LANES: Final = 4
"""Lanes that wait for their lock at a time: each holds a connection."""
RETRY_SECONDS: Final = 20.0
"""How long a batch is tried again while the database is away, before its senders are told to come back (B2)."""

_IS_STORED: Final = "SELECT count(*) FROM messages WHERE tenant_id = $1 AND public_id = $2"


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
    delivery: Delivery
    done: asyncio.Future[GroupOutcome]
    skips: int = 0
    boxes: frozenset[int] = field(default_factory=frozenset)
    degraded: bool = False


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
        self._clock = clock
        self._committed = committed
        self._max_batch = max_batch
        self._max_pending_bytes = max_pending_bytes
        self._max_pending = max_pending
        self._retry_seconds = retry_seconds
        self._before_commit = before_commit
        self._broken = broken
        self._stages = (self._write_stage,) * writers + (self._commit_stage,) * committers
        self._to_write: deque[_Waiting] = deque()
        self._to_commit: deque[_Waiting] = deque()
        self._last_written: asyncio.Future[None] | None = None
        self._busy: set[int] = set()
        self._lanes: dict[int, deque[_Waiting]] = {}
        self._lane_slots = asyncio.Semaphore(MAX_LANES)
        self._wake_writers = asyncio.Event()
        self._wake_committers = asyncio.Event()
        self._pending = 0
        self._pending_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._discards: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(self) -> None:
        for stage in self._stages:
            _spawn(stage(), self._tasks).add_done_callback(self._stage_ended)

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

    @property
    def pending(self) -> int:
        """Deliveries accepted by `deliver` and not yet answered."""
        return self._pending

    async def deliver(self, delivery: Delivery) -> GroupOutcome:
        """Store the message in every mailbox or in none. Returns after the commit.

        `Refused` says why a mailbox can't take it; `IngestError` is a fault of ours, temporary for the sender.
        """
        if self._stopping:
            raise IngestError(Failure.SHUTTING_DOWN)
        size = delivery.size
        if self._pending and (
            self._pending_bytes + size > self._max_pending_bytes or self._pending >= self._max_pending
        ):
            raise IngestError(Failure.OVERLOADED)
        waiting = _Waiting(
            delivery,
            asyncio.get_running_loop().create_future(),
            boxes=frozenset(copy.mailbox.mailbox_id for copy in delivery.copies),
        )
        self._pending += 1
        self._pending_bytes += size
        self._idle.clear()
        waiting.done.add_done_callback(lambda _: self._forget(size))
        self._to_write.append(waiting)
        self._wake_writers.set()
        # The work goes on when the caller is cancelled: bytes may be durable already, and the commit is not to be torn.
        outcome = await asyncio.shield(waiting.done)
        if isinstance(outcome, Busy):
            raise IngestError(Failure.BUSY)
        return outcome

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
            # Batches are handed over in the order they were taken, so that a client's APPENDs get UIDs in its order.
            before, done = self._last_written, asyncio.get_running_loop().create_future()
            self._last_written = done
            try:
                groups = [PutGroup(w.delivery.pieces, [copy.blob_key for copy in w.delivery.copies]) for w in batch]
                results = await self._put(groups)
                if before is not None:
                    await before
                self._hand_over(batch, results)
            finally:
                done.set_result(None)

    def _hand_over(self, batch: list[_Waiting], results: Sequence[StorageError | None]) -> None:
        for waiting, error in zip(batch, results, strict=True):
            if error is None:
                self._to_commit.append(waiting)
            else:
                _fail(waiting, Failure.STORAGE_FULL if isinstance(error, StorageFull) else Failure.STORAGE)
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

    async def _commit_stage(self) -> None:
        while True:
            await self._wake_committers.wait()
            batch = self._take(self._to_commit, lambda w: self._busy.isdisjoint(w.boxes))
            if not batch:
                self._wake_committers.clear()
                continue
            boxes = frozenset().union(*(w.boxes for w in batch))
            self._busy |= boxes
            try:
                await self._store(batch)
            finally:
                self._busy -= boxes
                self._wake_committers.set()

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

    async def _store(self, batch: list[_Waiting], wait_for: Collection[MailboxRef] = ()) -> Failure | None:
        """Commit a batch and answer each of its deliveries, whatever happens; what went wrong with all of it."""
        try:
            outcomes = await self._commit([w.delivery for w in batch], wait_for)
        except IngestError as error:
            self._fail_all(batch, error.failure)
            return error.failure
        except Exception as error:
            if not _is_datas_fault(error):
                log.error("ingest_batch_failed", messages=len(batch), exc_info=error)
                self._fail_all(batch, Failure.DATABASE)
                return Failure.DATABASE
            await self._bisect(batch, error, wait_for)
            return None
        self._answer(batch, outcomes)
        return None

    def _fail_all(self, batch: Sequence[_Waiting], failure: Failure) -> None:
        for waiting in batch:
            _fail(waiting, failure)
        if failure is Failure.BUSY:  # the one failure after which it is certain that no row names the bytes
            self._discard([copy.blob_key for waiting in batch for copy in waiting.delivery.copies])

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
            log.warning("ingest_degraded", message_id=waiting.delivery.copies[0].id, sqlstate=_sqlstate(error))
            waiting.degraded = True
            waiting.delivery = replace(waiting.delivery, copies=tuple(map(degraded_copy, waiting.delivery.copies)))
            await self._store(batch, wait_for)
            return
        log.error("ingest_refused_by_database", message_id=waiting.delivery.copies[0].id, sqlstate=_sqlstate(error))
        _fail(waiting, Failure.DATABASE)

    def _answer(self, batch: list[_Waiting], outcomes: list[GroupOutcome]) -> None:
        stored: list[Appended] = []
        orphans: list[str] = []
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Busy):
                self._skipped(waiting, outcome.mailbox)
                continue
            if isinstance(outcome, Refused):
                orphans += [copy.blob_key for copy in waiting.delivery.copies]
            else:
                stored += [one for one in outcome if not one.duplicate]
                orphans += [
                    copy.blob_key
                    for copy, one in zip(waiting.delivery.copies, outcome, strict=True)
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
            self._discard(orphans)

    def _discard(self, keys: list[str]) -> None:
        _spawn(self._delete(keys), self._discards)

    async def _delete(self, keys: list[str]) -> None:
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
            await self._store([waiting], {copy.mailbox for copy in waiting.delivery.copies})

    # -- the transaction
    # ----------------------------------------------------------------------------------------------------

    async def _commit(self, deliveries: list[Delivery], wait_for: Collection[MailboxRef]) -> list[GroupOutcome]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_seconds
        pause = 0.05
        unsure: list[GroupOutcome] | None = None
        while True:
            attempt = _Attempt()
            try:
                if unsure is not None and await self._is_stored(unsure):
                    return unsure
                unsure = None
                return await self._transaction(deliveries, attempt, wait_for)
            except Exception as error:
                if attempt.committing:
                    unsure = attempt.outcomes
                if unsure is None:
                    if db_errors.is_lock_timeout(error):
                        if wait_for:
                            raise IngestError(Failure.BUSY) from error
                        return [Busy(delivery.copies[0].mailbox) for delivery in deliveries]
                    if db_errors.is_disk_full(error):
                        raise IngestError(Failure.STORAGE_FULL) from error
                if not _is_worth_retrying(error):
                    raise
                if loop.time() + pause > deadline:
                    raise IngestError(Failure.DATABASE) from error
                log.warning("ingest_retry", error=type(error).__name__, unsure=unsure is not None)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)

    async def _transaction(
        self, deliveries: list[Delivery], attempt: _Attempt, wait_for: Collection[MailboxRef]
    ) -> list[GroupOutcome]:
        async with self._database.acquire() as conn:
            await conn.execute(sql.BEGIN)
            try:
                groups = [delivery.copies for delivery in deliveries]
                attempt.outcomes = await append(conn, groups, now=self._clock.now(), wait_for=wait_for)
                if self._before_commit is not None:
                    self._before_commit()
                attempt.committing = True
                await conn.execute("COMMIT")
            except BaseException:
                if not conn.is_closed():
                    await conn.execute("ROLLBACK")
                raise
            return attempt.outcomes

    async def _is_stored(self, outcomes: list[GroupOutcome]) -> bool:
        """Whether the batch whose COMMIT was not answered is there: it is there whole or not at all (B15).

        That COMMIT may be under way still. It holds the mailboxes until it is decided, so one of them is locked first.
        """
        fresh = [one for outcome in outcomes if isinstance(outcome, tuple) for one in outcome if not one.duplicate]
        if not fresh:
            return True
        one = fresh[0]
        async with self._database.transaction() as conn:
            await conn.execute("SET LOCAL lock_timeout = '5s'")
            await conn.fetch(sql.LOCK_WAITING, [one.mailbox.tenant_id], [one.mailbox.mailbox_id])
            found = await conn.fetchval(_IS_STORED, one.mailbox.tenant_id, one.message_id)
        return bool(found)


@dataclass(slots=True)
class _Attempt:
    outcomes: list[GroupOutcome] = field(default_factory=list)
    committing: bool = False


def _is_datas_fault(error: BaseException) -> bool:
    """The rows could not be stored, or not even made, for what they hold: others can (B15)."""
    return db_errors.is_data_error(error) or isinstance(error, TypeError | ValueError | ArithmeticError)


def _is_worth_retrying(error: BaseException) -> bool:
    # A migration by a newer node outdates the statements that a connection has prepared: once (J9).
    outdated = isinstance(error, asyncpg.exceptions.InvalidCachedStatementError)
    return outdated or db_errors.is_transient(error) or db_errors.is_serialization(error)


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
