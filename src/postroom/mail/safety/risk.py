"""The table of risks (inbound §25): extensions that run, families of types, names that disguise."""

import re
import unicodedata
from enum import StrEnum
from typing import Final


class Risk(StrEnum):
    """In the order in which they count."""

    EXECUTABLE = "executable"
    MACRO = "macro"
    ARCHIVE_BOMB = "archive_bomb"
    ENCRYPTED_ARCHIVE = "encrypted_archive"
    TYPE_MISMATCH = "type_mismatch"
    ENCRYPTED_DOCUMENT = "encrypted_document"

    @property
    def quarantines(self) -> bool:
        return self is not Risk.ENCRYPTED_DOCUMENT


class Family(StrEnum):
    PDF = "pdf"
    ARCHIVE = "archive"
    OFFICE = "office"
    IMAGE = "image"
    HTML = "html"
    TEXT = "text"
    CALENDAR = "calendar"
    MEDIA = "media"


_EXECUTABLE: Final = (
    "exe dll scr com bat cmd ps1 psm1 vbs vbe js jse wsf wsh hta msi msp lnk jar apk app dmg iso img vhd vhdx reg cpl "
    "pif sh scf url"
)
_MACRO: Final = "docm dotm xlsm xltm xlam pptm potm ppam sldm"
EXECUTABLE_EXTENSIONS: Final = frozenset(_EXECUTABLE.split())
MACRO_EXTENSIONS: Final = frozenset(_MACRO.split())
OPAQUE_EXTENSIONS: Final = frozenset(("rar", "7z", "cab"))
"""Of archives that cannot be looked into."""
ZIP_EXTENSIONS: Final = frozenset(("zip",))

_EXTENSIONS: Final = {
    Family.PDF: "pdf",
    # Also what is a ZIP archive or gzip by another name.
    Family.ARCHIVE: "zip rar 7z gz tgz cab tar bz2 xz tbz txz zst arj lzh z epub kmz whl nupkg vsix xpi 3mf usdz emz "
    "wmz svgz pages numbers key sketch",
    Family.OFFICE: "doc dot docx dotx docm dotm xls xlt xlsx xltx xlsm xltm xlsb xlam ppt pot pps pptx potx ppsx pptm "
    "potm ppsm ppam sldx sldm msg oft vsd vsdx pub mpp rtf odt ods odp odg odf ott ots otp fodt fods wps one",
    Family.IMAGE: "png jpg jpeg jpe jfif gif webp tif tiff heic heif avif bmp svg ico psd",
    Family.HTML: "html htm xhtml shtml mht mhtml",
    Family.TEXT: "txt csv tsv md log json xml yaml yml ini",
    Family.CALENDAR: "ics ical vcs",
    Family.MEDIA: "mp3 mp4 m4a m4v mov avi mkv wav ogg oga ogv webm flac aac wma wmv 3gp",
}
FAMILY_OF_EXTENSION: Final = {name: family for family, names in _EXTENSIONS.items() for name in names.split()}
OFFICE_EXTENSIONS: Final = frozenset(_EXTENSIONS[Family.OFFICE].split())

_TYPES: Final = {
    "application/pdf": Family.PDF,
    "application/x-pdf": Family.PDF,
    "application/zip": Family.ARCHIVE,
    "application/x-zip": Family.ARCHIVE,
    "application/x-zip-compressed": Family.ARCHIVE,
    "application/gzip": Family.ARCHIVE,
    "application/x-gzip": Family.ARCHIVE,
    "application/x-gtar": Family.ARCHIVE,
    "application/x-tar": Family.ARCHIVE,
    "application/vnd.rar": Family.ARCHIVE,
    "application/x-rar": Family.ARCHIVE,
    "application/x-rar-compressed": Family.ARCHIVE,
    "application/x-7z-compressed": Family.ARCHIVE,
    "application/vnd.ms-cab-compressed": Family.ARCHIVE,
    "application/epub+zip": Family.ARCHIVE,
    "image/x-emz": Family.ARCHIVE,  # pictures that are gzip outside, as Outlook sends them
    "image/x-wmz": Family.ARCHIVE,
    "application/msword": Family.OFFICE,
    "application/rtf": Family.OFFICE,
    "text/rtf": Family.OFFICE,
    "application/vnd.visio": Family.OFFICE,
    "application/vnd.ms-outlook": Family.OFFICE,
    "application/x-ole-storage": Family.OFFICE,
    "text/html": Family.HTML,
    "application/xhtml+xml": Family.HTML,
    "text/calendar": Family.CALENDAR,
    "application/ics": Family.CALENDAR,
    "application/json": Family.TEXT,
    "application/xml": Family.TEXT,
}
_TYPE_PREFIXES: Final = (
    ("image/", Family.IMAGE),
    ("audio/", Family.MEDIA),
    ("video/", Family.MEDIA),
    ("application/vnd.openxmlformats-officedocument.", Family.OFFICE),
    ("application/vnd.oasis.opendocument.", Family.OFFICE),
    ("application/vnd.ms-excel", Family.OFFICE),
    ("application/vnd.ms-powerpoint", Family.OFFICE),
    ("application/vnd.ms-word", Family.OFFICE),
    ("text/", Family.TEXT),
)
_SUSPICIOUS: Final = frozenset((Family.ARCHIVE, Family.HTML, Family.OFFICE))
"""Families whose disguise is a risk: archives, markup, and documents that may hold macros."""
_STREAM: Final = re.compile(r":[^/\\]*\Z")
_EDGES: Final = ". \t\r\n\x00\u00a0"


def family_of_type(content_type: str) -> Family | None:
    """Of a media type in lower case; None when it says nothing, as `application/octet-stream`."""
    found = _TYPES.get(content_type)
    if found is not None:
        return found
    return next((family for prefix, family in _TYPE_PREFIXES if content_type.startswith(prefix)), None)


def extension(name: str) -> str:
    """The extension in lower case as Windows takes it: trailing dots and blanks do not count, nor stream names, and
    characters that look like a dot or letter are one (NFKC)."""
    name = unicodedata.normalize("NFKC", name[-512:])
    name = "".join(char for char in name if char.isprintable())
    name = re.split(r"[/\\]", name.rstrip(_EDGES + "/\\"))[-1]
    name = _STREAM.sub("", name).rstrip(_EDGES)
    _, dot, found = name.rpartition(".")
    return found.lower() if dot else ""


def is_disguised(family: Family | None, declared: str, name: str | None) -> bool:
    """Whether content of a family whose disguise is a risk goes by a name, or a declared type, of another family."""
    if family not in _SUSPICIOUS:
        return False
    by_name = FAMILY_OF_EXTENSION.get(extension(name)) if name else None
    by_type = family_of_type(declared)
    # Documents are archives, and many programs say no more of them; but no archive is a document.
    same = {family, Family.ARCHIVE} if family is Family.OFFICE else {family}
    return any(said is not None and said not in allowed for said, allowed in ((by_name, {family}), (by_type, same)))
