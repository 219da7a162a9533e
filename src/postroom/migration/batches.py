"""How a batch of messages from elsewhere becomes rows: described, made durable, committed with the memory of it.

It meets the same `mailbox.append` as mail that arrives, without inbound policy and without events, as an APPEND does
(mail-server D8). The keys of what was brought are written in the same transaction, so that a crash anywhere leaves each
message stored and remembered, or neither.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from postroom.base import log as base_log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs.store import BlobStore, PutGroup, StorageError, put_durably
from postroom.db import Connection, Database, DatabaseUnavailable
from postroom.db import errors as db_errors
from postroom.inbound.parsing import Parser
from postroom.inbound.receive import raw_key
from postroom.mailbox.committing import Committing, DatabaseAway, LockTimeout
from postroom.mailbox.degraded import degraded_copy
from postroom.mailbox.folders import renew_uid_validity
from postroom.mailbox.models import (
    Appended,
    Content,
    Direction,
    Folder,
    FolderKey,
    GroupOutcome,
    MailboxRef,
    NewMessage,
    Refusal,
    Refused,
    Source,
    SpecialUse,
)
from postroom.migration import store
from postroom.migration.flags import storable
from postroom.migration.models import AnotherImport, Letter

log = base_log.get("migration")

MAX_BATCH: Final = 64
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Octets that a batch gathers before it is stored; one message may be larger."""
LOCK_ATTEMPTS: Final = 12
"""How often a mailbox is waited for that somebody else holds, five seconds each."""
RETRY_SECONDS: Final = 30.0
"""How long a batch is tried again while the database is away."""
MAX_KEPT_UID: Final = 2**31
"""UIDs beyond it are not kept: a folder whose UIDs are used up takes no mail any more."""
_YEARS: Final = range(1900, 9999)
"""Of dates that are believed; at the ends of the calendar there is nothing to reckon with."""
_OWN: Final = (SpecialUse.SENT, SpecialUse.DRAFTS)


class Changed(Protocol):
    """Told after a commit: the mailbox and its new modseq. Must not block."""

    def __call__(self, ref: MailboxRef, modseq: int, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Whose mailbox it is."""

    ref: MailboxRef
    tenant_public_id: str
    identity_public_id: str


@dataclass(frozen=True, slots=True)
class Target:
    """The folder that a batch goes to. `keeps_uids`: each message gets the UID that it had; when that fails while the
    folder has the UIDVALIDITY of the source (`source_validity`), it gets another one."""

    folder: Folder
    keeps_uids: bool = False
    source_validity: int = 0
    anywhere: bool = False
    """What stands anywhere in the mailbox is a duplicate."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A letter and the key by which it is remembered."""

    letter: Letter
    key: bytes


@dataclass(slots=True)
class Stored:
    """What became of a batch."""

    imported: int = 0
    duplicates: int = 0
    dropped_keywords: int = 0
    exact: bool = True
    """Each message has the UID that it had."""
    full: bool = False
    refused: tuple[Letter, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ready:
    incoming: Incoming
    copy: NewMessage


class Batches:
    """Stores batches in one mailbox."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        parser: Parser,
        clock: Clock,
        ids: IdGenerator,
        mailbox: Mailbox,
        changed: Changed,
    ) -> None:
        self._database, self._blobs, self._parser = database, blobs, parser
        self._clock, self._ids = clock, ids
        self._mailbox, self._changed = mailbox, changed
        self._committing = Committing(database, clock, retry_seconds=RETRY_SECONDS, before_commit=None)

    async def store(self, target: Target, batch: Sequence[Incoming]) -> Stored:
        """Put the letters into the folder, but for those that are there.

        Raises `identity_not_found`, `folder_not_found` when they are gone, AnotherImport, StorageError,
        DatabaseUnavailable.
        """
        now = self._clock.now()
        given = [_believed(one.letter.date) or now for one in batch]
        dates = [min(date, now) for date in given]
        contents = await asyncio.gather(
            *(
                self._parser.describe(b"", one.letter.raw, at, with_codes=False)
                for one, at in zip(batch, dates, strict=True)
            )
        )
        done = Stored()
        ready: list[_Ready] = []
        fresh = await self._fresh(target, batch, contents)
        for one, content, date, at, is_new in zip(batch, contents, given, dates, fresh, strict=True):
            if not is_new:
                done.duplicates += 1
                continue
            flags, lost = storable(one.letter.flags)
            done.dropped_keywords += lost
            message_id = self._ids.new("msg")
            mailbox = self._mailbox
            copy = NewMessage(
                id=message_id,
                mailbox=mailbox.ref,
                source=Source.APPEND,
                direction=Direction.OUTBOUND if target.folder.special_use in _OWN else Direction.INBOUND,
                blob_key=raw_key(mailbox.tenant_public_id, mailbox.identity_public_id, message_id),
                content=content,
                thread_id=self._ids.new("thr"),
                event_id=self._ids.new("evt"),
                attachment_ids=tuple(self._ids.new("att") for _ in content.attachments),
                received_at=at,
                internal_date=date.replace(microsecond=0),
                folder=target.folder.id,
                flags=flags,
                uid=one.letter.item.uid if target.keeps_uids and one.letter.item.uid <= MAX_KEPT_UID else 0,
            )
            ready.append(_Ready(one, copy))
        if ready:
            await self._write_bytes(ready)
            await self._commit(target, ready, done)
        repeated = [one for one, is_new in zip(batch, fresh, strict=True) if not is_new]
        if repeated:
            async with self._database.transaction() as conn:
                await store.add(conn, self._mailbox.ref, [(one.key, None, None) for one in repeated], again=True)
        return done

    # -- duplicates ----------------------------------------------------------------------------------------------------

    async def _fresh(self, target: Target, batch: Sequence[Incoming], contents: Sequence[Content]) -> list[bool]:
        """Whether each is new to the folder, and to what comes before it in the batch."""
        asked = [(content.rfc_message_id, content.raw_sha256) for content in contents]
        folder = None if target.anywhere else target.folder.id
        async with self._database.acquire() as conn:
            alike = await store.alike(conn, self._mailbox.ref, folder, asked)
        seen: set[bytes] = set()
        fresh: list[bool] = []
        for one, content in zip(batch, contents, strict=True):
            known = alike.get(content.rfc_message_id, {})
            is_known = content.raw_sha256 in known or content.raw_sha256 in seen or _is_behind_trace(one.letter, known)
            seen.add(content.raw_sha256)
            fresh.append(not is_known)
        return fresh

    # -- storing -------------------------------------------------------------------------------------------------------

    async def _write_bytes(self, ready: Sequence[_Ready]) -> None:
        groups = [PutGroup((one.incoming.letter.raw,), (one.copy.blob_key,)) for one in ready]
        failed = next((error for error in await put_durably(self._blobs, groups) if error is not None), None)
        if failed is not None:
            await self._drop(ready)
            raise failed

    async def _drop(self, unwanted: Sequence[_Ready]) -> None:
        """Bytes that no row names; what cannot be removed now, the sweep removes."""
        try:
            await self._blobs.delete([one.copy.blob_key for one in unwanted])
        except StorageError:
            log.warning("orphan_blobs_left", count=len(unwanted))

    async def _commit(self, target: Target, ready: Sequence[_Ready], done: Stored) -> None:
        try:
            outcomes = await self._transaction(target, ready)
        except Exception as error:
            if store.is_done_twice(error):
                await self._drop(ready)
                raise AnotherImport from error
            if not _is_datas_fault(error):
                raise
            await self._apart(target, ready, done, error)
            return
        for one, outcome in zip(ready, outcomes, strict=True):
            await self._take(one, outcome, done)
        if done.imported:
            modseqs = [appended.modseq for outcome in outcomes if isinstance(outcome, tuple) for appended in outcome]
            if modseqs:
                self._changed(self._mailbox.ref, max(modseqs))

    async def _take(self, one: _Ready, outcome: GroupOutcome, done: Stored) -> None:
        if isinstance(outcome, tuple):
            done.imported += 1
            done.exact &= _is_exact(one, outcome[0])
            return
        await self._drop([one])
        reason = outcome.reason if isinstance(outcome, Refused) else None
        if reason is Refusal.MAILBOX_FULL:
            done.full = True
            return
        if reason is Refusal.UID_EXHAUSTED:
            done.refused += (one.incoming.letter,)
            return
        raise PostroomError("folder_not_found" if reason is Refusal.FOLDER_GONE else "identity_not_found")

    async def _transaction(self, target: Target, ready: Sequence[_Ready]) -> list[GroupOutcome]:
        ref = self._mailbox.ref

        async def then(conn: Connection, outcomes: list[GroupOutcome]) -> None:
            rows: list[store.Row] = []
            for one, outcome in zip(ready, outcomes, strict=True):
                if isinstance(outcome, tuple):
                    exact = target.keeps_uids and _is_exact(one, outcome[0])
                    uid = outcome[0].uid if exact else None
                    rows.append((one.incoming.key, target.folder.id if exact else None, uid))
            await store.add(conn, ref, rows)
            # To a client of the other server this UIDVALIDITY and that UID are another message.
            if target.source_validity and any(row[2] is None for row in rows):
                await _renew_if_taken_over(conn, ref, target, self._clock)

        for attempt in range(1, LOCK_ATTEMPTS + 1):
            try:
                return await self._committing.store([(one.copy,) for one in ready], (ref,), then, None)
            except LockTimeout:
                if attempt == LOCK_ATTEMPTS:
                    await self._drop(ready)
                    raise DatabaseUnavailable("the mailbox is held by another transaction for a minute") from None
            except DatabaseAway as error:
                raise DatabaseUnavailable("the database does not answer") from error
        raise AssertionError

    async def _apart(self, target: Target, ready: Sequence[_Ready], done: Stored, error: BaseException) -> None:
        """Something in the data was refused: halve until the culprit is alone, then store it with its headers only
        (B2, B15)."""
        if len(ready) > 1:
            middle = len(ready) // 2
            await self._commit(target, ready[:middle], done)
            await self._commit(target, ready[middle:], done)
            return
        (one,) = ready
        degraded = degraded_copy(one.copy)
        if degraded == one.copy:
            log.error("import_refused_by_database", error=type(error).__name__)
            await self._drop(ready)
            done.refused += (one.incoming.letter,)
            return
        await self._commit(target, [_Ready(one.incoming, degraded)], done)


async def _renew_if_taken_over(conn: Connection, ref: MailboxRef, target: Target, clock: Clock) -> None:
    if await store.uid_validity(conn, ref, target.folder.id) == target.source_validity:
        await renew_uid_validity(conn, ref, FolderKey(target.folder.id), clock.now())


def _believed(date: datetime | None) -> datetime | None:
    return date if date is not None and date.year in _YEARS else None


def _is_exact(one: _Ready, appended: Appended) -> bool:
    return 0 < one.incoming.letter.item.uid == appended.uid


def _is_behind_trace(letter: Letter, known: dict[bytes, tuple[int, int]]) -> bool:
    """Whether it is a message that we received, with the lines before it that we gave it then."""
    raw = letter.raw
    return any(
        0 < prefix < size == len(raw) and hashlib.sha256(memoryview(raw)[prefix:]).digest() == digest
        for digest, (size, prefix) in known.items()
    )


def _is_datas_fault(error: BaseException) -> bool:
    return db_errors.is_data_error(error) or isinstance(error, TypeError | ValueError | ArithmeticError)
