"""Compressed connections (RFC 4978): what comes and goes, and what must not follow from it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.servers.imap.deflate import PIECE, Deflater, Inflater
from tests.imap_server.conftest import DEADLINE, PASSWORD


class Compressed:
    """The client's side of a compressed connection."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        self.inflate = zlib.decompressobj(-15)
        self.text = b""

    def send(self, data: bytes) -> None:
        self.client.send(self.deflate.compress(data) + self.deflate.flush(zlib.Z_SYNC_FLUSH))

    async def until(self, mark: bytes) -> bytes:
        """All text up to a line that begins with `mark`."""
        while b"\r\n" + mark not in b"\r\n" + self.text or not self.text.endswith(b"\r\n"):
            data = await asyncio.wait_for(self.client.reader.read(1 << 16), DEADLINE)
            assert data, "the connection ended"
            self.text += self.inflate.decompress(data)
        text, self.text = self.text, b""
        return text


async def _compressed(office: Any) -> Compressed:
    client = await office.client()
    assert (await client.ask(b"COMPRESS DEFLATE")) == [b"OK DEFLATE active"]
    return Compressed(client)


@pytest.mark.covers("RFC 4978 §3", "RFC 4978 §4")
async def test_everything_is_compressed_from_there_on(office: Any) -> None:
    compressed = await _compressed(office)
    body = b"Subject: x\r\n\r\n" + b"".join(b"line %d\r\n" % n for n in range(30_000))
    compressed.send(b"b1 APPEND INBOX {%d+}\r\n%b\r\n" % (len(body), body))
    assert b"b1 OK" in await compressed.until(b"b1 ")
    compressed.send(b"b2 FETCH 1 BODY.PEEK[]\r\nb3 COMPRESS DEFLATE\r\n")
    text = await compressed.until(b"b3 ")
    assert body in text
    assert b"b3 NO [COMPRESSIONACTIVE]" in text
    compressed.send(b"b5 CAPABILITY\r\n")
    assert b"COMPRESS=DEFLATE" not in await compressed.until(b"b5 ")  # there is nothing left to turn on
    compressed.send(b"b4 LOGOUT\r\n")
    assert b"b4 OK" in await compressed.until(b"b4 ")
    assert await compressed.client.rest() == b""


@pytest.mark.covers("RFC 4978 §5", "RFC 9051 §6.2.1")
async def test_compressed_within_tls(office: Any, client_tls: ssl.SSLContext) -> None:
    client = await office.connect(await office.listen(tls=True))
    assert (await client.ask(b"STARTTLS"))[-1].startswith(b"OK")
    await client.writer.start_tls(client_tls, server_hostname="127.0.0.1")
    await client.ok(b'LOGIN %b "%b"' % (office.address.encode(), PASSWORD.encode()))
    assert (await client.ask(b"COMPRESS DEFLATE")) == [b"OK DEFLATE active"]
    compressed = Compressed(client)
    compressed.send(b"b1 SELECT INBOX\r\nb2 STARTTLS\r\n")
    text = await compressed.until(b"b2 ")
    assert b"b1 OK" in text
    assert b"b2 BAD" in text, "no TLS within it"


@pytest.mark.covers("RFC 4978 §3")
async def test_what_is_sent_with_the_command_is_compressed_already(office: Any) -> None:
    client = await office.client()
    compressed = Compressed(client)
    packed = compressed.deflate.compress(b"b1 NOOP\r\n") + compressed.deflate.flush(zlib.Z_SYNC_FLUSH)
    client.send(b"b0 COMPRESS DEFLATE\r\n" + packed)
    assert await client.line() == b"b0 OK DEFLATE active"
    assert await compressed.until(b"b1 ") == b"b1 OK NOOP completed\r\n"


@pytest.mark.covers("RFC 4978 §3")
async def test_only_deflate_and_only_after_login(office: Any) -> None:
    client = await office.connect()
    assert (await client.ask(b"COMPRESS DEFLATE"))[-1].startswith(b"BAD")
    client = await office.client()
    assert (await client.ask(b"COMPRESS LZW"))[-1].startswith(b"BAD")
    assert (await client.ask(b"NOOP"))[-1].startswith(b"OK")


@pytest.mark.covers("RFC 4978 §7")
async def test_little_that_is_much_is_not_held(office: Any) -> None:
    """32 MiB of noughts are 32 KiB on the wire: what is not read yet stays compressed."""
    compressed = await _compressed(office)
    (connection,) = next(iter(office.listeners))._context.connections
    compressed.send(b"b1 NOOP\r\n" * 500_000)
    most = 0
    for n in range(500_000):
        if n % 20_000 == 0:
            most = max(most, connection._session.reader.buffered)
            await asyncio.sleep(0.01)
            if b"b1 " in await compressed.until(b"b1 "):
                break
    assert most <= 1024 * 1024


async def test_what_is_no_deflate_ends_the_connection(office: Any) -> None:
    compressed = await _compressed(office)
    compressed.client.send(b"\xff" * 100)
    with contextlib.suppress(ConnectionError):
        assert await compressed.client.rest() == b""
    other = await office.client()
    await other.ok(b"NOOP")


async def test_noise_after_a_good_start(office: Any) -> None:
    compressed = await _compressed(office)
    compressed.send(b"b1 NOOP\r\n")
    await compressed.until(b"b1 ")
    compressed.client.send(os.urandom(1000))
    with contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(compressed.client.reader.read(1 << 16), DEADLINE):
            pass  # what it makes of the noise, until it ends the connection


async def test_what_is_left_to_send_goes_before_the_end(office: Any) -> None:
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    compressed = await _compressed(office)
    body = b"Subject: x\r\n\r\n" + random.Random(1).randbytes(25_000).hex().encode()
    compressed.send(b"b1 APPEND INBOX {%d+}\r\n%b\r\n" % (len(body), body))
    await compressed.until(b"b1 ")
    compressed.send(b"b2 FETCH 1 BODY.PEEK[]\r\nb3 LOGOUT\r\n")
    assert body in await compressed.until(b"b3 ")
    assert await compressed.client.rest() == b""
    assert failed == []


def test_nothing_is_kept_of_what_follows_the_end() -> None:
    inflater, machine = Inflater(), zlib.compressobj(9, zlib.DEFLATED, -15)
    inflater.feed(machine.compress(b"b1 NOOP\r\n") + machine.flush())
    assert inflater.read() == b"b1 NOOP\r\n"
    for _ in range(20):
        inflater.feed(os.urandom(1000))
        assert inflater.read() == b""
    assert len(inflater._machine.unused_data) < 1000


@given(st.lists(st.binary(max_size=3 * PIECE), max_size=5), st.integers(1, 4000))
def test_any_bytes_any_cuts(buffers: list[bytes], cut: int) -> None:
    deflater, machine = Deflater(), zlib.decompressobj(-15)
    deflater.add(buffers)
    packed = b""
    while deflater.waiting:
        packed += deflater.take()
    assert machine.decompress(packed) == b"".join(buffers)
    inflater, read = Inflater(), b""
    for at in range(0, len(packed), cut):
        inflater.feed(packed[at : at + cut])
        while piece := inflater.read():
            assert len(piece) <= PIECE
            read += piece
    assert read == b"".join(buffers)


def test_random_is_the_worst_case() -> None:
    data = random.Random(1).randbytes(200_000)
    deflater = Deflater()
    deflater.add([data[:70_000], memoryview(data)[70_000:]])
    packed = b"".join(iter(deflater.take, b""))
    assert zlib.decompressobj(-15).decompress(packed) == data
    assert len(packed) < len(data) + 1000
