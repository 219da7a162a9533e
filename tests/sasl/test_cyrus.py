"""Cyrus SASL as the client: what isync, Postfix and others sign in with. The library is called as it is, where Debian
has put it (libsasl2-2, libsasl2-modules).
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from postroom.sasl import MECHANISM, PLUS, SUCCEEDED, Challenge, Exchange, Offer, Proof, Refused, derive_keys

NAME, PASSWORD, SALT = "ann,b=c@example.com", "ap_3vZ0Wq8eJ1uX5tY7oP2aS4dF6gH9kL0m", b"sixteen octets!!"
KEYS = derive_keys(PASSWORD, SALT, 4096)
OFFER = Offer(SALT, 4096, lambda: "a/server/nonce+123")
BINDING = b"\x01\x00" * 16

# sasl.h
_OK, _CONTINUE = 0, 1
_CB_USER, _CB_AUTHNAME, _CB_PASS = 0x4001, 0x4002, 0x4004
_CHANNEL_BINDING = 21

_SIMPLE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_char_p),
    ctypes.POINTER(ctypes.c_uint),
)
_SECRET = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)
)


class _Callback(ctypes.Structure):
    _fields_ = (("id", ctypes.c_ulong), ("proc", ctypes.c_void_p), ("context", ctypes.c_void_p))


class _Binding(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("critical", ctypes.c_int),
        ("len", ctypes.c_ulong),
        ("data", ctypes.c_char_p),
    )


@pytest.fixture(scope="module")
def cyrus() -> ctypes.CDLL:
    if not list(Path("/usr/lib").glob("*/sasl2/libscram.so*")):
        pytest.skip("needs Cyrus SASL with SCRAM (libsasl2-modules)")
    library = ctypes.CDLL("libsasl2.so.2")
    assert library.sasl_client_init(None) == _OK
    return library


class Cyrus:
    """One client connection of the library."""

    def __init__(self, library: ctypes.CDLL, name: str, password: str, binding: bytes | None) -> None:
        self._library = library
        self._name = name.encode()
        secret = password.encode()
        # sasl_secret_t: the length, then the octets.
        held = len(secret).to_bytes(ctypes.sizeof(ctypes.c_ulong), "little") + secret + b"\0"
        self._secret = ctypes.create_string_buffer(held)
        self._kept: list[Any] = [_SIMPLE(self._simple), _SECRET(self._password)]
        simple, asked = (ctypes.cast(one, ctypes.c_void_p).value for one in self._kept)
        self._callbacks = (_Callback * 4)(
            _Callback(_CB_USER, simple, None),
            _Callback(_CB_AUTHNAME, simple, None),
            _Callback(_CB_PASS, asked, None),
            _Callback(0, None, None),
        )
        self._connection = ctypes.c_void_p()
        made = library.sasl_client_new(
            b"imap", b"localhost", None, None, self._callbacks, 0, ctypes.byref(self._connection)
        )
        assert made == _OK
        if binding is not None:
            self._binding = _Binding(b"tls-server-end-point", 0, len(binding), binding)
            assert library.sasl_setprop(self._connection, _CHANNEL_BINDING, ctypes.byref(self._binding)) == _OK

    def _simple(self, context: Any, wanted: int, result: Any, length: Any) -> int:
        result[0] = self._name if wanted == _CB_AUTHNAME else b""
        if length:
            length[0] = len(self._name) if wanted == _CB_AUTHNAME else 0
        return _OK

    def _password(self, connection: Any, context: Any, wanted: int, result: Any) -> int:
        result[0] = ctypes.addressof(self._secret)
        return _OK

    def start(self, mechanism: str) -> tuple[int, bytes]:
        chosen = ctypes.c_char_p()
        return self._call(
            lambda out, size: self._library.sasl_client_start(
                self._connection, mechanism.encode(), None, out, size, ctypes.byref(chosen)
            )
        )

    def step(self, challenge: bytes) -> tuple[int, bytes]:
        return self._call(
            lambda out, size: self._library.sasl_client_step(
                self._connection, challenge, len(challenge), None, out, size
            )
        )

    def _call(self, work: Callable[[Any, Any], int]) -> tuple[int, bytes]:
        out, size = ctypes.c_void_p(), ctypes.c_uint()
        code = work(ctypes.byref(out), ctypes.byref(size))
        return code, ctypes.string_at(out, size.value) if out.value else b""

    def close(self) -> None:
        self._library.sasl_dispose(ctypes.byref(self._connection))


@contextmanager
def client(library: ctypes.CDLL, password: str = PASSWORD, binding: bytes | None = None) -> Iterator[Cyrus]:
    made = Cyrus(library, NAME, password, binding)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.covers("RFC 5802 §5", "RFC 5802 §6", "RFC 7677", "RFC 5929 §4")
@pytest.mark.parametrize("mechanism", [MECHANISM, PLUS])
def test_cyrus_signs_in_and_believes_us(cyrus: ctypes.CDLL, mechanism: str) -> None:
    binding = BINDING if mechanism == PLUS else None
    with client(cyrus, binding=binding) as ann:
        exchange = Exchange(mechanism, OFFER, binding)
        code, first = ann.start(mechanism)
        assert code == _CONTINUE
        assert first.startswith(b"p=tls-server-end-point,," if binding else b"n,,")
        step = exchange.respond(first)
        assert isinstance(step, Challenge)
        code, final = ann.step(step.data)
        assert code == _CONTINUE
        proof = exchange.respond(final)
        assert isinstance(proof, Proof)
        assert proof.username == NAME
        signature = proof.verified(KEYS)
        assert signature is not None
        code, last = ann.step(exchange.accept(signature).data)
        assert (code, last) == (_OK, b"")
        assert exchange.respond(last) is SUCCEEDED


@pytest.mark.covers("RFC 5802 §3", "RFC 5802 §6")
def test_cyrus_is_refused_and_refuses(cyrus: ctypes.CDLL) -> None:
    # Another password; the binding of another certificate; a server that has other keys.
    with client(cyrus, "ap_wrong") as ann:
        exchange = Exchange(MECHANISM, OFFER, None)
        step = exchange.respond(ann.start(MECHANISM)[1])
        assert isinstance(step, Challenge)
        proof = exchange.respond(ann.step(step.data)[1])
        assert isinstance(proof, Proof)
        assert proof.verified(KEYS) is None
    with client(cyrus, binding=BINDING[::-1]) as ann:
        exchange = Exchange(PLUS, OFFER, BINDING)
        step = exchange.respond(ann.start(PLUS)[1])
        assert isinstance(step, Challenge)
        assert isinstance(exchange.respond(ann.step(step.data)[1]), Refused)
    with client(cyrus) as ann:
        exchange = Exchange(MECHANISM, OFFER, None)
        step = exchange.respond(ann.start(MECHANISM)[1])
        assert isinstance(step, Challenge)
        assert isinstance(exchange.respond(ann.step(step.data)[1]), Proof)
        assert ann.step(exchange.accept(b"x" * 32).data)[0] < 0
