"""Certificates for peers: an authority of the tests' own, which nobody else trusts."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Its certificate is in `path`."""

    def __init__(self, directory: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "The tests' authority")])
        made = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = directory / "authority.pem"
        self.path.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(self, directory: Path, host: str, address: str) -> tuple[Path, Path]:
        """A certificate for a name and an address, and its key, which everybody may read: files in `directory`."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(host), x509.IPAddress(ipaddress.ip_address(address))]
        made = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]), key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        certificate_path, key_path = directory / "certificate.pem", directory / "key.pem"
        certificate_path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate_path, key_path

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=30))
        )
