"""A Maildir++ that Dovecot and others read, with UIDs, keywords and subscriptions as Dovecot keeps them (E1, D5)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from postroom.mailbox.models import SYSTEM_FLAGS, Folder
from postroom.migration import dovecot
from postroom.migration.export_models import ExportFormat, Outgoing
from postroom.migration.export_target import ExportTarget, create, make_directory, write_file
from postroom.migration.files import read_small
from postroom.migration.flags import letters_of
from postroom.migration.names import apart, maildir_directory

_SUBDIRECTORIES: Final = ("cur", "new", "tmp")


class MaildirExport:
    """Writes below `root`. File names follow from the messages, so that an interrupted export is gone on with."""

    def __init__(self, root: Path, identity_id: str, *, sync: Callable[[], None] = os.sync) -> None:
        self._root = root
        self._target = ExportTarget(root, ExportFormat.MAILDIR, identity_id, sync)
        self._places: dict[str, str] = {}
        self._folders: Sequence[Folder] = ()

    def begin(self, folders: Sequence[Folder]) -> None:
        self._folders = folders
        self._places = apart((one.name, maildir_directory(one.name).decode("latin-1")) for one in folders)
        self._target.begin(folders, self._places)

    def place(self, folder: Folder) -> str:
        return self._places[folder.name]

    def folder(self, folder: Folder) -> MaildirFolder:
        directory = self._root / self._places[folder.name]
        for name in _SUBDIRECTORIES:
            make_directory(directory / name)
        if directory != self._root:
            write_file(directory / "maildirfolder", b"")  # says that it is no mailbox of its own (Courier)
        return MaildirFolder(directory, folder)

    def finish(self) -> None:
        names = [self._places[folder.name].encode("latin-1") for folder in self._folders if folder.subscribed]
        segments = [(b"INBOX",) if name == b"." else tuple(name[1:].split(b".")) for name in names]
        write_file(self._root / dovecot.SUBSCRIPTIONS, dovecot.format_subscriptions(segments))
        self._target.finish()


class MaildirFolder:
    """One folder. A message without flags goes into `new`, one with any into `cur` (D5); mtime is INTERNALDATE."""

    is_done: Final = False

    def __init__(self, directory: Path, folder: Folder) -> None:
        self._directory, self._folder = directory, folder
        self._there = _files(directory)
        data = read_small(os.fsencode(directory), os.fsencode(dovecot.KEYWORDS), dovecot.MAX_FILE)
        self._letters = {
            word: letter for letter, word in ({} if data is None else dovecot.parse_keywords(data)).items()
        }
        self._entries: list[tuple[int, bytes]] = []

    def has(self, uid: int, message_id: str, flags: tuple[str, ...], date: datetime, size: int) -> bool:
        base = _base(self._folder.uid_validity, uid, message_id, date, size)
        there = self._there.pop(base, None)
        if there is None or there.stat().st_size != size:
            return False
        self._learn(flags)
        wanted = self._path(base, flags)
        if wanted != there:
            there.rename(wanted)
        self._entries.append((uid, base.encode()))
        return True

    def write(self, messages: Sequence[Outgoing]) -> int:
        lost = 0
        for one in messages:
            self._learn(one.flags)
            lost += any(word not in SYSTEM_FLAGS and word not in self._letters for word in one.flags)
            base = _base(self._folder.uid_validity, one.uid, one.message_id, one.date, len(one.raw))
            beside = self._directory / "tmp" / base
            with open(create(beside), "wb") as file:
                file.write(one.raw)
            seconds = int(one.date.timestamp())
            os.utime(beside, (seconds, seconds))
            beside.rename(self._path(base, one.flags))
            self._entries.append((one.uid, base.encode()))
        return lost

    def finish(self) -> None:
        for gone in self._there.values():  # of an interrupted run; they have left the folder since
            gone.unlink(missing_ok=True)
        following = max([self._folder.uid_next, *(uid + 1 for uid, _ in self._entries[-1:])])
        self._entries.sort()
        content = dovecot.format_uidlist(self._folder.uid_validity, following, self._entries)
        write_file(self._directory / dovecot.UIDLIST, content)

    def _learn(self, flags: Sequence[str]) -> None:
        """Letters for keywords that have none, as long as there are letters; known before a file bears them."""
        fresh = [word for word in flags if word not in SYSTEM_FLAGS and word not in self._letters]
        for word in fresh[: len(dovecot.KEYWORD_LETTERS) - len(self._letters)]:
            self._letters[word] = dovecot.KEYWORD_LETTERS[len(self._letters)]
        if fresh:
            write_file(self._directory / dovecot.KEYWORDS, dovecot.format_keywords(list(self._letters)))

    def _path(self, base: str, flags: Sequence[str]) -> Path:
        letters = letters_of(flags, self._letters)
        return self._directory / "cur" / f"{base}:2,{letters}" if letters else self._directory / "new" / base


def _files(directory: Path) -> dict[str, Path]:
    """What an interrupted run wrote, by the lasting part of the names."""
    found = {}
    for place in ("new", "cur"):
        for path in (directory / place).iterdir():
            found[dovecot.base_name(os.fsencode(path.name)).decode("latin-1")] = path
    return found


def _base(uid_validity: int, uid: int, message_id: str, date: datetime, size: int) -> str:
    """The lasting part of a file's name: second, folder and UID, our id, and the size, which saves Dovecot a look."""
    return f"{max(0, int(date.timestamp()))}.V{uid_validity}U{uid}.{message_id},S={size}"
