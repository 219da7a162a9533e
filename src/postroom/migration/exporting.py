"""Exports: every folder of a mailbox, a page at a time, to a writer (decisions C7, B5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from postroom.blobs.store import BlobMissing, BlobStore, StorageError
from postroom.mailbox.models import Folder, MailboxRef
from postroom.mailbox.reads import Columns, FetchRow, FolderReads
from postroom.mailbox.service import Mailboxes
from postroom.migration.export_models import ExportReport, FolderExported, FolderWriter, Outgoing, Writer

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Octets that are read at a time; one message may be larger."""

Progress = Callable[[FolderExported, int], None]
"""Told after each page: the folder's figures, and how many messages it holds."""


class Exporter:
    """Reads one mailbox. It may be in use: what comes or changes while a folder is written may be missing from it."""

    def __init__(self, mailboxes: Mailboxes, blobs: BlobStore, ref: MailboxRef, progress: Progress) -> None:
        self._mailboxes, self._blobs = mailboxes, blobs
        self._ref, self._progress = ref, progress

    async def run(self, writer: Writer) -> ExportReport:
        """Write everything. Raises ExportRefused, OSError of the target, StorageError of our own store."""
        report = ExportReport()
        folders = await self._mailboxes.list_folders(self._ref)
        await asyncio.to_thread(writer.begin, folders)
        for folder in folders:
            figures = FolderExported(folder.name, writer.place(folder))
            report.folders.append(figures)
            await self._folder(folder, await asyncio.to_thread(writer.folder, folder), figures)
        await asyncio.to_thread(writer.finish)
        return report

    async def _folder(self, folder: Folder, writer: FolderWriter, figures: FolderExported) -> None:
        if writer.is_done:
            figures.earlier = folder.message_count
            return
        reads: FolderReads = self._mailboxes.reads
        every = range(1, folder.uid_next)
        async for page in reads.fetch_rows(self._ref, folder.id, every, Columns.IDS | Columns.BYTES):
            there = await asyncio.to_thread(_there, writer, page)
            figures.earlier += sum(there)
            missing = [row for row, is_there in zip(page, there, strict=True) if not is_there]
            for batch in _batches(missing):
                await self._write(writer, batch, figures)
            self._progress(figures, folder.message_count)
        await asyncio.to_thread(writer.finish)

    async def _write(self, writer: FolderWriter, rows: Sequence[FetchRow], figures: FolderExported) -> None:
        results = await self._blobs.get_many([row.blob_key or "" for row in rows])
        messages: list[Outgoing] = []
        for row, found in zip(rows, results, strict=True):
            if isinstance(found, BlobMissing):
                figures.missing += 1
            elif isinstance(found, StorageError):
                raise found
            else:
                messages.append(Outgoing(row.uid, row.message_id or "", row.flags, row.internal_date, found))
        figures.lost_keywords += await asyncio.to_thread(writer.write, messages)
        figures.exported += len(messages)


def _there(writer: FolderWriter, page: Sequence[FetchRow]) -> list[bool]:
    return [writer.has(row.uid, row.message_id or "", row.flags, row.internal_date, row.size) for row in page]


def _batches(rows: Sequence[FetchRow]) -> list[list[FetchRow]]:
    """Rows whose bytes are read together."""
    batches: list[list[FetchRow]] = []
    size = MAX_BATCH_BYTES
    for row in rows:
        if size + row.size > MAX_BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(row)
        size += row.size
    return batches
