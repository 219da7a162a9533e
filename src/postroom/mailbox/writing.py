"""The frame of every transaction that changes a mailbox: lock the row, raise `modseq` once, append to the log (A7,
B4, B10, B14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from postroom.base.errors import PostroomError
from postroom.db.pool import Connection
from postroom.mailbox.models import ChangeKind, FolderKey, MailboxRef

CHUNK = 1000
"""Messages that one transaction of STORE, MOVE, COPY or EXPUNGE touches at the most (B14)."""

LOCK_TIMEOUT_MS = 5000
"""How long a writer waits for a mailbox before the client is told to try again (B14)."""

_LOCK = """
SELECT modseq, change_seq, used_bytes, quota_bytes, last_uid_validity, erased
FROM mailboxes WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE
"""

_SAVE = """
UPDATE mailboxes SET modseq = $3, change_seq = $4, used_bytes = $5, last_uid_validity = $6
WHERE tenant_id = $1 AND id = $2
"""

_CHANGES = """
INSERT INTO changes (tenant_id, mailbox_id, seq, modseq, kind, folder_id, uid, message, folder, flags, at)
SELECT $1, $2, $3 + c.n, $4, c.kind, c.folder_id, c.uid, c.message, c.folder, string_to_array(c.flags, ' '), $11
FROM unnest($5::text[], $6::bigint[], $7::bigint[], $8::text[], $9::text[], $10::text[])
     WITH ORDINALITY AS c (kind, folder_id, uid, message, folder, flags, n)
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
    used_bytes: int
    quota_bytes: int | None
    last_uid_validity: int
    _changes: list[tuple[str, int | None, int | None, str | None, str | None, str | None]] = field(default_factory=list)

    def log(
        self,
        kind: ChangeKind,
        *,
        folder_id: FolderKey | None = None,
        uid: int | None = None,
        message: str | None = None,
        folder: str | None = None,
        flags: Sequence[str] | None = None,
    ) -> None:
        """Record one change. `message` and `folder` are public ids; `flags` is the whole new set."""
        joined = None if flags is None else " ".join(flags)
        self._changes.append((kind.value, folder_id, uid, message, folder, joined))

    def next_uid_validity(self) -> int:
        """A UIDVALIDITY never used in this mailbox: `max(now, last + 1)` (B21), in Unix seconds."""
        self.last_uid_validity = max(int(self.now.timestamp()), self.last_uid_validity + 1)
        return self.last_uid_validity

    async def finish(self) -> bool:
        """Write the log and the counters. True when anything changed."""
        if not self._changes:
            return False
        kinds, folder_ids, uids, messages, folders, flags = zip(*self._changes, strict=True)
        await self.conn.execute(
            _CHANGES,
            self.ref.tenant_id,
            self.ref.mailbox_id,
            self.change_seq,
            self.modseq,
            kinds,
            folder_ids,
            uids,
            messages,
            folders,
            flags,
            self.now,
        )
        self.change_seq += len(self._changes)
        await self.conn.execute(
            _SAVE,
            self.ref.tenant_id,
            self.ref.mailbox_id,
            self.modseq,
            self.change_seq,
            self.used_bytes,
            self.last_uid_validity,
        )
        self._changes.clear()
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
    return MailboxWrite(
        conn=conn,
        ref=ref,
        now=now,
        modseq=row["modseq"] + 1,
        change_seq=row["change_seq"],
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
