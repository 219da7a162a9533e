"""Accepting: bytes, message, Sent copy, deliveries and ledger row, durable together or not at all (outbound §3.4, §8).

Before this everything was decided; after it the message is sent by whoever claims its deliveries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final

import orjson

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs.store import BlobStore, PutGroup, StorageError, put_durably
from postroom.db.pool import Connection, Database
from postroom.events.outgoing import all_suppressed
from postroom.inbound.receive import raw_key
from postroom.mailbox import folders, linked_files
from postroom.mailbox.committing import Committing, DatabaseAway, LockTimeout
from postroom.mailbox.models import (
    FLAG_SEEN,
    Announce,
    Appended,
    Direction,
    FolderKey,
    GroupOutcome,
    MailboxRef,
    NewMessage,
    Refusal,
    Refused,
    Source,
    SpecialUse,
)
from postroom.mailbox.sent_copy import ledger_key
from postroom.outbound import store
from postroom.outbound.models import Accepted, Outgoing, Status

log = base_log.get("outbound")

RETRY_SECONDS: Final = 10.0

Also = Callable[[Connection], Awaitable[None]]
"""What else belongs to the transaction. What it raises undoes the acceptance, and is raised by it."""


class Acceptance:
    """Stores what is to be sent. `changed` is told of the mailbox after the commit, `wake` that there is work."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        ids: IdGenerator,
        *,
        changed: Callable[[Sequence[Appended]], None],
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._ids = ids
        self._changed = changed
        self._wake = wake
        self._committing = Committing(database, clock, retry_seconds=RETRY_SECONDS, before_commit=None)

    async def accept(self, outgoing: Outgoing, *, also: Also | None = None) -> Accepted:
        """Store the message and its deliveries. Raises PostroomError: `unavailable` for a fault of ours (nothing is
        stored), `mailbox_full`, `identity_not_found`; `request_in_progress` when the ledger's lease was lost meanwhile.
        """
        now = self._clock.now()
        message = self._message(outgoing, await self._sent(outgoing.mailbox), now)
        groups = _objects(outgoing, message.blob_key)
        keys = [key for group in groups for key in group.keys]
        await self._write(groups)

        async def rows(conn: Connection, outcomes: list[GroupOutcome]) -> None:
            (outcome,) = outcomes
            if isinstance(outcome, tuple):
                await store.insert(
                    conn, outgoing, _accepted(outgoing, outcome[0], message), wire_key=wire_key(outgoing)
                )
                if outgoing.linked:
                    await linked_files.insert(
                        conn,
                        outgoing.mailbox.tenant_id,
                        outgoing.id,
                        outgoing.linked,
                        file_keys(outgoing),
                        after=len(outgoing.content.attachments),
                    )
                if also is not None:
                    await also(conn)

        try:
            (outcome,) = await self._committing.store([(message,)], (outgoing.mailbox,), rows, None)
        except (LockTimeout, DatabaseAway) as error:
            # The bytes stay if it is not certain that no row names them: the sweep finds out.
            if isinstance(error, LockTimeout):
                await self._forget(keys)
            raise PostroomError("unavailable") from error
        except store.LeaseLost as error:
            await self._forget(keys)
            raise PostroomError("request_in_progress") from error
        except Exception:
            # Whatever else it is was raised before the commit.
            await self._forget(keys)
            raise
        if not isinstance(outcome, tuple):
            await self._forget(keys)
            raise _refusal(outcome)
        (stored,) = outcome
        self._changed((stored,))
        self._wake()
        log.info("message_accepted", message_id=outgoing.id, recipients=len(outgoing.recipients))
        return _accepted(outgoing, stored, message)

    async def _sent(self, ref: MailboxRef) -> FolderKey:
        async with self._database.acquire() as conn:
            found = await folders.list_folders(conn, ref)
        for folder in found:
            if folder.special_use is SpecialUse.SENT:
                return folder.id
        # Everybody begins with one; who deleted it finds what was sent in the inbox.
        return next(folder.id for folder in found if folder.special_use is SpecialUse.INBOX)

    def _message(self, outgoing: Outgoing, folder: FolderKey, now: datetime) -> NewMessage:
        return NewMessage(
            id=outgoing.id,
            mailbox=outgoing.mailbox,
            source=Source.SEND,
            direction=Direction.OUTBOUND,
            status=_status(outgoing).value,
            blob_key=raw_key(outgoing.tenant_id, outgoing.identity_id, outgoing.id),
            content=outgoing.content,
            thread_id=self._ids.new("thr"),
            event_id=self._ids.new("evt"),
            attachment_ids=tuple(self._ids.new("att") for _ in outgoing.content.attachments),
            received_at=now,
            internal_date=now.replace(microsecond=0),
            folder=folder,
            flags=(FLAG_SEEN, *outgoing.labels),
            announce=_announcement(outgoing),
            filing=outgoing.filing,
        )

    async def _write(self, groups: Sequence[PutGroup]) -> None:
        results = await put_durably(self._blobs, groups)
        if any(results):
            await self._forget([key for group in groups for key in group.keys])
            raise PostroomError("unavailable")

    async def _forget(self, keys: Sequence[str]) -> None:
        try:
            await self._blobs.delete(keys)
        except StorageError:
            log.warning("orphan_blobs_left", count=len(keys))


def _objects(outgoing: Outgoing, key: str) -> list[PutGroup]:
    """What is to be durable before the rows are: the Sent copy, what goes out, and for the ledger."""
    if outgoing.sent_copy == outgoing.wire:
        # Whoever has blind-copied nobody keeps what goes out: one object under both keys.
        groups = [PutGroup((outgoing.wire,), (key, wire_key(outgoing)))]
    else:
        groups = [PutGroup((outgoing.sent_copy,), (key,)), PutGroup((outgoing.wire,), (wire_key(outgoing),))]
    files = zip(outgoing.linked, file_keys(outgoing), strict=True)
    groups += [PutGroup((file.content,), (one,)) for file, one in files]
    entry = outgoing.ledger
    if entry is not None:
        # So that a retry sends nothing a second time after the database was restored to a time before (outbound §3.4).
        known = {
            "tenant": outgoing.tenant_id,
            "identity": outgoing.identity_id,
            "message": outgoing.id,
            "idem_key_sha256": entry.key_hash,
            "fingerprint": entry.fingerprint,
            "operation": outgoing.operation.value,
        }
        groups.append(PutGroup((orjson.dumps(known),), (ledger_key(key),)))
    return groups


def wire_key(outgoing: Outgoing) -> str:
    """Where the bytes that go out are kept until nothing is to be sent any more (data-model.md §15)."""
    return f"t/{outgoing.tenant_id}/i/{outgoing.identity_id}/out/{outgoing.id}.eml"


def file_keys(outgoing: Outgoing) -> list[str]:
    """Where the files are kept that it links to."""
    owner = (outgoing.tenant_id, outgoing.identity_id, outgoing.id)
    return [linked_files.file_key(*owner, file.id) for file in outgoing.linked]


def _accepted(outgoing: Outgoing, stored: Appended, message: NewMessage) -> Accepted:
    where = (stored.thread_id, _status(outgoing), stored.uid, stored.uid_validity)
    return Accepted(outgoing.id, *where, message.received_at, message.attachment_ids)


def _announcement(outgoing: Outgoing) -> Announce | None:
    if _status(outgoing) is not Status.SUPPRESSED:
        return None
    return all_suppressed([recipient.address for recipient in outgoing.recipients])


def _status(outgoing: Outgoing) -> Status:
    return Status.QUEUED if any(r.suppressed is None for r in outgoing.recipients) else Status.SUPPRESSED


def _refusal(outcome: GroupOutcome) -> PostroomError:
    if isinstance(outcome, Refused):
        if outcome.reason is Refusal.MAILBOX_FULL:
            return PostroomError("mailbox_full")
        if outcome.reason is Refusal.MAILBOX_GONE:
            return PostroomError("identity_not_found")
    return PostroomError("unavailable")
