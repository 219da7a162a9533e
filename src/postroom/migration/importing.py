"""Imports: folder by folder, page by page, a batch at a time (decisions C7, 0049).

What was brought is remembered by a digest of where it came from and where it went, in the transaction that stored it.
So a run that ended anywhere is gone on with by running it again, and a run after that adds what is new at the source.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from postroom.base.clock import Clock
from postroom.base.errors import PostroomError
from postroom.db import Database
from postroom.mailbox.folders import adopt_uid_validity
from postroom.mailbox.models import Folder, MailboxRef, SpecialUse
from postroom.mailbox.rules import INBOX, SEPARATOR, folder_name
from postroom.mailbox.service import Mailboxes
from postroom.mailbox.writing import begin_write
from postroom.migration import store
from postroom.migration.batches import (
    MAX_BATCH,
    MAX_BATCH_BYTES,
    MAX_KEPT_UID,
    Batches,
    Incoming,
    Stored,
    Target,
)
from postroom.migration.dovecot import MAX_UID
from postroom.migration.models import (
    FolderReport,
    ImportReport,
    Item,
    Problem,
    Source,
    SourceFolder,
    Trouble,
    Uids,
)
from postroom.migration.names import is_inbox, our_name, roles_of

T = TypeVar("T")

Progress = Callable[[FolderReport, int | None], None]
"""Told after each batch: the folder's figures, and how many messages there are in all, if the source knows."""

_KEY_OCTETS: Final = 16


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a folder of the source goes: the name of ours, and the role by which it was found."""

    source: SourceFolder
    name: str
    role: SpecialUse | None
    renamed: bool


def destinations(folders: Sequence[SourceFolder], ours: Sequence[Folder], under: str | None) -> list[Destination]:
    """Where each folder goes. Folders of a role go to ours of that role; with `under` all keep their names below it.

    What shows the mail of other folders once more (`\\Flagged`) is left out; `\\All` comes last. Raises
    `invalid_request` for an impossible `under`.
    """
    roles = {} if under is not None else roles_of(folders)
    by_role = {folder.special_use: folder.name for folder in ours if folder.special_use is not None}
    above = () if under is None else tuple(folder_name(under).split(SEPARATOR))
    found: list[Destination] = []
    for folder in folders:
        if shows_others(folder):
            continue
        role = roles.get(folder.key)
        plain = SEPARATOR.join(folder.path)
        if under is None and is_inbox(folder):
            name, role = INBOX, SpecialUse.INBOX
        elif role is not None:
            name = by_role.get(role, our_name(folder.path))
        else:
            name = our_name((*above, *folder.path))
        renamed = name != (plain if under is None else SEPARATOR.join((*above, plain)))
        found.append(Destination(folder, name, role, renamed and not is_inbox(folder)))
    return sorted(found, key=lambda one: one.source.role is SpecialUse.ALL)


def shows_others(folder: SourceFolder) -> bool:
    """Whether it only shows what is in other folders."""
    return folder.role is SpecialUse.FLAGGED


class Importer:
    """Brings a source into one mailbox. Its source is read in a thread, a step at a time."""

    def __init__(
        self,
        database: Database,
        mailboxes: Mailboxes,
        batches: Batches,
        clock: Clock,
        ref: MailboxRef,
        progress: Progress,
    ) -> None:
        self._database, self._mailboxes, self._batches = database, mailboxes, batches
        self._clock, self._ref, self._progress = clock, ref, progress

    async def run(self, source: Source, *, under: str | None = None, forget: bool = False) -> ImportReport:
        """Bring all that was not brought before; `forget` looks at everything again, and still adds no bytes twice to
        a folder. `under` is a folder of ours for all of it.

        Raises SourceError, AnotherImport, and as `Batches.store`. The source stays the caller's.
        """
        report = ImportReport()
        folders = await asyncio.to_thread(source.folders)
        plan = destinations(folders, await self._mailboxes.list_folders(self._ref), under)
        report.left_out += [SEPARATOR.join(folder.path) for folder in folders if shows_others(folder)]
        if forget:
            async with self._database.transaction() as conn:
                await store.forget(conn, self._ref)
        for one in plan:
            path = SEPARATOR.join(one.source.path)
            figures = FolderReport(path, one.name, renamed=one.renamed)
            report.folders.append(figures)
            await _FolderImport(self, source, one, figures, report).run()
            if report.full:
                break
        return report

    async def done(self, keys: Sequence[bytes]) -> frozenset[bytes]:
        async with self._database.acquire() as conn:
            return await store.done(conn, self._ref, keys)

    async def remember(self, rows: Sequence[store.Row]) -> None:
        async with self._database.transaction() as conn:
            await store.add(conn, self._ref, rows, again=True)

    async def find(self, name: str) -> Folder | None:
        """Ours of that name."""
        try:
            return await self._mailboxes.folder(self._ref, name)
        except PostroomError as error:
            if error.code != "folder_not_found":
                raise
            return None

    async def folder(self, wanted: Destination) -> Folder:
        """Ours, made where it is missing."""
        if (there := await self.find(wanted.name)) is not None:
            return there
        try:
            made = await self._mailboxes.create_folder(self._ref, wanted.name, wanted.role)
        except PostroomError as error:
            if error.code != "folder_exists":
                raise
            return await self._mailboxes.folder(self._ref, wanted.name)
        if wanted.source.subscribed is False:
            await self._mailboxes.subscribe(self._ref, made.id, False)
        return made

    async def is_exact(self, folder: Folder) -> bool:
        async with self._database.acquire() as conn:
            return await store.is_exact(conn, self._ref, folder.id)

    async def uid_validity(self, folder: Folder) -> int:
        async with self._database.acquire() as conn:
            return await store.uid_validity(conn, self._ref, folder.id)

    async def take_over(self, folder: Folder, source: SourceFolder, key: bytes) -> bool:
        """Give the folder UIDVALIDITY and UIDNEXT of the source, if every message has its UID and no other came."""
        async with self._database.transaction() as conn:
            write = await begin_write(conn, self._ref, self._clock.now())
            if not await store.is_exact(conn, self._ref, folder.id):
                return False
            validity, following = source.uid_validity, source.uid_next
            if not await adopt_uid_validity(conn, self._ref, folder.id, validity, following):
                return False
            # So that what the source gets until the next run still follows on what is here.
            await store.add(conn, self._ref, [(key, folder.id, following - 1)], again=True)
            await write.finish()
        return True

    async def store(self, target: Target, batch: Sequence[Incoming]) -> Stored:
        return await self._batches.store(target, batch)

    def tell(self, figures: FolderReport, total: int | None) -> None:
        self._progress(figures, total)


class _FolderImport:
    """One folder on its way."""

    def __init__(
        self, room: Importer, source: Source, wanted: Destination, figures: FolderReport, report: ImportReport
    ) -> None:
        self._room, self._source, self._wanted = room, source, wanted
        self._figures, self._report = figures, report
        self._folder_key = self._key(b"folder")
        self._target: Target | None = None

    async def run(self) -> None:
        if self._folder_key not in await self._room.done([self._folder_key]):
            await self._ready()
            await self._room.remember([(self._folder_key, None, None)])
        async for page in _steps(self._source.pages(self._wanted.source)):
            await self._page(page)
            if self._report.full:
                return
        await self._finish()

    def _key(self, item: bytes) -> bytes:
        """By what a message, or the folder, is remembered."""
        folder = self._wanted.source
        parts = (self._source.label, folder.key, self._wanted.name.encode(), item)
        digest = hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts))
        return digest.digest()[:_KEY_OCTETS]

    async def _ready(self) -> Target:
        """The folder of ours, with what is known of its UIDs."""
        if self._target is None:
            self._target = await self._target_of(await self._room.folder(self._wanted))
        return self._target

    async def _target_of(self, folder: Folder) -> Target:
        source = self._wanted.source
        validity = source.uid_validity
        keeps = 0 < validity <= MAX_UID and source.uid_next <= MAX_KEPT_UID and await self._room.is_exact(folder)
        return Target(folder, keeps, validity, self._wanted.source.role is SpecialUse.ALL)

    async def _page(self, page: Sequence[Item]) -> None:
        keys = [self._key(item.key) for item in page]
        done = await self._room.done(keys)
        self._figures.found += len(page)
        self._figures.earlier += sum(key in done for key in keys)
        wanted = {item.key: key for item, key in zip(page, keys, strict=True) if key not in done}
        if wanted:
            asked = [item for item in page if item.key in wanted]
            batch: list[Incoming] = []
            size = 0
            async for found in _steps(self._source.read(self._wanted.source, asked)):
                if isinstance(found, Problem):
                    self._report.note(self._figures.source, found)
                    continue
                batch.append(Incoming(found, wanted[found.item.key]))
                size += len(found.raw)
                if len(batch) >= MAX_BATCH or size >= MAX_BATCH_BYTES:
                    await self._store(batch)
                    batch, size = [], 0
                    if self._report.full:
                        return
            if batch:
                await self._store(batch)
        self._room.tell(self._figures, self._wanted.source.count)

    async def _store(self, batch: list[Incoming]) -> None:
        target = await self._ready()
        stored = await self._room.store(target, batch)
        figures = self._figures
        figures.imported += stored.imported
        figures.duplicates += stored.duplicates
        figures.dropped_keywords += stored.dropped_keywords
        for letter in stored.refused:
            self._report.note(figures.source, Problem(letter.item, Trouble.REFUSED))
        self._report.full |= stored.full
        if target.keeps_uids and not stored.exact:
            # Somebody else's mail came in between: no wish can be met that is not above what came.
            self._target = Target(target.folder, False, target.source_validity, target.anywhere)
        self._room.tell(figures, self._wanted.source.count)

    async def _finish(self) -> None:
        source = self._wanted.source
        if not source.uid_validity:
            return
        target = self._target
        if target is None:
            folder = await self._room.find(self._wanted.name)
            if folder is None:
                return  # somebody removed it, with what an earlier run had brought
            target = await self._target_of(folder)
        kept = await self._room.uid_validity(target.folder) == source.uid_validity
        if not kept or self._figures.imported:
            taken = target.keeps_uids and await self._room.take_over(target.folder, source, self._key(b"uids"))
            kept = taken or (kept and target.keeps_uids)
        self._figures.uids = Uids.KEPT if kept else Uids.NEW


async def _steps(steps: Iterator[T]) -> AsyncIterator[T]:
    """What a blocking iterator gives, each step in a thread."""
    end = object()
    while (found := await asyncio.to_thread(next, steps, end)) is not end:
        yield found  # type: ignore[misc] # what is not the end is a T
