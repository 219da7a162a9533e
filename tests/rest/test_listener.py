"""The listener over real sockets: what it takes, what it refuses, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from postroom.base.ids import IdGenerator
from postroom.servers.http import HttpLimits, HttpListener, create_http
from postroom.servers.http.bodies import MAX_BODY, max_body
from tests.rest.contract import check
from tests.rest.world import TRACE, World, simple_mail

HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def listening(world: World, limits: HttpLimits | None = None) -> AsyncIterator[HttpListener]:
    listener = HttpListener(world.app, ids=world.ids, limits=limits, on_drain=world.app.services.stopping.set)
    await listener.start(HOST, 0)
    try:
        yield listener
    finally:
        await listener.drain(2)


async def exchange(port: int, data: bytes, *, eof: bool = False) -> bytes:
    """Everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        if eof:
            writer.write_eof()
        async with asyncio.timeout(20):
            found = b""
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(65536):
                    found += piece
            return found
    finally:
        writer.close()


def parsed(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *fields = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    return int(status.split()[1]), headers, json.loads(body[: int(headers["content-length"])])


async def test_requests_over_a_socket(world: World) -> None:
    original = simple_mail()
    one = await world.deliver(original)
    async with (
        listening(world) as listener,
        httpx.AsyncClient(base_url=f"http://{HOST}:{listener.port}", headers=world.key) as client,
    ):
        for path in ("/health", "/health/ready", "/v1/me", world.at("/messages"), world.at("/threads")):
            response = await client.get(path)
            assert response.status_code == 200
            assert response.headers["request-id"].startswith("req_")
            assert "date" in response.headers
            assert "server" not in response.headers
            assert response.headers.get_list("request-id") == [response.headers["request-id"]]
        raw = await client.get(world.at(f"/messages/{one.message_id}/raw"))
        assert raw.content == TRACE + original
        changed = await client.patch(world.at(f"/messages/{one.message_id}"), json={"read": True})
        assert changed.json()["read"] is True
        assert listener.connection_count == 1
        assert (await client.head("/health")).status_code == 405


def self_signed(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's context with a certificate for `localhost`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = directory / "server.pem"
    file.write_bytes(pem + secret)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cadata=pem.decode())


async def test_https(world: World, tmp_path: Path) -> None:
    server, client_context = self_signed(tmp_path)
    listener = HttpListener(world.app, ids=world.ids, ssl_context=server)
    await listener.start(HOST, 0)
    reader, writer = await asyncio.open_connection(HOST, listener.port, ssl=client_context, server_hostname="localhost")
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()
    await listener.drain(1)


async def test_parallel_connections(world: World) -> None:
    async with (
        listening(world) as listener,
        httpx.AsyncClient(base_url=f"http://{HOST}:{listener.port}", headers=world.key) as client,
    ):
        answers = await asyncio.gather(*(client.get(world.at("/messages")) for _ in range(40)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.headers["request-id"] for answer in answers}) == 40


async def test_pipelined_requests(world: World) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with listening(world) as listener:
        assert (await exchange(listener.port, one * 3 + last)).count(b"HTTP/1.1 200") == 4


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
    ],
)
async def test_what_is_no_http(world: World, data: bytes) -> None:
    async with listening(world) as listener:
        answer = await exchange(listener.port, data)
        if answer:
            status, headers, body = parsed(answer)
            assert status in (400, 404)
            check("Error", body)
            assert body["error"]["request_id"] == headers["request-id"]
            assert headers["x-content-type-options"] == "nosniff"
        assert (await exchange(listener.port, b"GET /health HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"z" * 1000) for n in range(60)) + b"\r\n",
    ],
    ids=["target", "field", "fields", "total"],
)
async def test_heads_have_limits(world: World, head: bytes) -> None:
    async with listening(world) as listener:
        status, headers, body = parsed(await exchange(listener.port, head))
        assert status == 431
        check("Error", body)
        assert headers["connection"] == "close"


async def test_a_head_must_come_in_time(world: World) -> None:
    async with listening(world, HttpLimits(head_timeout=0.2)) as listener:
        assert await exchange(listener.port, b"") == b""
        assert await exchange(listener.port, b"GET /health HT") == b""
        assert await exchange(listener.port, b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ") == b""


async def test_a_body_must_come_in_time(world: World) -> None:
    async with listening(world, HttpLimits(body_timeout=0.2)) as listener:
        head = f"PATCH {world.at('/messages/msg_01ARZ3NDEKTSV4RRFFQ69G5FAV')} HTTP/1.1\r\nHost: x\r\n"
        key = f"Authorization: {world.key['authorization']}\r\nContent-Length: 100\r\n\r\n{{"
        assert await exchange(listener.port, (head + key).encode()) == b""


async def test_idle_connections_are_closed(world: World) -> None:
    async with listening(world, HttpLimits(keep_alive=1)) as listener:
        answer = await exchange(listener.port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("keep", [b"", b"Connection: close\r\n"], ids=["open", "closing"])
async def test_who_takes_nothing_is_cut_off(ids: IdGenerator, keep: bytes) -> None:
    """Else they keep their place for as long as they like: what is closed waits for what was written to be taken."""

    async def much(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                while True:
                    await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})

    listener = HttpListener(much, ids=ids, limits=HttpLimits(untaken_timeout=0.4))
    await listener.start(HOST, 0)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, (HOST, listener.port))
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n" + keep + b"\r\n")
        async with asyncio.timeout(20):
            while not listener.connection_count:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)
            while listener.connection_count:  # noqa: ASYNC110 - the same
                await asyncio.sleep(0.01)
    await listener.drain(1)


async def test_who_takes_it_slowly_gets_it_all(ids: IdGenerator) -> None:
    size = 24 * 1024 * 1024

    async def much(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * size})

    listener = HttpListener(much, ids=ids, limits=HttpLimits(untaken_timeout=0.4))
    await listener.start(HOST, 0)
    reader, writer = await asyncio.open_connection(HOST, listener.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    got = 0
    async with asyncio.timeout(60):
        while piece := await reader.read(1024 * 1024):
            got += len(piece)
            await asyncio.sleep(0.02)
    writer.close()
    assert got > size
    await listener.drain(1)


async def test_no_more_connections_than_allowed(world: World) -> None:
    async with listening(world, HttpLimits(max_connections=1)) as listener:
        reader, writer = await asyncio.open_connection(HOST, listener.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        status, headers, body = parsed(await exchange(listener.port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert (status, body["error"]["code"]) == (503, "unavailable")
        assert "retry-after" in headers
        writer.close()
        await writer.wait_closed()


async def test_too_large_a_body_is_refused_while_it_streams(world: World) -> None:
    """Announced, or only noticed: the answer comes before the body is through."""
    path = f"/v1/tenants/{world.tenant.public_id}/identities"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {world.key['authorization']}\r\n"
    async with listening(world) as listener:
        for framing, body in (
            (f"Content-Length: {100 * 1024 * 1024}\r\n\r\n", b"{"),
            ("Transfer-Encoding: chunked\r\n\r\n", (b"100000\r\n" + b" " * 0x100000 + b"\r\n") * 8),
        ):
            reader, writer = await asyncio.open_connection(HOST, listener.port)
            writer.write((head + framing).encode() + body)
            async with asyncio.timeout(20):
                assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
                assert b'"payload_too_large"' in await reader.readuntil(b"}")
            writer.close()


@pytest.mark.covers("edge:G5")
async def test_a_body_may_be_as_large_as_its_message(world: World) -> None:
    """1.4 octets for each octet of the message (outbound §6.7)."""
    assert (max_body(5 * 1024 * 1024), max_body(10_000_000), max_body(65536)) == (MAX_BODY, 14_000_000, MAX_BODY)
    body = b'{"a": "' + b"x" * (8 << 20) + b'"}'
    path = f"/v1/tenants/{world.tenant.public_id}/identities"
    for limit, status in ((MAX_BODY, 413), (max_body(10_000_000), 400)):
        app = create_http(replace(world.app.services, max_body=limit))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://api.example") as client:
            response = await client.post(path, content=body, headers={**world.key, "content-type": "application/json"})
        assert response.status_code == status


async def test_draining(world: World) -> None:
    """Requests in hand are finished, long polls end, idle connections and the port are closed."""
    listener = HttpListener(world.app, ids=world.ids, on_drain=world.app.services.stopping.set)
    await listener.start(HOST, 0)
    port = listener.port
    idle_reader, idle_writer = await asyncio.open_connection(HOST, port)
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", headers=world.key, timeout=30) as client:
        waiting = asyncio.create_task(client.get(world.at("/wait"), params={"timeout": 60}))
        async with asyncio.timeout(10):
            while not world.hub._watches:  # noqa: ASYNC110  the hub tells nobody who watches
                await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            await listener.drain(5)
            assert (await waiting).json()["timed_out"] is True
    assert await idle_reader.read() == b""
    idle_writer.close()
    assert (listener.sockets, listener.connection_count) == ((), 0)
    with pytest.raises(OSError):
        await asyncio.open_connection(HOST, port)
    with pytest.raises(RuntimeError):
        _ = listener.port
    await listener.drain(1)


async def test_a_client_that_hangs_up(world: World) -> None:
    """The poll of a client that is gone is forgotten."""
    async with listening(world) as listener:
        _, writer = await asyncio.open_connection(HOST, listener.port)
        key = f"Authorization: {world.key['authorization']}\r\n"
        writer.write(f"GET {world.at('/wait?timeout=60')} HTTP/1.1\r\nHost: x\r\n{key}\r\n".encode())
        async with asyncio.timeout(10):
            while not world.hub._watches:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
            writer.close()
            while world.hub._watches:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)


async def test_shared_ports(world: World) -> None:
    first = HttpListener(world.app, ids=world.ids)
    second = HttpListener(world.app, ids=world.ids)
    await first.start(HOST, 0, reuse_port=True)
    await second.start(HOST, first.port, reuse_port=True)
    third = HttpListener(world.app, ids=world.ids)
    with pytest.raises(OSError):
        await third.start(HOST, first.port)
    await first.drain(1)
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{second.port}") as client:
        assert (await client.get("/health")).status_code == 200
    await second.drain(1)
