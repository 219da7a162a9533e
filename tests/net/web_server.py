"""A web server over TLS whose answers are what a test wants them to be, and the authority behind its certificate."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """Makes contexts for servers, and one for clients that trust it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "The tests' authority")])
        made = self._sign(self._name, self._name, self._key, DAY, x509.BasicConstraints(ca=True, path_length=None))
        self._path = directory / "authority.pem"
        self._path.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self._path))

    def server(self, host: str, *, lasts: timedelta = DAY, self_signed: bool = False) -> ssl.SSLContext:
        """With a certificate for `host` that ends `lasts` from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "A server")])
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        made = self._sign(name, name if self_signed else self._name, key, lasts, names, own=self_signed)
        path = self._directory / "server.pem"
        path.write_bytes(
            made.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _sign(
        self,
        name: x509.Name,
        issuer: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        lasts: timedelta,
        extension: x509.ExtensionType,
        *,
        own: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * DAY)
            .not_valid_after(now + lasts)
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(key if own else self._key, hashes.SHA256())
        )


class Peer:
    """A client, as the server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request. Raises IncompleteReadError when there is none."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return head, await self.reader.readexactly(length)

    async def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        while await self.reader.read(65536):
            pass


Behaviour: TypeAlias = Callable[[Peer], Awaitable[None]]


@dataclass
class Web:
    port: int
    connections: int = 0
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Some connection is over."""


@asynccontextmanager
async def serving(
    behave: Behaviour, context: ssl.SSLContext | None, *, address: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Web]:
    """Each connection that is made (and, with a context, whose handshake succeeds) is given to `behave`."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        web.connections += 1
        try:
            await behave(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError, asyncio.CancelledError):
            # The client went away, or the test did; a task of `start_server` has nobody to tell.
            writer.transport.abort()
        finally:
            writer.close()
            web.ended.set()

    server = await asyncio.start_server(serve, address, port, ssl=context)
    web = Web(server.sockets[0].getsockname()[1])
    try:
        yield web
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def answering(*answers: bytes, web: Callable[[], Web] | None = None) -> Behaviour:
    """To each request on a connection the next of `answers`, and after the last one goodbye."""

    async def behave(peer: Peer) -> None:
        for answer in answers:
            request = await peer.request()
            if web is not None:
                web().requests.append(request)
            await peer.say(answer)

    return behave
