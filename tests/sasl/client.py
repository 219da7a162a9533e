"""The client's half of SCRAM (RFC 5802), written a second time, from the text and in other ways than the server's.

PBKDF2 is its loop of HMACs here, messages are split by hand. It checks what the server says.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field


def hi(password: bytes, salt: bytes, count: int) -> bytes:
    """Hi() of RFC 5802 §2.2."""
    last = hmac.new(password, salt + b"\x00\x00\x00\x01", hashlib.sha256).digest()
    total = int.from_bytes(last, "big")
    for _ in range(count - 1):
        last = hmac.new(password, last, hashlib.sha256).digest()
        total ^= int.from_bytes(last, "big")
    return total.to_bytes(32, "big")


@dataclass
class Client:
    """`binding` with the -PLUS mechanism; `flag` is the GS2 flag without it."""

    username: str
    password: str
    binding: bytes | None = None
    flag: str = "n"
    authzid: str = ""
    binding_type: str = "tls-server-end-point"
    nonce: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    auth_message: bytes = b""
    salted: bytes = b""

    @property
    def header(self) -> str:
        flag = self.flag if self.binding is None else f"p={self.binding_type}"
        return f"{flag},{'a=' + escaped(self.authzid) if self.authzid else ''},"

    @property
    def bare(self) -> str:
        return f"n={escaped(self.username)},r={self.nonce}"

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, server_first: bytes) -> bytes:
        parts = server_first.decode().split(",")
        assert [part[:2] for part in parts] == ["r=", "s=", "i="]
        nonce, salt, count = (part[2:] for part in parts)
        assert nonce.startswith(self.nonce)
        assert len(nonce) >= len(self.nonce) + 18
        assert int(count) >= 4096
        self.salted = hi(self.password.encode(), base64.b64decode(salt, validate=True), int(count))
        bound = base64.b64encode(self.header.encode() + (self.binding or b"")).decode()
        unproven = f"c={bound},r={nonce}".encode()
        self.auth_message = self.bare.encode() + b"," + server_first + b"," + unproven
        key = hmac.new(self.salted, b"Client Key", hashlib.sha256).digest()
        signature = hmac.new(hashlib.sha256(key).digest(), self.auth_message, hashlib.sha256).digest()
        proof = (int.from_bytes(key, "big") ^ int.from_bytes(signature, "big")).to_bytes(32, "big")
        return unproven + b",p=" + base64.b64encode(proof)

    def check(self, server_final: bytes) -> None:
        """AssertionError when the server has not our keys."""
        key = hmac.new(self.salted, b"Server Key", hashlib.sha256).digest()
        wanted = hmac.new(key, self.auth_message, hashlib.sha256).digest()
        assert server_final == b"v=" + base64.b64encode(wanted)


def escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")
