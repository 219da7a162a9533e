"""Encrypted and signed mail: told by form, checked on what a cryptographic library makes; CMS content of any shape."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs7
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail import cms, mime
from postroom.mail.protection import Form, Protection, Scheme, protection

INNER = b"Content-Type: text/plain\r\n\r\nThe signed text\r\n"


@pytest.fixture(scope="module")
def identity() -> tuple[rsa.RSAPrivateKey, x509.Certificate]:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bob@example.org")])
    start = datetime(2026, 3, 5, tzinfo=UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(start).not_valid_after(start + timedelta(days=1))
    return key, builder.sign(key, hashes.SHA256())


def signed(identity: tuple[rsa.RSAPrivateKey, x509.Certificate], *options: pkcs7.PKCS7Options) -> bytes:
    key, certificate = identity
    builder = pkcs7.PKCS7SignatureBuilder().set_data(INNER).add_signer(certificate, key, hashes.SHA256())
    return builder.sign(serialization.Encoding.DER, [pkcs7.PKCS7Options.Binary, *options])


def letter(kind: str, data: bytes) -> bytes:
    return f"Content-Type: {kind}\r\nContent-Transfer-Encoding: base64\r\n\r\n".encode() + base64.encodebytes(data)


def read(raw: bytes) -> Protection:
    return protection(raw, mime.parse(raw))


@pytest.mark.covers("edge:B9", "RFC 8551 §3.5")
def test_opaque_signature_of_a_library(identity: tuple[rsa.RSAPrivateKey, x509.Certificate]) -> None:
    data = signed(identity)
    assert cms.content_kind(data) is cms.ContentKind.SIGNED
    assert cms.signed_content(data) == INNER
    for kind in (
        "application/pkcs7-mime; smime-type=signed-data",
        "application/pkcs7-mime; smime-type=enveloped-data",
        "application/x-pkcs7-mime",
        "application/octet-stream; name=smime.p7m",
    ):
        found = read(letter(kind, data))
        assert not found.encrypted, "octets say more than labels"
        assert found.signature is not None
        assert (found.signature.type, found.signature.form) == (Scheme.SMIME, Form.OPAQUE)


@pytest.mark.covers("edge:B9")
def test_detached_signature_carries_nothing(identity: tuple[rsa.RSAPrivateKey, x509.Certificate]) -> None:
    assert cms.signed_content(signed(identity, pkcs7.PKCS7Options.DetachedSignature)) is None


@pytest.mark.covers("edge:B9", "RFC 8551 §3.3")
def test_envelope_of_a_library(identity: tuple[rsa.RSAPrivateKey, x509.Certificate]) -> None:
    builder = pkcs7.PKCS7EnvelopeBuilder().set_data(INNER).add_recipient(identity[1])
    data = builder.encrypt(serialization.Encoding.DER, [pkcs7.PKCS7Options.Binary])
    assert cms.content_kind(data) is cms.ContentKind.ENVELOPED
    for kind in ("application/pkcs7-mime", "application/octet-stream; name=smime.p7m", "application/x-pkcs7-mime; x=y"):
        found = read(letter(kind, data))
        assert (found.encryption, found.signature) == (Scheme.SMIME, None)


def der(tag: int, *parts: bytes, indefinite: bool = False) -> bytes:
    data = b"".join(parts)
    if indefinite:
        return bytes((tag, 0x80)) + data + b"\x00\x00"
    size = len(data)
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag,)) + (bytes((size,)) if size < 128 else bytes((0x80 | len(octets),)) + octets) + data


CONTENT_KINDS = {kind: der(6, kind.value) for kind in cms.ContentKind}


@pytest.mark.covers("edge:B9", "RFC 5652 §5.1")
@given(st.lists(st.binary(max_size=200), max_size=8), st.booleans(), st.booleans(), st.booleans())
def test_content_in_pieces(pieces: list[bytes], outer: bool, inner: bool, nested: bool) -> None:
    """X.690 §8.7: as streaming signers write it."""
    strings = b"".join(der(4, piece) for piece in pieces)
    if nested:
        strings = der(0x24, strings, indefinite=outer)
    octets = der(0x24, strings, indefinite=inner)
    content = der(0x30, CONTENT_KINDS[cms.ContentKind.DATA], der(0xA0, octets, indefinite=inner), indefinite=inner)
    algorithms = der(0x31, der(0x30, der(6, b"\x2a")), indefinite=outer)
    signed_data = der(0x30, der(2, b"\x01"), algorithms, content, der(0x31), indefinite=outer)
    data = der(0x30, CONTENT_KINDS[cms.ContentKind.SIGNED], der(0xA0, signed_data, indefinite=outer), indefinite=outer)
    assert cms.signed_content(data) == b"".join(pieces)


@given(st.binary(max_size=100), st.integers(0, 80))
def test_any_octets(junk: bytes, at: int) -> None:
    content = der(0x30, CONTENT_KINDS[cms.ContentKind.DATA], der(0xA0, der(4, b"content")))
    signed_data = der(0x30, der(2, b"\x01"), der(0x31), content)
    data = der(0x30, CONTENT_KINDS[cms.ContentKind.SIGNED], der(0xA0, signed_data))
    for hostile in (junk, data[:at] + junk + data[at + len(junk) :], b"\x30\x80" * 300, data[:at]):
        found = cms.signed_content(hostile)
        assert found is None or len(found) <= len(hostile)
        read(letter("application/pkcs7-mime", hostile))
    read(b"Content-Type: multipart/signed; boundary=b\r\n\r\n" + junk)


def nested(inner: str, kind: str) -> str:
    return f"Content-Type: {kind}; boundary=o{len(inner)}\r\n\r\n--o{len(inner)}\r\n{inner}\r\n--o{len(inner)}--\r\n"


PGP = "Content-Type: multipart/encrypted; boundary=e\r\n\r\n--e\r\n\r\nVersion: 1\r\n--e\r\n\r\nx\r\n--e--\r\n"
SIGNED_PGP = (
    "Content-Type: multipart/signed; boundary=s\r\n\r\n--s\r\n{}\r\n--s\r\n"
    "Content-Type: application/pgp-signature\r\n\r\nx\r\n--s--\r\n"
)


@pytest.mark.covers("edge:B9", "RFC 3156")
@pytest.mark.parametrize(
    ("raw", "encrypted", "signature"),
    [
        (PGP, Scheme.PGP, None),
        (nested(PGP, "multipart/mixed"), Scheme.PGP, None),
        (nested("\r\nA notice of the gateway.\r\n--o0", "multipart/mixed"), None, None),
        (SIGNED_PGP.format(PGP), Scheme.PGP, Scheme.PGP),
        (SIGNED_PGP.format("\r\nhello"), None, Scheme.PGP),
        (nested(SIGNED_PGP.format("\r\nhello"), "multipart/mixed"), None, Scheme.PGP),
        (nested(PGP, "multipart/alternative"), Scheme.PGP, None),
        ("Content-Type: message/rfc822\r\n\r\n" + PGP, None, None),
        ("Content-Type: application/pkcs7-mime; smime-type=certs-only\r\n\r\nx", None, None),
        ("Content-Type: application/pkcs7-mime\r\n\r\nunreadable", Scheme.SMIME, None),
        ("\r\nhello\r\n- -----BEGIN PGP SIGNED MESSAGE-----\r\n", None, None),
        ("\r\n> -----BEGIN PGP SIGNED MESSAGE-----\r\n", None, None),
    ],
)
def test_forms(raw: str, encrypted: Scheme | None, signature: Scheme | None) -> None:
    found = read(raw.encode())
    assert found.encryption is encrypted
    assert (found.signature and found.signature.type) == signature
