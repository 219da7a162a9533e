"""BINARY: parts as their authors had them (RFC 3516, RFC 9051 §6.4.5)."""

from __future__ import annotations

import asyncio
import base64
import email
import quopri
import re
from email.message import EmailMessage
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.blobs import StorageError
from postroom.inbound.parsing import ParserBusy

_ITEM = re.compile(rb"(BINARY\[[\d.]*\](?:<\d+>)?) (~?)\{(\d+)\}\r\n")


def _message(*parts: tuple[str, bytes, str]) -> bytes:
    """A multipart of (encoding, octets as encoded, type)."""
    shown = b"".join(
        b"--b\r\nContent-Type: %b\r\nContent-Transfer-Encoding: %b\r\n\r\n%b\r\n" % (kind.encode(), how.encode(), data)
        for how, data, kind in parts
    )
    head = b'Subject: x\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="b"\r\n\r\n'
    return head + shown + b"--b--\r\n"


def _octets(line: bytes, label: bytes) -> tuple[bytes, bytes]:
    """The value of an item: how it came, and what."""
    for found in _ITEM.finditer(line):
        if found[1] == label:
            return found[2], line[found.end() : found.end() + int(found[3])]
    raise AssertionError((label, line))


async def _fetch(client: Any, item: bytes) -> bytes:
    (line,) = [one for one in await client.ok(b"FETCH 1 (%b)" % item) if b"BINARY" in one]
    return bytes(line)


BASE64 = base64.encodebytes(b"\0\1binary\xff" * 20).replace(b"\n", b"\r\n").rstrip()
MESSAGE = _message(
    ("base64", BASE64, "application/octet-stream"),
    ("quoted-printable", b"caf=C3=A9 =\r\nau lait", "text/plain; charset=utf-8"),
    ("8bit", "naïve".encode(), "text/plain; charset=utf-8"),
    ("7bit", b"Subject: inner\r\nContent-Transfer-Encoding: base64\r\n\r\nSGVsbG8=\r\n", "message/rfc822"),
    ("x-odd", b"???", "application/octet-stream"),
)


@pytest.mark.covers("RFC 3516 §4.2", "RFC 3516 §4.3", "decisions:C1")
async def test_parts_are_decoded(office: Any) -> None:
    client = await office.client()
    await client.append(MESSAGE)
    line = await _fetch(client, b"BINARY.PEEK[1] BINARY.PEEK[2] BINARY.PEEK[3] BINARY.PEEK[4] BINARY.PEEK[4.1]")
    # A literal8 where there is a NUL, and only there.
    assert _octets(line, b"BINARY[1]") == (b"~", b"\0\1binary\xff" * 20)
    assert _octets(line, b"BINARY[2]") == (b"", "café au lait".encode())
    assert _octets(line, b"BINARY[3]") == (b"", "naïve".encode())
    assert _octets(line, b"BINARY[4]")[1].endswith(b"SGVsbG8=\r\n")
    assert _octets(line, b"BINARY[4.1]") == (b"", b"Hello")
    assert _octets(await _fetch(client, b"BINARY.PEEK[]"), b"BINARY[]") == (b"", MESSAGE)
    line = await _fetch(client, b"BINARY.SIZE[1] BINARY.SIZE[2] BINARY.SIZE[3] BINARY.SIZE[4.1] BINARY.SIZE[]")
    sizes = (180, 13, 6, 5, len(MESSAGE))
    labels = (b"1", b"2", b"3", b"4.1", b"")
    assert b" ".join(b"BINARY.SIZE[%b] %d" % pair for pair in zip(labels, sizes, strict=True)) in line
    assert b"BINARY[9] NIL BINARY.SIZE[9] 0" in await _fetch(client, b"BINARY.PEEK[9] BINARY.SIZE[9]")
    for wrong in (b"BINARY[1.MIME]", b"BINARY[HEADER]", b"BINARY.SIZE[TEXT]", b"BINARY.SIZE[1]<0.1>"):
        assert (await client.ask(b"FETCH 1 %b" % wrong))[-1].startswith(b"BAD"), wrong


@pytest.mark.covers("RFC 3516 §4.2")
async def test_a_part_of_what_is_decoded(office: Any) -> None:
    client = await office.client()
    await client.append(MESSAGE)
    line = await _fetch(client, b"BINARY.PEEK[1]<2.6> BINARY.PEEK[2]<3.100> BINARY.PEEK[3]<50.5>")
    assert _octets(line, b"BINARY[1]<2>") == (b"", b"binary")
    assert _octets(line, b"BINARY[2]<3>") == (b"", "é au lait".encode())
    assert _octets(line, b"BINARY[3]<50>") == (b"", b"")


@pytest.mark.covers("RFC 3516 §4.3")
async def test_unknown_encodings(office: Any) -> None:
    client = await office.client()
    await client.append(MESSAGE)
    await client.append(MESSAGE.replace(b"x-odd", b"8bit"))
    for item in (b"BINARY[5]", b"BINARY.SIZE[5]", b"(BINARY[1] BINARY[5])"):
        lines = await client.ask(b"FETCH 1 " + item)
        assert lines[-1].startswith(b"NO [UNKNOWN-CTE]")
        assert not any(b"BINARY" in line for line in lines[:-1])
    lines = await client.ask(b"FETCH 1:2 BINARY[5]")
    assert [line for line in lines if b"BINARY" in line] == [
        b"* 2 FETCH (FLAGS (\\Seen \\Recent) BINARY[5] {3}\r\n???)"
    ]
    assert lines[-1].startswith(b"NO [UNKNOWN-CTE]")
    # Only what was shown was read.
    assert b"\\Seen" not in (await client.ok(b"FETCH 1 FLAGS"))[0]


@pytest.mark.covers("RFC 3516 §4.2", "mail-server:D5")
async def test_only_peeking_leaves_it_unread(office: Any) -> None:
    client = await office.client()
    await client.append(MESSAGE)
    await client.ok(b"FETCH 1 (BINARY.PEEK[1] BINARY.SIZE[1])")
    assert b"\\Seen" not in (await client.ok(b"FETCH 1 FLAGS"))[0]
    await client.ok(b"FETCH 1 BINARY[1]")
    assert b"\\Seen" in (await client.ok(b"FETCH 1 FLAGS"))[0]


@pytest.mark.covers("RFC 3516 §4.4", "mail-server:D8")
async def test_nul_is_stored_as_it_is(office: Any) -> None:
    client = await office.client()
    raw = b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: binary\r\n\r\na\0b"
    answer = (await client.ask(b"APPEND INBOX ~{%d+}\r\n%b" % (len(raw), raw)))[-1]
    assert answer.startswith(b"OK [APPENDUID")
    assert _octets(await _fetch(client, b"BINARY[1]"), b"BINARY[1]") == (b"~", b"a\0b")
    client.send(b"x APPEND INBOX ~{%d}\r\n" % len(raw))
    assert (await client.line()).startswith(b"+ ")
    client.send(raw + b"\r\n")
    assert (await client.until(b"x"))[-1].startswith(b"x OK")


def _large(size: int) -> tuple[bytes, bytes]:
    data = bytes(range(256)) * (size // 256)
    return data, base64.encodebytes(data).replace(b"\n", b"\r\n").rstrip()


@pytest.mark.covers("RFC 3516 §4.2", "decisions:B18", "decisions:D21")
@pytest.mark.parametrize("size", [100 * 1024, 3 * 1024 * 1024])
async def test_large_parts_come_in_pieces(office: Any, size: int) -> None:
    client = await office.client()
    data, encoded = _large(size)
    text = quopri.encodestring(b"caf\xc3\xa9 \n" * (size // 8)).replace(b"\n", b"\r\n")
    await client.append(_message(("base64", encoded, "image/x"), ("quoted-printable", text, "text/plain")))
    line = await _fetch(client, b"BINARY.SIZE[1] BINARY.PEEK[1] UID")
    assert b"BINARY.SIZE[1] %d " % size in line
    assert _octets(line, b"BINARY[1]") == (b"~", data)
    assert _octets(await _fetch(client, b"BINARY.PEEK[1]<1000.70000>"), b"BINARY[1]<1000>")[1] == data[1000:71_000]
    assert (
        _octets(await _fetch(client, b"BINARY.PEEK[1]<%d.9>" % (size - 4)), b"BINARY[1]<%d>" % (size - 4))[1]
        == data[-4:]
    )
    assert _octets(await _fetch(client, b"BINARY.PEEK[1]<%d.9>" % (size + 4)), b"BINARY[1]<%d>" % (size + 4))[1] == b""
    line = await _fetch(client, b"BINARY.SIZE[2] BINARY.PEEK[2]")
    decoded = quopri.decodestring(text)
    assert _octets(line, b"BINARY[2]") == (b"", decoded)
    assert b"BINARY.SIZE[2] %d " % len(decoded) in line


@pytest.mark.covers("RFC 3516 §4.3", "decisions:B18")
async def test_large_parts_that_are_encoded_badly(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await office.client()
    data, encoded = _large(100 * 1024)
    odd = encoded[:1000] + b"!" + encoded[1000:]
    await client.append(_message(("base64", odd, "image/x")))
    assert _octets(await _fetch(client, b"BINARY.PEEK[1]"), b"BINARY[1]") == (b"~", data)
    assert b"BINARY.SIZE[1] %d" % len(data) in await _fetch(client, b"BINARY.SIZE[1]")

    async def busy(*_: object) -> Any:
        raise ParserBusy

    monkeypatch.setattr(office.services.parser, "run", busy)
    assert (await client.ask(b"FETCH 1 BINARY.PEEK[1]"))[-1].startswith(b"NO [UNAVAILABLE]")
    await client.ok(b"NOOP")


@pytest.mark.covers("RFC 3516 §4.3", "mail-server:J1")
async def test_bytes_that_are_missing(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await office.client()
    _, encoded = _large(2 * 1024 * 1024)
    await client.append(_message(("base64", encoded, "image/x"), ("base64", BASE64, "image/x")))

    async def gone(*_: object, **__: object) -> Any:
        raise StorageError("EIO")
        yield b""

    monkeypatch.setattr(office.blobs, "stream", gone)
    lines = await client.ask(b"FETCH 1 (BINARY.PEEK[1] BINARY.PEEK[2])")
    assert lines[-1].startswith(b"NO [SERVERBUG]")
    assert not any(b"BINARY" in line for line in lines[:-1])


_CONTENT = st.one_of(
    st.binary(max_size=300).map(lambda data: (data, "base64")),
    st.text(max_size=200).map(lambda text: (text.encode("utf-8", "replace"), "quoted-printable")),
)


@pytest.mark.covers("RFC 3516 §4.3")
async def test_any_part_is_what_the_standard_library_decodes(office: Any) -> None:
    client = await office.client()
    loop = asyncio.get_running_loop()

    async def once(raw: bytes) -> None:
        uid = int((await client.append(raw)).split(b"]")[0].split()[-1])
        parts: Any = email.message_from_bytes(raw).get_payload()
        for number, part in enumerate(parts, 1):
            lines = await client.ok(b"UID FETCH %d (BINARY.PEEK[%d] BINARY.SIZE[%d])" % (uid, number, number))
            (line,) = [one for one in lines if b"BINARY" in one]
            expected = part.get_payload(decode=True)
            how, shown = _octets(line, b"BINARY[%d]" % number)
            assert shown == expected
            assert (how == b"~") is (b"\0" in expected)
            assert b"BINARY.SIZE[%d] %d)" % (number, len(expected)) in line

    @settings(max_examples=40, deadline=None)
    @given(st.lists(_CONTENT, min_size=1, max_size=4))
    def check(parts: list[tuple[bytes, str]]) -> None:
        message = EmailMessage()
        message["Subject"] = "x"
        message.make_mixed()
        for data, how in parts:
            message.add_attachment(data, maintype="application", subtype="octet-stream", cte=how)
        raw = message.as_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        asyncio.run_coroutine_threadsafe(once(raw), loop).result(20)

    await asyncio.to_thread(check)
