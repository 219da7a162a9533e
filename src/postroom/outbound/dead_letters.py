"""Work that was given up: found, shown, and begun anew (J8; FR-OPS-4; events-webhooks-errors §25).

The product row is the job, and stays what it is when it is given up (`db.claim`). An item points to it: it is made when
the row is found to be parked, and says whether somebody let it go on. Nothing of what the work is about is in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from postroom.accounts.alerts import Condition, Severity
from postroom.accounts.audit import HOST, Actor, Entry, record
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator, is_id
from postroom.db.claim import ClaimQueue, Key
from postroom.db.pool import Connection, Database
from postroom.events.webhooks import claiming as webhooks
from postroom.mailbox import words
from postroom.outbound import bounces, claiming, invitation_mail

KEPT: Final = timedelta(days=14)
OPEN_FOR: Final = timedelta(minutes=15)
"""How long work may stand still before somebody is to be told (J8)."""
BATCH: Final = 500
MAX_PAGE: Final = 101
"""A page of a hundred, and one more that tells whether another follows."""


class DeadQueue(StrEnum):
    """As the published contract names them. Nothing of the others can be given up yet."""

    INBOUND = "inbound"
    OUTBOUND = "outbound"
    DELIVERY_EVENTS = "delivery-events"
    WEBHOOKS = "webhooks"
    INDEX = "index"


class State(StrEnum):
    OPEN = "open"
    REDRIVEN = "redriven"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item. `redriven_at` is None while the work stands still."""

    public_id: str
    queue: DeadQueue
    kind: str
    tenant_public_id: str | None
    first_seen_at: datetime
    redriven_at: datetime | None
    redrive_count: int


Then = Callable[[Connection, DeadLetter], Awaitable[None]]
"""What is done in the same transaction as beginning work anew."""

# $1 the earliest moment, $2 kind, $3 how many.
_NEW: Final = """
SELECT ARRAY[<key>] AS key, t.tenant_id, t.parked_at FROM <table> t
WHERE t.parked_at > $1 AND NOT EXISTS (SELECT FROM dlq_items i WHERE i.kind = $2 AND i.key = ARRAY[<key>])
ORDER BY t.parked_at LIMIT $3
"""
_INSERT: Final = """
INSERT INTO dlq_items (public_id, queue, kind, key, tenant_id, first_seen_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (kind, key) DO NOTHING
"""
# It was given up once more.
_REOPEN: Final = """
UPDATE dlq_items i SET redriven_at = NULL FROM <table> t
WHERE i.kind = $1 AND i.redriven_at IS NOT NULL AND <same> AND t.parked_at > i.redriven_at
"""
# Somebody let it go on by another way.
_GONE_ON: Final = """
UPDATE dlq_items i SET redriven_at = $2 FROM <table> t
WHERE i.kind = $1 AND i.redriven_at IS NULL AND <same> AND t.parked_at IS NULL
"""
# What it was about is there no more.
_FORGET: Final = """
DELETE FROM dlq_items i
WHERE i.kind = $1 AND i.redriven_at IS NULL AND NOT EXISTS (SELECT FROM <table> t WHERE <same>)
"""
_OPEN: Final = """
SELECT queue FROM dlq_items WHERE redriven_at IS NULL AND first_seen_at < $1 GROUP BY queue ORDER BY queue LIMIT $2
"""
_EXPIRE: Final = "DELETE FROM dlq_items WHERE first_seen_at <= $1"

_SELECT: Final = """
SELECT i.public_id, i.queue, i.kind, i.key, i.first_seen_at, i.redriven_at, i.redrive_count, t.public_id AS tenant
FROM dlq_items i LEFT JOIN tenants t ON t.id = i.tenant_id
"""
_PAGE: Final = _SELECT + (
    "WHERE (i.redriven_at IS NULL) = $1 AND ($2::text IS NULL OR i.queue = $2)"
    " AND ($3::text IS NULL OR t.public_id = $3)"
    " AND ($4::timestamptz IS NULL OR (i.first_seen_at, i.public_id) > ($4, $5::text))"
    " ORDER BY i.first_seen_at, i.public_id LIMIT $6"
)
_LOCK: Final = _SELECT + "WHERE i.public_id = $1 FOR NO KEY UPDATE OF i"
_REDRIVEN: Final = "UPDATE dlq_items SET redriven_at = $2, redrive_count = redrive_count + 1 WHERE public_id = $1"


class _Kind:
    """Rows of one table that are claimed, as dead letters."""

    def __init__(self, name: str, queue: DeadQueue, rows: ClaimQueue) -> None:
        self.name, self.queue, self.rows = name, queue, rows
        columns = list(rows.spec.keys.items())
        parts = {
            "<table>": rows.spec.table,
            "<key>": ", ".join(f"t.{column}::text" for column, _ in columns),
            # By the row's own index, which a comparison of texts would not use.
            "<same>": " AND ".join(
                f"t.{column} = (i.key[{at}])::{kind}" for at, (column, kind) in enumerate(columns, start=1)
            ),
        }

        def made(template: str) -> str:
            for mark, text in parts.items():
                template = template.replace(mark, text)
            return template

        self.new, self.reopen, self.gone_on, self.forget = map(made, (_NEW, _REOPEN, _GONE_ON, _FORGET))

    def key(self, texts: list[str]) -> Key:
        """The primary key of a row, of its columns' own types."""
        kinds = self.rows.spec.keys.values()
        return tuple(text if kind == "text" else int(text) for text, kind in zip(texts, kinds, strict=True))


KINDS: Final = (
    _Kind("delivery", DeadQueue.OUTBOUND, claiming.QUEUE),
    _Kind("notice", DeadQueue.OUTBOUND, bounces.QUEUE),
    _Kind("invitation", DeadQueue.OUTBOUND, invitation_mail.QUEUE),
    _Kind("words", DeadQueue.INDEX, words.QUEUE),
    _Kind("webhook", DeadQueue.WEBHOOKS, webhooks.QUEUE),
)
_BY_NAME: Final = {kind.name: kind for kind in KINDS}


async def _open(conn: Connection, now: datetime, most: int) -> Sequence[str]:
    rows = await conn.fetch(_OPEN, now - OPEN_FOR, most)
    return [row["queue"] for row in rows]


CONDITIONS: Final = (Condition("dlq", Severity.PAGE, _open),)


class DeadLetters:
    """Use cases of operators. Callers have checked that they are. After a commit `wake` is told that work is due."""

    def __init__(self, database: Database, clock: Clock, ids: IdGenerator, wake: Callable[[], None]) -> None:
        self._database, self._clock, self._ids, self._wake = database, clock, ids, wake

    async def collect(self) -> int:
        """Make items of what was given up since, and let the others say how it stands; how many are new. It may run
        twice, and in several processes.
        """
        now, count = self._clock.now(), 0
        async with self._database.transaction() as conn:
            for kind in KINDS:
                rows = await conn.fetch(kind.new, now - KEPT, kind.name, BATCH)
                for row in rows:
                    made = (self._ids.new("dlq_"), kind.queue.value, kind.name)
                    await conn.execute(_INSERT, *made, row["key"], row["tenant_id"], row["parked_at"])
                await conn.execute(kind.reopen, kind.name)
                await conn.execute(kind.gone_on, kind.name, now)
                await conn.execute(kind.forget, kind.name)
                count += len(rows)
            await conn.execute(_EXPIRE, now - KEPT)
        return count

    async def page(
        self,
        *,
        state: State = State.OPEN,
        queue: DeadQueue | None = None,
        tenant: str | None = None,
        limit: int = 25,
        after: tuple[datetime, str] | None = None,
    ) -> list[DeadLetter]:
        """Items, oldest first, as things are now; `tenant` by its public id, `after`: when the last one seen was seen
        first, and its id.
        """
        if after is None:
            await self.collect()
        moment, public_id = after if after is not None else (None, None)
        async with self._database.acquire() as conn:
            rows = await conn.fetch(
                _PAGE,
                *(state is State.OPEN, None if queue is None else queue.value, tenant, moment, public_id),
                min(max(limit, 1), MAX_PAGE),
            )
        return [_item(row) for row in rows]

    async def redrive(self, public_id: str, *, by: Actor = HOST, then: Then | None = None) -> DeadLetter:
        """Make the work due again with a clean slate; what goes on already is left alone. `then` is done in the
        transaction. Raises `dlq_item_not_found`.
        """
        if not is_id("dlq_", public_id):
            raise PostroomError("dlq_item_not_found")
        now = self._clock.now()
        async with self._database.transaction() as conn:
            row = await conn.fetchrow(_LOCK, public_id)
            if row is None:
                raise PostroomError("dlq_item_not_found")
            kind = _BY_NAME[row["kind"]]
            begun = await kind.rows.unpark(conn, [kind.key(row["key"])], now=now)
            if begun:
                await conn.execute(_REDRIVEN, public_id, now)
                details = {"queue": kind.queue.value, "kind": kind.name}
                await record(conn, self._ids, now, by, Entry("dlq.redrive", "dlq_item", public_id, None, details))
                row = await conn.fetchrow(_LOCK, public_id)
            item = _item(row)
            if then is not None:
                await then(conn, item)
        if begun:
            self._wake()
        return item


def _item(row: Any) -> DeadLetter:
    return DeadLetter(
        public_id=row["public_id"],
        queue=DeadQueue(row["queue"]),
        kind=row["kind"],
        tenant_public_id=row["tenant"],
        first_seen_at=row["first_seen_at"],
        redriven_at=row["redriven_at"],
        redrive_count=row["redrive_count"],
    )
