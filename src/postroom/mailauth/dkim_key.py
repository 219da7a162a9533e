"""Private keys of DKIM: made, kept, used, and their DNS record (RFC 6376 §3.6.1, RFC 8301, RFC 8463)."""

import base64
from enum import StrEnum
from typing import Final, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

RSA_BITS: Final = 2048
MIN_RSA_BITS: Final = 1024  # RFC 8301 §3.2
MAX_RSA_BITS: Final = 4096  # larger ones no verifier needs to accept (RFC 8301 §3.2)
MAX_STRING: Final = 255  # of a TXT record (RFC 1035 §3.3)
MAX_KEY_BYTES: Final = 16 * 1024

SHA256: Final = Prehashed(hashes.SHA256())
PKCS1: Final = padding.PKCS1v15()


class Algorithm(StrEnum):
    """Signature algorithms in use, as `a=` names them. rsa-sha1 is no longer one (RFC 8301 §3.1)."""

    RSA_SHA256 = "rsa-sha256"
    ED25519_SHA256 = "ed25519-sha256"

    @property
    def key_type(self) -> str:
        """As `k=` of a key record names it."""
        return self.value.partition("-")[0]


class PrivateKeyError(ValueError):
    """Not a private key that DKIM can sign with. The text never holds key material."""


class PrivateKey:
    """A key that signs. It shows its material only through `to_der` and `to_pem`, whose results are to be sealed."""

    __slots__ = ("_key", "algorithm")

    def __init__(self, key: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> None:
        """Raises `PrivateKeyError` for an RSA key outside of 1024 to 4096 bits."""
        if isinstance(key, rsa.RSAPrivateKey) and not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
            raise PrivateKeyError(f"an RSA key has {MIN_RSA_BITS} to {MAX_RSA_BITS} bits, not {key.key_size}")
        self._key = key
        self.algorithm = Algorithm.RSA_SHA256 if isinstance(key, rsa.RSAPrivateKey) else Algorithm.ED25519_SHA256

    def __repr__(self) -> str:
        return f"<PrivateKey {self.algorithm} {self.bits} bits>"

    @classmethod
    def generate(cls, algorithm: Algorithm = Algorithm.RSA_SHA256, *, bits: int = RSA_BITS) -> Self:
        """A new key from the operating system's randomness; `bits` is for RSA, which takes tenths of seconds."""
        if algorithm is Algorithm.ED25519_SHA256:
            return cls(ed25519.Ed25519PrivateKey.generate())
        if not MIN_RSA_BITS <= bits <= MAX_RSA_BITS:
            raise PrivateKeyError(f"an RSA key has {MIN_RSA_BITS} to {MAX_RSA_BITS} bits, not {bits}")
        return cls(rsa.generate_private_key(public_exponent=65537, key_size=bits))

    @classmethod
    def from_der(cls, data: bytes) -> Self:
        """From unencrypted DER: PKCS #8, or PKCS #1 for RSA. Raises `PrivateKeyError`."""
        return cls._load(data, pem=False)

    @classmethod
    def from_pem(cls, data: bytes) -> Self:
        """From unencrypted PEM, as `openssl genrsa` and `openssl genpkey` write it. Raises `PrivateKeyError`."""
        return cls._load(data, pem=True)

    @classmethod
    def _load(cls, data: bytes, *, pem: bool) -> Self:
        load = serialization.load_pem_private_key if pem else serialization.load_der_private_key
        if len(data) > MAX_KEY_BYTES:
            raise PrivateKeyError("too large for a private key")
        try:
            key = load(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            # Its cause is left out: words of a parser about a secret go nowhere.
            raise PrivateKeyError("not an unencrypted private key") from None
        if not isinstance(key, rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey):
            raise PrivateKeyError("neither an RSA nor an Ed25519 key")
        return cls(key)

    def to_der(self) -> bytes:
        """PKCS #8 (RFC 5958), unencrypted: to be sealed where it is stored."""
        return self._dump(serialization.Encoding.DER)

    def to_pem(self) -> bytes:
        """PKCS #8 (RFC 5958) as PEM, unencrypted."""
        return self._dump(serialization.Encoding.PEM)

    def _dump(self, encoding: serialization.Encoding) -> bytes:
        return self._key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())

    @property
    def bits(self) -> int:
        """Size of the key: of the modulus for RSA, 256 for Ed25519."""
        return self._key.key_size if isinstance(self._key, rsa.RSAPrivateKey) else 256

    def sign_digest(self, digest: bytes) -> bytes:
        """The signature of a SHA-256 digest: RSASSA-PKCS1-v1_5 (RFC 6376 §3.3.2), PureEdDSA of it (RFC 8463 §3)."""
        if isinstance(self._key, rsa.RSAPrivateKey):
            return self._key.sign(digest, PKCS1, SHA256)
        return self._key.sign(digest)

    @property
    def public_key(self) -> rsa.RSAPublicKey | ed25519.Ed25519PublicKey:
        """What verifies its signatures."""
        return self._key.public_key()

    def public_value(self) -> bytes:
        """What `p=` holds: SubjectPublicKeyInfo for RSA, the 32 octets of the key for Ed25519 (RFC 8463 §4)."""
        if isinstance(self._key, rsa.RSAPrivateKey):
            form = serialization.PublicFormat.SubjectPublicKeyInfo
            return self._key.public_key().public_bytes(serialization.Encoding.DER, form)
        return self._key.public_key().public_bytes_raw()

    def public_record(self) -> str:
        """The text of the TXT record to publish (RFC 6376 §3.6.1)."""
        public = base64.b64encode(self.public_value()).decode("ascii")
        return f"v=DKIM1; k={self.algorithm.key_type}; p={public}"


def record_name(selector: str, domain: str) -> str:
    """Where the record of a key stands in DNS (RFC 6376 §3.6.2.1)."""
    return f"{selector}._domainkey.{domain}"


def split_strings(record: str) -> tuple[bytes, ...]:
    """The record as the strings of one TXT record, of at most 255 octets each (RFC 6376 §3.6.2.2)."""
    data = record.encode("ascii")
    return tuple(data[at : at + MAX_STRING] for at in range(0, len(data), MAX_STRING))


def zone_file_value(record: str) -> str:
    """The strings as a zone file has them: quoted, one space between (RFC 1035 §5.1)."""
    strings = (part.decode("ascii").replace("\\", "\\\\").replace('"', '\\"') for part in split_strings(record))
    return " ".join(f'"{part}"' for part in strings)
