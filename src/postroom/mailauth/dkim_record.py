"""Public keys as DNS publishes them (RFC 6376 §3.6, RFC 8301 §3.2, RFC 8463 §4)."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from postroom.mailauth.dkim_key import MAX_RSA_BITS, MIN_RSA_BITS, PKCS1, SHA256, Algorithm, PrivateKey
from postroom.mailauth.dkim_result import DkimError, Reason
from postroom.mailauth.resolver import NameNotFoundError, TemporaryResolverError, TxtResolver
from postroom.mailauth.tags import Tag, TagListError, decode_base64, parse_tags

MAX_RECORD_BYTES: Final = 4096
MAX_RECORDS: Final = 20
"""TXT records of one name that are looked at."""
MAX_EXPONENT_BITS: Final = 33
"""Verification takes time in proportion; 65537 is what everybody has."""

_VERSION: Final = b"DKIM1"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key record that a verifier may use for mail."""

    key: rsa.RSAPublicKey | ed25519.Ed25519PublicKey
    testing: bool
    """`t=y`."""
    strict_identity: bool
    """`t=s`."""

    @property
    def key_type(self) -> str:
        return "rsa" if isinstance(self.key, rsa.RSAPublicKey) else "ed25519"

    @property
    def bits(self) -> int:
        """Size of the key: of the modulus for RSA, 256 for Ed25519."""
        return self.key.key_size if isinstance(self.key, rsa.RSAPublicKey) else 256

    def check_strength(self) -> None:
        """Raises `DkimError` for an RSA key that must not, or need not, be believed (RFC 8301 §3.2)."""
        if isinstance(self.key, rsa.RSAPublicKey):
            if self.key.key_size < MIN_RSA_BITS:
                raise DkimError(Reason.WEAK_KEY)
            # The exponent can only be asked for with the modulus; both are cheap to read.
            if self.key.key_size > MAX_RSA_BITS or self.key.public_numbers().e.bit_length() > MAX_EXPONENT_BITS:
                raise DkimError(Reason.KEY_TOO_LARGE)

    def verifies(self, algorithm: Algorithm, signature: bytes, digest: bytes) -> bool:
        """Whether `signature` is this key's, of a SHA-256 digest. Raises `DkimError`: a key of another type."""
        if algorithm.key_type != self.key_type:
            raise DkimError(Reason.KEY_MISMATCH)
        try:
            if isinstance(self.key, rsa.RSAPublicKey):
                self.key.verify(signature, digest, PKCS1, SHA256)
            else:
                self.key.verify(signature, digest)
        except InvalidSignature:
            return False
        return True


@functools.lru_cache(maxsize=512)
def parse_record(text: bytes) -> KeyRecord:
    """Read a key record. Raises `DkimError`; with `NO_KEY` for text that is no DKIM record at all.

    Good ones are remembered: decoding a key takes as long as using it, and few senders send most of the mail.
    """
    if len(text) > MAX_RECORD_BYTES:
        raise DkimError(Reason.KEY_SYNTAX)
    try:
        tags = parse_tags(text)
    except TagListError:
        raise DkimError(Reason.KEY_SYNTAX if _claims_dkim(text) else Reason.NO_KEY) from None
    version, public = tags.get("v"), tags.get("p")
    if version is not None and version.value != _VERSION:
        raise DkimError(Reason.NO_KEY)  # to be discarded (RFC 6376 §3.6.1)
    if public is None:
        raise DkimError(Reason.NO_KEY if version is None else Reason.KEY_SYNTAX)
    if version is not None and next(iter(tags)) != "v":
        raise DkimError(Reason.KEY_SYNTAX)
    hashes, services = _words(tags.get("h")), _words(tags.get("s"))
    if (hashes is not None and b"sha256" not in hashes) or (services is not None and not services & {b"*", b"email"}):
        raise DkimError(Reason.KEY_MISMATCH)
    if not public.value:
        raise DkimError(Reason.KEY_REVOKED)
    flags = _words(tags.get("t")) or frozenset()
    key = _public_key(tags["k"].value if "k" in tags else b"rsa", public)
    return KeyRecord(key, b"y" in flags, b"s" in flags)


def choose_record(texts: Sequence[bytes]) -> KeyRecord:
    """The key among the TXT records of a selector. Raises `DkimError`.

    Records for other purposes, such as a wildcard brings along, do not count; several keys make the result undefined
    (RFC 6376 §3.6.2.2), so none is believed.
    """
    found: list[KeyRecord | DkimError] = []
    for text in dict.fromkeys(texts[:MAX_RECORDS]):
        try:
            found.append(parse_record(text))
        except DkimError as error:
            if error.reason is not Reason.NO_KEY:
                found.append(error)
    if not found:
        raise DkimError(Reason.NO_KEY)
    if len(found) > 1:
        raise DkimError(Reason.KEY_AMBIGUOUS)
    if isinstance(found[0], DkimError):
        raise found[0]
    return found[0]


async def fetch_record(resolver: TxtResolver, name: str) -> KeyRecord:
    """The key at `name`, `selector._domainkey.domain`. Raises `DkimError`."""
    try:
        texts = await resolver.txt(name)
    except NameNotFoundError:
        raise DkimError(Reason.NO_KEY) from None
    except TemporaryResolverError:
        raise DkimError(Reason.DNS) from None
    return choose_record(texts)


def publishes(texts: Sequence[bytes], key: PrivateKey) -> bool:
    """Whether the TXT records of a selector let verifiers use `key`, however they are spaced or ordered."""
    try:
        record = choose_record(texts)
    except DkimError:
        return False
    return record.key_type == key.algorithm.key_type and record.key == key.public_key


def _claims_dkim(text: bytes) -> bool:
    return b"".join(text[:64].split()).startswith(b"v=DKIM1")


def _words(tag: Tag | None) -> frozenset[bytes] | None:
    """A list with colons between; None when there is no such tag."""
    return None if tag is None else frozenset(word.strip() for word in tag.value.split(b":"))


def _public_key(key_type: bytes, public: Tag) -> rsa.RSAPublicKey | ed25519.Ed25519PublicKey:
    if key_type not in (b"rsa", b"ed25519"):
        raise DkimError(Reason.NO_KEY)  # to be ignored (RFC 6376 §3.6.1, k=)
    try:
        data = decode_base64(public)
        if key_type == b"ed25519":
            return ed25519.Ed25519PublicKey.from_public_bytes(data)
        # As SubjectPublicKeyInfo, which the RFC's examples and everybody have, or RSAPublicKey, as its text says.
        key = serialization.load_der_public_key(data)
    except (TagListError, ValueError, UnsupportedAlgorithm):
        raise DkimError(Reason.KEY_SYNTAX) from None
    if not isinstance(key, rsa.RSAPublicKey):
        raise DkimError(Reason.KEY_SYNTAX)
    return key
