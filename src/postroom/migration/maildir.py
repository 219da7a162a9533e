"""Maildir as a source: Maildir++ (`.A.B`) or a directory for each level, with what Dovecot keeps beside it (E1, D5)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from postroom.migration import dovecot
from postroom.migration.files import TooLarge, is_directory, names_below, read_file, read_small
from postroom.migration.flags import of_letters
from postroom.migration.lines import to_wire
from postroom.migration.marker import Marks, read_marker
from postroom.migration.models import (
    PAGE,
    Item,
    Letter,
    Problem,
    SourceError,
    SourceErrorKind,
    SourceFolder,
    Trouble,
)
from postroom.migration.names import segment_words

MAX_DEPTH: Final = 64
_OWN: Final = frozenset({b"cur", b"new", b"tmp"})
_INBOX: Final = b"."


class MaildirSource:
    """A Maildir and the folders in it. Nothing in it is changed; a program may go on using it meanwhile."""

    label: Final = b"maildir"

    def __init__(self, root: Path, *, max_bytes: int) -> None:
        self._root = os.fsencode(root)
        self._max_bytes = max_bytes
        self._keywords: dict[bytes, dict[str, str]] = {}

    def folders(self) -> Sequence[SourceFolder]:
        if not os.path.isdir(self._root):
            raise SourceError(SourceErrorKind.PATH, "there is no such directory")
        found = list(self._directories())
        if not found:
            raise SourceError(
                SourceErrorKind.PATH, "this is no Maildir", "Name the directory that holds cur, new and tmp."
            )
        marks = read_marker(self._root)
        subscribed = self._subscribed()
        return [self._folder(directory, path, marks, subscribed) for directory, path in sorted(found)]

    def pages(self, folder: SourceFolder) -> Iterator[Sequence[Item]]:
        uids = self._uidlist(folder.key)
        known = {} if uids is None else uids.uids
        # Older names begin with the second in which the file was made.
        items = [Item(base, known.get(base, 0), place) for base, place in self._files(folder.key)]
        items.sort(key=lambda item: (item.uid or dovecot.MAX_UID + 1, item.key))
        for start in range(0, len(items), PAGE):
            yield items[start : start + PAGE]

    def read(self, folder: SourceFolder, items: Sequence[Item]) -> Iterator[Letter | Problem]:
        for item in items:
            yield self._read(folder, item)

    def close(self) -> None:
        """Nothing is held open."""

    # -- folders -------------------------------------------------------------------------------------------------------

    def _directories(self) -> Iterator[tuple[bytes, tuple[str, ...]]]:
        """Folders by directory below the root, and their paths in words."""
        if self._is_folder(_INBOX):
            yield _INBOX, ("INBOX",)
        pending: list[tuple[bytes, tuple[str, ...]]] = [(b"", ())]
        while pending:
            parent, path = pending.pop()
            for name in _subdirectories(os.path.join(self._root, parent)):
                below = os.path.join(parent, name)
                if name.startswith(b"."):
                    if not parent and self._is_folder(below):  # Maildir++ is flat
                        yield below, _in_words(name[1:].split(b"."))
                    continue
                words = (*path, segment_words(name))
                if self._is_folder(below):
                    yield below, words
                if len(words) < MAX_DEPTH:
                    pending.append((below, words))

    def _is_folder(self, directory: bytes) -> bool:
        return is_directory(os.path.join(self._root, directory, b"cur"))

    def _folder(
        self,
        directory: bytes,
        path: tuple[str, ...],
        marks: Marks,
        subscribed: frozenset[tuple[str, ...]] | None,
    ) -> SourceFolder:
        uids = self._uidlist(directory)
        named, role = marks.get(directory.decode("latin-1"), (path, None))
        return SourceFolder(
            key=directory,
            path=named,
            role=role,
            uid_validity=0 if uids is None else uids.uid_validity,
            uid_next=0 if uids is None else uids.uid_next,
            count=sum(1 for _ in self._files(directory)),
            subscribed=None if subscribed is None else path in subscribed,
        )

    def _subscribed(self) -> frozenset[tuple[str, ...]] | None:
        data = read_small(self._root, dovecot.SUBSCRIPTIONS.encode(), dovecot.MAX_FILE)
        return None if data is None else frozenset(map(_in_words, dovecot.parse_subscriptions(data)))

    # -- messages ------------------------------------------------------------------------------------------------------

    def _uidlist(self, directory: bytes) -> dovecot.UidList | None:
        data = read_small(self._root, os.path.join(directory, dovecot.UIDLIST.encode()), dovecot.MAX_FILE)
        return None if data is None else dovecot.parse_uidlist(data)

    def _files(self, directory: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The lasting part of each message's name, once, and where the file is below the root."""
        seen: set[bytes] = set()
        for place in (b"cur", b"new"):
            below = os.path.join(directory, place)
            try:
                entries = names_below(self._root, below)
            except OSError:
                continue
            for name, is_below in entries:
                base = dovecot.base_name(name)
                if not name.startswith(b".") and base not in seen and not is_below:
                    seen.add(base)
                    yield base, os.path.join(below, name)

    def _read(self, folder: SourceFolder, item: Item) -> Letter | Problem:
        assert isinstance(item.place, bytes)
        place: bytes | None = item.place
        for attempt in range(2):
            if place is None:
                return Problem(item, Trouble.GONE)
            try:
                raw, info = read_file(self._root, place, self._max_bytes)
            except FileNotFoundError:
                # A program that has the Maildir open gave it other flags.
                place = None if attempt else dict(self._files(folder.key)).get(item.key)
            except TooLarge:
                return Problem(item, Trouble.TOO_LARGE)
            except OSError:
                return Problem(item, Trouble.UNREADABLE)
            else:
                return self._letter(folder, item, place, raw, info.st_mtime)
        return Problem(item, Trouble.GONE)

    def _letter(self, folder: SourceFolder, item: Item, place: bytes, raw: bytes, mtime: float) -> Letter | Problem:
        if not raw:
            return Problem(item, Trouble.EMPTY)
        wire = to_wire(raw)
        if len(wire) > self._max_bytes:
            return Problem(item, Trouble.TOO_LARGE)
        flags = of_letters(dovecot.split_name(os.path.basename(place))[1], self._keywords_of(folder.key))
        return Letter(item, wire, tuple(flags), _moment(mtime))

    def _keywords_of(self, directory: bytes) -> dict[str, str]:
        if directory not in self._keywords:
            data = read_small(self._root, os.path.join(directory, dovecot.KEYWORDS.encode()), dovecot.MAX_FILE)
            self._keywords[directory] = {} if data is None else dovecot.parse_keywords(data)
        return self._keywords[directory]


def _subdirectories(directory: bytes) -> list[bytes]:
    try:
        with os.scandir(directory) as entries:
            return sorted(one.name for one in entries if one.is_dir(follow_symlinks=False) and one.name not in _OWN)
    except OSError:
        return []


def _in_words(segments: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(map(segment_words, segments))


def _moment(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return None
