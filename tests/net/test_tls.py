"""A certificate that is renewed while the server runs (G1)."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from postroom.net.tls import Certificate, CertificateFiles, certificate, replace_certificate, server_context

NOW = datetime.now(UTC)


def issue(directory: Path, name: str, *, with_rsa: bool = False, key_only: bool = False) -> None:
    """A certificate for `name`, and its key, in the files of the directory."""
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    key = rsa.generate_private_key(65537, 2048) if with_rsa else ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=30))
        .sign(key, hashes.SHA256())
    )
    (directory / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    if not key_only:
        (directory / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))


@asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def shown(port: int, name: str | None = "mx.example.com") -> str:
    """Whose certificate a client is shown."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name or "")
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return str(x509.load_der_x509_certificate(der).subject.rfc4514_string())


@pytest.mark.covers("mail-server:G1")
@pytest.mark.parametrize("with_rsa", [False, True], ids=["same kind of key", "another kind of key"])
async def test_a_renewed_certificate_is_shown(tmp_path: Path, with_rsa: bool) -> None:
    issue(tmp_path, "old.example.com")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    files = CertificateFiles(cert, key)
    context = server_context(Certificate(cert, key, self_signed=False))
    async with listening(context) as port:
        assert await shown(port) == "CN=old.example.com"
        assert files.renewed() is None
        issue(tmp_path, "new.example.com", with_rsa=with_rsa)
        renewed = files.renewed()
        assert renewed is not None
        replace_certificate(context, renewed)
        assert await shown(port) == await shown(port, None) == "CN=new.example.com"
        assert files.renewed() is None
        issue(tmp_path, "newest.example.com")
        renewed = files.renewed()
        assert renewed is not None
        replace_certificate(context, renewed)
        assert await shown(port) == "CN=newest.example.com"


@pytest.mark.covers("mail-server:G1")
def test_a_broken_pair_changes_nothing(tmp_path: Path) -> None:
    issue(tmp_path, "old.example.com")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    files = CertificateFiles(cert, key)
    issue(tmp_path, "new.example.com", key_only=True)
    assert files.renewed() is None
    cert.write_bytes(b"junk")
    assert files.renewed() is None
    cert.unlink()
    assert files.renewed() is None
    issue(tmp_path, "new.example.com")
    assert files.renewed() is not None


@pytest.mark.covers("decisions:D23", "mail-server:G1")
def test_those_who_start_together_make_one_certificate(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def start(_: int) -> bytes:
        together.wait(30)
        found = certificate(None, None, data_dir=tmp_path, hostnames=("mx.example.com",), now=datetime.now(UTC))
        server_context(found)
        return found.cert_path.read_bytes()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(start, range(8)))) == 1
