"""A file in mboxrd form for each folder, with flags in Status, X-Status and X-Keywords."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from postroom.mailbox.models import Folder
from postroom.migration.export_models import ExportFormat, Outgoing
from postroom.migration.export_target import ExportTarget, create, make_directory
from postroom.migration.mbox_format import pack
from postroom.migration.names import apart, mbox_file


class MboxExport:
    """Writes below `root`. A folder's file has its name when it is complete; an interrupted run begins one anew."""

    def __init__(self, root: Path, identity_id: str, *, sync: Callable[[], None] = os.sync) -> None:
        self._root = root
        self._target = ExportTarget(root, ExportFormat.MBOX, identity_id, sync)
        self._places: dict[str, str] = {}

    def begin(self, folders: Sequence[Folder]) -> None:
        self._places = apart((one.name, mbox_file(one.name)) for one in folders)
        self._target.begin(folders, self._places)

    def place(self, folder: Folder) -> str:
        return self._places[folder.name]

    def folder(self, folder: Folder) -> MboxFile:
        path = self._root / self._places[folder.name]
        make_directory(path.parent)
        return MboxFile(path)

    def finish(self) -> None:
        self._target.finish()


class MboxFile:
    """One folder's file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self.is_done = path.is_file()
        if not self.is_done:
            with open(create(self._part), "wb"):
                pass

    def has(self, uid: int, message_id: str, flags: tuple[str, ...], date: datetime, size: int) -> bool:
        return False

    def write(self, messages: Sequence[Outgoing]) -> int:
        with open(self._part, "ab") as file:
            for one in messages:
                file.write(pack(one.raw, one.flags, one.date))
        return 0

    def finish(self) -> None:
        self._part.replace(self._path)
