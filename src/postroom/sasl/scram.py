"""SCRAM-SHA-256 (RFC 5802, RFC 7677): what the messages say, and what is computed of them; the server's side.

Everything that comes from the client is bounded, and read by a grammar that leaves no room: a message means one thing,
or is refused. Names of the RFC are kept: client-first-message, AuthMessage, StoredKey, ServerKey.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from postroom.sasl.prep import PrepError, saslprep

MECHANISM: Final = "SCRAM-SHA-256"
PLUS: Final = "SCRAM-SHA-256-PLUS"
BINDING_TYPE: Final = "tls-server-end-point"
"""The one kind of channel binding that is had here (RFC 5929 §4). For tls-exporter (RFC 9266) Python's `ssl` gives out
too little, and tls-unique is not defined for TLS 1.3."""

MIN_ITERATIONS: Final = 4096
"""RFC 7677 §4."""
KEY_BYTES: Final = 32
MAX_MESSAGE: Final = 4096
"""Octets of a message of the client."""
MAX_NAME: Final = 1024
"""Octets of a user name as it is sent."""
MAX_NONCE: Final = 256
"""Characters of the client's part."""

# RFC 5802 §7. The letters that mean something may not come again as extensions; others may, and mean nothing to us.
_EXTENSION: Final = r"(?:,[A-Zbdfghjkloqtuwxyz]=[^,\0]+)*"
_FIRST: Final = re.compile(
    rf"(?P<header>(?:p=(?P<binding>[A-Za-z0-9.-]{{1,64}})|(?P<flag>[ny])),(?:a=(?P<authzid>[^,\0]+))?,)"
    rf"(?P<bare>(?P<mandatory>m=[^,\0]+,)?n=(?P<name>[^,\0]*),r=(?P<nonce>[!-+\--~]{{1,{MAX_NONCE}}}){_EXTENSION})"
)
_FINAL: Final = re.compile(
    rf"(?P<unproven>c=(?P<binding>[A-Za-z0-9+/]+={{0,2}}),r=(?P<nonce>[!-+\--~]+){_EXTENSION})"
    r",p=(?P<proof>[A-Za-z0-9+/]+={0,2})"
)
_NAME: Final = re.compile(r"(?:[^=]|=2C|=3D)+")
_NONCE: Final = re.compile(r"[!-+\--~]+")


class ServerError(StrEnum):
    """server-error-value (RFC 5802 §7): why it came to nothing."""

    INVALID_ENCODING = "invalid-encoding"
    EXTENSIONS_NOT_SUPPORTED = "extensions-not-supported"
    INVALID_PROOF = "invalid-proof"
    BINDINGS_DO_NOT_MATCH = "channel-bindings-dont-match"
    BINDING_SUPPORTED = "server-does-support-channel-binding"
    BINDING_NOT_SUPPORTED = "channel-binding-not-supported"
    BINDING_TYPE_NOT_SUPPORTED = "unsupported-channel-binding-type"
    INVALID_USERNAME = "invalid-username-encoding"
    OTHER = "other-error"


class ScramError(Exception):
    """The client's message ends the exchange."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(error.value)
        self.error = error


@dataclass(frozen=True, slots=True)
class Keys:
    """What the server keeps of a password (RFC 5802 §3): neither signs in, but see decision 0054 on what they are
    good for to a thief.
    """

    stored: bytes = field(repr=False)
    """StoredKey, 32 octets."""
    server: bytes = field(repr=False)
    """ServerKey, 32 octets."""


def derive_keys(password: str, salt: bytes, iterations: int) -> Keys:
    """The keys of a password, by PBKDF2 (RFC 5802 §2.2, §3). Takes `iterations` HMACs: 1.4 ms for 4,096.

    Raises `PrepError` for a password that SASLprep refuses or leaves nothing of, `ValueError` for fewer iterations
    than RFC 7677 allows, or no salt.
    """
    prepared = saslprep(password, stored=True)
    if not prepared:
        raise PrepError("nothing is left")
    if iterations < MIN_ITERATIONS or not salt:
        raise ValueError("SCRAM-SHA-256 wants a salt and 4,096 iterations")
    salted = hashlib.pbkdf2_hmac("sha256", prepared.encode(), salt, iterations)
    stored = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return Keys(stored, _hmac(salted, b"Server Key"))


@dataclass(frozen=True, slots=True)
class Proof:
    """What a client claims, and its proof: that it has the password of some `Keys`, and talks to us now, here.

    `username` is as SASLprep leaves it.
    """

    mechanism: str
    username: str
    auth_message: bytes = field(repr=False)
    """AuthMessage: all that both have said."""
    client_proof: bytes = field(repr=False)

    def verified(self, keys: Keys) -> bytes | None:
        """ServerSignature, if the proof is one of these keys; None if not. The comparison takes constant time."""
        signature = _hmac(keys.stored, self.auth_message)
        client_key = (int.from_bytes(self.client_proof) ^ int.from_bytes(signature)).to_bytes(KEY_BYTES)
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), keys.stored):
            return None
        return _hmac(keys.server, self.auth_message)


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """A client-first-message that may go on."""

    username: str
    header: bytes
    """The GS2 header, which client-final-message has to repeat."""
    bare: bytes
    nonce: str
    bound: bool
    """Whether the channel is to be bound."""


def read_first(message: bytes, mechanism: str, *, binding_offered: bool) -> ClientFirst:
    """Read client-first-message. `binding_offered`: the -PLUS mechanism was there to choose. Raises `ScramError`."""
    found = _FIRST.fullmatch(_text(message))
    if found is None:
        raise ScramError(ServerError.OTHER)
    _check_flag(found["flag"], found["binding"], mechanism, binding_offered=binding_offered)
    if found["mandatory"] is not None:
        raise ScramError(ServerError.EXTENSIONS_NOT_SUPPORTED)
    username = _name(found["name"])
    # Acting as somebody else needs a right that nobody has here (RFC 5802 §5.1, as RFC 4616 §2 for PLAIN).
    if found["authzid"] is not None and _name(found["authzid"]).lower() != username.lower():
        raise ScramError(ServerError.OTHER)
    return ClientFirst(
        username, found["header"].encode(), found["bare"].encode(), found["nonce"], found["binding"] is not None
    )


def _check_flag(flag: str | None, binding: str | None, mechanism: str, *, binding_offered: bool) -> None:
    """RFC 5802 §6, RFC 5801 §5.1."""
    if mechanism == PLUS:
        if flag is not None:
            raise ScramError(ServerError.OTHER)  # who chooses -PLUS binds
        if binding != BINDING_TYPE:
            raise ScramError(ServerError.BINDING_TYPE_NOT_SUPPORTED)
    elif binding is not None:
        raise ScramError(ServerError.BINDING_NOT_SUPPORTED)
    elif flag == "y" and binding_offered:
        # It could bind and saw no -PLUS: somebody between us took that from the list.
        raise ScramError(ServerError.BINDING_SUPPORTED)


def write_first(client_nonce: str, server_nonce: str, salt: bytes, iterations: int) -> bytes:
    """server-first-message. Raises `ValueError` for a nonce of ours that is none."""
    if _NONCE.fullmatch(server_nonce) is None:
        raise ValueError("a nonce is printable, without a comma")
    return b"r=%b%b,s=%b,i=%d" % (client_nonce.encode(), server_nonce.encode(), _base64(salt), iterations)


def read_final(
    message: bytes, first: ClientFirst, server_first: bytes, server_nonce: str, binding: bytes | None, mechanism: str
) -> Proof:
    """Read client-final-message: the proof it brings, which is still to be verified. `binding` is what binds to this
    very channel. Raises `ScramError`.
    """
    found = _FINAL.fullmatch(_text(message))
    if found is None:
        raise ScramError(ServerError.OTHER)
    expected = first.header + ((binding or b"") if first.bound else b"")
    if not hmac.compare_digest(_unbase64(found["binding"]), expected):
        raise ScramError(ServerError.BINDINGS_DO_NOT_MATCH)
    if not hmac.compare_digest(found["nonce"], first.nonce + server_nonce):
        raise ScramError(ServerError.OTHER)
    proof = _unbase64(found["proof"])
    if len(proof) != KEY_BYTES:
        raise ScramError(ServerError.INVALID_PROOF)
    auth_message = b",".join((first.bare, server_first, found["unproven"].encode()))
    return Proof(mechanism, first.username, auth_message, proof)


def write_final(signature: bytes) -> bytes:
    """server-final-message, with ServerSignature."""
    return b"v=" + _base64(signature)


def _text(message: bytes) -> str:
    if len(message) > MAX_MESSAGE:
        raise ScramError(ServerError.OTHER)
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        raise ScramError(ServerError.INVALID_ENCODING) from None


def _name(text: str) -> str:
    """saslname (RFC 5802 §7): a comma and an equals sign are written in another way."""
    if len(text.encode()) > MAX_NAME or _NAME.fullmatch(text) is None:
        raise ScramError(ServerError.INVALID_USERNAME)
    try:
        name = saslprep(text.replace("=2C", ",").replace("=3D", "="))
    except PrepError:
        raise ScramError(ServerError.INVALID_USERNAME) from None
    if not name:
        raise ScramError(ServerError.INVALID_USERNAME)
    return name


def _unbase64(text: str) -> bytes:
    """One text for one value: bits that mean nothing have to be zero (RFC 4648 §3.5)."""
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        raise ScramError(ServerError.INVALID_ENCODING) from None
    if _base64(data) != text.encode():
        raise ScramError(ServerError.INVALID_ENCODING)
    return data


def _base64(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False)


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")
