"""The operator's view of mail that leaves: what waits and why, and what can be done about it (mail-server C2, C9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from postroom.accounts.audit import HOST, Actor, Entry, record
from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs.store import BlobMissing, BlobStore, StorageError
from postroom.db.pool import Connection, Database
from postroom.mail.address import Address
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.writing import MailboxWrite, begin_write
from postroom.outbound import outcome_sql, rules, wire
from postroom.outbound.models import Operation, QueueState, Status
from postroom.outbound.rules import Action, Decided, NotAllowed
from postroom.outbound.settling import Change, Settled, settle

log = base_log.get("queue")

MAX_LIST: Final = 1000
KEEP: Final = timedelta(days=30)
"""`queue.retention_days` by default."""
PRUNE_BATCH: Final = 5000
NOT_FOUND: Final = "not_found"
BYTES_GONE: Final = "bytes_gone"

Sign = Callable[[bytes, str], Awaitable[bytes]]
Changed = Callable[[MailboxRef, int], None]


# $1 the time.
_STATE: Final = """
CASE WHEN d.status IN ('queued', 'deferred') THEN
       CASE WHEN d.lease_until > $1 THEN 'delivering' WHEN d.held_by_operator THEN 'held'
            WHEN d.parked_at IS NOT NULL THEN 'parked' WHEN d.status = 'queued' THEN 'pending' ELSE 'retry' END
     WHEN d.status IN ('submitted', 'delivered', 'complained') THEN 'delivered'
     WHEN d.status IN ('bounced', 'failed', 'rejected') THEN 'failed'
     WHEN d.status = 'canceled' THEN 'cancelled' ELSE d.status END
"""
_COLUMNS: Final = f"""
d.id, t.public_id AS tenant, i.public_id AS identity, m.public_id AS message, d.recipient, d.route, d.domain, d.status,
{_STATE} AS state, d.reason, d.smtp_code, d.enhanced_code, d.smtp_response, d.remote_mx, d.tries, d.next_attempt_at,
d.last_attempt_at, d.created_at, d.updated_at, o.wire_size, o.envelope_from
FROM deliveries d
JOIN outbound_messages o ON o.tenant_id = d.tenant_id AND o.message_id = d.message_id
JOIN messages m ON m.tenant_id = d.tenant_id AND m.id = d.message_id
JOIN identities i ON i.tenant_id = d.tenant_id AND i.id = d.mailbox_id
JOIN tenants t ON t.id = d.tenant_id
"""
# All parts are constants of this module.
_LIST: Final = f"""
SELECT * FROM (SELECT {_COLUMNS} WHERE d.id > $2 AND ($5::bigint IS NULL OR d.tenant_id = $5)
  AND (d.finished_at IS NULL OR d.finished_at > $6)) q
WHERE $3::text[] IS NULL OR q.state = ANY ($3) ORDER BY q.id LIMIT $4
"""  # noqa: S608 - see above
_ONE: Final = f"SELECT {_COLUMNS} WHERE d.id = $2"
_ATTEMPTS: Final = """
SELECT a.attempt, a.remote_mx, a.status_code, a.status_text, a.error, a.duration_ms, a.created_at
FROM deliveries d JOIN delivery_attempts a ON a.tenant_id = d.tenant_id AND a.delivery_id = d.id
WHERE d.id = $1 ORDER BY a.attempt
"""
# $1 the time, $2 since when what ended is counted, $3 when the day began. What was taken was so by the last attempt.
_COUNTS: Final = f"""
SELECT {_STATE} AS state, count(*) FILTER (WHERE d.finished_at IS NULL OR d.finished_at > $2) AS count,
  count(*) FILTER (WHERE d.status IN ('submitted', 'delivered', 'complained') AND d.last_attempt_at >= $3) AS sent,
  min(d.next_attempt_at) FILTER (WHERE d.next_attempt_at > $1 AND NOT d.held_by_operator) AS next_due
FROM deliveries d GROUP BY 1
"""  # noqa: S608 - see above
_NOTICES: Final = """
SELECT count(*) FILTER (WHERE b.lease_until IS NULL OR b.lease_until <= $1) AS pending,
  count(*) FILTER (WHERE b.lease_until > $1) AS processing
FROM bounce_tasks b WHERE b.next_attempt_at IS NOT NULL
"""
_RECEIVED: Final = "SELECT count(*) FROM messages WHERE received_at >= $1 AND source = 'mx'"
# By the indexes of what is due and of the status: nothing of what has ended is read.
_STANDING: Final = """
SELECT min(d.next_attempt_at) FILTER (WHERE NOT d.held_by_operator AND d.next_attempt_at <= $1
                                        AND (d.lease_until IS NULL OR d.lease_until <= $1)) AS oldest_due,
  count(*) FILTER (WHERE d.held_by_operator) AS held,
  (SELECT count(*) FROM deliveries u WHERE u.status = 'uncertain') AS uncertain,
  (SELECT min(u.updated_at) FROM deliveries u WHERE u.status = 'uncertain') AS uncertain_since
FROM deliveries d WHERE d.next_attempt_at IS NOT NULL
"""
_OWNER: Final = """
SELECT d.tenant_id, d.mailbox_id, d.message_id, o.operation, o.wire_key, m.blob_key, m.raw_prefix_len, m.from_address,
  m.from_name, o.sent_from, o.reply_to,
  m.public_id, b.tenant_public_id, b.identity_public_id, i.kind = 'agent' AND NOT i.is_system AS by_agent,
  EXISTS (SELECT FROM bounce_tasks b WHERE b.tenant_id = d.tenant_id AND b.delivery_id = d.id
          AND b.next_attempt_at IS NOT NULL) AS bounce_open
FROM deliveries d
JOIN outbound_messages o ON o.tenant_id = d.tenant_id AND o.message_id = d.message_id
JOIN messages m ON m.tenant_id = d.tenant_id AND m.id = d.message_id
JOIN mailboxes b ON b.tenant_id = d.tenant_id AND b.id = d.mailbox_id
JOIN identities i ON i.tenant_id = d.tenant_id AND i.id = d.mailbox_id
WHERE d.id = $1
"""
_HOLD: Final = "UPDATE deliveries SET held_by_operator = $3 WHERE tenant_id = $1 AND id = $2"
_LOCK_WIRE: Final = """
SELECT wire_key FROM outbound_messages WHERE tenant_id = $1 AND message_id = $2 FOR NO KEY UPDATE
"""
_AT_ONCE: Final = """
UPDATE deliveries SET next_attempt_at = $3, parked_at = NULL, attempts = 0, last_error = NULL
WHERE tenant_id = $1 AND id = $2
"""
_WIRE: Final = """
UPDATE outbound_messages SET wire_key = $3, wire_size = $4
WHERE tenant_id = $1 AND message_id = $2
"""
# Attempts of what ended long ago; what became of each recipient stays with the message (C9).
_PRUNE: Final = """
DELETE FROM delivery_attempts a USING (
  SELECT a.tenant_id, a.delivery_id, a.attempt FROM delivery_attempts a
  JOIN deliveries d ON d.tenant_id = a.tenant_id AND d.id = a.delivery_id
  WHERE d.finished_at < $1 AND a.created_at < $1
    AND NOT EXISTS (SELECT FROM bounce_tasks b WHERE b.tenant_id = d.tenant_id AND b.delivery_id = d.id
                    AND b.next_attempt_at IS NOT NULL)
  LIMIT $2
) old WHERE a.tenant_id = old.tenant_id AND a.delivery_id = old.delivery_id AND a.attempt = old.attempt
"""


@dataclass(frozen=True, slots=True)
class QueueItem:
    """One delivery. `id` is the `queue_id` (C1); the other ids are public ones. `size` in octets."""

    id: int
    tenant_id: str
    identity_id: str
    message_id: str
    sender: str
    recipient: str
    route: str
    destination: str
    status: Status
    state: QueueState
    reason: str | None
    smtp_code: int | None
    enhanced_code: str | None
    smtp_response: str | None
    remote_mx: str | None
    tries: int
    size: int
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class AttemptLog:
    """One attempt, as it is kept."""

    attempt: int
    remote_mx: str | None
    status_code: int | None
    status_text: str | None
    error: str | None
    duration_ms: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """The figures of C9, of all tenants. `counts` are deliveries by state, without what ended long ago; the others are
    notices to be written and being written, messages taken in and recipients that mail was handed over for since the
    day began (UTC), and when the next delivery becomes due that is not yet.
    """

    counts: Mapping[QueueState, int]
    bounce_pending: int
    bounce_processing: int
    received_today: int
    sent_today: int
    next_due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Standing:
    """Of the whole queue: since when mail is due that nobody has in hand and no operator holds; how much is held; how
    much is of unknown fate, and since when.
    """

    oldest_due: datetime | None
    held: int
    uncertain: int
    uncertain_since: datetime | None


async def standing(conn: Connection, now: datetime) -> Standing:
    """How the queue stands, over all tenants."""
    row = await conn.fetchrow(_STANDING, now)
    assert row is not None
    return Standing(**dict(row))


@dataclass(frozen=True, slots=True)
class Done:
    """What became of an operator's wish for one delivery: `refused` is a word for why not, None when it was done."""

    id: int
    refused: str | None = None


class _WireGone(Exception):
    """The bytes that go out went since they were looked for."""


class MailQueue:
    """Reads, and does what an operator may do. `changed` is told of mailboxes after the commit, `wake` that
    something is due. What ended longer than `keep` ago is not listed any more (C9). Nothing here asks who the caller
    is.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        ids: IdGenerator,
        *,
        sign: Sign,
        changed: Changed,
        wake: Callable[[], None],
        keep: timedelta = KEEP,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._ids = ids
        self._sign = sign
        self._changed = changed
        self._wake = wake
        self._keep = keep

    # -- reading -------------------------------------------------------------------------------------------------------

    async def list(
        self,
        *,
        states: Sequence[QueueState] | None = None,
        tenant: int | None = None,
        limit: int = 100,
        after: int = 0,
    ) -> Sequence[QueueItem]:
        """Deliveries by id, those after `after`; of some states, of one tenant (its key)."""
        wanted = None if states is None else [state.value for state in states]
        now = self._clock.now()
        async with self._database.acquire() as conn:
            rows = await conn.fetch(_LIST, now, after, wanted, min(limit, MAX_LIST), tenant, now - self._keep)
        return [_item(row) for row in rows]

    async def get(self, delivery_id: int) -> tuple[QueueItem, Sequence[AttemptLog]] | None:
        """A delivery and its attempts, in order; None if there is none."""
        async with self._database.acquire() as conn:
            row = await conn.fetchrow(_ONE, self._clock.now(), delivery_id)
            attempts = await conn.fetch(_ATTEMPTS, delivery_id)
        if row is None:
            return None
        return _item(row), [AttemptLog(**dict(one)) for one in attempts]

    async def statistics(self) -> QueueStatistics:
        """The figures as of now. Reads all deliveries."""
        now = self._clock.now()
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        async with self._database.acquire() as conn:
            rows = await conn.fetch(_COUNTS, now, now - self._keep, midnight)
            notices = await conn.fetchrow(_NOTICES, now)
            received = await conn.fetchval(_RECEIVED, midnight)
        assert notices is not None, "an aggregate has a row"
        found = {QueueState(row["state"]): row["count"] for row in rows}
        return QueueStatistics(
            counts={state: found.get(state, 0) for state in QueueState},
            bounce_pending=notices["pending"],
            bounce_processing=notices["processing"],
            received_today=received,
            sent_today=sum(row["sent"] for row in rows),
            next_due_at=min((row["next_due"] for row in rows if row["next_due"] is not None), default=None),
        )

    # -- doing ---------------------------------------------------------------------------------------------------------

    async def act(self, action: Action, ids: Sequence[int], *, by: Actor = HOST) -> Sequence[Done]:
        """Do it to each, in a transaction of its own; the answers in order."""
        answers = [Done(one, await self._act(action, one, by)) for one in ids]
        if action in (Action.RETRY, Action.RELEASE) and any(answer.refused is None for answer in answers):
            self._wake()
        return answers

    async def _act(self, action: Action, delivery_id: int, by: Actor) -> str | None:
        while True:
            try:
                return await self._try(action, delivery_id, by)
            except _WireGone:
                continue

    async def _try(self, action: Action, delivery_id: int, by: Actor) -> str | None:
        """Raises _WireGone, having done nothing."""
        async with self._database.acquire() as conn:
            owner = await conn.fetchrow(_OWNER, delivery_id)
        if owner is None:
            return NOT_FOUND
        rebuilt: tuple[str, int] | None = None
        if action is Action.RETRY and owner["wire_key"] is None:
            try:
                rebuilt = await self._rebuild(owner)
            except BlobMissing:
                return BYTES_GONE
        ref = MailboxRef(owner["tenant_id"], owner["mailbox_id"])
        try:
            async with self._database.transaction() as conn:
                write = await begin_write(conn, ref, self._clock.now())
                settled = await self._apply(write, action, delivery_id, owner, rebuilt)
                entry = Entry(f"queue.{action.value}", "delivery", str(delivery_id), ref.tenant_id)
                await record(conn, self._ids, write.now, by, entry)
                changed = await write.finish()
        except (NotAllowed, PostroomError) as refused:
            if rebuilt is not None:
                await self._forget(rebuilt[:1])
            return str(refused.args[0]) if isinstance(refused, NotAllowed) else NOT_FOUND
        if changed:
            self._changed(ref, write.modseq)
        if settled.wires:
            await self._forget(settled.wires)
        log.info("queue_action", action=action.value, delivery_id=delivery_id)
        return None

    async def _apply(
        self, write: MailboxWrite, action: Action, delivery_id: int, owner: Any, rebuilt: tuple[str, int] | None
    ) -> Settled:
        """Inside the transaction. Raises NotAllowed, _WireGone."""
        tenant = write.ref.tenant_id
        row = await write.conn.fetchrow(outcome_sql.LOCK, [tenant], [write.ref.mailbox_id], [delivery_id])
        if row is None:
            raise NotAllowed(NOT_FOUND)
        unused: Sequence[str] = rebuilt[:1] if rebuilt is not None else ()
        status = Status(row["status"])
        claimed = row["lease_until"] is not None and row["lease_until"] > write.now
        rules.check_action(
            action, status, claimed=claimed, by_agent=owner["by_agent"], bounce_open=owner["bounce_open"]
        )
        if action is Action.CANCEL:
            return await settle([Change(write, row, Decided(Status.CANCELED, counts=False))], self._ids)
        if action in (Action.HOLD, Action.RELEASE):
            await write.conn.execute(_HOLD, tenant, delivery_id, action is Action.HOLD)
            return Settled()
        if status.is_waiting:
            await write.conn.execute(_AT_ONCE, tenant, delivery_id, write.now)
            return Settled(list(unused))
        # Whoever ends the message's last other delivery, or writes its last notice, lets go of the bytes.
        if await write.conn.fetchval(_LOCK_WIRE, tenant, row["message_id"]) is None:
            if rebuilt is None:
                raise _WireGone
            await write.conn.execute(_WIRE, tenant, row["message_id"], *rebuilt)
            unused = ()
        again = Decided(Status.QUEUED, next_at=write.now, counts=False)
        settled = await settle([Change(write, row, again, restart=True)], self._ids)
        settled.wires += unused
        return settled

    async def _rebuild(self, owner: Any) -> tuple[str, int]:
        """Make the bytes anew that went when nothing was to be sent any more: the sent copy without its blind
        recipients, signed; what was passed on, as it was. Raises BlobMissing."""
        raw = await self._blobs.get(owner["blob_key"])
        # A name of its own: the bytes that were there before may only now be removed.
        name = f"{owner['public_id']}-{self._ids.ulid()}"
        key = f"t/{owner['tenant_public_id']}/i/{owner['identity_public_id']}/out/{name}.eml"
        if Operation(owner["operation"]) in (Operation.REDIRECT, Operation.BOUNCE):
            await self._blobs.put(key, raw)
            return key, len(raw)
        unsigned = wire.from_sent_copy(raw[owner["raw_prefix_len"] :])
        domain = (owner["from_address"] or "").rpartition("@")[2]
        if owner["sent_from"] is not None:
            unsigned, domain = _from_fallback(unsigned, owner, domain), owner["sent_from"].rpartition("@")[2]
        signed = await self._sign(unsigned, domain)
        await self._blobs.put(key, signed)
        return key, len(signed)

    async def _forget(self, keys: Sequence[str]) -> None:
        try:
            await self._blobs.delete(keys)
        except StorageError:
            log.warning("orphan_blobs_left", count=len(keys))


def _from_fallback(raw: bytes, owner: Any, domain: str) -> bytes:
    """The sent copy, from the address that the message left from."""
    name = owner["from_name"] or ""
    reply_to = None if owner["reply_to"] is None else _address(owner["reply_to"], name)
    return wire.readdressed(raw, (domain,), _address(owner["sent_from"], name), reply_to)


def _address(address: str, name: str) -> Address:
    local, _, domain = address.rpartition("@")
    return Address(name, local, domain)


async def prune_attempts(database: Database, clock: Clock, keep: timedelta) -> int:
    """Delete the attempts of deliveries that ended longer than `keep` ago (C9); how many."""
    total = 0
    while True:
        async with database.acquire() as conn:
            done = await _prune(conn, clock.now() - keep)
        total += done
        if done < PRUNE_BATCH:
            return total


async def _prune(conn: Connection, before: datetime) -> int:
    return int((await conn.execute(_PRUNE, before, PRUNE_BATCH)).rpartition(" ")[2])


def _item(row: Any) -> QueueItem:
    return QueueItem(
        id=row["id"],
        tenant_id=row["tenant"],
        identity_id=row["identity"],
        message_id=row["message"],
        sender=row["envelope_from"],
        recipient=row["recipient"],
        route=row["route"],
        destination=row["domain"],
        status=Status(row["status"]),
        state=QueueState(row["state"]),
        reason=row["reason"],
        smtp_code=row["smtp_code"],
        enhanced_code=row["enhanced_code"],
        smtp_response=row["smtp_response"],
        remote_mx=row["remote_mx"],
        tries=row["tries"],
        size=row["wire_size"],
        next_attempt_at=row["next_attempt_at"],
        last_attempt_at=row["last_attempt_at"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
