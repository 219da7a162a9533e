"""A browser with an authenticator, in software: what it is asked and answers has the words of WebAuthn Level 3 §5.1.

Octets are put together here by hand (§6.1, §6.5), so that what checks them is not what made them; only CBOR is the
library's. Every part can be made wrong.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fido2 import cbor

from postroom.accounts.passkeys import Assertion, Registration, RelyingParty

ORIGIN: Final = "https://api.example"
PARTY: Final = RelyingParty("api.example", "Postroom (agents.example)", frozenset({ORIGIN}))
ES256, EDDSA, RS256 = -7, -8, -257
UP, UV, BE, BS, AT, ED = 0x01, 0x04, 0x08, 0x10, 0x40, 0x80
SYNCED: Final = UP | UV | BE | BS
BOUND: Final = UP | UV

Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def octets(data: str) -> bytes:
    return base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))


def new_key(algorithm: int = ES256, rsa_bits: int = 2048) -> Key:
    if algorithm == ES256:
        return ec.generate_private_key(ec.SECP256R1())
    if algorithm == EDDSA:
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, rsa_bits)


def cose(key: Key) -> dict[int, Any]:
    """RFC 9053 §7, RFC 8230 §4."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        point = key.public_key().public_numbers()
        return {1: 2, 3: ES256, -1: 1, -2: point.x.to_bytes(32, "big"), -3: point.y.to_bytes(32, "big")}
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return {1: 1, 3: EDDSA, -1: 6, -2: key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)}
    numbers = key.public_key().public_numbers()
    size = (numbers.n.bit_length() + 7) // 8
    return {1: 3, 3: RS256, -1: numbers.n.to_bytes(size, "big"), -2: numbers.e.to_bytes(3, "big")}


def signed(key: Key, data: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(data)
    return key.sign(data, padding.PKCS1v15(), hashes.SHA256())


@dataclass
class Authenticator:
    """One passkey. `counter` is what it says next; with `counts` it says one more each time."""

    origin: str = ORIGIN
    party: str = PARTY.id
    flags: int = SYNCED
    counter: int = 0
    counts: bool = False
    key: Key = field(default_factory=new_key)
    credential_id: bytes = field(default_factory=lambda: os.urandom(16))
    handle: bytes | None = None

    def create(self, options: Mapping[str, Any], **wrong: Any) -> dict[str, Any]:
        """`RegistrationResponseJSON` for `PublicKeyCredentialCreationOptionsJSON`."""
        self.handle = octets(options["user"]["id"])
        made = struct.pack(">16sH", bytes(16), len(self.credential_id)) + self.credential_id
        made += wrong.get("cose", cbor.encode(wrong.get("key", cose(self.key))))
        data = self._data(wrong.get("flags", self.flags) | AT) + made
        attestation = {"fmt": "none", "attStmt": {}, "authData": data} | wrong.get("attestation", {})
        return self._credential(
            {
                "clientDataJSON": text(self.client_data("webauthn.create", options["challenge"], **wrong)),
                "attestationObject": text(wrong.get("object", cbor.encode(attestation))),
                "transports": ["internal", "hybrid"],
            },
            **wrong,
        )

    def get(self, options: Mapping[str, Any], **wrong: Any) -> dict[str, Any]:
        """`AuthenticationResponseJSON` for `PublicKeyCredentialRequestOptionsJSON`."""
        client_data = self.client_data("webauthn.get", options["challenge"], **wrong)
        if self.counts:
            self.counter += 1
        data = self._data(wrong.get("flags", self.flags))
        signature = signed(wrong.get("signer", self.key), data + hashlib.sha256(client_data).digest())
        answer = {
            "clientDataJSON": text(client_data),
            "authenticatorData": text(wrong.get("data", data)),
            "signature": text(wrong.get("signature", signature)),
        }
        handle = wrong.get("handle", self.handle)
        if handle is not None:
            answer["userHandle"] = text(handle)
        return self._credential(answer, **wrong)

    def client_data(self, kind: str, challenge: str, **wrong: Any) -> bytes:
        """§5.8.1."""
        said = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}
        return json.dumps(said | wrong.get("client", {}), separators=(",", ":")).encode()

    def _data(self, flags: int) -> bytes:
        return hashlib.sha256(self.party.encode()).digest() + struct.pack(">BI", flags, self.counter)

    def _credential(self, response: dict[str, Any], **wrong: Any) -> dict[str, Any]:
        name = text(wrong.get("credential_id", self.credential_id))
        return {
            "id": name,
            "rawId": name,
            "type": "public-key",
            "response": response,
            "clientExtensionResults": {},
            "authenticatorAttachment": "platform",
        }


def registration(answer: Mapping[str, Any]) -> Registration:
    """The answer as the server has it behind its edge."""
    response = answer["response"]
    return Registration(
        octets(answer["id"]), octets(response["clientDataJSON"]), octets(response["attestationObject"]), ("internal",)
    )


def assertion(answer: Mapping[str, Any]) -> Assertion:
    response = answer["response"]
    handle = response.get("userHandle")
    return Assertion(
        octets(answer["id"]),
        octets(response["clientDataJSON"]),
        octets(response["authenticatorData"]),
        octets(response["signature"]),
        None if handle is None else octets(handle),
    )
