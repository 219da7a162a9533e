"""An attachment's content, name and declared type to what it is and the first risk that applies (inbound §25; B10)."""

import re
from typing import Final, NamedTuple

from postroom.mail.safety import ole, signatures, zip_directory
from postroom.mail.safety.risk import (
    EXECUTABLE_EXTENSIONS,
    MACRO_EXTENSIONS,
    OFFICE_EXTENSIONS,
    OPAQUE_EXTENSIONS,
    ZIP_EXTENSIONS,
    Family,
    Risk,
    extension,
    family_of_type,
    is_disguised,
)
from postroom.mail.safety.signatures import UNKNOWN
from postroom.mail.safety.zip_directory import Entry, Problem

MAX_TOTAL_BYTES: Final = 100 * 1000 * 1000
MAX_RATIO: Final = 100
MAX_INFLATED: Final = 1024 * 1024
"""Of each member that is inflated."""
MAX_INFLATED_TOTAL: Final = 16 * 1024 * 1024
MAX_NESTING: Final = 2

JAR: Final = "application/java-archive"
APK: Final = "application/vnd.android.package-archive"
MSI: Final = "application/x-msi"
MSG: Final = "application/vnd.ms-outlook"

_EXECUTABLE_TYPES: Final = frozenset(
    (signatures.PE, signatures.ELF, signatures.MACH_O, signatures.SCRIPT, signatures.LNK, signatures.ISO, JAR, APK, MSI)
)
_OPAQUE_TYPES: Final = frozenset((signatures.RAR, signatures.SEVEN_ZIP, signatures.CAB))
_OOXML: Final = (
    ("word/", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("xl/", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("ppt/", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
)
_CONTENT_TYPES: Final = "[content_types].xml"
_ODF_MANIFEST: Final = "meta-inf/manifest.xml"
_ODF_PREFIX: Final = b"application/vnd.oasis.opendocument."
_ODF_TYPE: Final = re.compile(rb"application/vnd\.oasis\.opendocument\.[a-z-]{1,40}")
# Types of parts that are macros, whatever their names are (MS-OFFMACRO2 §2.2, MS-OE376).
_MACRO_PARTS: Final = re.compile(rb"vnd\.ms-office\.vbaProject|macroEnabled|vnd\.ms-excel\.(?:intl)?macrosheet", re.I)
_OLE_KINDS: Final = (
    ("worddocument", "application/msword"),
    ("workbook", "application/vnd.ms-excel"),
    ("book", "application/vnd.ms-excel"),
    ("powerpoint document", "application/vnd.ms-powerpoint"),
    ("__properties_version1.0", MSG),
    ("visiodocument", "application/vnd.visio"),
)
_OLE_MACROS: Final = frozenset(("vba", "_vba_project", "_vba_project_cur", "macros"))
_OLE_MACRO_OCTETS: Final = "_VBA_PROJECT".encode("utf-16-le")
_OLE_INSTALLERS: Final = frozenset(
    bytes.fromhex(f"{first}100c0000000000c000000000000046") for first in ("84", "86", "82")
)  # {000C1084-…}: packages, patches, transforms
_PDF_ENCRYPT: Final = re.compile(rb"/Encrypt(?![A-Za-z0-9])")
_TEXT_TYPES: Final = frozenset(
    ("text/csv", "text/markdown", "text/tab-separated-values", "application/json", "application/xml", "text/xml")
)
_TEXT_OF_EXTENSION: Final = {
    "csv": "text/csv", "md": "text/markdown", "tsv": "text/tab-separated-values", "json": "application/json",
    "xml": "application/xml",
}  # fmt: skip
_HEADER: Final = re.compile(rb"\s{0,64}(?:[!-9;-~]{1,998}[ \t]{0,64}:|>?From )")
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class Inspected(NamedTuple):
    """`sniffed_type` wins over a declared one that disagrees; `UNKNOWN` says nothing. `risk` None: none found."""

    sniffed_type: str
    risk: Risk | None


class _Seen(NamedTuple):
    """What the content alone says."""

    kind: str
    risks: frozenset[Risk] = frozenset()


def inspect(data: bytes, content_type: str, filename: str | None) -> Inspected:
    """What an attachment is and its first risk. `data` is its decoded content, whole.

    Never raises on content. Reads directories of containers, and inflates at most 1 MiB of each of few members: time is
    linear in the octets, with at most 16 MiB inflated.
    """
    declared = content_type.partition(";")[0].strip().lower()
    seen = _seen(data, declared, filename)
    risks = set(seen.risks)
    ending = extension(filename) if filename else ""
    if ending in EXECUTABLE_EXTENSIONS:
        risks.add(Risk.EXECUTABLE)
    if ending in MACRO_EXTENSIONS:
        risks.add(Risk.MACRO)
    if is_disguised(_family(seen.kind), declared, filename):
        risks.add(Risk.TYPE_MISMATCH)
    return Inspected(seen.kind, next((risk for risk in Risk if risk in risks), None))


def _family(kind: str) -> Family | None:
    return None if kind in (UNKNOWN, signatures.TNEF) else family_of_type(kind)


def _seen(data: bytes, declared: str, filename: str | None) -> _Seen:
    if declared.startswith("message/") and _HEADER.match(data):
        return _Seen(declared)  # whatever its first words are
    kind = signatures.sniff(data)
    if declared.startswith("message/") and kind in (UNKNOWN, signatures.TEXT):
        return _Seen(declared)
    if kind == signatures.ZIP:
        return _Zip(data).look()
    if kind == signatures.OLE:
        return _ole(data)
    if kind in _EXECUTABLE_TYPES:
        return _Seen(kind, frozenset((Risk.EXECUTABLE,)))
    if kind in _OPAQUE_TYPES:
        return _Seen(kind, frozenset((Risk.ENCRYPTED_ARCHIVE,)))
    if kind == signatures.GZIP:
        return _Seen(kind, _gzip(data, filename))
    if kind == signatures.PDF:
        return _Seen(kind, frozenset((Risk.ENCRYPTED_DOCUMENT,)) if _PDF_ENCRYPT.search(data) else frozenset())
    return _Seen(_text_kind(kind, data, declared, filename))


def _text_kind(kind: str, data: bytes, declared: str, filename: str | None) -> str:
    """Text in another charset than UTF-8 is text where it is declared so; which text is a matter of the label."""
    head = data[: signatures.SNIFF_BYTES]
    if kind == UNKNOWN and head and declared.startswith("text/") and _NO_TEXT.search(head) is None:
        kind = signatures.TEXT
    if kind != signatures.TEXT:
        return kind
    if declared in _TEXT_TYPES:
        return declared
    return _TEXT_OF_EXTENSION.get(extension(filename) if filename else "", signatures.TEXT)


def _gzip(data: bytes, filename: str | None) -> frozenset[Risk]:
    """By its trailer, which says the size modulo 2^32 (RFC 1952 §2.3.1), and what the file was called before."""
    size = int.from_bytes(data[-4:], "little") if len(data) >= 18 else 0
    found: set[Risk] = set()
    if size > MAX_TOTAL_BYTES or size > MAX_RATIO * len(data):
        found.add(Risk.ARCHIVE_BOMB)
    names = [filename[:-3]] if filename and extension(filename) == "gz" else []
    if len(data) > 10 and data[3] & 0x0C == 0x08:  # a name, and no extra field before it
        names.append(data[10 : 10 + 512].partition(b"\x00")[0].decode("latin-1"))
    if any(extension(name) in EXECUTABLE_EXTENSIONS for name in names):
        found.add(Risk.EXECUTABLE)
    return frozenset(found)


def _ole(data: bytes) -> _Seen:
    found = ole.read_directory(data)
    risks: set[Risk] = set()
    kind = next((kind for name, kind in _OLE_KINDS if name in found.names), signatures.OLE)
    if found.root_class in _OLE_INSTALLERS or any(name.startswith("\u4840") for name in found.names):
        kind = MSI
        risks.add(Risk.EXECUTABLE)
    if found.names & _OLE_MACROS or (not found.complete and _OLE_MACRO_OCTETS in data):
        risks.add(Risk.MACRO)
    if {"encryptioninfo", "encryptedpackage"} <= found.names:
        risks.add(Risk.ENCRYPTED_DOCUMENT)
    return _Seen(kind, frozenset(risks))


class _Zip:
    """One look at an archive and at the archives within it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._room = MAX_INFLATED_TOTAL
        self._total = 0
        self._entries = 0
        self._risks: set[Risk] = set()

    def look(self) -> _Seen:
        archive = self._read(self._data, 1)
        return _Seen(self._kind(archive.entries), frozenset(self._risks))

    def _read(self, data: bytes, depth: int) -> zip_directory.Archive:
        archive = zip_directory.read_archive(data)
        self._judge(archive.entries, archive.problem, len(data))
        for entry in archive.entries:
            self._names(entry)
            # Into one that is not what it says nobody looks: its members may all be the same octets.
            if archive.problem is None and self._entries <= zip_directory.MAX_ENTRIES:
                self._member(data, entry, depth)
        return archive

    def _judge(self, entries: tuple[Entry, ...], problem: Problem | None, size: int) -> None:
        """What the directory of an archive of `size` octets says."""
        if problem is Problem.UNREADABLE:
            self._risks.add(Risk.ENCRYPTED_ARCHIVE)  # it cannot be looked into
        elif problem is not None:
            self._risks.add(Risk.ARCHIVE_BOMB)
        total = sum(entry.size for entry in entries)
        self._total += total
        self._entries += len(entries)
        if total > MAX_RATIO * size or self._total > MAX_TOTAL_BYTES or self._entries > zip_directory.MAX_ENTRIES:
            self._risks.add(Risk.ARCHIVE_BOMB)

    def _names(self, entry: Entry) -> None:
        for name in entry.names:
            ending = extension(name)
            if name.endswith(("/", "\\")):
                continue
            if ending in EXECUTABLE_EXTENSIONS:
                self._risks.add(Risk.EXECUTABLE)
            if ending in MACRO_EXTENSIONS or name.replace("\\", "/").rpartition("/")[2].lower() == "vbaproject.bin":
                self._risks.add(Risk.MACRO)
            if ending in OPAQUE_EXTENSIONS:
                self._risks.add(Risk.ENCRYPTED_ARCHIVE)
        if entry.encrypted:
            self._risks.add(Risk.ENCRYPTED_ARCHIVE)

    def _member(self, data: bytes, entry: Entry, depth: int) -> None:
        kind = self._stored_kind(data, entry)
        if kind in _EXECUTABLE_TYPES:
            self._risks.add(Risk.EXECUTABLE)
        elif kind in _OPAQUE_TYPES:
            self._risks.add(Risk.ENCRYPTED_ARCHIVE)
        endings = {extension(name) for name in entry.names}
        if endings & ZIP_EXTENSIONS:
            self._nested(data, entry, depth)
        elif kind == signatures.ZIP and (depth < MAX_NESTING or not endings & OFFICE_EXTENSIONS):
            self._nested(data, entry, depth)  # documents embed documents, however deep

    def _stored_kind(self, data: bytes, entry: Entry) -> str | None:
        """The type of what is not packed; scripts within archives go by their names."""
        if not zip_directory.is_stored(entry):
            return None
        kind = signatures.sniff(data[entry.start : entry.start + min(entry.packed, 0x8001 + 8)])
        return None if kind == signatures.SCRIPT else kind

    def _nested(self, data: bytes, entry: Entry, depth: int) -> None:
        if depth >= MAX_NESTING:
            self._risks.add(Risk.ARCHIVE_BOMB)
            return
        inner = self._content(data, entry, stored_limit=len(data))
        if inner is None or not inner.startswith(b"PK"):
            return
        self._read(inner, depth + 1)

    def _content(self, data: bytes, entry: Entry, stored_limit: int = MAX_INFLATED) -> bytes | None:
        """Content of a member; None when it cannot be had, which is a risk of its own."""
        stored = zip_directory.is_stored(entry)
        if not stored and self._room < MAX_INFLATED:
            self._risks.add(Risk.ARCHIVE_BOMB)
            return None
        spent = 0 if stored else MAX_INFLATED  # what failed may have cost that much
        try:
            found = zip_directory.content(data, entry, stored_limit if stored else MAX_INFLATED)
        except OverflowError:
            found = None
            self._risks.add(Risk.ARCHIVE_BOMB)
        else:
            if found is None:
                self._risks.add(Risk.ENCRYPTED_ARCHIVE)
            elif not stored:
                spent = len(found)
        self._room -= spent
        return found

    def _kind(self, entries: tuple[Entry, ...]) -> str:
        """Which archive it is, by the names of members: the ones that run first, whatever else they are."""
        named = {entry.name.replace("\\", "/").lower(): entry for entry in entries}
        for name, kind in (("androidmanifest.xml", APK), ("meta-inf/manifest.mf", JAR)):
            if name in named:
                self._risks.add(Risk.EXECUTABLE)
                return kind
        if _CONTENT_TYPES in named:
            types = self._content(self._data, named[_CONTENT_TYPES])
            if types is not None and _MACRO_PARTS.search(types):
                self._risks.add(Risk.MACRO)
            return next(
                (kind for prefix, kind in _OOXML if any(name.startswith(prefix) for name in named)), signatures.ZIP
            )
        return self._odf(named)

    def _odf(self, named: dict[str, Entry]) -> str:
        entry = named.get("mimetype")
        if entry is None or entry.size > 256 or entry.encrypted:
            return signatures.ZIP
        found = _ODF_TYPE.match(self._content(self._data, entry) or b"")
        if found is None:
            return signatures.ZIP
        manifest = named.get(_ODF_MANIFEST)
        if manifest is not None and b"encryption-data" in (self._content(self._data, manifest) or b""):
            self._risks.add(Risk.ENCRYPTED_DOCUMENT)
        return found[0].decode("ascii")
