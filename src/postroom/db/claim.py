"""Handing out work that is recorded in product rows (B1).

There is no queue beside the data: a delivery, a webhook delivery, a batch of words to index *is* the job. Its table
has these columns::

    next_attempt_at timestamptz   when the work is due; NULL: nothing to do (done, or parked)
    lease_until     timestamptz   until when the present claim holds; NULL: not claimed
    claim_token     uuid          names the present claim; whoever does not know it any more changes nothing
    attempts        integer       claims so far; the claim itself raises it, so a job that kills its worker counts too
    parked_at       timestamptz   given up after ``max_attempts``; a person decides
    last_error      text          a code, never content

A claim takes due rows with ``SKIP LOCKED``, and rows whose lease ran out (their worker died). Every later step names
row and token, so a worker that was too slow finds that its claim is gone and leaves the row to its successor. All
functions run on the caller's connection and take part in its transaction if it has one: what the work changed and
that it is done commit together.

Work is done at least once. Instants are the caller's (``now``), so that a test moves time by moving its clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import asyncpg

from .pool import Connection

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)
_KEY_TYPES = frozenset({"bigint", "integer", "text", "uuid"})
_STATE = ("next_attempt_at", "claim_token", "attempts")
MAX_CLAIM = 1000
# What last_error says when a claim ended with nobody to tell why.
WORKER_LOST = "worker_lost"

Key = tuple[Any, ...]


class Finish(Enum):
    """What becomes of a row whose work is done."""

    CLEAR = "clear"
    DELETE = "delete"


class Retry(Enum):
    """What became of a row that was to be tried again."""

    SCHEDULED = "scheduled"
    PARKED = "parked"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """How the work of one table is claimed. Every string here is a constant of the program: it becomes SQL.

    ``keys`` maps the primary key's columns to their types. ``values`` are further columns that a claim returns.
    ``due`` is an extra condition on the row ``t``. ``order`` are columns, the most urgent first. With ``group`` a
    claim takes, for each row it picks, all due rows that agree in these columns, under one token. After
    ``max_attempts`` claims a row is parked.
    """

    table: str
    keys: Mapping[str, str]
    lease: timedelta
    max_attempts: int
    values: tuple[str, ...] = ()
    due: str = "true"
    order: tuple[str, ...] = ("next_attempt_at",)
    group: tuple[str, ...] = ()
    finish: Finish = Finish.CLEAR

    def __post_init__(self) -> None:
        for name in (self.table, *self.keys, *self.values, *self.order, *self.group):
            if not _IDENTIFIER.fullmatch(name):
                raise ValueError(f"not a plain SQL name: {name!r}")
        if not self.keys or not set(self.keys.values()) <= _KEY_TYPES:
            raise ValueError(f"{self.table}: keys need a type among {sorted(_KEY_TYPES)}")
        if self.max_attempts < 1 or self.lease <= timedelta(0):
            raise ValueError(f"{self.table}: max_attempts and lease must be positive")


@dataclass(frozen=True, slots=True)
class Claim:
    """One row in our hands until ``lease_until``, this being its ``attempt``-th claim (from 1). Rows of one group
    share the token.
    """

    key: Key
    token: UUID
    attempt: int
    lease_until: datetime
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimBatch:
    """What a claim found: work, and keys that it parked because their last worker died on the last attempt."""

    claims: tuple[Claim, ...]
    parked: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Rows of one table by state; ``oldest_due`` is the earliest due time that is not being worked on."""

    due: int
    waiting: int
    claimed: int
    parked: int
    oldest_due: datetime | None


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row that was given up, for ``postroom queue``."""

    key: Key
    parked_at: datetime
    attempts: int
    last_error: str | None


class ClaimQueue:
    """The operations on the work of one table."""

    def __init__(self, spec: ClaimSpec) -> None:
        self.spec = spec
        self._sql = _Statements(spec)

    async def claim(self, connection: Connection, *, now: datetime, limit: int) -> ClaimBatch:
        """Take up to *limit* due rows (or groups), at most :data:`MAX_CLAIM`, each for ``spec.lease`` from *now*.

        Rows that another claim is taking at the moment are passed over. With groups the claims of a table run one
        after another, and the lock that orders them is held to the end of the caller's transaction: claim groups in a
        transaction of its own.
        """
        if limit <= 0:
            return ClaimBatch((), ())
        until = now + self.spec.lease
        limit = min(limit, MAX_CLAIM)
        if self.spec.group:
            async with connection.transaction():
                await connection.execute(
                    "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"claim:{self.spec.table}"
                )
                rows = await connection.fetch(self._sql.claim, now, limit, until, self.spec.max_attempts)
        else:
            rows = await connection.fetch(self._sql.claim, now, limit, until, self.spec.max_attempts)
        claims, parked = [], []
        for row in rows:
            key = self._key(row)
            if row["claim_token"] is None:
                parked.append(key)
                continue
            values = {name: row[name] for name in self.spec.values}
            claims.append(Claim(key, row["claim_token"], row["attempts"], until, values))
        return ClaimBatch(tuple(claims), tuple(parked))

    async def finish(self, connection: Connection, claims: Sequence[Claim]) -> frozenset[Key]:
        """The work of *claims* is done. Returns the keys that were still ours; a stale claim changes nothing."""
        return await self._on_claims(connection, self._sql.finish, claims)

    async def reschedule(self, connection: Connection, claim: Claim, at: datetime) -> bool:
        """Done for this time, due again at *at* with a clean slate (periodic work). False when the claim was stale."""
        return bool(await self._on_claims(connection, self._sql.reschedule, [claim], at))

    async def retry(self, connection: Connection, claim: Claim, *, now: datetime, at: datetime, error: str) -> Retry:
        """Not done, try again at *at*; parked instead when this was the last attempt. *error* is a code."""
        row = await connection.fetchrow(self._sql.retry, *self._arrays([claim]), at, error, now, self.spec.max_attempts)
        if row is None:
            return Retry.STALE
        return Retry.PARKED if row["next_attempt_at"] is None else Retry.SCHEDULED

    async def park(
        self, connection: Connection, claims: Sequence[Claim], *, now: datetime, error: str
    ) -> frozenset[Key]:
        """Give up on *claims* now. Returns the keys that were still ours."""
        return await self._on_claims(connection, self._sql.park, claims, now, error)

    async def extend(self, connection: Connection, claims: Sequence[Claim], *, until: datetime) -> frozenset[Key]:
        """Hold *claims* until a later instant. Returns the keys still ours: stop working on the others."""
        return await self._on_claims(connection, self._sql.extend, claims, until)

    async def release(self, connection: Connection, claims: Sequence[Claim]) -> frozenset[Key]:
        """Give *claims* back untouched (shutdown): due as before, the attempt not counted."""
        return await self._on_claims(connection, self._sql.release, claims)

    async def unpark(self, connection: Connection, keys: Sequence[Key], *, now: datetime) -> frozenset[Key]:
        """Make parked rows due again with a clean slate (``postroom queue retry``). Returns those that were parked."""
        columns = zip(*keys, strict=True) if keys else ([] for _ in self.spec.keys)
        rows = await connection.fetch(self._sql.unpark, *(list(column) for column in columns), now)
        return frozenset(self._key(row) for row in rows)

    async def parked(self, connection: Connection, *, limit: int = 100) -> tuple[ParkedRow, ...]:
        """The rows given up last, newest first."""
        rows = await connection.fetch(self._sql.parked, limit)
        return tuple(ParkedRow(self._key(row), row["parked_at"], row["attempts"], row["last_error"]) for row in rows)

    async def counts(self, connection: Connection, *, now: datetime) -> QueueCounts:
        """How much work there is. Reads every row that has any: for pages and alarms, not for loops."""
        row = await connection.fetchrow(self._sql.counts, now)
        assert row is not None
        return QueueCounts(row["due"], row["waiting"], row["claimed"], row["parked"], row["oldest_due"])

    async def next_due(self, connection: Connection, *, now: datetime) -> datetime | None:
        """When work is due next (perhaps already, perhaps by a lease running out), for a worker that wants to sleep
        until then.
        """
        value: datetime | None = await connection.fetchval(self._sql.next_due, now)
        return value

    async def _on_claims(
        self, connection: Connection, sql: str, claims: Sequence[Claim], *arguments: Any
    ) -> frozenset[Key]:
        if not claims:
            return frozenset()
        rows = await connection.fetch(sql, *self._arrays(claims), *arguments)
        return frozenset(self._key(row) for row in rows)

    def _arrays(self, claims: Sequence[Claim]) -> list[list[Any]]:
        return [
            [claim.token for claim in claims],
            *([claim.key[i] for claim in claims] for i in range(len(self.spec.keys))),
        ]

    def _key(self, row: asyncpg.Record) -> Key:
        return tuple(row[name] for name in self.spec.keys)


def queue(spec: ClaimSpec) -> ClaimQueue:
    """The queue of *spec*."""
    return ClaimQueue(spec)


class _Statements:
    """The SQL of one spec, rendered once. ``<name>`` in a template stands for a part made of its constants."""

    def __init__(self, spec: ClaimSpec) -> None:
        keys = tuple(spec.keys)
        returned = dict.fromkeys((*keys, *spec.values, *spec.order, *_STATE))
        # held($1 token, $2… keys): the rows that our claims still own. Further parameters follow from $n on.
        arrays = ", ".join(f"${i}::{kind}[]" for i, kind in enumerate(("uuid", *spec.keys.values()), start=1))
        self._next = len(keys) + 2
        self._parts = {
            "table": spec.table,
            "keys": ", ".join(keys),
            "t_keys": _columns("t", keys),
            "returned": _columns("t", returned),
            "due": f"t.next_attempt_at <= $1 AND (t.lease_until IS NULL OR t.lease_until <= $1) AND ({spec.due})",
            "order": ", ".join(spec.order),
            "t_order": _columns("t", spec.order),
            "same_row": " AND ".join(f"t.{name} = picked.{name}" for name in keys),
            "group": ", ".join(spec.group),
            "t_group": _columns("t", spec.group),
            "same_group": " AND ".join(f"t.{name} IS NOT DISTINCT FROM groups.{name}" for name in spec.group),
            "held": f"unnest({arrays}) AS held (token, {', '.join(keys)})",
            "is_held": "t.claim_token = held.token AND " + " AND ".join(f"t.{name} = held.{name}" for name in keys),
            "idle": "lease_until = NULL, claim_token = NULL",
            "lost": f"'{WORKER_LOST}'",
        }
        self.claim = self._render((_PICK_GROUPS if spec.group else _PICK_ROWS) + _TAKE)
        done = "DELETE FROM <table> AS t USING <held> WHERE <is_held> RETURNING <t_keys>"
        self.finish = (
            self._render(done)
            if spec.finish is Finish.DELETE
            else self._change("<idle>, next_attempt_at = NULL, parked_at = NULL, last_error = NULL")
        )
        self.reschedule = self._change(
            "<idle>, next_attempt_at = <1>, attempts = 0, parked_at = NULL, last_error = NULL"
        )
        self.retry = self._change(
            "<idle>, last_error = <2>, next_attempt_at = CASE WHEN t.attempts < <4> THEN <1>::timestamptz END,"
            " parked_at = CASE WHEN t.attempts >= <4> THEN <3>::timestamptz END",
            ", t.next_attempt_at",
        )
        self.park = self._change("<idle>, next_attempt_at = NULL, parked_at = <1>, last_error = <2>")
        self.extend = self._change("lease_until = <1>")
        self.release = self._change("<idle>, attempts = greatest(t.attempts - 1, 0)")
        key_arrays = ", ".join(f"${i}::{kind}[]" for i, kind in enumerate(spec.keys.values(), start=1))
        self._parts["wanted"] = f"unnest({key_arrays}) AS picked ({', '.join(keys)})"
        self._parts["now"] = f"${len(keys) + 1}"
        self.unpark = self._render(
            "UPDATE <table> AS t SET next_attempt_at = <now>, attempts = 0, parked_at = NULL, <idle> FROM <wanted>"
            " WHERE <same_row> AND t.parked_at IS NOT NULL RETURNING <t_keys>"
        )
        self.parked = self._render(
            "SELECT <keys>, parked_at, attempts, last_error FROM <table> WHERE parked_at IS NOT NULL"
            " ORDER BY parked_at DESC LIMIT $1"
        )
        self.counts = self._render(_COUNTS)
        self.next_due = self._render(
            "SELECT min(greatest(next_attempt_at, CASE WHEN lease_until > $1 THEN lease_until END)) FROM <table> AS t"
            " WHERE next_attempt_at IS NOT NULL"
        )

    def _change(self, assignments: str, also_returned: str = "") -> str:
        for number in range(1, 5):
            assignments = assignments.replace(f"<{number}>", f"${self._next + number - 1}")
        self._parts["assignments"], self._parts["also"] = self._render(assignments), also_returned
        return self._render(
            "UPDATE <table> AS t SET <assignments> FROM <held> WHERE <is_held> RETURNING <t_keys><also>"
        )

    def _render(self, template: str) -> str:
        return re.sub(r"<([a-z_]+)>", lambda match: self._parts[match[1]], template)


def _columns(alias: str, names: Sequence[str] | Mapping[str, None]) -> str:
    return ", ".join(f"{alias}.{name}" for name in names)


# $1 now, $2 limit, $3 lease until, $4 max attempts.
_PICK_ROWS = """
WITH picked AS MATERIALIZED (
    SELECT <t_keys>, gen_random_uuid() AS token FROM <table> AS t
    WHERE <due> ORDER BY <t_order>, <t_keys> LIMIT $2
    FOR NO KEY UPDATE SKIP LOCKED
)"""
_PICK_GROUPS = """
WITH heads AS MATERIALIZED (
    SELECT <t_group> FROM <table> AS t
    WHERE <due> ORDER BY <t_order>, <t_keys> LIMIT $2
    FOR NO KEY UPDATE SKIP LOCKED
), groups AS MATERIALIZED (
    SELECT <group>, gen_random_uuid() AS token FROM (SELECT DISTINCT <group> FROM heads) AS heads
), picked AS MATERIALIZED (
    SELECT <t_keys>, groups.token FROM <table> AS t JOIN groups ON <same_group>
    WHERE <due>
    FOR NO KEY UPDATE OF t SKIP LOCKED
)"""
_TAKE = """, taken AS (
    UPDATE <table> AS t SET
        attempts = least(t.attempts + 1, $4::integer),
        lease_until = CASE WHEN t.attempts < $4 THEN $3::timestamptz END,
        claim_token = CASE WHEN t.attempts < $4 THEN picked.token END,
        next_attempt_at = CASE WHEN t.attempts < $4 THEN t.next_attempt_at END,
        parked_at = CASE WHEN t.attempts >= $4 THEN $1::timestamptz END,
        last_error = CASE WHEN t.attempts >= $4 THEN coalesce(t.last_error, <lost>) ELSE t.last_error END
    FROM picked WHERE <same_row>
    RETURNING <returned>
)
SELECT * FROM taken ORDER BY <order>, <keys>"""
_COUNTS = """
SELECT count(*) FILTER (WHERE next_attempt_at <= $1 AND (lease_until IS NULL OR lease_until <= $1)) AS due,
       count(*) FILTER (WHERE next_attempt_at > $1 AND (lease_until IS NULL OR lease_until <= $1)) AS waiting,
       count(*) FILTER (WHERE next_attempt_at IS NOT NULL AND lease_until > $1) AS claimed,
       count(*) FILTER (WHERE parked_at IS NOT NULL) AS parked,
       min(next_attempt_at)
           FILTER (WHERE next_attempt_at <= $1 AND (lease_until IS NULL OR lease_until <= $1)) AS oldest_due
FROM <table> AS t WHERE next_attempt_at IS NOT NULL OR parked_at IS NOT NULL"""
