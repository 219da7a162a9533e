"""A mailbox to move in to and out of, and what is in it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.blobs import MaildirStore
from postroom.db import Database
from postroom.inbound.parsing import Parser
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.reads import Columns
from postroom.mailbox.service import Mailboxes
from postroom.migration.batches import Batches, Mailbox
from postroom.migration.export_models import ExportReport
from postroom.migration.exporting import Exporter
from postroom.migration.importing import Importer
from postroom.migration.maildir_export import MaildirExport
from postroom.migration.mbox_export import MboxExport
from postroom.migration.models import FolderReport, ImportReport, Source
from tests.mailbox.letters import Box, check_mailbox, make_boxes

Seen = dict[str, list[tuple[bytes, tuple[str, ...], datetime]]]
"""Folder → its messages by UID: bytes, flags, INTERNALDATE."""


@dataclass
class House:
    """Services on one database, and mailboxes."""

    db: Database
    blobs: MaildirStore
    boxes: Mailboxes
    parser: Parser
    clock: ManualClock
    ids: IdGenerator
    told: list[tuple[str, int]]

    async def box(self, **options: Any) -> Box:
        (box,) = await make_boxes(self.db, self.ids, self.clock, **options)
        return box

    def importer(self, box: Box) -> Importer:
        return Importer(self.db, self.boxes, self.batches(box), self.clock, box.ref, self._progress)

    def batches(self, box: Box) -> Batches:
        return Batches(
            *(self.db, self.blobs, self.parser, self.clock, self.ids),
            Mailbox(box.ref, box.tenant_id, box.identity_id),
            lambda ref, modseq: None,
        )

    def _progress(self, figures: FolderReport, total: int | None) -> None:
        self.told.append((figures.source, figures.found))

    async def bring(self, box: Box, source: Source, **options: Any) -> ImportReport:
        """An import; afterwards every counter of the mailbox is right."""
        report = await self.importer(box).run(source, **options)
        source.close()
        async with self.db.acquire() as conn:
            await check_mailbox(conn, box.ref)
        return report

    async def write_maildir(self, box: Box, root: Path) -> ExportReport:
        return await self.exporter(box).run(MaildirExport(root, box.identity_id, sync=_no_sync))

    async def write_mbox(self, box: Box, root: Path) -> ExportReport:
        return await self.exporter(box).run(MboxExport(root, box.identity_id, sync=_no_sync))

    def exporter(self, box: Box) -> Exporter:
        return Exporter(self.boxes, self.blobs, box.ref, lambda figures, total: None)

    async def seen(self, ref: MailboxRef) -> Seen:
        found: Seen = {}
        for folder in await self.boxes.list_folders(ref):
            messages = found[folder.name] = []
            pages = self.boxes.reads.fetch_rows(ref, folder.id, range(1, folder.uid_next), Columns.IDS | Columns.BYTES)
            async for page in pages:
                for row in page:
                    assert row.blob_key is not None
                    messages.append((await self.blobs.get(row.blob_key), row.flags, row.internal_date))
        return found

    async def uids(self, ref: MailboxRef, name: str) -> tuple[int, int, list[int]]:
        """UIDVALIDITY, UIDNEXT, UIDs."""
        folder = await self.boxes.folder(ref, name)
        snapshot = await self.boxes.reads.folder_snapshot(ref, folder.id)
        return folder.uid_validity, folder.uid_next, list(snapshot.uids)

    async def remembered(self, ref: MailboxRef) -> int:
        async with self.db.acquire() as conn:
            return int(await conn.fetchval("SELECT count(*) FROM imported WHERE mailbox_id = $1", ref.mailbox_id))


@asynccontextmanager
async def house(db: Database, clock: ManualClock, ids: IdGenerator, root: Path) -> AsyncIterator[House]:
    blobs = MaildirStore(root / "store", fsync=False)
    parser = Parser()
    boxes = Mailboxes(db, blobs, clock, ids, lambda ref, modseq: None)
    try:
        yield House(db, blobs, boxes, parser, clock, ids, [])
    finally:
        parser.close()
        await blobs.close()


def letter(number: int = 1, body: str = "Hello.", **fields: str) -> bytes:
    """A message in wire form."""
    given = {
        "From": "Anna <anna@example.com>",
        "To": "bo@example.org",
        "Subject": f"Letter {number}",
        "Date": "Tue, 01 Jan 2019 10:00:00 +0000",
        "Message-ID": f"<{number}@example.com>",
        **fields,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
    return f"{head}\r\n{body}\r\n".encode()


def make_maildir(
    directory: Path, files: Mapping[str, bytes] = {}, *, mtime: int = 1_500_000_000, **others: str
) -> Path:
    """A Maildir folder with these files, named below it (`cur/1.a:2,S`); `others` are files beside, `_` for `-`."""
    import os

    for place in ("cur", "new", "tmp"):
        (directory / place).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
        os.utime(directory / name, (mtime, mtime))
    for name, text in others.items():
        (directory / name.replace("_", "-")).write_text(text)
    return directory


def digests(messages: Sequence[tuple[bytes, Any, Any]]) -> list[str]:
    return [hashlib.sha256(one[0]).hexdigest() for one in messages]


def _no_sync() -> None:
    """The machine's other work is not waited for."""
