"""Recording what attempts came to, under the claim's token, until it is done (outbound §10 step 6; mail-server C3;
B15).

While one transaction commits, results gather for the next, whatever mailboxes they are of: those that nobody holds at
that moment are written together. A mailbox that somebody holds gets a transaction of its own, which waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs.store import BlobStore, StorageError
from postroom.db import errors as db_errors
from postroom.db.errors import DatabaseUnavailable
from postroom.db.pool import Connection, Database
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.writing import LOCK_TIMEOUT_MS, MailboxWrite, begin_write, begin_writes, finish_writes
from postroom.outbound import claiming, rules
from postroom.outbound import outcome_sql as sql
from postroom.outbound.claiming import Begun, Group
from postroom.outbound.gathering import Gathering
from postroom.outbound.models import Operation, RouteKind, Status
from postroom.outbound.rules import DEFAULT_RETRY, Decided, RetryPolicy, Standing
from postroom.outbound.settling import TELL_OUTCOMES, Change, Made, Settled, Telling, settle
from postroom.smtp.outcome import Outcome, Verdict

log = base_log.get("outbound")

MAX_TOGETHER: Final = 64
"""Groups whose results are written in one transaction."""
PACE: Final = 0.02
"""Seconds between two such transactions while results come in one after the other; a lone result does not wait."""
MAX_STARTS: Final = 200
MAX_FORGOTTEN: Final = 200
PARALLEL: Final = 4
"""Transactions of one mailbox each, at a time; each has a connection of the pool."""
FIRST_PAUSE: Final = 0.1
START_SECONDS: Final = 10.0
"""How long a peer that is ready for the message is kept waiting while the database is away."""
LONGEST_PAUSE: Final = 5.0

Changed = Callable[[MailboxRef, int], None]
"""Told after a commit: the mailbox and its new modseq. Must not block."""

_SETUP: Final = f"{claiming.PLANS}; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"

Begin = Callable[[Connection], Awaitable[Mapping[MailboxRef, MailboxWrite]]]
"""Locks mailboxes inside the transaction."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an attempt came to for one delivery. `remote_mx` is the host that was spoken to."""

    id: int
    outcome: Outcome | Decided
    remote_mx: str | None = None
    relayed: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a claimed group. `attempted`: False when nobody was asked, so that no try counts."""

    group: Group
    reports: tuple[Report, ...]
    provider: str | None = None
    provider_message_id: str | None = None
    duration_ms: int = 0
    attempted: bool = True


class Outcomes:
    """Writes results. `changed` is told of mailboxes after the commit, `noticed` of notices to be written.

    `retry_unknown` (`queue.unknown_outcome`): what people submitted is tried again although it may have been taken.
    `telling` (`queue.bounce_on_failure`, `queue.delay_notice_secs`): what senders are told by mail.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        ids: IdGenerator,
        *,
        random: Callable[[], float],
        changed: Changed,
        noticed: Callable[[], None],
        policy: RetryPolicy = DEFAULT_RETRY,
        retry_unknown: bool = False,
        telling: Telling = TELL_OUTCOMES,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._ids = ids
        self._random = random
        self._changed = changed
        self._noticed = noticed
        self._policy = policy
        self._retry_unknown = retry_unknown
        self._telling = telling
        self._results: Gathering[None, Result, bool] = Gathering(self._flush, most=MAX_TOGETHER, parallel=1, pace=PACE)
        self._alone: Gathering[MailboxRef, Result, BaseException | None] = Gathering(
            self._flush_one, most=MAX_TOGETHER, parallel=PARALLEL
        )
        self._wires: Gathering[None, str, None] = Gathering(self._forget, most=MAX_FORGOTTEN, parallel=1)
        self._starts: Gathering[None, Begun, bool] = Gathering(self._start, most=MAX_STARTS, parallel=1)
        self._unwritten = 0
        self._sound = asyncio.Event()
        self._sound.set()

    # -- before the message goes out -----------------------------------------------------------------------------------

    async def start(self, group: Group, ids: Sequence[int]) -> bool:
        """Commit that the message now goes out to these; False when the claim is lost: then nothing may be sent (C3).
        Waits while results cannot be written: were this process killed, all that it had sent would be uncertain.

        Raises what the database raises: then nothing may be sent either.
        """
        return await self._starts.add(None, Begun(group.token, group.letter.ref, tuple(ids)))

    def begin(self, group: Group) -> asyncio.Future[bool]:
        """`start` for all recipients, ahead of the time. Before the message goes out look whether results are
        `writable`."""
        return self._starts.put(None, Begun(group.token, group.letter.ref, tuple(group.ids)))

    def revoke(self, group: Group) -> None:
        """Record that what was begun was not sent, and does not go out unless it is begun again. What cannot be
        recorded stays begun."""
        undone = self._starts.put(None, Begun(group.token, group.letter.ref, tuple(group.ids), undo=True))
        undone.add_done_callback(_heard)

    async def writable(self) -> None:
        """Wait while results cannot be written. Raises DatabaseUnavailable."""
        if not self._sound.is_set():
            await self._writable(asyncio.get_running_loop().time() + START_SECONDS)

    async def _start(self, _: None, begun: Sequence[Begun]) -> list[bool]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_SECONDS
        while True:
            await self._writable(deadline)
            now = self._clock.now()
            try:
                async with self._database.acquire() as conn:
                    return await claiming.start(conn, begun, now=now, until=now + claiming.LEASE)
            except Exception as error:
                # Doing it again changes nothing, and the peer waits for minutes.
                if not db_errors.is_transient(error) or loop.time() > deadline:
                    raise
            await asyncio.sleep(FIRST_PAUSE)

    async def _writable(self, deadline: float) -> None:
        """Until no results wait for a database that was away. Raises DatabaseUnavailable."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._sound.wait()
        except TimeoutError as error:
            raise DatabaseUnavailable("results of earlier attempts cannot be written") from error

    # -- after it ------------------------------------------------------------------------------------------------------

    async def record(self, result: Result) -> None:
        """Write the result; returns when it is committed, or turned out not to be ours to write any more.

        Tries as long as it takes while the database is away. Raises what is wrong with the data: then the claim lapses
        by itself.
        """
        if not await self.offer(result):
            await self.insist(result)

    def offer(self, result: Result) -> asyncio.Future[bool]:
        """As `record`, together with others; False when it is left to `insist`."""
        return self._results.put(None, result)

    async def insist(self, result: Result) -> None:
        """`record` what could not be written with others: by itself, however long its mailbox is held."""
        while True:
            error = await self._alone.add(result.group.letter.ref, result)
            if error is None:
                return
            if not db_errors.is_lock_timeout(error):
                raise error
            # Others whose mailbox is held have their turn.
            if await self.offer(result):
                return

    async def _flush(self, _: None, results: Sequence[Result]) -> list[bool]:
        """Write those whose mailbox nobody holds; which were written. None, when one of them cannot be."""
        refs = {result.group.letter.ref for result in results}

        async def begin(conn: Connection) -> Mapping[MailboxRef, MailboxWrite]:
            return await begin_writes(conn, refs, self._clock.now())

        try:
            written = await self._store(begin, results)
        except Exception as error:  # noqa: BLE001 - each is tried again by itself, and its fault raised there
            log.warning("outcomes_not_together", error=type(error).__name__, count=len(results))
            return [False] * len(results)
        return [result.group.letter.ref in written for result in results]

    async def _flush_one(self, ref: MailboxRef, results: Sequence[Result]) -> list[BaseException | None]:
        async def begin(conn: Connection) -> Mapping[MailboxRef, MailboxWrite]:
            return {ref: await begin_write(conn, ref, self._clock.now())}

        try:
            await self._store(begin, results)
        except PostroomError:
            # The mailbox is gone, and its deliveries with it.
            log.warning("outcome_of_no_mailbox", count=len(results))
        except Exception as error:  # noqa: BLE001 - each result is answered, the sound ones by being stored
            if db_errors.is_lock_timeout(error):
                log.warning("outcome_delayed", error=type(error).__name__, count=len(results))
                return [error] * len(results)
            if len(results) == 1:
                log.error("outcome_not_recorded", error=type(error).__name__, message_id=results[0].group.letter.id)
                return [error]
            answers: list[BaseException | None] = []
            for result in results:
                answers += await self._flush_one(ref, [result])
            return answers
        return [None] * len(results)

    async def _store(self, begin: Begin, results: Sequence[Result]) -> Collection[MailboxRef]:
        """The mailboxes that were written. Tries as long as the database is away; a lock that cannot be had is for the
        caller."""
        pause = FIRST_PAUSE
        with contextlib.ExitStack() as delayed:
            while True:
                try:
                    return await self._transact(begin, results)
                except Exception as error:
                    if not db_errors.is_transient(error) or db_errors.is_lock_timeout(error):
                        raise
                    log.warning("outcome_delayed", error=type(error).__name__, count=len(results))
                if pause == FIRST_PAUSE:
                    delayed.enter_context(self._delayed())
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    @contextlib.contextmanager
    def _delayed(self) -> Iterator[None]:
        """While there are results that could not be written, nothing further goes out."""
        self._unwritten += 1
        self._sound.clear()
        try:
            yield
        finally:
            self._unwritten -= 1
            if not self._unwritten:
                self._sound.set()

    async def _transact(self, begin: Begin, results: Sequence[Result]) -> Collection[MailboxRef]:
        async with self._database.transaction() as conn:
            await conn.execute(_SETUP)
            writes = await begin(conn)
            mine = [result for result in results if result.group.letter.ref in writes]
            changes = await self._changes(conn, writes, mine) if mine else []
            settled = await settle(changes, self._ids, telling=self._telling)
            await finish_writes(writes.values())
        changed = {change.write.ref: change.write.modseq for change in changes}
        self.after_commit(changed, settled)
        return writes.keys()

    def after_commit(self, changed: Mapping[MailboxRef, int], settled: Settled) -> None:
        """What is left to do once a transaction of `settle` is committed; `changed` are mailboxes and their modseq."""
        for ref, modseq in changed.items():
            self._changed(ref, modseq)
        if settled.notices:
            self._noticed()
        # Nobody waits for that: without it, bytes are left that no row names, for the sweep. When the answer to the
        # COMMIT was lost, none of this is done: waiters and notices poll.
        for wire in settled.wires:
            self._wires.put(None, wire)

    async def _forget(self, _: None, wires: Sequence[str]) -> list[None]:
        try:
            await self._blobs.delete(wires, durably=False)
        except StorageError:
            log.warning("orphan_blobs_left", count=len(wires))
        return [None] * len(wires)

    async def idle(self) -> None:
        """Until everything is done that follows from what was recorded."""
        await self._wires.idle()

    async def _changes(
        self, conn: Connection, writes: Mapping[MailboxRef, MailboxWrite], results: Sequence[Result]
    ) -> list[Change]:
        # Of one delivery there are two when a claim was lost meanwhile and its worker ends after all.
        reports: dict[int, list[tuple[Report, Result]]] = {}
        for result in results:
            for report in result.reports:
                reports.setdefault(report.id, []).append((report, result))
        keys = [
            (result.group.letter.ref.tenant_id, result.group.letter.ref.mailbox_id, report.id)
            for result in results
            for report in result.reports
        ]
        changes, ignored = [], []
        for row in await conn.fetch(sql.LOCK, *zip(*keys, strict=True)):
            write = writes[MailboxRef(row["tenant_id"], row["mailbox_id"])]
            report, result = _best(reports[row["id"]], row["claim_token"])
            current = Status(row["status"])
            if row["claim_token"] != result.group.token:
                change = self._late(write, row, report, result, current)
                if change is not None:
                    changes.append(change)
                continue
            decided = self._decide(write, row, report, result, current)
            if rules.may_become(current, decided.status):
                changes.append(Change(write, row, decided, _made(report, result)))
            else:
                ignored.append((row["tenant_id"], row["mailbox_id"], row["id"]))
        if ignored:
            await conn.execute(sql.UNCLAIM, *zip(*ignored, strict=True))
        return changes

    def _late(self, write: MailboxWrite, row: Any, report: Report, result: Result, current: Status) -> Change | None:
        """The result of a claim that was lost. That it was taken is proof about what is uncertain, or is about to be:
        whoever has claimed it since does not send what somebody began to send. Anything else changes nothing (outbound
        §10 step 6)."""
        is_open = current is Status.UNCERTAIN or (current.is_waiting and row["data_started_at"] is not None)
        if not is_open or not _is_taken(report):
            # Of a result that was written although the connection was lost at its commit, too.
            log.info("stale_outcome", message_id=result.group.letter.id)
            return None
        assert isinstance(report.outcome, Outcome), "checked above"
        standing = _standing(row, result.group)
        decided = rules.decide(report.outcome, standing, now=write.now, random=self._random)
        return Change(write, row, decided, _made(report, result), reconciles=current is Status.UNCERTAIN)

    def _decide(self, write: MailboxWrite, row: Any, report: Report, result: Result, current: Status) -> Decided:
        if isinstance(report.outcome, Decided):
            return report.outcome
        standing, outcome = _standing(row, result.group), report.outcome
        if self._retry_unknown and result.group.letter.operation is Operation.SUBMISSION:
            outcome = rules.as_temporary(outcome)
        return rules.decide(outcome, standing, now=write.now, random=self._random, policy=self._policy)


def _heard(undone: asyncio.Future[bool]) -> None:
    if not undone.cancelled() and (error := undone.exception()) is not None:
        log.warning("start_not_revoked", error=type(error).__name__)


def _best(told: Sequence[tuple[Report, Result]], token: object) -> tuple[Report, Result]:
    """What is known of one delivery: what the present claim says, but where it does not know and a lost one does."""
    own = next((one for one in told if one[1].group.token == token), None)
    proof = next((one for one in told if _is_taken(one[0])), None)
    if own is None:
        return proof or told[-1]
    unsure = isinstance(own[0].outcome, Outcome) and own[0].outcome.verdict is Verdict.UNCERTAIN
    return proof if unsure and proof is not None else own


def _is_taken(report: Report) -> bool:
    return isinstance(report.outcome, Outcome) and report.outcome.verdict is Verdict.DELIVERED


def _standing(row: Any, group: Group) -> Standing:
    route = RouteKind(row["route"])
    return Standing(Status(row["status"]), route, row["tries"], row["attempts"], group.letter.accepted_at)


def _made(report: Report, result: Result) -> Made | None:
    if not result.attempted:
        return None
    return Made(report.remote_mx, result.duration_ms, result.provider, result.provider_message_id, report.relayed)
