"""Names in an OLE compound file (MS-CFB), without its contents: what document it is, whether it has macros."""

from typing import Final, NamedTuple

MAX_DIRECTORY_SECTORS: Final = 4096
MAX_FAT_SECTORS: Final = 8192
_HEADER: Final = 512
_IN_HEADER: Final = 109  # FAT sectors that the header lists
_ENTRY: Final = 128
_LAST_REGULAR: Final = 0xFFFFFFFA
_NONE: Final = 0xFFFFFFFF


class Directory(NamedTuple):
    """Names of storages and streams in lower case, and the class id of the root. `complete`: it was read to its end."""

    names: frozenset[str]
    root_class: bytes
    complete: bool


def read_directory(data: bytes) -> Directory:
    """Directory entries of a compound file (MS-CFB §2.6). Never raises; looks at 4,096 of its sectors at most.

    Of one that is cut or broken, the names up to there.
    """
    if len(data) < _HEADER:
        return Directory(frozenset(), b"", False)
    shift = int.from_bytes(data[30:32], "little")
    if shift not in (9, 12):
        return Directory(frozenset(), b"", False)
    file = _File(data, 1 << shift)
    names: set[str] = set()
    root_class = b""
    sector = _number(data, 48)
    for count in range(MAX_DIRECTORY_SECTORS):
        piece = file.sector(sector)
        if not piece:
            return Directory(frozenset(names), root_class, False)
        for at in range(0, len(piece) - _ENTRY + 1, _ENTRY):
            entry = piece[at : at + _ENTRY]
            if entry[66] == 0:  # unused
                continue
            if count == 0 and at == 0:
                root_class = bytes(entry[80:96])
            size = min(int.from_bytes(entry[64:66], "little"), 64)
            names.add(bytes(entry[:size]).decode("utf-16-le", "replace").rstrip("\x00").lower())
        following = file.next_sector(sector)
        if following is None or following > _LAST_REGULAR:
            return Directory(frozenset(names), root_class, following is not None)
        sector = following
    return Directory(frozenset(names), root_class, False)


class _File:
    def __init__(self, data: bytes, size: int) -> None:
        self._data = memoryview(data)
        self._size = size
        self._fat = self._fat_sectors(data)

    def sector(self, number: int) -> memoryview:
        """Empty for one that is not there. The header takes the place of one sector (MS-CFB §2.2)."""
        start = (number + 1) * self._size
        return self._data[start : start + self._size]

    def next_sector(self, number: int) -> int | None:
        """MS-CFB §2.3; None when the table does not say."""
        per_sector = self._size // 4
        index, within = divmod(number, per_sector)
        if index >= len(self._fat):
            return None
        piece = self.sector(self._fat[index])[4 * within : 4 * within + 4]
        return int.from_bytes(piece, "little") if len(piece) == 4 else None

    def _fat_sectors(self, data: bytes) -> list[int]:
        """Where the allocation table is: first in the header, then in a chain of sectors (MS-CFB §2.5)."""
        found = [_number(data, 76 + 4 * index) for index in range(_IN_HEADER)]
        sector = _number(data, 68)
        per_sector = self._size // 4
        while sector <= _LAST_REGULAR and len(found) < MAX_FAT_SECTORS:
            piece = self.sector(sector)
            if len(piece) < self._size:
                break
            found += (int.from_bytes(piece[at : at + 4], "little") for at in range(0, 4 * (per_sector - 1), 4))
            sector = int.from_bytes(piece[-4:], "little")
        return found


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")
