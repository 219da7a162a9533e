"""The envelope of sealed values (security-privacy A7): what opens, and all that does not."""

from __future__ import annotations

import base64
import hashlib
import io
import traceback

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from postroom.base import log as base_log
from postroom.base.sealed_columns import (
    DKIM_KEY,
    REGISTRY,
    SCRAM_KEYS,
    SIGNING_KEY,
    TOTP_PENDING,
    TOTP_SECRET,
    WEBHOOK_PREVIOUS,
    WEBHOOK_SECRET,
    SealedColumn,
)
from postroom.base.sealing import Keyring, TokenSeal, UnknownKeyError, UnsealError, kid_of, sealed_under
from tests.base.old_seals import NONCE, old_seal

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
ROWS: dict[SealedColumn, tuple[object, ...]] = {
    SIGNING_KEY: ("thread", "0"),
    DKIM_KEY: (7, "pm1"),
    TOTP_SECRET: (7,),
    TOTP_PENDING: (7,),
    SCRAM_KEYS: ("apw_01JZ0000000000000000000000",),
    WEBHOOK_SECRET: (7,),
    WEBHOOK_PREVIOUS: (7,),
}

values = st.binary(max_size=200)
columns = st.sampled_from(REGISTRY)
of_before = st.sampled_from([one for one in REGISTRY if one.before is not None])


@pytest.mark.covers("security-privacy:A7", "SEC-11")
@given(columns, values)
def test_round_trip(column: SealedColumn, value: bytes) -> None:
    ring = Keyring(A)
    sealed = ring.seal(column, value, *ROWS[column])
    assert ring.open(column, sealed, *ROWS[column]) == value
    assert sealed_under(sealed) == ring.active
    assert ring.seal(column, value, *ROWS[column]) != sealed


@pytest.mark.covers("security-privacy:A7")
@given(columns, values)
def test_the_envelope_is_as_it_is_written_down(column: SealedColumn, value: bytes) -> None:
    """An oracle of its own: kid, nonce, ciphertext and associated data put together by hand."""
    row = ROWS[column]
    ring = Keyring(A, random=lambda n: NONCE[:n])
    place = f"pm1|{column.table}|{column.column}|{':'.join(map(str, row))}".encode()
    parts = (NONCE, AESGCM(A).encrypt(NONCE, value, place))
    texts = [base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts]
    kid = hashlib.sha256(A).hexdigest()[:16]
    assert ring.seal(column, value, *row) == f"pm1.{kid}.{'.'.join(texts)}".encode()


@pytest.mark.covers("security-privacy:A7")
def test_vectors() -> None:
    """What was stored once opens for ever."""
    ring = Keyring(bytes(range(32)), random=lambda n: NONCE[:n])
    sealed = ring.seal(SIGNING_KEY, b"\x00" * 32, "thread", "0")
    assert sealed == VECTOR
    assert ring.open(SIGNING_KEY, VECTOR, "thread", "0") == b"\x00" * 32


VECTOR = b"pm1.630dcd2966c43366.AAECAwQFBgcICQoL.RwLWG8XlwhuNQZeLsel4bYPWhzTwe198OGflhR1pALJjqTLhoXkXHGdEpDNdVwoy"


@pytest.mark.covers("security-privacy:A7")
@given(columns, values, st.data())
def test_any_other_bit_does_not_open(column: SealedColumn, value: bytes, data: st.DataObject) -> None:
    ring = Keyring(A, B)
    sealed = bytearray(ring.seal(column, value, *ROWS[column]))
    at = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[at // 8] ^= 1 << at % 8
    with pytest.raises(UnsealError):
        ring.open(column, bytes(sealed), *ROWS[column])


@given(columns, st.one_of(st.binary(max_size=120), st.from_regex(rb"pm1\.[0-9a-f]{16}\.[\w-]{14,18}\.[\w-]{0,40}")))
def test_hostile_octets_do_not_open(column: SealedColumn, octets: bytes) -> None:
    with pytest.raises(UnsealError):
        Keyring(A).open(column, octets, *ROWS[column])


@pytest.mark.covers("security-privacy:A7")
@pytest.mark.parametrize("column", REGISTRY, ids=lambda column: column.name)
@pytest.mark.parametrize("other", REGISTRY, ids=lambda column: column.name)
def test_a_value_opens_in_its_own_place_alone(column: SealedColumn, other: SealedColumn) -> None:
    ring = Keyring(A)
    sealed = ring.seal(column, b"value", *ROWS[column])
    if other != column:
        with pytest.raises(UnsealError):
            ring.open(other, sealed, *ROWS[other])
        return
    for at, part in enumerate(ROWS[column]):
        moved = [*ROWS[column]]
        moved[at] = f"{part}1"
        with pytest.raises(UnsealError):
            ring.open(column, sealed, *moved)


def test_the_parts_of_a_row_cannot_be_told_apart_otherwise() -> None:
    ring = Keyring(A)
    for row in ((), ("thread",), ("thread", "0", "1"), ("thread:0", "1"), ("thread|", "0"), ("", "0")):
        with pytest.raises(ValueError, match=r"no row of signing_keys\.sealed"):
            ring.seal(SIGNING_KEY, b"value", *row)


@pytest.mark.covers("security-privacy:A6.3")
def test_the_key_is_found_by_its_id() -> None:
    old, both, turned, new = Keyring(A), Keyring(A, B), Keyring(B, A), Keyring(B)
    of_a, of_b = (ring.seal(TOTP_SECRET, b"value", 7) for ring in (both, turned))
    assert (sealed_under(of_a), sealed_under(of_b)) == (kid_of(A), kid_of(B))
    for ring, sealed in ((old, of_a), (both, of_a), (both, of_b), (turned, of_a), (turned, of_b), (new, of_b)):
        assert ring.open(TOTP_SECRET, sealed, 7) == b"value"
    with pytest.raises(UnknownKeyError, match=kid_of(B)) as caught:
        old.open(TOTP_SECRET, of_b, 7)
    assert caught.value.kid == kid_of(B)
    # Under the name of another key it does not open either.
    with pytest.raises(UnsealError):
        both.open(TOTP_SECRET, of_a.replace(kid_of(A).encode(), kid_of(B).encode()), 7)


@pytest.mark.covers("security-privacy:A6.3")
def test_a_ring_that_is_replaced() -> None:
    ring = Keyring(A)
    sealed = ring.seal(TOTP_SECRET, b"value", 7)
    ring.replace(B, A)
    assert (ring.active, ring.kids) == (kid_of(B), (kid_of(B), kid_of(A)))
    assert ring.open(TOTP_SECRET, sealed, 7) == b"value"
    for wrong in ((B, B), (b"short", A), (A, b"")):
        with pytest.raises(ValueError, match=r"32 octets|twice"):
            ring.replace(*wrong)
    assert ring.active == kid_of(B)


@given(of_before, values)
def test_values_of_before_open(column: SealedColumn, value: bytes) -> None:
    assert column.before is not None
    row = ROWS[column]
    sealed = old_seal(A, column.before.purpose, column.before.place.format(*row), value)
    assert sealed_under(sealed) is None
    for ring in (Keyring(A), Keyring(B, A)):
        assert ring.open(column, sealed, *row) == value
    for ring, place in ((Keyring(C), row), (Keyring(A), tuple(f"{part}1" for part in row))):
        with pytest.raises(UnsealError):
            ring.open(column, sealed, *place)


@pytest.mark.covers("SEC-11")
def test_nothing_tells_a_key_or_a_value() -> None:
    secret, value = b"master-canary-0123456789abcdefgh", b"value-canary"
    ring = Keyring(secret)
    sealed = ring.seal(TOTP_SECRET, value, 7)
    shown = [repr(ring), str(ring), repr(ring._keys), repr(vars(ring))]
    for opener, octets in ((Keyring(A), sealed), (ring, sealed[:-3]), (ring, value), (ring, b"\x01" + value)):
        try:
            opener.open(TOTP_SECRET, octets, 7)
        except UnsealError as error:
            shown += [repr(error), *traceback.format_exception(error)]
            out = io.StringIO()
            base_log.configure("info", "json", out)
            base_log.get("test").error("sealed_value_unusable", master_kid=error.kid, exc_info=error)
            base_log.configure("critical", "text")
            shown.append(out.getvalue())
    for text in shown:
        for canary in (secret, value, sealed):
            assert canary.decode() not in text
            assert canary.hex() not in text


def test_tokens_open_for_their_key_their_purpose_and_what_they_are_bound_to() -> None:
    seal = TokenSeal(b"s" * 32, "one")
    sealed = seal.seal(b"value", b"bound")
    assert seal.open(sealed, b"bound") == b"value"
    assert b"value" not in sealed
    others = (TokenSeal(b"t" * 32, "one"), TokenSeal(b"s" * 32, "two"))
    for other, text, bound in (
        *((one, sealed, b"bound") for one in others),
        (seal, sealed, b"other"),
        *(
            (seal, one, b"bound")
            for one in (b"", b"x", sealed[:-1], sealed + b"x", bytes([sealed[0] ^ 1]) + sealed[1:])
        ),
    ):
        with pytest.raises(UnsealError):
            other.open(text, bound)
