"""TNEF: what a writer of our own packs comes out again, as another reader has it too; hostile streams stay whole."""

from __future__ import annotations

import email
import email.policy
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import tnefparse  # type: ignore[import-untyped]  # it has no annotations
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail.tnef import FRAME_BYTES, MAX_ATTACHMENTS, UnpackedAttachment, is_tnef, rtf, says_tnef, unpack
from tests.mail.containers import (
    ATT_BODY,
    ATT_REND,
    ATTACHMENT,
    BINARY,
    BOOLEAN,
    INTEGER,
    MESSAGE,
    OBJECT,
    STRING8,
    TIME,
    UNICODE,
    Packed,
    Prop,
    attribute,
    embedded,
    tnef,
)  # fmt: skip

NAMES = st.text(st.characters(codec="cp1252", categories=["L", "N"]), min_size=1, max_size=30).map(lambda s: s + ".dat")
ATTACHMENTS = st.lists(st.tuples(NAMES, st.binary(max_size=300), st.booleans()), max_size=6)
# The other reader takes short names for UTF-8.
ASCII_ATTACHMENTS = st.lists(st.tuples(NAMES.filter(str.isascii), st.binary(max_size=300), st.booleans()), max_size=6)
# What else stands in a stream and must not disturb.
NOISE = st.lists(
    st.sampled_from([
        Prop(0x0017, INTEGER, 1), Prop(0x0E1B, BOOLEAN, 1), Prop(0x3007, TIME, 1),
        Prop(0x8001, UNICODE, "x", name="abc"),
        Prop(0x8002, INTEGER, 7, name=99),
        Prop(0x0FFF, BINARY, b"12345"), Prop(0x001A, STRING8, "IPM.Note"),
    ]),
    max_size=5,
)  # fmt: skip


def packed(found: list[tuple[str, bytes, bool]], noise: list[Prop]) -> list[Packed]:
    return [
        Packed(f"A{n}.DAT", data, [*noise, Prop(0x3707, UNICODE, name), Prop(0x3703, UNICODE, ".dat")])
        if long
        else Packed(name, data)
        for n, (name, data, long) in enumerate(found)
    ]


@pytest.mark.covers("edge:B6")
@given(ATTACHMENTS, NOISE)
def test_attachments_come_out(found: list[tuple[str, bytes, bool]], noise: list[Prop]) -> None:
    stream = tnef(packed(found, noise), noise)
    assert is_tnef(stream)
    made = unpack(stream)
    assert made is not None
    assert made.complete
    assert [(item.filename, item.data) for item in made.attachments] == [(name, data) for name, data, _ in found]


# What reads as UTF-8 is taken for that, whatever code page is named (decision 40): `Âª`.
LATIN = st.text(st.characters(codec="latin-1", categories=["L", "N"]), min_size=1).map(lambda text: text + "é")


@settings(deadline=None)
@given(ASCII_ATTACHMENTS, NOISE, LATIN)
def test_another_reader_sees_the_same(found: list[tuple[str, bytes, bool]], noise: list[Prop], html: str) -> None:
    stream = tnef(packed(found, noise), [Prop(0x1013, BINARY, html.encode("latin-1")), Prop(0x3FDE, INTEGER, 28591)])
    theirs: Any = tnefparse.TNEF(stream + bytes(12))  # else it overlooks a last attribute of one octet
    ours = unpack(stream)
    assert ours is not None
    assert [a.filename for a in ours.attachments] == [
        str(item.long_filename()).strip("\x00") for item in theirs.attachments
    ]
    assert [a.data for a in ours.attachments] == [item.data for item in theirs.attachments]
    body = theirs.htmlbody.decode("latin-1") if isinstance(theirs.htmlbody, bytes) else theirs.htmlbody
    assert ours.html == body.replace("\r\n", "\n")


@pytest.mark.covers("edge:B6")
def test_types_and_content_ids() -> None:
    props = [Prop(0x370E, STRING8, "IMAGE/PNG"), Prop(0x3712, UNICODE, "<a@example.org>")]
    made = unpack(tnef([Packed("a.png", b"x", props), Packed("b", b"y", [Prop(0x370E, STRING8, "no type\r\nX: y")])]))
    assert made is not None
    assert [(a.content_type, a.content_id) for a in made.attachments] == [
        ("image/png", "a@example.org"), ("application/octet-stream", None)]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("../../x.exe", "x.exe"), ("C:\\Users\\x.doc", "x.doc"), ("a\r\nb.txt", "a b.txt"), ("...", None), ("", None)],
)
def test_names_are_safe(name: str, wanted: str | None) -> None:
    made = unpack(tnef([Packed(name, b"x")]))
    assert made is not None
    assert made.attachments[0].filename == wanted


@pytest.mark.covers("edge:B6")
def test_nesting_ends_at_three() -> None:
    stream = tnef([Packed("4.txt", b"four")], [Prop(0x1000, UNICODE, "body 4"), Prop(0x0037, UNICODE, "Level 4")])
    for level in (3, 2, 1):
        props = [Prop(0x1000, UNICODE, f"body {level}"), Prop(0x0037, UNICODE, f"Level {level}")]
        stream = tnef([Packed(f"{level}.txt", b"x"), embedded(stream)], props)
    made = unpack(stream, max_bytes=10**6)
    assert made is not None
    assert not made.complete
    assert made.text == "body 1"
    assert names(made.attachments) == ["1.txt", "Level 2.eml", ["2.txt", "Level 3.eml", ["3.txt"]]]


def names(found: tuple[UnpackedAttachment, ...]) -> list[Any]:
    """Names, and after that of a message those of what it holds."""
    return [name for one in found for name in (one.filename, names(one.inside)) if name != []]


LETTER = [
    Prop(0x0037, UNICODE, "Re: Grüße/Fotos"), Prop(0x1000, UNICODE, "Hallo,\r\nschöne Fotos.\r\n"),
    Prop(0x1013, BINARY, "<p>schöne Fotos</p>".encode()), Prop(0x0042, UNICODE, "Jörg Müller"),
    Prop(0x0065, UNICODE, "jm@example.org"), Prop(0x1035, UNICODE, "<1@example.org>"),
    Prop(0x0039, TIME, 133_800_000_000_000_000),
]  # fmt: skip
FILES = [Packed("a.bin", bytes(range(256))), Packed("i.png", b"PNG", [Prop(0x3712, UNICODE, "i@x")])]


@pytest.mark.covers("edge:B6")
def test_a_message_within_is_one_of_rfc_5322() -> None:
    """Another reader of such messages finds in it what was said."""
    made = unpack(tnef([embedded(tnef(FILES, LETTER))]))
    assert made is not None
    assert made.complete
    (one,) = made.attachments
    assert (one.filename, one.content_type) == ("Re: Grüße-Fotos.eml", "message/rfc822")
    assert one.data.isascii()
    assert one.data.count(b"\n") == one.data.count(b"\r\n")
    read = email.message_from_bytes(one.data, policy=email.policy.default)
    assert not read.defects
    assert (read["subject"], read["message-id"]) == ("Re: Grüße/Fotos", "<1@example.org>")
    assert read["from"].addresses[0].display_name == "Jörg Müller"
    assert read["from"].addresses[0].addr_spec == "jm@example.org"
    assert read["date"].datetime == datetime(1601, 1, 1, tzinfo=UTC) + timedelta(seconds=13_380_000_000)
    plain, page = read.get_body(("plain",)), read.get_body(("html",))
    assert plain is not None
    assert page is not None
    assert plain.get_content().splitlines() == ["Hallo,", "schöne Fotos."]
    assert page.get_content().strip() == "<p>schöne Fotos</p>"
    assert [(part.get_filename(), part.get_payload(decode=True)) for part in read.iter_attachments()] == [
        ("a.bin", bytes(range(256))), ("i.png", b"PNG")]  # fmt: skip
    assert [(inner.filename, inner.data) for inner in one.inside] == [("a.bin", bytes(range(256))), ("i.png", b"PNG")]
    assert made == unpack(tnef([embedded(tnef(FILES, LETTER))]))


@pytest.mark.covers("edge:B6")
def test_a_message_within_that_came_by_mail_has_its_header() -> None:
    head = (
        "Received: from a\r\nFrom: =?utf-8?Q?J=C3=B6rg?= <j@example.org>\r\nTo: a@example.com,\r\n b@example.com\r\n"
        "Date: Mon, 02 Feb 2026 10:00:00 +0100\r\nMessage-ID: <2@example.org>\r\nReferences: <1@example.org>\r\n"
        "Content-Type: multipart/mixed; boundary=x\r\n\r\n"
    )
    made = unpack(tnef([embedded(tnef([], [*LETTER, Prop(0x007D, UNICODE, head)]))]))
    assert made is not None
    read = email.message_from_bytes(made.attachments[0].data, policy=email.policy.default)
    assert (read["from"], read["to"]) == ("Jörg <j@example.org>", "a@example.com, b@example.com")
    assert (read["message-id"], read["references"]) == ("<2@example.org>", "<1@example.org>")
    assert read["date"].datetime.isoformat() == "2026-02-02T10:00:00+01:00"
    assert (read.get_all("received"), read.get_content_type()) == (None, "multipart/alternative")


@pytest.mark.covers("edge:B6")
@pytest.mark.parametrize(
    ("subject", "wanted"),
    [("", "forwarded.eml"), ("..", "forwarded.eml"), ("a/b\\c\r\nd", "a-b-c d.eml"), ("x" * 600, "x" * 251 + ".eml")],
)
def test_a_message_within_is_named_by_its_subject(subject: str, wanted: str) -> None:
    stream = tnef([], [Prop(0x0037, UNICODE, subject)])
    made = unpack(tnef([embedded(stream)]))
    assert made is not None
    assert made.attachments[0].filename == wanted
    raw = Packed("", f"Subject: {subject.splitlines()[0] if subject else ''}\r\n\r\nx".encode(),
                 [Prop(0x370E, STRING8, "message/rfc822")])  # fmt: skip
    attached = unpack(tnef([raw]))
    assert attached is not None
    assert attached.attachments[0].data == raw.data
    if "\r" not in subject:
        assert attached.attachments[0].filename == wanted


@given(
    st.text(max_size=40), st.text(max_size=40), st.text(max_size=60), st.integers(0, 2**64 - 1), st.binary(max_size=60)
)
def test_any_message_within_is_written(subject: str, address: str, header: str, sent: int, data: bytes) -> None:
    def storable(text: str) -> str:
        return text.encode("utf-16-le", "replace").decode("utf-16-le")

    props = [Prop(0x0037, UNICODE, storable(subject)), Prop(0x0065, UNICODE, storable(address)),
             Prop(0x007D, UNICODE, storable("From: " + header)), Prop(0x0039, TIME, sent),
             Prop(0x370E, UNICODE, "message/rfc822")]  # fmt: skip
    kind = Prop(0x370E, UNICODE, "message/rfc822")
    made = unpack(tnef([embedded(tnef([Packed("a", data, [kind])], props))]))
    assert made is not None
    (one,) = made.attachments
    head, _, _ = one.data.partition(b"\r\n\r\n")
    assert one.data.isascii() or not data.isascii()
    assert all(len(line) <= 998 and b"\r" not in line and b"\n" not in line for line in head.split(b"\r\n"))
    fields = [line.partition(b":")[0].lower() for line in head.split(b"\r\n") if line[:1] not in (b" ", b"\t")]
    assert len(fields) == len(set(fields))


def test_an_embedded_file_that_is_no_message() -> None:
    props = [Prop(0x3701, OBJECT, b"\x0b" * 16 + b"OLE data")]
    made = unpack(tnef([Packed("x.ole", b"", props, with_data=False)]))
    assert made is not None
    assert made.attachments[0].data == b"OLE data"


def test_an_attachment_without_data_is_missed() -> None:
    made = unpack(tnef([Packed("link.txt", b"", with_data=False)]))
    assert made is not None
    assert (made.attachments, made.complete) == ((), False)


@pytest.mark.covers("edge:B6")
def test_caps() -> None:
    many = unpack(tnef([Packed("a", b"")] * (MAX_ATTACHMENTS + 5)))
    assert many is not None
    assert (len(many.attachments), many.complete) == (MAX_ATTACHMENTS, False)
    small = unpack(tnef([Packed("a", b"x" * 50), Packed("b", b"y" * 51)]), max_bytes=100)
    assert small is not None
    assert ([a.filename for a in small.attachments], small.complete) == (["a"], False)


@given(st.integers(0, 400), st.binary(max_size=3))
def test_what_is_cut_stays_whole(at: int, tail: bytes) -> None:
    """No prefix gives an attachment that the whole does not have; most give nothing."""
    whole = tnef([Packed("a.txt", b"abc"), Packed("b.txt", b"defg", [Prop(0x3707, UNICODE, "long.txt")])])
    full = unpack(whole)
    assert full is not None
    made = unpack(whole[:at])
    assert made is None or all(item.data in (b"abc", b"defg") for item in made.attachments)
    assert unpack(whole + b"\x00" * len(tail)) == full


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"\x78\x9f\x3e\x22",
        b"PK\x03\x04" + bytes(100),
        b"\x78\x9f\x3e\x22\x01\x00" + struct.pack("<BII", 1, ATT_BODY, 0xFFFFFFFF) + b"abc",
        b"\x78\x9f\x3e\x22\x01\x00" + struct.pack("<BII", 9, ATT_BODY, 0) + b"\x00\x00",
        b"\x78\x9f\x3e\x22\x01\x00" + attribute(MESSAGE, 0x00069003, struct.pack("<I", 0xFFFFFFFF)),
        b"\x78\x9f\x3e\x22\x01\x00" + attribute(MESSAGE, 0x00069003, struct.pack("<IHHI", 1, 0x1102, 1, 0xFFFFFFFF)),
        b"\x78\x9f\x3e\x22\x01\x00" + attribute(MESSAGE, 0x00069003, struct.pack("<IHHII", 1, 0x102, 1, 1, 0xFFFFFF)),
        b"\x78\x9f\x3e\x22\x01\x00" + attribute(ATTACHMENT, ATT_REND, b"") * 30_000,
    ],
)  # fmt: skip
def test_hostile_streams(stream: bytes) -> None:
    made = unpack(stream)
    assert made is None or (made.attachments, made.text, made.html) == ((), None, None)


@given(st.binary(max_size=60), st.integers(0, 600))
def test_any_octets_within(junk: bytes, at: int) -> None:
    stream = tnef([Packed("a.txt", b"abc"), embedded(tnef([Packed("b", b"x" * 20)]))], [Prop(0x1000, UNICODE, "body")])
    data = stream[:at] + junk + stream[at + len(junk) :]
    made = unpack(data)
    if made is not None:
        assert sum(len(item.data) for item in made.attachments) <= 2 * len(data) + FRAME_BYTES
        repr((made.text, made.html, [item.filename for item in made.attachments])).encode()
    unpack(b"\x78\x9f\x3e\x22\x01\x00" + junk)


@pytest.mark.parametrize(
    ("kind", "name", "wanted"),
    [
        ("application/ms-tnef", None, True), ("application/vnd.ms-tnef", "a.bin", True),
        ("application/octet-stream", "WINMAIL.DAT", True), ("application/octet-stream", "a.dat", False),
    ],
)  # fmt: skip
def test_which_parts_say_that_they_are_tnef(kind: str, name: str | None, wanted: bool) -> None:
    assert says_tnef(kind, name) is wanted


# The two examples of MS-OXRTFCP §3.1.
VECTORS = [
    ("2d0000002b0000004c5a4675f1c5c7a703000a007263706731323542320af32068656c090020627705b06c647d0a800fa0",
     b"{\\rtf1\\ansi\\ansicpg1252\\pard hello world}\r\n"),
    ("1a0000001c0000004c5a4675e2d44b51410004205758595a0d6e7d010eb0", b"{\\rtf1 WXYZWXYZWXYZWXYZWXYZ}"),
]  # fmt: skip


@pytest.mark.parametrize(("packed_rtf", "wanted"), VECTORS)
def test_compressed_rich_text(packed_rtf: str, wanted: bytes) -> None:
    assert rtf.decompress(bytes.fromhex(packed_rtf)) == wanted


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (rb"{\rtf1\ansi{\fonttbl{\f0 Arial;}}\f0 Hello\par world}", "Hello\nworld"),
        (rb"{\rtf1\ansicpg1251 \'cf\'f0\'e8}", "При"),
        (rb"{\rtf1\uc1 \u8364?5}", "€5"),
        (rb"{\rtf1\uc1 \u-10179?\u-8704?}", "😀"),
        (rb"{\rtf1 a\{b\}\\c\~d}", "a{b}\\c d"),
        (rb"{\rtf1\fromhtml1{\*\htmltag64 <p>}\htmlrtf {\htmlrtf0 Hi\htmlrtf }\htmlrtf0}", "Hi"),
        (b"{" * 5000, ""),
        (b"\\", ""),
    ],
)  # fmt: skip
def test_rich_text(source: bytes, wanted: str) -> None:
    assert rtf.rtf_text(source) == wanted


@given(st.binary(max_size=200))
def test_any_rich_text(data: bytes) -> None:
    rtf.rtf_text(data).encode()
    for kind in (b"LZFu", b"MELA"):
        made = rtf.decompress(struct.pack("<II", 0, 0xFFFFFFFF) + kind + bytes(4) + data)
        assert made is not None
        assert len(made) <= 18 * len(data)


def test_many_values_of_nothing_are_not_counted_through() -> None:
    """Eight octets could say ten thousand values that have none, twenty thousand times in each attribute."""
    nothing = struct.pack("<HHI", 0x1001, 0x6000, 10_000)
    count = 2000
    stream = b"\x78\x9f\x3e\x22\0\0" + struct.pack("<BII", MESSAGE, 0x00069003, 4 + count * len(nothing))
    assert unpack(stream + struct.pack("<I", count) + nothing * count + b"\0\0") is None


def test_rich_text_of_many_messages_is_read_as_far_as_that_of_one() -> None:
    words = b"{\\rtf1 " + b"a" * (1024 * 1024) + b"}"
    rich = struct.pack("<II4sI", len(words) + 12, len(words), b"MELA", 0) + words
    inner = tnef([], [Prop(0x1009, BINARY, rich)])
    found = unpack(tnef([embedded(inner)] * 4))
    assert found is not None
    assert not found.complete
    assert [len(one.data) > 100_000 for one in found.attachments] == [True, True, False, False]
