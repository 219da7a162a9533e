"""Every use of a mailbox that changes it, but for new messages: one class, the frame of its transactions, and what
follows a commit.

Writers lock the mailbox, change rows, append to the log, commit; then bytes that nobody needs go, and `changed` tells
whoever watches (B13, E2). Work on many messages is cut into transactions of at most 1,000 (B14), each complete in
itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

import asyncpg

from postroom.base import log
from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.base.ids import IdGenerator
from postroom.blobs import StorageError
from postroom.db import Connection, Database, is_serialization
from postroom.mailbox import expunge, flags, folders, placing, threads, transfer, tree
from postroom.mailbox.annotations import Annotations
from postroom.mailbox.batch import Outcome, Results, Step
from postroom.mailbox.expunge import MessagesInUse, Removed
from postroom.mailbox.flags import FlagsNow
from postroom.mailbox.models import Folder, FolderKey, MailboxRef, SpecialUse
from postroom.mailbox.once import Once
from postroom.mailbox.queries import MessageQueries
from postroom.mailbox.reads import FolderReads
from postroom.mailbox.rules import FlagMode, flag_words
from postroom.mailbox.subscriptions import Subscriptions
from postroom.mailbox.transfer import CopyResult
from postroom.mailbox.tree import Below, FolderChange
from postroom.mailbox.writing import CHUNK, MailboxWrite, begin_write

ATTEMPTS: Final = 4
"""How often a transaction that lost a deadlock or a serialisation race is tried."""

Changed = Callable[[MailboxRef, int], None]
"""Told after a commit: the mailbox and its new modseq. Must not block."""

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

_log = log.get("mailbox")


class Blobs(Protocol):
    """What this service asks of a `BlobStore`."""

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove keys; one that is not there is no error. Raises StorageError."""
        ...


class Mailboxes:
    """Folders, flags, copies, moves and removal.

    Every writer raises `PostroomError("identity_not_found")` when the mailbox is gone, and asyncpg's
    LockNotAvailableError when it is held by another for longer than 5 s. Errors of the connection at the commit leave
    its outcome unknown (B15).
    """

    def __init__(self, database: Database, blobs: Blobs, clock: Clock, ids: IdGenerator, changed: Changed) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._ids = ids
        self._changed = changed
        self.reads = FolderReads(database)
        self.annotations = Annotations(database, changed)
        self.subscriptions = Subscriptions(database)
        self.queries = MessageQueries(database)

    # -- folders -------------------------------------------------------------------------------------------------------

    async def create_mailbox_rows(
        self,
        conn: Connection,
        ref: MailboxRef,
        *,
        identity_id: str,
        tenant_id: str,
        quota_bytes: int | None = None,
        is_system: bool = False,
    ) -> None:
        """The mailbox of an identity with its standard folders, inside the caller's transaction; makes only what is
        missing (D2).

        `identity_id` and `tenant_id` are the public ids.
        """
        now = self._clock.now()
        await folders.insert_mailbox(
            conn,
            ref,
            identity_id=identity_id,
            tenant_id=tenant_id,
            quota_bytes=quota_bytes,
            is_system=is_system,
            now=now,
        )
        write = await begin_write(conn, ref, now)
        await folders.ensure_standard(write, self._ids.new)
        await write.finish()

    async def set_quota(self, ref: MailboxRef, quota_bytes: int | None) -> None:
        """What the mailbox may hold from now on; None is all that comes. What is there stays. Raises
        `identity_not_found`.
        """
        async with self._database.acquire() as conn:
            if not await folders.set_quota(conn, ref, quota_bytes):
                raise PostroomError("identity_not_found")

    async def list_folders(self, ref: MailboxRef) -> list[Folder]:
        """INBOX and its children first, then by the alphabet."""
        async with self._database.acquire() as conn:
            return await folders.list_folders(conn, ref)

    async def folder(self, ref: MailboxRef, name: str) -> Folder:
        """Raises `folder_not_found`."""
        async with self._database.acquire() as conn:
            return await folders.by_name(conn, ref, name)

    async def create_folder(self, ref: MailboxRef, name: str, special_use: SpecialUse | None = None) -> Folder:
        """Make a folder and the parents it lacks. Raises `folder_exists`, `invalid_request`, `LimitExceeded`."""
        return await self._write(ref, folders.create, name, special_use, self._ids.new)

    async def make_folder(
        self,
        ref: MailboxRef,
        name: str,
        place: Below | None = None,
        use: SpecialUse | None = None,
        *,
        subscribed: bool = True,
        sees_quarantine: bool = True,
        once: Once[str] | None = None,
    ) -> tuple[Folder, bool]:
        """`create_folder` at a place of the tree; with `once`, which keeps its public id, the folder that was made the
        first time, and whether that was earlier. Raises as it does, and `folder_not_found` for the parent, or for what
        was made and is gone.
        """

        async def step(write: MailboxWrite) -> tuple[Folder, bool]:
            known = None if once is None else await once.begin(write.conn)
            if known is not None:
                return await tree.find(write.conn, ref, known, sees_quarantine=sees_quarantine), True
            made = await tree.create(
                write, name, place, use, self._ids.new, subscribed=subscribed, sees_quarantine=sees_quarantine
            )
            if once is not None:
                await once.complete(write.conn, made.public_id)
            return made, False

        return await self._write(ref, step)

    async def change_folder(
        self, ref: MailboxRef, public_id: str, wanted: FolderChange, *, sees_quarantine: bool = True
    ) -> Folder:
        """Rename, move or subscribe a folder, all or nothing. Raises as `rename_folder`."""
        return await self._write(ref, tree.change, public_id, wanted, self._ids.new, sees_quarantine=sees_quarantine)

    async def folder_by_id(self, ref: MailboxRef, public_id: str, *, sees_quarantine: bool = True) -> Folder:
        """Raises `folder_not_found`."""
        async with self._database.acquire() as conn:
            return await tree.find(conn, ref, public_id, sees_quarantine=sees_quarantine)

    async def rename_folder(self, ref: MailboxRef, folder_id: FolderKey, new_name: str) -> Folder:
        """Move a folder and all below it to another path; UIDVALIDITY stays.

        Raises `folder_not_found`, `folder_exists`, and `invalid_request` for INBOX or a path under the folder itself.
        """
        return await self._write(ref, folders.rename, folder_id, new_name, self._ids.new)

    async def subscribe(self, ref: MailboxRef, folder_id: FolderKey, subscribed: bool = True) -> None:
        """Raises `folder_not_found`."""
        await self._write(ref, folders.subscribe, folder_id, subscribed)

    async def delete_folder(self, ref: MailboxRef, folder_id: FolderKey, *, only_empty: bool = False) -> None:
        """Remove a folder and, permanently, what is in it.

        Raises `folder_not_found`, `folder_not_empty` when it has children (or, with `only_empty`, messages),
        `invalid_request` when it has a special use, MessagesInUse when it holds what is still to be sent: then some of
        the rest may have gone.
        """

        async def step(write: MailboxWrite) -> tuple[Removed, bool]:
            folder = await folders.check_deletable(write, folder_id)
            if only_empty and folder.message_count:
                raise PostroomError("folder_not_empty")
            uids = await expunge.first_uids(write, folder_id, CHUNK)
            rows = await placing.rows_in_folder(write, folder_id, uids)
            if any(row.leaves for row in rows):
                raise MessagesInUse
            removed = await expunge.remove(write, rows)
            if len(uids) < CHUNK:
                await folders.delete_row(write, folder)
            return removed, len(uids) < CHUNK

        done = False
        while not done:
            removed, done = await self._write(ref, step)
            await self._drop_bytes(removed)

    async def mark_recent(self, ref: MailboxRef, folder_id: FolderKey) -> range:
        """The UIDs that this session is the first to be told of, which are \\Recent in it; no other session gets
        them.
        """
        async with self._database.acquire() as conn:
            return await folders.mark_recent(conn, ref, folder_id)

    # -- flags ---------------------------------------------------------------------------------------------------------

    async def set_flags(
        self,
        ref: MailboxRef,
        folder_id: FolderKey,
        uids: Iterable[int],
        mode: FlagMode,
        words: Iterable[str],
        unchanged_since: int | None = None,
    ) -> list[FlagsNow]:
        """STORE. The answer names those of `uids` that exist, ascending, with what they have now.

        A placement whose modseq is above `unchanged_since` is left alone and marked `MODIFIED` (RFC 7162 §3.1.3).
        Raises `folder_not_found`, `invalid_request`, `LimitExceeded` (more than 64 keywords; earlier chunks of 1,000
        stay stored).
        """
        wanted = flag_words(words)
        stored: list[FlagsNow] = []
        for chunk in _chunks(sorted(set(uids))):
            stored += await self._write(ref, flags.store, folder_id, chunk, mode, wanted, unchanged_since)
        return stored

    async def change_message(
        self, ref: MailboxRef, message_id: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> None:
        """Change the flags of a message in every place where it stands: `$seen` is read, words without `$` are labels
        (A5).

        Raises `message_not_found`, `invalid_request`, `LimitExceeded`.
        """
        await self.change_messages(ref, [message_id], add=add, remove=remove)

    async def change_messages(
        self, ref: MailboxRef, message_ids: Iterable[str], *, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> None:
        """`change_message` for each; the message that is missing or too full ends it, earlier chunks of 1,000 stay."""
        more, less = flag_words(add), flag_words(remove)

        async def step(write: MailboxWrite, chunk: Sequence[str]) -> None:
            await flags.edit(write, await placing.message_keys(write, chunk), more, less)

        for chunk in _chunks(_unique(message_ids)):
            await self._write(ref, step, chunk)

    async def change_thread(
        self,
        ref: MailboxRef,
        thread_id: str,
        *,
        add: Iterable[str] = (),
        remove: Iterable[str] = (),
        archived: bool | None = None,
    ) -> None:
        """Change the flags of all messages of a thread, and whether it is archived.

        Raises as `change_message`, `thread_not_found`.
        """
        more, less = flag_words(add), flag_words(remove)

        async def start(write: MailboxWrite) -> list[int]:
            seq = await threads.thread_seq(write, thread_id)
            if archived is not None:
                await threads.set_archived(write, seq, archived)
            return await threads.message_keys(write, seq) if more or less else []

        for chunk in _chunks(await self._write(ref, start)):
            await self._write(ref, flags.edit, chunk, more, less)

    # -- places --------------------------------------------------------------------------------------------------------

    async def copy(self, ref: MailboxRef, folder_id: FolderKey, uids: Iterable[int], target: FolderKey) -> CopyResult:
        """COPY: those of `uids` that exist, into new UIDs of `target` in the same order (D4, D8).

        Charges no quota, for bytes are shared,
          but raises `mailbox_full` when the mailbox is over its quota; else `folder_not_found`.
        """
        return await self._transfer(ref, transfer.copy, folder_id, uids, target)

    async def move(self, ref: MailboxRef, folder_id: FolderKey, uids: Iterable[int], target: FolderKey) -> CopyResult:
        """MOVE: as COPY and EXPUNGE in one transaction per 1,000 messages (RFC 6851); never fails on quota."""
        return await self._transfer(ref, transfer.move, folder_id, uids, target)

    async def _transfer(
        self,
        ref: MailboxRef,
        step: Callable[[MailboxWrite, FolderKey, Sequence[int], FolderKey], Awaitable[CopyResult]],
        folder_id: FolderKey,
        uids: Iterable[int],
        target: FolderKey,
    ) -> CopyResult:
        chunks = list(_chunks(sorted(set(uids)))) or [[]]
        parts = [await self._write(ref, step, folder_id, chunk, target) for chunk in chunks]
        return CopyResult(parts[-1].uid_validity, tuple(pair for part in parts for pair in part.pairs))

    async def move_messages(self, ref: MailboxRef, message_ids: Iterable[str], target: FolderKey) -> None:
        """Have messages stand in `target` and nowhere else. Raises `message_not_found`, `folder_not_found`."""
        await self._transfer_messages(ref, transfer.move_messages, message_ids, target)

    async def copy_messages(self, ref: MailboxRef, message_ids: Iterable[str], target: FolderKey) -> None:
        """Have messages stand in `target` also. Raises `message_not_found`, `folder_not_found`, `mailbox_full`."""
        await self._transfer_messages(ref, transfer.copy_messages, message_ids, target)

    async def _transfer_messages(
        self,
        ref: MailboxRef,
        transfer_step: Callable[[MailboxWrite, Sequence[int], FolderKey], Awaitable[None]],
        message_ids: Iterable[str],
        target: FolderKey,
    ) -> None:
        async def step(write: MailboxWrite, chunk: Sequence[str]) -> None:
            await transfer_step(write, await placing.message_keys(write, chunk), target)

        for chunk in _chunks(_unique(message_ids)):
            await self._write(ref, step, chunk)

    async def batch(self, ref: MailboxRef, step: Step, once: Once[Results] | None = None) -> Outcome:
        """A step of `batch`, in one transaction; with `once` what it did the first time, if there was one.

        Raises what the step and `once` raise; then nothing was changed nor kept.
        """

        async def work(write: MailboxWrite) -> Outcome:
            if once is None:
                return await step(write)
            known = await once.begin(write.conn)
            if known is not None:
                return Outcome(known, replayed=True)
            outcome = await step(write)
            await once.complete(write.conn, outcome.results)
            return outcome

        outcome = await self._write(ref, work)
        await self._drop_bytes(outcome.removed)
        return outcome

    # -- removal -------------------------------------------------------------------------------------------------------

    async def expunge(self, ref: MailboxRef, folder_id: FolderKey, uids: Iterable[int] | None = None) -> list[int]:
        """EXPUNGE, or UID EXPUNGE of `uids`: what is `$deleted` goes, for good with its last placement. The UIDs that
        went, ascending.

        Raises `folder_not_found`; MessagesInUse, at the end, when some stay because they are still to be sent.
        """
        gone: list[int] = []
        kept = 0
        async for removed in self._expunge_steps(ref, folder_id, uids):
            await self._drop_bytes(removed)
            gone += removed.uids
            kept += removed.kept
        if kept:
            raise MessagesInUse
        return gone

    async def remove(self, ref: MailboxRef, folder_id: FolderKey, uid: int) -> bool:
        """Remove one placement for good, whatever its flags; False when it is not there.

        Raises `folder_not_found`; MessagesInUse when the message is still to be sent.
        """

        async def step(write: MailboxWrite) -> Removed:
            await folders.by_key(write.conn, write.ref, folder_id)
            rows = await placing.rows_in_folder(write, folder_id, [uid])
            if any(row.leaves for row in rows):
                raise MessagesInUse
            return await expunge.remove(write, rows)

        removed = await self._write(ref, step)
        await self._drop_bytes(removed)
        return bool(removed.uids)

    async def remove_all(self, ref: MailboxRef, folder_id: FolderKey, uids: Iterable[int]) -> None:
        """Remove those of the placements that are there, whatever their flags; what is still to be sent stays.

        Raises `folder_not_found`.
        """

        async def step(write: MailboxWrite, chunk: Sequence[int]) -> Removed:
            await folders.by_key(write.conn, write.ref, folder_id)
            rows = await placing.rows_in_folder(write, folder_id, chunk)
            return await expunge.remove(write, [row for row in rows if not row.leaves])

        for chunk in _chunks(sorted(set(uids))):
            await self._drop_bytes(await self._write(ref, step, chunk))

    async def _expunge_steps(
        self, ref: MailboxRef, folder_id: FolderKey, uids: Iterable[int] | None
    ) -> AsyncIterator[Removed]:
        if uids is not None:
            for chunk in _chunks(sorted(set(uids))):
                yield await self._write(ref, expunge.expunge, folder_id, chunk)
            return

        async def step(write: MailboxWrite, after: int) -> tuple[Removed, list[int]]:
            found = await expunge.deleted_uids(write, folder_id, after, CHUNK)
            return await expunge.expunge(write, folder_id, found), found

        after, more = 0, True
        while more:
            removed, found = await self._write(ref, step, after)
            after, more = found[-1] if found else after, len(found) == CHUNK
            yield removed

    # -- frame ---------------------------------------------------------------------------------------------------------

    async def _write(
        self,
        ref: MailboxRef,
        work: Callable[Concatenate[MailboxWrite, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """`work` in one transaction on the locked mailbox; the whole again if it lost a race (B15).

        `changed` follows the commit.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._database.transaction() as conn:
                    write = await begin_write(conn, ref, self._clock.now())
                    result = await work(write, *args, **kwargs)
                    wrote = await write.finish()
            except asyncpg.PostgresError as exc:
                if attempt == ATTEMPTS or not is_serialization(exc):
                    raise
            else:
                break
        if wrote:
            self._changed(ref, write.modseq)
        return result

    async def _drop_bytes(self, removed: Removed) -> None:
        """After the commit the bytes go; what cannot be removed is an orphan, which the sweep removes (E2)."""
        if not removed.blob_keys:
            return
        try:
            await self._blobs.delete(removed.blob_keys)
        except StorageError:
            _log.warning("blobs_left_behind", count=len(removed.blob_keys), exc_info=True)


def _chunks(values: Sequence[V]) -> Iterator[Sequence[V]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def _unique(values: Iterable[V]) -> list[V]:
    return list(dict.fromkeys(values))
