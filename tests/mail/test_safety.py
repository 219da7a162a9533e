"""What attachments are and what is risky about them: the table of inbound §25, archives that lie, and any octets."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail.safety import UNKNOWN, Inspected, Risk, inspect, sniff, zip_directory
from postroom.mail.safety.ole import read_directory
from postroom.mail.safety.risk import EXECUTABLE_EXTENSIONS, MACRO_EXTENSIONS, extension
from postroom.mail.safety.zip_directory import Problem, read_archive
from tests.mail.containers import marked_encrypted, odf, ole, ooxml, zipped

ANY = "application/octet-stream"


def risk(data: bytes, name: str | None = None, declared: str = ANY) -> Risk | None:
    return inspect(data, declared, name).risk


# --- types ------------------------------------------------------------------------------------------------------------

MAGIC = [
    (b"%PDF-1.4", "application/pdf"),
    (b"PK\x05\x06" + bytes(18), "application/zip"),
    (b"MZ", "application/vnd.microsoft.portable-executable"),
    (b"\x7fELF", "application/x-elf"),
    (b"\xfe\xed\xfa\xce", "application/x-mach-binary"),
    (b"\xfe\xed\xfa\xcf", "application/x-mach-binary"),
    (b"\xce\xfa\xed\xfe", "application/x-mach-binary"),
    (b"\xcf\xfa\xed\xfe", "application/x-mach-binary"),
    (b"\xca\xfe\xba\xbe", "application/x-mach-binary"),
    (b"#!/usr/bin/perl", "text/x-shellscript"),
    (b"\xef\xbb\xbf#!/bin/sh", "text/x-shellscript"),
    (b"Rar!\x1a\x07\x00", "application/vnd.rar"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"MSCF", "application/vnd.ms-cab-compressed"),
    (b"\x4c\x00\x00\x00\x01\x14\x02\x00", "application/x-ms-shortcut"),
    (bytes(0x8001) + b"CD001", "application/x-iso9660-image"),
    (b"\x78\x9f\x3e\x22", "application/vnd.ms-tnef"),
    (b"{\\rtf1}", "text/rtf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff\xe0", "image/jpeg"),
    (b"GIF89a", "image/gif"),
    (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
    (b"RIFF\x00\x00\x00\x00WAVEfmt ", UNKNOWN),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"\x00\x00\x00\x18ftypheic", "image/heic"),
    (b"\x00\x00\x00\x18ftypisom", UNKNOWN),
    (b"BEGIN:VCALENDAR\r\n", "text/calendar"),
    (b"  <!DocType  html>", "text/html"),
    (b"<?xml version='1.0'?>\n<html lang='en'>", "text/html"),
    (b"x" * 507 + b"<html>", "text/plain"),
    ("<html>".encode("utf-16"), "text/html"),
    ("größe".encode(), "text/plain"),
    ("größe".encode("latin-1"), UNKNOWN),
    (b"a" * 8191 + "ö".encode() + b"b", "text/plain"),
    (b"a\x00b", UNKNOWN),
    (b"", UNKNOWN),
]


@pytest.mark.covers("edge:B10")
@pytest.mark.parametrize(("data", "wanted"), MAGIC, ids=[wanted for _, wanted in MAGIC])
def test_types_by_content(data: bytes, wanted: str) -> None:
    assert sniff(data) == wanted


@pytest.mark.parametrize(
    ("data", "declared", "name", "wanted"),
    [
        (b"a,b", "text/csv", "x", "text/csv"),
        (b"a,b", ANY, "x.CSV", "text/csv"),
        (b"{}", "application/json", None, "application/json"),
        (b"hi", "application/pdf", "x.pdf", "text/plain"),
        ("größe".encode("latin-1"), "text/csv", None, "text/csv"),
        (b"\x01\x02", "text/plain", "x.txt", UNKNOWN),
        (b"From: x\r\n\r\n<html>", "message/rfc822", "x.eml", "message/rfc822"),
    ],
)
def test_which_text(data: bytes, declared: str, name: str | None, wanted: str) -> None:
    assert inspect(data, declared, name) == Inspected(wanted, None)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.covers("edge:B10")
@pytest.mark.parametrize("ending", sorted(EXECUTABLE_EXTENSIONS))
def test_what_runs_by_its_name(ending: str) -> None:
    for name in (f"a.{ending}", f"a.pdf.{ending.upper()}", f"a.{ending}. ", f"a．{ending}", f"a.{ending}::$DATA"):
        assert risk(b"text", name) is Risk.EXECUTABLE, name
    assert risk(zipped({f"dir/a.{ending}": b"text"}), "a.zip") is Risk.EXECUTABLE
    assert risk(b"text", f"{ending}.txt") is None
    assert risk(b"text", ending) is None


@pytest.mark.parametrize("ending", sorted(MACRO_EXTENSIONS))
def test_macros_by_name(ending: str) -> None:
    assert risk(b"text", f"a.{ending}") is Risk.MACRO


@given(st.text(max_size=60))
def test_any_name(name: str) -> None:
    found = extension(name)
    assert found == found.lower()
    assert "." not in found
    assert "/" not in found
    inspect(b"", name, name)


# --- the table --------------------------------------------------------------------------------------------------------

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
XLS4 = b'<Override ContentType="application/vnd.ms-excel.macrosheet+xml"/>'


@pytest.mark.covers("edge:B10")
@pytest.mark.parametrize(
    ("data", "name", "declared", "wanted"),
    [
        (zipped({"AndroidManifest.xml": b"x"}), "a.zip", ANY, Risk.EXECUTABLE),
        (ooxml("word", {"META-INF/MANIFEST.MF": b"x"}), "a.docx", DOCX, Risk.EXECUTABLE),
        (ooxml("word", {"WORD/VBAPROJECT.BIN": b"x"}), "a.docx", DOCX, Risk.MACRO),
        (ooxml("xl", types=XLS4), "a.xlsx", ANY, Risk.MACRO),
        (ooxml("ppt"), "a.pptx", ANY, None),
        (ooxml("word", types=b" " * (1024 * 1024 + 1)), "a.docx", DOCX, Risk.ARCHIVE_BOMB),
        (marked_encrypted(ooxml("word")), "a.docx", DOCX, Risk.ENCRYPTED_ARCHIVE),
        (odf("text"), "a.odt", "application/vnd.oasis.opendocument.text", None),
        (ole(["WordDocument", "_VBA_PROJECT"]), "a.doc", "application/msword", Risk.MACRO),
        (ole(["PowerPoint Document"]), "a.ppt", "application/vnd.ms-powerpoint", None),
        (ole(["__properties_version1.0"]), "a.msg", ANY, None),
        (ole(["WordDocument"]), "a.pdf", "application/pdf", Risk.TYPE_MISMATCH),
        (ole(["WordDocument"]), "a.png", ANY, Risk.TYPE_MISMATCH),
        (ole(["\u4840\u3f7f"]), "a.bin", ANY, Risk.EXECUTABLE),
        (b"<html>", "a.txt", "text/plain", Risk.TYPE_MISMATCH),
        (b"<html>", "a.html", "image/png", Risk.TYPE_MISMATCH),
        (b"<html>", None, ANY, None),
        (b"{\\rtf1}", "a.pdf", "application/pdf", Risk.TYPE_MISMATCH),
        (zipped({"a": b"b"}), "a.docx", DOCX, Risk.TYPE_MISMATCH),
        (zipped({"a": b"b"}), "a.unknown", "application/x-unknown", None),
        (ooxml("word"), "a.docx", "application/zip", None),
        (b"%PDF-1.4", "a.jpg", "image/jpeg", None),
        (b"GIF89a", "a.jpg", "image/jpeg", None),
        (b"%PDF-1.4 /EncryptMetadata", "a.pdf", "application/pdf", None),
        (b"%PDF-1.4 /Encrypt 9 0 R", "a.pdf", "application/pdf", Risk.ENCRYPTED_DOCUMENT),
        (b"\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\x00setup.exe\x00" + bytes(30), "a.gz", ANY, Risk.EXECUTABLE),
        (b"\x1f\x8b\x08\x00" + bytes(30), "a.exe.gz", ANY, Risk.EXECUTABLE),
        (b"\x1f\x8b\x08\x00" + bytes(30), "a.png", "image/png", Risk.TYPE_MISMATCH),
        (b"\x1f\x8b\x08\x00" + bytes(30), "image001.wmz", "image/x-wmz", None),
        (zipped({"x.zip": zipped({"y.docm": b"x"})}), "a.zip", ANY, Risk.MACRO),
        (zipped({"x.zip": bytes(1024 * 1024 + 1)}), "a.zip", ANY, Risk.ARCHIVE_BOMB),
        (zipped({"x.zip": marked_encrypted(zipped({"y": b"x"}))}), "a.zip", ANY, Risk.ENCRYPTED_ARCHIVE),
        (zipped({"x.docx": ooxml("word", {"word/vbaProject.bin": b"x"})}, packed=False), "a.zip", ANY, Risk.MACRO),
        (zipped({"x": b"Rar!\x1a\x07\x00"}, packed=False), "a.zip", ANY, Risk.ENCRYPTED_ARCHIVE),
        (b"PK\x05\x06" + bytes(18), "a.zip", ANY, None),
    ],
)
def test_the_table(data: bytes, name: str | None, declared: str, wanted: Risk | None) -> None:
    assert risk(data, name, declared) is wanted


@pytest.mark.covers("edge:B10")
@pytest.mark.parametrize("declared", ["message/rfc822", "message/delivery-status", "message/x-other"])
def test_what_is_called_a_message_is_looked_at(declared: str) -> None:
    assert inspect(b"MZ\x90\x00" + bytes(300), declared, "report.pdf").risk is Risk.EXECUTABLE
    assert inspect(zipped({"setup.exe": b"MZ"}), declared, None).risk is Risk.EXECUTABLE
    assert inspect(b"#!/bin/sh\n", declared, None).risk is Risk.EXECUTABLE
    for text in (b"MZ: x\r\n\r\n", b"Subject: x\r\n\r\n", b"From a@example.org\nX: y\n", b"no header", b""):
        assert inspect(text, declared, None) == Inspected(declared, None)


def test_what_quarantines() -> None:
    assert [item for item in Risk if not item.quarantines] == [Risk.ENCRYPTED_DOCUMENT]


@pytest.mark.covers("edge:B10")
def test_documents_embed_documents() -> None:
    inner = ooxml("xl")
    for _ in range(4):
        inner = zipped({"[Content_Types].xml": b"<T/>", "word/document.xml": b"<d/>", "word/embeddings/a.docx": inner},
                       packed=False)  # fmt: skip
    assert risk(inner, "a.docx", DOCX) is None


# --- ZIP archives -----------------------------------------------------------------------------------------------------

MEMBERS = st.dictionaries(
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20), st.binary(max_size=200), max_size=8
)


@given(MEMBERS, st.booleans(), st.booleans(), st.binary(max_size=30))
def test_archives_of_a_library(members: dict[str, bytes], packed: bool, streamed: bool, comment: bytes) -> None:
    """Names, sizes and contents as `zipfile` writes and reads them; also to a stream, with sizes after the content."""
    out = io.BytesIO()
    target: Any = _Unseekable(out) if streamed else out
    with zipfile.ZipFile(target, "w", 8 if packed else 0) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.comment = comment.replace(b"PK", b"..")
    data = out.getvalue()
    found = read_archive(data)
    assert found.problem is None
    assert {entry.name: entry.size for entry in found.entries} == {name: len(data) for name, data in members.items()}
    for entry in found.entries:
        assert zip_directory.content(data, entry, 1000) == members[entry.name]


class _Unseekable:
    def __init__(self, out: io.BytesIO) -> None:
        self._out = out

    def write(self, data: bytes) -> int:
        return self._out.write(data)

    def flush(self) -> None:
        pass


def local(name: bytes, data: bytes = b"", method: int = 0, size: int | None = None, flags: int = 0) -> bytes:
    sizes = (0, len(data), len(data) if size is None else size, len(name), 0)
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, flags, method, 0, 0, *sizes) + name + data


def central(
    name: bytes, at: int, packed: int, size: int | None = None, *, method: int = 0, extra: bytes = b""
) -> bytes:
    numbers = (0, packed, packed if size is None else size, len(name), len(extra), 0, 0, 0, 0, at)
    return struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, method, 0, 0, *numbers) + name + extra


def end(count: int, size: int, at: int, comment: bytes = b"") -> bytes:
    return struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, size, at, len(comment)) + comment


def archive(contents: bytes, *directory: bytes, count: int | None = None, comment: bytes = b"") -> bytes:
    listed = b"".join(directory)
    return contents + listed + end(len(directory) if count is None else count, len(listed), len(contents), comment)


GOOD = local(b"a.txt", b"hello")


@pytest.mark.covers("edge:B10")
def test_an_archive_made_by_hand() -> None:
    found = read_archive(archive(GOOD, central(b"a.txt", 0, 5)))
    assert found.problem is None
    assert [(entry.name, entry.size) for entry in found.entries] == [("a.txt", 5)]


HIDDEN = GOOD + local(b"evil.exe", b"MZ")
LIARS = {
    "two entries are one": (archive(GOOD, central(b"a.txt", 0, 5), central(b"a.txt", 0, 5)), Problem.OVERLAP),
    "entries overlap": (
        archive(local(b"a", local(b"b", b"x" * 50)), central(b"a", 0, 81), central(b"b", 31, 50)), Problem.OVERLAP),
    "another name before the content": (
        archive(local(b"evil.exe", b"MZ"), central(b"good.txt", 0, 2)), Problem.UNREADABLE),
    "one hidden behind": (archive(HIDDEN, central(b"a.txt", 0, 5)), Problem.UNREADABLE),
    "one hidden before": (archive(HIDDEN, central(b"evil.exe", len(GOOD), 2)), Problem.UNREADABLE),
    "content beyond the end": (archive(GOOD, central(b"a.txt", 0, 5000)), Problem.UNREADABLE),
    "place beyond the end": (archive(GOOD, central(b"a.txt", 5000, 5)), Problem.UNREADABLE),
    "count too small": (archive(GOOD, central(b"a.txt", 0, 5), count=0), Problem.UNREADABLE),
    "count too large": (archive(GOOD, central(b"a.txt", 0, 5), count=20_000), Problem.TOO_MANY),
    "two ends": (archive(GOOD, central(b"a.txt", 0, 5), comment=end(0, 0, 0)), Problem.UNREADABLE),
    "cut": (archive(GOOD, central(b"a.txt", 0, 5))[:-30], Problem.UNREADABLE),
    "no directory": (GOOD, Problem.UNREADABLE),
    "directory before the start": (GOOD + end(1, 5000, 0), Problem.UNREADABLE),
    "directory is something else": (GOOD + b"x" * 60 + end(1, 60, len(GOOD)), Problem.UNREADABLE),
}  # fmt: skip


@pytest.mark.covers("edge:B10")
@pytest.mark.parametrize("name", LIARS)
def test_archives_that_lie(name: str) -> None:
    data, wanted = LIARS[name]
    assert read_archive(data).problem is wanted
    found = risk(data, "a.zip")
    assert found is not None
    assert found.quarantines


def test_names_differ_and_either_counts() -> None:
    assert risk(LIARS["another name before the content"][0], "a.zip") is Risk.EXECUTABLE
    unicode_path = struct.pack("<HHBI", 0x7075, 5 + 8, 1, 0) + b"evil.exe"
    data = archive(local(b"good", b"x"), central(b"good", 0, 1, extra=unicode_path))
    assert risk(data, "a.zip") is Risk.EXECUTABLE


@pytest.mark.covers("edge:B10")
def test_a_million_entries() -> None:
    """Read up to ten thousand; of a directory that says so in 64 bits not even that."""
    entry = central(b"", 0, 0)
    many = GOOD + entry * 1_000_000
    size = len(many) - len(GOOD)
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1_000_000, 1_000_000, size, len(GOOD))
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(many), 1)
    data = many + end64 + locator + end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    found = read_archive(data)
    assert (len(found.entries), found.problem) == (zip_directory.MAX_ENTRIES, Problem.TOO_MANY)
    assert risk(data, "a.zip") is Risk.ARCHIVE_BOMB


@pytest.mark.covers("edge:B10")
def test_sizes_in_64_bits() -> None:
    extra = struct.pack("<HHQ", 1, 8, 5 * 10**12)
    data = archive(GOOD, central(b"a.txt", 0, 5, 0xFFFFFFFF, extra=extra))
    assert read_archive(data).entries[0].size == 5 * 10**12
    assert risk(data, "a.zip") is Risk.ARCHIVE_BOMB


def test_a_directory_of_two_opinions() -> None:
    """The record of 64 bits says something else than the short one."""
    listed = central(b"a.txt", 0, 5)
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(listed), len(GOOD))
    at = len(GOOD) + len(listed)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, at, 1)
    assert read_archive(GOOD + listed + end64 + locator + end(1, len(listed), len(GOOD))).problem is None
    assert read_archive(GOOD + listed + end64 + locator + end(2, len(listed), len(GOOD))).problem is Problem.UNREADABLE


@pytest.mark.covers("edge:B10")
def test_what_is_inflated_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand archives of 900 KiB within one: no more than the 16 MiB and one that were asked for."""
    inner = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = inner.compress(b"PK" + bytes(900 * 1024)) + inner.flush()
    size = 2 + 900 * 1024
    contents, listed = bytearray(), []
    for number in range(1000):
        name = f"{number}.zip".encode()
        listed.append(central(name, len(contents), len(packed), size, method=8))
        contents += local(name, packed, 8, size)
    made: list[int] = []
    real = zip_directory.content

    def counted(*arguments: object) -> bytes | None:
        found = real(*arguments)  # type: ignore[arg-type]  # passed on as they came
        made.append(len(found or b""))
        return found

    monkeypatch.setattr(zip_directory, "content", counted)
    assert risk(archive(bytes(contents), *listed), "a.zip") is Risk.ARCHIVE_BOMB
    assert sum(made) <= 17 * 1024 * 1024


@settings(max_examples=150)
@given(st.integers(0, 400), st.binary(max_size=6), st.integers(-40, 0))
def test_damaged_archives(at: int, junk: bytes, cut: int) -> None:
    whole = zipped({"a.txt": b"hello" * 9, "b.zip": zipped({"c.exe": b"MZ"}), "dir/": b""})
    data = (whole[:at] + junk + whole[at + len(junk) :])[: len(whole) + cut]
    found = read_archive(data)
    assert len(found.entries) <= 3
    inspect(data, "application/zip", "a.zip")
    inspect(b"PK\x03\x04" + junk, ANY, None)


# --- OLE and the rest -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sector", [512, 4096])
@given(
    names=st.lists(
        st.text(st.characters(categories=["L", "N"], max_codepoint=0xFFFF), min_size=1, max_size=31), max_size=40
    )
)
def test_names_of_a_compound_file(sector: int, names: list[str]) -> None:
    found = read_directory(ole(names, sector=sector))
    assert found.complete
    assert found.names == {"root entry", *(name.lower() for name in names)}


def test_a_directory_that_goes_round() -> None:
    data = bytearray(ole(["x"] * 10))
    struct.pack_into("<I", data, 512 + 4 * 2, 1)  # the table: after sector 2 comes sector 1
    found = read_directory(bytes(data))
    assert not found.complete
    assert found.names == {"root entry", "x"}


def test_macros_in_what_cannot_be_read() -> None:
    data = ole(["WordDocument"])[:600] + "_VBA_PROJECT".encode("utf-16-le")
    assert risk(data, "a.doc") is Risk.MACRO


@given(st.integers(0, 1600), st.binary(max_size=8))
def test_damaged_compound_files(at: int, junk: bytes) -> None:
    whole = ole(["WordDocument", "VBA", "x"] * 3)
    inspect(whole[:at] + junk + whole[at + len(junk) :], ANY, "a.doc")
    read_directory(whole[:at])


@given(st.binary(max_size=400), st.sampled_from([data for data, _ in MAGIC]), st.text(max_size=12))
def test_any_octets(junk: bytes, magic: bytes, name: str) -> None:
    for data in (junk, magic[-16:] + junk, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + junk * 3):
        found = inspect(data, "text/plain", name)
        assert found.risk is None or found.risk in Risk
        assert "/" in found.sniffed_type
