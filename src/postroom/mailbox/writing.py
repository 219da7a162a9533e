"""The frame of every transaction that changes a mailbox: lock the row, raise `modseq` once, append to the log (A7,
B4, B10, B14)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from postroom.base.errors import PostroomError
from postroom.db.pool import Connection
from postroom.mailbox.models import ChangeKind, FolderKey, MailboxRef

CHUNK = 1000
"""Messages that one transaction of STORE, MOVE, COPY or EXPUNGE touches at the most (B14)."""

LOCK_TIMEOUT_MS = 5000
"""How long a writer waits for a mailbox before the client is told to try again (B14)."""

_LOCK = """
SELECT modseq, change_seq, event_seq, used_bytes, quota_bytes, last_uid_validity, erased
FROM mailboxes WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE
"""

_CLOSE = "UPDATE mailboxes SET closed = true WHERE tenant_id = $1 AND id = $2"

_SAVE = """
UPDATE mailboxes SET modseq = $3, change_seq = $4, event_seq = $5, used_bytes = $6, last_uid_validity = $7
WHERE tenant_id = $1 AND id = $2
"""

# $1 tenants, $2 mailboxes. In the order of their ids, as every writer of several locks them (B10).
_LOCK_FREE = """
SELECT tenant_id, id, modseq, change_seq, event_seq, used_bytes, quota_bytes, last_uid_validity, erased
FROM mailboxes WHERE id = ANY ($2::bigint[]) AND (tenant_id, id) IN (SELECT * FROM unnest($1::bigint[], $2::bigint[]))
ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""

# $1 now; an array for each column of the mailboxes, then of the changes, whose `box` counts the mailboxes from 1.
_FINISH_ALL = """
WITH w AS MATERIALIZED (
  SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
    WITH ORDINALITY AS w (tenant_id, id, modseq, change_seq, event_seq, used_bytes, last_uid_validity, box)
), logged AS (
  INSERT INTO changes (tenant_id, mailbox_id, seq, modseq, kind, folder_id, uid, message, folder, flags, delivery,
    delivery_status, at)
  SELECT w.tenant_id, w.id, c.seq, w.modseq, c.kind, c.folder_id, c.uid, c.message, c.folder,
    string_to_array(c.flags, ' '), c.delivery, c.status, $1
  FROM unnest($9::bigint[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::text[], $15::text[],
      $16::text[], $17::bigint[], $18::text[])
    AS c (box, seq, kind, folder_id, uid, message, folder, flags, delivery, status)
  JOIN w ON w.box = c.box
)
UPDATE mailboxes m SET modseq = w.modseq, change_seq = w.change_seq, event_seq = w.event_seq,
  used_bytes = w.used_bytes, last_uid_validity = w.last_uid_validity
FROM w WHERE m.tenant_id + 0 = w.tenant_id AND m.id = w.id
"""

_CHANGES = """
INSERT INTO changes (tenant_id, mailbox_id, seq, modseq, kind, folder_id, uid, message, folder, flags, delivery,
  delivery_status, at)
SELECT $1, $2, $3 + c.n, $4, c.kind, c.folder_id, c.uid, c.message, c.folder, string_to_array(c.flags, ' '),
  c.delivery, c.status, $13
FROM unnest($5::text[], $6::bigint[], $7::bigint[], $8::text[], $9::text[], $10::text[], $11::bigint[], $12::text[])
     WITH ORDINALITY AS c (kind, folder_id, uid, message, folder, flags, delivery, status, n)
"""


@dataclass(slots=True)
class MailboxWrite:
    """A locked mailbox inside an open transaction. `modseq` is already the value this transaction's rows carry.

    Call `log` for every change and `finish` once before the commit; nothing is written when nothing was logged.
    """

    conn: Connection
    ref: MailboxRef
    now: datetime
    modseq: int
    change_seq: int
    event_seq: int
    used_bytes: int
    quota_bytes: int | None
    last_uid_validity: int
    changes: list[tuple[str | int | None, ...]] = field(default_factory=list)
    """What was logged and is not written yet."""

    def log(
        self,
        kind: ChangeKind,
        *,
        folder_id: FolderKey | None = None,
        uid: int | None = None,
        message: str | None = None,
        folder: str | None = None,
        flags: Sequence[str] | None = None,
        delivery: int | None = None,
        delivery_status: str | None = None,
    ) -> None:
        """Record one change. `message` and `folder` are public ids; `flags` is the whole new set. `delivery` is the
        `queue_id` of a recipient of a sent message, which has that status from now on.
        """
        joined = None if flags is None else " ".join(flags)
        self.changes.append((kind.value, folder_id, uid, message, folder, joined, delivery, delivery_status))

    def take_event_sequences(self, count: int) -> range:
        """The next `count` numbers of the mailbox's events, in order; saved by `finish`, with a change at least."""
        first = self.event_seq + 1
        self.event_seq += count
        return range(first, self.event_seq + 1)

    def next_uid_validity(self) -> int:
        """A UIDVALIDITY never used in this mailbox: `max(now, last + 1)` (B21), in Unix seconds."""
        self.last_uid_validity = max(int(self.now.timestamp()), self.last_uid_validity + 1)
        return self.last_uid_validity

    async def finish(self) -> bool:
        """Write the log and the counters. True when anything changed."""
        if not self.changes:
            return False
        await self.conn.execute(
            _CHANGES,
            self.ref.tenant_id,
            self.ref.mailbox_id,
            self.change_seq,
            self.modseq,
            *zip(*self.changes, strict=True),
            self.now,
        )
        self.change_seq += len(self.changes)
        await self.conn.execute(
            _SAVE,
            self.ref.tenant_id,
            self.ref.mailbox_id,
            self.modseq,
            self.change_seq,
            self.event_seq,
            self.used_bytes,
            self.last_uid_validity,
        )
        self.changes.clear()
        return True


async def begin_write(conn: Connection, ref: MailboxRef, now: datetime) -> MailboxWrite:
    """Lock the mailbox inside the caller's open transaction.

    Raises `PostroomError("identity_not_found")` when the mailbox is gone; the lock waits at most `LOCK_TIMEOUT_MS`
    (asyncpg's LockNotAvailableError, which servers answer with a temporary refusal).
    """
    await conn.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
    row = await conn.fetchrow(_LOCK, ref.tenant_id, ref.mailbox_id)
    if row is None or row["erased"]:
        raise PostroomError("identity_not_found")
    return _write(conn, ref, row, now)


async def close_mailbox(conn: Connection, tenant_id: int, mailbox_id: int) -> None:
    """From the end of the transaction on the mailbox takes no message more, whatever was let in before. What is in it
    stays for whoever erases it (inbound.md §2.3).
    """
    await conn.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
    await conn.execute(_CLOSE, tenant_id, mailbox_id)


async def go_on_writing(conn: Connection, ref: MailboxRef, now: datetime, *, raised: bool = True) -> MailboxWrite:
    """The mailbox as this transaction has locked it. Where it has changed it already (`raised`), what else it changes
    has the same modseq.
    """
    row = await conn.fetchrow(_LOCK, ref.tenant_id, ref.mailbox_id)
    write = _write(conn, ref, row, now)
    write.modseq -= raised
    return write


async def begin_writes(conn: Connection, refs: Collection[MailboxRef], now: datetime) -> dict[MailboxRef, MailboxWrite]:
    """Lock those of the mailboxes that nobody holds, inside the caller's open transaction. Of one that is missing in
    the answer `begin_write` says why. End with `finish_writes`.
    """
    rows = await conn.fetch(_LOCK_FREE, [ref.tenant_id for ref in refs], [ref.mailbox_id for ref in refs])
    found = ((MailboxRef(row["tenant_id"], row["id"]), row) for row in rows if not row["erased"])
    return {ref: _write(conn, ref, row, now) for ref, row in found}


async def finish_writes(writes: Iterable[MailboxWrite]) -> None:
    """`finish` of several writes of one transaction, at once. Nothing is written for those that logged nothing."""
    changed = [write for write in writes if write.changes]
    if not changed:
        return
    logged = []
    for box, write in enumerate(changed, 1):
        logged += [(box, write.change_seq + n, *change) for n, change in enumerate(write.changes, 1)]
        write.change_seq += len(write.changes)
        write.changes.clear()
    boxes = [
        (
            write.ref.tenant_id,
            write.ref.mailbox_id,
            write.modseq,
            write.change_seq,
            write.event_seq,
            write.used_bytes,
            write.last_uid_validity,
        )
        for write in changed
    ]
    await changed[0].conn.execute(_FINISH_ALL, changed[0].now, *zip(*boxes, strict=True), *zip(*logged, strict=True))


def _write(conn: Connection, ref: MailboxRef, row: Any, now: datetime) -> MailboxWrite:
    return MailboxWrite(
        conn=conn,
        ref=ref,
        now=now,
        modseq=row["modseq"] + 1,
        change_seq=row["change_seq"],
        event_seq=row["event_seq"],
        used_bytes=row["used_bytes"],
        quota_bytes=row["quota_bytes"],
        last_uid_validity=row["last_uid_validity"],
    )


async def next_event_sequence(conn: Connection, ref: MailboxRef) -> int:
    """Raise the mailbox's event counter inside the caller's transaction, which takes the row lock; the new value."""
    sequence = await conn.fetchval(
        "UPDATE mailboxes SET event_seq = event_seq + 1 WHERE tenant_id = $1 AND id = $2 RETURNING event_seq",
        ref.tenant_id,
        ref.mailbox_id,
    )
    if sequence is None:
        raise PostroomError("identity_not_found")
    return int(sequence)
