"""Files in mbox form as a source: one file, or a directory of them as Thunderbird and others keep."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from postroom.migration import mbox_format as form
from postroom.migration.files import open_below
from postroom.migration.lines import to_wire
from postroom.migration.marker import read_marker
from postroom.migration.mbox_format import Dialect
from postroom.migration.models import PAGE, Item, Letter, Problem, SourceError, SourceErrorKind, SourceFolder, Trouble
from postroom.migration.names import segment_words

MAX_DEPTH: Final = 64
MAX_HEADER: Final = 256 * 1024
"""Octets in which Content-Length is looked for."""
_CHUNK: Final = 1 << 16
_IGNORED: Final = (".msf", ".lock", ".dat", ".part")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a message is: its `From ` line, and the octets after it."""

    line: bytes
    start: int
    end: int


class MboxSource:
    """One mbox file, or all below a directory. Messages are known by their bytes: a file may be written anew at any
    time. Nothing is changed, and a file that a mail program is writing should not be read."""

    label: Final = b"mbox"

    def __init__(self, root: Path, *, max_bytes: int, dialect: Dialect = Dialect.MBOXRD, folder: str = "INBOX") -> None:
        """`folder`: the name of the folder that a single file becomes."""
        self._root, self._max_bytes, self._dialect = os.fsencode(root), max_bytes, dialect
        self._folder = folder
        self._single = False
        self._open: tuple[bytes, IO[bytes]] | None = None

    def folders(self) -> Sequence[SourceFolder]:
        try:
            kind = os.stat(self._root).st_mode
        except OSError as error:
            raise SourceError(SourceErrorKind.PATH, error.strerror or "it cannot be read") from None
        self._single = not stat.S_ISDIR(kind)
        if self._single:
            if not self._is_mbox(b""):
                raise SourceError(
                    SourceErrorKind.PATH, "this is no mbox file", "Such a file begins with a line `From …`."
                )
            return [SourceFolder(b"", tuple(self._folder.split("/")))]
        marks = read_marker(self._root)
        found = [
            SourceFolder(key, *marks.get(key.decode("utf-8", "replace"), (path, None)))
            for key, path in sorted(self._files())
            if self._is_mbox(key)
        ]
        if not found:
            raise SourceError(SourceErrorKind.PATH, "there is no mbox file in this directory")
        return found

    def pages(self, folder: SourceFolder) -> Iterator[Sequence[Item]]:
        seen: dict[bytes, int] = {}
        page: list[Item] = []
        for place in self._places(folder.key):
            digest = self._digest(folder.key, place)
            # The same bytes twice are two; which is which does not matter.
            nth = seen[digest] = seen.get(digest, 0) + 1
            page.append(Item(b"%s-%d" % (digest.hex()[:32].encode(), nth), place=place))
            if len(page) == PAGE:
                yield page
                page = []
        if page:
            yield page

    def read(self, folder: SourceFolder, items: Sequence[Item]) -> Iterator[Letter | Problem]:
        for item in items:
            yield from self._read(folder, item)

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    # -- files ---------------------------------------------------------------------------------------------------------

    def _files(self) -> Iterator[tuple[bytes, tuple[str, ...]]]:
        pending: list[tuple[bytes, tuple[str, ...]]] = [(b"", ())]
        while pending:
            parent, path = pending.pop()
            try:
                with os.scandir(os.path.join(self._root, parent)) as entries:
                    listed = sorted(entries, key=lambda one: one.name)
            except OSError:
                continue
            for entry in listed:
                name, below = entry.name, os.path.join(parent, entry.name)
                if name.startswith(b"."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if len(path) < MAX_DEPTH:
                        # Thunderbird: what is below `Work` is in `Work.sbd`. Apple Mail: `Work.mbox/mbox`.
                        pending.append((below, (*path, _stem(name, (b".sbd", b".mbox")))))
                elif entry.is_file(follow_symlinks=False) and not name.endswith(tuple(map(str.encode, _IGNORED))):
                    yield below, path if name == b"mbox" and path else (*path, _stem(name, (b".mbox",)))

    def _is_mbox(self, key: bytes) -> bool:
        try:
            file = self._file(key)
        except OSError:
            return False
        file.seek(0)
        first = file.read(form.MAX_LINE)
        return first.startswith(b"From ") or (not first and not self._single)

    def _file(self, key: bytes) -> IO[bytes]:
        if self._open is None or self._open[0] != key:
            self.close()
            # The file that was named may be a link; none below a directory may, nor lead through one.
            single = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(self._root, single) if self._single else open_below(self._root, key)
            file = os.fdopen(fd, "rb", buffering=_CHUNK)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                file.close()
                raise OSError("not a file")
            self._open = key, file
        return self._open[1]

    # -- messages ------------------------------------------------------------------------------------------------------

    def _places(self, key: bytes) -> Iterator[_Place]:
        try:
            file = self._file(key)
            begun: tuple[bytes, int] | None = None
            at, blank, whole = 0, True, True
            while True:
                file = self._file(key)
                file.seek(at)
                line = file.readline(_CHUNK)
                if not line:
                    break
                is_first = at == 0
                if whole and blank and (form.is_separator(line) or (is_first and line.startswith(b"From "))):
                    if begun is not None:
                        yield _Place(begun[0], begun[1], at)
                    begun = line, at + len(line)
                    at = self._past_body(file, begun[1])
                    blank, whole = at != begun[1], True
                    continue
                at += len(line)
                # Of a line that is longer than what is read at a time, only the beginning begins one.
                blank, whole = whole and not line.strip(b"\r\n"), line.endswith(b"\n")
            if begun is not None:
                yield _Place(begun[0], begun[1], at)
        except OSError as error:
            raise SourceError(SourceErrorKind.PATH, error.strerror or "a file cannot be read") from None

    def _past_body(self, file: IO[bytes], start: int) -> int:
        """Where to go on looking for the next message: past the body, if Content-Length says where that ends, and it
        does."""
        if not self._dialect.has_lengths:
            return start
        file.seek(start)
        head = file.read(MAX_HEADER)
        length = form.content_length(head)
        if length is None:
            return start
        begin = min((at + len(blank) for blank in (b"\n\n", b"\n\r\n") if (at := head.find(blank)) >= 0), default=0)
        end = start + begin + length
        if end > os.fstat(file.fileno()).st_size:
            return start
        file.seek(end)
        following = file.read(form.MAX_LINE)
        rest = following.lstrip(b"\r\n")
        if not following or (len(following) != len(rest) and form.is_separator(rest)) or not rest:
            return end + len(following) - len(rest)
        return start

    def _digest(self, key: bytes, place: _Place) -> bytes:
        digest = hashlib.sha256()
        for piece in self._pieces(key, place):
            digest.update(piece)
        return digest.digest()

    def _pieces(self, key: bytes, place: _Place) -> Iterator[bytes]:
        file = self._file(key)
        file.seek(place.start)
        left = place.end - place.start
        while left and (piece := file.read(min(left, _CHUNK))):
            left -= len(piece)
            yield piece

    def _read(self, folder: SourceFolder, item: Item) -> Iterator[Letter | Problem]:
        place = item.place
        assert isinstance(place, _Place)
        if place.end - place.start > self._max_bytes + MAX_HEADER:
            yield Problem(item, Trouble.TOO_LARGE)
            return
        try:
            stored = b"".join(self._pieces(folder.key, place))
        except OSError:
            yield Problem(item, Trouble.UNREADABLE)
            return
        if len(stored) != place.end - place.start:
            yield Problem(item, Trouble.GONE)
            return
        unpacked = form.unpack(_without_last_blank(stored), self._dialect)
        wire = to_wire(unpacked.raw)
        if unpacked.is_expunged:
            yield Problem(item, Trouble.GONE)
        elif not wire.strip():
            yield Problem(item, Trouble.EMPTY)
        elif len(wire) > self._max_bytes:
            yield Problem(item, Trouble.TOO_LARGE)
        else:
            yield Letter(item, wire, unpacked.flags, form.date_of(place.line))


def _without_last_blank(stored: bytes) -> bytes:
    """The blank line before the next `From ` line is the file's."""
    for blank in (b"\r\n\r\n", b"\n\n"):
        if stored.endswith(blank):
            return stored[: len(stored) - len(blank) // 2]
    return b"" if stored in (b"\n", b"\r\n") else stored


def _stem(name: bytes, suffixes: Sequence[bytes]) -> str:
    for suffix in suffixes:
        if name.endswith(suffix) and name != suffix:
            name = name[: -len(suffix)]
            break
    return segment_words(name)


__all__ = ["Dialect", "MboxSource"]
