"""A batch's transaction: opened, written, committed; what is asked when the answer to COMMIT is lost (B14, B15)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import asyncpg

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.db import errors as db_errors
from postroom.db.pool import Connection, Database
from postroom.mailbox import append_sql as sql
from postroom.mailbox.append import Group, append
from postroom.mailbox.models import Busy, GroupOutcome, MailboxRef

if TYPE_CHECKING:
    _Raw = asyncpg.Connection[asyncpg.Record]

log = base_log.get("ingest")

_IS_STORED: Final = "SELECT count(*) FROM messages WHERE tenant_id = $1 AND public_id = $2"
STATEMENT_SECONDS: Final = 60.0

BeforeCommit = Callable[[Connection, list[GroupOutcome]], Awaitable[None]]
"""What else belongs to the transaction, and what it has to wait for: called when all rows of the batch are written."""


class LockTimeout(Exception):
    """A mailbox that was waited for stayed somebody else's for the transaction's `lock_timeout`."""


class DatabaseAway(Exception):
    """The database could not be had, or lost every connection, for as long as a batch is tried again."""


class Session:
    """A committer's own connection, on which a transaction is begun before it is known what will be in it.

    So a message finds its transaction open, and nobody takes a connection from the pool for each batch.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._conn: _Raw | None = None
        self.begun = False

    async def begin(self) -> None:
        """Begin, connecting first when need be; without success the pool is tried for the batch, and says why."""
        try:
            if self._conn is None or self._conn.is_closed():
                self._conn = await self._database.connect(settings=sql.SETTINGS, command_timeout=STATEMENT_SECONDS)
            await self._conn.execute("BEGIN")
            self.begun = True
        except Exception:  # noqa: BLE001 - as said
            self._drop()

    async def abandon(self) -> None:
        """End a transaction in which nothing was done."""
        if self.begun:
            with contextlib.suppress(*db_errors.BROKEN):
                async with self.use() as conn:
                    await conn.execute("ROLLBACK")

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[_Raw]:
        """The connection with its open transaction, which the block ends. When it does not, or raises what comes of a
        lost connection, the connection is given up."""
        assert self._conn is not None
        self.begun = False
        try:
            yield self._conn
        except Exception as error:
            if db_errors.is_connection_lost(error) or isinstance(error, TimeoutError):
                self._drop()
            raise
        finally:
            if self._conn is not None and (self._conn.is_closed() or self._conn.is_in_transaction()):
                self._drop()

    def _drop(self) -> None:
        conn, self._conn, self.begun = self._conn, None, False
        if conn is not None:
            # The driver may know before us that there is nothing left to end.
            with contextlib.suppress(*db_errors.BROKEN):
                conn.terminate()

    async def close(self) -> None:
        conn, self._conn, self.begun = self._conn, None, False
        if conn is not None:
            with contextlib.suppress(*db_errors.BROKEN):
                await conn.close(timeout=5)


@dataclass(slots=True)
class _Attempt:
    outcomes: list[GroupOutcome] = field(default_factory=list)
    committing: bool = False


class Committing:
    """Stores batches. `before_commit` is called when everything but COMMIT is done."""

    def __init__(
        self, database: Database, clock: Clock, *, retry_seconds: float, before_commit: Callable[[], None] | None
    ) -> None:
        self._database = database
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._before_commit = before_commit

    async def store(
        self, groups: Sequence[Group], wait_for: Collection[MailboxRef], then: BeforeCommit, session: Session | None
    ) -> list[GroupOutcome]:
        """Commit a batch, trying again while the database is away; what became of each group, in order.

        Raises LockTimeout, DatabaseAway, what `then` raises, and the error of PostgreSQL about the data.
        """
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
                return await self._transaction(groups, attempt, wait_for, then, session)
            except Exception as error:
                if attempt.committing:
                    unsure = attempt.outcomes
                if unsure is None and db_errors.is_lock_timeout(error):
                    if wait_for:
                        raise LockTimeout from error
                    return [Busy(group[0].mailbox) for group in groups]
                if not _is_worth_retrying(error) or (unsure is None and db_errors.is_disk_full(error)):
                    raise
                if loop.time() + pause > deadline:
                    raise DatabaseAway from error
                log.warning("ingest_retry", error=type(error).__name__, unsure=unsure is not None)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)

    async def _transaction(
        self,
        groups: Sequence[Group],
        attempt: _Attempt,
        wait_for: Collection[MailboxRef],
        then: BeforeCommit,
        session: Session | None,
    ) -> list[GroupOutcome]:
        async with self._opened(session) as conn:
            try:
                attempt.outcomes = await append(conn, groups, now=self._clock.now(), wait_for=wait_for)
                await then(conn, attempt.outcomes)
                if self._before_commit is not None:
                    self._before_commit()
                attempt.committing = True
                await conn.execute("COMMIT")
            except BaseException:
                if not conn.is_closed():
                    await conn.execute("ROLLBACK")
                raise
            return attempt.outcomes

    @contextlib.asynccontextmanager
    async def _opened(self, session: Session | None) -> AsyncIterator[Connection]:
        """A connection with an open transaction: the session's, if it has begun one, else one from the pool."""
        if session is not None and session.begun:
            async with session.use() as conn:
                yield conn
        else:
            async with self._database.acquire() as conn:
                await conn.execute(sql.BEGIN)
                yield conn

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


def _is_worth_retrying(error: BaseException) -> bool:
    # A migration by a newer node outdates the statements that a connection has prepared: once (J9).
    outdated = isinstance(error, asyncpg.exceptions.InvalidCachedStatementError)
    return outdated or db_errors.is_transient(error) or db_errors.is_serialization(error)
