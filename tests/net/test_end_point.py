"""What a TLS connection is bound to: the certificate that its client was shown (RFC 5929 §4)."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from postroom.net.tls import Certificate, CertificateFiles, end_point, replace_certificate, server_context

NOW = datetime.now(UTC)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both event loops: they have TLS of their own."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def issue(path: Path, digest: hashes.HashAlgorithm | None, *, extra: bytes = b"") -> bytes:
    """A certificate that is signed over `digest`, None for Ed25519, with its key before it in the file; its DER."""
    key = ed25519.Ed25519PrivateKey.generate() if digest is None else ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mx.example.com")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=30))
        .sign(key, cast(hashes.SHA256, digest))
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM) + extra)
    return made.public_bytes(serialization.Encoding.DER)


def context_of(path: Path) -> ssl.SSLContext:
    return server_context(Certificate(path, path, self_signed=False))


@dataclass
class Seen(asyncio.Protocol):
    """The server's side; says hello under TLS, or first offers it in clear."""

    context: ssl.SSLContext
    upgrades: bool
    bound: list[bytes | None] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        if not self.upgrades:
            self.greet(transport)
            return
        assert end_point(transport.get_extra_info("ssl_object")) is None
        self.task = asyncio.get_running_loop().create_task(self.upgrade(transport))

    async def upgrade(self, transport: asyncio.Transport) -> None:
        upgraded = await asyncio.get_running_loop().start_tls(transport, self, self.context, server_side=True)
        assert upgraded is not None
        self.greet(upgraded)

    def greet(self, transport: asyncio.Transport) -> None:
        self.bound.append(end_point(transport.get_extra_info("ssl_object")))
        transport.write(b"hello\r\n")
        transport.close()


async def connect(context: ssl.SSLContext, *, upgrades: bool = False) -> tuple[bytes | None, bytes]:
    """What the server is bound to, and the certificate that the client was shown."""
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    seen = Seen(context, upgrades)
    server = await asyncio.get_running_loop().create_server(
        lambda: seen, "127.0.0.1", 0, ssl=None if upgrades else context
    )
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        assert await reader.read() == b"hello\r\n"
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
    (bound,) = seen.bound
    return bound, der


@pytest.mark.covers("RFC 5929 §4.1")
@pytest.mark.parametrize("upgrades", [False, True], ids=["implicit", "STARTTLS"])
async def test_a_connection_is_bound_to_what_its_client_saw(tmp_path: Path, upgrades: bool) -> None:
    path = tmp_path / "both.pem"
    old = issue(path, hashes.SHA256())
    files, context = CertificateFiles(path, path), context_of(path)
    assert await connect(context, upgrades=upgrades) == (hashlib.sha256(old).digest(), old)
    new = issue(path, hashes.SHA256(), extra=b"\n")
    # What is in the file is not what is shown until it is read again.
    assert await connect(context, upgrades=upgrades) == (hashlib.sha256(old).digest(), old)
    renewed = files.renewed()
    assert renewed is not None
    replace_certificate(context, renewed)
    assert await connect(context, upgrades=upgrades) == (hashlib.sha256(new).digest(), new)


@pytest.mark.covers("RFC 5929 §4.1")
@pytest.mark.parametrize(
    ("digest", "used"),
    [
        (hashes.SHA256(), "sha256"),
        (hashes.SHA384(), "sha384"),
        (hashes.SHA512(), "sha512"),
        (None, None),
    ],
)
async def test_the_hash_is_that_of_the_signature(
    tmp_path: Path, digest: hashes.HashAlgorithm | None, used: str | None
) -> None:
    der = issue(tmp_path / "both.pem", digest)
    bound, shown = await connect(context_of(tmp_path / "both.pem"))
    assert shown == der
    assert bound == (None if used is None else hashlib.new(used, der).digest())


def test_a_weak_hash_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    der = issue(tmp_path / "both.pem", hashes.SHA256())

    class Old:
        signature_hash_algorithm = hashes.SHA1()  # nothing signs with it any more

    monkeypatch.setattr(x509, "load_der_x509_certificate", lambda data: Old)
    connection = context_of(tmp_path / "both.pem").wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    assert end_point(connection) == hashlib.sha256(der).digest()


def test_without_a_certificate_of_ours() -> None:
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for connection in (None, "text", plain.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)):
        assert end_point(connection) is None


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """The two ends of a finished handshake."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(back, there, session=session)
    answering = server.wrap_bio(there, back, server_side=True)
    for _ in range(3):
        for end in (asking, answering):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    answering.write(b"x")
    assert asking.read(1) == b"x"  # and with it the tickets
    return asking, answering


@pytest.mark.covers("RFC 5929 §4")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_that_outlives_its_certificate(tmp_path: Path, version: ssl.TLSVersion) -> None:
    path = tmp_path / "both.pem"
    der = issue(path, hashes.SHA256())
    files, context = CertificateFiles(path, path), context_of(path)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode, client.maximum_version = False, ssl.CERT_NONE, version
    asking, _ = handshake(context, client)
    again, answering = handshake(context, client, asking.session)
    assert answering.session_reused
    assert again.getpeercert(binary_form=True) == der
    assert end_point(answering) == hashlib.sha256(der).digest()
    issue(path, hashes.SHA256(), extra=b"\n")
    renewed = files.renewed()
    assert renewed is not None
    replace_certificate(context, renewed)
    late, answering = handshake(context, client, asking.session)
    # The client goes by the certificate that it knows, which we do not show any more.
    assert answering.session_reused
    assert late.getpeercert(binary_form=True) == der
    assert end_point(answering) is None
