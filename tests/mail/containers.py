"""Writers of what attachments are packed in, for tests: TNEF (MS-OXTNEF), OLE compound files (MS-CFB), ZIP archives."""

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

MESSAGE, ATTACHMENT = 1, 2
ATT_SUBJECT, ATT_BODY, ATT_MESSAGE_CLASS = 0x00018004, 0x0002800C, 0x00078008
ATT_DATA, ATT_TITLE, ATT_REND = 0x0006800F, 0x00018010, 0x00069002
ATT_PROPERTIES, ATT_ATTACHMENT, ATT_VERSION, ATT_CODEPAGE = 0x00069003, 0x00069005, 0x00089006, 0x00069007
INTEGER, OBJECT, STRING8, UNICODE, BINARY, BOOLEAN, TIME = 0x0003, 0x000D, 0x001E, 0x001F, 0x0102, 0x000B, 0x0040
IID_MESSAGE = bytes.fromhex("0703020000000000c000000000000046")


class Prop(NamedTuple):
    """A property. `name`: a string or a number that names it, for ids from 0x8000 on."""

    id: int
    type: int
    value: str | bytes | int
    name: str | int | None = None


class Packed(NamedTuple):
    """An attachment of a stream."""

    title: str
    data: bytes
    props: Sequence[Prop] = ()
    with_data: bool = True


def attribute(level: int, kind: int, data: bytes) -> bytes:
    return struct.pack("<BII", level, kind, len(data)) + data + struct.pack("<H", sum(data) & 0xFFFF)


def _padded(data: bytes) -> bytes:
    return data + b"\x00" * (-len(data) % 4)


def properties(props: Sequence[Prop]) -> bytes:
    out = [struct.pack("<I", len(props))]
    for prop in props:
        out.append(struct.pack("<HH", prop.type, prop.id))
        if prop.name is not None:
            out.append(b"\x11" * 16)
            if isinstance(prop.name, int):
                out.append(struct.pack("<II", 0, prop.name))
            else:
                name = prop.name.encode("utf-16-le") + b"\x00\x00"
                out.append(struct.pack("<II", 1, len(name)) + _padded(name))
        if isinstance(prop.value, int):
            size = 8 if prop.type == TIME else 4
            out.append(prop.value.to_bytes(size, "little"))
            continue
        if isinstance(prop.value, str):
            value = (prop.value + "\x00").encode("utf-16-le" if prop.type == UNICODE else "cp1252")
        else:
            value = prop.value
        out.append(struct.pack("<II", 1, len(value)) + _padded(value))
    return b"".join(out)


def tnef(attachments: Sequence[Packed] = (), props: Sequence[Prop] = (), *, body: bytes | None = None,
         codepage: int = 1252) -> bytes:  # fmt: skip
    """A stream; `body` is the attribute of old programs, `props` are the message's."""
    out = [b"\x78\x9f\x3e\x22\x01\x00", attribute(MESSAGE, ATT_VERSION, b"\x00\x00\x01\x00")]
    out.append(attribute(MESSAGE, ATT_CODEPAGE, struct.pack("<II", codepage, 0)))
    out.append(attribute(MESSAGE, ATT_MESSAGE_CLASS, b"IPM.Microsoft Mail.Note\x00"))
    if body is not None:
        out.append(attribute(MESSAGE, ATT_BODY, body))
    if props:
        out.append(attribute(MESSAGE, ATT_PROPERTIES, properties(props)))
    for item in attachments:
        out.append(attribute(ATTACHMENT, ATT_REND, b"\x01\x00" + b"\xff" * 4 + b"\x00" * 8))
        if item.title:
            out.append(attribute(ATTACHMENT, ATT_TITLE, item.title.encode("cp1252") + b"\x00"))
        if item.with_data:
            out.append(attribute(ATTACHMENT, ATT_DATA, item.data))
        if item.props:
            out.append(attribute(ATTACHMENT, ATT_ATTACHMENT, properties(item.props)))
    return b"".join(out)


def embedded(stream: bytes) -> Packed:
    """A message within the message."""
    return Packed("", b"", [Prop(0x3705, INTEGER, 5), Prop(0x3701, OBJECT, IID_MESSAGE + stream)], with_data=False)


def ole(names: Sequence[str], root_class: bytes = bytes(16), *, sector: int = 512) -> bytes:
    """A compound file with an empty storage of each name, below the root."""
    shift = sector.bit_length() - 1
    per_sector = sector // 128
    entries = [_entry("Root Entry", 5, root_class)] + [_entry(name, 1, bytes(16)) for name in names]
    while len(entries) % per_sector:
        entries.append(bytes(128))
    directory = [entries[at : at + per_sector] for at in range(0, len(entries), per_sector)]
    # Sector 0 is the allocation table, the directory follows.
    fat = [0xFFFFFFFD] + [index + 2 for index in range(len(directory) - 1)] + [0xFFFFFFFE]
    if len(fat) > sector // 4:
        raise ValueError("one sector of the table is all there is")
    fat += [0xFFFFFFFF] * (sector // 4 - len(fat))
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16)
    header += struct.pack("<HHHHH", 0x3E, 4 if shift == 12 else 3, 0xFFFE, shift, 6) + bytes(6)
    header += struct.pack("<IIIIIIIII", 0, 1, 1, 0, 4096, 0xFFFFFFFE, 0, 0xFFFFFFFE, 0)
    header += struct.pack("<109I", 0, *([0xFFFFFFFF] * 108))
    blocks = [header.ljust(sector, b"\x00"), struct.pack(f"<{sector // 4}I", *fat)]
    blocks += [b"".join(piece) for piece in directory]
    return b"".join(blocks)


def _entry(name: str, kind: int, class_id: bytes) -> bytes:
    text = (name + "\x00").encode("utf-16-le")
    head = text.ljust(64, b"\x00") + struct.pack("<HBBIII", len(text), kind, 1, *([0xFFFFFFFF] * 3)) + class_id
    return head.ljust(128, b"\x00")


def zipped(members: Mapping[str, bytes], *, packed: bool = True) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 3, 5, 9, 7, 3)), data, archive.compression)
    return out.getvalue()


def marked_encrypted(archive: bytes) -> bytes:
    """The same archive, with the flag of encryption on every entry, before contents and in the directory."""
    made = bytearray(archive)
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        found = made.find(signature)
        while found >= 0:
            made[found + at] |= 1
            found = made.find(signature, found + 4)
    return bytes(made)


def ooxml(kind: str, extra: Mapping[str, bytes] | None = None, types: bytes = b"<Types/>") -> bytes:
    """The least that is a document of `word`, `xl` or `ppt`."""
    return zipped({"[Content_Types].xml": types, f"{kind}/document.xml": b"<d/>", **(extra or {})})


def odf(kind: str, manifest: bytes = b"<manifest/>") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo("mimetype"), f"application/vnd.oasis.opendocument.{kind}")
        archive.writestr("content.xml", "<c/>", zipfile.ZIP_DEFLATED)
        archive.writestr("META-INF/manifest.xml", manifest, zipfile.ZIP_DEFLATED)
    return out.getvalue()
