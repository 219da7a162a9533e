"""The directory of an export, and the note in it: whose it is, which folder is where, and whether it is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from postroom.mailbox.models import Folder
from postroom.migration.export_models import ExportFormat, ExportRefused
from postroom.migration.files import read_small
from postroom.migration.marker import MARKER, MAX_MARKER

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


class ExportTarget:
    """`identity_id` says whose export it is: an unfinished one of somebody else is not gone on with. `sync` waits until
    all that was written is on the disk: once, where a wait for each file would take longer than all the rest."""

    def __init__(self, root: Path, kind: ExportFormat, identity_id: str, sync: Callable[[], None]) -> None:
        self.root = root
        self._sync = sync
        self._kind, self._identity_id = kind, identity_id
        self._folders: list[dict[str, Any]] = []

    def begin(self, folders: Sequence[Folder], places: Mapping[str, str]) -> None:
        """Raises ExportRefused when something else is there, OSError."""
        self.root.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        if any(self.root.iterdir()):
            self._check()
        self._folders = [
            {
                "name": folder.name,
                "directory": places[folder.name],
                "special_use": None if folder.special_use is None else folder.special_use.value,
                "subscribed": folder.subscribed,
            }
            for folder in folders
        ]
        self._mark(complete=False)

    def finish(self) -> None:
        self._sync()
        self._mark(complete=True)
        self._sync()

    def _check(self) -> None:
        text = read_small(os.fsencode(self.root), os.fsencode(MARKER), MAX_MARKER)
        try:
            mark = json.loads(text or b"")
            same = (mark["format"], mark["identity_id"]) == (self._kind.value, self._identity_id)
            complete = bool(mark["complete"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ExportRefused("the directory is not empty", "Name a new one.") from None
        if not same:
            raise ExportRefused("the directory holds another export", "Name a new one.")
        if complete:
            raise ExportRefused("the export in this directory is complete", "Name a new one for a newer export.")

    def _mark(self, *, complete: bool) -> None:
        document = {
            "format": self._kind.value,
            "identity_id": self._identity_id,
            "complete": complete,
            "folders": self._folders,
        }
        write_file(self.root / MARKER, json.dumps(document, ensure_ascii=True, indent=1).encode())


def make_directory(path: Path) -> None:
    path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)


def create(path: Path) -> int:
    """A descriptor of a new file, or of the emptied one that an interrupted run left."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)


def write_file(path: Path, content: bytes) -> None:
    """The file with this content, or as it was."""
    beside = path.with_name(path.name + ".new")
    with open(create(beside), "wb") as file:
        file.write(content)
    beside.replace(path)
