"""Recording what attempts came to: in one transaction per mailbox, under the claim's token, until it is done
(outbound §10 step 6; mail-server C3; B15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs.store import BlobStore, StorageError
from postroom.db import errors as db_errors
from postroom.db.pool import Database
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.writing import MailboxWrite, begin_write
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
"""Groups of one mailbox whose results are written in one transaction."""
MAX_STARTS: Final = 200
PARALLEL: Final = 8
"""Transactions at a time; each has a connection of the pool."""
FIRST_PAUSE: Final = 0.1
START_SECONDS: Final = 10.0
"""How long a peer that is ready for the message is kept waiting while the database is away."""
LONGEST_PAUSE: Final = 5.0

Changed = Callable[[MailboxRef, int], None]
"""Told after a commit: the mailbox and its new modseq. Must not block."""


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
        self._results: Gathering[MailboxRef, Result, BaseException | None] = Gathering(
            self._flush, most=MAX_TOGETHER, parallel=PARALLEL
        )
        self._starts: Gathering[None, Begun, bool] = Gathering(self._start, most=MAX_STARTS, parallel=1)

    # -- before the message goes out -----------------------------------------------------------------------------------

    async def start(self, group: Group, ids: Sequence[int]) -> bool:
        """Commit that the message now goes out to these; False when the claim is lost: then nothing may be sent (C3).

        Raises what the database raises: then nothing may be sent either.
        """
        return await self._starts.add(None, Begun(group.token, group.letter.ref, tuple(ids)))

    async def _start(self, _: None, begun: Sequence[Begun]) -> list[bool]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_SECONDS
        while True:
            now = self._clock.now()
            try:
                async with self._database.acquire() as conn:
                    return await claiming.start(conn, begun, now=now, until=now + claiming.LEASE)
            except Exception as error:
                # Doing it again changes nothing, and the peer waits for minutes.
                if not db_errors.is_transient(error) or loop.time() > deadline:
                    raise
            await asyncio.sleep(FIRST_PAUSE)

    # -- after it ------------------------------------------------------------------------------------------------------

    async def record(self, result: Result) -> None:
        """Write the result; returns when it is committed, or turned out not to be ours to write any more.

        Tries as long as it takes while the database is away. Raises what is wrong with the data: then the claim lapses
        by itself.
        """
        error = await self._results.add(result.group.letter.ref, result)
        if error is not None:
            raise error

    async def _flush(self, ref: MailboxRef, results: Sequence[Result]) -> list[BaseException | None]:
        try:
            await self._store(ref, results)
        except Exception as error:  # noqa: BLE001 - each result is answered, the sound ones by being stored
            if len(results) == 1:
                log.error("outcome_not_recorded", error=type(error).__name__, message_id=results[0].group.letter.id)
                return [error]
            answers: list[BaseException | None] = []
            for result in results:
                answers += await self._flush(ref, [result])
            return answers
        return [None] * len(results)

    async def _store(self, ref: MailboxRef, results: Sequence[Result]) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._transact(ref, results)
                return
            except PostroomError:
                # The mailbox is gone, and its deliveries with it.
                log.warning("outcome_of_no_mailbox", count=len(results))
                return
            except Exception as error:
                if not db_errors.is_transient(error):
                    raise
                log.warning("outcome_delayed", error=type(error).__name__, count=len(results))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _transact(self, ref: MailboxRef, results: Sequence[Result]) -> None:
        async with self._database.transaction() as conn:
            await conn.execute(claiming.PLANS)
            write = await begin_write(conn, ref, self._clock.now())
            changes = await self._changes(write, results)
            settled = await settle(write, changes, self._ids, telling=self._telling)
            await write.finish()
        await self.after_commit(ref, write.modseq if changes else None, settled)

    async def after_commit(self, ref: MailboxRef, modseq: int | None, settled: Settled) -> None:
        """What is left to do once a transaction of `settle` is committed."""
        if modseq is not None:
            self._changed(ref, modseq)
        if settled.notices:
            self._noticed()
        if settled.wires:
            try:
                await self._blobs.delete(settled.wires)
            except StorageError:
                log.warning("orphan_blobs_left", count=len(settled.wires))

    async def _changes(self, write: MailboxWrite, results: Sequence[Result]) -> list[Change]:
        reports = {report.id: (report, result) for result in results for report in result.reports}
        rows = await write.conn.fetch(sql.LOCK, write.ref.tenant_id, write.ref.mailbox_id, sorted(reports))
        changes, ignored = [], []
        for row in rows:
            report, result = reports[row["id"]]
            current = Status(row["status"])
            if row["claim_token"] != result.group.token:
                change = self._late(row, report, result, current)
                if change is not None:
                    changes.append(change)
                continue
            decided = self._decide(write, row, report, result, current)
            if rules.may_become(current, decided.status):
                changes.append(Change(row, decided, _made(report, result)))
            else:
                ignored.append(row["id"])
        if ignored:
            await write.conn.execute(sql.UNCLAIM, write.ref.tenant_id, write.ref.mailbox_id, ignored)
        return changes

    def _late(self, row: Any, report: Report, result: Result, current: Status) -> Change | None:
        """The result of a claim that was lost. That it was taken is proof about what is uncertain; anything else
        changes nothing (outbound §10 step 6)."""
        taken = isinstance(report.outcome, Outcome) and report.outcome.verdict is Verdict.DELIVERED
        if not taken or current is not Status.UNCERTAIN:
            # Of a result that was written although the connection was lost at its commit, too.
            log.info("stale_outcome", message_id=result.group.letter.id)
            return None
        assert isinstance(report.outcome, Outcome), "checked above"
        standing = _standing(row, result.group)
        decided = rules.decide(report.outcome, standing, now=self._clock.now(), random=self._random)
        return Change(row, decided, _made(report, result), reconciles=True)

    def _decide(self, write: MailboxWrite, row: Any, report: Report, result: Result, current: Status) -> Decided:
        if isinstance(report.outcome, Decided):
            return report.outcome
        standing, outcome = _standing(row, result.group), report.outcome
        if self._retry_unknown and result.group.letter.operation is Operation.SUBMISSION:
            outcome = rules.as_temporary(outcome)
        return rules.decide(outcome, standing, now=write.now, random=self._random, policy=self._policy)


def _standing(row: Any, group: Group) -> Standing:
    route = RouteKind(row["route"])
    return Standing(Status(row["status"]), route, row["tries"], row["attempts"], group.letter.accepted_at)


def _made(report: Report, result: Result) -> Made | None:
    if not result.attempted:
        return None
    return Made(report.remote_mx, result.duration_ms, result.provider, result.provider_message_id, report.relayed)
