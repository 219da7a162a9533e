"""The type of content by its first octets (inbound §25). Nothing here looks inside containers."""

import re
from typing import Final

SNIFF_BYTES: Final = 8 * 1024
UNKNOWN: Final = "application/octet-stream"
"""Says nothing, also not against the declared type."""

PDF: Final = "application/pdf"
ZIP: Final = "application/zip"
OLE: Final = "application/x-ole-storage"
PE: Final = "application/vnd.microsoft.portable-executable"
ELF: Final = "application/x-elf"
MACH_O: Final = "application/x-mach-binary"
SCRIPT: Final = "text/x-shellscript"
LNK: Final = "application/x-ms-shortcut"
ISO: Final = "application/x-iso9660-image"
RAR: Final = "application/vnd.rar"
SEVEN_ZIP: Final = "application/x-7z-compressed"
GZIP: Final = "application/gzip"
CAB: Final = "application/vnd.ms-cab-compressed"
TNEF: Final = "application/vnd.ms-tnef"
RTF: Final = "text/rtf"
CALENDAR: Final = "text/calendar"
HTML: Final = "text/html"
TEXT: Final = "text/plain"

_MAGIC: Final = (
    (b"%PDF-", PDF),
    (b"PK\x03\x04", ZIP),
    (b"PK\x05\x06", ZIP),  # without any entry
    (b"PK\x07\x08PK\x03\x04", ZIP),  # begun as one of several volumes
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", OLE),
    (b"MZ", PE),
    (b"\x7fELF", ELF),
    (b"\xfe\xed\xfa\xce", MACH_O),
    (b"\xfe\xed\xfa\xcf", MACH_O),
    (b"\xce\xfa\xed\xfe", MACH_O),
    (b"\xcf\xfa\xed\xfe", MACH_O),
    (b"\xca\xfe\xba\xbe", MACH_O),  # of several architectures; also Java's classes
    (b"#!", SCRIPT),
    (b"Rar!\x1a\x07", RAR),
    (b"7z\xbc\xaf\x27\x1c", SEVEN_ZIP),
    (b"\x1f\x8b", GZIP),
    (b"MSCF", CAB),
    (b"\x4c\x00\x00\x00\x01\x14\x02\x00", LNK),
    (b"\x78\x9f\x3e\x22", TNEF),
    (b"{\\rtf", RTF),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
)
_ISO_AT: Final = 0x8001
_ISO_MAGIC: Final = b"CD001"
_HEIF_BRANDS: Final = {
    b"heic": "image/heic", b"heix": "image/heic", b"hevc": "image/heic", b"heim": "image/heic", b"heis": "image/heic",
    b"mif1": "image/heif", b"msf1": "image/heif", b"avif": "image/avif",
}  # fmt: skip
_MARKUP: Final = re.compile(rb"<!doctype\s++html|<html[\s>]", re.IGNORECASE)
_MARKUP_BYTES: Final = 512
_CALENDAR_START: Final = re.compile(rb"\s*+BEGIN:VCALENDAR", re.IGNORECASE)
_MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
# Controls that no text has, but for tab, line feed, form feed, carriage return and escape.
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")


def sniff(data: bytes) -> str:
    """The media type of `data` by signature, then as markup, calendar or text; `UNKNOWN` for all else.

    Looks at the first 8 KiB, and at 32769 where the signature of ISO 9660 stands. Containers are what they are outside:
    `application/zip` and `application/x-ole-storage`.
    """
    head = data[:SNIFF_BYTES]
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if data[_ISO_AT : _ISO_AT + len(_ISO_MAGIC)] == _ISO_MAGIC:
        return ISO
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:8] == b"ftyp":
        return _HEIF_BRANDS.get(head[8:12], UNKNOWN)
    return _text(head, whole=len(data) <= SNIFF_BYTES)


def _text(head: bytes, *, whole: bool) -> str:
    if not head:
        return UNKNOWN
    plain = _without_mark(head)
    if _CALENDAR_START.match(plain):
        return CALENDAR
    if _MARKUP.search(plain[:_MARKUP_BYTES]):
        return HTML
    if plain.startswith(b"#!"):
        return SCRIPT
    if _NO_TEXT.search(plain):
        return UNKNOWN
    try:
        plain.decode("utf-8")
    except UnicodeDecodeError as error:
        if whole or error.start < len(plain) - 3:  # else a character was cut
            return UNKNOWN
    return TEXT


def _without_mark(head: bytes) -> bytes:
    """Without a byte order mark, and UTF-16 with one as UTF-8, as readers of markup and scripts take it."""
    if head[:3] == _MARKS[0]:
        return head[3:]
    if head[:2] in _MARKS[1:]:
        codec = "utf-16-le" if head[:2] == _MARKS[1] else "utf-16-be"
        return head[2:].decode(codec, "replace").encode("utf-8", "replace")
    return head
